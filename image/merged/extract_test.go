package merged

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gangway-hpc/gangway/image/layer"
	"github.com/gangway-hpc/gangway/internal/fsx"
	"github.com/gangway-hpc/gangway/squashfs"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

// extractor applies entries to a real directory, with the kernel for a judge of what
// lies where: it is the oracle of the oracle.
type extractor struct {
	root  string
	layer int
	upper map[string]bool // paths from the root, as in oracle
}

func (x *extractor) host(path string) string { return filepath.Join(x.root, path) }

// follow asks the kernel, which knows best what a path means under chroot. Only where
// it finds nothing, names are put together one by one.
func (x *extractor) follow(path string) (string, error) {
	dir, err := unix.Open(x.root, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return "", err
	}
	defer unix.Close(dir)
	fd, err := fsx.OpenInRoot(dir, "./"+path, unix.OpenHow{Flags: unix.O_PATH | unix.O_DIRECTORY})
	if err == nil {
		defer unix.Close(fd)
		where, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
		return strings.TrimPrefix(strings.TrimPrefix(where, x.root), "/"), err
	}
	if err == unix.ENOTDIR {
		return "", err
	}
	return x.guess(path)
}

// guess is securejoin: what is missing counts as a directory.
func (x *extractor) guess(path string) (string, error) {
	done, todo := "", path
	for range 10_000 {
		name, rest, _ := strings.Cut(todo, "/")
		todo = rest
		if name == "" {
			if rest == "" {
				return done, nil
			}
			continue
		}
		next := strings.TrimPrefix(filepath.Join("/", done, name), "/")
		info, err := os.Lstat(x.host(next))
		switch {
		case errors.Is(err, fs.ErrNotExist) || err == nil && info.IsDir():
			done = next
		case err != nil:
			return "", err
		case info.Mode().Type() != fs.ModeSymlink:
			return "", syscall.ENOTDIR
		default:
			target, err := os.Readlink(x.host(next))
			if err != nil {
				return "", err
			}
			if filepath.IsAbs(target) {
				done = ""
			}
			todo = target + "/" + todo
		}
	}
	return "", syscall.ELOOP
}

// keeping does something in a directory and puts its time back after that.
func (x *extractor) keeping(dir string, do func() error) error {
	info, err := os.Lstat(x.host(dir))
	if err != nil {
		return err
	}
	if err := do(); err != nil {
		return err
	}
	return os.Chtimes(x.host(dir), time.Time{}, info.ModTime())
}

func (x *extractor) mkdirs(dir string) error {
	if _, err := os.Lstat(x.host(dir)); err == nil || !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := x.mkdirs(parentOf(dir)); err != nil {
		return err
	}
	return x.keeping(parentOf(dir), func() error {
		if err := os.Mkdir(x.host(dir), 0o755); err != nil {
			return err
		}
		return errors.Join(os.Chmod(x.host(dir), 0o755), os.Chtimes(x.host(dir), time.Time{}, time.Unix(0, 0)))
	})
}

// removeLower removes what is at a path and was not put there by this layer.
func (x *extractor) removeLower(path string, self bool) error {
	info, err := os.Lstat(x.host(path))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		return nil
	}
	if err != nil {
		return err
	}
	if self && !x.upper[path] {
		return x.keeping(parentOf(path), func() error { return os.RemoveAll(x.host(path)) })
	}
	if !info.IsDir() {
		return nil
	}
	list, err := os.ReadDir(x.host(path))
	for _, e := range list {
		err = errors.Join(err, x.removeLower(join(path, e.Name()), true))
	}
	return err
}

