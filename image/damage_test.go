package image_test

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/gangway-hpc/gangway/image"
	"github.com/gangway-hpc/gangway/image/oci"
)

// TestVerifyFindsDamage damages every file of a store in several ways: verify finds
// each, names it and removes it, and the next pull repairs the store.
func TestVerifyFindsDamage(t *testing.T) {
	h := newHub(t)
	p := three(t, 50_000)
	h.push(t, "team/torch:1", p)
	ref := h.pushIndex(t, "team/torch:all", p)
	s := newStore(t)
	i := mustPull(t, s, ref)
	whole := stored(t, s)
	kinds := map[string]bool{}
	for _, name := range slices.Sorted(maps.Keys(whole)) {
		content := whole[name]
		kind := name[:strings.IndexByte(name, '/')]
		first := !kinds[kind]
		kinds[kind] = true
		if strings.HasPrefix(name, "locks/") {
			continue
		}
		for _, damage := range []struct {
			name string
			do   func(path string) error
			seen bool // by pull, without verify
		}{
			{"flipped bit in the begin", flip(3), true},
			{"flipped bit in the middle", flip(len(content) / 2), false},
			{"flipped bit in the end", flip(len(content) - 2), false},
			{"cut", func(path string) error { return os.Truncate(path, int64(len(content)*2/3)) }, true},
			{"longer", func(path string) error { return os.Truncate(path, int64(len(content)+512)) }, true},
			{"empty", func(path string) error { return os.Truncate(path, 0) }, true},
			{"removed", os.Remove, true},
		} {
			if strings.HasPrefix(name, "refs/") && strings.HasPrefix(damage.name, "flipped") {
				continue // that may be another record, as right as the old one
			}
			if !first && !isLong() && damage.name != "flipped bit in the middle" && damage.name != "removed" {
				continue // as with the first
			}
			t.Run(kind+"/"+damage.name, func(t *testing.T) {
				path := filepath.Join(s.Dir(), name)
				if err := damage.do(path); err != nil {
					t.Fatal(err)
				}
				// A layer that is cached is not opened, only measured.
				if damage.seen && !(strings.HasPrefix(name, "layers/") && strings.HasPrefix(damage.name, "flipped")) {
					mustPull(t, s, ref)
					mustBeGood(t, s, 1)
					if err := damage.do(path); err != nil {
						t.Fatal(err)
					}
				}
				mustFind(t, s, path, damage.name == "removed")
				i = mustPull(t, s, ref)
				mustBeGood(t, s, 1)
			})
		}
	}
	mustHold(t, s, &i, threeTree(50_000))
	for name, content := range stored(t, s) {
		if !strings.HasPrefix(name, "refs/") && whole[name] != content {
			t.Errorf("%s is not what it was", name)
		}
	}
}

func flip(at int) func(string) error {
	return func(path string) error {
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		b[at] ^= 0x10
		return os.WriteFile(path, b, 0o600)
	}
}

// mustFind fails unless verify finds exactly one file damaged, first without and then
// with removing it.
func mustFind(t *testing.T, s *image.Store, path string, missing bool) {
	t.Helper()
	if strings.Contains(path, "/refs/") && missing {
		return // then there is no such image
	}
	for _, keep := range []bool{true, false} {
		r, err := s.VerifyAll(t.Context(), image.VerifyOptions{Keep: keep})
		if err != nil || len(r.Problems) != 1 || r.Problems[0].File != path || r.Images != 0 {
			t.Fatalf("verify: %+v, %v; want %s", r, err, path)
		}
		if r.Problems[0].Removed != (!keep && !missing) {
			t.Errorf("keep %v: removed %v", keep, r.Problems[0].Removed)
		}
		mustSay(t, r.Err(), "damaged or missing", "pull")
		if _, err := os.Stat(path); (err == nil) != (keep && !missing) {
			t.Errorf("keep %v: %v", keep, err)
		}
	}
}

// TestVerifySharedLayer damages a layer of two images: that is one problem, the good
// indexes stay, and none of the two images counts as good.
func TestVerifySharedLayer(t *testing.T) {
	h := newHub(t)
	s := newStore(t)
	base := layerOf(t, "base", noise(1, 5000))
	mustPull(t, s, h.push(t, "team/one:1", paint(t, base, layerOf(t, "one", "1"))))
	two := mustPull(t, s, h.push(t, "team/two:1", paint(t, base, layerOf(t, "two", "2"))))
	path := s.LayerPath(base.desc.Digest)
	if err := flip(2000)(path); err != nil {
		t.Fatal(err)
	}
	r, err := s.VerifyAll(t.Context(), image.VerifyOptions{})
	if err != nil || len(r.Problems) != 1 || r.Problems[0].File != path || r.Images != 0 {
		t.Errorf("%+v, %v", r, err)
	}
	if _, err := os.Stat(s.IndexPath(two.Manifest)); err != nil {
		t.Error(err)
	}
	mustPull(t, s, h.host+"/team/two:1")
	mustBeGood(t, s, 2)
}

// TestDiskFull pulls into file systems of several sizes. What does not fit ends with
// an error that says so; what was finished stays, and with more room the pull ends
// well.
func TestDiskFull(t *testing.T) {
	needRoot(t, "mount a small tmpfs")
	const size = 300_000
	h := newHub(t)
	pic := three(t, size)
	ref := h.push(t, "team/torch:1", pic)
	refused := 0
	for kib := 4; kib < 800; kib += 36 {
		s := open(t, mountTmpfs(t, fmt.Sprintf("size=%dk", kib)))
		if _, err := pull(t, s, ref, image.PullOptions{}); err != nil {
			refused++
			mustSay(t, err, "gangway image gc")
		}
		checkFiles(t, s)
		remount(t, s.Dir(), "size=4m")
		i := mustPull(t, s, ref)
		mustHold(t, s, &i, threeTree(size))
		mustBeTidy(t, s)
	}
	if refused < 10 {
		t.Errorf("only %d pulls failed", refused)
	}
}

