package rootfs

import (
	"archive/tar"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/fstest"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/gangway-hpc/gangway/internal/fsx"
)

// kernel resolves a path below a directory as the kernel does it. The result is as from
// Resolve.
func kernel(root *os.File, dir, path string) (string, error) {
	fd, err := fsx.OpenInRoot(int(root.Fd()), path, unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC})
	if err != nil {
		return "", err
	}
	defer unix.Close(fd)
	got, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
	return "/" + strings.TrimPrefix(strings.TrimPrefix(got, dir), "/"), err
}

// randomTree has few names, so that links and paths meet.
func randomTree(r *rapid.T) []tar.Header {
	name := rapid.SampledFrom([]string{"a", "b", "c"})
	part := rapid.SampledFrom([]string{"a", "b", "c", "..", ".", ""})
	path := func(label string) string {
		return strings.Join(rapid.SliceOfN(name, 1, 3).Draw(r, label), "/")
	}
	var list []tar.Header
	for range rapid.IntRange(1, 8).Draw(r, "entries") {
		switch p := path("path"); rapid.IntRange(0, 3).Draw(r, "type") {
		case 0:
			list = append(list, dir(p, 0o755))
		case 1:
			list = append(list, file(p, 3))
		default:
			target := strings.Join(rapid.SliceOfN(part, 1, 4).Draw(r, "target"), "/")
			if target == "" {
				target = "/"
			}
			list = append(list, symlink(p, target))
		}
	}
	return list
}

func randomPath(r *rapid.T) string {
	part := rapid.SampledFrom([]string{"a", "b", "c", "..", ".", ""})
	return strings.Join(rapid.SliceOfN(part, 1, 5).Draw(r, "path"), "/")
}

// tryImage is makeImage for entries that may contradict each other: then it is nil.
func tryImage(t *testing.T, list []tar.Header) *img {
	for i, h := range list { // a file in the way of a directory is the layer's error, not ours
		for _, other := range list[:i] {
			a, b := strings.TrimSuffix(h.Name, "/"), strings.TrimSuffix(other.Name, "/")
			if a == b || strings.HasPrefix(a, b+"/") && other.Typeflag != tar.TypeDir || strings.HasPrefix(b, a+"/") && h.Typeflag != tar.TypeDir {
				return nil
			}
		}
	}
	return makeImage(t, list)
}

// TestResolveLikeKernel: in trees full of symlinks every path leads to where openat2
// says, in the tree as it is written out, or fails as there. Mountpoint leads to the
// same places, and what it makes is then there.
func TestResolveLikeKernel(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		m := tryImage(t, randomTree(r))
		if m == nil {
			r.Skip()
		}
		dir, err := os.MkdirTemp(t.TempDir(), "")
		must(t, err)
		must(t, m.Extract(t.Context(), dir, ExtractOptions{}))
		root, err := os.Open(dir)
		must(t, err)
		defer root.Close()
		for range 20 {
			path := randomPath(r)
			want, wantErr := kernel(root, dir, path)
			got, kind, err := m.Resolve(path)
			if errno, _ := errors.AsType[syscall.Errno](err); got != want || (wantErr == nil) != (err == nil) || wantErr != nil && errno != wantErr {
				r.Fatalf("Resolve(%q) = %q, %v; the kernel says %q, %v", path, got, err, want, wantErr)
			}
			if info, serr := os.Stat(dir + got); err == nil && (serr != nil || info.IsDir() != (kind == Dir)) {
				r.Fatalf("Resolve(%q): %v, but there is %v", path, kind, info)
			}
		}
		checkMountpoint(r, m, randomPath(r), rapid.Bool().Draw(r, "dir"))
	})
}

func checkMountpoint(r *rapid.T, m *img, path string, dir bool) {
	before, kind, missing := m.Resolve(path)
	got, err := m.Mountpoint(path, dir)
	switch {
	case missing == nil && (kind == Dir) != dir:
		if err == nil {
			r.Fatalf("Mountpoint(%q, %t): no error, though there is a %v", path, dir, kind)
		}
		return
	case missing == nil && (err != nil || got != before):
		r.Fatalf("Mountpoint(%q, %t) = %q, %v, want %q", path, dir, got, err, before)
	case err != nil:
		return // something is in the way, or a trailing slash or dot wants a directory
	}
	again, kind, err := m.Resolve(path)
	if err != nil || again != got || (kind == Dir) != dir {
		r.Fatalf("Mountpoint(%q, %t) = %q, but Resolve gives %q, %v, %v", path, dir, got, again, kind, err)
	}
}

