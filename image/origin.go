package image

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/gangway-hpc/gangway/image/oci"
	"github.com/gangway-hpc/gangway/internal/fault"
)

// A store that several users share must not give one of them what another one fetched,
// only because he knows its digest: manifests are written by strangers, and anybody can
// run a registry that names the layers of others. So such a store notes who has shown
// which bytes: an origin, a repository of a registry, has shown a blob once it sent all
// of it. For pulls of that origin only such blobs count as being there; the others are
// fetched again, through the hash, and not converted again.
//
// The note is a file without content. One that is lost costs another fetch.

func originKey(origin string) string {
	sum := sha256.Sum256([]byte(origin))
	return hex.EncodeToString(sum[:16])
}

func (s *Store) shownPath(origin string, d oci.Digest) string {
	return s.path("origins", "v1", originKey(origin), d.Algorithm()+"-"+d.Hex())
}

// shown says whether an origin has sent a blob once. Everything counts for "", the
// origin of a store that is one user's.
func (s *Store) shown(origin string, d oci.Digest) bool {
	if origin == "" {
		return true
	}
	_, err := os.Lstat(s.shownPath(origin, d))
	return err == nil
}

// Shown says whether an origin has sent all blobs of an image.
func (s *Store) Shown(origin string, i *Image) bool {
	for _, d := range append(layerDigests(i.Layers), i.Digest, i.Manifest, i.Config) {
		if !s.shown(origin, d) {
			return false
		}
	}
	return true
}

// noteShown notes that an origin has sent a blob.
func (s *Store) noteShown(origin string, d oci.Digest) error {
	if origin == "" {
		return nil
	}
	name := s.shownPath(origin, d)
	if err := s.mkdir(filepath.Dir(name)); err != nil {
		return err
	}
	f, err := os.OpenFile(name, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return s.fault(fmt.Errorf("note origin: %w", err))
	}
	return f.Close()
}

// proveLayer has an origin show a layer that the store has of another one.
func (s *Store) proveLayer(ctx context.Context, src Source, j layerJob, origin string) error {
	if s.shown(origin, j.desc.Digest) {
		return nil
	}
	if _, err := os.Stat(s.LayerPath(j.desc.Digest)); errors.Is(err, fs.ErrNotExist) {
		return nil // it will be fetched and converted
	}
	blob, err := src.Blob(ctx, j.desc)
	if err != nil {
		return err
	}
	defer blob.Close()
	j.report(PhaseFetch, 0, false)
	m := &meter{r: blob, report: func(p Phase, done int64) { j.report(p, done, false) }}
	h := j.desc.Digest.Hash()
	n, err := io.Copy(h, io.LimitReader(m, j.desc.Size+1))
	if err != nil {
		return err
	}
	if n != j.desc.Size || !j.desc.Digest.Is(h.Sum(nil)) {
		return &fault.Error{
			What:  fmt.Errorf("its bytes are not those that the manifest names: want %s", j.desc.Digest),
			Cause: fmt.Sprintf("got %d bytes with %s:%x", n, j.desc.Digest.Algorithm(), h.Sum(nil)),
			Hint:  "pull again; if it stays, the registry's copy is damaged: push the image again",
		}
	}
	return s.noteShown(origin, j.desc.Digest)
}

// tidyOrigins removes notes about what the store does not have.
func (s *Store) tidyOrigins() error {
	var errs []error
	for _, name := range s.glob("origins/v1/*/*") {
		algorithm, hex, _ := strings.Cut(filepath.Base(name), "-")
		d, err := oci.ParseDigest(algorithm + ":" + hex)
		if err == nil && (exists(s.LayerPath(d)) || exists(s.blobPath(d))) {
			continue
		}
		errs = append(errs, removeAll(name))
	}
	for _, dir := range s.glob("origins/v1/*") {
		_ = os.Remove(dir) // which only empty ones let one do
	}
	return errors.Join(errs...)
}

func exists(name string) bool {
	_, err := os.Lstat(name)
	return err == nil
}
