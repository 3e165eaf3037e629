package squashfs

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

var wSpliceOptions = WriterOptions{BlockSize: 4096, Workers: 2}

// wText is text that every compression makes shorter, each block by another length.
func wText(seed, n int) []byte {
	var b bytes.Buffer
	for i := seed; b.Len() < n; i++ {
		fmt.Fprintf(&b, "line %d of %d: %s\n", i, i*i*i, bytes.Repeat([]byte{byte('a' + i%26)}, i%50))
	}
	return b.Bytes()[:n]
}

// wSources are two images with all that files can be made of.
func wSources() [2][]wItem {
	text := wText(1, 5*4096+100)
	return [2][]wItem{
		{
			wFile("text", text), wFile("copy", text), wFile("noise", noise(1, 3*4096)), wFile("dead", noise(2, 50*4096)),
			wFile("sparse", slices.Concat(make([]byte, 2*4096), text, make([]byte, 4096+77))), wFile("holes", make([]byte, 9*4096+1)),
			wFile("tail1", []byte("tail one")), wFile("tail2", []byte("tail two")), wFile("tail1again", []byte("tail one")), wFile("empty", nil),
		},
		{wFile("other", wText(2, 7*4096)), wFile("dead", noise(3, 40*4096)), wFile("tail3", []byte("tail three")), wFile("text", text)},
	}
}

// wJoin is what the tests make of the sources: a file of its own, and all live files.
func wJoin(t testing.TB, out Output, o WriterOptions, from ...*Reader) ([]wItem, Info) {
	t.Helper()
	w, err := NewWriter(out, o)
	must(t, err)
	defer w.Close()
	own := wFile("own", wText(3, 3*4096+9))
	must(t, own.add(w))
	items := []wItem{own}
	for n, src := range wSources() {
		for _, i := range src {
			if i.Path == "dead" {
				continue
			}
			inode := wAt(t, from[n], i.Path)
			i.Path = fmt.Sprintf("from%d/%s", n, i.Path)
			must(t, w.AddFrom(i.Entry, from[n], inode))
			items = append(items, i)
		}
	}
	items = append(items, wLink("hard", "from0/text"))
	must(t, w.Link("hard", "from0/text"))
	info, err := w.Finish(t.Context())
	must(t, err)
	return items, info
}

func wSourceImages(t testing.TB, o WriterOptions) (out [2]*wMem, r [2]*Reader) {
	t.Helper()
	for i, items := range wSources() {
		out[i] = wImage(t, o, items...)
		r[i] = wOpen(t, out[i])
	}
	return out, r
}

func TestSpliceCopiesBlocks(t *testing.T) {
	for _, c := range []Compression{Zstd, Gzip, LZ4} {
		for _, always := range []bool{false, true} {
			o := wSpliceOptions
			o.Compression, o.AlwaysFragments = c, always
			_, src := wSourceImages(t, o)
			out := &wMem{}
			items, info := wJoin(t, out, o, src[:]...)
			r := wSame(t, out, o, items...)
			for name, from := range map[string]Inode{"from0/text": wAt(t, src[0], "text"), "from0/noise": wAt(t, src[0], "noise"), "from1/other": wAt(t, src[1], "other")} {
				if !bytes.Equal(wStored(t, r, wAt(t, r, name)), wStored(t, src[name[4]-'0'], from)) {
					t.Errorf("%s: %s is stored otherwise than in its source", c, name)
				}
			}
			again := &wMem{}
			wJoin(t, again, o, src[:]...)
			if !bytes.Equal(out.b, again.b) {
				t.Errorf("%s: two runs give two images", c)
			}
			// 90 blocks of noise are dead.
			if info.Size > 80*4096 {
				t.Errorf("%s: the image has %d bytes: dead data was copied", c, info.Size)
			}
			for name, of := range map[string]string{"copy": "text", "tail1again": "tail1", "tail2": "tail1"} {
				a, b := wAt(t, r, "from0/"+name), wAt(t, r, "from0/"+of)
				if a.start != b.start || a.fragment != b.fragment {
					t.Errorf("%s: %s and %s do not share what they shared", c, name, of)
				}
			}
		}
	}
}

