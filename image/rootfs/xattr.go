package rootfs

import (
	"runtime/debug"
	"strings"

	"github.com/hanwen/go-fuse/v2/fuse"
)

// shownXattr says whether an extended attribute of the image is shown: those that
// programs use among themselves, but not those that overlayfs reads when ordinary users
// mount it. With them an image could hide what lies in other layers of the overlay.
func shownXattr(name string) bool {
	return strings.HasPrefix(name, "user.") && !strings.HasPrefix(name, "user.overlay.")
}

// GetXAttr implements fuse.RawFileSystem.
func (f *fileSystem) GetXAttr(_ <-chan struct{}, h *fuse.InHeader, name string, dest []byte) (_ uint32, s fuse.Status) {
	defer f.caught(debug.SetPanicOnFault(true), h.NodeId, &s)
	if !f.t.ix.HasXattrs() {
		return 0, fuse.ENOSYS // the kernel asks no more
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
func (f *fileSystem) ListXAttr(_ <-chan struct{}, h *fuse.InHeader, dest []byte) (_ uint32, s fuse.Status) {
	defer f.caught(debug.SetPanicOnFault(true), h.NodeId, &s)
	if !f.t.ix.HasXattrs() {
		return 0, fuse.ENOSYS // the kernel asks no more
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
