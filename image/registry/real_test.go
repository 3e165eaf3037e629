package registry

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"
)

// realRegistry starts Debian's docker-registry and returns its host.
func realRegistry(t testing.TB) string {
	t.Helper()
	program, err := exec.LookPath("docker-registry")
	if err != nil {
		t.Skip("needs docker-registry (Debian package docker-registry)")
	}
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
	cmd := exec.Command(program, "serve", config)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have ended
		_ = cmd.Wait()         // killed
	})
	for deadline := time.Now().Add(20 * time.Second); ; {
		resp, err := http.Get("http://" + host + "/v2/")
		if err == nil {
			_ = resp.Body.Close() // it is empty
			return host
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
}

// TestRealRegistry reads from the registry that others run, both ways.
func TestRealRegistry(t *testing.T) {
	host := realRegistry(t)
	blob := noise(40 << 20)
	want, layer, raw := pushTo(t, http.DefaultClient, "http://"+host, "team/app", "1", blob)
	for _, parallel := range []bool{false, true} {
		c, p, _ := quick(t, Options{})
		c.everyHost = parallel
		r := c.Repository(host, "team/app", "", "1")
		d, err := r.Resolve(t.Context())
		if err != nil || d.Digest != want.Digest || d.Size != 0 || d.MediaType != manifestType {
			t.Fatalf("%+v, %v", d, err)
		}
		if got, err := r.Manifest(t.Context(), d); err != nil || !slices.Equal(got, raw) {
			t.Fatalf("%q, %v", got, err)
		}
		mustRead(t, r, layer, blob)
		if len(p.taken()) != 0 {
			t.Errorf("pauses %v", p.taken())
		}
		_, err = c.Repository(host, "team/app", "", "2").Resolve(t.Context())
		wantFault(t, err, "MANIFEST_UNKNOWN")
		_, err = c.Repository(host, "nothing", "", "1").Resolve(t.Context())
		wantFault(t, err, "list-tags")
	}
	noGoroutines(t)
}

// BenchmarkBlob compares one connection with parallel ranges where the network is no
// obstacle.
func BenchmarkBlob(b *testing.B) {
	host := realRegistry(b)
	blob := noise(256 << 20)
	for _, parallel := range []bool{false, true} {
		b.Run(fmt.Sprintf("parallel=%v", parallel), func(b *testing.B) {
			_, layer, _ := pushTo(b, http.DefaultClient, "http://"+host, "app", "1", blob)
			c := New(Options{})
			c.everyHost = parallel
			b.SetBytes(int64(len(blob)))
			for b.Loop() {
				body, err := c.Repository(host, "app", "", "1").Blob(b.Context(), layer)
				if err != nil {
					b.Fatal(err)
				}
				n, err := io.Copy(io.Discard, body)
				if err != nil || n != layer.Size {
					b.Fatal(n, err)
				}
				_ = body.Close() // it was read to its end
			}
		})
	}
}
