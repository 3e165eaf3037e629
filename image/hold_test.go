package image_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gangway-hpc/gangway/image"
	"github.com/gangway-hpc/gangway/squashfs"
)

// TestHold: what a container holds stays, whatever becomes of its reference.
func TestHold(t *testing.T) {
	f := newFamily(t)
	held := f.images[0]
	must(t, f.s.Hold(t.Context(), "dev box", "", &held))
	zero := int64(0)
	if r := f.gc(t, image.GCOptions{KeepBytes: &zero, OlderThan: time.Hour}); len(r.Images) != 2 {
		t.Errorf("%+v", r)
	}
	f.has(t, 0)
	_, err := f.s.Remove(t.Context(), &held)
	mustSay(t, err, "remove image "+held.Reference, "held by container dev box", "gangway container rm dev box")
	f.has(t, 0)

	// The tag moves on: the old image stays, and the new one may go.
	f.push(t, "team/0:1", paint(t, f.base, layerOf(t, "other", "x")))
	now := mustPull(t, f.s, strings.TrimPrefix(held.Reference, "docker://"))
	if now.Manifest == held.Manifest {
		t.Fatal("the tag did not move")
	}
	if _, err := f.s.Remove(t.Context(), &now); err != nil {
		t.Error(err)
	}
	f.gc(t, image.GCOptions{KeepBytes: &zero})
	mustHold(t, f.s, &held, map[string]string{"base": noise(9, 100_000), "own0": noise(0, 50_000)})
	o, err := f.s.OpenImage(&held, squashfs.ReaderOptions{})
	must(t, err)
	if _, err := o.Config(); err != nil {
		t.Error(err)
	}
	must(t, o.Close())

	all, err := f.s.Holds()
	must(t, err)
	if len(all) != 1 || all[0].Name != "dev box" || all[0].Image.Manifest != held.Manifest {
		t.Errorf("holds %+v", all)
	}
	must(t, f.s.Release("dev box", ""))
	must(t, f.s.Release("dev box", ""))
	if r := f.gc(t, image.GCOptions{}); r.Kept != 0 {
		t.Errorf("%+v after the release", r)
	}
	if err := f.s.Hold(t.Context(), "late", "", &held); err == nil || !strings.Contains(err.Error(), "hold image for container late") {
		t.Errorf("an image that is gone was held: %v", err)
	}
}

// TestHoldReplaced: a name holds one image, and an image may have many holds.
func TestHoldReplaced(t *testing.T) {
	f := newFamily(t)
	for n := range 3 {
		must(t, f.s.Hold(t.Context(), "../odd/name", "", &f.images[n]))
		must(t, f.s.Hold(t.Context(), fmt.Sprint("c", n), "", &f.images[1]))
	}
	_, err := f.s.Remove(t.Context(), &f.images[1])
	mustSay(t, err, "containers c0 c1 c2")
	_, err = f.s.Remove(t.Context(), &f.images[2])
	mustSay(t, err, "container ../odd/name")
	if _, err := f.s.Remove(t.Context(), &f.images[0]); err != nil {
		t.Error(err)
	}
	f.has(t, 1, 2)
}

// TestHoldDamaged: with a hold that cannot be read nothing is garbage, until verify
// removes it.
func TestHoldDamaged(t *testing.T) {
	f := newFamily(t)
	must(t, f.s.Hold(t.Context(), "box", "", &f.images[0]))
	names, err := filepath.Glob(f.s.Dir() + "/holds/*")
	must(t, err)
	for _, text := range []string{"", "{", `{"name":"x","image":{"digest":"../../x"}}`} {
		must(t, os.WriteFile(names[0], []byte(text), 0o600))
		_, err := f.s.GC(t.Context(), image.GCOptions{OlderThan: time.Hour})
		if mustSay(t, err, "read hold", "gangway image verify"); !errors.Is(err, image.ErrDamaged) {
			t.Error(err)
		}
	}
	r, err := f.s.VerifyAll(t.Context(), image.VerifyOptions{})
	must(t, err)
	if len(r.Problems) != 1 || r.Problems[0].File != names[0] || !r.Problems[0].Removed {
		t.Errorf("%+v", r.Problems)
	}
	f.gc(t, image.GCOptions{})
	f.has(t, 0, 1, 2)
}

// TestHoldAbandoned: the hold of a container whose directory is gone keeps nothing, while
// what can only not be seen does. Containers of one name in two places are two.
func TestHoldAbandoned(t *testing.T) {
	f := newFamily(t)
	dir := t.TempDir()
	here, away, other := filepath.Join(dir, "here", "dev"), filepath.Join(dir, "away", "dev"), filepath.Join(dir, "other", "dev")
	for n, at := range []string{here, away, other} {
		must(t, os.MkdirAll(at, 0o700))
		must(t, f.s.Hold(t.Context(), "dev", at, &f.images[n]))
	}
	zero := int64(0)
	f.gc(t, image.GCOptions{KeepBytes: &zero})
	f.has(t, 0, 1, 2)
	must(t, os.Remove(here))
	must(t, os.RemoveAll(filepath.Dir(away))) // as of a disk that is not mounted
	f.gc(t, image.GCOptions{KeepBytes: &zero})
	f.has(t, 1, 2)
	all, err := f.s.Holds()
	must(t, err)
	if len(all) != 2 || all[0].Dir == here || all[1].Dir == here {
		t.Errorf("holds %+v", all)
	}
	must(t, f.s.Release("dev", away))
	f.gc(t, image.GCOptions{KeepBytes: &zero})
	f.has(t, 2)
}
