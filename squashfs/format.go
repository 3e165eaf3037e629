package squashfs

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"time"
)

// Sizes and marks of the format (squashfs-tools-ng doc/format.adoc, sections 2-9;
// Linux fs/squashfs/squashfs_fs.h). All integers on disk are little-endian.
const (
	superblockSize = 96
	magic          = 0x73717368 // "hsqs"

	metaSize      = 8192   // bytes of an uncompressed metadata block
	metaRaw       = 0x8000 // in a metadata block's header: stored, not compressed
	metaHeaderLen = 2

	blockRaw      = 1 << 24      // in a data block's size: stored, not compressed
	blockSizeMask = blockRaw - 1 // the on-disk length of a data block

	none32    = 0xFFFFFFFF         // no fragment, no xattrs
	noTable   = 0xFFFFFFFFFFFFFFFF // a table that is absent
	padAlign  = 4096               // images are padded to this
	maxName   = 255                // bytes of a name; a hard limit of Linux, the field has room for 256
	maxTarget = 4095               // bytes of a symlink's target; Linux reads no longer one

	minBlockSize     = 4096
	maxBlockSize     = 1 << 20
	defaultBlockSize = 128 << 10

	// The superblock counts ids in 16 bits and the kernel refuses a count of 0,
	// so 65,536 ids, which inodes could index, cannot be told.
	maxIDs = 1<<16 - 1

	fragEntrySize  = 16
	exportSize     = 8
	idSize         = 4
	xattrIDSize    = 16
	xattrTableHead = 16

	xattrOutOfLine = 0x100    // in an attribute's type: its value is a reference
	maxXattrValue  = 64 << 10 // bytes; XATTR_SIZE_MAX of Linux

	dirHeaderSize = 12
	dirEntrySize  = 8
	dirIndexSize  = 12
	dirMaxRun     = 256 // entries under one directory header
	// A directory's size field counts three bytes for "." and "..", which are
	// not stored (format.adoc section 5.3).
	dirSizeBias = 3
)

// Flags is the superblock's flag word (format.adoc section 3).
type Flags uint16

// The superblock's flags.
const (
	FlagRawInodes       Flags = 0x0001 // metadata of inodes is stored uncompressed
	FlagRawData         Flags = 0x0002 // data blocks are stored uncompressed
	FlagRawFragments    Flags = 0x0008 // fragment blocks are stored uncompressed
	FlagNoFragments     Flags = 0x0010 // no fragments are used
	FlagAlwaysFragments Flags = 0x0020 // tails of large files are packed into fragments too
	FlagDuplicates      Flags = 0x0040 // equal file contents are stored once
	FlagExportable      Flags = 0x0080 // there is an export table: inodes can be found by number
	FlagRawXattrs       Flags = 0x0100 // xattrs are stored uncompressed
	FlagNoXattrs        Flags = 0x0200 // there are no xattrs
	FlagOptions         Flags = 0x0400 // compressor options follow the superblock
	FlagRawIDs          Flags = 0x0800 // the id table is stored uncompressed
)

// Superblock is the head of an image: what it holds and where its tables lie.
// Offsets are in bytes from the start of the image; a table that is absent has
// the offset 1<<64-1.
type Superblock struct {
	Inodes      uint32      // number of inodes
	MakeTime    uint32      // when the image was made, seconds since 1970
	BlockSize   uint32      // bytes of an uncompressed data block, a power of two from 4 KiB to 1 MiB
	Fragments   uint32      // number of fragment blocks
	Compression Compression // how blocks are compressed
	Flags       Flags       // see the Flag constants
	IDs         uint16      // number of distinct user and group ids, at least 1
	Root        Ref         // the root directory's inode
	BytesUsed   uint64      // length of the image without padding and trailer

	IDTable, XattrTable, InodeTable, DirTable, FragmentTable, ExportTable uint64
}

// Made returns the time at which the image says it was made.
func (s *Superblock) Made() time.Time { return time.Unix(int64(s.MakeTime), 0).UTC() }

// Ref is the place of an inode: the offset of its metadata block within the
// inode table, shifted left by 16, and the offset within that block.
type Ref uint64

func makeRef(block uint64, offset int) Ref { return Ref(block<<16 | uint64(offset)) }

func (r Ref) block() uint64 { return uint64(r) >> 16 }
func (r Ref) offset() int   { return int(r & 0xFFFF) }

// Errors that callers may want to tell apart, with errors.Is.
var (
	// ErrNotSquashfs says that the file does not begin like a squashfs image.
	ErrNotSquashfs = errors.New("not a squashfs image")
	// ErrCorrupt says that an image breaks the rules of its format.
	ErrCorrupt = errors.New("corrupt squashfs image")
	// ErrUnsupported says that an image is of a version or kind that this package does not read.
	ErrUnsupported = errors.New("unsupported squashfs image")
)

func corrupt(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrCorrupt}, args...)...)
}

var le = binary.LittleEndian

// xattrPrefixes are the name spaces of attributes by their number on disk
// (format.adoc section 9).
var xattrPrefixes = [...]string{"user.", "trusted.", "security."}

