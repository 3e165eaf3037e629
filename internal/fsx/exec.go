package fsx

import (
	"math"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// CloseOnExec marks all open files but stdin, stdout and stderr to be closed in
// programs that this process starts or becomes. Go does so with what it opens
// itself; what was inherited, from a shell or a batch system, would go on to every
// program. Files in exec.Cmd's ExtraFiles are handed on nevertheless.
//
// Nothing can be done about an error, so there is none: where neither the kernel
// (close_range(2), Linux 5.11) nor /proc helps, the files stay as they are.
func CloseOnExec() {
	if unix.CloseRange(3, math.MaxInt32, unix.CLOSE_RANGE_CLOEXEC) != nil {
		closeOnExecByName("/proc/self/fd")
	}
}

// closeOnExecByName does it for older kernels.
func closeOnExecByName(dir string) {
	names, _ := os.ReadDir(dir)
	for _, name := range names {
		if fd, err := strconv.Atoi(name.Name()); err == nil && fd > 2 {
			unix.CloseOnExec(fd)
		}
	}
}
