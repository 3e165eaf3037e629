package attach_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/gangway-hpc/gangway/internal/api"
	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/launcher/attach"
	"github.com/gangway-hpc/gangway/launcher/control"
	"github.com/gangway-hpc/gangway/launcher/stdio"
)

// agent serves connections as an agent does that passes them to a supervisor: each is
// given to serve, the first with n 0.
func agent(t *testing.T, serve func(n int, c net.Conn, r *bufio.Reader, hello control.Request)) (address string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	var group sync.WaitGroup
	t.Cleanup(func() { _ = l.Close(); group.Wait() })
	group.Go(func() {
		for n := 0; ; n++ {
			c, err := l.Accept()
			if err != nil {
				return
			}
			group.Go(func() {
				defer func() { _ = c.Close() }()
				r := bufio.NewReader(c)
				req, err := http.ReadRequest(r)
				if err != nil {
					return // it was stopped
				}
				if req.URL.Path != "/v1/steps/7.1.0.1/io" || req.Header.Get("Upgrade") != "gangway-stdio" {
					t.Errorf("request: %v", req)
					return
				}
				if n == 0 { // as an agent that does not know the step yet
					_, _ = io.WriteString(c, "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
					return
				}
				_, _ = io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: gangway-stdio\r\n\r\n")
				line, err := r.ReadBytes('\n')
				if err != nil {
					return // it was stopped
				}
				var hello control.Request
				if json.Unmarshal(line, &hello) != nil {
					t.Errorf("first line: %q %v", line, err)
					return
				}
				serve(n-1, c, r, hello)
			})
		}
	})
	return "unix:" + path
}

// step is one of two ranks on a node.
func step(agents ...string) api.Step {
	s := api.Step{Key: job.StepKey{Job: 7, Attempt: 1, Try: 1}, Tasks: 2 * len(agents), Agents: agents}
	for i := range agents {
		s.Nodes = append(s.Nodes, fmt.Sprintf("n%d", i+1))
		s.Ranks = append(s.Ranks, []int{2 * i, 2*i + 1})
	}
	return s
}

func marshal(t *testing.T, v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		t.Error(err)
	}
	return b
}

// TestResume: connections that break are made again, and nothing comes twice or is left
// out: neither output nor input nor ends.
func TestResume(t *testing.T) {
	t.Parallel()
	input := strings.Repeat("0123456789", 100_000)
	var got bytes.Buffer // what the rank read
	var mu sync.Mutex    // one connection after the other
	want := strings.Repeat("abcdefgh\n", 3000)
	address := agent(t, func(n int, c net.Conn, r *bufio.Reader, request control.Request) {
		mu.Lock()
		defer mu.Unlock()
		var hello stdio.Hello
		if err := json.Unmarshal(request.IO, &hello); err != nil || !hello.Primary {
			t.Errorf("hello: %s %v", request.IO, err)
		}
		at := uint64(0)
		for _, o := range hello.Offsets {
			if o.Rank == 1 && o.Stream == stdio.Stdout {
				at = o.Offset
			}
		}
		if n > 0 && at == 0 {
			t.Errorf("connection %d begins again", n)
		}
		send := func(f stdio.Frame) {
			_ = stdio.Write(c, f) // the client may have gone
		}
		send(stdio.Frame{Type: stdio.Taken, Offset: uint64(got.Len())})
		if n == 0 {
			send(stdio.Frame{Type: stdio.RankExit, Rank: 0, Data: marshal(t, job.RankEnd{Rank: 0})})
		}
		back := min(at, 5) // what comes a second time is left out
		end := min(at+9000, uint64(len(want)))
		send(stdio.Frame{Type: stdio.Stdout, Rank: 1, Offset: at - back, Data: []byte(want[at-back : end])})
		frames := stdio.NewReader(r)
		for limit := got.Len() + 300_000; got.Len() < limit; {
			f, err := frames.Next()
			if err != nil {
				t.Errorf("connection %d: %v", n, err)
				return
			}
			switch f.Type {
			case stdio.Stdin:
				if f.Offset != uint64(got.Len()) {
					t.Errorf("input from %d, have %d", f.Offset, got.Len())
				}
				got.Write(f.Data)
				send(stdio.Frame{Type: stdio.Taken, Offset: uint64(got.Len())})
			case stdio.StdinEOF:
				send(stdio.Frame{Type: stdio.RankExit, Rank: 0, Data: marshal(t, job.RankEnd{Rank: 0})})
				send(stdio.Frame{Type: stdio.RankExit, Rank: 1, Data: marshal(t, job.RankEnd{Rank: 1, Exit: 3})})
				send(stdio.Frame{Type: stdio.StepEnd, Data: marshal(t, job.StepEnd{Node: "n1"})})
				if f, err := frames.Next(); err != nil || f.Type != stdio.Ack {
					t.Errorf("at the end: %v %v", f, err)
				}
				return
			}
		}
	})
	var out bytes.Buffer
	exits, ends := 0, 0
	s := attach.Open(t.Context(), attach.Config{
		Step: step(address), Hello: stdio.Hello{Primary: true}, Stdin: strings.NewReader(input),
		Output:   func(_ int, _ stdio.Type, data []byte) error { _, err := out.Write(data); return err },
		RankExit: func(job.RankEnd) { exits++ },
		StepEnd:  func(*job.StepEnd) { ends++ },
	})
	if err := s.Wait(); err != nil {
		t.Fatal(err)
	}
	mu.Lock()
	defer mu.Unlock()
	if out.String() != want || got.String() != input || exits != 2 || ends != 1 {
		t.Errorf("output %d of %d bytes, input %d of %d, %d ranks and %d steps ended", out.Len(), len(want), got.Len(), len(input), exits, ends)
	}
}

