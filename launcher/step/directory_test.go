package step

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestDirRootStranger: of a directory that somebody else changes at the same time nothing is
// read that is not in it, and nothing is waited for.
func TestDirRootStranger(t *testing.T) {
	dir, secret := t.TempDir(), filepath.Join(t.TempDir(), "secret")
	writeAll(t, dir, "etc/real")
	if err := errors.Join(os.WriteFile(secret, []byte("secret"), 0o644), unix.Mkfifo(filepath.Join(dir, "etc/pipe"), 0o644),
		os.Symlink("pipe", filepath.Join(dir, "etc/to-pipe")), os.Symlink(secret, filepath.Join(dir, "etc/out")),
		os.MkdirAll(filepath.Join(dir, strings.Repeat("d/", maxDepth)), 0o755)); err != nil {
		t.Fatal(err)
	}
	d, err := openDirRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer d.close()
	within(t, func() {
		for name, want := range map[string]error{
			"etc/pipe": fs.ErrInvalid, "etc/to-pipe": fs.ErrInvalid, "etc/out": fs.ErrNotExist, "etc/real/x": syscall.ENOTDIR,
			strings.Repeat("d/", maxDepth) + "x": syscall.ENAMETOOLONG, "etc/none": fs.ErrNotExist,
		} {
			if f, err := d.FS().Open(name); !errors.Is(err, want) || f != nil {
				t.Errorf("%.30s: %v, %v", name, f, err)
			}
			if _, err := d.ReadFile("/"+name, 10); !errors.Is(err, want) {
				t.Errorf("%.30s: %v", name, err)
			}
		}
		if _, err := d.ReadFile("/etc", 10); !errors.Is(err, fs.ErrInvalid) {
			t.Errorf("a directory: %v", err)
		}
		if list, err := fs.ReadDir(d.FS(), "etc"); err != nil || len(list) != 4 {
			t.Errorf("%v, %v", list, err)
		}
	})

	// One name is by turns a file, a link to the outside and a pipe.
	file, turns := filepath.Join(dir, "etc/turns"), filepath.Join(dir, "next")
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for n := 0; ; n++ {
			select {
			case <-stop:
				return
			default:
			}
			switch n % 3 {
			case 0:
				_ = os.WriteFile(turns, []byte("own"), 0o644) // what is missing is seen below
			case 1:
				_ = os.Symlink(secret, turns)
			case 2:
				_ = unix.Mkfifo(turns, 0o644)
			}
			_ = os.Rename(turns, file)
		}
	}()
	within(t, func() {
		read := 0
		for end := time.Now().Add(time.Second); time.Now().Before(end); {
			b, err := d.ReadFile("/etc/turns", 10)
			if err == nil {
				read++
			}
			if err == nil && string(b) != "own" && len(b) > 0 {
				t.Errorf("read %q", b)
				return
			}
		}
		if read == 0 {
			t.Error("nothing was read")
		}
	})
	close(stop)
	<-stopped
	if names, err := os.ReadDir("/proc/self/fd"); err != nil || len(names) > 100 {
		t.Errorf("%d files are open, %v", len(names), err)
	}
}

// within fails a test that waits for something.
func within(t *testing.T, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	select {
	case <-done:
	case <-time.After(20 * time.Second):
		t.Fatal("something is waited for")
	}
}
