package squashfs

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func readAll(t testing.TB, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	must(t, err)
	return b
}

func readerOf(b []byte) *bytes.Reader { return bytes.NewReader(b) }

func patched(b []byte, at int64, to []byte) []byte {
	b = bytes.Clone(b)
	copy(b[at:], to)
	return b
}

// plainImage returns a small image whose metadata is stored as it is, so that
// its fields can be changed in place.
func plainImage(t testing.TB, args ...string) (*Reader, []byte) {
	t.Helper()
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "hello"), pattern(1, 5000), 0o644))
	must(t, os.Link(filepath.Join(dir, "hello"), filepath.Join(dir, "hello2")))
	must(t, os.WriteFile(filepath.Join(dir, "big"), pattern(2, 300_000), 0o644))
	must(t, os.MkdirAll(filepath.Join(dir, "sub/deeper/deepest"), 0o755))
	must(t, os.WriteFile(filepath.Join(dir, "sub/file"), []byte("x"), 0o644))
	must(t, os.Symlink("hello", filepath.Join(dir, "link")))
	must(t, unix.Setxattr(filepath.Join(dir, "hello"), "user.one", []byte("value of one"), 0))
	must(t, unix.Setxattr(filepath.Join(dir, "big"), "user.two", []byte("value of two"), 0))
	img := mksquashfs(t, dir, append([]string{"-comp", "zstd", "-noI", "-noX", "-noId"}, args...)...)
	return openImage(t, img, ReaderOptions{}), readAll(t, img)
}

// rawAt returns where a byte of a table that is stored raw lies in the image.
func rawAt(r *Reader, t *metaTable, ref Ref) int64 {
	return int64(t.start+ref.block()) + metaHeaderLen + int64(ref.offset())
}

func rawRecord(r *Reader, t *lookupTable, n uint32) int64 {
	per := uint32(metaSize / t.size)
	return int64(t.places[n/per]) + metaHeaderLen + int64(n%per)*int64(t.size)
}

// exercise reads all there is, within limits, and returns the first error. It
// must come to an end on any bytes.
func exercise(r *Reader) error {
	l := limits{nodes: 5000, bytes: 64 << 20}
	var first error
	note := func(err error) {
		if err != nil && first == nil {
			first = err
		}
	}
	note(l.walk(r))
	for n := range min(r.xattrIDTab.n, 100) {
		_, err := r.xattrSet(n)
		note(err)
	}
	for n := range min(r.sb.Inodes, 100) {
		_, err := r.InodeByNumber(n + 1)
		if r.exportable() {
			note(err)
		}
	}
	return first
}

type limits struct {
	nodes int
	bytes int64
	sink  hashSink
}

// hashSink forgets what is written to it.
type hashSink struct{}

func (hashSink) Write(p []byte) (int, error) { return len(p), nil }

var errLimit = errors.New("limit of the test")

func (l *limits) walk(r *Reader) error {
	var first error
	v := r.FS()
	err := fs.WalkDir(v, ".", func(path string, d fs.DirEntry, err error) error {
		if err == nil {
			err = l.visit(r, path, d)
		}
		if err == errLimit {
			return err
		}
		if err != nil && first == nil {
			first = err
		}
		return nil
	})
	if first == nil && err != errLimit {
		first = err
	}
	return first
}

func (l *limits) visit(r *Reader, path string, d fs.DirEntry) error {
	if l.nodes--; l.nodes < 0 {
		return errLimit
	}
	fi, err := d.Info()
	if err != nil {
		return err
	}
	i := fi.Sys().(*Inode)
	if _, err := r.Xattrs(*i); err != nil {
		return err
	}
	switch i.Type {
	case TypeSymlink:
		_, err = r.ReadLink(*i)
	case TypeFile:
		err = l.read(r, *i)
	case TypeDir:
		_, err = r.Lookup(*i, "nobody")
		if errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
	}
	return err
}

func (l *limits) read(r *Reader, i Inode) error {
	f, err := r.OpenFile(i)
	if err != nil {
		return err
	}
	defer f.Close()
	n, err := io.Copy(l.sink, io.LimitReader(f, l.bytes))
	if l.bytes -= n; l.bytes <= 0 {
		return errLimit
	}
	if n < f.Size() && err == nil {
		err = fmt.Errorf("%d bytes of %d", n, f.Size())
	}
	return err
}

// tryImage opens and reads an image of any bytes.
func tryImage(t testing.TB, b []byte, c *Cache) error {
	t.Helper()
	r, err := NewReader(readerOf(b), ReaderOptions{Workers: 2, Cache: c})
	if err != nil {
		return err
	}
	defer func() { must(t, r.Close()) }()
	return errors.Join(exercise(r), Check(t.Context(), r, CheckOptions{}))
}

