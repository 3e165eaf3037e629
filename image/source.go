package image

import (
	"context"
	"fmt"
	"os"

	"github.com/gangway-hpc/gangway/image/oci"
	"github.com/gangway-hpc/gangway/image/reference"
	"github.com/gangway-hpc/gangway/image/registry"
	"github.com/gangway-hpc/gangway/internal/fault"
)

// OpenSource opens what a reference names for Pull: a repository of a registry,
// for which no request is made yet, an image layout, an archive, or an image of a
// container engine, which writes it to an unnamed file in the store first.
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
		return nil, pathFault(r.Path)
	}
}

// pathFault says what to do with a path, which is no image to be pulled.
func pathFault(name string) error {
	f := &fault.Error{What: fmt.Errorf("pull %s: it is a file of this machine already", name)}
	st, err := os.Stat(name)
	switch {
	case err != nil:
		f.What = fmt.Errorf("pull %s: %w", name, err)
		f.Hint = "check the path; images of registries are written HOST/REPOSITORY:TAG"
	case st.IsDir():
		f.Hint = "to copy the directory into the store: gangway image import " + name + " NAME; a layout is pulled as oci:" + name
	default:
		f.Hint = "to copy it into the store: gangway image import " + name + " NAME; an archive is pulled as docker-archive:" + name
	}
	return f
}
