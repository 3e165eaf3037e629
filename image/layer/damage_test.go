package layer

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/zeebo/blake3"

	"github.com/gangway-hpc/gangway/image/oci"
	"github.com/gangway-hpc/gangway/squashfs"
)

// small is a layer with few bytes, of which each can be damaged.
func small(t testing.TB) []byte {
	return archive(t, dir("d"), file("d/a", strings.Repeat("hello ", 40)), xattr(file("b", noise(1, 300)), "user.x", "y"), file("c", ""))
}

// TestDamagedBlob cuts a blob and flips bits in it, everywhere. Where the digest is
// known each is an ErrDigest, so that it can be told from a layer that was made
// wrongly; else there is an error, or what came is what a tar archive may say.
func TestDamagedBlob(t *testing.T) {
	raw := small(t)
	for name, blob := range map[string][]byte{"none": raw, "gzip": gzipped(t, raw), "zstd": zstded(t, raw)} {
		t.Run(name, func(t *testing.T) {
			known := Options{Digest: oci.DigestOf(blob), Size: int64(len(blob)), Workers: 1}
			step := 1 + len(blob)/150
			for at := 0; at < len(blob); at += step {
				if _, _, err := tryConvert(blob[:at], known); !errors.Is(err, ErrDigest) {
					t.Fatalf("cut at %d: %v", at, err)
				}
				if _, _, err := tryConvert(blob[:at], Options{Workers: 1}); err == nil && name == "gzip" && at > 0 {
					t.Fatalf("cut at %d, and taken", at)
				}
				bad := bytes.Clone(blob)
				bad[at] ^= 1 << (at % 8)
				if _, _, err := tryConvert(bad, known); !errors.Is(err, ErrDigest) {
					t.Fatalf("flipped at %d: %v", at, err)
				}
				if out, _, err := tryConvert(bad, Options{Workers: 1}); err == nil {
					if _, err := readAll(opened(t, out)); err != nil {
						t.Fatalf("flipped at %d: %v", at, err)
					}
				}
			}
		})
	}
}

// TestSuspect: an error that the digest cannot explain stays what it is.
func TestSuspect(t *testing.T) {
	blob := gzipped(t, archive(t, file("a", noise(1, 1<<20)), file("..", ""), file("b", noise(2, 2<<20))))
	o := Options{Digest: oci.DigestOf(blob), Size: int64(len(blob))}
	if _, _, err := tryConvert(blob, o); err == nil || errors.Is(err, ErrDigest) || !strings.Contains(err.Error(), `entry ".."`) {
		t.Errorf("%v", err)
	}
	r := io.MultiReader(bytes.NewReader(blob[:len(blob)-10]), failing{errTest})
	if _, err := Convert(t.Context(), &memory{}, r, o); !errors.Is(err, errTest) {
		t.Errorf("a bad layer whose rest cannot be read: %v", err)
	}
}

// TestDamagedArtefact flips and cuts everywhere: Check finds each, and reading never
// panics.
func TestDamagedArtefact(t *testing.T) {
	out, info := converted(t, gzipped(t, small(t)), Options{})
	damaged := func(what string, b []byte) {
		t.Helper()
		l, err := NewReader(&memory{b}, squashfs.ReaderOptions{})
		if err != nil {
			return
		}
		defer l.Close()
		_, _ = readAll(l)
		if err := Check(t.Context(), l, CheckOptions{SkipSquashfs: true}); !errors.Is(err, ErrCorrupt) && !errors.Is(err, squashfs.ErrCorrupt) {
			t.Fatalf("%s: %v", what, err)
		}
	}
	for at := 0; at < int(info.Size); at++ {
		if at%7 != 0 && at > 200 && at < squashfsSize(out.b) {
			continue
		}
		b := bytes.Clone(out.b)
		b[at] ^= 1 << (at % 8)
		damaged(fmt.Sprint("flipped at ", at), b)
		if at%5 == 0 {
			damaged(fmt.Sprint("cut at ", at), out.b[:at])
		}
	}
	damaged("longer", append(bytes.Clone(out.b), 0))
}

