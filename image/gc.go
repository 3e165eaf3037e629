package image

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/gangway-hpc/gangway/internal/fault"
	"github.com/gangway-hpc/gangway/internal/fsx"
)

// GCOptions say which images go. The zero value removes only what no image needs.
type GCOptions struct {
	KeepBytes *int64        // remove the images not used longest until the store has no more bytes
	OlderThan time.Duration // remove images not used for that long; 0 is no limit
	DryRun    bool          // only say what would go
}

// GCReport says what went, and what stayed.
type GCReport struct {
	Images []string `json:"images"` // removed, by reference
	Files  int      `json:"files"`  // removed
	Freed  int64    `json:"freed"`  // bytes on disk
	Kept   int64    `json:"kept"`   // bytes on disk
}

// GC removes images by age and size, but no pinned ones, and then every file that no
// image needs and nobody has leased, and what killed processes left behind.
func (s *Store) GC(ctx context.Context, o GCOptions) (GCReport, error) {
	return s.collect(ctx, o.DryRun, func(images []Image) []Image { return s.outdated(images, o) })
}

// Remove removes one image, and the files that only it needs. It refuses a pinned
// one.
func (s *Store) Remove(ctx context.Context, i *Image) (GCReport, error) {
	pinned := false
	r, err := s.collect(ctx, false, func(images []Image) []Image {
		n := slices.IndexFunc(images, func(now Image) bool { return now.Reference == i.Reference && now.Platform == i.Platform })
		if n < 0 {
			return nil
		}
		if pinned = images[n].Pinned; pinned {
			return nil
		}
		return images[n : n+1]
	})
	if pinned {
		err = &fault.Error{
			What: fmt.Errorf("remove image %s: it is pinned", i.Reference),
			Hint: "gangway image unpin " + i.Reference,
		}
	}
	return r, err
}

// Pin protects an image from GC and Remove, or ends that.
func (s *Store) Pin(ctx context.Context, i *Image, pinned bool) error {
	// Alone: a pull that completes reads the record before it writes it, too.
	gc, err := s.lock(ctx, s.gcLock(), fsx.Exclusive)
	if err != nil {
		return err
	}
	defer func() { _ = gc.Release() }()
	// It may have gone, or changed, since it was found.
	now, err := s.record(i.Reference, i.Platform)
	if err != nil || now.Manifest != i.Manifest {
		return fmt.Errorf("pin image %s: %w: it was removed or pulled anew meanwhile", i.Reference, ErrNotFound)
	}
	used := now.Used
	i.Pinned = pinned
	if err := s.writeRecord(ctx, i); err != nil {
		return err
	}
	// A pin is no use. If it cannot be noted, the image counts as used now.
	_ = os.Chtimes(s.recordPath(i.Reference, i.Platform), used, used)
	return nil
}

// collect removes the images that choose returns, and then all garbage.
func (s *Store) collect(ctx context.Context, dryRun bool, choose func([]Image) []Image) (GCReport, error) {
	if _, err := os.Stat(s.dir); errors.Is(err, fs.ErrNotExist) {
		return GCReport{}, nil
	}
	lock, err := s.lock(ctx, s.gcLock(), fsx.Exclusive)
	if err != nil {
		return GCReport{}, err
	}
	defer func() { _ = lock.Release() }()
	// A record that cannot be read might name any file: nothing is garbage then.
	images, err := s.List()
	if err != nil {
		return GCReport{}, &fault.Error{What: err, Hint: "gangway image verify finds and removes what is damaged"}
	}
	leased, err := s.leased()
	if err != nil {
		return GCReport{}, err
	}
	r := GCReport{Images: []string{}}
	keep := map[string]bool{}
	gone := choose(slices.Clone(images))
	for _, i := range images {
		if slices.ContainsFunc(gone, func(g Image) bool { return g.Reference == i.Reference && g.Platform == i.Platform }) {
			r.Images = append(r.Images, i.Reference)
			continue
		}
		for _, name := range s.files(&i) {
			keep[name] = true
		}
	}
	for d := range leased {
		keep[s.LayerPath(d)], keep[s.IndexPath(d)], keep[s.blobPath(d)] = true, true, true
	}
	// Records go first: a crash then leaves garbage, never an image without layers.
	for _, pattern := range []string{"refs/v1/*.json", "indexes/v1/*/*", "layers/v1/*/*", "blobs/*/*"} {
		if err := s.removeBut(ctx, pattern, keep, dryRun, &r); err != nil {
			return r, err
		}
	}
	if dryRun {
		return r, nil
	}
	return r, s.tidy()
}

// removeBut removes the files that match a pattern but those to keep.
func (s *Store) removeBut(ctx context.Context, pattern string, keep map[string]bool, dryRun bool, r *GCReport) error {
	for _, name := range s.glob(pattern) {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		size := diskUsage(name)
		if keep[name] || strings.HasPrefix(filepath.Base(name), fsx.TempPrefix) {
			r.Kept += size
			continue
		}
		r.Files++
		r.Freed += size
		if dryRun {
			continue
		}
		if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return s.fault(fmt.Errorf("remove garbage: %w", err))
		}
	}
	return nil
}

// tidy removes what killed processes left: unfinished files, and locks and notes of
// progress that nobody holds.
func (s *Store) tidy() error {
	var errs []error
	for _, pattern := range []string{"refs/v1", "indexes/v1/*", "layers/v1/*", "blobs/*", "tmp"} {
		for _, dir := range s.glob(pattern) {
			errs = append(errs, fsx.Sweep(dir))
		}
	}
	for _, name := range s.glob("locks/*-*-*") {
		base := strings.TrimSuffix(name, ".progress")
		l, err := fsx.TryAcquire(base, fsx.Exclusive)
		if err != nil {
			continue // somebody works
		}
		errs = append(errs, removeAll(base, base+".progress"), l.Release())
	}
	return errors.Join(errs...)
}

func removeAll(names ...string) error {
	for _, name := range names {
		if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// outdated chooses images to remove, by their last use.
func (s *Store) outdated(images []Image, o GCOptions) []Image {
	slices.SortFunc(images, func(a, b Image) int { return cmp.Compare(a.Used.UnixNano(), b.Used.UnixNano()) })
	var gone []Image
	users := map[string]int{} // of each file
	total := int64(0)
	for _, i := range images {
		for _, name := range s.files(&i) {
			if users[name]++; users[name] == 1 {
				total += diskUsage(name)
			}
		}
	}
	for _, i := range images { // the one not used longest first
		old := o.OlderThan > 0 && s.now().Sub(i.Used) > o.OlderThan
		large := o.KeepBytes != nil && total > *o.KeepBytes
		if i.Pinned || !old && !large {
			continue
		}
		gone = append(gone, i)
		for _, name := range s.files(&i) {
			if users[name]--; users[name] == 0 {
				total -= diskUsage(name)
			}
		}
	}
	return gone
}

// files returns the files that an image needs, each once.
func (s *Store) files(i *Image) []string {
	names := []string{
		s.recordPath(i.Reference, i.Platform), s.IndexPath(i.Manifest),
		s.blobPath(i.Digest), s.blobPath(i.Manifest), s.blobPath(i.Config),
	}
	for _, l := range i.Layers {
		names = append(names, s.LayerPath(l.Digest))
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// diskUsage returns the bytes that a file takes on disk, 0 if there is none.
func diskUsage(name string) int64 {
	st, err := os.Lstat(name)
	if err != nil {
		return 0
	}
	if sys, ok := st.Sys().(*syscall.Stat_t); ok {
		return sys.Blocks * 512
	}
	return st.Size()
}
