package runtime

import "golang.org/x/sys/unix"

// ownerCalls are the calls that newer architectures do not have.
func ownerCalls() []uintptr { return nil }

// ioctlABIs are the ways to call ioctl: of 64 and of 32 bits.
func ioctlABIs() []abi {
	const armIoctl = 54
	return []abi{
		{unix.AUDIT_ARCH_AARCH64, []uint32{unix.SYS_IOCTL}},
		{unix.AUDIT_ARCH_ARM, []uint32{armIoctl}},
	}
}
