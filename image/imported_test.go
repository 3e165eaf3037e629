package image_test

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"

	"github.com/gangway-hpc/gangway/image"
	"github.com/gangway-hpc/gangway/image/oci"
	"github.com/gangway-hpc/gangway/squashfs"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func tool(t testing.TB, name string, args ...string) {
	t.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %q: %v\n%s", name, args, err, out)
	}
}

// rootfs makes a tree that has one of everything that this user can make.
func rootfs(t testing.TB) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "rootfs")
	put := func(name, content string) {
		must(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755))
		must(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644))
	}
	put("etc/os", "two")
	put("etc/rc", "#!/bin/sh\nexec \"$@\"\n")
	put("usr/bin/big", noise(7, 300_000))
	put("a-b/c", "sorts before a/")
	put("a/empty", "")
	put("\xff\xfe name\n", "no UTF-8")
	put(strings.Repeat("long/", 50)+strings.Repeat("n", 255), "deep")
	must(t, os.Chmod(dir+"/usr/bin/big", 0o4755))
	must(t, os.Link(dir+"/etc/os", dir+"/usr/os"))
	must(t, os.Link(dir+"/etc/os", dir+"/a/os"))
	must(t, os.Symlink("../../outside", dir+"/usr/out"))
	must(t, os.Symlink("/etc", dir+"/absolute"))
	must(t, os.Link(dir+"/absolute", dir+"/zz-absolute"))
	must(t, os.Mkdir(dir+"/tmp", 0o755))
	must(t, os.Chmod(dir+"/tmp", os.ModeSticky|0o777))
	must(t, unix.Mkfifo(dir+"/fifo", 0o600))
	sparse(t, dir+"/hole", 3<<20, 1<<20)
	sparse(t, dir+"/all-hole", 10<<20)
	for name, value := range map[string]string{"user.note": "on a file", "user.empty": "", "user.bin": "\x00=\n"} {
		if err := unix.Setxattr(dir+"/etc/os", name, []byte(value), 0); err != nil {
			t.Fatal(err)
		}
	}
	must(t, unix.Setxattr(dir+"/usr", "user.dir", []byte("on a directory"), 0))
	if os.Geteuid() == 0 {
		must(t, unix.Mknod(dir+"/null", unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))))
		must(t, unix.Mknod(dir+"/disk", unix.S_IFBLK|0o660, int(unix.Mkdev(259, 70000))))
		must(t, os.Lchown(dir+"/a/empty", 1234, 3_000_000))
		must(t, os.Lchown(dir+"/hole", 4_000_000_000, 7))
		must(t, unix.Lsetxattr(dir+"/usr/out", "trusted.link", []byte("on a symlink"), 0))
		must(t, unix.Setxattr(dir+"/usr/bin/big", "security.capability", []byte("\x01\x00\x00\x02\x00\x20\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"), 0))
	}
	must(t, filepath.WalkDir(dir, func(name string, _ fs.DirEntry, err error) error {
		ts := unix.NsecToTimespec(1_700_000_000_123_456_789 + int64(len(name))*1e9)
		return errors.Join(err, unix.UtimesNanoAt(unix.AT_FDCWD, name, []unix.Timespec{ts, ts}, unix.AT_SYMLINK_NOFOLLOW))
	}))
	old := unix.Timespec{Sec: 12, Nsec: 5}
	must(t, unix.UtimesNanoAt(unix.AT_FDCWD, dir+"/etc/rc", []unix.Timespec{old, old}, 0))
	return dir
}

// sparse makes a file of a size with a few bytes of data at some offsets.
func sparse(t testing.TB, name string, size int64, data ...int64) {
	t.Helper()
	f, err := os.Create(name)
	must(t, err)
	defer f.Close()
	for _, at := range data {
		_, err := f.WriteAt([]byte("data"), at)
		must(t, err)
	}
	must(t, f.Truncate(size))
}

