// Command gotest runs "go test" and says at the end what was skipped and why, so
// that a test that did not run is not taken for one that passed. What it prints on
// the way is what go test prints: a line a package and the output of what failed.
//
//	go run ./test/gotest -show '^TestLinks$' ./...
//
// Its own flag is -show, the tests whose output is printed though they pass; all
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
func run(args []string, w io.Writer) (code int, err error) {
	show := regexp.MustCompile(`^$`)
	if i := slices.Index(args, "-show"); i >= 0 && i+1 < len(args) {
		if show, err = regexp.Compile(args[i+1]); err != nil {
			return 2, err
		}
		args = slices.Delete(slices.Clone(args), i, i+2)
	}
	cmd := exec.Command("go", append([]string{"test", "-json"}, args...)...)
	cmd.Stderr = os.Stderr
	events, err := cmd.StdoutPipe()
	if err != nil {
		return 1, err
	}
	if err := cmd.Start(); err != nil {
		return 1, err
	}
	r := newReport(w, show)
	err = r.read(events)
	waitErr := cmd.Wait()
	r.summary()
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
}

func newReport(w io.Writer, show *regexp.Regexp) *report {
	return &report{w: w, show: show, pending: map[event][]string{}, skipped: map[string][]string{}}
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
	case e.Action == "build-output":
		fmt.Fprint(r.w, e.Output)
	case e.Action == "output" && e.Test == "":
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
	switch action {
	case "pass":
		r.passed++
	case "fail":
		r.failed++
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
	for key, output := range r.pending {
		if key.Package == pkg {
			fmt.Fprint(r.w, strings.Join(output, ""))
			delete(r.pending, key)
			r.failed++
		}
	}
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
	fmt.Fprintf(r.w, "%d passed, %d failed, %d skipped\n%s", r.passed, r.failed, skips, strings.Join(lines, ""))
}
