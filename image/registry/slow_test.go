package registry

import (
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gangway-hpc/gangway/image/oci"
)

// drip sends bytes one by one, for as long as someone listens.
func drip(w http.ResponseWriter, r *http.Request, every time.Duration) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		if _, err := io.WriteString(w, " "); err != nil {
			return
		}
		_ = http.NewResponseController(w).Flush() // its error is that of the next write
		select {
		case <-r.Context().Done():
			return
		case <-tick.C:
		}
	}
}

// patient is a context for what must end long before.
func patient(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// TestDrip: a server that sends a byte now and then is as good as silent.
func TestDrip(t *testing.T) {
	blob := noise(300_000)
	modes(t, func(t *testing.T, set func(*Client)) {
		f := serve(t, func(w http.ResponseWriter, r *http.Request) bool {
			if r.Header.Get("Range") == "" {
				w.Header().Set("Content-Length", fmt.Sprint(len(blob)))
			} else {
				serveBlob(w, r, blob, 1)
			}
			drip(w, r, 10*time.Millisecond)
			return true
		})
		c, p, _ := quick(t, Options{Retries: 3})
		c.stall = 100 * time.Millisecond
		set(c)
		body, err := c.Repository(f.host, "app", "", "1").Blob(patient(t), descriptor(blob))
		if err == nil {
			_, err = io.ReadAll(body)
			_ = body.Close() // the error is what Read gave
		}
		wantFault(t, err, "tried 3 times without progress", f.host+" is silent, or nearly")
		if len(p.taken()) < 2 {
			t.Errorf("pauses %v", p.taken())
		}
	})
}

// TestByteForEach: a byte for each connection is no progress.
func TestByteForEach(t *testing.T) {
	blob := noise(300_000)
	modes(t, func(t *testing.T, set func(*Client)) {
		var requests atomic.Int64
		f := serve(t, func(w http.ResponseWriter, r *http.Request) bool {
			if requests.Add(1) > 1000 {
				w.WriteHeader(http.StatusNotFound) // it must end somehow
				return true
			}
			return cutAfter(w, r, blob, 1)
		})
		c, _, _ := quick(t, Options{})
		set(c)
		_, err := read(t, c.Repository(f.host, "app", "", "1"), descriptor(blob))
		if err == nil || !strings.Contains(err.Error(), "tried 6 times without progress") {
			t.Errorf("after %d requests: %v", requests.Load(), err)
		}
	})
}

// TestProgress: what counts is how much came since the tries were forgotten, by
// whatever steps.
func TestProgress(t *testing.T) {
	c, _, _ := quick(t, Options{})
	p := c.Repository("registry.example", "app", "", "1").pursue("x")
	p.tries = 3
	for range 2 {
		if p.progressed(leastBytes / 2); p.gained == 0 {
			break
		}
	}
	if p.tries != 0 || p.gained != 0 {
		t.Errorf("64 KiB in two steps: %d tries, %d bytes", p.tries, p.gained)
	}
	p.tries = 3
	if p.progressed(leastBytes - 1); p.tries != 3 {
		t.Error("less than 64 KiB are progress")
	}
}

// TestWatch: the time that we wait is what counts, over all waits for the same bytes.
func TestWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		wait := func(w *watch, d time.Duration, n int) {
			w.begin()
			<-time.After(d) // of the test's own clock
			synctest.Wait()
			w.pause(n)
		}
		w := newWatch(t.Context(), time.Minute, 100)
		defer w.end()
		for range 10 { // enough in each minute
			wait(w, 29*time.Second, 50)
		}
		<-time.After(time.Hour) // we take our time
		wait(w, 29*time.Second, 50)
		wait(w, 29*time.Second, 49)
		if w.ctx.Err() != nil {
			t.Fatal("cut although enough came")
		}
		wait(w, time.Second, 1)
		wait(w, 59*time.Second, 0)
		if w.ctx.Err() != nil {
			t.Fatal("cut before the minute was over")
		}
		wait(w, 2*time.Second, 1)
		if !errors.Is(context.Cause(w.ctx), errStalled) {
			t.Errorf("not cut: %v", context.Cause(w.ctx))
		}
	})
}

// TestLateHeader: the wait for a header is not counted among those for the body.
func TestLateHeader(t *testing.T) {
	f := serve(t, func(w http.ResponseWriter, r *http.Request) bool {
		<-time.After(600 * time.Millisecond)
		_ = http.NewResponseController(w).Flush() // its error is that of the next write
		<-time.After(600 * time.Millisecond)
		_, _ = io.WriteString(w, "layer") // the client looks at it
		return true
	})
	c, p, _ := quick(t, Options{})
	c.stall = time.Second
	mustRead(t, c.Repository(f.host, "app", "", "1"), descriptor([]byte("layer")), []byte("layer"))
	if len(p.taken()) != 0 {
		t.Errorf("pauses %v", p.taken())
	}
}

// TestBandwidthIsOurs: what we hold back ourselves is not the server's slowness.
func TestBandwidthIsOurs(t *testing.T) {
	blob := noise(600_000)
	f := serve(t, func(w http.ResponseWriter, r *http.Request) bool {
		serveBlob(w, r, blob, len(blob))
		return true
	})
	c, _, logged := quick(t, Options{Bandwidth: 1})
	c.stall, c.least = 500*time.Millisecond, 1<<30
	c.sleep = func(context.Context, time.Duration) error { <-time.After(30 * time.Millisecond); return nil }
	mustRead(t, c.Repository(f.host, "app", "", "1"), descriptor(blob), blob)
	if strings.Contains(logged.String(), "repeated") {
		t.Errorf("log: %s", logged)
	}
}