// describe returns all that an image file says of its tree, by path.
func describe(t testing.TB, file string) map[string]string {
	t.Helper()
	r, err := squashfs.Open(file, squashfs.ReaderOptions{})
	must(t, err)
	defer r.Close()
	must(t, squashfs.Check(t.Context(), r, squashfs.CheckOptions{}))
	tree, first := map[string]string{}, map[uint32]string{}
	var walk func(i squashfs.Inode, name string)
	walk = func(i squashfs.Inode, name string) {
		s := fmt.Sprintf("%v %o %d:%d %d", i.Type, i.Perm, i.UID, i.GID, i.MTime)
		attrs, err := r.Xattrs(i)
		must(t, err)
		slices.SortFunc(attrs, func(a, b squashfs.Xattr) int { return strings.Compare(a.Name, b.Name) })
		s += fmt.Sprintf(" %q", attrs)
		if i.Type != squashfs.TypeDir {
			if _, ok := first[i.Number]; !ok {
				first[i.Number] = name
			}
			s += fmt.Sprintf(" is %q of %d", first[i.Number], i.Links)
		}
		switch i.Type {
		case squashfs.TypeSymlink:
			target, err := r.ReadLink(i)
			must(t, err)
			s += " -> " + target
		case squashfs.TypeBlockDevice, squashfs.TypeCharDevice:
			s += fmt.Sprintf(" %d:%d", i.Major(), i.Minor())
		case squashfs.TypeFile:
			f, err := r.OpenFile(i)
			must(t, err)
			h := sha256.New()
			n, err := f.WriteTo(h)
			must(t, errors.Join(err, f.Close()))
			s += fmt.Sprintf(" %d bytes %x", n, h.Sum(nil))
		case squashfs.TypeDir:
			for d, err := range r.ReadDir(i) {
				must(t, err)
				child, err := r.Child(i, d)
				must(t, err)
				walk(child, path.Join(name, d.Name))
			}
		}
		tree[name] = s
	}
	root, err := r.Root()
	must(t, err)
	walk(root, "")
	return tree
}

func mustEqual(t testing.TB, got, want map[string]string) {
	t.Helper()
	for name, w := range want {
		if got[name] != w {
			t.Errorf("%q:\n got %s\nwant %s", name, got[name], w)
		}
	}
	for name := range got {
		if _, ok := want[name]; !ok {
			t.Errorf("%q should not be there", name)
		}
	}
}

func importRoot(ctx context.Context, s *image.Store, file string, o image.RootOptions) (image.Image, error) {
	src, err := image.NewRootSource(file, o)
	if err != nil {
		return image.Image{}, err
	}
	defer src.Close()
	return s.Pull(ctx, src, image.PullOptions{Reference: "docker://docker.io/library/imported:1", Platform: o.Platform})
}

func mustImport(t testing.TB, s *image.Store, file string) image.Image {
	t.Helper()
	i, err := importRoot(t.Context(), s, file, image.RootOptions{})
	must(t, err)
	mustBeGood(t, s, 1)
	return i
}

// imageOf is what mksquashfs makes of a directory.
func imageOf(t testing.TB, dir string, args ...string) string {
	t.Helper()
	// mksquashfs takes names for those of one inode only if the time of access is the
	// same, which it changes itself by reading, unless that is behind all other times.
	later := []unix.Timespec{unix.NsecToTimespec(time.Now().Add(time.Hour).UnixNano()), {Nsec: unix.UTIME_OMIT}}
	must(t, filepath.WalkDir(dir, func(name string, _ fs.DirEntry, err error) error {
		return errors.Join(err, unix.UtimesNanoAt(unix.AT_FDCWD, name, later, unix.AT_SYMLINK_NOFOLLOW))
	}))
	file := filepath.Join(t.TempDir(), "image.sqsh")
	tool(t, "mksquashfs", append([]string{dir, file, "-no-progress", "-quiet"}, args...)...)
	return file
}

