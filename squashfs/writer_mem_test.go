package squashfs

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
)

// wNowhere is an Output that keeps nothing.
type wNowhere struct{}

func (wNowhere) WriteAt(p []byte, _ int64) (int, error) { return len(p), nil }
func (wNowhere) Truncate(int64) error                   { return nil }

// TestWriterMemory bounds what a Writer holds of the entries that were added.
func TestWriterMemory(t *testing.T) {
	entries, limit := 50_000, int64(30<<20)
	if wLong() {
		entries, limit = 500_000, 100<<20
	}
	o := WriterOptions{Workers: 2}
	before := wHeap()
	w, err := NewWriter(wNowhere{}, o)
	must(t, err)
	defer w.Close()
	for i := range entries {
		e := Entry{Path: fmt.Sprintf("directory-%d/file-of-some-name-%d", i/100, i), Size: -1, UID: uint32(i % 50)}
		must(t, w.Add(e, strings.NewReader(e.Path)))
	}
	if grown := wHeap() - before; grown > limit {
		t.Errorf("%d MiB for %d entries", grown>>20, entries)
	} else {
		t.Logf("%d MiB for %d entries", grown>>20, entries)
	}
	_, err = w.Finish(t.Context())
	must(t, err)
	grown := wHeap() - before
	t.Logf("%d MiB after Finish", grown>>20)
	runtime.KeepAlive(w)
}

// wHeap is how many bytes are live.
func wHeap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
