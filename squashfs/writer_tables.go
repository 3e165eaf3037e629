package squashfs

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"slices"
)

// finish writes the tables in the only order that the kernel takes: inodes,
// directories, fragments, export, ids, xattrs (fs/squashfs/super.c).
func (w *Writer) finish(ctx context.Context) (Info, error) {
	if err := w.usable(); err != nil {
		return Info{}, err
	}
	w.ended = true
	if err := w.content.finish(); err != nil {
		return Info{}, err
	}
	if err := w.copySplices(ctx); err != nil {
		return Info{}, err
	}
	sb := Superblock{
		MakeTime: clampTime(w.opt.MakeTime), BlockSize: uint32(w.opt.BlockSize),
		Compression: w.opt.Compression, Flags: w.flags(), IDs: uint16(len(w.ids.list)),
		Fragments: uint32(len(w.content.fragments)), InodeTable: uint64(w.out.pos()),
	}
	if sb.Compression == Uncompressed {
		sb.Compression = Gzip
	}
	for _, write := range []func(*Superblock) error{
		w.writeInodes, w.writeFragments, w.writeExport, w.writeIDs, w.writeXattrs,
	} {
		if err := ctx.Err(); err != nil {
			return Info{}, err
		}
		if err := write(&sb); err != nil {
			return Info{}, err
		}
	}
	sb.BytesUsed = uint64(w.out.pos())
	size := (w.out.pos() + padAlign - 1) &^ (padAlign - 1)
	if err := w.out.cut(size); err != nil {
		return Info{}, err
	}
	if _, err := w.out.w.WriteAt(sb.marshal(), 0); err != nil {
		return Info{}, fmt.Errorf("write superblock: %w", err)
	}
	return Info{Superblock: sb, Size: size}, nil
}

func (w *Writer) flags() Flags {
	var f Flags
	set := func(on bool, flag Flags) {
		if on {
			f |= flag
		}
	}
	set(w.opt.Compression == Uncompressed, FlagRawInodes|FlagRawData|FlagRawFragments|FlagRawXattrs|FlagRawIDs)
	set(w.opt.NoFragments, FlagNoFragments)
	set(w.opt.AlwaysFragments, FlagAlwaysFragments)
	set(!w.opt.NoDedup, FlagDuplicates)
	set(!w.opt.NoExport, FlagExportable)
	set(len(w.xattrs.ids) == 0, FlagNoXattrs)
	set(compressorOptions(w.opt.Compression, w.opt.Level) != nil, FlagOptions)
	return f
}

func (w *Writer) writeFragments(sb *Superblock) (err error) {
	sb.FragmentTable = noTable
	if sb.Fragments == 0 {
		return nil
	}
	sb.FragmentTable, err = writeLookupTable(w.out, w.meta, nil, func(m *metaWriter) {
		var b []byte
		for _, f := range w.content.fragments {
			b = le.AppendUint64(b[:0], f.start)
			b = le.AppendUint32(b, f.size)
			m.write(le.AppendUint32(b, 0))
		}
	})
	return err
}

func (w *Writer) writeExport(sb *Superblock) (err error) {
	sb.ExportTable = noTable
	if w.opt.NoExport {
		return nil
	}
	sb.ExportTable, err = writeLookupTable(w.out, w.meta, nil, func(m *metaWriter) {
		var b [exportSize]byte
		for n := uint32(1); n <= sb.Inodes; n++ {
			le.PutUint64(b[:], uint64(*w.tree.refs.at(n - 1)))
			m.write(b[:])
		}
	})
	return err
}

func (w *Writer) writeIDs(sb *Superblock) (err error) {
	sb.IDTable, err = writeLookupTable(w.out, w.meta, nil, func(m *metaWriter) {
		for _, id := range w.ids.list {
			m.write(le.AppendUint32(nil, id))
		}
	})
	return err
}

func (w *Writer) writeXattrs(sb *Superblock) (err error) {
	sb.XattrTable, err = w.xattrs.writeTo(w.out, w.meta)
	return err
}

