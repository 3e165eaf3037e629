package oci

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"

	"github.com/gangway-hpc/gangway/internal/fault"
)

// savedImage is an entry of manifest.json in an archive of docker save.
type savedImage struct {
	Config   string
	RepoTags []string
	Layers   []string // lowest first
}

// OpenDockerArchive opens an image in a tar file of docker save or podman save. tag
// is one of its names, such as "torch:1"; where it is empty, the only image is
// meant. The file may not be compressed.
//
// Such an archive has no manifest. One is made: an uncompressed layer gets the
// digest that the configuration claims, which the caller finds out to be right or
// wrong when it reads it; a compressed layer is hashed here.
func OpenDockerArchive(ctx context.Context, file, tag string) (*Local, error) {
	t, err := openTar(file)
	if err != nil {
		return nil, notThere(fmt.Errorf("open Docker archive %s: %w", file, err), "docker-archive:FILE[:NAME]")
	}
	return openSaved(ctx, t, "Docker archive "+file, tag)
}

// openSaved finds an image in an archive, which it closes on an error.
func openSaved(ctx context.Context, t *tarFiles, what, tag string) (*Local, error) {
	l, err := findSaved(ctx, t, tag)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open %s: %w", what, err), t.Close())
	}
	return l, nil
}

func findSaved(ctx context.Context, t *tarFiles, tag string) (*Local, error) {
	raw, err := readFile(t, "manifest.json")
	if errors.Is(err, fs.ErrNotExist) {
		e := &fault.Error{What: errors.New("it is not of docker save: it has no file manifest.json")}
		if _, err := t.find("oci-layout"); err == nil {
			e.Hint = "it is an OCI layout; write oci-archive:FILE"
		}
		return nil, e
	}
	if err != nil {
		return nil, err
	}
	var images []savedImage
	if err := decodeStrict(raw, &images); err != nil {
		return nil, fmt.Errorf("manifest.json: %w", err)
	}
	image, err := chooseSaved(images, tag)
	if err != nil {
		return nil, err
	}
	return newSaved(ctx, t, image)
}

func chooseSaved(images []savedImage, tag string) (savedImage, error) {
	if len(images) == 0 {
		return savedImage{}, errors.New("it has no image")
	}
	var given [][]string
	for _, image := range images {
		given = append(given, image.RepoTags)
	}
	var found []savedImage
	for _, i := range matching(given, tag) {
		if !slices.ContainsFunc(found, func(o savedImage) bool { return o.Config == images[i].Config }) {
			found = append(found, images[i])
		}
	}
	what := fmt.Errorf("it has %d images %q", len(found), tag)
	switch {
	case len(found) == 1:
		return found[0], nil
	case tag == "":
		what = fmt.Errorf("it has %d images", len(found))
	case len(found) == 0:
		what = fmt.Errorf("it has no image %q", tag)
	}
	names := slices.Concat(given...)
	if len(names) == 0 {
		return savedImage{}, &fault.Error{What: what, Cause: "its images have no names", Hint: "save it again by name: docker save NAME:TAG"}
	}
	return savedImage{}, choiceError(what, names)
}

// newSaved makes the manifest.
func newSaved(ctx context.Context, t *tarFiles, image savedImage) (*Local, error) {
	raw, err := readFile(t, image.Config)
	if err != nil {
		return nil, fmt.Errorf("read image configuration: %w", err)
	}
	config, err := DecodeConfig(raw)
	if err != nil {
		return nil, err
	}
	m := Manifest{
		SchemaVersion: 2,
		MediaType:     MediaTypeManifest,
		Config:        Descriptor{MediaType: MediaTypeConfig, Digest: DigestOf(raw), Size: int64(len(raw))},
		Layers:        make([]Descriptor, len(image.Layers)),
	}
	if err := CheckConfig(m, config); err != nil {
		return nil, err
	}
	l := &Local{files: t, made: map[Digest][]byte{m.Config.Digest: raw}, places: map[Digest]string{}}
	for i, name := range image.Layers {
		d, err := savedLayer(ctx, t, name, config.DiffIDs[i])
		if err == nil {
			err = d.check(maxLayerSize)
		}
		if err != nil {
			return nil, fmt.Errorf("layer %d of %d: %w", i+1, len(image.Layers), err)
		}
		j := slices.IndexFunc(m.Layers[:i], func(o Descriptor) bool { return o.Digest == d.Digest })
		if j >= 0 && m.Layers[j].Size != d.Size {
			return nil, fmt.Errorf("layers %d and %d: both are said to be %s, but have %d and %d bytes", j+1, i+1, d.Digest, m.Layers[j].Size, d.Size)
		}
		m.Layers[i], l.places[d.Digest] = d, name
	}
	if raw, err = json.Marshal(m); err != nil {
		return nil, err
	}
	l.root = Descriptor{MediaType: MediaTypeManifest, Digest: DigestOf(raw), Size: int64(len(raw)), Platform: &config.Platform}
	l.made[l.root.Digest] = raw
	return l, nil
}

// savedLayer describes a layer's file.
func savedLayer(ctx context.Context, t *tarFiles, name string, diffID Digest) (Descriptor, error) {
	e, err := t.find(name)
	if err != nil {
		return Descriptor{}, err
	}
	begin := make([]byte, min(4, e.size))
	if _, err := t.file.ReadAt(begin, e.offset); err != nil {
		return Descriptor{}, fmt.Errorf("read %s: %w", name, err)
	}
	d := Descriptor{MediaType: MediaTypeLayer, Digest: diffID, Size: e.size}
	switch {
	case len(begin) > 1 && string(begin[:2]) == "\x1f\x8b":
		d.MediaType += "+gzip"
	case string(begin) == "\x28\xb5\x2f\xfd":
		d.MediaType += "+zstd"
	default:
		return d, nil
	}
	h := d.Digest.Hash()
	if _, err := io.Copy(h, readerWith(ctx, io.NewSectionReader(t.file, e.offset, e.size))); err != nil {
		return Descriptor{}, fmt.Errorf("hash %s: %w", name, err)
	}
	d.Digest = Digest(fmt.Sprintf("%s:%x", diffID.Algorithm(), h.Sum(nil)))
	return d, nil
}

// readerWith reads until ctx is done.
func readerWith(ctx context.Context, r io.Reader) io.Reader {
	return readerFunc(func(p []byte) (int, error) {
		if err := context.Cause(ctx); err != nil {
			return 0, err
		}
		return r.Read(p)
	})
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }
