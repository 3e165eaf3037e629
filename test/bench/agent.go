package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"
)

// An agent is this program again, as another user or in a container. It does what
// orders on its standard input say and takes the time, so that neither the change of
// user nor the way into the container is in what is measured.

// agentVerb is the argument that makes this program an agent.
const agentVerb = "agent"

// order is a line of an agent's input. One of its fields says what to do.
type order struct {
	// Run runs each command in turn, Rounds times and once before that does not count.
	Run    [][]string `json:",omitempty"`
	Rounds int        `json:",omitempty"`
	// Together runs all commands at the same time.
	Together [][]string `json:",omitempty"`
	// Stat looks up Count names that begin so.
	Stat  string `json:",omitempty"`
	Count int    `json:",omitempty"`
	// Read reads a file by as many readers, each of them its own part.
	Read    string `json:",omitempty"`
	Readers int    `json:",omitempty"`
}

// result is a line of its output.
type result struct {
	Wall  [][]time.Duration `json:",omitempty"` // of each command; else one for all
	CPU   [][]time.Duration `json:",omitempty"`
	Error string            `json:",omitempty"`
}

// serveOrders is the agent.
func serveOrders(in io.Reader, out io.Writer) error {
	dec, enc := json.NewDecoder(in), json.NewEncoder(out)
	for {
		var o order
		if err := dec.Decode(&o); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		r, err := o.do()
		if err != nil {
			r.Error = err.Error()
		}
		if err := enc.Encode(r); err != nil {
			return err
		}
	}
}

func (o *order) do() (result, error) {
	start := time.Now()
	var err error
	switch {
	case o.Run != nil:
		return o.inTurn()
	case o.Together != nil:
		return o.together()
	case o.Stat != "":
		err = statMissing(o.Stat, o.Count)
	case o.Read != "":
		err = readParts(o.Read, o.Readers)
	}
	// An order that says nothing asks whether the agent is there.
	return result{Wall: [][]time.Duration{{time.Since(start)}}}, err
}

func (o *order) inTurn() (result, error) {
	r := result{Wall: make([][]time.Duration, len(o.Run)), CPU: make([][]time.Duration, len(o.Run))}
	for round := range o.Rounds + 1 {
		for n, args := range o.Run {
			wall, cpu, err := timeCommand(args)
			if err != nil {
				return r, err
			}
			if round > 0 || o.Rounds == 0 {
				r.Wall[n], r.CPU[n] = append(r.Wall[n], wall), append(r.CPU[n], cpu)
			}
		}
	}
	return r, nil
}

func (o *order) together() (result, error) {
	r := result{Wall: make([][]time.Duration, len(o.Together))}
	errs := make([]error, len(o.Together))
	var wg sync.WaitGroup
	for n, args := range o.Together {
		wg.Go(func() {
			wall, _, err := timeCommand(args)
			r.Wall[n], errs[n] = []time.Duration{wall}, err
		})
	}
	wg.Wait()
	return r, errors.Join(errs...)
}

// timeCommand runs a command with nothing on its input; what it prints is thrown away, but
// for its errors.
func timeCommand(args []string) (wall, cpu time.Duration, err error) {
	errs, err := os.CreateTemp("", "stderr-")
	if err != nil {
		return 0, 0, err
	}
	defer errs.Close()
	if err := os.Remove(errs.Name()); err != nil {
		return 0, 0, err
	}
	cmd := exec.Command(args[0], args[1:]...) // it ends when its agent does or before
	cmd.Stderr = errs
	start := time.Now()
	err = cmd.Run()
	wall = time.Since(start)
	if err != nil {
		_, _ = errs.Seek(0, io.SeekStart)
		text, _ := io.ReadAll(io.LimitReader(errs, 4096))
		return 0, 0, fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(string(text)))
	}
	return wall, cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime(), nil
}

// statMissing looks up names that are not there.
func statMissing(prefix string, count int) error {
	name := []byte(prefix)
	for n := range count {
		var st syscall.Stat_t
		name = fmt.Appendf(name[:len(prefix)], "%06d", n)
		if err := syscall.Lstat(string(name), &st); !errors.Is(err, syscall.ENOENT) {
			return fmt.Errorf("stat %s: %w, and it should not be there", name, err)
		}
	}
	return nil
}

// readParts reads a file with as many readers.
func readParts(path string, readers int) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return err
	}
	part := (st.Size() + int64(readers) - 1) / int64(readers)
	errs := make([]error, readers)
	var wg sync.WaitGroup
	for n := range readers {
		wg.Go(func() {
			// Each opens the file for itself: the kernel reads ahead for each open file.
			own, err := os.Open(path)
			if err != nil {
				errs[n] = err
				return
			}
			defer own.Close()
			r := io.NewSectionReader(own, int64(n)*part, part)
			_, errs[n] = io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{r}, make([]byte, 1<<20))
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// agent is a running agent, seen from this side.
type agent struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
	end []func() error // after it has ended, last first
}

// startAgent starts the command, which starts an agent.
func startAgent(cmd *exec.Cmd) (*agent, error) {
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	a := &agent{cmd: cmd, in: in, out: bufio.NewReader(out)}
	if _, err := a.do(order{}); err != nil {
		return nil, errors.Join(err, a.close())
	}
	return a, nil
}

func (a *agent) do(o order) (result, error) {
	var r result
	if err := json.NewEncoder(a.in).Encode(o); err != nil {
		return r, fmt.Errorf("agent of %s: %w", a.cmd.Args[0], err)
	}
	line, err := a.out.ReadBytes('\n')
	if err != nil {
		return r, fmt.Errorf("agent of %s: %w", a.cmd.Args[0], err)
	}
	if err := json.Unmarshal(line, &r); err != nil {
		return r, err
	}
	if r.Error != "" {
		return r, errors.New(r.Error)
	}
	return r, nil
}

// one returns the time of an order that has one.
func (a *agent) one(o order) (time.Duration, error) {
	r, err := a.do(o)
	if err != nil {
		return 0, err
	}
	return r.Wall[0][0], nil
}

func (a *agent) close() error {
	errs := []error{a.in.Close(), a.cmd.Wait()}
	for n := len(a.end) - 1; n >= 0; n-- {
		errs = append(errs, a.end[n]())
	}
	return errors.Join(errs...)
}
