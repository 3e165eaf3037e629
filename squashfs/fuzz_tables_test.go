package squashfs

import (
	"bytes"
	"context"
	"slices"
	"testing"
)

// FuzzLookupTables takes everything behind the directory table: the fragment, the
// export, the id and the xattr table, with their lists.
func FuzzLookupTables(f *testing.F) {
	images := damageImages(f)
	names := make([]string, 0, len(images))
	for name, b := range images {
		r, err := NewReader(readerOf(b), ReaderOptions{})
		must(f, err)
		names = append(names, name)
		at := r.dirTable.end
		must(f, r.Close())
		f.Add(name, b[at:])
	}
	slices.Sort(names)
	c := fuzzCache(f)
	f.Fuzz(func(t *testing.T, name string, tail []byte) {
		b, ok := images[name]
		if !ok {
			b = images[names[len(name)%len(names)]]
		}
		r, err := NewReader(readerOf(b), ReaderOptions{Cache: c})
		must(t, err)
		at := r.dirTable.end
		must(t, r.Close())
		n := min(len(tail), len(b)-int(at))
		wantKnown(t, tryImage(t, slices.Concat(b[:at], tail[:n], b[int(at)+n:]), c))
	})
}

// FuzzAddImage writes a hostile image anew. What comes of it without an error is an
// image whose tables keep all rules, whatever its data.
func FuzzAddImage(f *testing.F) {
	for _, b := range damageImages(f) {
		f.Add(b, true)
		f.Add(b, false)
	}
	c := fuzzCache(f)
	f.Fuzz(func(t *testing.T, b []byte, recompress bool) {
		src, err := NewReader(bytes.NewReader(b), ReaderOptions{Cache: c, Workers: 1})
		if err != nil {
			wantKnown(t, err)
			return
		}
		defer src.Close()
		if hugeFiles(src) {
			return
		}
		o := WriterOptions{
			Compression: src.sb.Compression, BlockSize: int(src.sb.BlockSize), Workers: 1, Recompress: recompress,
		}
		if o.Compression == XZ || o.Compression == LZO {
			o.Compression = LZ4
		}
		out := &wMem{}
		if err := wAddImage(t.Context(), out, o, src); err != nil {
			wantKnown(t, err)
			return
		}
		r, err := NewReader(out, ReaderOptions{Cache: c, Workers: 1})
		must(t, err)
		defer r.Close()
		must(t, Check(t.Context(), r, CheckOptions{SkipData: true}))
	})
}

// hugeFiles says whether an image has files that would take a fuzzer's time.
func hugeFiles(r *Reader) bool {
	k := &checker{ctx: context.Background(), r: r, o: CheckOptions{MaxProblems: 1}}
	var total uint64
	_ = k.scan(func(i *Inode, _ Ref) error {
		if i.Type == TypeFile {
			total += min(i.Size, 1<<40)
		}
		return nil
	})
	return total > 64<<20
}
