package fsx

import (
	"errors"

	"golang.org/x/sys/unix"
)

// maxAgain bounds the tries of OpenInRoot. Each renews the race with one mount or
// rename; losing this many in a row means that something is wrong.
const maxAgain = 1000

// OpenInRoot opens path as if the directory root were /, by openat2(2) with
// RESOLVE_IN_ROOT; how.Resolve may say more. The kernel answers EAGAIN where ".." is
// resolved while anything on the machine is mounted or renamed, which says nothing of
// path: it is asked again. The error is an errno without a name; ENOSYS before Linux 5.6.
func OpenInRoot(root int, path string, how unix.OpenHow) (int, error) {
	how.Resolve |= unix.RESOLVE_IN_ROOT
	for tries := 1; ; tries++ {
		fd, err := unix.Openat2(root, path, &how)
		if errors.Is(err, unix.EINTR) || errors.Is(err, unix.EAGAIN) && tries < maxAgain {
			continue
		}
		return fd, err
	}
}
