package runtime

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/gangway-hpc/gangway/internal/fault"
)

// process is a child that is waited for once, and not signalled after that.
type process struct {
	pid   int
	pidfd int
	made  bool // in its cgroup

	mu   sync.Mutex
	done bool
}

// signal sends a signal, unless the process was waited for.
func (p *process) signal(s syscall.Signal) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.done || p.pid == 0 {
		return nil
	}
	// Nobody has waited for it, so even its number is still its own.
	err := unix.ENOSYS
	if p.pidfd >= 0 {
		err, _ = unix.PidfdSendSignal(p.pidfd, s, nil, 0).(syscall.Errno)
	}
	if errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EPERM) {
		err, _ = syscall.Kill(p.pid, s).(syscall.Errno)
	}
	if err != 0 {
		return fmt.Errorf("signal process %d: %w", p.pid, err)
	}
	return nil
}

// signalGroup sends a signal to the group that the process leads, unless it was waited for:
// then the number may be another group's.
func (p *process) signalGroup(s syscall.Signal) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.done || p.pid <= 1 {
		return nil
	}
	if err := syscall.Kill(-p.pid, s); err != nil {
		return fmt.Errorf("signal process group %d: %w", p.pid, err)
	}
	return nil
}

// wait waits for the end.
func (p *process) wait() (syscall.WaitStatus, error) { return p.follow(nil) }

// follow waits for the end, and tells of stops before it unless told is nil.
func (p *process) follow(told func(syscall.Signal)) (syscall.WaitStatus, error) {
	options := unix.WEXITED | unix.WNOWAIT | unix.WALL
	if told != nil {
		options |= unix.WSTOPPED
	}
	for {
		// First without reaping, so that the number stays its own until it is known that
		// nobody signals it any more.
		var info unix.Siginfo
		err := unix.Waitid(unix.P_PID, p.pid, &info, options, nil)
		if errors.Is(err, syscall.EINTR) {
			continue
		}
		var status syscall.WaitStatus
		if err == nil {
			status, err = p.reap()
		}
		switch {
		case err != nil:
			return 0, fmt.Errorf("wait for process %d: %w", p.pid, err)
		case status.Exited() || status.Signaled():
			return status, nil
		case status.Stopped() && told != nil:
			told(status.StopSignal())
		}
	}
}

// continued is the status of a process that neither ended nor stopped.
const continued syscall.WaitStatus = 0xffff

// reap takes what is known of a process; a stop is told once.
func (p *process) reap() (syscall.WaitStatus, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(p.pid, &status, syscall.WUNTRACED|syscall.WNOHANG|unix.WALL, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
			continue
		case pid == 0:
			status = continued
		}
		p.done = err == nil && (status.Exited() || status.Signaled())
		return status, err
	}
}

// ended says whether the process has ended. Who waits for it at the same time has not
// reaped it while p.mu is held.
func (p *process) ended() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	var info unix.Siginfo
	return p.done || unix.Waitid(unix.P_PID, p.pid, &info, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT|unix.WALL, nil) == nil && info.Signo != 0
}

func (p *process) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.pidfd >= 0 {
		_ = unix.Close(p.pidfd)
		p.pidfd = -1
	}
}

// statusOf is how a process ended.
func statusOf(s syscall.WaitStatus) Status {
	if s.Signaled() {
		return Status{Code: fault.CodeSignal(s.Signal()), Signal: s.Signal(), Core: s.CoreDump()}
	}
	return Status{Code: s.ExitStatus()}
}

// socketpair makes two ends that keep messages apart.
func socketpair() (ours, theirs int, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, -1, fmt.Errorf("make socket: %w", err)
	}
	return fds[0], fds[1], nil
}

// kept are the descriptors that a new process gets, in the order of the plan's
// registers. Their numbers are above those that its command will have.
type kept struct {
	above int
	fds   []int
	err   error
}

func newKept(above int) *kept { return &kept{above: above} }

// take keeps a descriptor of ours.
func (k *kept) take(fd int) {
	if fd >= k.above || k.err != nil {
		k.fds = append(k.fds, fd)
		return
	}
	moved, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, k.above)
	_ = unix.Close(fd)
	k.add(moved, err)
}

func (k *kept) add(fd int, err error) {
	if err != nil {
		k.err = fmt.Errorf("hand on descriptor: %w", err)
	}
	k.fds = append(k.fds, fd)
}

// dup keeps a copy of a file. Whether it blocks is left as it is: that is shared with
// whoever else has it open, as the caller of this program.
func (k *kept) dup(f *os.File) {
	if k.err != nil {
		return
	}
	conn, err := f.SyscallConn()
	if err != nil {
		k.add(-1, err)
		return
	}
	copied, dupErr := -1, error(nil)
	err = conn.Control(func(fd uintptr) { copied, dupErr = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, k.above) })
	k.add(copied, errors.Join(err, dupErr))
}

// null keeps /dev/null.
func (k *kept) null() {
	fd, err := unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		k.add(-1, err)
		return
	}
	k.take(fd)
}

// none leaves a register out.
func (k *kept) none() { k.fds = append(k.fds, -1) }

// stdio keeps three files.
func (k *kept) stdio(files ...*os.File) {
	for _, f := range files {
		if f == nil {
			k.null()
		} else {
			k.dup(f)
		}
	}
}

func (k *kept) close() {
	for _, fd := range k.fds {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
	}
}

// flagNames names namespaces.
func flagNames(flags uintptr) string {
	var names []string
	for _, ns := range spaceKinds() {
		if flags&uintptr(ns.flag) != 0 {
			names = append(names, ns.name)
		}
	}
	return strings.Join(names, ", ")
}

// terminalFile makes a file of a terminal's master whose reads can be ended by closing it.
func terminalFile(fd int) (*os.File, error) {
	if fd < 0 {
		return nil, errors.New("receive terminal: no descriptor came")
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("receive terminal: %w", err)
	}
	return os.NewFile(uintptr(fd), "/dev/ptmx"), nil
}
