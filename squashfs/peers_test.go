//go:build linux

package squashfs

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// wPeers are the independent readers. Each shows an image as a directory.
var wPeers = map[string]func(t *testing.T, img string) (dir string){
	"kernel": func(t *testing.T, img string) string { return wMount(t, img) },
	"unsquashfs": func(t *testing.T, img string) string {
		dir := filepath.Join(t.TempDir(), "root")
		wTool(t, "unsquashfs", "-quiet", "-no-progress", "-dest", dir, img)
		return dir
	},
	"rdsquashfs": func(t *testing.T, img string) string {
		dir := t.TempDir()
		wTool(t, "rdsquashfs", "-q", "-X", "-T", "-C", "-O", "-u", "/", "-p", dir, img)
		return dir
	},
	"squashfuse":    func(t *testing.T, img string) string { return wFuse(t, "squashfuse", img) },
	"squashfuse_ll": func(t *testing.T, img string) string { return wFuse(t, "squashfuse_ll", img) },
}

var wSwap = strings.NewReplacer("security.", "trusted.", "trusted.", "security.")

// wAsSeenBy takes from a tree what a peer does not show of any image: rdsquashfs
// makes a file of each hard link, and does not set the root's time; squashfuse
// gives each name an inode number of its own, and both have "security" and
// "trusted" the wrong way round (xattr.c of 0.1.105; the kernel and unsquashfs say).
func wAsSeenBy(peer string, tree wTree) wTree {
	seen := wTree{}
	for path, n := range tree {
		if strings.HasPrefix(peer, "squashfuse") {
			n.xattrs = wSwap.Replace(n.xattrs)
		}
		switch {
		case n.typ == TypeDir:
		case peer == "rdsquashfs":
			n.links, n.group = 1, ""
		case peer == "squashfuse":
			n.group = ""
		}
		seen[path] = n
	}
	return seen
}

// wFuse mounts an image by a FUSE server that stays in the foreground.
func wFuse(t *testing.T, name, img string) string {
	t.Helper()
	needTool(t, name)
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR, 0)
	if err != nil {
		t.Skipf("needs /dev/fuse: %v", err)
	}
	unix.Close(fd)
	dir := t.TempDir()
	wTool(t, name, img, dir) // goes to the background when it is mounted
	t.Cleanup(func() { wTool(t, "umount", dir) })
	return dir
}

// TestPeers has every reader read images of every compression of a tree with
// everything, and compares byte for byte and attribute for attribute with the tree.
func TestPeers(t *testing.T) {
	wNeedRoot(t) // to make the tree and to see its attributes
	src := wPeerTree(t)
	want := wHostTree(t, src)
	all := []Compression{Zstd, Gzip, LZ4, Uncompressed}
	if testing.Short() {
		all = all[:1]
	}
	for _, c := range all {
		img := wDirImage(t, src, WriterOptions{Compression: c, AlwaysFragments: c == Gzip})
		for name, show := range wPeers {
			t.Run(fmt.Sprintf("%s/%s", c, name), func(t *testing.T) {
				dir := show(t, img)
				if name == "rdsquashfs" {
					must(t, os.Chtimes(dir, time.Time{}, time.Unix(int64(want[""].mtime), 0)))
				}
				must(t, wAsSeenBy(name, want).diff(wHostTree(t, dir)))
			})
		}
		t.Run(fmt.Sprintf("%s/ours", c), func(t *testing.T) {
			r := openImage(t, img, ReaderOptions{})
			must(t, Check(context.Background(), r, CheckOptions{}))
			got, err := wRead(r)
			must(t, err)
			for path, n := range got {
				n.holes = ""
				got[path] = n
			}
			must(t, want.diff(got))
		})
		t.Run(fmt.Sprintf("%s/unsquashfs -stat", c), func(t *testing.T) {
			out := wTool(t, "unsquashfs", "-stat", img)
			if !strings.Contains(out, "valid SQUASHFS 4:0 superblock") {
				t.Errorf("%s", out)
			}
		})
	}
}

