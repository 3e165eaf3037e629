package cgroup

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// bytesOf is program as the kernel reads it.
func bytesOf(program []instruction) []byte {
	b := make([]byte, 0, 8*len(program))
	for _, i := range program {
		b = append(b, i.op, i.dst|i.src<<4)
		b = binary.NativeEndian.AppendUint16(b, uint16(i.off))
		b = binary.NativeEndian.AppendUint32(b, uint32(i.imm))
	}
	return b
}

// attach puts program before all access to devices from dir and below, and then takes old
// away, unless that is nil. It needs CAP_BPF or root in the first user namespace. A filter of
// a group above that was attached so that others may replace it (BPF_F_ALLOW_OVERRIDE)
// stays instead: that is os.ErrPermission.
func attach(dir string, program []instruction, old *os.File) (*os.File, error) {
	target, err := os.Open(dir)
	if err != nil {
		return nil, fmt.Errorf("attach device filter: %w", err)
	}
	defer target.Close()
	loaded, err := load(bytesOf(program), len(program))
	if err != nil {
		return nil, fmt.Errorf("load device filter: %w", err)
	}
	before, err := effective(target)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("count device filters: %w", err), loaded.Close())
	}
	// struct of BPF_PROG_ATTACH: target, program, type, flags
	attr := [4]uint32{uint32(target.Fd()), uint32(loaded.Fd()), unix.BPF_CGROUP_DEVICE, unix.BPF_F_ALLOW_MULTI}
	if _, err := bpf(unix.BPF_PROG_ATTACH, unsafe.Pointer(&attr), unsafe.Sizeof(attr)); err != nil {
		return nil, errors.Join(fmt.Errorf("attach device filter: %w", err), loaded.Close())
	}
	if after, err := effective(target); err != nil || after != before+1 {
		if err == nil {
			err = fmt.Errorf("it would replace that of a group above: %w", os.ErrPermission)
		}
		attr[3] = 0
		_, errDetach := bpf(unix.BPF_PROG_DETACH, unsafe.Pointer(&attr), unsafe.Sizeof(attr))
		return nil, errors.Join(fmt.Errorf("attach device filter: %w", err), errDetach, loaded.Close())
	}
	if old != nil {
		attr[1], attr[3] = uint32(old.Fd()), 0
		if _, err := bpf(unix.BPF_PROG_DETACH, unsafe.Pointer(&attr), unsafe.Sizeof(attr)); err != nil {
			return nil, errors.Join(fmt.Errorf("detach device filter: %w", err), loaded.Close())
		}
		_ = old.Close()
	}
	return loaded, nil
}

// effective counts the programs that decide of devices for processes in the group target,
// those of groups above among them.
func effective(target *os.File) (int, error) {
	attr := struct { // the beginning of that of BPF_PROG_QUERY
		target, kind, query, attach uint32
		programs                    uint64
		count, _                    uint32
	}{target: uint32(target.Fd()), kind: unix.BPF_CGROUP_DEVICE, query: unix.BPF_F_QUERY_EFFECTIVE}
	_, err := bpf(unix.BPF_PROG_QUERY, unsafe.Pointer(&attr), unsafe.Sizeof(attr))
	return int(attr.count), err
}

// load gives the program to the kernel, which checks it.
func load(program []byte, count int) (*os.File, error) {
	license := [...]byte{'A', 'p', 'a', 'c', 'h', 'e', 0}
	attr := struct { // the beginning of that of BPF_PROG_LOAD
		kind, count      uint32
		program, license unsafe.Pointer
		logLevel         uint32
		logSize          uint32
		log              uint64
		version, flags   uint32
		name             [16]byte
		ifindex, attach  uint32
	}{
		kind: unix.BPF_PROG_TYPE_CGROUP_DEVICE, count: uint32(count),
		program: unsafe.Pointer(&program[0]), license: unsafe.Pointer(&license), attach: unix.BPF_CGROUP_DEVICE,
	}
	copy(attr.name[:], "gangway_devices")
	fd, err := bpf(unix.BPF_PROG_LOAD, unsafe.Pointer(&attr), unsafe.Sizeof(attr))
	for try := 0; errors.Is(err, unix.EAGAIN) && try < 100; try++ { // a signal came, such as Go's own
		fd, err = bpf(unix.BPF_PROG_LOAD, unsafe.Pointer(&attr), unsafe.Sizeof(attr))
	}
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), "bpf"), nil
}

// bpf is bpf(2), which x/sys has no function for.
func bpf(command int, attr unsafe.Pointer, size uintptr) (int, error) {
	n, _, errno := unix.Syscall(unix.SYS_BPF, uintptr(command), uintptr(attr), size)
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil
}
