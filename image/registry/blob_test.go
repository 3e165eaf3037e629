package registry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/gangway-hpc/gangway/image/oci"
)

// modes are the ways a blob may come.
func modes(t *testing.T, test func(t *testing.T, set func(*Client))) {
	t.Run("stream", func(t *testing.T) { test(t, func(*Client) {}) })
	t.Run("ranges", func(t *testing.T) {
		test(t, func(c *Client) { c.everyHost, c.parallel, c.chunk = true, 64<<10, 64<<10 })
	})
}

// descriptor of bytes that a test's server sends.
func descriptor(blob []byte) oci.Descriptor {
	return oci.Descriptor{Digest: oci.DigestOf(blob), Size: int64(len(blob))}
}

// TestBlobSizes: blobs around every border of chunks, and none.
func TestBlobSizes(t *testing.T) {
	modes(t, func(t *testing.T, set func(*Client)) {
		f := serve(t, nil)
		for _, n := range []int{0, 1, 64<<10 - 1, 64 << 10, 64<<10 + 1, 128 << 10, 1 << 20, 1<<20 + 7} {
			blob := noise(n)
			_, layer, _ := f.push("app", "1", blob)
			c, p, _ := quick(t, Options{})
			set(c)
			mustRead(t, c.Repository(f.host, "app", "", "1"), layer, blob)
			if len(p.taken()) != 0 {
				t.Errorf("%d bytes: pauses %v", n, p.taken())
			}
		}
	})
	noGoroutines(t)
}

// TestBlobCut: the connection is cut before the answer, in it, at its last byte, after
// it; once and many times.
func TestBlobCut(t *testing.T) {
	blob := noise(400_000)
	modes(t, func(t *testing.T, set func(*Client)) {
		rapid.Check(t, func(rt *rapid.T) {
			cuts := rapid.SliceOfN(rapid.OneOf(
				rapid.SampledFrom([]int{-1, 0, 1, 65535, 65536, 65537, len(blob) - 1, len(blob)}), rapid.IntRange(0, len(blob)),
			), 0, 12).Draw(rt, "cuts")
			var mu sync.Mutex
			i, idle := 0, 0
			f := serve(t, func(w http.ResponseWriter, r *http.Request) bool {
				mu.Lock()
				n := len(blob)
				if i < len(cuts) {
					n = cuts[i]
					i++
				}
				if n <= 0 {
					if idle++; idle > 4 { // more would rightly be an error
						n = 1
					}
				}
				mu.Unlock()
				switch {
				case n < 0:
					panic(http.ErrAbortHandler)
				case n < len(blob):
					return cutAfter(w, r, blob, n)
				}
				serveBlob(w, r, blob, n)
				return true
			})
			defer f.Close()
			c, _, _ := quick(t, Options{})
			defer c.Close()
			c.least = 1
			set(c)
			mustRead(t, c.Repository(f.host, "app", "", "1"), descriptor(blob), blob)
		})
	})
}

// TestRangeIgnored: where the server sends the whole instead of a range, what is known
// is dropped.
func TestRangeIgnored(t *testing.T) {
	blob := noise(500_000)
	modes(t, func(t *testing.T, set func(*Client)) {
		var tries atomic.Int64
		f := serve(t, func(w http.ResponseWriter, r *http.Request) bool {
			r.Header.Del("Range")
			return cutAfter(w, r, blob, int(tries.Add(1))*150_000)
		})
		c, p, _ := quick(t, Options{})
		set(c)
		mustRead(t, c.Repository(f.host, "app", "", "1"), descriptor(blob), blob)
		if tries.Load() != 4 || len(p.taken()) != 3 {
			t.Errorf("%d tries, pauses %v", tries.Load(), p.taken())
		}
	})
}

// TestRangesStop: a server that does ranges only at first is read as a stream from
// where it stopped.
func TestRangesStop(t *testing.T) {
	blob := noise(500_000)
	var mu sync.Mutex
	n, whole := 0, 0
	f := serve(t, func(w http.ResponseWriter, r *http.Request) bool {
		mu.Lock()
		n++
		if n > 3 {
			r.Header.Del("Range")
			whole++
		}
		mu.Unlock()
		serveBlob(w, r, blob, len(blob))
		return true
	})
	c, _, _ := quick(t, Options{})
	c.everyHost, c.parallel, c.chunk = true, 1, 64<<10
	mustRead(t, c.Repository(f.host, "app", "", "1"), descriptor(blob), blob)
	if whole > atOnce+1 {
		t.Errorf("the whole was asked for %d times", whole)
	}
	noGoroutines(t)
}

