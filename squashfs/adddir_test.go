//go:build linux

package squashfs

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// wAddDir makes an image of a directory.
func wAddDir(t testing.TB, dir string, wo WriterOptions, o DirOptions) *Reader {
	t.Helper()
	out := &wMem{}
	w, err := NewWriter(out, wo)
	must(t, err)
	defer w.Close()
	must(t, w.AddDir(context.Background(), dir, o))
	_, err = w.Finish(t.Context())
	must(t, err)
	return wOpen(t, out)
}

// TestAddDir takes a tree of every kind and compares it, with the host's attributes
// and with the image that mksquashfs makes of it.
func TestAddDir(t *testing.T) {
	dir := richTree(t, 150000)
	r := wAddDir(t, dir, WriterOptions{}, DirOptions{})
	compareTree(t, r, dir)
	got, err := wRead(r)
	must(t, err)
	wantTree, err := wRead(openImage(t, mksquashfs(t, dir, "-comp", "zstd", "-b", "128K"), ReaderOptions{}))
	must(t, err)
	for p, n := range wantTree { // which stores other blocks in fragments, and knows other holes
		n.holes = got[p].holes
		wantTree[p] = n
	}
	must(t, wantTree.diff(got))
}

func TestAddDirTwiceSameBytes(t *testing.T) {
	dir := richTree(t, 50000)
	var images [2]*wMem
	for i := range images {
		images[i] = &wMem{}
		w, err := NewWriter(images[i], WriterOptions{Workers: 1 + 5*i})
		must(t, err)
		must(t, w.AddDir(context.Background(), dir, DirOptions{}))
		_, err = w.Finish(t.Context())
		must(t, err)
	}
	if !slices.Equal(images[0].b, images[1].b) {
		t.Error("two runs give two images")
	}
}

func wPut(t testing.TB, name, content string) {
	t.Helper()
	must(t, os.MkdirAll(filepath.Dir(name), 0o755))
	must(t, os.WriteFile(name, []byte(content), 0o644))
}

// TestAddDirAt puts two directories below others, one through a symlink.
func TestAddDirAt(t *testing.T) {
	base := t.TempDir()
	wPut(t, base+"/real/sub/file", "1")
	must(t, os.Chmod(base+"/real", 0o710))
	must(t, os.Symlink("real", base+"/link"))
	set := unix.Setxattr(base+"/real", "user.on", []byte("dir"), 0)
	out := &wMem{}
	w, err := NewWriter(out, WriterOptions{})
	must(t, err)
	defer w.Close()
	for _, at := range []string{"a/b", "/c/"} {
		must(t, w.AddDir(context.Background(), base+"/link", DirOptions{At: at}))
	}
	_, err = w.Finish(t.Context())
	must(t, err)
	r := wOpen(t, out)
	for _, at := range []string{"a/b", "c"} {
		if i := wAt(t, r, at); i.Perm != 0o710 {
			t.Errorf("%s has mode %o", at, i.Perm)
		} else if attrs, err := r.Xattrs(i); set == nil && (err != nil || len(attrs) != 1) {
			t.Errorf("%s has xattrs %v, %v", at, attrs, err)
		}
		if b := wContent(t, r, at+"/sub/file"); string(b) != "1" {
			t.Errorf("%s: content %q", at, b)
		}
	}
}

func TestAddDirFilter(t *testing.T) {
	dir := t.TempDir()
	wPut(t, dir+"/keep/file", "1")
	wPut(t, dir+"/drop/file", "2")
	wPut(t, dir+"/first", "linked")
	must(t, os.Link(dir+"/first", dir+"/second"))
	var seen []string
	r := wAddDir(t, dir, WriterOptions{}, DirOptions{At: "top", Filter: func(e *Entry) bool {
		seen = append(seen, e.Path)
		e.UID, e.Mode, e.ModTime = 77, e.Mode|fs.ModeSetuid, time.Unix(5, 0)
		return e.Path != "top/drop" && e.Path != "top/first"
	}})
	want := []string{"top", "top/drop", "top/first", "top/keep", "top/keep/file", "top/second"}
	if !slices.Equal(seen, want) {
		t.Errorf("the filter saw %q", seen)
	}
	tree, err := wRead(r)
	must(t, err)
	delete(tree, "")
	for _, p := range []string{"top", "top/keep", "top/keep/file", "top/second"} {
		if n := tree[p]; n.uid != 77 || n.mtime != 5 || n.perm&permSetuid == 0 || n.typ != TypeDir && n.links != 1 {
			t.Errorf("%s: %+v", p, n)
		}
		delete(tree, p)
	}
	if len(tree) > 0 {
		t.Errorf("%+v was left out by the filter", tree)
	}
}

