package squashfs

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"testing"

	"github.com/klauspost/compress/zstd"
)

// decodeLayout reads a file by its Layout alone, without the Reader that gave it.
func decodeLayout(b []byte, l Layout, size, blockSize int64) ([]byte, error) {
	dec, err := zstd.NewReader(nil)
	if err != nil {
		return nil, err
	}
	defer dec.Close()
	block := func(at int64, stored uint32) ([]byte, error) {
		n, raw := BlockLen(stored)
		if raw {
			return b[at : at+n], nil
		}
		return dec.DecodeAll(b[at:at+n], nil)
	}
	var content []byte
	at := l.Start
	for _, stored := range l.Blocks {
		want := min(blockSize, size-int64(len(content)))
		if stored == 0 {
			content = append(content, make([]byte, want)...)
			continue
		}
		p, err := block(at, stored)
		if err != nil || int64(len(p)) != want {
			return nil, fmt.Errorf("block at %d: %d bytes, want %d: %w", at, len(p), want, err)
		}
		content = append(content, p...)
		n, _ := BlockLen(stored)
		at += n
	}
	if l.Fragment.Size == 0 {
		return content, nil
	}
	p, err := block(l.Fragment.Start, l.Fragment.Size)
	if err != nil {
		return nil, fmt.Errorf("fragment: %w", err)
	}
	from := int64(l.Fragment.Offset)
	return append(content, p[from:from+size-int64(len(content))]...), nil
}

// TestLayout reads files of all shapes by their Layout, and finds their inodes by
// FileNumbers.
func TestLayout(t *testing.T) {
	const bs = 4096
	text := bytes.Repeat([]byte("text that compresses well. "), 2000)
	hole := append(append(append([]byte{}, text[:bs]...), make([]byte, 3*bs)...), text[:bs+100]...)
	files := []wItem{
		wFile("z/text", text),
		wFile("empty", nil),
		wFile("a/noise", noise(1, 5*bs)),
		wFile("a/noise and tail", noise(2, 2*bs+77)),
		wFile("hole", hole),
		wFile("only a hole", make([]byte, 3*bs+5)),
		wFile("small", []byte("a tail in a fragment")),
		wFile("m/small too", []byte("another")),
		wFile("m/the same", []byte("another")),
		wFile("raw tail", noise(3, 100)),
		wFile("one block", text[:bs]),
	}
	for _, o := range []WriterOptions{
		{BlockSize: bs}, {BlockSize: bs, AlwaysFragments: true}, {BlockSize: bs, NoFragments: true}, {BlockSize: bs, NoDedup: true, Level: 19},
	} {
		out := &wMem{}
		w, err := NewWriter(out, o)
		must(t, err)
		for i, f := range files {
			must(t, f.add(w))
			if i%3 == 0 { // what is no file has no number, and a link none of its own
				must(t, w.Add(Entry{Path: fmt.Sprint("d", i), Mode: os.ModeDir | 0o755}, nil))
				must(t, w.Link(fmt.Sprint("link", i), f.Path))
			}
		}
		_, err = w.Finish(t.Context())
		must(t, err)
		numbers := slices.Collect(w.FileNumbers())
		for range w.FileNumbers() {
			break // may end early
		}
		must(t, w.Close())
		if len(numbers) != len(files) {
			t.Fatalf("%+v: %d numbers of %d files", o, len(numbers), len(files))
		}
		r := wOpen(t, out)
		for i, f := range files {
			inode := wAt(t, r, f.Path)
			if inode.Number != numbers[i] {
				t.Errorf("%+v: %s has the number %d, FileNumbers says %d", o, f.Path, inode.Number, numbers[i])
			}
			l, err := r.Layout(inode)
			must(t, err)
			got, err := decodeLayout(out.b, l, int64(inode.Size), bs)
			if err != nil || !bytes.Equal(got, f.content) {
				t.Errorf("%+v: %s by its layout %+v: %d bytes, %v", o, f.Path, l, len(got), err)
			}
			sameFile(t, r, inode, l)
		}
		if l, err := r.Layout(wAt(t, r, "hole")); err != nil || !slices.Contains(l.Blocks, 0) {
			t.Errorf("a file with holes: %+v, %v", l, err)
		}
		if _, err := r.Layout(wAt(t, r, "d0")); !errors.Is(err, fs.ErrInvalid) {
			t.Errorf("layout of a directory: %v", err)
		}
	}
}

// sameFile: a file opened by its Layout is the one opened by its inode.
func sameFile(t *testing.T, r *Reader, i Inode, l Layout) {
	t.Helper()
	want, err := r.OpenFile(i)
	must(t, err)
	f, err := r.OpenLayout(int64(i.Size), l)
	must(t, err)
	var a, b bytes.Buffer
	_, errA := want.WriteTo(&a)
	_, errB := f.WriteTo(&b)
	if errA != nil || errB != nil || !bytes.Equal(a.Bytes(), b.Bytes()) {
		t.Errorf("inode %d by its layout: %d bytes, want %d; %v, %v", i.Number, b.Len(), a.Len(), errB, errA)
	}
	for off := int64(0); off < f.Size(); off += 1777 {
		p := make([]byte, 2000)
		if n, _ := f.ReadAt(p, off); !bytes.Equal(p[:n], a.Bytes()[off:min(off+2000, f.Size())]) {
			t.Errorf("inode %d by its layout: it differs from %d on", i.Number, off)
		}
	}
	var x, y []Extent
	for e, err := range want.Extents() {
		must(t, err)
		x = append(x, e)
	}
	for e, err := range f.Extents() {
		must(t, err)
		y = append(y, e)
	}
	if !slices.Equal(x, y) {
		t.Errorf("inode %d by its layout: extents %v, want %v", i.Number, y, x)
	}
}

