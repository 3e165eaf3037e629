package image

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
	"slices"

	"github.com/gangway-hpc/gangway/image/merged"
	"github.com/gangway-hpc/gangway/internal/fault"
	"github.com/gangway-hpc/gangway/squashfs"
)

// CommitOptions say how an overlay's upper directory is to be read.
type CommitOptions struct {
	// Fuse says that fuse-overlayfs wrote it: then names that begin with .wh. are
	// whiteouts too, where it could make no devices.
	Fuse bool
	// Warn is told of what is left out: sockets, and attributes that an image has no
	// room for. nil ignores it.
	Warn func(path string, err error)
}

// Commit adds to w what an overlay shows that has the image below and the directory
// upper above: files of the image with their compressed blocks as they are, files of
// upper compressed anew. o must stay open until w is finished.
//
// The kernel's overlay (also with userxattr) and fuse-overlayfs are understood:
// whiteouts, opaque directories, copies. All that upper has belongs to 0:0 in the
// result, as one id is all that its container saw; a directory that is in both keeps
// its owner in the image, and the root its other attributes too. Of extended attributes
// those of users are kept.
//
// A file that changes, or a directory in which names come or go, while it is read is an
// error. What happens before or after that is seen or not, so the container should have
// ended, or be frozen. A file that its own mode keeps us from reading, such as
// /etc/shadow with mode 0, is made readable for a moment.
func (o *Opened) Commit(ctx context.Context, upper string, w *squashfs.Writer, co CommitOptions) error {
	c := newCommitter(ctx, w, co)
	e := &exporter{o: o, w: w, warn: c.o.Warn, names: map[uint32]string{}}
	return c.commit(&indexDir{ctx, e, merged.Root}, upper)
}

// CommitDir is Opened.Commit where a root file system in a directory was below. All of it
// is compressed, and belongs to 0:0. Where upper is "", there is nothing above it.
func CommitDir(ctx context.Context, dir, upper string, w *squashfs.Writer, co CommitOptions) error {
	c := newCommitter(ctx, w, co)
	if upper == "" {
		c.plain = true
		return c.commit(nil, dir)
	}
	below := newCommitter(ctx, w, co)
	below.plain = true
	f, err := below.open(dir)
	if err != nil {
		return err
	}
	defer f.close()
	return c.commit(&hostDir{below, f}, upper)
}

// lowerDir is a directory of what is below.
type lowerDir interface {
	// list returns its names; true for directories.
	list() (map[string]bool, error)
	// add adds one of its names with all below it.
	add(name, at string) error
	// entry describes it.
	entry() (squashfs.Entry, error)
	// sub opens one of its directories.
	sub(name string) (lowerDir, error)
	close()
}

// committer adds an upper directory and what is below it.
type committer struct {
	ctx   context.Context // of one call of Commit
	w     *squashfs.Writer
	o     CommitOptions
	plain bool // it is no overlay's: nothing in it is a whiteout
	seen  map[hostInode]string
	buf   []byte
}

func newCommitter(ctx context.Context, w *squashfs.Writer, o CommitOptions) *committer {
	if o.Warn == nil {
		o.Warn = func(string, error) {}
	}
	return &committer{ctx: ctx, w: w, o: o, seen: map[hostInode]string{}, buf: make([]byte, 64<<10)}
}

func (c *committer) commit(low lowerDir, upper string) error {
	d, err := c.open(upper)
	if err != nil {
		return err
	}
	defer d.close()
	return c.dir(low, d, ".")
}

// open opens a directory by its path, which may be a symlink.
func (c *committer) open(dir string) (*upperFile, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, fmt.Errorf("commit: %w", unreadable(err))
	}
	defer f.Close()
	return c.openDir(f, ".", dir)
}

// dir adds a directory of upper, over one below or none (nil).
func (c *committer) dir(low lowerDir, up *upperFile, at string) error {
	if err := context.Cause(c.ctx); err != nil {
		return err
	}
	x, err := c.xattrs(up)
	if err != nil {
		return err
	}
	e := up.entry(at)
	e.Xattrs = x.kept
	if low != nil {
		was, err := low.entry()
		if err != nil {
			return err
		}
		if e.UID, e.GID = was.UID, was.GID; at == "." {
			was.Path = at
			e = was // the top of an upper directory is no copy
		}
	}
	if err := c.w.Add(e, nil); err != nil {
		return err
	}
	names, err := c.list(up, x.opaque)
	if err != nil {
		return err
	}
	if names.opaque {
		low = nil
	}
	if err := c.children(low, up, names, at); err != nil {
		return err
	}
	return up.unchanged()
}

