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

	"github.com/gangway-hpc/gangway/image/merged"
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

// GC removes images by age and size, but no pinned or held ones, and then every file
// that no image and no hold needs and nobody has leased, and what killed processes left
// behind. The index of a local file goes when the file does or changes, and by age and
// size as an image; it is made again when the file is next used.
func (s *Store) GC(ctx context.Context, o GCOptions) (GCReport, error) {
	return s.collect(ctx, o.DryRun, func(all []*asset) { s.outdated(all, o) })
}

// Remove removes one image, and the files that only it needs. It refuses a pinned
// one, and one that a container holds.
func (s *Store) Remove(ctx context.Context, i *Image) (GCReport, error) {
	var refused error
	r, err := s.collect(ctx, false, func(all []*asset) {
		for _, a := range all {
			switch {
			case a.image == nil || a.image.Reference != i.Reference || a.image.Platform != i.Platform:
			case a.image.Pinned:
				refused = &fault.Error{
					What: fmt.Errorf("remove image %s: it is pinned", i.Reference),
					Hint: "gangway image unpin " + i.Reference,
				}
			case len(a.holders) > 0:
				refused = heldFault(i, a.holders)
			default:
				a.gone = true
			}
		}
	})
	return r, cmp.Or(refused, err)
}

// asset is what is kept or removed as a whole: an image, what a hold needs of one, or
// the index of a local file.
type asset struct {
	image   *Image    // nil where it is no image
	holders []string  // of the image
	fixed   bool      // is not to be chosen
	used    time.Time // last
	files   []string
	gone    bool // was chosen
}

// assets returns all that the store has. A record or a hold that cannot be read might
// name any file.
func (s *Store) assets() ([]*asset, error) {
	images, err := s.List()
	held, err2 := s.Holds()
	if err := cmp.Or(err, err2); err != nil {
		return nil, &fault.Error{What: err, Hint: "gangway image verify finds and removes what is damaged"}
	}
	held = slices.DeleteFunc(held, func(h Hold) bool { return h.abandoned() })
	var all []*asset
	for n := range images {
		i := &images[n]
		names := holders(held, i)
		all = append(all, &asset{image: i, holders: names, fixed: i.Pinned || len(names) > 0, used: i.Used, files: s.files(i)})
	}
	for _, h := range held {
		files := append(s.files(&h.Image), s.holdPath(h.Name, h.Dir))
		// What the reference leads to now is not the hold's.
		record := s.recordPath(h.Image.Reference, h.Image.Platform)
		all = append(all, &asset{fixed: true, files: slices.DeleteFunc(files, func(name string) bool { return name == record })})
	}
	for _, name := range s.glob(localIndexes) {
		if st, err := os.Stat(name); err == nil && s.isCurrent(name) {
			all = append(all, &asset{used: st.ModTime(), files: []string{name}})
		}
	}
	for _, name := range s.glob(handedHot) {
		if st, err := os.Stat(name); err == nil {
			all = append(all, &asset{used: st.ModTime(), files: []string{name}})
		}
	}
	return all, nil
}

// handedHot is where the files lie for images of another store.
const handedHot = "hot/v1/*"

// isCurrent says whether the file that an index is of is still there and the same, as
// far as can be told.
func (s *Store) isCurrent(index string) bool {
	x, err := merged.Open(index)
	if err != nil {
		return false
	}
	defer x.Close()
	if len(x.Layers()) != 1 {
		return false
	}
	path := x.Layers()[0].Path
	st, err := os.Stat(path)
	if err != nil {
		// One that this node cannot reach now may come again.
		return !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ENOTDIR)
	}
	id := identify(path, st)
	return s.localIndexPath(id.key()) == index
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

// collect removes what choose chooses, and then all garbage.
func (s *Store) collect(ctx context.Context, dryRun bool, choose func([]*asset)) (GCReport, error) {
	if _, err := os.Stat(s.dir); errors.Is(err, fs.ErrNotExist) {
		return GCReport{}, nil
	}
	lock, err := s.lock(ctx, s.gcLock(), fsx.Exclusive)
	if err != nil {
		return GCReport{}, err
	}
	defer func() { _ = lock.Release() }()
	// Nothing is garbage where not all that is needed is known.
	all, err := s.assets()
	if err != nil {
		return GCReport{}, err
	}
	leased, err := s.leased()
	if err != nil {
		return GCReport{}, err
	}
	r := GCReport{Images: []string{}}
	keep := map[string]bool{}
	choose(all)
	for _, a := range all {
		switch {
		case !a.gone:
			for _, name := range a.files {
				keep[name] = true
			}
		case a.image != nil:
			r.Images = append(r.Images, a.image.Reference)
		}
	}
	for d := range leased {
		keep[s.LayerPath(d)], keep[s.IndexPath(d)], keep[s.blobPath(d)] = true, true, true
	}
	// Records go first: a crash then leaves garbage, never an image without layers.
	for _, pattern := range []string{records, holds, "indexes/v1/*/*", handedHot, "layers/v1/*/*", "blobs/*/*"} {
		if err := s.removeBut(ctx, pattern, keep, dryRun, &r); err != nil {
			return r, err
		}
	}
	if dryRun {
		return r, nil
	}
	return r, errors.Join(s.tidy(), s.tidyOrigins())
}

// removeBut removes the files that match a pattern but those to keep.
func (s *Store) removeBut(ctx context.Context, pattern string, keep map[string]bool, dryRun bool, r *GCReport) error {
	for _, name := range s.glob(pattern) {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		size := diskUsage(name)
		if keep[strings.TrimSuffix(name, hotSuffix)] || strings.HasPrefix(filepath.Base(name), fsx.TempPrefix) {
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
	for _, pattern := range []string{"refs/v1", "holds", "indexes/v1/*", "layers/v1/*", "blobs/*", "hot/v1", "tmp"} {
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

// outdated chooses what to remove by its last use.
func (s *Store) outdated(all []*asset, o GCOptions) {
	all = slices.Clone(all)
	slices.SortStableFunc(all, func(a, b *asset) int { return a.used.Compare(b.used) })
	users := map[string]int{} // of each file
	total := int64(0)
	for _, a := range all {
		for _, name := range a.files {
			if users[name]++; users[name] == 1 {
				total += diskUsage(name)
			}
		}
	}
	for _, a := range all { // the one not used longest first
		old := o.OlderThan > 0 && s.now().Sub(a.used) > o.OlderThan
		large := o.KeepBytes != nil && total > *o.KeepBytes
		if a.fixed || !old && !large {
			continue
		}
		a.gone = true
		for _, name := range a.files {
			if users[name]--; users[name] == 0 {
				total -= diskUsage(name)
			}
		}
	}
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
