package squashfs

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
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

func TestReadsMksquashfs(t *testing.T) {
	dir := richTree(t, 600_000)
	cases := []string{
		"-comp gzip", "-comp zstd", "-comp lz4", "-comp xz", "-comp lzo",
		"-comp lz4 -Xhc", "-comp zstd -Xcompression-level 1", "-comp gzip -Xstrategy huffman_only", "-comp xz -Xbcj x86",
		"-b 4096", "-b 1M", "-no-fragments", "-always-use-fragments", "-noI -noD -noF -noX -noId",
		"-comp zstd -no-exports", "-no-duplicates", "-nopad", "-comp zstd -b 8K -always-use-fragments",
	}
	for _, args := range cases {
		t.Run(args, func(t *testing.T) {
			// mksquashfs takes two names for one inode only if all that stat says is
			// equal, times of access too: nobody may read the tree while it runs.
			img := mksquashfs(t, dir, strings.Fields(args)...)
			t.Parallel()
			r := openImage(t, img, ReaderOptions{})
			compareTree(t, r, dir)
			must(t, Check(t.Context(), r, CheckOptions{}))
			_, ok, err := r.CompressorOptions()
			if err != nil || ok != (r.sb.Flags&FlagOptions != 0) {
				t.Errorf("compressor options: %v, %v", ok, err)
			}
		})
	}
}

func TestReadsWithEveryOption(t *testing.T) {
	dir := richTree(t, 600_000)
	img := mksquashfs(t, dir, "-comp", "zstd")
	small, err := NewCache(1)
	must(t, err)
	t.Cleanup(func() { must(t, small.Close()) })
	for name, o := range map[string]ReaderOptions{
		"one worker": {Workers: 1}, "eight workers": {Workers: 8}, "no read ahead": {ReadAhead: -1},
		"far read ahead": {ReadAhead: 64 << 20}, "small cache": {Cache: small},
	} {
		t.Run(name, func(t *testing.T) { compareTree(t, openImage(t, img, o), dir) })
	}
}

func TestReadsTar2sqfs(t *testing.T) {
	if testing.Short() {
		t.Skip("short: another peer stands for this one")
	}
	dir := richTree(t, 300_000)
	needTool(t, "tar2sqfs")
	needTool(t, "tar")
	_ = os.Remove(filepath.Join(dir, "sock")) // tar has no sockets
	tar := filepath.Join(t.TempDir(), "tree.tar")
	runTool(t, "tar", "--xattrs", "--xattrs-include=*", "--format=pax", "-S", "-C", dir, "-cf", tar, ".")
	for _, args := range []string{"-c gzip", "-c zstd", "-c xz", "-c lz4", "-c zstd -b 4096", "-c zstd -e"} {
		t.Run(args, func(t *testing.T) {
			img := filepath.Join(t.TempDir(), "t.sqfs")
			cmd := exec.Command("tar2sqfs", append(strings.Fields(args), "-q", "-f", img)...)
			in, err := os.Open(tar)
			must(t, err)
			defer in.Close()
			cmd.Stdin = in
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("tar2sqfs: %v\n%s", err, out)
			}
			r := openImage(t, img, ReaderOptions{})
			must(t, Check(t.Context(), r, CheckOptions{}))
			compareTree(t, r, dir)
		})
	}
}

func TestReadsGensquashfs(t *testing.T) {
	if testing.Short() {
		t.Skip("short: another peer stands for this one")
	}
	dir := richTree(t, 300_000)
	// It takes neither empty attributes nor the root's time and owner.
	owner := fmt.Sprintf("uid=%d,gid=%d", os.Getuid(), os.Getgid())
	_ = unix.Lremovexattr(filepath.Join(dir, "hello"), "user.empty")
	must(t, os.Chtimes(dir, time.Unix(0, 0), time.Unix(0, 0)))
	for _, args := range []string{"-c gzip", "-c zstd", "-c xz", "-c lz4", "-c zstd -b 4096", "-c zstd -T", "-c zstd -e"} {
		t.Run(args, func(t *testing.T) {
			img := filepath.Join(t.TempDir(), "g.sqfs")
			runTool(t, "gensquashfs", append(strings.Fields(args), "-q", "-f", "-k", "-x", "-d", owner, "-D", dir, img)...)
			r := openImage(t, img, ReaderOptions{})
			must(t, Check(t.Context(), r, CheckOptions{}))
			compareTreeLinks(t, r, dir, nil) // it makes each name a file of its own
		})
	}
}

