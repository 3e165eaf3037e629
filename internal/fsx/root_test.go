package fsx

import (
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// TestOpenInRootBesideRenames: renames elsewhere, which make the kernel answer EAGAIN
// for "..", are not the caller's concern; and ".." does not leave the root.
func TestOpenInRootBesideRenames(t *testing.T) {
	dir := t.TempDir()
	for _, d := range []string{"root/a/b", "other/x"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	root, err := os.Open(filepath.Join(dir, "root"))
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()

	stop := make(chan struct{})
	var renames sync.WaitGroup
	for _, name := range []string{"one", "two"} {
		from, to := filepath.Join(dir, "other", name), filepath.Join(dir, "other", "x", name)
		if err := os.Mkdir(from, 0o755); err != nil {
			t.Fatal(err)
		}
		renames.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if err := errors.Join(os.Rename(from, to), os.Rename(to, from)); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	defer renames.Wait()
	defer close(stop)

	for range 20_000 {
		fd, err := OpenInRoot(int(root.Fd()), "a/b/../../../../a/b/..", unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC})
		if err != nil {
			t.Fatalf("open in root: %v", err)
		}
		unix.Close(fd)
	}
}
