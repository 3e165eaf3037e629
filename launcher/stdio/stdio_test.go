package stdio_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/gangway-hpc/gangway/launcher/stdio"
)

// TestFrames: what is written is read, and its layout is as documented.
func TestFrames(t *testing.T) {
	var b bytes.Buffer
	frames := []stdio.Frame{
		{Type: stdio.Stdout, Rank: 0x01020304, Offset: 0x1122334455667788, Data: []byte("ab")},
		{Type: stdio.Ack},
		stdio.NewGap(7, stdio.Stderr, 10, 300, stdio.NotKept),
		stdio.NewWinSize(24, 80),
	}
	for _, f := range frames {
		if err := stdio.Write(&b, f); err != nil {
			t.Fatal(err)
		}
	}
	if got, want := fmt.Sprintf("%x", b.Bytes()[:19]), "10"+"04030201"+"8877665544332211"+"02000000"+"6162"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	r := stdio.NewReader(&b)
	for _, want := range frames {
		got, err := r.Next()
		if err != nil || got.Type != want.Type || got.Rank != want.Rank || got.Offset != want.Offset || !bytes.Equal(got.Data, want.Data) {
			t.Errorf("%+v, %v, want %+v", got, err, want)
		}
	}
	if _, err := r.Next(); err != io.EOF {
		t.Errorf("after the last: %v", err)
	}
	if stream, count, why, err := frames[2].Lost(); stream != stdio.Stderr || count != 300 || why != stdio.NotKept || err != nil {
		t.Errorf("gap: %v %d %v %v", stream, count, why, err)
	}
	if rows, columns, err := frames[3].Size(); rows != 24 || columns != 80 || err != nil {
		t.Errorf("size: %d %d %v", rows, columns, err)
	}
	for _, f := range []stdio.Frame{{Type: stdio.Stdout}, {Type: stdio.Gap, Data: make([]byte, 10)}, {Type: stdio.WinSize, Data: []byte{1}}} {
		if _, _, _, err := f.Lost(); err == nil {
			t.Errorf("%+v is a gap", f)
		}
		if _, _, err := f.Size(); err == nil {
			t.Errorf("%+v is a size", f)
		}
	}
	if err := stdio.Write(io.Discard, stdio.Frame{Data: make([]byte, stdio.MaxData+1)}); err == nil {
		t.Error("a frame that is too long was written")
	}
}

// FuzzReader: whatever comes, a reader ends with an error, and what it has read is what
// Append would have written.
func FuzzReader(f *testing.F) {
	f.Add(stdio.Append(nil, stdio.Frame{Type: stdio.Stdin, Rank: 1, Offset: 2, Data: []byte("x")}))
	f.Add([]byte{16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, b []byte) {
		r := stdio.NewReader(bytes.NewReader(b))
		var again []byte
		for {
			frame, err := r.Next()
			if err != nil {
				break
			}
			again = stdio.Append(again, frame)
		}
		if !bytes.HasPrefix(b, again) {
			t.Errorf("%x became %x", b, again)
		}
	})
}

func newSpool(t testing.TB, limit int64) *stdio.Spool {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "spool"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return stdio.NewSpool(f, limit, time.Second)
}

// client is what somebody has who reads a spool.
type client struct {
	streams map[string][]byte // with "?" for each byte that is lost
	marks   []string
	why     stdio.Reason // of the last loss
}

// read reads until the end, n bytes at most of what is there (0: all), and returns where to
// go on.
func (c *client) read(ctx context.Context, cursor *stdio.Cursor, frames int) error {
	for frames != 0 {
		b, err := cursor.Next(ctx)
		if err != nil {
			return err
		}
		r := stdio.NewReader(bytes.NewReader(b))
		for {
			f, err := r.Next()
			if err == io.EOF {
				break
			}
			if err != nil {
				return err
			}
			if err := c.take(f); err != nil {
				return err
			}
		}
		frames--
	}
	return nil
}

func (c *client) take(f stdio.Frame) error {
	kind, data := f.Type, bytes.Clone(f.Data)
	if f.Type == stdio.Gap {
		stream, count, why, err := f.Lost()
		if err != nil {
			return err
		}
		c.why = why
		kind, data = stream, bytes.Repeat([]byte("?"), int(count))
	}
	switch kind {
	case stdio.Stdout, stdio.Stderr:
		key := fmt.Sprint(f.Rank, kind)
		if uint64(len(c.streams[key])) != f.Offset {
			return fmt.Errorf("stream %s: offset %d comes after %d bytes", key, f.Offset, len(c.streams[key]))
		}
		c.streams[key] = append(c.streams[key], data...)
	default:
		c.marks = append(c.marks, fmt.Sprint(kind, f.Rank, string(data)))
	}
	return nil
}

// offsets are where it goes on.
func (c *client) offsets(ranks int) []stdio.Offset {
	var all []stdio.Offset
	for rank := range ranks {
		for _, kind := range []stdio.Type{stdio.Stdout, stdio.Stderr} {
			if n := len(c.streams[fmt.Sprint(rank, kind)]); n > 0 {
				all = append(all, stdio.Offset{Rank: rank, Stream: kind, Offset: uint64(n)})
			}
		}
	}
	return all
}

