package rootfs

import (
	"archive/tar"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sync/errgroup"
	"pgregory.net/rapid"
)

func hotImage(t testing.TB) (*img, map[string]int64) {
	t.Helper()
	sizes := map[string]int64{"empty": 0, "small": 10, "block": hotBlock, "more": hotBlock + 1, "two": 2 * hotBlock, "large": 5*hotBlock + 77}
	var list []tar.Header
	for name, size := range sizes {
		list = append(list, file(name, size))
	}
	return makeImage(t, list), sizes
}

// TestHot: what is read at first is read from the file by the next Tree, byte for byte,
// also when the layers cannot be read any more; what was not read still comes from them.
func TestHot(t *testing.T) {
	image, sizes := hotImage(t)
	name := filepath.Join(t.TempDir(), "hot")
	first := New(image.ix, image.layers)
	first.UseHot(name)
	for f := range sizes {
		if f == "two" {
			continue
		}
		b, err := first.ReadFile("/"+f, 1<<30)
		if err != nil || !bytes.Equal(b, content(f, sizes[f])) {
			t.Fatalf("%s: %d bytes, %v", f, len(b), err)
		}
	}
	must(t, first.CloseHot(t.Context()))
	second := New(image.ix, nil) // no layers: reads have to be hot
	second.UseHot(name)
	for f, size := range sizes {
		b, err := second.ReadFile("/"+f, 1<<30)
		if f == "two" {
			if err == nil {
				t.Error("a file that was not read is hot")
			}
			continue
		}
		if err != nil || !bytes.Equal(b, content(f, size)) {
			t.Errorf("%s: %d bytes, %v", f, len(b), err)
		}
	}
	before, err := os.Stat(name)
	must(t, err)
	must(t, second.CloseHot(t.Context()))
	if after, err := os.Stat(name); err != nil || !os.SameFile(before, after) {
		t.Errorf("written anew though nothing was new: %v", err)
	}
}

// TestHotSpan: any part of a file is what it is in the file.
func TestHotSpan(t *testing.T) {
	image, sizes := hotImage(t)
	name := filepath.Join(t.TempDir(), "hot")
	tree := New(image.ix, image.layers)
	tree.UseHot(name)
	w, err := tree.walk("look up", "/large", nil)
	must(t, err)
	if _, err := tree.ReadFile("/large", 1<<30); err != nil {
		t.Fatal(err)
	}
	must(t, tree.CloseHot(t.Context()))
	h, err := openHot(name, image.ix)
	must(t, err)
	defer h.close()
	want := content("large", sizes["large"])
	rapid.Check(t, func(rt *rapid.T) {
		off := rapid.IntRange(0, len(want)-1).Draw(rt, "offset")
		most := rapid.IntRange(1, 3*hotBlock).Draw(rt, "most")
		b, ok := h.span(w.node(), int64(off), most)
		if !ok || !bytes.Equal(b, want[off:min(off+most, len(want))]) {
			rt.Fatalf("%d bytes at %d: %d, %v", most, off, len(b), ok)
		}
	})
	if b, ok := h.span(w.node()+1, 0, 10); ok && w.node()+1 <= image.ix.NumInodes() {
		t.Errorf("%d bytes of another file", len(b))
	}
}

// TestHotGrows: much that is new is added to what there is.
func TestHotGrows(t *testing.T) {
	image, _ := hotImage(t)
	name := filepath.Join(t.TempDir(), "hot")
	for _, f := range []string{"/small", "/large", "/two"} {
		tree := New(image.ix, image.layers)
		tree.UseHot(name)
		if _, err := tree.ReadFile(f, 1<<30); err != nil {
			t.Fatal(err)
		}
		must(t, tree.CloseHot(t.Context()))
	}
	h, err := openHot(name, image.ix)
	if err != nil || len(h.entries) != 1+6+2 {
		t.Errorf("%+v, %v", h, err)
	}
	other := makeImage(t, []tar.Header{file("other", 10)})
	if _, err := openHot(name, other.ix); err == nil {
		t.Error("the file of another index was opened")
	}
}