// TestResolveLimits: 40 symlinks are followed, one more is a loop, and names and paths
// have the lengths that Linux gives them.
func TestResolveLimits(t *testing.T) {
	list := []tar.Header{file("l0", 1), symlink("loop", "loop")}
	for i := range 41 {
		list = append(list, symlink(fmt.Sprintf("l%d", i+1), fmt.Sprintf("l%d", i)))
	}
	m := makeImage(t, list)
	for path, want := range map[string]error{
		"l40": nil, "l41": syscall.ELOOP, "loop": syscall.ELOOP, "": syscall.ENOENT, "nope": fs.ErrNotExist,
		"l0/x": syscall.ENOTDIR, "l0/": syscall.ENOTDIR, "l0/..": syscall.ENOTDIR, "a\x00b": syscall.EINVAL,
		strings.Repeat("n", 255): fs.ErrNotExist, strings.Repeat("n", 256): syscall.ENAMETOOLONG,
		strings.Repeat("/", 4095): nil, strings.Repeat("/", 4096): syscall.ENAMETOOLONG,
	} {
		if _, _, err := m.Resolve(path); !errors.Is(err, want) {
			t.Errorf("Resolve(%.20q): %v, want %v", path, err, want)
		}
	}
}

// TestAdd: what is added is where its path leads, hides what was there, and refuses to
// hide what it must not.
func TestAdd(t *testing.T) {
	m := makeImage(t, []tar.Header{
		dir("etc", 0o755), dir("dir", 0o755), file("etc/hosts", 10), symlink("etc/resolv.conf", "../run/missing/resolv.conf"),
		symlink("etc/mtab", "hosts"), symlink("var", "dangling/var"), symlink("up", "../../.."),
		symlink("etc/dirlink", "../dir"), symlink("conf", "etc"), symlink("loop", "loop"),
	})
	add := func(path, want, content string) {
		t.Helper()
		got, err := m.AddFile(path, []byte(content), 0o644)
		if err != nil || got != want {
			t.Errorf("AddFile(%q) = %q, %v, want %q", path, got, err, want)
		}
		if b, err := m.ReadFile(path, 1<<20); err != nil || string(b) != content {
			t.Errorf("ReadFile(%q) = %q, %v", path, b, err)
		}
	}
	add("/conf/mtab", "/etc/mtab", "the path's own symlink is replaced, one on the way is followed")
	if b, err := m.ReadFile("/etc/hosts", 1<<20); err != nil || string(b) != string(content("etc/hosts", 10)) {
		t.Errorf("what the symlink led to is %q, %v", b, err)
	}
	add("etc/resolv.conf", "/etc/resolv.conf", "a symlink that leads nowhere is replaced")
	add("etc/dirlink", "/etc/dirlink", "a symlink to a directory is replaced")
	add("loop", "/loop", "a symlink to itself is replaced")
	add("/var/lib/x", "/dangling/var/lib/x", "below a symlink that leads nowhere")
	add("/new/deep/file", "/new/deep/file", "directories are made")
	add("/new/deep/file", "/new/deep/file", "again")
	add("/up/x", "/x", "not out of the root")
	for path, want := range map[string]error{"/dir": syscall.EISDIR, "/etc/hosts/x": syscall.ENOTDIR, "/": syscall.EISDIR, "/nope/": syscall.EISDIR} {
		if got, err := m.AddFile(path, nil, 0o644); !errors.Is(err, want) {
			t.Errorf("AddFile(%q) = %q, %v, want %v", path, got, err, want)
		}
	}
	if got, err := m.AddLink("/conf/mtab", "../new/deep/file"); err != nil || got != "/etc/mtab" {
		t.Errorf("AddLink = %q, %v", got, err)
	}
	if b, err := m.ReadFile("/etc/mtab", 1<<20); err != nil || string(b) != "again" {
		t.Errorf("through an added symlink: %q, %v", b, err)
	}
	for target, want := range map[string]error{"": syscall.EINVAL, "a\x00b": syscall.EINVAL, strings.Repeat("x", 4096): syscall.ENAMETOOLONG} {
		if _, err := m.AddLink("/link", target); !errors.Is(err, want) {
			t.Errorf("AddLink to %.9q: %v", target, err)
		}
	}
	if _, err := m.AddLink("/dir", "x"); !errors.Is(err, syscall.EISDIR) {
		t.Errorf("AddLink over a directory: %v", err)
	}
	if got, err := m.Mountpoint("/var/lib/data", true); err != nil || got != "/dangling/var/lib/data" {
		t.Errorf("Mountpoint below a dangling symlink = %q, %v", got, err)
	}
	if got, err := m.Mountpoint("/dir", false); !errors.Is(err, syscall.EISDIR) {
		t.Errorf("Mountpoint of a file on a directory = %q, %v", got, err)
	}
	if _, err := m.ReadFile("/etc/hosts", 5); !errors.Is(err, syscall.EFBIG) {
		t.Errorf("ReadFile of a file that is too large: %v", err)
	}
	if m.Exists("/etc/nope") || !m.Exists("/etc/mtab") {
		t.Error("Exists is wrong")
	}
}

