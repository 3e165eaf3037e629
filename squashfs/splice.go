package squashfs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
)

// splicedContent marks the number of a content that comes from another image.
const splicedContent = 1 << 31

// alignFrom is the length in bytes from which a copied extent keeps its offset
// modulo the file system's block, so that file systems with reflinks can share
// it instead of copying. It costs up to 4,095 bytes an extent. It is done whether
// or not there are reflinks, so that the image does not depend on it.
const alignFrom = 1 << 20

// splicer holds what is to be copied from other images. Nothing is copied
// before Finish: then each source's live blocks are copied once, in the order
// in which they lie there, in pieces as long as possible.
type splicer struct {
	sources  []*spliceSource
	contents chunked[content]
	origin   chunked[spliceOrigin]
	sizes    chunked[uint32]
}

type spliceOrigin struct {
	source uint32
	empty  bool // all of the blocks are holes
}

type spliceSource struct {
	r         *Reader
	extents   []extent
	fragments []fragment // those in use
	numbers   map[fragment]uint32
	renumber  []uint32 // where they are in the new image's table
}

// extent is a stretch of a source's data and where it goes.
type extent struct{ from, to, dest uint64 }

// AddFrom adds a regular file whose content is that of i in src. Where src has
// the block size and the compression of the Writer, its compressed blocks are
// copied as they are when the image is finished, and shared on file systems that
// can; the holes and the sharing of src stay. Otherwise the content is read and
// compressed anew. e.Size is ignored. src must stay open until Finish returns.
//
// Copied blocks are not looked into: Check a source that is not trusted.
func (w *Writer) AddFrom(e Entry, src *Reader, i Inode) error {
	if i.Type != TypeFile || !e.Mode.IsRegular() {
		return fmt.Errorf("add %q: %w: only regular files have content to copy", e.Path, fs.ErrInvalid)
	}
	f, err := src.OpenFile(i)
	if err != nil {
		return fmt.Errorf("add %q: %w", e.Path, err)
	}
	return w.addFile(e, f)
}

// AddLayout is AddFrom for content of size bytes that lies in src as l says; of src
// nothing else is looked at. l.Blocks is not used any more when it returns.
func (w *Writer) AddLayout(e Entry, src *Reader, size int64, l Layout) error {
	if !e.Mode.IsRegular() {
		return fmt.Errorf("add %q: %w: only regular files have content to copy", e.Path, fs.ErrInvalid)
	}
	f, err := src.OpenLayout(size, l)
	if err != nil {
		return fmt.Errorf("add %q: %w", e.Path, err)
	}
	return w.addFile(e, f)
}

// addFile adds a file of another image.
func (w *Writer) addFile(e Entry, f *File) error {
	if !w.canSplice(f.r) {
		e.Size = f.Size()
		return w.Add(e, f)
	}
	if err := w.splice(e, f); err != nil {
		return fmt.Errorf("add %q: %w", e.Path, err)
	}
	return nil
}

func (w *Writer) canSplice(src *Reader) bool {
	// What is stored as it is, on purpose, would stay so.
	plain := src.sb.Flags&(FlagRawData|FlagRawFragments) != 0
	return !plain && !w.opt.Recompress &&
		src.sb.Compression == w.opt.Compression && src.sb.BlockSize == uint32(w.opt.BlockSize)
}

func (w *Writer) splice(e Entry, f *File) error {
	n, p, err := w.admit(&e)
	if err != nil {
		return err
	}
	n.size, n.data = f.inode.Size, noContent
	if n.size > 0 {
		if n.data, err = w.splices.add(f); err != nil {
			return err
		}
	}
	w.put(p, n)
	return nil
}

// add notes what a file needs of its source and returns the content's number.
func (s *splicer) add(f *File) (id uint32, err error) {
	r, i := f.r, &f.inode
	at := slices.IndexFunc(s.sources, func(x *spliceSource) bool { return x.r == r })
	if at < 0 {
		at = len(s.sources)
		s.sources = append(s.sources, &spliceSource{r: r, numbers: map[fragment]uint32{}})
	}
	src := s.sources[at]
	c := content{start: i.start, blocks: s.sizes.n, fragment: none32, fragOffset: i.fragOffset}
	defer func() {
		if err != nil {
			s.sizes.truncate(c.blocks)
		}
	}()
	end := i.start
	for size, err := range f.list.all() {
		if err != nil {
			return 0, err
		}
		if size != 0 && !r.canStore(size) {
			return 0, corrupt("data block of size %#x", size)
		}
		end += uint64(size & blockSizeMask)
		s.sizes.add(size)
	}
	if err := src.use(i.start, end); err != nil {
		return 0, err
	}
	if i.fragment != none32 {
		if c.fragment, err = src.useFragment(f); err != nil {
			return 0, err
		}
	}
	s.origin.add(spliceOrigin{source: uint32(at), empty: end == i.start})
	return s.contents.add(c) | splicedContent, nil
}

// use notes that a stretch of the source is needed.
func (s *spliceSource) use(from, to uint64) error {
	if from == to {
		return nil
	}
	if from < superblockSize || to > s.r.sb.InodeTable || to < from {
		return corrupt("data from %d to %d lies outside the data area, which ends at %d", from, to, s.r.sb.InodeTable)
	}
	if n := len(s.extents); n > 0 {
		if last := &s.extents[n-1]; from >= last.from && from <= last.to {
			last.to = max(last.to, to)
			return nil
		}
	}
	s.extents = append(s.extents, extent{from: from, to: to})
	return nil
}

