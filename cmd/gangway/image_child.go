package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gangway-hpc/gangway/image"
	"github.com/gangway-hpc/gangway/image/layer"
	"github.com/gangway-hpc/gangway/internal/fault"
	"github.com/gangway-hpc/gangway/internal/proc"
)

// What an image holds is data of strangers. It is decompressed and taken apart by an
// unprivileged process only: by this one where it is that of an ordinary user, and by
// a child under another id, which owns no file and is given only those it needs, where
// it is root's. Headers of archives on this machine, and the documents of an image, are
// decoded by root's own process, within limits.

// outcome is what the child says at its end: of the layer it wrote, or why there is none.
type outcome struct {
	Info  layer.Info
	Error string
	Cause string
	Hint  string
	Limit *layer.LimitError // where that is why
	Errno syscall.Errno     // where that is why
	Wraps []int             // of image.TaskErrors
}

// newOutcome is what to tell the parent.
func newOutcome(info layer.Info, err error) outcome {
	o := outcome{Info: info}
	if err == nil {
		return o
	}
	o.Error = err.Error()
	if f, ok := errors.AsType[*fault.Error](err); ok {
		o.Cause, o.Hint = f.Cause, f.Hint
	}
	o.Limit, _ = errors.AsType[*layer.LimitError](err)
	o.Errno, _ = errors.AsType[syscall.Errno](err)
	for n, known := range image.TaskErrors() {
		if errors.Is(err, known) {
			o.Wraps = append(o.Wraps, n)
		}
	}
	return o
}

// err is the child's error: nil where it had none.
func (o outcome) err() error {
	switch {
	case o.Error == "":
		return nil
	case o.Cause == "" && o.Hint == "":
		return &childError{o}
	}
	return &fault.Error{What: &childError{o}, Cause: o.Cause, Hint: o.Hint}
}

// childError is the error of the child, with what callers look for in it.
type childError struct{ outcome }

// Error implements error.
func (e *childError) Error() string { return e.outcome.Error }

// Unwrap returns what the error wraps, as far as the child said it.
func (e *childError) Unwrap() []error {
	var why []error
	if e.Limit != nil {
		why = append(why, e.Limit)
	}
	if e.Errno != 0 {
		why = append(why, e.Errno)
	}
	known := image.TaskErrors()
	for _, n := range e.Wraps {
		if n >= 0 && n < len(known) {
			why = append(why, known[n])
		}
	}
	return why
}

// child is a process of nobody's that does one thing for this one, and says its outcome.
type child struct {
	cmd            *exec.Cmd
	purpose        string // as in "start a process to convert a layer"
	stdout, stderr proc.Excerpt
}

// newChild prepares a child that is this program with arguments, and files from 3 on.
func newChild(ctx context.Context, purpose string, files []*os.File, args ...string) *child {
	c := &child{cmd: exec.CommandContext(ctx, "/proc/self/exe", args...), purpose: purpose}
	proc.AsNobody(c.cmd)
	c.cmd.Stdout, c.cmd.Stderr = &c.stdout, &c.stderr
	c.cmd.ExtraFiles = files
	c.cmd.WaitDelay = 5 * time.Second
	return c
}

func (c *child) start() error {
	err := c.cmd.Start()
	if err == nil {
		return nil
	}
	return &fault.Error{
		// Not wrapped: it is about no file of the store.
		What:  fmt.Errorf("start a process of user %d to %s: %s", proc.Nobody, c.purpose, err.Error()),
		Cause: "root does not unpack what strangers wrote",
		Hint:  "run it as an ordinary user; or let everybody execute gangway, and give root CAP_SETUID and CAP_SETGID",
	}
}

// wait waits for the end of the child, and then ends all that it may have started, which
// could still write its files. The child is not reaped before, so that the id of its group
// is nobody else's.
func (c *child) wait() error {
	pid := c.cmd.Process.Pid
	for errors.Is(unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil), unix.EINTR) {
		continue
	}
	_ = unix.Kill(-pid, unix.SIGKILL)
	return c.cmd.Wait()
}

// outcome is what the child said, once it has ended as ended says.
func (c *child) outcome(ctx context.Context, ended error) (layer.Info, error) {
	if cause := context.Cause(ctx); cause != nil {
		return layer.Info{}, cause
	}
	var o outcome
	if json.Unmarshal(c.stdout.Bytes(), &o) != nil {
		return layer.Info{}, &fault.Error{
			What: fmt.Errorf("%s in another process: %w: %.300s", c.purpose, ended, c.stderr.Bytes()),
			Hint: "try again; if it is killed again, look for want of memory in the kernel's log: dmesg",
		}
	}
	return o.Info, o.err()
}
