package merged

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"

	"github.com/gangway-hpc/gangway/image/layer"
	"github.com/gangway-hpc/gangway/image/oci"
	"github.com/gangway-hpc/gangway/squashfs"
	"github.com/zeebo/blake3"
)

// nodeOf returns an entry's inode, but for where a file's content lies.
func (b *Builder) nodeOf(e *layer.Entry) (node, error) {
	types := [...]uint32{
		layer.File: syscall.S_IFREG, layer.Dir: syscall.S_IFDIR, layer.Symlink: syscall.S_IFLNK,
		layer.CharDevice: syscall.S_IFCHR, layer.BlockDevice: syscall.S_IFBLK, layer.FIFO: syscall.S_IFIFO,
	}
	if int(e.Type) >= len(types) || types[e.Type] == 0 {
		return node{}, fmt.Errorf("%w: type %d", syscall.EINVAL, e.Type)
	}
	v := node{mode: types[e.Type] | e.Mode&0o7777, uid: e.UID, gid: e.GID, sec: e.Sec, nsec: min(e.Nsec, 1e9-1)}
	set, added, err := b.xattrs.add(e.Xattrs)
	if err == nil {
		err = b.take(added)
	}
	if err != nil {
		return node{}, err
	}
	v.xattr = set
	switch e.Type {
	case layer.File:
		if v.size = e.Size; v.size < 0 {
			return node{}, fmt.Errorf("%w: size %d", syscall.EINVAL, e.Size)
		}
	case layer.CharDevice, layer.BlockDevice:
		v.data, v.more = e.Major, e.Minor
	case layer.Symlink:
		if e.Link == "" || len(e.Link) > maxPath || strings.IndexByte(e.Link, 0) >= 0 {
			return node{}, fmt.Errorf("%w: symlink to %.100q", syscall.EINVAL, e.Link)
		}
		v.mode = syscall.S_IFLNK | 0o777
		v.data, v.size = b.t.bytes.add(e.Link), int64(len(e.Link))
		return v, b.take(len(e.Link))
	}
	return v, nil
}

// content keeps where a file's content lies, and returns the number of that.
func (b *Builder) content(e *layer.Entry, layout func(uint32) (squashfs.Layout, error)) (uint32, error) {
	if e.Inode == 0 {
		return 0, errors.New("has no inode in the layer")
	}
	l, err := layout(e.Inode)
	if err != nil {
		return 0, fmt.Errorf("inode %d of the layer: %w", e.Inode, err)
	}
	if err := checkLayout(&b.layers[len(b.layers)-1], e.Size, &l); err != nil {
		return 0, fmt.Errorf("inode %d of the layer: %w", e.Inode, err)
	}
	if err := b.take(4 * len(l.Blocks)); err != nil {
		return 0, err
	}
	first := b.blocks.n
	for _, size := range l.Blocks {
		b.blocks.add(size)
	}
	return b.files.add(fileData{
		layer: uint32(len(b.layers) - 1), inode: e.Inode, start: l.Start,
		first: first, count: b.blocks.n - first, fragment: l.Fragment,
	}), nil
}

// checkLayout says whether a file of the size can lie as l says in a layer.
func checkLayout(info *LayerInfo, size int64, l *squashfs.Layout) error {
	if err := checkExtent(info, size, int64(len(l.Blocks)), l); err != nil {
		return err
	}
	end := l.Start
	for i, stored := range l.Blocks {
		n, _ := squashfs.BlockLen(stored)
		if n > int64(info.BlockSize) {
			return fmt.Errorf("block %d of %d bytes, more than %d", i, n, info.BlockSize)
		}
		end += n
	}
	if end > info.Size {
		return fmt.Errorf("blocks end at %d, behind the layer of %d bytes", end, info.Size)
	}
	return nil
}