// TestImportDirectory: what comes out of the store is what mksquashfs sees, and the
// same each time.
func TestImportDirectory(t *testing.T) {
	dir := rootfs(t)
	s := newStore(t)
	i := mustImport(t, s, dir)
	mustEqual(t, describe(t, export(t, s, &i)), describe(t, imageOf(t, dir)))
	must(t, os.Symlink("rootfs", filepath.Join(filepath.Dir(dir), "by-link")))
	again := mustImport(t, newStore(t), filepath.Join(filepath.Dir(dir), "by-link"))
	if again.Manifest != i.Manifest {
		t.Errorf("the same directory gives %s and %s", i.Manifest, again.Manifest)
	}
	copied := filepath.Join(t.TempDir(), "copy")
	tool(t, "cp", "-a", dir, copied)
	if other := mustImport(t, newStore(t), copied); other.Manifest != i.Manifest {
		t.Errorf("a copy of the directory gives %s and %s", i.Manifest, other.Manifest)
	}
	must(t, os.Chmod(dir+"/a", 0o700))
	if other := mustImport(t, newStore(t), dir); other.Manifest == i.Manifest {
		t.Error("another directory gives the same image")
	}
}

// TestImportArchive has GNU tar read what is made of a directory, with its
// sparse files, and put it together again.
func TestImportArchive(t *testing.T) {
	dir := rootfs(t)
	archive, m := layerBlob(t, dir)
	if int64(len(archive)) != m.Layers[0].Size || oci.DigestOf(archive) != m.Layers[0].Digest {
		t.Fatalf("the layer is not what the manifest says")
	}
	if len(archive) > 1<<20 {
		t.Errorf("the archive has %d bytes: holes were written", len(archive))
	}
	file, out := filepath.Join(t.TempDir(), "a.tar"), filepath.Join(t.TempDir(), "out")
	must(t, os.WriteFile(file, archive, 0o600))
	must(t, os.Mkdir(out, 0o755))
	tool(t, "tar", "-C", out, "-Pxpf", file, "--xattrs", "--xattrs-include=*", "--same-permissions")
	mustEqual(t, describe(t, imageOf(t, out)), describe(t, imageOf(t, dir)))
}

// layerBlob returns the one layer of what is imported.
func layerBlob(t testing.TB, file string) ([]byte, oci.Manifest) {
	t.Helper()
	src, err := image.NewRootSource(file, image.RootOptions{})
	must(t, err)
	defer src.Close()
	d, err := src.Resolve(t.Context())
	must(t, err)
	raw, err := src.Manifest(t.Context(), d)
	must(t, err)
	m, err := oci.DecodeManifest(raw)
	must(t, err)
	blob, err := src.Blob(t.Context(), m.Layers[0])
	must(t, err)
	defer blob.Close()
	b, err := io.ReadAll(blob)
	must(t, err)
	return b, m
}

func TestImportSquashfs(t *testing.T) {
	dir := rootfs(t)
	for _, c := range []string{"gzip", "xz", "lz4", "lzo", "zstd"} {
		t.Run(c, func(t *testing.T) {
			file := imageOf(t, dir, "-comp", c)
			s := newStore(t)
			i := mustImport(t, s, file)
			mustEqual(t, describe(t, export(t, s, &i)), describe(t, file))
			if l, _ := layerBlob(t, file); len(l) > 1<<20 {
				t.Errorf("the archive has %d bytes: holes were written", len(l))
			}
		})
	}
}

