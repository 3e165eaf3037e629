package merged

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/gangway-hpc/gangway/image/layer"
	"github.com/gangway-hpc/gangway/image/oci"
	"github.com/gangway-hpc/gangway/squashfs"
)

// convert makes a layer file of entries.
func convert(t *testing.T, n int, entries []layer.Entry) *layer.Layer {
	t.Helper()
	path := filepath.Join(t.TempDir(), fmt.Sprint(n))
	f, err := os.Create(path)
	must(t, err)
	_, err = layer.Convert(t.Context(), f, bytes.NewReader(tarOf(t, n, entries)), layer.Options{})
	must(t, errors.Join(err, f.Close()))
	l, err := layer.Open(path, squashfs.ReaderOptions{})
	must(t, err)
	t.Cleanup(func() { must(t, l.Close()) })
	return l
}

// applyFile applies a layer file as the image package does.
func applyFile(b *Builder, n int, l *layer.Layer) error {
	r := l.Squashfs()
	sb := r.Superblock()
	info := LayerInfo{Digest: oci.DigestOf([]byte{byte(n)}), Size: int64(sb.BytesUsed), BlockSize: sb.BlockSize, Compression: sb.Compression}
	return b.Apply(context.Background(), info, l.Entries(), func(inode uint32) (squashfs.Layout, error) {
		i, err := r.InodeByNumber(inode)
		if err != nil {
			return squashfs.Layout{}, err
		}
		return r.Layout(i)
	})
}

// TestLayerFiles: from tar archives to an index that agrees with the layer files, by
// which every file's content is found again.
func TestLayerFiles(t *testing.T) {
	big := file("usr/lib/big")
	big.Size = 300_001
	layers := stackOf{
		list(big, file("usr/lib/a"), symlink("lib", "usr/lib"), hardlink("hard", "lib/big"), file("gone")),
		list(file("lib/b"), hardlink("usr/old", "usr/lib/a"), file("usr/lib/a"), wh("gone")),
	}
	b := NewBuilder(Options{})
	var readers []*squashfs.Reader
	for i, entries := range layers {
		l := convert(t, i, entries)
		readers = append(readers, l.Squashfs())
		must(t, applyFile(b, i, l))
	}
	var out bytes.Buffer
	_, err := b.WriteTo(&out)
	must(t, err)
	ix, err := New(out.Bytes())
	must(t, err)
	opened := make([]int, len(readers))
	open := func(i int) (*squashfs.Reader, error) {
		opened[i]++
		return readers[i], nil
	}
	must(t, Check(t.Context(), ix, open))
	if opened[0] != 1 || opened[1] != 1 {
		t.Errorf("layers were opened %d times", opened)
	}
	for path, want := range map[string][]byte{
		"hard": contentBytes(0, layers[0][0]), "usr/lib/big": contentBytes(0, layers[0][0]),
		"usr/old": contentBytes(0, layers[0][1]), "usr/lib/a": contentBytes(1, layers[1][2]), "usr/lib/b": contentBytes(1, layers[1][0]),
	} {
		n := Root
		for name := range strings.SplitSeq(path, "/") {
			n, err = ix.Lookup(n, name)
			must(t, err)
		}
		d, err := ix.Data(n)
		must(t, err)
		in, err := readers[d.Layer].InodeByNumber(d.Inode)
		must(t, err)
		f, err := readers[d.Layer].OpenFile(in)
		must(t, err)
		got, err := io.ReadAll(f)
		must(t, errors.Join(err, f.Close()))
		if !bytes.Equal(got, want) {
			t.Errorf("%s: got %d bytes %.30q, want %d bytes %.30q", path, len(got), got, len(want), want)
		}
	}
	// Other layer files than the index was made of.
	readers[0], readers[1] = readers[1], readers[0]
	if err := Check(t.Context(), ix, open); err == nil {
		t.Error("Check with the layers exchanged finds nothing")
	}
	boom := errors.New("boom")
	if err := Check(t.Context(), ix, func(int) (*squashfs.Reader, error) { return nil, boom }); !errors.Is(err, boom) {
		t.Errorf("Check where layers cannot be opened: %v", err)
	}
}

