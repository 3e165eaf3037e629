package image

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"slices"

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
	b := merged.NewBuilder(merged.Options{Image: i.Manifest, Limits: mergedLimits(limits)})
	for n, l := range i.Layers {
		if err := s.applyLayer(ctx, b, l); err != nil {
			return mergeFault(fmt.Errorf("merge layer %d of %d: %w", n+1, len(i.Layers), err))
		}
	}
	return s.write(ctx, name, func(f *os.File) error {
		_, err := b.WriteTo(f)
		return err
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
	switch {
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

func (s *Store) applyLayer(ctx context.Context, b *merged.Builder, il ImageLayer) error {
	l, err := layer.Open(s.LayerPath(il.Digest), squashfs.ReaderOptions{})
	if err != nil {
		return err
	}
	defer l.Close()
	r := l.Squashfs()
	sb := r.Superblock()
	info := merged.LayerInfo{Digest: il.Digest, Size: l.Info().Size, BlockSize: sb.BlockSize, Compression: sb.Compression}
	return b.Apply(ctx, info, l.Entries(), func(inode uint32) (squashfs.Layout, error) {
		i, err := r.InodeByNumber(inode)
		if err != nil {
			return squashfs.Layout{}, err
		}
		return r.Layout(i)
	})
}
