package rootfs

import (
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/hanwen/go-fuse/v2/fuse"
)

// The index and the hot file are mapped. Where the bytes behind a page cannot be had any
// more, since the file was cut, its server is gone or the disk is bad, the kernel sends
// SIGBUS, by which a Go program dies, and all that its containers do with it. So whoever
// reads there on behalf of others has the signal made a panic, and that an error:
//
//	defer caught(debug.SetPanicOnFault(true), &err)

// errMemory says that a mapped file could not be read.
var errMemory = errors.New("a file of the store can no longer be read: it was cut, or its disk or server fails")

// caught makes a fault of memory an error. Other panics go on.
func caught(before bool, err *error) {
	debug.SetPanicOnFault(before)
	if r := recover(); r != nil {
		*err = faultOf(r)
	}
}

// caught is the same for what answers a request about a node.
func (f *fileSystem) caught(before bool, node uint64, s *fuse.Status) {
	debug.SetPanicOnFault(before)
	if r := recover(); r != nil {
		*s = f.fail(uint32(node), faultOf(r))
	}
}

// faultOf returns what a panic says if it is a fault of memory, and panics again if not.
func faultOf(r any) error {
	fault, ok := r.(interface {
		runtime.Error
		Addr() uintptr
	})
	if !ok {
		panic(r)
	}
	return fmt.Errorf("%w (address %#x)", errMemory, fault.Addr())
}
