package registry

import (
	"context"
	"fmt"
	"io"
)

// stream reads bytes of a blob in order, over as many connections as it takes, one at
// a time.
type stream struct {
	b      *blob
	ctx    context.Context
	cancel context.CancelFunc
	p      *pursuit
	offset int64 // of what Read gives next
	end    int64
	strict bool // no answer may be longer than asked for
	answer *answer
	err    error
}

// stream returns one for the bytes from, end-1.
func (b *blob) stream(ctx context.Context, from, end int64) *stream {
	s := &stream{b: b, p: b.r.pursue("get blob %s of %s", b.d.Digest, b.r), offset: from, end: end}
	s.ctx, s.cancel = context.WithCancel(ctx)
	return s
}

// open asks for what is left, until there is an answer.
func (s *stream) open() error {
	if s.answer != nil || s.offset == s.end {
		return nil
	}
	var final error
	err := s.p.do(s.ctx, func(at *site) (err error) {
		s.answer, err = s.b.ask(s.ctx, at, s.offset, s.end, s.strict)
		if err == errNoRanges {
			final, err = err, nil // the one who asked strictly knows what to do
		}
		return err
	})
	if err == nil {
		err = final
	}
	return err
}

// Read gives the next bytes.
func (s *stream) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	for s.err == nil && s.offset < s.end {
		if s.err = s.open(); s.err != nil {
			break
		}
		n, err := s.answer.body.Read(s.portion(p))
		if n > 0 {
			s.offset += int64(n)
			s.p.progressed(n)
			s.err = s.b.pay(s.ctx, n)
			return n, s.err
		}
		if err != nil {
			s.drop()
			s.err = s.p.failed(s.ctx, fmt.Errorf("after %d of %d bytes: %w", s.offset, s.b.d.Size, unexpected(err)))
		}
	}
	if s.err == nil {
		s.err = s.finish()
	}
	return 0, s.err
}

// portion is the part of p to read into.
func (s *stream) portion(p []byte) []byte {
	n := min(int64(len(p)), s.end-s.offset)
	if s.b.r.c.limit != nil {
		n = min(n, limitedRead)
	}
	return p[:n]
}

// finish looks, where the length was not announced, whether the blob goes on.
func (s *stream) finish() error {
	if a := s.answer; a != nil && !a.exact && s.end == s.b.d.Size {
		if n, _ := io.ReadFull(a.body, make([]byte, 1)); n > 0 {
			return s.p.r.explain(s.p.what, s.p.site(), 0, s.b.wrongSize(s.p.site(), s.end+1))
		}
	}
	return io.EOF
}

// drop closes the answer that is being read.
func (s *stream) drop() {
	if s.answer != nil {
		_ = s.answer.body.Close() // its bytes were read or are not wanted
		s.answer = nil
	}
}

// Close ends the requests.
func (s *stream) Close() error {
	s.drop()
	s.cancel()
	return nil
}
