package layer

import (
	"bytes"
	"testing"

	"github.com/zeebo/blake3"

	"github.com/gangway-hpc/gangway/squashfs"
)

// FuzzConvert: any bytes are a layer or an error, never a panic; and what is a layer
// gives an artefact without fault, whose entries are those that package tar reads.
func FuzzConvert(f *testing.F) {
	raw := archive(f, dir("d"), file("d/a", "hello"), link('2', "s", "t"), xattr(file("x", ""), "user.a", "b"))
	f.Add(raw)
	f.Add(gzipped(f, raw))
	f.Add(zstded(f, raw))
	f.Add(rawHeader("sparse", 'S', 100))
	f.Fuzz(func(t *testing.T, blob []byte) {
		limits := Limits{Bytes: 4 << 20, Entries: 100}
		out, info, err := tryConvert(blob, Options{Limits: limits, Workers: 1})
		if err != nil {
			return
		}
		l, err := NewReader(out, squashfs.ReaderOptions{})
		must(t, err)
		defer l.Close()
		must(t, Check(t.Context(), l, CheckOptions{}))
		have, err := readAll(l)
		must(t, err)
		if want, ok := wanted(blob); ok && info.Compression == compressionNone && !info.EStargz && !hasStrangeXattrs(have, want) {
			must(t, sameEntries(have, want))
		}
	})
}

// hasStrangeXattrs: the oracle does not know which extended attributes are dropped.
func hasStrangeXattrs(have, want []got) bool {
	for i := range min(len(have), len(want)) {
		if len(have[i].Xattrs) != len(want[i].Xattrs) {
			return true
		}
	}
	return false
}

// FuzzTOC: whatever lies behind a squashfs image is decoded or refused, with right
// checksums too.
func FuzzTOC(f *testing.F) {
	out, _ := converted(f, archive(f, dir("d"), file("d/a", "hello"), file("e", ""), xattr(file("x", "y"), "user.a", "b")), Options{})
	at := squashfsSize(out.b)
	f.Add(out.b[at:], false)
	f.Add(out.b[at:], true)
	f.Fuzz(func(t *testing.T, trailer []byte, mend bool) {
		trailer = bytes.Clone(trailer)
		if mend && len(trailer) >= headerSize {
			payload := blake3.Sum256(trailer[headerSize:])
			copy(trailer[320:], payload[:])
			head := blake3.Sum256(trailer[:headerSize-sumSize])
			copy(trailer[headerSize-sumSize:], head[:])
		}
		l, err := NewReader(&memory{append(bytes.Clone(out.b[:at]), trailer...)}, squashfs.ReaderOptions{})
		if err != nil {
			return
		}
		defer l.Close()
		n := 0
		for _, err := range l.Entries() {
			if n++; err != nil || n > 10_000 {
				break
			}
		}
		if n <= 10_000 {
			_ = Check(t.Context(), l, CheckOptions{SkipSquashfs: true})
		}
	})
}
