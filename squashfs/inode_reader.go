package squashfs

import (
	"fmt"
	"iter"
	"strings"
)

// readTargetMax is the longest target of a symlink that is read: Linux refuses
// what is over a page.
const readTargetMax = 4096

// Root returns the root directory's inode.
func (r *Reader) Root() (Inode, error) {
	i, err := r.Inode(r.sb.Root)
	if err == nil && i.Type != TypeDir {
		err = corrupt("the root is a %s", i.Type)
	}
	if err != nil {
		return Inode{}, fmt.Errorf("read root: %w", err)
	}
	return i, nil
}

// Inode returns the inode at a place that a directory entry or the superblock
// gave. It proves what can be told from the inode alone; its number is that of the
// image, and only Check proves that no other inode has it.
func (r *Reader) Inode(ref Ref) (Inode, error) {
	c := r.cursor(&r.inodeTable, ref.block(), ref.offset())
	defer c.release()
	i, err := r.parseInode(&c)
	if err != nil {
		return Inode{}, fmt.Errorf("read inode at %#x: %w", uint64(ref), err)
	}
	return i, nil
}

// InodeByNumber returns an inode by its number, from 1 to Superblock.Inodes. It
// needs an export table, which mksquashfs and this package write by default, and
// gives ErrUnsupported where there is none.
func (r *Reader) InodeByNumber(n uint32) (Inode, error) {
	ref, err := r.exported(n)
	if err != nil {
		return Inode{}, fmt.Errorf("read inode %d: %w", n, err)
	}
	i, err := r.Inode(ref)
	if err == nil && i.Number != n {
		err = fmt.Errorf("read inode %d: %w", n, corrupt("the export table leads to inode %d", i.Number))
	}
	if err != nil {
		return Inode{}, err
	}
	return i, nil
}

func (r *Reader) exported(n uint32) (Ref, error) {
	if !r.exportable() {
		return 0, fmt.Errorf("%w: it has no export table", ErrUnsupported)
	}
	var raw [exportSize]byte
	// Number 0 wraps round to an index that is refused.
	if err := r.record(&r.exportTable, n-1, raw[:]); err != nil {
		return 0, err
	}
	return Ref(le.Uint64(raw[:])), nil
}

func (r *Reader) exportable() bool { return r.exportTable.n > 0 }

// parseInode decodes the inode at the cursor, and leaves the cursor behind its
// fixed part.
func (r *Reader) parseInode(c *metaCursor) (Inode, error) {
	h, err := c.read(inodeHeadLen)
	if err != nil {
		return Inode{}, err
	}
	diskType := le.Uint16(h)
	n := inodeBodyLen(diskType)
	if n == 0 {
		return Inode{}, corrupt("inode type %d", diskType)
	}
	i := Inode{Type: Type((diskType-1)%extendedType + 1), Perm: le.Uint16(h[2:]) & 0o7777}
	uid, gid := le.Uint16(h[4:]), le.Uint16(h[6:])
	i.MTime, i.Number = le.Uint32(h[8:]), le.Uint32(h[12:])
	if i.Number == 0 || i.Number > r.sb.Inodes {
		return Inode{}, corrupt("inode number %d of %d", i.Number, r.sb.Inodes)
	}
	if int(uid) >= len(r.ids) || int(gid) >= len(r.ids) {
		return Inode{}, corrupt("inode %d: owner %d and group %d of %d ids", i.Number, uid, gid, len(r.ids))
	}
	i.UID, i.GID = r.ids[uid], r.ids[gid]
	b, err := c.read(n)
	if err != nil {
		return Inode{}, err
	}
	i.parseBody(diskType, b)
	i.tail = c.ref()
	if diskType == uint16(TypeSymlink)+extendedType {
		if err := i.parseSymlinkXattr(c); err != nil {
			return Inode{}, fmt.Errorf("inode %d: %w", i.Number, err)
		}
	}
	if err := r.checkInode(&i); err != nil {
		return Inode{}, fmt.Errorf("inode %d: %w", i.Number, err)
	}
	return i, nil
}

