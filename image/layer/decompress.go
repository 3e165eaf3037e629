package layer

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

	"github.com/gangway-hpc/gangway/internal/fault"
)

// The compressions of layers, as Info names them.
const (
	compressionNone = "none"
	compressionGzip = "gzip"
	compressionZstd = "zstd"
)

// maxWindow bounds what a zstd frame may ask to be held in memory. It is what
// zstd itself takes without --long; image-spec and RFC 8878 ask for 8 MiB.
const maxWindow = 128 << 20

const tarBlock = 512

// decompress returns the tar archive in a blob, by what its first bytes say: media
// types lie. close frees what the decoder has.
func decompress(r *bufio.Reader, mediaType string) (tar io.Reader, compression string, close func(), err error) {
	head, err := r.Peek(tarBlock)
	if err != nil && err != io.EOF {
		return nil, "", nil, err
	}
	none := func() {}
	switch {
	case bytes.HasPrefix(head, []byte("\x1f\x8b\x08")):
		return &gunzip{r: r}, compressionGzip, none, nil
	case isZstd(head):
		d, err := zstd.NewReader(r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(maxWindow))
		if err != nil {
			return nil, "", nil, fmt.Errorf("make zstd decoder: %w", err)
		}
		return unzstd{d}, compressionZstd, d.Close, nil
	case len(head) == 0 || isTar(head):
		return r, compressionNone, none, nil
	}
	return nil, "", nil, unknownBlob(head, mediaType)
}

// isZstd knows frames and skippable frames, with which zstd:chunked may begin.
func isZstd(head []byte) bool {
	return bytes.HasPrefix(head, []byte("\x28\xb5\x2f\xfd")) ||
		len(head) >= 4 && head[0]&0xF0 == 0x50 && string(head[1:4]) == "\x2a\x4d\x18"
}

// isTar says whether a block is a header of a tar archive, or zeros, which end one.
// Archives of Unix' seventh edition have no magic, but all have the checksum.
func isTar(b []byte) bool {
	if len(b) < tarBlock {
		return false
	}
	if string(b[257:262]) == "ustar" {
		return true
	}
	if len(bytes.Trim(b, "\x00")) == 0 {
		return true
	}
	var want int64
	field := strings.Trim(string(b[148:156]), " \x00")
	if _, err := fmt.Sscanf(field, "%o", &want); err != nil {
		return false
	}
	var unsigned, signed int64
	for i, c := range b {
		if i >= 148 && i < 156 {
			c = ' '
		}
		unsigned += int64(c)
		signed += int64(int8(c))
	}
	return want == unsigned || want == signed
}

// unknownBlob says what a blob looks like that is no layer.
func unknownBlob(head []byte, mediaType string) error {
	looks, hint := "neither gzip, zstd nor tar", "see what the registry serves; layers are tar archives, plain or compressed with gzip or zstd"
	again := "build the image anew with gzip or zstd layers, e.g. skopeo copy --dest-compress-format zstd"
	for _, m := range []struct{ magic, looks, hint string }{
		{"\xfd7zXZ\x00", "compressed with xz", again},
		{"BZh", "compressed with bzip2", again},
		{"\x5d\x00\x00", "compressed with lzma", again},
		{"\x04\x22\x4d\x18", "compressed with lz4", again},
		{"\x02\x21\x4c\x18", "compressed with lz4", again},
		{"LZIP", "compressed with lzip", again},
		{"\x89LZO", "compressed with lzop", again},
		{"\x1f\x9d", "compressed with compress", again},
		{"\x1f\x8b", "gzip of an unknown method", again},
		{"PK\x03\x04", "a zip archive", again},
		{"hsqs", "a squashfs image", "it is no OCI layer; run it as a squashfs image"},
		{"{", "JSON", hint},
		{"<", "HTML or XML, perhaps the error page of a proxy", hint},
	} {
		if strings.HasPrefix(string(head), m.magic) {
			looks, hint = m.looks, m.hint
			break
		}
	}
	f := &fault.Error{What: fmt.Errorf("the blob is %s", looks), Hint: hint}
	if mediaType != "" {
		f.Cause = fmt.Sprintf("the manifest gives it the type %.100q", mediaType)
	}
	if strings.HasSuffix(mediaType, "+encrypted") {
		f.What = errors.New("the layer is encrypted")
		f.Hint = "decrypt the image first, e.g. skopeo copy --decryption-key; Gangway holds no keys"
	}
	return f
}

// gunzip reads gzip members up to the end. As gzip(1) does it takes zeros behind
// the last one, which tapes and block devices leave; anything else is an error.
type gunzip struct {
	r    *bufio.Reader
	z    *gzip.Reader
	open bool // a member is being read
}

func (g *gunzip) Read(p []byte) (int, error) {
	for {
		if !g.open {
			if err := g.member(); err != nil {
				return 0, err
			}
		}
		n, err := g.z.Read(p)
		if err == io.EOF {
			g.open = false
			err = nil
		}
		if n > 0 || err != nil {
			return n, gzipError(err)
		}
	}
}

// member begins the next member; io.EOF is the end of the blob.
func (g *gunzip) member() (err error) {
	if g.z == nil {
		g.z, err = gzip.NewReader(g.r)
	} else {
		var head []byte
		if head, err = g.r.Peek(2); len(head) == 0 {
			return err
		}
		if string(head) != "\x1f\x8b" {
			return onlyZeros(g.r)
		}
		err = g.z.Reset(g.r)
	}
	if err != nil {
		return gzipError(err)
	}
	g.z.Multistream(false)
	g.open = true
	return nil
}

// onlyZeros reads r to its end, and gives io.EOF if there were only zeros.
func onlyZeros(r *bufio.Reader) error {
	for {
		b, err := r.Peek(1)
		if len(b) == 0 {
			return err
		}
		b, _ = r.Peek(r.Buffered())
		if len(bytes.Trim(b, "\x00")) != 0 {
			return errors.New("gzip: garbage behind the compressed data")
		}
		_, _ = r.Discard(len(b))
	}
}

// gzipError says who speaks, and never io.EOF of a member that was cut.
func gzipError(err error) error {
	if err == nil {
		return nil
	}
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	if strings.HasPrefix(err.Error(), "gzip: ") || strings.HasPrefix(err.Error(), "flate: ") {
		return err
	}
	return fmt.Errorf("gunzip: %w", err)
}

// unzstd says who speaks.
type unzstd struct{ *zstd.Decoder }

func (d unzstd) Read(p []byte) (int, error) {
	n, err := d.Decoder.Read(p)
	switch {
	case err == nil || err == io.EOF:
		return n, err
	case errors.Is(err, zstd.ErrWindowSizeExceeded) || errors.Is(err, zstd.ErrDecoderSizeExceeded):
		return n, fmt.Errorf("unzstd: %w: %w", &LimitError{What: "Window", Limit: maxWindow}, err)
	}
	return n, fmt.Errorf("unzstd: %w", err)
}
