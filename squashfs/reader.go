package squashfs

import (
	"fmt"
	"io"
	"io/fs"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
)

// ReaderOptions say how a Reader works. The zero value is a good choice.
type ReaderOptions struct {
	// Size is the length of the file in bytes. At 0 the io.ReaderAt is asked, if it
	// has a method Size or Stat; else the length counts as unknown, and the image is
	// believed to be whole until a read says otherwise.
	Size int64
	// Cache holds decoded blocks; several Readers may share one, which the caller
	// closes after the last of them. At nil the Reader has 16 MiB of its own.
	Cache *Cache
	// Workers is how many data blocks are decompressed at a time; at 0, one for each
	// core that Go uses.
	Workers int
	// ReadAhead is how many bytes are decoded ahead of one who reads a file from
	// front to back; at 0, 1 MiB but 8 blocks at most, and never more than a quarter
	// of the cache. If negative, none.
	ReadAhead int
}

// Reader reads an image. It is safe for concurrent use.
type Reader struct {
	src  io.ReaderAt
	size int64 // of the file; negative where unknown
	sb   Superblock
	dec  decompressor

	id       uint64 // in the cache
	cache    *Cache
	ownCache bool
	file     io.Closer // what Open opened

	inodeTable, dirTable, xattrTable   metaTable
	fragTable, exportTable, xattrIDTab lookupTable
	ids                                []uint32

	workers   int
	ahead     int           // bytes
	decoding  chan struct{} // a token for each data block that is being decompressed
	prefetchs chan struct{} // a token for each block that is being read ahead

	dirMu   sync.Mutex
	dirRefs map[uint32]Ref // directories entered, where there is no export table

	mu     sync.Mutex // orders the start of background work and closed
	closed atomic.Bool
	work   sync.WaitGroup
}

// Open opens the image in the named file.
func Open(path string, o ReaderOptions) (*Reader, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	r, err := NewReader(f, o)
	if err != nil {
		_ = f.Close() // it was only read
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	r.file = f
	return r, nil
}

// NewReader returns a Reader of the image that src holds. It reads the superblock,
// the ids and the places of the tables. Errors wrap ErrNotSquashfs, ErrUnsupported
// or ErrCorrupt, or are those of src.
func NewReader(src io.ReaderAt, o ReaderOptions) (*Reader, error) {
	r := &Reader{src: src, size: sizeOf(src, o.Size)}
	head := make([]byte, superblockSize)
	n, err := src.ReadAt(head, 0)
	if n < len(head) && err != nil && err != io.EOF {
		return nil, fmt.Errorf("read superblock: %w", err)
	}
	sb, err := parseSuperblock(head[:n], r.size)
	if err != nil {
		return nil, err
	}
	r.sb = *sb
	r.configure(o)
	if o.Cache == nil {
		if r.cache, err = NewCache(defaultCache); err != nil {
			return nil, err
		}
		r.ownCache = true
	}
	if r.dec, err = newDecompressor(sb.Compression, sb.BlockSize, &r.cache.scratch); err != nil {
		return nil, joinClose(err, r.Close())
	}
	r.id = r.cache.newReader()
	r.ahead = min(r.ahead, r.cache.bytes/4)
	if err := r.openTables(); err != nil {
		return nil, fmt.Errorf("read tables: %w", joinClose(err, r.Close()))
	}
	return r, nil
}

func joinClose(err, closing error) error {
	if closing != nil {
		return fmt.Errorf("%w (%v)", err, closing)
	}
	return err
}

func (r *Reader) configure(o ReaderOptions) {
	r.cache = o.Cache
	bs := int(r.sb.BlockSize)
	r.workers = o.Workers
	if r.workers <= 0 {
		r.workers = runtime.GOMAXPROCS(0)
	}
	r.ahead = o.ReadAhead
	if r.ahead == 0 {
		r.ahead = min(1<<20, 8*bs)
	}
	r.decoding = make(chan struct{}, r.workers)
	r.prefetchs = make(chan struct{}, 2*r.workers)
}

// sizeOf returns the length of src, or -1.
func sizeOf(src io.ReaderAt, told int64) int64 {
	if told > 0 {
		return told
	}
	switch s := src.(type) {
	case interface{ Size() int64 }:
		return s.Size()
	case interface{ Stat() (fs.FileInfo, error) }:
		// A block device says 0, a pipe cannot be read at random anyway.
		if fi, err := s.Stat(); err == nil && fi.Mode().IsRegular() {
			return fi.Size()
		}
	}
	return -1
}

// Close ends all reading ahead and frees what the Reader has of its own. Calls
// that run are waited for where they use the Reader's own cache; later calls give
// fs.ErrClosed.
func (r *Reader) Close() error {
	r.mu.Lock()
	was := r.closed.Swap(true)
	r.mu.Unlock()
	if was {
		return nil
	}
	r.work.Wait()
	var err error
	if r.ownCache {
		err = r.cache.Close()
	}
	if r.file != nil {
		if cerr := r.file.Close(); err == nil {
			err = cerr
		}
	}
	return err
}

// background runs f in a goroutine that Close waits for; it says false where the
// Reader is closed.
func (r *Reader) background(f func()) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed.Load() {
		return false
	}
	r.work.Go(f)
	return true
}