// parseSymlinkXattr reads the field that lies behind the target.
func (i *Inode) parseSymlinkXattr(c *metaCursor) error {
	if i.Size > readTargetMax {
		return corrupt("symlink target of %d bytes", i.Size)
	}
	if err := c.skip(i.Size); err != nil {
		return err
	}
	b, err := c.read(4)
	if err != nil {
		return err
	}
	i.xattr = le.Uint32(b)
	return nil
}

// checkInode proves that the numbers of an inode can be true.
func (r *Reader) checkInode(i *Inode) error {
	if i.xattr != none32 && i.xattr >= r.xattrIDTab.n {
		return corrupt("xattrs %d of %d", i.xattr, r.xattrIDTab.n)
	}
	switch i.Type {
	case TypeSymlink:
		if i.Size == 0 || i.Size > readTargetMax {
			return corrupt("symlink target of %d bytes", i.Size)
		}
	case TypeFile:
		return r.checkFile(i)
	}
	return nil
}

func (r *Reader) checkFile(i *Inode) error {
	bs := uint64(r.sb.BlockSize)
	if i.Size > 1<<62 || r.blockCount(i) > r.inodeTable.capacity()/4 {
		return corrupt("file of %d bytes: the inode table has no room for so many blocks", i.Size)
	}
	if i.fragment == none32 {
		return nil
	}
	if i.fragment >= r.fragTable.n {
		return corrupt("fragment %d of %d", i.fragment, r.fragTable.n)
	}
	if uint64(i.fragOffset)+i.Size%bs > bs {
		return corrupt("its tail of %d bytes at %d reaches over the end of fragment %d", i.Size%bs, i.fragOffset, i.fragment)
	}
	return nil
}

// blockCount returns how many data blocks a file's list has.
func (r *Reader) blockCount(i *Inode) uint64 {
	return blockCount(i.Size, uint64(r.sb.BlockSize), i.fragment)
}

// blockSizes yields the sizes of a file's data blocks as they are stored, in
// order, without holding all of them.
func (r *Reader) blockSizes(i Inode) iter.Seq2[uint32, error] {
	return func(yield func(uint32, error) bool) {
		if i.Type != TypeFile {
			return
		}
		c := r.cursor(&r.inodeTable, i.tail.block(), i.tail.offset())
		var sizes [512]uint32
		for n := r.blockCount(&i); n > 0; {
			part := sizes[:min(n, uint64(len(sizes)))]
			err := c.readSizes(part)
			// Nothing is pinned while the caller works.
			c.release()
			if err != nil {
				yield(0, fmt.Errorf("read block list of inode %d: %w", i.Number, err))
				return
			}
			for _, s := range part {
				if !yield(s, nil) {
					return
				}
			}
			n -= uint64(len(part))
		}
	}
}

// readSizes fills dst with the next numbers of a block list.
func (c *metaCursor) readSizes(dst []uint32) error {
	for len(dst) > 0 {
		b, err := c.read(4)
		if err != nil {
			return err
		}
		dst[0], dst = le.Uint32(b), dst[1:]
		// Most of the list lies in one piece.
		rest := c.blk.data[c.off:]
		n := min(len(rest)/4, len(dst))
		for k := range n {
			dst[k] = le.Uint32(rest[k*4:])
		}
		c.off += n * 4
		dst = dst[n:]
	}
	return nil
}

// ReadLink returns a symlink's target.
func (r *Reader) ReadLink(i Inode) (string, error) {
	if i.Type != TypeSymlink {
		return "", fmt.Errorf("read link of inode %d: it is a %s", i.Number, i.Type)
	}
	if i.Size > readTargetMax { // an Inode that the caller changed
		return "", fmt.Errorf("read link of inode %d: %w", i.Number, corrupt("target of %d bytes", i.Size))
	}
	c := r.cursor(&r.inodeTable, i.tail.block(), i.tail.offset())
	defer c.release()
	b, err := c.read(int(i.Size))
	if err != nil {
		return "", fmt.Errorf("read link of inode %d: %w", i.Number, err)
	}
	target := string(b)
	if strings.IndexByte(target, 0) >= 0 {
		return "", fmt.Errorf("read link of inode %d: %w", i.Number, corrupt("a zero byte in the target"))
	}
	return target, nil
}
