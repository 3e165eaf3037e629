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

// linkTemp gives a nameless file the name path, or, where that is taken, a
// temporary name to be renamed, which it returns.
func linkTemp(f *os.File, path string) (temp string, err error) {
	name := path
	for i := range 10000 {
		err = unix.Linkat(unix.AT_FDCWD, procName(f), unix.AT_FDCWD, name, unix.AT_SYMLINK_FOLLOW)
		switch {
		case err == nil && name == path:
			return "", nil
		case err == nil:
			return name, nil
		case !errors.Is(err, fs.ErrExist):
			return "", fmt.Errorf("link %s: %w", name, err)
		}
		name = tempName(filepath.Dir(path), filepath.Base(path), i)
	}
	return "", fmt.Errorf("link %s: %w", path, err)
}
