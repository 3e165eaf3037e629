package image_test

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gangway-hpc/gangway/image"
	"github.com/gangway-hpc/gangway/image/oci"
	"github.com/gangway-hpc/gangway/squashfs"
)

// family is a store with three images over one base, "team/0:1" to "team/2:1", pulled
// in this order; the clock stands at now.
type family struct {
	*hub
	s      *image.Store
	now    time.Time
	base   stratum
	images []image.Image
}

func newFamily(t *testing.T) *family {
	t.Helper()
	f := &family{hub: newHub(t), now: time.Now(), base: layerOf(t, "base", noise(9, 100_000))}
	dir := filepath.Join(t.TempDir(), "store")
	var err error
	f.s, err = image.Open(image.Options{Dir: dir, Now: func() time.Time { return f.now }})
	if err != nil {
		t.Fatal(err)
	}
	for n := range 3 {
		ref := f.push(t, fmt.Sprintf("team/%d:1", n), paint(t, f.base, f.own(t, n)))
		f.images = append(f.images, mustPull(t, f.s, ref))
		f.use(t, n, time.Duration(3-n)*24*time.Hour) // days ago
	}
	return f
}

func (f *family) own(t *testing.T, n int) stratum {
	return layerOf(t, fmt.Sprintf("own%d", n), noise(uint64(n), 50_000))
}

// use makes an image one that was used so long ago.
func (f *family) use(t *testing.T, n int, ago time.Duration) {
	t.Helper()
	now := f.now
	f.now = now.Add(-ago)
	if _, ok := f.s.Cached(f.images[n].Reference, oci.HostPlatform(), f.images[n].Manifest); !ok {
		t.Fatalf("image %d is not cached", n)
	}
	f.now = now
}

// has fails unless the store has exactly these images, and every file they need.
func (f *family) has(t *testing.T, want ...int) {
	t.Helper()
	images, err := f.s.List()
	if err != nil {
		t.Fatal(err)
	}
	got := []int{}
	for _, i := range images {
		got = append(got, slices.IndexFunc(f.images, func(j image.Image) bool { return j.Reference == i.Reference }))
	}
	if !slices.Equal(got, want) {
		t.Errorf("images %v, want %v", got, want)
	}
	mustBeGood(t, f.s, len(want))
	for _, n := range want {
		i := mustPull(t, f.s, strings.TrimPrefix(f.images[n].Reference, "docker://"))
		mustHold(t, f.s, &i, map[string]string{"base": noise(9, 100_000), fmt.Sprintf("own%d", n): noise(uint64(n), 50_000)})
	}
}

func (f *family) gc(t *testing.T, o image.GCOptions) image.GCReport {
	t.Helper()
	r, err := f.s.GC(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func (f *family) there(name string) bool {
	_, err := os.Stat(name)
	return err == nil
}

func TestGCWithoutGarbage(t *testing.T) {
	f := newFamily(t)
	before := stored(t, f.s)
	r := f.gc(t, image.GCOptions{})
	if r.Files != 0 || r.Freed != 0 || len(r.Images) != 0 || r.Kept == 0 {
		t.Errorf("%+v", r)
	}
	for name, content := range before {
		if got, ok := stored(t, f.s)[name]; (!ok || got != content) && !strings.HasPrefix(name, "locks/") {
			t.Errorf("%s changed", name)
		}
	}
	f.has(t, 0, 1, 2)
}

func TestGCOlderThan(t *testing.T) {
	f := newFamily(t)
	r := f.gc(t, image.GCOptions{OlderThan: 36 * time.Hour})
	if !slices.Equal(r.Images, []string{f.images[0].Reference, f.images[1].Reference}) {
		t.Errorf("removed %v", r.Images)
	}
	f.has(t, 2)
	if f.there(f.s.LayerPath(f.images[0].Layers[1].Digest)) {
		t.Error("a layer of a removed image stayed")
	}
	f.now = f.now.Add(48 * time.Hour)
	if r := f.gc(t, image.GCOptions{OlderThan: 36 * time.Hour}); len(r.Images) != 1 || r.Kept != 0 {
		t.Errorf("%+v", r)
	}
	f.has(t)
	if f.there(f.s.LayerPath(f.base.desc.Digest)) {
		t.Error("the base stayed without images")
	}
}

// TestGCKeepBytes lets images go until the limit holds, the ones not used longest
// first, and counts what they share once.
func TestGCKeepBytes(t *testing.T) {
	for n, c := range []struct {
		limit func(all, own int64) int64
		stay  []int
	}{
		{func(all, _ int64) int64 { return all }, []int{0, 1, 2}},
		{func(all, _ int64) int64 { return all - 1 }, []int{1, 2}},
		{func(all, own int64) int64 { return all - own }, []int{1, 2}},
		{func(all, own int64) int64 { return all - own - 1 }, []int{2}},
		{func(all, own int64) int64 { return all - 2*own - 1 }, nil},
		{func(_, _ int64) int64 { return 0 }, nil},
	} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			f := newFamily(t)
			limit := c.limit(f.gc(t, image.GCOptions{}).Kept, f.s.Sizes(f.images)[0].Own)
			dry := f.gc(t, image.GCOptions{KeepBytes: &limit, DryRun: true})
			r := f.gc(t, image.GCOptions{KeepBytes: &limit})
			if !slices.Equal(dry.Images, r.Images) || dry.Freed != r.Freed || dry.Kept != r.Kept || dry.Files != r.Files {
				t.Errorf("dry run said %+v, then %+v", dry, r)
			}
			if r.Kept > limit {
				t.Errorf("%d bytes were kept", r.Kept)
			}
			f.has(t, c.stay...)
		})
	}
}

