package rootfs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"syscall"

	"github.com/gangway-hpc/gangway/image/merged"
	"github.com/gangway-hpc/gangway/squashfs"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// ExtractOptions say how a tree is written out. The zero value is a good choice.
type ExtractOptions struct {
	// Warn is told of what is not as in the image: devices, which are left out. nil
	// ignores them. It is called from one goroutine at a time.
	Warn func(path string, err error)
	// Workers is how many files are written at a time; at 0, one for each core and one
	// more.
	Workers int
}

// errDevice is what Extract says of a device.
var errDevice = errors.New("devices are left out: only root can make them")

// Extract writes the tree into an empty directory, with hard links, symlinks,
// modification times, holes and user extended attributes. All files belong to the
// caller, who may enter and write all directories; files lose their setuid and setgid
// bits, which would now give that user's rights to others.
//
// It follows no symlink. An error names the path that it is about; it wraps the errno,
// such as ENOSPC. What was written until then stays, and is the caller's to remove.
func (t *Tree) Extract(ctx context.Context, dir string, o ExtractOptions) error {
	if o.Workers <= 0 {
		o.Workers = runtime.GOMAXPROCS(0) + 1
	}
	root, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open %s: %w", dir, err)
	}
	defer unix.Close(root)
	fd, err := openDir(root, ".")
	if err != nil {
		return fmt.Errorf("open %s: %w", dir, err)
	}
	x := &extractor{t: t, o: &o, root: root, links: map[uint32]string{}}
	if err := x.dir(ctx, merged.Root, fd, "."); err != nil {
		return err
	}
	return named(dir, "", x.setTime(merged.Root, root, "."))
}

type extractor struct {
	t     *Tree
	o     *ExtractOptions
	root  int
	links map[uint32]string // of inodes with several names, the path of the first
}

func openDir(at int, name string) (int, error) {
	return unix.Openat(at, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
}

// dir fills a directory, which it closes, and sets its attributes. Its files are written
// several at a time, then its subdirectories one by one.
func (x *extractor) dir(ctx context.Context, n uint32, fd int, path string) (err error) {
	defer func() { err = errors.Join(err, unix.Close(fd)) }()
	group, inner := errgroup.WithContext(ctx)
	group.SetLimit(x.o.Workers)
	var subdirs []child
	var failed error
	err = x.t.list(n, 0, func(c *child) bool {
		if failed = context.Cause(inner); failed != nil {
			return false
		}
		if c.typ == syscall.S_IFDIR {
			subdirs = append(subdirs, *c)
			return true
		}
		failed = named(path, c.name, x.file(inner, group, c, fd, path+"/"+c.name))
		return failed == nil
	})
	// What a worker says comes first: the rest ended for it.
	if waited := group.Wait(); waited != nil {
		return waited
	}
	if err = errors.Join(named(path, "", err), failed); err != nil {
		return err
	}
	for _, c := range subdirs {
		if err := x.subdir(ctx, c, fd, path+"/"+c.name); err != nil {
			return err
		}
	}
	return named(path, "", x.finishDir(n, fd))
}

// named says which path an error is about.
func named(dir, name string, err error) error {
	if err == nil {
		return nil
	}
	if name != "" {
		dir += "/" + name
	}
	return fmt.Errorf("write %q: %w", dir, err)
}

func (x *extractor) subdir(ctx context.Context, c child, at int, path string) error {
	if err := unix.Mkdirat(at, c.name, 0o700); err != nil {
		return named(path, "", err)
	}
	fd, err := openDir(at, c.name)
	if err != nil {
		return named(path, "", err)
	}
	if err := x.dir(ctx, c.node, fd, path); err != nil {
		return err
	}
	return named(path, "", x.setTime(c.node, at, c.name))
}

func (x *extractor) finishDir(n uint32, fd int) error {
	i, err := x.t.stat(n)
	if err != nil {
		return err
	}
	if n != merged.Root {
		if err := unix.Fchmod(fd, i.Mode&0o1777|0o700); err != nil {
			return err
		}
	}
	return x.xattrs(&i, fd)
}

// file makes what is no directory. Content is written by the group.
func (x *extractor) file(ctx context.Context, group *errgroup.Group, c *child, at int, path string) error {
	i, err := x.t.stat(c.node)
	if err != nil {
		return err
	}
	if i.Links > 1 {
		if first, ok := x.links[c.node]; ok {
			return unix.Linkat(x.root, first, at, c.name, 0)
		}
	}
	switch c.typ {
	case syscall.S_IFREG:
		if i.Links > 1 { // at once: there must be something to link to
			err = x.regular(ctx, &i, at, c.name)
			break
		}
		name := c.name
		group.Go(func() error { return named(path, "", x.regular(ctx, &i, at, name)) })
		return nil
	case syscall.S_IFLNK:
		var target string
		if target, err = x.t.readLink(c.node); err == nil {
			err = unix.Symlinkat(target, at, c.name)
		}
	case syscall.S_IFIFO:
		err = unix.Mknodat(at, c.name, syscall.S_IFIFO|i.Mode&0o777, 0)
	default:
		if x.o.Warn != nil {
			x.o.Warn(path, errDevice)
		}
		return nil
	}
	if err != nil {
		return err
	}
	if i.Links > 1 {
		x.links[c.node] = path
	}
	if c.typ == syscall.S_IFREG {
		return nil
	}
	return x.setTime(c.node, at, c.name)
}

func (x *extractor) regular(ctx context.Context, i *merged.Inode, at int, name string) (err error) {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	fd, err := unix.Openat(at, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), name)
	defer func() { err = errors.Join(err, f.Close()) }()
	if err := x.content(ctx, f, i.Number); err != nil {
		return err
	}
	if err := x.xattrs(i, fd); err != nil {
		return err
	}
	if err := unix.Fchmod(fd, i.Mode&0o777); err != nil {
		return err
	}
	return x.setTime(i.Number, at, name)
}

