package image_test

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/gangway-hpc/gangway/image"
	"github.com/gangway-hpc/gangway/internal/fsx"
	"github.com/gangway-hpc/gangway/squashfs"
)

// TestStoreIsNoPattern has two stores, the path of one of which is a pattern that the
// other's matches: each keeps to its own.
func TestStoreIsNoPattern(t *testing.T) {
	h := newHub(t)
	h.push(t, "team/torch:1", three(t, 1000))
	dir := t.TempDir()
	for _, names := range [][2]string{{"e1", "e[1]"}, {"x", "st[x"}} {
		a, b := open(t, filepath.Join(dir, names[0])), open(t, filepath.Join(dir, names[1]))
		mustPull(t, a, h.host+"/team/torch:1")
		i := mustPull(t, b, h.host+"/team/torch:1")
		if list, err := b.List(); err != nil || len(list) != 1 {
			t.Errorf("%s: %v, %v", names[1], list, err)
		}
		if _, err := b.Remove(t.Context(), &i); err != nil {
			t.Error(err)
		}
		if left := stored(t, b); len(left) > 1 {
			t.Errorf("%s holds %d files after the removal of all", names[1], len(left))
		}
		mustBeGood(t, a, 1)
	}
}

// TestPinAgainstPull pins an image while it is pulled anew: a pin that is reported
// holds, and is that of the image which was found.
func TestPinAgainstPull(t *testing.T) {
	h := newHub(t)
	pictures := []*picture{three(t, 1000), three(t, 1500)}
	s := newStore(t)
	ref := h.push(t, "team/torch:1", pictures[0])
	for n := range 40 {
		i := mustPull(t, s, ref)
		if err := s.Pin(t.Context(), &i, false); err != nil {
			t.Fatal(err)
		}
		h.push(t, "team/torch:1", pictures[(n+1)%2])
		done := make(chan image.Image)
		go func() { done <- mustPull(t, s, ref) }()
		err := s.Pin(t.Context(), &i, true)
		pulled := <-done
		now, findErr := s.Find(pulled.Reference, "", "", true)
		if findErr != nil || now.Manifest != pulled.Manifest {
			t.Fatalf("the store has %v, %v; pulled was %v", now.Manifest, findErr, pulled.Manifest)
		}
		if err == nil && !now.Pinned {
			t.Fatal("a pin was lost")
		}
		if err != nil && !errors.Is(err, image.ErrNotFound) {
			t.Fatal(err)
		}
		if now.Pinned {
			if _, err := s.Remove(t.Context(), &i); err == nil {
				t.Fatal("a pinned image was removed by one who found it before")
			}
		}
	}
}

// TestVerifyKeepsWhatItCannotRead has no file to spare for verify.
func TestVerifyKeepsWhatItCannotRead(t *testing.T) {
	h := newHub(t)
	s := newStore(t)
	i := mustPull(t, s, h.push(t, "team/torch:1", three(t, 1000)))
	before := stored(t, s)
	var old syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &old); err != nil {
		t.Fatal(err)
	}
	least, err := os.Open("/")
	if err != nil {
		t.Fatal(err)
	}
	none := syscall.Rlimit{Cur: uint64(least.Fd()), Max: old.Max}
	_ = least.Close()
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &none); err != nil {
		t.Fatal(err)
	}
	r, err := s.Verify(t.Context(), []image.Image{i}, image.VerifyOptions{})
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &old); err != nil {
		t.Fatal(err)
	}
	if !errors.Is(err, syscall.EMFILE) || len(r.Problems) > 0 {
		t.Errorf("verify without files to open: %v, %v", r, err)
	}
	for name := range before {
		if _, err := os.Stat(filepath.Join(s.Dir(), name)); err != nil {
			t.Error(err)
		}
	}
}

// TestVerifyKnowsItsLayers puts a good layer in the place of another, and the index of
// another image in the place of one.
func TestVerifyKnowsItsLayers(t *testing.T) {
	h := newHub(t)
	s := newStore(t)
	a := mustPull(t, s, h.push(t, "team/torch:1", three(t, 1000)))
	b := mustPull(t, s, h.push(t, "team/torch:2", three(t, 2000)))
	swap := func(one, other string) {
		t.Helper()
		content, err := os.ReadFile(other)
		if err == nil {
			err = os.WriteFile(one, content, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		r, err := s.Verify(t.Context(), []image.Image{a}, image.VerifyOptions{})
		if err != nil || len(r.Problems) == 0 || r.Problems[0].File != one || !r.Problems[0].Removed {
			t.Errorf("%s swapped: %+v, %v", one, r, err)
		}
		mustPull(t, s, h.host+"/team/torch:1")
		mustBeGood(t, s, 2)
	}
	n := 0
	for a.Layers[n].Digest == b.Layers[n].Digest {
		n++
	}
	swap(s.LayerPath(a.Layers[n].Digest), s.LayerPath(b.Layers[n].Digest))
	swap(s.IndexPath(a.Manifest), s.IndexPath(b.Manifest))
}

// TestGCSweeps has what a killed process may leave between its last two steps.
func TestGCSweeps(t *testing.T) {
	h := newHub(t)
	s := newStore(t)
	i := mustPull(t, s, h.push(t, "team/torch:1", three(t, 1000)))
	left := filepath.Join(filepath.Dir(s.LayerPath(i.Layers[0].Digest)), fsx.TempPrefix+"left")
	if err := os.WriteFile(left, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	old := time.Now().Add(-time.Hour)
	if err := os.Chtimes(left, old, old); err != nil {
		t.Fatal(err)
	}
	if _, err := s.GC(t.Context(), image.GCOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(left); err == nil {
		t.Error("gc leaves an unfinished file")
	}
	mustBeGood(t, s, 1)
}

// TestPreflight refuses what has no room before anything of it is fetched.
func TestPreflight(t *testing.T) {
	needRoot(t, "mount a small tmpfs")
	h := newHub(t)
	ref := h.push(t, "team/torch:1", paint(t, layerOf(t, "big", noise(1, 2_000_000)), layerOf(t, "small", "s")))
	for options, want := range map[string]string{"size=1m": "of disk", "size=64m,nr_inodes=12": "inodes"} {
		s := open(t, mountTmpfs(t, options))
		h.requests()
		_, err := pull(t, s, ref, image.PullOptions{})
		mustSay(t, err, want, "are free", "--store")
		blobs := 0
		for _, n := range downloads(h.requests()) {
			blobs += n
		}
		if blobs > 1 { // the configuration
			t.Errorf("%s: %d blobs were fetched for nothing", options, blobs)
		}
	}
}

// TestWorldWritableStore refuses a store that everybody may change.
func TestWorldWritableStore(t *testing.T) {
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	_, err := image.Open(image.Options{Dir: dir})
	mustSay(t, err, "everybody may write there", "chmod 700")
}

// TestExportReadsFullStore exports from a store that nothing can be written to.
func TestExportReadsFullStore(t *testing.T) {
	needRoot(t, "remount a tmpfs read-only")
	h := newHub(t)
	dir := mountTmpfs(t, "size=64m")
	s := open(t, dir)
	i := mustPull(t, s, h.push(t, "team/torch:1", three(t, 1000)))
	remount(t, dir, "ro")
	r, err := s.Verify(t.Context(), []image.Image{i}, image.VerifyOptions{Keep: true, Quick: true})
	if err != nil || r.Err() != nil {
		t.Fatal(err, r.Err())
	}
	o, err := s.OpenImage(&i, squashfs.ReaderOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := o.Close(); err != nil {
		t.Error(err)
	}
}
