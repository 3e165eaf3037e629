package layer

import (
	"bufio"
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"

	"github.com/zeebo/blake3"

	"github.com/gangway-hpc/gangway/image/oci"
	"github.com/gangway-hpc/gangway/internal/fault"
	"github.com/gangway-hpc/gangway/squashfs"
)

// Options say what Convert shall prove and bound.
type Options struct {
	Digest    oci.Digest // of the blob; "" learns its SHA-256
	Size      int64      // of the blob; 0 or less is not known
	DiffID    oci.Digest // of the tar archive; "" learns its SHA-256
	Limits    Limits
	Workers   int    // that compress blocks; 0 means GOMAXPROCS. It has no influence on the result
	MediaType string // what the manifest says; for messages only
}

// Info is what is known of a layer.
type Info struct {
	Digest       oci.Digest // of the blob
	DiffID       oci.Digest // of the tar archive
	BlobSize     int64
	TarSize      int64 // of the tar archive, with all behind its end
	ContentBytes int64 // of all files, with their holes
	Size         int64 // of the artefact
	Entries      int64 // that Layer.Entries gives
	Files        int64 // regular files, also empty ones and whiteouts
	Compression  string
	EStargz      bool
}

// Output is where Convert puts an artefact. *os.File is one. What was written is
// read again for its checksum.
type Output interface {
	squashfs.Output
	io.ReaderAt
}

// Convert reads a layer's blob and writes its artefact to out, which it empties
// first. To make the file durable and to name it is the caller's; after an error
// out holds nothing of use.
//
// The blob is read to its end, and nothing but its bytes decides what is written.
// Errors of reading it come wrapped; a blob that is not what Options say, that is
// corrupt or goes beyond the limits gives an error that names the layer and, where
// there is one, the entry.
//
// Convert ends soon after ctx does, and leaves no goroutine behind. A Read of the
// blob that is under way is waited for, so it should end with ctx too.
func Convert(ctx context.Context, out Output, blob io.Reader, o Options) (Info, error) {
	info, err := convert(ctx, out, blob, &o)
	if err != nil {
		return Info{}, fmt.Errorf("convert layer%s: %w", short(o.Digest), err)
	}
	return info, nil
}

func short(d oci.Digest) string {
	if d == "" {
		return ""
	}
	return " " + d.Short()
}

// conversion is the state of one Convert.
type conversion struct {
	o      *Options
	limits Limits
	blob   *stage
	tar    *stage // nil where the blob is the archive, and one hash does for both
	stop   context.CancelFunc
	close  func() // frees the decoder

	blobHash, tarHash hash.Hash
	compression       string
	// suspect says that an error may come from a blob that was changed on its way.
	suspect bool
}

func convert(ctx context.Context, out Output, blob io.Reader, o *Options) (Info, error) {
	for _, d := range []oci.Digest{o.Digest, o.DiffID} {
		if d == "" {
			continue
		}
		if _, err := oci.ParseDigest(string(d)); err != nil {
			return Info{}, err
		}
	}
	c := &conversion{
		o: o, limits: o.Limits.complete(), blobHash: o.Digest.Hash(), tarHash: o.DiffID.Hash(),
		stop: func() {}, close: func() {},
	}
	blobCtx, cancel := context.WithCancel(ctx)
	defer func() {
		cancel()
		c.stop()
		c.wait()
		c.close()
	}()
	c.blob = newStage(blobCtx, &sizedReader{src: blob, want: o.Size}, c.blobHash)
	w, err := newImageWriter(out, o.Workers, &c.limits)
	if err != nil {
		return Info{}, err
	}
	defer w.close()
	if err := c.write(ctx, w); err != nil {
		return Info{}, c.cause(ctx, err)
	}
	c.wait()
	if err := c.verify(&w.toc.head.info); err != nil {
		return Info{}, err
	}
	return w.finish(ctx, out)
}

func (c *conversion) wait() {
	if c.tar != nil {
		c.tar.wait()
	}
	c.blob.wait()
}

// write begins to decompress the blob and writes what is in it.
func (c *conversion) write(ctx context.Context, w *imageWriter) error {
	src, compression, done, err := decompress(bufio.NewReaderSize(c.blob, 64<<10), c.o.MediaType)
	if err != nil {
		c.suspect = true
		return err
	}
	c.compression, c.close = compression, done
	var archive io.Reader = &meter{src: src, blob: c.blob.n.Load, limits: &c.limits}
	if compression != compressionNone || algorithm(c.o.Digest) != algorithm(c.o.DiffID) {
		ctx, cancel := context.WithCancel(ctx)
		c.stop = cancel
		c.tar = newStage(ctx, archive, c.tarHash)
		archive = c.tar
	}
	return c.entries(ctx, w, archive)
}

