package squashfs

import (
	"bytes"
	"fmt"
	"io"
	"sync"

	"github.com/anchore/go-lzo"
	"github.com/klauspost/compress/zlib"
	"github.com/klauspost/compress/zstd"
	"github.com/mikelolasagasti/xz"
	"github.com/pierrec/lz4/v4"
)

// Compression is how the blocks of an image are compressed. An image has one,
// for data and metadata; any single block may still be stored as it is.
type Compression uint16

// The compressions of the format, by their numbers on disk. Writers take Zstd,
// Gzip, LZ4 and Uncompressed; readers all but LZMA, which no kernel ever read.
const (
	Gzip Compression = iota + 1
	LZMA
	LZO
	XZ
	LZ4
	Zstd

	// Uncompressed makes a Writer store every block as it is. On disk such an
	// image counts as Gzip, which every reader knows.
	Uncompressed Compression = 0xFFFF
)

// String returns the name that mksquashfs -comp takes.
func (c Compression) String() string {
	switch c {
	case Gzip:
		return "gzip"
	case LZMA:
		return "lzma"
	case LZO:
		return "lzo"
	case XZ:
		return "xz"
	case LZ4:
		return "lz4"
	case Zstd:
		return "zstd"
	case Uncompressed:
		return "none"
	}
	return fmt.Sprintf("compression %d", uint16(c))
}

// ParseCompression is the reverse of Compression.String.
func ParseCompression(name string) (Compression, error) {
	for _, c := range []Compression{Gzip, LZMA, LZO, XZ, LZ4, Zstd, Uncompressed} {
		if c.String() == name {
			return c, nil
		}
	}
	return 0, fmt.Errorf("unknown compression %q: zstd, gzip, lz4 and none can be written, xz and lzo read as well", name)
}

// compressor compresses blocks; each worker has its own.
type compressor interface {
	// compress appends src, compressed, to dst, and returns nil where that would
	// not be smaller than src.
	compress(dst, src []byte) []byte
}

// newCompressor makes a compressor for blocks of up to blockSize bytes. Level 0
// is the default: fastest for zstd and lz4, 9 for gzip as in mksquashfs.
func newCompressor(c Compression, level, blockSize int) (compressor, error) {
	switch c {
	case Zstd:
		l := zstd.SpeedFastest
		if level != 0 {
			l = zstd.EncoderLevelFromZstd(level)
		}
		// The kernel sizes its window by the block size, so no frame may ask for more.
		enc, err := zstd.NewWriter(nil,
			zstd.WithEncoderLevel(l), zstd.WithEncoderConcurrency(1), zstd.WithLowerEncoderMem(true),
			zstd.WithEncoderCRC(false), zstd.WithSingleSegment(true), zstd.WithWindowSize(max(blockSize, metaSize)))
		if err != nil {
			return nil, fmt.Errorf("make zstd encoder: %w", err)
		}
		return zstdCompressor{enc}, nil
	case Gzip:
		if level == 0 {
			level = zlib.BestCompression
		}
		w, err := zlib.NewWriterLevel(io.Discard, level)
		if err != nil {
			return nil, fmt.Errorf("make gzip encoder: %w", err)
		}
		return &gzipCompressor{w: w}, nil
	case LZ4:
		if level == 0 {
			return &lz4Compressor{}, nil
		}
		return &lz4HCCompressor{lz4.CompressorHC{Level: lz4.Level9}}, nil
	case Uncompressed:
		return storer{}, nil
	}
	return nil, fmt.Errorf("no encoder for %s", c)
}

type zstdCompressor struct{ enc *zstd.Encoder }

func (c zstdCompressor) compress(dst, src []byte) []byte {
	out := c.enc.EncodeAll(src, dst)
	if len(out)-len(dst) >= len(src) {
		return nil
	}
	return out
}

type gzipCompressor struct {
	w   *zlib.Writer
	buf bytes.Buffer
}

func (c *gzipCompressor) compress(dst, src []byte) []byte {
	c.buf.Reset()
	c.w.Reset(&c.buf)
	// A bytes.Buffer takes every write.
	_, _ = c.w.Write(src)
	_ = c.w.Close()
	if c.buf.Len() >= len(src) {
		return nil
	}
	return append(dst, c.buf.Bytes()...)
}

type lz4Compressor struct{ c lz4.Compressor }

func (c *lz4Compressor) compress(dst, src []byte) []byte { return compressLZ4(&c.c, dst, src) }

type lz4HCCompressor struct{ c lz4.CompressorHC }

func (c *lz4HCCompressor) compress(dst, src []byte) []byte { return compressLZ4(&c.c, dst, src) }

func compressLZ4(c interface {
	CompressBlock(src, dst []byte) (int, error)
}, dst, src []byte,
) []byte {
	start := len(dst)
	if cap(dst)-start < len(src) {
		dst = append(make([]byte, 0, start+len(src)), dst...)
	}
	// A destination shorter than the source makes the library give up where
	// compressing does not pay.
	n, err := c.CompressBlock(src, dst[start:start+len(src)-1])
	if err != nil || n == 0 {
		return nil
	}
	return dst[:start+n]
}

type storer struct{}

func (storer) compress(_, _ []byte) []byte { return nil }

