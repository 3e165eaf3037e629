package image_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gangway-hpc/gangway/image"
	"github.com/gangway-hpc/gangway/internal/fault"
	"github.com/gangway-hpc/gangway/squashfs"
)

// mustCommit changes an overlay and commits it over each kind of base, each as an
// ordinary user, and compares the results with what the overlay showed.
func mustCommit(t *testing.T, o overlayTest) (file, warnings string) {
	t.Helper()
	o.Root = lowTree(t)
	base := imageOf(t, o.Root+"/low", "-comp", "zstd", "-Xcompression-level", "3", "-all-root")
	must(t, os.Rename(base, o.Root+"/base.sqsh"))
	must(t, os.Chmod(o.Root+"/base.sqsh", 0o644))
	var want map[string]string
	must(t, json.Unmarshal([]byte(asUser(t, true, o)), &want))
	before := modes(t, o.Root+"/up")
	for _, base := range []string{"", o.Root + "/base.sqsh"} {
		o.Base, o.Commit = base, o.Root+"/commit.sqsh"
		warnings = asUser(t, false, o)
		got := fileTree(t, o.Commit)
		if o.Fuse { // it shows one inode where it made several
			got, want = withoutLinks(got), withoutLinks(want)
		}
		mustEqual(t, got, want)
	}
	mustEqual(t, modes(t, o.Root+"/up"), before) // also of what could not be read
	return o.Commit, warnings
}

// TestCommitScript: what people and package managers do.
func TestCommitScript(t *testing.T) {
	script := `
echo new > new; mkdir -p etc/new.d/x; echo 1 > etc/new.d/x/1
rm lib/a/x lib/z2
rm -r var/cache; mkdir var/cache; echo 3 > var/cache/3
rm -r lib/a/b; echo file > lib/a/b
rm big; mkdir big; echo in > big/in
echo more >> etc/passwd; chmod 0 etc/shadow; echo s > secret; chmod 0 secret
mkdir closed; echo x > closed/x; chmod 0 closed; chmod u+s new
echo tmp > gone; rm gone; rm -f lib/sym; ln -s /new lib/sym; mkfifo fifo
ln new etc/new-too; echo l > l1; ln l1 l2; ln l1 etc/l3; rm l1
truncate -s 5M hole; echo end >> hole
touch -d @12345 old; touch -d @99999 lib
mkdir -p '.wh.odd'; echo w > .wh.name; mv lib/a moved
`
	for _, fuse := range []bool{false, true} {
		t.Run(fmt.Sprintf("fuse=%v", fuse), func(t *testing.T) {
			script := script
			if _, err := exec.LookPath("fuse-overlayfs"); fuse && err != nil {
				t.Skip("needs the package fuse-overlayfs")
			}
			if fuse && os.Geteuid() == 0 {
				must(t, os.Chmod("/dev/fuse", 0o666)) // as distributions have it
			}
			if fuse { // which refuses such names, and knows its own mounter as the owner of all
				script = strings.ReplaceAll(script, "mkdir -p '.wh.odd'; echo w > .wh.name; ", "")
			}
			file, _ := mustCommit(t, overlayTest{Script: script, Fuse: fuse})
			r, err := squashfs.Open(file, squashfs.ReaderOptions{})
			must(t, err)
			defer r.Close()
			if ids := r.Superblock().IDs; ids != 1 {
				t.Errorf("%d owners, want root alone", ids)
			}
		})
	}
}