func (x *extractor) apply(e layer.Entry) error {
	base := baseOf(e.Name)
	aufs := strings.HasPrefix(base, ".wh..wh.")
	dir, err := x.follow(parentOf(e.Name))
	switch {
	case base == ".wh..wh..opq" && err == nil:
		return x.removeLower(dir, false)
	case aufs:
		return nil
	case strings.HasPrefix(base, ".wh."):
		if err != nil {
			return nil
		}
		return x.removeLower(join(dir, base[4:]), true)
	case err != nil:
		return err
	case e.Name == "":
		return x.attributes("", e)
	}
	path := join(dir, base)
	temp := x.root + ".link"
	if e.Type == layer.HardLink {
		from, err := x.follow(parentOf(e.Link))
		if err != nil {
			return err
		}
		if err := os.Link(x.host(join(from, baseOf(e.Link))), temp); err != nil {
			return err
		}
	}
	if err := x.mkdirs(dir); err != nil {
		return err
	}
	err = x.keeping(dir, func() error {
		if info, err := os.Lstat(x.host(path)); err == nil && !(info.IsDir() && e.Type == layer.Dir) {
			if err := os.RemoveAll(x.host(path)); err != nil {
				return err
			}
		}
		if e.Type == layer.HardLink {
			return os.Rename(temp, x.host(path))
		}
		return x.create(path, e)
	})
	for p := path; p != ""; p = parentOf(p) {
		x.upper[p] = true
	}
	if err != nil || e.Type == layer.HardLink {
		return err
	}
	return x.attributes(path, e)
}

func (x *extractor) create(path string, e layer.Entry) error {
	name := x.host(path)
	switch e.Type {
	case layer.Dir:
		if err := os.Mkdir(name, 0o755); !errors.Is(err, fs.ErrExist) {
			return err
		}
		return nil
	case layer.File:
		return os.WriteFile(name, contentBytes(x.layer, e), 0o600)
	case layer.Symlink:
		return os.Symlink(e.Link, name)
	case layer.FIFO:
		return unix.Mkfifo(name, 0o600)
	case layer.CharDevice:
		return unix.Mknod(name, unix.S_IFCHR, int(unix.Mkdev(e.Major, e.Minor)))
	case layer.BlockDevice:
		return unix.Mknod(name, unix.S_IFBLK, int(unix.Mkdev(e.Major, e.Minor)))
	}
	return fmt.Errorf("type %d", e.Type)
}

func (x *extractor) attributes(path string, e layer.Entry) error {
	name := x.host(path)
	if err := os.Lchown(name, int(e.UID), int(e.GID)); err != nil {
		return err
	}
	old, err := xattrsOf(name)
	if err != nil {
		return err
	}
	for _, a := range old {
		if err := unix.Lremovexattr(name, a.Name); err != nil {
			return err
		}
	}
	for _, a := range e.Xattrs {
		if err := unix.Lsetxattr(name, a.Name, a.Value, 0); err != nil {
			return err
		}
	}
	if e.Type != layer.Symlink {
		if err := unix.Chmod(name, e.Mode); err != nil {
			return err
		}
	}
	times := []unix.Timespec{{Nsec: unix.UTIME_OMIT}, {Sec: e.Sec, Nsec: int64(e.Nsec)}}
	return unix.UtimesNanoAt(unix.AT_FDCWD, name, times, unix.AT_SYMLINK_NOFOLLOW)
}

// contentBytes is the content of a file: it says which one it is.
func contentBytes(layer int, e layer.Entry) []byte {
	b := make([]byte, e.Size)
	copy(b, contentOf(layer, e.Inode)+".")
	return b
}

func xattrsOf(name string) ([]squashfs.Xattr, error) {
	buf := make([]byte, 4096)
	n, err := unix.Llistxattr(name, buf)
	if err != nil {
		return nil, err
	}
	var set []squashfs.Xattr
	for key := range strings.SplitSeq(string(buf[:n]), "\x00") {
		if key == "" || key == "security.selinux" {
			continue
		}
		value := make([]byte, 4096)
		n, err := unix.Lgetxattr(name, key, value)
		if err != nil {
			return nil, err
		}
		set = append(set, squashfs.Xattr{Name: key, Value: value[:n]})
	}
	return set, nil
}

