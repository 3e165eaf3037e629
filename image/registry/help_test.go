package registry

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/url"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	memory "github.com/google/go-containerregistry/pkg/registry"

	"github.com/gangway-hpc/gangway/image/credential"
	"github.com/gangway-hpc/gangway/image/oci"
	"github.com/gangway-hpc/gangway/internal/fault"
)

const manifestType = "application/vnd.oci.image.manifest.v1+json"

// fake is a registry in memory whose answers a test may spoil.
type fake struct {
	*httptest.Server
	t    *testing.T
	host string

	mu       sync.Mutex
	requests []string // "GET /v2/..."
	headers  []http.Header
}

// spoiler answers a request itself (true) or leaves it to the registry.
type spoiler func(w http.ResponseWriter, r *http.Request) bool

func quiet() *log.Logger { return log.New(io.Discard, "", 0) }

// serve starts a registry; pushes are neither counted nor spoiled.
func serve(t *testing.T, spoil spoiler) *fake { return serveTLS(t, false, spoil) }

func serveTLS(t *testing.T, tls bool, spoil spoiler) *fake {
	t.Helper()
	f := &fake{t: t}
	inner := memory.New(memory.Logger(quiet()))
	f.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Push") == "" {
			f.mu.Lock()
			f.requests = append(f.requests, r.Method+" "+r.URL.Path)
			f.headers = append(f.headers, r.Header.Clone())
			f.mu.Unlock()
			if spoil != nil && spoil(w, r) {
				return
			}
		}
		inner.ServeHTTP(w, r)
	}))
	f.Config.ErrorLog = quiet()
	if tls {
		f.StartTLS()
	} else {
		f.Start()
	}
	t.Cleanup(f.Close)
	f.host = strings.TrimPrefix(strings.TrimPrefix(f.URL, "http://"), "https://")
	return f
}

// asked returns the requests so far, and forgets them.
func (f *fake) asked() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	all := f.requests
	f.requests, f.headers = nil, nil
	return all
}

func (f *fake) count(prefix string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := 0
	for _, r := range f.requests {
		if strings.HasPrefix(r, prefix) {
			n++
		}
	}
	return n
}

// pushTo stores a blob and a manifest that names it, in any registry.
func pushTo(t testing.TB, client *http.Client, base, name, tag string, blob []byte) (manifest, layer oci.Descriptor, raw []byte) {
	t.Helper()
	layer = oci.Descriptor{MediaType: "application/vnd.oci.image.layer.v1.tar", Digest: oci.DigestOf(blob), Size: int64(len(blob))}
	config := []byte("{}")
	for _, b := range [][]byte{blob, config} {
		resp := request1(t, client, http.MethodPost, base+"/v2/"+name+"/blobs/uploads/", "", nil)
		u, err := url.Parse(base)
		if err != nil {
			t.Fatal(err)
		}
		if u, err = u.Parse(resp.Header.Get("Location")); err != nil {
			t.Fatal(err)
		}
		query := u.Query()
		query.Set("digest", string(oci.DigestOf(b)))
		u.RawQuery = query.Encode()
		request1(t, client, http.MethodPut, u.String(), "application/octet-stream", b)
	}
	raw = fmt.Appendf(nil, `{"schemaVersion":2,"mediaType":%q,"config":{"mediaType":"application/vnd.oci.image.config.v1+json","digest":%q,"size":2},"layers":[{"mediaType":%q,"digest":%q,"size":%d}]}`,
		manifestType, oci.DigestOf(config), layer.MediaType, layer.Digest, layer.Size)
	request1(t, client, http.MethodPut, base+"/v2/"+name+"/manifests/"+tag, manifestType, raw)
	return oci.Descriptor{MediaType: manifestType, Digest: oci.DigestOf(raw), Size: int64(len(raw))}, layer, raw
}

func request1(t testing.TB, client *http.Client, method, url, kind string, content []byte) *http.Response {
	t.Helper()
	req, err := http.NewRequest(method, url, bytes.NewReader(content))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-Push", "1")
	req.Header.Set("Content-Type", kind)
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode >= 300 {
		text, _ := io.ReadAll(resp.Body)
		t.Fatalf("%s %s: %s %s", method, url, resp.Status, text)
	}
	return resp
}

func (f *fake) push(name, tag string, blob []byte) (manifest, layer oci.Descriptor, raw []byte) {
	f.t.Helper()
	return pushTo(f.t, f.Client(), f.URL, name, tag, blob)
}

// pauses records what a Client would have waited.
type pauses struct {
	mu  sync.Mutex
	all []time.Duration
}

func (p *pauses) sleep(ctx context.Context, d time.Duration) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.all = append(p.all, d)
	return ctx.Err()
}

func (p *pauses) taken() []time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]time.Duration(nil), p.all...)
}

