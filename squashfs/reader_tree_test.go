package squashfs

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// needTool skips the test where a program is not installed.
func needTool(t testing.TB, name string) {
	t.Helper()
	if _, err := exec.LookPath(name); err != nil {
		t.Skipf("needs %s", name)
	}
}

func runTool(t testing.TB, name string, args ...string) {
	t.Helper()
	needTool(t, name)
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
}

// mksquashfs makes an image of dir, and returns its path.
func mksquashfs(t testing.TB, dir string, args ...string) string {
	t.Helper()
	img := filepath.Join(t.TempDir(), "mk.sqfs")
	runTool(t, "mksquashfs", append([]string{dir, img, "-noappend", "-no-progress", "-quiet"}, args...)...)
	return img
}

func openImage(t testing.TB, path string, o ReaderOptions) *Reader {
	t.Helper()
	r, err := Open(path, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func pattern(seed uint64, n int) []byte {
	rnd := rand.New(rand.NewPCG(seed, 1))
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(rnd.IntN(7)) // compresses, but not to nothing
	}
	return b
}

func noise(seed uint64, n int) []byte {
	rnd := rand.New(rand.NewPCG(seed, 2))
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(rnd.Uint32())
	}
	return b
}

// richTree makes a tree with every kind of inode that the user may make, of
// files up to about size bytes.
func richTree(t testing.TB, size int) string {
	t.Helper()
	dir := t.TempDir()
	put := func(name string, data []byte, perm os.FileMode) {
		t.Helper()
		p := filepath.Join(dir, name)
		must(t, os.MkdirAll(filepath.Dir(p), 0o755))
		must(t, os.WriteFile(p, data, 0o600))
		must(t, os.Chmod(p, perm))
	}
	put("empty", nil, 0o644)
	put("hello", []byte("hello\n"), 0o600)
	put("a/b/c/deep", []byte("deep"), 0o644)
	put("text", pattern(1, size+77), 0o644)
	put("noise", noise(2, size/2+5), os.ModeSetuid|0o755)
	put("blocks", pattern(3, (size/4096+1)*4096), os.ModeSetgid|0o755)
	put("copy-of-text", pattern(1, size+77), 0o640)
	put("high\xff\xfe", []byte("name"), 0o644)
	put("high-\u00e9", []byte("name"), 0o644)
	put(strings.Repeat("n", 255), []byte("long"), 0o644)
	for i := range 600 {
		put(fmt.Sprintf("many/file-%04d-%s", i, strings.Repeat("x", i%40)), []byte{byte(i)}, 0o644)
	}
	must(t, os.Mkdir(filepath.Join(dir, "nothing"), 0o700))
	must(t, os.Mkdir(filepath.Join(dir, "sticky"), 0o755))
	must(t, os.Chmod(filepath.Join(dir, "sticky"), 0o777|os.ModeSticky))
	must(t, os.Link(filepath.Join(dir, "text"), filepath.Join(dir, "a/hard")))
	must(t, os.Link(filepath.Join(dir, "empty"), filepath.Join(dir, "a/hard-empty")))
	must(t, os.Symlink("b/c", filepath.Join(dir, "a/link")))
	must(t, os.Symlink("/hello", filepath.Join(dir, "abs")))
	must(t, os.Symlink(strings.Repeat("x/", 2000)+"y", filepath.Join(dir, "long-link")))
	sparse(t, filepath.Join(dir, "sparse"), int64(size)*3)
	sparse(t, filepath.Join(dir, "all-hole"), int64(size)+3)
	must(t, os.Truncate(filepath.Join(dir, "all-hole"), 0))
	must(t, os.Truncate(filepath.Join(dir, "all-hole"), int64(size)+3))
	must(t, os.Chtimes(filepath.Join(dir, "hello"), time.Unix(1, 0), time.Unix(1234567, 0)))
	specials(t, dir)
	return dir
}

func sparse(t testing.TB, path string, size int64) {
	t.Helper()
	f, err := os.Create(path)
	must(t, err)
	_, err = f.WriteAt([]byte("middle"), size/2)
	must(t, err)
	must(t, f.Truncate(size))
	must(t, f.Close())
}

