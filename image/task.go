package image

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/gangway-hpc/gangway/image/layer"
	"github.com/gangway-hpc/gangway/image/merged"
	"github.com/gangway-hpc/gangway/image/oci"
	"github.com/gangway-hpc/gangway/squashfs"
)

// Task is work that decompresses what strangers wrote, on files that are open already. A
// store does it in its own process, or where Options.Perform says.
type Task struct {
	Kind   TaskKind
	Image  oci.Digest   // Merge: the manifest
	Layers []oci.Digest // Merge: what the files are
	Limits layer.Limits // Merge
	Quick  bool         // Check: prove hashes only
}

// TaskKind says what is done, and with which files.
type TaskKind string

// The kinds.
const (
	Merge      TaskKind = "merge"       // writes the merged index into the first file, of the layers behind it
	CheckLayer TaskKind = "check-layer" // proves a layer's file
	CheckIndex TaskKind = "check-index" // proves an index, the first file, against the layers behind it, if there are any
)

// Performer does a task, and returns what [Task.Perform] would.
type Performer func(ctx context.Context, t Task, files []*os.File) (layer.Info, error)

// Perform does the task in this process. The Info is the layer's, of CheckLayer only. The
// files are left open.
func (t Task) Perform(ctx context.Context, files []*os.File) (layer.Info, error) {
	if len(files) == 0 || t.Kind == Merge && len(files) != 1+len(t.Layers) {
		return layer.Info{}, fmt.Errorf("task %s: %d files for %d layers", t.Kind, len(files), len(t.Layers))
	}
	switch t.Kind {
	case Merge:
		return layer.Info{}, t.merge(ctx, files[0], files[1:])
	case CheckLayer:
		return t.checkLayer(ctx, files[0])
	case CheckIndex:
		return layer.Info{}, t.checkIndex(ctx, files[0], files[1:])
	}
	return layer.Info{}, fmt.Errorf("task %q: there is no such one", t.Kind)
}

func (t Task) merge(ctx context.Context, out *os.File, layers []*os.File) error {
	b := merged.NewBuilder(merged.Options{Image: t.Image, Limits: mergedLimits(t.Limits)})
	for n, f := range layers {
		if err := applyLayer(ctx, b, t.Layers[n], f); err != nil {
			return fmt.Errorf("merge layer %d of %d: %w", n+1, len(layers), err)
		}
	}
	_, err := b.WriteTo(out)
	return err
}

func applyLayer(ctx context.Context, b *merged.Builder, d oci.Digest, f *os.File) error {
	l, err := openLayer(f)
	if err != nil {
		return err
	}
	defer l.Close()
	r := l.Squashfs()
	sb := r.Superblock()
	info := merged.LayerInfo{Digest: d, Size: l.Info().Size, BlockSize: sb.BlockSize, Compression: sb.Compression}
	return b.Apply(ctx, info, l.Entries(), func(inode uint32) (squashfs.Layout, error) {
		i, err := r.InodeByNumber(inode)
		if err != nil {
			return squashfs.Layout{}, err
		}
		return r.Layout(i)
	})
}

// openLayer opens the layer that a file is.
func openLayer(f *os.File) (*layer.Layer, error) {
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	return layer.NewReader(f, squashfs.ReaderOptions{Size: st.Size()})
}

func (t Task) checkLayer(ctx context.Context, f *os.File) (layer.Info, error) {
	l, err := openLayer(f)
	if err != nil {
		return layer.Info{}, err
	}
	defer l.Close()
	return l.Info(), layer.Check(ctx, l, layer.CheckOptions{SkipSquashfs: t.Quick})
}

func (t Task) checkIndex(ctx context.Context, index *os.File, layers []*os.File) error {
	x, err := merged.OpenFile(index)
	if err != nil {
		return err
	}
	defer x.Close()
	if len(layers) == 0 {
		return merged.Check(ctx, x, nil)
	}
	if len(layers) != len(x.Layers()) {
		return fmt.Errorf("%w: it is of %d layers, not of %d", merged.ErrCorrupt, len(x.Layers()), len(layers))
	}
	var open []*squashfs.Reader
	defer func() {
		for _, r := range open {
			_ = r.Close()
		}
	}()
	return merged.Check(ctx, x, func(n int) (*squashfs.Reader, error) {
		st, err := layers[n].Stat()
		if err != nil {
			return nil, err
		}
		r, err := squashfs.NewReader(layers[n], squashfs.ReaderOptions{Size: st.Size()})
		if err == nil {
			open = append(open, r)
		}
		return r, err
	})
}

// TaskErrors are what callers look for in the error of a task: whoever carries one from
// another process says which of them it wraps.
func TaskErrors() []error {
	return []error{
		layer.ErrCorrupt, layer.ErrVersion, merged.ErrCorrupt, merged.ErrVersion, merged.ErrLimit,
		squashfs.ErrCorrupt, squashfs.ErrNotSquashfs, squashfs.ErrUnsupported,
		io.EOF, io.ErrUnexpectedEOF, fs.ErrNotExist,
	}
}

// performOn opens files of the store by name, and does a task with them.
func (s *Store) performOn(ctx context.Context, t Task, first []*os.File, names ...string) (layer.Info, error) {
	files := first
	defer func() {
		for _, f := range files[len(first):] {
			_ = f.Close()
		}
	}()
	for _, name := range names {
		f, err := os.Open(name)
		if err != nil {
			return layer.Info{}, err
		}
		files = append(files, f)
	}
	return s.perform(ctx, t, files)
}

// isTaskError says whether an error is the file's own, and not one of the machine, such
// as having too many files open.
func isTaskError(err error) bool {
	for _, own := range TaskErrors() {
		if !errors.Is(own, merged.ErrLimit) && errors.Is(err, own) {
			return true
		}
	}
	return false
}
