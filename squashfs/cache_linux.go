package squashfs

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// mapMemory returns memory outside the Go heap that is not copied into children.
func mapMemory(n int) ([]byte, error) {
	mem, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		return nil, os.NewSyscallError("mmap", err)
	}
	// With it a fork need not copy the page tables: with hundreds of MiB they
	// would take milliseconds each time.
	if err := unix.Madvise(mem, unix.MADV_DONTFORK); err != nil {
		return nil, fmt.Errorf("%w (unmap: %v)", os.NewSyscallError("madvise", err), unix.Munmap(mem))
	}
	return mem, nil
}

func unmapMemory(mem []byte) error { return os.NewSyscallError("munmap", unix.Munmap(mem)) }
