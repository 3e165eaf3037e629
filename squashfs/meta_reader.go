package squashfs

import (
	"fmt"
)

// metaTable is the extent of a run of metadata blocks in the image.
type metaTable struct {
	name       string
	start, end uint64
}

// capacity returns the most bytes that the table can expand to: a block takes a
// header and a byte at least.
func (t *metaTable) capacity() uint64 { return (t.end-t.start)/(metaHeaderLen+1)*metaSize + metaSize }

// lookupTable is a table of records of one size, cut into metadata blocks whose
// places a list gives.
type lookupTable struct {
	name  string
	n     uint32 // records
	size  int    // bytes of a record, a divisor of 8192
	first uint64 // the blocks lie from here
	end   uint64 // to here
	list  uint64 // where the list of their places begins
	// The list's head; what is longer is read as needed, so that no image makes us
	// hold much.
	places []uint64
}

const maxPlaces = 8192 // 64 KiB; room for 8 million inodes

func (r *Reader) readMeta(pos, end uint64) (block, error) {
	if pos >= end || end-pos <= metaHeaderLen {
		return block{}, corrupt("metadata block at %d lies outside its table, which ends at %d", pos, end)
	}
	b, err := r.get(pos, keyMeta, metaSize)
	if err != nil {
		return block{}, err
	}
	if uint64(b.disk) > end-pos {
		b.release()
		return block{}, corrupt("metadata block at %d reaches over the end of its table at %d", pos, end)
	}
	return b, nil
}

// loadMeta decodes the metadata block at pos.
func (r *Reader) loadMeta(pos uint64, dst []byte) (n, disk int, err error) {
	buf := r.cache.scratch.buffer(metaHeaderLen + metaSize)
	defer r.cache.scratch.putBuffer(buf)
	// One read for header and content: most blocks are shorter, but a second system
	// call costs more than the bytes.
	in := (*buf)[:min(metaHeaderLen+metaSize, r.sb.BytesUsed-pos)]
	if err := r.readAt(in, pos); err != nil {
		return 0, 0, err
	}
	head := le.Uint16(in)
	size := int(head &^ metaRaw)
	disk = metaHeaderLen + size
	if size == 0 || size > metaSize || disk > len(in) {
		return 0, 0, corrupt("metadata block at %d has the size %d", pos, size)
	}
	if head&metaRaw != 0 {
		return copy(dst, in[metaHeaderLen:disk]), disk, nil
	}
	n, err = r.dec.decompress(dst, in[metaHeaderLen:disk])
	if err == nil && n == 0 {
		err = corrupt("it is empty")
	}
	if err != nil {
		return 0, 0, fmt.Errorf("metadata block at %d: %w", pos, err)
	}
	return n, disk, nil
}

// metaCursor reads a table's bytes from some place on. It pins the block that it
// is in until release, after which it may be used on.
type metaCursor struct {
	r   *Reader
	t   *metaTable
	at  uint64 // of the block, in the image
	off int    // in the block
	blk block
	buf [64]byte // for what spans blocks
}

// cursor returns a cursor at the given place, whose block is relative to the
// table's start.
func (r *Reader) cursor(t *metaTable, block uint64, off int) metaCursor {
	at := t.end // nothing can be read there
	if block < t.end-t.start {
		at = t.start + block
	}
	return metaCursor{r: r, t: t, at: at, off: off}
}

// ref returns where the next byte lies.
func (c *metaCursor) ref() Ref {
	if c.blk.data != nil && c.off == len(c.blk.data) {
		c.next()
	}
	return makeRef(c.at-c.t.start, c.off)
}

// atEnd says whether the table ends here.
func (c *metaCursor) atEnd() bool {
	c.ref()
	return c.at >= c.t.end
}

func (c *metaCursor) next() {
	c.at += uint64(c.blk.disk)
	c.off = 0
	c.blk.release()
}

// load makes sure that there is a byte to read.
func (c *metaCursor) load() error {
	for {
		if c.blk.data == nil {
			b, err := c.r.readMeta(c.at, c.t.end)
			if err != nil {
				return fmt.Errorf("%s table: %w", c.t.name, err)
			}
			c.blk = b
		}
		if c.off < len(c.blk.data) {
			return nil
		}
		if c.off > len(c.blk.data) {
			return corrupt("%s table: offset %d in the block at %d, which has %d bytes", c.t.name, c.off, c.at, len(c.blk.data))
		}
		c.next()
	}
}

// some returns up to n bytes, at least one, that lie in one block. They are valid
// until the next call.
func (c *metaCursor) some(n int) ([]byte, error) {
	if err := c.load(); err != nil {
		return nil, err
	}
	b := c.blk.data[c.off:min(c.off+n, len(c.blk.data))]
	c.off += len(b)
	return b, nil
}

