package squashfs

import (
	"fmt"
	"io"
	"io/fs"
	"iter"
	"sync"
	"sync/atomic"
)

// File reads a regular file. ReadAt and Extents are safe for concurrent use;
// Read, Seek and WriteTo share the file's offset and are not.
type File struct {
	r      *Reader
	inode  Inode
	layout *Layout // nil where the image's metadata say it; then inode is that of the image
	list   blockList
	off    int64
	closed atomic.Bool

	mu    sync.Mutex // guards the rest, which is for reading ahead
	next  int64      // where the last read ended
	run   int        // how many reads followed each other
	ahead uint64     // blocks below it were asked for
}

// OpenFile opens a regular file.
func (r *Reader) OpenFile(i Inode) (*File, error) {
	if i.Type != TypeFile {
		return nil, fmt.Errorf("open inode %d: it is a %s: %w", i.Number, i.Type, fs.ErrInvalid)
	}
	if r.closed.Load() {
		return nil, fs.ErrClosed
	}
	if err := r.checkFile(&i); err != nil { // an Inode that the caller changed
		return nil, fmt.Errorf("open inode %d: %w", i.Number, err)
	}
	f := &File{r: r, inode: i}
	f.list.init(r, &f.inode)
	return f, nil
}

// Size returns the length of the file in bytes.
func (f *File) Size() int64 { return int64(f.inode.Size) }

// Inode returns the file's inode. Of a File that OpenLayout gave it has a size only.
func (f *File) Inode() Inode { return f.inode }

// Close ends the use of the File; it gives fs.ErrClosed if it is closed already.
// The image stays open.
func (f *File) Close() error {
	if f.closed.Swap(true) {
		return fs.ErrClosed
	}
	return nil
}

// ReadAt implements io.ReaderAt. Blocks that p covers as a whole are decoded
// straight into it, several at a time.
func (f *File) ReadAt(p []byte, off int64) (int, error) {
	if off < 0 {
		return 0, fmt.Errorf("read %s at %d: %w", f.name(), off, fs.ErrInvalid)
	}
	n, err := f.readAt(p, off)
	if err == nil && n < len(p) {
		err = io.EOF
	}
	return n, err
}

// readAt is ReadAt without io.EOF.
func (f *File) readAt(p []byte, off int64) (int, error) {
	if f.closed.Load() {
		return 0, fs.ErrClosed
	}
	if off >= f.Size() {
		return 0, nil
	}
	p = p[:min(int64(len(p)), f.Size()-off)]
	if f.r.ahead > 0 {
		f.readAhead(off, off+int64(len(p)))
	}
	n, err := f.readSpan(p, off)
	if err != nil {
		return n, f.wrap(err)
	}
	return n, nil
}

func (f *File) wrap(err error) error {
	if err == fs.ErrClosed {
		return err
	}
	return fmt.Errorf("read %s: %w", f.name(), err)
}

func (f *File) name() string {
	if f.layout != nil {
		return fmt.Sprintf("content at %d", f.layout.Start)
	}
	return fmt.Sprintf("inode %d", f.inode.Number)
}

// Read implements io.Reader.
func (f *File) Read(p []byte) (int, error) {
	n, err := f.readAt(p, f.off)
	f.off += int64(n)
	if err == nil && n == 0 && len(p) > 0 {
		err = io.EOF
	}
	return n, err
}

// Seek implements io.Seeker.
func (f *File) Seek(offset int64, whence int) (int64, error) {
	switch whence {
	case io.SeekStart:
	case io.SeekCurrent:
		offset += f.off
	case io.SeekEnd:
		offset += f.Size()
	default:
		return 0, fmt.Errorf("seek %s: whence %d: %w", f.name(), whence, fs.ErrInvalid)
	}
	if offset < 0 {
		return 0, fmt.Errorf("seek %s to %d: %w", f.name(), offset, fs.ErrInvalid)
	}
	f.off = offset
	return offset, nil
}