// TestSpoolTells: whoever reads a spool, in however many connections, however late and
// however much was dropped, has every byte at its place or knows that it is lost; what comes
// last is never lost; and the file stays within its bound.
func TestSpoolTells(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const ranks = 3
		limit := rapid.Int64Range(0, 150<<10).Draw(t, "limit")
		f, err := os.CreateTemp("", "spool")
		if err != nil {
			t.Fatal(err)
		}
		defer os.Remove(f.Name())
		defer f.Close()
		s := stdio.NewSpool(f, limit, 0)
		want := map[string][]byte{}
		c := &client{streams: map[string][]byte{}}
		cursor := s.From(stdio.Hello{Follow: true})
		n := byte('a')
		for range rapid.IntRange(1, 16).Draw(t, "appends") {
			rank, kind := rapid.IntRange(0, ranks-1).Draw(t, "rank"), rapid.SampledFrom([]stdio.Type{stdio.Stdout, stdio.Stderr}).Draw(t, "kind")
			b := bytes.Repeat([]byte{n}, rapid.IntRange(0, 80<<10).Draw(t, "size"))
			n = 'a' + (n-'a'+1)%26
			key := fmt.Sprint(rank, kind)
			want[key] = append(want[key], b...)
			if err := s.Append(uint32(rank), kind, b); err != nil {
				t.Fatal(err)
			}
			switch rapid.IntRange(0, 5).Draw(t, "reader") {
			case 0: // it reads something, but does not wait
				ctx, cancel := context.WithCancel(t.Context())
				cancel()
				if err := c.read(ctx, cursor, 3); err != nil && !errors.Is(err, context.Canceled) {
					t.Fatal(err)
				}
			case 1: // it comes again
				cursor = s.From(stdio.Hello{Follow: true, Offsets: c.offsets(ranks)})
			}
		}
		s.Mark(stdio.Frame{Type: stdio.StepEnd, Data: []byte("end")})
		s.Close()
		if err := c.read(t.Context(), cursor, -1); err != io.EOF {
			t.Fatal(err)
		}
		if fmt.Sprint(c.marks) != fmt.Sprint([]string{fmt.Sprint(stdio.StepEnd, 0, "end")}) {
			t.Fatalf("marks: %q", c.marks)
		}
		kept := 0
		for key, b := range want {
			got := c.streams[key]
			if len(got) != len(b) {
				t.Fatalf("stream %s: %d bytes of %d", key, len(got), len(b))
			}
			for i := range b {
				if got[i] != b[i] && got[i] != '?' {
					t.Fatalf("stream %s: byte %d is %q, not %q", key, i, got[i], b[i])
				}
				if got[i] != '?' {
					kept++
				}
			}
		}
		if total := len(bytes.Join(values(want), nil)); kept < min(total, 30<<10) {
			t.Fatalf("%d bytes are kept of %d", kept, total)
		}
		st, err := f.Stat()
		if err != nil || st.Size() > max(limit, 2*(stdio.HeaderSize+32<<10)) {
			t.Fatalf("%d bytes in a file of %d: %v", st.Size(), limit, err)
		}
	})
}

func values(m map[string][]byte) [][]byte {
	var all [][]byte
	for _, v := range m {
		all = append(all, v)
	}
	return all
}

// TestSpoolOfRanks: a client gets the ranks it asks for; without following it gets what
// there is; a mark comes behind the output of its rank, however late the client is.
func TestSpoolOfRanks(t *testing.T) {
	s := newSpool(t, 1<<20)
	for rank := range uint32(3) {
		if err := s.Append(rank, stdio.Stdout, fmt.Appendf(nil, "out %d\n", rank)); err != nil {
			t.Fatal(err)
		}
		s.Mark(stdio.Frame{Type: stdio.RankExit, Rank: rank})
	}
	c := &client{streams: map[string][]byte{}}
	if err := c.read(t.Context(), s.From(stdio.Hello{Ranks: []int{1}}), -1); err != io.EOF {
		t.Fatal(err)
	}
	if got := fmt.Sprintf("%q %q", c.streams, c.marks); got != fmt.Sprintf(`map["1 %d":"out 1\n"] ["%[2]d 0" "%[2]d 1" "%[2]d 2"]`, stdio.Stdout, stdio.RankExit) {
		t.Error(got)
	}
	// Order, as it travels.
	b, err := s.From(stdio.Hello{}).Next(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var order []stdio.Type
	for r := stdio.NewReader(bytes.NewReader(b)); ; {
		f, err := r.Next()
		if err != nil {
			break
		}
		order = append(order, f.Type)
	}
	if got := fmt.Sprint(order); got != "[16 18 16 18 16 18]" {
		t.Error(got)
	}
	// Who follows waits.
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := c.read(ctx, s.From(stdio.Hello{Follow: true, Ranks: []int{9}, Offsets: nil}), -1); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("following ended: %v", err)
	}
}