// writeInodes writes the inode and the directory table. The inodes of one
// directory's entries lie side by side, behind those of all directories below
// it, and are numbered in this order: a listing's entries are then near in
// place and number, which makes it short and quick to walk.
func (w *Writer) writeInodes(sb *Superblock) error {
	var dirs bytes.Buffer
	t := tableWriter{
		w:      w,
		inodes: newMetaWriter(w.meta, w.out.write),
		dirs: newMetaWriter(w.meta, func(block []byte) error {
			dirs.Write(block)
			return nil
		}),
	}
	t.number(rootNode)
	root := w.tree.nodes.at(rootNode)
	w.tree.refs.add(noRef)
	root.number = w.tree.refs.n
	sb.Inodes = w.tree.refs.n

	listing, err := t.writeDir(rootNode)
	if err != nil {
		return err
	}
	// The root has no parent in the image; by custom its parent is a number that no inode has.
	sb.Root = t.inodes.at()
	*w.tree.refs.at(root.number - 1) = sb.Root
	if err := t.writeInode(root, sb.Inodes+1, listing); err != nil {
		return err
	}
	if err := t.inodes.flush(); err != nil {
		return err
	}
	if err := t.dirs.flush(); err != nil {
		return err
	}
	if t.inodes.done > math.MaxUint32 || t.dirs.done > math.MaxUint32 {
		return fmt.Errorf("tables of %d and %d bytes: the format has room for 4 GiB each", t.inodes.done, t.dirs.done)
	}
	sb.DirTable = uint64(w.out.pos())
	return w.out.write(dirs.Bytes())
}

// noRef marks an inode that is not written yet.
const noRef = ^Ref(0)

type tableWriter struct {
	w      *Writer
	inodes *metaWriter
	dirs   *metaWriter
	buf    []byte
	blocks []uint32
}

// number sorts the entries of a directory and of all below it, and numbers
// their inodes.
func (t *tableWriter) number(dir uint32) {
	tree := t.w.tree
	d := tree.nodes.at(dir)
	list := tree.list(dir)
	slices.SortFunc(list, func(a, b uint32) int {
		return bytes.Compare(tree.nameOf(tree.entries.at(a)), tree.nameOf(tree.entries.at(b)))
	})
	d.data = noEntry
	for i := len(list) - 1; i >= 0; i-- {
		e := tree.entries.at(list[i])
		e.next, d.data = d.data, list[i]
	}
	list = nil // what follows goes deep
	for e := range tree.each(dir) {
		if tree.nodes.at(e.node).typ == TypeDir {
			d.links++
			t.number(e.node)
		}
	}
	d.links++ // "."
	for e := range tree.each(dir) {
		if n := tree.nodes.at(e.node); n.number == 0 {
			tree.refs.add(noRef)
			n.number = tree.refs.n
		}
	}
}

// listing is where a directory's entries lie.
type listing struct {
	at    Ref
	size  uint64
	index []dirIndexEntry
}

// writeDir writes all that lies below a directory, the inodes of its entries
// and its listing, but not its own inode.
func (t *tableWriter) writeDir(dir uint32) (listing, error) {
	tree := t.w.tree
	var below []listing // of the subdirectories, in order
	for e := range tree.each(dir) {
		if tree.nodes.at(e.node).typ != TypeDir {
			continue
		}
		l, err := t.writeDir(e.node)
		if err != nil {
			return listing{}, err
		}
		below = append(below, l)
	}
	number := tree.nodes.at(dir).number
	for e := range tree.each(dir) {
		n := tree.nodes.at(e.node)
		var l listing
		if n.typ == TypeDir {
			l, below = below[0], below[1:]
		}
		ref := tree.refs.at(n.number - 1)
		if *ref != noRef {
			continue // a hard link's inode is written once
		}
		*ref = t.inodes.at()
		if err := t.writeInode(n, number, l); err != nil {
			return listing{}, err
		}
	}
	return t.writeListing(dir)
}

// writeListing writes a directory's entries (format.adoc section 6).
func (t *tableWriter) writeListing(dir uint32) (listing, error) {
	tree := t.w.tree
	l := listing{at: t.dirs.at()}
	w := dirWriter{out: t.dirs, list: &l}
	for e := range tree.each(dir) {
		n := tree.nodes.at(e.node)
		w.add(tree.nameOf(e), n.typ, n.number, *tree.refs.at(n.number - 1))
	}
	w.flush()
	if l.size+dirSizeBias > math.MaxUint32 {
		return listing{}, fmt.Errorf("directory of %d bytes of entries: the format has room for 4 GiB", l.size)
	}
	if l.size <= metaSize {
		l.index = nil // nothing to skip
	}
	return l, nil
}