// useFragment notes that the block with a file's tail is needed, and returns its number
// among those in use.
func (s *spliceSource) useFragment(f *File) (uint32, error) {
	start, size, err := f.fragment()
	if err != nil {
		return 0, err
	}
	if !s.r.canStore(size) {
		return 0, corrupt("fragment at %d of size %#x", start, size)
	}
	key := fragment{start: start, size: size}
	if n, ok := s.numbers[key]; ok {
		return n, nil
	}
	if err := s.use(start, start+uint64(size&blockSizeMask)); err != nil {
		return 0, fmt.Errorf("fragment at %d: %w", start, err)
	}
	n := uint32(len(s.fragments))
	s.fragments, s.numbers[key] = append(s.fragments, key), n
	return n, nil
}

// merge sorts the extents and joins those that touch or overlap.
func (s *spliceSource) merge() {
	slices.SortFunc(s.extents, func(a, b extent) int { return cmp.Compare(a.from, b.from) })
	merged := s.extents[:0]
	for _, e := range s.extents {
		if n := len(merged); n > 0 && e.from <= merged[n-1].to {
			merged[n-1].to = max(merged[n-1].to, e.to)
			continue
		}
		merged = append(merged, e)
	}
	s.extents = merged
}

// moved returns where what lay at an offset in the source lies now.
func (s *spliceSource) moved(offset uint64) uint64 {
	i, _ := slices.BinarySearchFunc(s.extents, offset, func(e extent, at uint64) int {
		switch {
		case e.to <= at:
			return -1
		case e.from > at:
			return 1
		}
		return 0
	})
	return s.extents[i].dest + offset - s.extents[i].from
}

// copySplices copies what the spliced files need and puts their contents'
// places right.
func (w *Writer) copySplices(ctx context.Context) error {
	for _, src := range w.splices.sources {
		src.merge()
		for i := range src.extents {
			if err := w.copyExtent(ctx, src.r, &src.extents[i]); err != nil {
				return fmt.Errorf("copy blocks: %w", err)
			}
		}
		w.moveFragments(src)
	}
	for i := range w.splices.contents.n {
		c, o := w.splices.contents.at(i), w.splices.origin.at(i)
		src := w.splices.sources[o.source]
		if o.empty {
			c.start = superblockSize
		} else {
			c.start = src.moved(c.start)
		}
		if c.fragment != none32 {
			c.fragment = src.renumber[c.fragment]
		}
	}
	return nil
}

// moveFragments puts a source's fragments into the table, in the order in which they lie.
func (w *Writer) moveFragments(src *spliceSource) {
	order := make([]uint32, len(src.fragments))
	for n := range order {
		order[n] = uint32(n)
	}
	slices.SortFunc(order, func(a, b uint32) int {
		x, y := src.fragments[a], src.fragments[b]
		return cmp.Or(cmp.Compare(x.start, y.start), cmp.Compare(x.size, y.size))
	})
	src.renumber = make([]uint32, len(order))
	for _, n := range order {
		f := src.fragments[n]
		f.start = src.moved(f.start)
		src.renumber[n] = uint32(len(w.content.fragments))
		w.content.fragments = append(w.content.fragments, f)
	}
}

func (w *Writer) copyExtent(ctx context.Context, r *Reader, e *extent) error {
	pos := uint64(w.out.pos())
	if e.to-e.from >= alignFrom {
		gap := (e.from - pos) % padAlign
		if err := w.out.write(make([]byte, gap)); err != nil {
			return err
		}
		pos += gap
	}
	e.dest = pos
	from, n := int64(e.from), int64(e.to-e.from)
	dst, ok := w.out.w.(*os.File)
	file, isFile := r.src.(*os.File)
	if !ok || !isFile {
		return w.copyBytes(ctx, r, from, n)
	}
	// Up to the next aligned offset as bytes, so that the rest can be shared.
	head := min(n, int64(-uint64(from)%padAlign))
	if err := w.copyBytes(ctx, r, from, head); err != nil {
		return err
	}
	if err := w.out.flush(); err != nil {
		return err
	}
	done, err := copyFileRange(ctx, dst, w.out.at, file, from+head, n-head)
	if err != nil {
		return err
	}
	w.out.at += done
	return w.copyBytes(ctx, r, from+head+done, n-head-done)
}

// copyBytes appends n bytes of the source.
func (w *Writer) copyBytes(ctx context.Context, r *Reader, from, n int64) error {
	write := func(p []byte) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		return w.out.write(p)
	}
	copied, err := io.Copy(writerFunc(write), io.NewSectionReader(r.src, from, n))
	if err == nil && copied < n {
		err = io.ErrUnexpectedEOF
	}
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return corrupt("the data area ends %d bytes early", n-copied)
	}
	return err
}

type writerFunc func([]byte) error

func (f writerFunc) Write(p []byte) (int, error) {
	if err := f(p); err != nil {
		return 0, err
	}
	return len(p), nil
}
