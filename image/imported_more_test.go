package image_test

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/gangway-hpc/gangway/image"
	"github.com/gangway-hpc/gangway/image/layer"
	"github.com/gangway-hpc/gangway/image/oci"
)

// TestImportUnreadable has a file that the user may not read.
func TestImportUnreadable(t *testing.T) {
	dir, err := os.MkdirTemp("", "gangway-test-") // that others may enter
	must(t, err)
	defer os.RemoveAll(dir)
	must(t, os.Chmod(dir, 0o755))
	must(t, os.MkdirAll(dir+"/sub", 0o755))
	for _, name := range []string{"/sub/file", "/sub", ""} {
		if name == "/sub/file" {
			must(t, os.WriteFile(dir+name, []byte("x"), 0o600))
		}
		must(t, os.Chmod(dir+name, 0))
		t.Run("dir"+name, func(t *testing.T) {
			if os.Geteuid() == 0 {
				// This thread alone becomes an ordinary user for the file system, and ends
				// with the test.
				runtime.LockOSThread()
				must(t, unix.Setfsuid(65534))
				must(t, unix.Setfsgid(65534))
			}
			src, err := image.NewRootSource(dir, image.RootOptions{})
			if err == nil {
				defer src.Close()
				_, err = src.Resolve(t.Context())
			}
			if !errors.Is(err, fs.ErrPermission) {
				t.Errorf("not refused: %v", err)
			}
			mustSay(t, err, "open "+dir+name+": permission denied", "as a user who may read")
		})
	}
	must(t, os.Chmod(dir, 0o755))
	must(t, os.Chmod(dir+"/sub", 0o755))
}

// TestImportSymlinkRace puts a symlink to a secret in the place of a file and of a
// directory again and again while the tree is read: nothing outside of it is read.
func TestImportSymlinkRace(t *testing.T) {
	base := t.TempDir()
	dir := base + "/rootfs"
	must(t, os.MkdirAll(base+"/outside/sub", 0o755))
	must(t, os.WriteFile(base+"/outside/secret", []byte("classified"), 0o644))
	must(t, os.MkdirAll(dir, 0o755))
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			name := filepath.Join(dir, fmt.Sprint("changing", i%2))
			var err error
			switch i % 4 {
			case 0:
				err = os.WriteFile(name, []byte("inside"), 0o644)
			case 1:
				err = os.Mkdir(name, 0o755)
			case 2:
				err = errors.Join(os.Remove(name), os.Symlink("../outside/secret", name))
			case 3:
				err = errors.Join(os.Remove(name), os.Symlink("../outside", name))
			}
			if err == nil && i%4 > 1 {
				runtime.Gosched()
				err = os.Remove(name)
			}
			if err != nil {
				t.Error(err)
				return
			}
		}
	}()
	read := 0
	for n := 0; n < 500 || read == 0 && n < 50_000; n++ { // it may change each time
		src, err := image.NewRootSource(dir, image.RootOptions{})
		must(t, err)
		if d, err := src.Resolve(t.Context()); err == nil {
			read++
			raw, err := src.Manifest(t.Context(), d)
			must(t, err)
			m, err := oci.DecodeManifest(raw)
			must(t, err)
			blob, err := src.Blob(t.Context(), m.Layers[0])
			must(t, err)
			b, _ := io.ReadAll(blob) // may say that it changed
			must(t, blob.Close())
			if bytes.Contains(b, []byte("classified")) {
				t.Error("what is outside was read")
			}
		} else if !strings.Contains(err.Error(), "changed while it was read") {
			t.Errorf("while it changes: %v", err)
		}
		must(t, src.Close())
	}
	close(stop)
	<-done
	if read == 0 {
		t.Error("the tree was never read")
	}
}

// TestImportLimits has a file and archives beyond the limit of content.
func TestImportLimits(t *testing.T) {
	dir := t.TempDir()
	sparse(t, dir+"/hole", 1<<41)
	zeros := func() string {
		name := filepath.Join(t.TempDir(), "zeros.tar")
		must(t, os.WriteFile(name, gzipped(t, layerOf(t, "zeros", strings.Repeat("\x00", 1<<20)).tar).blob, 0o600))
		return name
	}()
	tenth := t.TempDir()
	sparse(t, tenth+"/hole", 10<<20)
	smaller := imageOf(t, tenth)
	small := layer.Limits{Bytes: 1 << 20}
	for _, c := range []struct {
		file   string
		limits layer.Limits
		what   string
	}{
		{dir, layer.Limits{}, "Bytes"},
		{smaller, small, "Bytes"},
		{smaller, layer.Limits{}, ""},
		{dir, layer.Limits{Bytes: 1 << 42}, ""},
		{zeros, small, "Bytes"},
		{zeros, layer.Limits{}, ""},
	} {
		src, err := image.NewRootSource(c.file, image.RootOptions{Limits: c.limits})
		must(t, err)
		_, err = src.Resolve(t.Context())
		limit, ok := errors.AsType[*layer.LimitError](err)
		if c.what == "" && err != nil || c.what != "" && (!ok || limit.What != c.what) {
			t.Errorf("%s within %+v: %v", c.file, c.limits, err)
		}
		must(t, src.Close())
	}
}

// TestImportHoles writes files with holes at random, which must come out as they are.
func TestImportHoles(t *testing.T) {
	dir := t.TempDir()
	rapid.Check(t, func(rt *rapid.T) {
		f, err := os.Create(dir + "/file")
		must(t, err)
		defer f.Close()
		for range rapid.IntRange(0, 6).Draw(rt, "pieces") {
			at := rapid.Int64Range(0, 2<<20).Draw(rt, "at")
			_, err := f.WriteAt(bytes.Repeat([]byte("d"), rapid.IntRange(1, 200_000).Draw(rt, "len")), at)
			must(t, err)
		}
		must(t, f.Truncate(rapid.Int64Range(0, 3<<20).Draw(rt, "size")))
		mtime := unix.NsecToTimespec(rapid.Int64Range(-3e18, 3e18).Draw(rt, "mtime"))
		must(t, unix.UtimesNanoAt(unix.AT_FDCWD, f.Name(), []unix.Timespec{mtime, mtime}, 0))
		st, err := f.Stat()
		must(t, err)
		want, err := os.ReadFile(f.Name())
		must(t, err)

		blob, _ := layerBlob(t, dir)
		r := tar.NewReader(bytes.NewReader(blob))
		_, err = r.Next()
		must(t, err)
		h, err := r.Next()
		must(t, err)
		got, err := io.ReadAll(r)
		must(t, err)
		if h.Name != "file" || h.Size != st.Size() || !h.ModTime.Equal(st.ModTime()) || h.Mode != int64(st.Mode().Perm()) {
			rt.Errorf("%+v of a file of %d bytes of %v", h, st.Size(), st.ModTime())
		}
		if !bytes.Equal(got, want) {
			rt.Error("another content")
		}
		if _, err := r.Next(); err != io.EOF {
			rt.Errorf("behind the file: %v", err)
		}
	})
}
