package squashfs

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"strings"
	"syscall"
	"time"
)

// maxLinks is how many symlinks one path may lead through, as on Linux.
const maxLinks = 40

// maxPathDepth bounds how deep a path may lead.
const maxPathDepth = 4096

// FS returns a file system of the image. It implements fs.StatFS, fs.ReadDirFS,
// fs.ReadFileFS and fs.ReadLinkFS, and is safe for concurrent use.
//
// Open, Stat, ReadDir and ReadFile follow symlinks, within the image only: an
// absolute target begins at the image's root, and ".." ends there. Paths are those
// of package io/fs, but names may have any bytes, as on Linux; fs.ValidPath would
// refuse what is not UTF-8. FileInfo.Sys returns an *Inode. A regular file that is
// opened has the methods of File.
func (r *Reader) FS() fs.FS { return imageFS{r} }

type imageFS struct{ r *Reader }

var (
	errLoop   = errors.New("too many levels of symbolic links")
	errNotDir = fmt.Errorf("not a directory: %w", fs.ErrInvalid)
)

func pathError(op, path string, err error) error {
	return &fs.PathError{Op: op, Path: path, Err: err}
}

// Open implements fs.FS.
func (v imageFS) Open(name string) (fs.File, error) {
	i, err := v.resolve(name, true)
	if err != nil {
		return nil, pathError("open", name, err)
	}
	info := fileInfo{name: base(name), inode: i}
	switch i.Type {
	case TypeFile:
		f, err := v.r.OpenFile(i)
		if err != nil {
			return nil, pathError("open", name, err)
		}
		return &fsFile{File: f, info: info}, nil
	case TypeDir:
		return &fsDir{fsNode: fsNode{info: info, path: name}, r: v.r}, nil
	}
	return &fsNode{info: info, path: name}, nil
}

// Stat implements fs.StatFS.
func (v imageFS) Stat(name string) (fs.FileInfo, error) { return v.stat("stat", name, true) }

// Lstat implements fs.ReadLinkFS.
func (v imageFS) Lstat(name string) (fs.FileInfo, error) { return v.stat("lstat", name, false) }

func (v imageFS) stat(op, name string, follow bool) (fs.FileInfo, error) {
	i, err := v.resolve(name, follow)
	if err != nil {
		return nil, pathError(op, name, err)
	}
	return fileInfo{name: base(name), inode: i}, nil
}

// ReadLink implements fs.ReadLinkFS.
func (v imageFS) ReadLink(name string) (string, error) {
	i, err := v.resolve(name, false)
	if err != nil {
		return "", pathError("readlink", name, err)
	}
	if i.Type != TypeSymlink {
		return "", pathError("readlink", name, fs.ErrInvalid)
	}
	target, err := v.r.ReadLink(i)
	if err != nil {
		return "", pathError("readlink", name, err)
	}
	return target, nil
}

// ReadDir implements fs.ReadDirFS.
func (v imageFS) ReadDir(name string) ([]fs.DirEntry, error) {
	i, err := v.resolve(name, true)
	if err == nil && i.Type != TypeDir {
		err = errNotDir
	}
	if err != nil {
		return nil, pathError("readdir", name, err)
	}
	var list []fs.DirEntry
	for e, err := range v.r.ReadDir(i) {
		if err != nil {
			return list, pathError("readdir", name, err)
		}
		list = append(list, &dirEntry{r: v.r, dir: &i, e: e})
	}
	return list, nil
}

// ReadFile implements fs.ReadFileFS. The caller answers for the memory: a hole
// takes little room in an image.
func (v imageFS) ReadFile(name string) ([]byte, error) {
	i, err := v.resolve(name, true)
	if err != nil {
		return nil, pathError("open", name, err)
	}
	f, err := v.r.OpenFile(i)
	if err != nil {
		return nil, pathError("read", name, err)
	}
	// Growing by doubling, so that an error of a lying size comes before its memory.
	buf := make([]byte, 0, min(f.Size(), 16<<20))
	for int64(len(buf)) < f.Size() {
		n := len(buf)
		more := int(min(f.Size()-int64(n), int64(max(n, 16<<20))))
		buf = append(buf, make([]byte, more)...)
		if m, err := f.readSpan(buf[n:], int64(n)); err != nil {
			return buf[:n+m], pathError("read", name, f.wrap(err))
		}
	}
	return buf, nil
}

