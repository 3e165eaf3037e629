package squashfs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
)

// wAddImage writes src anew.
func wAddImage(ctx context.Context, out Output, o WriterOptions, src *Reader) error {
	w, err := NewWriter(out, o)
	if err != nil {
		return err
	}
	defer w.Close()
	if err := w.AddImage(ctx, src, "."); err != nil {
		return err
	}
	_, err = w.Finish(ctx)
	return err
}

// wUnchecked opens an image that is not as it should be.
func wUnchecked(t *testing.T, img *wMem) *Reader {
	r, err := NewReader(img, ReaderOptions{})
	must(t, err)
	t.Cleanup(func() { must(t, r.Close()) })
	return r
}

// TestSharedListing has many directories with one listing: a tree of as many
// entries as directories times entries, in an image that is small.
func TestSharedListing(t *testing.T) {
	items := []wItem{wFile("a/last", nil)}
	const n = 300
	for i := range n {
		items = append(items, wFile(fmt.Sprintf("a/%03d", i), nil), wDir(fmt.Sprintf("d%03d", i)))
	}
	img := wImage(t, WriterOptions{Compression: Uncompressed}, items...)
	good := wOpen(t, img)
	a := wAt(t, good, "a")
	for i := range n {
		d := wAt(t, good, fmt.Sprintf("d%03d", i))
		// A basic directory's fields behind its header: block, links, size, offset.
		ref, err := good.exported(d.Number)
		must(t, err)
		at := rawAt(good, &good.inodeTable, ref) + inodeHeadLen
		le.PutUint32(img.b[at:], a.dirBlock)
		le.PutUint16(img.b[at+8:], uint16(a.Size+dirSizeBias))
		le.PutUint16(img.b[at+10:], a.dirOffset)
	}
	src := wUnchecked(t, img)
	if err := Check(t.Context(), src, CheckOptions{}); !errors.Is(err, ErrCorrupt) {
		t.Errorf("check: %v", err)
	}
	if err := wAddImage(t.Context(), &wMem{}, WriterOptions{}, src); !errors.Is(err, ErrCorrupt) {
		t.Errorf("add image: %v", err)
	}
}

// TestAddImageTwoInodesOfOneNumber: the second must not become a name of the first.
func TestAddImageTwoInodesOfOneNumber(t *testing.T) {
	img := wImage(t, WriterOptions{Compression: Uncompressed, NoExport: true},
		wFile("a", []byte("AAAA")), wLink("a2", "a"), wFile("b", []byte("BBBB")), wLink("b2", "b"))
	good := wOpen(t, img)
	root, err := good.Root()
	must(t, err)
	a := wAt(t, good, "a")
	for e, err := range good.ReadDir(root) {
		must(t, err)
		if e.Name != "b" {
			continue
		}
		le.PutUint32(img.b[rawAt(good, &good.inodeTable, e.Ref)+12:], a.Number)
	}
	// The entries' numbers: in the one run, b and b2 say 1 more than a.
	listing := img.b[rawAt(good, &good.dirTable, makeRef(uint64(root.dirBlock), int(root.dirOffset))):]
	for at := dirHeaderSize; at < int(root.Size); {
		name := string(listing[at+dirEntrySize:][:int(le.Uint16(listing[at+6:]))+1])
		if name[0] == 'b' {
			le.PutUint16(listing[at+2:], 0)
		}
		at += dirEntrySize + len(name)
	}
	src := wUnchecked(t, img)
	out := &wMem{}
	must(t, wAddImage(t.Context(), out, WriterOptions{}, src))
	for name, want := range map[string]string{"a": "AAAA", "a2": "AAAA", "b": "BBBB", "b2": "BBBB"} {
		if got := wContent(t, wOpen(t, out), name); string(got) != want {
			t.Errorf("%s has %q, want %q", name, got, want)
		}
	}
}