func TestLookupMissing(t *testing.T) {
	dir := richTree(t, 10_000)
	r := openImage(t, mksquashfs(t, dir), ReaderOptions{})
	root, err := r.Root()
	must(t, err)
	for _, name := range []string{"", "nope", "\x00", "zzzz", "a/b", strings.Repeat("n", 256)} {
		if _, err := r.Lookup(root, name); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%q: %v", name, err)
		}
	}
	hello, err := r.Lookup(root, "hello")
	must(t, err)
	if _, err := r.Lookup(hello, "x"); !errors.Is(err, fs.ErrInvalid) {
		t.Errorf("look up in a file: %v", err)
	}
	for _, err := range r.ReadDir(hello) {
		if !errors.Is(err, fs.ErrInvalid) {
			t.Errorf("read a file as directory: %v", err)
		}
	}
	if _, err := r.OpenFile(root); !errors.Is(err, fs.ErrInvalid) {
		t.Errorf("open the root as file: %v", err)
	}
}

// bigDir makes an image whose root has n entries; every tenth is a directory.
func bigDir(t testing.TB, n int, args ...string) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "squashfs") // making many files takes long elsewhere
	if err != nil {
		dir = t.TempDir()
	}
	defer os.RemoveAll(dir)
	for i := range n {
		name := filepath.Join(dir, fmt.Sprintf("%x-%d", i*7919%n, i))
		if i%10 == 0 {
			must(t, os.Mkdir(name, 0o755))
		} else {
			must(t, unix.Mkfifo(name, 0o644))
		}
	}
	return mksquashfs(t, dir, args...)
}

func TestBigDirectory(t *testing.T) {
	r := openImage(t, bigDir(t, 70_000, "-comp", "zstd"), ReaderOptions{})
	must(t, Check(t.Context(), r, CheckOptions{}))
	root, err := r.Root()
	must(t, err)
	if root.dirIndex == 0 {
		t.Error("a large directory without an index is no test of it")
	}
	rnd := rand.New(rand.NewPCG(1, 1))
	n := 0
	before := ""
	for e, err := range r.ReadDir(root) {
		must(t, err)
		n++
		if e.Name <= before {
			t.Fatalf("%q follows %q", e.Name, before)
		}
		before = e.Name
		if rnd.IntN(50) > 0 {
			continue
		}
		if i, err := r.Lookup(root, e.Name); err != nil || i.Number != e.Number {
			t.Fatalf("%q: inode %d, %v; want %d", e.Name, i.Number, err, e.Number)
		}
		if i, err := r.InodeByNumber(e.Number); err != nil || i.Type != e.Type {
			t.Fatalf("%q: by number: %v, %v", e.Name, i.Type, err)
		}
		if _, err := r.Lookup(root, e.Name+"!"); !errors.Is(err, fs.ErrNotExist) {
			t.Fatalf("%q!: %v", e.Name, err)
		}
	}
	if n != 70_000 {
		t.Errorf("%d entries", n)
	}
}

