package image

import (
	"archive/tar"
	"bufio"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gangway-hpc/gangway/image/layer"
	"github.com/gangway-hpc/gangway/image/oci"
	"github.com/gangway-hpc/gangway/squashfs"
)

// tarStream writes the tar archive of a root file system. Nothing but the files
// decides what is in it.
type tarStream struct {
	ctx  context.Context // of the one pass
	out  *bufio.Writer
	tar  *tar.Writer
	warn func(string, error)
	// sparse has the extents of files with holes as the first pass saw them. Linux may
	// take preallocated space for a hole before it was read, and for data afterwards.
	sparse map[string][]extent
	again  bool  // this is not the first pass
	most   int64 // bytes that the content of all files may have
	left   int64 // of them
	buf    []byte
}

// rootNode is a file to be written.
type rootNode struct {
	name         string // "" is the root
	mode         uint32 // st_mode
	uid, gid     uint32
	mtime        time.Time
	size         int64
	target       string // of a symlink
	major, minor uint32
	xattrs       []squashfs.Xattr
}

// content is what a regular file has.
type content struct {
	io.ReaderAt
	// extents returns the runs of data; it is nil where the file has no holes.
	extents func() ([]extent, error)
}

// treeWriter writes all files of a tree, by way of add, link and skip.
type treeWriter func(s *tarStream) error

// streamed is a root whose archive is made while it is read.
type streamed struct {
	write  treeWriter
	warn   func(string, error)
	most   int64 // bytes of content
	sparse map[string][]extent
	close  func() error
}

// pass writes the archive once.
func (t *streamed) pass(ctx context.Context, w io.Writer, warn func(string, error), again bool) error {
	out := bufio.NewWriterSize(w, 256<<10)
	s := &tarStream{
		ctx: ctx, out: out, tar: tar.NewWriter(out), warn: warn, sparse: t.sparse, again: again,
		most: t.most, left: t.most, buf: make([]byte, 256<<10),
	}
	if err := t.write(s); err != nil {
		return err
	}
	return errors.Join(s.tar.Close(), out.Flush())
}

// measure implements root.
func (t *streamed) measure(ctx context.Context) (oci.Descriptor, oci.Digest, error) {
	t.sparse = map[string][]extent{}
	h := sha256.New()
	var n countWriter
	warn := t.warn
	if warn == nil {
		warn = func(string, error) {}
	}
	if err := t.pass(ctx, io.MultiWriter(h, &n), warn, false); err != nil {
		return oci.Descriptor{}, "", err
	}
	d := oci.SHA256(h)
	return oci.Descriptor{MediaType: oci.MediaTypeLayer, Digest: d, Size: int64(n)}, d, nil
}

type countWriter int64

func (n *countWriter) Write(p []byte) (int, error) {
	*n += countWriter(len(p))
	return len(p), nil
}

// open implements root. What there is to warn of was said when it was measured.
func (t *streamed) open(ctx context.Context) (io.ReadCloser, error) {
	ctx, cancel := context.WithCancel(ctx)
	r, w := io.Pipe()
	p := &pass{PipeReader: r, cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(p.done)
		_ = w.CloseWithError(t.pass(ctx, w, func(string, error) {}, true)) // is always nil
	}()
	return p, nil
}

// Close implements root.
func (t *streamed) Close() error { return t.close() }

// pass is an archive that is being made.
type pass struct {
	*io.PipeReader
	cancel context.CancelFunc
	done   chan struct{}
}

// Close waits until nothing is read any more.
func (p *pass) Close() error {
	p.cancel()
	err := p.PipeReader.Close()
	<-p.done
	return err
}

// skip leaves out a file.
func (s *tarStream) skip(name, why string) { s.warn(name, errors.New(why)) }

// add writes a file. content is for regular files only.
func (s *tarStream) add(n *rootNode, c content) error {
	if s.ctx.Err() != nil {
		return context.Cause(s.ctx)
	}
	if err := checkRootName(n.name); err != nil {
		return err
	}
	h, err := s.header(n)
	if err != nil {
		return err
	}
	if h.Typeflag != tar.TypeReg {
		return entryFault(n.name, s.tar.WriteHeader(h))
	}
	if s.left -= n.size; s.left < 0 || n.size < 0 {
		return entryFault(n.name, &layer.LimitError{What: "Bytes", Limit: s.most})
	}
	data, err := s.extentsOf(n, c)
	if err != nil {
		return entryFault(n.name, err)
	}
	if data == nil {
		if err := s.tar.WriteHeader(h); err != nil {
			return entryFault(n.name, err)
		}
		return s.copy(s.tar, n.name, c, extent{0, n.size})
	}
	if err := s.sparseHeader(h, data); err != nil {
		return entryFault(n.name, err)
	}
	for _, e := range data {
		if err := s.copy(s.out, n.name, c, e); err != nil {
			return err
		}
	}
	return s.pad(total(data))
}

func entryFault(name string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%.200q: %w", name, err)
}

// link writes another name of a file that was added.
func (s *tarStream) link(name, first string) error {
	if err := checkRootName(name); err != nil {
		return err
	}
	h := &tar.Header{Typeflag: tar.TypeLink, Name: name, Linkname: first, Format: tar.FormatPAX}
	return entryFault(name, s.tar.WriteHeader(h))
}

func (s *tarStream) header(n *rootNode) (*tar.Header, error) {
	h := &tar.Header{
		Name: n.name, Mode: int64(n.mode & 0o7777), Uid: int(n.uid), Gid: int(n.gid), ModTime: n.mtime,
		Linkname: n.target, Format: tar.FormatPAX, PAXRecords: map[string]string{},
	}
	switch n.mode & unix.S_IFMT {
	case unix.S_IFREG:
		h.Typeflag, h.Size = tar.TypeReg, n.size
	case unix.S_IFDIR:
		h.Typeflag, h.Name = tar.TypeDir, n.name+"/"
		if n.name == "" {
			h.Name = "./"
		}
	case unix.S_IFLNK:
		h.Typeflag = tar.TypeSymlink
	case unix.S_IFIFO:
		h.Typeflag = tar.TypeFifo
	case unix.S_IFCHR, unix.S_IFBLK:
		h.Typeflag = tar.TypeChar
		if n.mode&unix.S_IFMT == unix.S_IFBLK {
			h.Typeflag = tar.TypeBlock
		}
		h.Devmajor, h.Devminor = int64(n.major), int64(n.minor)
	default:
		return nil, entryFault(n.name, fmt.Errorf("unknown type %o of a file", n.mode&unix.S_IFMT))
	}
	for _, x := range n.xattrs {
		if strings.Contains(x.Name, "=") {
			s.warn(n.name, fmt.Errorf("xattr %q: a tar archive has no place for the = in its name", x.Name))
			continue
		}
		h.PAXRecords["SCHILY.xattr."+x.Name] = string(x.Value)
	}
	return h, nil
}

// copy writes a part of a file.
func (s *tarStream) copy(w io.Writer, name string, r io.ReaderAt, e extent) error {
	for e.len > 0 {
		if s.ctx.Err() != nil {
			return context.Cause(s.ctx)
		}
		p := s.buf[:min(int64(len(s.buf)), e.len)]
		n, err := r.ReadAt(p, e.off)
		switch {
		case n == len(p):
		case err == io.EOF || err == nil:
			return changed(fmt.Sprintf("%.200q", name)) // it is shorter than it was
		default:
			return entryFault(name, err)
		}
		if _, err := w.Write(p); err != nil {
			return err
		}
		e.off, e.len = e.off+int64(n), e.len-int64(n)
	}
	return nil
}
