// Package fault is the error as a person sees it: what went wrong, why, what
// to type next and where to look, and the exit code that goes with it.
//
// Inside the program errors are ordinary wrapped errors ("verb object: %w").
// Only where somebody knows a cause or a remedy is an [Error] put around one;
// callers may wrap it further, and errors.Is and errors.As see through it. The
// rim of the program then calls [Text] to print it and [Code] to exit:
//
//	return &fault.Error{
//		What:  fmt.Errorf("open image %s: %w", path, err),
//		Cause: "the file ends after 96 of 4096 bytes",
//		Hint:  "copy it again, then try: gangway squashfs check " + path,
//	}
//
// The package probes nothing, prints nothing and keeps no state; all of it may
// be used by any number of goroutines.
package fault

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Error is an error made for a person. The zero value of every field but What
// means "nothing to say", and Text leaves out the line.
type Error struct {
	What  error  // what was being done and what happened; never nil
	Cause string // why, as probed on this machine; never a guess
	Hint  string // what to do or type next
	See   string // where to read more: a command or a page
	Code  int    // exit code; 0 means CodeFailed
}

// Error returns the text of What alone, so that wrapping an Error reads like
// wrapping the error inside it.
func (e *Error) Error() string { return e.What.Error() }

// Unwrap returns What.
func (e *Error) Unwrap() error { return e.What }

// Usage says that the command line is wrong: exit code 2 and, as hint, what to
// type instead.
func Usage(what error, hint string) error {
	return &Error{What: what, Hint: hint, Code: CodeUsage}
}

// Text formats err for people: at most four lines, each ended by a newline and
// begun by the program's name.
//
//	gangway: error: start container on node gpu07: create user namespace: operation not permitted
//	gangway: cause: kernel.apparmor_restrict_unprivileged_userns is 1 on gpu07
//	gangway: hint:  install the profile that the package ships: gangway doctor --fix apparmor
//	gangway: see:   gangway show job 4711
//
// The first line is the whole of err. The others come from the Errors in err's
// chain, an outer one before an inner one. With color the word "error:" is bold
// red. Whatever the texts contain, the lines stay four and the terminal unharmed:
// line breaks become "; " and other control characters are shown escaped.
func Text(program string, err error, color bool) string {
	f := merge(err)
	word := "error:"
	if color {
		word = "\x1b[1;31merror:\x1b[0m"
	}
	var b strings.Builder
	line := func(label, text string) {
		if text = printable(text); text != "" {
			fmt.Fprintf(&b, "%s: %s %s\n", program, label, text)
		}
	}
	what := err.Error()
	if printable(what) == "" {
		what = "unknown error"
	}
	line(word, what)
	line("cause:", f.Cause)
	line("hint: ", f.Hint)
	line("see:  ", f.See)
	return b.String()
}

// merge collects the fields of every Error in err's chain, the outermost
// non-empty value of each.
func merge(err error) Error {
	var all Error
	for e := (*Error)(nil); errors.As(err, &e); err = e.What {
		all.Cause = first(all.Cause, e.Cause)
		all.Hint = first(all.Hint, e.Hint)
		all.See = first(all.See, e.See)
		if all.Code == 0 {
			all.Code = e.Code
		}
	}
	return all
}

func first(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

// printable makes s safe to print on one line: line breaks (as errors.Join
// makes them) become "; ", and everything a terminal could act upon, such as
// escape sequences, bidirectional overrides and broken UTF-8, is escaped.
func printable(s string) string {
	s = strings.TrimSpace(s)
	var b strings.Builder
	for i := 0; i < len(s); {
		r, n := utf8.DecodeRuneInString(s[i:])
		switch {
		case r == '\n' || r == '\r':
			b.WriteString("; ")
			for i+n < len(s) && strings.ContainsRune("\r\n\t ", rune(s[i+n])) {
				n++
			}
		case r == '\t':
			b.WriteByte(' ')
		case r == utf8.RuneError && n == 1:
			fmt.Fprintf(&b, `\x%02x`, s[i])
		case strconv.IsGraphic(r):
			b.WriteRune(r)
		default:
			q := strconv.QuoteRuneToASCII(r)
			b.WriteString(q[1 : len(q)-1])
		}
		i += n
	}
	return b.String()
}
