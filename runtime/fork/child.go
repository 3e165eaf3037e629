package fork

import (
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/gangway-hpc/gangway/runtime/plan"
)

// What the first word of a record says; its low 24 bits are an operation's number.
const (
	recFail uint32 = (iota + 1) << 24
	recNote
	recExit
	recStop
	recPID
)

// forkIndex stands for the second fork, which is no operation of a plan.
const forkIndex = 0xffffff

// gone stands for an error number: the supervisor is no more.
const gone = 0xffff

// maxAgain is how often a path is looked up again at most: who renames without end shall
// not keep others from an answer.
const maxAgain = 1000

// maxBounding is how many capabilities are dropped at most; there are 41.
const maxBounding = 64

// initMain is PID 1.
//
//go:nosplit
//go:norace
//go:nocheckptr
func (m *Machine) initMain() {
	m.must(m.init, plan.Control)
	pid, errno := sys(unix.SYS_CLONE, uintptr(syscall.SIGCHLD), 0, 0, 0, 0, 0)
	if errno != 0 {
		m.fail(plan.Control, forkIndex, errno)
	}
	if pid == 0 {
		m.quiet = true
		m.must(m.first, plan.Begin)
		m.exit(1)
	}
	m.child = pid
	m.must(m.after, plan.Control)
	m.serve()
}

// joinMain goes into the namespaces and leaves a process there.
//
//go:nosplit
//go:norace
//go:nocheckptr
func (m *Machine) joinMain() {
	m.must(m.init, plan.Begin)
	// The new process is the supervisor's child, who alone may wait for it.
	pid, errno := sys(unix.SYS_CLONE, unix.CLONE_PARENT|uintptr(syscall.SIGCHLD), 0, 0, 0, 0, 0)
	if errno != 0 {
		m.fail(plan.Begin, forkIndex, errno)
	}
	if pid == 0 {
		m.must(m.first, plan.Begin)
		m.exit(1)
	}
	m.tell(plan.Begin, recPID, uint32(pid))
	m.exit(0)
}

// must carries out operations or ends the process.
//
//go:nosplit
//go:norace
//go:nocheckptr
func (m *Machine) must(ops []code, to plan.Reg) {
	index, errno := m.run(ops, to)
	if errno == gone {
		m.abandoned()
	}
	if errno != 0 {
		m.fail(to, index, errno)
	}
}

// fail tells the supervisor what went wrong and ends the process.
//
//go:nosplit
//go:norace
//go:nocheckptr
func (m *Machine) fail(to plan.Reg, index uint32, errno uintptr) {
	m.tell(to, recFail|index, uint32(errno))
	m.exit(125)
}

//go:nosplit
//go:norace
//go:nocheckptr
func (m *Machine) exit(status uintptr) {
	for {
		sys(unix.SYS_EXIT_GROUP, status, 0, 0, 0, 0, 0)
	}
}

// tell sends a record.
//
//go:nosplit
//go:norace
//go:nocheckptr
func (m *Machine) tell(to plan.Reg, what, value uint32) (errno uintptr) {
	m.rec[0], m.rec[1] = what, value
	_, errno = sys(unix.SYS_SENDTO, m.regs[to], m.recAddr, 8, unix.MSG_NOSIGNAL, 0, 0)
	return errno
}