// TestRangeWrong: answers to a range that are not to be believed.
func TestRangeWrong(t *testing.T) {
	blob := noise(300_000)
	for name, spoil := range map[string]func(w http.ResponseWriter, r *http.Request){
		"other begin": func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Range", fmt.Sprintf("bytes 0-%d/%d", len(blob)-1, len(blob)))
			w.WriteHeader(http.StatusPartialContent)
			_, _ = w.Write(blob)
		},
		"no Content-Range": func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(http.StatusPartialContent)
			_, _ = w.Write(blob[1:])
		},
		"beyond the end": func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Range", fmt.Sprintf("bytes 100000-%d/*", len(blob)))
			w.WriteHeader(http.StatusPartialContent)
		},
		"416": func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(http.StatusRequestedRangeNotSatisfiable)
		},
		"416 with the right size": func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Range", fmt.Sprintf("bytes */%d", len(blob)))
			w.WriteHeader(http.StatusRequestedRangeNotSatisfiable)
		},
	} {
		t.Run(name, func(t *testing.T) {
			first := true
			f := serve(t, func(w http.ResponseWriter, r *http.Request) bool {
				if first {
					first = false
					return cutAfter(w, r, blob, 100_000)
				}
				if r.Header.Get("Range") != "" {
					spoil(w, r)
					return true
				}
				serveBlob(w, r, blob, len(blob))
				return true
			})
			c, _, _ := quick(t, Options{})
			mustRead(t, c.Repository(f.host, "app", "", "1"), descriptor(blob), blob)
			if got := f.asked(); len(got) != 3 {
				t.Errorf("%d requests", len(got))
			}
		})
	}
}

// TestRangeShort: a range may be answered by less of it.
func TestRangeShort(t *testing.T) {
	blob := noise(300_000)
	f := serve(t, func(w http.ResponseWriter, r *http.Request) bool {
		from, to := 0, 0
		if n, _ := fmt.Sscanf(r.Header.Get("Range"), "bytes=%d-%d", &from, &to); n == 2 {
			r.Header.Set("Range", fmt.Sprintf("bytes=%d-%d", from, min(to, from+49_999)))
		}
		serveBlob(w, r, blob, len(blob))
		return true
	})
	c, _, _ := quick(t, Options{})
	c.everyHost, c.parallel, c.chunk = true, 1, 100_000
	mustRead(t, c.Repository(f.host, "app", "", "1"), descriptor(blob), blob)
}

// TestBlobSizeWrong: not a byte more or less than the descriptor says.
func TestBlobSizeWrong(t *testing.T) {
	blob := noise(300_000)
	for _, announced := range []bool{true, false} {
		for _, size := range []int64{299_999, 300_001, 1} {
			modes(t, func(t *testing.T, set func(*Client)) {
				f := serve(t, func(w http.ResponseWriter, r *http.Request) bool {
					if announced {
						serveBlob(w, r, blob, len(blob))
						return true
					}
					if r.Header.Get("Range") != "" {
						serveBlob(w, r, blob, len(blob))
						return true
					}
					_, _ = w.Write(blob[:1])
					_ = http.NewResponseController(w).Flush() // now the length stays unknown
					_, _ = w.Write(blob[1:])
					return true
				})
				c, _, _ := quick(t, Options{})
				set(c)
				d := descriptor(blob)
				d.Size = size
				got, err := read(t, c.Repository(f.host, "app", "", "1"), d)
				if int64(len(got)) > size {
					t.Errorf("%d bytes of %d were given", len(got), size)
				}
				wantFault(t, err, string(d.Digest), f.host, fmt.Sprintf("the manifest says %d", size))
			})
		}
	}
	c, _, _ := quick(t, Options{})
	if _, err := c.Repository("h", "app", "", "1").Blob(t.Context(), oci.Descriptor{Digest: oci.DigestOf(nil), Size: -1}); err == nil {
		t.Error("a negative size was accepted")
	}
}

