package image

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gangway-hpc/gangway/image/merged"
	"github.com/gangway-hpc/gangway/image/oci"
	"github.com/gangway-hpc/gangway/image/rootfs"
	"github.com/gangway-hpc/gangway/internal/fault"
	"github.com/gangway-hpc/gangway/internal/fsx"
)

// VerifyOptions say how Verify goes about it.
type VerifyOptions struct {
	Keep  bool // do not remove what is damaged
	Quick bool // prove hashes only, which say that files are as they were written
	// Progress is told which file is being read.
	Progress func(name string)
}

// VerifyReport says what Verify found.
type VerifyReport struct {
	Images   int       `json:"images"` // proved
	Files    int       `json:"files"`
	Problems []Problem `json:"problems"`
}

// Problem is something that is wrong with a file of the store.
type Problem struct {
	Image   string `json:"image"` // the first that needs the file
	File    string `json:"file"`
	Error   string `json:"error"`
	Removed bool   `json:"removed"` // so that the next pull makes it again
}

// Verify reads every file that the given images need, and proves its digests and
// structure. Damaged files are removed unless o.Keep is set; pulling the image
// again makes them anew. Problems are reported, not returned as an error.
func (s *Store) Verify(ctx context.Context, images []Image, o VerifyOptions) (VerifyReport, error) {
	v := verifier{s: s, o: o, ctx: ctx, good: map[string]bool{}, report: VerifyReport{Problems: []Problem{}}}
	for _, i := range images {
		if err := v.leased(&i); err != nil {
			return v.report, err
		}
	}
	return v.report, nil
}

// leased proves an image that nobody removes meanwhile, unless it is gone by now. A
// store that cannot be written knows no leases, and no removals.
func (v *verifier) leased(i *Image) error {
	if lease, err := v.s.Lease(v.ctx, i); err == nil {
		defer func() { _ = lease.Release() }()
	}
	now, err := v.s.record(i.Reference, i.Platform)
	switch {
	case errors.Is(err, ErrNotFound), err == nil && now.Manifest != i.Manifest:
		return context.Cause(v.ctx)
	case err != nil:
		return v.s.fault(fmt.Errorf("verify %s: %w", i.Reference, err))
	}
	return v.image(i)
}

// VerifyAll is Verify of all images. Records that cannot be read are problems too.
func (s *Store) VerifyAll(ctx context.Context, o VerifyOptions) (VerifyReport, error) {
	broken, err := s.verifyRecords(o.Keep)
	if err != nil {
		return VerifyReport{}, err
	}
	// What List cannot read was reported just now.
	images, _ := s.List()
	r, err := s.Verify(ctx, images, o)
	r.Problems = append(broken, r.Problems...)
	r.Files += len(broken)
	if err != nil {
		return r, err
	}
	v := verifier{s: s, o: o, ctx: ctx, good: map[string]bool{}, report: r}
	if err := v.localIndexes(); err != nil {
		return v.report, err
	}
	err = v.hotFiles()
	return v.report, err
}

// hotFiles proves what containers read when they start, where the index is there: without
// it the file is garbage.
func (v *verifier) hotFiles() error {
	for _, name := range v.s.glob(hotFiles) {
		if strings.HasPrefix(filepath.Base(name), fsx.TempPrefix) {
			continue
		}
		x, err := merged.Open(strings.TrimSuffix(name, hotSuffix))
		if err != nil {
			continue // that is reported, or it is gone
		}
		_, err = v.file(&Image{}, name, func(string) error {
			if err := rootfs.CheckHot(name, x); !errors.Is(err, fs.ErrNotExist) {
				return err
			}
			return nil // removed meanwhile
		})
		if err := errors.Join(err, x.Close()); err != nil {
			return err
		}
	}
	return nil
}

const hotFiles = "indexes/v1/*/*" + hotSuffix

