package squashfs

import (
	"bytes"
	"fmt"
	"io"
	"sync"

	"github.com/zeebo/blake3"
)

// contentWriter is the data half of a Writer. Content flows through three
// stages: the caller's goroutine cuts it into blocks (add), workers hash and
// compress them in any order, and one committer takes them in the order of
// their input, finds duplicates, packs fragments and writes. Every decision is
// the committer's, so the image depends on the input's order alone, never on
// the number of workers or their speed.
type contentWriter struct {
	blockSize int
	opt       *WriterOptions
	out       *output

	free  chan *job // jobs without work; their number bounds the memory
	work  chan *job // to the workers
	order chan *job // to the committer
	done  chan struct{}
	wg    sync.WaitGroup

	mu  sync.Mutex
	err error // the first error; nothing is written after it

	// The caller's side.
	scratch *job
	batch   *job // tails of small files, gathered so that a file costs no hand-over
	begun   uint32

	// The committer's side.
	contents  chunked[content]
	sizes     chunked[uint32] // all block lists
	fragments []fragment
	open      *job   // the fragment block being filled
	pending   []*job // full fragment blocks, oldest first
	spare     []*job
	runs      map[contentKey]uint32 // content by its blocks
	tails     map[contentKey]uint32 // content by its tail
	run       *blake3.Hasher        // over the blocks of the present file
	runStart  int64
}

// content is where a file's data lies.
type content struct {
	start      uint64
	blocks     uint32 // its first size in the list of all
	fragment   uint32
	fragOffset uint32
}

// fragment is an entry of the fragment table.
type fragment struct {
	start uint64
	size  uint32
}

// contentKey names a content by its BLAKE3 hash. At 128 bits nobody can make a
// file that passes for another's; that takes 2^128 trials.
type contentKey [16]byte

func keyOf(p []byte) contentKey {
	sum := blake3.Sum256(p)
	return contentKey(sum[:16])
}

const noContent = none32

type jobKind uint8

const (
	blockJob jobKind = iota
	tailsJob
	fragmentJob
)

// job is a piece of work of one block size.
type job struct {
	kind        jobKind
	first, last bool // of a file's blocks
	hole        bool // in has the right length and anything in it
	in, out     []byte
	pieces      []piece // of a tailsJob
	index       uint32  // of a fragmentJob

	data []byte   // what is to be written, nil for a hole
	size uint32   // as it stands in a block list
	hash [32]byte // of a block
	done chan struct{}
}

// piece is one file's tail within a tailsJob.
type piece struct {
	from, to int
	joins    bool // belongs to the content whose blocks came before
	key      contentKey
}

// fragmentsInFlight is how many full fragment blocks wait to be written. It is
// a constant of the format that we write, as it decides where fragments lie: it
// must not depend on the number of workers.
func fragmentsInFlight(blockSize int) int { return max(4, (4<<20)/blockSize) }

func newContentWriter(out *output, o *WriterOptions) (*contentWriter, error) {
	jobs := 2*o.Workers + 4 // the caller holds up to three
	c := &contentWriter{
		blockSize: o.BlockSize, opt: o, out: out,
		free:  make(chan *job, jobs),
		work:  make(chan *job, jobs+fragmentsInFlight(o.BlockSize)+1),
		order: make(chan *job, jobs),
		done:  make(chan struct{}),
		runs:  make(map[contentKey]uint32),
		tails: make(map[contentKey]uint32),
		run:   blake3.New(),
	}
	comps := make([]compressor, o.Workers)
	for i := range comps {
		var err error
		if comps[i], err = newCompressor(o.Compression, o.Level, o.BlockSize); err != nil {
			return nil, err
		}
	}
	for range jobs {
		c.free <- newJob()
	}
	for _, comp := range comps {
		c.wg.Go(func() { c.worker(comp) })
	}
	go c.committer()
	return c, nil
}

// newJob makes a job without buffers: many are never needed.
func newJob() *job { return &job{done: make(chan struct{}, 1)} }

func (c *contentWriter) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil {
		c.err = err
	}
}

func (c *contentWriter) failed() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// holeSkipper is a reader that knows of holes. skipHole(n) skips the next n bytes
// if all of them lie in a hole and others may follow, and says whether it did.
type holeSkipper interface{ skipHole(n int) bool }

