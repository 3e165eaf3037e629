package image

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/gangway-hpc/gangway/image/layer"
	"github.com/gangway-hpc/gangway/image/oci"
	"github.com/gangway-hpc/gangway/internal/fault"
	"github.com/gangway-hpc/gangway/internal/fsx"
	"github.com/gangway-hpc/gangway/squashfs"
)

// layerJob makes the store have one layer.
type layerJob struct {
	desc   oci.Descriptor
	diffID oci.Digest
	report func(Phase, int64, bool)
}

// pullLayers makes the store have all layers of a manifest, several at a time, the
// largest first, so that no large one is left over at the end.
func (s *Store) pullLayers(ctx context.Context, src Source, m oci.Manifest, diffIDs []oci.Digest, o *PullOptions) error {
	order := make([]int, len(m.Layers))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return int(min(1, max(-1, m.Layers[b].Size-m.Layers[a].Size))) })
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(o.layersAtOnce())
	for _, n := range order {
		o.Progress(Progress{Layer: n, Layers: len(order), Digest: m.Layers[n].Digest, Phase: PhaseWait, Total: m.Layers[n].Size})
	}
	first := map[oci.Digest]oci.Digest{}
	for n, l := range m.Layers {
		if id, twice := first[l.Digest]; twice && id != diffIDs[n] {
			return diffFault(l.Digest, diffIDs[n], id)
		}
		first[l.Digest] = diffIDs[n]
	}
	seen := map[oci.Digest]bool{}
	for _, n := range order {
		d := m.Layers[n]
		j := layerJob{desc: d, diffID: diffIDs[n], report: func(p Phase, done int64, other bool) {
			o.Progress(Progress{Layer: n, Layers: len(order), Digest: d.Digest, Phase: p, Done: done, Total: d.Size, Other: other})
		}}
		if seen[d.Digest] {
			j.report(PhaseCached, d.Size, false)
			continue
		}
		seen[d.Digest] = true
		g.Go(func() error {
			if err := s.pullLayer(ctx, src, j, o); err != nil {
				return fmt.Errorf("layer %d of %d (%s): %w", n+1, len(m.Layers), d.Digest.Short(), err)
			}
			return nil
		})
	}
	return g.Wait()
}

// pullLayer makes the store have one layer. Of many that want it at the same time
// one works; the others wait and pass on how far it is.
func (s *Store) pullLayer(ctx context.Context, src Source, j layerJob, o *PullOptions) error {
	known := func() (bool, error) {
		if !s.shown(o.Origin, j.desc.Digest) {
			return false, nil
		}
		return s.haveLayer(j)
	}
	if ok, err := known(); ok || err != nil {
		return err
	}
	lock, err := s.lockLayer(ctx, j, o.Origin)
	if err != nil {
		return err
	}
	defer func() { _ = lock.Release() }()
	if err := s.proveLayer(ctx, src, j, o.Origin); err != nil {
		return err
	}
	if ok, err := known(); ok || err != nil {
		return err // another process made it while we waited
	}
	blob, err := src.Blob(ctx, j.desc)
	if err != nil {
		return err
	}
	defer blob.Close()
	m := &meter{r: blob, report: func(p Phase, done int64) { j.report(p, done, false) }}
	j.report(PhaseFetch, 0, false)
	if m.file, err = os.Create(s.progressPath(j.desc.Digest, o.Origin)); err == nil {
		defer func() { _ = errors.Join(m.file.Close(), os.Remove(m.file.Name())) }()
	}
	err = s.write(ctx, s.LayerPath(j.desc.Digest), func(out *os.File) error {
		_, err := s.convert(ctx, out, m, layer.Options{
			Digest: j.desc.Digest, Size: j.desc.Size, DiffID: j.diffID, MediaType: j.desc.MediaType, Limits: o.Limits,
		})
		if err == nil || m.err != nil || ctx.Err() != nil {
			return err
		}
		return contentFault(err)
	})
	if err != nil {
		return err
	}
	j.report(PhaseDone, j.desc.Size, false)
	return s.noteShown(o.Origin, j.desc.Digest)
}

// layerLock is the lock of whoever makes a layer. Each origin has one of its own: one that
// sends slowly keeps nobody else from a layer.
func (s *Store) layerLock(d oci.Digest, origin string) string {
	return withOrigin(s.lockPath("layer", d), origin)
}

func withOrigin(lock, origin string) string {
	if origin == "" {
		return lock
	}
	return lock + "-" + originKey(origin)
}

func (s *Store) progressPath(d oci.Digest, origin string) string {
	return s.layerLock(d, origin) + ".progress"
}

// haveLayer says whether the store has a layer whose file is whole as far as its
// head and end tell. A damaged one counts as missing, and is replaced.
func (s *Store) haveLayer(j layerJob) (bool, error) {
	name := s.LayerPath(j.desc.Digest)
	l, err := layer.Open(name, squashfs.ReaderOptions{})
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return false, nil
	case err != nil:
		s.log.Warn("layer in store is damaged, it is fetched again", "digest", j.desc.Digest, "err", err)
		return false, nil
	}
	defer l.Close()
	info := l.Info()
	if info.Digest != j.desc.Digest {
		s.log.Warn("layer in store is another one, it is fetched again", "digest", j.desc.Digest, "found", info.Digest)
		return false, nil
	}
	if info.DiffID != j.diffID {
		return false, diffFault(j.desc.Digest, j.diffID, info.DiffID)
	}
	j.report(PhaseCached, j.desc.Size, false)
	return true, nil
}

// diffFault is for a configuration that claims another content for a layer than the
// layer has.
func diffFault(blob, want, got oci.Digest) error {
	return &fault.Error{
		What:  fmt.Errorf("layer %s: its content is not what the image's configuration says", blob.Short()),
		Cause: fmt.Sprintf("the configuration wants %s, uncompressed it is %s", want, got),
		Hint:  "the image is broken or forged; ask its publisher to push it again",
	}
}

// contentFault says what to do about a layer that came as it was sent, but cannot be
// converted.
func contentFault(err error) error {
	f := &fault.Error{What: err}
	limit, tooLarge := errors.AsType[*layer.LimitError](err)
	_, ofDisk := errors.AsType[syscall.Errno](err)
	known, explained := errors.AsType[*fault.Error](err)
	switch {
	case ofDisk, explained && known.Hint != "":
		return err
	case tooLarge && limit.What == "Entries":
		f.Hint = fmt.Sprintf("if you trust the image: --max-entries %d", 4*limit.Limit)
	case tooLarge && (limit.What == "Bytes" || limit.What == "Ratio"):
		f.Hint = "if you trust the image, say how much its layers may have: --max-unpacked 4T"
	case tooLarge:
		f.Hint = "no honest image has such a layer; ask who publishes it"
	default:
		f.Hint = "the layer is as it was published: ask who publishes the image to build it anew"
	}
	return f
}

// lockLayer waits until it is this process' turn to make a layer.
func (s *Store) lockLayer(ctx context.Context, j layerJob, origin string) (*fsx.Lock, error) {
	name := s.layerLock(j.desc.Digest, origin)
	if err := s.mkdir(s.path("locks")); err != nil {
		return nil, err
	}
	tick := time.NewTicker(progressEvery)
	defer tick.Stop()
	for {
		l, err := fsx.TryAcquire(name, fsx.Exclusive)
		if !errors.Is(err, fsx.ErrLocked) {
			return l, s.fault(err)
		}
		if phase, done, ok := readProgress(s.progressPath(j.desc.Digest, origin)); ok {
			j.report(phase, min(done, j.desc.Size), true)
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-tick.C:
		}
	}
}