// TestOpenLayoutRefuses: what cannot be a file's layout is refused, at once or when it
// is read.
func TestOpenLayoutRefuses(t *testing.T) {
	const bs = 4096
	out := wImage(t, WriterOptions{BlockSize: bs, AlwaysFragments: true}, wFile("f", noise(1, 2*bs+100)))
	r := wOpen(t, out)
	good, err := r.Layout(wAt(t, r, "f"))
	must(t, err)
	const size = 2*bs + 100
	for name, change := range map[string]func(l *Layout) int64{
		"negative size":     func(*Layout) int64 { return -1 },
		"short list":        func(l *Layout) int64 { l.Blocks = l.Blocks[:1]; return size },
		"longer":            func(*Layout) int64 { return size + bs },
		"negative start":    func(l *Layout) int64 { l.Start = -1; return size },
		"start behind":      func(l *Layout) int64 { l.Start = 1 << 62; return size },
		"start in metadata": func(l *Layout) int64 { l.Start = int64(r.sb.InodeTable); return size },
		"start in the head": func(l *Layout) int64 { l.Start = 3; return size },
		"block too large":   func(l *Layout) int64 { l.Blocks[0] = bs + 1; return size },
		"odd bits":          func(l *Layout) int64 { l.Blocks[1] |= 1 << 30; return size },
		"tail outside":      func(l *Layout) int64 { l.Fragment.Offset = bs - 99; return size },
		"tail behind":       func(l *Layout) int64 { l.Fragment.Offset = bs - 100; return size },
		"fragment negative": func(l *Layout) int64 { l.Fragment.Start = -1; return size },
		"fragment behind":   func(l *Layout) int64 { l.Fragment.Start = 1 << 62; return size },
		"fragment gone":     func(l *Layout) int64 { l.Fragment = Fragment{}; return size },
	} {
		l := good
		l.Blocks = slices.Clone(l.Blocks)
		n := change(&l)
		f, err := r.OpenLayout(n, l)
		if err == nil {
			_, err = f.ReadAt(make([]byte, n), 0)
		}
		if !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: %v, want ErrCorrupt", name, err)
		}
	}
	if f, err := r.OpenLayout(0, Layout{}); err != nil || f.Size() != 0 {
		t.Errorf("an empty file: %v", err)
	}
	must(t, r.Close())
	if _, err := r.OpenLayout(size, good); err != fs.ErrClosed {
		t.Errorf("of a closed image: %v", err)
	}
}

// TestAddLayout: a file taken by its Layout is the one taken by its inode, in the same
// bytes.
func TestAddLayout(t *testing.T) {
	const bs = 4096
	r := wOpen(t, wImage(t, WriterOptions{BlockSize: bs, NoExport: true},
		wFile("empty", nil), wFile("f", noise(1, 2*bs+100)), wFile("g", noise(2, 300)), wFile("h", make([]byte, 3*bs))))
	for _, o := range []WriterOptions{{BlockSize: bs}, {BlockSize: 2 * bs}} {
		var images [2]wMem
		for k := range images {
			w, err := NewWriter(&images[k], o)
			must(t, err)
			for _, name := range []string{"h", "g", "f", "empty"} {
				i := wAt(t, r, name)
				if e := (Entry{Path: name, Mode: 0o644}); k == 0 {
					must(t, w.AddFrom(e, r, i))
				} else {
					l, err := r.Layout(i)
					must(t, err)
					must(t, w.AddLayout(e, r, int64(i.Size), l))
				}
			}
			if err := w.AddLayout(Entry{Path: "dir", Mode: os.ModeDir}, r, 0, Layout{}); !errors.Is(err, fs.ErrInvalid) {
				t.Errorf("a directory with content: %v", err)
			}
			if err := w.AddLayout(Entry{Path: "bad", Mode: 0o644}, r, 1, Layout{}); !errors.Is(err, ErrCorrupt) {
				t.Errorf("a layout of nothing: %v", err)
			}
			_, err = w.Finish(t.Context())
			must(t, err)
			must(t, w.Close())
		}
		if !bytes.Equal(images[0].b, images[1].b) {
			t.Errorf("%+v: the images differ", o)
		}
		wOpen(t, &images[0])
	}
}

// TestLayoutCorrupt: a block list or fragment that is not there is an error.
func TestLayoutCorrupt(t *testing.T) {
	out := wImage(t, WriterOptions{BlockSize: 4096}, wFile("f", noise(1, 9000)), wFile("g", []byte("tail")))
	r, err := NewReader(out, ReaderOptions{})
	must(t, err)
	t.Cleanup(func() { r.Close() })
	big := wAt(t, r, "f")
	big.Size = 1 << 26
	small := wAt(t, r, "g")
	small.fragment = 1000
	for _, i := range []Inode{big, small} {
		if l, err := r.Layout(i); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%d blocks, %v", len(l.Blocks), err)
		}
	}
}
