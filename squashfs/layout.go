package squashfs

import (
	"fmt"
	"io/fs"
	"iter"
)

// Layout says where the content of a regular file lies in an image. Whoever keeps
// it can read the file without the image's metadata: block k is at Start plus the
// stored sizes of the blocks before it.
type Layout struct {
	Start  int64    // of the first block, bytes from the image's begin
	Blocks []uint32 // sizes as stored, in order; see BlockLen
	// Fragment holds what is behind the last block; its Size is 0 where nothing is.
	Fragment Fragment
}

// Fragment is a piece of a block that several files share.
type Fragment struct {
	Start  int64  // of the block, bytes from the image's begin
	Size   uint32 // of the block, as stored; see BlockLen
	Offset uint32 // of the piece in the decoded block, bytes
}

// BlockLen takes a stored size apart: n bytes, compressed unless raw. Of a block
// in a Layout, 0 is a hole: a whole block of zeros that is not stored.
func BlockLen(stored uint32) (n int64, raw bool) {
	return int64(stored &^ blockRaw), stored&blockRaw != 0
}

// Layout returns where the content of a regular file lies. It reads the whole
// block list: 4 bytes for each block of the file.
func (r *Reader) Layout(i Inode) (Layout, error) {
	if i.Type != TypeFile {
		return Layout{}, fmt.Errorf("layout of inode %d: %w: not a regular file", i.Number, fs.ErrInvalid)
	}
	l := Layout{Start: int64(i.start), Blocks: make([]uint32, 0, r.blockCount(&i))}
	for size, err := range r.blockSizes(i) {
		if err != nil {
			return Layout{}, err
		}
		l.Blocks = append(l.Blocks, size)
	}
	if i.fragment != none32 {
		start, size, err := r.fragmentEntry(i.fragment)
		if err != nil {
			return Layout{}, fmt.Errorf("read fragment %d: %w", i.fragment, err)
		}
		l.Fragment = Fragment{Start: int64(start), Size: size, Offset: i.fragOffset}
	}
	return l, nil
}

// OpenLayout opens a regular file of size bytes by where its content lies, without a
// look at the image's metadata: images need no export table for it. The File reads
// l.Blocks for as long as it is used. That the layout is one of this image, nobody
// proves; another gives other data, or an error that wraps ErrCorrupt.
func (r *Reader) OpenLayout(size int64, l Layout) (*File, error) {
	if r.closed.Load() {
		return nil, fs.ErrClosed
	}
	if err := r.checkLayout(size, &l); err != nil {
		return nil, fmt.Errorf("open content at %d: %w", l.Start, err)
	}
	f := &File{r: r, inode: Inode{Type: TypeFile, Size: uint64(size), start: uint64(l.Start), fragment: none32}, layout: &l}
	if l.Fragment.Size != 0 {
		f.inode.fragment, f.inode.fragOffset = 0, l.Fragment.Offset
	}
	f.list.init(r, &f.inode)
	f.list.sizes = l.Blocks
	return f, nil
}

// checkLayout proves that content of the size can lie so. What the stored sizes of
// blocks say is proved when they are read.
func (r *Reader) checkLayout(size int64, l *Layout) error {
	bs := int64(r.sb.BlockSize)
	tail, want := size%bs, size/bs
	if l.Fragment.Size == 0 && tail > 0 {
		want++
	}
	switch {
	case size < 0 || l.Start < 0 || int64(len(l.Blocks)) != want:
		return corrupt("%d blocks, want %d for %d bytes", len(l.Blocks), want, size)
	case l.Fragment.Size != 0 && (l.Fragment.Start < 0 || int64(l.Fragment.Offset)+tail > bs):
		return corrupt("its tail of %d bytes at %d reaches over the end of the fragment at %d", tail, l.Fragment.Offset, l.Fragment.Start)
	}
	return nil
}

// FileNumbers yields, once Finish has returned, the inode numbers of the regular
// files in the order in which they were added. Names given by Link are none of
// their own.
func (w *Writer) FileNumbers() iter.Seq[uint32] {
	return func(yield func(uint32) bool) {
		for i := range w.tree.nodes.n {
			if n := w.tree.nodes.at(i); n.typ == TypeFile && n.number != 0 && !yield(n.number) {
				return
			}
		}
	}
}