// TestExtract: a tree that is written out has hard links, holes, times and modes, and
// errors name what they are about.
func TestExtract(t *testing.T) {
	zeros := func(name string, size int64) []byte {
		if name == "sparse" {
			return append(make([]byte, size-1), 1)
		}
		return content(name, size)
	}
	m := makeImageWith(t, zeros, []tar.Header{
		dir("ro", 0o555), file("ro/f", 10), hardlink("ro/g", "ro/f"), file("sparse", 8<<20), file("big", 3<<20),
		{Name: "suid", Typeflag: tar.TypeReg, Mode: 0o4711},
		symlink("out", "/etc/passwd"),
		{Name: "null", Typeflag: tar.TypeChar, Mode: 0o666, Devmajor: 1, Devminor: 3},
		{Name: "pipe", Typeflag: tar.TypeFifo, Mode: 0o600},
	})
	_, err := m.AddFile("/out2", []byte("added"), 0o640)
	must(t, err)
	to := t.TempDir()
	var warned []string
	must(t, m.Extract(t.Context(), to, ExtractOptions{Warn: func(path string, _ error) { warned = append(warned, path) }}))
	if fmt.Sprint(warned) != "[./null]" {
		t.Errorf("warned of %v", warned)
	}
	stat := func(name string) *syscall.Stat_t {
		info, err := os.Lstat(filepath.Join(to, name))
		must(t, err)
		return info.Sys().(*syscall.Stat_t)
	}
	if a, b := stat("ro/f"), stat("ro/g"); a.Ino != b.Ino || a.Mtim.Nsec != 123_456_789 {
		t.Errorf("hard link: %+v, %+v", a, b)
	}
	if s := stat("ro"); s.Mode != 0o40755 || s.Mtim.Sec != 1_700_000_000 {
		t.Errorf("directory: %+v", s)
	}
	if s := stat("sparse"); s.Blocks*512 > 1<<20 || s.Size != 8<<20 {
		t.Errorf("a file with a hole takes %d bytes", s.Blocks*512)
	}
	if s := stat("suid"); s.Mode != 0o100711 {
		t.Errorf("setuid file: mode %o", s.Mode)
	}
	for _, name := range []string{"big", "sparse"} {
		want, err := m.ReadFile(name, 1<<30)
		must(t, err)
		if got, err := os.ReadFile(filepath.Join(to, name)); err != nil || string(got) != string(want) {
			t.Errorf("%s differs: %v", name, err)
		}
	}
	if err := m.Extract(t.Context(), to, ExtractOptions{}); !errors.Is(err, fs.ErrExist) || !strings.Contains(err.Error(), `"./`) {
		t.Errorf("into a directory that is not empty: %v", err)
	}
}

// TestFS: the tree keeps the rules of package io/fs, and its links lead nowhere else.
func TestFS(t *testing.T) {
	img := makeImage(t, []tar.Header{
		dir("d", 0o755), dir("d/e", 0o700), file("d/e/deep", 300_000), file("top", 5), file("empty", 0), symlink("d/up", "../top"), symlink("abs", "/d/e"),
	})
	tree := img.Tree
	if _, err := tree.AddFile("/d/added", []byte("new"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := tree.AddLink("/d/linked", "e/deep"); err != nil {
		t.Fatal(err)
	}
	if err := fstest.TestFS(tree.FS(), "d/e/deep", "top", "empty", "d/added", "d/linked"); err != nil {
		t.Error(err)
	}
	b, err := fs.ReadFile(tree.FS(), "abs/../up")
	if err == nil {
		t.Errorf("a path with .. gives %q", b)
	}
	if b, err = fs.ReadFile(tree.FS(), "d/up"); err != nil || string(b) != string(content("top", 5)) {
		t.Errorf("%q, %v", b, err)
	}
	if info, err := fs.Stat(tree.FS(), "abs"); err != nil || !info.IsDir() {
		t.Errorf("%v, %v", info, err)
	}
}
