package rootfs

import (
	"errors"
	"io/fs"
	"strings"
	"syscall"

	"github.com/gangway-hpc/gangway/image/merged"
)

// What Mountpoint makes.
const (
	dirMode  = syscall.S_IFDIR | 0o755
	fileMode = syscall.S_IFREG | 0o644
)

// Mountpoint makes sure that a directory, or else a regular file, is at a path so that
// something can be mounted on it, and returns the path without symlinks. What is
// missing is added, with the directories on the way; symlinks are followed as by
// Resolve, also to targets that are missing. It is an error if something else is there.
func (t *Tree) Mountpoint(path string, dir bool) (string, error) {
	w, err := t.walk("make mountpoint", path, t.makeMissing(dir))
	if err != nil {
		return "", err
	}
	switch kind := kindOf(w.mode); {
	case dir && kind != Dir:
		err = syscall.ENOTDIR
	case !dir && kind == Dir:
		err = syscall.EISDIR
	}
	if err != nil {
		return "", &fs.PathError{Op: "make mountpoint", Path: path, Err: err}
	}
	return w.path(), nil
}

func (t *Tree) makeMissing(dir bool) maker {
	return func(parent uint32, name string, last bool) uint32 {
		if last && !dir {
			return t.add(parent, name, addition{mode: fileMode})
		}
		return t.add(parent, name, addition{mode: dirMode})
	}
}

// AddFile puts a regular file at a path, where it hides what the image has there, and
// returns the path without symlinks. Directories on the way are followed as by Resolve,
// and made where they are missing; but a symlink that the path itself names is not
// followed: the file takes its place. For what such a link leads to may be hidden by
// something that is mounted later, and then the path would not have the content. It is
// an error if a directory is there.
func (t *Tree) AddFile(path string, content []byte, mode uint32) (string, error) {
	return t.put("add file", path, addition{mode: syscall.S_IFREG | mode&0o7777, content: content})
}

// AddLink puts a symlink to target at a path, as AddFile does with a file.
func (t *Tree) AddLink(path, target string) (string, error) {
	const op = "add symlink"
	switch {
	case target == "" || strings.IndexByte(target, 0) >= 0:
		return "", &fs.PathError{Op: op, Path: path, Err: syscall.EINVAL}
	case len(target) > maxPath:
		return "", &fs.PathError{Op: op, Path: path, Err: syscall.ENAMETOOLONG}
	}
	return t.put(op, path, addition{mode: syscall.S_IFLNK | 0o777, content: []byte(target)})
}

// put adds what is no directory.
func (t *Tree) put(op, path string, a addition) (string, error) {
	fail := func(err error) (string, error) { return "", &fs.PathError{Op: op, Path: path, Err: err} }
	parent, name, err := splitPath(path)
	if err != nil {
		return fail(err)
	}
	w, err := t.walk(op, parent, t.makeMissing(true))
	if err != nil {
		return "", err
	}
	if kindOf(w.mode) != Dir {
		return fail(syscall.ENOTDIR)
	}
	n, err := t.lookup(w.node(), name)
	if err == nil {
		var i merged.Inode
		if i, err = t.stat(n); err == nil && kindOf(i.Mode) == Dir {
			err = syscall.EISDIR
		}
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fail(err)
	}
	n = t.add(w.node(), name, a)
	w.at, w.names = append(w.at, n), append(w.names, name)
	return w.path(), nil
}

// splitPath parts a file's name from the directory's path, which ends with a slash.
func splitPath(path string) (dir, name string, err error) {
	if err := checkPath(path); err != nil {
		return "", "", err
	}
	i := len(path)
	for i > 0 && path[i-1] != '/' {
		i--
	}
	switch name = path[i:]; {
	case name == "" || name == "." || name == "..":
		return "", "", syscall.EISDIR
	case len(name) > maxName:
		return "", "", syscall.ENAMETOOLONG
	}
	return "/" + path[:i], name, nil
}
