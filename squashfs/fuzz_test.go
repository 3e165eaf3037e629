package squashfs

import (
	"bytes"
	"errors"
	"io/fs"
	"testing"
)

// wantKnown fails on an error that is none of the package's.
func wantKnown(t *testing.T, err error) {
	t.Helper()
	for _, known := range []error{nil, ErrCorrupt, ErrUnsupported, ErrNotSquashfs, fs.ErrNotExist, fs.ErrInvalid, errLoop, errNotDir} {
		if errors.Is(err, known) {
			return
		}
	}
	t.Errorf("unknown error: %v", err)
}

// tables are the contents of an image's metadata, to be stored as they are.
type tables struct {
	data                 []byte // behind the superblock
	inodes, dirs, xattrs []byte
	nInodes, nXattrs     uint32
	root                 Ref
}

// rawBlocks stores bytes as metadata blocks without compression.
func rawBlocks(out, content []byte) []byte {
	for len(content) > 0 {
		part := content[:min(len(content), metaSize)]
		content = content[len(part):]
		out = le.AppendUint16(out, metaRaw|uint16(len(part)))
		out = append(out, part...)
	}
	return out
}

// image puts tables into an image with one id, no fragments and no data.
func (x *tables) image() []byte {
	b := append(make([]byte, superblockSize), x.data...)
	sb := Superblock{
		Inodes: x.nInodes, BlockSize: 4096, Compression: Gzip, IDs: 1, Root: x.root,
		XattrTable: noTable, ExportTable: noTable, FragmentTable: noTable,
	}
	sb.InodeTable = uint64(len(b))
	b = rawBlocks(b, x.inodes)
	sb.DirTable = uint64(len(b))
	b = rawBlocks(b, x.dirs)
	ids := uint64(len(b))
	b = rawBlocks(b, make([]byte, idSize))
	sb.IDTable = uint64(len(b))
	b = le.AppendUint64(b, ids)
	if x.nXattrs > 0 {
		start := uint64(len(b))
		b = rawBlocks(b, x.xattrs)
		place := uint64(len(b))
		set := le.AppendUint64(nil, 0)
		set = le.AppendUint32(set, x.nXattrs)
		b = rawBlocks(b, le.AppendUint32(set, 0))
		sb.XattrTable = uint64(len(b))
		b = le.AppendUint64(b, start)
		b = le.AppendUint32(b, 1)
		b = le.AppendUint32(b, 0)
		b = le.AppendUint64(b, place)
	}
	sb.BytesUsed = uint64(len(b))
	copy(b, sb.marshal())
	return b
}

// open returns nil where the tables make no image, as empty ones do not.
func (x *tables) open(t *testing.T, c *Cache) *Reader {
	t.Helper()
	r, err := NewReader(readerOf(x.image()), ReaderOptions{Cache: c, Workers: 1})
	if err != nil {
		wantKnown(t, err)
		return nil
	}
	return r
}

// fuzzCache serves all runs of a target: making one for each takes longer than
// what is tested.
func fuzzCache(f *testing.F) *Cache {
	f.Helper()
	c, err := NewCache(0)
	must(f, err)
	f.Cleanup(func() { must(f, c.Close()) })
	return c
}

func FuzzImage(f *testing.F) {
	for _, b := range damageImages(f) {
		f.Add(b)
	}
	c := fuzzCache(f)
	f.Fuzz(func(t *testing.T, b []byte) { wantKnown(t, tryImage(t, b, c)) })
}

func FuzzSuperblock(f *testing.F) {
	for _, b := range damageImages(f) {
		f.Add(b[:superblockSize], int64(len(b)))
		f.Add(b[:superblockSize], int64(-1))
	}
	f.Fuzz(func(t *testing.T, b []byte, size int64) {
		sb, err := parseSuperblock(b, size)
		if err != nil {
			wantKnown(t, err)
			return
		}
		if !bytes.Equal(sb.marshal(), b[:superblockSize]) {
			t.Errorf("%x becomes %x", b[:superblockSize], sb.marshal())
		}
	})
}

// tableOf returns a metadata table's content.
func tableOf(f *testing.F, r *Reader, t *metaTable) []byte {
	f.Helper()
	c := r.cursor(t, 0, 0)
	defer c.release()
	var out []byte
	for !c.atEnd() {
		b, err := c.some(metaSize)
		must(f, err)
		out = append(out, b...)
	}
	return out
}

