package image

import (
	"context"
	"errors"
	"io"
	"os"
	"path"

	"golang.org/x/sys/unix"

	"github.com/gangway-hpc/gangway/image/oci"
	"github.com/gangway-hpc/gangway/internal/fault"
	"github.com/gangway-hpc/gangway/squashfs"
)

// squashRoot is a squashfs file. It may be one made to harm: the walk is bounded by
// what squashfs.Check proves, and content by what a tarStream writes.
type squashRoot struct {
	streamed
	r    *squashfs.Reader
	name string
}

func openSquashRoot(f *os.File, o *RootOptions) (root, error) {
	r, err := squashfs.NewReader(f, squashfs.ReaderOptions{})
	if err != nil {
		return nil, squashFault(err, f.Name())
	}
	t := &squashRoot{r: r, name: f.Name()}
	t.streamed = streamed{warn: o.Warn, most: o.Limits.Bytes, close: func() error { return errors.Join(r.Close(), f.Close()) }}
	t.write = func(s *tarStream) error {
		w := squashWalk{s: s, r: r, seen: map[uint32]string{}}
		root, err := r.Root()
		if err == nil {
			err = w.add(root, "")
		}
		return squashFault(err, f.Name())
	}
	return t, nil
}

// measure implements root.
func (t *squashRoot) measure(ctx context.Context) (d oci.Descriptor, diffID oci.Digest, err error) {
	// One problem says enough. Data is decoded below.
	if err := squashfs.Check(ctx, t.r, squashfs.CheckOptions{SkipData: true, MaxProblems: 1}); err != nil {
		return d, "", squashFault(err, t.name)
	}
	return t.streamed.measure(ctx)
}

func squashFault(err error, name string) error {
	if !errors.Is(err, squashfs.ErrCorrupt) {
		return err
	}
	return &fault.Error{What: err, Hint: "fetch or make the file again; for all that is wrong with it: gangway squashfs check " + name}
}

// squashWalk is one pass over an image.
type squashWalk struct {
	s    *tarStream
	r    *squashfs.Reader
	seen map[uint32]string // inodes of several names by their first
}

func (w *squashWalk) add(i squashfs.Inode, name string) error {
	if i.Type == squashfs.TypeSocket {
		w.s.skip("/"+name, "an image has no place for sockets")
		return nil
	}
	if i.Links > 1 && i.Type != squashfs.TypeDir {
		if first, ok := w.seen[i.Number]; ok {
			return w.s.link(name, first)
		}
		w.seen[i.Number] = name
	}
	n, err := w.node(i, name)
	if err != nil {
		return entryFault(name, err)
	}
	if i.Type == squashfs.TypeFile {
		return w.addFile(i, n)
	}
	if err := w.s.add(n, content{}); err != nil || i.Type != squashfs.TypeDir {
		return err
	}
	for d, err := range w.r.ReadDir(i) {
		if err != nil {
			return entryFault(name, err)
		}
		child, err := w.r.Child(i, d)
		if err != nil {
			return entryFault(path.Join(name, d.Name), err)
		}
		if err := w.add(child, path.Join(name, d.Name)); err != nil {
			return err
		}
	}
	return nil
}

func (w *squashWalk) addFile(i squashfs.Inode, n *rootNode) error {
	f, err := w.r.OpenFile(i)
	if err != nil {
		return entryFault(n.name, err)
	}
	defer f.Close()
	// Reading from front to back decodes ahead, which ReadAt does not.
	c := content{ReaderAt: &forward{f: f}}
	if i.Sparse > 0 {
		c.extents = func() (data []extent, err error) {
			for e, err := range f.Extents() {
				if err != nil {
					return nil, err
				}
				if !e.Hole {
					data = append(data, extent{e.Offset, e.Length})
				}
			}
			return data, nil
		}
	}
	return w.s.add(n, c)
}

// forward reads a file at offsets that rise.
type forward struct {
	f  *squashfs.File
	at int64
}

// ReadAt implements io.ReaderAt.
func (r *forward) ReadAt(p []byte, off int64) (int, error) {
	if off != r.at {
		if _, err := r.f.Seek(off, io.SeekStart); err != nil {
			return 0, err
		}
	}
	n, err := io.ReadFull(r.f, p)
	r.at = off + int64(n)
	return n, err
}

// node describes an inode as the archive has it.
func (w *squashWalk) node(i squashfs.Inode, name string) (*rootNode, error) {
	n := &rootNode{
		name: name, uid: i.UID, gid: i.GID, mtime: i.ModTime(), size: int64(i.Size), major: i.Major(), minor: i.Minor(),
		mode: uint32(i.Perm) | map[squashfs.Type]uint32{
			squashfs.TypeDir: unix.S_IFDIR, squashfs.TypeFile: unix.S_IFREG, squashfs.TypeSymlink: unix.S_IFLNK,
			squashfs.TypeBlockDevice: unix.S_IFBLK, squashfs.TypeCharDevice: unix.S_IFCHR, squashfs.TypeFIFO: unix.S_IFIFO,
		}[i.Type],
	}
	var err error
	if i.Type == squashfs.TypeSymlink {
		if n.target, err = w.r.ReadLink(i); err != nil {
			return nil, err
		}
	}
	n.xattrs, err = w.r.Xattrs(i)
	return n, err
}
