package step

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// confinedWith is a supervisor's side whose other side is a function.
func confinedWith(t *testing.T, log *bytes.Buffer, other func(*net.UnixConn)) *confined {
	t.Helper()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var ends [2]*net.UnixConn
	for n, fd := range pair {
		f := os.NewFile(uintptr(fd), "socket")
		c, err := net.FileConn(f)
		if err != nil {
			t.Fatal(err)
		}
		_ = f.Close() // c has a copy
		ends[n] = c.(*net.UnixConn)
	}
	c := &confined{conn: ends[0], done: make(chan struct{}), log: slog.New(slog.NewTextHandler(log, nil))}
	ended := make(chan struct{})
	c.kill = sync.OnceValue(func() error {
		err := ends[1].Close()
		<-ended
		c.err = errors.New("signal: killed")
		close(c.done)
		return err
	})
	go func() {
		defer close(ended)
		other(ends[1])
	}()
	t.Cleanup(func() {
		if err := c.close(); err != nil && !errors.Is(err, net.ErrClosed) {
			t.Error(err)
		}
	})
	return c
}

// TestConfinedAnswers: what comes from the process that reads the image is not believed.
func TestConfinedAnswers(t *testing.T) {
	answer := func(r *confinedReply, files ...*os.File) func(*net.UnixConn) {
		return func(c *net.UnixConn) { _ = send(c, r, files...) } // the test sees what comes
	}
	raw := func(b []byte) func(*net.UnixConn) {
		return func(c *net.UnixConn) { _, _ = c.Write(b) }
	}
	for _, c := range []struct {
		name  string
		other func(*net.UnixConn)
		want  string // of the error
		is    error
	}{
		{"a file", answer(&confinedReply{Content: []byte("x")}), "", nil},
		{"none", answer(&confinedReply{Error: toConfined(&fs.PathError{Op: "read", Path: "/x", Err: syscall.ENOENT})}), "read /x: no such file", fs.ErrNotExist},
		{"more than asked for", answer(&confinedReply{Content: make([]byte, 11)}), "11 bytes, more than 10", syscall.EFBIG},
		{"a long message", raw(binary.LittleEndian.AppendUint32(nil, 1<<31)), "the limit is", nil},
		{"no message", raw([]byte("\x03\x00\x00\x00abc")), "talk to the process", nil},
		{"a descriptor", answer(&confinedReply{Content: []byte("x")}, os.Stdin), "descriptors", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			b, err := confinedWith(t, &bytes.Buffer{}, c.other).readFile(t.Context(), "/x", 10)
			switch {
			case c.want == "" && (err != nil || string(b) != "x"):
				t.Errorf("%q, %v", b, err)
			case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
				t.Errorf("%q, %v", b, err)
			case c.is != nil && !errors.Is(err, c.is):
				t.Errorf("%v is no %v", err, c.is)
			}
		})
	}
}

// TestConfinedSilence: a process that does not answer is waited for until the run is
// cancelled.
func TestConfinedSilence(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("interrupted")
	c := confinedWith(t, &bytes.Buffer{}, func(*net.UnixConn) { cancel(why) })
	if _, err := c.readFile(ctx, "/x", 10); !errors.Is(err, why) {
		t.Errorf("%v", err)
	}
}

// TestConfinedLog: lines come through, as what they are and not endlessly many.
func TestConfinedLog(t *testing.T) {
	var log bytes.Buffer
	c := confinedWith(t, &log, func(c *net.UnixConn) {
		for n := range 2 * confinedLines {
			_ = send(c, &confinedReply{Log: fmt.Appendf(nil, `{"time":"x","level":"WARN","msg":"line\n%d","inode":7}`, n)})
		}
		_ = send(c, &confinedReply{Log: []byte(`[1]`)}) // the test sees what comes
		_ = send(c, &confinedReply{Content: []byte("x")})
	})
	if b, err := c.readFile(t.Context(), "/x", 10); err != nil || string(b) != "x" {
		t.Errorf("%q, %v", b, err)
	}
	if n := strings.Count(log.String(), "\n"); n != confinedLines || !strings.Contains(log.String(), `level=WARN msg="line\n0" inode=7`+"\n") {
		t.Errorf("%d lines: %.300s", n, log.String())
	}
}