// TestStalled: a silent server is cut, and the blob goes on.
func TestStalled(t *testing.T) {
	blob := noise(300_000)
	modes(t, func(t *testing.T, set func(*Client)) {
		var mu sync.Mutex
		n := 0
		done := make(chan struct{})
		f := serve(t, func(w http.ResponseWriter, r *http.Request) bool {
			mu.Lock()
			n++
			k := n
			mu.Unlock()
			switch k {
			case 1: // not even a header
				<-done
			case 2:
				serveBlob(w, r, blob, 10_000)
				<-done
			default:
				serveBlob(w, r, blob, len(blob))
			}
			return true
		})
		defer close(done) // before the server waits for its handlers
		c, _, logged := quick(t, Options{})
		c.stall = 50 * time.Millisecond
		set(c)
		mustRead(t, c.Repository(f.host, "app", "", "1"), descriptor(blob), blob)
		if !strings.Contains(logged.String(), errStalled.Error()) {
			t.Errorf("log: %s", logged)
		}
	})
}

// TestStalledForGood: patience with a silent server ends.
func TestStalledForGood(t *testing.T) {
	done := make(chan struct{})
	f := serve(t, func(w http.ResponseWriter, r *http.Request) bool { <-done; return true })
	defer close(done)
	c, _, _ := quick(t, Options{Retries: 3})
	c.stall = 20 * time.Millisecond
	_, err := read(t, c.Repository(f.host, "app", "", "1"), descriptor([]byte("x")))
	wantFault(t, err, "tried 3 times", errStalled.Error(), f.host+" is silent")
}

// TestSlowReader: a reader that takes its time is no fault of the server.
func TestSlowReader(t *testing.T) {
	blob := noise(300_000)
	f := serve(t, func(w http.ResponseWriter, r *http.Request) bool {
		serveBlob(w, r, blob, len(blob))
		return true
	})
	c, p, _ := quick(t, Options{})
	c.stall = 100 * time.Millisecond
	body, err := c.Repository(f.host, "app", "", "1").Blob(t.Context(), descriptor(blob))
	if err != nil {
		t.Fatal(err)
	}
	defer body.Close()
	if _, err := io.ReadFull(body, make([]byte, 1000)); err != nil {
		t.Fatal(err)
	}
	<-time.After(250 * time.Millisecond)
	if rest, err := io.ReadAll(body); err != nil || len(rest) != len(blob)-1000 || len(p.taken()) != 0 {
		t.Errorf("%d bytes, %v, pauses %v", len(rest), err, p.taken())
	}
}

// TestCancel: the end of the context ends everything, wherever it is.
func TestCancel(t *testing.T) {
	blob := noise(1 << 20)
	stop := errors.New("enough")
	modes(t, func(t *testing.T, set func(*Client)) {
		for _, n := range []int{0, 1, 100_000, 300_000} {
			done := make(chan struct{})
			ctx, cancel := context.WithCancelCause(t.Context())
			f := serve(t, func(w http.ResponseWriter, r *http.Request) bool {
				from := 0
				_, _ = fmt.Sscanf(r.Header.Get("Range"), "bytes=%d-", &from) // 0 if there is none
				if n > from {
					serveBlob(w, r, blob, n-from)
				}
				if r.Header.Get("Range") == "" || n < from+64<<10 { // not for a range that is whole
					cancel(stop)
					<-done
				}
				return true
			})
			c, _, _ := quick(t, Options{})
			set(c)
			body, err := c.Repository(f.host, "app", "", "1").Blob(ctx, descriptor(blob))
			if err == nil {
				_, err = io.ReadAll(body)
				_ = body.Close() // the error is what Read gave
			}
			if !errors.Is(err, stop) {
				t.Errorf("after %d bytes: %v", n, err)
			}
			noGoroutines(t)
			close(done)
			f.Close()
		}
	})
}

// TestCloseEarly: one who has enough closes, and nothing is left behind.
func TestCloseEarly(t *testing.T) {
	blob := noise(2 << 20)
	modes(t, func(t *testing.T, set func(*Client)) {
		f := serve(t, nil)
		_, layer, _ := f.push("app", "1", blob)
		c, _, _ := quick(t, Options{Connections: 2})
		set(c)
		for range 5 { // a slot that is not given back would be missed
			body, err := c.Repository(f.host, "app", "", "1").Blob(t.Context(), layer)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadFull(body, make([]byte, 100)); err != nil {
				t.Fatal(err)
			}
			if err := body.Close(); err != nil {
				t.Fatal(err)
			}
			noGoroutines(t)
		}
		if len(c.slots) != 0 {
			t.Errorf("%d slots are still taken", len(c.slots))
		}
	})
}

