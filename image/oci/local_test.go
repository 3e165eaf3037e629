package oci_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/gangway-hpc/gangway/image/oci"
)

// run runs a real program.
func run(t *testing.T, dir, name string, args ...string) {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s %v: %v: %s", name, args, err, out)
	}
}

// makeLayout makes an OCI layout with umoci: the image "t" of two layers that hold
// a and b, and "u" of the first alone.
func makeLayout(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	run(t, dir, "umoci", "init", "--layout", "L")
	run(t, dir, "umoci", "new", "--image", "L:t")
	for _, name := range []string{"a", "b"} {
		if err := os.WriteFile(filepath.Join(dir, name), bytes.Repeat([]byte(name), 5000), 0o644); err != nil {
			t.Fatal(err)
		}
		run(t, dir, "umoci", "insert", "--rootless", "--image", "L:t", name, "/"+name)
		if name == "a" {
			run(t, dir, "umoci", "tag", "--image", "L:t", "u")
		}
	}
	run(t, dir, "umoci", "config", "--image", "L:t", "--config.env", "X=y", "--config.cmd", "/a")
	return dir
}

// pull reads a whole image as a pull does, verifies every byte and returns the names
// in its layers.
func pull(t *testing.T, l *oci.Local) (names []string, c oci.Config) {
	t.Helper()
	ctx := t.Context()
	d, err := l.Resolve(ctx)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := l.Manifest(ctx, d)
	if err != nil {
		t.Fatal(err)
	}
	if kind, err := oci.KindOf(raw, d.MediaType); kind != oci.KindManifest || err != nil {
		t.Fatal(kind, err)
	}
	m, err := oci.DecodeManifest(raw)
	if err != nil {
		t.Fatal(err)
	}
	if c, err = oci.DecodeConfig(blob(t, l, m.Config)); err != nil {
		t.Fatal(err)
	}
	if err := oci.CheckConfig(m, c); err != nil {
		t.Fatal(err)
	}
	for i, layer := range m.Layers {
		text := blob(t, l, layer)
		if strings.HasSuffix(layer.MediaType, "gzip") {
			z, err := gzip.NewReader(bytes.NewReader(text))
			if err != nil {
				t.Fatal(err)
			}
			if text, err = io.ReadAll(z); err != nil {
				t.Fatal(err)
			}
		}
		if got := oci.DigestOf(text); got != c.DiffIDs[i] {
			t.Errorf("layer %d: diff_id %s is %s", i, c.DiffIDs[i], got)
		}
		for r := tar.NewReader(bytes.NewReader(text)); ; {
			h, err := r.Next()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			names = append(names, strings.Trim(h.Name, "./"))
		}
	}
	return names, c
}

func blob(t *testing.T, l *oci.Local, d oci.Descriptor) []byte {
	t.Helper()
	r, err := l.Blob(t.Context(), d)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	raw, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Verify(raw); err != nil {
		t.Error(err)
	}
	return raw
}

// wantImage pulls and closes an image that was opened, which must hold names.
func wantImage(t *testing.T, l *oci.Local, err error, names ...string) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if got, _ := pull(t, l); !slices.Equal(got, names) {
		t.Errorf("the layers have %q, want %q", got, names)
	}
}