// add takes a file's content, up to the end of r, and returns its number and length.
func (c *contentWriter) add(r io.Reader) (id uint32, n int64, err error) {
	var prev *job
	holes, _ := r.(holeSkipper)
	for {
		if err := c.failed(); err != nil {
			return 0, n, err // r may have no end
		}
		j := c.take()
		m, end := c.blockSize, false
		if j.hole = holes != nil && holes.skipHole(m); !j.hole {
			m, end, err = fill(j.in[:m], r)
		}
		n += int64(m)
		if err != nil {
			c.fail(fmt.Errorf("content: %w", err))
			return 0, n, err
		}
		j.in = j.in[:m]
		switch {
		case m == 0:
			c.scratch = j
		case m < c.blockSize && !c.opt.NoFragments && (prev == nil || c.opt.AlwaysFragments):
			c.submitLast(prev)
			c.addTail(j, prev != nil)
			prev = nil
		default:
			j.kind, j.first = blockJob, prev == nil
			if j.first {
				c.begun++
				c.flushBatch()
			} else {
				c.submit(prev)
			}
			prev = j
		}
		if end {
			c.submitLast(prev)
			break
		}
	}
	if n == 0 {
		return noContent, 0, c.failed()
	}
	return c.begun - 1, n, c.failed()
}

// fill reads from r until p is full or r ends, which only io.EOF itself says:
// with io.ReadFull, a stream that was cut, io.ErrUnexpectedEOF, would pass for one that ended.
func fill(p []byte, r io.Reader) (n int, end bool, err error) {
	for idle := 0; n < len(p) && err == nil; {
		var m int
		m, err = r.Read(p[n:])
		n += m
		if idle++; m > 0 {
			idle = 0
		} else if idle == 100 && err == nil {
			err = io.ErrNoProgress
		}
	}
	if err == io.EOF {
		return n, true, nil
	}
	return n, false, err
}

func (c *contentWriter) take() *job {
	j := c.scratch
	c.scratch = nil
	if j == nil {
		j = <-c.free
	}
	if j.in == nil {
		j.in = make([]byte, c.blockSize)
	}
	j.in = j.in[:c.blockSize]
	return j
}

// addTail puts what is in j into the batch. joins says that the file has blocks.
func (c *contentWriter) addTail(j *job, joins bool) {
	n := len(j.in)
	if c.batch != nil && len(c.batch.in)+n > c.blockSize {
		c.flushBatch()
	}
	if !joins {
		c.begun++
	}
	if c.batch == nil {
		j.kind, j.pieces = tailsJob, append(j.pieces[:0], piece{to: n, joins: joins})
		c.batch = j
		return
	}
	b := c.batch
	from := len(b.in)
	b.in = append(b.in, j.in...)
	b.pieces = append(b.pieces, piece{from: from, to: from + n, joins: joins})
	c.scratch = j
}

func (c *contentWriter) flushBatch() {
	if c.batch != nil {
		c.submit(c.batch)
		c.batch = nil
	}
}

func (c *contentWriter) submitLast(j *job) {
	if j != nil {
		j.last = true
		c.submit(j)
	}
}

func (c *contentWriter) submit(j *job) {
	c.work <- j
	c.order <- j
}

// finish waits until all is written and returns the first error.
func (c *contentWriter) finish() error {
	c.flushBatch()
	close(c.order)
	<-c.done
	c.wg.Wait()
	return c.failed()
}

func (c *contentWriter) worker(comp compressor) {
	for j := range c.work {
		switch j.kind {
		case tailsJob:
			for i := range j.pieces {
				p := &j.pieces[i]
				if !c.opt.NoDedup {
					p.key = keyOf(j.in[p.from:p.to])
				}
			}
		case blockJob:
			if j.hole || isZero(j.in) {
				j.data, j.size, j.hash = nil, 0, [32]byte{}
				break
			}
			if !c.opt.NoDedup {
				j.hash = blake3.Sum256(j.in)
			}
			c.compress(comp, j)
		case fragmentJob:
			c.compress(comp, j)
		}
		j.done <- struct{}{}
	}
}

func (c *contentWriter) compress(comp compressor, j *job) {
	if j.out == nil {
		j.out = make([]byte, 0, c.blockSize)
	}
	if out := comp.compress(j.out[:0], j.in); out != nil {
		j.out, j.data, j.size = out, out, uint32(len(out))
		return
	}
	j.data, j.size = j.in, uint32(len(j.in))|blockRaw
}

// isZero compares a block with itself, one byte on: all are equal, and the first is 0.
func isZero(b []byte) bool {
	return b[0] == 0 && bytes.Equal(b[1:], b[:len(b)-1])
}