// makeHot makes a hot file with all files of an image.
func makeHot(t testing.TB, image *img, sizes map[string]int64, name string) []byte {
	t.Helper()
	tree := New(image.ix, image.layers)
	tree.UseHot(name)
	for f := range sizes {
		if _, err := tree.ReadFile("/"+f, 1<<30); err != nil {
			t.Fatal(err)
		}
	}
	must(t, tree.CloseHot(t.Context()))
	good, err := os.ReadFile(name)
	must(t, err)
	must(t, CheckHot(name, image.ix))
	return good
}

// TestHotDamaged: whatever is in the file, what is read is right, and afterwards there is
// a good file or none. Checksums that were made to fit do not help a wrong head: then
// blocks are still bound to their file's size, and lie in the file.
func TestHotDamaged(t *testing.T) {
	image, sizes := hotImage(t)
	dir := t.TempDir()
	good := makeHot(t, image, sizes, filepath.Join(dir, "good"))
	table := hotHead + int(binary.LittleEndian.Uint32(good[8:]))*hotEntry
	n, want := 0, map[string][]byte{}
	for f, size := range sizes {
		want[f] = content(f, size)
	}
	use := func(fail func(string, ...any), bad []byte, detected bool) {
		n++
		name := filepath.Join(dir, fmt.Sprint(n))
		must(t, os.WriteFile(name, bad, 0o600))
		defer os.Remove(name)
		if err := CheckHot(name, image.ix); detected && !IsHotDamage(err) {
			fail("the check says %v", err)
		}
		tree := New(image.ix, image.layers)
		tree.UseHot(name)
		for f := range sizes {
			for range 2 {
				if b, err := tree.ReadFile("/"+f, 1<<30); detected && err == nil && !bytes.Equal(b, want[f]) || err != nil {
					fail("%s: %d bytes that are not its own, %v", f, len(b), err)
				}
			}
		}
		if !detected || n%40 != 1 { // to write it anew takes long
			must(t, tree.hot.close())
			return
		}
		must(t, tree.CloseHot(t.Context()))
		if err := CheckHot(name, image.ix); err != nil && !errors.Is(err, fs.ErrNotExist) {
			fail("afterwards the file is %v", err)
		}
	}
	for at := 0; at < table; at += 3 { // before the blocks
		bad := bytes.Clone(good)
		bad[at] ^= 1 << (at % 8)
		use(t.Fatalf, bad, true)
	}
	rapid.Check(t, func(rt *rapid.T) {
		bad := bytes.Clone(good)
		bad[rapid.IntRange(0, len(bad)-1).Draw(rt, "at")] ^= byte(rapid.IntRange(1, 255).Draw(rt, "bits"))
		use(rt.Fatalf, bad, true)
	})
	rapid.Check(t, func(rt *rapid.T) {
		use(rt.Fatalf, good[:rapid.IntRange(0, len(good)-1).Draw(rt, "length")], true)
	})
	rapid.Check(t, func(rt *rapid.T) {
		bad := bytes.Clone(good)
		for range rapid.IntRange(1, 4).Draw(rt, "changes") {
			at := rapid.IntRange(hotHead, table-4).Draw(rt, "at")
			binary.LittleEndian.PutUint32(bad[at:], rapid.Uint32().Draw(rt, "value"))
		}
		clear(bad[hotSum:hotID])
		binary.LittleEndian.PutUint32(bad[hotSum:], hotCRC(bad[:table]))
		use(rt.Fatalf, bad, false)
	})
}

