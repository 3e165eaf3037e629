package layer

import (
	"archive/tar"
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/gangway-hpc/gangway/squashfs"
)

// TestEntriesSame writes random archives, converts them, and compares what comes
// out, content too, with what package tar reads.
func TestEntriesSame(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		for range rapid.IntRange(0, 20).Draw(rt, "entries") {
			i := randomItem(rt)
			if w.WriteHeader(&i.Header) != nil {
				continue // package tar has no form for it
			}
			_, err := w.Write([]byte(i.content))
			must(t, err)
		}
		must(t, w.Close())
		blob := b.Bytes()
		want, ok := wanted(blob)
		switch rapid.SampledFrom([]string{"none", "gzip", "zstd"}).Draw(rt, "compression") {
		case "gzip":
			blob = gzipped(t, blob)
		case "zstd":
			blob = zstded(t, blob)
		}
		out, _, err := tryConvert(blob, Options{Workers: rapid.IntRange(1, 3).Draw(rt, "workers")})
		if (err == nil) != ok {
			rt.Fatalf("%v; want %v", err, ok)
		}
		if err != nil {
			return
		}
		l, err := NewReader(out, squashfs.ReaderOptions{})
		must(t, err)
		defer l.Close()
		have, err := readAll(l)
		if err != nil {
			rt.Fatal(err)
		}
		if err := sameEntries(have, want); err != nil {
			rt.Fatal(err)
		}
		if err := Check(t.Context(), l, CheckOptions{}); err != nil {
			rt.Fatal(err)
		}
	})
}

// randomItem is an entry with few names, so that they meet.
func randomItem(t *rapid.T) item {
	part := rapid.SampledFrom([]string{"a", "b", "c", "dir", ".wh.a", ".wh..wh..opq", ".wh..gangway", "1", "\xff", ".", ""})
	name := func(label string) string {
		return strings.Join(rapid.SliceOfN(part, 1, 4).Draw(t, label), "/")
	}
	h := tar.Header{
		Name: name("name"), Mode: rapid.Int64Range(0, 0o7777).Draw(t, "mode"), Format: tar.FormatPAX,
		Uid: rapid.IntRange(0, 1<<32-1).Draw(t, "uid"), Gid: rapid.IntRange(0, 5).Draw(t, "gid"),
		ModTime: time.Unix(rapid.Int64Range(-1<<40, 1<<40).Draw(t, "seconds"), rapid.Int64Range(0, 999_999_999).Draw(t, "nanoseconds")),
	}
	i := item{Header: h}
	i.Typeflag = rapid.SampledFrom([]byte{'0', '0', '0', '5', '5', '1', '2', '3', '4', '6', '7'}).Draw(t, "type")
	switch i.Typeflag {
	case '0', '7':
		n := rapid.SampledFrom([]int{0, 1, 100, 100, 5000, 5000, 131_072, 200_000}).Draw(t, "size")
		i.content = noise(rapid.Uint64Range(0, 3).Draw(t, "seed"), n)
		if rapid.IntRange(0, 5).Draw(t, "zeros") == 0 {
			i.content = string(make([]byte, n))
		}
		i.Size = int64(n)
	case '1':
		i.Linkname = name("target")
	case '2':
		i.Linkname = rapid.StringMatching(`[a-z/.]{0,30}`).Draw(t, "target")
	case '3', '4':
		i.Devmajor, i.Devminor = rapid.Int64Range(0, 1<<20).Draw(t, "major"), rapid.Int64Range(0, 1<<20).Draw(t, "minor")
	}
	for n := range rapid.IntRange(0, 2).Draw(t, "xattrs") {
		space := rapid.SampledFrom([]string{"user", "trusted", "security", "system"}).Draw(t, "namespace")
		i = xattr(i, fmt.Sprintf("%s.%d", space, n), string(rapid.SliceOfN(rapid.Byte(), 1, 50).Draw(t, "value")))
	}
	return i
}