// TestCommitRandom: whatever is done to an overlay, the result is what it showed.
func TestCommitRandom(t *testing.T) {
	n := uint64(12)
	switch {
	case isLong():
		n = 150
	case testing.Short():
		n = 3
	}
	for seed := range n {
		seed += uint64(time.Now().UnixNano())
		mustCommit(t, overlayTest{Seed: seed})
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

// changeAtRandom does with few names what file systems can do.
func changeAtRandom(dir string, r *rand.Rand) error {
	if err := os.Chdir(dir); err != nil {
		return err
	}
	pick := func() string {
		names := []string{"etc", "lib", "var", "a", "b", "cache", "x", "y", "z", "z2", "z3", "big", "passwd", "sym", ".wh.x"}
		name := names[r.IntN(len(names))]
		for r.IntN(2) == 0 {
			name = path.Join(names[r.IntN(6)], name)
		}
		return name
	}
	for range 60 {
		a, b := pick(), pick()
		var err error
		switch r.IntN(11) {
		case 0, 1:
			err = os.RemoveAll(a)
		case 2:
			err = os.Mkdir(a, 0o755)
		case 3, 4:
			err = os.WriteFile(a, []byte(noise(r.Uint64(), r.IntN(200_000))), 0o644)
		case 5:
			err = os.Rename(a, b)
		case 6:
			err = os.Link(a, b)
		case 7:
			err = os.Symlink(b, a)
		case 8:
			err = os.Chmod(a, fs.FileMode(r.IntN(0o1000)))
		case 9:
			err = unix.Setxattr(a, "user.note", []byte(b), 0)
		case 10:
			err = unix.UtimesNanoAt(unix.AT_FDCWD, a, []unix.Timespec{{Sec: r.Int64N(2e9)}, {Sec: r.Int64N(2e9)}}, unix.AT_SYMLINK_NOFOLLOW)
		}
		// Most of them cannot be done, which is no matter.
		if errors.Is(err, syscall.EIO) {
			return err
		}
	}
	return nil
}

// TestCommitSplices: blocks of the base come as they are, and its owners stay.
func TestCommitSplices(t *testing.T) {
	low := t.TempDir()
	must(t, os.MkdirAll(low+"/var/db", 0o755))
	must(t, os.WriteFile(low+"/text", []byte(strings.Repeat("compresses well, and better with effort ", 50_000)), 0o644))
	if os.Geteuid() == 0 {
		must(t, os.Lchown(low+"/var/db", 70, 71))
		must(t, os.Lchown(low+"/text", 72, 73))
	}
	h := newHub(t)
	s := newStore(t)
	i := mustPull(t, s, h.push(t, "a/b:1", three(t, 400_000)))
	ofStore, err := s.OpenImage(&i, squashfs.ReaderOptions{})
	must(t, err)
	defer ofStore.Close()
	file := imageOf(t, low, "-comp", "zstd", "-Xcompression-level", "22")
	up := t.TempDir()
	must(t, os.MkdirAll(up+"/var/db", 0o700))
	must(t, os.WriteFile(up+"/var/db/new", []byte("new"), 0o600))
	must(t, os.Chmod(up, 0o711)) // means nothing
	for name, o := range map[string]*image.Opened{"text": openFile(t, s, file), "big": ofStore} {
		out := written(t, func(w *squashfs.Writer) error { return o.Commit(t.Context(), up, w, image.CommitOptions{}) })
		want, got := describe(t, exported(t, o)), describe(t, out)
		for _, same := range []string{"", name} {
			if got[same] != want[same] || got[same] == "" {
				t.Errorf("%q:\n got %s\nwant %s", same, got[same], want[same])
			}
		}
		if !strings.HasPrefix(got["var/db/new"], "file 600 0:0 ") {
			t.Errorf("new file: %s", got["var/db/new"])
		}
		if name == "text" && os.Geteuid() == 0 && !strings.HasPrefix(got["var/db"], "directory 700 70:71 ") {
			t.Errorf("directory that is in both: %s", got["var/db"])
		}
		if a, b := blocks(t, exported(t, o), name), blocks(t, out, name); !slices.Equal(a, b) || len(a) == 0 {
			t.Errorf("%s has blocks of %d bytes, want %d", name, b, a)
		}
	}
	if a, b := blocks(t, file, "text"), blocks(t, exported(t, openFile(t, s, file)), "text"); !slices.Equal(a, b) {
		t.Errorf("blocks of %d bytes were %d", b, a)
	}
}

// TestWriterOptions: an image of any compression that can be written is copied, not
// compressed anew.
func TestWriterOptions(t *testing.T) {
	low := t.TempDir()
	must(t, os.WriteFile(low+"/text", []byte(strings.Repeat("compresses well, and better with effort ", 50_000)), 0o644))
	for _, args := range [][]string{{"-comp", "gzip", "-Xcompression-level", "1"}, {"-comp", "lz4", "-b", "1M"}, {"-comp", "xz", "-b", "64K"}} {
		o := openFile(t, newStore(t), imageOf(t, low, args...))
		file := filepath.Join(t.TempDir(), "x.sqsh")
		w, err := squashfs.Create(file, o.WriterOptions())
		must(t, err)
		must(t, o.Export(t.Context(), w.Writer, nil))
		_, err = w.Commit(t.Context(), nil)
		must(t, errors.Join(err, w.Close()))
		same := slices.Equal(blocks(t, file, "text"), blocks(t, o.Index.Layers()[0].Path, "text"))
		if want := args[1] != "xz"; same != want {
			t.Errorf("%q: the same blocks: %v, want %v", args, same, want)
		}
	}
}

func blocks(t testing.TB, file, name string) []uint32 {
	t.Helper()
	r, err := squashfs.Open(file, squashfs.ReaderOptions{})
	must(t, err)
	defer r.Close()
	st, err := fs.Stat(r.FS(), name)
	must(t, err)
	l, err := r.Layout(*st.Sys().(*squashfs.Inode))
	must(t, err)
	return l.Blocks
}

// TestCommitLeavesOut: what an image has no place for is said.
func TestCommitLeavesOut(t *testing.T) {
	up := t.TempDir()
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	must(t, err)
	defer unix.Close(fd)
	must(t, unix.Bind(fd, &unix.SockaddrUnix{Name: up + "/sock"}))
	must(t, os.WriteFile(up+"/file", []byte("x"), 0o644))
	must(t, unix.Setxattr(up+"/file", "user.overlay.origin", []byte("x"), 0))
	must(t, unix.Setxattr(up+"/file", "user.overlay.overlay.opaque", []byte("y"), 0))
	var said []string
	out := written(t, func(w *squashfs.Writer) error {
		return image.CommitDir(t.Context(), up, "", w, image.CommitOptions{Warn: func(name string, _ error) { said = append(said, name) }})
	})
	if got := fileTree(t, out); len(got) != 1 || !slices.Equal(said, []string{up + "/sock"}) {
		t.Errorf("%v, said %q", got, said)
	}
}

// TestCommitRefused: what cannot be told is not guessed.
func TestCommitRefused(t *testing.T) {
	low := t.TempDir()
	must(t, os.Mkdir(low+"/d", 0o755))
	try := func(up string, content func(*squashfs.Writer) error) error {
		w, err := squashfs.Create(t.TempDir()+"/x.sqsh", squashfs.WriterOptions{})
		must(t, err)
		defer w.Close()
		if content != nil {
			must(t, content(w.Writer))
		}
		return image.CommitDir(t.Context(), low, up, w.Writer, image.CommitOptions{})
	}
	for _, attr := range []string{"user.overlay.redirect", "user.overlay.metacopy"} {
		up := t.TempDir()
		must(t, os.Mkdir(up+"/d", 0o755))
		must(t, unix.Setxattr(up+"/d", attr, []byte("x"), 0))
		mustSay(t, try(up, nil), up+"/d has the attribute "+attr)
	}
	if err := try(low+"/none", nil); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no directory: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	w, err := squashfs.Create(t.TempDir()+"/x.sqsh", squashfs.WriterOptions{})
	must(t, err)
	defer w.Close()
	if err := image.CommitDir(ctx, low, "", w.Writer, image.CommitOptions{}); !errors.Is(err, context.Canceled) {
		t.Errorf("canceled: %v", err)
	}
}

// TestCommitWhileWritten: a result is right, or there is none.
func TestCommitWhileWritten(t *testing.T) {
	up := t.TempDir()
	name := up + "/log"
	must(t, os.WriteFile(name, []byte(noise(1, 8<<20)), 0o644))
	stop, done := make(chan struct{}), make(chan error)
	go func() {
		f, err := os.OpenFile(name, os.O_APPEND|os.O_WRONLY, 0)
		for err == nil {
			select {
			case <-stop:
				done <- f.Close()
				return
			default:
				_, err = io.WriteString(f, "line\n")
			}
		}
		done <- err
	}()
	w, err := squashfs.Create(t.TempDir()+"/x.sqsh", squashfs.WriterOptions{})
	must(t, err)
	defer w.Close()
	err = image.CommitDir(t.Context(), up, "", w.Writer, image.CommitOptions{})
	close(stop)
	must(t, <-done)
	mustSay(t, err, name+" changed while it was read", "container has ended")
	if text := fault.Text("x", err, false); strings.Contains(text, "import") {
		t.Error(text)
	}
}
