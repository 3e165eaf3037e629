package rootfs

import (
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/gangway-hpc/gangway/image/merged"
)

// FS is the tree as package io/fs has it: what Open and Stat get is followed through
// symlinks as by Resolve, so that nothing leads out of it. Files are an io.ReaderAt.
// Like Tree it may be used by any number of goroutines while nothing is added.
func (t *Tree) FS() fs.FS { return treeFS{t} }

type treeFS struct{ t *Tree }

// Open implements fs.FS.
func (f treeFS) Open(name string) (fs.File, error) {
	i, err := f.find("open", name)
	if err != nil {
		return nil, err
	}
	return &openFile{t: f.t, info: *i}, nil
}

// Stat implements fs.StatFS.
func (f treeFS) Stat(name string) (fs.FileInfo, error) {
	i, err := f.find("stat", name)
	if err != nil {
		return nil, err
	}
	return i, nil
}

func (f treeFS) find(op, name string) (*fileInfo, error) {
	if !fs.ValidPath(name) {
		return nil, &fs.PathError{Op: op, Path: name, Err: fs.ErrInvalid}
	}
	w, err := f.t.walk(op, name, nil)
	if err != nil {
		return nil, err
	}
	i, err := f.t.stat(w.node())
	if err != nil {
		return nil, &fs.PathError{Op: op, Path: name, Err: err}
	}
	return &fileInfo{name: path.Base(name), inode: i}, nil
}

// Lstat implements fs.ReadLinkFS.
func (f treeFS) Lstat(name string) (fs.FileInfo, error) {
	if !fs.ValidPath(name) || name == "." {
		return f.Stat(name)
	}
	w, err := f.t.walk("lstat", path.Dir(name), nil)
	if err != nil {
		return nil, err
	}
	n, err := f.t.lookup(w.node(), path.Base(name))
	if err != nil {
		return nil, &fs.PathError{Op: "lstat", Path: name, Err: err}
	}
	i, err := f.t.stat(n)
	if err != nil {
		return nil, &fs.PathError{Op: "lstat", Path: name, Err: err}
	}
	return &fileInfo{name: path.Base(name), inode: i}, nil
}

// ReadLink implements fs.ReadLinkFS.
func (f treeFS) ReadLink(name string) (string, error) {
	i, err := f.Lstat(name)
	if err != nil {
		return "", err
	}
	if i.Mode().Type() != fs.ModeSymlink {
		return "", &fs.PathError{Op: "readlink", Path: name, Err: fs.ErrInvalid}
	}
	return f.t.readLink(i.(*fileInfo).inode.Number)
}

// fileInfo is an inode under a name.
type fileInfo struct {
	name  string
	inode merged.Inode
}

func (i *fileInfo) Name() string       { return i.name }
func (i *fileInfo) Size() int64        { return i.inode.Size }
func (i *fileInfo) Mode() fs.FileMode  { return goMode(i.inode.Mode) }
func (i *fileInfo) ModTime() time.Time { return time.Unix(i.inode.Sec, int64(i.inode.Nsec)) }
func (i *fileInfo) IsDir() bool        { return i.Mode().IsDir() }
func (i *fileInfo) Sys() any           { return nil }

// goMode is st_mode as package io/fs has it.
func goMode(mode uint32) fs.FileMode {
	m := fs.FileMode(mode & 0o777)
	for bit, as := range map[uint32]fs.FileMode{syscall.S_ISUID: fs.ModeSetuid, syscall.S_ISGID: fs.ModeSetgid, syscall.S_ISVTX: fs.ModeSticky} {
		if mode&bit != 0 {
			m |= as
		}
	}
	switch mode & syscall.S_IFMT {
	case syscall.S_IFDIR:
		m |= fs.ModeDir
	case syscall.S_IFLNK:
		m |= fs.ModeSymlink
	case syscall.S_IFBLK:
		m |= fs.ModeDevice
	case syscall.S_IFCHR:
		m |= fs.ModeDevice | fs.ModeCharDevice
	case syscall.S_IFIFO:
		m |= fs.ModeNamedPipe
	case syscall.S_IFSOCK:
		m |= fs.ModeSocket
	}
	return m
}

// openFile is a file or directory of the tree.
type openFile struct {
	t       *Tree
	info    fileInfo
	off     int64
	entries []fs.DirEntry // of a directory, those that are left
	listed  bool
}

func (f *openFile) Stat() (fs.FileInfo, error) { return &f.info, nil }
func (f *openFile) Close() error               { return nil }

// Read implements fs.File.
func (f *openFile) Read(p []byte) (int, error) {
	n, err := f.ReadAt(p, f.off)
	f.off += int64(n)
	if n > 0 && err == io.EOF {
		err = nil
	}
	return n, err
}

// ReadAt implements io.ReaderAt.
func (f *openFile) ReadAt(p []byte, off int64) (int, error) {
	fail := func(err error) (int, error) {
		return 0, &fs.PathError{Op: "read", Path: f.info.name, Err: err}
	}
	switch {
	case f.info.IsDir():
		return fail(syscall.EISDIR)
	case !f.info.Mode().IsRegular() || off < 0:
		return fail(fs.ErrInvalid)
	case len(p) == 0:
		return 0, nil
	}
	n := 0
	for n < len(p) {
		m, err := f.t.readAt(f.info.inode.Number, p[n:], off+int64(n))
		n += m
		if err != nil {
			return n, &fs.PathError{Op: "read", Path: f.info.name, Err: err}
		}
		if m == 0 {
			return n, io.EOF
		}
	}
	return n, nil
}

// ReadDir implements fs.ReadDirFile.
func (f *openFile) ReadDir(n int) ([]fs.DirEntry, error) {
	if !f.listed {
		if err := f.list(); err != nil {
			return nil, &fs.PathError{Op: "readdir", Path: f.info.name, Err: err}
		}
	}
	if n <= 0 {
		n = len(f.entries)
	} else if len(f.entries) == 0 {
		return nil, io.EOF
	}
	n = min(n, len(f.entries))
	given := f.entries[:n]
	f.entries = f.entries[n:]
	return given, nil
}

func (f *openFile) list() error {
	if !f.info.IsDir() {
		return syscall.ENOTDIR
	}
	var failed error
	err := f.t.list(f.info.inode.Number, 0, func(c *child) bool {
		var i merged.Inode
		if i, failed = f.t.stat(c.node); failed != nil {
			return false
		}
		f.entries = append(f.entries, fs.FileInfoToDirEntry(&fileInfo{name: c.name, inode: i}))
		return true
	})
	f.listed = true
	slices.SortFunc(f.entries, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	if failed != nil {
		return failed
	}
	return err
}