func TestHostileSuperblocks(t *testing.T) {
	r, b := plainImage(t)
	sb := r.sb
	u16 := func(v uint16) []byte { return le.AppendUint16(nil, v) }
	u32 := func(v uint32) []byte { return le.AppendUint32(nil, v) }
	u64 := func(v uint64) []byte { return le.AppendUint64(nil, v) }
	for _, c := range []struct {
		name string
		at   int64
		to   []byte
		want error
	}{
		{"no magic", 0, u32(0), ErrNotSquashfs},
		{"big endian", 0, []byte("sqsh"), ErrNotSquashfs},
		{"version 3.1", 28, []byte{3, 0, 1, 0}, ErrUnsupported},
		{"version 4.1", 28, []byte{4, 0, 1, 0}, ErrUnsupported},
		{"compressor 0", 20, u16(0), ErrUnsupported},
		{"compressor 7", 20, u16(7), ErrUnsupported},
		{"compressor lzma", 20, u16(2), ErrUnsupported},
		{"block size 0", 12, u32(0), ErrCorrupt},
		{"block size 2^31", 12, u32(1 << 31), ErrCorrupt},
		{"block size 2 MiB", 12, u32(2 << 20), ErrCorrupt},
		{"block size 2 KiB", 12, u32(2 << 10), ErrCorrupt},
		{"block size 100,000", 12, u32(100_000), ErrCorrupt},
		{"block logarithm", 22, u16(16), ErrCorrupt},
		{"block logarithm 65535", 22, u16(65535), ErrCorrupt},
		{"no inodes", 4, u32(0), ErrCorrupt},
		{"2^32-1 inodes", 4, u32(1<<32 - 1), ErrCorrupt},
		{"no ids", 26, u16(0), ErrCorrupt},
		{"65535 ids", 26, u16(65535), ErrCorrupt},
		{"2^32-1 fragments", 16, u32(1<<32 - 1), ErrCorrupt},
		{"length 0", 40, u64(0), ErrCorrupt},
		{"length 2^63", 40, u64(1 << 63), ErrCorrupt},
		{"length over the file", 40, u64(uint64(len(b)) + 1), ErrCorrupt},
		{"root outside", 32, u64(1 << 40), ErrCorrupt},
		{"root offset outside", 32, u64(9000), ErrCorrupt},
		{"inode table in the superblock", 64, u64(10), ErrCorrupt},
		{"inode table behind the directories", 64, u64(sb.DirTable + 1), ErrCorrupt},
		{"inode table absent", 64, u64(noTable), ErrCorrupt},
		{"directories before the inodes", 72, u64(sb.InodeTable - 1), ErrCorrupt},
		{"directories outside", 72, u64(sb.BytesUsed + 1), ErrCorrupt},
		{"directories absent", 72, u64(noTable), ErrCorrupt},
		{"fragments before the directories", 80, u64(sb.DirTable - 1), ErrCorrupt},
		{"fragments absent", 80, u64(noTable), ErrCorrupt},
		{"export table over the fragments", 88, u64(sb.FragmentTable), ErrCorrupt},
		{"export table outside", 88, u64(sb.BytesUsed - 1), ErrCorrupt},
		{"ids over the export table", 48, u64(sb.ExportTable), ErrCorrupt},
		{"ids absent", 48, u64(noTable), ErrCorrupt},
		{"ids outside", 48, u64(1 << 62), ErrCorrupt},
		{"xattrs over the ids", 56, u64(sb.IDTable), ErrCorrupt},
		{"xattrs outside", 56, u64(sb.BytesUsed - 15), ErrCorrupt},
		{"fragment list backwards", int64(sb.FragmentTable), u64(10), ErrCorrupt},
		{"fragment list forwards", int64(sb.FragmentTable), u64(sb.FragmentTable), ErrCorrupt},
		{"export list backwards", int64(sb.ExportTable), u64(sb.DirTable), ErrCorrupt},
		{"id list backwards", int64(sb.IDTable), u64(sb.ExportTable), ErrCorrupt},
		{"xattr values backwards", int64(sb.XattrTable), u64(96), ErrCorrupt},
		{"xattr values forwards", int64(sb.XattrTable), u64(sb.XattrTable), ErrCorrupt},
		{"2^32-1 xattrs", int64(sb.XattrTable) + 8, u32(1<<32 - 1), ErrCorrupt},
	} {
		if err := tryImage(t, patched(b, c.at, c.to), nil); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
	}
	for n := range superblockSize {
		if err := tryImage(t, b[:n], nil); !errors.Is(err, ErrNotSquashfs) {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
}

// TestHostileDirectories makes trees that have no end.
func TestHostileDirectories(t *testing.T) {
	for _, exports := range []string{"", "-no-exports"} {
		r, b := plainImage(t, strings.Fields(exports)...)
		root, err := r.Root()
		must(t, err)
		sub, err := r.Lookup(root, "sub")
		must(t, err)
		deeper, err := r.Lookup(sub, "deeper")
		must(t, err)
		refs := map[string]Ref{}
		for e, err := range r.ReadDir(root) {
			must(t, err)
			refs[e.Name] = e.Ref
		}
		for e, err := range r.ReadDir(sub) {
			must(t, err)
			refs[e.Name] = e.Ref
		}
		listing := func(i Inode) int64 {
			return rawAt(r, &r.dirTable, makeRef(uint64(i.dirBlock), int(i.dirOffset)))
		}
		field := func(ref Ref, off int64) int64 { return rawAt(r, &r.inodeTable, ref) + off }
		// A directory's inode: block, links, size, offset and parent are at 16 to 32.
		own := func(i Inode) []byte {
			x := le.AppendUint32(nil, i.dirBlock)
			x = le.AppendUint32(x, i.Links)
			x = le.AppendUint16(x, uint16(i.Size+dirSizeBias))
			return le.AppendUint16(x, i.dirOffset)
		}
		all := []struct {
			name string
			img  []byte
		}{
			{"a directory with its parent's listing", patched(b, field(refs["deeper"], 16), own(sub))},
			{"a directory with the root's listing", patched(b, field(refs["sub"], 16), own(root))},
			{"the same, and its parent's number", patched(patched(b, field(refs["deeper"], 16), own(sub)),
				field(refs["deeper"], 12), le.AppendUint32(nil, sub.Number))},
			{"an entry that is its own directory", patched(patched(b, listing(sub)+12, le.AppendUint16(nil, uint16(refs["sub"].offset()))),
				listing(sub)+8, le.AppendUint32(nil, sub.Number))},
			{"a run of 257", patched(b, listing(root), le.AppendUint32(nil, 256))},
			{"a run of 2^32", patched(b, listing(root), le.AppendUint32(nil, 1<<32-1))},
			{"inodes outside", patched(b, listing(root)+4, le.AppendUint32(nil, 1<<31))},
			{"a name of 256", patched(b, listing(deeper)+12+6, le.AppendUint16(nil, 255))},
			{"an extended type", patched(b, listing(deeper)+12+4, le.AppendUint16(nil, 8))},
			{"type 0", patched(b, listing(deeper)+12+4, le.AppendUint16(nil, 0))},
			{"a slash", patched(b, listing(deeper)+12+8, []byte("/"))},
			{"a zero byte", patched(b, listing(deeper)+12+8+3, []byte{0})},
			{"an unsorted name", patched(b, listing(root)+12+8, []byte("z"))},
			{"a listing outside", patched(b, field(refs["sub"], 16), le.AppendUint32(nil, 1<<30))},
			{"a listing at an offset outside", patched(b, field(refs["sub"], 26), le.AppendUint16(nil, 8191))},
			{"a long listing", patched(b, field(refs["sub"], 24), le.AppendUint16(nil, 65535))},
		}
		for _, c := range all {
			start := time.Now()
			if err := tryImage(t, c.img, nil); !errors.Is(err, ErrCorrupt) {
				t.Errorf("%s %s: %v", c.name, exports, err)
			}
			if d := time.Since(start); d > 10*time.Second {
				t.Errorf("%s: took %v", c.name, d)
			}
		}
	}
}

func TestHostileIndices(t *testing.T) {
	r, b := plainImage(t)
	root, err := r.Root()
	must(t, err)
	refs := map[string]Ref{}
	for e, err := range r.ReadDir(root) {
		must(t, err)
		refs[e.Name] = e.Ref
	}
	field := func(name string, off int64) int64 { return rawAt(r, &r.inodeTable, refs[name]) + off }
	frag := rawRecord(r, &r.fragTable, 0)
	set := rawRecord(r, &r.xattrIDTab, 0)
	kv := int64(r.xattrTable.start) + metaHeaderLen
	u32 := func(v uint32) []byte { return le.AppendUint32(nil, v) }
	for _, c := range []struct {
		name string
		at   int64
		to   []byte
	}{
		{"inode type 0", field("link", 0), []byte{0, 0}},
		{"inode type 15", field("link", 0), []byte{15, 0}},
		{"inode type 65535", field("link", 0), []byte{255, 255}},
		{"uid", field("link", 4), []byte{200, 0}},
		{"gid", field("link", 6), []byte{200, 0}},
		{"number 0", field("link", 12), u32(0)},
		{"number too high", field("link", 12), u32(1 << 31)},
		{"target of 0", field("link", 20), u32(0)},
		{"target of 5000", field("link", 20), u32(5000)},
		{"target of 2^32-1", field("link", 20), u32(1<<32 - 1)},
		{"xattr index", field("hello", 52), u32(77)},
		{"fragment index", field("hello", 44), u32(1)},
		{"fragment offset", field("hello", 48), u32(1<<32 - 1)},
		{"size 2^62", field("hello", 24), le.AppendUint64(nil, 1<<62)},
		{"size 2^64-1", field("hello", 24), le.AppendUint64(nil, 1<<64-1)},
		{"data outside", field("big", 16), le.AppendUint64(nil, 1<<50)},
		{"data in the metadata", field("big", 16), le.AppendUint64(nil, r.sb.InodeTable-10)},
		{"data over the superblock", field("big", 16), le.AppendUint64(nil, 0)},
		{"data block over the block size", field("big", 56), u32(1<<17 + 1)},
		{"stored block over the block size", field("big", 56), u32(1<<24 | 1<<17 | 1)},
		{"data block with unknown bits", field("big", 56), u32(1 << 25)},
		{"fragment outside", frag, le.AppendUint64(nil, 1<<60)},
		{"fragment of 0", frag + 8, u32(0)},
		{"fragment over the block size", frag + 8, u32(1<<17 + 1)},
		{"xattrs outside", set, le.AppendUint64(nil, 1<<40)},
		{"xattrs at an offset outside", set, le.AppendUint64(nil, 8191)},
		{"2^32-1 xattrs of one inode", set + 8, u32(1<<32 - 1)},
		{"xattr prefix 3", kv, []byte{3, 0}},
		{"xattr prefix with unknown bits", kv, []byte{0, 2}},
		{"xattr name of 0", kv + 2, []byte{0, 0}},
		{"xattr name of 65535", kv + 2, []byte{255, 255}},
		{"xattr name with a zero byte", kv + 5, []byte{0}},
		{"xattr value of 2^32-1", kv + 7, u32(1<<32 - 1)},
		{"xattr value that is no reference", kv, []byte{0, 1}},
		{"metadata block of 0", int64(r.sb.InodeTable), []byte{0, 0x80}},
		{"metadata block of 8193", int64(r.sb.InodeTable), []byte{1, 0xA0}},
		{"metadata block that is no zstd frame", int64(r.sb.InodeTable) + 1, []byte{0}},
	} {
		if err := tryImage(t, patched(b, c.at, c.to), nil); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

// TestExpandsOverBlockSize has data blocks and metadata that are longer than they may be.
func TestExpandsOverBlockSize(t *testing.T) {
	for _, comp := range []Compression{Zstd, Gzip, LZ4} {
		w, err := newCompressor(comp, 0, 1<<20)
		must(t, err)
		d, err := newDecompressor(comp, 4096, &scratch{})
		must(t, err)
		for _, n := range []int{4097, 8193, 1 << 20} {
			src := w.compress(nil, make([]byte, n))
			dst := bytes.Repeat([]byte{0xAA}, 8192+64)
			for _, limit := range []int{4096, 8192} {
				got, err := d.decompress(dst[:limit:limit], src)
				if n > limit && !errors.Is(err, ErrCorrupt) {
					t.Errorf("%s: %d bytes into %d: %d, %v", comp, n, limit, got, err)
				}
				if limit == 8192 && len(bytes.Trim(dst[limit:], "\xAA")) > 0 {
					t.Errorf("%s: %d bytes into %d: wrote behind the end", comp, n, limit)
				}
			}
		}
	}
}

// TestSmallImagesTakeLittleMemory reads images that claim much.
func TestSmallImagesTakeLittleMemory(t *testing.T) {
	r, b := plainImage(t)
	c, err := NewCache(0)
	must(t, err)
	defer c.Close()
	for name, img := range map[string][]byte{
		"2^32-1 inodes":    patched(b, 4, le.AppendUint32(nil, 1<<32-1)),
		"2^32-1 fragments": patched(b, 16, le.AppendUint32(nil, 1<<32-1)),
		"2^32-1 xattrs":    patched(b, int64(r.sb.XattrTable)+8, le.AppendUint32(nil, 1<<32-1)),
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_ = tryImage(t, img, c)
		runtime.ReadMemStats(&after)
		if n := after.TotalAlloc - before.TotalAlloc; n > 32<<20 {
			t.Errorf("%s: %d bytes were allocated", name, n)
		}
	}
}
