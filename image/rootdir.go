package image

import (
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gangway-hpc/gangway/internal/fault"
	"github.com/gangway-hpc/gangway/squashfs"
)

// openDirRoot opens a directory of the host. Each file is opened from the directory
// that it was found in, without following a symlink: however the tree changes
// meanwhile, nothing outside of it is read.
func openDirRoot(name string, o *RootOptions) (root, error) {
	dir, err := os.Open(name) // the directory itself may be named by a symlink
	if err != nil {
		return nil, unreadable(err)
	}
	var st unix.Stat_t
	has := func(file string) bool { return unix.Fstatat(int(dir.Fd()), file, &st, unix.AT_SYMLINK_NOFOLLOW) == nil }
	if has("oci-layout") && has("index.json") && has("blobs") {
		_ = dir.Close()
		return nil, &fault.Error{
			What: errors.New("it is an image layout, no root file system"),
			Hint: "gangway image import oci:" + name + " NAME, or gangway image pull oci:" + name,
		}
	}
	t := &streamed{warn: o.Warn, most: o.Limits.Bytes, close: dir.Close}
	t.write = func(s *tarStream) error {
		w := dirWalk{s: s, one: o.OneFileSystem, seen: map[hostInode]string{}, buf: make([]byte, 64<<10)}
		return w.root(dir)
	}
	return t, nil
}

type hostInode struct{ dev, ino uint64 }

// dirWalk is one pass over a directory of the host.
type dirWalk struct {
	s    *tarStream
	one  bool // file system only
	dev  uint64
	seen map[hostInode]string // hard linked files by their first name
	buf  []byte               // for xattrs
}

func (w *dirWalk) root(dir *os.File) error {
	// A description of its own, whose offset is at the begin.
	d, err := w.open(int(dir.Fd()), ".", dir.Name(), unix.O_DIRECTORY)
	if err != nil {
		return err
	}
	defer d.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(d.Fd()), &st); err != nil {
		return fmt.Errorf("stat %s: %w", d.Name(), err)
	}
	w.dev = st.Dev
	n, err := w.node(d, ".", "", &st)
	if err != nil {
		return err
	}
	if err := w.s.add(n, content{}); err != nil {
		return err
	}
	return w.list(d, "")
}

// open opens name in a directory. full is for messages.
func (w *dirWalk) open(at int, name, full string, flags int) (*os.File, error) {
	// O_NONBLOCK: should a FIFO have taken the file's place, this does not wait for a writer.
	flags |= unix.O_RDONLY | unix.O_CLOEXEC | unix.O_NOFOLLOW | unix.O_NONBLOCK
	fd, err := unix.Openat(at, name, flags, 0)
	for errors.Is(err, unix.EINTR) {
		fd, err = unix.Openat(at, name, flags, 0)
	}
	if err != nil {
		return nil, vanished(full, unreadable(&os.PathError{Op: "open", Path: full, Err: err}))
	}
	return os.NewFile(uintptr(fd), full), nil
}

// vanished is for errors about a file that was there a moment ago.
func vanished(full string, err error) error {
	for _, e := range []error{os.ErrNotExist, unix.ELOOP, unix.ENOTDIR, unix.EINVAL} { // the last: no symlink any more
		if errors.Is(err, e) {
			return changed(full)
		}
	}
	return err
}

// list writes all that is in a directory, sorted by bytes.
func (w *dirWalk) list(dir *os.File, name string) error {
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return vanished(dir.Name(), err)
	}
	slices.Sort(names)
	for _, base := range names {
		if err := w.entry(dir, base, path.Join(name, base)); err != nil {
			return err
		}
	}
	return nil
}

func (w *dirWalk) entry(dir *os.File, base, name string) error {
	full := dir.Name() + "/" + base
	var st unix.Stat_t
	if err := unix.Fstatat(int(dir.Fd()), base, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return vanished(full, unreadable(&os.PathError{Op: "stat", Path: full, Err: err}))
	}
	kind := st.Mode & unix.S_IFMT
	if kind == unix.S_IFSOCK {
		w.s.skip(full, "an image has no place for sockets")
		return nil
	}
	if kind != unix.S_IFDIR && st.Nlink > 1 {
		id := hostInode{st.Dev, st.Ino}
		if first, ok := w.seen[id]; ok {
			return w.s.link(name, first)
		}
		w.seen[id] = name
	}
	if kind != unix.S_IFDIR && kind != unix.S_IFREG {
		n, err := w.node(dir, base, name, &st)
		if err != nil {
			return err
		}
		return w.s.add(n, content{})
	}
	return w.opened(dir, base, name, st)
}

