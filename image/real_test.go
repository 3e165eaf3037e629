package image_test

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gangway-hpc/gangway/image"
	"github.com/gangway-hpc/gangway/image/oci"
)

// realHub is Debian's docker-registry behind a proxy that counts requests.
func realHub(t *testing.T) (h *hub, direct string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	direct = l.Addr().String()
	if err := l.Close(); err != nil { // the registry binds it
		t.Fatal(err)
	}
	dir := t.TempDir()
	config := filepath.Join(dir, "config.yml")
	text := fmt.Sprintf("version: 0.1\nlog: {level: error}\nstorage: {filesystem: {rootdirectory: %s}}\nhttp: {addr: %q}\n", filepath.Join(dir, "data"), direct)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("docker-registry", "serve", config)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	// Pdeathsig is of the thread that starts it.
	runtime.LockOSThread()
	if err := cmd.Start(); err != nil {
		t.Fatalf("install the packages docker-registry and skopeo: %v", err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		runtime.UnlockOSThread()
	})
	for deadline := time.Now().Add(20 * time.Second); ; {
		resp, err := http.Get("http://" + direct + "/v2/")
		if err == nil {
			_ = resp.Body.Close()
			break
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
	h = newHub(t)
	h.memory = httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: direct})
	return h, direct
}

// run runs a program that must succeed.
func run(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v: %s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// skopeo pushes an image by way of a layout, as people do.
func skopeo(t *testing.T, host, name string, p *picture) {
	t.Helper()
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "blobs/sha256"), 0o755); err != nil {
		t.Fatal(err)
	}
	files := map[string][]byte{
		"oci-layout": []byte(`{"imageLayoutVersion":"1.0.0"}`),
		"index.json": marshal(t, oci.Index{SchemaVersion: 2, Manifests: []oci.Descriptor{
			{MediaType: p.mediaType, Digest: p.digest(), Size: int64(len(p.manifest))},
		}}),
	}
	for _, b := range append([][]byte{p.config, p.manifest}, p.blobs()...) {
		files["blobs/sha256/"+oci.DigestOf(b).Hex()] = b
	}
	for name, b := range files {
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	run(t, "skopeo", "--insecure-policy", "copy", "-q", "--preserve-digests", "--dest-no-creds", "--dest-tls-verify=false", "oci:"+dir, "docker://"+host+"/"+name)
}

// TestRealRegistry pulls from the registry that others run, and counts its requests.
func TestRealRegistry(t *testing.T) {
	const size = 12_000_000
	h, direct := realHub(t)
	s := newStore(t)
	first := three(t, size)
	skopeo(t, direct, "team/torch:1", first)
	ref := h.host + "/team/torch:1"
	i := mustPull(t, s, ref)
	if got := downloads(h.requests()); len(got) != 4 {
		t.Errorf("blobs fetched: %v, want 3 layers and the configuration", got)
	}
	if i.Manifest != first.digest() {
		t.Errorf("pulled %s, want %s", i.Manifest, first.digest())
	}
	mustHold(t, s, &i, threeTree(size))
	mustBeGood(t, s, 1)

	// By tag a cached image costs one request, by digest none.
	mustPull(t, s, ref)
	if got := h.requests(); !slices.Equal(got, []string{"HEAD /v2/team/torch/manifests/1"}) {
		t.Errorf("requests %q", got)
	}
	for range 2 {
		mustPull(t, s, h.host+"/team/torch@"+string(i.Manifest))
		if got := h.requests(); len(got) != 0 {
			t.Errorf("requests %q", got)
		}
	}

	// Of another image only what is its own is fetched.
	top := layerOf(t, "mine", "yes")
	second := paint(t, first.layers[0], first.layers[1], top)
	skopeo(t, direct, "team/other:1", second)
	j := mustPull(t, s, h.host+"/team/other:1")
	want := map[string]int{top.desc.Digest.Short(): 1, oci.DigestOf(second.config).Short(): 1}
	if got := downloads(h.requests()); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("blobs fetched %v, want %v", got, want)
	}
	tree := threeTree(size)
	delete(tree, "top")
	tree["mine"], tree["old"] = "yes", "goes"
	mustHold(t, s, &j, tree)

	// The same when the tag moves to an image with a small layer changed.
	top = layerOf(t, "mine", "still")
	second = paint(t, first.layers[0], first.layers[1], top)
	skopeo(t, direct, "team/other:1", second)
	j = mustPull(t, s, h.host+"/team/other:1")
	want = map[string]int{top.desc.Digest.Short(): 1, oci.DigestOf(second.config).Short(): 1}
	if got := downloads(h.requests()); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("blobs fetched %v, want %v", got, want)
	}
	tree["mine"] = "still"
	mustHold(t, s, &j, tree)
	mustBeGood(t, s, 3)

	d, err := s.Describe(&j)
	if err != nil || !slices.Equal(d.Config.Cmd, []string{"sh"}) || len(d.Manifest.Layers) != 3 || d.Files != 8 {
		t.Errorf("%+v, %v", d, err)
	}
	checkPeers(t, export(t, s, &j), tree)
}

// checkPeers reads an export with unsquashfs and the kernel.
func checkPeers(t *testing.T, file string, want map[string]string) {
	t.Helper()
	dirs := []string{filepath.Join(t.TempDir(), "unpacked")}
	run(t, "unsquashfs", "-q", "-n", "-d", dirs[0], file)
	if os.Geteuid() == 0 {
		dir := t.TempDir()
		run(t, "mount", "-o", "loop,ro", "-t", "squashfs", file, dir)
		t.Cleanup(func() { run(t, "umount", dir) })
		dirs = append(dirs, dir)
	} else {
		t.Log("needs root: mount with the kernel; unsquashfs only")
	}
	for _, dir := range dirs {
		for name, content := range want {
			if got, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(got) != content {
				t.Errorf("%s: %d bytes, %v; want %d", name, len(got), err, len(content))
			}
		}
	}
}

// TestPullIsDeterministic pulls with one processor and with several, and in another
// order: all files of layers and the index are the same.
func TestPullIsDeterministic(t *testing.T) {
	h := newHub(t)
	ref := h.push(t, "team/torch:1", three(t, 3_000_000))
	var all []map[string]string
	for _, processors := range []int{1, 2, 7} {
		before := runtime.GOMAXPROCS(processors)
		s := newStore(t)
		_, err := pull(t, s, ref, image.PullOptions{AtOnce: processors})
		runtime.GOMAXPROCS(before)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, stored(t, s))
	}
	n := 0
	for name, content := range all[0] {
		if strings.HasPrefix(name, "refs/") || strings.HasPrefix(name, "locks/") {
			continue
		}
		n++
		for _, other := range all[1:] {
			if other[name] != content {
				t.Errorf("%s differs", name)
			}
		}
	}
	if n != 6 {
		t.Errorf("%d files compared, want 3 layers, an index, a manifest, a configuration", n)
	}
}