// TestErrorDrips: what an error says is not waited for longer than it is worth, and
// what came of it is told.
func TestErrorDrips(t *testing.T) {
	f := serve(t, func(w http.ResponseWriter, r *http.Request) bool {
		w.WriteHeader(http.StatusNotFound)
		fmt.Fprint(w, `{"errors":[{"code":"BLOB_UNKNOWN","message":"gone"}]}`)
		drip(w, r, 10*time.Millisecond)
		return true
	})
	c, _, _ := quick(t, Options{})
	c.errorBody = 100 * time.Millisecond
	_, err := c.Repository(f.host, "app", "", "1").Blob(patient(t), descriptor([]byte("x")))
	wantFault(t, err, "404", "BLOB_UNKNOWN: gone")
	if !errors.Is(err, ErrNotFound) {
		t.Errorf("%v is not ErrNotFound", err)
	}
}

// TestDocumentTime: a manifest or token that does not come to its end is not waited
// for, however steadily it comes.
func TestDocumentTime(t *testing.T) {
	f := serve(t, func(w http.ResponseWriter, r *http.Request) bool {
		drip(w, r, 10*time.Millisecond)
		return true
	})
	c, _, _ := quick(t, Options{Retries: 2})
	c.document = 100 * time.Millisecond
	_, err := c.Repository(f.host, "app", "", "1").Manifest(patient(t), descriptor([]byte("{}")))
	wantFault(t, err, errStalled.Error(), f.host)

	g := guard1(t, false, nil)
	g.tokens.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		drip(w, r, 10*time.Millisecond)
	})
	c, _, _ = quick(t, Options{Retries: 2})
	c.document = 100 * time.Millisecond
	// By HEAD: there only the token has a limit of its own.
	_, err = c.Repository(g.host, "app", "", "1").Resolve(patient(t))
	wantFault(t, err, errStalled.Error(), "get token of "+g.host)
}

// TestAsStored: bytes are neither asked for nor taken in another coding than they are
// stored in.
func TestAsStored(t *testing.T) {
	var blob strings.Builder
	z := gzip.NewWriter(&blob)
	_, _ = z.Write(noise(1000)) // a Builder takes all
	_ = z.Close()
	f := serve(t, func(w http.ResponseWriter, r *http.Request) bool {
		if got := r.Header.Get("Accept-Encoding"); got != "" {
			t.Errorf("Accept-Encoding: %s", got)
		}
		w.Header().Set("Content-Encoding", "gzip")
		_, _ = io.WriteString(w, blob.String()) // the client looks at it
		return true
	})
	c, _, _ := quick(t, Options{})
	mustRead(t, c.Repository(f.host, "app", "", "1"), descriptor([]byte(blob.String())), []byte(blob.String()))
}

// TestHeaderLimit: a header has a bound.
func TestHeaderLimit(t *testing.T) {
	f := serve(t, func(w http.ResponseWriter, r *http.Request) bool {
		w.Header().Set("X-Long", strings.Repeat("x", 128<<10))
		fmt.Fprint(w, "layer")
		return true
	})
	c, _, _ := quick(t, Options{Retries: 1})
	_, err := read(t, c.Repository(f.host, "app", "", "1"), oci.Descriptor{Digest: oci.DigestOf(nil), Size: 5})
	if err == nil || !strings.Contains(err.Error(), "header") {
		t.Errorf("got %v", err)
	}
}

// TestLongPauses: who waits long is told, and why.
func TestLongPauses(t *testing.T) {
	for _, test := range []struct {
		status  int
		wait    string
		retries int
		want    string // "" for no warning
	}{
		{http.StatusTooManyRequests, "7", 2, "registry asks to wait"},
		{http.StatusTooManyRequests, "1", 2, "registry asks to wait"},
		{http.StatusTooManyRequests, "", 2, ""},
		{http.StatusServiceUnavailable, "6", 2, "registry asks to wait"},
		{http.StatusServiceUnavailable, "4", 2, ""},
		{http.StatusServiceUnavailable, "", 5, ""},
		{http.StatusServiceUnavailable, "", 6, "registry is asked again after a pause"}, // the last is 8 s
	} {
		f := serve(t, func(w http.ResponseWriter, r *http.Request) bool {
			if test.wait != "" {
				w.Header().Set("Retry-After", test.wait)
			}
			w.WriteHeader(test.status)
			return true
		})
		c, p, logged := quick(t, Options{Retries: test.retries})
		if _, err := c.Repository(f.host, "app", "", "1").Resolve(t.Context()); err == nil {
			t.Error("no error")
		}
		var warned []string
		for line := range strings.Lines(logged.String()) {
			if strings.Contains(line, "level=WARN") {
				warned = append(warned, line)
			}
		}
		if test.want == "" {
			if len(warned) != 0 {
				t.Errorf("%+v: warned %q", test, warned)
			}
			continue
		}
		dur := p.taken()[len(p.taken())-1]
		if len(warned) != 1 || !strings.Contains(warned[0], fmt.Sprintf("msg=%q host=%s dur=%v ", test.want, f.host, dur)) {
			t.Errorf("%+v: warned %q", test, warned)
		}
	}
}