// forge writes another payload behind an artefact, with right checksums.
func forge(out *memory, change func(h *header, records []Entry) []Entry) *memory {
	l, err := NewReader(out, squashfs.ReaderOptions{})
	if err != nil {
		panic(err)
	}
	defer l.Close()
	var entries []Entry
	for e, err := range l.records() {
		if err != nil {
			panic(err)
		}
		entries = append(entries, e)
	}
	w, err := newTOCWriter(1 << 30)
	if err != nil {
		panic(err)
	}
	w.head.info, w.head.squashfsSize, w.head.squashfsSum = l.head.info, l.head.squashfsSize, l.head.squashfsSum
	w.head.info.Files, w.head.info.ContentBytes = 0, 0
	var numbers []uint32
	for _, e := range change(&w.head, entries) {
		if err := w.add(&e); err != nil {
			panic(err)
		}
		if e.Type == File && e.Size > 0 {
			numbers = append(numbers, e.Inode)
		}
	}
	payload, err := w.finish(func(yield func(uint32) bool) {
		for _, n := range numbers {
			if !yield(n) {
				return
			}
		}
	})
	if err != nil {
		panic(err)
	}
	w.head.payloadSum = blake3.Sum256(payload)
	at := int(l.head.squashfsSize)
	return &memory{append(append(bytes.Clone(out.b[:at]), w.head.marshal()...), payload...)}
}

// TestForgedTOC: what has right checksums and is wrong all the same.
func TestForgedTOC(t *testing.T) {
	out, _ := converted(t, small(t), Options{})
	try := func(change func([]Entry)) error {
		l, err := NewReader(forge(out, func(_ *header, e []Entry) []Entry { change(e); return e }), squashfs.ReaderOptions{})
		if err != nil {
			return err
		}
		defer l.Close()
		return Check(t.Context(), l, CheckOptions{})
	}
	must(t, try(func([]Entry) {}))
	for name, change := range map[string]func(e []Entry){
		"dotdot":                func(e []Entry) { e[1].Name = "../x" },
		"not clean":             func(e []Entry) { e[1].Name = "a//x" },
		"NUL":                   func(e []Entry) { e[1].Name = "a\x00" },
		"name too long":         func(e []Entry) { e[1].Name = strings.Repeat("n", 256) },
		"path too long":         func(e []Entry) { e[1].Name = strings.Repeat("n/", 3000) + "n" },
		"mode":                  func(e []Entry) { e[1].Mode = 0o10000 },
		"nanoseconds":           func(e []Entry) { e[1].Nsec = 1e9 },
		"type 0":                func(e []Entry) { e[0].Type = 0 },
		"type 8":                func(e []Entry) { e[0].Type = FIFO + 1 },
		"no target":             func(e []Entry) { e[0].Type = Symlink },
		"hard link up":          func(e []Entry) { e[0].Type, e[0].Link = HardLink, "a/../b" },
		"target too long":       func(e []Entry) { e[0].Type, e[0].Link = Symlink, strings.Repeat("t", 4096) },
		"inode 0":               func(e []Entry) { e[1].Inode = 0 },
		"inode of none":         func(e []Entry) { e[1].Inode = 1000 },
		"inode of another":      func(e []Entry) { e[1].Inode = e[2].Inode },
		"inode of a directory":  func(e []Entry) { e[1].Inode = 5 },
		"another size":          func(e []Entry) { e[1].Size++ },
		"a file without entry":  func(e []Entry) { e[1].Size, e[1].Inode = 0, 0 },
		"xattr of overlayfs":    func(e []Entry) { e[2].Xattrs[0].Name = "user.overlay.opaque" },
		"xattr of no namespace": func(e []Entry) { e[2].Xattrs[0].Name = "x" },
		"xattr too large":       func(e []Entry) { e[2].Xattrs[0].Value = make([]byte, 65537) },
		"xattr twice":           func(e []Entry) { e[2].Xattrs = append(e[2].Xattrs, e[2].Xattrs[0]) },
		"too much content":      func(e []Entry) { e[1].Size, e[2].Size = 1<<62, 1<<62 },
	} {
		if err := try(change); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestVersions: an artefact of a later version is told from a broken one.
func TestVersions(t *testing.T) {
	out, _ := converted(t, small(t), Options{})
	out.b[squashfsSize(out.b)+8] = 2
	_, err := NewReader(out, squashfs.ReaderOptions{})
	if !errors.Is(err, ErrVersion) || errors.Is(err, ErrCorrupt) {
		t.Errorf("%v", err)
	}
}

// TestOtherImages: squashfs images of others have no TOC.
func TestOtherImages(t *testing.T) {
	out := &memory{}
	w, err := squashfs.NewWriter(out, squashfs.WriterOptions{})
	must(t, err)
	_, err = w.Finish(t.Context())
	must(t, err)
	must(t, w.Close())
	for _, tail := range []string{"", "x", strings.Repeat("\x00", 1000), tocMagic} {
		if _, err := NewReader(&memory{append(bytes.Clone(out.b), tail...)}, squashfs.ReaderOptions{}); !errors.Is(err, ErrCorrupt) {
			if tail != tocMagic || err == nil {
				t.Errorf("%.10q: %v", tail, err)
			}
		}
	}
}
