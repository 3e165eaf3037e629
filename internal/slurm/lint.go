package slurm

import (
	"cmp"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"
)

// Report is what there is to know of a configuration before it is used.
type Report struct {
	Directory  string `json:"directory"`
	Nodes      int    `json:"nodes"`
	Partitions int    `json:"partitions"`
	Errors     int    `json:"errors"`
	Warnings   int    `json:"warnings"`
	Notes      int    `json:"notes"`
	// Findings are sorted: what matters more comes first, and then by where it is.
	Findings []Finding `json:"findings"`
	Left     int       `json:"left,omitempty"` // findings beyond the first 10,000 of each severity
}

// Lint reads the files that [Load] reads, and says all that is to be known of them: what
// cannot do what was meant, what is otherwise than in Slurm, and what means nothing here.
// The error is of a file that cannot be read at all.
func Lint(dir string) (*Report, error) {
	parent, name := split(dir)
	report, err := LintFS(dirFS(parent), name)
	if err != nil {
		return nil, err
	}
	report.Directory = dir
	return report, nil
}

// LintFS is Lint from a file system, in which name is slurm.conf's.
func LintFS(files fs.FS, name string) (*Report, error) {
	r := newReader(files)
	if err := r.read(name); err != nil {
		return nil, err
	}
	all := &Report{
		Nodes: len(r.cluster.Nodes), Partitions: len(r.cluster.Partitions), Findings: r.findings,
		Errors: r.found[SeverityError], Warnings: r.found[SeverityWarning], Notes: r.found[SeverityNote],
	}
	all.Left = all.Errors + all.Warnings + all.Notes - len(all.Findings)
	if all.Findings == nil {
		all.Findings = []Finding{}
	}
	order := map[string]int{}
	for _, f := range all.Findings {
		if _, ok := order[f.File]; !ok {
			order[f.File] = len(order)
		}
	}
	slices.SortStableFunc(all.Findings, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(b.Severity.rank(), a.Severity.rank()), cmp.Compare(order[a.File], order[b.File]), cmp.Compare(a.Line, b.Line),
			cmp.Compare(a.Key, b.Key), cmp.Compare(a.Value, b.Value), cmp.Compare(a.Text, b.Text))
	})
	return all, nil
}

// Text writes the report for people: errors and warnings one by one with what to do, notes
// together that have one reason. It implements the results of commands.
func (r *Report) Text(w io.Writer) error {
	var b strings.Builder
	for _, g := range []struct {
		severity Severity
		title    string
	}{
		{SeverityError, "Cannot do what was meant"},
		{SeverityWarning, "Otherwise than in Slurm"},
	} {
		list := r.of(g.severity)
		if len(list) == 0 {
			continue
		}
		fmt.Fprintf(&b, "%s (%d):\n", g.title, len(list))
		for _, same := range fold(list, func(f Finding) string { return strings.Join([]string{f.File, f.Key, f.Value, f.Text}, "\x00") }) {
			f := same[0]
			b.WriteString("  " + f.String() + alsoAt(same[1:]) + "\n")
			if f.Remedy != "" {
				b.WriteString("      " + f.Remedy + "\n")
			}
		}
		b.WriteString("\n")
	}
	if notes := r.of(SeverityNote); len(notes) > 0 {
		fmt.Fprintf(&b, "Means nothing here (%d):\n", len(notes))
		for _, same := range fold(notes, func(f Finding) string { return f.Text }) {
			b.WriteString("  note: " + same[0].Text + "\n")
			for _, f := range same {
				fmt.Fprintf(&b, "      %s:%d %s\n", f.File, f.Line, strings.TrimSuffix(f.subject(), ": "))
			}
		}
		b.WriteString("\n")
	}
	if r.Left > 0 {
		fmt.Fprintf(&b, "and %d more\n", r.Left)
	}
	fmt.Fprintf(&b, "%d nodes and %d partitions: %d errors, %d warnings, %d notes\n", r.Nodes, r.Partitions, r.Errors, r.Warnings, r.Notes)
	_, err := io.WriteString(w, b.String())
	return err
}

// of are the findings of a severity.
func (r *Report) of(s Severity) []Finding {
	var list []Finding
	for _, f := range r.Findings {
		if f.Severity == s {
			list = append(list, f)
		}
	}
	return list
}

// fold puts those together that are alike, in the order of the first of each.
func fold(list []Finding, alike func(Finding) string) [][]Finding {
	var all [][]Finding
	at := map[string]int{}
	for _, f := range list {
		key := alike(f)
		i, ok := at[key]
		if !ok {
			i = len(all)
			at[key], all = i, append(all, nil)
		}
		all[i] = append(all[i], f)
	}
	return all
}

// alsoAt says on which other lines the same is.
func alsoAt(others []Finding) string {
	var lines []string
	for _, f := range others {
		lines = append(lines, fmt.Sprint(f.Line))
	}
	if len(lines) == 0 {
		return ""
	}
	return " (also on " + strings.Trim(Fold(lines), "[]") + ")"
}
