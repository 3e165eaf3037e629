package image_test

import (
	"archive/tar"
	"bytes"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/gangway-hpc/gangway/image"
	"github.com/gangway-hpc/gangway/image/layer"
	"github.com/gangway-hpc/gangway/image/oci"
)

// TestPullRefuses pulls what is wrong in one way each. The error names the thing and
// the remedy; the store stays valid, and has what a good image needs afterwards.
func TestPullRefuses(t *testing.T) {
	base := layerOf(t, "a", "A")
	other := layerOf(t, "b", "B")
	for _, c := range []struct {
		name string
		make func(t *testing.T, h *hub) string // returns the reference
		opts image.PullOptions
		want []string
	}{
		{
			name: "unknown host", make: func(t *testing.T, _ *hub) string { return closedPort(t) + "/team/torch:1" },
			want: []string{"127.0.0.1:", "check the registry's name and port"},
		},
		{
			name: "unknown image", make: func(_ *testing.T, h *hub) string { return h.host + "/team/none:1" },
			want: []string{"/team/none", "404 Not Found", "no repository"},
		},
		{name: "unknown tag", make: func(t *testing.T, h *hub) string {
			return strings.TrimSuffix(h.push(t, "team/torch:1", paint(t, base)), ":1") + ":2"
		}, want: []string{"team/torch:2", "404 Not Found", "skopeo list-tags"}},
		{name: "manifest digest", make: func(t *testing.T, h *hub) string {
			p := paint(t, base)
			h.push(t, "team/torch:1", p)
			h.replaces("/manifests/"+string(p.digest()), append(p.manifest, '\n'))
			return h.host + "/team/torch@" + string(p.digest())
		}, want: []string{"sent another one than asked for", "nothing of it was used"}},
		{name: "manifest digest in index", make: func(t *testing.T, h *hub) string {
			p := paint(t, base)
			h.push(t, "team/torch:1", p)
			ref := h.pushIndex(t, "team/torch:all", p)
			h.replaces("/manifests/"+string(p.digest()), append(p.manifest, '\n'))
			return ref
		}, want: []string{"sent another one than asked for"}},
		{name: "config digest", make: func(t *testing.T, h *hub) string {
			p := paint(t, base)
			h.push(t, "team/torch:1", p)
			h.replaces("/blobs/"+string(oci.DigestOf(p.config)), bytes.ToUpper(p.config))
			return h.host + "/team/torch:1"
		}, want: []string{"configuration", "not those that the manifest names", "push the image again"}},
		{name: "layer digest", make: func(t *testing.T, h *hub) string {
			h.push(t, "team/torch:1", paint(t, base))
			bad := bytes.Clone(base.blob)
			bad[4]++ // the time in gzip's head: it decompresses to the same
			h.replaces("/blobs/"+string(base.desc.Digest), bad)
			return h.host + "/team/torch:1"
		}, want: []string{"layer 1 of 1 (" + base.desc.Digest.Short() + ")", "digest mismatch", "pull again"}},
		{name: "diffID", make: func(t *testing.T, h *hub) string {
			return h.push(t, "team/torch:1", paintTwisted(t, twist{diffIDs: func(d []oci.Digest) { d[0] = other.diffID }}, base))
		}, want: []string{"layer 1 of 1", "diffID mismatch", "push it anew"}},
		{name: "one layer with two diffIDs", make: func(t *testing.T, h *hub) string {
			return h.push(t, "team/torch:1", paintTwisted(t, twist{diffIDs: func(d []oci.Digest) { d[1] = other.diffID }}, base, base))
		}, want: []string{"its content is not what the image's configuration says", "broken or forged"}},
		{name: "wrong count of diffIDs", make: func(t *testing.T, h *hub) string {
			return h.push(t, "team/torch:1", paintTwisted(t, twist{manifest: func(m *oci.Manifest) { m.Layers = m.Layers[:1] }}, base, other))
		}, want: []string{"layers"}},
		{name: "schema 1", make: func(t *testing.T, h *hub) string {
			h.put(t, "team/torch/manifests/1", "application/vnd.docker.distribution.manifest.v1+prettyjws",
				[]byte(`{"schemaVersion":1,"name":"team/torch","tag":"1","fsLayers":[],"history":[]}`))
			return h.host + "/team/torch:1"
		}, want: []string{"schema 1", "push the image again"}},
		{name: "encrypted layer", make: withMediaType(base, oci.MediaTypeLayer+"+gzip+encrypted"), want: []string{"encrypted"}},
		{name: "foreign layer", make: withMediaType(base, "application/vnd.docker.image.rootfs.foreign.diff.tar.gzip"), want: []string{"foreign"}},
		{name: "artefact", make: withMediaType(base, "application/vnd.acme.rocket.v1"), want: []string{"acme.rocket"}},
		{
			name: "decompression bomb", make: withLayer(func(t *testing.T) stratum { return layerOf(t, "zero", strings.Repeat("\x00", 8<<20)) }),
			opts: image.PullOptions{Limits: layer.Limits{Bytes: 1 << 20}}, want: []string{"layer 1 of 1", "unpacks to more than 1048576 bytes", "--max-unpacked"},
		},
		{
			name: "entry bomb", make: withLayer(func(t *testing.T) stratum { return layerOf(t, manyFiles(200)...) }),
			opts: image.PullOptions{Limits: layer.Limits{Entries: 100}}, want: []string{"100 entries", "--max-entries 400"},
		},
		{
			name: "name with ..", make: withLayer(func(t *testing.T) stratum { return layerOf(t, "ok", "", "a/../../etc/passwd", "root::0:0") }),
			want: []string{"a/../../etc/passwd", "ask who publishes"},
		},
		{name: "name with NUL", make: withLayer(func(t *testing.T) stratum { return paxPath(t, "evil\x00name") }), want: []string{"layer 1 of 1"}},
		{
			name: "not a tar", make: withLayer(func(t *testing.T) stratum { return gzipped(t, []byte(strings.Repeat("no tar ", 300))) }),
			want: []string{"layer 1 of 1"},
		},
		{name: "no image for the platform", make: func(t *testing.T, h *hub) string {
			p := paint(t, base)
			h.push(t, "team/torch:1", p)
			return h.pushIndex(t, "team/torch:all", p)
		}, opts: image.PullOptions{Platform: oci.Platform{OS: "linux", Architecture: "s390x"}}, want: []string{"s390x", "--platform"}},
		{
			name: "max size", make: func(t *testing.T, h *hub) string { return h.push(t, "team/torch:1", paint(t, base)) },
			opts: image.PullOptions{MaxSize: 10}, want: []string{"more than the limit of 10 B", "--max-size"},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			h := newHub(t)
			s := newStore(t)
			ref := c.make(t, h)
			_, err := pull(t, s, ref, c.opts)
			mustSay(t, err, c.want...)
			if images, err := s.List(); err != nil || len(images) > 0 {
				t.Errorf("the store lists %v, %v", images, err)
			}
			checkFiles(t, s)
			h.spoils(nil)
			i := mustPull(t, s, h.push(t, "team/good:1", paint(t, base, other)))
			mustHold(t, s, &i, map[string]string{"a": "A", "b": "B"})
			mustBeTidy(t, s)
		})
	}
}

