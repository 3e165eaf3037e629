package merged

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"syscall"
	"testing"

	"github.com/gangway-hpc/gangway/image/layer"
	"github.com/gangway-hpc/gangway/image/oci"
	"github.com/gangway-hpc/gangway/squashfs"
	"github.com/zeebo/blake3"
)

// small is an index with something of everything.
func small(t testing.TB) []byte {
	t.Helper()
	big, tail := file("d/big"), file("d/sub/tail")
	big.Size, tail.Size = 3*testBlock, testBlock+5
	tail.Xattrs = []squashfs.Xattr{{Name: "security.capability", Value: []byte{1, 0, 2}}, {Name: "user.a"}}
	frag := file("frag")
	frag.Xattrs = tail.Xattrs
	link := symlink("s", "d/sub")
	link.Xattrs = []squashfs.Xattr{{Name: "user.b", Value: []byte("v")}}
	b, err := image(
		list(big, tail, hardlink("hard", "d/big"), link, layer.Entry{Name: "null", Type: layer.CharDevice, Mode: 0o666, Major: 1, Minor: 3}),
		list(frag, layer.Entry{Name: "d/fifo", Type: layer.FIFO, Sec: -1, Nsec: 5}, file("d/sub/x"), wh("nothing")),
	)
	must(t, err)
	return b
}

// sealed gives changed bytes right checksums.
func sealed(b []byte) []byte {
	sum := blake3.Sum256(b[:headerSum])
	copy(b[headerSum:], sum[:])
	sum = blake3.Sum256(b[:len(b)-sumLen])
	copy(b[len(b)-sumLen:], sum[:])
	return b
}

func TestOpen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "index")
	b := small(t)
	must(t, os.WriteFile(path, b, 0o600))
	ix, err := Open(path)
	must(t, err)
	must(t, Check(t.Context(), ix, nil))
	if ix.Image() != oci.DigestOf([]byte("image")) || !reflect.DeepEqual(ix.Layers(), []LayerInfo{infoOf(0), infoOf(1)}) {
		t.Errorf("image %s, layers %+v", ix.Image(), ix.Layers())
	}
	if ix.NumInodes() != 10 {
		t.Errorf("%d inodes", ix.NumInodes())
	}
	mem, err := New(b)
	must(t, err)
	want, err := see(mem)
	must(t, err)
	got, err := see(ix)
	must(t, err)
	must(t, want.diff(got))
	must(t, ix.Close())
	if _, err := ix.Inode(Root); !errors.Is(err, ErrCorrupt) {
		t.Errorf("after Close: %v", err)
	}
	for name, content := range map[string][]byte{"empty": nil, "short": b[:100], "other": make([]byte, 4096), "cut": b[:len(b)-8]} {
		path := filepath.Join(t.TempDir(), name)
		must(t, os.WriteFile(path, content, 0o600))
		if _, err := Open(path); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := Open(t.TempDir()); !errors.Is(err, ErrCorrupt) {
		t.Errorf("a directory: %v", err)
	}
	if _, err := Open(filepath.Join(t.TempDir(), "no")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("nothing: %v", err)
	}
}

// TestVersion: another version is told from damage, whatever else is in the file.
func TestVersion(t *testing.T) {
	for _, v := range []uint32{0, 2, 1 << 31} {
		b := small(t)
		binary.LittleEndian.PutUint32(b[8:], v)
		if _, err := New(b); !errors.Is(err, ErrVersion) || errors.Is(err, ErrCorrupt) {
			t.Errorf("version %d: %v", v, err)
		}
	}
}

