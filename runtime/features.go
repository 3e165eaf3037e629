package runtime

import (
	"golang.org/x/sys/unix"
)

// Features are the system calls that a kernel has, or an outer container lets through, and
// that a container can be made without.
type Features struct {
	Openat2      bool // Linux 5.6; else names are opened by the kernel's ordinary rules, inside a chroot
	OpenTree     bool // with move_mount, 5.2; else bind mounts by name of a descriptor
	MountSetattr bool // 5.12; else each mount is remounted, and mounts below it keep their flags
	CloseRange   bool // 5.9; else descriptors are closed one by one
	Pidfd        bool // 5.3; else processes are signalled by number
}

// ProbeFeatures tries the calls. That takes microseconds.
func ProbeFeatures() Features {
	var f Features
	if fd, err := unix.Openat2(unix.AT_FDCWD, "/", &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_MAGICLINKS}); err == nil {
		f.Openat2 = true
		_ = unix.Close(fd)
	}
	// Those who may not mount are told so before anything else, so EPERM is no
	// answer to whether there is a move_mount. A filter that refuses it with EPERM
	// refuses mount, too.
	if fd, err := unix.OpenTree(unix.AT_FDCWD, "/", unix.OPEN_TREE_CLOEXEC); err == nil {
		_ = unix.Close(fd)
		f.OpenTree = unix.MoveMount(-1, "", -1, "", 0) != unix.ENOSYS
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
