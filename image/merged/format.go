package merged

import "encoding/binary"

// The file's parts; docs/formats/merged-index.md is their documentation.
const (
	magic      = "gwmerged"
	version    = 1
	headerLen  = 256
	headerSum  = headerLen - sumLen
	sumLen     = 32 // BLAKE3-256
	sectionsAt = 32
	align      = 8

	layerLen    = 48
	inodeLen    = 64
	direntLen   = 12
	fileLen     = 40
	blockLen    = 4
	xattrSetLen = 8
	xattrLen    = 16
)

// section numbers the tables, in their order in the file.
type section int

const (
	secLayers section = iota
	secInodes
	secDirents
	secFiles
	secBlocks
	secXattrSets
	secXattrs
	secStrings
	sections
)

// recordLen returns the length of a section's records.
func recordLen(s section) uint64 {
	return [sections]uint64{layerLen, inodeLen, direntLen, fileLen, blockLen, xattrSetLen, xattrLen, 1}[s]
}

func (s section) String() string {
	return [...]string{"layer", "inode", "entry", "file", "block", "xattr set", "xattr", "string"}[s]
}

// aligned rounds up to a multiple of align.
func aligned(n uint64) uint64 { return (n + align - 1) &^ (align - 1) }

// head is the header's content.
type head struct {
	size               uint64 // of the file
	imageOff, imageLen uint32 // string
	counts             [sections]uint32
}

// offsets returns where the sections begin, and how long the file is.
func (h *head) offsets() (at [sections]uint64, size uint64) {
	size = headerLen
	for s := range sections {
		at[s] = size
		size += aligned(uint64(h.counts[s]) * recordLen(s))
	}
	return at, size + sumLen
}

// marshal returns the header, but for its checksum.
func (h *head) marshal() []byte {
	le := binary.LittleEndian
	b := make([]byte, headerLen)
	copy(b, magic)
	le.PutUint32(b[8:], version)
	le.PutUint32(b[12:], headerLen)
	at, size := h.offsets()
	le.PutUint64(b[16:], size)
	le.PutUint32(b[24:], h.imageOff)
	le.PutUint32(b[28:], h.imageLen)
	for s := range sections {
		le.PutUint64(b[sectionsAt+16*s:], at[s])
		le.PutUint64(b[sectionsAt+16*s+8:], uint64(h.counts[s]))
	}
	return b
}
