package rootfs

import (
	"errors"
	"io/fs"
	"syscall"
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

// AddFile puts a regular file at a path, where it hides a file of the image, and
// returns the path without symlinks. Symlinks are followed as by Resolve; but if the
// path itself is a symlink that leads nowhere, the file takes its place, so that the
// path has the content in any case. Directories on the way are made. It is an error if
// a directory is there.
func (t *Tree) AddFile(path string, content []byte, mode uint32) (string, error) {
	const op = "add file"
	a := addition{mode: syscall.S_IFREG | mode&0o7777, content: content}
	w, err := t.walk(op, path, nil)
	switch {
	case err == nil && kindOf(w.mode) == Dir:
		return "", &fs.PathError{Op: op, Path: path, Err: syscall.EISDIR}
	case err == nil:
		t.add(w.at[len(w.at)-2], w.names[len(w.names)-1], a)
		return w.path(), nil
	}
	parent, name, err := splitPath(path)
	if err != nil {
		return "", &fs.PathError{Op: op, Path: path, Err: err}
	}
	if w, err = t.walk(op, parent, t.makeMissing(true)); err != nil {
		return "", err
	}
	if kindOf(w.mode) != Dir {
		return "", &fs.PathError{Op: op, Path: path, Err: syscall.ENOTDIR}
	}
	// Either nothing has the name, or a symlink that leads nowhere, or it cannot be read.
	if n, err := t.lookup(w.node(), name); err == nil {
		i, err := t.stat(n)
		if err == nil && i.Mode&syscall.S_IFMT != syscall.S_IFLNK {
			err = syscall.EEXIST
		}
		if err != nil {
			return "", &fs.PathError{Op: op, Path: path, Err: err}
		}
	} else if !errors.Is(err, fs.ErrNotExist) {
		return "", &fs.PathError{Op: op, Path: path, Err: err}
	}
	w.at, w.names = append(w.at, t.add(w.node(), name, a)), append(w.names, name)
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
