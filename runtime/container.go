package runtime

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/gangway-hpc/gangway/internal/fault"
	"github.com/gangway-hpc/gangway/runtime/fork"
	"github.com/gangway-hpc/gangway/runtime/plan"
)

// Container is a container that is prepared or runs.
type Container struct {
	config   *Config
	features Features
	plan     *plan.Plan
	log      *slog.Logger

	init    process
	control int // socket of PID 1
	begin   int // socket of the first process until it has executed its command
	pidns   uint64
	spaces  []space
	overlay *overlayProgram

	terminal *os.File
	stopped  chan syscall.Signal
	gone     chan struct{} // closed when all is over; then these do not change:
	status   Status
	cause    error

	over atomic.Bool // it ends

	mu      sync.Mutex // for what follows; nobody waits with it
	started bool
	closed  bool
	ended   bool           // no other process is let in
	joins   sync.WaitGroup // those on their way in
}

// Prepare makes a container and does all but the execve of its first process. When it fails
// nothing is left over, and the error wraps an *OpError if an operation failed.
// Cancelling ctx while it runs ends the container.
func Prepare(ctx context.Context, c *Config) (*Container, error) {
	return prepare(ctx, c, ProbeFeatures())
}

func prepare(ctx context.Context, config *Config, f Features) (*Container, error) {
	p, err := Compile(config, f)
	if err != nil {
		return nil, err
	}
	c := &Container{
		config: config, features: f, plan: p, log: config.Log,
		init: process{pidfd: -1}, control: -1, begin: -1, stopped: make(chan syscall.Signal, 16), gone: make(chan struct{}),
	}
	if c.log == nil {
		c.log = slog.New(slog.DiscardHandler)
	}
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("prepare container: %w", err)
	}
	if err := c.fork(); err != nil {
		return nil, fmt.Errorf("prepare container: %w", errors.Join(err, c.release()))
	}
	stop := context.AfterFunc(ctx, func() { _ = c.init.signal(syscall.SIGKILL) })
	err = c.converse(ctx)
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		_ = c.init.signal(syscall.SIGKILL)
		_, _ = c.init.wait()
		_ = c.stopOverlay()
		if ctx.Err() != nil {
			err = errors.Join(ctx.Err(), err)
		}
		return nil, fmt.Errorf("prepare container: %w", errors.Join(err, c.release()))
	}
	go c.watch()
	return c, nil
}

// fork makes PID 1.
func (c *Container) fork() error {
	control, peer, err := socketpair()
	if err != nil {
		return err
	}
	c.control = control
	kept := newKept(3 + len(c.config.Pass))
	defer kept.close()
	kept.take(peer)
	begin, peer, err := socketpair()
	if err != nil {
		return err
	}
	c.begin = begin
	kept.take(peer)
	kept.stdio(c.config.Stdin, c.config.Stdout, c.config.Stderr)
	if c.config.Orphan.Message != "" {
		kept.dup(os.Stderr)
	} else {
		kept.none()
	}
	if c.config.Root.FUSE != nil {
		kept.null()
	} else {
		kept.none()
	}
	for _, f := range c.config.Pass {
		kept.dup(f)
	}
	if kept.err != nil {
		return kept.err
	}
	m, err := fork.Load(c.plan, kept.fds, fork.Options{CloseRange: c.features.CloseRange, Apart: c.config.Spec.Process.Terminal, Cgroup: c.cgroup()})
	if err != nil {
		return fmt.Errorf("load plan: %w", err)
	}
	child, err := m.Start()
	if err != nil {
		errno, _ := errors.AsType[syscall.Errno](err)
		return &OpError{Index: -1, Call: "clone", What: "namespaces (" + flagNames(c.plan.Flags) + ")", Errno: errno}
	}
	c.init = process{pid: child.PID, pidfd: child.PidFD, made: child.InCgroup}
	if !c.features.Pidfd {
		c.init.close()
	}
	return nil
}

// cgroup is the descriptor of the group that processes are made in; 0: there is none.
func (c *Container) cgroup() int {
	if c.config.Cgroup == nil {
		return 0
	}
	return int(c.config.Cgroup.Fd())
}