// TestAccessors: what is asked of the wrong inode is refused with the errno that a
// file system would give.
func TestAccessors(t *testing.T) {
	ix, err := New(small(t))
	must(t, err)
	find := func(path ...string) uint32 {
		n := Root
		for _, name := range path {
			n, err = ix.Lookup(n, name)
			must(t, err)
		}
		return n
	}
	big := find("d", "big")
	for _, name := range []string{"", "a", "dd", "c", "zzz", "\xff"} {
		if _, err := ix.Lookup(Root, name); err != fs.ErrNotExist {
			t.Errorf("Lookup(%q): %v", name, err)
		}
	}
	if _, err := ix.Lookup(big, "x"); err != syscall.ENOTDIR {
		t.Errorf("Lookup in a file: %v", err)
	}
	if _, err := ix.ReadLink(big); err != syscall.EINVAL {
		t.Errorf("ReadLink of a file: %v", err)
	}
	if _, err := ix.Data(Root); !errors.Is(err, fs.ErrInvalid) {
		t.Errorf("Data of a directory: %v", err)
	}
	for _, n := range []uint32{0, ix.NumInodes() + 1, 1<<32 - 1} {
		if _, err := ix.Inode(n); !errors.Is(err, ErrCorrupt) {
			t.Errorf("Inode(%d): %v", n, err)
		}
	}
	d, err := ix.Data(big)
	must(t, err)
	if d.Layer != 0 || d.Inode != 1 || !reflect.DeepEqual(d.Layout, layoutOf(1, 3*testBlock)) {
		t.Errorf("Data: %+v", d)
	}
	var names []string
	for e, err := range ix.ReadDir(Root, 0) {
		must(t, err)
		names = append(names, string(e.Name))
		for next, err := range ix.ReadDir(Root, e.Next) {
			must(t, err)
			if string(next.Name) <= string(e.Name) {
				t.Errorf("%q after %q", next.Name, e.Name)
			}
			break
		}
	}
	if want := []string{"d", "frag", "hard", "null", "s"}; !slices.Equal(names, want) {
		t.Errorf("ReadDir: %q", names)
	}
	for range ix.ReadDir(Root, 1<<32-1) {
		t.Error("ReadDir from behind the end yields something")
	}
	tail, frag := find("d", "sub", "tail"), find("frag")
	a, err := ix.Inode(tail)
	must(t, err)
	b, err := ix.Inode(frag)
	must(t, err)
	if !a.HasXattrs() || a.xattr != b.xattr {
		t.Errorf("equal xattr sets are %d and %d", a.xattr, b.xattr)
	}
}

