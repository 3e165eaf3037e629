package squashfs

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Each test of the name TestTrap is a rule of the format that writers have
// broken. They look at the bytes on disk, not through this package's Reader.

// wRaw is an image whose blocks are all stored as they are, taken apart.
type wRaw struct {
	testing.TB
	img []byte
	sb  Superblock
}

func wRawImage(t testing.TB, o WriterOptions, items ...wItem) wRaw {
	t.Helper()
	o.Compression = Uncompressed
	out := &wMem{}
	info := wImageTo(t, out, o, items...)
	wSame(t, out, o, items...)
	return wRaw{t, out.b, info.Superblock}
}

// u64 reads the superblock as format.adoc section 3 numbers its fields.
func (r wRaw) u64(at int) uint64 { return le.Uint64(r.img[at:]) }

// meta joins the metadata blocks between two offsets. places gives, by a block's
// offset, where its content begins.
func (r wRaw) meta(from, to uint64) (data []byte, places map[uint64]int) {
	r.Helper()
	places = map[uint64]int{}
	for at := from; at < to; {
		head := le.Uint16(r.img[at:])
		n := uint64(head &^ metaRaw)
		if head&metaRaw == 0 || n > metaSize || n < metaSize && at+2+n != to {
			r.Fatalf("metadata block at %d: header %#x before %d", at, head, to)
		}
		places[at-from] = len(data)
		data = append(data, r.img[at+2:at+2+n]...)
		at += 2 + n
	}
	return data, places
}

// inode returns an inode's bytes, and its type on disk.
func (r wRaw) inode(name string) (b []byte, diskType uint16) {
	r.Helper()
	ref := r.sb.Root
	if name != "" {
		src, err := NewReader(&wMem{r.img}, ReaderOptions{})
		must(r, err)
		defer src.Close()
		dir, err := src.Root()
		must(r, err)
		for part := range strings.SplitSeq(name, "/") {
			e, err := src.lookupEntry(&dir, part)
			must(r, err)
			ref = e.Ref
			dir, err = src.Inode(ref)
			must(r, err)
		}
	}
	data, places := r.meta(r.sb.InodeTable, r.sb.DirTable)
	b = data[places[ref.block()]+ref.offset():]
	return b, le.Uint16(b)
}

// behindDirs is where the directory table ends.
func (r wRaw) behindDirs() uint64 {
	for _, list := range []uint64{r.sb.FragmentTable, r.sb.ExportTable, r.sb.IDTable} {
		if list != noTable {
			return le.Uint64(r.img[list:])
		}
	}
	r.Fatal("no table")
	return 0
}

func TestTrapSuperblock(t *testing.T) {
	o := WriterOptions{BlockSize: 65536, MakeTime: time.Unix(1234567890, 999)}
	r := wRawImage(t, o, wFile("f", []byte("x")))
	want := []uint32{0x73717368, 2, 1234567890, 65536, 1}
	for i, w := range want {
		if got := le.Uint32(r.img[i*4:]); got != w {
			t.Errorf("field %d is %d, want %d", i, got, w)
		}
	}
	// Compression gzip, log, flags, ids, version 4.0.
	for i, w := range []uint16{1, 16, 0x1 | 0x2 | 0x8 | 0x40 | 0x80 | 0x100 | 0x200 | 0x800, 1, 4, 0} {
		if got := le.Uint16(r.img[20+i*2:]); got != w {
			t.Errorf("half field %d is %#x, want %#x", i, got, w)
		}
	}
	if r.u64(40) != r.sb.BytesUsed || r.u64(32) != uint64(r.sb.Root) {
		t.Error("root or length differ from Info")
	}
	zero := wImage(t, WriterOptions{})
	if le.Uint32(zero.b[8:]) != 0 {
		t.Error("the time of making is not 0 by default")
	}
}

