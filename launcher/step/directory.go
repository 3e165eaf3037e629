package step

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// dirRoot is a directory of the host as a root file system: names are followed as they
// will be in the container, where it is "/". It may be a stranger's, who changes it
// meanwhile: nothing outside of it is looked at, and nothing but files and directories is
// opened.
type dirRoot struct{ root *os.File }

func openDirRoot(path string) (*dirRoot, error) {
	fd, err := retried(func() (int, error) { return unix.Open(path, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0) })
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	return &dirRoot{os.NewFile(uintptr(fd), path)}, nil
}

func (d *dirRoot) close() error { return d.root.Close() }

// ReadFile implements spec.Root.
func (d *dirRoot) ReadFile(path string, limit int64) ([]byte, error) {
	f, st, err := d.open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	switch {
	case isDir(st):
		return nil, &fs.PathError{Op: "open", Path: path, Err: fs.ErrInvalid}
	case st.Size > limit:
		return nil, fmt.Errorf("read %s: %d bytes are more than the limit of %d", path, st.Size, limit)
	}
	b, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(b)) > limit {
		err = fmt.Errorf("read %s: more bytes than the limit of %d", path, limit)
	}
	return b, err
}

// Exists implements spec.Root.
func (d *dirRoot) Exists(path string) bool {
	_, st, err := d.resolve(path)
	return err == nil && st != nil
}

// FS is the directory as package io/fs has it.
func (d *dirRoot) FS() fs.FS { return dirFS{d} }

type dirFS struct{ d *dirRoot }

// Open implements fs.FS.
func (f dirFS) Open(name string) (fs.File, error) {
	if !fs.ValidPath(name) {
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrInvalid}
	}
	file, _, err := f.d.open(name)
	if err != nil {
		return nil, err
	}
	return file, nil
}

// open opens a file or directory.
func (d *dirRoot) open(path string) (f *os.File, st *unix.Stat_t, err error) {
	_, err = d.walk(path, func(dir int, base string, seen *unix.Stat_t) error {
		if seen == nil {
			return fs.ErrNotExist
		}
		if !isFile(seen) && !isDir(seen) {
			return fs.ErrInvalid
		}
		// By now it may be a link, or a pipe.
		fd, err := retried(func() (int, error) {
			return unix.Openat(dir, base, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
		})
		if err != nil {
			return err
		}
		f, st = os.NewFile(uintptr(fd), path), &unix.Stat_t{}
		err = unix.Fstat(fd, st)
		if err == nil && !isFile(st) && !isDir(st) {
			err = fs.ErrInvalid
		}
		return err
	})
	if err == nil {
		return f, st, nil
	}
	if f != nil {
		_ = f.Close()
	}
	return nil, nil, &fs.PathError{Op: "open", Path: path, Err: err}
}

// resolve returns where a path leads, and what is there: nil if nothing is.
func (d *dirRoot) resolve(path string) (at string, st *unix.Stat_t, err error) {
	at, err = d.walk(path, func(_ int, _ string, seen *unix.Stat_t) error {
		st = seen
		return nil
	})
	if err != nil {
		return "", nil, &fs.PathError{Op: "resolve", Path: path, Err: err}
	}
	return at, st, nil
}

const (
	// maxLinks is how many symlinks a path may lead through, as in the kernel.
	maxLinks = 40
	// maxDepth is how many directories above a file are kept open.
	maxDepth = 200
)

// walk goes where a path leads, one name after the other, so that no link is followed but
// here. found gets the directory, the name in it and what is there: nil if nothing is.
func (d *dirRoot) walk(path string, found func(dir int, base string, st *unix.Stat_t) error) (at string, err error) {
	fds, names := []int{int(d.root.Fd())}, []string{"/"}
	leave := func(depth int) {
		for _, fd := range fds[depth:] {
			_ = unix.Close(fd)
		}
		fds, names = fds[:depth], names[:depth]
	}
	defer func() { leave(1) }()
	rest := strings.Split(path, "/")
	for links := 0; len(rest) > 0; {
		part := rest[0]
		rest = rest[1:]
		switch part {
		case "", ".":
			continue
		case "..":
			leave(max(1, len(fds)-1))
			continue
		}
		dir := fds[len(fds)-1]
		fd, st, to, err := look(dir, part)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return filepath.Join(append(append(names, part), rest...)...), found(dir, part, nil)
		case err != nil:
			return "", err
		case to != "":
			if links++; links > maxLinks {
				return "", syscall.ELOOP
			}
			if strings.HasPrefix(to, "/") {
				leave(1)
			}
			rest = append(strings.Split(to, "/"), rest...)
		case fd >= 0:
			fds, names = append(fds, fd), append(names, part)
			if len(fds) > maxDepth {
				return "", syscall.ENAMETOOLONG
			}
		case len(rest) > 0:
			return "", syscall.ENOTDIR
		default:
			return filepath.Join(append(names, part)...), found(dir, part, st)
		}
	}
	var st unix.Stat_t
	if err := unix.Fstat(fds[len(fds)-1], &st); err != nil {
		return "", err
	}
	return filepath.Join(names...), found(fds[len(fds)-1], ".", &st)
}

// look says what a name is: a directory, which is then open; where a link leads; else st.
func look(dir int, name string) (fd int, st *unix.Stat_t, to string, err error) {
	fd, err = retried(func() (int, error) { return unix.Openat(dir, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0) })
	if err != nil {
		return -1, nil, "", err
	}
	st = &unix.Stat_t{}
	err = unix.Fstat(fd, st)
	if err == nil && isDir(st) {
		return fd, st, "", nil
	}
	if err == nil && st.Mode&unix.S_IFMT == unix.S_IFLNK {
		b := make([]byte, unix.PathMax)
		var n int
		n, err = unix.Readlinkat(fd, "", b)
		to = string(b[:max(n, 0)])
	}
	_ = unix.Close(fd) // it is open as a place only
	return -1, st, to, err
}

// retried makes a call again that a signal interrupted.
func retried(call func() (int, error)) (int, error) {
	for {
		if n, err := call(); !errors.Is(err, syscall.EINTR) {
			return n, err
		}
	}
}

func isDir(st *unix.Stat_t) bool  { return st.Mode&unix.S_IFMT == unix.S_IFDIR }
func isFile(st *unix.Stat_t) bool { return st.Mode&unix.S_IFMT == unix.S_IFREG }
