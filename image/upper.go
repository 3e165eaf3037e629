package image

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gangway-hpc/gangway/internal/fault"
	"github.com/gangway-hpc/gangway/squashfs"
)

// upperFile is a regular file or directory of the host that is open, whose mode may
// have been changed so that it could be.
type upperFile struct {
	*os.File
	st      unix.Stat_t // with the mode as it was
	restore bool        // the mode
	now     unix.Stat_t // when it was opened
}

func isDirMode(mode uint32) bool { return mode&unix.S_IFMT == unix.S_IFDIR }

func isOtherKind(err error) bool {
	return errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.EINVAL)
}

func lstatAt(dir *os.File, name string) (st unix.Stat_t, err error) {
	if err = unix.Fstatat(int(dir.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		full := dir.Name() + "/" + name
		err = gone(full, &os.PathError{Op: "stat", Path: full, Err: err})
	}
	return st, err
}

func (c *committer) openDir(at *os.File, name, full string) (*upperFile, error) {
	return openUpper(at, name, full, unix.O_DIRECTORY)
}

// openUpper opens a file from the directory that it was found in, without following a
// symlink. Where its own mode is in the way, and we may change that, it is changed until
// the file is closed. Inside its container its user had the right to read it.
func openUpper(at *os.File, name, full string, flags int) (*upperFile, error) {
	var u upperFile
	path, err := openAt(at, name, full, unix.O_PATH|flags)
	if err != nil {
		return nil, err
	}
	defer path.Close()
	if err := unix.Fstat(int(path.Fd()), &u.st); err != nil {
		return nil, fmt.Errorf("commit: stat %s: %w", full, err)
	}
	need := uint32(0o400)
	if flags&unix.O_DIRECTORY != 0 {
		need = 0o500
	}
	self := fmt.Sprintf("/proc/self/fd/%d", path.Fd())
	if u.st.Mode&need != need && os.Geteuid() != 0 && int(u.st.Uid) == os.Geteuid() && unix.Chmod(self, u.st.Mode&0o7777|need) == nil {
		u.restore = true
	}
	if u.File, err = openAt(at, name, full, unix.O_RDONLY|unix.O_NONBLOCK|flags); err == nil {
		if err = unix.Fstat(int(u.Fd()), &u.now); err == nil && (u.now.Ino != u.st.Ino || u.now.Dev != u.st.Dev) {
			err = changedUnder(full)
		}
	}
	if err != nil {
		if u.restore {
			_ = unix.Chmod(self, u.st.Mode&0o7777) // the error before counts
		}
		if u.File != nil {
			_ = u.File.Close()
		}
		return nil, err
	}
	return &u, nil
}

func openAt(at *os.File, name, full string, flags int) (*os.File, error) {
	flags |= unix.O_CLOEXEC | unix.O_NOFOLLOW
	fd, err := unix.Openat(int(at.Fd()), name, flags, 0)
	for errors.Is(err, unix.EINTR) {
		fd, err = unix.Openat(int(at.Fd()), name, flags, 0)
	}
	if err != nil {
		return nil, gone(full, &os.PathError{Op: "open", Path: full, Err: err})
	}
	return os.NewFile(uintptr(fd), full), nil
}

// close gives the file its own mode back.
func (u *upperFile) close() {
	if u.restore {
		_ = unix.Fchmod(int(u.Fd()), u.st.Mode&0o7777) // it was ours to change a moment ago
	}
	_ = u.Close()
}

// unchanged says whether the file is as it was when it was opened.
func (u *upperFile) unchanged() error {
	var st unix.Stat_t
	if err := unix.Fstat(int(u.Fd()), &st); err != nil {
		return fmt.Errorf("commit: stat %s: %w", u.Name(), err)
	}
	if st.Mtim != u.now.Mtim || st.Size != u.now.Size {
		return changedUnder(u.Name())
	}
	return nil
}

func (u *upperFile) entry(at string) squashfs.Entry { return upperEntry(&u.st, at) }

// upperEntry describes a file of upper but for its attributes. It belongs to 0:0.
func upperEntry(st *unix.Stat_t, at string) squashfs.Entry {
	return squashfs.Entry{
		Path: at, Mode: fileMode(st.Mode), ModTime: time.Unix(st.Mtim.Unix()), Size: st.Size,
		Major: unix.Major(st.Rdev), Minor: unix.Minor(st.Rdev),
	}
}

// upperXattrs are the extended attributes of a file.
type upperXattrs struct {
	kept     []squashfs.Xattr
	opaque   bool // a directory hides what is below
	whiteout bool
}

// xattrs reads the attributes that users set, and understands those of overlays.
func (c *committer) xattrs(u *upperFile) (x upperXattrs, err error) {
	fd := int(u.Fd())
	n, err := unix.Flistxattr(fd, c.buf)
	if errors.Is(err, unix.EOPNOTSUPP) || n == 0 && err == nil {
		return x, nil
	}
	if err != nil {
		return x, fmt.Errorf("commit: list extended attributes of %s: %w", u.Name(), err)
	}
	for attr := range strings.SplitSeq(strings.TrimSuffix(string(c.buf[:n]), "\x00"), "\x00") {
		key, ofOverlay := overlayXattr(attr)
		if !ofOverlay && !strings.HasPrefix(attr, "user.") {
			if strings.HasPrefix(attr, "system.posix_acl_") || attr == "security.capability" {
				c.o.Warn(u.Name(), fmt.Errorf("xattr %s: it is not kept", attr))
			}
			continue
		}
		value := make([]byte, 64<<10)
		n, err := unix.Fgetxattr(fd, attr, value)
		if errors.Is(err, unix.ENODATA) {
			continue
		}
		if err != nil {
			return x, fmt.Errorf("commit: read extended attribute %s of %s: %w", attr, u.Name(), err)
		}
		value = slices.Clone(value[:n])
		switch {
		case !ofOverlay:
			x.kept = append(x.kept, squashfs.Xattr{Name: attr, Value: value})
		case c.plain:
		case key == "opaque":
			x.opaque = string(value) == "y"
		case key == "whiteout":
			x.whiteout = true
		case key == "redirect", key == "metacopy":
			return x, &fault.Error{
				What:  fmt.Errorf("commit: %s has the attribute %s", u.Name(), attr),
				Cause: "an overlay with redirect_dir or metacopy wrote it, and keeps a part of it elsewhere",
				Hint:  "mount the overlay that wrote it, and import what it shows: gangway image import DIR NAME",
			}
		}
	}
	return x, nil
}

// upperNames is what is in a directory.
type upperNames struct {
	files     map[string]unix.Stat_t
	whiteouts map[string]bool
	opaque    bool
}

// list reads a directory of the host.
func (c *committer) list(u *upperFile, opaque bool) (*upperNames, error) {
	names, err := u.Readdirnames(-1)
	if err != nil {
		return nil, fmt.Errorf("commit: %w", err)
	}
	l := &upperNames{files: map[string]unix.Stat_t{}, whiteouts: map[string]bool{}, opaque: opaque}
	for _, name := range names {
		st, err := lstatAt(u.File, name)
		if err != nil {
			return nil, err
		}
		hidden, isWhiteout := strings.CutPrefix(name, ".wh.")
		switch {
		case c.plain:
			l.files[name] = st
		case c.o.Fuse && name == ".wh..wh..opq":
			l.opaque = true
		case c.o.Fuse && isWhiteout:
			l.whiteouts[hidden] = true
		case st.Mode&unix.S_IFMT == unix.S_IFCHR && st.Rdev == 0:
			l.whiteouts[name] = true
		default:
			l.files[name] = st
		}
	}
	return l, nil
}

// add adds a name of a directory of the host, with all below it.
func (c *committer) add(dir *upperFile, name, at string, st unix.Stat_t) error {
	full := dir.Name() + "/" + name
	kind := st.Mode & unix.S_IFMT
	if kind == unix.S_IFSOCK {
		c.o.Warn(full, errors.New("an image has no place for sockets"))
		return nil
	}
	if kind != unix.S_IFDIR && st.Nlink > 1 {
		id := hostInode{st.Dev, st.Ino}
		if first, ok := c.seen[id]; ok {
			return c.w.Link(at, first)
		}
		defer func() { c.seen[id] = at }()
	}
	switch kind {
	case unix.S_IFDIR:
		d, err := c.openDir(dir.File, name, full)
		if err != nil {
			return err
		}
		defer d.close()
		return c.dir(nil, d, at)
	case unix.S_IFREG:
		return c.regular(dir.File, name, at)
	}
	e := upperEntry(&st, at)
	if kind == unix.S_IFLNK {
		buf := make([]byte, unix.PathMax)
		n, err := unix.Readlinkat(int(dir.Fd()), name, buf)
		if err != nil {
			return gone(full, &os.PathError{Op: "readlink", Path: full, Err: err})
		}
		e.Target = string(buf[:n])
	}
	return c.w.Add(e, nil)
}

// regular adds a regular file.
func (c *committer) regular(dir *os.File, name, at string) error {
	u, err := openUpper(dir, name, dir.Name()+"/"+name, 0)
	if err != nil {
		return err
	}
	defer u.close()
	if u.st.Mode&unix.S_IFMT != unix.S_IFREG {
		return changedUnder(u.Name())
	}
	x, err := c.xattrs(u)
	if err != nil || x.whiteout {
		return err
	}
	e := u.entry(at)
	e.Size, e.Xattrs = u.now.Size, x.kept
	err = c.w.Add(e, ctxReader{c.ctx, u})
	if errors.Is(err, squashfs.ErrSize) {
		return changedUnder(u.Name())
	}
	if err != nil {
		return err
	}
	if err := u.unchanged(); err != nil {
		return err
	}
	return context.Cause(c.ctx)
}
