package squashfs

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// wBlocks returns where a basic file's data begins, its fragment and its block list.
func (r wRaw) blocks(name string) (start, fragment uint32, sizes []uint32) {
	r.Helper()
	b, typ := r.inode(name)
	if typ != 2 {
		r.Fatalf("%s has type %d", name, typ)
	}
	start, fragment = le.Uint32(b[16:]), le.Uint32(b[20:])
	n := int(le.Uint32(b[28:])) / int(r.sb.BlockSize)
	if fragment == none32 && le.Uint32(b[28:])%r.sb.BlockSize > 0 {
		n++
	}
	for i := range n {
		sizes = append(sizes, le.Uint32(b[32+i*4:]))
	}
	return start, fragment, sizes
}

func TestTrapBlockStoredWhenNotSmaller(t *testing.T) {
	for _, c := range []Compression{Zstd, Gzip, LZ4, Uncompressed} {
		for _, bs := range []int{4096, 1 << 20} {
			hard := noise(1, bs)
			img := wImage(t, WriterOptions{Compression: c, BlockSize: bs}, wFile("hard", hard), wFile("tail", hard[:3000]))
			r := wSame(t, img, WriterOptions{BlockSize: bs}, wFile("hard", hard), wFile("tail", hard[:3000]))
			i := wAt(t, r, "hard")
			for size, err := range r.blockSizes(i) {
				if err != nil || size != uint32(bs)|1<<24 {
					t.Errorf("%s: block of noise has size %#x", c, size)
				}
			}
			if !bytes.Equal(img.b[i.start:][:bs], hard) {
				t.Errorf("%s: the block is not stored as it is", c)
			}
			if _, size, err := r.fragmentEntry(wAt(t, r, "tail").fragment); err != nil || size != 3000|1<<24 {
				t.Errorf("%s: fragment of noise has size %#x", c, size)
			}
		}
		soft := wImage(t, WriterOptions{Compression: c, BlockSize: 4096}, wFile("soft", bytes.Repeat([]byte("ab"), 2048)))
		if r := wOpen(t, soft); c != Uncompressed {
			for size := range r.blockSizes(wAt(t, r, "soft")) {
				if size >= 4096 {
					t.Errorf("%s: soft block has size %#x", c, size)
				}
			}
		}
	}
}

func TestTrapZeroLengthFile(t *testing.T) {
	for _, o := range []WriterOptions{{}, {NoFragments: true}, {AlwaysFragments: true}} {
		r := wRawImage(t, o, wFile("a", noise(1, 100)), wFile("empty", nil), wFile("z", noise(2, 100)))
		start, fragment, sizes := r.blocks("empty")
		if start != 0 || fragment != none32 || sizes != nil {
			t.Errorf("%+v: start %d, fragment %#x, blocks %v", o, start, fragment, sizes)
		}
	}
}

func TestTrapTailInFragment(t *testing.T) {
	content := noise(1, 3*4096+7)
	for _, c := range []struct {
		o      WriterOptions
		blocks int
		tail   bool
	}{
		{WriterOptions{}, 4, false},
		{WriterOptions{AlwaysFragments: true}, 3, true},
		{WriterOptions{AlwaysFragments: true, NoFragments: true}, 4, false},
	} {
		c.o.BlockSize = 4096
		r := wRawImage(t, c.o, wFile("before", []byte("12345")), wFile("f", content), wFile("g", content[4096:8192]))
		start, fragment, sizes := r.blocks("f")
		if len(sizes) != c.blocks || (fragment != none32) != c.tail {
			t.Errorf("%+v: %d blocks, fragment %#x", c.o, len(sizes), fragment)
		}
		// The blocks lie one behind the other.
		if !bytes.Equal(r.img[start:][:3*4096], content[:3*4096]) {
			t.Errorf("%+v: content is not at %d", c.o, start)
		}
	}
}

// TestTrapFragmentFitsBlock packs tails of all lengths.
func TestTrapFragmentFitsBlock(t *testing.T) {
	var items []wItem
	for i := range 400 {
		items = append(items, wFile(fmt.Sprintf("f%d", i), noise(uint64(i), 1+i*37%4095)))
	}
	img := wImage(t, WriterOptions{BlockSize: 4096}, items...)
	r := wSame(t, img, WriterOptions{BlockSize: 4096}, items...)
	total := 0
	for n := range r.Superblock().Fragments {
		_, size, err := r.fragmentEntry(n)
		if size &= blockSizeMask; err != nil || size > 4096 || size == 0 {
			t.Errorf("fragment %d of %d bytes", n, size)
		}
		total += int(size)
	}
	if want := int(r.Superblock().Fragments) * 4096; total < want/2 {
		t.Errorf("%d bytes in fragments that have room for %d", total, want)
	}
}

