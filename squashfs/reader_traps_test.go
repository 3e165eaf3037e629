package squashfs

import (
	"bytes"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
)

// The tests here are of facts of the format that readers get wrong; most build
// an image by hand.

// dirList makes a listing of runs as given.
func dirList(runs ...[]DirEntry) []byte {
	var b []byte
	for _, run := range runs {
		base := run[0].Number
		b = le.AppendUint32(b, uint32(len(run)-1))
		b = le.AppendUint32(b, uint32(run[0].Ref.block()))
		b = le.AppendUint32(b, base)
		for _, e := range run {
			b = le.AppendUint16(b, uint16(e.Ref.offset()))
			b = le.AppendUint16(b, uint16(e.Number-base))
			b = le.AppendUint16(b, uint16(e.Type))
			b = le.AppendUint16(b, uint16(len(e.Name)-1))
			b = append(b, e.Name...)
		}
	}
	return b
}

// oneFile makes an image with a file of the given size, and its data.
func oneFile(t *testing.T, size uint64, blocks []uint32, data []byte) *File {
	t.Helper()
	file := Inode{Type: TypeFile, Number: 2, Links: 1, Size: size, start: superblockSize, fragment: none32, xattr: none32}
	raw := file.appendTo(nil, 0, 0, &inodeTail{blocks: blocks})
	list := dirList([]DirEntry{{Name: "f", Type: TypeFile, Number: 2}})
	dir := Inode{Type: TypeDir, Number: 1, Links: 2, Size: uint64(len(list)), Parent: 3, xattr: none32}
	x := tables{data: data, inodes: dir.appendTo(raw, 0, 0, &inodeTail{}), dirs: list, nInodes: 2, root: makeRef(0, len(raw))}
	r, err := NewReader(readerOf(x.image()), ReaderOptions{})
	must(t, err)
	t.Cleanup(func() { must(t, r.Close()) })
	root, err := r.Root()
	must(t, err)
	i, err := r.Lookup(root, "f")
	must(t, err)
	f, err := r.OpenFile(i)
	must(t, err)
	return f
}

// readWays reads a file in every way that there is.
func readWays(t *testing.T, f *File) []byte {
	t.Helper()
	var out bytes.Buffer
	_, err := f.WriteTo(&out)
	must(t, err)
	whole := make([]byte, f.Size())
	if _, err := f.ReadAt(whole, 0); err != nil && err != io.EOF {
		t.Fatal(err)
	}
	one := make([]byte, 0, f.Size())
	for at := range f.Size() {
		var b [1]byte
		if _, err := f.ReadAt(b[:], at); err != nil && err != io.EOF {
			t.Fatal(err)
		}
		one = append(one, b[0])
	}
	if !bytes.Equal(out.Bytes(), whole) || !bytes.Equal(one, whole) {
		t.Error("the ways of reading differ")
	}
	return whole
}

func TestReaderTrapShortBlockInTheMiddleIsZeroFilled(t *testing.T) {
	data := append(bytes.Repeat([]byte{1}, 100), bytes.Repeat([]byte{2}, 4096)...)
	f := oneFile(t, 3*4096, []uint32{blockRaw | 100, 0, blockRaw | 4096}, data)
	want := append(bytes.Repeat([]byte{1}, 100), make([]byte, 2*4096-100)...)
	want = append(want, bytes.Repeat([]byte{2}, 4096)...)
	if got := readWays(t, f); !bytes.Equal(got, want) {
		t.Errorf("%x", got)
	}
}

func TestReaderTrapLastBlockLongerThanTheFile(t *testing.T) {
	f := oneFile(t, 4096+10, []uint32{blockRaw | 4096, blockRaw | 11}, make([]byte, 8192))
	if _, err := f.WriteTo(io.Discard); !errors.Is(err, ErrCorrupt) {
		t.Errorf("write to: %v", err)
	}
	if _, err := f.ReadAt(make([]byte, 1), 4096); !errors.Is(err, ErrCorrupt) {
		t.Errorf("read a byte: %v", err)
	}
}

