package user

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/gangway-hpc/gangway/internal/fault"
	"github.com/gangway-hpc/gangway/internal/proc"
)

// DefaultTimeout is long enough for a file server, and short enough for a person.
const DefaultTimeout = 30 * time.Second

// patience is how long a hook runs before anybody is told that it does.
const patience = time.Second

// grace is how long a killed hook may take to be gone.
const grace = 5 * time.Second

// errKilled says that a hook took too long.
var errKilled = errors.New("it took too long and was killed")

// command is a program to run.
type command struct {
	path    string
	args    []string // with the name of the program as it shall see it; empty: path
	env     []string
	stdin   []byte
	timeout time.Duration // 0: the runner's
}

// outcome is what came of it.
type outcome struct {
	stdout []byte
	notes  []string // lines of stderr of a program that succeeded
	took   time.Duration
}

// execute runs a program to its end, or kills it with its process group, which is that of a
// session without a terminal.
func (r Runner) execute(ctx context.Context, c command) (outcome, error) {
	timeout := c.timeout
	if timeout <= 0 {
		timeout = r.Timeout
	}
	if timeout <= 0 {
		timeout = DefaultTimeout
	}
	if ctx.Err() != nil {
		return outcome{}, fmt.Errorf("run hook %s: %w", c.path, context.Cause(ctx))
	}
	limited, cancel := context.WithTimeoutCause(ctx, timeout, errKilled)
	defer cancel()
	cmd := exec.CommandContext(limited, c.path)
	if len(c.args) > 0 {
		cmd.Args = c.args
	}
	stdout, stderr := &bounded{most: maxAnswer}, &proc.Excerpt{}
	cmd.Dir, cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr = "/", c.env, bytes.NewReader(c.stdin), stdout, stderr
	if cmd.Env == nil {
		cmd.Env = []string{} // nil would be this process's
	}
	proc.Confine(cmd)
	cmd.SysProcAttr.Credential = r.Credential

	begin := time.Now()
	o := outcome{}
	ended, err := proc.StartSession(cmd)
	if err != nil {
		return o, failed(c.path, err, "")
	}
	if r.Waiting != nil {
		late := time.AfterFunc(patience, func() { r.Waiting(c.path) })
		defer late.Stop()
	}
	gone, err := wait(limited, ended)
	o.took = time.Since(begin)
	if !gone {
		return o, &fault.Error{
			What:  fmt.Errorf("run hook %s: process %d cannot be killed", c.path, cmd.Process.Pid),
			Cause: "it waits in the kernel, for a file server or a device",
			Hint:  fmt.Sprintf("see what for: cat /proc/%d/stack", cmd.Process.Pid),
		}
	}
	text := string(stderr.Bytes())
	if errors.Is(err, exec.ErrWaitDelay) { // it ended well; something that it started holds its output
		o.notes = append(o.notes, leftBehind(syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)))
		err = nil
	}
	if stdout.full {
		return o, failed(c.path, fmt.Errorf("it wrote more than %d bytes to stdout", maxAnswer), text)
	}
	if cause := context.Cause(limited); err != nil && cause != nil {
		if !errors.Is(cause, errKilled) {
			return o, fmt.Errorf("run hook %s: %w", c.path, cause) // the hook is not to blame
		}
		return o, failed(c.path, fmt.Errorf("%w after %v", cause, timeout), text)
	}
	if err != nil {
		return o, failed(c.path, err, text)
	}
	o.stdout = stdout.buf.Bytes()
	o.notes = append(o.notes, lines(text)...)
	return o, nil
}

// leftBehind says what became of the processes that a hook left behind, and that hold its
// output open. Only those of its group can be found: err is from killing them.
func leftBehind(err error) string {
	switch {
	case err == nil:
		return "left processes behind, which were killed; one that shall live on needs setsid and other files"
	case errors.Is(err, syscall.ESRCH):
		return "left a process behind, in a session of its own, that holds the output of the hook: it lives on, and nobody reads what it writes; give it other files"
	}
	return fmt.Sprintf("left processes behind that cannot be killed (%v)", err)
}

// wait waits for a hook, and gives it up some time after its context ended: a process in an
// uninterruptible sleep does not die, and may not hold up the others.
func wait(ctx context.Context, done <-chan error) (gone bool, err error) {
	select {
	case err = <-done:
		return true, err
	case <-ctx.Done():
	}
	select {
	case err = <-done:
		return true, err
	case <-time.After(grace):
		return false, nil
	}
}

// failed makes the error that a person sees.
func failed(path string, err error, stderr string) error {
	e := &fault.Error{What: fmt.Errorf("run hook %s: %w", path, err), Hint: "mend it, or take it out of its directory"}
	said := lines(stderr)
	if len(said) > 0 {
		e.Cause = "it said: " + shorten(strings.Join(said[max(0, len(said)-3):], "; "))
	}
	switch {
	case errors.Is(err, syscall.ENOENT):
		e.Cause, e.Hint = "the file is not there, or the interpreter that its first line names", "look at its first line"
	case errors.Is(err, syscall.ENOEXEC):
		e.Cause, e.Hint = "it is neither a program for this machine nor a script", "a script's first line is: #!/bin/sh"
	case errors.Is(err, errKilled):
		e.Hint = "see what it waits for, or raise the timeout of hooks"
	}
	return e
}

// lines splits what a program said, without empty lines.
func lines(s string) []string {
	var all []string
	for line := range strings.Lines(s) {
		if line = strings.TrimSpace(line); line != "" {
			all = append(all, line)
		}
	}
	return all
}

// bounded keeps what is written to it up to a limit, and then refuses.
type bounded struct {
	buf  bytes.Buffer
	most int
	full bool
}

var errFull = errors.New("the output is too long")

// Write implements io.Writer.
func (b *bounded) Write(p []byte) (int, error) {
	if b.buf.Len()+len(p) > b.most {
		b.full = true
		return 0, errFull
	}
	return b.buf.Write(p)
}
