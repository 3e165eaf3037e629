package stdio

import (
	"context"
	"fmt"
	"io"
	"slices"
	"time"
)

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
	if h.Primary {
		s.primary = c
		s.moved()
	}
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
	defer func(from int64) {
		if c == s.primary && c.at > from {
			s.moved()
		}
	}(c.at)
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
		b = Append(b, NewGap(f.Rank, f.Type, want, f.Offset-want, c.s.why()))
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

// moved notes that the client whose step it is reads, and lets appends look again. The caller
// has s.mu.
func (s *Spool) moved() {
	s.progress = time.Now()
	if s.waiting > 0 {
		close(s.freed)
		s.freed = make(chan struct{})
	}
}

// Reads says that the client whose step it is still reads: it has handed on output since this
// was said last, even if it has taken none, as one does whose own reader is slow.
func (s *Spool) Reads() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.moved()
}

// Progress is when the client whose step it is was last seen to read; zero: it never came.
func (s *Spool) Progress() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.primary == nil {
		return time.Time{}
	}
	return s.progress
}

// why is the reason for what is lost.
func (s *Spool) why() Reason {
	if s.err != nil {
		return NotKept
	}
	return NotRead
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
			b = Append(b, NewGap(key.rank, key.kind, want, next-want, c.s.why()))
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
