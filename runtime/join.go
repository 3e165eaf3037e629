package runtime

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/gangway-hpc/gangway/runtime/fork"
	"github.com/gangway-hpc/gangway/runtime/plan"
)

// Process is a process that was added to a container.
type Process struct {
	process  process
	terminal *os.File
	stopped  chan syscall.Signal
	gone     chan struct{}
	status   Status
	cause    error
}

// joinPlan is what a process does that goes into namespaces.
func (c *Container) joinPlan(j *JoinProcess, spaces []space) *plan.Plan {
	b := &builder{c: c.config, f: c.features, regs: int(plan.Given) + len(spaces) + len(j.Pass)}
	b.special(plan.CloseOthers, "close_range", "all descriptors that are not the process's")
	if adj := c.config.Spec.Process.OOMScoreAdj; adj != nil {
		b.write("/proc/self/oom_score_adj", fmt.Sprint(*adj))
	}
	// It still has a copy of the supervisor's memory when it is inside.
	b.call(unix.SYS_PRCTL, "prctl", "not dumpable", plan.Num(unix.PR_SET_DUMPABLE), plan.Num(0))
	if c.config.Placed != nil && !j.ambient {
		b.special(plan.Sync, "sendto", "the supervisor, to be put into the cgroup").Note = plan.NoteEnter
	}
	for i, s := range spaces {
		r := plan.Given + plan.Reg(i)
		b.call(unix.SYS_SETNS, "setns", s.name, plan.Fd(r), plan.Num(s.flag))
		b.close(s.name+" namespace", r)
	}
	if j.ambient {
		b.call(unix.SYS_UNSHARE, "unshare", "mount namespace of the program", plan.Num(unix.CLONE_NEWNS))
	}
	p := &plan.Plan{Join: true, Init: b.ops}
	b.ops = nil
	if j.Group && !j.Terminal { // which has a session of its own
		b.call(unix.SYS_SETPGID, "setpgid", "process group of its own", plan.Num(0), plan.Num(0))
	}
	var terminal []plan.Reg
	if j.Terminal {
		b.newRoot = b.open("/", openPath|unix.O_DIRECTORY)
		terminal = append(terminal, b.openTerminal(3+len(j.Pass)))
	}
	b.run(command{
		ambient: j.ambient,
		args:    j.Args, env: j.Env, cwd: j.Cwd, rlimits: slices.Concat(c.config.Spec.Process.Rlimits, j.Rlimits), pid: j.PID, cpus: j.CPUs,
		pass: len(j.Pass), given: plan.Given + plan.Reg(len(spaces)), ignored: j.Ignored, fakeRoot: c.config.FakeRoot,
	}, terminal)
	p.First, p.Regs = b.ops, b.regs
	return p
}

// Join adds a process to the container. It returns when the process has executed its command.
func (c *Container) Join(ctx context.Context, j JoinProcess) (*Process, error) {
	j.ambient = false
	return c.join(ctx, j)
}

func (c *Container) join(ctx context.Context, j JoinProcess) (*Process, error) {
	if len(j.Args) == 0 {
		return nil, errors.New("join container: no command")
	}
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("join container: %w", err)
	}
	if !c.admit() {
		return nil, errEnded
	}
	defer c.joins.Done()
	p, sock, err := c.enter(&j)
	if err != nil {
		return nil, fmt.Errorf("join container: %w", err)
	}
	defer func() { _ = unix.Close(sock.fd) }()
	proc := &Process{process: process{pidfd: -1}, stopped: make(chan syscall.Signal, 1), gone: make(chan struct{})}
	failed, err := proc.told(sock, c.config.Placed)
	_, werr := sock.outer.wait()
	if proc.process.pid != 0 {
		go proc.watch()
	}
	if failed == nil && err == nil && proc.process.pid != 0 {
		return proc, nil
	}
	if proc.process.pid != 0 {
		_ = proc.Signal(syscall.SIGKILL) // it may be the command by now
		<-proc.gone
	}
	if proc.terminal != nil {
		_ = proc.terminal.Close()
	}
	switch {
	case err != nil:
	case failed != nil && failed.Index < 0 && failed.Errno == syscall.ENOMEM:
		return nil, errEnded
	case failed != nil:
		return nil, commandError(p, *failed, j.Args[0])
	default:
		err = errors.Join(errors.New("the process was killed before it was there"), werr)
	}
	return nil, fmt.Errorf("join container: %w", err)
}

