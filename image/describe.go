package image

import (
	"fmt"

	"github.com/gangway-hpc/gangway/image/merged"
	"github.com/gangway-hpc/gangway/image/oci"
)

// Description is what an image says of itself.
type Description struct {
	Manifest oci.Manifest
	Config   oci.Config
	Files    int // names in the merged tree have this many inodes
}

// Describe reads an image's manifest and configuration.
func (s *Store) Describe(i *Image) (Description, error) {
	var d Description
	raw, err := s.blob(i.Manifest)
	if err != nil {
		return d, incomplete(i, err)
	}
	if d.Manifest, err = oci.DecodeManifest(raw); err != nil {
		return d, fmt.Errorf("image %s: %w", i.Reference, err)
	}
	if raw, err = s.blob(i.Config); err != nil {
		return d, incomplete(i, err)
	}
	if d.Config, err = oci.DecodeConfig(raw); err != nil {
		return d, fmt.Errorf("image %s: %w", i.Reference, err)
	}
	x, err := merged.Open(s.IndexPath(i.Manifest))
	if err != nil {
		return d, incomplete(i, err)
	}
	defer x.Close()
	d.Files = int(x.NumInodes())
	return d, nil
}

// Size is what an image takes on disk.
type Size struct {
	Bytes int64 // with what it shares with others
	Own   int64 // that no other of the images has
}

// Sizes returns the size of each image.
func (s *Store) Sizes(images []Image) []Size {
	users := map[string]int{}
	for _, i := range images {
		for _, name := range s.files(&i) {
			users[name]++
		}
	}
	sizes := make([]Size, len(images))
	for n, i := range images {
		for _, name := range s.files(&i) {
			bytes := diskUsage(name)
			sizes[n].Bytes += bytes
			if users[name] == 1 {
				sizes[n].Own += bytes
			}
		}
	}
	return sizes
}