func TestReaderTrapStoredBlockHas24Bits(t *testing.T) {
	for _, size := range []uint32{4097, blockRaw | 4097, blockRaw, blockRaw<<1 | 100, 1<<32 - 1} {
		f := oneFile(t, 4096, []uint32{size}, make([]byte, 8192))
		if _, err := f.WriteTo(io.Discard); !errors.Is(err, ErrCorrupt) {
			t.Errorf("size %#x: %v", size, err)
		}
	}
}

func TestReaderTrapEmptyFileHasNoBlocks(t *testing.T) {
	f := oneFile(t, 0, nil, nil)
	if got := readWays(t, f); len(got) != 0 {
		t.Errorf("%d bytes", len(got))
	}
	for e, err := range f.Extents() {
		t.Errorf("extent %v, %v", e, err)
	}
}

// TestReaderTrapEmptyDirectory: a listing of nothing has the size 3 on disk; older
// writers gave 0.
func TestReaderTrapEmptyDirectory(t *testing.T) {
	for _, size := range []byte{0, 1, 2, 3} {
		dir := Inode{Type: TypeDir, Number: 1, Links: 2, Parent: 2, xattr: none32}
		raw := dir.appendTo(nil, 0, 0, &inodeTail{})
		raw[24] = size
		r, err := NewReader(readerOf((&tables{inodes: raw, nInodes: 1}).image()), ReaderOptions{})
		must(t, err)
		root, err := r.Root()
		must(t, err)
		for e, err := range r.ReadDir(root) {
			t.Errorf("size %d: %v, %v", size, e, err)
		}
		must(t, Check(t.Context(), r, CheckOptions{}))
		must(t, r.Close())
	}
}

// bigRoot makes an image whose root has the given names, all fifos, in runs of
// 256; inodes and listing span many metadata blocks.
func bigRoot(t *testing.T, names []string) *Reader {
	t.Helper()
	var inodes []byte
	var runs [][]DirEntry
	for k, name := range names {
		ref := makeRef(uint64(len(inodes)/metaSize*(metaSize+metaHeaderLen)), len(inodes)%metaSize)
		// Numbers go down while names go up, as far as a run may.
		number := uint32(k/256*256 + 255 - k%256 + 2)
		e := DirEntry{Name: name, Type: TypeFIFO, Number: number, Ref: ref}
		if n := len(runs); n == 0 || len(runs[n-1]) == dirMaxRun || runs[n-1][0].Ref.block() != ref.block() {
			runs = append(runs, nil)
		}
		runs[len(runs)-1] = append(runs[len(runs)-1], e)
		i := Inode{Type: TypeFIFO, Number: number, Links: 1, xattr: none32}
		inodes = i.appendTo(inodes, 0, 0, &inodeTail{})
	}
	list := dirList(runs...)
	dir := Inode{Type: TypeDir, Number: 1, Links: 2, Size: uint64(len(list)), Parent: 9999, xattr: none32}
	x := tables{dirs: list, nInodes: uint32(len(names)+255)/256*256 + 1}
	x.root = makeRef(uint64(len(inodes)/metaSize*(metaSize+metaHeaderLen)), len(inodes)%metaSize)
	x.inodes = dir.appendTo(inodes, 0, 0, &inodeTail{})
	r, err := NewReader(readerOf(x.image()), ReaderOptions{})
	must(t, err)
	t.Cleanup(func() { must(t, r.Close()) })
	return r
}

// TestReaderTrapRecordsSpanBlocks: inodes, headers, entries and names begin in one
// metadata block and end in the next, with no gap. Also, a run has up to 256
// entries, and an entry's number may lie below its run's.
func TestReaderTrapRecordsSpanBlocks(t *testing.T) {
	var names []string
	for k := range 2048 {
		names = append(names, string(rune('A'+k/1024))+strings.Repeat("n", k%200)+string([]byte{byte(k >> 8), byte(k) | 1, byte(k)&1 + 1}))
	}
	slices.Sort(names)
	for k := range names { // no zero bytes and slashes in names
		names[k] = strings.NewReplacer("\x00", "\x7f", "/", "\x7e").Replace(names[k])
	}
	slices.Sort(names)
	r := bigRoot(t, names)
	root, err := r.Root()
	must(t, err)
	k := 0
	for e, err := range r.ReadDir(root) {
		must(t, err)
		if e.Name != names[k] {
			t.Fatalf("entry %d is %q, want %q", k, e.Name, names[k])
		}
		i, err := r.Lookup(root, e.Name)
		if err != nil || i.Number != e.Number {
			t.Fatalf("%q: inode %d, %v", e.Name, i.Number, err)
		}
		k++
	}
	if k != len(names) {
		t.Errorf("%d entries of %d", k, len(names))
	}
}

