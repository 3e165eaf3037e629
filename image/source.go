package image

import (
	"context"

	"github.com/gangway-hpc/gangway/image/oci"
	"github.com/gangway-hpc/gangway/image/reference"
	"github.com/gangway-hpc/gangway/image/registry"
)

// OpenSource opens what a reference names for Pull: a repository of a registry,
// for which no request is made yet, an image layout, an archive, a root file system, or
// an image of a container engine, which writes it to an unnamed file in the store first.
func (s *Store) OpenSource(ctx context.Context, c *registry.Client, r reference.Reference) (Source, error) {
	switch r.Kind {
	case reference.Registry:
		name := r.Tag
		if r.Digest != "" {
			name = string(r.Digest)
		}
		return c.Repository(r.Host, r.Repository, r.User, name), nil
	case reference.Layout:
		return oci.OpenLayout(r.Path, r.Tag, r.Digest)
	case reference.OCIArchive:
		return oci.OpenArchive(r.Path, r.Tag, r.Digest)
	case reference.DockerArchive:
		return oci.OpenDockerArchive(ctx, r.Path, r.Tag)
	case reference.Docker, reference.Podman:
		engine := "docker"
		if r.Kind == reference.Podman {
			engine = "podman"
		}
		if err := s.mkdir(s.path("tmp")); err != nil {
			return nil, err
		}
		return oci.SaveFromEngine(ctx, engine, r.Image, s.path("tmp"))
	default:
		return NewRootSource(r.Path, RootOptions{})
	}
}