func TestGCDryRunChangesNothing(t *testing.T) {
	f := newFamily(t)
	before := stored(t, f.s)
	none := int64(0)
	if r := f.gc(t, image.GCOptions{KeepBytes: &none, DryRun: true}); len(r.Images) != 3 || r.Files == 0 {
		t.Errorf("%+v", r)
	}
	if after := stored(t, f.s); !maps.Equal(before, after) {
		t.Error("a dry run changed files")
	}
}

func TestPin(t *testing.T) {
	f := newFamily(t)
	if err := f.s.Pin(t.Context(), &f.images[0], true); err != nil {
		t.Fatal(err)
	}
	found, err := f.s.Find("0:1", "", "", true)
	if err != nil || !found.Pinned || f.now.Sub(found.Used) < 48*time.Hour {
		t.Errorf("a pin is no use: %+v, %v", found, err)
	}
	_, err = f.s.Remove(t.Context(), &found)
	mustSay(t, err, "it is pinned", "gangway image unpin")
	none := int64(0)
	f.gc(t, image.GCOptions{KeepBytes: &none, OlderThan: time.Minute})
	f.has(t, 0)
	// A pull keeps the pin, also when the tag moved.
	mustPull(t, f.s, f.push(t, "team/0:1", paint(t, f.base)))
	if found, err = f.s.Find("0:1", "", "", true); err != nil || !found.Pinned {
		t.Errorf("the pin is gone after a pull: %v", err)
	}
	if err := f.s.Pin(t.Context(), &found, false); err != nil {
		t.Fatal(err)
	}
	if _, err := f.s.Remove(t.Context(), &found); err != nil {
		t.Fatal(err)
	}
	f.has(t)
	// Who found it before it went does not bring it back.
	if err := f.s.Pin(t.Context(), &found, true); !errors.Is(err, image.ErrNotFound) {
		t.Errorf("pin of a removed image: %v", err)
	}
	f.has(t)
}

