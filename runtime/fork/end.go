package fork

import (
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/gangway-hpc/gangway/runtime/plan"
)

// goodbye ends a container whose first process has ended. The supervisor must have heard of
// it: the first process may have died of the supervisor's death, when a page of
// its program could not be read any more.
//
//go:nosplit
//go:norace
//go:nocheckptr
func (m *Machine) goodbye() {
	for {
		m.word[0] = 1
		n, errno := sys(unix.SYS_READ, m.regs[plan.Control], m.wordAddr, 8, 0, 0, 0)
		if errno == uintptr(syscall.EINTR) {
			continue
		}
		if errno != 0 || n == 0 {
			m.abandoned()
		}
		if m.word[0] == Heard { // and no signal that comes too late
			m.killRest()
			m.exit(0)
		}
	}
}

// abandoned ends a container whose supervisor is gone. What nobody may keep from happening
// comes first: to tell is only for those who listen.
//
//go:nosplit
//go:norace
//go:nocheckptr
func (m *Machine) abandoned() {
	if m.quiet || m.join {
		m.exit(125)
	}
	switch {
	case m.pidns:
		sys(unix.SYS_KILL, ^uintptr(0), uintptr(syscall.SIGKILL), 0, 0, 0, 0)
	case m.child != 0:
		sys(unix.SYS_KILL, m.child, uintptr(syscall.SIGKILL), 0, 0, 0, 0)
	}
	for i := range m.orphan {
		dir := m.regs[m.orphan[i].dir]
		_, errno := sys(unix.SYS_UNLINKAT, dir, m.orphan[i].name, 0, 0, 0, 0)
		if errno == uintptr(syscall.EISDIR) {
			sys(unix.SYS_UNLINKAT, dir, m.orphan[i].name, unix.AT_REMOVEDIR, 0, 0, 0)
		}
	}
	m.killRest()
	if !m.pidns {
		m.sweep()
	}
	m.complain()
	m.exit(125)
}

// complain says that the supervisor is gone, unless that could block: a full pipe, or a
// terminal that is stopped.
//
//go:nosplit
//go:norace
//go:nocheckptr
func (m *Machine) complain() {
	if m.messageN == 0 {
		return
	}
	m.poll[0].fd, m.poll[0].events, m.poll[0].revents = int32(m.regs[plan.Complain]), unix.POLLOUT, 0
	m.timeout[0], m.timeout[1] = 0, 0
	sys(unix.SYS_PPOLL, m.pollAddr, 1, m.timeAddr, 0, 0, 0)
	if m.poll[0].revents&unix.POLLOUT != 0 {
		sys(unix.SYS_WRITE, m.regs[plan.Complain], m.message, m.messageN, 0, 0, 0)
	}
}

// passes is how often processes that are left are looked for at most.
const passes = 1000

// killRest kills the processes that are left. Without a pid namespace these are the
// children: each that dies leaves its own to this process.
//
//go:nosplit
//go:norace
//go:nocheckptr
func (m *Machine) killRest() {
	if m.pidns {
		// Until this process ends nobody can write to its program, which is the
		// runtime's; so all others end before.
		sys(unix.SYS_KILL, ^uintptr(0), uintptr(syscall.SIGKILL), 0, 0, 0, 0)
		for {
			pid, errno := sys(unix.SYS_WAIT4, ^uintptr(0), m.statAddr, unix.WALL, 0, 0, 0)
			if errno == uintptr(syscall.EINTR) {
				continue
			}
			if errno != 0 || pid == 0 {
				return
			}
		}
	}
	for range passes {
		fd, errno := sys(unix.SYS_OPENAT, m.regs[m.proc], m.children, unix.O_RDONLY|unix.O_CLOEXEC, 0, 0, 0)
		if errno != 0 {
			return
		}
		n, errno := sys(unix.SYS_READ, fd, m.pageAddr, uintptr(len(m.page)), 0, 0, 0)
		sys(unix.SYS_CLOSE, fd, 0, 0, 0, 0, 0)
		if errno != 0 || n == 0 {
			return
		}
		for at := uintptr(0); at < n; at++ {
			pid := m.number(at)
			for at < n && m.page[at%uintptr(len(m.page))] != ' ' {
				at++
			}
			if pid != 0 && at < n { // else it is half a number
				sys(unix.SYS_KILL, pid, uintptr(syscall.SIGKILL), 0, 0, 0, 0)
				sys(unix.SYS_WAIT4, pid, 0, unix.WALL, 0, 0, 0)
			}
		}
	}
}