// TestReadDirResumes reads a directory in pieces, each from where the one before
// ended, as a FUSE server does, and in another Reader.
func TestReadDirResumes(t *testing.T) {
	img := bigDir(t, 3000)
	r, other := openImage(t, img, ReaderOptions{}), openImage(t, img, ReaderOptions{})
	root, err := r.Root()
	must(t, err)
	var want, got []DirEntry
	for e, err := range r.ReadDir(root) {
		must(t, err)
		want = append(want, e)
	}
	for pos, more := DirPos(0), true; more; {
		more = false
		n := 1 + len(got)%37
		r, other = other, r
		for e, err := range r.ReadDirFrom(root, pos) {
			must(t, err)
			got = append(got, e)
			pos, more = e.Next, true
			if n--; n == 0 {
				break
			}
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("%d entries in pieces, %d at once", len(got), len(want))
	}
	for _, pos := range []DirPos{1, 511, 1 << 60, want[10].Next + 300, ^DirPos(0)} {
		for _, err := range r.ReadDirFrom(root, pos) {
			if err != nil {
				break // any error will do; some wrong positions look right
			}
		}
	}
}

func TestInodeByNumber(t *testing.T) {
	dir := richTree(t, 10_000)
	r := openImage(t, mksquashfs(t, dir), ReaderOptions{})
	for n := range r.Superblock().Inodes {
		if i, err := r.InodeByNumber(n + 1); err != nil || i.Number != n+1 {
			t.Fatalf("inode %d: %d, %v", n+1, i.Number, err)
		}
	}
	for _, n := range []uint32{0, r.Superblock().Inodes + 1, 1<<32 - 1} {
		if _, err := r.InodeByNumber(n); !errors.Is(err, ErrCorrupt) {
			t.Errorf("inode %d: %v", n, err)
		}
	}
	r = openImage(t, mksquashfs(t, dir, "-no-exports"), ReaderOptions{})
	if _, err := r.InodeByNumber(1); !errors.Is(err, ErrUnsupported) {
		t.Errorf("without export table: %v", err)
	}
}

func TestTrailer(t *testing.T) {
	img := mksquashfs(t, richTree(t, 1000))
	r := openImage(t, img, ReaderOptions{})
	if r.Trailer() != nil {
		t.Error("a trailer of a plain image")
	}
	b, err := os.ReadFile(img)
	must(t, err)
	b = append(b, "trailer"...)
	r, err = NewReader(bytes.NewReader(b), ReaderOptions{})
	must(t, err)
	defer r.Close()
	got, err := io.ReadAll(r.Trailer())
	if err != nil || string(got) != "trailer" {
		t.Errorf("trailer %q, %v", got, err)
	}
}

// unsized hides how long a file is.
type unsized struct{ r io.ReaderAt }

func (u unsized) ReadAt(p []byte, off int64) (int, error) { return u.r.ReadAt(p, off) }

func TestUnknownSize(t *testing.T) {
	dir := richTree(t, 10_000)
	b, err := os.ReadFile(mksquashfs(t, dir, "-nopad"))
	must(t, err)
	r, err := NewReader(unsized{bytes.NewReader(b)}, ReaderOptions{})
	must(t, err)
	defer r.Close()
	compareTree(t, r, dir)
	if r.Trailer() != nil {
		t.Error("a trailer without a size")
	}
	if _, err := NewReader(unsized{bytes.NewReader(b[:len(b)-1])}, ReaderOptions{}); !errors.Is(err, ErrCorrupt) {
		t.Errorf("cut: %v", err)
	}
}

// failing fails reads behind some offset.
type failing struct {
	r  io.ReaderAt
	at int64
}

var errBroken = errors.New("disk is broken")

func (f failing) ReadAt(p []byte, off int64) (int, error) {
	if off+int64(len(p)) > f.at {
		return 0, errBroken
	}
	return f.r.ReadAt(p, off)
}

func TestReadErrorIsNotCorrupt(t *testing.T) {
	b, err := os.ReadFile(mksquashfs(t, richTree(t, 10_000)))
	must(t, err)
	for _, at := range []int64{10, 96} {
		_, err := NewReader(failing{bytes.NewReader(b), at}, ReaderOptions{})
		if !errors.Is(err, errBroken) || errors.Is(err, ErrCorrupt) {
			t.Errorf("read fails from %d on: %v", at, err)
		}
	}
}

func TestClosed(t *testing.T) {
	img := mksquashfs(t, richTree(t, 100_000))
	r := openImage(t, img, ReaderOptions{})
	root, err := r.Root()
	must(t, err)
	i, err := r.Lookup(root, "text")
	must(t, err)
	f, err := r.OpenFile(i)
	must(t, err)
	g, err := r.OpenFile(i)
	must(t, err)
	must(t, f.Close())
	if _, err := f.Read(make([]byte, 1)); err != fs.ErrClosed {
		t.Errorf("read of a closed file: %v", err)
	}
	if err := f.Close(); err != fs.ErrClosed {
		t.Errorf("close twice: %v", err)
	}
	must(t, r.Close())
	must(t, r.Close())
	if _, err := g.ReadAt(make([]byte, 10), 0); !errors.Is(err, fs.ErrClosed) {
		t.Errorf("read in a closed reader: %v", err)
	}
	if _, err := g.WriteTo(io.Discard); !errors.Is(err, fs.ErrClosed) {
		t.Errorf("write to in a closed reader: %v", err)
	}
	if _, err := r.Root(); !errors.Is(err, fs.ErrClosed) {
		t.Errorf("root of a closed reader: %v", err)
	}
	for _, err := range r.ReadDir(root) {
		if !errors.Is(err, fs.ErrClosed) {
			t.Errorf("directory of a closed reader: %v", err)
		}
	}
	if _, err := r.OpenFile(i); !errors.Is(err, fs.ErrClosed) {
		t.Errorf("open in a closed reader: %v", err)
	}
}

// TestLargeHole reads here and there in a file whose block list has several
// segments, 38 in the smallest blocks.
func TestLargeHole(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "hole")
	must(t, os.WriteFile(path, []byte("head"), 0o644))
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	must(t, err)
	const size = 300 << 20
	for _, at := range []int64{100 << 20, 200<<20 + 5, size - 4} {
		_, err = f.WriteAt([]byte("data"), at)
		must(t, err)
	}
	must(t, f.Close())
	for _, args := range [][]string{{"-comp", "zstd"}, {"-comp", "zstd", "-b", "4096"}, {"-comp", "zstd", "-no-fragments"}} {
		r := openImage(t, mksquashfs(t, dir, args...), ReaderOptions{})
		v, err := r.FS().Open("hole")
		must(t, err)
		g := v.(*fsFile)
		for _, at := range []int64{size - 4, 100 << 20, 200<<20 + 5, 100 << 20} {
			p := make([]byte, 10)
			n, err := g.ReadAt(p, at-3)
			if want := min(10, int(size-at+3)); n != want || (err != nil && err != io.EOF) {
				t.Fatalf("%d bytes at %d, %v", n, at-3, err)
			}
			if string(p[3:7]) != "data" || string(p[:3]) != "\x00\x00\x00" {
				t.Errorf("%q at %d", p, at-3)
			}
		}
		runs := 0
		for e, err := range g.Extents() {
			must(t, err)
			runs++
			if !e.Hole && e.Length > 128<<10 {
				t.Errorf("extent %+v", e)
			}
		}
		if runs < 6 || runs > 8 {
			t.Errorf("%d extents", runs)
		}
	}
}

// TestRawBlocks: blocks that are stored as they are come straight to where they are
// wanted, and take no room in the cache.
func TestRawBlocks(t *testing.T) {
	const bs = 4096
	content := noise(7, 20*bs+500)
	r := wOpen(t, wImage(t, WriterOptions{BlockSize: bs}, wFile("f", content)))
	f, err := r.OpenFile(wAt(t, r, "f"))
	must(t, err)
	for _, step := range []int{100, bs, 3 * bs} {
		p := make([]byte, step)
		for off := 0; off < len(content); off += step {
			n, _ := f.ReadAt(p, int64(off))
			if !bytes.Equal(p[:n], content[off:min(off+step, len(content))]) {
				t.Fatalf("in steps of %d: it differs from %d on", step, off)
			}
		}
	}
	r.cache.mu.Lock()
	defer r.cache.mu.Unlock()
	for k := range r.cache.slots {
		if k.size != keyMeta {
			t.Errorf("the block at %d, of size %#x, is in the cache", k.pos, k.size)
		}
	}
}
