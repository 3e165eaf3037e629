package oci

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"syscall"

	"github.com/gangway-hpc/gangway/internal/fault"
)

const (
	maxTarEntries = 100_000 // an archive of an image has a few for each layer
	maxTarName    = 4096
	maxTarNames   = 64 << 20 // bytes of all names and links
	maxTarLinks   = 8        // followed one after another
)

// tarFiles are the files of an uncompressed tar archive, found by one scan.
type tarFiles struct {
	file    io.ReaderAt
	close   func() error
	entries map[string]tarEntry
}

type tarEntry struct {
	offset, size int64
	link         string // where it is one: a clean name in the archive
	bad          string // why it cannot be read, if so
}

// openTar scans an archive.
func openTar(name string) (*tarFiles, error) {
	f, err := os.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if path, ok := errors.AsType[*fs.PathError](err); ok {
		return nil, path.Err // the caller names it
	}
	if err != nil {
		return nil, err
	}
	st, err := f.Stat()
	if err == nil && st.IsDir() {
		err = &fault.Error{What: errors.New("it is a directory"), Hint: "a layout in a directory is named oci:" + name}
	} else if err == nil && !st.Mode().IsRegular() {
		err = &fault.Error{What: errors.New("it is not a regular file"), Hint: "blobs are read out of order; write the archive to a file first"}
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	t, err := scanTar(f, st.Size())
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	t.close = f.Close
	return t, nil
}

// scanTar reads the headers of an archive. Of entries with one name the last wins,
// as it does when an archive is unpacked.
func scanTar(file io.ReaderAt, size int64) (*tarFiles, error) {
	if err := checkMagic(file); err != nil {
		return nil, err
	}
	section := io.NewSectionReader(file, 0, size)
	r := tar.NewReader(section)
	t := &tarFiles{file: file, entries: map[string]tarEntry{}}
	for n, names := 0, 0; ; n++ {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if errors.Is(err, io.ErrUnexpectedEOF) {
			return nil, truncated(size)
		}
		if err != nil {
			return nil, fmt.Errorf("read entry %d: %w", n+1, err)
		}
		if n == maxTarEntries {
			return nil, fmt.Errorf("it has more than %d entries", maxTarEntries)
		}
		offset, err := section.Seek(0, io.SeekCurrent)
		if err != nil {
			return nil, err
		}
		if h.Typeflag == tar.TypeReg && h.Size > size-offset {
			return nil, truncated(size)
		}
		if name := cleanName(h.Name); name != "" {
			e := newTarEntry(name, h, offset)
			if names += len(name) + len(e.link); names > maxTarNames {
				return nil, fmt.Errorf("the names of its entries have more than %d bytes", maxTarNames)
			}
			t.entries[name] = e
		}
	}
	if len(t.entries) == 0 {
		return nil, errors.New("it is an empty archive")
	}
	return t, nil
}

func newTarEntry(name string, h *tar.Header, offset int64) tarEntry {
	switch h.Typeflag {
	case tar.TypeReg:
		for key := range h.PAXRecords {
			if strings.HasPrefix(key, "GNU.sparse.") {
				return tarEntry{bad: "is stored as a sparse file"}
			}
		}
		return tarEntry{offset: offset, size: h.Size}
	case tar.TypeGNUSparse:
		return tarEntry{bad: "is stored as a sparse file"}
	case tar.TypeLink: // from the root of the archive
		return tarEntry{link: cleanName(h.Linkname), bad: "is a link out of the archive"}
	case tar.TypeSymlink:
		if path.IsAbs(h.Linkname) {
			return tarEntry{bad: "is a link out of the archive"}
		}
		return tarEntry{link: cleanName(path.Join(path.Dir(name), h.Linkname)), bad: "is a link out of the archive"}
	default:
		return tarEntry{bad: "is not a regular file"}
	}
}

// cleanName makes a name one that can be looked up, or "" for what lies outside.
func cleanName(s string) string {
	s = path.Clean(strings.TrimLeft(s, "/"))
	if len(s) > maxTarName || s == "." || s == ".." || strings.HasPrefix(s, "../") {
		return ""
	}
	return strings.Clone(s) // which may be a piece of something long
}

func truncated(size int64) error {
	return &fault.Error{
		What: fmt.Errorf("the archive is cut off: it ends after %d bytes: %w", size, io.ErrUnexpectedEOF),
		Hint: "copy or save it again",
	}
}

// checkMagic refuses compressed archives: their blobs cannot be reached without
// unpacking all of them.
func checkMagic(file io.ReaderAt) error {
	var begin [6]byte
	n, err := file.ReadAt(begin[:], 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if n == 0 {
		return errors.New("it is empty")
	}
	for _, c := range []struct{ magic, name, program string }{
		{"\x1f\x8b", "gzip", "gunzip"},
		{"\x28\xb5\x2f\xfd", "zstd", "unzstd"},
		{"BZh", "bzip2", "bunzip2"},
		{"\xfd7zXZ\x00", "xz", "unxz"},
	} {
		if bytes.HasPrefix(begin[:n], []byte(c.magic)) {
			return &fault.Error{
				What: fmt.Errorf("the archive is compressed by %s", c.name),
				Hint: "unpack it first, its layers may stay compressed: " + c.program + " FILE",
			}
		}
	}
	return nil
}

// find follows links to a file.
func (t *tarFiles) find(name string) (tarEntry, error) {
	at := cleanName(name)
	for range maxTarLinks {
		e, ok := t.entries[at]
		switch {
		case !ok:
			return tarEntry{}, fmt.Errorf("find %s in the archive: %w", name, fs.ErrNotExist)
		case e.link != "":
			at = e.link
		case e.bad != "":
			return tarEntry{}, fmt.Errorf("read %s in the archive: it %s", name, e.bad)
		default:
			return e, nil
		}
	}
	return tarEntry{}, fmt.Errorf("read %s in the archive: more than %d links", name, maxTarLinks)
}

func (t *tarFiles) open(name string) (io.ReadCloser, int64, error) {
	e, err := t.find(name)
	if err != nil {
		return nil, 0, err
	}
	return io.NopCloser(io.NewSectionReader(t.file, e.offset, e.size)), e.size, nil
}

// Close closes the archive.
func (t *tarFiles) Close() error {
	if t.close == nil {
		return nil
	}
	return t.close()
}

// OpenArchive opens an image in an OCI image layout in a tar file, as podman save
// --format oci-archive and docker buildx make it. tag and digest are as in
// OpenLayout. The file may not be compressed; its layers may.
func OpenArchive(file, tag string, digest Digest) (*Local, error) {
	t, err := openTar(file)
	if err != nil {
		return nil, notThere(fmt.Errorf("open OCI archive %s: %w", file, err), "oci-archive:FILE[:TAG]")
	}
	return openLayout(t, "OCI archive "+file, tag, digest)
}
