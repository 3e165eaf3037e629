package layer

import (
	"archive/tar"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/gangway-hpc/gangway/squashfs"
)

// TestMemory bounds what is held at the end of a layer of many entries, and while
// they are read again.
func TestMemory(t *testing.T) {
	entries, limit := 50_000, int64(48<<20)
	if os.Getenv("GANGWAY_TEST_LONG") != "" {
		entries, limit = 500_000, 150<<20
	}
	before := liveHeap()
	var held int64
	r, w := io.Pipe()
	go func() {
		a := tar.NewWriter(w)
		for i := range entries {
			c := fmt.Sprint("content of file ", i)
			h := tar.Header{Name: fmt.Sprintf("usr/lib/python3/dist-packages/directory-%d/file-of-some-name-%d.py", i/50, i), Size: int64(len(c)), Mode: 0o644}
			if err := a.WriteHeader(&h); err != nil {
				w.CloseWithError(err)
				return
			}
			_, _ = io.WriteString(a, c)
		}
		held = liveHeap() - before
		w.CloseWithError(a.Close())
	}()
	out, err := os.Create(filepath.Join(t.TempDir(), "artefact"))
	must(t, err)
	defer out.Close()
	info, err := Convert(t.Context(), out, r, Options{Workers: 2})
	must(t, err)
	t.Logf("%d entries: %d MiB held; TOC and squashfs of %d bytes", entries, held>>20, info.Size)
	if held > limit {
		t.Errorf("%d MiB for %d entries, more than %d", held>>20, entries, limit>>20)
	}
	l, err := Open(out.Name(), squashfs.ReaderOptions{})
	must(t, err)
	defer l.Close()
	before = liveHeap()
	n := 0
	for _, err := range l.Entries() {
		must(t, err)
		if n++; n == entries-1 {
			if held := liveHeap() - before; held > 8<<20 {
				t.Errorf("%d MiB held to read entries", held>>20)
			}
		}
	}
	if n != entries {
		t.Errorf("%d entries", n)
	}
}

// liveHeap is how many bytes are live.
func liveHeap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