// TestNoAllocation: what FUSE asks for most costs no garbage.
func TestNoAllocation(t *testing.T) {
	ix, err := New(small(t))
	must(t, err)
	dir, err := ix.Lookup(Root, "d")
	must(t, err)
	if n := testing.AllocsPerRun(100, func() {
		big, err := ix.Lookup(dir, "big")
		if _, err2 := ix.Inode(big); err != nil || err2 != nil {
			t.Error(err, err2)
		}
		if _, err := ix.Lookup(dir, "absent"); err == nil {
			t.Error("found what is not there")
		}
		if d, err := ix.Data(big); err != nil || len(d.Blocks) != 3 {
			t.Error(d, err)
		}
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

// TestUnaligned: bytes at an odd address are read as well.
func TestUnaligned(t *testing.T) {
	b := small(t)
	ix, err := New(append([]byte{0}, b...)[1:])
	must(t, err)
	must(t, Check(t.Context(), ix, nil))
	_, err = see(ix)
	must(t, err)
}

// TestDeterministic: the same tree gives the same bytes, however it came about.
func TestDeterministic(t *testing.T) {
	want, err := image(list(file("a"), hardlink("b", "a"), dir("d", 0o755)), list())
	must(t, err)
	for range 3 {
		got, err := image(list(file("a"), hardlink("b", "a"), dir("d", 0o755), file("d/x"), file("z")), list(wh("z"), wh("d/x")))
		must(t, err)
		if !bytes.Equal(got, want) {
			t.Error("bytes differ")
		}
	}
	b := NewBuilder(Options{})
	must(t, apply(b, 0, list(file("a"), dir("d", 0))))
	var one, two bytes.Buffer
	_, err = b.WriteTo(&one)
	must(t, err)
	_, err = b.WriteTo(&two)
	must(t, err)
	if !bytes.Equal(one.Bytes(), two.Bytes()) {
		t.Error("the second WriteTo differs")
	}
}

// exercise calls everything; it must neither panic nor go on for ever.
func exercise(ctx context.Context, ix *Index) error {
	for n := range ix.NumInodes() + 2 {
		_, _ = ix.Data(n)
		_, _ = ix.ReadLink(n)
		_, _ = ix.Xattrs(n)
		_, _ = ix.Lookup(n, "d")
		for e, err := range ix.ReadDir(n, n%2) {
			if err == nil {
				_, _ = ix.Inode(e.Inode)
			}
		}
	}
	return Check(ctx, ix, nil)
}

// TestFlippedBits: whatever byte of an index is changed, New or Check finds it; and
// where the checksums are right again, it is found, or makes another valid index.
func TestFlippedBits(t *testing.T) {
	good := small(t)
	for i := range good {
		for _, flip := range []byte{1, 0x80, 0xFF} {
			b := bytes.Clone(good)
			b[i] ^= flip
			if ix, err := New(b); err == nil {
				if err := exercise(t.Context(), ix); !errors.Is(err, ErrCorrupt) {
					t.Fatalf("byte %d ^ %#x: %v", i, flip, err)
				}
			}
			b = sealed(b)
			ix, err := New(b)
			if err == nil {
				err = exercise(t.Context(), ix)
			}
			if err != nil {
				if !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrVersion) {
					t.Fatalf("byte %d ^ %#x, sealed: %v", i, flip, err)
				}
			}
		}
	}
}

// TestTruncated: a file that ends anywhere is refused by New.
func TestTruncated(t *testing.T) {
	good := small(t)
	for n := range good {
		if _, err := New(good[:n:n]); !errors.Is(err, ErrCorrupt) {
			t.Fatalf("%d bytes: %v", n, err)
		}
	}
}

// TestCheck: damage that the checksums hide is found all the same.
func TestCheck(t *testing.T) {
	le := binary.LittleEndian
	good := small(t)
	ix, err := New(good)
	must(t, err)
	at := func(s section, n uint32) int {
		h := head{counts: ix.counts}
		offsets, _ := h.offsets()
		return int(offsets[s]) + int(n)*int(recordLen(s))
	}
	inode := func(path ...string) int {
		n := Root
		for _, name := range path {
			n, err = ix.Lookup(n, name)
			must(t, err)
		}
		return at(secInodes, n-1)
	}
	d := inode("d")
	for name, damage := range map[string]func(b []byte){
		"links of a file":        func(b []byte) { le.PutUint32(b[inode("d", "big")+12:], 1) },
		"links of a directory":   func(b []byte) { le.PutUint32(b[d+12:], 2) },
		"parent":                 func(b []byte) { le.PutUint32(b[inode("d", "sub")+48:], 1) },
		"the root's parent":      func(b []byte) { le.PutUint32(b[at(secInodes, 0)+48:], 2) },
		"the root is a file":     func(b []byte) { le.PutUint32(b[at(secInodes, 0):], syscall.S_IFREG) },
		"parent of a file":       func(b []byte) { le.PutUint32(b[inode("frag")+48:], 1) },
		"reserved":               func(b []byte) { b[d+60] = 1 },
		"reserved of an entry":   func(b []byte) { b[at(secDirents, 0)+10] = 1 },
		"nanoseconds":            func(b []byte) { le.PutUint32(b[d+32:], 1e9) },
		"mode":                   func(b []byte) { le.PutUint32(b[d:], syscall.S_IFDIR|1<<16) },
		"size of a device":       func(b []byte) { b[inode("null")+24] = 1 },
		"size of a file":         func(b []byte) { le.PutUint64(b[inode("d", "big")+24:], 5*testBlock) },
		"negative size":          func(b []byte) { le.PutUint64(b[inode("d", "big")+24:], 1<<63) },
		"empty file with data":   func(b []byte) { le.PutUint64(b[inode("d", "big")+24:], 0) },
		"names in wrong order":   func(b []byte) { x := at(secStrings, le.Uint32(b[at(secDirents, 0):])); b[x] = 'z' },
		"a slash in a name":      func(b []byte) { x := at(secStrings, le.Uint32(b[at(secDirents, 1):])); b[x] = '/' },
		"another type":           func(b []byte) { b[at(secDirents, 0)+9] = 8 },
		"an entry's inode":       func(b []byte) { le.PutUint32(b[at(secDirents, 1)+4:], 99) },
		"an entry's other inode": func(b []byte) { le.PutUint32(b[at(secDirents, 1)+4:], 5) },
		"a directory in itself":  func(b []byte) { le.PutUint32(b[at(secDirents, 0)+4:], 1) },
		"fewer entries":          func(b []byte) { le.PutUint32(b[d+44:], 1) },
		"more entries":           func(b []byte) { le.PutUint32(b[d+44:], 1<<32-1) },
		"other entries":          func(b []byte) { le.PutUint32(b[d+40:], 0) },
		"xattr set":              func(b []byte) { le.PutUint32(b[inode("frag")+36:], 9) },
		"xattr set in disorder":  func(b []byte) { le.PutUint32(b[d+36:], 2) },
		"an empty xattr set":     func(b []byte) { le.PutUint32(b[at(secXattrSets, 0)+4:], 0) },
		"xattr name":             func(b []byte) { le.PutUint32(b[at(secXattrs, 0):], 0) },
		"a target with NUL":      func(b []byte) { b[at(secStrings, le.Uint32(b[inode("s")+40:]))] = 0 },
		"a target elsewhere":     func(b []byte) { b[inode("s")+40]-- },
		"layer of a file":        func(b []byte) { le.PutUint32(b[at(secFiles, 0):], 2) },
		"layer inode 0":          func(b []byte) { le.PutUint32(b[at(secFiles, 0)+4:], 0) },
		"start of a file":        func(b []byte) { le.PutUint64(b[at(secFiles, 0)+8:], 1<<40) },
		"first block":            func(b []byte) { le.PutUint32(b[at(secFiles, 1)+16:], 0) },
		"a block's length":       func(b []byte) { le.PutUint32(b[at(secBlocks, 0):], testBlock+1) },
		"padding":                func(b []byte) { b[len(b)-sumLen-1] = 1 },
		"layer block size":       func(b []byte) { le.PutUint32(b[at(secLayers, 0)+40:], 3) },
		"layer compression":      func(b []byte) { le.PutUint32(b[at(secLayers, 0)+44:], 1<<16) },
		"layer digest":           func(b []byte) { le.PutUint32(b[at(secLayers, 0):], 1) },
		"image":                  func(b []byte) { le.PutUint32(b[28:], 70) },
		"section table":          func(b []byte) { le.PutUint64(b[sectionsAt:], 264) },
		"header length":          func(b []byte) { b[12] = 1 },
		"reserved in the header": func(b []byte) { b[headerSum-1] = 1 },
		"a count over 32 bits":   func(b []byte) { le.PutUint64(b[sectionsAt+8:], 1<<40) },
	} {
		b := bytes.Clone(good)
		damage(b)
		ix, err := New(sealed(b))
		if err == nil {
			err = exercise(t.Context(), ix)
		}
		if !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if ix.counts[secStrings]%align == 0 {
		t.Fatal("the test of padding has no padding")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := Check(ctx, ix, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

func FuzzNew(f *testing.F) {
	f.Add(small(f), true)
	f.Add([]byte(magic), false)
	empty, err := image()
	must(f, err)
	f.Add(empty, true)
	f.Fuzz(func(t *testing.T, b []byte, seal bool) {
		if seal && len(b) >= headerLen+sumLen {
			b = sealed(bytes.Clone(b))
		}
		ix, err := New(b)
		if err == nil {
			if err = exercise(t.Context(), ix); err == nil {
				if _, err := see(ix); err != nil {
					t.Errorf("a checked index cannot be walked: %v", err)
				}
			}
		}
		if err != nil && !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrVersion) {
			t.Errorf("unknown error: %v", err)
		}
	})
}
