package squashfs

import "sync"

// stream gives a file's blocks in order, while workers decode the next ones.
// Holes give a block of zeros.
type stream struct {
	f   *File
	off int64 // of what next gives

	ring  []streamSlot
	head  int    // in the ring
	ahead uint64 // the next block to hand to a worker
	jobs  chan *streamSlot
	wg    sync.WaitGroup
	begun bool
	bufs  []*[]byte
}

type streamSlot struct {
	k    uint64 // block
	buf  []byte
	err  error
	done chan struct{} // one value once the block is there
}

// streamBytes bounds what a stream holds decoded, unless two blocks are more.
const streamBytes = 8 << 20

func (s *stream) blocks() uint64 {
	bs := uint64(s.f.r.sb.BlockSize)
	return (s.f.inode.Size + bs - 1) / bs
}

func (s *stream) start() {
	r := s.f.r
	bs := int(r.sb.BlockSize)
	s.begun = true
	s.ahead = uint64(s.off) / uint64(bs)
	left := s.blocks() - s.ahead
	depth := int(min(left, uint64(max(2, min(3*r.workers, streamBytes/bs)))))
	s.jobs = make(chan *streamSlot, depth)
	s.ring = make([]streamSlot, depth)
	for i := range s.ring {
		buf := r.cache.scratch.buffer(bs)
		s.bufs = append(s.bufs, buf)
		s.ring[i].done = make(chan struct{}, 1)
		s.submit(&s.ring[i], *buf)
	}
	for range min(r.workers, depth) {
		s.wg.Go(func() {
			for slot := range s.jobs {
				slot.err = s.f.readBlock(slot.buf, slot.k, 0)
				slot.done <- struct{}{}
			}
		})
	}
}

func (s *stream) submit(slot *streamSlot, buf []byte) {
	if s.ahead >= s.blocks() {
		slot.buf = nil
		return
	}
	slot.k = s.ahead
	slot.buf = buf[:s.f.blockLen(slot.k)]
	s.ahead++
	s.jobs <- slot
}

// next returns the bytes up to the end of the next block. They are valid until
// the next call. There must be some left.
func (s *stream) next() ([]byte, error) {
	if !s.begun {
		s.start()
	} else {
		// The block that was given last is done with.
		old := (s.head + len(s.ring) - 1) % len(s.ring)
		s.submit(&s.ring[old], *s.bufs[old])
	}
	slot := &s.ring[s.head]
	<-slot.done
	if slot.err != nil {
		return nil, slot.err
	}
	s.head = (s.head + 1) % len(s.ring)
	p := slot.buf[uint64(s.off)-slot.k*uint64(s.f.r.sb.BlockSize):]
	s.off += int64(len(p))
	return p, nil
}

// stop ends the workers.
func (s *stream) stop() {
	if !s.begun {
		return
	}
	close(s.jobs)
	s.wg.Wait()
	for _, b := range s.bufs {
		s.f.r.cache.scratch.putBuffer(b)
	}
}
