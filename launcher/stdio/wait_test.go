package stdio_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/gangway-hpc/gangway/launcher/stdio"
)

// buffer is a disk of which room bytes are free.
type buffer struct {
	b    []byte
	room int
}

func (f *buffer) WriteAt(b []byte, at int64) (int, error) {
	if int(at)+len(b) > f.room {
		return 0, errors.New("no space left")
	}
	if n := int(at) + len(b); n > len(f.b) {
		f.b = append(f.b, make([]byte, n-len(f.b))...)
	}
	return copy(f.b[at:], b), nil
}

func (f *buffer) ReadAt(b []byte, at int64) (int, error) {
	if int(at)+len(b) > len(f.b) {
		return 0, io.EOF
	}
	return copy(b, f.b[at:]), nil
}

// TestReaderGetsAll: a client that keeps reading gets every byte of all ranks, however slow
// it is, also over a connection that breaks and is made again, and if the disk is full.
func TestReaderGetsAll(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		limit := rapid.Int64Range(0, 400<<10).Draw(rt, "limit")
		room := rapid.SampledFrom([]int{0, 50 << 10, 1 << 20}).Draw(rt, "room of the disk")
		pauses := rapid.SliceOfN(rapid.IntRange(0, 900), 1, 6).Draw(rt, "pauses")
		again := rapid.IntRange(2, 40).Draw(rt, "frames between connections")
		sizes := rapid.SliceOfN(rapid.IntRange(1, 90<<10), 1, 30).Draw(rt, "sizes")
		synctest.Test(t, func(t *testing.T) {
			const ranks = 3
			s := stdio.NewSpool(&buffer{room: room}, limit, time.Second)
			var group sync.WaitGroup
			want := map[string][]byte{}
			for rank := range uint32(ranks) {
				group.Go(func() {
					for _, size := range sizes {
						_ = s.Append(rank, stdio.Stdout, bytes.Repeat([]byte{'a' + byte(rank)}, size)) // a full disk is said
					}
				})
				for _, size := range sizes {
					key := fmt.Sprint(rank, stdio.Stdout)
					want[key] = append(want[key], bytes.Repeat([]byte{'a' + byte(rank)}, size)...)
				}
			}
			go func() {
				group.Wait()
				s.Close()
			}()
			c := &client{streams: map[string][]byte{}}
			cursor := s.From(stdio.Hello{Follow: true, Primary: true})
			for i := 0; ; i++ {
				time.Sleep(time.Duration(pauses[i%len(pauses)]) * time.Millisecond)
				if i%again == again-1 {
					cursor = s.From(stdio.Hello{Follow: true, Primary: true, Offsets: c.offsets(ranks)})
				}
				if err := c.read(t.Context(), cursor, 1); err == io.EOF {
					break
				} else if err != nil {
					rt.Fatal(err)
				}
			}
			for key, b := range want {
				if !bytes.Equal(c.streams[key], b) {
					rt.Fatalf("stream %s: %d bytes are not the %d that were written", key, len(c.streams[key]), len(b))
				}
			}
		})
	})
}

// TestPatience: a client that is not there, or has stopped reading, is waited for once; one
// that says that it reads is waited for as long as it does; and one that reads again is.
func TestPatience(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := stdio.NewSpool(&buffer{room: 1 << 20}, 0, time.Second)
		begin := time.Now()
		fill := func(what string, want time.Duration) {
			t.Helper()
			begin := time.Now()
			for range 20 {
				if err := s.Append(0, stdio.Stdout, make([]byte, 32<<10)); err != nil {
					t.Fatal(err)
				}
			}
			if took := time.Since(begin); took != want {
				t.Errorf("%s: %s, want %s", what, took, want)
			}
		}
		fill("nobody came", time.Second)
		fill("nobody came still", 0)
		cursor := s.From(stdio.Hello{Follow: true, Primary: true})
		fill("it came and reads nothing", time.Second)
		fill("it reads nothing still", 0)
		time.Sleep(time.Hour)
		if _, err := cursor.Next(t.Context()); err != nil {
			t.Fatal(err)
		}
		fill("it has read again", time.Second)
		fill("and has stopped", 0)
		for i := range 10 {
			time.AfterFunc(time.Duration(i)*700*time.Millisecond, s.Reads)
		}
		time.Sleep(time.Millisecond)
		fill("it is slow, and stops after 6.3 s", 7300*time.Millisecond-time.Millisecond)
		c := &client{streams: map[string][]byte{}}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := c.read(ctx, s.From(stdio.Hello{Follow: true, Primary: true}), -1); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
		if b := c.streams[fmt.Sprint(0, stdio.Stdout)]; len(b) != 7*20*32<<10 || c.why != stdio.NotRead {
			t.Errorf("%d bytes, reason %d", len(b), c.why)
		}
		if s.Progress().Before(begin) {
			t.Error("it was never seen to read")
		}
	})
}

// full is a disk without room.
type full struct{ *os.File }

func (full) WriteAt([]byte, int64) (int, error) { return 0, errors.New("no space left") }

// TestSpoolWithoutRoom: where the disk is full that is said once, what was said last is still
// there, and of what is lost clients know the reason.
func TestSpoolWithoutRoom(t *testing.T) {
	s := stdio.NewSpool(full{}, 64<<20, 0)
	if err := s.Append(0, stdio.Stdout, []byte("abc")); err == nil {
		t.Error("nobody is told")
	}
	if err := s.Append(0, stdio.Stdout, []byte("def")); err != nil {
		t.Errorf("told again: %v", err)
	}
	key := fmt.Sprint(0, stdio.Stdout)
	c := &client{streams: map[string][]byte{}}
	if err := c.read(t.Context(), s.From(stdio.Hello{}), -1); err != io.EOF {
		t.Fatal(err)
	}
	if got := string(c.streams[key]); got != "abcdef" {
		t.Errorf("%q", got)
	}
	if err := s.Append(0, stdio.Stdout, make([]byte, 8<<20)); err != nil {
		t.Fatal(err)
	}
	if err := s.Append(0, stdio.Stdout, []byte("end")); err != nil {
		t.Fatal(err)
	}
	s.Close()
	if err := c.read(t.Context(), s.From(stdio.Hello{Follow: true, Offsets: c.offsets(1)}), -1); err != io.EOF {
		t.Fatal(err)
	}
	b := c.streams[key]
	if lost := bytes.Count(b, []byte("?")); len(b) != 6+8<<20+3 || !bytes.HasSuffix(b, []byte("end")) || lost < 6<<20 || c.why != stdio.NotKept {
		t.Errorf("%d bytes, %d lost for reason %d", len(b), lost, c.why)
	}
}
