package main

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gangway-hpc/gangway/image"
	"github.com/gangway-hpc/gangway/image/credential"
	"github.com/gangway-hpc/gangway/image/oci"
	"github.com/gangway-hpc/gangway/image/reference"
	"github.com/gangway-hpc/gangway/image/registry"
	"github.com/gangway-hpc/gangway/internal/cli"
	"github.com/gangway-hpc/gangway/internal/config"
)

// imageVerb is the group of verbs for the store of container images.
func imageVerb(env *cli.Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "image",
		Short: "pull, list, check and remove container images",
		Long: `Pull, list, check and remove container images.

Images lie in a store, by default ~/.cache/gangway (or $XDG_CACHE_HOME/gangway;
another by --store, GANGWAY_STORE or image.store in gangway.toml). A layer is
converted to squashfs while it is fetched and kept once, however many images have
it; nothing is unpacked.`,
		SuggestFor: []string{"images", "enroot", "docker", "podman"},
		Example: `gangway image pull docker.io/library/debian:12
gangway image ls
gangway image export debian:12 -o debian.sqsh
gangway image gc --older-than 30d`,
	}
	return cli.Group(env, cmd,
		imagePull, imageLs, imageInspect, imageRm, imagePin, imageUnpin, imageGC, imageVerify,
		imageImport, imageExport, imagePrecache, imageConvertLayer, imagePerformTask)
}

// imageFlags are what all verbs of images take.
type imageFlags struct {
	env      *cli.Env
	store    string
	platform string
}

func newImageFlags(env *cli.Env, cmd *cobra.Command) *imageFlags {
	f := &imageFlags{env: env}
	cmd.Flags().StringVar(&f.store, "store", "", "directory of the images (default ~/.cache/gangway)")
	return f
}

// withPlatform adds --platform.
func (f *imageFlags) withPlatform(cmd *cobra.Command) *imageFlags {
	cmd.Flags().StringVar(&f.platform, "platform", "", "OS/ARCHITECTURE[/VARIANT] of the image, as linux/arm64 (default: of this machine)")
	return f
}

func (f *imageFlags) config() (config.Config, error) { return config.ForImages(f.env.Getenv, f.store) }

// open opens the store.
func (f *imageFlags) open() (*image.Store, config.Config, error) {
	c, err := f.config()
	if err != nil {
		return nil, c, err
	}
	dir, err := c.StoreDir(f.env.Getenv)
	if err != nil {
		return nil, c, err
	}
	s, err := image.Open(image.Options{Dir: dir, Convert: converter(), Perform: performer(), Log: f.env.Logger(), Now: f.env.Now})
	return s, c, err
}

// client is what talks to registries.
func (f *imageFlags) client(c config.Config, bandwidth int64) *registry.Client {
	hosts := map[string]registry.Host{}
	for name, r := range c.Registry {
		hosts[name] = registry.Host{Mirrors: r.Mirrors, CAFile: r.CA, PlainHTTP: r.PlainHTTP, SkipVerify: r.SkipVerify}
	}
	return registry.New(registry.Options{
		Credentials: credential.New(credential.Options{Log: f.env.Logger()}),
		Hosts:       hosts,
		UserAgent:   "gangway",
		Bandwidth:   bandwidth,
		Log:         f.env.Logger(),
	})
}

// chosenPlatform parses --platform; zero is this machine's.
func (f *imageFlags) chosenPlatform() (oci.Platform, error) {
	if f.platform == "" {
		return oci.Platform{}, nil
	}
	return oci.ParsePlatform(f.platform)
}

// parseReference parses a reference and makes its path absolute, as the store keeps
// it.
func (f *imageFlags) parseReference(s string) (reference.Reference, error) {
	r, err := reference.Parse(s)
	if err != nil || r.Path == "" {
		return r, err
	}
	if rest, ok := strings.CutPrefix(r.Path, "~/"); ok {
		r.Path = filepath.Join(f.env.Getenv("HOME"), rest)
	}
	r.Path, err = filepath.Abs(r.Path)
	return r, err
}

// key is the name that the store keeps a reference under: without the user, who only
// chooses a credential.
func key(r reference.Reference) string {
	r.User = ""
	return r.String()
}

// find finds the image that a person names; only is for what changes something.
func (f *imageFlags) find(s *image.Store, name string, only bool) (image.Image, error) {
	canonical, platform, err := f.meant(name)
	if err != nil {
		return image.Image{}, err
	}
	return s.Find(name, canonical, platform, only)
}

// meant is the canonical reference of a name, "" if it is none, and the platform that was
// asked for, "" for any.
func (f *imageFlags) meant(name string) (canonical, platform string, err error) {
	p, err := f.chosenPlatform()
	if err != nil {
		return "", "", err
	}
	if r, err := f.parseReference(name); err == nil {
		canonical = key(r)
	}
	if p != (oci.Platform{}) {
		platform = p.String()
	}
	return canonical, platform, nil
}

// inStore finds an image that something is to run in: the one that is meant, and nothing that
// only looks like it. A short name, or a digest's beginning, is looked for among all images,
// as podman does, before Docker Hub is asked for it.
func (f *imageFlags) inStore(s *image.Store, ref reference.Reference, name string) (image.Image, error) {
	p, err := f.chosenPlatform()
	if err != nil {
		return image.Image{}, err
	}
	i, err := s.Get(key(ref), p)
	short := ref.Kind == reference.Registry && ref.Host == reference.DockerHub && !strings.Contains(name, reference.DockerHub)
	if errors.Is(err, image.ErrNotFound) && short {
		return f.find(s, name, false)
	}
	return i, err
}

// openImages opens the store and finds several images by name.
func (f *imageFlags) openImages(names []string, only bool) (*image.Store, []image.Image, error) {
	s, _, err := f.open()
	if err != nil {
		return nil, nil, err
	}
	var found []image.Image
	for _, name := range names {
		i, err := f.find(s, name, only)
		if err != nil {
			return nil, nil, err
		}
		found = append(found, i)
	}
	return s, found, nil
}

// familiar is a canonical reference as people are shown it.
func familiar(canonical string) string {
	r, err := reference.Parse(canonical)
	if err != nil {
		return canonical
	}
	return r.Familiar()
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
