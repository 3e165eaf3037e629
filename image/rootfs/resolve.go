package rootfs

import (
	"errors"
	"io/fs"
	"strings"
	"syscall"

	"github.com/gangway-hpc/gangway/image/merged"
)

// As in Linux.
const (
	maxLinks = 40   // symlinks on the way to one file (MAXSYMLINKS)
	maxName  = 255  // bytes of a name (NAME_MAX)
	maxPath  = 4095 // bytes of a path (PATH_MAX without the NUL)
)

// Resolve returns the path without symlinks, "." and ".." that a path means inside the
// tree's root, and what is there. Symlinks are followed as by openat2(2) with
// RESOLVE_IN_ROOT: "/" in them is the tree's root, which ".." does not leave. An error
// is a *fs.PathError with the errno that the kernel would give, so that errors.Is with
// fs.ErrNotExist tells where nothing is there.
func (t *Tree) Resolve(path string) (string, Kind, error) {
	w, err := t.walk("resolve", path, nil)
	if err != nil {
		return "", 0, err
	}
	return w.path(), kindOf(w.mode), nil
}

// Exists says whether something is at a path, symlinks followed.
func (t *Tree) Exists(path string) bool {
	_, _, err := t.Resolve(path)
	return err == nil
}

// walker is a walk from the root to a path's end. at and names are the directories
// passed, the first the root, and the names by which each was entered; of a walk that
// has ended, the last is what was found.
type walker struct {
	t     *Tree
	at    []uint32
	names []string
	mode  uint32
	rest  []string // what is left of the path, and of symlinks' targets on top of it
	links int
}

// maker makes what is missing in a directory. last says that the path ends there.
type maker func(dir uint32, name string, last bool) uint32

// walk follows a path. What is missing is made by the maker; without one it is an error.
func (t *Tree) walk(op, path string, missing maker) (*walker, error) {
	w := &walker{t: t, at: []uint32{merged.Root}, names: []string{""}, rest: []string{path}, mode: syscall.S_IFDIR}
	err := checkPath(path)
	for err == nil && len(w.rest) > 0 {
		err = w.step(missing)
	}
	if err != nil {
		return nil, &fs.PathError{Op: op, Path: path, Err: err}
	}
	return w, nil
}

func checkPath(path string) error {
	switch {
	case path == "":
		return syscall.ENOENT
	case len(path) > maxPath:
		return syscall.ENAMETOOLONG
	case strings.IndexByte(path, 0) >= 0:
		return syscall.EINVAL
	}
	return nil
}

// step goes on by one name.
func (w *walker) step(missing maker) error {
	if w.mode&syscall.S_IFMT != syscall.S_IFDIR {
		return syscall.ENOTDIR // something follows, if only a slash
	}
	top := len(w.rest) - 1
	name, after, more := strings.Cut(w.rest[top], "/")
	if w.rest[top] = after; !more {
		w.rest = w.rest[:top]
	}
	switch {
	case name == "" || name == ".":
		return nil
	case name == "..":
		last := max(len(w.at)-1, 1)
		w.at, w.names = w.at[:last], w.names[:last]
		return nil
	case len(name) > maxName:
		return syscall.ENAMETOOLONG
	}
	dir := w.at[len(w.at)-1]
	n, err := w.t.lookup(dir, name)
	if errors.Is(err, fs.ErrNotExist) {
		if missing == nil {
			return syscall.ENOENT
		}
		n, err = missing(dir, name, w.ended()), nil
	}
	if err != nil {
		return err
	}
	i, err := w.t.stat(n)
	if err != nil {
		return err
	}
	if i.Mode&syscall.S_IFMT == syscall.S_IFLNK {
		return w.follow(n)
	}
	w.mode = i.Mode
	w.at, w.names = append(w.at, n), append(w.names, name)
	return nil
}

// follow puts a symlink's target before what is left of the path.
func (w *walker) follow(n uint32) error {
	if w.links++; w.links > maxLinks {
		return syscall.ELOOP
	}
	target, err := w.t.readLink(n)
	if err != nil {
		return err
	}
	if target[0] == '/' {
		w.toRoot()
	}
	w.rest = append(w.rest, target)
	return nil
}

func (w *walker) toRoot() { w.at, w.names = w.at[:1], w.names[:1] }

// ended says whether no name is left.
func (w *walker) ended() bool {
	for _, rest := range w.rest {
		for name := range strings.SplitSeq(rest, "/") {
			if name != "" && name != "." {
				return false
			}
		}
	}
	return true
}

// node is what was found.
func (w *walker) node() uint32 { return w.at[len(w.at)-1] }

func (w *walker) path() string {
	if len(w.names) == 1 {
		return "/"
	}
	return strings.Join(w.names, "/")
}