// compressorOptions returns the options block that an image of this compression
// must or should carry (format.adoc section 3.1), or nil.
func compressorOptions(c Compression, level int) []byte {
	switch c {
	case LZ4: // mandatory: version 1, and whether it is the HC variant
		return le.AppendUint32(le.AppendUint32(nil, 1), uint32(min(level, 1)))
	case Zstd:
		return le.AppendUint32(nil, uint32(max(level, 1)))
	case Gzip:
		if level != 0 && level != zlib.BestCompression { // else the defaults hold
			b := le.AppendUint32(nil, uint32(level))
			b = le.AppendUint16(b, 15) // window bits
			return le.AppendUint16(b, 1)
		}
	}
	return nil
}

// decompressor expands blocks. It is safe for concurrent use.
type decompressor interface {
	// decompress expands src into dst and returns how many bytes it gave. A block
	// that has more than len(dst) is an error. Up to the capacity of dst, what lies
	// behind it may be overwritten; decodeSlack bytes there make zstd a quarter faster.
	decompress(dst, src []byte) (int, error)
}

func newDecompressor(c Compression, blockSize uint32, s *scratch) (decompressor, error) {
	switch c {
	case Zstd:
		return zstdDecompressor{s}, nil
	case Gzip:
		return &gzipDecompressor{}, nil
	case LZ4:
		return lz4Decompressor{}, nil
	case XZ:
		return &xzDecompressor{dictMax: max(blockSize, metaSize)}, nil
	case LZO:
		return lzoDecompressor{}, nil
	case LZMA:
		return nil, fmt.Errorf("%w: lzma, which Linux does not read either; rebuild the image with zstd", ErrUnsupported)
	}
	return nil, fmt.Errorf("%w: unknown compression %d", ErrUnsupported, uint16(c))
}

type zstdDecompressor struct{ scratch *scratch }

// decodeSlack is how far behind the end zstd's fast loop may write.
const decodeSlack = 16

func (d zstdDecompressor) decompress(dst, src []byte) (n int, err error) {
	defer recoverDecoder("zstd", &err)
	dec, err := d.scratch.zstd()
	if err != nil {
		return 0, err
	}
	// The capacity is the limit, so what lies behind it stays untouched.
	out, err := dec.DecodeAll(src, dst[:0:min(cap(dst), len(dst)+decodeSlack)])
	d.scratch.decoders.Put(dec) // not after a panic
	if err != nil {
		return 0, corrupt("zstd block: %v", err)
	}
	if len(out) > len(dst) {
		return 0, corrupt("zstd block is longer than %d bytes", len(dst))
	}
	return len(out), nil
}

// gzipDecompressor keeps readers, whose windows are costly to make.
type gzipDecompressor struct{ pool sync.Pool }

func (d *gzipDecompressor) decompress(dst, src []byte) (n int, err error) {
	defer recoverDecoder("gzip", &err)
	r, _ := d.pool.Get().(io.ReadCloser)
	if r == nil {
		r, err = zlib.NewReader(bytes.NewReader(src))
	} else {
		err = r.(zlib.Resetter).Reset(bytes.NewReader(src), nil)
	}
	if err != nil {
		return 0, corrupt("gzip block: %v", err)
	}
	defer d.pool.Put(r)
	return readBlock(r, dst, "gzip")
}

// readBlock reads a whole block, and proves that it ends within dst.
func readBlock(r io.Reader, dst []byte, kind string) (int, error) {
	n, err := io.ReadFull(r, dst)
	if err == nil {
		var one [1]byte
		if m, more := io.ReadFull(r, one[:]); m > 0 {
			return 0, corrupt("%s block is longer than %d bytes", kind, len(dst))
		} else if more != io.EOF {
			return 0, corrupt("%s block: %v", kind, more)
		}
		return n, nil
	}
	if err == io.EOF || err == io.ErrUnexpectedEOF {
		return n, endOfBlock(r, kind)
	}
	return 0, corrupt("%s block: %v", kind, err)
}

// endOfBlock tells a block that ended from one that was cut: io.ReadFull gives
// one error for both, a second read tells.
func endOfBlock(r io.Reader, kind string) error {
	var one [1]byte
	if _, err := r.Read(one[:]); err != io.EOF {
		return corrupt("%s block: %v", kind, err)
	}
	return nil
}

type lz4Decompressor struct{}

func (lz4Decompressor) decompress(dst, src []byte) (n int, err error) {
	defer recoverDecoder("lz4", &err)
	n, err = lz4.UncompressBlock(src, dst)
	if err != nil {
		return 0, corrupt("lz4 block: %v", err)
	}
	return n, nil
}

// xzDecompressor bounds the dictionary as the kernel does: no image has a
// larger one than its blocks (fs/squashfs/xz_wrapper.c).
type xzDecompressor struct{ dictMax uint32 }

func (d *xzDecompressor) decompress(dst, src []byte) (n int, err error) {
	defer recoverDecoder("xz", &err)
	r, err := xz.NewReader(bytes.NewReader(src), d.dictMax)
	if err != nil {
		return 0, corrupt("xz block: %v", err)
	}
	return readBlock(r, dst, "xz")
}

type lzoDecompressor struct{}

func (lzoDecompressor) decompress(dst, src []byte) (n int, err error) {
	defer recoverDecoder("lzo", &err)
	n, err = lzo.Decompress(src, dst)
	if err != nil {
		return 0, corrupt("lzo block: %v", err)
	}
	return n, nil
}

// recoverDecoder turns a panic of a decoder into an error: some were written for
// honest input.
func recoverDecoder(kind string, err *error) {
	if p := recover(); p != nil {
		*err = corrupt("%s block: %v", kind, p)
	}
}