// Superblock returns the image's superblock.
func (r *Reader) Superblock() Superblock { return r.sb }

// CompressorOptions are what the image says about how it was compressed; they are
// not needed to read it. Fields that the compression does not have are 0.
type CompressorOptions struct {
	Level           int    // of gzip, lzo and zstd
	HighCompression bool   // of lz4
	Dictionary      uint32 // of xz, bytes
}

// CompressorOptions returns the options that the image carries; ok is false where
// it has none, which means the defaults of mksquashfs.
func (r *Reader) CompressorOptions() (o CompressorOptions, ok bool, err error) {
	if r.sb.Flags&FlagOptions == 0 {
		return o, false, nil
	}
	b, err := r.readMeta(superblockSize, min(r.sb.InodeTable, superblockSize+metaHeaderLen+metaSize))
	if err != nil {
		return o, false, fmt.Errorf("read compressor options: %w", err)
	}
	defer b.release()
	if len(b.data) < 4 || (r.sb.Compression != Zstd && len(b.data) < 8) {
		return o, false, corrupt("compressor options of %d bytes", len(b.data))
	}
	switch r.sb.Compression {
	case Gzip, Zstd:
		o.Level = int(le.Uint32(b.data))
	case LZO:
		o.Level = int(le.Uint32(b.data[4:]))
	case LZ4:
		o.HighCompression = le.Uint32(b.data[4:])&1 != 0
	case XZ:
		o.Dictionary = le.Uint32(b.data)
	}
	return o, true, nil
}

// Trailer returns what lies behind the image and its padding to 4 KiB; nil where
// there is nothing, or the length of the file is not known.
func (r *Reader) Trailer() *io.SectionReader {
	at := int64((r.sb.BytesUsed + padAlign - 1) &^ (padAlign - 1))
	if r.size <= at {
		return nil
	}
	return io.NewSectionReader(r.src, at, r.size-at)
}

// readAt fills p from the image.
func (r *Reader) readAt(p []byte, pos uint64) error {
	if r.closed.Load() {
		return fs.ErrClosed
	}
	n, err := r.src.ReadAt(p, int64(pos))
	if n == len(p) {
		return nil
	}
	if err == io.EOF || err == nil {
		return corrupt("truncated: %d bytes at %d, wanted %d", n, pos, len(p))
	}
	return fmt.Errorf("read %d bytes at %d: %w", len(p), pos, err)
}

// get returns a decoded block from the cache, or loads it.
func (r *Reader) get(pos uint64, size uint32, limit int) (block, error) {
	if r.closed.Load() {
		return block{}, fs.ErrClosed
	}
	return r.cache.get(r, blockKey{r.id, pos, size}, limit)
}

// loadBlock implements blockLoader.
func (r *Reader) loadBlock(k blockKey, dst []byte) (n, disk int, err error) {
	if k.size == keyMeta {
		return r.loadMeta(k.pos, dst)
	}
	n, err = r.loadData(k.pos, k.size, dst)
	return n, int(k.size & blockSizeMask), err
}

// loadData decodes the data block or fragment of the given on-disk size at pos
// into dst, and returns its length. A block that is longer than dst is corrupt.
func (r *Reader) loadData(pos uint64, size uint32, dst []byte) (int, error) {
	if err := r.checkBlock(pos, size); err != nil {
		return 0, err
	}
	n := uint64(size & blockSizeMask)
	if size&blockRaw != 0 {
		if n > uint64(len(dst)) {
			return 0, corrupt("data block at %d has %d bytes, more than %d", pos, n, len(dst))
		}
		return int(n), r.readAt(dst[:n], pos)
	}
	if r.sb.Compression == Zstd && cap(dst)-len(dst) < decodeSlack {
		// To copy a block costs less than to decode it without room behind it.
		buf := r.cache.scratch.buffer(len(dst))
		defer r.cache.scratch.putBuffer(buf)
		m, err := r.loadData(pos, size, (*buf)[:len(dst)])
		return copy(dst, (*buf)[:m]), err
	}
	buf := r.cache.scratch.buffer(int(n))
	defer r.cache.scratch.putBuffer(buf)
	if err := r.readAt((*buf)[:n], pos); err != nil {
		return 0, err
	}
	r.decoding <- struct{}{}
	defer func() { <-r.decoding }()
	m, err := r.dec.decompress(dst, (*buf)[:n])
	if err != nil {
		return 0, fmt.Errorf("data block at %d: %w", pos, err)
	}
	return m, nil
}

// checkBlock proves that a data block may have the given size and place.
func (r *Reader) checkBlock(pos uint64, size uint32) error {
	if !r.canStore(size) {
		return corrupt("data block at %d has the size %#x", pos, size)
	}
	n := uint64(size & blockSizeMask)
	if pos < superblockSize || pos > r.sb.InodeTable || n > r.sb.InodeTable-pos {
		return corrupt("data block of %d bytes at %d lies outside the data, which ends at %d", n, pos, r.sb.InodeTable)
	}
	return nil
}

// canStore says whether a block of the image can have this size in a block list.
// As in Linux: what would be longer than a block when compressed is stored raw.
func (r *Reader) canStore(size uint32) bool {
	n := size & blockSizeMask
	return n > 0 && n <= r.sb.BlockSize && size&^uint32(blockRaw|blockSizeMask) == 0
}
