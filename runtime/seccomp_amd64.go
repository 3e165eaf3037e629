package runtime

import "golang.org/x/sys/unix"

// ownerCalls are the calls that newer architectures do not have.
func ownerCalls() []uintptr { return []uintptr{unix.SYS_CHOWN, unix.SYS_LCHOWN} }

// ioctlABIs are the ways to call ioctl: of 64 bits, x32, whose numbers old kernels take
// with and without its bit, and i386.
func ioctlABIs() []abi {
	const x32, x32Ioctl, i386Ioctl = 0x40000000, 514, 54
	return []abi{
		{unix.AUDIT_ARCH_X86_64, []uint32{unix.SYS_IOCTL, x32Ioctl, x32 | unix.SYS_IOCTL, x32 | x32Ioctl}},
		{unix.AUDIT_ARCH_I386, []uint32{i386Ioctl}},
	}
}