// readAhead notes a read, and where it follows the one before, has the blocks
// behind it decoded into the cache. How far grows with each such read.
func (f *File) readAhead(off, end int64) {
	bs := int64(f.r.sb.BlockSize)
	f.mu.Lock()
	defer f.mu.Unlock()
	if off != f.next {
		f.next, f.run, f.ahead = end, 0, 0
		return
	}
	f.next = end
	f.run++
	if f.run == 1 && end-off < bs {
		return // so begin those, too, who look at a file's head only
	}
	window := min(int64(f.r.ahead), int64(f.run)*2*bs)
	from := max(f.ahead, uint64((end+bs-1)/bs))
	to := min(uint64((end+window)/bs), f.list.n)
	for ; from < to; from++ {
		if !f.r.prefetch(&f.list, from) {
			break
		}
	}
	f.ahead = from
}

// prefetch has a block decoded into the cache; it says false where there is
// enough of such work already.
func (r *Reader) prefetch(l *blockList, k uint64) bool {
	pos, size, err := l.block(k)
	if err != nil || size == 0 || size&blockRaw != 0 {
		// The one who reads it will see the error. What is not compressed is read
		// straight to where it is wanted, and the system reads that ahead.
		return err == nil
	}
	select {
	case r.prefetchs <- struct{}{}:
	default:
		return false
	}
	// Here, not in the background: who reads on must find it, not decode it too.
	limit := int(r.sb.BlockSize)
	slot := r.cache.begin(blockKey{r.id, pos, size}, limit)
	if slot == nil {
		<-r.prefetchs
		return true
	}
	started := r.background(func() {
		if b, err := r.cache.fill(r, slot, limit); err == nil {
			b.release()
		}
		<-r.prefetchs
	})
	if !started {
		_, _ = r.cache.fill(closedLoader{}, slot, limit) // as which it fails
		<-r.prefetchs
	}
	return started
}

type closedLoader struct{}

func (closedLoader) loadBlock(blockKey, []byte) (n, disk int, err error) {
	return 0, 0, fs.ErrClosed
}

// WriteTo implements io.WriterTo: it writes the file from its offset on. Blocks
// are decoded ahead by as many workers as the Reader has.
func (f *File) WriteTo(w io.Writer) (int64, error) {
	if f.closed.Load() {
		return 0, fs.ErrClosed
	}
	s := stream{f: f, off: f.off}
	defer s.stop()
	var total int64
	for s.off < f.Size() {
		p, err := s.next()
		if err != nil {
			return total, f.wrap(err)
		}
		n, err := w.Write(p)
		total += int64(n)
		f.off += int64(n)
		if err == nil && n < len(p) {
			err = io.ErrShortWrite
		}
		if err != nil {
			return total, err
		}
	}
	return total, nil
}

// Extent is a run of a file's bytes that are all stored, or all a hole.
type Extent struct {
	Offset, Length int64 // bytes
	Hole           bool
}

// Extents yields the file's runs of data and holes from front to back; the
// resolution is a block. After an error it ends.
func (f *File) Extents() iter.Seq2[Extent, error] {
	return func(yield func(Extent, error) bool) {
		bs := int64(f.r.sb.BlockSize)
		var e Extent
		add := func(n int64, hole bool) bool {
			if e.Length > 0 && e.Hole != hole {
				if !yield(e, nil) {
					return false
				}
				e = Extent{Offset: e.Offset + e.Length}
			}
			e.Hole = hole
			e.Length += n
			return true
		}
		left := f.Size()
		for size, err := range f.list.all() {
			if err != nil {
				yield(Extent{}, err)
				return
			}
			n := min(bs, left)
			left -= n
			if !add(n, size == 0) {
				return
			}
		}
		if left > 0 && !add(left, false) {
			return
		}
		if e.Length > 0 {
			yield(e, nil)
		}
	}
}