func TestLayout(t *testing.T) {
	dir := makeLayout(t)
	layout := filepath.Join(dir, "L")
	l, err := oci.OpenLayout(layout, "t", "")
	if err != nil {
		t.Fatal(err)
	}
	if _, c := pull(t, l); !slices.Contains(c.Env, "X=y") || !slices.Equal(c.Cmd, []string{"/a"}) {
		t.Errorf("%+v", c)
	}
	d, err := l.Resolve(t.Context())
	wantImage(t, l, err, "a", "b")
	l, err = oci.OpenLayout(layout, "u", "")
	wantImage(t, l, err, "a")
	l, err = oci.OpenLayout(layout, "", d.Digest)
	wantImage(t, l, err, "a", "b")
	l, err = oci.OpenLayout(layout, "other", d.Digest) // the digest wins
	wantImage(t, l, err, "a", "b")

	_, err = oci.OpenLayout(layout, "", "")
	wantError(t, "no tag", err, "more than one image", "it has: t, u", "...:t")
	_, err = oci.OpenLayout(layout, "v", "")
	wantError(t, "wrong tag", err, `no image "v"`, "it has: t, u", layout)
	_, err = oci.OpenLayout(layout, "", digestA)
	wantError(t, "wrong digest", err, digestA, "no such file")
	_, err = oci.OpenLayout(dir, "t", "")
	wantError(t, "no layout", err, "not an OCI image layout")
	_, err = oci.OpenLayout(filepath.Join(dir, "none"), "t", "")
	wantError(t, "nothing", err, "no such file")
	_, err = oci.OpenLayout(filepath.Join(dir, "a"), "t", "")
	wantError(t, "a file", err, "not a directory", "oci-archive:")

	run(t, dir, "umoci", "rm", "--image", "L:t")
	l, err = oci.OpenLayout(layout, "", "")
	wantImage(t, l, err, "a")
	l, err = oci.OpenLayout(layout, "", d.Digest) // not in the index any more, but still there
	wantImage(t, l, err, "a", "b")
}

