package fork

import (
	"fmt"
	"runtime"
	"syscall"
	"unsafe" // for go:linkname, too

	"golang.org/x/sys/unix"
)

// The runtime's preparations for a fork. Their names are promised to stay, because
// others use them in the same way.

//go:linkname runtimeBeforeFork syscall.runtime_BeforeFork
func runtimeBeforeFork()

//go:linkname runtimeAfterFork syscall.runtime_AfterFork
func runtimeAfterFork()

//go:linkname runtimeAfterForkInChild syscall.runtime_AfterForkInChild
func runtimeAfterForkInChild()

// Child is a process that was made. It is the caller's to wait for.
type Child struct {
	PID   int
	PidFD int // -1 where the kernel has none (before Linux 5.2)
	// InCgroup says that it was made in the cgroup that it should be in.
	InCgroup bool
}

// Start makes the process. Before it returns the process may have done all or nothing.
func (m *Machine) Start() (Child, error) {
	m.pidfd = -1
	// No other thread may be about to make a descriptor that is not yet marked to
	// be closed.
	syscall.ForkLock.Lock()
	into := m.args.cgroup != 0
	pid, errno := uintptr(0), uintptr(syscall.ENOSYS)
	if into {
		pid, errno = m.spawn(0)
	}
	if errno != 0 { // whatever it is: the caller can still move it
		into = false
		pid, errno = m.spawn(m.flags | unix.CLONE_PIDFD | uintptr(syscall.SIGCHLD))
	}
	syscall.ForkLock.Unlock()
	runtime.KeepAlive(m)
	if errno != 0 {
		return Child{}, fmt.Errorf("clone: %w", syscall.Errno(errno))
	}
	return Child{PID: int(pid), PidFD: int(m.pidfd), InCgroup: into}, nil
}

// spawn forks, without flags into a cgroup. The new process never returns from it.
//
//go:noinline
//go:norace
//go:nocheckptr
func (m *Machine) spawn(flags uintptr) (pid, errno uintptr) {
	runtimeBeforeFork()
	if flags == 0 {
		pid, errno = sys(unix.SYS_CLONE3, m.argsAddr, unsafe.Sizeof(m.args), 0, 0, 0, 0)
	} else {
		// The third argument is where the pidfd goes, on amd64 and arm64 alike.
		pid, errno = sys(unix.SYS_CLONE, flags, 0, m.pidfdAddr, 0, 0, 0)
	}
	if errno != 0 || pid != 0 {
		runtimeAfterFork()
		return pid, errno
	}
	runtimeAfterForkInChild()
	if m.join {
		m.joinMain()
	} else {
		m.initMain()
	}
	for { // not reached
		sys(unix.SYS_EXIT_GROUP, 1, 0, 0, 0, 0, 0)
	}
}

// sys is one system call.
//
//go:nosplit
//go:norace
//go:nocheckptr
func sys(nr, a, b, c, d, e, f uintptr) (r, errno uintptr) {
	r1, _, err := syscall.RawSyscall6(nr, a, b, c, d, e, f)
	return r1, uintptr(err)
}