// checkExtent is checkLayout without a look at the blocks, of which there are count.
func checkExtent(info *LayerInfo, size, count int64, l *squashfs.Layout) error {
	bs := int64(info.BlockSize)
	tail := size % bs
	want := size / bs
	f := l.Fragment
	if f.Size == 0 && tail > 0 {
		want++
	}
	n, _ := squashfs.BlockLen(f.Size)
	switch {
	case size <= 0 || count != want:
		return fmt.Errorf("%d blocks, want %d for %d bytes", count, want, size)
	case l.Start < 0 || l.Start > info.Size:
		return fmt.Errorf("blocks from %d on, in a layer of %d bytes", l.Start, info.Size)
	case f.Size != 0 && (tail == 0 || int64(f.Offset)+tail > bs || n > bs || f.Start < 0 || f.Start > info.Size-n):
		return fmt.Errorf("fragment of %d bytes at %d, content from %d on, in a layer of %d bytes", n, f.Start, f.Offset, info.Size)
	case f.Size == 0 && f != squashfs.Fragment{}:
		return fmt.Errorf("fragment at %d without a size", f.Start)
	}
	return nil
}

// check says what is wrong with a LayerInfo.
func (l *LayerInfo) check() error {
	if l.Digest != "" {
		if _, err := oci.ParseDigest(string(l.Digest)); err != nil {
			return err
		}
	}
	switch {
	case l.Digest == "" && l.Path == "":
		return errors.New("has neither digest nor path")
	case len(l.Path) > maxPath || strings.IndexByte(l.Path, 0) >= 0:
		return fmt.Errorf("%w: path %.100q", syscall.EINVAL, l.Path)
	case l.Size < 0 || l.BlockSize < 4<<10 || l.BlockSize > 1<<20 || l.BlockSize&(l.BlockSize-1) != 0:
		return fmt.Errorf("%w: %d bytes in blocks of %d", syscall.EINVAL, l.Size, l.BlockSize)
	}
	return nil
}

func (l *LayerInfo) name() string { return cmp.Or(l.Path, string(l.Digest)) }

// xattrSets keeps equal sets once. Numbers begin at 1.
type xattrSets struct {
	sets [][]squashfs.Xattr
	byID map[[16]byte]uint32
}

func newXattrSets() xattrSets {
	return xattrSets{sets: make([][]squashfs.Xattr, 1), byID: map[[16]byte]uint32{}}
}

// add returns a set's number, and how many bytes it took.
func (x *xattrSets) add(set []squashfs.Xattr) (number uint32, bytes int, err error) {
	if len(set) == 0 {
		return 0, 0, nil
	}
	set = slices.Clone(set)
	slices.SortFunc(set, func(a, b squashfs.Xattr) int { return cmp.Compare(a.Name, b.Name) })
	h := blake3.New()
	for i, v := range set {
		if !validXattr(v.Name, len(v.Value)) || i > 0 && v.Name == set[i-1].Name {
			return 0, 0, fmt.Errorf("%w: xattr %.300q with %d bytes", syscall.EINVAL, v.Name, len(v.Value))
		}
		set[i].Value = slices.Clone(v.Value)
		bytes += xattrLen + len(v.Name) + len(v.Value)
		var head [8]byte
		binary.LittleEndian.PutUint32(head[:], uint32(len(v.Name)))
		binary.LittleEndian.PutUint32(head[4:], uint32(len(v.Value)))
		_, _ = h.Write(head[:])
		_, _ = h.WriteString(v.Name)
		_, _ = h.Write(v.Value)
	}
	var id [16]byte
	copy(id[:], h.Sum(nil))
	if number, ok := x.byID[id]; ok {
		return number, 0, nil
	}
	number = uint32(len(x.sets))
	x.byID[id] = number
	x.sets = append(x.sets, set)
	return number, bytes + xattrSetLen, nil
}

// validXattr says whether Linux takes such an attribute (XATTR_NAME_MAX,
// XATTR_SIZE_MAX).
func validXattr(name string, size int) bool {
	return name != "" && len(name) <= 255 && strings.IndexByte(name, 0) < 0 && size <= 64<<10
}
