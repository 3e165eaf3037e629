// Package program runs on a node what its administrators want run beside jobs: prolog, epilog
// and health check, as slurm.conf names them.
//
// First use: env := program.Environ(...), then Run.Do for what program.Find found. Environ is
// pure; a Run is used once, and any number of them go on at a time.
//
// The package does not know when a program is due, nor what follows from its end: the agent
// does, and the controller. Sources: slurm.conf(5) and prolog_epilog.html of Slurm, and what
// its slurmd does (prep_script_slurmd.c, run_command.c).
package program

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"time"
)

// Kind says what a program is run for.
type Kind string

// The kinds, by Slurm's words.
const (
	Prolog Kind = "prolog"
	Epilog Kind = "epilog"
	Health Kind = "health check"
)

// HealthTimeout is how long a health check may take, as with Slurm.
const HealthTimeout = 60 * time.Second

// Find is the programs that full paths, or patterns of them, name now. What a pattern matches
// comes in the reverse of the alphabet's order, as with Slurm; one that matches nothing is an
// error, as a file that is not there.
func Find(patterns []string) ([]string, error) {
	var all []string
	for _, pattern := range patterns {
		if !filepath.IsAbs(pattern) {
			return nil, fmt.Errorf("%s: it is no full path", pattern)
		}
		found, err := filepath.Glob(pattern)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", pattern, err)
		}
		if len(found) == 0 {
			return nil, fmt.Errorf("%s: there is no such file", pattern)
		}
		slices.SortFunc(found, func(a, b string) int { return cmp.Compare(b, a) })
		all = append(all, found...)
	}
	return all, nil
}

// Starter starts processes and waits for them, in a process that has other children too.
type Starter interface {
	Start(*exec.Cmd) error
	Wait(*exec.Cmd) error
}

// Run is what is run.
type Run struct {
	Kind    Kind
	Paths   []string // one after the other; the first that fails is the last
	Env     []string // all that they have
	Timeout time.Duration
	Starter Starter
	Log     *slog.Logger // gets what they print
}

// Do runs the programs. The error is that of the first that fails, or that is still there when
// its time is over, and is killed then. What one leaves in its process group is killed.
func (r *Run) Do(ctx context.Context) error {
	for _, path := range r.Paths {
		began := time.Now()
		if err := r.one(ctx, path); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		r.Log.Debug(string(r.Kind)+" has run", "path", path, "dur", time.Since(began))
	}
	return nil
}

// one runs one.
func (r *Run) one(ctx context.Context, path string) error {
	read, write, err := os.Pipe()
	if err != nil {
		return err
	}
	defer read.Close()
	cmd := exec.Command(path)
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = "/", r.Env, write, write
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	err = r.Starter.Start(cmd)
	_ = write.Close() // the program has it
	if err != nil {
		return err
	}
	said, ended := make(chan string, 1), make(chan error, 1)
	go func() { said <- r.listen(read, path) }()
	go func() { ended <- r.Starter.Wait(cmd) }()
	var late <-chan time.Time
	if r.Timeout > 0 {
		t := time.NewTimer(r.Timeout)
		defer t.Stop()
		late = t.C
	}
	var why error
	select {
	case err = <-ended:
	case <-late:
		why = fmt.Errorf("it did not end within %s, and was killed", r.Timeout)
	case <-ctx.Done():
		why = ctx.Err()
	}
	_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // its group may be empty
	if why != nil {
		<-ended
		err = why
	}
	_ = read.SetReadDeadline(time.Now().Add(time.Second)) // who has left the group may still have it
	return failure(err, <-said)
}

// failure is why a program failed, with its last line; nil: it did not.
func failure(err error, last string) error {
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		err = fmt.Errorf("exit code %d", exit.ExitCode())
		if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signaled() {
			err = fmt.Errorf("killed by signal %d", status.Signal())
		}
	}
	if err != nil && last != "" {
		err = fmt.Errorf("%w: %s", err, last)
	}
	return err
}