// TestReaderTrapNamesSortUnsigned: bytes above 127 come behind all others.
func TestReaderTrapNamesSortUnsigned(t *testing.T) {
	names := []string{"\x01", "a", "a\x01", "a\x7f", "a\x80", "a\xff", "b", "\x80", "\xff", "\xff\xff"}
	r := bigRoot(t, names)
	root, err := r.Root()
	must(t, err)
	for _, n := range names {
		if _, err := r.Lookup(root, n); err != nil {
			t.Errorf("%q: %v", n, err)
		}
	}
	r = bigRoot(t, []string{"\xff", "a"})
	root, err = r.Root()
	must(t, err)
	if _, err := r.Lookup(root, "zz"); err == nil || !errors.Is(anyError(r, root), ErrCorrupt) {
		t.Errorf("names sorted as signed: %v", err)
	}
}

func anyError(r *Reader, dir Inode) error {
	for _, err := range r.ReadDir(dir) {
		if err != nil {
			return err
		}
	}
	return nil
}

func TestReaderTrapNameOf255And256(t *testing.T) {
	r := bigRoot(t, []string{strings.Repeat("n", 255)})
	root, err := r.Root()
	must(t, err)
	if _, err := r.Lookup(root, strings.Repeat("n", 255)); err != nil {
		t.Error(err)
	}
	r = bigRoot(t, []string{strings.Repeat("n", 256)})
	root, err = r.Root()
	must(t, err)
	if err := anyError(r, root); !errors.Is(err, ErrCorrupt) {
		t.Errorf("256 bytes: %v", err)
	}
}

// TestReaderTrapXattrBehindSymlinkTarget: an extended symlink has its xattr index
// behind the target, which has no fixed length.
func TestReaderTrapXattrBehindSymlinkTarget(t *testing.T) {
	link := Inode{Type: TypeSymlink, Number: 2, Links: 1, Size: 5, xattr: 0}
	raw := link.appendTo(nil, 0, 0, &inodeTail{target: "where"})
	list := dirList([]DirEntry{{Name: "l", Type: TypeSymlink, Number: 2}})
	dir := Inode{Type: TypeDir, Number: 1, Links: 2, Size: uint64(len(list)), Parent: 3, xattr: none32}
	// A value inline, and one that is kept elsewhere: at the first one's place.
	kv := append([]byte{0, 0, 1, 0, 'a', 5, 0, 0, 0}, "value"...)
	kv = append(kv, 1, 1, 1, 0, 'b', 8, 0, 0, 0)
	kv = le.AppendUint64(kv, 5)
	x := tables{inodes: dir.appendTo(raw, 0, 0, &inodeTail{}), dirs: list, xattrs: kv, nInodes: 2, nXattrs: 2, root: makeRef(0, len(raw))}
	r, err := NewReader(readerOf(x.image()), ReaderOptions{})
	must(t, err)
	defer r.Close()
	root, err := r.Root()
	must(t, err)
	i, err := r.Lookup(root, "l")
	must(t, err)
	if target, err := r.ReadLink(i); err != nil || target != "where" {
		t.Errorf("target %q, %v", target, err)
	}
	set, err := r.Xattrs(i)
	if err != nil || len(set) != 2 || set[0].Name != "user.a" || string(set[0].Value) != "value" ||
		set[1].Name != "trusted.b" || string(set[1].Value) != "value" {
		t.Errorf("xattrs %q, %v", set, err)
	}
	must(t, Check(t.Context(), r, CheckOptions{}))
}