// dirWriter gathers entries into runs, which share a header.
type dirWriter struct {
	out     *metaWriter
	list    *listing
	run     []byte // entries of the present run
	count   int
	block   uint32 // the inode block of the run
	first   uint32 // the inode number that the run's entries are relative to
	indexed uint64 // where in the listing the last index entry points
}

func (d *dirWriter) add(name []byte, typ Type, number uint32, ref Ref) {
	delta := int64(number) - int64(d.first)
	full := d.count == dirMaxRun || uint32(ref.block()) != d.block || delta != int64(int16(delta))
	// A reader that skips by the index must find a header there, so each stretch
	// of 8 KiB begins a run.
	offset := d.list.size + dirHeaderSize + uint64(len(d.run))
	stretch := offset+dirEntrySize+uint64(len(name)) > d.indexed+metaSize
	if d.count > 0 && (full || stretch) {
		d.flush()
	}
	if d.count == 0 {
		d.block, d.first = uint32(ref.block()), number
		if stretch {
			d.index(name)
		}
	}
	d.run = le.AppendUint16(d.run, uint16(ref.offset()))
	d.run = le.AppendUint16(d.run, uint16(int16(int64(number)-int64(d.first))))
	d.run = le.AppendUint16(d.run, uint16(typ))
	d.run = le.AppendUint16(d.run, uint16(len(name)-1))
	d.run = append(d.run, name...)
	d.count++
}

// index makes an index entry for the run that begins with name. The count has
// 16 bits; readers go on from the last entry.
func (d *dirWriter) index(name []byte) {
	d.indexed = d.list.size
	if len(d.list.index) < math.MaxUint16 {
		d.list.index = append(d.list.index, dirIndexEntry{
			offset: uint32(d.list.size), block: uint32(d.out.at().block()), name: string(name),
		})
	}
}

func (d *dirWriter) flush() {
	if d.count == 0 {
		return
	}
	var head [dirHeaderSize]byte
	le.PutUint32(head[:], uint32(d.count-1))
	le.PutUint32(head[4:], d.block)
	le.PutUint32(head[8:], d.first)
	d.out.write(head[:])
	d.out.write(d.run)
	d.list.size += dirHeaderSize + uint64(len(d.run))
	d.run, d.count = d.run[:0], 0
}

// writeInode writes a node as an inode. parent and l are for directories.
func (t *tableWriter) writeInode(n *node, parent uint32, l listing) error {
	in := Inode{
		Type: n.typ, Perm: n.perm, MTime: n.mtime, Number: n.number, Links: n.links, Size: n.size,
		xattr: n.xattr, fragment: none32,
	}
	var tail inodeTail
	switch n.typ {
	case TypeDir:
		in.Parent, in.Size, tail.index = parent, l.size, l.index
		in.dirBlock, in.dirOffset = uint32(l.at.block()), uint16(l.at.offset())
	case TypeFile:
		t.fileData(n, &in)
		tail.blocks = t.blocks
	case TypeSymlink:
		tail.target = string(t.w.tree.bytes.get(n.data, int(n.size)))
	case TypeBlockDevice, TypeCharDevice:
		in.Rdev = n.data
	}
	t.buf = in.appendTo(t.buf[:0], n.uid, n.gid, &tail)
	t.inodes.write(t.buf)
	return t.inodes.err
}

// fileData fills in where a file's content lies, and its block list.
func (t *tableWriter) fileData(n *node, in *Inode) {
	t.blocks = t.blocks[:0]
	if n.data == noContent {
		return
	}
	c, sizes := t.w.contentOf(n.data)
	in.start, in.fragment, in.fragOffset = c.start, c.fragment, c.fragOffset
	bs := uint64(t.w.opt.BlockSize)
	for i := range blockCount(n.size, bs, c.fragment) {
		size := *sizes.at(c.blocks + uint32(i))
		t.blocks = append(t.blocks, size)
		if size == 0 {
			in.Sparse += min(bs, n.size-i*bs)
		}
	}
}

// contentOf returns a file's content and the list that its block sizes are in.
func (w *Writer) contentOf(id uint32) (content, *chunked[uint32]) {
	if id&splicedContent != 0 {
		return *w.splices.contents.at(id &^ splicedContent), &w.splices.sizes
	}
	return *w.content.contents.at(id), &w.content.sizes
}
