package squashfs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// DirOptions say how AddDir takes a directory of the host.
type DirOptions struct {
	// At is the path in the image at which the directory goes; "" is the root.
	At            string
	OneFileSystem bool // leaves out what is mounted below the directory, but keeps the mountpoints
	NoXattrs      bool // leaves out extended attributes
	// Filter is called for each entry before it is added, with the entry's path
	// in the image. It may change the entry's attributes; if it returns false, the
	// entry and all below it are left out.
	// It must leave the path as it is.
	Filter func(*Entry) bool
	// Warn is told of attributes that squashfs has no room for, such as POSIX
	// ACLs, which are left out; nil ignores them.
	Warn func(path string, err error)
}

// AddDir adds a directory of the host and all below it, in the order of names,
// with hard links, devices and extended attributes. Symlinks are not followed.
// Files that change meanwhile come as they are read; holes are not read. The file
// that the image is written to, and the one that it is to replace, are left out.
func (w *Writer) AddDir(ctx context.Context, dir string, o DirOptions) error {
	a := dirAdder{w: w, o: o, ctx: ctx, seen: map[hostFile]string{}, buf: make([]byte, 64<<10)}
	if o.At == "" {
		a.o.At = "."
	}
	// A symlink to the directory stands for it, and must not lend it its attributes.
	dir, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return fmt.Errorf("add directory: %w", err)
	}
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return fmt.Errorf("add directory %s: %w", dir, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return fmt.Errorf("add directory %s: %w", dir, unix.ENOTDIR)
	}
	a.dev = st.Dev
	a.findOutput()
	return a.addStat(dir, a.o.At, &st)
}

// findOutput finds out which files not to add.
func (a *dirAdder) findOutput() {
	var st unix.Stat_t
	if f, ok := a.w.out.w.(*os.File); ok && unix.Fstat(int(f.Fd()), &st) == nil {
		a.output = hostFile{st.Dev, st.Ino}
	}
	if a.w.replaces != "" && unix.Stat(filepath.Dir(a.w.replaces), &st) == nil {
		a.replacedIn = hostFile{st.Dev, st.Ino}
	}
}

// isOutput says whether a file is the image. The one to be replaced is known by its
// name, since other names of it stay.
func (a *dirAdder) isOutput(host string, st *unix.Stat_t) bool {
	if a.output == (hostFile{st.Dev, st.Ino}) {
		return true
	}
	if a.w.replaces == "" || filepath.Base(host) != filepath.Base(a.w.replaces) {
		return false
	}
	var in unix.Stat_t
	return unix.Stat(filepath.Dir(host), &in) == nil && a.replacedIn == hostFile{in.Dev, in.Ino}
}

type hostFile struct{ dev, ino uint64 }

type dirAdder struct {
	w   *Writer
	o   DirOptions
	ctx context.Context // of one call of AddDir
	dev uint64
	// The file that the image is written to, and the directory that it will be in.
	output, replacedIn hostFile
	seen               map[hostFile]string // hard linked files by their first path
	buf                []byte
}

func (a *dirAdder) add(host, name string) error {
	if err := a.ctx.Err(); err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Lstat(host, &st); err != nil {
		return fmt.Errorf("add %s: %w", host, err)
	}
	return a.addStat(host, name, &st)
}

func (a *dirAdder) addStat(host, name string, st *unix.Stat_t) error {
	if a.isOutput(host, st) {
		return nil
	}
	e := Entry{
		Path: name, Mode: hostMode(st.Mode), UID: st.Uid, GID: st.Gid, Size: -1,
		ModTime: time.Unix(st.Mtim.Sec, 0),
		Major:   unix.Major(st.Rdev), Minor: unix.Minor(st.Rdev),
	}
	if e.Mode&fs.ModeSymlink != 0 {
		target, err := os.Readlink(host)
		if err != nil {
			return fmt.Errorf("add %s: %w", host, err)
		}
		e.Target = target
	}
	if !a.o.NoXattrs {
		attrs, err := a.xattrs(host)
		if err != nil {
			return fmt.Errorf("add %s: %w", host, err)
		}
		e.Xattrs = attrs
	}
	if a.o.Filter != nil && !a.o.Filter(&e) {
		return nil
	}
	if e.Mode.IsDir() {
		return a.addDir(host, e, st.Dev)
	}
	if st.Nlink > 1 {
		id := hostFile{st.Dev, st.Ino}
		if first, ok := a.seen[id]; ok {
			return a.w.Link(e.Path, first)
		}
		a.seen[id] = e.Path
	}
	if !e.Mode.IsRegular() {
		return a.w.Add(e, nil)
	}
	return a.addFile(host, e, st.Blocks*512 < st.Size)
}