// run carries out operations. It returns the first that failed.
//
//go:nosplit
//go:norace
//go:nocheckptr
func (m *Machine) run(ops []code, to plan.Reg) (index uint32, errno uintptr) {
	for i := 0; i < len(ops); i++ {
		c := &ops[i]
		var r uintptr
		switch c.kind {
		case uint8(plan.Call):
			r, errno = m.call(c)
		case uint8(plan.Send), uint8(plan.Sync):
			errno = m.note(c, to)
		case uint8(plan.Remount):
			errno = m.remount(m.regs[c.arg[0]], c.arg[1], c.arg[2])
		case uint8(plan.RemountBelow):
			errno = m.remountBelow(c)
		case uint8(plan.CloseOthers):
			errno = m.closeOthers()
		case uint8(plan.CloseRest):
			errno = m.closeRest(c.arg[0])
		case uint8(plan.Reachable):
			errno = m.reachable()
		case uint8(plan.Signals):
			m.defaults(c.arg[0])
		case uint8(plan.Bounding):
			errno = m.bounding()
		case uint8(plan.Exec):
			errno = m.execute()
		case kindFormat:
			m.format(c.arg[0], m.regs[c.arg[1]], int(c.arg[2]))
		}
		if errno != 0 {
			if !may(c, errno) {
				return c.index, errno
			}
			errno = 0
			i += int(c.skipMay)
			continue
		}
		if c.out != 0 {
			m.regs[c.out] = r
		}
		i += int(c.skipDone)
	}
	return 0, 0
}

// may says whether an operation may fail so.
//
//go:nosplit
//go:norace
//go:nocheckptr
func may(c *code, errno uintptr) bool {
	return errno == c.may[0] || errno == c.may[1] || errno == c.may[2] || errno == c.may[3]
}

// call is a system call, repeated when a signal interrupts it, and where the kernel asks
// for that: something was renamed or mounted somewhere, just when ".." was looked up.
//
//go:nosplit
//go:norace
//go:nocheckptr
func (m *Machine) call(c *code) (r, errno uintptr) {
	var a [6]uintptr
	for k := range a {
		a[k] = c.arg[k]
		if c.regs&(1<<k) != 0 {
			a[k] = m.regs[a[k]]
		}
	}
	for again := 0; ; {
		r, errno = sys(c.nr, a[0], a[1], a[2], a[3], a[4], a[5])
		switch {
		case errno == uintptr(syscall.EINTR) && c.nr != unix.SYS_CLOSE:
		case errno == uintptr(syscall.EAGAIN) && c.nr == unix.SYS_OPENAT2 && again < maxAgain:
			again++
		default:
			return r, errno
		}
	}
}

// note tells the supervisor something and waits for its answer where it is a Sync. If
// the supervisor is gone, so is this process.
//
//go:nosplit
//go:norace
//go:nocheckptr
func (m *Machine) note(c *code, to plan.Reg) (errno uintptr) {
	if c.nargs == 0 {
		errno = m.tell(to, recNote, uint32(c.nr))
	} else {
		m.rec[0], m.rec[1] = recNote, uint32(c.nr)
		m.cmsg.fd = int32(m.regs[c.arg[0]])
		_, errno = sys(unix.SYS_SENDMSG, m.regs[to], m.msgAddr, unix.MSG_NOSIGNAL, 0, 0, 0)
	}
	if errno == uintptr(syscall.EPIPE) || errno == uintptr(syscall.ECONNRESET) {
		return gone
	}
	if errno != 0 || c.kind != uint8(plan.Sync) {
		return errno
	}
	return m.await(to)
}

// await reads one word of the supervisor.
//
//go:nosplit
//go:norace
//go:nocheckptr
func (m *Machine) await(from plan.Reg) (errno uintptr) {
	for {
		n, errno := sys(unix.SYS_READ, m.regs[from], m.wordAddr, 8, 0, 0, 0)
		if errno == uintptr(syscall.EINTR) {
			continue
		}
		if errno == 0 && n == 0 || errno == uintptr(syscall.ECONNRESET) {
			return gone
		}
		return errno
	}
}

//go:nosplit
//go:norace
//go:nocheckptr
func (m *Machine) closeOthers() (errno uintptr) {
	for i := range m.gaps {
		if errno = m.closeRange(m.gaps[i][0], m.gaps[i][1]); errno != 0 {
			return errno
		}
	}
	return 0
}

// closeRest leaves nothing open but what the command will have, and the socket that closes
// itself then: a link of the image may lead through every descriptor that is open, and
// those of PID 1 lead to the host.
//
//go:nosplit
//go:norace
//go:nocheckptr
func (m *Machine) closeRest(from uintptr) (errno uintptr) {
	begin := m.regs[plan.Begin]
	if errno = m.closeRange(from, begin-1); errno != 0 {
		return errno
	}
	return m.closeRange(begin+1, m.last)
}