// TestTrapShortLastBlockHole has files of zeros only, the last block not full.
func TestTrapShortLastBlockHole(t *testing.T) {
	o := WriterOptions{BlockSize: 4096}
	items := []wItem{
		wFile("a", make([]byte, 4096+5)), wFile("b", make([]byte, 2*4096)),
		wFile("c", append([]byte("x"), make([]byte, 4096)...)), wFile("tail", make([]byte, 5)),
	}
	r := wRawImage(t, o, items...)
	for name, want := range map[string]struct {
		sizes  []uint32
		sparse uint64
	}{"a": {[]uint32{0, 0}, 4101}, "b": {[]uint32{0, 0}, 8192}, "c": {[]uint32{4096 | 1<<24, 0}, 1}} {
		b, typ := r.inode(name)
		sizes := []uint32{le.Uint32(b[56:]), le.Uint32(b[60:])}
		if typ != 9 || le.Uint64(b[32:]) != want.sparse || !slices.Equal(sizes, want.sizes) {
			t.Errorf("%s: type %d, %d bytes sparse, blocks %#x", name, typ, le.Uint64(b[32:]), sizes)
		}
	}
	if _, typ := r.inode("tail"); typ != 2 {
		t.Errorf("zeros in a fragment: type %d", typ)
	}
	wKernelTakes(t, r.img)
}

// TestTrapSparseStBlocks asks the kernel for st_blocks, of which holes are no part.
func TestTrapSparseStBlocks(t *testing.T) {
	zero, data := make([]byte, 4096), noise(1, 4096)
	files := map[string][]byte{
		"dense": slices.Concat(data, data[1:], []byte("x")), "half": slices.Concat(data, zero, data, zero),
		"holes": make([]byte, 1<<20), "short": slices.Concat(data, zero[:100]), "tail": zero[:100],
	}
	var items []wItem
	for name, b := range files {
		items = append(items, wFile(name, b))
	}
	img := wFileImage(t, WriterOptions{BlockSize: 4096}, items...)
	dir := wMount(t, img)
	for name, want := range map[string]int64{"dense": 16, "half": 16, "holes": 0, "short": 8, "tail": 1} {
		fi, err := os.Stat(filepath.Join(dir, name))
		must(t, err)
		if got := fi.Sys().(*syscall.Stat_t).Blocks; got != want {
			t.Errorf("%s: st_blocks %d, want %d", name, got, want)
		}
		if got, err := os.ReadFile(filepath.Join(dir, name)); err != nil || !bytes.Equal(got, files[name]) {
			t.Errorf("%s: other content, %v", name, err)
		}
	}
}

// TestTrapDedupFollowsInputOrder has contents that take the workers unequal time:
// the first in the input is stored, whichever is compressed first.
func TestTrapDedupFollowsInputOrder(t *testing.T) {
	slow := slices.Concat(noise(1, 1<<18), pattern(1, 1<<18))
	quick := slices.Concat(make([]byte, 1<<20), []byte("end"))
	items := []wItem{
		wFile("z", slow), wFile("y", slow), wFile("x", quick), wFile("w", quick), wFile("v", slow),
		wFile("tail2", []byte("tail")), wFile("tail1", []byte("tail")), wFile("half", slow[:1<<18]),
	}
	o := WriterOptions{BlockSize: 1 << 18, Workers: 8, Level: 9}
	first := wImage(t, o, items...)
	for range 3 {
		if !bytes.Equal(wImage(t, o, items...).b, first.b) {
			t.Fatal("two runs give two images")
		}
	}
	r := wSame(t, first, o, items...)
	if at := wAt(t, r, "z").start; at >= wAt(t, r, "x").start {
		t.Errorf("the first content is at %d, behind the second", at)
	}
	for name, of := range map[string]string{"y": "z", "v": "z", "w": "x", "tail1": "tail2"} {
		a, b := wAt(t, r, name), wAt(t, r, of)
		if a.start != b.start || a.fragment != b.fragment || a.fragOffset != b.fragOffset || a.Number == b.Number {
			t.Errorf("%s does not share the content of %s", name, of)
		}
	}
	o.NoDedup = true
	if big := wImage(t, o, items...); len(big.b) < len(first.b)+2*(1<<18) {
		t.Errorf("%d bytes without dedup, %d with", len(big.b), len(first.b))
	}
}

