// Package merged makes and reads the merged index of an image: one small file that
// holds the whole tree of names and, of each file, where its blocks lie in which
// layer file. It is what an image is to those who mount or export it: nothing is
// unpacked, and nobody has to look through the layers again.
//
// # Making one
//
// A Builder takes the tar entries of the layers, lowest first, and does with each
// what one would do who extracts them one by one into a directory: parents that are
// symlinks are followed inside the root, a directory's entry changes its attributes
// only, hard links reach into lower layers, whiteouts remove what lower layers put
// there. WriteTo writes the result; the same tree gives the same bytes.
//
// # Reading one
//
// Open maps the file and checks its head only, which takes the same few
// microseconds for every size. Inodes are found by their number, names by binary
// search in their directory, without allocation. docs/formats/merged-index.md says
// what lies where.
//
// An Index may be used by any number of goroutines at once, but not during or after
// its Close. What it returns as a slice of bytes or numbers lies in the mapping:
// read only, and gone after Close. The file must not be changed or shortened while
// it is mapped; replace it by another of the same name instead.
//
// # Hostile files
//
// Every method gives an error, never a panic, on a file of any content. A walk from
// the root that descends by Lookup or ReadDir enters no directory but from its
// parent, so that it never runs in a circle. That a tree is right as a whole, only
// Check proves.
package merged

import (
	"errors"

	"github.com/gangway-hpc/gangway/image/oci"
	"github.com/gangway-hpc/gangway/squashfs"
)

// Errors that callers may want to tell apart, with errors.Is.
var (
	// ErrCorrupt says that a file is no merged index, or a damaged one. As all in it
	// comes from the layers, it can be made anew.
	ErrCorrupt = errors.New("corrupt merged index")
	// ErrVersion says that a file is a merged index of another version. It can be
	// made anew, too.
	ErrVersion = errors.New("merged index of another version")
	// ErrLimit says that an image has more than the Builder's Limits allow.
	ErrLimit = errors.New("limit exceeded")
)

// LayerInfo says which file a layer is, and what its blocks are like.
type LayerInfo struct {
	Digest oci.Digest // of the layer's blob, by which a store finds the file
	// Path is empty for layers of a store. It is set for a local squashfs file that is
	// used in its place; then ModTime and Inode tell whether it is still the same.
	Path        string
	Size        int64  // of the layer file, bytes
	ModTime     int64  // nanoseconds since 1970
	Inode       uint64 // of the layer file, in its file system
	BlockSize   uint32
	Compression squashfs.Compression
}

// Data says where the content of a regular file lies. Of an empty file Layer is -1,
// and the rest is zero.
type Data struct {
	Layer int    // index into Index.Layers
	Inode uint32 // of the file in the layer's squashfs
	squashfs.Layout
}

// Inode is what stat(2) tells of a file, and a little more.
type Inode struct {
	Number       uint32 // 1, the root, up to NumInodes
	Mode         uint32 // st_mode: type and permissions
	UID, GID     uint32
	Links        uint32 // names; of a directory, 2 and its subdirectories
	Sec          int64  // of modification, since 1970; may be negative
	Nsec         uint32
	Size         int64  // bytes of a file or of a symlink's target; else 0
	Major, Minor uint32 // of a device
	Parent       uint32 // of a directory; the root's is the root

	xattr uint32 // number of the set, 0 for none
	a, b  uint32 // see docs/formats/merged-index.md
}

// HasXattrs says whether the inode has extended attributes.
func (i *Inode) HasXattrs() bool { return i.xattr != 0 }

// DirEntry is one name in a directory.
type DirEntry struct {
	Name  []byte // in the mapping: read only, and gone after Close
	Inode uint32
	Type  uint32 // the type bits of st_mode (S_IFMT)
	Next  uint32 // the position behind the entry, for ReadDir
}