// many yields n entries as an image of Python packages has them.
func many(n int) []layer.Entry {
	list := make([]layer.Entry, n)
	for i := range list {
		list[i] = layer.Entry{
			Name: fmt.Sprintf("usr/lib/python3/dist-packages/package%d/sub%d/module_%d.py", i/1000, i/20%50, i),
			Type: layer.File, Mode: 0o644, Size: 9000, Inode: uint32(i) + 1, Sec: int64(i),
		}
	}
	return list
}

// BenchmarkBuild measures the merge of the 79,000 entries of the torch image.
func BenchmarkBuild(b *testing.B) {
	entries := many(79_000)
	var size int64
	for b.Loop() {
		m := NewBuilder(Options{})
		must(b, apply(m, 0, entries))
		n, err := m.WriteTo(io.Discard)
		must(b, err)
		size = n
	}
	b.ReportMetric(float64(size)/79_000, "filebytes/entry")
}

// BenchmarkOpen opens an index of 500,000 entries.
func BenchmarkOpen(b *testing.B) {
	m := NewBuilder(Options{})
	must(b, apply(m, 0, many(500_000)))
	path := filepath.Join(b.TempDir(), "index")
	f, err := os.Create(path)
	must(b, err)
	_, err = m.WriteTo(f)
	must(b, errors.Join(err, f.Close()))
	for b.Loop() {
		ix, err := Open(path)
		must(b, err)
		must(b, ix.Close())
	}
}

func BenchmarkLookup(b *testing.B) {
	m := NewBuilder(Options{})
	list := make([]layer.Entry, 100_000)
	for i := range list {
		list[i] = dir(fmt.Sprintf("name%d", i), 0o755)
	}
	must(b, apply(m, 0, list))
	var out bytes.Buffer
	_, err := m.WriteTo(&out)
	must(b, err)
	ix, err := New(out.Bytes())
	must(b, err)
	for i := 0; b.Loop(); i++ {
		if _, err := ix.Lookup(Root, list[i*7919%len(list)].Name); err != nil {
			b.Fatal(err)
		}
	}
}

// TestMemory: 500,000 entries are merged and written within 150 MiB.
func TestMemory(t *testing.T) {
	n := 500_000
	if testing.Short() {
		n = 50_000
	}
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	b := NewBuilder(Options{})
	entries := func(yield func(layer.Entry, error) bool) {
		for i := range n {
			e := layer.Entry{
				Name: fmt.Sprintf("usr/lib/python3/dist-packages/package%d/sub%d/module_%d.py", i/1000, i/20%50, i),
				Type: layer.File, Mode: 0o644, Size: 9000, Inode: uint32(i) + 1,
			}
			if !yield(e, nil) {
				return
			}
		}
	}
	must(t, b.Apply(t.Context(), infoOf(0), entries, func(inode uint32) (squashfs.Layout, error) {
		return layoutOf(inode, 9000), nil
	}))
	p, err := b.plan()
	must(t, err)
	used := heap() - before
	perEntry := used / uint64(n)
	t.Logf("%d MiB, %d bytes an entry", used>>20, perEntry)
	if perEntry > 150<<20/500_000 {
		t.Errorf("%d bytes an entry", perEntry)
	}
	runtime.KeepAlive(p)
	runtime.KeepAlive(b)
}

// TestRepeatedWhiteouts: what a hostile layer repeats costs it no more than entries.
func TestRepeatedWhiteouts(t *testing.T) {
	n := 100_000
	if testing.Short() {
		n = 5_000 // too few to tell
	}
	var list []layer.Entry
	for i := range n {
		list = append(list, dir(fmt.Sprintf("d/x%d", i), 0o755))
	}
	for range n {
		list = append(list, opq("d"), opq(""), wh("d"))
	}
	done := make(chan error, 1)
	go func() {
		_, err := image(list, list)
		done <- err
	}()
	select {
	case err := <-done:
		must(t, err)
	case <-time.After(time.Minute): // some 20,000 million steps would take longer
		t.Fatal("clearing a cleared directory takes time")
	}
}