// closedPort is an address where nobody listens.
func closedPort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// replaces makes the hub answer with other bytes of what a path ends with.
func (h *hub) replaces(end string, body []byte) {
	h.spoils(func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.HasSuffix(r.URL.Path, end) {
			return false
		}
		w.Header().Set("Content-Type", oci.MediaTypeManifest)
		_, _ = w.Write(body)
		return true
	})
}

// pushIndex pushes an index of one image of this machine's platform.
func (h *hub) pushIndex(t *testing.T, name string, p *picture) string {
	t.Helper()
	host := oci.HostPlatform()
	raw := marshal(t, oci.Index{SchemaVersion: 2, MediaType: oci.MediaTypeIndex, Manifests: []oci.Descriptor{
		{MediaType: p.mediaType, Digest: p.digest(), Size: int64(len(p.manifest)), Platform: &host},
	}})
	repo, tag, _ := strings.Cut(name, ":")
	h.put(t, repo+"/manifests/"+string(p.digest()), p.mediaType, p.manifest)
	h.put(t, repo+"/manifests/"+tag, oci.MediaTypeIndex, raw)
	return h.host + "/" + name
}

func withMediaType(l stratum, mediaType string) func(*testing.T, *hub) string {
	l.desc.MediaType = mediaType
	return func(t *testing.T, h *hub) string { return h.push(t, "team/torch:1", paint(t, l)) }
}

