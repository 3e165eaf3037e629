package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/gangway-hpc/gangway/image"
	"github.com/gangway-hpc/gangway/image/layer"
	"github.com/gangway-hpc/gangway/internal/cli"
	"github.com/gangway-hpc/gangway/internal/fault"
	"github.com/gangway-hpc/gangway/internal/proc"
)

// What an image holds is data of strangers. It is decompressed and taken apart by an
// unprivileged process only: by this one where it is that of an ordinary user, and by
// a child under another id, which owns no file and is given only the layer's, where it
// is root's. Headers of archives on this machine, and the documents of an image, are
// decoded by root's own process, within limits.

// converter returns how layers are converted: nil for in this process.
func converter() image.Converter {
	if !proc.IsRoot() {
		return nil
	}
	return convertInChild
}

// conversion is what parent and child tell each other.
type conversion struct {
	Info  layer.Info
	Error string
	Cause string
	Hint  string
	Limit *layer.LimitError // where that is why
	Errno syscall.Errno     // where that is why
}

// childError is the error of the child, with what callers look for in it.
type childError struct{ conversion }

// Error implements error.
func (e *childError) Error() string { return e.conversion.Error }

// Unwrap returns why the child failed, as far as it is known.
func (e *childError) Unwrap() []error {
	var why []error
	if e.Limit != nil {
		why = append(why, e.Limit)
	}
	if e.Errno != 0 {
		why = append(why, e.Errno)
	}
	return why
}

func convertInChild(ctx context.Context, out *os.File, blob io.Reader, o layer.Options) (layer.Info, error) {
	arg, err := json.Marshal(o)
	if err != nil {
		return layer.Info{}, err
	}
	var stdout, stderr proc.Excerpt
	cmd := exec.CommandContext(ctx, "/proc/self/exe", "image", "convert-layer", string(arg))
	proc.AsNobody(cmd)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	cmd.ExtraFiles = []*os.File{out}
	cmd.WaitDelay = 5 * time.Second
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return layer.Info{}, err
	}
	if err := cmd.Start(); err != nil {
		return layer.Info{}, noChild("convert a layer", err)
	}
	pipe := &pipeWriter{w: stdin}
	_, copyErr := io.Copy(pipe, blob)
	if pipe.broken {
		copyErr = nil // the child says why it ended
	}
	if copyErr != nil {
		// The child must not take the begin of a blob for the whole.
		_ = cmd.Process.Kill()
	}
	_ = stdin.Close()
	endGroup(cmd.Process.Pid)
	err = cmd.Wait()
	if copyErr != nil {
		return layer.Info{}, copyErr
	}
	if cause := context.Cause(ctx); cause != nil {
		return layer.Info{}, cause
	}
	var c conversion
	if json.Unmarshal(stdout.Bytes(), &c) != nil {
		return layer.Info{}, &fault.Error{
			What: fmt.Errorf("convert layer in another process: %w: %.300s", err, stderr.Bytes()),
			Hint: "pull again; if it is killed again, look for want of memory in the kernel's log: dmesg",
		}
	}
	if c.Error != "" {
		return layer.Info{}, &fault.Error{What: &childError{c}, Cause: c.Cause, Hint: c.Hint}
	}
	return c.Info, nil
}

// noChild explains that a process without rights cannot be started.
func noChild(purpose string, err error) error {
	return &fault.Error{
		// Not wrapped: it is about no file of the store.
		What:  fmt.Errorf("start a process of user %d to %s: %s", proc.Nobody, purpose, err.Error()),
		Cause: "root does not unpack what strangers wrote",
		Hint:  "run it as an ordinary user; or let everybody execute gangway, and give root CAP_SETUID and CAP_SETGID",
	}
}

// endGroup waits for the end of a process, and then ends all that it may have started,
// which could still write the file. The process is not reaped before, so that the id of
// its group is nobody else's.
func endGroup(pid int) {
	for errors.Is(unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil), unix.EINTR) {
		continue
	}
	_ = unix.Kill(-pid, unix.SIGKILL)
}

// pipeWriter notes that the reader of a pipe is gone, which is no error of the copy's
// source.
type pipeWriter struct {
	w      io.Writer
	broken bool
}

// Write implements io.Writer.
func (p *pipeWriter) Write(b []byte) (int, error) {
	n, err := p.w.Write(b)
	p.broken = p.broken || errors.Is(err, syscall.EPIPE)
	return n, err
}

// imageConvertLayer is the child of convertInChild. It is not for people.
func imageConvertLayer(env *cli.Env) *cobra.Command {
	cmd := &cobra.Command{Use: "convert-layer OPTIONS", Short: "convert a layer for another process", Hidden: true}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		var o layer.Options
		if err := json.Unmarshal([]byte(args[0]), &o); err != nil {
			return fmt.Errorf("convert-layer: %w", err)
		}
		out := os.NewFile(3, "layer file")
		if _, err := out.Stat(); err != nil {
			return fmt.Errorf("convert-layer: %w", err)
		}
		err := proc.Renounce()
		if err != nil {
			return fmt.Errorf("convert-layer: %w", err)
		}
		setMemoryLimits(env)
		var c conversion
		if c.Info, err = layer.Convert(cmd.Context(), out, env.Stdin, o); err != nil {
			c.Error = err.Error()
			if f, ok := errors.AsType[*fault.Error](err); ok {
				c.Cause, c.Hint = f.Cause, f.Hint
			}
			c.Limit, _ = errors.AsType[*layer.LimitError](err)
			c.Errno, _ = errors.AsType[syscall.Errno](err)
		}
		return printLine(env.Stdout, c)
	}
	return cmd
}
