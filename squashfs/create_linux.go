package squashfs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// openTemp makes a file without a name (O_TMPFILE, Linux 3.11), or with one
// where the file system cannot do that, or /proc is missing to name it later.
func openTemp(dir, base string) (*os.File, string, error) {
	f, err := os.OpenFile(dir, os.O_RDWR|unix.O_TMPFILE, 0o666)
	if err == nil {
		if _, err := os.Stat(procName(f)); err == nil {
			return f, "", nil
		}
		_ = f.Close()
	}
	return openNamed(dir, base)
}

func procName(f *os.File) string { return fmt.Sprintf("/proc/self/fd/%d", f.Fd()) }

// linkTemp gives a nameless file the name path, or, where that is taken and need
// not be kept, a temporary name to be renamed, which it returns.
func linkTemp(f *os.File, path string, keep bool) (temp string, err error) {
	name := path
	for i := range 10000 {
		err = unix.Linkat(unix.AT_FDCWD, procName(f), unix.AT_FDCWD, name, unix.AT_SYMLINK_FOLLOW)
		switch {
		case err == nil && name == path:
			return "", nil
		case err == nil:
			return name, nil
		case keep || !errors.Is(err, fs.ErrExist):
			return "", fmt.Errorf("link %s: %w", name, err)
		}
		name = tempName(filepath.Dir(path), filepath.Base(path), i)
	}
	return "", fmt.Errorf("link %s: %w", path, err)
}

// renameNew renames a file to a name that must be free.
func renameNew(from, to string) error {
	err := unix.Renameat2(unix.AT_FDCWD, from, unix.AT_FDCWD, to, unix.RENAME_NOREPLACE)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS) {
		return linkNew(from, to) // not every file system can
	}
	return err
}
