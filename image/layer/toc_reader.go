package layer

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"

	"github.com/klauspost/compress/zstd"
	"github.com/zeebo/blake3"

	"github.com/gangway-hpc/gangway/squashfs"
)

// tocReader decodes the records one by one. It trusts nothing: a checksum tells
// what broke, not what was made to look right.
type tocReader struct {
	h       *header
	records *section
	numbers *section
	sum     *blake3.Hasher // of the records as stored
	sumOf   func() ([sumSize]byte, error)

	read    uint64 // records
	counted Info   // what they are
	last    Entry
	number  int64
	inodes  uint64
	buf     []byte
}

// section decompresses a part of the payload.
type section struct {
	*bufio.Reader
	dec  *zstd.Decoder
	left uint64 // decoded bytes to come
}

func newSectionReader(src io.Reader, raw uint64) (*section, error) {
	dec, err := zstd.NewReader(src, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(sectionWindow))
	if err != nil {
		return nil, fmt.Errorf("make zstd decoder: %w", err)
	}
	s := &section{dec: dec, left: raw}
	s.Reader = bufio.NewReaderSize(&sectionBytes{s}, 32<<10)
	return s, nil
}

// sectionBytes is what a section decodes to, of the length that it should have.
type sectionBytes struct{ s *section }

func (b *sectionBytes) Read(p []byte) (int, error) {
	s := b.s
	n, err := s.dec.Read(p[:min(uint64(len(p)), s.left+1)])
	if uint64(n) > s.left {
		return 0, corrupt("a section is longer than it should be")
	}
	s.left -= uint64(n)
	switch {
	case err == io.EOF && s.left > 0:
		return n, corrupt("a section ends %d bytes early", s.left)
	case err != nil && err != io.EOF:
		return n, corrupt("unzstd: %w", err)
	}
	return n, err
}

// end proves that nothing is left.
func (s *section) end() error {
	switch _, err := s.ReadByte(); err {
	case io.EOF:
		return nil
	case nil:
		return corrupt("there is more than the header counts")
	default:
		return err
	}
}

func newTOCReader(src io.ReaderAt, h *header) (*tocReader, error) {
	at := int64(h.squashfsSize) + headerSize
	stored := io.NewSectionReader(src, at, int64(h.recordsStored))
	numbers := io.NewSectionReader(src, at+int64(h.recordsStored), int64(h.numbersStored))
	t := &tocReader{h: h, sum: blake3.New()}
	var err error
	if t.records, err = newSectionReader(io.TeeReader(stored, t.sum), h.recordsRaw); err != nil {
		return nil, err
	}
	if t.numbers, err = newSectionReader(numbers, h.numbersRaw); err != nil {
		t.records.dec.Close()
		return nil, err
	}
	t.sumOf = func() (sum [sumSize]byte, err error) {
		// The numbers are read a second time; there are few bytes of them.
		for _, rest := range []io.Reader{stored, io.NewSectionReader(src, at+int64(h.recordsStored), int64(h.numbersStored))} {
			if _, err := io.Copy(t.sum, rest); err != nil {
				return sum, err
			}
		}
		copy(sum[:], t.sum.Sum(nil))
		return sum, nil
	}
	return t, nil
}

func (t *tocReader) close() {
	t.records.dec.Close()
	t.numbers.dec.Close()
}

// next returns the next record; io.EOF says that all were read, and that the whole
// payload is what it should be.
func (t *tocReader) next() (Entry, error) {
	if t.read == t.h.records {
		if err := t.end(); err != nil {
			return Entry{}, err
		}
		return Entry{}, io.EOF
	}
	e, err := t.record()
	if err != nil {
		if err == io.EOF {
			err = corrupt("the records end early")
		}
		return Entry{}, fmt.Errorf("record %d: %w", t.read+1, err)
	}
	t.read++
	t.last.Name, t.last.Sec = e.Name, e.Sec
	if e.Type == File {
		t.counted.Files++
		t.counted.ContentBytes += e.Size
	}
	return e, nil
}

func (t *tocReader) end() error {
	for _, s := range []*section{t.records, t.numbers} {
		if err := s.end(); err != nil {
			return err
		}
	}
	i := &t.h.info
	if t.inodes != t.h.numbers || t.counted.Files != i.Files || t.counted.ContentBytes != i.ContentBytes {
		return corrupt("%d files of %d bytes, %d of them with content; the header says %d, %d, %d",
			t.counted.Files, t.counted.ContentBytes, t.inodes, i.Files, i.ContentBytes, t.h.numbers)
	}
	sum, err := t.sumOf()
	if err != nil {
		return err
	}
	if sum != t.h.payloadSum {
		return corrupt("the checksum of the payload is wrong")
	}
	return nil
}