func TestRemove(t *testing.T) {
	f := newFamily(t)
	opened, err := f.s.OpenImage(&f.images[1], squashfs.ReaderOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer opened.Close()
	r, err := f.s.Remove(t.Context(), &f.images[1])
	if err != nil || len(r.Images) != 1 || r.Freed == 0 {
		t.Errorf("%+v, %v", r, err)
	}
	f.has(t, 0, 2)
	// What is open can still be read.
	w, err := squashfs.Create(filepath.Join(t.TempDir(), "x.sqsh"), squashfs.WriterOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if err := opened.Export(t.Context(), w.Writer, nil); err != nil {
		t.Error(err)
	}
	if _, err := f.s.OpenImage(&f.images[1], squashfs.ReaderOptions{}); err == nil {
		t.Error("a removed image can be opened")
	} else {
		mustSay(t, err, "gangway image pull")
	}
}

// TestLease keeps the files of a removed image until it ends.
func TestLease(t *testing.T) {
	f := newFamily(t)
	lease, err := f.s.Lease(t.Context(), &f.images[1])
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.s.Remove(t.Context(), &f.images[1]); err != nil {
		t.Fatal(err)
	}
	own := f.s.LayerPath(f.images[1].Layers[1].Digest)
	if !f.there(own) || !f.there(f.s.IndexPath(f.images[1].Manifest)) {
		t.Error("leased files went")
	}
	if err := lease.Release(); err != nil {
		t.Fatal(err)
	}
	f.gc(t, image.GCOptions{})
	if f.there(own) {
		t.Error("a file stayed that nobody needs")
	}
	f.has(t, 0, 2)
}

// TestGCDamagedRecord collects nothing as long as a record cannot be read, which might
// name any file.
func TestGCDamagedRecord(t *testing.T) {
	f := newFamily(t)
	records, err := filepath.Glob(filepath.Join(f.s.Dir(), "refs/v1/*.json"))
	if err != nil || len(records) != 3 {
		t.Fatal(records, err)
	}
	if err := os.Truncate(records[0], 100); err != nil {
		t.Fatal(err)
	}
	before := stored(t, f.s)
	none := int64(0)
	_, err = f.s.GC(t.Context(), image.GCOptions{KeepBytes: &none})
	mustSay(t, err, records[0], "damaged", "gangway image verify")
	if after := stored(t, f.s); len(before) != len(after) {
		t.Error("something went")
	}
	if r, err := f.s.VerifyAll(t.Context(), image.VerifyOptions{}); err != nil || len(r.Problems) != 1 || !r.Problems[0].Removed {
		t.Errorf("%+v, %v", r, err)
	}
	f.gc(t, image.GCOptions{})
	mustBeGood(t, f.s, 2)
}

// TestGCWhilePulling collects everything again and again while images are pulled and
// removed. Every pull succeeds, and what it returned under a lease is whole.
func TestGCWhilePulling(t *testing.T) {
	f := newFamily(t)
	rounds := 40
	if isLong() {
		rounds = 1000
	}
	ticks := make(chan struct{}, 1)
	var collector, pullers sync.WaitGroup
	for n := range 2 {
		collector.Go(func() {
			s := open(t, f.s.Dir()) // of another process, as far as locks go
			none := int64(0)
			for range ticks {
				o := image.GCOptions{}
				if n == 1 {
					o.KeepBytes = &none
				}
				if _, err := s.GC(t.Context(), o); err != nil {
					t.Errorf("gc: %v", err)
				}
			}
		})
	}
	for n := range 3 {
		pullers.Go(func() {
			s := open(t, f.s.Dir())
			for range rounds {
				lease, err := s.Lease(t.Context(), &f.images[n])
				if err != nil {
					t.Error(err)
					return
				}
				i, err := pull(t, s, strings.TrimPrefix(f.images[n].Reference, "docker://"), image.PullOptions{Progress: func(image.Progress) { tick(ticks) }})
				if err != nil {
					t.Errorf("pull beside gc: %v", err)
				} else if o, err := s.OpenImage(&i, squashfs.ReaderOptions{}); err != nil {
					t.Errorf("a leased image is not whole: %v", err)
				} else if err := o.Close(); err != nil {
					t.Error(err)
				}
				if err := lease.Release(); err != nil {
					t.Error(err)
				}
				tick(ticks)
			}
		})
	}
	pullers.Wait()
	close(ticks)
	collector.Wait()
	// An image that is listed has all its files.
	images, err := f.s.List()
	if err != nil {
		t.Fatal(err)
	}
	mustBeGood(t, f.s, len(images))
}

// tick makes a collector collect, soon. Collecting all the time would only keep the
// lock from others.
func tick(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// TestGCNeverBreaksAnImage collects what no image needs while images are pulled anew:
// as it removes no image, each that was pulled is whole afterwards.
func TestGCNeverBreaksAnImage(t *testing.T) {
	f := newFamily(t)
	rounds := 30
	if isLong() {
		rounds = 1000
	}
	ticks := make(chan struct{}, 1)
	var collector sync.WaitGroup
	collector.Go(func() {
		s := open(t, f.s.Dir())
		for range ticks {
			if _, err := s.GC(t.Context(), image.GCOptions{}); err != nil {
				t.Errorf("gc: %v", err)
			}
		}
	})
	for n := range rounds {
		ref := f.push(t, "team/moving:1", paint(t, layerOf(t, "n", fmt.Sprint(n))))
		tick(ticks)
		i, err := pull(t, f.s, ref, image.PullOptions{Progress: func(image.Progress) { tick(ticks) }})
		if err != nil {
			t.Fatal(err)
		}
		tick(ticks)
		mustHold(t, f.s, &i, map[string]string{"n": fmt.Sprint(n)})
	}
	close(ticks)
	collector.Wait()
	mustBeGood(t, f.s, 4)
}

// TestGCWaitsForRecords ends a pull in the middle of a collection, which has looked at
// all records already: the new record must not count as garbage.
func TestGCWaitsForRecords(t *testing.T) {
	f := newFamily(t)
	ref := f.push(t, "team/late:1", paint(t, layerOf(t, "late", noise(77, 50_000))))
	release, fetching, pulled := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	f.halfway(20_000, release)
	go func() {
		_, err := pull(t, f.s, ref, image.PullOptions{Progress: func(p image.Progress) {
			if p.Phase == image.PhaseFetch && p.Done == 0 {
				close(fetching)
			}
		}})
		pulled <- err
	}()
	<-fetching
	var once sync.Once
	collector, err := image.Open(image.Options{Dir: f.s.Dir(), Now: func() time.Time {
		once.Do(func() {
			close(release)
			select {
			case err := <-pulled: // it did not wait
				pulled <- err
			case <-time.After(300 * time.Millisecond):
			}
		})
		return f.now
	}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := collector.GC(t.Context(), image.GCOptions{OlderThan: 1000 * time.Hour}); err != nil {
		t.Fatal(err)
	}
	if err := <-pulled; err != nil {
		t.Fatal(err)
	}
	mustBeGood(t, f.s, 4)
}
