package layer

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"iter"

	"github.com/klauspost/compress/zstd"
)

// tocWriter compresses the records while the layer streams by, so that what is
// held of an entry is some ten bytes.
type tocWriter struct {
	limit   int64
	head    header
	stored  bytes.Buffer
	enc     *zstd.Encoder
	buf     []byte
	last    string
	lastSec int64

	landmarks int64 // entries that eStargz adds, if it is eStargz
	endsIn    bool  // the last entry is the TOC of eStargz
}

// newSection returns an encoder of a part of the payload. One goroutine and no
// settings that depend on the machine: the bytes must not either.
func newSection(to *bytes.Buffer) (*zstd.Encoder, error) {
	e, err := zstd.NewWriter(to, zstd.WithEncoderLevel(zstd.SpeedDefault), zstd.WithEncoderConcurrency(1),
		zstd.WithWindowSize(sectionWindow), zstd.WithLowerEncoderMem(true), zstd.WithEncoderCRC(false))
	if err != nil {
		return nil, fmt.Errorf("make zstd encoder: %w", err)
	}
	return e, nil
}

// sectionWindow bounds what a reader must hold.
const sectionWindow = 1 << 20

func newTOCWriter(limit int64) (*tocWriter, error) {
	t := &tocWriter{limit: limit}
	var err error
	t.enc, err = newSection(&t.stored)
	return t, err
}

// The first byte of a record: its type and these.
const (
	hasXattrs = 1 << 4
	hasNsec   = 1 << 5
)

// add appends an entry's record.
func (t *tocWriter) add(e *Entry) error {
	first := byte(e.Type)
	if len(e.Xattrs) > 0 {
		first |= hasXattrs
	}
	if e.Nsec != 0 {
		first |= hasNsec
	}
	same := commonPrefix(t.last, e.Name)
	b := binary.AppendUvarint(append(t.buf[:0], first), uint64(same))
	b = appendString(b, e.Name[same:])
	b = binary.AppendUvarint(b, uint64(e.Mode))
	b = binary.AppendUvarint(b, uint64(e.UID))
	b = binary.AppendUvarint(b, uint64(e.GID))
	b = binary.AppendVarint(b, e.Sec-t.lastSec) // may wrap around, and does so again when read
	if e.Nsec != 0 {
		b = binary.AppendUvarint(b, uint64(e.Nsec))
	}
	switch e.Type {
	case File:
		b = binary.AppendUvarint(b, uint64(e.Size))
		t.head.info.Files++
		t.head.info.ContentBytes += e.Size
		if e.Size > 0 {
			t.head.numbers++
		}
	case Symlink, HardLink:
		b = appendString(b, e.Link)
	case CharDevice, BlockDevice:
		b = binary.AppendUvarint(binary.AppendUvarint(b, uint64(e.Major)), uint64(e.Minor))
	}
	if len(e.Xattrs) > 0 {
		b = binary.AppendUvarint(b, uint64(len(e.Xattrs)))
		for _, x := range e.Xattrs {
			b = appendString(appendString(b, x.Name), x.Value)
		}
	}
	t.buf, t.last, t.lastSec = b, e.Name, e.Sec
	t.head.records++
	t.head.recordsRaw += uint64(len(b))
	if int64(t.head.recordsRaw) > t.limit {
		return &LimitError{"TOCBytes", t.limit}
	}
	t.endsIn = e.Type == File && e.Name == estargzTOC
	if isLandmark(e) {
		t.landmarks++
	}
	_, err := t.enc.Write(b)
	return err
}

// appendString appends a length and the bytes.
func appendString[T string | []byte](b []byte, s T) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

// finish ends the records and appends the inode numbers, of files that have content.
func (t *tocWriter) finish(numbers iter.Seq[uint32]) (payload []byte, err error) {
	if err := t.enc.Close(); err != nil {
		return nil, fmt.Errorf("compress the table of contents: %w", err)
	}
	t.head.recordsStored = uint64(t.stored.Len())
	if t.enc, err = newSection(&t.stored); err != nil {
		return nil, err
	}
	var last int64
	for n := range numbers {
		t.buf = binary.AppendVarint(t.buf[:0], int64(n)-last)
		last = int64(n)
		t.head.numbersRaw += uint64(len(t.buf))
		if _, err := t.enc.Write(t.buf); err != nil {
			return nil, fmt.Errorf("compress the inode numbers: %w", err)
		}
	}
	if err := t.enc.Close(); err != nil {
		return nil, fmt.Errorf("compress the inode numbers: %w", err)
	}
	t.head.numbersStored = uint64(t.stored.Len()) - t.head.recordsStored
	i := &t.head.info
	if i.Entries = int64(t.head.records); t.endsIn {
		i.EStargz = true
		i.Entries -= t.landmarks
	}
	return t.stored.Bytes(), nil
}

// eStargz puts a table of its own behind all other entries, and marks for its
// prefetching before them. They are no part of the image.
const (
	estargzTOC        = "stargz.index.json"
	estargzPrefetch   = ".prefetch.landmark"
	estargzNoPrefetch = ".no.prefetch.landmark"
)

func isLandmark(e *Entry) bool {
	return e.Type == File && (e.Name == estargzTOC || e.Name == estargzPrefetch || e.Name == estargzNoPrefetch)
}
