package layer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/zeebo/blake3"

	"github.com/gangway-hpc/gangway/internal/fault"
	"github.com/gangway-hpc/gangway/squashfs"
)

// hiddenDir holds in the squashfs part what cannot have its own name there. No
// file of a layer can lie in it: names of this kind are whiteouts.
const hiddenDir = whiteoutPrefix + ".gangway"

// imageWriter writes the two parts of an artefact side by side.
type imageWriter struct {
	sq    *squashfs.Writer
	toc   *tocWriter
	added []bool // for each file in the squashfs part, whether it has content
}

func newImageWriter(out Output, workers int, l *Limits) (*imageWriter, error) {
	toc, err := newTOCWriter(l.TOCBytes)
	if err != nil {
		return nil, err
	}
	sq, err := squashfs.NewWriter(out, squashfs.WriterOptions{Workers: workers})
	if err != nil {
		return nil, fmt.Errorf("write squashfs: %w", err)
	}
	return &imageWriter{sq: sq, toc: toc}, nil
}

func (w *imageWriter) close() { _ = w.sq.Close() } // only ends goroutines

// add writes an entry. Whiteouts have no content.
func (w *imageWriter) add(e *Entry, content io.Reader) error {
	inHidden, whiteout := hidden(e.Name)
	if whiteout && e.Type == File {
		e.Size = 0
	}
	if err := w.toc.add(e); err != nil {
		return err
	}
	if e.Type == File && e.Size > 0 {
		return w.addFile(e, inHidden, content)
	}
	if inHidden {
		return nil
	}
	var err error
	if e.Type == HardLink {
		err = w.sq.Link(e.Name, e.Link)
	} else {
		err = w.sq.Add(squashfsEntry(e, e.Name), nil)
	}
	if err == nil && e.Type == File {
		w.added = append(w.added, false)
	}
	return outOfPlace(err)
}

// addFile adds a file that has content, under its own name if that is free.
func (w *imageWriter) addFile(e *Entry, inHidden bool, content io.Reader) error {
	err := error(fs.ErrExist)
	if !inHidden {
		err = w.sq.Add(squashfsEntry(e, e.Name), content)
	}
	if isOutOfPlace(err) {
		// Nothing of the content was read: names are looked at first.
		name := hiddenDir + "/" + strconv.FormatUint(w.toc.head.records, 10)
		err = w.sq.Add(squashfsEntry(e, name), content)
	}
	if err != nil {
		return explain(err)
	}
	w.added = append(w.added, true)
	return nil
}

// isOutOfPlace says whether the squashfs part has no place for an entry, which
// leaves it usable: the name is taken, what it lies in is no directory, what it
// links to is not there, or it has numbers that the format has no room for.
func isOutOfPlace(err error) bool {
	return errors.Is(err, fs.ErrExist) || errors.Is(err, fs.ErrInvalid) || errors.Is(err, fs.ErrNotExist)
}

func outOfPlace(err error) error {
	if isOutOfPlace(err) {
		return nil // it is in the TOC
	}
	return explain(err)
}

func explain(err error) error {
	if errors.Is(err, squashfs.ErrTooManyIDs) {
		return &fault.Error{
			What: err, Hint: "build the image with fewer owners of files, e.g. chown -R before the layer is made",
		}
	}
	return err
}

func squashfsEntry(e *Entry, path string) squashfs.Entry {
	if path == "" {
		path = "."
	}
	s := squashfs.Entry{
		Path: path, Mode: fileMode(e), UID: e.UID, GID: e.GID, ModTime: time.Unix(e.Sec, 0),
		Size: e.Size, Target: e.Link, Major: e.Major, Minor: e.Minor,
	}
	for _, x := range e.Xattrs {
		if !strings.HasPrefix(x.Name, "system.") {
			s.Xattrs = append(s.Xattrs, x)
		}
	}
	return s
}

func fileMode(e *Entry) fs.FileMode {
	m := fs.FileMode(e.Mode & 0o777)
	if e.Mode&0o4000 != 0 {
		m |= os.ModeSetuid
	}
	if e.Mode&0o2000 != 0 {
		m |= os.ModeSetgid
	}
	if e.Mode&0o1000 != 0 {
		m |= os.ModeSticky
	}
	switch e.Type {
	case Dir:
		m |= os.ModeDir
	case Symlink:
		m |= os.ModeSymlink
	case CharDevice:
		m |= os.ModeDevice | os.ModeCharDevice
	case BlockDevice:
		m |= os.ModeDevice
	case FIFO:
		m |= os.ModeNamedPipe
	}
	return m
}

// finish ends the squashfs part and writes the TOC behind it.
func (w *imageWriter) finish(ctx context.Context, out Output) (Info, error) {
	image, err := w.sq.Finish(ctx)
	if err != nil {
		return Info{}, fmt.Errorf("write squashfs: %w", err)
	}
	payload, err := w.toc.finish(w.numbers())
	if err != nil {
		return Info{}, err
	}
	h := &w.toc.head
	h.squashfsSize = uint64(image.Size)
	if h.squashfsSum, err = checksum(ctx, out, image.Size); err != nil {
		return Info{}, fmt.Errorf("read squashfs again: %w", err)
	}
	h.payloadSum = blake3.Sum256(payload)
	if _, err := out.WriteAt(h.marshal(), image.Size); err != nil {
		return Info{}, fmt.Errorf("write table of contents: %w", err)
	}
	if _, err := out.WriteAt(payload, image.Size+headerSize); err != nil {
		return Info{}, fmt.Errorf("write table of contents: %w", err)
	}
	h.info.Size = image.Size + headerSize + int64(len(payload))
	return h.info, nil
}

// numbers yields the inode numbers of the files that have content.
func (w *imageWriter) numbers() iter.Seq[uint32] {
	return func(yield func(uint32) bool) {
		i := 0
		for n := range w.sq.FileNumbers() {
			if w.added[i] && !yield(n) {
				return
			}
			i++
		}
	}
}