// TestDiskFillsUp takes the room away while the pull runs, when the preflight has
// found enough.
func TestDiskFillsUp(t *testing.T) {
	needRoot(t, "mount a small tmpfs")
	const size = 600_000
	h := newHub(t)
	pic := three(t, size)
	ref := h.push(t, "team/torch:1", pic)
	for left := 0; left < 700; left += 70 {
		dir := mountTmpfs(t, "size=4m")
		s := open(t, dir)
		ballast := filepath.Join(dir, "ballast")
		_, err := pull(t, s, ref, image.PullOptions{AtOnce: 1, Progress: func(p image.Progress) {
			if p.Phase == image.PhaseFetch {
				fill(t, ballast, left<<10)
			}
		}})
		mustSay(t, err, "no space", "the store "+dir, "gangway image gc")
		if err := os.Remove(ballast); err != nil {
			t.Fatal(err)
		}
		checkFiles(t, s)
		i := mustPull(t, s, ref)
		mustHold(t, s, &i, threeTree(size))
	}
}

// fill makes a file that leaves so many bytes on its file system.
func fill(t *testing.T, name string, left int) {
	if _, err := os.Stat(name); err == nil {
		return
	}
	var st syscall.Statfs_t
	if err := syscall.Statfs(filepath.Dir(name), &st); err != nil {
		t.Error(err)
	}
	f, err := os.Create(name)
	if err == nil {
		err = errors.Join(syscall.Fallocate(int(f.Fd()), 0, 0, max(1, int64(st.Bavail)*st.Bsize-int64(left))), f.Close())
	}
	if err != nil {
		t.Error(err)
	}
}

// TestInodesFull pulls into file systems that have room, but few inodes.
func TestInodesFull(t *testing.T) {
	needRoot(t, "mount a small tmpfs")
	h := newHub(t)
	ref := h.push(t, "team/torch:1", three(t, 20_000))
	refused := 0
	for inodes := 2; inodes < 40; inodes++ {
		s := open(t, mountTmpfs(t, fmt.Sprintf("size=8m,nr_inodes=%d", inodes)))
		if _, err := pull(t, s, ref, image.PullOptions{}); err != nil {
			refused++
			mustSay(t, err, "inodes", "another store")
		}
		checkFiles(t, s)
		remount(t, s.Dir(), "nr_inodes=100")
		mustPull(t, s, ref)
		mustBeTidy(t, s)
	}
	if refused < 10 {
		t.Errorf("only %d pulls failed", refused)
	}
}

// mountTmpfs mounts a tmpfs for a test.
func mountTmpfs(t *testing.T, options string) string {
	t.Helper()
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, options+",mode=700"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(dir, syscall.MNT_DETACH) })
	return dir
}

func remount(t *testing.T, dir, options string) {
	t.Helper()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", syscall.MS_REMOUNT, options); err != nil {
		t.Fatal(err)
	}
}

// TestReadOnlyStore uses a store on a read-only file system: what it has can be used,
// the rest is refused.
func TestReadOnlyStore(t *testing.T) {
	needRoot(t, "mount something read-only")
	h := newHub(t)
	ref := h.push(t, "team/torch:1", paint(t, layerOf(t, "a", "A")))
	other := h.push(t, "team/other:1", paint(t, layerOf(t, "b", "B")))
	dir := mountTmpfs(t, "size=4m")
	s := open(t, dir)
	i := mustPull(t, s, ref)
	if err := syscall.Mount("tmpfs", dir, "tmpfs", syscall.MS_REMOUNT|syscall.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	i = mustPull(t, s, ref)
	mustHold(t, s, &i, map[string]string{"a": "A"})
	mustBeGood(t, s, 1)
	_, err := pull(t, s, other, image.PullOptions{})
	mustSay(t, err, "read-only", dir, "--store DIR")
	_, err = s.GC(t.Context(), image.GCOptions{})
	mustSay(t, err, "read-only", "--store DIR")
	_, err = s.Remove(t.Context(), &i)
	mustSay(t, err, "read-only")
	mustSay(t, s.Pin(t.Context(), &i, true), "read-only")
}

// TestStoreOfSomebodyElse refuses a store whose files another user could change.
func TestStoreOfSomebodyElse(t *testing.T) {
	needRoot(t, "give a directory to another user")
	dir := t.TempDir()
	if err := os.Chown(dir, 12345, 12345); err != nil {
		t.Fatal(err)
	}
	_, err := image.Open(image.Options{Dir: dir})
	mustSay(t, err, dir, "belongs to user 12345", "--store DIR")
}

// TestStoreThatIsNone gives what is no directory.
func TestStoreThatIsNone(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := image.Open(image.Options{Dir: file})
	mustSay(t, err, file, "not a directory", "--store DIR")
	_, err = image.Open(image.Options{Dir: file + "/below"})
	if err == nil {
		t.Error("a store below a file was opened")
	}
	s := newStore(t)
	if _, err := os.Stat(s.Dir()); err == nil {
		t.Error("opening a store made its directory")
	}
	if images, err := s.List(); err != nil || len(images) != 0 {
		t.Errorf("%v, %v", images, err)
	}
	if _, ok := s.Cached("docker://h/x:1", oci.HostPlatform(), oci.DigestOf(nil)); ok {
		t.Error("an empty store has an image")
	}
	mustBeGood(t, s, 0)
	if _, err := s.GC(t.Context(), image.GCOptions{}); err != nil {
		t.Error(err)
	}
}