func FuzzInode(f *testing.F) {
	for _, b := range damageImages(f) {
		r, err := NewReader(readerOf(b), ReaderOptions{})
		must(f, err)
		f.Add(tableOf(f, r, &r.inodeTable), uint16(0))
		must(f, r.Close())
	}
	c := fuzzCache(f)
	f.Fuzz(func(t *testing.T, b []byte, at uint16) {
		r := (&tables{inodes: b, nInodes: 1000}).open(t, c)
		if r == nil {
			return
		}
		defer r.Close()
		k := &checker{ctx: t.Context(), r: r, o: CheckOptions{MaxProblems: 5}}
		n := 0
		err := k.scan(func(i *Inode, ref Ref) error {
			if n++; n > len(b) {
				t.Fatalf("%d inodes in %d bytes", n, len(b))
			}
			return nil
		})
		if err != nil && err != errEnough {
			wantKnown(t, err)
		}
		i, err := r.Inode(makeRef(0, int(at)))
		wantKnown(t, err)
		if err != nil {
			return
		}
		_, err = r.ReadLink(i)
		if i.Type == TypeSymlink {
			wantKnown(t, err)
		}
		blocks := 0
		for _, err := range r.blockSizes(i) {
			wantKnown(t, err)
			if blocks++; blocks > len(b) {
				t.Fatalf("%d blocks in %d bytes", blocks, len(b))
			}
		}
		wantKnown(t, r.scanIndex(&i, func(*dirIndexEntry, []byte) bool { return true }))
	})
}

func FuzzDir(f *testing.F) {
	for _, b := range damageImages(f) {
		r, err := NewReader(readerOf(b), ReaderOptions{})
		must(f, err)
		f.Add(tableOf(f, r, &r.dirTable), uint16(0), "hello", uint64(513))
		must(f, r.Close())
	}
	c := fuzzCache(f)
	f.Fuzz(func(t *testing.T, b []byte, off uint16, name string, pos uint64) {
		dir := Inode{Type: TypeDir, Number: 1, Links: 2, Size: uint64(min(len(b), 1<<16-4)), dirOffset: off % metaSize}
		dir.Parent = 1000
		// Room for the inodes that entries may name.
		inodes := append(dir.appendTo(nil, 0, 0, &inodeTail{}), make([]byte, 4*metaSize)...)
		r := (&tables{inodes: inodes, dirs: b, nInodes: 999}).open(t, c)
		if r == nil {
			return
		}
		defer r.Close()
		root, err := r.Root()
		if err != nil {
			wantKnown(t, err)
			return
		}
		var all []DirEntry
		for e, err := range r.ReadDir(root) {
			wantKnown(t, err)
			if err == nil {
				all = append(all, e)
			}
		}
		if len(all)*(dirEntrySize+1) > len(b) {
			t.Fatalf("%d entries in %d bytes", len(all), len(b))
		}
		for k, e := range all {
			if k > 0 && all[k-1].Name >= e.Name {
				t.Fatalf("%q follows %q", e.Name, all[k-1].Name)
			}
			found, err := r.lookupEntry(&root, e.Name)
			if err != nil || found != e {
				t.Fatalf("%q: %+v, %v; want %+v", e.Name, found, err, e)
			}
			for next, err := range r.ReadDirFrom(root, e.Next) {
				if k+1 < len(all) && (err != nil || next != all[k+1]) {
					t.Fatalf("behind %q: %+v, %v; want %+v", e.Name, next, err, all[k+1])
				}
				break
			}
		}
		_, err = r.Lookup(root, name)
		wantKnown(t, err)
		for _, err := range r.ReadDirFrom(root, DirPos(pos)) {
			wantKnown(t, err)
		}
	})
}