// wStored returns a file's blocks as they lie on disk.
func wStored(t testing.TB, r *Reader, i Inode) []byte {
	t.Helper()
	n := 0
	for size, err := range r.blockSizes(i) {
		must(t, err)
		n += int(size & blockSizeMask)
	}
	b := make([]byte, n)
	must(t, r.readAt(b, i.start))
	return b
}

func TestSpliceRecompresses(t *testing.T) {
	_, src := wSourceImages(t, wSpliceOptions)
	for _, o := range []WriterOptions{
		{BlockSize: 8192}, {BlockSize: 4096, Compression: Gzip}, {BlockSize: 4096, Compression: Uncompressed},
	} {
		var want []wItem
		out := &wMem{}
		want, _ = wJoin(t, out, o, src[:]...)
		wSame(t, out, o, want...)
		// As if the content had come from anywhere else.
		if direct := wImage(t, o, want...); !bytes.Equal(direct.b, out.b) {
			t.Errorf("%+v: another image than from the content", o)
		}
	}
}

// TestSpliceFromUncompressed proves that blocks which were stored on purpose are
// compressed by a Writer that compresses.
func TestSpliceFromUncompressed(t *testing.T) {
	o := WriterOptions{BlockSize: 4096, Compression: Uncompressed}
	mem, src := wSourceImages(t, o)
	o.Compression = Gzip
	out := &wMem{}
	wJoin(t, out, o, src[:]...)
	if plain := len(mem[0].b) + len(mem[1].b); len(out.b) > plain*9/10 {
		t.Errorf("%d bytes of %d uncompressed ones", len(out.b), plain)
	}
}

// TestSpliceFiles proves that files, where the kernel copies, give the image that
// memory gives.
func TestSpliceFiles(t *testing.T) {
	mem, src := wSourceImages(t, wSpliceOptions)
	want := &wMem{}
	items, _ := wJoin(t, want, wSpliceOptions, src[:]...)
	var files [2]*Reader
	for i := range mem {
		name := filepath.Join(t.TempDir(), "source")
		must(t, os.WriteFile(name, mem[i].b, 0o600))
		files[i] = openImage(t, name, ReaderOptions{})
	}
	f, err := os.Create(filepath.Join(t.TempDir(), "joined"))
	must(t, err)
	defer f.Close()
	wJoin(t, f, wSpliceOptions, files[:]...)
	wSame(t, f, wSpliceOptions, items...)
	got, err := os.ReadFile(f.Name())
	must(t, err)
	if !bytes.Equal(got, want.b) {
		t.Error("files give another image than memory")
	}
	wJoin(t, f, wSpliceOptions, files[0], src[1]) // one of each, and in the place of an image
	if got, err := os.ReadFile(f.Name()); err != nil || !bytes.Equal(got, want.b) {
		t.Error("a file and memory give another image")
	}
}

// wBig has extents of over 1 MiB at odd offsets, and a duplicate, which is written
// and taken back, so that there is something behind the end to show in a gap.
func wBig(t testing.TB, out Output, src *Reader) []wItem {
	t.Helper()
	o := WriterOptions{BlockSize: 4096}
	w, err := NewWriter(out, o)
	must(t, err)
	defer w.Close()
	first := noise(9, 2<<20)
	items := []wItem{wFile("own", first), wFile("again", first)}
	for i := range items {
		must(t, items[i].add(w))
	}
	for n := range 3 {
		i := wFile(fmt.Sprint("big", n), noise(uint64(n), 1<<20+1<<18))
		must(t, w.AddFrom(i.Entry, src, wAt(t, src, i.Path)))
		items = append(items, i)
	}
	_, err = w.Finish(t.Context())
	must(t, err)
	return items
}

func wBigSource() []wItem {
	var items []wItem
	for n := range 3 {
		items = append(items, wFile(fmt.Sprint("big", n), noise(uint64(n), 1<<20+1<<18)), wFile(fmt.Sprint("dead", n), wText(n, 4096*3)))
	}
	return items
}

