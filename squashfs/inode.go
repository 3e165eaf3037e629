package squashfs

import (
	"io/fs"
	"time"
)

// Type is the kind of an inode.
type Type uint8

// The inode types. On disk an extended form of each follows, seven higher.
const (
	TypeDir Type = iota + 1
	TypeFile
	TypeSymlink
	TypeBlockDevice
	TypeCharDevice
	TypeFIFO
	TypeSocket
)

const extendedType = 7 // what an extended type's number adds to its basic one

// String returns the type's name as find(1) and ls(1) speak of it.
func (t Type) String() string {
	names := [...]string{"", "directory", "file", "symlink", "block device", "character device", "fifo", "socket"}
	if t < TypeDir || t > TypeSocket {
		return "unknown type"
	}
	return names[t]
}

func (t Type) fileMode() fs.FileMode {
	switch t {
	case TypeDir:
		return fs.ModeDir
	case TypeSymlink:
		return fs.ModeSymlink
	case TypeBlockDevice:
		return fs.ModeDevice
	case TypeCharDevice:
		return fs.ModeDevice | fs.ModeCharDevice
	case TypeFIFO:
		return fs.ModeNamedPipe
	case TypeSocket:
		return fs.ModeSocket
	}
	return 0
}

func typeOf(m fs.FileMode) (Type, bool) {
	switch m.Type() {
	case 0:
		return TypeFile, true
	case fs.ModeDir:
		return TypeDir, true
	case fs.ModeSymlink:
		return TypeSymlink, true
	case fs.ModeDevice:
		return TypeBlockDevice, true
	case fs.ModeDevice | fs.ModeCharDevice:
		return TypeCharDevice, true
	case fs.ModeNamedPipe:
		return TypeFIFO, true
	case fs.ModeSocket:
		return TypeSocket, true
	}
	return 0, false
}

// The bits of st_mode above the permissions.
const (
	permSetuid = 0o4000
	permSetgid = 0o2000
	permSticky = 0o1000
)

func permOf(m fs.FileMode) uint16 {
	p := uint16(m.Perm())
	if m&fs.ModeSetuid != 0 {
		p |= permSetuid
	}
	if m&fs.ModeSetgid != 0 {
		p |= permSetgid
	}
	if m&fs.ModeSticky != 0 {
		p |= permSticky
	}
	return p
}

// Inode is one inode of an image. An Inode is a value: it stays valid for as
// long as its Reader does, and may be copied.
type Inode struct {
	Type   Type
	Perm   uint16 // st_mode & 07777: permissions, setuid, setgid, sticky
	UID    uint32
	GID    uint32
	MTime  uint32 // seconds since 1970
	Number uint32 // 1 up to Superblock.Inodes
	Links  uint32 // names of the inode; of a directory, 2 and its subdirectories
	Size   uint64 // bytes of a file, of a symlink's target, of a directory's listing on disk
	Sparse uint64 // bytes of a file that are holes, as far as the image says
	Rdev   uint32 // of a device, as Linux' new_encode_dev packs it; see Major and Minor
	Parent uint32 // of a directory, its parent's number; of the root, Superblock.Inodes+1

	xattr      uint32 // index into the xattr table, or none32
	start      uint64 // of a file, its first data block in the image
	fragment   uint32 // of a file, its fragment block, or none32
	fragOffset uint32 // of a file, where its tail begins in the fragment block
	dirBlock   uint32 // of a directory, its listing's metadata block in the directory table
	dirOffset  uint16 // of a directory, its listing's offset within that block
	dirIndex   uint16 // of a directory, the number of index entries
	extended   bool
	tail       Ref // where the variable part begins: block sizes, target, directory index
}

// Mode returns the inode's type and permissions.
func (i *Inode) Mode() fs.FileMode {
	m := i.Type.fileMode() | fs.FileMode(i.Perm&0o777)
	if i.Perm&permSetuid != 0 {
		m |= fs.ModeSetuid
	}
	if i.Perm&permSetgid != 0 {
		m |= fs.ModeSetgid
	}
	if i.Perm&permSticky != 0 {
		m |= fs.ModeSticky
	}
	return m
}

