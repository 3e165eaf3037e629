package image

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"io/fs"
	"runtime"
	"sync"
	"time"

	"github.com/gangway-hpc/gangway/image/layer"
	"github.com/gangway-hpc/gangway/image/oci"
	"github.com/gangway-hpc/gangway/internal/fault"
	"github.com/gangway-hpc/gangway/internal/fsx"
)

// Source is where an image's bytes come from: a registry, or files.
type Source interface {
	// Resolve returns the descriptor of what the reference names: a manifest or an
	// index of them. Media type and size may be unknown.
	Resolve(ctx context.Context) (oci.Descriptor, error)
	// Manifest returns the bytes of a manifest or an index, with their digest proved.
	Manifest(ctx context.Context, d oci.Descriptor) ([]byte, error)
	// Blob opens a configuration or a layer. Its digest is proved by the reader.
	Blob(ctx context.Context, d oci.Descriptor) (io.ReadCloser, error)
	Close() error
}

// PullOptions say what Pull does. The zero value pulls for this machine.
type PullOptions struct {
	Reference string       // the canonical name that the store keeps the image under
	Platform  oci.Platform // zero is this machine's
	MaxSize   int64        // refuse images whose layers have more bytes, compressed; 0 is no limit
	Limits    layer.Limits // of what is in a layer
	AtOnce    int          // how many layers at a time; 0 is one a processor, from 2 to 8
	// Origin is the repository that the source is, in a store that several users share:
	// what it has not sent once is fetched of it, also if the store has it. "" trusts
	// whoever asks with all that the store has.
	Origin string
	// Progress is told how far each layer is, by one call at a time.
	Progress func(Progress)
}

// oneAtATime wraps Progress so that goroutines may call it.
func (o *PullOptions) oneAtATime() {
	tell := o.Progress
	if tell == nil {
		o.Progress = func(Progress) {}
		return
	}
	var mu sync.Mutex
	o.Progress = func(p Progress) {
		mu.Lock()
		defer mu.Unlock()
		tell(p)
	}
}

func (o *PullOptions) layersAtOnce() int {
	if o.AtOnce > 0 {
		return o.AtOnce
	}
	return min(8, max(2, runtime.GOMAXPROCS(0)))
}

// Cached returns the image that the store has whole for a reference and platform,
// if it is what digest says, which is that of a manifest or an index. It opens no
// layer.
func (s *Store) Cached(reference string, platform oci.Platform, digest oci.Digest) (Image, bool) {
	i, err := s.record(reference, platform.String())
	if err != nil || digest != i.Digest && digest != i.Manifest || !s.whole(&i) {
		return Image{}, false
	}
	s.touch(&i)
	return i, true
}

// whole says whether all files of an image are there: its documents with the right
// content, its index, and its layers with the size that the index says.
func (s *Store) whole(i *Image) bool {
	for _, d := range []oci.Digest{i.Digest, i.Manifest, i.Config} {
		if _, err := s.blob(d); err != nil {
			return false
		}
	}
	return s.indexFits(s.IndexPath(i.Manifest), i)
}

// Pull makes the store have an image, whole, and returns it. What the store has
// already is not fetched; what other processes fetch is waited for. After an error
// the layers that were finished stay for the next pull.
func (s *Store) Pull(ctx context.Context, src Source, o PullOptions) (Image, error) {
	o.oneAtATime()
	if o.Platform == (oci.Platform{}) {
		o.Platform = oci.HostPlatform()
	}
	top, err := src.Resolve(ctx)
	if err != nil {
		return Image{}, err
	}
	if i, ok := s.Cached(o.Reference, o.Platform, top.Digest); ok && s.Shown(o.Origin, &i) {
		for n, l := range i.Layers {
			o.Progress(Progress{Layer: n, Layers: len(i.Layers), Digest: l.Digest, Phase: PhaseCached, Done: l.Size, Total: l.Size})
		}
		return i, nil
	}
	i, err := s.pull(ctx, src, top, &o)
	if err != nil {
		return Image{}, fmt.Errorf("pull %s: %w", o.Reference, err)
	}
	return i, nil
}