// resolve walks a path from the root. Only the last name's symlink may stay.
func (v imageFS) resolve(path string, follow bool) (Inode, error) {
	if !validPath(path) {
		return Inode{}, fs.ErrInvalid
	}
	root, err := v.r.Root()
	if err != nil {
		return Inode{}, err
	}
	// The directories from the root to where the walk is, for "..".
	stack := []Inode{root}
	at := root
	links := 0
	for rest := path; rest != ""; {
		var name string
		name, rest, _ = strings.Cut(rest, "/")
		if name == "" || name == "." {
			continue
		}
		if at.Type != TypeDir {
			return Inode{}, errNotDir
		}
		if name == ".." {
			stack = stack[:max(1, len(stack)-1)]
			at = stack[len(stack)-1]
			continue
		}
		next, err := v.r.Lookup(at, name)
		if err != nil {
			return Inode{}, err
		}
		switch next.Type {
		case TypeDir:
			if stack = append(stack, next); len(stack) > maxPathDepth {
				return Inode{}, fmt.Errorf("path of more than %d names: %w", maxPathDepth, fs.ErrInvalid)
			}
		case TypeSymlink:
			if rest == "" && !follow {
				return next, nil
			}
			if links++; links > maxLinks {
				return Inode{}, errLoop
			}
			target, err := v.r.ReadLink(next)
			if err != nil {
				return Inode{}, err
			}
			if strings.HasPrefix(target, "/") {
				stack = stack[:1]
			}
			// A slash behind the link's name asks for a directory, as one in the target does.
			rest, at = target+"/"+rest, stack[len(stack)-1]
			continue
		}
		at = next
	}
	return at, nil
}

// validPath is fs.ValidPath for names of any bytes.
func validPath(path string) bool {
	if path == "." {
		return true
	}
	for name := range strings.SplitSeq(path, "/") {
		if name == "" || name == "." || name == ".." {
			return false
		}
	}
	return true
}

func base(path string) string { return path[strings.LastIndexByte(path, '/')+1:] }

// fileInfo implements fs.FileInfo.
type fileInfo struct {
	name  string
	inode Inode
}

func (i fileInfo) Name() string       { return i.name }
func (i fileInfo) Mode() fs.FileMode  { return i.inode.Mode() }
func (i fileInfo) ModTime() time.Time { return i.inode.ModTime() }
func (i fileInfo) IsDir() bool        { return i.inode.Type == TypeDir }
func (i fileInfo) Sys() any           { n := i.inode; return &n }
func (i fileInfo) String() string     { return fs.FormatFileInfo(i) }

// Size returns the bytes of a file or of a symlink's target, else 0.
func (i fileInfo) Size() int64 {
	if i.inode.Type == TypeFile || i.inode.Type == TypeSymlink {
		return int64(i.inode.Size)
	}
	return 0
}

// dirEntry implements fs.DirEntry.
type dirEntry struct {
	r   *Reader
	dir *Inode
	e   DirEntry
}

func (d *dirEntry) Name() string      { return d.e.Name }
func (d *dirEntry) IsDir() bool       { return d.e.Type == TypeDir }
func (d *dirEntry) Type() fs.FileMode { return d.e.Type.fileMode() }
func (d *dirEntry) String() string    { return fs.FormatDirEntry(d) }

func (d *dirEntry) Info() (fs.FileInfo, error) {
	i, err := d.r.Child(*d.dir, d.e)
	if err != nil {
		return nil, err
	}
	return fileInfo{name: d.e.Name, inode: i}, nil
}

// fsFile implements fs.File for a regular file.
type fsFile struct {
	*File
	info fileInfo
}

func (f *fsFile) Stat() (fs.FileInfo, error) { return f.info, nil }

// fsNode implements fs.File for what has no content of its own.
type fsNode struct {
	info   fileInfo
	path   string
	closed bool
}

func (n *fsNode) Stat() (fs.FileInfo, error) { return n.info, nil }

func (n *fsNode) Read([]byte) (int, error) {
	var err error = fs.ErrInvalid
	if n.info.IsDir() {
		err = syscall.EISDIR
	}
	return 0, pathError("read", n.path, err)
}

func (n *fsNode) Close() error {
	if n.closed {
		return pathError("close", n.path, fs.ErrClosed)
	}
	n.closed = true
	return nil
}

// fsDir implements fs.ReadDirFile. It remembers a position, no entries.
type fsDir struct {
	fsNode
	r    *Reader
	pos  DirPos
	done bool
}

func (d *fsDir) entries() iter.Seq2[DirEntry, error] {
	return d.r.ReadDirFrom(d.info.inode, d.pos)
}

// ReadDir implements fs.ReadDirFile.
func (d *fsDir) ReadDir(n int) ([]fs.DirEntry, error) {
	if d.closed {
		return nil, pathError("readdir", d.path, fs.ErrClosed)
	}
	list := []fs.DirEntry{}
	if !d.done {
		for e, err := range d.entries() {
			if err != nil {
				return list, pathError("readdir", d.path, err)
			}
			list = append(list, &dirEntry{r: d.r, dir: &d.info.inode, e: e})
			d.pos = e.Next
			if n > 0 && len(list) == n {
				return list, nil
			}
		}
		d.done = true
	}
	if n > 0 && len(list) == 0 {
		return nil, io.EOF
	}
	return list, nil
}