// seeDir returns the tree of a directory.
func seeDir(root string) (seenTree, error) {
	tree := seenTree{}
	inode := map[string]any{}
	err := filepath.WalkDir(root, func(name string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(name, &st); err != nil {
			return err
		}
		xattrs, err := xattrsOf(name)
		if err != nil {
			return err
		}
		s := seen{
			mode: st.Mode, uid: st.Uid, gid: st.Gid, sec: st.Mtim.Sec, nsec: uint32(st.Mtim.Nsec),
			links: uint32(st.Nlink), xattrs: showXattrs(xattrs),
		}
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFREG:
			b, err := os.ReadFile(name)
			if err != nil {
				return err
			}
			s.size = st.Size
			s.content, _, _ = strings.Cut(string(b), ".")
		case unix.S_IFLNK:
			s.size = st.Size
			if s.target, err = os.Readlink(name); err != nil {
				return err
			}
		case unix.S_IFCHR, unix.S_IFBLK:
			s.major, s.minor = unix.Major(st.Rdev), unix.Minor(st.Rdev)
		}
		path := strings.TrimPrefix(strings.TrimPrefix(name, root), "/")
		tree[path], inode[path] = s, st.Ino
		return nil
	})
	tree.groups(inode)
	return tree, err
}

// humble makes of an entry one that this process can make on this file system: an
// ordinary user neither gives files away nor makes devices.
func humble(e layer.Entry) layer.Entry {
	if os.Geteuid() != 0 {
		e.UID, e.GID = uint32(os.Getuid()), uint32(os.Getgid())
		e.Mode |= 0o700
		if e.Type == layer.CharDevice || e.Type == layer.BlockDevice {
			e.Type = layer.FIFO
		}
	}
	if e.Type != layer.File && e.Type != layer.Dir {
		e.Xattrs = nil // Linux has user.* of these only
	}
	if e.Sec < 0 || e.Sec > 1<<33 {
		e.Sec = 5 // not every file system has such times
	}
	return e
}

// TestExtracted: a random stack gives the tree that a directory has after all entries
// were applied to it by system calls.
func TestExtracted(t *testing.T) {
	n := 2000
	switch {
	case long():
		n = 10_000
	case testing.Short():
		n = 20
	}
	base := t.TempDir()
	stacks := 0
	checks(t, n, func(rt *rapid.T) {
		layers := stack(rt, 4, 12)
		for _, list := range layers {
			for i := range list {
				list[i] = humble(list[i])
			}
		}
		good := applied(newOracle(), layers, func(int, int) {})
		got, err := merge(good...)
		if err != nil {
			rt.Fatal(err)
		}
		stacks++
		root := filepath.Join(base, fmt.Sprint(stacks))
		must(t, errors.Join(os.Mkdir(root, 0o755), os.Chmod(root, 0o755), os.Chtimes(root, time.Time{}, time.Unix(0, 0))))
		x := &extractor{root: root}
		for i, list := range good {
			x.layer, x.upper = i, map[string]bool{}
			for _, e := range list {
				if err := x.apply(e); err != nil {
					rt.Fatalf("extract %+v: %v", e, err)
				}
			}
		}
		want, err := seeDir(root)
		if err != nil {
			rt.Fatal(err)
		}
		if os.Geteuid() != 0 {
			for p, s := range got { // implicit directories
				s.uid, s.gid = uint32(os.Getuid()), uint32(os.Getgid())
				got[p] = s
			}
		}
		for p, s := range want { // of a directory, not every file system counts
			if s.mode&unix.S_IFMT == unix.S_IFDIR {
				s.links = got[p].links
				want[p] = s
			}
		}
		if err := want.diff(got); err != nil {
			rt.Fatalf("%v\n%+v", err, good)
		}
		if err := os.RemoveAll(root); err != nil {
			rt.Fatal(err)
		}
	})
}