// TestSpliceAligns proves that what is long keeps its offset within a page, that
// the gaps are of zeros, and that the image is the same from files and memory.
func TestSpliceAligns(t *testing.T) {
	o := WriterOptions{BlockSize: 4096}
	src := wOpen(t, wImage(t, o, wBigSource()...))
	out := &wMem{}
	items := wBig(t, out, src)
	r := wSame(t, out, o, items...)
	moved, end := false, wAt(t, r, "own").start+2<<20
	for n := range 3 {
		name := fmt.Sprint("big", n)
		from, to := wAt(t, src, name).start, wAt(t, r, name).start
		if from%4096 != to%4096 {
			t.Errorf("%s moved from %#x to %#x", name, from, to)
		}
		if gap := out.b[end:to]; len(gap) >= 4096 || bytes.Count(gap, []byte{0}) != len(gap) {
			t.Errorf("%s: a gap of %d bytes, not all zeros", name, len(gap))
		}
		moved = moved || from%4096 != end%4096 && from%4096 != 0
		end = to + 1<<20 + 1<<18
	}
	if !moved {
		t.Error("no gap was needed: the test proves nothing")
	}
	f, err := os.Create(filepath.Join(t.TempDir(), "image"))
	must(t, err)
	defer f.Close()
	file := openImage(t, wFileImage(t, o, wBigSource()...), ReaderOptions{})
	wBig(t, f, file)
	if got, err := os.ReadFile(f.Name()); err != nil || !bytes.Equal(got, out.b) {
		t.Error("files give another image than memory")
	}
}

// TestSpliceShares proves on xfs and btrfs that copied blocks are not copied.
func TestSpliceShares(t *testing.T) {
	for kind, mkfs := range map[string][]string{
		"xfs": {"mkfs.xfs", "-q", "-m", "reflink=1"}, "btrfs": {"mkfs.btrfs", "-q"},
	} {
		t.Run(kind, func(t *testing.T) {
			wNeedRoot(t)
			needTool(t, "filefrag")
			dir := wHostFS(t, kind, mkfs)
			o := WriterOptions{BlockSize: 4096}
			name := filepath.Join(dir, "source")
			f, err := os.Create(name)
			must(t, err)
			wImageTo(t, f, o, wBigSource()...)
			must(t, errors.Join(f.Sync(), f.Close()))
			src := openImage(t, name, ReaderOptions{})
			w, err := Create(filepath.Join(dir, "image"), o)
			must(t, err)
			defer w.Close()
			big := wAt(t, src, "big1")
			must(t, w.AddFrom(Entry{Path: "big1"}, src, big))
			_, err = w.Commit(t.Context(), nil)
			must(t, err)
			if out := wTool(t, "filefrag", "-v", filepath.Join(dir, "image")); !strings.Contains(out, "shared") {
				t.Errorf("nothing is shared:\n%s", out)
			}
			if b := wContent(t, openImage(t, filepath.Join(dir, "image"), ReaderOptions{}), "big1"); !bytes.Equal(b, wBigSource()[2].content) {
				t.Error("other content")
			}
		})
	}
}

// wHostFS makes and mounts a file system of a kind.
func wHostFS(t *testing.T, kind string, mkfs []string) string {
	t.Helper()
	needTool(t, mkfs[0])
	disk := filepath.Join(t.TempDir(), "disk")
	must(t, os.WriteFile(disk, nil, 0o600))
	must(t, os.Truncate(disk, 400<<20))
	wTool(t, mkfs[0], append(mkfs[1:], disk)...)
	dir := t.TempDir()
	if out, err := exec.Command("mount", "-t", kind, "-o", "loop", disk, dir).CombinedOutput(); err != nil {
		t.Skipf("needs loop mounts of %s: %s", kind, out)
	}
	t.Cleanup(func() { wTool(t, "umount", dir) })
	return dir
}

// wCut is a source that ends early, or fails, from some point in time on.
type wCut struct {
	*bytes.Reader
	end int64
	err error
}

func (c *wCut) ReadAt(p []byte, off int64) (int, error) {
	if c.end > 0 && off+int64(len(p)) > c.end {
		return 0, c.err
	}
	return c.Reader.ReadAt(p, off)
}