// TestPeersSqfsdiff compares our image with those that mksquashfs and gensquashfs
// make of the tree.
func TestPeersSqfsdiff(t *testing.T) {
	if testing.Short() {
		t.Skip("short: another peer stands for this one")
	}
	wNeedRoot(t)
	src := wPeerTree(t)
	ours := wDirImage(t, src, WriterOptions{})
	wTool(t, "sqfsdiff", "-T", "-a", ours, "-b", mksquashfs(t, src))
	plain := wPlainTree(t)
	gen := filepath.Join(t.TempDir(), "gen.sqfs")
	wTool(t, "gensquashfs", "-q", "-k", "-D", plain, gen)
	wTool(t, "sqfsdiff", "-a", wDirImage(t, plain, WriterOptions{}), "-b", gen)
	// And that it would say so if there were a difference.
	must(t, os.WriteFile(src+"/hello", []byte("hallo\n"), 0o644))
	if err := exec.Command("sqfsdiff", "-a", ours, "-b", mksquashfs(t, src)).Run(); err == nil {
		t.Error("sqfsdiff sees no difference where there is one")
	}
}

// TestPeersLargeDirectory has 70,000 entries in one directory.
func TestPeersLargeDirectory(t *testing.T) {
	const n = 70000
	img := wFileImage(t, WriterOptions{}, wManyFiles("d", n, "name-%06d")...)
	for name, list := range map[string]string{
		"unsquashfs": wTool(t, "unsquashfs", "-ls", img), "rdsquashfs": wTool(t, "rdsquashfs", "-l", "/d", img),
	} {
		if got := strings.Count(list, "name-"); got != n {
			t.Errorf("%s lists %d entries", name, got)
		}
	}
	for _, name := range []string{"kernel", "squashfuse", "squashfuse_ll"} {
		t.Run(name, func(t *testing.T) {
			dir := wPeers[name](t, img)
			list, err := os.ReadDir(filepath.Join(dir, "d"))
			if err != nil || len(list) != n {
				t.Errorf("%d entries, %v", len(list), err)
			}
			for i := 0; i < n; i += 777 {
				if _, err := os.Lstat(filepath.Join(dir, "d", fmt.Sprintf("name-%06d", i))); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

func wDirImage(t testing.TB, dir string, o WriterOptions) string {
	t.Helper()
	w, err := Create(filepath.Join(t.TempDir(), "image"), o)
	must(t, err)
	defer w.Close()
	must(t, w.AddDir(context.Background(), dir, DirOptions{}))
	_, err = w.Commit(t.Context(), strings.NewReader("a trailer, which is nobody's business"))
	must(t, err)
	return w.path
}

// wPeerTree makes a tree with 3,000 files more than a rich one, in deep directories.
func wPeerTree(t testing.TB) string {
	t.Helper()
	dir := richTree(t, 400000)
	deep := dir
	for i := range 60 {
		deep = filepath.Join(deep, "level"+strconv.Itoa(i))
		must(t, os.Mkdir(deep, 0o750))
	}
	for i := range 3000 {
		d := filepath.Join(dir, "tree", strconv.Itoa(i%17), strconv.Itoa(i%5))
		must(t, os.MkdirAll(d, 0o755))
		name := filepath.Join(d, fmt.Sprintf("%d-%s", i, strings.Repeat("\xe4", i%30)))
		must(t, os.WriteFile(name, pattern(uint64(i%2000), i*7%5000), 0o644))
		must(t, os.Lchown(name, i%300, i%7*100000))
		if i%40 == 0 {
			must(t, os.Link(name, filepath.Join(deep, strconv.Itoa(i))))
		}
		if i%11 == 0 {
			must(t, unix.Setxattr(name, "trusted.n", []byte(strings.Repeat("v", i)), 0))
		}
		at := time.Unix(int64(i)*700000, 0) // up to 2036
		must(t, os.Chtimes(name, at, at))
	}
	return dir
}

// wPlainTree makes a tree without hard links and xattrs, which gensquashfs does not take.
func wPlainTree(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	must(t, unix.Mkfifo(dir+"/fifo", 0o600))
	must(t, unix.Mknod(dir+"/char", unix.S_IFCHR|0o620, int(unix.Mkdev(5, 300))))
	must(t, unix.Mknod(dir+"/block", unix.S_IFBLK|0o602, int(unix.Mkdev(259, 70000))))
	for i := range 500 {
		name := filepath.Join(dir, strconv.Itoa(i%7), strconv.Itoa(i))
		must(t, os.MkdirAll(filepath.Dir(name), 0o755))
		must(t, os.WriteFile(name, pattern(uint64(i), i*50), 0o600))
		must(t, os.Lchown(name, i, 100000*i))
		must(t, os.Symlink(name, name+"-link"))
	}
	return dir
}

// wHostTree describes a directory of the host.
func wHostTree(t testing.TB, dir string) wTree {
	t.Helper()
	tree, inodes := wTree{}, map[string]string{}
	must(t, filepath.WalkDir(dir, func(host string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		p := strings.TrimPrefix(strings.TrimPrefix(host, dir), "/")
		var st unix.Stat_t
		if err := unix.Lstat(host, &st); err != nil {
			return err
		}
		tree[p], err = wHostNode(host, &st)
		if inodes[p] = p; st.Nlink > 1 {
			inodes[p] = fmt.Sprint(st.Ino)
		}
		return err
	}))
	links := map[string]uint32{}
	for p, n := range tree {
		links[p] = n.links
	}
	tree.group(func(p string) string { return inodes[p] })
	for p, n := range tree {
		n.links = links[p]
		tree[p] = n
	}
	return tree
}

func wHostNode(host string, st *unix.Stat_t) (wNode, error) {
	mode := hostMode(st.Mode)
	typ, _ := typeOf(mode)
	n := wNode{typ: typ, perm: permOf(mode), uid: st.Uid, gid: st.Gid, mtime: uint32(st.Mtim.Sec), links: uint32(st.Nlink)}
	attrs, err := wHostXattrs(host)
	if err != nil {
		return n, err
	}
	n.xattrs = wAttrs(attrs)
	switch typ {
	case TypeFile:
		f, err := os.Open(host)
		if err != nil {
			return n, err
		}
		defer f.Close()
		sum := sha256.New()
		k, err := io.Copy(sum, f)
		n.size, n.sum = uint64(k), [32]byte(sum.Sum(nil))
		return n, err
	case TypeSymlink:
		n.target, err = os.Readlink(host)
		n.size = uint64(st.Size)
	case TypeBlockDevice, TypeCharDevice:
		n.dev = unix.Major(st.Rdev)<<20 | unix.Minor(st.Rdev)
	}
	return n, err
}

func wHostXattrs(host string) ([]Xattr, error) {
	buf := make([]byte, 64<<10)
	n, err := unix.Llistxattr(host, buf)
	if err != nil && !errors.Is(err, unix.ENOTSUP) {
		return nil, err
	}
	var attrs []Xattr
	for _, name := range strings.FieldsFunc(string(buf[:max(n, 0)]), func(r rune) bool { return r == 0 }) {
		value := make([]byte, 64<<10)
		k, err := unix.Lgetxattr(host, name, value)
		if errors.Is(err, unix.ENODATA) {
			k, err = 0, nil // what squashfuse says of an empty value
		}
		if err != nil {
			return nil, fmt.Errorf("%s of %s: %w", name, host, err)
		}
		attrs = append(attrs, Xattr{Name: name, Value: value[:k]})
	}
	return attrs, nil
}