func (t *tocReader) record() (e Entry, err error) {
	first, err := t.records.ReadByte()
	if err != nil {
		return e, err
	}
	if e.Type = Type(first & 0xF); e.Type < File || e.Type > FIFO || first&^(0xF|hasXattrs|hasNsec) != 0 {
		return e, corrupt("type %#x", first)
	}
	if e.Name, err = t.name(); err != nil {
		return e, err
	}
	if err := t.attributes(&e, first&hasNsec != 0); err != nil {
		return e, err
	}
	switch e.Type {
	case File:
		err = t.file(&e)
	case Symlink, HardLink:
		if e.Link, err = t.text(maxPath); err != nil {
			return e, err
		}
		if e.Link == "" || strings.IndexByte(e.Link, 0) >= 0 || e.Type == HardLink && !isClean(e.Link) {
			return e, corrupt("link to %s", quote(e.Link))
		}
	case CharDevice, BlockDevice:
		if e.Major, err = t.uint32(math.MaxUint32); err == nil {
			e.Minor, err = t.uint32(math.MaxUint32)
		}
	}
	if err == nil && first&hasXattrs != 0 {
		e.Xattrs, err = t.xattrs()
	}
	return e, err
}

func (t *tocReader) name() (string, error) {
	same, err := t.uvarint(uint64(len(t.last.Name)))
	if err != nil {
		return "", err
	}
	n, err := t.uvarint(maxPath - same)
	if err != nil {
		return "", err
	}
	t.buf = append(t.buf[:0], t.last.Name[:same]...)
	if err := t.bytes(n); err != nil {
		return "", err
	}
	name := string(t.buf)
	if !isClean(name) {
		return "", corrupt("name %s", quote(name))
	}
	return name, nil
}

// isClean says whether cleanName could have given the path.
func isClean(path string) bool {
	l := Limits{NameBytes: maxPath, Depth: maxDepth}
	clean, err := cleanName(path, &l)
	return err == nil && clean == path
}

func (t *tocReader) attributes(e *Entry, nsec bool) (err error) {
	if e.Mode, err = t.uint32(0o7777); err != nil {
		return err
	}
	if e.UID, err = t.uint32(math.MaxUint32); err != nil {
		return err
	}
	if e.GID, err = t.uint32(math.MaxUint32); err != nil {
		return err
	}
	delta, err := binary.ReadVarint(t.records)
	if err != nil {
		return notEOF(err)
	}
	e.Sec = t.last.Sec + delta
	if nsec {
		if e.Nsec, err = t.uint32(999_999_999); err == nil && e.Nsec == 0 {
			err = corrupt("nanoseconds of 0")
		}
	}
	return err
}

func (t *tocReader) file(e *Entry) error {
	size, err := t.uvarint(math.MaxInt64)
	if err != nil {
		return err
	}
	e.Size = int64(size)
	if t.counted.ContentBytes+e.Size < 0 {
		return corrupt("more than 2^63 bytes of content")
	}
	if e.Size == 0 {
		return nil
	}
	delta, err := binary.ReadVarint(t.numbers)
	if err != nil {
		return notEOF(err)
	}
	t.number += delta
	if t.number < 1 || t.number > math.MaxUint32 {
		return corrupt("inode %d", t.number)
	}
	t.inodes++
	e.Inode = uint32(t.number)
	return nil
}

func (t *tocReader) xattrs() ([]squashfs.Xattr, error) {
	var list []squashfs.Xattr
	count, err := t.uvarint(maxXattrs)
	if err != nil {
		return nil, err
	}
	if count == 0 {
		return nil, corrupt("no extended attributes")
	}
	left := uint64(maxXattrs)
	for i := range count {
		name, err := t.text(min(left, 255))
		if err != nil {
			return nil, err
		}
		left -= uint64(len(name))
		value, err := t.text(min(left, 64<<10))
		if err != nil {
			return nil, err
		}
		left -= uint64(len(value))
		if !knownXattr(name) || i > 0 && name <= list[i-1].Name {
			return nil, corrupt("extended attribute %s", quote(name))
		}
		list = append(list, squashfs.Xattr{Name: name, Value: []byte(value)})
	}
	return list, nil
}

func (t *tocReader) uvarint(most uint64) (uint64, error) {
	n, err := binary.ReadUvarint(t.records)
	if err != nil {
		return 0, notEOF(err)
	}
	if n > most {
		return 0, corrupt("a number of %d, at most %d", n, most)
	}
	return n, nil
}

func (t *tocReader) uint32(most uint64) (uint32, error) {
	n, err := t.uvarint(most)
	return uint32(n), err
}

// text reads a length and the bytes.
func (t *tocReader) text(most uint64) (string, error) {
	n, err := t.uvarint(most)
	if err != nil {
		return "", err
	}
	t.buf = t.buf[:0]
	if err := t.bytes(n); err != nil {
		return "", err
	}
	return string(t.buf), nil
}

// bytes appends n bytes to buf.
func (t *tocReader) bytes(n uint64) error {
	at := len(t.buf)
	t.buf = append(t.buf, make([]byte, n)...)
	_, err := io.ReadFull(t.records, t.buf[at:])
	return notEOF(err)
}

// notEOF gives an end within a record, or a number that is none, a name.
func notEOF(err error) error {
	if err == nil || errors.Is(err, ErrCorrupt) {
		return err
	}
	return corrupt("%w", err)
}
