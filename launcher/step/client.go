package step

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/gangway-hpc/gangway/internal/fault"
)

// ExecOptions say what Exec runs.
type ExecOptions struct {
	Args     []string
	Env      []string // NAME=VALUE, over those of the container
	own      *ownEnv  // instead of Env
	Cwd      string   // in the container; "" is its own working directory
	Terminal bool
	Stdin    *os.File
	Stdout   *os.File
	Stderr   *os.File
	Timeout  time.Duration // from the start of the command; 0 is none
	patience time.Duration // instead of answerTime
}

// answerTime is how long a supervisor may take to start a command. One that is stopped
// answers never.
const answerTime = 30 * time.Second

// Exec runs a command in a running container, whose run directory is dir, and waits for
// it. Signals that this process gets go to the command. The result is nil, a
// fault.Exit, or why there is no result.
func Exec(ctx context.Context, dir string, o ExecOptions) error {
	c, err := dial(dir)
	if err != nil {
		return err
	}
	defer c.Close()
	state, _ := readState(dir) // it is gone where the container ends just now
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, forwarded(o.Terminal)...)
	defer signal.Stop(signals)
	reply, got, err := o.ask(ctx, c)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return unanswered(&state)
	}
	if err != nil {
		return err
	}
	defer closeAll(got)
	switch {
	case reply.Ended:
		return ended(dir, syscall.ECONNREFUSED)
	case reply.Error != nil:
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
	passed := make(chan bool, 1)
	go func() {
		passed <- o.pass(c, syscall.Signal(cmp.Or(state.StopSignal, int(syscall.SIGTERM))), signals, done)
	}()
	err = outcome(c)
	close(done)
	if overdue := <-passed; overdue {
		return tooLong(o.Timeout)
	}
	return err
}

// ask asks for the command, and waits until it runs or cannot.
func (o *ExecOptions) ask(ctx context.Context, c *net.UnixConn) (reply execReply, got []*os.File, err error) {
	// No signal can go to a command that does not run yet: it ends the waiting.
	stop := context.AfterFunc(ctx, func() { _ = c.Close() })
	defer func() {
		if !stop() {
			closeAll(got)
			got, err = nil, context.Cause(ctx)
		}
	}()
	if err := c.SetDeadline(time.Now().Add(cmp.Or(o.patience, answerTime))); err != nil {
		return reply, nil, lost(err)
	}
	// Ranks get the files of whoever asks, not copies of what is in them.
	files := []*os.File{o.Stdin, o.Stdout, o.Stderr}
	if o.Terminal {
		files = nil
	}
	err = send(c, execRequest{Args: blobs(o.Args), Env: blobs(o.Env), Own: o.own, Cwd: []byte(o.Cwd), Terminal: o.Terminal, Ignored: ignored()}, files...)
	if err != nil && !errors.Is(err, syscall.EPIPE) { // who refuses may not read all, but says why
		return reply, nil, lost(err)
	}
	if got, err = receive(c, &reply, 1); err == nil {
		err = c.SetDeadline(time.Time{})
	}
	if err != nil {
		return reply, got, lost(err)
	}
	return reply, got, nil
}

// unanswered is the error of a supervisor that is there and does nothing.
func unanswered(s *State) error {
	f := &fault.Error{
		What:  fmt.Errorf("run in container %s: its supervisor does not answer", cmp.Or(s.Name, s.ID)),
		Cause: "it may be stopped, or the machine has no time for it",
		Code:  fault.CodeFailed,
	}
	if s.Supervisor > 0 {
		f.Hint = fmt.Sprintf("let it go on: kill -CONT %d; or end the container: kill -KILL %d", s.Supervisor, s.Supervisor)
	}
	return f
}

// pass hands on signals, and ends the command with the signal end when its time is over; it
// says whether it was. What goes wrong with sending shows where the outcome is waited for.
func (o *ExecOptions) pass(c *net.UnixConn, end syscall.Signal, signals <-chan os.Signal, done <-chan struct{}) (overdue bool) {
	var limit, kill <-chan time.Time
	if o.Timeout > 0 {
		limit = time.After(o.Timeout)
	}
	for {
		select {
		case s := <-signals:
			_ = send(c, execSignal{int(s.(syscall.Signal))})
		case <-limit:
			overdue = true
			_ = send(c, execSignal{int(end)})
			kill = time.After(grace)
		case <-kill:
			_ = send(c, execSignal{int(syscall.SIGKILL)})
		case <-done:
			return overdue
		}
	}
}

// tooLong is the error of a command that was ended because its time was over.
func tooLong(limit time.Duration) error {
	return &fault.Error{
		What: fmt.Errorf("the command ran longer than --timeout %s", limit),
		Code: fault.CodeSignal(syscall.SIGTERM),
	}
}

// outcome waits for the end of the command, and stops when it does.
func outcome(c *net.UnixConn) error {
	var reply execReply
	for {
		reply = execReply{}
		if _, err := receive(c, &reply, 0); err != nil {
			return lost(err)
		}
		if reply.Stopped == 0 {
			break
		}
		stopWith(syscall.Signal(reply.Stopped))
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

func ended(dir string, err error) error {
	return &fault.Error{What: fmt.Errorf("reach container %s: %w", filepath.Base(dir), err), Cause: "it ended just now", Hint: "see what runs: gangway container ls"}
}

func dial(dir string) (*net.UnixConn, error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, fmt.Errorf("open run directory: %w", err)
	}
	defer d.Close()
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Net: "unix", Name: procName(d, sockName)})
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED) {
		return nil, ended(dir, err)
	}
	if err != nil {
		return nil, fmt.Errorf("reach container %s: %w", filepath.Base(dir), err)
	}
	return c, nil
}

// forwarded are the signals that go on to the command. One that was ignored when this
// process started is ignored for the command as well, which is what nohup is for. The
// size of a terminal of the command's own is the relay's business.
func forwarded(terminal bool) []os.Signal {
	all := []os.Signal{
		syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT,
		syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGCONT, syscall.SIGTSTP,
	}
	if !terminal {
		all = append(all, syscall.SIGWINCH)
	}
	return slices.DeleteFunc(all, signal.Ignored)
}

// ignored are the signals that this process was told to ignore when it started, as far
// as the Go runtime leaves them: those of a terminal that hangs up or is interrupted.
func ignored() []syscall.Signal {
	return slices.DeleteFunc([]syscall.Signal{syscall.SIGHUP, syscall.SIGINT}, func(s syscall.Signal) bool { return !signal.Ignored(s) })
}
