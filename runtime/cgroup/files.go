package cgroup

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// The files of the kernel's are read and written without package os, whose files are
// registered with the poller first: that would be half of the system calls of a group.

// write puts value into a file of the kernel's, in one write.
func write(dir, name, value string) error {
	path := filepath.Join(dir, name)
	fd, err := open(path, unix.O_WRONLY)
	if err != nil {
		return fmt.Errorf("set cgroup: %w", err)
	}
	defer unix.Close(fd)
	for {
		_, err = unix.Write(fd, []byte(value))
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("set cgroup to %q: %w", value, &os.PathError{Op: "write", Path: path, Err: err})
	}
	return nil
}

// read returns the text of a file of the kernel's without the last line break.
func read(dir, name string) (string, error) {
	path := filepath.Join(dir, name)
	fd, err := open(path, unix.O_RDONLY)
	if err != nil {
		return "", err
	}
	defer unix.Close(fd)
	text := make([]byte, 0, 4096)
	for len(text) < maxProcFile {
		if len(text) == cap(text) {
			text = slices.Grow(text, len(text))
		}
		n, err := unix.Read(fd, text[len(text):cap(text)])
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return "", &os.PathError{Op: "read", Path: path, Err: err}
		}
		if n == 0 {
			break
		}
		text = text[:len(text)+n]
	}
	return string(bytes.TrimSuffix(text, []byte("\n"))), nil
}

func open(path string, flags int) (int, error) {
	for {
		fd, err := unix.Open(path, flags|unix.O_CLOEXEC, 0)
		if err == nil {
			return fd, nil
		}
		if !errors.Is(err, unix.EINTR) {
			return -1, &os.PathError{Op: "open", Path: path, Err: err}
		}
	}
}

// number reads a file with one number. "max" and what version 1 has for no limit are
// Unlimited. ok is false where there is no such file or no such number.
func number(dir, name string) (n int64, ok bool) {
	text, err := read(dir, name)
	if err != nil {
		return 0, false
	}
	return parseNumber(text)
}

func parseNumber(text string) (n int64, ok bool) {
	if text == "max" {
		return Unlimited, true
	}
	n, err := strconv.ParseInt(text, 10, 64)
	const most = 1<<63 - 1<<17 // version 1 rounds its largest number down to pages
	if n >= most {
		return Unlimited, true
	}
	return n, err == nil
}

// pairs reads a file of lines "name number".
func pairs(dir, name string) map[string]uint64 {
	text, err := read(dir, name)
	if err != nil {
		return nil
	}
	return parsePairs(text)
}

func parsePairs(text string) map[string]uint64 {
	values := map[string]uint64{}
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		if n, err := strconv.ParseUint(value, 10, 64); err == nil {
			values[name] = n
		}
	}
	return values
}

// processes lists the processes in dir and the groups below it.
func processes(dir string) ([]int, error) {
	var all []int
	for _, d := range append(subgroups(dir), dir) {
		text, err := read(d, "cgroup.procs")
		if err != nil && !gone(err) {
			return nil, fmt.Errorf("list processes: %w", err)
		}
		for line := range strings.Lines(text) {
			if pid, err := strconv.Atoi(strings.TrimSpace(line)); err == nil {
				all = append(all, pid)
			}
		}
	}
	return all, nil
}

// subgroups lists the groups below dir, the deepest first.
func subgroups(dir string) []string {
	entries, _ := os.ReadDir(dir)
	var all []string
	for _, e := range entries {
		if e.IsDir() {
			sub := filepath.Join(dir, e.Name())
			all = append(append(all, subgroups(sub)...), sub)
		}
	}
	return all
}

// gone says whether err tells of a group or a process that is there no more.
func gone(err error) bool {
	return errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ESRCH)
}

// refused says whether err is the kernel's or somebody's decision that cannot be helped
// here, and not a mistake of ours.
func refused(err error) bool {
	return errors.Is(err, os.ErrPermission) || errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.EROFS) ||
		errors.Is(err, unix.EBUSY) || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOSYS)
}
