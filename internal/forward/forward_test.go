package forward

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/gangway-hpc/gangway/internal/api"
	"github.com/gangway-hpc/gangway/internal/fault"
	"github.com/gangway-hpc/gangway/internal/socket"
)

// forwarded is a forwarder to a controller, which answers as the handler does.
func forwarded(t *testing.T, handler http.HandlerFunc, dial func() error) (path string) {
	t.Helper()
	controller := httptest.NewServer(handler)
	t.Cleanup(controller.Close)
	dir, err := os.MkdirTemp("", "fw") // with a name short enough for sockets
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	path = filepath.Join(dir, "s")
	l, err := socket.Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	agent, err := net.Listen("unix", filepath.Join(dir, "a"))
	if err != nil {
		t.Fatal(err)
	}
	near := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprintf(w, "the agent: %s", r.URL) })}
	go func() { _ = near.Serve(agent) }()
	t.Cleanup(func() { _ = near.Close() })
	f := &Forwarder{Log: slog.New(slog.DiscardHandler), Node: "n1", Agent: filepath.Join(dir, "a"), Dial: func(ctx context.Context) (net.Conn, error) {
		if err := dial(); err != nil {
			return nil, err
		}
		return (&net.Dialer{}).DialContext(ctx, "tcp", controller.Listener.Addr().String())
	}}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- f.Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return path
}

func reachable() error { return nil }

// raw sends a request as it is, and returns the answer.
func raw(t *testing.T, at, request string) (net.Conn, *bufio.Reader) {
	t.Helper()
	c, err := net.Dial("unix", at)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	if _, err := io.WriteString(c, request); err != nil {
		t.Fatal(err)
	}
	return c, bufio.NewReader(c)
}

// TestUser: the controller hears who asks from the kernel, whatever is in the request.
func TestUser(t *testing.T) {
	t.Parallel()
	at := forwarded(t, func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "%q %q %s", r.Header[api.UIDHeader], r.Header[api.GIDHeader], r.URL)
	}, reachable)
	_, r := raw(t, at, "GET /v1/jobs/1_2?ids=3%2C4 HTTP/1.1\r\nHost: x\r\ngangway-uid: 4711\r\nGangway-Uid: 4712\r\nGANGWAY-GID: 0\r\nConnection: Gangway-Uid\r\n\r\n")
	resp, err := http.ReadResponse(r, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	want := fmt.Sprintf("[%q] [%q] /v1/jobs/1_2?ids=3%%2C4", strconv.Itoa(os.Geteuid()), strconv.Itoa(os.Getegid()))
	if b, err := io.ReadAll(resp.Body); err != nil || string(b) != want {
		t.Errorf("the controller hears %s, %v; want %s", b, err, want)
	}
	if st, err := os.Stat(at); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("the socket is for %v, %v", st.Mode(), err)
	}
}

// TestNear: what is asked of this node's agent goes to it, and of others' to the controller.
func TestNear(t *testing.T) {
	t.Parallel()
	at := forwarded(t, func(w http.ResponseWriter, r *http.Request) { fmt.Fprintf(w, "the controller: %s", r.URL) }, reachable)
	for path, want := range map[string]string{
		"/v1/nodes/n1/steps/7.1.0.0/io":  "the agent: /v1/steps/7.1.0.0/io",
		"/v1/nodes/n10/steps/7.1.0.0/io": "the controller: /v1/nodes/n10/steps/7.1.0.0/io",
		"/v1/nodes/n1":                   "the controller: /v1/nodes/n1",
	} {
		_, r := raw(t, at, "GET "+path+" HTTP/1.1\r\nHost: x\r\n\r\n")
		resp, err := http.ReadResponse(r, nil)
		if err != nil {
			t.Fatal(err)
		}
		if b, err := io.ReadAll(resp.Body); err != nil || string(b) != want {
			t.Errorf("%s: %s, %v", path, b, err)
		}
		_ = resp.Body.Close()
	}
}

// TestUpgrade: a connection that becomes another protocol is passed on both ways.
func TestUpgrade(t *testing.T) {
	t.Parallel()
	at := forwarded(t, func(w http.ResponseWriter, _ *http.Request) {
		c, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer c.Close()
		_, _ = io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: gangway-stdio\r\n\r\nfirst\n")
		line, err := rw.ReadString('\n')
		if err == nil {
			_, _ = io.WriteString(c, strings.ToUpper(line))
		}
	}, reachable)
	c, r, err := api.Dial("node:n2@unix:"+at).Upgrade(t.Context(), "/v1/steps/7.1.0.0/io", "gangway-stdio")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if line, err := r.ReadString('\n'); line != "first\n" || err != nil {
		t.Errorf("%q, %v", line, err)
	}
	if _, err := io.WriteString(c, "hello\n"); err != nil {
		t.Fatal(err)
	}
	if line, err := io.ReadAll(r); string(line) != "HELLO\n" || err != nil {
		t.Errorf("%q, %v", line, err)
	}
}

// TestAway: a command says soon that the controller is away; a program of a job waits for
// it, and asks once only. What may have been heard is not asked again.
func TestAway(t *testing.T) {
	t.Parallel()
	var tries, heard atomic.Int64
	at := forwarded(t, func(w http.ResponseWriter, r *http.Request) {
		if heard.Add(1) > 1 {
			panic(http.ErrAbortHandler)
		}
		b, err := io.ReadAll(r.Body)
		if err != nil || !strings.Contains(string(b), `"State":"drain"`) {
			t.Errorf("the controller reads %q, %v", b, err)
		}
		_, _ = io.WriteString(w, "{}")
	}, func() error {
		if tries.Add(1) < 5 {
			return &fault.Error{What: syscall.ECONNREFUSED, Hint: "start it"}
		}
		return nil
	})
	change := &api.Change{State: "drain"}
	began := time.Now()
	err := api.Dial("unix:"+at).Change(t.Context(), "7", "", change)
	if away, ok := errors.AsType[*api.Unreachable](err); !ok || away.Timeout || fault.Code(err) != fault.CodeUnreachable || time.Since(began) > time.Second {
		t.Errorf("after %s: %v", time.Since(began), err)
	}
	if text := fault.Text("x", err, false); !strings.Contains(text, "connection refused") || !strings.Contains(text, "start it") {
		t.Errorf("it says %q", text)
	}
	if err := api.Dial("unix:"+at).WaitFor(10*time.Second).Change(t.Context(), "7", "", change); err != nil || tries.Load() != 5 {
		t.Errorf("after %d tries: %v", tries.Load(), err)
	}
	err = api.Dial("unix:"+at).WaitFor(10*time.Second).Change(t.Context(), "7", "", change)
	if _, ok := errors.AsType[*api.Unreachable](err); !ok || heard.Load() != 2 {
		t.Errorf("heard %d times: %v", heard.Load(), err)
	}
}
