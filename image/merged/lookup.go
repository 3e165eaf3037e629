package merged

import (
	"encoding/binary"
	"fmt"
	"io/fs"
	"iter"
	"strings"
	"syscall"
	"unsafe"

	"github.com/gangway-hpc/gangway/squashfs"
)

// Inode returns an inode by its number.
func (ix *Index) Inode(n uint32) (Inode, error) {
	b, err := ix.record(secInodes, n-1)
	if err != nil {
		return Inode{}, err
	}
	le := binary.LittleEndian
	i := Inode{
		Number: n, Mode: le.Uint32(b), UID: le.Uint32(b[4:]), GID: le.Uint32(b[8:]), Links: le.Uint32(b[12:]),
		Sec: int64(le.Uint64(b[16:])), Size: int64(le.Uint64(b[24:])), Nsec: le.Uint32(b[32:]),
		xattr: le.Uint32(b[36:]), a: le.Uint32(b[40:]), b: le.Uint32(b[44:]),
	}
	switch i.Mode & syscall.S_IFMT {
	case syscall.S_IFDIR:
		if i.Parent = le.Uint32(b[48:]); i.Parent-1 >= ix.NumInodes() {
			return Inode{}, corrupt("inode %d: parent %d of %d", n, i.Parent, ix.NumInodes())
		}
	case syscall.S_IFCHR, syscall.S_IFBLK:
		i.Major, i.Minor = i.a, i.b
	case syscall.S_IFREG, syscall.S_IFLNK, syscall.S_IFIFO:
	default:
		return Inode{}, corrupt("inode %d: mode %#o", n, i.Mode)
	}
	if i.Size < 0 {
		return Inode{}, corrupt("inode %d: size %d", n, i.Size)
	}
	return i, nil
}

// inodeOf is Inode for one that must be of a type; else the error is unlike.
func (ix *Index) inodeOf(n, typ uint32, unlike error) (Inode, error) {
	i, err := ix.Inode(n)
	if err == nil && i.Mode&syscall.S_IFMT != typ {
		err = unlike
	}
	return i, err
}

// dirents returns a directory's records.
func (ix *Index) dirents(dir uint32) ([]byte, error) {
	i, err := ix.inodeOf(dir, syscall.S_IFDIR, syscall.ENOTDIR)
	if err != nil {
		return nil, err
	}
	return ix.span(secDirents, i.a, i.b)
}

// name returns the name in a directory record.
func (ix *Index) name(rec []byte) ([]byte, error) {
	return ix.span(secStrings, binary.LittleEndian.Uint32(rec), uint32(rec[8]))
}

// Lookup returns the inode that a directory has under a name. The error is
// fs.ErrNotExist itself where there is none, and syscall.ENOTDIR where dir is no
// directory. It does not allocate, but for errors of corrupt files.
func (ix *Index) Lookup(dir uint32, name string) (uint32, error) {
	list, err := ix.dirents(dir)
	if err != nil {
		return 0, err
	}
	low, high := 0, len(list)/direntLen
	for low < high {
		mid := int(uint(low+high) / 2)
		rec := list[mid*direntLen:][:direntLen]
		got, err := ix.name(rec)
		if err != nil {
			return 0, err
		}
		switch c := strings.Compare(unsafe.String(unsafe.SliceData(got), len(got)), name); {
		case c == 0:
			return ix.child(dir, rec)
		case c < 0:
			low = mid + 1
		default:
			high = mid
		}
	}
	return 0, fs.ErrNotExist
}

// child returns the inode of a directory record, of which it proves that the way
// there goes on down.
func (ix *Index) child(dir uint32, rec []byte) (uint32, error) {
	n := binary.LittleEndian.Uint32(rec[4:])
	if n-1 >= ix.NumInodes() {
		return 0, corrupt("directory %d: inode %d of %d", dir, n, ix.NumInodes())
	}
	b := ix.parts[secInodes][uint64(n-1)*inodeLen:][:inodeLen]
	mode := binary.LittleEndian.Uint32(b)
	if uint32(rec[9])<<12 != mode&syscall.S_IFMT {
		return 0, corrupt("directory %d: inode %d has another type", dir, n)
	}
	if mode&syscall.S_IFMT == syscall.S_IFDIR && (n == Root || binary.LittleEndian.Uint32(b[48:]) != dir) {
		return 0, corrupt("directory %d: inode %d is not its subdirectory", dir, n)
	}
	return n, nil
}