// TestImportTar imports archives as GNU tar and docker export write them.
func TestImportTar(t *testing.T) {
	dir := rootfs(t)
	want := describe(t, imageOf(t, dir))
	plain := filepath.Join(t.TempDir(), "plain.tar")
	tool(t, "tar", "-C", dir, "--format=pax", "--xattrs", "--xattrs-include=*", "--sparse", "-cf", plain, ".")
	content, err := os.ReadFile(plain)
	must(t, err)
	enc, err := zstd.NewWriter(nil)
	must(t, err)
	zipped := gzipped(t, content[:1<<10]).blob
	zipped = append(zipped, gzipped(t, content[1<<10:]).blob...)
	zipped = append(zipped, make([]byte, 700)...)
	for name, blob := range map[string][]byte{
		"plain": content, "members.gz": zipped, "file.zst": enc.EncodeAll(content, nil),
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), name)
			must(t, os.WriteFile(file, blob, 0o600))
			s := newStore(t)
			i := mustImport(t, s, file)
			if i.Layers[0].Digest != oci.DigestOf(blob) || i.Layers[0].DiffID != oci.DigestOf(content) {
				t.Errorf("layer is %+v", i.Layers[0])
			}
			mustEqual(t, describe(t, export(t, s, &i)), want)
		})
	}
}

func TestImportConfig(t *testing.T) {
	dir := t.TempDir()
	s := newStore(t)
	o := image.RootOptions{
		Platform: oci.Platform{OS: "linux", Architecture: "arm64", Variant: "v8"},
		Env:      []string{"A=b c"}, Entrypoint: []string{"/e", "x"}, Cmd: []string{"y"}, WorkingDir: "/w",
	}
	i, err := importRoot(t.Context(), s, dir, o)
	must(t, err)
	d, err := s.Describe(&i)
	must(t, err)
	c := d.Config
	if c.Platform != o.Platform || i.Platform != "linux/arm64/v8" || !slices.Equal(c.Env, o.Env) ||
		!slices.Equal(c.Entrypoint, o.Entrypoint) || !slices.Equal(c.Cmd, o.Cmd) || c.WorkingDir != "/w" || !c.Created.IsZero() {
		t.Errorf("configuration %+v", c)
	}
	if _, err := importRoot(t.Context(), s, dir, image.RootOptions{Env: []string{"novalue"}}); err == nil {
		t.Error("a wrong environment is taken")
	}
}

// TestImportRefuses has what is no root file system, or cannot be one in an image.
func TestImportRefuses(t *testing.T) {
	dir := t.TempDir()
	file := func(name string, content []byte) string {
		name = filepath.Join(dir, name)
		must(t, os.MkdirAll(filepath.Dir(name), 0o755))
		must(t, os.WriteFile(name, content, 0o600))
		return name
	}
	archive := func(name string, names ...string) string {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		for _, n := range names {
			must(t, w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: n, Mode: 0o644}))
		}
		must(t, w.Close())
		return file(name, b.Bytes())
	}
	must(t, unix.Mkfifo(dir+"/fifo", 0o600))
	file("layout/oci-layout", nil)
	file("layout/index.json", nil)
	file("layout/blobs/x", nil)
	file("white/sub/.wh.gone", nil)
	sq := imageOf(t, dir+"/layout", "-comp", "gzip")
	whole, err := os.ReadFile(sq)
	must(t, err)
	white := imageOf(t, dir+"/white")
	for name, want := range map[string][]string{
		dir + "/missing": {"no such file"},
		dir + "/fifo":    {"neither a directory nor a regular file"},
		dir + "/layout":  {"an image layout", "oci:" + dir + "/layout"},
		dir + "/white":   {`"sub/.wh.gone" cannot be in an image`, "rename"},
		white:            {`"sub/.wh.gone" cannot be in an image`, "rename"},
		archive("white.tar", "a", "./sub/.wh.gone"):               {`"sub/.wh.gone" cannot be in an image`},
		archive("docker.tar", "x/layer.tar", "manifest.json"):     {"archive of an image", "gangway image pull docker-archive:" + dir + "/docker.tar"},
		archive("oci.tar", "oci-layout", "index.json"):            {"archive of an image", "gangway image pull oci-archive:" + dir + "/oci.tar"},
		file("x.xz", []byte("\xfd7zXZ\x00etc")):                   {"compressed with xz", "xz -dk"},
		file("x.sif", []byte("#!/usr/bin/env run-singularity\n")): {"a SIF image", "apptainer build"},
		file("text", []byte("hello")):                             {"neither a squashfs file nor a tar archive"},
		file("none", nil):                                         {"neither a squashfs file nor a tar archive"},
		file("cut.sqsh", whole[:200]):                             {"gangway squashfs check"},
	} {
		s := newStore(t)
		_, err := importRoot(t.Context(), s, name, image.RootOptions{})
		if strings.HasSuffix(name, "missing") {
			if !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("missing: %v", err)
			}
			continue
		}
		mustSay(t, err, want...)
		if len(stored(t, s)) > 0 {
			t.Errorf("%s: the store has %d files", name, len(stored(t, s)))
		}
	}
	good := archive("good.tar", "manifest.json", "etc/passwd")
	mustImport(t, newStore(t), good)
}

