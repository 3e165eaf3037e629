package image

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/gangway-hpc/gangway/image/oci"
	"github.com/gangway-hpc/gangway/internal/fault"
)

// Image is one image of a store: what a reference led to when it was pulled, for
// one platform.
type Image struct {
	Reference string       `json:"reference"` // canonical
	Platform  string       `json:"platform"`
	Digest    oci.Digest   `json:"digest"`   // of what the reference named: a manifest or an index
	Manifest  oci.Digest   `json:"manifest"` // of the manifest for the platform
	Config    oci.Digest   `json:"config"`
	Layers    []ImageLayer `json:"layers"` // lowest first
	Pulled    time.Time    `json:"pulled"`
	Pinned    bool         `json:"pinned"`
	// Used is when the image was last pulled or used; the time of the record's file,
	// which costs no write of its own.
	Used time.Time `json:"-"`
}

// ImageLayer is one layer of an image.
type ImageLayer struct {
	Digest oci.Digest `json:"digest"` // of the blob
	DiffID oci.Digest `json:"diffID"` // of the uncompressed archive
	Size   int64      `json:"size"`   // of the blob, bytes
}

// records is where the records lie.
const records = "refs/v1/*.json"

// ErrNotFound says that the store has no image of a name.
var ErrNotFound = errors.New("no such image in the store")

// recordPath names the file of a reference and platform. The key is a hash because
// references may be longer than file names.
func (s *Store) recordPath(reference, platform string) string {
	sum := sha256.Sum256([]byte(reference + "\n" + platform))
	return s.path("refs", "v1", hex.EncodeToString(sum[:16])+".json")
}

// writeRecord makes an image known. The caller holds the lock of the garbage
// collection, shared: who collects must see either the record, or the lease of whom
// is about to write it.
func (s *Store) writeRecord(ctx context.Context, i *Image) error {
	b, err := json.MarshalIndent(i, "", "  ")
	if err != nil {
		return err
	}
	name := s.recordPath(i.Reference, i.Platform)
	if err := s.writeBytes(ctx, name, append(b, '\n')); err != nil {
		return fmt.Errorf("write record of %s: %w", i.Reference, err)
	}
	return nil
}

func readRecord(name string) (Image, error) {
	var i Image
	b, err := os.ReadFile(name)
	if err != nil {
		return i, err
	}
	if err := json.Unmarshal(b, &i); err != nil {
		return i, damagedRecord(name, err)
	}
	if err := i.check(); err != nil {
		return i, damagedRecord(name, err)
	}
	st, err := os.Stat(name)
	if err != nil {
		return i, err
	}
	i.Used = st.ModTime()
	return i, nil
}

func damagedRecord(name string, err error) error {
	return &fault.Error{
		What: fmt.Errorf("read record %s: %w: %w", name, ErrDamaged, err),
		Hint: "gangway image verify removes it; then pull the image again",
	}
}

// check proves the digests, which become names of files.
func (i *Image) check() error {
	for _, d := range append(layerDigests(i.Layers), i.Digest, i.Manifest, i.Config) {
		if _, err := oci.ParseDigest(string(d)); err != nil {
			return err
		}
	}
	return nil
}

func layerDigests(layers []ImageLayer) []oci.Digest {
	var ds []oci.Digest
	for _, l := range layers {
		ds = append(ds, l.Digest)
	}
	return ds
}

// record returns what the store knows of a reference and platform.
func (s *Store) record(reference, platform string) (Image, error) {
	i, err := readRecord(s.recordPath(reference, platform))
	if errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("%w: %s", ErrNotFound, reference)
	}
	return i, err
}

// Get returns the image that the store has for a canonical reference and a platform, and
// reads no other record. The error wraps ErrNotFound where there is none.
func (s *Store) Get(reference string, platform oci.Platform) (Image, error) {
	if platform == (oci.Platform{}) {
		platform = oci.HostPlatform()
	}
	return s.record(reference, platform.String())
}

// touch notes that an image was used now. A store that cannot be written keeps its
// old note.
func (s *Store) touch(i *Image) {
	now := s.now()
	if err := os.Chtimes(s.recordPath(i.Reference, i.Platform), now, now); err == nil {
		i.Used = now
	}
}

// List returns the store's images by reference. Records that cannot be read are
// left out and returned as one joined error.
func (s *Store) List() ([]Image, error) {
	var images []Image
	var errs []error
	for _, name := range s.glob(records) {
		i, err := readRecord(name)
		switch {
		case err == nil:
			images = append(images, i)
		case !errors.Is(err, fs.ErrNotExist): // removed meanwhile
			errs = append(errs, err)
		}
	}
	slices.SortFunc(images, func(a, b Image) int {
		return strings.Compare(a.Reference+"\n"+a.Platform, b.Reference+"\n"+b.Platform)
	})
	return images, errors.Join(errs...)
}

// Find returns the image that a person means by name: a whole reference, as it was
// pulled or canonical; its end, as in "torch:1"; or a digest, of which the first 6
// digits suffice. canonical is the reference that name means by itself, "" where it
// means none. Several images of one name but different platforms are told apart
// by platform ("" is any).
//
// Several names of one image are as good as one for who only reads it; all that
// change something want the one (only).
func (s *Store) Find(name, canonical, platform string, only bool) (Image, error) {
	images, err := s.List()
	i, ferr := Find(images, name, canonical, platform, only)
	if err != nil && errors.Is(ferr, ErrNotFound) {
		return i, err
	}
	return i, ferr
}

// Find is Store.Find among images.
func Find(images []Image, name, canonical, platform string, only bool) (Image, error) {
	if platform != "" {
		images = slices.DeleteFunc(images, func(i Image) bool { return i.Platform != platform })
	}
	for _, match := range []func(*Image) bool{
		func(i *Image) bool { return i.Reference == canonical || i.Reference == name },
		func(i *Image) bool { return strings.HasSuffix(i.Reference, "/"+withTag(name)) },
		func(i *Image) bool { return hasDigest(i, name) },
	} {
		var found []Image
		for _, i := range images {
			if match(&i) {
				found = append(found, i)
			}
		}
		if len(found) == 1 || len(found) > 1 && !only && sameManifest(found) {
			return found[0], nil
		}
		if len(found) > 1 {
			return Image{}, ambiguous(name, found)
		}
	}
	return Image{}, &fault.Error{
		What: fmt.Errorf("%w: %s", ErrNotFound, name),
		Hint: "gangway image ls shows what there is; to fetch it: gangway image pull " + name,
	}
}

// withTag completes a name without tag or digest, as references are.
func withTag(name string) string {
	if strings.ContainsAny(name[strings.LastIndexByte(name, '/')+1:], ":@") {
		return name
	}
	return name + ":latest"
}

func hasDigest(i *Image, name string) bool {
	name = strings.TrimPrefix(name, "sha256:")
	if len(name) < 6 || strings.Trim(name, "0123456789abcdef") != "" {
		return false
	}
	return strings.HasPrefix(i.Digest.Hex(), name) || strings.HasPrefix(i.Manifest.Hex(), name)
}

func sameManifest(images []Image) bool {
	return !slices.ContainsFunc(images, func(i Image) bool { return i.Manifest != images[0].Manifest })
}

func ambiguous(name string, found []Image) error {
	var list []string
	for _, i := range found {
		list = append(list, i.Reference+" ("+i.Platform+")")
	}
	return &fault.Error{
		What: fmt.Errorf("image %s: several have this name: %s", name, strings.Join(list, ", ")),
		Hint: "give the whole reference, or choose with --platform",
	}
}