func (a *dirAdder) addDir(host string, e Entry, dev uint64) error {
	if err := a.w.Add(e, nil); err != nil {
		return err
	}
	if a.o.OneFileSystem && dev != a.dev {
		return nil
	}
	list, err := os.ReadDir(host)
	if err != nil {
		return fmt.Errorf("add %s: %w", host, err)
	}
	for _, d := range list {
		if err := a.add(filepath.Join(host, d.Name()), path.Join(e.Path, d.Name())); err != nil {
			return err
		}
	}
	return nil
}

func (a *dirAdder) addFile(host string, e Entry, sparse bool) error {
	// O_NONBLOCK: should a FIFO have taken the file's place, this does not wait for a writer.
	fd, err := unix.Open(host, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return fmt.Errorf("add %s: open: %w", host, err)
	}
	defer unix.Close(fd)
	r := fdReader{fd, a.ctx}
	if !sparse {
		return a.w.Add(e, r)
	}
	return a.w.Add(e, &sparseReader{fdReader: r})
}

// fdReader reads a file without what os.File costs: a small file is half its time.
type fdReader struct {
	fd  int
	ctx context.Context // of the one call of AddDir
}

func (r fdReader) Read(p []byte) (int, error) {
	for {
		if err := r.ctx.Err(); err != nil {
			return 0, err
		}
		n, err := unix.Read(r.fd, p)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return 0, err
		case n == 0:
			return 0, io.EOF
		default:
			return n, nil
		}
	}
}

// sparseReader reads a file that has holes, and skips those.
type sparseReader struct {
	fdReader
	pos  int64
	data int64 // up to here is known to be a hole, if it is behind pos
}

func (r *sparseReader) Read(p []byte) (int, error) {
	n, err := r.fdReader.Read(p)
	r.pos += int64(n)
	return n, err
}

// skipHole implements holeSkipper.
func (r *sparseReader) skipHole(n int) bool {
	end := r.pos + int64(n)
	if r.data < end {
		next, err := unix.Seek(r.fd, r.pos, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) { // a hole up to the end
			next, err = unix.Seek(r.fd, 0, unix.SEEK_END)
		}
		if err == nil {
			r.data = next
		}
	}
	hole := r.data >= end && r.ctx.Err() == nil
	if hole {
		r.pos = end
	}
	// If this fails, so will the next read.
	_, err := unix.Seek(r.fd, r.pos, unix.SEEK_SET)
	return hole && err == nil
}

// xattrs reads the attributes that squashfs has room for.
func (a *dirAdder) xattrs(host string) ([]Xattr, error) {
	n, err := unix.Llistxattr(host, a.buf)
	if errors.Is(err, unix.EOPNOTSUPP) || n == 0 && err == nil {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list xattrs: %w", err)
	}
	var attrs []Xattr
	for name := range strings.SplitSeq(strings.TrimSuffix(string(a.buf[:n]), "\x00"), "\x00") {
		if _, _, err := splitXattr(Xattr{Name: name}); err != nil {
			if a.o.Warn != nil {
				a.o.Warn(host, err)
			}
			continue
		}
		n, err := unix.Lgetxattr(host, name, a.buf)
		if errors.Is(err, unix.ENODATA) {
			continue // removed meanwhile, or not for us to see
		}
		if err != nil {
			return nil, fmt.Errorf("read xattr %s: %w", name, err)
		}
		attrs = append(attrs, Xattr{Name: name, Value: append([]byte(nil), a.buf[:n]...)})
	}
	return attrs, nil
}

// hostMode turns st_mode into a FileMode.
func hostMode(m uint32) fs.FileMode {
	mode := fs.FileMode(m & 0o777)
	switch m & unix.S_IFMT {
	case unix.S_IFDIR:
		mode |= fs.ModeDir
	case unix.S_IFLNK:
		mode |= fs.ModeSymlink
	case unix.S_IFBLK:
		mode |= fs.ModeDevice
	case unix.S_IFCHR:
		mode |= fs.ModeDevice | fs.ModeCharDevice
	case unix.S_IFIFO:
		mode |= fs.ModeNamedPipe
	case unix.S_IFSOCK:
		mode |= fs.ModeSocket
	}
	for bit, flag := range map[uint32]fs.FileMode{
		unix.S_ISUID: fs.ModeSetuid, unix.S_ISGID: fs.ModeSetgid, unix.S_ISVTX: fs.ModeSticky,
	} {
		if m&bit != 0 {
			mode |= flag
		}
	}
	return mode
}
