package image

import (
	"fmt"
	"math"
	"path"
	"strings"

	"github.com/gangway-hpc/gangway/image/layer"
	"github.com/gangway-hpc/gangway/image/merged"
	"github.com/gangway-hpc/gangway/squashfs"
)

// squashEntries gives the tree of a squashfs file as entries of a layer. That the tree
// has an end, squashfs.Check has proved before.
type squashEntries struct {
	r    *squashfs.Reader
	seen map[uint32]string // inodes of several names by their first
	skip func(name, why string)
	last squashfs.Inode // of the entry that was given last
}

// all is an iter.Seq2.
func (w *squashEntries) all(yield func(layer.Entry, error) bool) {
	root, err := w.r.Root()
	if err != nil {
		yield(layer.Entry{}, err)
		return
	}
	w.walk(root, "", yield)
}

// walk gives an inode and all below it. It says false when there is to be no more.
func (w *squashEntries) walk(i squashfs.Inode, name string, yield func(layer.Entry, error) bool) bool {
	if i.Type == squashfs.TypeSocket {
		w.skip("/"+name, "an image has no place for sockets")
		return true
	}
	if i.Links > 1 && i.Type != squashfs.TypeDir {
		if first, ok := w.seen[i.Number]; ok {
			return yield(layer.Entry{Name: name, Type: layer.HardLink, Link: first}, nil)
		}
		w.seen[i.Number] = name
	}
	e, err := w.entry(&i, name)
	w.last = i
	if !yield(e, err) || err != nil {
		return false
	}
	if i.Type != squashfs.TypeDir {
		return true
	}
	for d, err := range w.r.ReadDir(i) {
		var child squashfs.Inode
		if err == nil {
			child, err = w.r.Child(i, d)
		}
		if err != nil {
			yield(layer.Entry{}, fmt.Errorf("directory %.300q: %w", name, err))
			return false
		}
		if !w.walk(child, path.Join(name, d.Name), yield) {
			return false
		}
	}
	return true
}

func (w *squashEntries) entry(i *squashfs.Inode, name string) (layer.Entry, error) {
	e := layer.Entry{
		Name: name, Mode: uint32(i.Perm), UID: i.UID, GID: i.GID, Sec: int64(i.MTime),
		Type: map[squashfs.Type]layer.Type{
			squashfs.TypeDir: layer.Dir, squashfs.TypeFile: layer.File, squashfs.TypeSymlink: layer.Symlink,
			squashfs.TypeBlockDevice: layer.BlockDevice, squashfs.TypeCharDevice: layer.CharDevice, squashfs.TypeFIFO: layer.FIFO,
		}[i.Type],
	}
	var err error
	switch i.Type {
	case squashfs.TypeFile:
		if i.Size > math.MaxInt64 {
			return e, fmt.Errorf("%.300q: %w: it has %d bytes", name, merged.ErrLimit, i.Size)
		}
		if e.Size = int64(i.Size); e.Size > 0 {
			e.Inode = i.Number
		}
	case squashfs.TypeSymlink:
		e.Link, err = w.r.ReadLink(*i)
	case squashfs.TypeBlockDevice, squashfs.TypeCharDevice:
		e.Major, e.Minor = i.Major(), i.Minor()
	}
	if err == nil {
		e.Xattrs, err = w.xattrs(i)
	}
	if err != nil {
		return e, fmt.Errorf("%.300q: %w", name, err)
	}
	return e, nil
}

// xattrs returns an inode's attributes without those by which an overlay above would
// take files for removed, or for others.
func (w *squashEntries) xattrs(i *squashfs.Inode) ([]squashfs.Xattr, error) {
	all, err := w.r.Xattrs(*i)
	if err != nil {
		return nil, err
	}
	kept := all[:0]
	for _, x := range all {
		if _, ofOverlay := overlayXattr(x.Name); !ofOverlay {
			kept = append(kept, x)
		}
	}
	return kept, nil
}

// overlayXattr takes the name of an attribute in which an overlay keeps what it knows
// of a file of its upper directory.
func overlayXattr(name string) (key string, ok bool) {
	for _, prefix := range []string{"user.overlay.", "trusted.overlay.", "user.fuseoverlayfs."} {
		if key, ok := strings.CutPrefix(name, prefix); ok {
			return key, true
		}
	}
	return "", name == "user.overlay" || name == "trusted.overlay"
}

// layout says where the content of the entry given last lies.
func (w *squashEntries) layout(inode uint32) (squashfs.Layout, error) {
	if inode != w.last.Number {
		return squashfs.Layout{}, fmt.Errorf("layout of inode %d: the entry is of inode %d", inode, w.last.Number)
	}
	// The list of blocks is made whole before anything counts it.
	if most := uint64(1<<30) / 4 * uint64(w.r.Superblock().BlockSize); w.last.Size > most {
		return squashfs.Layout{}, fmt.Errorf("%w: a file of %d bytes, more than %d", merged.ErrLimit, w.last.Size, most)
	}
	return w.r.Layout(w.last)
}
