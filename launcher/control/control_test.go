package control

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/gangway-hpc/gangway/internal/job"
)

// pair is a connection with both of its ends.
func pair(t *testing.T) (a, b *Conn) {
	t.Helper()
	a, f, err := Pair()
	if err != nil {
		t.Fatal(err)
	}
	u, err := Inherited(descriptor(t, f))
	if err != nil {
		t.Fatal(err)
	}
	b = New(u)
	t.Cleanup(func() { _ = errors.Join(a.Close(), b.Close()) })
	return a, b
}

// descriptor is a descriptor of a file, as a program is started with, and closes the file.
func descriptor(t *testing.T, f *os.File) int {
	t.Helper()
	fd, err := unix.Dup(int(f.Fd()))
	if err = errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
	return fd
}

// TestConn: what one end sends the other receives, in its order and whole.
func TestConn(t *testing.T) {
	a, b := pair(t)
	want := []Event{
		{Progress: &Progress{Phase: "pull", Bytes: 1, Total: 2}},
		{Prepared: &Prepared{Image: "sha256:1", Port: 7, Notes: []string{"one\ntwo"}}},
		{Started: &Started{At: 5}},
		{Ended: &job.StepEnd{Node: strings.Repeat("n", 1<<20)}, Left: "processes [1]"},
		{Refused: "no"},
	}
	go func() {
		for _, e := range want {
			if err := a.Send(e); err != nil {
				t.Error(err)
			}
		}
		_ = a.CloseWrite() // the reader finds out
	}()
	for _, w := range want {
		var got Event
		if err := b.Receive(&got); err != nil || !reflect.DeepEqual(got, w) {
			t.Fatalf("%v: %+v, want %+v", err, got, w)
		}
	}
	if err := b.Receive(&Event{}); !errors.Is(err, io.EOF) {
		t.Errorf("after the last: %v", err)
	}
}

// TestBadLines: what is no line of the protocol is an error, at the latest when it is too
// long.
func TestBadLines(t *testing.T) {
	for name, text := range map[string]string{
		"not JSON": "x\n", "another type": `{"signal":"TERM"}` + "\n", "cut off": `{"watch":true}`, "empty": "\n",
		"too long": `{"io":"` + strings.Repeat("x", MaxLine) + "\"}\n",
	} {
		a, b := pair(t)
		if err := a.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
			t.Fatal(err)
		}
		go func() {
			_, _ = io.WriteString(a, text) // who reads may have enough
			_ = a.CloseWrite()
		}()
		if err := b.Receive(&Request{}); err == nil {
			t.Errorf("%s: no error", name)
		} else if name == "too long" && !strings.Contains(err.Error(), "longer than") {
			t.Errorf("%s: %v", name, err)
		}
		_ = b.Close() // the writer may wait
	}
}

// TestSocket: a supervisor is found by its directory, whatever its name, and one that is
// gone is not; the socket of a dead one is replaced.
func TestSocket(t *testing.T) {
	dir := filepath.Join(t.TempDir(), strings.Repeat("long", 40))
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := Dial(dir); err == nil {
		t.Error("nobody listens and somebody answers")
	}
	for range 2 {
		l, err := Listen(dir)
		if err != nil {
			t.Fatal(err)
		}
		accepted := make(chan *net.UnixConn, 1)
		go func() {
			c, _ := l.AcceptUnix()
			accepted <- c
		}()
		c, err := Dial(dir)
		if err != nil {
			t.Fatal(err)
		}
		other := New(<-accepted)
		if err := other.Send(Event{Refused: "x"}); err != nil {
			t.Error(err)
		}
		var e Event
		if err := c.Receive(&e); err != nil || e.Refused != "x" {
			t.Errorf("%v: %+v", err, e)
		}
		_ = errors.Join(c.Close(), other.Close(), l.Close())
	}
	if _, err := Dial(dir); err == nil {
		t.Error("a dead one answers")
	}
	if _, err := Listen(filepath.Join(dir, "none")); err == nil {
		t.Error("a socket in a directory that is not there")
	}
}

// TestInherited: only a connection is one.
func TestInherited(t *testing.T) {
	f, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	if c, err := Inherited(descriptor(t, f)); err == nil {
		t.Errorf("a file is a connection: %v", c)
	}
	if c, err := Inherited(1 << 20); err == nil {
		t.Errorf("nothing is a connection: %v", c)
	}
}

// TestDir: names of directories and keys are one to one.
func TestDir(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		k := job.StepKey{
			Job: job.ID(rapid.Uint32().Draw(t, "job")), Attempt: int(rapid.Int32Min(0).Draw(t, "attempt")), Try: int(rapid.Int32Min(0).Draw(t, "try")),
			Step: job.StepID(rapid.SampledFrom([]int{int(job.BatchStep), 0, 1, 77}).Draw(t, "step")),
		}
		name := DirOf(k)
		if got, err := ParseDir(name); err != nil || got != k {
			t.Fatalf("%s: %+v, %v", name, got, err)
		}
		if m := MarkerOf("c", "n", k); m != "c/n/"+name+"/" {
			t.Fatal(m)
		}
	})
	for _, bad := range []string{"", ".", "..", "1.1.0", "1.1.0.1.1", "01.1.0.1", "-1.1.0.1", "1.1.x.1", "4294967296.1.0.1", "1.1.0.1/", "1.1.0. 1"} {
		if k, err := ParseDir(bad); err == nil {
			t.Errorf("%q is %v", bad, k)
		}
	}
}

// FuzzReceive: whatever comes, a line is read or refused, and no more than a line.
func FuzzReceive(f *testing.F) {
	for _, text := range []string{`{"watch":true}`, `{"start":{"image":"x","master_port":70000}}`, `{"kill":{"grace_ms":-1}}`, `{"io":{"follow":true}}` + "\nrest", "\x00\n", "{"} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		c := &Conn{r: bufio.NewReader(bytes.NewReader(b))}
		var r Request
		err := c.Receive(&r)
		line, rest, found := bytes.Cut(b, []byte("\n"))
		if !found {
			if err == nil {
				t.Fatalf("half a line %q is %+v", b, r)
			}
			return
		}
		left, _ := io.ReadAll(c.Reader())
		if !bytes.Equal(left, rest) {
			t.Fatalf("of %q %q is left", line, left)
		}
	})
}

// FuzzParseDir: a name that is read is the name of what was read.
func FuzzParseDir(f *testing.F) {
	f.Add("1.1.batch.1")
	f.Add("7.2.0.3")
	f.Fuzz(func(t *testing.T, name string) {
		if k, err := ParseDir(name); err == nil && DirOf(k) != name {
			t.Fatalf("%q is %v, which is %q", name, k, DirOf(k))
		}
	})
}
