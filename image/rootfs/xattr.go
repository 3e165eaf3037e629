package rootfs

import (
	"strings"
	"sync"
	"sync/atomic"

	"github.com/hanwen/go-fuse/v2/fuse"
)

// shownXattr says whether an extended attribute of the image is shown: those that
// programs use among themselves, but not those that overlayfs reads when ordinary users
// mount it. With them an image could hide what lies in other layers of the overlay.
func shownXattr(name string) bool {
	return strings.HasPrefix(name, "user.") && !strings.HasPrefix(name, "user.overlay.")
}

// xattrState knows whether an image has extended attributes at all, once somebody has
// looked. Most have none; then the kernel is told not to ask any more.
type xattrState struct {
	once sync.Once
	none atomic.Bool
	work sync.WaitGroup
}

// scanned is up to how many inodes are looked at: an image of more counts as having
// extended attributes.
const scanned = 500_000

// look looks through the inodes in the background.
func (x *xattrState) look(t *Tree) {
	x.once.Do(func() {
		if t.ix.NumInodes() > scanned {
			return
		}
		x.work.Go(func() {
			for n := range t.ix.NumInodes() {
				if i, err := t.ix.Inode(n + 1); err != nil || i.HasXattrs() {
					return
				}
			}
			x.none.Store(true)
		})
	})
}

// GetXAttr implements fuse.RawFileSystem.
func (f *fileSystem) GetXAttr(_ <-chan struct{}, h *fuse.InHeader, name string, dest []byte) (uint32, fuse.Status) {
	if f.xattrs.look(f.t); f.xattrs.none.Load() {
		return 0, fuse.ENOSYS
	}
	n := uint32(h.NodeId)
	if !shownXattr(name) || f.t.addition(n) != nil {
		return 0, fuse.ENODATA
	}
	all, err := f.t.ix.Xattrs(n)
	if err != nil {
		return 0, f.fail(n, err)
	}
	for _, x := range all {
		if x.Name == name {
			return fill(dest, x.Value)
		}
	}
	return 0, fuse.ENODATA
}

// ListXAttr implements fuse.RawFileSystem.
func (f *fileSystem) ListXAttr(_ <-chan struct{}, h *fuse.InHeader, dest []byte) (uint32, fuse.Status) {
	if f.xattrs.look(f.t); f.xattrs.none.Load() {
		return 0, fuse.ENOSYS
	}
	n := uint32(h.NodeId)
	if f.t.addition(n) != nil {
		return 0, fuse.OK
	}
	all, err := f.t.ix.Xattrs(n)
	if err != nil {
		return 0, f.fail(n, err)
	}
	var list []byte
	for _, x := range all {
		if shownXattr(x.Name) {
			list = append(append(list, x.Name...), 0)
		}
	}
	return fill(dest, list)
}

// fill copies a value to where the kernel wants it. An empty dest asks for the length.
func fill(dest, value []byte) (uint32, fuse.Status) {
	if len(dest) < len(value) {
		return uint32(len(value)), fuse.ERANGE
	}
	return uint32(copy(dest, value)), fuse.OK
}