func TestSpliceSourceFails(t *testing.T) {
	img := wImage(t, wSpliceOptions, wSources()[0]...)
	for _, failure := range []error{io.EOF, errTest} {
		cut := &wCut{Reader: bytes.NewReader(img.b), err: failure}
		src := wOpen(t, cut)
		out := &wMem{}
		w, err := NewWriter(out, wSpliceOptions)
		must(t, err)
		must(t, w.AddFrom(Entry{Path: "f"}, src, wAt(t, src, "noise")))
		cut.end = 5000
		want := failure
		if failure == io.EOF {
			want = ErrCorrupt
		}
		if _, err := w.Finish(t.Context()); !errors.Is(err, want) {
			t.Errorf("a source that ends by %v: %v", failure, err)
		}
		must(t, w.Close())
		wUnfinished(t, out)
	}
}

// TestSpliceTruncatedFile has a file cut short while it is spliced from.
func TestSpliceTruncatedFile(t *testing.T) {
	name := wFileImage(t, WriterOptions{BlockSize: 4096}, wBigSource()...)
	src := openImage(t, name, ReaderOptions{})
	f, err := os.Create(filepath.Join(t.TempDir(), "image"))
	must(t, err)
	defer f.Close()
	w, err := NewWriter(f, WriterOptions{BlockSize: 4096})
	must(t, err)
	defer w.Close()
	must(t, w.AddFrom(Entry{Path: "f"}, src, wAt(t, src, "big2")))
	must(t, os.Truncate(name, 3<<20))
	if _, err := w.Finish(t.Context()); !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, ErrCorrupt) {
		t.Errorf("a source that was cut: %v", err)
	}
	if _, err := NewReader(f, ReaderOptions{}); err == nil {
		t.Error("an image came of it")
	}
}

// TestSpliceCorruptSource turns every byte of a small source's tables: what is
// refused, early or late, is refused with an error, and what is not panics nobody.
func TestSpliceCorruptSource(t *testing.T) {
	items := []wItem{wFile("a", noise(1, 4096*2+5)), wFile("b", []byte("tail")), wFile("c", make([]byte, 9000)), wFile("d", pattern(1, 5000))}
	o := WriterOptions{BlockSize: 4096, AlwaysFragments: true, Compression: Uncompressed, Workers: 1}
	good := wImage(t, o, items...)
	wClaimCompressed(good)
	o.Compression, o.Level = Gzip, 1
	tables := int(wOpen(t, good).sb.InodeTable)
	cache, err := NewCache(1 << 20)
	must(t, err)
	defer cache.Close()
	refused := 0
	step := 1
	if testing.Short() {
		step = 7
	}
	for at := tables; at < len(good.b); at += step {
		for _, flip := range []byte{0xFF, 0x01} {
			bad := &wMem{slices.Clone(good.b)}
			if bad.b[at] ^= flip; wSpliceAll(t, bad, cache, o) != nil {
				refused++
			}
		}
	}
	if refused < 50/step {
		t.Errorf("only %d changes were refused", refused)
	}
}

// wClaimCompressed takes back what an uncompressed image says of itself, so that
// its blocks, which are easy to patch, are copied and not compressed.
func wClaimCompressed(img *wMem) {
	const raw = FlagRawInodes | FlagRawData | FlagRawFragments | FlagRawXattrs | FlagRawIDs
	le.PutUint16(img.b[24:], le.Uint16(img.b[24:])&^uint16(raw))
}

