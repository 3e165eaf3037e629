package rootfs

import (
	"archive/tar"
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"pgregory.net/rapid"
)

func hotImage(t *testing.T) (*img, map[string]int64) {
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
	h, err := openHot(name, image.ix.NumInodes())
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
	h, err := openHot(name, image.ix.NumInodes())
	if err != nil || h.count != 1+6+2 {
		t.Errorf("%+v, %v", h, err)
	}
	if _, err := openHot(name, image.ix.NumInodes()+1); err == nil {
		t.Error("the file of another index was opened")
	}
}

// TestHotDamaged: a file of any content does no harm: no panic, no byte from outside it.
func TestHotDamaged(t *testing.T) {
	image, sizes := hotImage(t)
	dir := t.TempDir()
	tree := New(image.ix, image.layers)
	tree.UseHot(filepath.Join(dir, "good"))
	for f := range sizes {
		if _, err := tree.ReadFile("/"+f, 1<<30); err != nil {
			t.Fatal(err)
		}
	}
	must(t, tree.CloseHot(t.Context()))
	good, err := os.ReadFile(filepath.Join(dir, "good"))
	must(t, err)
	n := 0
	rapid.Check(t, func(rt *rapid.T) {
		bad := bytes.Clone(good)
		for range rapid.IntRange(1, 4).Draw(rt, "changes") {
			at := rapid.IntRange(0, hotHead+20*hotEntry).Draw(rt, "at")
			binary.LittleEndian.PutUint32(bad[at:], rapid.Uint32().Draw(rt, "value"))
		}
		bad = bad[:rapid.IntRange(0, len(bad)).Draw(rt, "length")]
		n++
		name := filepath.Join(dir, fmt.Sprint(n))
		must(t, os.WriteFile(name, bad, 0o600))
		defer os.Remove(name)
		h, err := openHot(name, image.ix.NumInodes())
		if err != nil {
			return
		}
		defer h.close()
		for inode := range image.ix.NumInodes() + 2 {
			for _, off := range []int64{0, 1, hotBlock, 5 * hotBlock} {
				if b, _ := h.span(inode, off, 3*hotBlock); len(b) > 3*hotBlock {
					rt.Fatalf("%d bytes", len(b))
				}
			}
		}
	})
}
