package listing_test

import (
	"compress/gzip"
	"errors"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gangway-hpc/gangway/internal/slurm"
	"github.com/gangway-hpc/gangway/internal/slurm/listing"
)

// manual is a manual page of Debian's Slurm, without what only says how it looks.
func manual(t *testing.T, name string) string {
	t.Helper()
	file := filepath.Join("/usr/share/man/man1", name+".1.gz")
	f, err := os.Open(file)
	if err != nil {
		t.Skipf("needs the manual page %s(1) of Debian's slurm-client, which images without manuals leave out: %v", name, err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	return strings.NewReplacer(`\-`, "-").Replace(string(text))
}

// part is what is between two lines of a page that begin so.
func part(t *testing.T, text, from, to string) string {
	t.Helper()
	_, rest, ok := strings.Cut(text, from)
	if !ok {
		t.Fatalf("the manual page has no %q", from)
	}
	inner, _, ok := strings.Cut(rest, to)
	if !ok {
		t.Fatalf("the manual page has no %q behind %q", to, from)
	}
	return inner
}

// options are the long options of a page, and whether they have a value.
func options(t *testing.T, name string) map[string]bool {
	t.Helper()
	all := map[string]bool{}
	option := regexp.MustCompile(`--([a-zA-Z][a-zA-Z0-9-]*)(?:\\fR)?(\[?=)?`)
	for line := range strings.Lines(part(t, manual(t, name), "\n.SH \"OPTIONS\"", "\n.SH ")) {
		if !strings.HasPrefix(line, `\fB-`) || !strings.Contains(line, `\fR`) || strings.HasSuffix(strings.TrimSpace(line), ".") {
			continue
		}
		for _, m := range option.FindAllStringSubmatch(line, -1) {
			all[m[1]] = all[m[1]] || m[2] == "="
		}
	}
	return all
}

// TestOptionsOfTheManual: every option of Slurm's commands is carried out, or refused by
// its name.
func TestOptionsOfTheManual(t *testing.T) {
	now := time.UnixMilli(int64(noon)).UTC()
	for name, parse := range map[string]func(...string) (any, error){
		"squeue":   func(args ...string) (any, error) { return listing.ParseQueue(args, nothing, people{}) },
		"sinfo":    func(args ...string) (any, error) { return listing.ParseInfo(args, nothing) },
		"sacct":    func(args ...string) (any, error) { return listing.ParseAcct(args, nothing, people{}, false, now) },
		"scontrol": func(args ...string) (any, error) { return listing.ParseControl(append(args, "ping")) },
		"sstat":    func(args ...string) (any, error) { return listing.ParseStat(append(args, "1")) },
		"sdiag":    func(args ...string) (any, error) { return listing.ParseDiag(args) },
		"scancel":  func(args ...string) (any, error) { return slurm.ParseCancel(append(args, "1"), nothing) },
	} {
		all := options(t, name)
		if len(all) < 12 && name != "sdiag" {
			t.Errorf("%s has the options %v only?", name, all)
		}
		for option, valued := range all {
			if err := carriedOut(parse, option, valued); err != nil {
				t.Errorf("%s --%s: %v, want that it does something, or is refused by name", name, option, err)
			}
		}
	}
}

// carriedOut is an error unless an option changes what a command does, with one of some
// values, is refused by its name, or is known to mean nothing here.
func carriedOut(parse func(...string) (any, error), option string, valued bool) error {
	idle := []string{
		"all", "hide", "local", "federation", "sibling", "verbose", "priority", // there are no hidden partitions and no federations
		"allclusters", "use-local-uid", "whole-hetjob", "future", "hurry", "ctld", // the controller always is who does it; there are no other clusters, nor heterogeneous jobs, nor burst buffers; FUTURE nodes are shown
	}
	without, err := parse()
	if err != nil {
		return err
	}
	first := errors.New("it changes nothing")
	for _, value := range []string{"", "5", "now", "n1", "pending", "idle", "jobid", "i", "M", "TERM", "alice", "team"} {
		arg := "--" + option
		if value != "" {
			arg += "=" + value
		}
		if valued && value == "" {
			continue
		}
		with, err := parse(arg)
		var refusal *slurm.Refusal
		switch {
		case err == nil && (slices.Contains(idle, option) || !reflect.DeepEqual(with, without)):
			return nil
		case errors.As(err, &refusal) && strings.Contains(refusal.Lines[0], "--"+option) && strings.Contains(refusal.Lines[0], "not supported"):
			return nil
		case err != nil:
			first = err
		}
	}
	return first
}

// TestFieldsOfTheManual: so is every field of their formats.
func TestFieldsOfTheManual(t *testing.T) {
	bold := regexp.MustCompile(`(?m)^\\fB(%?[A-Za-z][A-Za-z0-9_-]*)\\fR(?: or \\fB([A-Za-z]+)\\fR)?\s*$`)
	for _, c := range []struct {
		name, end string
		parse     func(option, format string) []error
	}{
		{"squeue", "\\fB--help\\fR", func(option, format string) []error {
			var all [][]error
			for _, args := range [][]string{{option, format}, {"-s", option, format}} {
				q, err := listing.ParseQueue(args, nothing, people{})
				if err != nil {
					return []error{err}
				}
				all = append(all, q.Warnings)
			}
			return slices.MinFunc(all, func(a, b []error) int { return len(a) - len(b) })
		}},
		{"sinfo", "\\fB--help\\fR", func(option, format string) []error {
			q, err := listing.ParseInfo([]string{option, format}, nothing)
			if err != nil {
				return []error{err}
			}
			return q.Warnings
		}},
	} {
		count := 0
		for _, m := range bold.FindAllStringSubmatch(part(t, manual(t, c.name), "type[suffix]\"\n", "\n"+c.end), -1) {
			for _, field := range m[1:] {
				if field == "" {
					continue
				}
				option := "-O"
				if strings.HasPrefix(field, "%") {
					option = "-o"
				}
				count++
				if errs := c.parse(option, field); len(errs) > 0 {
					t.Errorf("%s %s %s: %v", c.name, option, field, errs)
				}
			}
		}
		if count < 80 {
			t.Errorf("%s has %d fields only?", c.name, count)
		}
	}
}

// TestAcctFieldsOfTheManual: and of sacct, in the order of its --helpformat.
func TestAcctFieldsOfTheManual(t *testing.T) {
	q, err := listing.ParseAcct([]string{"--helpformat"}, nothing, people{}, false, time.UnixMilli(int64(noon)).UTC())
	if err != nil {
		t.Fatal(err)
	}
	var w strings.Builder
	if err := q.Fields(&w); err != nil {
		t.Fatal(err)
	}
	ours := strings.Fields(w.String())
	theirs := strings.Fields(part(t, manual(t, "sacct"), "\nFields available:\n", "\n.ft 1"))
	if len(theirs) < 100 {
		t.Fatalf("sacct has the fields %v only?", theirs)
	}
	kept := slices.DeleteFunc(slices.Clone(ours), func(name string) bool { return !slices.Contains(theirs, name) })
	if !slices.Equal(kept, theirs) {
		t.Errorf("sacct --helpformat has %v, want %v in this order", kept, theirs)
	}
}