// specials makes what only root may make.
func specials(t testing.TB, dir string) {
	t.Helper()
	must(t, unix.Mkfifo(filepath.Join(dir, "fifo"), 0o600))
	if os.Geteuid() != 0 {
		return
	}
	must(t, unix.Mknod(filepath.Join(dir, "char"), unix.S_IFCHR|0o600, int(unix.Mkdev(5, 300))))
	must(t, unix.Mknod(filepath.Join(dir, "block"), unix.S_IFBLK|0o600, int(unix.Mkdev(259, 70000))))
	must(t, unix.Mknod(filepath.Join(dir, "sock"), unix.S_IFSOCK|0o600, 0))
	must(t, os.Lchown(filepath.Join(dir, "hello"), 1000, 2000))
	must(t, os.Lchown(filepath.Join(dir, "abs"), 100000, 4000000000))
	long := strings.Repeat("value", 700)
	for _, x := range [][3]string{
		{"text", "user.mime", "text/plain"},
		{"text", "trusted.overlay.x", "y"},
		{"text", "user.long", long},
		{"noise", "user.long", long},
		{"hello", "user.empty", ""},
		{"a", "trusted.overlay.opaque", "y"},
		{"abs", "trusted.on.link", "v\x00w"},
		{"fifo", "trusted.on.fifo", "f"},
		{"char", "security.thing", "c"},
	} {
		err := unix.Lsetxattr(filepath.Join(dir, x[0]), x[1], []byte(x[2]), 0)
		if err != nil && !errors.Is(err, unix.ENOTSUP) {
			t.Fatalf("set %s on %s: %v", x[1], x[0], err)
		}
	}
}

// compareTree proves that the image holds the tree at dir.
func compareTree(t *testing.T, r *Reader, dir string) {
	t.Helper()
	compareTreeLinks(t, r, dir, map[uint64]uint32{})
}