// children adds what is in a directory, by name.
func (c *committer) children(low lowerDir, up *upperFile, names *upperNames, at string) error {
	below := map[string]bool{}
	if low != nil {
		var err error
		if below, err = low.list(); err != nil {
			return err
		}
	}
	all := maps.Clone(below)
	for name := range names.files {
		all[name] = true
	}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		st, above := names.files[name]
		isDir, under := below[name]
		child := path.Join(at, name)
		var err error
		switch {
		case above && isDirMode(st.Mode) && under && isDir:
			err = c.both(low, up, name, child)
		case above:
			err = c.add(up, name, child, st)
		case !names.whiteouts[name]:
			err = low.add(name, child)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// both adds a directory that is above and below.
func (c *committer) both(low lowerDir, up *upperFile, name, at string) error {
	sub, err := low.sub(name)
	if err != nil {
		return err
	}
	defer sub.close()
	d, err := c.openDir(up.File, name, up.Name()+"/"+name)
	if err != nil {
		return err
	}
	defer d.close()
	return c.dir(sub, d, at)
}

// indexDir is a directory of an image.
type indexDir struct {
	ctx    context.Context // of one call of Commit
	e      *exporter
	number uint32
}

func (d *indexDir) list() (map[string]bool, error) {
	all := map[string]bool{}
	for e, err := range d.e.o.Index.ReadDir(d.number, 0) {
		if err != nil {
			return nil, err
		}
		all[string(e.Name)] = isDirMode(e.Type)
	}
	return all, nil
}

func (d *indexDir) add(name, at string) error {
	number, err := d.e.o.Index.Lookup(d.number, name)
	if err != nil {
		return err
	}
	i, err := d.e.o.Index.Inode(number)
	if err != nil {
		return err
	}
	if isDirMode(i.Mode) {
		return d.e.dir(d.ctx, number, at)
	}
	return d.e.add(number, at)
}

func (d *indexDir) entry() (squashfs.Entry, error) {
	i, err := d.e.o.Index.Inode(d.number)
	if err != nil {
		return squashfs.Entry{}, err
	}
	return d.e.entry(&i, ".")
}

func (d *indexDir) sub(name string) (lowerDir, error) {
	number, err := d.e.o.Index.Lookup(d.number, name)
	return &indexDir{d.ctx, d.e, number}, err
}

func (d *indexDir) close() {}

// hostDir is a directory of a root file system on this machine.
type hostDir struct {
	c *committer
	*upperFile
}

func (d *hostDir) list() (map[string]bool, error) {
	names, err := d.c.list(d.upperFile, false)
	if err != nil {
		return nil, err
	}
	all := map[string]bool{}
	for name, st := range names.files {
		all[name] = isDirMode(st.Mode)
	}
	return all, nil
}

func (d *hostDir) entry() (squashfs.Entry, error) {
	x, err := d.c.xattrs(d.upperFile)
	e := d.upperFile.entry(".")
	e.Xattrs = x.kept
	return e, err
}

func (d *hostDir) add(name, at string) error {
	st, err := lstatAt(d.File, name)
	if err != nil {
		return err
	}
	return d.c.add(d.upperFile, name, at, st)
}

func (d *hostDir) sub(name string) (lowerDir, error) {
	f, err := d.c.openDir(d.File, name, d.Name()+"/"+name)
	return &hostDir{d.c, f}, err
}

// changedUnder is for what changes while it is committed.
func changedUnder(name string) error {
	return &fault.Error{
		What: fmt.Errorf("commit: %s changed while it was read", name),
		Hint: "do it again when the container has ended, or when nothing in it writes",
	}
}

// gone is for errors about a file that was there a moment ago.
func gone(name string, err error) error {
	if errors.Is(err, os.ErrNotExist) || isOtherKind(err) {
		return changedUnder(name)
	}
	return fmt.Errorf("commit: %w", unreadable(err))
}