// TestXattrBomb has an image of some KiB whose attributes are hundreds of MiB.
func TestXattrBomb(t *testing.T) {
	if testing.Short() {
		t.Skip("short: 260 MB of attributes, and no second goroutine")
	}
	value := bytes.Repeat([]byte{1}, maxXattrValue)
	var items []wItem
	for i := range 100 {
		f := wFile(fmt.Sprint(i), nil)
		for k := range 40 {
			f.Xattrs = append(f.Xattrs, Xattr{Name: fmt.Sprintf("user.%02d", k), Value: value})
		}
		f.Xattrs = append(f.Xattrs, Xattr{Name: "user.own", Value: fmt.Append(nil, i)})
		items = append(items, f)
	}
	img := wImage(t, WriterOptions{}, items...)
	if len(img.b) > 64<<10 {
		t.Fatalf("the image has %d bytes", len(img.b))
	}
	w, err := NewWriter(&wMem{}, WriterOptions{})
	must(t, err)
	defer w.Close()
	must(t, w.AddImage(t.Context(), wOpen(t, img), "."))
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	if m.HeapAlloc > 100<<20 {
		t.Errorf("%d MiB are held for an image of %d KiB", m.HeapAlloc>>20, len(img.b)>>10)
	}
	runtime.KeepAlive(w)
}

// TestFinishCanceled: nothing is copied for one who has gone.
func TestFinishCanceled(t *testing.T) {
	src := wOpen(t, wImage(t, WriterOptions{}, wFile("f", noise(1, 300_000))))
	ctx, cancel := context.WithCancel(t.Context())
	path := filepath.Join(t.TempDir(), "image")
	w, err := Create(path, WriterOptions{})
	must(t, err)
	defer w.Close()
	must(t, w.AddImage(ctx, src, "."))
	cancel()
	if _, err := w.Commit(ctx, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the image is there: %v", err)
	}
	out := &wMem{}
	many, err := NewWriter(out, WriterOptions{})
	must(t, err)
	defer many.Close()
	for i := range 1000 {
		must(t, many.Add(Entry{Path: fmt.Sprint(i)}, nil))
	}
	if _, err := many.Finish(ctx); !errors.Is(err, context.Canceled) || len(out.b) > superblockSize {
		t.Errorf("%v, and %d bytes were written", err, len(out.b))
	}
}

// TestCreateOverDirectory: this is told before the work, not after it.
func TestCreateOverDirectory(t *testing.T) {
	if _, err := Create(t.TempDir(), WriterOptions{}); !errors.Is(err, syscall.EISDIR) {
		t.Errorf("%v", err)
	}
}

// TestRefusedLeavesNoTrace compares an image with one that nobody tried to add
// anything wrong to.
func TestRefusedLeavesNoTrace(t *testing.T) {
	write := func(try func(w *Writer)) []byte {
		out := &wMem{}
		w, err := NewWriter(out, WriterOptions{})
		must(t, err)
		defer w.Close()
		must(t, w.Add(Entry{Path: "a", UID: 5}, nil))
		try(w)
		must(t, w.Add(Entry{Path: "b", UID: 6}, nil))
		_, err = w.Finish(t.Context())
		must(t, err)
		return out.b
	}
	attrs := []Xattr{{Name: "user.x", Value: []byte("y")}}
	got := write(func(w *Writer) {
		for _, e := range []Entry{
			{Path: "a", UID: 77, GID: 78, Xattrs: attrs},
			{Path: "a/below", UID: 77, Xattrs: attrs},
			{Path: "new/..", UID: 77, Xattrs: attrs},
			{Path: "new/f", UID: 77, Xattrs: append(attrs, attrs...)},
			{Path: "new/l", Mode: fs.ModeSymlink, UID: 77, Xattrs: attrs},
		} {
			if w.Add(e, nil) == nil {
				t.Errorf("%+v was added", e)
			}
		}
		if w.Link("new/link", "missing") == nil {
			t.Error("linked to nothing")
		}
	})
	if !bytes.Equal(got, write(func(*Writer) {})) {
		t.Error("the image is another")
	}
}
