package stdio

import (
	"context"
	"fmt"
	"io"
	"slices"
	"sync"
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
	file  File
	limit int64

	mu         sync.Mutex
	tail, head int64 // of the log, counted from its first byte ever
	next       map[stream]uint64
	marks      []mark
	closed     bool
	changed    chan struct{}
	err        error // the file could not be written
}

// maxChunk bounds the data of a frame of output.
const maxChunk = 32 << 10

// NewSpool makes a Spool of a file, of which it uses limit bytes at most, and no less than
// two frames need.
func NewSpool(f File, limit int64) *Spool {
	return &Spool{file: f, limit: max(limit, 2*(HeaderSize+maxChunk)), next: map[stream]uint64{}, changed: make(chan struct{})}
}

// Append adds output of a rank. It fails where the file does; what was to be added then is
// lost as if it had been dropped, and the same error is not returned twice.
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
	if s.closed {
		return nil
	}
	key := stream{rank, kind}
	offset := s.next[key]
	s.next[key] += uint64(len(data))
	frame := Append(make([]byte, 0, HeaderSize+len(data)), Frame{Type: kind, Rank: rank, Offset: offset, Data: data})
	err := s.room(int64(len(frame)))
	if err == nil {
		err = s.write(frame, s.head)
	}
	if err == nil {
		s.head += int64(len(frame))
	}
	s.wake()
	if err != nil && s.err == nil {
		s.err = fmt.Errorf("keep output of rank %d: %w", rank, err)
		return s.err
	}
	return nil
}

// room drops the oldest frames until n bytes fit.
func (s *Spool) room(n int64) error {
	for s.head+n-s.tail > s.limit {
		var head [HeaderSize]byte
		if err := s.read(head[:], s.tail); err != nil {
			return err
		}
		_, length := parseHeader(head[:])
		s.tail += HeaderSize + int64(length)
	}
	return nil
}

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
	n := min(int64(len(b)), s.limit-at%s.limit)
	err := do(b[:n], at%s.limit)
	if err == nil && n < int64(len(b)) {
		err = do(b[n:], 0)
	}
	return err
}

func (s *Spool) wake() {
	close(s.changed)
	s.changed = make(chan struct{})
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
}

// Cursor is a place in a Spool.
type Cursor struct {
	s      *Spool
	at     int64
	marks  int // those before it were returned
	ranks  []int
	follow bool
	want   map[stream]uint64
	ended  bool
}

// From is a place from which a client gets what it asks for.
func (s *Spool) From(h Hello) *Cursor {
	c := &Cursor{s: s, ranks: h.Ranks, follow: h.Follow, want: map[stream]uint64{}}
	for _, o := range h.Offsets {
		c.want[stream{uint32(o.Rank), o.Stream}] = o.Offset
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	c.at = s.tail
	return c
}

// Next returns frames as they travel, as soon as there are any; they are valid until the
// next call. The error is io.EOF when nothing more comes, that of ctx, or that of the
// Spool's file.
func (c *Cursor) Next(ctx context.Context) ([]byte, error) {
	for {
		b, changed, err := c.take()
		if len(b) > 0 || err != nil {
			return b, err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// take returns what there is, at most about one frame of output.
func (c *Cursor) take() (b []byte, changed <-chan struct{}, err error) {
	s := c.s
	s.mu.Lock()
	defer s.mu.Unlock()
	c.at = max(c.at, s.tail)
	for len(b) < maxChunk {
		for c.marks < len(s.marks) && s.marks[c.marks].at <= c.at {
			// What is lost of the streams is said before the end of their rank is.
			b = append(c.lost(b, s.marks[c.marks]), s.marks[c.marks].frame...)
			c.marks++
		}
		if c.at >= s.head {
			break
		}
		if b, err = c.frame(b); err != nil {
			return nil, nil, err
		}
	}
	if len(b) == 0 && c.at >= s.head && c.marks == len(s.marks) && (s.closed || !c.follow) {
		if b = c.lost(nil, mark{}); len(b) == 0 || c.ended {
			return nil, nil, io.EOF
		}
		c.ended = true
	}
	return b, s.changed, nil
}

// frame appends the frame at the cursor, as far as the client has it not.
func (c *Cursor) frame(b []byte) ([]byte, error) {
	var head [HeaderSize]byte
	if err := c.s.read(head[:], c.at); err != nil {
		return nil, fmt.Errorf("read kept output: %w", err)
	}
	f, n := parseHeader(head[:])
	at := c.at + HeaderSize
	c.at = at + int64(n)
	key := stream{f.Rank, f.Type}
	want := c.want[key]
	if !c.wants(f.Rank) || f.Offset+uint64(n) <= want {
		return b, nil
	}
	if f.Offset > want {
		b = Append(b, NewGap(f.Rank, f.Type, want, f.Offset-want))
		want = f.Offset
	}
	f.Data = make([]byte, n)
	if err := c.s.read(f.Data, at); err != nil {
		return nil, fmt.Errorf("read kept output: %w", err)
	}
	f.Data = f.Data[want-f.Offset:]
	f.Offset = want
	c.want[key] = want + uint64(len(f.Data))
	return Append(b, f), nil
}

func (c *Cursor) wants(rank uint32) bool {
	return len(c.ranks) == 0 || slices.Contains(c.ranks, int(rank))
}

// lost appends what is missing of streams up to where they are now, when the client has
// all that is kept: of the rank whose end a mark is, or of all at the end of everything.
func (c *Cursor) lost(b []byte, before mark) []byte {
	if c.at < c.s.head {
		return b
	}
	rank, one := uint32(0), before.frame != nil && Type(before.frame[0]) == RankExit
	if one {
		f, _ := parseHeader(before.frame)
		rank = f.Rank
	}
	for _, key := range c.s.streams() {
		if next, want := c.s.next[key], c.want[key]; next > want && c.wants(key.rank) && (!one || key.rank == rank) {
			b = Append(b, NewGap(key.rank, key.kind, want, next-want))
			c.want[key] = next
		}
	}
	return b
}

// streams are those that have something, in order.
func (s *Spool) streams() []stream {
	keys := make([]stream, 0, len(s.next))
	for key := range s.next {
		keys = append(keys, key)
	}
	slices.SortFunc(keys, func(a, b stream) int {
		if a.rank != b.rank {
			return int(a.rank) - int(b.rank)
		}
		return int(a.kind) - int(b.kind)
	})
	return keys
}