// ModTime returns the time of last modification, in whole seconds of UTC.
func (i *Inode) ModTime() time.Time { return time.Unix(int64(i.MTime), 0).UTC() }

// Major returns a device's major number, up to 4095.
func (i *Inode) Major() uint32 { return i.Rdev >> 8 & 0xFFF }

// Minor returns a device's minor number, up to 1<<20-1.
func (i *Inode) Minor() uint32 { return i.Rdev&0xFF | i.Rdev>>12&0xFFF00 }

// HasXattrs says whether the inode has extended attributes.
func (i *Inode) HasXattrs() bool { return i.xattr != none32 }

// encodeDev packs a device number as Linux' new_encode_dev does (include/linux/kdev_t.h).
func encodeDev(major, minor uint32) uint32 {
	return minor&0xFF | major<<8 | minor&^0xFF<<12
}

const inodeHeadLen = 16

// inodeBodyLen is the length of the fixed part behind the common header, by
// on-disk type; an extended symlink's xattr index, which follows its target, is
// not counted (format.adoc section 5).
func inodeBodyLen(diskType uint16) int {
	lens := [...]int{
		1: 16, 2: 16, 3: 8, 4: 8, 5: 8, 6: 4, 7: 4,
		8: 24, 9: 40, 10: 8, 11: 12, 12: 12, 13: 8, 14: 8,
	}
	if int(diskType) >= len(lens) {
		return 0
	}
	return lens[diskType]
}

// parseBody decodes the fixed part of an inode behind its common header; b has
// inodeBodyLen(diskType) bytes. The header's fields are already set.
func (i *Inode) parseBody(diskType uint16, b []byte) {
	i.xattr, i.fragment, i.Links = none32, none32, 1
	i.extended = diskType > extendedType
	switch diskType {
	case 1:
		i.dirBlock, i.Links = le.Uint32(b), le.Uint32(b[4:])
		i.Size, i.dirOffset, i.Parent = uint64(le.Uint16(b[8:])), le.Uint16(b[10:]), le.Uint32(b[12:])
	case 8:
		i.Links, i.Size, i.dirBlock = le.Uint32(b), uint64(le.Uint32(b[4:])), le.Uint32(b[8:])
		i.Parent, i.dirIndex, i.dirOffset = le.Uint32(b[12:]), le.Uint16(b[16:]), le.Uint16(b[18:])
		i.xattr = le.Uint32(b[20:])
	case 2:
		i.start, i.fragment, i.fragOffset = uint64(le.Uint32(b)), le.Uint32(b[4:]), le.Uint32(b[8:])
		i.Size = uint64(le.Uint32(b[12:]))
	case 9:
		i.start, i.Size, i.Sparse = le.Uint64(b), le.Uint64(b[8:]), le.Uint64(b[16:])
		i.Links, i.fragment, i.fragOffset = le.Uint32(b[24:]), le.Uint32(b[28:]), le.Uint32(b[32:])
		i.xattr = le.Uint32(b[36:])
	case 3, 10:
		i.Links, i.Size = le.Uint32(b), uint64(le.Uint32(b[4:]))
	case 4, 5, 11, 12:
		i.Links, i.Rdev = le.Uint32(b), le.Uint32(b[4:])
	case 6, 7, 13, 14:
		i.Links = le.Uint32(b)
	}
	switch diskType {
	case 11, 12:
		i.xattr = le.Uint32(b[8:])
	case 13, 14:
		i.xattr = le.Uint32(b[4:])
	}
	if i.Type == TypeDir {
		i.Size -= min(i.Size, dirSizeBias)
	}
}

// dirIndexEntry is one entry of an extended directory's index: the first name
// of a run of entries, and where that run begins.
type dirIndexEntry struct {
	offset uint32 // bytes into the listing
	block  uint32 // metadata block in the directory table
	name   string
}

// inodeTail is what an inode has behind its fixed part.
type inodeTail struct {
	blocks []uint32        // of a file
	target string          // of a symlink
	index  []dirIndexEntry // of a directory
}