//go:nosplit
//go:norace
//go:nocheckptr
func (m *Machine) closeRange(from, last uintptr) (errno uintptr) {
	if from > last {
		return 0
	}
	if !m.loop {
		_, errno = sys(unix.SYS_CLOSE_RANGE, from, last, 0, 0, 0, 0)
		return errno
	}
	for fd := from; fd <= last; fd++ {
		sys(unix.SYS_CLOSE, fd, 0, 0, 0, 0, 0)
	}
	return 0
}

// reachable says whether the working directory has a name below the root. One that a link
// of /proc led to may have none.
//
//go:nosplit
//go:norace
//go:nocheckptr
func (m *Machine) reachable() (errno uintptr) {
	if _, errno = sys(unix.SYS_GETCWD, m.pageAddr, uintptr(len(m.page)), 0, 0, 0, 0); errno != 0 {
		return errno
	}
	if m.page[0] != '/' { // "(unreachable)/..."
		return uintptr(syscall.ELOOP)
	}
	return 0
}

// bounding empties the capability bounding set. The first number that the kernel does not
// know ends it.
//
//go:nosplit
//go:norace
//go:nocheckptr
func (m *Machine) bounding() (errno uintptr) {
	for k := range uintptr(maxBounding) {
		_, errno = sys(unix.SYS_PRCTL, unix.PR_CAPBSET_DROP, k, 0, 0, 0, 0)
		if errno == uintptr(syscall.EINVAL) && k > 0 {
			return 0
		}
		if errno != 0 {
			return errno
		}
	}
	return 0
}

// defaults gives all signals but those to be ignored their default action and unblocks
// them.
//
//go:nosplit
//go:norace
//go:nocheckptr
func (m *Machine) defaults(ignored uintptr) {
	for s := uintptr(1); s <= 64; s++ {
		action := m.noneAddr
		if ignored&(1<<(s-1)) != 0 {
			action = m.ignAddr
		}
		sys(unix.SYS_RT_SIGACTION, s, action, 0, 8, 0, 0)
	}
	sys(unix.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK, m.noneAddr, 0, 8, 0, 0)
}

// execute tries programs in turn. A name that is there but may not be executed does not
// end the search, as in a shell.
//
//go:nosplit
//go:norace
//go:nocheckptr
func (m *Machine) execute() uintptr {
	result := uintptr(syscall.ENOENT)
	for i := range m.names {
		name := m.names[i]
		_, errno := sys(unix.SYS_EXECVE, name, m.argv, m.env, 0, 0, 0)
		switch syscall.Errno(errno) {
		case syscall.ENOENT:
			// The program may be there and its interpreter not.
			if _, e := sys(unix.SYS_FACCESSAT, atFDCWD, name, 0, 0, 0, 0); e == 0 {
				return uintptr(syscall.ELIBACC)
			}
		case syscall.ELOOP:
			// Of its name, or of interpreters that name each other.
			if _, e := sys(unix.SYS_FACCESSAT, atFDCWD, name, 0, 0, 0, 0); e == 0 {
				return errno
			}
		case syscall.ENOTDIR, syscall.ENAMETOOLONG:
		case syscall.EACCES:
			result = errno
		default:
			return errno
		}
	}
	return result
}

// atFDCWD is AT_FDCWD as the kernel gets it.
const atFDCWD = ^uintptr(99)

// format writes a register's number into a link, behind what it begins with.
//
//go:nosplit
//go:norace
//go:nocheckptr
func (m *Machine) format(link, n uintptr, at int) {
	div := uintptr(1)
	for n/div >= 10 {
		div *= 10
	}
	for ; div > 0; div /= 10 {
		m.links[link][at] = byte('0' + n/div%10)
		at++
	}
	m.links[link][at] = 0
}