// TestSpliceBadFragment has a source whose fragment has no length, or lies
// outside: the file is refused, and the Writer goes on without it.
func TestSpliceBadFragment(t *testing.T) {
	o := WriterOptions{BlockSize: 4096, Compression: Uncompressed}
	for name, entry := range map[string][]byte{
		"empty":   le.AppendUint64(le.AppendUint64(nil, 96), 0),
		"long":    le.AppendUint64(le.AppendUint64(nil, 96), 4097),
		"flags":   le.AppendUint64(le.AppendUint64(nil, 96), 1<<25|4),
		"outside": le.AppendUint64(le.AppendUint64(nil, 1<<40), 4),
		"before":  le.AppendUint64(le.AppendUint64(nil, 0), 4),
	} {
		img := wImage(t, o, wFile("tail", []byte("tail")), wFile("block", noise(1, 4096)))
		wClaimCompressed(img)
		good := wOpen(t, img)
		list := le.Uint64(img.b[good.sb.FragmentTable:])
		copy(img.b[list+2:], entry)
		src, err := NewReader(img, ReaderOptions{})
		must(t, err)
		defer src.Close()
		out := &wMem{}
		w, err := NewWriter(out, WriterOptions{BlockSize: 4096, Compression: Gzip})
		must(t, err)
		defer w.Close()
		if err := w.AddFrom(Entry{Path: "tail"}, src, wAt(t, src, "tail")); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: %v", name, err)
		}
		must(t, w.AddFrom(Entry{Path: "block", Mode: 0o644}, src, wAt(t, src, "block")))
		_, err = w.Finish(t.Context())
		must(t, err)
		wSame(t, out, o, wFile("block", noise(1, 4096)))
	}
}

func TestSpliceMergesExtents(t *testing.T) {
	s := spliceSource{extents: []extent{{from: 200, to: 210}, {from: 10, to: 20}, {from: 0, to: 100}, {from: 100, to: 110}, {from: 205, to: 220}}}
	s.merge()
	if want := []extent{{from: 0, to: 110}, {from: 200, to: 220}}; !slices.Equal(s.extents, want) {
		t.Errorf("%+v, want %+v", s.extents, want)
	}
}

// wSpliceAll splices what can be read of an image and goes on after errors.
func wSpliceAll(t *testing.T, img *wMem, cache *Cache, o WriterOptions) error {
	src, err := NewReader(img, ReaderOptions{Cache: cache})
	if err != nil {
		return err
	}
	defer src.Close()
	w, err := NewWriter(&wMem{}, o)
	must(t, err)
	defer w.Close()
	root, first := src.Root()
	for e, err := range src.ReadDir(root) {
		i, ierr := src.Child(root, e)
		if first = errors.Join(first, err, ierr); first != nil {
			continue
		}
		first = errors.Join(first, w.AddFrom(Entry{Path: e.Name}, src, i))
	}
	_, err = w.Finish(t.Context())
	return errors.Join(first, err)
}

func TestSpliceRefuses(t *testing.T) {
	src := wOpen(t, wImage(t, wSpliceOptions, wFile("f", []byte("x")), wDir("d"), wFile("big", noise(1, 9000))))
	for _, o := range []WriterOptions{wSpliceOptions, {BlockSize: 8192}} {
		out := &wMem{}
		w, err := NewWriter(out, o)
		must(t, err)
		defer w.Close()
		f, d := wAt(t, src, "f"), wAt(t, src, "d")
		must(t, w.AddFrom(Entry{Path: "there", Mode: 0o644}, src, f))
		for name, c := range map[string]struct{ got, want error }{
			"directory":          {w.AddFrom(Entry{Path: "a"}, src, d), fs.ErrInvalid},
			"as a symlink":       {w.AddFrom(Entry{Path: "a", Mode: fs.ModeSymlink, Target: "x"}, src, f), fs.ErrInvalid},
			"duplicate":          {w.AddFrom(Entry{Path: "there"}, src, f), fs.ErrExist},
			"wrong path":         {w.AddFrom(Entry{Path: "new/../a"}, src, f), fs.ErrInvalid},
			"below a file":       {w.AddFrom(Entry{Path: "there/a"}, src, f), fs.ErrInvalid},
			"attributes refused": {w.AddFrom(Entry{Path: "a", Xattrs: []Xattr{{Name: "x"}}}, src, f), fs.ErrInvalid},
		} {
			if !errors.Is(c.got, c.want) {
				t.Errorf("%s: %v", name, c.got)
			}
		}
		_, err = w.Finish(t.Context())
		must(t, err)
		wSame(t, out, o, wFile("there", []byte("x")))
	}
}
