package image_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	memory "github.com/google/go-containerregistry/pkg/registry"

	"github.com/gangway-hpc/gangway/image"
	"github.com/gangway-hpc/gangway/image/layer"
	"github.com/gangway-hpc/gangway/image/merged"
	"github.com/gangway-hpc/gangway/image/oci"
	"github.com/gangway-hpc/gangway/image/reference"
	"github.com/gangway-hpc/gangway/image/registry"
	"github.com/gangway-hpc/gangway/internal/fault"
	"github.com/gangway-hpc/gangway/internal/fsx"
	"github.com/gangway-hpc/gangway/squashfs"
)

// hub is a registry in memory that counts requests and whose answers a test may
// spoil.
type hub struct {
	*httptest.Server
	host   string
	memory http.Handler

	mu    sync.Mutex
	asked []string // "GET /v2/..."
	spoil func(w http.ResponseWriter, r *http.Request) bool
}

func newHub(t *testing.T) *hub {
	t.Helper()
	h := &hub{memory: memory.New(memory.Logger(log.New(io.Discard, "", 0)))}
	h.Server = httptest.NewServer(h)
	t.Cleanup(h.Close)
	h.host = strings.TrimPrefix(h.URL, "http://")
	return h
}

// ServeHTTP implements http.Handler.
func (h *hub) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h.mu.Lock()
	h.asked = append(h.asked, r.Method+" "+r.URL.Path)
	spoil := h.spoil
	h.mu.Unlock()
	if spoil == nil || !spoil(w, r) {
		h.memory.ServeHTTP(w, r)
	}
}

// spoils sets who answers requests itself (true) or leaves them to the registry.
func (h *hub) spoils(f func(w http.ResponseWriter, r *http.Request) bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.spoil = f
}

// requests returns the requests so far, and forgets them.
func (h *hub) requests() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	all := h.asked
	h.asked = nil
	return all
}

// downloads counts GETs of blobs among requests, by the digest's first 12 digits.
func downloads(requests []string) map[string]int {
	n := map[string]int{}
	for _, r := range requests {
		if _, hex, ok := strings.Cut(r, "/blobs/sha256:"); ok && strings.HasPrefix(r, "GET ") {
			n[hex[:12]]++
		}
	}
	return n
}

// put pushes something without counting it.
func (h *hub) put(t testing.TB, path, mediaType string, body []byte) {
	t.Helper()
	method := http.MethodPut
	if strings.Contains(path, "/blobs/") {
		method = http.MethodPost
	}
	r := httptest.NewRequest(method, "/v2/"+path, bytes.NewReader(body))
	r.Header.Set("Content-Type", mediaType)
	w := httptest.NewRecorder()
	h.memory.ServeHTTP(w, r)
	if w.Code >= 300 {
		t.Fatalf("push %s: %d %s", path, w.Code, w.Body)
	}
}

// push pushes an image under a tag and returns its reference.
func (h *hub) push(t testing.TB, name string, i *picture) string {
	t.Helper()
	repo, tag, _ := strings.Cut(name, ":")
	for _, b := range append([][]byte{i.config}, i.blobs()...) {
		h.put(t, repo+"/blobs/uploads/?digest="+string(oci.DigestOf(b)), "application/octet-stream", b)
	}
	h.put(t, repo+"/manifests/"+tag, i.mediaType, i.manifest)
	return h.host + "/" + name
}

// picture is an image as a registry keeps it.
type picture struct {
	layers    []stratum
	config    []byte
	manifest  []byte
	mediaType string
}

type stratum struct {
	tar, blob []byte
	desc      oci.Descriptor
	diffID    oci.Digest
}

func (i *picture) blobs() [][]byte {
	var all [][]byte
	for _, l := range i.layers {
		all = append(all, l.blob)
	}
	return all
}

func (i *picture) digest() oci.Digest { return oci.DigestOf(i.manifest) }

// twist changes an image's documents before they are written.
type twist struct {
	manifest func(*oci.Manifest)
	diffIDs  func([]oci.Digest)
	config   func([]byte) []byte
}

