package step

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/gangway-hpc/gangway/internal/fault"
	"github.com/gangway-hpc/gangway/runtime"
	"github.com/gangway-hpc/gangway/runtime/spec"
)

// server lets others run processes in a container, through the socket in its run
// directory.
type server struct {
	container *runtime.Container
	env       []string // of the container's first process
	cwd       string
	environ   func(own spec.Request, environ []string) ([]string, error)
	ranks     *ranks
	// outOfMemory says that the container ran out of its memory, if it did, with an exit
	// code; it may be nil.
	outOfMemory func(code int) error
	log         *slog.Logger
	wg          sync.WaitGroup
}

// listener is what serve uses of a net.UnixListener.
type listener interface {
	AcceptUnix() (*net.UnixConn, error)
	Close() error
}

const (
	// maxUnanswered bounds the connections whose process does not run yet.
	maxUnanswered = 64
	// requestTime is how long a connection may take to say what it wants.
	requestTime = 10 * time.Second
	// acceptPause is how long accept is left alone when it lacked something.
	acceptPause = 200 * time.Millisecond
)

// serve answers until the listener is closed. Whatever else ends it closes the
// listener: who asks then is refused, and does not wait for an answer.
func (s *server) serve(ctx context.Context, l listener) {
	places := make(chan struct{}, maxUnanswered)
	warned := false
	for {
		select {
		case places <- struct{}{}:
		case <-ctx.Done():
			_ = l.Close() // it may be closed already
			return
		}
		c, err := l.AcceptUnix()
		if err == nil {
			s.wg.Go(func() { s.handle(ctx, c, sync.OnceFunc(func() { <-places })) })
			continue
		}
		<-places
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case isPassing(err) && pause(ctx, acceptPause):
			if !warned {
				s.log.Warn("others wait to reach the container", "err", err)
			}
			warned = true
		default:
			if ctx.Err() == nil {
				s.log.Warn("container cannot be reached by others any more", "err", err)
			}
			_ = l.Close() // it may be closed already
			return
		}
	}
}