// read returns the next n bytes. They are valid until the next call.
func (c *metaCursor) read(n int) ([]byte, error) {
	if n == 0 {
		return nil, nil
	}
	b, err := c.some(n)
	if err != nil || len(b) == n {
		return b, err
	}
	buf := c.buf[:0]
	if n > len(c.buf) {
		buf = make([]byte, 0, n)
	}
	for {
		buf = append(buf, b...)
		if len(buf) == n {
			return buf, nil
		}
		if b, err = c.some(n - len(buf)); err != nil {
			return nil, err
		}
	}
}

// skip goes n bytes on, for which it decodes the blocks between.
func (c *metaCursor) skip(n uint64) error {
	for n > 0 {
		b, err := c.some(int(min(n, metaSize)))
		if err != nil {
			return err
		}
		n -= uint64(len(b))
	}
	return nil
}

// release unpins the block.
func (c *metaCursor) release() { c.blk.release() }

// openTables finds the tables' extents and loads the ids.
func (r *Reader) openTables() error {
	sb := &r.sb
	r.inodeTable = metaTable{"inode", sb.InodeTable, sb.DirTable}
	r.fragTable = lookupTable{name: "fragment", n: sb.Fragments, size: fragEntrySize, list: sb.FragmentTable}
	r.exportTable = lookupTable{name: "export", n: sb.Inodes, size: exportSize, list: sb.ExportTable}
	ids := lookupTable{name: "id", n: uint32(sb.IDs), size: idSize, list: sb.IDTable}
	first, dirEnd := sb.DirTable, uint64(noTable)
	for _, t := range []*lookupTable{&r.fragTable, &r.exportTable, &ids} {
		if t.list == noTable {
			t.n = 0
		}
		if t.n == 0 {
			continue
		}
		t.first, t.end = first, t.list
		if err := r.openLookup(t); err != nil {
			return err
		}
		first = t.list + lookupListLen(t.n, t.size)
		dirEnd = min(dirEnd, t.places[0])
	}
	r.dirTable = metaTable{"directory", sb.DirTable, dirEnd}
	if err := r.loadIDs(&ids); err != nil {
		return err
	}
	return r.openXattrs(first)
}

// openLookup reads the head of a table's list. That the whole list lies within
// the image is proved before.
func (r *Reader) openLookup(t *lookupTable) error {
	raw := make([]byte, min(lookupListLen(t.n, t.size), maxPlaces*8))
	if err := r.readAt(raw, t.list); err != nil {
		return fmt.Errorf("%s table: %w", t.name, err)
	}
	t.places = make([]uint64, len(raw)/8)
	before := t.first
	for i := range t.places {
		p := le.Uint64(raw[i*8:])
		if p < before || p >= t.end {
			return corrupt("%s table: block %d at %d, it must lie from %d to %d", t.name, i, p, before, t.end)
		}
		t.places[i], before = p, p+1
	}
	return nil
}

// place returns where block i of a table lies.
func (r *Reader) place(t *lookupTable, i uint32) (uint64, error) {
	if int(i) < len(t.places) {
		return t.places[i], nil
	}
	var raw [8]byte
	if err := r.readAt(raw[:], t.list+uint64(i)*8); err != nil {
		return 0, fmt.Errorf("%s table: %w", t.name, err)
	}
	p := le.Uint64(raw[:])
	if p < t.first || p >= t.end {
		return 0, corrupt("%s table: block %d at %d, it must lie from %d to %d", t.name, i, p, t.first, t.end)
	}
	return p, nil
}

// record copies record i of a table to dst.
func (r *Reader) record(t *lookupTable, i uint32, dst []byte) error {
	if i >= t.n {
		return corrupt("%s %d of %d", t.name, i, t.n)
	}
	per := uint32(metaSize / t.size)
	pos, err := r.place(t, i/per)
	if err != nil {
		return err
	}
	b, err := r.readMeta(pos, t.end)
	if err != nil {
		return fmt.Errorf("%s table: %w", t.name, err)
	}
	defer b.release()
	at := int(i%per) * t.size
	if at+t.size > len(b.data) {
		return corrupt("%s table: block at %d has %d bytes, record %d would begin at %d", t.name, pos, len(b.data), i, at)
	}
	copy(dst, b.data[at:at+t.size])
	return nil
}

func (r *Reader) loadIDs(t *lookupTable) error {
	r.ids = make([]uint32, t.n)
	var raw [idSize]byte
	for i := range r.ids {
		if err := r.record(t, uint32(i), raw[:]); err != nil {
			return err
		}
		r.ids[i] = le.Uint32(raw[:])
	}
	return nil
}

// fragmentEntry returns where fragment block n lies, and its size as stored.
func (r *Reader) fragmentEntry(n uint32) (start uint64, size uint32, err error) {
	var raw [fragEntrySize]byte
	if err := r.record(&r.fragTable, n, raw[:]); err != nil {
		return 0, 0, err
	}
	return le.Uint64(raw[:]), le.Uint32(raw[8:]), nil
}