// opened writes a directory with all below it, or a regular file.
func (w *dirWalk) opened(dir *os.File, base, name string, was unix.Stat_t) error {
	flags := 0
	if was.Mode&unix.S_IFMT == unix.S_IFDIR {
		flags = unix.O_DIRECTORY
	}
	f, err := w.open(int(dir.Fd()), base, dir.Name()+"/"+base, flags)
	if err != nil {
		return err
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return fmt.Errorf("stat %s: %w", f.Name(), err)
	}
	if was.Mode&unix.S_IFMT != st.Mode&unix.S_IFMT || was.Dev != st.Dev || was.Ino != st.Ino {
		// An automount point becomes what is mounted there when it is opened.
		if flags == 0 || st.Mode&unix.S_IFMT != unix.S_IFDIR {
			return changed(f.Name())
		}
	}
	n, err := w.node(dir, base, name, &st)
	if err != nil {
		return err
	}
	if flags == 0 {
		c := content{ReaderAt: f}
		if st.Blocks*512 < st.Size {
			c.extents = func() ([]extent, error) { return dataOf(f, st.Size) }
		}
		return w.s.add(n, c)
	}
	if err := w.s.add(n, content{}); err != nil || w.one && st.Dev != w.dev {
		return err
	}
	return w.list(f, name)
}

// node describes a file as the image has it.
func (w *dirWalk) node(dir *os.File, base, name string, st *unix.Stat_t) (*rootNode, error) {
	full := path.Join(dir.Name(), base)
	n := &rootNode{
		name: name, mode: st.Mode, uid: st.Uid, gid: st.Gid, mtime: time.Unix(st.Mtim.Unix()), size: st.Size,
		major: unix.Major(st.Rdev), minor: unix.Minor(st.Rdev),
	}
	var err error
	if st.Mode&unix.S_IFMT == unix.S_IFLNK {
		buf := make([]byte, unix.PathMax)
		k, err := unix.Readlinkat(int(dir.Fd()), base, buf)
		if err != nil {
			return nil, vanished(full, &os.PathError{Op: "readlink", Path: full, Err: err})
		}
		n.target = string(buf[:k])
	}
	if n.xattrs, err = w.xattrs(fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), base)); err != nil {
		return nil, vanished(full, fmt.Errorf("read extended attributes of %s: %w", full, err))
	}
	return n, nil
}

// xattrs reads all attributes. Only a path can name those of a symlink or a device,
// which is not opened; by way of /proc it begins at the directory that is open.
func (w *dirWalk) xattrs(name string) ([]squashfs.Xattr, error) {
	n, err := unix.Llistxattr(name, w.buf)
	if errors.Is(err, unix.EOPNOTSUPP) || n == 0 && err == nil {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var attrs []squashfs.Xattr
	for attr := range strings.SplitSeq(strings.TrimSuffix(string(w.buf[:n]), "\x00"), "\x00") {
		if !ofImage(attr) {
			continue
		}
		n, err := unix.Lgetxattr(name, attr, w.buf)
		if errors.Is(err, unix.ENODATA) {
			continue // removed meanwhile, or not for us to see
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", attr, err)
		}
		attrs = append(attrs, squashfs.Xattr{Name: attr, Value: slices.Clone(w.buf[:n])})
	}
	return attrs, nil
}

// ofImage says whether an extended attribute belongs to a file, and not to the file
// system that it lies on, as lustre.lov and system.nfs4_acl do.
func ofImage(attr string) bool {
	space, _, _ := strings.Cut(attr, ".")
	return space == "user" || space == "trusted" || space == "security" || strings.HasPrefix(attr, "system.posix_acl_")
}

// dataOf asks the file system where a file has data.
func dataOf(f *os.File, size int64) ([]extent, error) {
	var data []extent
	for at := int64(0); at < size && len(data) < maxExtents; {
		begin, err := unix.Seek(int(f.Fd()), at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) { // a hole up to the end
			return data, nil
		}
		if err != nil {
			return nil, fmt.Errorf("look for holes: %w", err)
		}
		end, err := unix.Seek(int(f.Fd()), begin, unix.SEEK_HOLE)
		if err != nil {
			return nil, fmt.Errorf("look for holes: %w", err)
		}
		data = append(data, extent{begin, end - begin})
		at = end
	}
	if len(data) == maxExtents { // what is behind is written whole
		last := &data[maxExtents-1]
		last.len = size - last.off
	}
	return data, nil
}
