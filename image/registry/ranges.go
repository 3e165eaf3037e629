package registry

import (
	"context"
	"io"
	"sync"
)

// Parallel ranges: big blobs come over several connections, since one is often held
// back by the way or by the store behind the registry. 7 chunks of 4 MiB bound the
// memory for each blob.
//
// From the loopback interface one connection is the fastest: docker-registry gives
// 1.1 GB/s over one and 0.4 GB/s in ranges on two cores, more than a layer can be
// unpacked with, but that work would be taken from the unpacking.
const (
	chunkSize    = 4 << 20
	parallelSize = 32 << 20
	atOnce       = 4 // ranges of one blob
	window       = 7 // chunks of one blob that are fetched or wait to be read
)

// ranges reads a blob by several ranges at once and gives it in order.
type ranges struct {
	b      *blob
	parent context.Context
	ctx    context.Context // of the chunks
	cancel context.CancelFunc
	work   sync.WaitGroup

	mu      sync.Mutex
	queue   []*chunk // in order; the first is being read
	next    int64    // where the next chunk begins
	running int
	closed  bool // no chunk is started any more

	offset int64   // of what Read gives next
	rest   *stream // instead of chunks, where ranges do not work
	err    error
}

// chunk is one range.
type chunk struct {
	from, to int64
	slot     bool // one of the Client's is taken for it
	buf      *[]byte
	err      error
	done     chan struct{} // closed when buf or err is there
}

// openRanges asks for the first chunk with s, and goes on with the whole where the
// server sends that.
func (b *blob) openRanges(ctx context.Context, s *stream) (io.ReadCloser, error) {
	s.end = b.r.c.chunk
	if err := s.open(); err != nil {
		s.cancel()
		return nil, err
	}
	if s.answer.whole {
		s.end = b.d.Size
		return s, nil
	}
	r := &ranges{b: b, parent: ctx}
	r.ctx, r.cancel = context.WithCancel(ctx)
	context.AfterFunc(r.ctx, s.cancel)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.start(s, s.end, false)
	r.fill()
	return r, nil
}

// fill starts chunks as far as window and slots go. mu is held.
func (r *ranges) fill() {
	size, c := r.b.d.Size, r.b.r.c
	for !r.closed && r.next < size && len(r.queue) < window {
		slot := false
		// The first chunk is fetched whatever others hold: its reader waits.
		if len(r.queue) > 0 {
			if r.running >= atOnce {
				return
			}
			select {
			case c.slots <- struct{}{}:
				slot = true
			default:
				return
			}
		}
		to := min(r.next+c.chunk, size)
		s := r.b.stream(r.ctx, r.next, to)
		s.strict = true
		r.start(s, to, slot)
	}
}

// start fetches a chunk. mu is held.
func (r *ranges) start(s *stream, to int64, slot bool) {
	k := &chunk{from: s.offset, to: to, slot: slot, done: make(chan struct{})}
	r.queue = append(r.queue, k)
	r.next = to
	r.running++
	r.work.Go(func() {
		r.fetch(s, k)
	})
}

func (r *ranges) fetch(s *stream, k *chunk) {
	c := r.b.r.c
	buf, _ := c.pool.Get().(*[]byte)
	if buf == nil || int64(len(*buf)) < c.chunk {
		b := make([]byte, c.chunk)
		buf = &b
	}
	_, k.err = io.ReadFull(s, (*buf)[:k.to-k.from])
	_ = s.Close() // it has no error
	k.buf = buf
	close(k.done)
	if k.slot {
		<-c.slots
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.running--
	r.closed = r.closed || k.err != nil // what follows would fail as well
	r.fill()
}

// Read gives the next bytes.
func (r *ranges) Read(p []byte) (int, error) {
	for r.err == nil && r.offset < r.b.d.Size {
		if r.rest != nil {
			return r.rest.Read(p)
		}
		k := r.head()
		select {
		case <-k.done:
		case <-r.ctx.Done():
			r.err = context.Cause(r.ctx)
			return 0, r.err
		}
		switch {
		case k.err == errNoRanges:
			r.stop()
			r.rest = r.b.stream(r.parent, r.offset, r.b.d.Size)
			continue
		case k.err != nil:
			r.err = k.err
			return 0, r.err
		}
		n := copy(p, (*k.buf)[r.offset-k.from:k.to-k.from])
		r.offset += int64(n)
		if r.offset == k.to {
			r.pop(k)
		}
		return n, nil
	}
	if r.err != nil {
		return 0, r.err
	}
	return 0, io.EOF
}

// head returns the chunk that Read waits for.
func (r *ranges) head() *chunk {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.fill()
	return r.queue[0]
}

// pop takes away the first chunk, which was read.
func (r *ranges) pop(k *chunk) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.queue = r.queue[1:]
	r.b.r.c.pool.Put(k.buf)
	r.fill()
}

// stop ends all chunks and starts no more.
func (r *ranges) stop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	r.cancel()
}

// Close ends all requests and waits for them.
func (r *ranges) Close() error {
	r.stop()
	if r.rest != nil {
		_ = r.rest.Close() // it has no error
	}
	r.work.Wait()
	return nil
}