// number is the number that is in the page, 0 if there is none.
//
//go:nosplit
//go:norace
//go:nocheckptr
func (m *Machine) number(at uintptr) (n uintptr) {
	for ; at < uintptr(len(m.page)); at++ {
		c := m.page[at]
		if c < '0' || c > '9' {
			return n
		}
		n = n*10 + uintptr(c-'0')
	}
	return 0
}

// sweep kills those that are no child of this process's, as those that joined: all whose
// mount namespace belongs to this process's user namespace or to one below it.
//
//go:nosplit
//go:norace
//go:nocheckptr
func (m *Machine) sweep() {
	own, _ := sys(unix.SYS_GETPID, 0, 0, 0, 0, 0, 0)
	n, errno := sys(unix.SYS_READLINKAT, m.regs[m.proc], m.self, m.pageAddr, uintptr(len(m.page)-1), 0, 0)
	if errno != 0 {
		return
	}
	m.page[n%uintptr(len(m.page))] = 0
	if m.number(0) != own {
		return // a /proc of other numbers
	}
	for range passes {
		if !m.sweepOnce(own) {
			return
		}
		for {
			pid, errno := sys(unix.SYS_WAIT4, ^uintptr(0), m.statAddr, unix.WNOHANG|unix.WALL, 0, 0, 0)
			if errno != 0 || pid == 0 {
				break
			}
		}
		m.timeout[0], m.timeout[1] = 0, sweepPause
		sys(unix.SYS_PPOLL, 0, 0, m.timeAddr, 0, 0, 0)
	}
}

// sweepPause is how many nanoseconds processes have to die before they are looked for again.
const sweepPause = 1_000_000

// sweepOnce says whether there was a process to kill.
//
//go:nosplit
//go:norace
//go:nocheckptr
func (m *Machine) sweepOnce(own uintptr) (found bool) {
	const nameAt = 19 // in struct linux_dirent64
	proc := m.regs[m.proc]
	sys(unix.SYS_LSEEK, proc, 0, unix.SEEK_SET, 0, 0, 0)
	for {
		n, errno := sys(unix.SYS_GETDENTS64, proc, m.pageAddr, uintptr(len(m.page)), 0, 0, 0)
		if errno != 0 || n == 0 || n > uintptr(len(m.page)) {
			return found
		}
		for at := uintptr(0); at+nameAt < n; {
			size := uintptr(m.page[at+16]) | uintptr(m.page[at+17])<<8
			if pid := m.number(at + nameAt); pid != 0 && pid != own && m.inside(proc, at+nameAt) {
				sys(unix.SYS_KILL, pid, uintptr(syscall.SIGKILL), 0, 0, 0, 0)
				found = true
			}
			if size == 0 {
				break
			}
			at += size
		}
	}
}

// nsOwner is NS_GET_USERNS, which the kernel answers only if the owner is the asker's
// user namespace or one below it.
const nsOwner = 0xb701

// inside says whether the process whose number is in the page lives in the container.
// Of one that has ended, but was not waited for, there is no mount namespace.
//
//go:nosplit
//go:norace
//go:nocheckptr
func (m *Machine) inside(proc, at uintptr) bool {
	const tail = "/ns/mnt\x00"
	i := uintptr(0)
	for ; i < uintptr(len(m.entry)-len(tail)) && m.page[(at+i)%uintptr(len(m.page))] != 0; i++ {
		m.entry[i] = m.page[(at+i)%uintptr(len(m.page))]
	}
	for k := range len(tail) {
		m.entry[(i+uintptr(k))%uintptr(len(m.entry))] = tail[k]
	}
	fd, errno := sys(unix.SYS_OPENAT, proc, m.entAddr, unix.O_RDONLY|unix.O_CLOEXEC, 0, 0, 0)
	if errno != 0 {
		return false
	}
	owner, errno := sys(unix.SYS_IOCTL, fd, nsOwner, 0, 0, 0, 0)
	sys(unix.SYS_CLOSE, fd, 0, 0, 0, 0, 0)
	if errno != 0 {
		return false
	}
	sys(unix.SYS_CLOSE, owner, 0, 0, 0, 0, 0)
	return true
}
