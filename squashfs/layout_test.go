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
		}
		if l, err := r.Layout(wAt(t, r, "hole")); err != nil || !slices.Contains(l.Blocks, 0) {
			t.Errorf("a file with holes: %+v, %v", l, err)
		}
		if _, err := r.Layout(wAt(t, r, "d0")); !errors.Is(err, fs.ErrInvalid) {
			t.Errorf("layout of a directory: %v", err)
		}
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
