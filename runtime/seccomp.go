package runtime

import (
	"encoding/binary"
	"runtime"

	"golang.org/x/sys/unix"
)

// One instruction of a filter and what a filter looks at.
const (
	bpfLoad   = 0x20 // BPF_LD | BPF_W | BPF_ABS
	bpfEqual  = 0x15 // BPF_JMP | BPF_JEQ | BPF_K
	bpfReturn = 0x06 // BPF_RET | BPF_K

	offsetNR   = 0 // of struct seccomp_data
	offsetArch = 4
)

// auditArch is how the kernel names the architecture that this program is built for.
func auditArch() uint32 {
	if runtime.GOARCH == "arm64" {
		return unix.AUDIT_ARCH_AARCH64
	}
	return unix.AUDIT_ARCH_X86_64
}

// instruction is a struct sock_filter.
func instruction(code uint16, jt, jf uint8, k uint32) []byte {
	b := binary.NativeEndian.AppendUint16(nil, code)
	return binary.NativeEndian.AppendUint32(append(b, jt, jf), k)
}

// filter makes a seccomp filter that gives some calls the errno, 0 being success, and lets
// all others through. Calls by another architecture's numbers (i386, x32) are let through:
// it restricts nothing, so there is nothing to get around.
func filter(calls []uintptr, errno uint32) []byte {
	n := len(calls)
	b := instruction(bpfLoad, 0, 0, offsetArch)
	b = append(b, instruction(bpfEqual, 0, uint8(n+1), auditArch())...)
	b = append(b, instruction(bpfLoad, 0, 0, offsetNR)...)
	for i, nr := range calls {
		b = append(b, instruction(bpfEqual, uint8(n-i), 0, uint32(nr))...)
	}
	b = append(b, instruction(bpfReturn, 0, 0, unix.SECCOMP_RET_ALLOW)...)
	return append(b, instruction(bpfReturn, 0, 0, unix.SECCOMP_RET_ERRNO|errno)...)
}

// fakeRootFilter makes the calls that change owners and users succeed without doing
// anything: one user is mapped, so they would fail, and package managers with them.
func fakeRootFilter() []byte {
	return filter(append(ownerCalls(),
		unix.SYS_FCHOWN, unix.SYS_FCHOWNAT,
		unix.SYS_SETUID, unix.SYS_SETGID, unix.SYS_SETREUID, unix.SYS_SETREGID, unix.SYS_SETRESUID, unix.SYS_SETRESGID,
		unix.SYS_SETGROUPS, unix.SYS_SETFSUID, unix.SYS_SETFSGID), 0)
}