func TestTrapNoTableIsAllOnes(t *testing.T) {
	r := wRawImage(t, WriterOptions{NoExport: true, NoFragments: true}, wFile("f", []byte("x")))
	for name, at := range map[string]int{"xattr": 56, "fragment": 80, "export": 88} {
		if r.u64(at) != math.MaxUint64 {
			t.Errorf("%s table at %#x", name, r.u64(at))
		}
	}
	if r.u64(48) == math.MaxUint64 {
		t.Error("no id table")
	}
	if f := Flags(le.Uint16(r.img[24:])); f&FlagNoXattrs == 0 || f&FlagExportable != 0 || f&FlagNoFragments == 0 {
		t.Errorf("flags %#x", f)
	}
	wKernelTakes(t, r.img)
}

// wKernelTakes mounts an image where that can be done.
func wKernelTakes(t *testing.T, img []byte) {
	t.Helper()
	name := filepath.Join(t.TempDir(), "image")
	must(t, os.WriteFile(name, img, 0o600))
	t.Run("kernel", func(t *testing.T) {
		must(t, fs.WalkDir(os.DirFS(wMount(t, name)), ".", func(_ string, d fs.DirEntry, err error) error {
			if err == nil {
				_, err = d.Info()
			}
			return err
		}))
	})
}

func TestTrapTableOrder(t *testing.T) {
	r := wRawImage(t, WriterOptions{}, wFile("f", []byte("x")),
		wItem{Entry: Entry{Path: "x", Xattrs: []Xattr{{Name: "user.a", Value: []byte("b")}}}})
	before := uint64(96)
	// Inodes, directories, fragments, export, ids, xattrs.
	for _, at := range []int{64, 72, 80, 88, 48, 56} {
		if r.u64(at) <= before {
			t.Errorf("the table of field %d is at %d, behind %d", at, r.u64(at), before)
		}
		before = r.u64(at)
	}
	if before >= r.u64(40) {
		t.Errorf("the last table is at %d, the image ends at %d", before, r.u64(40))
	}
}

func TestTrapEmptyImage(t *testing.T) {
	for _, o := range []WriterOptions{{}, {NoExport: true, NoFragments: true}} {
		r := wRawImage(t, o)
		if r.sb.Inodes != 1 || r.sb.DirTable > r.behindDirs() {
			t.Errorf("%+v", r.sb)
		}
		wKernelTakes(t, r.img)
	}
}

func TestTrapLZ4OptionsMandatory(t *testing.T) {
	for level := range 2 {
		img := wImage(t, WriterOptions{Compression: LZ4, Level: level}).b
		want := []byte{8, 0x80, 1, 0, 0, 0, byte(level), 0, 0, 0}
		if !bytes.Equal(img[96:106], want) || Flags(le.Uint16(img[24:]))&FlagOptions == 0 {
			t.Errorf("level %d: options % x", level, img[96:106])
		}
	}
	for level, want := range map[int]uint32{0: 1, 1: 1, 19: 19} {
		img := wImage(t, WriterOptions{Level: level}).b
		if le.Uint16(img[96:]) != 0x8004 || le.Uint32(img[98:]) != want {
			t.Errorf("zstd level %d: options % x", level, img[96:102])
		}
	}
	for level, set := range map[int]bool{0: false, 9: false, 3: true} {
		img := wImage(t, WriterOptions{Compression: Gzip, Level: level}).b
		if got := Flags(le.Uint16(img[24:]))&FlagOptions != 0; got != set || set && le.Uint32(img[98:]) != 3 {
			t.Errorf("gzip level %d: options % x", level, img[96:106])
		}
	}
}

// TestTrapInodeSpansBlocks has an inode much longer than a metadata block.
func TestTrapInodeSpansBlocks(t *testing.T) {
	o := WriterOptions{BlockSize: 4096}
	r := wRawImage(t, o, wFile("a", nil), wFile("holes", make([]byte, 5000*4096)), wFile("z", nil))
	data, places := r.meta(r.sb.InodeTable, r.sb.DirTable) // which proves that all but the last are full
	if len(places) < 3 || len(data) != 2*32+56+5000*4+32 {
		t.Errorf("%d bytes in %d blocks", len(data), len(places))
	}
	wKernelTakes(t, r.img)
}

