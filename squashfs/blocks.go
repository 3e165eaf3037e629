package squashfs

import (
	"fmt"
	"io/fs"
	"iter"
	"sync"
	"sync/atomic"
)

// A file's block list holds sizes only, so a block's place is the sum of those
// before it. A File remembers the sum at each segment of the list that it passed,
// and holds one segment at a time; a file of many TiB costs little memory.
const segmentBlocks = 2048

// mark is where a segment begins: its data in the image, its part of the list in
// the inode table.
type mark struct {
	data uint64
	list Ref
}

// segment holds the blocks of one segment. It does not change once made.
type segment struct {
	number uint64
	pos    []uint64
	size   []uint32
}

// blockList finds the blocks of one file. It is safe for concurrent use.
type blockList struct {
	r     *Reader
	inode *Inode
	n     uint64   // data blocks
	sizes []uint32 // all, where a Layout says them; nil where the inode table does

	mu    sync.Mutex // guards the rest
	marks []mark     // of the segments up to the one behind the furthest that was read
	last  *segment
}

func (l *blockList) init(r *Reader, i *Inode) {
	l.r, l.inode, l.n = r, i, r.blockCount(i)
	l.marks = []mark{{i.start, i.tail}}
}

// block returns where data block k lies, and its size as stored, 0 for a hole.
func (l *blockList) block(k uint64) (pos uint64, size uint32, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	want := k / segmentBlocks
	if l.last == nil || l.last.number != want {
		for number := min(want, uint64(len(l.marks)-1)); number <= want; number++ {
			if l.last, err = l.load(number); err != nil {
				return 0, 0, err
			}
		}
	}
	return l.last.pos[k%segmentBlocks], l.last.size[k%segmentBlocks], nil
}

// load reads a segment whose mark is known.
func (l *blockList) load(number uint64) (*segment, error) {
	first := number * segmentBlocks
	n := min(segmentBlocks, l.n-first)
	s := &segment{number: number, pos: make([]uint64, n)}
	m := l.marks[number]
	if l.sizes != nil {
		s.size = l.sizes[first:][:n]
	} else {
		s.size = make([]uint32, n)
		c := l.r.cursor(&l.r.inodeTable, m.list.block(), m.list.offset())
		defer c.release()
		if err := c.readSizes(s.size); err != nil {
			return nil, fmt.Errorf("block list: %w", err)
		}
		m.list = c.ref()
	}
	for i, size := range s.size {
		s.pos[i] = m.data
		m.data += uint64(size & blockSizeMask)
	}
	if number+1 == uint64(len(l.marks)) {
		l.marks = append(l.marks, m)
	}
	return s, nil
}

// all yields the sizes of the blocks as they are stored.
func (l *blockList) all() iter.Seq2[uint32, error] {
	if l.sizes == nil {
		return l.r.blockSizes(*l.inode)
	}
	return func(yield func(uint32, error) bool) {
		for _, size := range l.sizes {
			if !yield(size, nil) {
				return
			}
		}
	}
}

// blockLen returns how many bytes of the file block k has; k may be the tail's.
func (f *File) blockLen(k uint64) int {
	bs := uint64(f.r.sb.BlockSize)
	return int(min(bs, f.inode.Size-k*bs))
}

// readSpan fills p with the file's bytes from off on, which all exist. Where it
// takes several blocks they are decoded at once. On an error it returns how many
// bytes are right.
func (f *File) readSpan(p []byte, off int64) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	bs := int64(f.r.sb.BlockSize)
	first, last := off/bs, (off+int64(len(p))-1)/bs
	if first == last || f.r.workers == 1 {
		return f.readSerial(p, off)
	}
	piece := func(k int64) []byte {
		// Capped: a decoder may write behind a block, where another works.
		end := min(int64(len(p)), (k+1)*bs-off)
		return p[max(0, k*bs-off):end:end]
	}
	var (
		next   atomic.Int64 // the next block, counted from first
		mu     sync.Mutex   // guards badAt and bad
		badAt  = last + 1
		bad    error
		failed atomic.Bool
		wg     sync.WaitGroup
	)
	work := func() {
		for !failed.Load() {
			k := first + next.Add(1) - 1
			if k > last {
				return
			}
			if err := f.readBlock(piece(k), uint64(k), int(max(0, off-k*bs))); err != nil {
				mu.Lock()
				if k < badAt {
					badAt, bad = k, err
				}
				mu.Unlock()
				failed.Store(true)
			}
		}
	}
	for range min(int64(f.r.workers), last-first+1) - 1 {
		wg.Go(work)
	}
	work()
	wg.Wait()
	if bad != nil {
		return int(max(0, badAt*bs-off)), bad
	}
	return len(p), nil
}