func TestAddDirNoXattrs(t *testing.T) {
	dir := t.TempDir()
	wPut(t, dir+"/f", "")
	if err := unix.Setxattr(dir+"/f", "user.a", []byte("b"), 0); err != nil {
		t.Skipf("needs a file system with user xattrs: %v", err)
	}
	for _, no := range []bool{false, true} {
		r := wAddDir(t, dir, WriterOptions{}, DirOptions{NoXattrs: no})
		if i := wAt(t, r, "f"); i.HasXattrs() == no {
			t.Errorf("NoXattrs %v: %+v", no, i)
		}
	}
}

// TestAddDirWarnsOfACL sets an ACL, for which squashfs has no room.
func TestAddDirWarnsOfACL(t *testing.T) {
	dir := t.TempDir()
	wPut(t, dir+"/f", "")
	// Version 2; owner, user 1000, group, mask, others.
	acl := []byte{2, 0, 0, 0}
	for _, e := range [][3]uint32{{1, 6, none32}, {2, 4, 1000}, {4, 4, none32}, {0x10, 4, none32}, {0x20, 4, none32}} {
		acl = le.AppendUint32(le.AppendUint16(le.AppendUint16(acl, uint16(e[0])), uint16(e[1])), e[2])
	}
	if err := unix.Setxattr(dir+"/f", "system.posix_acl_access", acl, 0); err != nil {
		t.Skipf("needs a file system with ACLs: %v", err)
	}
	var warned []string
	r := wAddDir(t, dir, WriterOptions{}, DirOptions{Warn: func(path string, err error) {
		if !strings.Contains(err.Error(), "system.posix_acl_access") {
			t.Errorf("warned of %v", err)
		}
		warned = append(warned, path)
	}})
	if !slices.Equal(warned, []string{dir + "/f"}) {
		t.Errorf("warned of %q", warned)
	}
	if i := wAt(t, r, "f"); i.HasXattrs() {
		t.Error("the image has xattrs")
	}
	wAddDir(t, dir, WriterOptions{}, DirOptions{}) // nobody is told
}

func TestAddDirOneFileSystem(t *testing.T) {
	wNeedRoot(t)
	dir := t.TempDir()
	wPut(t, dir+"/here", "1")
	must(t, os.Mkdir(dir+"/mnt", 0o755))
	wTool(t, "mount", "-t", "tmpfs", "-o", "mode=0700", "none", dir+"/mnt")
	defer wTool(t, "umount", dir+"/mnt")
	wPut(t, dir+"/mnt/there", "2")
	for _, one := range []bool{false, true} {
		r := wAddDir(t, dir, WriterOptions{}, DirOptions{OneFileSystem: one})
		_, err := r.Lookup(wAt(t, r, "mnt"), "there")
		if one != errors.Is(err, fs.ErrNotExist) {
			t.Errorf("OneFileSystem %v: %v", one, err)
		}
		wAt(t, r, "here")
	}
}

func TestAddDirRefuses(t *testing.T) {
	dir := t.TempDir()
	wPut(t, dir+"/file", "1")
	must(t, os.Symlink("nowhere", dir+"/dangling"))
	w, err := NewWriter(&wMem{}, WriterOptions{})
	must(t, err)
	defer w.Close()
	ctx := context.Background()
	for name, c := range map[string]struct{ got, want error }{
		"file":       {w.AddDir(ctx, dir+"/file", DirOptions{}), syscall.ENOTDIR},
		"missing":    {w.AddDir(ctx, dir+"/missing", DirOptions{}), fs.ErrNotExist},
		"dangling":   {w.AddDir(ctx, dir+"/dangling", DirOptions{}), fs.ErrNotExist},
		"wrong path": {w.AddDir(ctx, dir, DirOptions{At: "../x"}), fs.ErrInvalid},
	} {
		if !errors.Is(c.got, c.want) {
			t.Errorf("%s: %v", name, c.got)
		}
	}
	_, err = w.Finish(t.Context())
	must(t, err)
}

// TestAddDirCancelled cancels while entries are added, and while a file without
// end is read.
func TestAddDirCancelled(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"a", "b/x", "c"} {
		wPut(t, filepath.Join(dir, name), "1")
	}
	ctx, cancel := context.WithCancel(context.Background())
	out := &wMem{}
	w, err := NewWriter(out, WriterOptions{})
	must(t, err)
	defer w.Close()
	err = w.AddDir(ctx, dir, DirOptions{Filter: func(e *Entry) bool {
		if e.Path == "b" {
			cancel()
		}
		return true
	}})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	_, err = w.Finish(t.Context())
	must(t, err)
	wAt(t, wOpen(t, out), "a")
}