// converse answers PID 1 until the first process waits for START.
func (c *Container) converse(ctx context.Context) error {
	for {
		r, fd, err := fork.Receive(c.control)
		if err != nil {
			return c.vanished(err)
		}
		if r.Errno != 0 {
			return c.opError(r)
		}
		if r.Note == plan.NoteReady {
			break
		}
		if err := c.note(ctx, r.Note, fd); err != nil {
			return err
		}
	}
	for {
		r, _, err := fork.Receive(c.begin)
		switch {
		case err != nil:
			// PID 1 may have said why.
			if r, _, err := fork.Receive(c.control); err == nil && r.Errno != 0 {
				return c.opError(r)
			}
			return c.vanished(err)
		case r.Errno != 0:
			return c.opError(r)
		case r.Note == plan.NoteReady:
			return nil
		}
	}
}

// note does what PID 1 waits for.
func (c *Container) note(ctx context.Context, n plan.Note, fd int) error {
	var err error
	answer := true
	switch n {
	case plan.NoteMaps:
		if err = c.openSpaces(); err == nil && c.config.Placed != nil {
			err = c.config.Placed(c.init.pid, c.init.made)
		}
	case plan.NoteCgroup:
		err = c.openSpace("cgroup", unix.CLONE_NEWCGROUP)
	case plan.NoteInner:
		// They are joined after the others, whose user namespace gives the right to.
		if err = c.openSpace("user", unix.CLONE_NEWUSER); err == nil {
			err = c.openSpace("mnt", unix.CLONE_NEWNS)
		}
	case plan.NoteRoot:
		err = c.startOverlay(ctx)
	case plan.NoteFUSE:
		answer = false
		if fd < 0 {
			return errors.New("receive /dev/fuse: no descriptor came")
		}
		if err = c.config.Root.FUSE.Serve(ctx, os.NewFile(uintptr(fd), "/dev/fuse")); err != nil {
			err = fmt.Errorf("serve image: %w", err)
		}
	case plan.NoteTerminal:
		answer = false
		c.terminal, err = terminalFile(fd)
	}
	if err != nil || !answer {
		return err
	}
	return fork.Answer(c.control, 0)
}

// opError is what a process told of an operation.
func (c *Container) opError(r fork.Record) error { return opError(c.plan, r) }

func opError(p *plan.Plan, r fork.Record) error {
	e := &OpError{Index: r.Index, Call: "clone", What: "first process", Errno: r.Errno}
	if o := p.Step(r.Index); o != nil {
		e.Call, e.What = o.Name, o.What
	}
	return e
}

// vanished says that PID 1 ended without a word.
func (c *Container) vanished(err error) error {
	if !errors.Is(err, io.EOF) {
		return err
	}
	return errors.New("PID 1 of the container was killed")
}

// Start lets the first process execute its command. It returns when that succeeded.
func (c *Container) Start() error {
	c.mu.Lock()
	if c.started || c.closed {
		c.mu.Unlock()
		return errors.New("start container: it was started or closed before")
	}
	c.started = true
	begin := c.begin
	c.begin = -1
	c.mu.Unlock()
	defer func() { _ = unix.Close(begin) }()
	if err := fork.Answer(begin, 0); err != nil {
		<-c.gone
		return fmt.Errorf("start container: %w", errors.Join(errors.New("it ended before"), c.cause))
	}
	r, _, err := fork.Receive(begin)
	if errors.Is(err, io.EOF) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("start container: %w", err)
	}
	<-c.gone
	return commandError(c.plan, r, c.config.Spec.Process.Args[0])
}

// commandError says why a command could not be executed.
func commandError(p *plan.Plan, r fork.Record, name string) error {
	if o := p.Step(r.Index); o == nil || o.Kind != plan.Exec {
		return fmt.Errorf("start container: %w", opError(p, r))
	}
	switch r.Errno {
	case syscall.ENOENT:
		return &fault.Error{What: fmt.Errorf("execute %s: command not found: %w", name, r.Errno), Code: fault.CodeNotFound}
	case syscall.ELIBACC:
		return &fault.Error{
			What:  fmt.Errorf("execute %s: %w", name, syscall.ENOENT),
			Cause: "the file is there, but the interpreter that it names is not",
			Code:  fault.CodeNotExecutable,
		}
	default:
		return &fault.Error{What: fmt.Errorf("execute %s: %w", name, r.Errno), Code: fault.CodeNotExecutable}
	}
}