// TestImportCutArchive has archives that end too early or are damaged.
func TestImportCutArchive(t *testing.T) {
	archive := layerOf(t, "big", noise(1, 200_000), "etc/os", "1")
	for _, blob := range [][]byte{archive.blob[:len(archive.blob)/2], archive.tar[:100_000], gzipped(t, archive.tar[:100_000]).blob} {
		file := filepath.Join(t.TempDir(), "cut")
		must(t, os.WriteFile(file, blob, 0o600))
		s := newStore(t)
		if _, err := importRoot(t.Context(), s, file, image.RootOptions{}); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("a cut archive: %v", err)
		}
		mustBeGood(t, s, 0)
	}
}

// TestImportChanged changes what is imported between the two readings.
func TestImportChanged(t *testing.T) {
	archive := func(dir string) string {
		file := dir + ".tar"
		tool(t, "tar", "-C", dir, "-cf", file, ".")
		return file
	}
	for name, c := range map[string]struct {
		change func(dir string) error
		of     func(dir string) string
		cut    bool // cannot be imported afterwards
	}{
		"content": {change: func(dir string) error {
			st, err := os.Stat(dir + "/etc/os")
			must(t, err)
			must(t, os.WriteFile(dir+"/etc/os", []byte("owt"), 0o644))
			return os.Chtimes(dir+"/etc/os", time.Time{}, st.ModTime())
		}},
		"new":             {change: func(dir string) error { return os.WriteFile(dir+"/new", nil, 0o644) }},
		"gone":            {change: func(dir string) error { return os.Remove(dir + "/etc/rc") }},
		"shorter":         {change: func(dir string) error { return os.Truncate(dir+"/usr/bin/big", 10) }},
		"longer":          {change: func(dir string) error { return os.Truncate(dir+"/usr/bin/big", 10<<20) }},
		"holes":           {change: func(dir string) error { return os.Truncate(dir+"/all-hole", 1<<10) }},
		"archive":         {change: func(dir string) error { return os.Truncate(dir+".tar", 20<<20) }, of: archive},
		"shorter archive": {change: func(dir string) error { return os.Truncate(dir+".tar", 1<<20) }, of: archive, cut: true},
	} {
		t.Run(name, func(t *testing.T) {
			dir := rootfs(t)
			file := dir
			if c.of != nil {
				file = c.of(dir)
			}
			s := newStore(t)
			src, err := image.NewRootSource(file, image.RootOptions{})
			must(t, err)
			defer src.Close()
			_, err = src.Resolve(t.Context())
			must(t, err)
			must(t, c.change(dir))
			_, err = s.Pull(t.Context(), src, image.PullOptions{Reference: "docker://docker.io/library/x:1"})
			mustSay(t, err, file+" changed while it was read", "import it again")
			mustBeGood(t, s, 0)
			checkFiles(t, s)
			if !c.cut {
				mustImport(t, s, file)
			}
		})
	}
}

