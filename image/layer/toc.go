package layer

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"

	"github.com/zeebo/blake3"

	"github.com/gangway-hpc/gangway/image/oci"
)

// The table of contents, as docs/formats/layer.md describes it.
const (
	tocMagic   = "gwlayer\x00"
	tocVersion = 1
	// encoderVersion is raised when the same blob would give other bytes, as with a
	// new release of a compressor. TestGolden tells.
	encoderVersion = 1

	headerSize = 384
	sumSize    = 32 // of BLAKE3

	flagEStargz = 1 << 0
)

// ErrCorrupt says that an artefact breaks the rules of its format. Errors about its
// squashfs part wrap squashfs.ErrCorrupt instead.
var ErrCorrupt = errors.New("corrupt layer artefact")

// ErrVersion says that an artefact was written by a version of Gangway that this
// one does not know.
var ErrVersion = errors.New("unknown version of layer artefact")

func corrupt(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrCorrupt, fmt.Errorf(format, args...))
}

// header is the fixed part of the TOC.
type header struct {
	info    Info
	records uint64 // entries with those that eStargz added
	numbers uint64 // inode numbers: files that have content

	recordsRaw, recordsStored uint64
	numbersRaw, numbersStored uint64

	squashfsSize uint64
	squashfsSum  [sumSize]byte
	payloadSum   [sumSize]byte
}

var le = binary.LittleEndian

// compressions are numbered by their places.
func compressionNames() []string {
	return []string{compressionNone, compressionGzip, compressionZstd}
}

func algorithmNames() []string { return []string{"", "sha256", "sha512"} }

func numberOf(name string, names []string) uint32 {
	for i, n := range names {
		if n == name {
			return uint32(i)
		}
	}
	return 0
}

// marshal returns the header's bytes.
func (h *header) marshal() []byte {
	i := &h.info
	b := append(make([]byte, 0, headerSize), tocMagic...)
	var flags uint32
	if i.EStargz {
		flags |= flagEStargz
	}
	for _, v := range []uint32{tocVersion, encoderVersion, flags, numberOf(i.Compression, compressionNames())} {
		b = le.AppendUint32(b, v)
	}
	for _, d := range []oci.Digest{i.Digest, i.DiffID} {
		var sum [64]byte
		_, _ = hex.Decode(sum[:], []byte(d.Hex())) // made by us
		b = le.AppendUint64(b, uint64(numberOf(d.Algorithm(), algorithmNames())))
		b = append(b, sum[:]...)
	}
	for _, v := range []uint64{
		uint64(i.BlobSize), uint64(i.TarSize), uint64(i.ContentBytes),
		h.records, uint64(i.Entries), uint64(i.Files), h.numbers,
		h.recordsRaw, h.recordsStored, h.numbersRaw, h.numbersStored, h.squashfsSize, 0, 0, 0,
	} {
		b = le.AppendUint64(b, v)
	}
	b = append(b, h.squashfsSum[:]...)
	b = append(b, h.payloadSum[:]...)
	sum := blake3.Sum256(b)
	return append(b, sum[:]...)
}

// parseHeader is the reverse of marshal. at is where the header lies and size what
// the file has.
func parseHeader(b []byte, at, size int64) (*header, error) {
	if len(b) < len(tocMagic)+4 || string(b[:len(tocMagic)]) != tocMagic {
		return nil, corrupt("there is no table of contents behind the squashfs image")
	}
	if v := le.Uint32(b[8:]); v != tocVersion {
		return nil, fmt.Errorf("%w: %d", ErrVersion, v)
	}
	if len(b) < headerSize {
		return nil, corrupt("the header of the table of contents is cut off")
	}
	b = b[:headerSize]
	if sum := blake3.Sum256(b[:headerSize-sumSize]); string(sum[:]) != string(b[headerSize-sumSize:]) {
		return nil, corrupt("the checksum of the header is wrong")
	}
	h := &header{}
	i := &h.info
	flags, compression := le.Uint32(b[16:]), le.Uint32(b[20:])
	i.EStargz = flags&flagEStargz != 0
	names := compressionNames()
	if flags&^flagEStargz != 0 || compression >= uint32(len(names)) {
		return nil, corrupt("flags %#x, compression %d", flags, compression)
	}
	i.Compression = names[compression]
	var err error
	if i.Digest, err = parseSum(b[24:96]); err != nil {
		return nil, err
	}
	if i.DiffID, err = parseSum(b[96:168]); err != nil {
		return nil, err
	}
	words := b[168:]
	for _, f := range []*int64{&i.BlobSize, &i.TarSize, &i.ContentBytes} {
		if *f = int64(le.Uint64(words)); *f < 0 {
			return nil, corrupt("a size of %d", *f)
		}
		words = words[8:]
	}
	var entries, files uint64
	for _, f := range []*uint64{
		&h.records, &entries, &files, &h.numbers,
		&h.recordsRaw, &h.recordsStored, &h.numbersRaw, &h.numbersStored, &h.squashfsSize,
	} {
		*f = le.Uint64(words)
		if *f > 1<<62 {
			return nil, corrupt("a count of %d", *f)
		}
		words = words[8:]
	}
	i.Entries, i.Files, i.Size = int64(entries), int64(files), size
	if entries > h.records || files > h.records || h.numbers > h.records {
		return nil, corrupt("%d entries and %d files, %d of them with content, of %d records", entries, files, h.numbers, h.records)
	}
	copy(h.squashfsSum[:], b[288:])
	copy(h.payloadSum[:], b[320:])
	if h.squashfsSize != uint64(at) {
		return nil, corrupt("the table of contents lies at %d, and says %d", at, h.squashfsSize)
	}
	if end := h.squashfsSize + headerSize + h.recordsStored + h.numbersStored; end != uint64(size) {
		return nil, corrupt("the file has %d bytes, and should have %d", size, end)
	}
	return h, nil
}

func parseSum(b []byte) (oci.Digest, error) {
	n := map[uint64]int{1: 32, 2: 64}[le.Uint64(b)]
	if n == 0 {
		return "", corrupt("digest algorithm %d", le.Uint64(b))
	}
	return oci.Digest(algorithmNames()[le.Uint64(b)] + ":" + hex.EncodeToString(b[8:8+n])), nil
}
