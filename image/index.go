package image

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"slices"
	"syscall"

	"github.com/gangway-hpc/gangway/image/layer"
	"github.com/gangway-hpc/gangway/image/merged"
	"github.com/gangway-hpc/gangway/internal/fault"
	"github.com/gangway-hpc/gangway/internal/fsx"
	"github.com/gangway-hpc/gangway/squashfs"
)

// buildIndex makes the store have the merged index of an image whose layers it has.
func (s *Store) buildIndex(ctx context.Context, i *Image, limits layer.Limits) error {
	name := s.IndexPath(i.Manifest)
	if s.indexFits(name, i) {
		return nil
	}
	lock, err := s.lock(ctx, s.lockPath("index", i.Manifest), fsx.Exclusive)
	if err != nil {
		return err
	}
	defer func() { _ = lock.Release() }()
	if s.indexFits(name, i) {
		return nil
	}
	t := Task{Kind: Merge, Image: i.Manifest, Limits: limits}
	var names []string
	for _, l := range i.Layers {
		t.Layers = append(t.Layers, l.Digest)
		names = append(names, s.LayerPath(l.Digest))
	}
	return s.write(ctx, name, func(f *os.File) error {
		_, err := s.performOn(ctx, t, []*os.File{f}, names...)
		return mergeFault(err)
	})
}

// defaultEntries is how many entries a layer, and an image, may have if nothing is said.
const defaultEntries = 2_000_000

// mergedLimits are the limits of an image for those of a layer: who raises the one
// means the other, too.
func mergedLimits(l layer.Limits) merged.Limits {
	var m merged.Limits
	if l.Entries > defaultEntries {
		m = merged.Limits{Entries: uint32(min(l.Entries, math.MaxInt32)), Bytes: math.MaxInt64} // as many as it can
	}
	return m
}

// mergeFault says what to do about layers that cannot be merged.
func mergeFault(err error) error {
	f := &fault.Error{What: err}
	_, known := errors.AsType[*fault.Error](err)
	_, system := errors.AsType[syscall.Errno](err)
	switch {
	case err == nil, known, system: // as a full disk: it is not about the layers
		return err
	case errors.Is(err, merged.ErrLimit):
		f.Hint = fmt.Sprintf("if you trust the image: --max-entries %d", 4*defaultEntries)
	case errors.Is(err, layer.ErrCorrupt), errors.Is(err, squashfs.ErrCorrupt):
		f.Hint = "gangway image verify finds and removes the damaged layer; then pull again"
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return err
	default:
		f.Hint = "the layers do not fit together as they were published: ask who publishes the image to build it anew"
	}
	return f
}

// indexFits says whether an image's index is there and was made of its layers as they
// are there: of these it looks at the size only.
func (s *Store) indexFits(name string, i *Image) bool {
	x, err := merged.Open(name)
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			s.log.Warn("index in store is damaged, it is made again", "image", i.Reference, "err", err)
		}
		return false
	}
	defer x.Close()
	return slices.EqualFunc(x.Layers(), i.Layers, func(a merged.LayerInfo, b ImageLayer) bool {
		st, err := os.Stat(s.layerFile(a))
		return err == nil && st.Size() == a.Size && a.Digest == b.Digest
	})
}