func paint(t testing.TB, layers ...stratum) *picture { return paintTwisted(t, twist{}, layers...) }

func paintTwisted(t testing.TB, tw twist, layers ...stratum) *picture {
	t.Helper()
	p := &picture{layers: layers, mediaType: oci.MediaTypeManifest}
	m := oci.Manifest{SchemaVersion: 2, MediaType: oci.MediaTypeManifest}
	var diffIDs []oci.Digest
	for _, l := range layers {
		m.Layers = append(m.Layers, l.desc)
		diffIDs = append(diffIDs, l.diffID)
	}
	if tw.diffIDs != nil {
		tw.diffIDs(diffIDs)
	}
	host := oci.HostPlatform()
	p.config = marshal(t, map[string]any{
		"os": host.OS, "architecture": host.Architecture,
		"config": map[string]any{"Env": []string{"PATH=/bin"}, "Cmd": []string{"sh"}},
		"rootfs": map[string]any{"type": "layers", "diff_ids": diffIDs},
	})
	m.Config = oci.Descriptor{MediaType: oci.MediaTypeConfig, Digest: oci.DigestOf(p.config), Size: int64(len(p.config))}
	if tw.config != nil {
		p.config = tw.config(p.config)
	}
	if tw.manifest != nil {
		tw.manifest(&m)
	}
	p.manifest = marshal(t, m)
	return p
}

func marshal(t testing.TB, v any) []byte {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// layerOf is a layer of regular files, in the order of names and contents given.
func layerOf(t testing.TB, nameContent ...string) stratum {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for n := 0; n < len(nameContent); n += 2 {
		content := nameContent[n+1]
		h := &tar.Header{Name: nameContent[n], Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(content))}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, content); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return gzipped(t, b.Bytes())
}

func gzipped(t testing.TB, archive []byte) stratum {
	t.Helper()
	var z bytes.Buffer
	w, err := gzip.NewWriterLevel(&z, gzip.BestSpeed)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(archive); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	l := stratum{tar: archive, blob: z.Bytes(), diffID: oci.DigestOf(archive)}
	l.desc = oci.Descriptor{MediaType: oci.MediaTypeLayer + "+gzip", Digest: oci.DigestOf(l.blob), Size: int64(len(l.blob))}
	return l
}

// noise is n bytes of text that hardly compresses, different for each seed.
func noise(seed uint64, n int) string {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8), 7}).Read(b)
	return string(b)
}

// three is an image of three layers: the largest first, then one that changes it.
func three(t testing.TB, size int) *picture {
	t.Helper()
	return paint(t,
		layerOf(t, "big", noise(1, size), "etc/os", "one", "old", "goes"),
		layerOf(t, "lib/second", noise(2, size/4), "etc/os", "two"),
		layerOf(t, ".wh.old", "", "top", "hello"),
	)
}

// threeTree is what the image of three extracts to.
func threeTree(size int) map[string]string {
	return map[string]string{"big": noise(1, size), "etc/os": "two", "lib/second": noise(2, size/4), "top": "hello"}
}