// entries writes all entries, and reads the archive to its end.
func (c *conversion) entries(ctx context.Context, w *imageWriter, archive io.Reader) error {
	t := newTarReader(archive, &c.limits)
	for {
		e, err := t.next()
		if err == io.EOF {
			break
		}
		if err != nil {
			c.suspect = true
			return err
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err := w.add(&e, &untilDone{ctx, t.tar}); err != nil {
			c.suspect = t.gate.failed || errors.Is(err, io.ErrUnexpectedEOF)
			return t.entryError(tarError(err))
		}
	}
	// The diffID is of all bytes, also of those behind the archive's end.
	if _, err := io.Copy(io.Discard, archive); err != nil {
		c.suspect = true
		return fmt.Errorf("behind the end of the tar archive: %w", err)
	}
	return nil
}

// cause finds the first cause of an error. A blob that cannot be read, is cut off or
// was changed on its way looks like a corrupt archive further on, and only its
// digest can tell: then it is worth reading to its end.
func (c *conversion) cause(ctx context.Context, err error) error {
	var limit *LimitError
	if c.suspect && ctx.Err() == nil && c.o.Digest != "" && c.o.Size > 0 && !errors.As(err, &limit) {
		c.stop()
		if c.tar != nil {
			c.tar.wait()
		}
		_, _ = io.Copy(io.Discard, c.blob) // its error is looked at below
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	select {
	case <-c.blob.ended:
	default:
		return err
	}
	if c.blob.err != io.EOF {
		return c.blob.err
	}
	c.blob.wait()
	if got := digestOf(c.o.Digest, c.blobHash.Sum(nil)); c.o.Digest != "" && got != c.o.Digest {
		return digestError(c.o.Digest, got, err)
	}
	return err
}

func digestError(want, got oci.Digest, seen error) error {
	f := &fault.Error{
		What:  fmt.Errorf("%w: want %s, the blob has %s", ErrDigest, want, got),
		Cause: "the bytes that came are not those that the manifest names",
		Hint:  "pull again; if it stays so, the registry or a proxy or mirror on the way changes the blob",
	}
	if seen != nil {
		f.Cause += ": " + seen.Error()
	}
	return f
}

// verify proves that the blob is what was asked for.
func (c *conversion) verify(info *Info) error {
	info.Compression = c.compression
	info.BlobSize = c.blob.n.Load()
	blobSum := c.blobHash.Sum(nil)
	tarSum := blobSum
	info.TarSize = info.BlobSize
	if c.tar != nil {
		info.TarSize, tarSum = c.tar.n.Load(), c.tarHash.Sum(nil)
	}
	info.Digest, info.DiffID = digestOf(c.o.Digest, blobSum), digestOf(c.o.DiffID, tarSum)
	if c.o.Digest != "" && info.Digest != c.o.Digest {
		return digestError(c.o.Digest, info.Digest, nil)
	}
	if c.o.DiffID != "" && info.DiffID != c.o.DiffID {
		return &fault.Error{
			What:  fmt.Errorf("%w: want %s, the archive has %s", ErrDiffID, c.o.DiffID, info.DiffID),
			Cause: "the image's config names another archive than the layer has",
			Hint:  "the image was built or changed wrongly: build and push it anew",
		}
	}
	return nil
}

// Errors of Convert that callers may want to tell apart, with errors.Is.
var (
	// ErrDigest says that a blob is not what its digest or its size says.
	ErrDigest = errors.New("digest mismatch")
	// ErrDiffID says that the archive in a blob, which is itself what was asked
	// for, is not what the image's config says.
	ErrDiffID = errors.New("diffID mismatch")
)

// digestOf writes sum as a digest of the algorithm that want has, or SHA-256.
func digestOf(want oci.Digest, sum []byte) oci.Digest {
	return oci.Digest(algorithm(want) + ":" + hex.EncodeToString(sum))
}

func algorithm(d oci.Digest) string { return cmp.Or(d.Algorithm(), "sha256") }

// sizedReader proves that a blob has the length that it should have.
type sizedReader struct {
	src  io.Reader
	want int64 // 0 or less: any
	n    int64
}

func (r *sizedReader) Read(p []byte) (int, error) {
	n, err := r.src.Read(p)
	r.n += int64(n)
	switch {
	case r.want > 0 && r.n > r.want:
		return n, sizeError(fmt.Errorf("%w: the blob has more than the %d bytes it should have", ErrDigest, r.want))
	case err == io.EOF && r.want > 0 && r.n < r.want:
		return n, sizeError(fmt.Errorf("%w: the blob has %d bytes, and should have %d", ErrDigest, r.n, r.want))
	case err != nil && err != io.EOF:
		return n, fmt.Errorf("read blob: %w", err)
	}
	return n, err
}

func sizeError(err error) error {
	return &fault.Error{What: err, Hint: "pull again; if it stays so, the registry or a proxy on the way changes the blob"}
}

// checksum hashes what was written.
func checksum(ctx context.Context, src io.ReaderAt, size int64) (sum [sumSize]byte, err error) {
	h := blake3.New()
	buf := make([]byte, chunkSize)
	for at := int64(0); at < size; {
		if ctx.Err() != nil {
			return sum, context.Cause(ctx)
		}
		n, err := src.ReadAt(buf[:min(int64(len(buf)), size-at)], at)
		_, _ = h.Write(buf[:n]) // never fails
		if at += int64(n); at < size && err != nil {
			if err == io.EOF {
				err = io.ErrUnexpectedEOF
			}
			return sum, err
		}
	}
	copy(sum[:], h.Sum(nil))
	return sum, nil
}

// untilDone ends a long read when its context does: the holes of a file take no bytes
// of the blob, but 0.1 s a GiB.
type untilDone struct {
	ctx context.Context
	r   io.Reader
}

// Read implements io.Reader.
func (u *untilDone) Read(p []byte) (int, error) {
	if u.ctx.Err() != nil {
		return 0, context.Cause(u.ctx)
	}
	return u.r.Read(p)
}
