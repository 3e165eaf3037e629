package test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gangway-hpc/gangway/image/oci"
)

// startRegistry starts Debian's docker-registry with the images that scripts pull:
// team/torch:1 and team/torch:2, which share their first layer, and team/busybox:1,
// which can be run. It returns its address.
func startRegistry(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	host := l.Addr().String()
	if err := l.Close(); err != nil { // the registry binds it
		t.Fatal(err)
	}
	dir := t.TempDir()
	config := filepath.Join(dir, "config.yml")
	text := fmt.Sprintf("version: 0.1\nlog: {level: error}\nstorage: {filesystem: {rootdirectory: %s}}\nhttp: {addr: %q}\n", filepath.Join(dir, "data"), host)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("docker-registry", "serve", config)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	runtime.LockOSThread() // Pdeathsig is of the thread that starts it
	if err := cmd.Start(); err != nil {
		t.Fatalf("install the packages docker-registry and skopeo: %v", err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		runtime.UnlockOSThread()
	})
	for deadline := time.Now().Add(20 * time.Second); ; {
		resp, err := http.Get("http://" + host + "/v2/")
		if err == nil {
			_ = resp.Body.Close()
			break
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
	base := map[string]string{"etc/os": "debian\n", "bin/sh": "#!\n"}
	for name, layers := range map[string][]map[string]string{
		"torch:1":   {base, {"version": "one\n"}},
		"torch:2":   {base, {"version": "two\n"}},
		"busybox:1": {busybox(t), {"etc/os": "debian\n", "tmp/": ""}},
	} {
		layout := writeLayout(t, layers...)
		push := exec.Command("skopeo", "--insecure-policy", "copy", "-q", "--preserve-digests", "--dest-no-creds", "--dest-tls-verify=false",
			"oci:"+layout, "docker://"+host+"/team/"+name)
		if out, err := push.CombinedOutput(); err != nil {
			t.Fatalf("push: %v: %s", err, out)
		}
	}
	return host
}

// busybox returns the files of an image that has a shell and the usual commands.
func busybox(t *testing.T) map[string]string {
	t.Helper()
	program, err := os.ReadFile("/bin/busybox")
	if err != nil {
		t.Fatalf("install the package busybox-static: %v", err)
	}
	list, err := exec.Command("/bin/busybox", "--list").Output()
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{"bin/busybox": string(program)}
	for name := range strings.FieldsSeq(string(list)) {
		if name != "busybox" {
			files["bin/"+name] = "-> busybox"
		}
	}
	return files
}

// writeLayout makes an OCI image layout of one image, each layer of some files.
func writeLayout(t *testing.T, layers ...map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "blobs/sha256"), 0o755); err != nil {
		t.Fatal(err)
	}
	put := func(name string, b []byte) {
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	blob := func(mediaType string, v any) oci.Descriptor {
		b, ok := v.([]byte)
		if !ok {
			var err error
			if b, err = json.Marshal(v); err != nil {
				t.Fatal(err)
			}
		}
		d := oci.Descriptor{MediaType: mediaType, Digest: oci.DigestOf(b), Size: int64(len(b))}
		put("blobs/sha256/"+d.Digest.Hex(), b)
		return d
	}
	m := oci.Manifest{SchemaVersion: 2, MediaType: oci.MediaTypeManifest}
	var diffIDs []oci.Digest
	for _, files := range layers {
		raw, zipped := writeTar(t, files)
		diffIDs = append(diffIDs, oci.DigestOf(raw))
		m.Layers = append(m.Layers, blob(oci.MediaTypeLayer+"+gzip", zipped))
	}
	host := oci.HostPlatform()
	m.Config = blob(oci.MediaTypeConfig, map[string]any{
		"os": host.OS, "architecture": host.Architecture, "created": "2026-01-02T03:04:05Z",
		"config": map[string]any{"Env": []string{"PATH=/bin"}, "Cmd": []string{"sh", "-l"}, "WorkingDir": "/work", "User": "nobody"},
		"rootfs": map[string]any{"type": "layers", "diff_ids": diffIDs},
	})
	index, err := json.Marshal(oci.Index{SchemaVersion: 2, Manifests: []oci.Descriptor{blob(oci.MediaTypeManifest, m)}})
	if err != nil {
		t.Fatal(err)
	}
	put("index.json", index)
	put("oci-layout", []byte(`{"imageLayoutVersion":"1.0.0"}`))
	return dir
}

// writeTar returns a tar archive and the same with gzip. A name that ends in a slash is a
// directory's, content that begins with an arrow a symlink's.
func writeTar(t *testing.T, files map[string]string) (raw, zipped []byte) {
	t.Helper()
	var b, z bytes.Buffer
	w := tar.NewWriter(&b)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		content := files[name]
		h := &tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o755, Size: int64(len(content))}
		if to, link := strings.CutPrefix(content, "-> "); link {
			h.Typeflag, h.Linkname, h.Size, content = tar.TypeSymlink, to, 0, ""
		}
		if strings.HasSuffix(name, "/") {
			h.Typeflag = tar.TypeDir
		}
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
	g := gzip.NewWriter(&z)
	if _, err := g.Write(b.Bytes()); err != nil {
		t.Fatal(err)
	}
	if err := g.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes(), z.Bytes()
}