// compareTreeLinks does not compare hard links if links is nil.
func compareTreeLinks(t *testing.T, r *Reader, dir string, links map[uint64]uint32) {
	t.Helper()
	root, err := r.Root()
	must(t, err)
	var walk func(path string, i Inode)
	walk = func(path string, i Inode) {
		compareInode(t, r, path, i, links)
		if i.Type != TypeDir {
			return
		}
		host, err := os.ReadDir(path)
		must(t, err)
		slices.SortFunc(host, func(a, b os.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
		k := 0
		for e, err := range r.ReadDir(i) {
			if err != nil {
				t.Fatalf("%s: %v", path, err)
			}
			if k >= len(host) || host[k].Name() != e.Name {
				t.Fatalf("%s: entry %d is %q", path, k, e.Name)
			}
			k++
			child, err := r.Lookup(i, e.Name)
			if err != nil {
				t.Fatalf("%s: %v", path, err)
			}
			walk(filepath.Join(path, e.Name), child)
		}
		if k != len(host) {
			t.Fatalf("%s: %d entries, want %d", path, k, len(host))
		}
	}
	walk(dir, root)
}

// links has numbers of the image by inodes of the host.
func compareInode(t *testing.T, r *Reader, path string, i Inode, links map[uint64]uint32) {
	t.Helper()
	var st unix.Stat_t
	must(t, unix.Lstat(path, &st))
	fi, err := os.Lstat(path)
	must(t, err)
	if i.Mode() != fi.Mode() || i.UID != st.Uid || i.GID != st.Gid || int64(i.MTime) != st.Mtim.Sec {
		t.Errorf("%s: %v %d %d %d, want %v %d %d %d", path, i.Mode(), i.UID, i.GID, i.MTime, fi.Mode(), st.Uid, st.Gid, st.Mtim.Sec)
	}
	if i.Type != TypeDir && links != nil {
		if n, seen := links[st.Ino]; seen && n != i.Number {
			t.Errorf("%s: inode %d, another name has %d", path, i.Number, n)
		}
		links[st.Ino] = i.Number
		if uint64(i.Links) != uint64(st.Nlink) {
			t.Errorf("%s: %d links, want %d", path, i.Links, st.Nlink)
		}
	}
	switch i.Type {
	case TypeFile:
		compareFile(t, r, path, i)
	case TypeSymlink:
		want, err := os.Readlink(path)
		must(t, err)
		if got, err := r.ReadLink(i); err != nil || got != want {
			t.Errorf("%s: target %.40q, %v", path, got, err)
		}
	case TypeCharDevice, TypeBlockDevice:
		if i.Major() != unix.Major(st.Rdev) || i.Minor() != unix.Minor(st.Rdev) {
			t.Errorf("%s: device %d:%d", path, i.Major(), i.Minor())
		}
	}
	compareXattrs(t, r, path, i)
}

func compareXattrs(t *testing.T, r *Reader, path string, i Inode) {
	t.Helper()
	got, err := r.Xattrs(i)
	if err != nil {
		t.Errorf("%s: %v", path, err)
	}
	want := map[string]string{}
	buf := make([]byte, 64<<10)
	n, err := unix.Llistxattr(path, buf)
	must(t, err)
	val := make([]byte, 64<<10)
	for name := range strings.SplitSeq(strings.TrimSuffix(string(buf[:n]), "\x00"), "\x00") {
		if name != "" && !strings.HasPrefix(name, "system.") {
			m, err := unix.Lgetxattr(path, name, val)
			must(t, err)
			want[name] = string(val[:m])
		}
	}
	if len(got) != len(want) {
		t.Errorf("%s: xattrs %q, want %q", path, got, want)
	}
	for _, x := range got {
		if v, ok := want[x.Name]; !ok || v != string(x.Value) {
			t.Errorf("%s: xattr %s is %q, want %q", path, x.Name, x.Value, v)
		}
	}
}

func compareFile(t *testing.T, r *Reader, path string, i Inode) {
	t.Helper()
	want, err := os.ReadFile(path)
	must(t, err)
	f, err := r.OpenFile(i)
	must(t, err)
	defer f.Close()
	if f.Size() != int64(len(want)) {
		t.Errorf("%s: %d bytes, want %d", path, f.Size(), len(want))
		return
	}
	whole := make([]byte, len(want))
	if n, err := f.ReadAt(whole, 0); n != len(want) || (err != nil && err != io.EOF) || !bytes.Equal(whole, want) {
		t.Errorf("%s: ReadAt gives %d bytes of %d, %v", path, n, len(want), err)
	}
	var out bytes.Buffer
	if n, err := f.WriteTo(&out); n != int64(len(want)) || err != nil || !bytes.Equal(out.Bytes(), want) {
		t.Errorf("%s: WriteTo gives %d bytes of %d, %v", path, n, len(want), err)
	}
	_, err = f.Seek(0, io.SeekStart)
	must(t, err)
	if got, err := io.ReadAll(struct{ io.Reader }{f}); err != nil || !bytes.Equal(got, want) {
		t.Errorf("%s: Read gives %d bytes of %d, %v", path, len(got), len(want), err)
	}
	rnd := rand.New(rand.NewPCG(uint64(len(want)), 3))
	for range min(len(want), 20) {
		off := rnd.IntN(len(want))
		p := make([]byte, rnd.IntN(min(len(want)-off, 300_000)+1))
		if n, err := f.ReadAt(p, int64(off)); n != len(p) || (err != nil && err != io.EOF) || !bytes.Equal(p, want[off:off+n]) {
			t.Errorf("%s: ReadAt %d bytes at %d gives %d, %v", path, len(p), off, n, err)
		}
	}
	compareExtents(t, f, path, want)
}

// compareExtents proves that the extents cover the file and that holes are zero.
func compareExtents(t *testing.T, f *File, path string, want []byte) {
	t.Helper()
	at, hole := int64(0), false
	for e, err := range f.Extents() {
		must(t, err)
		if e.Offset != at || e.Length <= 0 || (at > 0 && e.Hole == hole) {
			t.Errorf("%s: extent %+v at %d", path, e, at)
			return
		}
		if e.Hole && len(bytes.Trim(want[at:at+e.Length], "\x00")) > 0 {
			t.Errorf("%s: extent %+v is no hole", path, e)
		}
		at, hole = at+e.Length, e.Hole
	}
	if at != f.Size() {
		t.Errorf("%s: extents end at %d of %d", path, at, f.Size())
	}
}