func (s *Store) pull(ctx context.Context, src Source, top oci.Descriptor, o *PullOptions) (Image, error) {
	d := documents{}
	desc, err := s.choose(ctx, src, top, o, d)
	if err != nil {
		return Image{}, err
	}
	m, err := oci.DecodeManifest(d[desc.Digest])
	if err != nil {
		return Image{}, err
	}
	cfg, err := s.pullConfig(ctx, src, m, o, d)
	if err != nil {
		return Image{}, err
	}
	if err := checkPlatform(&cfg, o); err != nil {
		return Image{}, err
	}
	i := Image{
		Reference: o.Reference, Platform: o.Platform.String(), Digest: top.Digest,
		Manifest: desc.Digest, Config: m.Config.Digest, Pulled: s.now().UTC().Truncate(time.Second),
	}
	for n, l := range m.Layers {
		i.Layers = append(i.Layers, ImageLayer{Digest: l.Digest, DiffID: cfg.DiffIDs[n], Size: l.Size})
	}
	lease, err := s.Lease(ctx, &i)
	if err != nil {
		return Image{}, err
	}
	defer func() { _ = lease.Release() }()
	if err := s.preflight(m, o); err != nil {
		return Image{}, err
	}
	if err := s.pullLayers(ctx, src, m, cfg.DiffIDs, o); err != nil {
		return Image{}, err
	}
	return i, s.complete(ctx, &i, d, o.Limits)
}

// checkPlatform refuses an image whose configuration says that it is for another platform
// than was asked for: a manifest that no index leads to says nothing else of it. Of what
// the configuration leaves open it is as was asked.
func checkPlatform(c *oci.Config, o *PullOptions) error {
	have := c.Platform
	if have.OS == "" && have.Architecture == "" {
		return nil
	}
	have.OS, have.Architecture = cmp.Or(have.OS, o.Platform.OS), cmp.Or(have.Architecture, o.Platform.Architecture)
	if o.Platform.Suits(have) {
		return nil
	}
	if _, err := oci.ParsePlatform(have.String()); err != nil { // strangers wrote it
		return &fault.Error{
			What: fmt.Errorf("the image is for %.100q, not for %s", have.String(), o.Platform),
			Hint: "the image is broken or forged; ask its publisher to push it again",
		}
	}
	return &fault.Error{
		What: fmt.Errorf("the image is for %s, not for %s", have, o.Platform),
		Hint: "if that is what you want: gangway image pull --platform " + have.String() + " " + o.Reference,
	}
}

// complete makes an image of layers that the store has: its documents, its index,
// and last its record.
func (s *Store) complete(ctx context.Context, i *Image, d documents, limits layer.Limits) error {
	for digest, raw := range d {
		if _, err := s.blob(digest); err == nil {
			continue
		}
		if err := s.writeBytes(ctx, s.blobPath(digest), raw); err != nil {
			return err
		}
	}
	if err := s.buildIndex(ctx, i, limits); err != nil {
		return err
	}
	gc, err := s.lock(ctx, s.gcLock(), fsx.Shared)
	if err != nil {
		return err
	}
	defer func() { _ = gc.Release() }()
	if old, err := s.record(i.Reference, i.Platform); err == nil {
		i.Pinned = old.Pinned
	}
	i.Used = s.now()
	return s.writeRecord(ctx, i)
}

// documents are manifests, indexes and configurations whose digest was proved.
type documents map[oci.Digest][]byte

// maxIndexes bounds how deep indexes may name each other.
const maxIndexes = 3

