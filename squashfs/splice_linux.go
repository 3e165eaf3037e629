package squashfs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// copyChunk bounds one system call, which cannot be interrupted.
const copyChunk = 64 << 20

// copyFileRange copies n bytes within the kernel, which shares the blocks where
// the file system has reflinks and the offsets are aligned (copy_file_range(2)).
// It returns how much it copied: less than n, without error, where the kernel
// cannot go on and the caller is to copy bytes.
func copyFileRange(ctx context.Context, dst *os.File, dstAt int64, src *os.File, srcAt, n int64) (int64, error) {
	var done int64
	for done < n {
		if err := ctx.Err(); err != nil {
			return done, err
		}
		from, to := srcAt+done, dstAt+done
		m, err := unix.CopyFileRange(int(src.Fd()), &from, int(dst.Fd()), &to, int(min(n-done, copyChunk)), 0)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case isNoCopyFileRange(err):
			return done, nil
		case err != nil:
			return done, fmt.Errorf("copy file range: %w", err)
		case m == 0:
			return done, fmt.Errorf("copy file range: %w", io.ErrUnexpectedEOF)
		}
		done += int64(m)
	}
	return done, nil
}

// isNoCopyFileRange tells that these two files cannot be copied so: other
// devices, other kinds of file, an old kernel, a seccomp filter.
func isNoCopyFileRange(err error) bool {
	for _, e := range []error{unix.EXDEV, unix.EINVAL, unix.ENOSYS, unix.EOPNOTSUPP, unix.EPERM, unix.EBADF} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}
