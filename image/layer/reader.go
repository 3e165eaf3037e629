package layer

import (
	"errors"
	"fmt"
	"io"
	"iter"

	"github.com/gangway-hpc/gangway/squashfs"
)

// Layer is an artefact that is open for reading. It is safe for concurrent use.
type Layer struct {
	src  io.ReaderAt
	sq   *squashfs.Reader
	head *header
}

// Open opens the artefact in the named file.
func Open(path string, o squashfs.ReaderOptions) (*Layer, error) {
	sq, err := squashfs.Open(path, o)
	if err != nil {
		return nil, err
	}
	l, err := newLayer(sq)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	return l, nil
}

// NewReader opens the artefact that src holds; o.Size is its length, where src has
// no method Size or Stat that tells. It reads the heads of both parts and proves
// the checksum of the TOC's head and the file's length; Check proves the rest.
func NewReader(src io.ReaderAt, o squashfs.ReaderOptions) (*Layer, error) {
	sq, err := squashfs.NewReader(src, o)
	if err != nil {
		return nil, err
	}
	return newLayer(sq)
}

// newLayer takes sq over.
func newLayer(sq *squashfs.Reader) (*Layer, error) {
	l, err := readHead(sq)
	if err != nil {
		return nil, errors.Join(err, sq.Close())
	}
	return l, nil
}

func readHead(sq *squashfs.Reader) (*Layer, error) {
	trailer := sq.Trailer()
	if trailer == nil {
		return nil, corrupt("there is no table of contents behind the squashfs image")
	}
	src, at, n := trailer.Outer()
	b := make([]byte, min(headerSize, n))
	if _, err := io.ReadFull(trailer, b); err != nil {
		return nil, fmt.Errorf("read table of contents: %w", err)
	}
	h, err := parseHeader(b, at, at+n)
	if err != nil {
		return nil, err
	}
	return &Layer{src: src, sq: sq, head: h}, nil
}

// Info returns what is known of the layer.
func (l *Layer) Info() Info { return l.head.info }

// Squashfs returns the part that holds the content of files: Entry.Inode is a
// number for its InodeByNumber. It is closed with the Layer.
func (l *Layer) Squashfs() *squashfs.Reader { return l.sq }

// Close ends the use of the Layer, also of its squashfs part.
func (l *Layer) Close() error { return l.sq.Close() }

// Entries yields the entries in the order of the archive, without those that
// eStargz added. It holds none of them: memory is bounded by the largest. The
// checksum is proved on the way, so what was yielded is right only if no error
// follows; an error is the last.
func (l *Layer) Entries() iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) {
		for e, err := range l.records() {
			if err == nil && l.head.info.EStargz && isLandmark(&e) {
				continue
			}
			if !yield(e, err) {
				return
			}
		}
	}
}

// records yields the entries with those that eStargz added.
func (l *Layer) records() iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) {
		d, err := newTOCReader(l.src, l.head)
		if err == nil {
			defer d.close()
		}
		for err == nil {
			var e Entry
			if e, err = d.next(); err != nil {
				break
			}
			if !yield(e, nil) {
				return
			}
		}
		if err != io.EOF {
			yield(Entry{}, fmt.Errorf("read table of contents: %w", err))
		}
	}
}