func TestTrapLookupTablesPointAtLists(t *testing.T) {
	var items []wItem
	for i := range 1500 { // of 8 bytes in the export table, and of ids with 4: two blocks of one, one of the other
		f := wFile(fmt.Sprintf("f%04d", i), nil)
		f.UID = uint32(i) + 7
		items = append(items, f)
	}
	r := wRawImage(t, WriterOptions{NoFragments: true}, items...)
	export := []uint64{le.Uint64(r.img[r.sb.ExportTable:]), le.Uint64(r.img[r.sb.ExportTable+8:])}
	if export[1] != export[0]+2+8192 || r.sb.ExportTable != export[1]+2+1501*8-8192 {
		t.Errorf("export list %d at %d", export, r.sb.ExportTable)
	}
	ids, _ := r.meta(le.Uint64(r.img[r.sb.IDTable:]), r.sb.IDTable)
	if len(ids) != 1501*4 || le.Uint32(ids) != 0 || le.Uint32(ids[4:]) != 7 || le.Uint32(ids[1500*4:]) != 1506 {
		t.Errorf("id table of %d bytes: %v ...", len(ids), ids[:12])
	}
	table, _ := r.meta(export[0], r.sb.ExportTable)
	inodes, places := r.meta(r.sb.InodeTable, r.sb.DirTable)
	for n := range 1501 {
		ref := Ref(le.Uint64(table[n*8:]))
		if got := le.Uint32(inodes[places[ref.block()]+ref.offset()+12:]); got != uint32(n+1) {
			t.Fatalf("the export table leads from %d to inode %d", n+1, got)
		}
	}
}

func TestTrapPaddingAndTrailer(t *testing.T) {
	for n := range 3 {
		out := &wMem{}
		info := wImageTo(t, out, WriterOptions{NoFragments: true}, wFile("f", noise(1, 1000+n)))
		used := info.Superblock.BytesUsed
		if len(out.b)%4096 != 0 || int64(len(out.b)) != info.Size || uint64(info.Size)-used >= 4096 {
			t.Fatalf("%d bytes used of %d", used, len(out.b))
		}
		if pad := out.b[used:]; bytes.Count(pad, []byte{0}) != len(pad) {
			t.Error("the padding is not of zeros")
		}
		if r := wOpen(t, out); r.Trailer() != nil {
			t.Error("a trailer that nobody wrote")
		}
		out.b = append(out.b, "trailer"...)
		b := make([]byte, 8)
		if k, _ := wOpen(t, out).Trailer().Read(b); string(b[:k]) != "trailer" {
			t.Errorf("trailer %q", b[:k])
		}
		wKernelTakes(t, out.b)
	}
}

// TestTrapPaddingBehindDuplicate has more written and taken back than the image is long.
func TestTrapPaddingBehindDuplicate(t *testing.T) {
	big := noise(1, 3<<20)
	out := &wMem{}
	info := wImageTo(t, out, WriterOptions{}, wFile("f", big), wFile("again", big))
	pad := out.b[info.Superblock.BytesUsed:]
	if int64(len(out.b)) != info.Size || info.Size > 3<<20+8192 || bytes.Count(pad, []byte{0}) != len(pad) {
		t.Errorf("%d bytes for %d, the padding is % x", len(out.b), info.Size, pad[:16])
	}
}

func TestTrapTimeClamp(t *testing.T) {
	var items []wItem
	for i, at := range []time.Time{
		{},
		time.Unix(-1, 999_999_999), time.Unix(0, 0), time.Unix(1<<31, 5), time.Unix(math.MaxUint32, 1),
		time.Unix(1<<32, 0), time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC), time.Unix(math.MinInt64, 0),
	} {
		f := wFile(fmt.Sprint(i), nil)
		f.ModTime = at
		items = append(items, f)
	}
	r := wRawImage(t, WriterOptions{MakeTime: time.Unix(1<<33, 0)}, items...)
	for i, want := range []uint32{0, 0, 0, 1 << 31, math.MaxUint32, math.MaxUint32, math.MaxUint32, 0} {
		b, _ := r.inode(fmt.Sprint(i))
		if got := le.Uint32(b[8:]); got != want {
			t.Errorf("%v became %d, want %d", items[i].ModTime, got, want)
		}
	}
	if got := le.Uint32(r.img[8:]); got != math.MaxUint32 {
		t.Errorf("made at %d", got)
	}
}