// told takes what is told of the process until its command is executed, or it has ended:
// the number, without which nobody could wait for it, comes when it likes.
func (p *Process) told(sock *entering, place func(pid int, made bool) error) (failed *fork.Record, err error) {
	for {
		r, fd, rerr := fork.Receive(sock.fd)
		if errors.Is(rerr, io.EOF) {
			return failed, err
		}
		if rerr != nil {
			return failed, errors.Join(err, rerr)
		}
		switch {
		case r.Note == plan.NoteEnter:
			err = place(sock.outer.pid, sock.outer.made)
			if err = errors.Join(err, fork.Answer(sock.fd, 0)); err != nil {
				_ = sock.outer.signal(syscall.SIGKILL) // it is not inside yet
			}
		case r.Errno != 0:
			failed = &r
		case r.PID != 0:
			p.process = process{pid: r.PID, pidfd: -1}
		case r.Note == plan.NoteTerminal:
			p.terminal, err = terminalFile(fd)
		}
	}
}

// entering is a process on its way into a container.
type entering struct {
	fd    int // its socket
	outer *process
}

// enter makes the process that goes in.
func (c *Container) enter(j *JoinProcess) (*plan.Plan, *entering, error) {
	sock, peer, err := socketpair()
	if err != nil {
		return nil, nil, err
	}
	k := newKept(3 + len(j.Pass))
	defer k.close()
	k.none() // there is no PID 1 to speak of
	k.take(peer)
	k.stdio(j.Stdin, j.Stdout, j.Stderr)
	k.none()
	k.none()
	spaces, err := c.dupSpaces(k, j.ambient)
	for _, f := range j.Pass {
		k.dup(f)
	}
	if err = errors.Join(err, k.err); err != nil {
		_ = unix.Close(sock)
		return nil, nil, err
	}
	p := c.joinPlan(j, spaces)
	o := fork.Options{CloseRange: c.features.CloseRange}
	if !j.ambient {
		o.Cgroup = c.cgroup()
	}
	m, err := fork.Load(p, k.fds, o)
	if err != nil {
		_ = unix.Close(sock)
		return nil, nil, fmt.Errorf("load plan: %w", err)
	}
	child, err := m.Start()
	if err != nil {
		_ = unix.Close(sock)
		return nil, nil, err
	}
	outer := &process{pid: child.PID, pidfd: child.PidFD, made: child.InCgroup}
	outer.close()
	return p, &entering{sock, outer}, nil
}

// errEnded is the answer to those who come too late.
var errEnded = errors.New("join container: it has ended")

// admit lets a process in, unless the container ends. The end waits for those that are on
// their way until joins.Done.
func (c *Container) admit() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.ended {
		c.joins.Add(1)
	}
	return !c.ended
}

// dupSpaces copies the descriptors of the namespaces that are joined. A program of ours goes
// into those alone that it needs to mount, so that nobody in the container reaches it.
// No descriptor is closed before joins.Done.
func (c *Container) dupSpaces(k *kept, ambient bool) ([]space, error) {
	var joined []space
	for _, s := range c.spaces {
		if ambient && s.flag != unix.CLONE_NEWUSER && s.flag != unix.CLONE_NEWNS {
			continue
		}
		fd, err := unix.FcntlInt(uintptr(s.fd), unix.F_DUPFD_CLOEXEC, k.above)
		k.add(fd, err)
		joined = append(joined, s)
	}
	return joined, k.err
}

// watch waits for the process. It must be waited for at once: PID 1 cannot end before.
func (p *Process) watch() {
	status, err := p.process.follow(func(s syscall.Signal) {
		select {
		case p.stopped <- s:
		default: // nobody listens
		}
	})
	p.status, p.cause = statusOf(status), err
	close(p.gone)
}

// Wait waits for the end of the process.
func (p *Process) Wait() (Status, error) {
	<-p.gone
	return p.status, p.cause
}

// Stopped tells of signals that stopped it.
func (p *Process) Stopped() <-chan syscall.Signal { return p.stopped }

// Signal sends it a signal.
func (p *Process) Signal(s syscall.Signal) error { return p.process.signal(s) }

// SignalGroup sends a signal to the process group that it leads, see JoinProcess.Group or
// Terminal, until it has ended.
func (p *Process) SignalGroup(s syscall.Signal) error { return p.process.signalGroup(s) }

// Terminal is the master of its terminal, nil if it has none. The caller closes it.
func (p *Process) Terminal() *os.File { return p.terminal }

// PID is its number on the host.
func (p *Process) PID() int { return p.process.pid }