// watch reads what PID 1 tells until it is gone.
func (c *Container) watch() {
	status := Status{Code: fault.CodeSignal(syscall.SIGKILL), Signal: syscall.SIGKILL}
	var swept error
	buried := make(chan error, 1)
	go func() { buried <- c.bury() }()
	for {
		r, _, err := fork.Receive(c.control)
		if err != nil {
			break
		}
		switch {
		case r.Exited:
			status = statusOf(r.Status)
			if c.config.Linger != nil {
				c.config.Linger()
			}
			c.over.Store(true)
			// While PID 1 waits to be heard, which ends what is left if this process is killed.
			swept = c.endJoined()
			_ = fork.Answer(c.control, fork.Heard) // else it is gone already
		case r.Stopped != 0:
			select {
			case c.stopped <- r.Stopped:
			default: // nobody listens
			}
		}
	}
	c.status, c.cause = status, errors.Join(<-buried, swept)
	close(c.gone)
}

// bury ends what is left when PID 1 is gone.
func (c *Container) bury() error {
	_, err := c.init.wait()
	c.over.Store(true)
	err = errors.Join(err, c.endJoined())
	c.joins.Wait()
	err = errors.Join(err, c.endJoined())
	return errors.Join(c.stopOverlay(), err)
}

// Wait waits until all processes of the container are gone, and returns how the first one
// ended. The error says why the container was ended before that.
func (c *Container) Wait() (Status, error) {
	<-c.gone
	return c.status, c.cause
}

// Ending says whether the container ends, and all its processes with it.
func (c *Container) Ending() bool { return c.over.Load() }

// Lacks names the calls that the container was made without, empty if none.
func (c *Container) Lacks() string { return c.features.Lacks() }

// Stopped tells of signals that stopped the first process, as Ctrl-Z does.
func (c *Container) Stopped() <-chan syscall.Signal { return c.stopped }

// Signal sends a signal to the first process. One that the terminal has just sent to the
// whole process group, this process included, is not sent twice. It does not wait: where
// PID 1 does not read, as when somebody stopped it, the error is EAGAIN.
func (c *Container) Signal(s syscall.Signal) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return fmt.Errorf("signal container: %w", os.ErrProcessDone)
	}
	if s <= 0 || s > 64 {
		return fmt.Errorf("signal container: %d: %w", int(s), syscall.EINVAL)
	}
	err := fork.Offer(c.control, uint32(s))
	if err != nil && !errors.Is(err, syscall.EAGAIN) {
		err = errors.Join(os.ErrProcessDone, err)
	}
	if err != nil {
		return fmt.Errorf("signal container: %w", err)
	}
	return nil
}

// Kill ends all processes of the container at once.
func (c *Container) Kill() error {
	c.over.Store(true)
	return c.init.signal(syscall.SIGKILL)
}

// Terminal is the master of the first process's terminal, nil if it has none.
func (c *Container) Terminal() *os.File { return c.terminal }

// Init is the host's number of PID 1.
func (c *Container) Init() int { return c.init.pid }

// PidNS is the inode of the pid namespace.
func (c *Container) PidNS() uint64 { return c.pidns }

// Close ends the container if it still runs and gives back what it held.
func (c *Container) Close() error {
	_ = c.Kill()
	<-c.gone
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil
	}
	c.closed = true
	return c.release()
}

// release closes descriptors.
func (c *Container) release() error {
	var errs []error
	fds := []int{c.control, c.begin}
	for _, s := range c.spaces {
		fds = append(fds, s.fd)
	}
	c.control, c.begin, c.spaces = -1, -1, nil
	for _, fd := range fds {
		if fd >= 0 {
			errs = append(errs, unix.Close(fd))
		}
	}
	if c.terminal != nil {
		errs = append(errs, ignoreClosed(c.terminal.Close()))
	}
	c.init.close()
	return errors.Join(errs...)
}

// ignoreClosed forgives that somebody closed a file before.
func ignoreClosed(err error) error {
	if errors.Is(err, os.ErrClosed) {
		return nil
	}
	return err
}