// TestOutputFails: what cannot be written ends the session, with its error.
func TestOutputFails(t *testing.T) {
	t.Parallel()
	address := agent(t, func(_ int, c net.Conn, r *bufio.Reader, _ control.Request) {
		_ = stdio.Write(c, stdio.Frame{Type: stdio.Stdout, Data: []byte("x")})
		_, _ = io.Copy(io.Discard, r)
	})
	s := attach.Open(t.Context(), attach.Config{
		Step: step(address, address), Output: func(int, stdio.Type, []byte) error { return syscall.EPIPE },
		RankExit: func(job.RankEnd) {}, StepEnd: func(*job.StepEnd) {},
	})
	if err := s.Wait(); !errors.Is(err, syscall.EPIPE) {
		t.Errorf("the session ends with %v", err)
	}
}

// TestReading: as long as output is handed on, however slowly and of whichever node, all nodes
// are told; and not any more when it stands.
func TestReading(t *testing.T) {
	t.Parallel()
	told := make(chan struct{}, 100)
	quiet := agent(t, func(_ int, c net.Conn, r *bufio.Reader, _ control.Request) {
		for frames := stdio.NewReader(r); ; {
			f, err := frames.Next()
			if err != nil {
				return
			}
			if f.Type == stdio.Reading {
				told <- struct{}{}
			}
		}
	})
	loud := agent(t, func(_ int, c net.Conn, r *bufio.Reader, _ control.Request) {
		_ = stdio.Write(c, stdio.Frame{Type: stdio.Stdout, Data: make([]byte, 128<<10)})
		_, _ = io.Copy(io.Discard, r)
	})
	parts, stand := make(chan struct{}), make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	s := attach.Open(ctx, attach.Config{
		Step: step(quiet, loud), Hello: stdio.Hello{Primary: true, Follow: true},
		Output: func(int, stdio.Type, []byte) error {
			select {
			case parts <- struct{}{}:
			case <-stand:
			}
			return nil
		},
		RankExit: func(job.RankEnd) {}, StepEnd: func(*job.StepEnd) {},
	})
	for range 3 { // of 32 parts
		<-parts
		<-told
	}
	select {
	case <-told:
		t.Error("it reads though its output stands")
	case <-time.After(time.Second):
	}
	close(stand)
	cancel()
	_ = s.Wait() // it was stopped
}

// TestSignals: a signal goes to all nodes, also one that is connected only later.
func TestSignals(t *testing.T) {
	t.Parallel()
	serve := func(_ int, c net.Conn, r *bufio.Reader, _ control.Request) {
		for frames := stdio.NewReader(r); ; {
			f, err := frames.Next()
			if err != nil {
				return
			}
			if f.Type == stdio.Signal && f.Offset == uint64(syscall.SIGUSR1) {
				_ = stdio.Write(c, stdio.Frame{Type: stdio.StepEnd, Data: marshal(t, job.StepEnd{})})
			}
		}
	}
	ends := 0
	s := attach.Open(t.Context(), attach.Config{
		Step: step(agent(t, serve), agent(t, serve)), Output: func(int, stdio.Type, []byte) error { return nil },
		RankExit: func(job.RankEnd) {}, StepEnd: func(*job.StepEnd) { ends++ },
	})
	s.Signal(syscall.SIGUSR1) // nobody is connected yet
	if err := s.Wait(); err != nil || ends != 2 {
		t.Errorf("%d nodes ended, %v", ends, err)
	}
}

// TestStop: a session without answers ends when it is told to, or its context ends.
func TestStop(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	c := attach.Config{
		Step: step("unix:/no/such/socket"), Stdin: strings.NewReader("x"), Output: func(int, stdio.Type, []byte) error { return nil },
		RankExit: func(job.RankEnd) {}, StepEnd: func(*job.StepEnd) {},
	}
	if err := attach.Open(ctx, c).Wait(); !errors.Is(err, context.Canceled) {
		t.Errorf("the context ended: %v", err)
	}
	s := attach.Open(t.Context(), c)
	s.Stop()
	if err := s.Wait(); !errors.Is(err, context.Canceled) {
		t.Errorf("stopped: %v", err)
	}
}

// TestExec: a program beside a rank is on that rank's node, and ends with its connection.
func TestExec(t *testing.T) {
	t.Parallel()
	address := agent(t, func(n int, c net.Conn, _ *bufio.Reader, request control.Request) {
		var e stdio.Exec
		if err := json.Unmarshal(request.Exec, &e); err != nil || e.Rank != 2 || request.IO != nil {
			t.Errorf("request: %+v %v", request, err)
		}
		_ = stdio.Write(c, stdio.Frame{Type: stdio.Stdout, Rank: 2, Data: []byte("out")})
		if n == 0 {
			_ = stdio.Write(c, stdio.Frame{Type: stdio.RankExit, Rank: 2, Data: marshal(t, job.RankEnd{Rank: 2, Exit: 9})})
		}
	})
	var out bytes.Buffer
	code := -1
	c := attach.Config{
		Step: step("unix:/no/such/socket", address), Exec: &stdio.Exec{Rank: 2},
		Output:   func(_ int, _ stdio.Type, data []byte) error { _, err := out.Write(data); return err },
		RankExit: func(end job.RankEnd) { code = end.Exit }, StepEnd: func(*job.StepEnd) {},
	}
	if err := attach.Open(t.Context(), c).Wait(); err != nil || code != 9 || out.String() != "out" {
		t.Errorf("exit %d, %q, %v", code, out.String(), err)
	}
	if err := attach.Open(t.Context(), c).Wait(); err == nil || errors.Is(err, context.Canceled) {
		t.Errorf("a connection that broke: %v", err)
	}
}