func TestTrapTooManyIDs(t *testing.T) {
	if testing.Short() {
		t.Skip("short: 32,767 files, and no second goroutine")
	}
	var items []wItem
	for i := range uint32(maxIDs / 2) {
		f := wFile(fmt.Sprintf("f%05d", i), nil)
		f.UID, f.GID = 1<<31+2*i, 1<<31+2*i+1
		items = append(items, f)
	}
	out := &wMem{}
	w, err := NewWriter(out, WriterOptions{})
	must(t, err)
	defer w.Close()
	for i := range items {
		must(t, items[i].add(w))
	}
	for range 2 {
		err = w.Add(Entry{Path: "over", UID: 5, GID: 6}, nil)
		if !errors.Is(err, ErrTooManyIDs) || !strings.Contains(err.Error(), "5 and 6") {
			t.Errorf("id 65,536: %v", err)
		}
	}
	more := wFile("known", nil)
	more.UID = 1<<31 + 40000
	must(t, more.add(w))
	info, err := w.Finish(t.Context())
	must(t, err)
	if info.Superblock.IDs != maxIDs {
		t.Errorf("%d ids", info.Superblock.IDs)
	}
	wSame(t, out, WriterOptions{}, append(items, more)...)
	wKernelTakes(t, out.b)
}

func TestTrapSymlinkNlink(t *testing.T) {
	items := []wItem{{Entry: Entry{Path: "s", Mode: fs.ModeSymlink, Target: "to"}}, wLink("dir/t", "s"), wLink("u", "dir/t")}
	r := wRawImage(t, WriterOptions{}, items...)
	b, typ := r.inode("u")
	if typ != 3 || le.Uint32(b[16:]) != 3 || le.Uint32(b[20:]) != 2 || string(b[24:26]) != "to" {
		t.Errorf("type %d, % x", typ, b[16:26])
	}
}

// TestTrapExtendedInodes proves that each kind of inode has its extended form
// exactly where the basic one has no room.
func TestTrapExtendedInodes(t *testing.T) {
	attrs := []Xattr{{Name: "user.a", Value: []byte("b")}}
	kinds := map[fs.FileMode]uint16{
		fs.ModeDir: 1, 0: 2, fs.ModeSymlink: 3, fs.ModeDevice: 4, fs.ModeDevice | fs.ModeCharDevice: 5,
		fs.ModeNamedPipe: 6, fs.ModeSocket: 7,
	}
	var items []wItem
	for mode, typ := range kinds {
		e := Entry{Path: fmt.Sprint("basic", typ), Mode: mode, Major: 4000, Minor: 1000000}
		if mode == fs.ModeSymlink {
			e.Target = "target"
		}
		items = append(items, wItem{Entry: e})
		e.Path, e.Xattrs = fmt.Sprint("extended", typ), attrs
		items = append(items, wItem{Entry: e})
	}
	items = append(items, wLink("link", "basic4"))
	linked := wFile("linked", []byte("x"))
	items = append(items, linked, wLink("linked2", "linked"))
	r := wRawImage(t, WriterOptions{}, items...)
	for _, typ := range kinds {
		if _, got := r.inode(fmt.Sprint("basic", typ)); got != typ {
			t.Errorf("basic type %d is stored as %d", typ, got)
		}
		b, got := r.inode(fmt.Sprint("extended", typ))
		if got != typ+7 {
			t.Errorf("extended type %d is stored as %d", typ+7, got)
		}
		if typ == 3 && (string(b[24:30]) != "target" || le.Uint32(b[30:]) != 0) {
			t.Errorf("the symlink's xattr index is not behind its target: % x", b[16:34])
		}
	}
	if b, typ := r.inode("linked2"); typ != 9 || le.Uint32(b[40:]) != 2 {
		t.Errorf("a file of two names: type %d, links %d", typ, le.Uint32(b[40:]))
	}
	if b, _ := r.inode("basic4"); le.Uint32(b[16:]) != 2 || le.Uint32(b[20:]) != uint32(unix.Mkdev(4000, 1000000)) {
		t.Errorf("device: % x", b[16:24])
	}
	wKernelTakes(t, r.img)
}