// isPassing says whether an error of accept(2) is of something that others may give
// back, or of the one connection.
func isPassing(err error) bool {
	for _, e := range []syscall.Errno{syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM, syscall.ECONNABORTED, syscall.EINTR} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// pause waits, and says whether ctx goes on.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// handle answers a connection, and calls answered when its process runs or cannot.
func (s *server) handle(ctx context.Context, c *net.UnixConn, answered func()) {
	defer c.Close()
	defer answered()
	if err := s.answer(ctx, c, answered); err != nil {
		// Whoever asked is told; if he is gone, nobody wants to know.
		_ = send(c, execReply{Error: toWire(err)})
	}
}

// request reads what a connection asks for. One that says nothing is given up.
func request(ctx context.Context, c *net.UnixConn) (*execRequest, []*os.File, error) {
	if err := c.SetReadDeadline(time.Now().Add(requestTime)); err != nil {
		return nil, nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = c.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	req := &execRequest{}
	files, err := receive(c, req, 3)
	if err == nil && !stop() {
		err = context.Cause(ctx)
	}
	if err == nil {
		err = c.SetReadDeadline(time.Time{})
	}
	if err != nil {
		closeAll(files)
		return nil, nil, err
	}
	return req, files, nil
}

// answer runs the process that a connection asks for.
func (s *server) answer(ctx context.Context, c *net.UnixConn, answered func()) error {
	if err := checkPeer(c); err != nil {
		return err
	}
	req, files, err := request(ctx, c)
	if err != nil {
		return err
	}
	defer func() { closeAll(files) }()
	join := runtime.JoinProcess{Args: texts(req.Args), Cwd: string(req.Cwd), Terminal: req.Terminal, Ignored: req.Ignored}
	if join.Env, err = s.environment(req); err != nil {
		return err
	}
	if join.Cwd == "" {
		join.Cwd = s.cwd
	}
	switch {
	case len(req.Args) == 0:
		return errors.New("run in container: no command came")
	case req.Terminal:
	case len(files) != 3:
		return errors.New("run in container: stdin, stdout and stderr did not come")
	default:
		join.Stdin, join.Stdout, join.Stderr = files[0], files[1], files[2]
	}
	if req.Own != nil {
		if !s.ranks.join() {
			return send(c, execReply{Ended: true})
		}
		defer s.ranks.leave()
	}
	p, err := s.container.Join(ctx, join)
	if err != nil {
		return explainCommand(err)
	}
	var pty []*os.File
	if t := p.Terminal(); t != nil {
		pty = append(pty, t)
	}
	err = send(c, execReply{PID: p.PID()}, pty...)
	closeAll(pty)
	closeAll(files)
	files = nil
	if err != nil {
		return errors.Join(err, p.Signal(syscall.SIGKILL), wait(p))
	}
	answered()
	f := &follower{Process: p}
	s.wg.Go(func() { f.follow(c) })
	done := make(chan struct{})
	told := make(chan struct{})
	go func() {
		defer close(told)
		f.tellStops(c, done)
	}()
	status, err := p.Wait()
	close(done)
	<-told // two messages at a time would be none
	if err != nil {
		return err
	}
	reply := execReply{Exit: &status.Code}
	if status.Signal == syscall.SIGKILL && s.outOfMemory != nil {
		if err := s.outOfMemory(status.Code); err != nil {
			return send(c, execReply{Error: toWire(err)})
		}
	}
	if status.Signal == syscall.SIGKILL && s.container.Ending() {
		reply = execReply{Error: toWire(&fault.Error{
			What: errors.New("the command was ended because its container ended"),
			Hint: "a container lives until the gangway runs in it have ended, or the first one is told to; an exec ends with it",
			Code: status.Code,
		})}
	}
	return send(c, reply)
}

// environment is that of a process that is asked for.
func (s *server) environment(req *execRequest) ([]string, error) {
	if req.Own == nil {
		return mergeEnv(s.env, texts(req.Env)), nil
	}
	return s.environ(spec.Request{
		Command: texts(req.Args), Terminal: req.Terminal,
		Export: req.Own.Export, ContainerEnv: req.Own.ContainerEnv, Env: texts(req.Own.Env),
	}, texts(req.Own.Environ))
}

func wait(p *runtime.Process) error {
	_, err := p.Wait()
	return err
}

// follower is between a process and whoever asked for it.
type follower struct {
	*runtime.Process
	typed atomic.Bool // a SIGSTOP is on its way in the place of a SIGTSTP
}

// follow passes signals on. When whoever asked goes away, the process is told as a
// terminal would that hung up, and goes on if it was stopped: nobody else would let it.
func (f *follower) follow(c *net.UnixConn) {
	for {
		var m execSignal
		if _, err := receive(c, &m, 0); err != nil {
			_ = f.Signal(syscall.SIGHUP) // it may have ended
			_ = f.Signal(syscall.SIGCONT)
			return
		}
		sig := syscall.Signal(m.Signal)
		if sig == syscall.SIGTSTP && byDefault(f.PID(), sig) {
			// Else the kernel does nothing where the shell that started the supervisor
			// is gone: it stops no orphaned process group.
			sig = syscall.SIGSTOP
			f.typed.Store(true)
		}
		if sig == syscall.SIGCONT {
			f.typed.Store(false)
		}
		if sig > 0 && sig <= 64 {
			_ = f.Signal(sig)
		}
	}
}

// byDefault says whether a process neither handles nor ignores a signal.
func byDefault(pid int, sig syscall.Signal) bool {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	if err != nil {
		return false // it has ended
	}
	for line := range strings.Lines(string(b)) {
		field, value, _ := strings.Cut(line, ":")
		if field == "SigIgn" || field == "SigCgt" {
			set, err := strconv.ParseUint(strings.TrimSpace(value), 16, 64)
			if err != nil || set>>(sig-1)&1 != 0 {
				return false
			}
		}
	}
	return true
}

// tellStops tells whoever asked of stops, until done.
func (f *follower) tellStops(c *net.UnixConn, done <-chan struct{}) {
	for {
		select {
		case sig := <-f.Stopped():
			if f.typed.Swap(false) && sig == syscall.SIGSTOP {
				sig = syscall.SIGTSTP // as which it came; others' SIGSTOPs are not the caller's affair
			}
			_ = send(c, execReply{Stopped: int(sig)}) // if he is gone, nobody wants to know
		case <-done:
			return
		}
	}
}

// mergeEnv returns base with the variables of over in the place of those of their
// names.
func mergeEnv(base, over []string) []string {
	if len(over) == 0 {
		return base
	}
	names := map[string]bool{}
	for _, v := range over {
		names[name(v)] = true
	}
	var all []string
	for _, v := range base {
		if !names[name(v)] {
			all = append(all, v)
		}
	}
	return append(all, over...)
}

// name is what stands before the "=".
func name(variable string) string {
	n, _, _ := strings.Cut(variable, "=")
	return n
}