// ReadDir yields the entries of a directory in bytewise order of their names, without
// "." and "..". from is a position: 0, the start, or DirEntry.Next. After an error it
// ends.
func (ix *Index) ReadDir(dir, from uint32) iter.Seq2[DirEntry, error] {
	return func(yield func(DirEntry, error) bool) {
		list, err := ix.dirents(dir)
		if err != nil {
			yield(DirEntry{}, err)
			return
		}
		for i := uint64(from); i < uint64(len(list)/direntLen); i++ {
			rec := list[i*direntLen:][:direntLen]
			e := DirEntry{Next: uint32(i) + 1, Type: uint32(rec[9]) << 12}
			if e.Name, err = ix.name(rec); err == nil {
				e.Inode, err = ix.child(dir, rec)
			}
			if err != nil {
				yield(DirEntry{}, err)
				return
			}
			if !yield(e, nil) {
				return
			}
		}
	}
}

// ReadLink returns a symlink's target.
func (ix *Index) ReadLink(n uint32) (string, error) {
	i, err := ix.inodeOf(n, syscall.S_IFLNK, syscall.EINVAL)
	if err != nil {
		return "", err
	}
	if i.Size == 0 || i.Size > maxPath {
		return "", corrupt("inode %d: symlink of %d bytes", n, i.Size)
	}
	return ix.text(i.a, uint32(i.Size))
}

// Xattrs returns an inode's extended attributes, sorted by name; nil where it has
// none. The values lie in the mapping.
func (ix *Index) Xattrs(n uint32) ([]squashfs.Xattr, error) {
	i, err := ix.Inode(n)
	if err != nil || i.xattr == 0 {
		return nil, err
	}
	set, err := ix.record(secXattrSets, i.xattr-1)
	if err != nil {
		return nil, err
	}
	le := binary.LittleEndian
	list, err := ix.span(secXattrs, le.Uint32(set), le.Uint32(set[4:]))
	if err != nil {
		return nil, err
	}
	var found []squashfs.Xattr
	for ; len(list) > 0; list = list[xattrLen:] {
		name, err := ix.text(le.Uint32(list), le.Uint32(list[4:]))
		if err != nil {
			return nil, err
		}
		value, err := ix.span(secStrings, le.Uint32(list[8:]), le.Uint32(list[12:]))
		if err != nil {
			return nil, err
		}
		if !validXattr(name, len(value)) {
			return nil, corrupt("inode %d: xattr %.300q of %d bytes", n, name, len(value))
		}
		found = append(found, squashfs.Xattr{Name: name, Value: value})
	}
	return found, nil
}

// Data returns where the content of a regular file lies. Its Blocks lie in the
// mapping.
func (ix *Index) Data(n uint32) (Data, error) {
	i, err := ix.inodeOf(n, syscall.S_IFREG, fs.ErrInvalid)
	if err != nil {
		return Data{}, err
	}
	if i.Size == 0 {
		return Data{Layer: -1}, nil
	}
	rec, err := ix.record(secFiles, i.a-1)
	if err != nil {
		return Data{}, fmt.Errorf("inode %d: %w", n, err)
	}
	le := binary.LittleEndian
	d := Data{Layer: int(le.Uint32(rec)), Inode: le.Uint32(rec[4:])}
	if d.Layer >= len(ix.layers) || d.Inode == 0 {
		return Data{}, corrupt("inode %d: inode %d of layer %d of %d", n, d.Inode, d.Layer, len(ix.layers))
	}
	first, count := le.Uint32(rec[16:]), le.Uint32(rec[20:])
	d.Start = int64(le.Uint64(rec[8:]))
	d.Fragment = squashfs.Fragment{Start: int64(le.Uint64(rec[24:])), Size: le.Uint32(rec[32:]), Offset: le.Uint32(rec[36:])}
	blocks, err := ix.span(secBlocks, first, count)
	if err != nil {
		return Data{}, fmt.Errorf("inode %d: %w", n, err)
	}
	if err := checkExtent(&ix.layers[d.Layer], i.Size, int64(count), &d.Layout); err != nil {
		return Data{}, corrupt("inode %d: %w", n, err)
	}
	d.Blocks = numbers(blocks)
	return d, nil
}

// numbers returns what lies in b, without copying it where the processor can read it
// as it is.
func numbers(b []byte) []uint32 {
	p := unsafe.SliceData(b)
	if binary.NativeEndian.Uint16([]byte{1, 0}) == 1 && uintptr(unsafe.Pointer(p))%4 == 0 {
		return unsafe.Slice((*uint32)(unsafe.Pointer(p)), len(b)/4)
	}
	list := make([]uint32, len(b)/4)
	for i := range list {
		list[i] = binary.LittleEndian.Uint32(b[4*i:])
	}
	return list
}
