package slurm

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
)

// Severity says how much a [Finding] matters.
type Severity string

// The severities.
const (
	// SeverityError is of what cannot do what was meant, here and mostly in Slurm either.
	SeverityError Severity = "error"
	// SeverityWarning is of what is otherwise here than in Slurm, and of keys that nobody knows.
	SeverityWarning Severity = "warning"
	// SeverityNote is of what means nothing here, or is so here anyway.
	SeverityNote Severity = "note"
)

// rank is greater for what matters more.
func (s Severity) rank() int {
	return slices.Index([]Severity{SeverityNote, SeverityWarning, SeverityError}, s)
}

// Finding is something to be known about a line of a configuration.
type Finding struct {
	File     string   `json:"file"`           // its base name
	Line     int      `json:"line,omitempty"` // where the logical line begins; 0: the file as a whole
	Severity Severity `json:"severity"`
	Key      string   `json:"key,omitempty"` // of the line; empty: all of it
	Value    string   `json:"value,omitempty"`
	Text     string   `json:"text"`              // what is the matter
	Remedy   string   `json:"remedy,omitempty"`  // what to do; empty: nothing need be
	Refused  bool     `json:"refused,omitempty"` // "gangway up" and "gangway sim" do not take the files
}

// String is as a compiler would say it.
func (f Finding) String() string {
	at := f.File
	if f.Line > 0 {
		at = fmt.Sprintf("%s:%d", f.File, f.Line)
	}
	return at + ": " + string(f.Severity) + ": " + f.subject() + f.Text
}

// subject is what the text is about, with a colon.
func (f Finding) subject() string {
	switch {
	case f.Key == "":
		return ""
	case f.Value == "":
		return f.Key + ": "
	}
	return f.Key + "=" + quoted(f.Value) + ": "
}

// maxFindings is how many are kept of each severity: nobody reads more, and a file of the
// largest size may have one a line. All are counted.
const maxFindings = 10_000

// lineError is what is wrong with a line as a whole.
type lineError struct {
	file   string
	number int
	err    error
}

func (e *lineError) Error() string { return fmt.Sprintf("%s:%d: %v", e.file, e.number, e.err) }
func (e *lineError) Unwrap() error { return e.err }

// add keeps what was found at a line. What a line has from a DEFAULT one is said there.
func (r *reader) add(l line, f Finding) {
	if r.quiet {
		return
	}
	if r.found[f.Severity]++; r.found[f.Severity] > maxFindings {
		return
	}
	f.File, f.Line = cmp.Or(f.File, l.file), cmp.Or(f.Line, l.number)
	r.findings = append(r.findings, f)
}

// say adds a finding that those are told of who use the files, too.
func (r *reader) say(l line, s Severity, p pair, text, remedy string) {
	f := Finding{Severity: s, Key: p.key, Value: p.value, Text: text, Remedy: remedy}
	if !r.quiet && r.found[s] < maxFindings {
		r.cluster.Warnings = append(r.cluster.Warnings, Warning{l.file, l.number, f.subject() + text})
	}
	r.add(l, f)
}

// warn says that something is read in one way and may have been meant in another.
func (r *reader) warn(l line, p pair, remedy, format string, args ...any) {
	r.say(l, SeverityWarning, p, fmt.Sprintf(format, args...), remedy)
}

// cannot says that something cannot do what was meant by it.
func (r *reader) cannot(l line, p pair, remedy, format string, args ...any) {
	r.say(l, SeverityError, p, fmt.Sprintf(format, args...), remedy)
}

// fail adds an error of reading a line. The files are refused if it was needed.
func (r *reader) fail(l line, err error, needed bool) {
	if r.quiet {
		return
	}
	f := Finding{Severity: SeverityError, Text: err.Error(), Remedy: "mend it, or leave it out: gangway up and gangway sim refuse it", Refused: needed}
	if value, ok := errors.AsType[*SyntaxError](err); ok && value.File != "" {
		f.File, f.Line, f.Key, f.Value, f.Text = value.File, value.Line, value.Key, value.Value, "want "+value.Want
	} else if whole, ok := errors.AsType[*lineError](err); ok {
		f.File, f.Line, f.Text = whole.file, whole.number, whole.err.Error()
	}
	if !needed {
		f.Remedy = "mend it, or leave it out"
		r.say(l, f.Severity, pair{f.Key, f.Value}, f.Text, f.Remedy)
		return
	}
	r.add(l, f)
	if r.failed == nil {
		r.failed = err
	}
	r.failures++
}
