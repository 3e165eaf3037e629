package step

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/gangway-hpc/gangway/internal/fault"
)

// ExecOptions say what Exec runs.
type ExecOptions struct {
	Args     []string
	Env      []string // NAME=VALUE, over those of the container
	Cwd      string   // in the container; "" is its own working directory
	Terminal bool
	Stdin    *os.File
	Stdout   *os.File
	Stderr   *os.File
}

// Exec runs a command in a running container, whose run directory is dir, and waits for
// it. Signals that this process gets go to the command. The result is nil, a
// fault.Exit, or why there is no result.
func Exec(ctx context.Context, dir string, o ExecOptions) error {
	c, err := dial(dir)
	if err != nil {
		return err
	}
	defer c.Close()
	// Ranks get the files of whoever asks, not copies of what is in them.
	files := []*os.File{o.Stdin, o.Stdout, o.Stderr}
	if o.Terminal {
		files = nil
	}
	if err := send(c, execRequest{Args: o.Args, Env: o.Env, Cwd: o.Cwd, Terminal: o.Terminal}, files...); err != nil {
		return lost(err)
	}
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, forwarded()...)
	defer signal.Stop(signals)
	if ctx.Err() != nil { // a signal that came before
		return context.Cause(ctx)
	}

	var reply execReply
	got, err := receive(c, &reply, 1)
	if err != nil {
		return lost(err)
	}
	defer closeAll(got)
	if reply.Error != nil {
		return reply.Error.fault()
	}
	if o.Terminal {
		if len(got) != 1 {
			return lost(errors.New("no terminal came"))
		}
		relay, err := startRelay(got[0], o.Stdin, o.Stdout)
		if err != nil {
			return err
		}
		defer relay.stop()
	}
	done := make(chan struct{})
	defer close(done)
	go func() {
		for {
			select {
			case s := <-signals:
				// What goes wrong here shows below.
				_ = send(c, execSignal{int(s.(syscall.Signal))})
				if s == syscall.SIGTSTP { // the shell that started us waits for it
					_ = syscall.Kill(os.Getpid(), syscall.SIGSTOP)
				}
			case <-done:
				return
			}
		}
	}()
	reply = execReply{}
	if _, err := receive(c, &reply, 0); err != nil {
		return lost(err)
	}
	switch {
	case reply.Error != nil:
		return reply.Error.fault()
	case reply.Exit == nil:
		return lost(errors.New("no exit status came"))
	case *reply.Exit != 0:
		return fault.Exit(*reply.Exit)
	}
	return nil
}

// lost is the error of a supervisor that went away.
func lost(err error) error {
	cause := ""
	if errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) {
		cause = "the container ended"
		err = io.ErrUnexpectedEOF
	}
	return &fault.Error{What: fmt.Errorf("talk to the container's supervisor: %w", err), Cause: cause, Code: fault.CodeFailed}
}

func dial(dir string) (*net.UnixConn, error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, fmt.Errorf("open run directory: %w", err)
	}
	defer d.Close()
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Net: "unix", Name: procName(d, sockName)})
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED) {
		return nil, &fault.Error{What: fmt.Errorf("reach container %s: %w", filepath.Base(dir), err), Cause: "it ended just now", Hint: "see what runs: gangway container ls"}
	}
	if err != nil {
		return nil, fmt.Errorf("reach container %s: %w", filepath.Base(dir), err)
	}
	return c, nil
}

// forwarded are the signals that go on to the command.
func forwarded() []os.Signal {
	return []os.Signal{
		syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT,
		syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGCONT, syscall.SIGTSTP,
	}
}
