package stdio

import (
	"fmt"
	"io"
	"sync"
	"time"
)

// File is what a Spool keeps output in.
type File interface {
	io.ReaderAt
	io.WriterAt
}

// stream is one of a rank's.
type stream struct {
	rank uint32
	kind Type
}

// mark is a frame that is never dropped, at its place in the log.
type mark struct {
	at    int64
	frame []byte
}

// Spool keeps the output of the ranks of a node in a file that is used as a ring: a log of
// frames as they travel, of which the oldest are overwritten.
type Spool struct {
	patience time.Duration

	mu         sync.Mutex
	file       File
	ring       int64 // the file's size
	limit      int64 // how much is kept; less than ring while the log moves to memory
	tail, head int64 // of the log, counted from its first byte ever
	next       map[stream]uint64
	marks      []mark
	closed     bool
	changed    chan struct{}
	err        error // the file could not be written: the log is in memory

	primary  *Cursor       // of the client whose step it is; nil: it never came
	progress time.Time     // when that was last seen to read, or was first waited for
	waiting  int           // appends that wait for it
	freed    chan struct{} // closed, and made anew, when it has read
}

const (
	// maxChunk bounds the data of a frame of output.
	maxChunk = 32 << 10
	// memorySize is how much is kept in memory where the file cannot be written.
	memorySize = 1 << 20
	// underWay is which part of what is kept was taken by the client but may be in buffers of
	// connections, from which it is lost when these break: it is kept for a next one.
	underWay = 16
)

// NewSpool makes a Spool of a file, of which it uses limit bytes at most, and no less than
// two frames need. Where it is full of what the client whose step it is has not taken, Append
// waits for that client, as long as it was seen to read within patience; then, and until it
// reads again, the oldest is dropped.
func NewSpool(f File, limit int64, patience time.Duration) *Spool {
	limit = max(limit, 2*(HeaderSize+maxChunk))
	return &Spool{
		file: f, ring: limit, limit: limit, patience: patience,
		next: map[stream]uint64{}, changed: make(chan struct{}), freed: make(chan struct{}),
	}
}

// Append adds output of a rank; that of one stream is to come from one goroutine at a time. It
// fails, once, where the file does: then less is kept, in memory.
func (s *Spool) Append(rank uint32, kind Type, data []byte) error {
	var first error
	for len(data) > 0 {
		n := min(len(data), maxChunk)
		if err := s.append(rank, kind, data[:n]); err != nil && first == nil {
			first = err
		}
		data = data[n:]
	}
	return first
}

func (s *Spool) append(rank uint32, kind Type, data []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	size := int64(HeaderSize + len(data))
	s.room(size)
	if s.closed {
		return nil
	}
	key := stream{rank, kind}
	frame := Append(make([]byte, 0, size), Frame{Type: kind, Rank: rank, Offset: s.next[key], Data: data})
	var failed error
	for {
		err := s.write(frame, s.head)
		if err == nil {
			break
		}
		if s.err == nil {
			s.err = fmt.Errorf("keep output of rank %d: %w", rank, err)
			failed = s.err
		}
		s.toMemory(size)
		if s.closed {
			return failed
		}
		// Others may have appended meanwhile.
		frame = Append(frame[:0], Frame{Type: kind, Rank: rank, Offset: s.next[key], Data: data})
	}
	if s.primary != nil && s.primary.at >= s.head {
		s.progress = time.Now() // it had everything: only from now on can it be late
	}
	s.next[key] += uint64(len(data))
	s.head += size
	s.wake()
	return failed
}

// room drops the oldest frames until n bytes fit, once they were taken or nobody takes them.
// It may let go of s.mu meanwhile.
func (s *Spool) room(n int64) {
	for !s.closed && s.head+n-s.tail > s.limit {
		var head [HeaderSize]byte
		if err := s.read(head[:], s.tail); err != nil {
			s.tail = s.head // what cannot be read is lost
			return
		}
		_, length := parseHeader(head[:])
		end := s.tail + HeaderSize + int64(length)
		if left := s.patient(end); left > 0 {
			s.await(left)
			continue
		}
		s.tail = end
	}
}

// patient is how long dropping what is before end is put off, unless something happens.
func (s *Spool) patient(end int64) time.Duration {
	switch {
	case s.primary != nil && end <= s.primary.at-s.limit/underWay:
		return 0
	case s.progress.IsZero():
		s.progress = time.Now() // it is waited for from now on
	}
	return s.patience - time.Since(s.progress)
}

// await waits until the client has read, at most for a time, without s.mu.
func (s *Spool) await(most time.Duration) {
	freed := s.freed
	s.waiting++
	s.mu.Unlock()
	t := time.NewTimer(most)
	select {
	case <-freed:
	case <-t.C:
	}
	t.Stop()
	s.mu.Lock()
	s.waiting--
}

// toMemory goes on in memory, with as much of the log as there is room for beside n bytes.
func (s *Spool) toMemory(n int64) {
	size := min(s.limit, memorySize)
	s.limit = size
	s.room(n)
	if _, is := s.file.(memory); is || s.closed {
		return
	}
	b := make([]byte, s.head-s.tail)
	if s.read(b, s.tail) != nil {
		s.tail, b = s.head, nil // what cannot be read is lost
	}
	s.file, s.ring = make(memory, size), size
	_ = s.write(b, s.tail) // memory does not fail
}

// memory is a File that is none.
type memory []byte

// WriteAt implements File.
func (m memory) WriteAt(b []byte, at int64) (int, error) { return copy(m[at:], b), nil }

// ReadAt implements File.
func (m memory) ReadAt(b []byte, at int64) (int, error) { return copy(b, m[at:]), nil }

// write writes to the ring.
func (s *Spool) write(b []byte, at int64) error {
	return s.pieces(b, at, func(b []byte, at int64) error {
		_, err := s.file.WriteAt(b, at)
		return err
	})
}

func (s *Spool) read(b []byte, at int64) error {
	return s.pieces(b, at, func(b []byte, at int64) error {
		_, err := s.file.ReadAt(b, at)
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return err
	})
}

// pieces calls do with the one or two parts of the file that a part of the log is in.
func (s *Spool) pieces(b []byte, at int64, do func(b []byte, at int64) error) error {
	n := min(int64(len(b)), s.ring-at%s.ring)
	err := do(b[:n], at%s.ring)
	if err == nil && n < int64(len(b)) {
		err = do(b[n:], 0)
	}
	return err
}

func (s *Spool) wake() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// Size is how many bytes came of a rank's stream.
func (s *Spool) Size(rank uint32, kind Type) uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.next[stream{rank, kind}]
}

// Mark adds a frame that is kept, behind all that was appended.
func (s *Spool) Mark(f Frame) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.marks = append(s.marks, mark{s.head, Append(nil, f)})
	s.wake()
}

// Close says that nothing more comes.
func (s *Spool) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	s.wake()
	close(s.freed)
	s.freed = make(chan struct{})
}
