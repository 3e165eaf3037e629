package runtime

import (
	"encoding/binary"
	"runtime"
	"slices"

	"golang.org/x/sys/unix"
)

// One instruction of a filter and what a filter looks at.
const (
	bpfLoad   = 0x20 // BPF_LD | BPF_W | BPF_ABS
	bpfEqual  = 0x15 // BPF_JMP | BPF_JEQ | BPF_K
	bpfReturn = 0x06 // BPF_RET | BPF_K

	offsetNR     = 0 // of struct seccomp_data
	offsetArch   = 4
	offsetSecond = 24 // the low half of the second argument
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

// abi is a way to make system calls, and its numbers of ioctl.
type abi struct {
	arch  uint32
	ioctl []uint32
}

// terminalFilter refuses the requests that put input into a terminal as if it was typed:
// a command that shares the caller's terminal could type into the caller's shell. The
// kernel looks at the request's low half only. All ways to make the call are covered
// that a kernel of this architecture has.
func terminalFilter() []byte {
	tail := [][]byte{
		instruction(bpfLoad, 0, 0, offsetSecond),
		instruction(bpfEqual, 2, 0, unix.TIOCSTI),
		instruction(bpfEqual, 1, 0, tiocLinux),
		instruction(bpfReturn, 0, 0, unix.SECCOMP_RET_ALLOW),
		instruction(bpfReturn, 0, 0, unix.SECCOMP_RET_ERRNO|uint32(unix.EPERM)),
	}
	// From the end, so that it is known how far each instruction is from the tail.
	list := [][]byte{instruction(bpfReturn, 0, 0, unix.SECCOMP_RET_ALLOW)}
	for _, a := range ioctlABIs() {
		block := [][]byte{instruction(bpfReturn, 0, 0, unix.SECCOMP_RET_ALLOW)}
		for _, nr := range a.ioctl {
			block = slices.Insert(block, 0, instruction(bpfEqual, uint8(len(block)+len(list)), 0, nr))
		}
		block = slices.Insert(block, 0, instruction(bpfLoad, 0, 0, offsetNR))
		block = slices.Insert(block, 0, instruction(bpfEqual, 0, uint8(len(block)), a.arch))
		list = append(block, list...)
	}
	list = slices.Insert(list, 0, instruction(bpfLoad, 0, 0, offsetArch))
	return slices.Concat(append(list, tail...)...)
}

// tiocLinux is TIOCLINUX, by which a console's selection is pasted.
const tiocLinux = 0x541c
