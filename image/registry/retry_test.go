package registry

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gangway-hpc/gangway/image/oci"
)

// TestRetryStatus: which answers are worth another try, after what pauses.
func TestRetryStatus(t *testing.T) {
	half := 500 * time.Millisecond
	for _, test := range []struct {
		status int
		header string
		want   []time.Duration
	}{
		{http.StatusTooManyRequests, "7", []time.Duration{7 * time.Second, 7 * time.Second}},
		{http.StatusTooManyRequests, "999999", []time.Duration{maxAsked, maxAsked}},
		{http.StatusTooManyRequests, "", []time.Duration{half, 2 * half}},
		{http.StatusServiceUnavailable, "Fri, 20 Nov 2026 12:00:30 GMT", []time.Duration{30 * time.Second, 30 * time.Second}},
		{http.StatusRequestTimeout, "", []time.Duration{half, 2 * half}},
		{http.StatusInternalServerError, "", []time.Duration{half, 2 * half}},
		{http.StatusBadGateway, "soon", []time.Duration{half, 2 * half}},
		{http.StatusGatewayTimeout, "", []time.Duration{half, 2 * half}},
	} {
		fails := 2
		f := serve(t, func(w http.ResponseWriter, r *http.Request) bool {
			if fails == 0 {
				return false
			}
			fails--
			if test.header != "" {
				w.Header().Set("Retry-After", test.header)
			}
			w.WriteHeader(test.status)
			return true
		})
		want, _, _ := f.push("app", "1", []byte("layer"))
		c, p, _ := quick(t, Options{})
		c.now = func() time.Time { return time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC) }
		d, err := c.Repository(f.host, "app", "", "1").Resolve(t.Context())
		if err != nil || d.Digest != want.Digest || !slices.Equal(p.taken(), test.want) {
			t.Errorf("%d: %v after %v, want %v", test.status, err, p.taken(), test.want)
		}
		if n := f.count("HEAD"); n != 3 {
			t.Errorf("%d: %d requests", test.status, n)
		}
	}
}

// TestStorm: a server that stays in trouble is left alone, and the error says so.
func TestStorm(t *testing.T) {
	for status, hint := range map[int]string{503: "try again later", 429: "docker login", 500: "try again later"} {
		f := serve(t, func(w http.ResponseWriter, r *http.Request) bool {
			w.WriteHeader(status)
			fmt.Fprint(w, `{"errors":[{"code":"X","message":"storm"}]}`)
			return true
		})
		c, p, _ := quick(t, Options{})
		r := c.Repository(f.host, "app", "", "1")
		_, err := r.Manifest(t.Context(), descriptor([]byte("{}")))
		wantFault(t, err, fmt.Sprint(status), "X: storm", "tried 6 times", hint)
		if want := []time.Duration{500 * time.Millisecond, time.Second, 2 * time.Second, 4 * time.Second, 8 * time.Second}; !slices.Equal(p.taken(), want) {
			t.Errorf("pauses %v", p.taken())
		}
		_, err = read(t, r, descriptor([]byte("x")))
		wantFault(t, err, fmt.Sprint(status), "tried 6 times", hint)
	}
}

// TestNoProgress: cuts without progress end, cuts with it do not.
func TestNoProgress(t *testing.T) {
	blob := noise(200_000)
	f := serve(t, func(w http.ResponseWriter, r *http.Request) bool { return cutAfter(w, r, blob, 10_000) })
	c, p, _ := quick(t, Options{Retries: 3})
	c.least = 10_000
	mustRead(t, c.Repository(f.host, "app", "", "1"), descriptor(blob), blob)
	if got := p.taken(); len(got) != 19 || slices.Max(got) > time.Second {
		t.Errorf("pauses %v", got)
	}
	tries := 0
	f = serve(t, func(w http.ResponseWriter, r *http.Request) bool {
		if tries++; tries > 3 {
			return cutAfter(w, r, blob, 0)
		}
		return cutAfter(w, r, blob, 10_000)
	})
	got, err := read(t, c.Repository(f.host, "app", "", "1"), descriptor(blob))
	if err == nil || len(got) != 30_000 {
		t.Fatalf("%d bytes, %v", len(got), err)
	}
	for _, want := range []string{"tried 3 times without progress", "after 30000 of 200000 bytes", string(oci.DigestOf(blob)), f.host} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%v lacks %q", err, want)
		}
	}
}

// TestPause: pauses differ between nodes, and have a bound.
func TestPause(t *testing.T) {
	c := New(Options{})
	other := errors.New("x")
	for tries := 1; tries < 100; tries++ {
		full := min(firstPause<<min(tries-1, 10), maxPause)
		if d := c.pause(tries, other); d < full/2 || d > full {
			t.Fatalf("pause %v after %d tries", d, tries)
		}
	}
	seen := map[time.Duration]bool{}
	for range 5 {
		seen[c.pause(9, other)] = true
	}
	if len(seen) < 2 {
		t.Error("pauses are all the same")
	}
	if d := c.pause(1, &statusError{status: 429, wait: "5"}); d < 5*time.Second || d > 6*time.Second {
		t.Errorf("pause %v", d)
	}
}