// TestTrapDedupTellsLengths has contents that differ by their length only.
func TestTrapDedupTellsLengths(t *testing.T) {
	var items []wItem
	for n := range 10 {
		items = append(items, wFile(fmt.Sprint("zeros", n), make([]byte, 4096*2+n)), wFile(fmt.Sprint("small", n), make([]byte, n)),
			wFile(fmt.Sprint("late", n), append(make([]byte, 4096*n), 1)), wFile(fmt.Sprint("early", n), append([]byte{1}, make([]byte, 4096*n)...)))
	}
	for _, o := range []WriterOptions{{BlockSize: 4096}, {BlockSize: 4096, NoFragments: true}, {BlockSize: 4096, AlwaysFragments: true}} {
		wSame(t, wImage(t, o, items...), o, items...)
	}
}

// TestTrapBasicFileNeedsStartBelow4GiB writes behind a gap of 4 GiB in a sparse file.
func TestTrapBasicFileNeedsStartBelow4GiB(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "image"))
	must(t, err)
	defer f.Close()
	o := WriterOptions{BlockSize: 4096, Workers: 1}
	w, err := NewWriter(f, o)
	must(t, err)
	defer w.Close()
	must(t, w.out.flush())
	w.out.at = 1<<32 - 4096 // nothing is under way yet
	items := []wItem{wFile("below", noise(1, 4096)), wFile("behind", noise(2, 4096)), wFile("tail", []byte("in a fragment"))}
	for i := range items {
		must(t, items[i].add(w))
	}
	_, err = w.Finish(t.Context())
	must(t, err)
	r := wSame(t, f, o, items...)
	for name, extended := range map[string]bool{"below": false, "behind": true, "tail": false} {
		if i := wAt(t, r, name); i.extended != extended {
			t.Errorf("%s at %#x: extended %v", name, i.start, i.extended)
		}
	}
	t.Run("kernel", func(t *testing.T) {
		dir := wMount(t, f.Name())
		for _, i := range items {
			if got, err := os.ReadFile(filepath.Join(dir, i.Path)); err != nil || !bytes.Equal(got, i.content) {
				t.Errorf("%s: other content, %v", i.Path, err)
			}
		}
	})
}

// wZeros is a reader of n zeros with some bytes at an offset.
type wZeros struct {
	n, at, mark int64
}

func (z *wZeros) Read(p []byte) (int, error) {
	n := int(min(int64(len(p)), z.n-z.at))
	if n == 0 {
		return 0, io.EOF
	}
	clear(p[:n])
	if i := z.mark - z.at; i >= 0 && i < int64(n) {
		p[i] = 'x'
	}
	z.at += int64(n)
	return n, nil
}

// TestTrapFileOver4GiB has two files that only differ behind 4 GiB.
func TestTrapFileOver4GiB(t *testing.T) {
	const size = 1<<32 + 12345
	out := &wMem{}
	w, err := NewWriter(out, WriterOptions{BlockSize: 1 << 20})
	must(t, err)
	defer w.Close()
	marks := map[string]int64{"a": 1<<32 + 7, "none": -1}
	for name, mark := range marks {
		must(t, w.Add(Entry{Path: name, Size: size}, &wZeros{n: size, mark: mark}))
	}
	_, err = w.Finish(t.Context())
	must(t, err)
	if len(out.b) > 1<<20 {
		t.Errorf("the image has %d bytes", len(out.b))
	}
	r := wOpen(t, out)
	for name, mark := range marks {
		i := wAt(t, r, name)
		f, err := r.OpenFile(i)
		must(t, err)
		b := make([]byte, 20)
		_, err = f.ReadAt(b, 1<<32)
		must(t, err)
		want := strings.Repeat("\x00", 20)
		if mark >= 0 {
			want = want[:7] + "x" + want[8:]
		}
		if i.Size != size || string(b) != want || !i.extended {
			t.Errorf("%s: %d bytes, %q, %+v", name, i.Size, b, i)
		}
		must(t, f.Close())
	}
	wKernelTakes(t, out.b)
}
