package squashfs

import (
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// wRun is a header of a listing and its entries.
type wRun struct {
	at, block, base int
	offsets         []int // of the entries' inodes in the block
	deltas          []int
	types           []int
	names           []string
}

// wRuns takes a listing apart (format.adoc section 6).
func wRuns(t testing.TB, b []byte) []wRun {
	t.Helper()
	var runs []wRun
	for at := 0; at < len(b); {
		r := wRun{at: at, block: int(le.Uint32(b[at+4:])), base: int(le.Uint32(b[at+8:]))}
		n := int(le.Uint32(b[at:])) + 1
		at += 12
		for range n {
			size := int(le.Uint16(b[at+6:])) + 1
			r.offsets = append(r.offsets, int(le.Uint16(b[at:])))
			r.deltas = append(r.deltas, int(int16(le.Uint16(b[at+2:]))))
			r.types = append(r.types, int(le.Uint16(b[at+4:])))
			r.names = append(r.names, string(b[at+8:at+8+size]))
			at += 8 + size
		}
		runs = append(runs, r)
	}
	return runs
}

// listing returns the directory's listing and its inode.
func (r wRaw) listing(name string) (list, inode []byte) {
	r.Helper()
	b, typ := r.inode(name)
	block, size, offset := le.Uint32(b[16:]), int(le.Uint16(b[24:])), le.Uint16(b[26:])
	if typ == 8 {
		block, size, offset = le.Uint32(b[24:]), int(le.Uint32(b[20:])), le.Uint16(b[34:])
	}
	data, places := r.meta(r.sb.DirTable, r.behindDirs())
	return data[places[uint64(block)]+int(offset):][:size-3], b
}

func wManyFiles(dir string, n int, name string) []wItem {
	items := make([]wItem, n)
	for i := range items {
		items[i] = wFile(fmt.Sprintf("%s/"+name, dir, i), nil)
	}
	return items
}

// TestTrapDirectoryHeaderSplits proves that a run has at most 256 entries, all
// with inodes of one metadata block.
func TestTrapDirectoryHeaderSplits(t *testing.T) {
	items := wManyFiles("d", 1200, "%d")
	for i := range items { // of 20 bytes, so that a block has the inodes of more than a run
		items[i].Mode |= fs.ModeNamedPipe
	}
	r := wRawImage(t, WriterOptions{}, items...)
	list, _ := r.listing("d")
	full, blocks := 0, map[int]bool{}
	data, places := r.meta(r.sb.InodeTable, r.sb.DirTable)
	for _, run := range wRuns(t, list) {
		if len(run.names) > 256 {
			t.Errorf("run of %d entries", len(run.names))
		}
		if len(run.names) == 256 {
			full++
		}
		blocks[run.block] = true
		for i := range run.names {
			inode := data[places[uint64(run.block)]+run.offsets[i]:]
			if got := int(le.Uint32(inode[12:])); got != run.base+run.deltas[i] {
				t.Fatalf("%q is inode %d, its entry says %d", run.names[i], got, run.base+run.deltas[i])
			}
		}
	}
	if full < 2 || len(blocks) < 3 {
		t.Errorf("%d runs of 256 entries, %d inode blocks: the test proves nothing", full, len(blocks))
	}
}

// TestTrapDirectoryInodeDelta proves that a run ends where an inode number is
// too far from the first.
func TestTrapDirectoryInodeDelta(t *testing.T) {
	for number, runs := range map[uint32]int{
		100000 + 32767: 1, 100000 + 32768: 2, 100000 - 32768: 1, 100000 - 32769: 2, 100000: 1,
	} {
		var list []byte
		m := newMetaWriter(storer{}, func(b []byte) error { list = append(list, b[2:]...); return nil })
		var l listing
		d := dirWriter{out: m, list: &l}
		d.add([]byte("a"), TypeFile, 100000, makeRef(7, 0))
		d.add([]byte("b"), TypeFile, number, makeRef(7, 32))
		d.flush()
		must(t, m.flush())
		got := wRuns(t, list)
		last := got[len(got)-1]
		if len(got) != runs || last.base+last.deltas[len(last.deltas)-1] != int(number) {
			t.Errorf("inodes 100000 and %d: %+v", number, got)
		}
	}
}

// TestTrapDirectoryEntry proves what an entry says: basic types, lengths less one.
func TestTrapDirectoryEntry(t *testing.T) {
	x := []Xattr{{Name: "user.a", Value: []byte("b")}}
	long := strings.Repeat("n", 255)
	r := wRawImage(t, WriterOptions{},
		wItem{Entry: Entry{Path: "d/a", Mode: fs.ModeDir, Xattrs: x}}, wItem{Entry: Entry{Path: "d/b", Mode: 0, Xattrs: x}},
		wItem{Entry: Entry{Path: "d/c", Mode: fs.ModeSymlink, Target: "t", Xattrs: x}}, wFile("d/"+long, nil),
		wItem{Entry: Entry{Path: "d/z", Mode: fs.ModeSocket, Xattrs: x}})
	list, inode := r.listing("d")
	runs := wRuns(t, list)
	if len(runs) != 1 || !slices.Equal(runs[0].types, []int{1, 2, 3, 2, 7}) ||
		!slices.Equal(runs[0].names, []string{"a", "b", "c", long, "z"}) {
		t.Errorf("%+v", runs)
	}
	if links := le.Uint32(inode[20:]); links != 3 {
		t.Errorf("a directory with one below has %d links", links)
	}
}

func TestTrapEmptyDirectorySize3(t *testing.T) {
	r := wRawImage(t, WriterOptions{}, wDir("d"),
		wItem{Entry: Entry{Path: "x", Mode: fs.ModeDir, Xattrs: []Xattr{{Name: "user.a"}}}}, wDir("z"))
	for _, name := range []string{"d", "z"} {
		if b, typ := r.inode(name); typ != 1 || le.Uint16(b[24:]) != 3 || le.Uint32(b[20:]) != 2 {
			t.Errorf("%s: type %d, % x", name, typ, b[16:32])
		}
	}
	if b, typ := r.inode("x"); typ != 8 || le.Uint32(b[20:]) != 3 || le.Uint16(b[32:]) != 0 {
		t.Errorf("extended: type %d, % x", typ, b[16:40])
	}
	wKernelTakes(t, r.img)
}

// TestTrapDirectorySizes has listings around the length at which the basic form
// ends, and the one at which an index pays.
func TestTrapDirectorySizes(t *testing.T) {
	sizes := []int{8191, 8192, 8205, 65531, 65532, 65533, 65536}
	if testing.Short() {
		sizes = sizes[:3]
	}
	for _, want := range sizes {
		// Behind 8192 another header follows, so nothing has 8193 to 8204 bytes.
		n, last := want/17, 100
		for range 10 {
			items := append(wManyFiles("d", n, "%08d"), wFile("d/"+strings.Repeat("z", last), nil))
			r := wRawImage(t, WriterOptions{}, items...)
			list, _ := r.listing("d")
			_, typ := r.inode("d")
			if ext := len(list) > metaSize; (typ == 8) != ext {
				t.Errorf("listing of %d bytes, type %d", len(list), typ)
			}
			missing := want - len(list)
			if missing == 0 {
				want = 0
				break
			}
			if last += missing; last < 1 || last > 255 {
				n, last = n+missing/16, 100
			}
		}
		if want != 0 {
			t.Errorf("no listing of %d bytes was made", want)
		}
	}
}

// TestTrapDirectoryIndex proves each entry of the index of a directory of 70,000
// names, and has the kernel find names by it.
func TestTrapDirectoryIndex(t *testing.T) {
	n := 70000
	if testing.Short() {
		n /= 5
	}
	items := wManyFiles("d", n, "name-%06d")
	rand.New(rand.NewPCG(1, 1)).Shuffle(len(items), func(i, k int) { items[i], items[k] = items[k], items[i] })
	r := wRawImage(t, WriterOptions{}, items...)
	list, inode := r.listing("d")
	data, places := r.meta(r.sb.DirTable, r.behindDirs())
	start := places[uint64(le.Uint32(inode[24:]))] + int(le.Uint16(inode[34:]))
	runs := map[int]wRun{}
	for _, run := range wRuns(t, list) {
		runs[run.at] = run
	}
	entries, before := int(le.Uint16(inode[32:])), 0
	if least := len(list) / metaSize; entries < least || entries > least+least/16+1 {
		t.Errorf("%d index entries for %d bytes", entries, len(list))
	}
	for e, k := inode[40:], 0; k < entries; k++ {
		at, block, size := int(le.Uint32(e)), uint64(le.Uint32(e[4:])), int(le.Uint32(e[8:]))+1
		name := string(e[12 : 12+size])
		e = e[12+size:]
		run, ok := runs[at]
		if !ok || run.names[0] != name || at-before > metaSize || at <= before {
			t.Fatalf("index entry %d: %q at %d, behind %d: %v", k, name, at, before, ok)
		}
		place, ok := places[block]
		if off := start + at - place; !ok || off < 0 || off >= metaSize || string(data[start+at+20:][:size]) != name {
			t.Fatalf("index entry %d leads to block %d", k, block)
		}
		before = at
	}
	if len(list)-before > metaSize {
		t.Errorf("%d bytes behind the last index entry", len(list)-before)
	}
	wKernelFinds(t, r.img, items)
}

// wKernelFinds has the kernel look for each name, and for names between them.
func wKernelFinds(t *testing.T, img []byte, items []wItem) {
	t.Helper()
	t.Run("kernel", func(t *testing.T) {
		name := filepath.Join(t.TempDir(), "image")
		must(t, os.WriteFile(name, img, 0o600))
		dir := wMount(t, name)
		for i := 0; i < len(items); i += 1 + len(items)/2000 {
			if _, err := os.Lstat(filepath.Join(dir, items[i].Path)); err != nil {
				t.Fatal(err)
			}
		}
		// The kernel looks through the rest of the directory for these.
		for i := 0; i < len(items); i += 1 + len(items)/5 {
			if _, err := os.Lstat(filepath.Join(dir, items[i].Path+"\x01")); !os.IsNotExist(err) {
				t.Fatalf("a name that is not there: %v", err)
			}
		}
		list, err := os.ReadDir(filepath.Join(dir, "d"))
		if err != nil || len(list) != len(items) {
			t.Errorf("%d entries of %d: %v", len(list), len(items), err)
		}
	})
}

// TestTrapHighByteNamesSorted proves that names sort as unsigned bytes, in
// listings and indexes, and that the kernel finds all.
func TestTrapHighByteNamesSorted(t *testing.T) {
	var items []wItem
	for i := 1; i < 256; i++ {
		for k := 1; k < 256; k += 6 {
			if i != '/' && k != '/' && i != '.' {
				items = append(items, wFile("d/"+string([]byte{byte(i), byte(k)}), nil))
			}
		}
	}
	r := wRawImage(t, WriterOptions{}, items...)
	list, _ := r.listing("d")
	var names []string
	for _, run := range wRuns(t, list) {
		names = append(names, run.names...)
	}
	if len(names) != len(items) || !slices.IsSorted(names) { // Go compares strings bytewise
		t.Errorf("%d names of %d, or not in order", len(names), len(items))
	}
	wKernelFinds(t, r.img, items)
}
