package test

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gangway-hpc/gangway/image/oci"
)

// forger is a registry that knows an image's manifest and configuration, and claims to have
// all blobs.
type forger struct {
	host     string
	manifest []byte
	config   []byte
	decoded  oci.Manifest
}

// newForger learns an image from a hub, and listens.
func newForger(t *testing.T, h *hub, repository, digest string) *forger {
	t.Helper()
	f := &forger{}
	f.manifest = h.get(t, "/v2/"+repository+"/manifests/"+digest)
	var err error
	if f.decoded, err = oci.DecodeManifest(f.manifest); err != nil {
		t.Fatal(err)
	}
	f.config = h.get(t, "/v2/"+repository+"/blobs/"+string(f.decoded.Config.Digest))
	server := httptest.NewServer(f)
	t.Cleanup(server.Close)
	f.host = strings.TrimPrefix(server.URL, "http://")
	return f
}

// get asks the registry behind a hub, as Ann.
func (h *hub) get(t *testing.T, path string) []byte {
	t.Helper()
	q, err := http.NewRequest(http.MethodGet, "http://"+h.plain+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	q.SetBasicAuth("ann", annPass)
	q.Header.Set("Accept", oci.MediaTypeManifest)
	resp, err := http.DefaultClient.Do(q)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s, %v", path, resp.Status, err)
	}
	return b
}

// ServeHTTP implements http.Handler. Layers have the right size and other bytes.
func (f *forger) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch {
	case strings.Contains(r.URL.Path, "/manifests/"):
		w.Header().Set("Content-Type", oci.MediaTypeManifest)
		w.Header().Set("Docker-Content-Digest", string(oci.DigestOf(f.manifest)))
		w.Header().Set("Content-Length", strconv.Itoa(len(f.manifest)))
		_, _ = w.Write(f.manifest) // the client may have gone
	case strings.HasSuffix(r.URL.Path, f.decoded.Config.Digest.Hex()):
		_, _ = w.Write(f.config)
	case strings.Contains(r.URL.Path, "/blobs/"):
		for _, l := range f.decoded.Layers {
			if strings.HasSuffix(r.URL.Path, l.Digest.Hex()) {
				_, _ = w.Write(make([]byte, l.Size))
			}
		}
	}
}

// listen listens where the registry of a hub did, which is killed.
func (f *forger) listen(t *testing.T, h *hub) {
	t.Helper()
	if err := h.registry.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	var l net.Listener
	waitFor(t, func() (ok bool) {
		var err error
		l, err = net.Listen("tcp", h.plain)
		return err == nil
	})
	server := &httptest.Server{Listener: l, Config: &http.Server{Handler: f}}
	server.Start()
	t.Cleanup(server.Close)
}

// gc removes images of the store, as its user.
func (s *shared) gc(args ...string) {
	s.t.Helper()
	owner := &person{dir: s.dir, bin: filepath.Join(s.bin, "gangway"), cred: s.cmd.SysProcAttr.Credential}
	outcomeOf(s.t, owner.command(append([]string{"image", "gc", "--store", filepath.Join(s.dir, "store", "images")}, args...)...)).want(s.t, 0, `.`, ``)
}

// openNumbers are the numbers of a process's open files.
func openNumbers(t *testing.T, pid int) (all []int) {
	t.Helper()
	names, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if n, err := strconv.Atoi(name.Name()); err == nil {
			all = append(all, n)
		}
	}
	return all
}

// garbage sends the service what no client sends. Each connection is closed by it.
func (s *shared) garbage() {
	s.t.Helper()
	frame := func(text string) []byte {
		return append(binary.LittleEndian.AppendUint32(nil, uint32(len(text))), text...)
	}
	for _, b := range [][]byte{
		{0xff, 0xff, 0xff, 0xff},
		{0, 0, 0, 0},
		[]byte("GET / HTTP/1.1\r\n\r\n"), frame("{"), frame("null"), frame("{}"), frame(`{"version":1}`),
		frame(`{"version":99,"image":{"reference":"docker://a.example#b:1"}}`), frame(`{"version":1,"taken":true}`),
		frame(`{"version":1,"hold":{"dir":"/x"}}`), frame(`{"version":1,"hold":{"dir":""}}`), frame(`{"version":1,"credential":{}}`),
		frame(`{"version":1,"image":{"reference":"docker://127.0.0.1:1#b:1","pull":"maybe"}}`),
		frame(`{"version":1,"image":{"reference":"docker://127.0.0.1:1#b:1","max_size":-1}}`),
		frame(`{"version":1,"hold":` + strings.Repeat("[", 100000) + `}`),
	} {
		c, err := net.Dial("unix", s.socket)
		if err != nil {
			s.t.Fatal(err)
		}
		if err := c.SetDeadline(time.Now().Add(seconds)); err != nil {
			s.t.Fatal(err)
		}
		_, _ = c.Write(b) // it may be closed already
		if _, err := io.Copy(io.Discard, c); err != nil && !strings.Contains(err.Error(), "reset") {
			s.t.Errorf("%.60q: the connection stays open: %v", b, err)
		}
		if err := c.Close(); err != nil {
			s.t.Error(err)
		}
	}
}