// TestSleep: the wait between tries ends with the context.
func TestSleep(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	stop := errors.New("enough")
	f := serve(t, func(w http.ResponseWriter, r *http.Request) bool {
		w.Header().Set("Retry-After", "60")
		w.WriteHeader(http.StatusTooManyRequests)
		cancel(stop)
		return true
	})
	begin := time.Now()
	_, err := New(Options{}).Repository(f.host, "app", "", "1").Resolve(ctx)
	if !errors.Is(err, stop) || time.Since(begin) > 10*time.Second {
		t.Errorf("%v after %v", err, time.Since(begin))
	}
	if err := sleep(t.Context(), time.Millisecond); err != nil {
		t.Error(err)
	}
}

// TestMirrors: mirrors come first, in order, and one that fails is passed over.
func TestMirrors(t *testing.T) {
	blob := noise(100_000)
	self := serve(t, nil)
	want, layer, raw := self.push("app", "1", blob)
	gone := serve(t, nil)
	gone.Close()
	sick := serve(t, func(w http.ResponseWriter, r *http.Request) bool {
		w.WriteHeader(http.StatusServiceUnavailable)
		return true
	})
	lacks := serve(t, nil)
	good := serve(t, nil)
	good.push("cache/hub/app", "1", blob)

	c, _, logged := quick(t, Options{Hosts: map[string]Host{self.host: {Mirrors: []string{
		gone.host, sick.host, lacks.host + "/other", "http://" + good.host + "/cache/hub/",
	}}}})
	r := c.Repository(self.host, "app", "", "1")
	d, err := r.Resolve(t.Context())
	if err != nil || d.Digest != want.Digest {
		t.Fatalf("%+v, %v", d, err)
	}
	if got, err := r.Manifest(t.Context(), d); err != nil || string(got) != string(raw) {
		t.Fatalf("%q, %v", got, err)
	}
	mustRead(t, r, layer, blob)
	if got := self.asked(); len(got) != 0 {
		t.Errorf("the registry itself was asked %q", got)
	}
	if got := sick.asked(); len(got) != 2 { // then it rests
		t.Errorf("the sick mirror was asked %q", got)
	}
	if n := lacks.count("HEAD /v2/other/app/manifests/1"); n != 1 {
		t.Errorf("the mirror with a prefix was asked %q", lacks.asked())
	}
	if got := good.asked(); len(got) != 3 || got[0] != "HEAD /v2/cache/hub/app/manifests/1" {
		t.Errorf("the good mirror was asked %q", got)
	}
	if !strings.Contains(logged.String(), "registry mirror is passed over") {
		t.Errorf("log: %s", logged)
	}

	// All fail: the error names them.
	c, _, _ = quick(t, Options{Hosts: map[string]Host{self.host: {Mirrors: []string{gone.host, lacks.host}}}})
	_, err = c.Repository(self.host, "app", "", "2").Resolve(t.Context())
	wantFault(t, err, self.host, "mirror "+gone.host, "mirror "+lacks.host, "MANIFEST_UNKNOWN")
}

// TestMirrorBreaks: a blob goes on at the registry where the mirror left it, and a
// mirror's lie about a manifest is not believed.
func TestMirrorBreaks(t *testing.T) {
	blob := noise(300_000)
	self := serve(t, nil)
	d, layer, raw := self.push("app", "1", blob)
	var cuts atomic.Int64
	mirror := serve(t, func(w http.ResponseWriter, r *http.Request) bool {
		if strings.Contains(r.URL.Path, "/manifests/") {
			fmt.Fprint(w, "{}")
			return true
		}
		if cuts.Add(1) > 1 {
			panic(http.ErrAbortHandler)
		}
		return cutAfter(w, r, blob, 100_000)
	})
	k := ann()
	c, _, _ := quick(t, Options{Credentials: k, Hosts: map[string]Host{self.host: {Mirrors: []string{mirror.host}}}})
	r := c.Repository(self.host, "app", "", "1")
	if got, err := r.Manifest(t.Context(), d); err != nil || string(got) != string(raw) {
		t.Fatalf("%q, %v", got, err)
	}
	self.asked()
	mustRead(t, r, layer, blob)
	if got, n := self.asked(), mirror.count("GET /v2/app/blobs/"); len(got) != 1 || n != 2 {
		t.Errorf("the registry was asked %q, the mirror %d times", got, n)
	}
}

// TestMirrorCredentials: a mirror gets its own credential, never the registry's.
func TestMirrorCredentials(t *testing.T) {
	demand := func(w http.ResponseWriter, r *http.Request) bool {
		if _, _, ok := r.BasicAuth(); ok {
			return false
		}
		w.Header().Set("WWW-Authenticate", `Basic realm="x"`)
		w.WriteHeader(http.StatusUnauthorized)
		return true
	}
	mirror := serve(t, demand)
	mirror.push("app", "1", []byte("layer"))
	k := ann()
	c, _, _ := quick(t, Options{Credentials: k, Hosts: map[string]Host{"registry.example": {Mirrors: []string{mirror.host}}}})
	if _, err := c.Repository("registry.example", "app", "", "1").Resolve(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(k.asked, []string{mirror.host + " app "}) {
		t.Errorf("credentials were asked for %q", k.asked)
	}
}
