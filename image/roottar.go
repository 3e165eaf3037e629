package image

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"path"
	"strings"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

	"github.com/gangway-hpc/gangway/image/layer"
	"github.com/gangway-hpc/gangway/image/oci"
	"github.com/gangway-hpc/gangway/internal/fault"
)

// tarRoot is an archive of a root file system, which is the layer as it is.
type tarRoot struct {
	file      *os.File
	mediaType string
	limits    layer.Limits
}

func openTarRoot(f *os.File, head []byte, o *RootOptions) (root, error) {
	t := &tarRoot{file: f, mediaType: oci.MediaTypeLayer, limits: o.Limits}
	skippable := len(head) >= 4 && head[0]&0xF0 == 0x50 && string(head[1:4]) == "\x2a\x4d\x18"
	switch {
	case bytes.HasPrefix(head, []byte("\x1f\x8b\x08")):
		t.mediaType += "+gzip"
	case bytes.HasPrefix(head, []byte("\x28\xb5\x2f\xfd")), skippable:
		t.mediaType += "+zstd"
	default:
		// What belongs to the first header may be behind it.
		_, err := tar.NewReader(bytes.NewReader(head)).Next()
		if len(head) < 512 || err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
			return nil, &fault.Error{
				What: errors.New("it is neither a squashfs file nor a tar archive"),
				Hint: "import takes a directory, a squashfs file, or a tar archive, plain or compressed with gzip or zstd",
			}
		}
	}
	return t, nil
}

// blob returns the archive from its begin.
func (t *tarRoot) blob(ctx context.Context) io.Reader {
	return ctxReader{ctx, io.NewSectionReader(t.file, 0, 1<<63-1)}
}

// ctxReader ends with a context.
type ctxReader struct {
	ctx context.Context // of one reading
	r   io.Reader
}

func (r ctxReader) Read(p []byte) (int, error) {
	if r.ctx.Err() != nil {
		return 0, context.Cause(r.ctx)
	}
	return r.r.Read(p)
}

// measure implements root. What is wrong with the archive beyond its names is found
// when it is converted.
func (t *tarRoot) measure(ctx context.Context) (oci.Descriptor, oci.Digest, error) {
	var none oci.Descriptor
	blob := &hashReader{r: t.blob(ctx), h: sha256.New()}
	buffered := bufio.NewReaderSize(blob, 256<<10)
	archive, done, err := t.decompress(buffered)
	if err != nil {
		return none, "", err
	}
	defer done()
	plain := &hashReader{r: archive, h: sha256.New(), blob: blob, limits: t.limits}
	if err := checkRootTar(plain, t.file.Name()); err != nil {
		return none, "", err
	}
	if _, err := io.Copy(io.Discard, plain); err != nil {
		return none, "", err
	}
	if _, err := io.Copy(io.Discard, buffered); err != nil {
		return none, "", err
	}
	d := oci.Descriptor{MediaType: t.mediaType, Digest: oci.SHA256(blob.h), Size: blob.n}
	return d, oci.SHA256(plain.h), nil
}

// hashReader hashes and counts what is read, and bounds what comes out of a
// decompressor as package layer does.
type hashReader struct {
	r io.Reader
	h hash.Hash
	n int64
	// blob is what r decompresses, within limits; nil for the blob itself.
	blob   *hashReader
	limits layer.Limits
}

func (r *hashReader) Read(p []byte) (int, error) {
	n, err := r.r.Read(p)
	r.h.Write(p[:n])
	r.n += int64(n)
	switch {
	case r.blob == nil:
	case r.n > r.limits.Bytes:
		return 0, &layer.LimitError{What: "Bytes", Limit: r.limits.Bytes}
	case r.n > ratioFrom && (r.n-ratioFrom)/r.limits.Ratio > r.blob.n:
		return 0, &layer.LimitError{What: "Ratio", Limit: r.limits.Ratio}
	}
	return n, err
}

func (t *tarRoot) decompress(r *bufio.Reader) (archive io.Reader, done func(), err error) {
	switch {
	case strings.HasSuffix(t.mediaType, "+gzip"):
		return &members{r: r}, func() {}, nil
	case strings.HasSuffix(t.mediaType, "+zstd"):
		d, err := zstd.NewReader(r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(128<<20))
		if err != nil {
			return nil, nil, fmt.Errorf("make zstd decoder: %w", err)
		}
		return d, d.Close, nil
	}
	return r, func() {}, nil
}

// members reads gzip members one after the other. Whether only zeros are behind the
// last is proved when the layer is converted.
type members struct {
	r    *bufio.Reader
	z    gzip.Reader
	open bool
}

func (m *members) Read(p []byte) (int, error) {
	for {
		if !m.open {
			if head, err := m.r.Peek(2); string(head) != "\x1f\x8b" {
				if err == nil {
					err = io.EOF
				}
				return 0, err
			}
			if err := m.z.Reset(m.r); err != nil {
				return 0, fmt.Errorf("gunzip: %w", err)
			}
			m.z.Multistream(false)
			m.open = true
		}
		n, err := m.z.Read(p)
		if err == io.EOF {
			m.open, err = false, nil
		}
		if n > 0 || err != nil {
			return n, err
		}
	}
}

// checkRootTar refuses archives that are no root file system. name is the file's.
func checkRootTar(archive io.Reader, name string) error {
	t := tar.NewReader(archive)
	var manifest, layout, system bool
	for first := true; ; first = false {
		h, err := t.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return fmt.Errorf("read tar archive: %w", err)
		}
		clean := strings.TrimPrefix(path.Clean("/"+h.Name), "/")
		if first && h.Typeflag == tar.TypeXGlobalHeader {
			continue
		}
		if err := checkRootName(clean); err != nil {
			return err
		}
		switch top, _, _ := strings.Cut(clean, "/"); top {
		case "manifest.json":
			manifest = true
		case "oci-layout":
			layout = true
		case "bin", "dev", "etc", "usr":
			system = true
		}
	}
	f := &fault.Error{What: errors.New("it is the archive of an image, no root file system")}
	switch {
	case system || !manifest && !layout:
		return nil
	case manifest:
		f.Hint = "gangway image pull docker-archive:" + name
	default:
		f.Hint = "gangway image pull oci-archive:" + name
	}
	return f
}

// open implements root.
func (t *tarRoot) open(ctx context.Context) (io.ReadCloser, error) {
	return io.NopCloser(t.blob(ctx)), nil
}

// Close implements root.
func (t *tarRoot) Close() error { return t.file.Close() }