// TestRangesBound: no more at a time than is allowed, for one blob and over all, and
// no more ahead than the window; and a blob that is not read holds up no other.
func TestRangesBound(t *testing.T) {
	blob := noise(2 << 20)
	var mu sync.Mutex
	now, most := 0, 0
	f := serve(t, func(w http.ResponseWriter, r *http.Request) bool {
		mu.Lock()
		now++
		most = max(most, now)
		mu.Unlock()
		serveBlob(w, r, blob, len(blob))
		mu.Lock()
		now--
		mu.Unlock()
		return true
	})
	c, _, _ := quick(t, Options{Connections: 3})
	c.everyHost, c.parallel, c.chunk = true, 1, 64<<10
	r := c.Repository(f.host, "app", "", "1")
	var idle []io.ReadCloser
	for range 3 {
		body, err := r.Blob(t.Context(), descriptor(blob))
		if err != nil {
			t.Fatal(err)
		}
		defer body.Close()
		idle = append(idle, body)
	}
	mustRead(t, r, descriptor(blob), blob)
	for _, body := range idle {
		if got, err := io.ReadAll(body); err != nil || !slices.Equal(got, blob) {
			t.Fatalf("%d bytes, %v", len(got), err)
		}
	}
	if most > 3+4 { // slots, and the first chunk of each blob
		t.Errorf("%d requests at a time", most)
	}
	if window*chunkSize > 32<<20 {
		t.Error("a blob may take more than 32 MiB")
	}
}

// TestBandwidth: blobs come no faster than is allowed, over all.
func TestBandwidth(t *testing.T) {
	blob := noise(1 << 20)
	modes(t, func(t *testing.T, set func(*Client)) {
		f := serve(t, nil)
		_, layer, _ := f.push("app", "1", blob)
		c, _, _ := quick(t, Options{Bandwidth: 100 << 10})
		set(c)
		var mu sync.Mutex
		begin := time.Now()
		now := begin
		c.now = func() time.Time { mu.Lock(); defer mu.Unlock(); return now }
		c.sleep = func(_ context.Context, d time.Duration) error {
			mu.Lock()
			defer mu.Unlock()
			now = now.Add(d)
			return nil
		}
		mustRead(t, c.Repository(f.host, "app", "", "1"), layer, blob)
		// 10.24 s. Sleepers at the same time each move this clock, never less.
		if d := now.Sub(begin); d < 10*time.Second {
			t.Errorf("1 MiB at 100 KiB/s took %v", d)
		}
	})
}

// TestRangesAtOnce: as many ranges of one blob at a time as are meant, and no more.
func TestRangesAtOnce(t *testing.T) {
	blob := noise(2 << 20)
	var mu sync.Mutex
	now, most := 0, 0
	full := make(chan struct{})
	f := serve(t, func(w http.ResponseWriter, r *http.Request) bool {
		mu.Lock()
		now++
		if most = max(most, now); most == atOnce && now == atOnce {
			select {
			case <-full:
			default:
				close(full)
			}
		}
		mu.Unlock()
		if !strings.HasPrefix(r.Header.Get("Range"), "bytes=0-") {
			select {
			case <-full:
			case <-r.Context().Done():
			}
		}
		mu.Lock()
		now-- // before the client can know that it is answered
		mu.Unlock()
		serveBlob(w, r, blob, len(blob))
		return true
	})
	c, _, _ := quick(t, Options{Connections: 100})
	c.everyHost, c.parallel, c.chunk = true, 1, 64<<10
	mustRead(t, c.Repository(f.host, "app", "", "1"), descriptor(blob), blob)
	if mu.Lock(); most != atOnce {
		t.Errorf("%d ranges at a time", most)
	}
	mu.Unlock()
}

// TestCloseWaiting: Close ends a request that waits for a silent server.
func TestCloseWaiting(t *testing.T) {
	blob := noise(1 << 20)
	modes(t, func(t *testing.T, set func(*Client)) {
		done := make(chan struct{})
		f := serve(t, func(w http.ResponseWriter, r *http.Request) bool {
			serveBlob(w, r, blob, 10)
			<-done
			return true
		})
		defer close(done)
		c, _, _ := quick(t, Options{})
		set(c)
		body, err := c.Repository(f.host, "app", "", "1").Blob(t.Context(), descriptor(blob))
		if err != nil {
			t.Fatal(err)
		}
		closed := make(chan error)
		go func() { closed <- body.Close() }()
		select {
		case err = <-closed:
		case <-time.After(20 * time.Second):
			t.Fatal("Close waits for the server")
		}
		if err != nil {
			t.Error(err)
		}
		noGoroutines(t)
	})
}
