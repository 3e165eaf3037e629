// Command gangway-nvml asks NVIDIA's management library (NVML) about GPUs. It is a program
// of its own because NVML needs cgo, and because a hung driver hangs whoever asks it:
// gangway and gangwayd start it through package hooks/nvml, and kill it when it is late.
//
//	gangway-nvml [-timeout 10s] [-library FILE] [CALL [UUID...]]
//	gangway-nvml [-library FILE] serve
//	gangway-nvml [-library FILE] [-beat 2s] watch [UUID...]
//
// CALL is one of inventory (the default), topology, health, sample and processes; it prints
// one JSON document, hooks/nvml.Inventory and so on, for these GPUs and MIG instances or
// for all. "serve" reads hooks/nvml.Requests from standard input until its end and writes
// a Response for each, one a line. "watch" writes a line for each Xid and ECC event, and an
// empty one every so often; it too ends with its input.
//
// A GPU that answers in part has the field "error" and what it did answer; fields may be
// added, never changed. What the library of an old driver does not have is left out. The
// exit code is 0, 2 for a wrong command line, or 125 without NVML, on an error of NVML and
// after the timeout; then nothing is on standard output. A process whose thread hangs in
// the kernel prints its error in time and is gone only when the kernel lets it, so do not
// wait for its end.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"sync/atomic"
	"time"

	report "github.com/gangway-hpc/gangway/hooks/nvml"
	"github.com/gangway-hpc/gangway/internal/fault"
)

const usage = "usage: gangway-nvml [-timeout 10s] [-library FILE] [inventory|topology|health|sample|processes [UUID...] | serve | watch [UUID...]]"

// flags are the options of the command line.
type flags struct {
	timeout time.Duration
	beat    time.Duration
	library string
	proc    string
}

// asker asks NVML. Its methods may hang for as long as the driver does.
type asker interface {
	// ask returns the report of a call, or a failure.
	ask(call string, uuids []string) (any, *report.Failure)
	// watch calls each for every event, and with nil every beat, until that returns false.
	watch(uuids []string, beat time.Duration, each func(*report.Event) bool) *report.Failure
}

// step is what is being asked, for whoever has to say what hangs.
type step struct{ now atomic.Pointer[string] }

func (s *step) set(what string) { s.now.Store(&what) }

func (s *step) String() string {
	if p := s.now.Load(); p != nil {
		return *p
	}
	return "nothing"
}

func main() {
	os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr, newAsker))
}

// run is the program with what it asks as an argument.
func run(args []string, stdin io.Reader, stdout, stderr io.Writer, connect func(flags, *step) asker) int {
	err := command(args, stdin, stdout, connect)
	if err != nil {
		_, _ = io.WriteString(stderr, fault.Text("gangway-nvml", err, false))
	}
	return fault.Code(err)
}

func command(args []string, stdin io.Reader, stdout io.Writer, connect func(flags, *step) asker) error {
	f, operands, err := parse(args)
	if err != nil {
		return fault.Usage(err, usage)
	}
	var at step
	nv := connect(f, &at)
	call, uuids := operands[0], operands[1:]
	switch call {
	case "serve":
		return serve(nv, &at, stdin, stdout)
	case "watch":
		return watch(nv, f.beat, uuids, stdin, stdout)
	}
	result, failure := inTime(nv, &at, report.Request{Call: call, GPUs: uuids, TimeoutMS: f.timeout.Milliseconds()}, nil)
	if failure != nil {
		return asFault(call, failure)
	}
	enc := json.NewEncoder(stdout)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	return enc.Encode(result)
}

// parse takes a command line apart. The first operand is a word that the program knows.
func parse(args []string) (flags, []string, error) {
	var f flags
	set := flag.NewFlagSet("gangway-nvml", flag.ContinueOnError)
	set.SetOutput(io.Discard)
	set.DurationVar(&f.timeout, "timeout", 10*time.Second, "")
	set.DurationVar(&f.beat, "beat", 2*time.Second, "")
	set.StringVar(&f.library, "library", "", "")
	set.StringVar(&f.proc, "proc", "/proc", "")
	if err := set.Parse(args); err != nil {
		return f, nil, err
	}
	if f.timeout <= 0 || f.beat <= 0 {
		return f, nil, errors.New("a time is not positive")
	}
	operands := set.Args()
	if len(operands) == 0 {
		return f, []string{"inventory"}, nil
	}
	if word := operands[0]; word != "serve" && word != "watch" && !slices.Contains(report.Calls, word) {
		return f, nil, fmt.Errorf("unknown call %q", word)
	} else if word == "serve" && len(operands) > 1 {
		return f, nil, fmt.Errorf("unexpected operand %q", operands[1])
	}
	return f, operands, nil
}

// asFault makes an error for people of a failure.
func asFault(call string, f *report.Failure) error {
	return &fault.Error{What: fmt.Errorf("ask NVML for %s: %s", call, f.Text), Cause: f.Cause, Hint: f.Hint}
}