// choose follows indexes to the manifest for a platform. A tag that moves meanwhile
// changes nothing: all is fetched by digest from here on.
func (s *Store) choose(ctx context.Context, src Source, d oci.Descriptor, o *PullOptions, docs documents) (oci.Descriptor, error) {
	for range maxIndexes + 1 {
		raw, err := s.document(ctx, d, o.Origin, src.Manifest)
		if err != nil {
			return d, err
		}
		docs[d.Digest] = raw
		kind, err := oci.KindOf(raw, d.MediaType)
		if err != nil {
			return d, err
		}
		if kind == oci.KindManifest {
			return d, nil
		}
		index, err := oci.DecodeIndex(raw)
		if err != nil {
			return d, err
		}
		if d, err = index.Choose(o.Platform); err != nil {
			return d, err
		}
	}
	return d, fmt.Errorf("index %s: indexes are nested more than %d deep", d.Digest.Short(), maxIndexes)
}

// pullConfig returns the configuration of a manifest.
func (s *Store) pullConfig(ctx context.Context, src Source, m oci.Manifest, o *PullOptions, docs documents) (oci.Config, error) {
	raw, err := s.document(ctx, m.Config, o.Origin, func(ctx context.Context, d oci.Descriptor) ([]byte, error) {
		return fetchConfig(ctx, src, d)
	})
	if err != nil {
		return oci.Config{}, fmt.Errorf("configuration %s: %w", m.Config.Digest.Short(), err)
	}
	docs[m.Config.Digest] = raw
	cfg, err := oci.DecodeConfig(raw)
	if err != nil {
		return cfg, err
	}
	if err := oci.CheckConfig(m, cfg); err != nil {
		return cfg, &fault.Error{What: err, Hint: "the image is broken or forged; ask its publisher to push it again"}
	}
	return cfg, nil
}

// document returns a manifest, index or configuration that the store has and its origin
// has shown, or makes it so. Of many who want it one fetches it: registries count manifests
// as pulls.
func (s *Store) document(ctx context.Context, d oci.Descriptor, origin string, fetch func(context.Context, oci.Descriptor) ([]byte, error)) ([]byte, error) {
	known := func() ([]byte, error) {
		if !s.shown(origin, d.Digest) {
			return nil, fs.ErrNotExist
		}
		return s.blob(d.Digest)
	}
	if raw, err := known(); err == nil {
		return raw, nil
	}
	lock, err := s.lock(ctx, withOrigin(s.lockPath("blob", d.Digest), origin), fsx.Exclusive)
	if err != nil {
		return nil, err
	}
	defer func() { _ = lock.Release() }()
	if raw, err := known(); err == nil {
		return raw, nil
	}
	raw, err := fetch(ctx, d)
	if err != nil {
		return nil, err
	}
	if _, err := s.blob(d.Digest); err != nil {
		if err := s.writeBytes(ctx, s.blobPath(d.Digest), raw); err != nil {
			return nil, err
		}
	}
	return raw, s.noteShown(origin, d.Digest)
}

func fetchConfig(ctx context.Context, src Source, d oci.Descriptor) ([]byte, error) {
	if d.Size > oci.MaxDocument {
		return nil, fmt.Errorf("it has %d bytes; at most %d are read", d.Size, oci.MaxDocument)
	}
	blob, err := src.Blob(ctx, d)
	if err != nil {
		return nil, err
	}
	defer blob.Close()
	raw, err := io.ReadAll(io.LimitReader(blob, d.Size+1))
	if err != nil {
		return nil, err
	}
	h := d.Digest.Hash()
	h.Write(raw)
	if int64(len(raw)) != d.Size || !d.Digest.Is(h.Sum(nil)) {
		return nil, &fault.Error{
			What:  fmt.Errorf("its bytes are not those that the manifest names: want %s", d.Digest),
			Cause: fmt.Sprintf("got %d bytes with %s:%x", len(raw), d.Digest.Algorithm(), h.Sum(nil)),
			Hint:  "pull again; if it stays, the registry's copy is damaged: push the image again",
		}
	}
	return raw, nil
}