func withLayer(f func(*testing.T) stratum) func(*testing.T, *hub) string {
	return func(t *testing.T, h *hub) string { return h.push(t, "team/torch:1", paint(t, f(t))) }
}

func manyFiles(n int) []string {
	var all []string
	for i := range n {
		all = append(all, fmt.Sprintf("f%d", i), "")
	}
	return all
}

// paxPath is a layer with one file, whose name is in a PAX record as it is.
func paxPath(t *testing.T, name string) stratum {
	t.Helper()
	record := fmt.Sprintf("%d path=%s\n", len(name)+len("00 path=\n"), name)
	var b bytes.Buffer
	for _, e := range []struct {
		kind    byte
		name    string
		content string
	}{{tar.TypeXHeader, "pax", record}, {tar.TypeReg, "file", ""}} {
		head := make([]byte, 512)
		copy(head, e.name)
		copy(head[100:], "0000644\x000000000\x000000000\x00")
		copy(head[124:], fmt.Sprintf("%011o\x0000000000000\x00", len(e.content)))
		copy(head[148:], "        ")
		head[156] = e.kind
		copy(head[257:], "ustar\x0000")
		sum := 0
		for _, c := range head {
			sum += int(c)
		}
		copy(head[148:], fmt.Sprintf("%06o\x00 ", sum))
		b.Write(head)
		b.WriteString(e.content)
		b.Write(make([]byte, -len(e.content)&511))
	}
	b.Write(make([]byte, 1024))
	return gzipped(t, b.Bytes())
}

// TestPullClaimedDiffID pulls an image whose configuration claims the content of
// another image's layer: neither is that content given out, nor is the good image
// harmed.
func TestPullClaimedDiffID(t *testing.T) {
	h := newHub(t)
	s := newStore(t)
	good, bad := layerOf(t, "secret", "good"), layerOf(t, "trojan", "bad")
	goodRef := h.push(t, "team/good:1", paint(t, good))
	mustPull(t, s, goodRef)
	claim := twist{diffIDs: func(d []oci.Digest) { d[0] = good.diffID }}
	_, err := pull(t, s, h.push(t, "evil/claims:1", paintTwisted(t, claim, bad)), image.PullOptions{})
	mustSay(t, err, "diffID mismatch")
	// The layer is cached, and a configuration lies about it.
	claim = twist{diffIDs: func(d []oci.Digest) { d[0] = bad.diffID }}
	_, err = pull(t, s, h.push(t, "evil/lies:1", paintTwisted(t, claim, good)), image.PullOptions{})
	mustSay(t, err, "its content is not what the image's configuration says", "broken or forged")
	mustBeGood(t, s, 1)
	i := mustPull(t, s, goodRef)
	mustHold(t, s, &i, map[string]string{"secret": "good"})
}

// TestPullTagMoves moves the tag between the first and the second request: the image
// is wholly that which the tag named first.
func TestPullTagMoves(t *testing.T) {
	h := newHub(t)
	s := newStore(t)
	first, second := paint(t, layerOf(t, "v", "1")), paint(t, layerOf(t, "v", "2"))
	ref := h.push(t, "team/torch:1", first)
	var once sync.Once
	h.spoils(func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method != http.MethodHead {
			return false
		}
		rec := httptest.NewRecorder()
		h.memory.ServeHTTP(rec, r)
		once.Do(func() { h.push(t, "team/torch:1", second) })
		maps.Copy(w.Header(), rec.Header())
		w.WriteHeader(rec.Code)
		return true
	})
	i := mustPull(t, s, ref)
	if i.Manifest != first.digest() {
		t.Errorf("got %s, want %s", i.Manifest, first.digest())
	}
	mustHold(t, s, &i, map[string]string{"v": "1"})
	i = mustPull(t, s, ref)
	mustHold(t, s, &i, map[string]string{"v": "2"})
}