func open(t testing.TB, dir string) *image.Store {
	t.Helper()
	s, err := image.Open(image.Options{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// newStore is a store in a directory that is not there yet.
func newStore(t testing.TB) *image.Store {
	t.Helper()
	return open(t, filepath.Join(t.TempDir(), "store"))
}

// pull pulls a reference as the command does.
func pull(t testing.TB, s *image.Store, ref string, o image.PullOptions) (image.Image, error) {
	t.Helper()
	// Few tries, so that what never comes ends soon.
	client := registry.New(registry.Options{Retries: 3})
	defer client.Close()
	r, err := reference.Parse(ref)
	if err != nil {
		t.Fatal(err)
	}
	src, err := s.OpenSource(t.Context(), client, r)
	if err != nil {
		return image.Image{}, err
	}
	defer src.Close()
	o.Reference = r.String()
	return s.Pull(t.Context(), src, o)
}

func mustPull(t testing.TB, s *image.Store, ref string) image.Image {
	t.Helper()
	i, err := pull(t, s, ref, image.PullOptions{})
	if err != nil {
		t.Fatalf("pull %s: %s", ref, fault.Text("test", err, false))
	}
	return i
}

// mustBeGood fails unless every file of the store's images is good.
func mustBeGood(t testing.TB, s *image.Store, images int) {
	t.Helper()
	r, err := s.VerifyAll(t.Context(), image.VerifyOptions{Keep: true})
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Problems) > 0 || r.Images != images {
		t.Fatalf("%d images are good, want %d; problems: %+v", r.Images, images, r.Problems)
	}
}

// mustHold fails unless an image's tree has exactly these files.
func mustHold(t testing.TB, s *image.Store, i *image.Image, want map[string]string) {
	t.Helper()
	file := export(t, s, i)
	r, err := squashfs.Open(file, squashfs.ReaderOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	got := map[string]string{}
	err = fs.WalkDir(r.FS(), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := fs.ReadFile(r.FS(), name)
		got[name] = string(b)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range want {
		if g, ok := got[name]; !ok || g != content {
			t.Errorf("%s: there %v, %d bytes, want %d", name, ok, len(g), len(content))
		}
	}
	if len(got) != len(want) {
		t.Errorf("%d files, want %d", len(got), len(want))
	}
}

// export writes an image to a file that it returns.
func export(t testing.TB, s *image.Store, i *image.Image) string {
	t.Helper()
	o, err := s.OpenImage(i, squashfs.ReaderOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer o.Close()
	file := filepath.Join(t.TempDir(), "export.sqsh")
	w, err := squashfs.Create(file, squashfs.WriterOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if err := o.Export(t.Context(), w.Writer, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Commit(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	return file
}

// stored returns the files of a store, by their path in it.
func stored(t testing.TB, s *image.Store) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir(s.Dir(), func(name string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		b, err := os.ReadFile(name)
		rel, _ := filepath.Rel(s.Dir(), name)
		all[rel] = string(b)
		return err
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // killed before there was a store
		t.Fatal(err)
	}
	return all
}

// mustSay fails unless an error's text, as people see it, has all of these and a
// hint.
func mustSay(t testing.TB, err error, want ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error, want %q", want)
	}
	text := fault.Text("gangway", err, false)
	for _, w := range append(want, "gangway: hint: ") {
		if !strings.Contains(text, w) {
			t.Errorf("error says not %q:\n%s", w, text)
		}
	}
}

// needRoot is for what only root can set up.
func needRoot(t testing.TB, what string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: " + what)
	}
}

func isLong() bool { return os.Getenv("GANGWAY_TEST_LONG") != "" }

// checkFiles proves every file that has a final name, also those of no image: what is
// there is whole, whenever a pull was interrupted.
func checkFiles(t testing.TB, s *image.Store) {
	t.Helper()
	for name, content := range stored(t, s) {
		if err := checkFile(filepath.Join(s.Dir(), name), name, content); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
}

func checkFile(path, name, content string) error {
	base := filepath.Base(name)
	if strings.HasPrefix(base, fsx.TempPrefix) {
		return nil
	}
	switch dir, _, _ := strings.Cut(name, "/"); dir {
	case "layers":
		l, err := layer.Open(path, squashfs.ReaderOptions{})
		if err != nil {
			return err
		}
		defer l.Close()
		if l.Info().Digest.Hex()+".sqsh" != base {
			return fmt.Errorf("it is layer %s", l.Info().Digest)
		}
		return layer.Check(context.Background(), l, layer.CheckOptions{})
	case "blobs":
		if oci.DigestOf([]byte(content)).Hex() != base {
			return errors.New("it has another digest")
		}
	case "indexes":
		x, err := merged.Open(path)
		if err != nil {
			return err
		}
		return x.Close()
	case "refs":
		return json.Unmarshal([]byte(content), &image.Image{})
	}
	return nil
}
