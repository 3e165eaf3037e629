package main

import (
	"fmt"
	"io"
	"path"
	"regexp"
	"slices"
	"strings"
)

// maxAgain is how many tests may be run again. More that fail are no accident.
const maxAgain = 5

// proof is output of a failure that is one however rarely it is seen: running the test
// again proves nothing.
var proof = regexp.MustCompile(`DATA RACE|race detected|^panic: |\[rapid\] (failed|panic)|panic: test timed out`)

// failure is a test of a package, without its subtests.
type failure struct {
	Package string
	Test    string
}

// unsteady returns what failed in r if it may be run again: few tests, none of them with
// a proof, in packages that were built and ran to their end.
func (r *report) unsteady() []failure {
	if r.hard || len(r.failures) > maxAgain {
		return nil
	}
	return r.failures
}

// again runs each of list alone, and tells whether all passed now. It adds to r's
// summary what they did.
func (r *report) again(list []failure, args []string, w io.Writer) (bool, error) {
	flags := slices.DeleteFunc(slices.Clone(args), func(arg string) bool {
		return strings.HasPrefix(arg, "./") || arg == "."
	})
	second := newReport(w, r.show)
	for _, f := range list {
		fmt.Fprintf(w, "again, alone: %s.%s\n", path.Base(f.Package), f.Test)
		code, err := second.goTest(append(slices.Clone(flags), "-count=1", "-run", "^"+f.Test+"$", f.Package))
		if err != nil || code != 0 {
			return false, err
		}
		r.unsteadyNames = append(r.unsteadyNames, path.Base(f.Package)+"."+f.Test)
	}
	r.passed, r.failed = r.passed+second.passed, 0
	return true, nil
}
