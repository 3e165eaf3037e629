package layer

import (
	"context"
	"fmt"
	"hash"
	"io"
	"sync"
	"sync/atomic"
)

// Chunks are large enough that handing one over costs nothing beside filling it,
// and few enough that all of them stay in the processor's cache.
const (
	chunkSize   = 256 << 10
	stageChunks = 6
)

// stage reads a source ahead in a goroutine, and hashes it in another, so that
// decompressing, hashing and writing a layer use several cores. Its Read gives
// what the source gave. All chunks are used again, none is copied for the hash.
type stage struct {
	ctx    context.Context
	free   chan *chunk
	full   chan *chunk // to Read
	hashes chan *chunk // to the hash; nil where there is none
	wg     sync.WaitGroup
	n      atomic.Int64 // bytes that the source gave
	err    error        // what ended the source, valid once ended is closed
	ended  chan struct{}

	cur  *chunk
	rest []byte // of cur
}

type chunk struct {
	buf  []byte
	n    int
	refs atomic.Int32
}

// newStage begins to read src. It ends with the source, with its first error, or
// with ctx; wait tells when. Every channel has room for all chunks, so only the
// lack of a free one ever stops the goroutines, until the reader goes on.
func newStage(ctx context.Context, src io.Reader, h hash.Hash) *stage {
	s := &stage{ctx: ctx, free: make(chan *chunk, stageChunks), full: make(chan *chunk, stageChunks), ended: make(chan struct{})}
	for range stageChunks {
		s.free <- &chunk{}
	}
	if h != nil {
		s.hashes = make(chan *chunk, stageChunks)
		s.wg.Go(func() {
			for c := range s.hashes {
				_, _ = h.Write(c.buf[:c.n]) // never fails
				s.release(c)
			}
		})
	}
	s.wg.Go(func() {
		s.err = s.fill(src)
		close(s.ended)
		close(s.full)
		if s.hashes != nil {
			close(s.hashes)
		}
	})
	return s
}

func (s *stage) fill(src io.Reader) (err error) {
	// Decoders were written with hostile input in mind, but are not ours.
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("decoder: %v", p)
		}
	}()
	for {
		var c *chunk
		select {
		case c = <-s.free:
		case <-s.ctx.Done():
			return context.Cause(s.ctx)
		}
		if c.buf == nil {
			c.buf = make([]byte, chunkSize)
		}
		n, err := readFull(s.ctx, src, c.buf)
		if n > 0 {
			s.n.Add(int64(n))
			c.n = n
			c.refs.Store(1)
			if s.hashes != nil {
				c.refs.Store(2)
				s.hashes <- c
			}
			s.full <- c
		}
		if err != nil {
			return err
		}
	}
}

// readFull fills p, unless src or ctx ends before. Unlike io.ReadFull it hands on
// the source's own error, also io.EOF behind some bytes.
func readFull(ctx context.Context, src io.Reader, p []byte) (n int, err error) {
	for idle := 0; n < len(p) && err == nil; {
		if ctx.Err() != nil {
			return n, context.Cause(ctx)
		}
		var m int
		m, err = src.Read(p[n:])
		n += m
		if idle++; m > 0 {
			idle = 0
		} else if idle == 100 && err == nil {
			err = io.ErrNoProgress
		}
	}
	return n, err
}

func (s *stage) release(c *chunk) {
	if c.refs.Add(-1) == 0 {
		s.free <- c
	}
}

// Read implements io.Reader.
func (s *stage) Read(p []byte) (int, error) {
	for len(s.rest) == 0 {
		if s.cur != nil {
			s.release(s.cur)
			s.cur = nil
		}
		c, ok := <-s.full
		if !ok {
			return 0, s.err
		}
		s.cur, s.rest = c, c.buf[:c.n]
	}
	n := copy(p, s.rest)
	s.rest = s.rest[n:]
	return n, nil
}

// wait waits for the stage's goroutines. The source must have ended, or ctx.
func (s *stage) wait() { s.wg.Wait() }
