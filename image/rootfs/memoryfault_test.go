package rootfs

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"syscall"
	"testing"

	"github.com/gangway-hpc/gangway/image/merged"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// TestFault: when the index or the hot file is cut while a mount is served from them, who
// uses it gets EIO, or what the layers say, and the server lives.
func TestFault(t *testing.T) {
	for _, cut := range []string{"index", "hot"} {
		t.Run(cut, func(t *testing.T) {
			has := file("has", 1)
			has.PAXRecords = map[string]string{"SCHILY.xattr.user.name": "value"}
			m := makeImage(t, []tar.Header{dir("d", 0o755), file("d/x", 1), file("a", hotBlock+5), file("b", hotBlock+5), file("c", 10), symlink("link", "a"), has})
			index := filepath.Join(t.TempDir(), "index")
			must(t, os.WriteFile(index, m.index, 0o600))
			ix, err := merged.Open(index)
			must(t, err)
			first := New(ix, m.layers)
			first.UseHot(index + HotSuffix)
			for _, name := range []string{"/a", "/b"} {
				_, err := first.ReadFile(name, 1<<30)
				must(t, err)
			}
			must(t, first.CloseHot(t.Context()))
			tree := New(ix, m.layers)
			tree.UseHot(index + HotSuffix)
			c := mounted(t, tree, "fault", cut)
			if _, err := c.stdout.Read(make([]byte, 10)); err != nil {
				t.Fatal(err, c.stderr)
			}
			must(t, os.Truncate(map[string]string{"index": index, "hot": index + HotSuffix}[cut], 0))
			must(t, c.stdin.Close())
			c.finish(t)
			if log := c.log.String(); (cut == "index") != strings.Contains(log, "can no longer be read") {
				t.Errorf("the log says:\n%s", log)
			}
			if err := tree.CloseHot(t.Context()); err != nil && cut == "hot" {
				t.Error(err)
			}
			if cut == "hot" {
				if err := CheckHot(index+HotSuffix, ix); err != nil {
					t.Errorf("the hot file was not mended: %v", err)
				}
			}
		})
	}
}

// faultInside uses the mount, says so, and finds what it has not yet used broken.
func faultInside(_ context.Context, dir string, args []string) error {
	for _, name := range []string{"a", "b", "c", "d", "link", "has"} {
		if _, err := os.Lstat(dir + "/" + name); err != nil {
			return err
		}
	}
	if _, err := readDirect(dir + "/a"); err != nil {
		return err
	}
	fmt.Println("used")
	if _, err := os.Stdin.Read(make([]byte, 1)); err != io.EOF {
		return err
	}
	for i := range 3 {
		if args[0] == "hot" {
			// The first time the reply cannot be sent; once the damage is seen the layers serve.
			if _, err := readDirect(dir + "/a"); (i == 0) != errors.Is(err, syscall.EIO) {
				return fmt.Errorf("read what was proved before, time %d: %w", i, err)
			}
			b, err := os.ReadFile(dir + "/b")
			if err != nil || !bytes.Equal(b, content("b", hotBlock+5)) {
				return fmt.Errorf("read what was not: %d bytes, %w", len(b), err)
			}
			continue
		}
		_, lookup := os.Lstat(dir + "/nope")
		_, read := os.ReadFile(dir + "/c")
		_, list := os.ReadDir(dir + "/d")
		_, link := os.Readlink(dir + "/link")
		_, xattr := unix.Getxattr(dir+"/has", "user.name", make([]byte, 100))
		_, xattrs := unix.Listxattr(dir+"/has", make([]byte, 100))
		for what, err := range map[string]error{"lookup": lookup, "read": read, "list": list, "link": link, "xattr": xattr, "xattrs": xattrs} {
			if !errors.Is(err, syscall.EIO) {
				return fmt.Errorf("%s: %w, want EIO", what, err)
			}
		}
	}
	return nil
}

// readDirect reads the begin of a file past the page cache.
func readDirect(path string) (int, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECT, 0)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	b, err := unix.Mmap(-1, 0, hotBlock, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return 0, err
	}
	defer func() { _ = unix.Munmap(b) }()
	return unix.Pread(fd, b, 0)
}

// TestOtherPanics: only faults of memory are made errors.
func TestOtherPanics(t *testing.T) {
	defer func() {
		if r := recover(); r != "mine" {
			t.Errorf("recovered %v", r)
		}
	}()
	func() (err error) {
		defer caught(debug.SetPanicOnFault(true), &err)
		panic("mine")
	}()
}

// BenchmarkLookup: what Lookup takes, with the guard against faults.
func BenchmarkLookup(b *testing.B) {
	m := makeImage(b, []tar.Header{file("a", 1), file("b", 1), file("c", 1)})
	f := newFileSystem(m.Tree, &ServeOptions{}, nil)
	h := &fuse.InHeader{NodeId: 1}
	var out fuse.EntryOut
	for b.Loop() {
		if s := f.Lookup(nil, h, "b", &out); !s.Ok() {
			b.Fatal(s)
		}
	}
}