// TestAddDirCancelledWithinFile cancels when the Writer begins to write what it
// reads of a file that takes hours.
func TestAddDirCancelledWithinFile(t *testing.T) {
	dir := t.TempDir()
	wPut(t, dir+"/big", string(noise(1, 3<<20)))
	must(t, os.Truncate(dir+"/big", 1<<43))
	ctx, cancel := context.WithCancel(context.Background())
	w, err := NewWriter(wNotifying{&wMem{}, cancel}, WriterOptions{})
	must(t, err)
	defer w.Close()
	if err := w.AddDir(ctx, dir, DirOptions{}); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

// wNotifying calls a function when something is written.
type wNotifying struct {
	*wMem
	do func()
}

func (n wNotifying) WriteAt(p []byte, off int64) (int, error) {
	n.do()
	return n.wMem.WriteAt(p, off)
}

// TestAddDirUnreadable is run again as an ordinary user, who may not read a file.
func TestAddDirUnreadable(t *testing.T) {
	if dir := os.Getenv("GANGWAY_TEST_UNREADABLE"); dir != "" {
		w, err := NewWriter(&wMem{}, WriterOptions{})
		must(t, err)
		defer w.Close()
		err = w.AddDir(context.Background(), dir, DirOptions{})
		if !errors.Is(err, fs.ErrPermission) || !strings.Contains(err.Error(), dir+"/secret") {
			t.Errorf("unreadable file: %v", err)
		}
		return
	}
	dir, err := os.MkdirTemp("", "gangway-test-")
	must(t, err)
	defer os.RemoveAll(dir)
	must(t, os.Chmod(dir, 0o755))
	must(t, os.WriteFile(dir+"/secret", []byte("x"), 0o000))
	if os.Geteuid() != 0 {
		t.Setenv("GANGWAY_TEST_UNREADABLE", dir)
		TestAddDirUnreadable(t)
		return
	}
	exe, err := os.Executable()
	must(t, err)
	b, err := os.ReadFile(exe)
	must(t, err)
	copied := dir + "/again" // where another user may run it
	must(t, os.WriteFile(copied, b, 0o755))
	cmd := exec.Command(copied, "-test.run=^TestAddDirUnreadable$")
	cmd.Dir, cmd.Env = "/", append(os.Environ(), "GANGWAY_TEST_UNREADABLE="+dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("as an ordinary user: %v\n%s", err, out)
	}
}

// TestAddDirLeavesOutItself has the image in the directory that it is made of.
func TestAddDirLeavesOutItself(t *testing.T) {
	for how, create := range wCreates {
		dir := t.TempDir()
		must(t, os.WriteFile(filepath.Join(dir, "a"), noise(1, 1<<20), 0o600))
		must(t, os.Mkdir(filepath.Join(dir, "z"), 0o700))
		path := filepath.Join(dir, "z", "image")
		must(t, os.WriteFile(path, noise(2, 1<<20), 0o600))
		must(t, os.Link(path, filepath.Join(dir, "other"))) // which stays
		w, err := create(path, WriterOptions{})
		must(t, err)
		w.replaces = path // as Create does
		must(t, w.AddDir(t.Context(), dir, DirOptions{}))
		_, err = w.Commit(t.Context(), nil)
		must(t, err)
		r, err := Open(path, ReaderOptions{})
		must(t, err)
		defer r.Close()
		for range r.ReadDir(wAt(t, r, "z")) {
			t.Errorf("%s: the image is in itself", how)
		}
		if !bytes.Equal(wContent(t, r, "other"), noise(2, 1<<20)) {
			t.Errorf("%s: another name of the old image has other content", how)
		}
	}
}

// TestAddDirSkipsHoles reads a file of which hardly anything is there: reading all
// of it would take a quarter of an hour.
func TestAddDirSkipsHoles(t *testing.T) {
	dir := t.TempDir()
	size := int64(1<<40 + 5)
	if testing.Short() {
		size = 1<<35 + 5
	}
	f, err := os.Create(filepath.Join(dir, "f"))
	must(t, err)
	defer f.Close()
	want := map[int64]string{0: "start", 1 << 30: "middle", 1<<30 + 1<<20 - 2: "across", size - 3: "end"}
	for at, text := range want {
		_, err := f.WriteAt([]byte(text), at)
		must(t, err)
	}
	out := &wMem{}
	w, err := NewWriter(out, WriterOptions{BlockSize: 1 << 20})
	must(t, err)
	defer w.Close()
	must(t, w.AddDir(t.Context(), dir, DirOptions{}))
	_, err = w.Finish(t.Context())
	must(t, err)
	r := wOpen(t, out)
	i := wAt(t, r, "f")
	file, err := r.OpenFile(i)
	must(t, err)
	defer file.Close()
	if i.Size != uint64(size) || i.Sparse < uint64(size-5<<20) {
		t.Errorf("%d bytes, %d of holes", i.Size, i.Sparse)
	}
	for at, text := range want {
		got := make([]byte, len(text)+10)
		n, err := file.ReadAt(got, at)
		if err != nil && !errors.Is(err, io.EOF) {
			t.Fatal(err)
		}
		if string(got[:len(text)]) != text || !isZero(append(got[len(text):n], 0)) {
			t.Errorf("at %d: %q", at, got[:n])
		}
	}
}