// localIndexes proves the indexes of local files.
func (v *verifier) localIndexes() error {
	for _, name := range v.s.glob(localIndexes) {
		_, err := v.file(&Image{}, name, func(string) error {
			x, err := merged.Open(name)
			if errors.Is(err, fs.ErrNotExist) {
				return nil // removed meanwhile
			}
			if err != nil {
				return err
			}
			defer x.Close()
			return merged.Check(v.ctx, x, nil)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// verifyRecords proves the records of all images and the holds, and removes those that
// cannot be read unless keep is set.
func (s *Store) verifyRecords(keep bool) ([]Problem, error) {
	problems := []Problem{}
	for _, name := range append(s.glob(records), s.glob(holds)...) {
		_, err := readRecord(name)
		if filepath.Base(filepath.Dir(name)) == "holds" {
			_, err = readHold(name)
		}
		if err == nil || errors.Is(err, fs.ErrNotExist) {
			continue
		}
		p := Problem{File: name, Error: err.Error()}
		if !keep {
			if err := os.Remove(name); err != nil {
				return problems, s.fault(err)
			}
			p.Removed = true
		}
		problems = append(problems, p)
	}
	return problems, nil
}

type verifier struct {
	s      *Store
	o      VerifyOptions
	ctx    context.Context
	good   map[string]bool // of files that were read
	report VerifyReport
}

func (v *verifier) image(i *Image) error {
	whole := true
	for _, d := range []oci.Digest{i.Digest, i.Manifest, i.Config} {
		good, err := v.file(i, v.s.blobPath(d), func(string) error {
			_, err := v.s.blob(d)
			return err
		})
		if err != nil {
			return err
		}
		whole = whole && good
	}
	for _, l := range i.Layers {
		good, err := v.file(i, v.s.LayerPath(l.Digest), func(name string) error { return v.layer(name, l) })
		if err != nil {
			return err
		}
		whole = whole && good
	}
	good, err := v.file(i, v.s.IndexPath(i.Manifest), func(string) error { return v.index(i, whole) })
	if err == nil && good && whole {
		v.report.Images++
	}
	return err
}

// file says whether a file is good. It proves it once.
func (v *verifier) file(i *Image, name string, prove func(string) error) (bool, error) {
	if good, known := v.good[name]; known {
		return good, nil
	}
	if v.o.Progress != nil {
		v.o.Progress(name)
	}
	v.report.Files++
	before, _ := os.Stat(name)
	err := prove(name)
	if cause := context.Cause(v.ctx); cause != nil {
		return false, cause
	}
	if v.good[name] = err == nil; err == nil {
		return true, nil
	}
	if !damaged(err) {
		return false, v.s.fault(fmt.Errorf("verify %s: %w", name, err))
	}
	p := Problem{Image: i.Reference, File: name, Error: err.Error()}
	// What has the name by now may be another file, which a pull has just made.
	if now, err := os.Stat(name); !v.o.Keep && err == nil && os.SameFile(before, now) {
		if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return false, v.s.fault(fmt.Errorf("remove damaged file: %w", err))
		}
		p.Removed = true
	}
	v.report.Problems = append(v.report.Problems, p)
	return false, nil
}

// damaged says whether an error is the file's own, and not one of the machine, such
// as having too many files open.
func damaged(err error) bool {
	return errors.Is(err, ErrDamaged) || isTaskError(err) || rootfs.IsHotDamage(err)
}

func (v *verifier) layer(name string, il ImageLayer) error {
	info, err := v.s.performOn(v.ctx, Task{Kind: CheckLayer, Quick: v.o.Quick}, nil, name)
	if err == nil && (info.Digest != il.Digest || info.DiffID != il.DiffID) {
		return fmt.Errorf("%w: it is the layer %s (uncompressed %s)", ErrDamaged, info.Digest, info.DiffID)
	}
	return err
}

// index proves an index, and, where its layers are whole, that it is of them.
func (v *verifier) index(i *Image, whole bool) error {
	name := v.s.IndexPath(i.Manifest)
	names := []string{name}
	if whole {
		x, err := merged.Open(name)
		if err != nil {
			return err
		}
		if err := x.Close(); err != nil {
			return err
		}
		if !v.s.indexFits(name, i) {
			return fmt.Errorf("%w: it is not of this image's layers", ErrDamaged)
		}
		for _, l := range i.Layers {
			if !v.o.Quick {
				names = append(names, v.s.LayerPath(l.Digest))
			}
		}
	}
	_, err := v.s.performOn(v.ctx, Task{Kind: CheckIndex}, nil, names...)
	return err
}

// Err returns what is to be said of the problems found, nil if there are none.
func (r *VerifyReport) Err() error {
	if len(r.Problems) == 0 {
		return nil
	}
	// A hot file needs nobody to mend it.
	p := r.Problems[max(0, slices.IndexFunc(r.Problems, func(p Problem) bool { return !strings.HasSuffix(p.File, hotSuffix) }))]
	hint := "pull the images again; what is damaged is then fetched anew"
	switch {
	case strings.HasSuffix(p.File, hotSuffix):
		hint = "the next container of the image makes it anew"
	case p.Image != "":
		hint = "gangway image pull " + p.Image + " fetches what is damaged anew"
	}
	if _, err := os.Stat(p.File); err == nil {
		hint = "remove it first: gangway image verify; then " + hint
	}
	return &fault.Error{What: fmt.Errorf("%d of %d files are damaged or missing", len(r.Problems), r.Files), Hint: hint}
}