// TestLayoutDamage: what is wrong with a blob is said, and no link leads out.
func TestLayoutDamage(t *testing.T) {
	dir := makeLayout(t)
	l, err := oci.OpenLayout(filepath.Join(dir, "L"), "t", "")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	d, err := l.Resolve(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "L/blobs/sha256", d.Digest.Hex())
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	replace := func(do func() error) (error, error) {
		t.Helper()
		if err := errors.Join(os.Remove(path), do()); err != nil {
			t.Fatal(err)
		}
		_, errManifest := l.Manifest(t.Context(), d)
		r, errBlob := l.Blob(t.Context(), d)
		if errBlob == nil {
			_ = r.Close()
		}
		return errManifest, errBlob
	}
	bad := bytes.Clone(good)
	bad[len(bad)/2] ^= 1
	errManifest, _ := replace(func() error { return os.WriteFile(path, bad, 0o600) })
	wantError(t, "flipped", errManifest, "verify "+string(d.Digest), "its digest is")
	errManifest, errBlob := replace(func() error { return os.WriteFile(path, good[:9], 0o600) })
	wantError(t, "cut", errManifest, "9 bytes, not")
	wantError(t, "cut", errBlob, "9 bytes, not")
	outside := filepath.Join(dir, "outside")
	if err := os.WriteFile(outside, good, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, link := range []string{outside, "../../../outside"} {
		errManifest, errBlob = replace(func() error { return os.Symlink(link, path) })
		wantError(t, "link", errManifest, "path escapes")
		wantError(t, "link", errBlob, "path escapes")
	}
	errManifest, errBlob = replace(func() error { return syscall.Mkfifo(path, 0o600) })
	wantError(t, "FIFO", errManifest, "not a regular file")
	wantError(t, "FIFO", errBlob, "not a regular file")
	errManifest, errBlob = replace(func() error { return os.WriteFile(path, good, 0o600) })
	if errManifest != nil || errBlob != nil {
		t.Error(errManifest, errBlob)
	}
	_, err = l.Blob(t.Context(), oci.Descriptor{Digest: "sha256:../../../../outside", Size: 1})
	wantError(t, "digest", err, "lower-case hexadecimal")

	ctx, cancel := context.WithCancelCause(t.Context())
	gone := errors.New("gone")
	cancel(gone)
	_, err1 := l.Resolve(ctx)
	_, err2 := l.Manifest(ctx, d)
	_, err3 := l.Blob(ctx, d)
	for _, err := range []error{err1, err2, err3} {
		if !errors.Is(err, gone) {
			t.Errorf("cancelled: %v", err)
		}
	}
}

// TestArchives: what skopeo and podman write is read, whatever the kind.
func TestArchives(t *testing.T) {
	dir := makeLayout(t)
	for _, to := range []string{"oci-archive:o.tar:t", "oci-archive:bare.tar", "docker-archive:d.tar:torch:1", "docker-archive:n.tar"} {
		run(t, dir, "skopeo", "copy", "--insecure-policy", "-q", "oci:L:t", to)
	}
	file := func(name string) string { return filepath.Join(dir, name) }
	for _, tag := range []string{"", "t"} {
		l, err := oci.OpenArchive(file("o.tar"), tag, "")
		wantImage(t, l, err, "a", "b")
	}
	l, err := oci.OpenArchive(file("bare.tar"), "", "")
	wantImage(t, l, err, "a", "b")
	for _, tag := range []string{"", "torch:1", "docker.io/library/torch:1"} {
		l, err := oci.OpenDockerArchive(t.Context(), file("d.tar"), tag)
		wantImage(t, l, err, "a", "b")
	}
	l, err = oci.OpenDockerArchive(t.Context(), file("n.tar"), "")
	wantImage(t, l, err, "a", "b")

	_, err = oci.OpenArchive(file("o.tar"), "x", "")
	wantError(t, "tag", err, file("o.tar"), `no image "x"`, "it has: t")
	_, err = oci.OpenDockerArchive(t.Context(), file("d.tar"), "torch:2")
	wantError(t, "tag", err, `no image "torch:2"`, "torch:1")
	_, err = oci.OpenDockerArchive(t.Context(), file("n.tar"), "torch:2")
	wantError(t, "tag", err, "no names", "docker save NAME:TAG")
	_, err = oci.OpenArchive(file("d.tar"), "", "")
	wantError(t, "kind", err, "not an OCI image layout", "docker-archive:FILE")
	_, err = oci.OpenDockerArchive(t.Context(), file("o.tar"), "")
	wantError(t, "kind", err, "not of docker save", "oci-archive:FILE")
	_, err = oci.OpenArchive(file("L"), "", "")
	wantError(t, "directory", err, "it is a directory", "oci:"+file("L"))
	_, err = oci.OpenArchive(file("none"), "", "")
	wantError(t, "nothing", err, "no such file")
	if err := syscall.Mkfifo(file("fifo"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = oci.OpenDockerArchive(t.Context(), file("fifo"), "")
	wantError(t, "FIFO", err, "not a regular file")

	for _, c := range []struct{ program, suffix string }{{"gzip", "gz"}, {"xz", "xz"}, {"bzip2", "bz2"}, {"zstd", "zst"}} {
		run(t, dir, c.program, "-k", "d.tar")
		_, err = oci.OpenDockerArchive(t.Context(), file("d.tar."+c.suffix), "")
		wantError(t, c.program, err, "compressed by "+c.program, "unpack it first")
	}
}

// TestTruncated: an archive that ends anywhere is an error, or all of the image is
// before the end.
func TestTruncated(t *testing.T) {
	dir := makeLayout(t)
	run(t, dir, "skopeo", "copy", "--insecure-policy", "-q", "oci:L:t", "docker-archive:d.tar:torch:1")
	good, err := os.ReadFile(filepath.Join(dir, "d.tar"))
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "cut.tar")
	refused := 0
	for n := 0; n < len(good); n += 256 {
		if err := os.WriteFile(path, good[:n], 0o600); err != nil {
			t.Fatal(err)
		}
		l, err := oci.OpenDockerArchive(t.Context(), path, "")
		if err != nil {
			refused++
			continue
		}
		wantImage(t, l, err, "a", "b")
	}
	if refused < len(good)/256/2 {
		t.Errorf("%d of %d refused", refused, len(good)/256)
	}
	if err := os.WriteFile(path, good[:700], 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = oci.OpenDockerArchive(t.Context(), path, "")
	wantError(t, "cut", err, "cut off", "ends after 700 bytes", "save it again")
}

// TestEngines: podman's own save is read, docker is called as it should be, and
// nothing is left behind.
func TestEngines(t *testing.T) {
	dir := makeLayout(t)
	bin, spool := filepath.Join(dir, "bin"), filepath.Join(dir, "spool")
	if err := errors.Join(os.Mkdir(bin, 0o700), os.Mkdir(spool, 0o700)); err != nil {
		t.Fatal(err)
	}
	empty := func(what string) {
		t.Helper()
		if left, err := os.ReadDir(spool); err != nil || len(left) > 0 {
			t.Errorf("%s: %v left, %v", what, left, err)
		}
	}
	storage := fmt.Sprintf("[storage]\ndriver = \"vfs\"\ngraphroot = %q\nrunroot = %q\n", filepath.Join(dir, "graph"), filepath.Join(dir, "run"))
	if err := os.WriteFile(filepath.Join(dir, "storage.conf"), []byte(storage), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("CONTAINERS_STORAGE_CONF", filepath.Join(dir, "storage.conf"))
	run(t, dir, "podman", "import", "-q", makeRootfs(t, dir), "localhost/torch:1")
	l, err := oci.SaveFromEngine(t.Context(), "podman", "localhost/torch:1", spool)
	empty("podman, open")
	wantImage(t, l, err, "etc/motd")
	_, err = oci.SaveFromEngine(t.Context(), "podman", "localhost/none:1", spool)
	wantError(t, "podman", err, "save localhost/none:1 from podman", "cause:", "none")
	empty("podman, no image")

	run(t, dir, "skopeo", "copy", "--insecure-policy", "-q", "oci:L:t", "docker-archive:d.tar:torch:1")
	fake := func(script string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(bin, "docker"), []byte("#!/bin/sh\n"+script), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	fake(`[ "$*" = "save -- torch:1" ] && exec cat ` + filepath.Join(dir, "d.tar"))
	l, err = oci.SaveFromEngine(t.Context(), "docker", "torch:1", spool)
	wantImage(t, l, err, "a", "b")
	fake(`yes 'all is lost' | head -c 100000 >&2; exit 3`)
	_, err = oci.SaveFromEngine(t.Context(), "docker", "torch:1", spool)
	wantError(t, "docker", err, "docker save -- torch:1: exit status 3", "cause:", "all is lost; all is lost")
	if n := len(fmt.Sprint(err)); n > 1000 {
		t.Errorf("the error has %d bytes", n)
	}
	fake("sleep 5 >/dev/null & cat " + filepath.Join(dir, "d.tar"))
	l, err = oci.SaveFromEngine(t.Context(), "docker", "torch:1", spool)
	wantImage(t, l, err, "a", "b")
	var p [2]int
	if err := syscall.Pipe(p[:]); err != nil { // which goes on to every program, as Go does not know of it
		t.Fatal(err)
	}
	defer syscall.Close(p[0])
	defer syscall.Close(p[1])
	fake(fmt.Sprintf("test -e /proc/$$/fd/%d && exit 4; exec cat %s", p[1], filepath.Join(dir, "d.tar")))
	l, err = oci.SaveFromEngine(t.Context(), "docker", "torch:1", spool)
	wantImage(t, l, err, "a", "b")
	fake(`exec head -c 700 ` + filepath.Join(dir, "d.tar"))
	_, err = oci.SaveFromEngine(t.Context(), "docker", "torch:1", spool)
	wantError(t, "cut", err, "cut off")
	empty("docker")

	ctx, cancel := context.WithCancelCause(t.Context())
	gone := errors.New("gone")
	ready := filepath.Join(dir, "ready")
	if err := syscall.Mkfifo(ready, 0o600); err != nil {
		t.Fatal(err)
	}
	fake("sleep 3600 & echo > " + ready + "; wait")
	go func() {
		if _, err := os.ReadFile(ready); err == nil { // returns when it hangs
			cancel(gone)
		}
	}()
	if _, err = oci.SaveFromEngine(ctx, "docker", "torch:1", spool); !errors.Is(err, gone) {
		t.Errorf("cancelled: %v", err)
	}
	empty("cancelled")
	t.Setenv("PATH", spool)
	_, err = oci.SaveFromEngine(t.Context(), "docker", "torch:1", spool)
	wantError(t, "missing", err, `no program "docker"`, "docker save torch:1 -o FILE.tar", "docker-archive:FILE.tar")
	_, err = oci.SaveFromEngine(t.Context(), "docker", "torch:1", filepath.Join(dir, "none"))
	wantError(t, "no directory", err, "no such file")
}

// makeRootfs makes a tar file of a root file system.
func makeRootfs(t *testing.T, dir string) string {
	t.Helper()
	path := filepath.Join(dir, "rootfs.tar")
	if err := os.WriteFile(path, makeTar(t, tarFile("etc/motd", "hello")), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}