// content writes a regular file's content, holes as holes.
func (x *extractor) content(ctx context.Context, w *os.File, n uint32) error {
	if a := x.t.addition(n); a != nil {
		_, err := w.Write(a.content)
		return err
	}
	f, err := x.t.open(n)
	if f == nil || err != nil {
		return err
	}
	holes := false
	for e, err := range f.Extents() {
		if err != nil {
			return err
		}
		holes = holes || e.Hole
	}
	if !holes {
		_, err := f.WriteTo(&cancelWriter{ctx, w})
		return err
	}
	if err := w.Truncate(f.Size()); err != nil {
		return err
	}
	return writeExtents(&cancelWriter{ctx, w}, w, f)
}

func writeExtents(w io.Writer, at io.Seeker, f *squashfs.File) error {
	for e, err := range f.Extents() {
		if err != nil {
			return err
		}
		if e.Hole {
			continue
		}
		if _, err := at.Seek(e.Offset, io.SeekStart); err != nil {
			return err
		}
		if _, err := io.Copy(w, io.NewSectionReader(f, e.Offset, e.Length)); err != nil {
			return err
		}
	}
	return nil
}

// cancelWriter is a writer that ends with a context.
type cancelWriter struct {
	ctx context.Context
	w   io.Writer
}

// Write implements io.Writer.
func (c *cancelWriter) Write(p []byte) (int, error) {
	if err := context.Cause(c.ctx); err != nil {
		return 0, err
	}
	return c.w.Write(p)
}

// xattrs sets the extended attributes that are shown. A file system that has none does
// without.
func (x *extractor) xattrs(i *merged.Inode, fd int) error {
	if !i.HasXattrs() {
		return nil
	}
	all, err := x.t.ix.Xattrs(i.Number)
	if err != nil {
		return err
	}
	for _, a := range all {
		if !shownXattr(a.Name) {
			continue
		}
		if err := unix.Fsetxattr(fd, a.Name, a.Value, 0); err != nil && !errors.Is(err, unix.ENOTSUP) {
			return fmt.Errorf("set xattr %s: %w", a.Name, err)
		}
	}
	return nil
}

// setTime sets the modification time of what has a name in a directory.
func (x *extractor) setTime(n uint32, at int, name string) error {
	i, err := x.t.stat(n)
	if err != nil {
		return err
	}
	mtime := unix.Timespec{Sec: i.Sec, Nsec: int64(i.Nsec)}
	return unix.UtimesNanoAt(at, name, []unix.Timespec{mtime, mtime}, unix.AT_SYMLINK_NOFOLLOW)
}
