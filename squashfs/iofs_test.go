package squashfs

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	"golang.org/x/sys/unix"
)

func TestFSKeepsTheRules(t *testing.T) {
	dir := t.TempDir()
	for name, data := range map[string]string{"a/b/c": "deep", "hello": "hello\n", "empty": "", "a/long": strings.Repeat("long ", 4000)} {
		must(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755))
		must(t, os.WriteFile(filepath.Join(dir, name), []byte(data), 0o644))
	}
	must(t, os.Symlink("hello", filepath.Join(dir, "link")))
	must(t, os.Symlink("a/b", filepath.Join(dir, "dirlink")))
	must(t, os.Mkdir(filepath.Join(dir, "nothing"), 0o755))
	for _, args := range [][]string{{"-b", "4096", "-comp", "gzip"}, {"-b", "4096", "-comp", "zstd", "-no-exports"}} {
		r := openImage(t, mksquashfs(t, dir, args...), ReaderOptions{})
		must(t, fstest.TestFS(r.FS(), "a/b/c", "hello", "empty", "a/long", "link", "dirlink", "nothing"))
		sub, err := fs.Sub(r.FS(), "a")
		must(t, err)
		must(t, fstest.TestFS(sub, "b/c", "long"))
	}
}

func linkTree(t *testing.T) *Reader {
	t.Helper()
	dir := t.TempDir()
	must(t, os.MkdirAll(filepath.Join(dir, "a/b"), 0o755))
	must(t, os.WriteFile(filepath.Join(dir, "a/b/file"), []byte("found"), 0o644))
	for name, target := range map[string]string{
		"abs": "/a/b/file", "a/rel": "b/file", "a/up": "../a/b/file", "a/far": "../../../../a/b/file",
		"out": "/etc/passwd", "outrel": "../../../etc/passwd", "loop": "loop", "ping": "pong", "pong": "ping",
		"dir": "a/b", "a/b/back": "..", "dangling": "nowhere", "through": "a/b/file/x", "chain0": "a/b/file",
	} {
		must(t, os.Symlink(target, filepath.Join(dir, name)))
	}
	for i := range 60 {
		must(t, os.Symlink("chain"+string(rune('0'+i)), filepath.Join(dir, "chain"+string(rune('1'+i)))))
	}
	return openImage(t, mksquashfs(t, dir), ReaderOptions{})
}

func TestSymlinksStayInside(t *testing.T) {
	v := linkTree(t).FS()
	for _, name := range []string{
		"abs", "a/rel", "a/up", "a/far", "dir/file", "dir/back/b/file", "a/b/back/up", "chain0", "chain1", "chain8",
	} {
		if b, err := fs.ReadFile(v, name); err != nil || string(b) != "found" {
			t.Errorf("%s: %q, %v", name, b, err)
		}
	}
	for _, name := range []string{"out", "outrel", "dangling", "nope", "a/b/nope/x"} {
		if _, err := v.Open(name); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, name := range []string{"loop", "ping", "chain" + string(rune('0'+45))} {
		if _, err := fs.Stat(v, name); !errors.Is(err, errLoop) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, name := range []string{"through", "a/b/file/x"} {
		if _, err := v.Open(name); !errors.Is(err, errNotDir) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestLstatAndReadLink(t *testing.T) {
	v := linkTree(t).FS().(fs.ReadLinkFS)
	fi, err := v.Lstat("dir/back")
	if err != nil || fi.Mode().Type() != fs.ModeSymlink || fi.Size() != 2 {
		t.Errorf("dir/back: %v, %v", fi, err)
	}
	if target, err := v.ReadLink("dir/back"); err != nil || target != ".." {
		t.Errorf("dir/back: %q, %v", target, err)
	}
	if _, err := v.ReadLink("a"); !errors.Is(err, fs.ErrInvalid) {
		t.Errorf("read link of a directory: %v", err)
	}
	fi, err = fs.Stat(v, "dir")
	if err != nil || !fi.IsDir() || fi.Name() != "dir" {
		t.Errorf("dir: %v, %v", fi, err)
	}
	if i, ok := fi.Sys().(*Inode); !ok || i.Type != TypeDir || i.Number == 0 {
		t.Errorf("dir: Sys is %v", fi.Sys())
	}
}

func TestNamesOfAnyBytes(t *testing.T) {
	dir := t.TempDir()
	names := []string{"\xff\xfe", "a\nb", "caf\xe9", "\u65e5\u672c", " ", "-", "...", "a\\b"}
	for _, n := range names {
		must(t, os.Mkdir(filepath.Join(dir, n), 0o755))
		must(t, os.WriteFile(filepath.Join(dir, n, n), []byte(n), 0o644))
	}
	v := openImage(t, mksquashfs(t, dir), ReaderOptions{}).FS()
	for _, n := range names {
		if b, err := fs.ReadFile(v, n+"/"+n); err != nil || string(b) != n {
			t.Errorf("%q: %q, %v", n, b, err)
		}
	}
	count := 0
	must(t, fs.WalkDir(v, ".", func(_ string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			count++
		}
		return err
	}))
	if count != len(names) {
		t.Errorf("%d files, want %d", count, len(names))
	}
	for _, bad := range []string{"", "/", "/a", "a/", "a//b", "./a", "a/./b", "a/..", ".."} {
		if _, err := v.Open(bad); !errors.Is(err, fs.ErrInvalid) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func TestFSSpecialFiles(t *testing.T) {
	dir := t.TempDir()
	must(t, unix.Mkfifo(filepath.Join(dir, "fifo"), 0o600))
	v := openImage(t, mksquashfs(t, dir), ReaderOptions{}).FS()
	f, err := v.Open("fifo")
	must(t, err)
	if _, err := f.Read(make([]byte, 1)); !errors.Is(err, fs.ErrInvalid) {
		t.Errorf("read a fifo: %v", err)
	}
	must(t, f.Close())
	if err := f.Close(); !errors.Is(err, fs.ErrClosed) {
		t.Errorf("close twice: %v", err)
	}
	d, err := v.Open(".")
	must(t, err)
	defer d.Close()
	if _, err := io.ReadAll(d); err == nil {
		t.Error("a directory was read as a file")
	}
}