func FuzzXattr(f *testing.F) {
	for _, b := range damageImages(f) {
		r, err := NewReader(readerOf(b), ReaderOptions{})
		must(f, err)
		if r.xattrIDTab.n > 0 {
			f.Add(tableOf(f, r, &r.xattrTable), uint32(2))
		}
		must(f, r.Close())
	}
	c := fuzzCache(f)
	dir := Inode{Type: TypeDir, Number: 1, Links: 2, Parent: 2}
	f.Fuzz(func(t *testing.T, b []byte, n uint32) {
		if n == 0 || len(b) == 0 {
			return
		}
		r := (&tables{inodes: dir.appendTo(nil, 0, 0, &inodeTail{}), xattrs: b, nInodes: 1, nXattrs: n}).open(t, c)
		if r == nil {
			return
		}
		defer r.Close()
		set, err := r.Xattrs(Inode{Number: 1})
		wantKnown(t, err)
		total := 0
		for _, x := range set {
			total += len(x.Name) + len(x.Value)
		}
		if total > maxXattrSet || (err == nil && len(set) != int(n)) {
			t.Errorf("%d xattrs of %d, %d bytes", len(set), n, total)
		}
	})
}

// FuzzMetadata reads bytes as a run of metadata blocks.
func FuzzMetadata(f *testing.F) {
	for _, b := range damageImages(f) {
		r, err := NewReader(readerOf(b), ReaderOptions{})
		must(f, err)
		f.Add(b[r.inodeTable.start:r.inodeTable.end], uint16(r.sb.Compression), uint16(20), uint16(3))
		must(f, r.Close())
	}
	c := fuzzCache(f)
	f.Fuzz(func(t *testing.T, b []byte, comp, n, off uint16) {
		img := append(make([]byte, superblockSize), b...)
		r := &Reader{src: readerOf(img), sb: Superblock{BytesUsed: uint64(len(img)), BlockSize: 4096}, cache: c, id: c.newReader()}
		r.configure(ReaderOptions{Cache: c})
		var err error
		if r.dec, err = newDecompressor(Compression(comp%6+1), 4096, &scratch{}); err != nil {
			return
		}
		table := metaTable{"fuzzed", superblockSize, uint64(len(img))}
		cur := r.cursor(&table, 0, int(off))
		defer cur.release()
		total := 0
		for err == nil {
			var p []byte
			p, err = cur.read(int(n)%300 + 1)
			total += len(p)
			if uint64(total) > table.capacity() {
				t.Fatalf("%d bytes of %d blocks", total, len(b))
			}
		}
		wantKnown(t, err)
	})
}

func FuzzZstd(f *testing.F) { fuzzDecompressor(f, Zstd, "zstd") }
func FuzzGzip(f *testing.F) { fuzzDecompressor(f, Gzip, "gzip") }
func FuzzLZ4(f *testing.F)  { fuzzDecompressor(f, LZ4, "lz4") }
func FuzzXZ(f *testing.F)   { fuzzDecompressor(f, XZ, "xz") }
func FuzzLZO(f *testing.F)  { fuzzDecompressor(f, LZO, "lzo") }

// fuzzDecompressor proves that a decompressor stays within its buffer and that
// what it gives follows from its input, not from what was in the buffer.
func fuzzDecompressor(f *testing.F, comp Compression, image string) {
	b := damageImages(f)[image+".sqfs"]
	r, err := NewReader(readerOf(b), ReaderOptions{})
	must(f, err)
	for _, at := range []uint64{r.sb.InodeTable, r.sb.DirTable, r.exportTable.places[0]} {
		n := uint64(le.Uint16(b[at:]) &^ metaRaw)
		f.Add(b[at+2 : at+2+n])
	}
	must(f, r.Close())
	d, err := newDecompressor(comp, 4096, &scratch{})
	must(f, err)
	const guard = 64
	f.Fuzz(func(t *testing.T, src []byte) {
		if len(src) > metaSize {
			return
		}
		var out [2][]byte
		var ok [2]bool
		for i, fill := range []byte{0x55, 0xAA} {
			buf := bytes.Repeat([]byte{fill}, metaSize+guard)
			n, err := d.decompress(buf[:metaSize:metaSize], src)
			if err != nil && !errors.Is(err, ErrCorrupt) {
				t.Errorf("unknown error: %v", err)
			}
			if n > metaSize || len(bytes.Trim(buf[metaSize:], string([]byte{fill}))) > 0 {
				t.Fatalf("wrote behind the end")
			}
			out[i], ok[i] = buf[:n], err == nil
		}
		if ok[0] != ok[1] || (ok[0] && !bytes.Equal(out[0], out[1])) {
			t.Errorf("the output depends on what was in the buffer: %v %d, %v %d", ok[0], len(out[0]), ok[1], len(out[1]))
		}
	})
}
