package cdi

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gangway-hpc/gangway/internal/fault"
)

// Options say where specifications are and whose count. The zero value reads the
// directories of the standard and trusts root alone.
type Options struct {
	Dirs []string // least important first; none is DefaultDirs
	UID  int      // whose files count beside root's; who acts as root for others gives 0
	Root string   // where paths of devices and mounts begin; "" is "/"
}

// DefaultDirs are the directories that CDI names, the more important one last.
func DefaultDirs() []string { return []string{"/etc/cdi", "/var/run/cdi"} }

// What is read at most of a directory and of all files.
const maxFiles, maxTotal = 1000, 16 << 20

// Load reads the files *.json and *.yaml of the directories. A directory that does not
// exist is an empty one. Files that cannot be used do not fail it: see
// [Registry.Problems]. The error is the context's.
func Load(ctx context.Context, o Options) (*Registry, error) {
	r := newRegistry(o)
	budget := int64(maxTotal)
	for i, dir := range r.dirs {
		if err := r.loadDir(ctx, dir, i+1, &budget); err != nil {
			return nil, fmt.Errorf("read CDI specifications of %s: %w", dir, err)
		}
	}
	return r, nil
}

// loadDir reads one directory. What is wrong with it becomes a problem.
func (r *Registry) loadDir(ctx context.Context, dir string, rank int, budget *int64) error {
	f, err := openDir(dir, r.uid)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		r.problem(dir, err)
		return ctx.Err()
	}
	defer func() { _ = f.Close() }()
	entries, err := f.ReadDir(maxFiles + 1)
	if err != nil && !errors.Is(err, io.EOF) {
		r.problem(dir, err)
	}
	if len(entries) > maxFiles {
		r.problem(dir, fmt.Errorf("it has more than %d entries; the rest is not read", maxFiles))
	}
	slices.SortFunc(entries, func(a, b os.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	for _, e := range entries {
		if ext := filepath.Ext(e.Name()); ext != ".json" && ext != ".yaml" || e.IsDir() {
			continue
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		file := filepath.Join(dir, e.Name())
		data, err := readFile(f, e.Name(), r.uid)
		if *budget -= int64(len(data)); err == nil && *budget < 0 {
			err = fmt.Errorf("with it, all specifications have more than %d bytes", maxTotal)
		}
		if err == nil {
			err = r.load(data, origin{path: file, rank: rank})
		}
		if err != nil {
			r.problem(file, err)
		}
	}
	return nil
}

// openDir opens a directory that only root and the user can have put files into.
func openDir(dir string, uid int) (*os.File, error) {
	real, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return nil, err
	}
	if real, err = filepath.Abs(real); err != nil {
		return nil, err
	}
	for above := real; ; above = filepath.Dir(above) {
		var st unix.Stat_t
		if err := unix.Lstat(above, &st); err != nil {
			return nil, &fs.PathError{Op: "stat", Path: above, Err: err}
		}
		// Where others may write, the sticky bit still keeps what is there theirs who
		// made it; but the directory itself would be open to new files.
		if err := trust(above, &st, uid, above != real); err != nil {
			return nil, err
		}
		if above == filepath.Dir(above) {
			break
		}
	}
	fd, err := unix.Open(real, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: real, Err: err}
	}
	return os.NewFile(uintptr(fd), real), nil
}

// trust says why somebody else could have written something.
func trust(name string, st *unix.Stat_t, uid int, sticky bool) error {
	if st.Uid != 0 && int(st.Uid) != uid {
		return &fault.Error{
			What:  fmt.Errorf("%s belongs to user %d, who is neither root nor the caller", name, st.Uid),
			Cause: "a CDI specification mounts files and names programs, so one of another user is not used",
			Hint:  "chown root " + name,
		}
	}
	if st.Mode&0o022 != 0 && (!sticky || st.Mode&unix.S_ISVTX == 0) {
		return &fault.Error{
			What:  fmt.Errorf("%s can be written by others (mode %04o)", name, st.Mode&0o7777),
			Cause: "a CDI specification mounts files and names programs, so one that others can write is not used",
			Hint:  "chmod go-w " + name,
		}
	}
	return nil
}

// readFile reads a file of an open directory. A link is followed, for what counts is
// who can write what it leads to.
func readFile(dir *os.File, name string, uid int) ([]byte, error) {
	// Without O_NONBLOCK a pipe would wait for somebody to write.
	fd, err := unix.Openat(int(dir.Fd()), name, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open: %w", err)
	}
	f := os.NewFile(uintptr(fd), filepath.Join(dir.Name(), name))
	defer func() { _ = f.Close() }()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, fmt.Errorf("stat: %w", err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, errors.New("it is no regular file")
	}
	if err := trust(f.Name(), &st, uid, false); err != nil {
		return nil, err
	}
	return io.ReadAll(io.LimitReader(f, MaxFile+1))
}