// needsExtended says whether the basic form has no room for the inode.
func (i *Inode) needsExtended(t *inodeTail) bool {
	if i.xattr != none32 {
		return true
	}
	switch i.Type {
	case TypeDir:
		return len(t.index) > 0 || i.Size+dirSizeBias > 0xFFFF
	case TypeFile:
		return i.Links > 1 || i.Size > 0xFFFFFFFF || i.start > 0xFFFFFFFF || i.Sparse > 0
	}
	return false
}

// appendTo appends the inode as it is stored, in the basic form where that has
// room. uid and gid are indices into the id table.
func (i *Inode) appendTo(b []byte, uid, gid uint16, t *inodeTail) []byte {
	diskType := uint16(i.Type)
	ext := i.needsExtended(t)
	if ext {
		diskType += extendedType
	}
	b = le.AppendUint16(b, diskType)
	b = le.AppendUint16(b, i.Perm)
	b = le.AppendUint16(b, uid)
	b = le.AppendUint16(b, gid)
	b = le.AppendUint32(b, i.MTime)
	b = le.AppendUint32(b, i.Number)
	switch i.Type {
	case TypeDir:
		b = i.appendDir(b, ext, t)
	case TypeFile:
		b = i.appendFile(b, ext, t)
	case TypeSymlink:
		b = le.AppendUint32(b, i.Links)
		b = le.AppendUint32(b, uint32(len(t.target)))
		b = append(b, t.target...)
	case TypeBlockDevice, TypeCharDevice:
		b = le.AppendUint32(b, i.Links)
		b = le.AppendUint32(b, i.Rdev)
	default:
		b = le.AppendUint32(b, i.Links)
	}
	if ext && i.Type > TypeFile {
		b = le.AppendUint32(b, i.xattr)
	}
	return b
}

func (i *Inode) appendDir(b []byte, ext bool, t *inodeTail) []byte {
	size := i.Size + dirSizeBias
	if !ext {
		b = le.AppendUint32(b, i.dirBlock)
		b = le.AppendUint32(b, i.Links)
		b = le.AppendUint16(b, uint16(size))
		b = le.AppendUint16(b, i.dirOffset)
		return le.AppendUint32(b, i.Parent)
	}
	b = le.AppendUint32(b, i.Links)
	b = le.AppendUint32(b, uint32(size))
	b = le.AppendUint32(b, i.dirBlock)
	b = le.AppendUint32(b, i.Parent)
	b = le.AppendUint16(b, uint16(len(t.index)))
	b = le.AppendUint16(b, i.dirOffset)
	b = le.AppendUint32(b, i.xattr)
	for _, e := range t.index {
		b = le.AppendUint32(b, e.offset)
		b = le.AppendUint32(b, e.block)
		b = le.AppendUint32(b, uint32(len(e.name)-1))
		b = append(b, e.name...)
	}
	return b
}

func (i *Inode) appendFile(b []byte, ext bool, t *inodeTail) []byte {
	if !ext {
		b = le.AppendUint32(b, uint32(i.start))
		b = le.AppendUint32(b, i.fragment)
		b = le.AppendUint32(b, i.fragOffset)
		b = le.AppendUint32(b, uint32(i.Size))
	} else {
		b = le.AppendUint64(b, i.start)
		b = le.AppendUint64(b, i.Size)
		b = le.AppendUint64(b, i.Sparse)
		b = le.AppendUint32(b, i.Links)
		b = le.AppendUint32(b, i.fragment)
		b = le.AppendUint32(b, i.fragOffset)
		b = le.AppendUint32(b, i.xattr)
	}
	for _, size := range t.blocks {
		b = le.AppendUint32(b, size)
	}
	return b
}

// blockCount is the number of sizes in the block list of a file of size bytes:
// a tail in a fragment has none (format.adoc section 5.4).
func blockCount(size, blockSize uint64, fragment uint32) uint64 {
	if fragment != none32 {
		return size / blockSize
	}
	return size/blockSize + min(size%blockSize, 1)
}