// quick returns a Client that does not wait between tries, and what it would have
// waited. All it logs is kept.
func quick(t *testing.T, o Options) (*Client, *pauses, *bytes.Buffer) {
	t.Helper()
	var logged lockedBuffer
	o.Log = slog.New(slog.NewTextHandler(&logged, &slog.HandlerOptions{Level: slog.LevelDebug}))
	c := New(o)
	p := &pauses{}
	c.sleep = p.sleep
	c.jitter = func() float64 { return 0 }
	t.Cleanup(func() { _ = c.Close() })
	return c, p, &logged.Buffer
}

type lockedBuffer struct {
	mu sync.Mutex
	bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.Buffer.Write(p)
}

// known is a Credentials of one credential for all hosts, and of who asked.
type known struct {
	credential.Credential
	mu    sync.Mutex
	asked []string
}

func (k *known) Find(_ context.Context, host, repository, user string) (credential.Credential, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.asked = append(k.asked, host+" "+repository+" "+user)
	return k.Credential, nil
}

func (k *known) Looked() []string { return []string{"/a", "/b"} }

func ann() *known {
	return &known{Credential: credential.Credential{Username: "ann", Password: "s3cret-pass", Source: "/home/ann/.docker/config.json"}}
}

// noise returns n bytes that no one can guess.
func noise(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(b) // never fails
	return b
}

// read reads a whole blob.
func read(t *testing.T, r *Repository, d oci.Descriptor) ([]byte, error) {
	t.Helper()
	body, err := r.Blob(t.Context(), d)
	if err != nil {
		return nil, err
	}
	defer body.Close()
	return io.ReadAll(body)
}

func mustRead(t *testing.T, r *Repository, d oci.Descriptor, want []byte) {
	t.Helper()
	got, err := read(t, r, d)
	if err != nil {
		t.Fatalf("read blob: %v", err)
	}
	if !bytes.Equal(got, want) {
		t.Fatalf("read %d bytes, which are not the %d of the blob", len(got), len(want))
	}
}

// wantFault checks that err is for people and that its text holds all of want.
func wantFault(t *testing.T, err error, want ...string) {
	t.Helper()
	var f *fault.Error
	if !errors.As(err, &f) {
		t.Fatalf("error %v (%T) has no remedy", err, err)
	}
	text := fault.Text("gangway", err, false)
	for _, w := range want {
		if !strings.Contains(text, w) {
			t.Errorf("text lacks %q:\n%s", w, text)
		}
	}
}

// noSecret checks that no text holds what is only the registry's to know.
func noSecret(t *testing.T, texts ...string) {
	t.Helper()
	for _, text := range texts {
		for _, secret := range []string{"s3cret", "YW5uOnMzY3JldC1wYXNz", "tok-", "X-Amz-Signature"} {
			if strings.Contains(text, secret) {
				t.Errorf("%q is in %q", secret, text)
			}
		}
	}
}

// noGoroutines waits until none runs code of this package, tests aside.
func noGoroutines(t *testing.T) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); ; runtime.Gosched() {
		buf := make([]byte, 1<<20)
		stacks := string(buf[:runtime.Stack(buf, true)])
		left := ""
		for g := range strings.SplitSeq(stacks, "\n\n") {
			if strings.Contains(g, "registry.(*ranges)") || strings.Contains(g, "registry.(*stream)") || strings.Contains(g, "net/http.(*persistConn).roundTrip") {
				left = g
			}
		}
		if left == "" {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("a goroutine is left:\n%s", left)
		}
	}
}

// cutAfter answers a request for a blob, ranges too, and cuts the connection after n
// bytes of the answer.
func cutAfter(w http.ResponseWriter, r *http.Request, blob []byte, n int) bool {
	serveBlob(w, r, blob, n)
	panic(http.ErrAbortHandler)
}

// serveBlob answers with at most n bytes of what is asked for, whatever it announces.
func serveBlob(w http.ResponseWriter, r *http.Request, blob []byte, n int) {
	from, to := 0, len(blob)-1
	status := http.StatusOK
	if h := r.Header.Get("Range"); h != "" {
		if k, _ := fmt.Sscanf(h, "bytes=%d-%d", &from, &to); k != 2 || from > to || to >= len(blob) {
			w.Header().Set("Content-Range", fmt.Sprintf("bytes */%d", len(blob)))
			w.WriteHeader(http.StatusRequestedRangeNotSatisfiable)
			return
		}
		status = http.StatusPartialContent
		w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", from, to, len(blob)))
	}
	w.Header().Set("Content-Length", fmt.Sprint(to-from+1))
	w.WriteHeader(status)
	_, _ = w.Write(blob[from:min(to+1, from+n)]) // the client may be gone
	_ = http.NewResponseController(w).Flush()
}
