package fork

import (
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/gangway-hpc/gangway/runtime/plan"
)

// forwarded are the signals that PID 1 hands on to the first process, as bits.
const forwarded = 1<<syscall.SIGTERM | 1<<syscall.SIGINT | 1<<syscall.SIGHUP | 1<<syscall.SIGQUIT |
	1<<syscall.SIGUSR1 | 1<<syscall.SIGUSR2 | 1<<syscall.SIGCONT | 1<<syscall.SIGTSTP | 1<<syscall.SIGWINCH

// serve is the life of PID 1: it buries the dead, hands on signals, and ends with the
// first process or with the supervisor.
//
//go:nosplit
//go:norace
//go:nocheckptr
func (m *Machine) serve() {
	m.poll[0].fd, m.poll[0].events = int32(m.regs[plan.Control]), unix.POLLIN
	m.poll[1].fd, m.poll[1].events = int32(m.regs[m.signals]), unix.POLLIN
	for {
		m.poll[0].revents, m.poll[1].revents = 0, 0
		timeout := uintptr(0)
		if m.swallow != 0 {
			m.timeout[0], m.timeout[1] = patience, 0
			timeout = m.timeAddr
		}
		if n, errno := sys(unix.SYS_PPOLL, m.pollAddr, 2, timeout, 0, 0, 0); n == 0 && errno == 0 {
			m.swallow = 0 // the supervisor sends no copy
			continue
		}
		// Signals first: whether the terminal sent one must be known when the
		// supervisor's copy of it is looked at.
		m.drain()
		if m.child == 0 {
			m.goodbye()
		}
		if m.poll[0].revents == 0 {
			continue
		}
		n, errno := sys(unix.SYS_READ, m.regs[plan.Control], m.wordAddr, 8, 0, 0, 0)
		if errno == uintptr(syscall.EINTR) || errno == uintptr(syscall.EAGAIN) {
			continue
		}
		if errno != 0 || n == 0 {
			m.abandoned()
		}
		bit := uint64(1) << (m.word[0] & 63)
		if m.swallow&bit != 0 {
			m.swallow &^= bit
			continue
		}
		sys(unix.SYS_KILL, m.child, uintptr(m.word[0]), 0, 0, 0, 0)
	}
}

// drain reads the signals that came, until the first process has ended.
//
//go:nosplit
//go:norace
//go:nocheckptr
func (m *Machine) drain() {
	for m.child != 0 {
		n, errno := sys(unix.SYS_READ, m.regs[m.signals], m.infoAddr, 128, 0, 0, 0)
		if errno != 0 || n != 128 {
			return
		}
		signal, kernel := m.info[0], m.info[2] == siKernel
		bit := uint64(1) << (signal & 63)
		switch {
		case signal == uint32(syscall.SIGCHLD):
			m.reap()
		case bit&forwarded == 0:
		case !kernel:
			sys(unix.SYS_KILL, m.child, uintptr(signal), 0, 0, 0, 0)
		case !m.apart && m.together():
			// The terminal sent it to the whole process group, the first process
			// and the supervisor, who will send it once more.
			m.swallow |= bit
		}
	}
}

// patience is how many seconds the supervisor's copy of a signal is waited for.
const patience = 1

// together says whether the first process is in PID 1's process group, to which the
// terminal sends: it may have gone into one of its own.
//
//go:nosplit
//go:norace
//go:nocheckptr
func (m *Machine) together() bool {
	own, _ := sys(unix.SYS_GETPGID, 0, 0, 0, 0, 0, 0)
	its, errno := sys(unix.SYS_GETPGID, m.child, 0, 0, 0, 0, 0)
	return errno == 0 && its == own
}

// siKernel is SI_KERNEL: the kernel itself sent a signal.
const siKernel = 0x80

// reap waits for all that ended or stopped.
//
//go:nosplit
//go:norace
//go:nocheckptr
func (m *Machine) reap() {
	for {
		pid, errno := sys(unix.SYS_WAIT4, ^uintptr(0), m.statAddr, unix.WNOHANG|unix.WUNTRACED|unix.WALL, 0, 0, 0)
		if errno == uintptr(syscall.EINTR) {
			continue
		}
		if errno != 0 || pid == 0 {
			return
		}
		if pid != m.child {
			continue
		}
		if m.status&0xff == 0x7f {
			m.tell(plan.Control, recStop, m.status>>8&0xff)
			continue
		}
		m.tell(plan.Control, recExit, m.status)
		m.child = 0 // its number may become another's
		return
	}
}
