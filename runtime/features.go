package runtime

import (
	"os"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/gangway-hpc/gangway/runtime/fork"
	"github.com/gangway-hpc/gangway/runtime/plan"
)

// Features are the system calls that a kernel has, or an outer container lets through, and
// that a container can be made without.
type Features struct {
	Openat2      bool // Linux 5.6; else names are opened by the kernel's ordinary rules, inside a chroot
	OpenTree     bool // with move_mount, 5.2; else bind mounts by name of a descriptor
	MountSetattr bool // 5.12; else each mount is remounted, and those below it one by one
	CloseRange   bool // 5.9; else descriptors are closed one by one
	Pidfd        bool // 5.3; else processes are signalled by number
}

// Lacks names the calls that are done without, those about mounts and names.
func (f Features) Lacks() string {
	var names []string
	for _, call := range []struct {
		has  bool
		name string
	}{{f.Openat2, "openat2"}, {f.OpenTree, "open_tree and move_mount"}, {f.MountSetattr, "mount_setattr"}} {
		if !call.has {
			names = append(names, call.name)
		}
	}
	return strings.Join(names, ", ")
}

// ProbeFeatures tries the calls. That takes microseconds, and where a filter is in force
// that may refuse move_mount a short-lived process more.
func ProbeFeatures() Features {
	var f Features
	if fd, err := unix.Openat2(unix.AT_FDCWD, "/", &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_MAGICLINKS}); err == nil {
		f.Openat2 = true
		_ = unix.Close(fd)
	}
	if fd, err := unix.OpenTree(unix.AT_FDCWD, "/", unix.OPEN_TREE_CLOEXEC); err == nil {
		_ = unix.Close(fd)
		f.OpenTree = hasMoveMount()
	}
	// A size of 0 is looked at first.
	_, _, errno := unix.Syscall6(unix.SYS_MOUNT_SETATTR, ^uintptr(0), 0, 0, 0, 0, 0)
	f.MountSetattr = f.OpenTree && errno == unix.EINVAL
	f.CloseRange = unix.CloseRange(1<<31, 1<<31, 0) == nil
	if fd, err := unix.PidfdOpen(unix.Getpid(), 0); err == nil {
		f.Pidfd = true
		_ = unix.Close(fd)
	}
	return f
}

// hasMoveMount says whether there is move_mount. Those who may not mount are told so before
// anything else, with the error that filters like to give; so where there is a filter, a
// process that may mount has to ask.
func hasMoveMount() bool {
	err := unix.MoveMount(-1, "", -1, "", 0)
	if err != unix.EPERM {
		return err != unix.ENOSYS
	}
	if mode, err := unix.PrctlRetInt(unix.PR_GET_SECCOMP, 0, 0, 0, 0); err == nil && mode == 0 {
		return true
	}
	errno := askInside(0, plan.Op{Name: "move_mount", NR: unix.SYS_MOVE_MOUNT, Args: []plan.Arg{plan.Num(-1), plan.Str(""), plan.Num(-1), plan.Str(""), plan.Num(0)}})
	return errno != 0 && errno != unix.EPERM && errno != unix.ENOSYS
}

// CanMountProc says whether a container may have a /proc of its own. The kernel refuses it
// where something is mounted below the one that can be seen, as by outer containers, since
// a new one would show what is hidden; only there it takes a short-lived process to know.
func CanMountProc() bool {
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil || !strings.Contains(string(mounts), " /proc/") {
		return true
	}
	flags := plan.Num(unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC)
	return askInside(unix.CLONE_NEWPID,
		plan.Op{Name: "mount", NR: unix.SYS_MOUNT, Args: []plan.Arg{plan.Str("proc"), plan.Str("/proc"), plan.Str("proc"), flags, plan.Num(0)}},
		plan.Op{Name: "close", NR: unix.SYS_CLOSE, Args: []plan.Arg{plan.Num(-1)}}) != unix.EPERM
}

// askInside returns the first error of calls, the last of which cannot succeed, made in
// namespaces of its own: a user and a mount namespace, and those of flags. 0 is no answer.
func askInside(flags uintptr, ops ...plan.Op) syscall.Errno {
	socket, peer, err := socketpair()
	if err != nil {
		return 0
	}
	defer func() { _ = unix.Close(socket) }()
	kept := newKept(0)
	kept.take(peer)
	m, err := fork.Load(&plan.Plan{Flags: unix.CLONE_NEWUSER | unix.CLONE_NEWNS | flags, Init: ops}, kept.fds, fork.Options{})
	if err != nil {
		kept.close()
		return 0
	}
	child, err := m.Start()
	kept.close()
	if err != nil {
		return 0
	}
	p := &process{pid: child.PID, pidfd: child.PidFD}
	r, _, err := fork.Receive(socket)
	_ = p.signal(syscall.SIGKILL)
	_, _ = p.wait()
	p.close()
	if err != nil {
		return 0
	}
	return r.Errno
}