func (f *File) readSerial(p []byte, off int64) (int, error) {
	bs := int64(f.r.sb.BlockSize)
	done := 0
	for done < len(p) {
		k, from := off/bs, off%bs
		n := int(min(bs-from, int64(len(p)-done)))
		if err := f.readBlock(p[done:done+n:done+n], uint64(k), int(from)); err != nil {
			return done, err
		}
		done += n
		off += int64(n)
	}
	return done, nil
}

// readBlock fills dst with the bytes of block k from the given offset in it on.
func (f *File) readBlock(dst []byte, k uint64, from int) error {
	if err := f.readBlockPart(dst, k, from); err != nil {
		if err == fs.ErrClosed {
			return err
		}
		return fmt.Errorf("block %d at offset %d: %w", k, k*uint64(f.r.sb.BlockSize), err)
	}
	return nil
}

func (f *File) readBlockPart(dst []byte, k uint64, from int) error {
	if k == f.list.n {
		return f.readTail(dst, from)
	}
	pos, size, err := f.list.block(k)
	if err != nil {
		return err
	}
	if size == 0 {
		clear(dst)
		return nil
	}
	want := f.blockLen(k)
	if size&blockRaw != 0 {
		n, err := f.r.readRaw(dst, pos, size, from, want)
		if err == nil {
			clear(dst[n:]) // what a block lacks is zero
		}
		return err
	}
	if from > 0 || len(dst) < want {
		b, err := f.r.get(pos, size, int(f.r.sb.BlockSize))
		if err != nil {
			return err
		}
		return f.copyBlock(dst, b, pos, from, want)
	}
	if f.r.closed.Load() {
		return fs.ErrClosed
	}
	b, ok, err := f.r.cache.peek(blockKey{f.r.id, pos, size})
	if err != nil {
		return err
	}
	if ok {
		return f.copyBlock(dst, b, pos, from, want)
	}
	n, err := f.r.loadData(pos, size, dst)
	if err != nil {
		return err
	}
	clear(dst[n:])
	return nil
}

// readRaw reads the bytes from an offset on of a block that is stored as it is and has
// limit bytes at most. It returns how many of dst there are.
func (r *Reader) readRaw(dst []byte, pos uint64, size uint32, from, limit int) (int, error) {
	if err := r.checkBlock(pos, size); err != nil {
		return 0, err
	}
	n := int(size & blockSizeMask)
	if n > limit {
		return 0, corrupt("data block at %d has %d bytes, more than %d", pos, n, limit)
	}
	n = min(len(dst), max(0, n-from))
	return n, r.readAt(dst[:n], pos+uint64(from))
}

// copyBlock copies from a block of the cache, and releases it.
func (f *File) copyBlock(dst []byte, b block, pos uint64, from, want int) error {
	defer func() {
		// Of a file that cannot stay in the cache, what was read to its end goes first.
		if from+len(dst) == want && f.inode.Size > uint64(f.r.cache.bytes/2) {
			b.releaseSpent()
		} else {
			b.release()
		}
	}()
	if len(b.data) > want {
		return corrupt("data block at %d has %d bytes, more than %d", pos, len(b.data), want)
	}
	n := 0
	if from < len(b.data) {
		n = copy(dst, b.data[from:])
	}
	clear(dst[n:])
	return nil
}

// readTail fills dst from the file's tail, which lies in a fragment.
func (f *File) readTail(dst []byte, from int) error {
	start, size, err := f.fragment()
	if err != nil {
		return err
	}
	at := int(f.inode.fragOffset)
	b, err := f.r.get(start, size, int(f.r.sb.BlockSize))
	if err != nil {
		return fmt.Errorf("fragment at %d: %w", start, err)
	}
	defer b.release()
	if end := at + f.blockLen(f.list.n); end > len(b.data) {
		return corrupt("fragment at %d has %d bytes, the tail would end at %d", start, len(b.data), end)
	}
	copy(dst, b.data[at+from:])
	return nil
}

// fragment returns where the block lies that has the file's tail.
func (f *File) fragment() (start uint64, size uint32, err error) {
	if f.layout != nil {
		return uint64(f.layout.Fragment.Start), f.layout.Fragment.Size, nil
	}
	return f.r.fragmentEntry(f.inode.fragment)
}