func (c *contentWriter) committer() {
	for j := range c.order {
		<-j.done
		if c.failed() == nil {
			if err := c.commit(j); err != nil {
				c.fail(err)
			}
		}
		j.first, j.last = false, false
		c.free <- j
	}
	if err := c.flushFragments(); err != nil {
		c.fail(err)
	}
	close(c.work)
	close(c.done)
}

func (c *contentWriter) commit(j *job) error {
	if j.kind == blockJob {
		return c.commitBlock(j)
	}
	for i := range j.pieces {
		if err := c.commitTail(j, &j.pieces[i]); err != nil {
			return err
		}
	}
	return nil
}

func (c *contentWriter) commitBlock(j *job) error {
	if j.first {
		c.runStart = c.out.pos()
		c.contents.add(content{start: uint64(c.runStart), blocks: c.sizes.n, fragment: none32})
		c.run.Reset()
	}
	c.sizes.add(j.size)
	if err := c.out.write(j.data); err != nil {
		return err
	}
	if c.opt.NoDedup {
		return nil
	}
	// The length tells a short last block from a full one where both are holes.
	var length [4]byte
	le.PutUint32(length[:], uint32(len(j.in)))
	_, _ = c.run.Write(j.hash[:])
	_, _ = c.run.Write(length[:])
	if !j.last {
		return nil
	}
	id := c.contents.n - 1
	if first, ok := lookup(c.runs, contentKey(c.run.Sum(nil)[:16]), id); ok {
		here, there := c.contents.at(id), c.contents.at(first)
		c.sizes.truncate(here.blocks)
		here.start, here.blocks = there.start, there.blocks
		c.out.rewind(c.runStart)
	}
	return nil
}

// lookup returns the content that has key, or makes id that content.
func lookup(known map[contentKey]uint32, key contentKey, id uint32) (uint32, bool) {
	if first, ok := known[key]; ok {
		return first, true
	}
	known[key] = id
	return 0, false
}

func (c *contentWriter) commitTail(j *job, p *piece) error {
	if !p.joins {
		c.contents.add(content{fragment: none32})
	}
	id := c.contents.n - 1
	here := c.contents.at(id)
	if !c.opt.NoDedup {
		if first, ok := lookup(c.tails, p.key, id); ok {
			there := c.contents.at(first)
			here.fragment, here.fragOffset = there.fragment, there.fragOffset
			return nil
		}
	}
	if c.open != nil && len(c.open.in)+p.to-p.from > c.blockSize {
		if err := c.closeFragment(); err != nil {
			return err
		}
	}
	if c.open == nil {
		c.openFragment()
	}
	here.fragment, here.fragOffset = c.open.index, uint32(len(c.open.in))
	c.open.in = append(c.open.in, j.in[p.from:p.to]...)
	return nil
}

func (c *contentWriter) openFragment() {
	if n := len(c.spare); n > 0 {
		c.open, c.spare = c.spare[n-1], c.spare[:n-1]
	} else {
		c.open = newJob()
		c.open.in = make([]byte, 0, c.blockSize)
	}
	c.open.kind, c.open.in = fragmentJob, c.open.in[:0]
	c.open.index = uint32(len(c.fragments))
	c.fragments = append(c.fragments, fragment{})
}

// closeFragment hands the open fragment block to the workers, and writes the
// oldest one where too many wait.
func (c *contentWriter) closeFragment() error {
	c.work <- c.open
	c.pending = append(c.pending, c.open)
	c.open = nil
	if len(c.pending) > fragmentsInFlight(c.blockSize) {
		return c.writeFragment()
	}
	return nil
}

func (c *contentWriter) writeFragment() error {
	j := c.pending[0]
	c.pending = append(c.pending[:0], c.pending[1:]...)
	<-j.done
	c.fragments[j.index] = fragment{start: uint64(c.out.pos()), size: j.size}
	c.spare = append(c.spare, j)
	return c.out.write(j.data)
}

func (c *contentWriter) flushFragments() error {
	if c.failed() == nil && c.open != nil {
		if err := c.closeFragment(); err != nil {
			return err
		}
	}
	for len(c.pending) > 0 {
		if c.failed() != nil {
			<-c.pending[0].done
			c.pending = c.pending[1:]
			continue
		}
		if err := c.writeFragment(); err != nil {
			c.fail(err)
		}
	}
	return nil
}
