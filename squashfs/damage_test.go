package squashfs

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"testing"
	"time"
)

// damageImages are small images of every compression.
func damageImages(t testing.TB) map[string][]byte {
	t.Helper()
	imgs := map[string][]byte{}
	paths, err := filepath.Glob("testdata/*.sqfs")
	must(t, err)
	for _, p := range paths {
		imgs[filepath.Base(p)] = readAll(t, p)
	}
	if len(imgs) == 0 {
		t.Fatal("no images in testdata")
	}
	return imgs
}

// TestTruncated cuts images at every length. The padding may go; for the rest
// the superblock tells that it is missing.
func TestTruncated(t *testing.T) {
	for name, b := range damageImages(t) {
		sb, err := parseSuperblock(b, -1)
		must(t, err)
		for n := range b {
			r, err := NewReader(readerOf(b[:n]), ReaderOptions{})
			switch {
			case uint64(n) >= sb.BytesUsed:
				must(t, err)
				must(t, r.Close())
			case err == nil:
				t.Errorf("%s: cut to %d bytes of %d it opens", name, n, sb.BytesUsed)
				must(t, r.Close())
			case !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrNotSquashfs):
				t.Errorf("%s: cut to %d bytes: %v", name, n, err)
			}
		}
		// Where the length of the file is not known, a read meets its end.
		for n := superblockSize; uint64(n) < sb.BytesUsed; n += 7 {
			r, err := NewReader(unsized{readerOf(b[:n])}, ReaderOptions{})
			if err == nil {
				err = errors.Join(exercise(r), Check(t.Context(), r, CheckOptions{}))
				must(t, r.Close())
			}
			if !errors.Is(err, ErrCorrupt) {
				t.Errorf("%s: cut to %d bytes, unknown to the reader: %v", name, n, err)
			}
		}
	}
}

// treeDigest returns a hash of all that an image says of its tree.
func treeDigest(r *Reader) ([32]byte, error) {
	h := sha256.New()
	root, err := r.Root()
	if err != nil {
		return [32]byte{}, err
	}
	var walk func(dir Inode) error
	walk = func(dir Inode) error {
		for e, err := range r.ReadDir(dir) {
			if err != nil {
				return err
			}
			i, err := r.Child(dir, e)
			if err != nil {
				return err
			}
			fmt.Fprintf(h, "%q %v %d %d %d %d %d %d %d\n", e.Name, i.Mode(), i.UID, i.GID, i.MTime, i.Links, i.Number, i.Rdev, i.Size)
			set, err := r.Xattrs(i)
			if err != nil {
				return err
			}
			fmt.Fprintf(h, "%q\n", set)
			switch i.Type {
			case TypeDir:
				err = walk(i)
			case TypeSymlink:
				var target string
				target, err = r.ReadLink(i)
				fmt.Fprintf(h, "%q\n", target)
			case TypeFile:
				var f *File
				if f, err = r.OpenFile(i); err == nil {
					_, err = f.WriteTo(h)
				}
			}
			if err != nil {
				return err
			}
		}
		return nil
	}
	err = walk(root)
	return [32]byte(h.Sum(nil)), err
}

// checksummed marks the bytes of an image that its compression has a checksum
// of: those of compressed blocks, with gzip and xz. (zstd frames could have one, but
// neither mksquashfs nor we ask for it; lz4 and lzo have none.)
func checksummed(t *testing.T, r *Reader) []bool {
	t.Helper()
	marks := make([]bool, r.sb.BytesUsed)
	if r.sb.Compression != Gzip && r.sb.Compression != XZ {
		return marks
	}
	mark := func(from, n uint64) {
		for k := range n {
			marks[from+k] = true
		}
	}
	meta := func(at, end uint64) {
		for at < end {
			head := le.Uint16(readPart(t, r, at, 2))
			n := uint64(head &^ metaRaw)
			if head&metaRaw == 0 {
				mark(at+metaHeaderLen, n)
			}
			at += metaHeaderLen + n
		}
	}
	meta(r.inodeTable.start, r.inodeTable.end)
	meta(r.dirTable.start, r.dirTable.end)
	meta(r.xattrTable.start, r.xattrTable.end)
	for _, l := range []*lookupTable{&r.fragTable, &r.exportTable, &r.xattrIDTab} {
		if l.n > 0 {
			meta(l.places[0], l.end)
		}
	}
	for n := range r.fragTable.n {
		start, size, err := r.fragmentEntry(n)
		must(t, err)
		if size&blockRaw == 0 {
			mark(start, uint64(size))
		}
	}
	for n := range r.sb.Inodes {
		i, err := r.InodeByNumber(n + 1)
		must(t, err)
		pos := i.start
		for size, err := range r.blockSizes(i) {
			must(t, err)
			if size&blockRaw == 0 {
				mark(pos, uint64(size))
			}
			pos += uint64(size & blockSizeMask)
		}
	}
	return marks
}

func readPart(t *testing.T, r *Reader, at uint64, n int) []byte {
	t.Helper()
	b := make([]byte, n)
	must(t, r.readAt(b, at))
	return b
}

// TestFlipped flips a bit of every 19th byte, of every byte where GANGWAY_TEST_LONG
// is set, of every 397th with -short. The format has no checksums of its own, so with
// most compressions content, names, times and the like may come out changed; what must
// hold is that all ends soon, without a panic, and that every error is one of the
// package's. Blocks that gzip and xz compressed have checksums: a flip there must
// be noticed, or change nothing.
func TestFlipped(t *testing.T) {
	step := 19
	switch {
	case wLong():
		step = 1
	case testing.Short():
		step = 397
	}
	for name, b := range damageImages(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			flipImage(t, b, step)
		})
	}
}

func flipImage(t *testing.T, b []byte, step int) {
	c, err := NewCache(0)
	must(t, err)
	defer c.Close()
	r, err := NewReader(readerOf(b), ReaderOptions{Cache: c})
	must(t, err)
	want, err := treeDigest(r)
	must(t, err)
	sums := checksummed(t, r)
	must(t, r.Close())
	rnd := rand.New(rand.NewPCG(1, uint64(len(b))))
	silent, changed, all := 0, 0, 0
	for at := rnd.IntN(step); at < len(sums); at += step {
		img := bytes.Clone(b)
		img[at] ^= 1 << rnd.IntN(8)
		start := time.Now()
		err := tryImage(t, img, c)
		if d := time.Since(start); d > 20*time.Second {
			t.Errorf("byte %d: took %v", at, d)
		}
		all++
		if err != nil {
			if !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrUnsupported) && !errors.Is(err, ErrNotSquashfs) {
				t.Errorf("byte %d: %v", at, err)
			}
			continue
		}
		silent++
		r, err := NewReader(readerOf(img), ReaderOptions{Cache: c})
		must(t, err)
		got, err := treeDigest(r)
		must(t, err)
		must(t, r.Close())
		if got != want {
			changed++
			if sums[at] {
				t.Errorf("byte %d: other content, and no error", at)
			}
		}
	}
	t.Logf("of %d flips %d gave no error, of which %d changed the tree", all, silent, changed)
}
