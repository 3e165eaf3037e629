//go:build !linux

package squashfs

// mapMemory takes the memory from the heap where there is no madvise(DONTFORK).
func mapMemory(n int) ([]byte, error) { return make([]byte, n), nil }

func unmapMemory([]byte) error { return nil }