// TestPullBadNetwork pulls in spite of a registry that misbehaves now and then.
func TestPullBadNetwork(t *testing.T) {
	const size = 300_000
	var turns atomic.Int32 // of the two refusals; there are more paths than two
	for _, c := range []struct {
		name  string
		spoil func(h *hub, n int, w http.ResponseWriter, r *http.Request) bool // n counts requests of the path
	}{
		{"every connection is cut once", func(h *hub, n int, w http.ResponseWriter, r *http.Request) bool {
			if n > 0 || r.Method == http.MethodHead {
				return false
			}
			cut(h, w, r)
			return true
		}},
		{"ranges are ignored", func(h *hub, n int, w http.ResponseWriter, r *http.Request) bool {
			if n > 0 || r.Method == http.MethodHead {
				r.Header.Del("Range")
				return false
			}
			cut(h, w, r)
			return true
		}},
		{"429 and 503 in turn", func(_ *hub, n int, w http.ResponseWriter, _ *http.Request) bool {
			if n > 0 {
				return false
			}
			w.WriteHeader([]int{http.StatusTooManyRequests, http.StatusServiceUnavailable}[turns.Add(1)%2])
			return true
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			h := newHub(t)
			ref := h.push(t, "team/torch:1", three(t, size))
			var mu sync.Mutex
			times := map[string]int{}
			h.spoils(func(w http.ResponseWriter, r *http.Request) bool {
				mu.Lock()
				n := times[r.URL.Path]
				times[r.URL.Path]++
				mu.Unlock()
				return c.spoil(h, n, w, r)
			})
			s := newStore(t)
			i := mustPull(t, s, ref)
			mustHold(t, s, &i, threeTree(size))
			mustBeTidy(t, s)
		})
	}
}

// cut answers with half of what was asked for, and closes the connection.
func cut(h *hub, w http.ResponseWriter, r *http.Request) {
	rec := httptest.NewRecorder()
	h.memory.ServeHTTP(rec, r)
	maps.Copy(w.Header(), rec.Header())
	w.Header().Set("Content-Length", fmt.Sprint(rec.Body.Len()))
	w.WriteHeader(rec.Code)
	_, _ = w.Write(rec.Body.Bytes()[:rec.Body.Len()/2])
	_ = http.NewResponseController(w).Flush()
	panic(http.ErrAbortHandler)
}

// TestPullNeverComes pulls from a registry that misbehaves all the time: it ends with
// an error, and finishes once the registry is well.
func TestPullNeverComes(t *testing.T) {
	const size = 300_000
	for _, c := range []struct {
		name  string
		spoil func(h *hub, w http.ResponseWriter, r *http.Request)
		want  []string
	}{
		{
			"429", func(_ *hub, w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTooManyRequests) },
			[]string{"429", "docker login"},
		},
		{
			"502", func(_ *hub, w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadGateway) },
			[]string{"502", "try again later"},
		},
		{
			"Content-Length too large", func(_ *hub, w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(make([]byte, 2*size)) },
			[]string{"the manifest says", "push the image again"},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			h := newHub(t)
			pic := three(t, size)
			ref := h.push(t, "team/torch:1", pic)
			h.spoils(func(w http.ResponseWriter, r *http.Request) bool {
				spoilt := strings.HasSuffix(r.URL.Path, string(pic.layers[0].desc.Digest))
				if spoilt {
					c.spoil(h, w, r)
				}
				return spoilt
			})
			s := newStore(t)
			_, err := pull(t, s, ref, image.PullOptions{AtOnce: 1})
			mustSay(t, err, append(c.want, "layer 1 of 3")...)
			checkFiles(t, s)
			h.spoils(nil)
			i := mustPull(t, s, ref)
			mustHold(t, s, &i, threeTree(size))
		})
	}
}
