package layer

import "github.com/gangway-hpc/gangway/squashfs"

// Type is the type of a tar entry.
type Type uint8

// The types of entries.
const (
	File Type = iota + 1
	Dir
	Symlink
	HardLink
	CharDevice
	BlockDevice
	FIFO
)

// Entry is one entry of a layer's tar archive, in the archive's order. Whiteouts
// are still what they are in the archive: files whose name begins with ".wh.".
type Entry struct {
	// Name is the path from the root, cleaned: no slash at either end, no empty
	// and no "." components; ".." was refused. "" is the root.
	Name string
	Type Type
	Mode uint32 // st_mode & 07777
	UID  uint32
	GID  uint32
	Sec  int64 // of modification, since 1970; may be negative
	Nsec uint32
	Size int64 // of a file, bytes
	// Link is a symlink's target as it is, or the name of a hard link's target,
	// cleaned like Name.
	Link         string
	Major, Minor uint32
	// Xattrs are sorted by name. Those of overlayfs were dropped.
	Xattrs []squashfs.Xattr
	// Inode is the number of the inode in the layer's squashfs that has the
	// content of a regular file; 0 where Size is 0.
	Inode uint32
}