// TestHotDamagedInUse: many who find the damage at once, and who read other blocks, all
// get what is right.
func TestHotDamagedInUse(t *testing.T) {
	image, sizes := hotImage(t)
	name := filepath.Join(t.TempDir(), "hot")
	bad := makeHot(t, image, sizes, name)
	bad[len(bad)-10] ^= 1
	must(t, os.WriteFile(name, bad, 0o600))
	tree := New(image.ix, image.layers)
	tree.UseHot(name)
	var group errgroup.Group
	for range 8 {
		group.Go(func() error {
			for f, size := range sizes {
				if b, err := tree.ReadFile("/"+f, 1<<30); err != nil || !bytes.Equal(b, content(f, size)) {
					return fmt.Errorf("%s: %d bytes that are not its own: %w", f, len(b), err)
				}
			}
			return nil
		})
	}
	must(t, group.Wait())
	if !tree.hot.bad.Load() {
		t.Error("the damage was not found")
	}
	must(t, tree.CloseHot(t.Context()))
	must(t, CheckHot(name, image.ix))
}

// TestHotSize: a block that is shorter than the file's size implies is not used, though
// its checksum is right: the file would end there.
func TestHotSize(t *testing.T) {
	image, sizes := hotImage(t)
	name := filepath.Join(t.TempDir(), "hot")
	b := makeHot(t, image, sizes, name)
	w, err := image.walk("look up", "/two", nil)
	must(t, err)
	le := binary.LittleEndian
	table := hotHead + int(le.Uint32(b[8:]))*hotEntry
	for at := hotHead; at < table; at += hotEntry {
		if le.Uint32(b[at:]) == w.node() && le.Uint32(b[at+4:]) == 1 {
			le.PutUint32(b[at+12:], 1000)
			le.PutUint32(b[at+16:], hotCRC(b[le.Uint32(b[at+8:]):][:1000]))
		}
	}
	clear(b[hotSum:hotID])
	le.PutUint32(b[hotSum:], hotCRC(b[:table]))
	must(t, os.WriteFile(name, b, 0o600))
	tree := New(image.ix, image.layers)
	tree.UseHot(name)
	if got, err := tree.ReadFile("/two", 1<<30); err != nil || !bytes.Equal(got, content("two", sizes["two"])) {
		t.Errorf("%d bytes that are not its own, %v", len(got), err)
	}
	must(t, tree.CloseHot(t.Context()))
}

// TestHotOfRemovedImage: nothing is written for an index that is gone.
func TestHotOfRemovedImage(t *testing.T) {
	image, _ := hotImage(t)
	index := filepath.Join(t.TempDir(), "index")
	must(t, os.WriteFile(index, nil, 0o600))
	for _, there := range []bool{true, false} {
		tree := New(image.ix, image.layers)
		tree.UseHot(index + HotSuffix)
		if _, err := tree.ReadFile("/small", 1<<30); err != nil {
			t.Fatal(err)
		}
		if !there {
			must(t, os.Remove(index))
		}
		must(t, tree.CloseHot(t.Context()))
		if _, err := os.Stat(index + HotSuffix); (err == nil) != there {
			t.Errorf("index there %v: %v", there, err)
		}
		_ = os.Remove(index + HotSuffix)
	}
}

// FuzzHot: a file of any content, whose checksum of the head may fit, is opened or refused.
func FuzzHot(f *testing.F) {
	image, sizes := hotImage(f)
	good := makeHot(f, image, sizes, filepath.Join(f.TempDir(), "good"))
	f.Add(good[:hotHead+int(binary.LittleEndian.Uint32(good[8:]))*hotEntry], true)
	f.Add(good[:hotHead], false)
	name := filepath.Join(f.TempDir(), "hot")
	f.Fuzz(func(t *testing.T, b []byte, fit bool) {
		if fit && len(b) >= hotHead {
			copy(b, hotMagic)
			id := hotOf(image.ix)
			copy(b[hotID:], id[:])
			if begin := hotHead + int64(binary.LittleEndian.Uint32(b[8:]))*hotEntry; begin <= int64(len(b)) {
				clear(b[hotSum:hotID])
				binary.LittleEndian.PutUint32(b[hotSum:], hotCRC(b[:begin]))
			}
		}
		must(t, os.WriteFile(name, b, 0o600))
		if err := CheckHot(name, image.ix); err != nil && !IsHotDamage(err) && !errors.Is(err, io.EOF) {
			t.Fatal(err)
		}
	})
}