// TestImportWarns leaves out what an image has no place for, and says so once.
func TestImportWarns(t *testing.T) {
	dir := rootfs(t)
	want := describe(t, imageOf(t, dir))
	st, err := os.Stat(dir)
	must(t, err)
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	must(t, err)
	defer unix.Close(fd)
	t.Chdir(dir) // paths of sockets are short
	must(t, unix.Bind(fd, &unix.SockaddrUnix{Name: "socket"}))
	must(t, os.Chtimes(dir, time.Time{}, st.ModTime()))
	must(t, unix.Setxattr("etc/rc", "user.a=b", []byte("c"), 0))
	withSocket := imageOf(t, dir)
	for name, warned := range map[string][]string{dir: {"etc/rc", dir + "/socket"}, withSocket: {"/socket", "etc/rc"}} {
		var got []string
		s := newStore(t)
		i, err := importRoot(t.Context(), s, name, image.RootOptions{Warn: func(path string, err error) { got = append(got, path) }})
		must(t, err)
		slices.Sort(got)
		slices.Sort(warned)
		if !slices.Equal(got, warned) {
			t.Errorf("warned of %q, want %q", got, warned)
		}
		mustEqual(t, describe(t, export(t, s, &i)), want)
	}
}

// TestImportCancelled cancels in either reading.
func TestImportCancelled(t *testing.T) {
	dir := rootfs(t)
	s := newStore(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := importRoot(ctx, s, dir, image.RootOptions{}); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled before: %v", err)
	}
	ctx, cancel = context.WithCancel(t.Context())
	src, err := image.NewRootSource(dir, image.RootOptions{})
	must(t, err)
	defer src.Close()
	_, err = s.Pull(ctx, src, image.PullOptions{Reference: "docker://docker.io/library/x:1", Progress: func(p image.Progress) {
		if p.Phase == image.PhaseFetch {
			cancel()
		}
	}})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled within: %v", err)
	}
	mustBeGood(t, s, 0)
	checkFiles(t, s)
	i := mustImport(t, s, dir)
	mustEqual(t, describe(t, export(t, s, &i)), describe(t, imageOf(t, dir)))
}

// TestImportLastlog has a file that is nearly all hole, of more bytes than any disk
// here has.
func TestImportLastlog(t *testing.T) {
	dir := t.TempDir()
	must(t, os.Mkdir(dir+"/log", 0o755))
	sparse(t, dir+"/log/lastlog", 300<<30, 0, 100<<30)
	blob, _ := layerBlob(t, dir)
	h, err := tar.NewReader(bytes.NewReader(blob)).Next()
	must(t, err)
	if h.Name != "./" || len(blob) > 1<<20 {
		t.Errorf("%s, %d bytes", h.Name, len(blob))
	}
	r := tar.NewReader(bytes.NewReader(blob))
	for h.Name != "log/lastlog" {
		h, err = r.Next()
		must(t, err)
	}
	if h.Size != 300<<30 {
		t.Errorf("%s has %d bytes", h.Name, h.Size)
	}
}

// TestImportMounts follows mounts, or keeps the mountpoint.
func TestImportMounts(t *testing.T) {
	needRoot(t, "mounts a tmpfs")
	dir := t.TempDir()
	must(t, os.MkdirAll(dir+"/mnt", 0o755))
	tool(t, "mount", "-t", "tmpfs", "none", dir+"/mnt")
	defer tool(t, "umount", dir+"/mnt")
	must(t, os.WriteFile(dir+"/mnt/file", []byte("1"), 0o644))
	for one, want := range map[bool]map[string]string{false: {"mnt/file": "1"}, true: {}} {
		s := newStore(t)
		i, err := importRoot(t.Context(), s, dir, image.RootOptions{OneFileSystem: one})
		must(t, err)
		mustHold(t, s, &i, want)
	}
}
