// Command gotest runs "go test" and says at the end what was skipped and why, so
// that a test that did not run is not taken for one that passed. What it prints on
// the way is what go test prints: a line a package and the output of what failed.
//
//	go run ./test/gotest -again -show '^TestLinks$' ./...
//
// Its own flags are -show, the tests whose output is printed though they pass, and
// -again, which runs the few tests that failed once more, alone, and counts those that
// pass then as unsteady, by name, and not as failed. Nothing is run again after a data
// race, a panic, an input that a random test found, or a package that was not built. All
// other arguments go to go test. It exits as go test does.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"regexp"
	"slices"
	"strings"
)

func main() {
	code, err := run(os.Args[1:], os.Stdout)
	if err != nil {
		fmt.Fprintln(os.Stderr, "gotest:", err)
		code = max(code, 1)
	}
	os.Exit(code)
}

// run runs go test with args and writes its report to w. The code is go test's.
func run(args []string, w io.Writer) (int, error) {
	show, again := regexp.MustCompile(`^$`), false
	args = slices.Clone(args)
	if i := slices.Index(args, "-show"); i >= 0 && i+1 < len(args) {
		var err error
		if show, err = regexp.Compile(args[i+1]); err != nil {
			return 2, err
		}
		args = slices.Delete(args, i, i+2)
	}
	if i := slices.Index(args, "-again"); i >= 0 {
		again = true
		args = slices.Delete(args, i, i+1)
	}
	r := newReport(w, show)
	code, err := r.goTest(args)
	if list := r.unsteady(); again && code == 1 && err == nil && len(list) > 0 {
		var passed bool
		if passed, err = r.again(list, args, w); passed {
			code = 0
		}
	}
	r.summary()
	return code, err
}

// goTest runs go test once and reads what it says.
func (r *report) goTest(args []string) (int, error) {
	cmd := exec.Command("go", append([]string{"test", "-json"}, args...)...)
	cmd.Stderr = os.Stderr
	events, err := cmd.StdoutPipe()
	if err != nil {
		return 1, err
	}
	if err := cmd.Start(); err != nil {
		return 1, err
	}
	err = r.read(events)
	waitErr := cmd.Wait()
	if _, ok := errors.AsType[*exec.ExitError](waitErr); ok {
		return cmd.ProcessState.ExitCode(), err
	}
	return 0, errors.Join(err, waitErr)
}

// event is one line of go test -json; see "go doc test2json".
type event struct {
	Action  string
	Package string
	Test    string
	Output  string
}

// report collects the events of a run.
type report struct {
	w       io.Writer
	show    *regexp.Regexp
	pending map[event][]string // output of tests not ended yet, by Package and Test
	passed  int
	failed  int
	skipped map[string][]string // names of tests by reason

	failures      []failure       // tests that failed, without subtests
	blamed        map[string]bool // packages that have one
	running       map[event]bool  // tests that have begun and not ended, as in pending
	hard          bool            // something failed that need not be tried again
	unsteadyNames []string        // names of tests that failed and passed when run again
}

func newReport(w io.Writer, show *regexp.Regexp) *report {
	return &report{w: w, show: show, pending: map[event][]string{}, skipped: map[string][]string{}, blamed: map[string]bool{}, running: map[event]bool{}}
}

func (r *report) read(events io.Reader) error {
	lines := bufio.NewReader(events)
	for {
		line, err := lines.ReadBytes('\n')
		var e event
		if json.Unmarshal(line, &e) == nil {
			r.add(e)
		} else {
			fmt.Fprintf(r.w, "%s", line) // go itself had something to say
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (r *report) add(e event) {
	key := event{Package: e.Package, Test: e.Test}
	switch {
	case e.Action == "run":
		r.running[key] = true
	case e.Action == "build-output":
		fmt.Fprint(r.w, e.Output)
	case e.Action == "output" && e.Test == "":
		r.hard = r.hard || proof.MatchString(e.Output)
		if e.Output != "PASS\n" {
			fmt.Fprint(r.w, e.Output)
		}
	case e.Action == "output":
		if !strings.HasPrefix(e.Output, "=== ") {
			r.pending[key] = append(r.pending[key], e.Output)
		}
	case e.Test == "":
		if e.Action == "fail" {
			r.crashed(e.Package)
		}
	case e.Action == "pass" || e.Action == "fail" || e.Action == "skip":
		r.end(e.Action, key)
	}
}

// end counts a test that has ended and prints its output if somebody must see it.
func (r *report) end(action string, key event) {
	output := r.pending[key]
	delete(r.pending, key)
	delete(r.running, key)
	switch action {
	case "pass":
		r.passed++
	case "fail":
		r.failed++
		r.hard = r.hard || slices.ContainsFunc(output, proof.MatchString)
		if !strings.Contains(key.Test, "/") {
			r.failures = append(r.failures, failure{key.Package, key.Test})
			r.blamed[key.Package] = true
		}
	case "skip":
		why := reason(output)
		r.skipped[why] = append(r.skipped[why], path.Base(key.Package)+"."+key.Test)
	}
	if action == "fail" || r.show.MatchString(key.Test) {
		fmt.Fprint(r.w, strings.Join(output, ""))
	}
}

// crashed prints what the tests of a package had said when their process died.
func (r *report) crashed(pkg string) {
	for key := range r.running {
		if key.Package == pkg {
			fmt.Fprint(r.w, strings.Join(r.pending[key], ""))
			delete(r.pending, key)
			delete(r.running, key)
			r.failed++
			r.hard = true
		}
	}
	r.hard = r.hard || !r.blamed[pkg]
}

// reason is what a test gave to t.Skip: its output without "file.go:12: " and
// without go test's own line.
func reason(output []string) string {
	var why []string
	for _, line := range output {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "--- SKIP") {
			continue
		}
		if place, text, ok := strings.Cut(line, ": "); ok && strings.Contains(place, ".go:") {
			line = text
		}
		why = append(why, line)
	}
	if len(why) == 0 {
		return "no reason given"
	}
	return strings.Join(why, " ")
}

func (r *report) summary() {
	skips := 0
	var lines []string
	for why, tests := range r.skipped {
		skips += len(tests)
		names := strings.Join(tests[:min(3, len(tests))], ", ")
		if len(tests) > 3 {
			names += ", ..."
		}
		lines = append(lines, fmt.Sprintf("skipped %d: %s (%s)\n", len(tests), why, names))
	}
	slices.Sort(lines)
	if len(r.unsteadyNames) > 0 {
		lines = append(lines, fmt.Sprintf("unsteady %d: failed, and passed when run again alone (%s)\n", len(r.unsteadyNames), strings.Join(r.unsteadyNames, ", ")))
	}
	fmt.Fprintf(r.w, "%d passed, %d failed, %d skipped\n%s", r.passed, r.failed, skips, strings.Join(lines, ""))
}