func (s *Superblock) marshal() []byte {
	b := make([]byte, 0, superblockSize)
	b = le.AppendUint32(b, magic)
	b = le.AppendUint32(b, s.Inodes)
	b = le.AppendUint32(b, s.MakeTime)
	b = le.AppendUint32(b, s.BlockSize)
	b = le.AppendUint32(b, s.Fragments)
	b = le.AppendUint16(b, uint16(s.Compression))
	b = le.AppendUint16(b, uint16(bits.TrailingZeros32(s.BlockSize)))
	b = le.AppendUint16(b, uint16(s.Flags))
	b = le.AppendUint16(b, s.IDs)
	b = le.AppendUint16(b, 4) // version 4.0
	b = le.AppendUint16(b, 0)
	for _, v := range []uint64{
		uint64(s.Root), s.BytesUsed, s.IDTable, s.XattrTable,
		s.InodeTable, s.DirTable, s.FragmentTable, s.ExportTable,
	} {
		b = le.AppendUint64(b, v)
	}
	return b
}

// parseSuperblock decodes and checks the 96 bytes at the start of an image.
// size is the length of the file, or a negative number where it is not known.
func parseSuperblock(b []byte, size int64) (*Superblock, error) {
	if len(b) < superblockSize || le.Uint32(b) != magic {
		return nil, ErrNotSquashfs
	}
	if major, minor := le.Uint16(b[28:]), le.Uint16(b[30:]); major != 4 || minor != 0 {
		return nil, fmt.Errorf("%w: version %d.%d, this package reads 4.0", ErrUnsupported, major, minor)
	}
	s := &Superblock{
		Inodes:        le.Uint32(b[4:]),
		MakeTime:      le.Uint32(b[8:]),
		BlockSize:     le.Uint32(b[12:]),
		Fragments:     le.Uint32(b[16:]),
		Compression:   Compression(le.Uint16(b[20:])),
		Flags:         Flags(le.Uint16(b[24:])),
		IDs:           le.Uint16(b[26:]),
		Root:          Ref(le.Uint64(b[32:])),
		BytesUsed:     le.Uint64(b[40:]),
		IDTable:       le.Uint64(b[48:]),
		XattrTable:    le.Uint64(b[56:]),
		InodeTable:    le.Uint64(b[64:]),
		DirTable:      le.Uint64(b[72:]),
		FragmentTable: le.Uint64(b[80:]),
		ExportTable:   le.Uint64(b[88:]),
	}
	if s.BlockSize < minBlockSize || s.BlockSize > maxBlockSize || s.BlockSize&(s.BlockSize-1) != 0 {
		return nil, corrupt("block size %d is not a power of two from 4 KiB to 1 MiB", s.BlockSize)
	}
	if log := le.Uint16(b[22:]); 1<<min(log, 31) != s.BlockSize {
		return nil, corrupt("block size %d and its logarithm %d differ", s.BlockSize, log)
	}
	if s.BytesUsed < superblockSize || s.BytesUsed > 1<<62 {
		return nil, corrupt("length of %d bytes", s.BytesUsed)
	}
	if size >= 0 && s.BytesUsed > uint64(size) {
		return nil, corrupt("truncated: the image has %d bytes, the file %d", s.BytesUsed, size)
	}
	if s.Inodes == 0 {
		return nil, corrupt("no inodes")
	}
	if s.IDs == 0 {
		return nil, corrupt("no ids")
	}
	return s, s.checkTables()
}

// checkTables proves that the tables lie in the order in which the kernel wants
// them (fs/squashfs/super.c, squashfs_fill_super), none over another.
func (s *Superblock) checkTables() error {
	tables := []struct {
		name     string
		at       uint64
		optional bool
		min      uint64 // the least bytes that the table needs
	}{
		{"inode", s.InodeTable, false, metaHeaderLen + 16},
		// An image with empty directories only has an empty directory table.
		{"directory", s.DirTable, false, 0},
		{"fragment", s.FragmentTable, s.Fragments == 0, lookupListLen(s.Fragments, fragEntrySize)},
		{"export", s.ExportTable, true, lookupListLen(s.Inodes, exportSize)},
		{"id", s.IDTable, false, lookupListLen(uint32(s.IDs), idSize)},
		{"xattr", s.XattrTable, true, xattrTableHead},
	}
	end, before := uint64(superblockSize), "superblock"
	for _, t := range tables {
		if t.at == noTable {
			if !t.optional {
				return corrupt("no %s table", t.name)
			}
			continue
		}
		if t.at < end || t.at > s.BytesUsed || s.BytesUsed-t.at < t.min {
			return corrupt("%s table at %d: it must lie behind the %s, which ends at %d or later, and within %d bytes",
				t.name, t.at, before, end, s.BytesUsed)
		}
		end, before = t.at+t.min, t.name+" table"
	}
	if s.Root.block() >= s.DirTable-s.InodeTable || s.Root.offset() >= metaSize {
		return corrupt("root inode at %#x lies outside the inode table", uint64(s.Root))
	}
	return nil
}

// lookupListLen is the length in bytes of the list of block locations of a
// lookup table of n entries of the given size.
func lookupListLen(n uint32, entrySize int) uint64 {
	return (uint64(n)*uint64(entrySize) + metaSize - 1) / metaSize * 8
}
