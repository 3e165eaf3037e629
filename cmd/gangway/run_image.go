package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"strings"
	"syscall"
	"time"

	"github.com/gangway-hpc/gangway/image"
	"github.com/gangway-hpc/gangway/image/reference"
	"github.com/gangway-hpc/gangway/internal/config"
	"github.com/gangway-hpc/gangway/internal/fault"
	"github.com/gangway-hpc/gangway/internal/proc"
	"github.com/gangway-hpc/gangway/launcher/step"
	"github.com/gangway-hpc/gangway/runtime/spec"
	"github.com/gangway-hpc/gangway/squashfs"
)

// blockCache is how much of an image's decompressed blocks a supervisor keeps, outside
// the heap; the kernel's page cache has them too.
const blockCache = 64 << 20

// runImages opens images for containers.
type runImages struct {
	*runFlags
	store  *image.Store
	config config.Config
	cache  *squashfs.Cache
	stored *image.Image // the image of the store that was opened
	pulled time.Duration
}

func newRunImages(f *runFlags) (*runImages, error) {
	store, c, err := f.open()
	if err != nil {
		return nil, err
	}
	return &runImages{runFlags: f, store: store, config: c}, nil
}

func (r *runImages) close() {
	if r.cache != nil {
		_ = r.cache.Close()
	}
}

// open implements step.Options.Image.
func (r *runImages) open(ctx context.Context, made *step.Named) (*step.Image, error) {
	var err error
	if r.cache == nil {
		if r.cache, err = squashfs.NewCache(blockCache); err != nil {
			return nil, err
		}
	}
	name := r.image
	if made != nil {
		if name != "" && !made.IsOf(name) {
			r.imageFlags.env.Logger().Warn("the container was made of another image, which it keeps", "container", made.Name, "image", made.Image)
		}
		if made.Digest != "" {
			return r.held(made)
		}
		name = made.Image
	}
	if name == "" {
		return nil, fault.Usage(fmt.Errorf("run: there is no container %s, and no image is named to make it of", r.name), "name one: --container-image=IMAGE")
	}
	ref, err := r.parseReference(name)
	if err != nil {
		return nil, err
	}
	if ref.Kind == reference.Path {
		return r.path(ctx, ref.Path)
	}
	i, err := r.local(ref, name)
	switch {
	case r.pull != "always" && err == nil:
	case r.pull == "never":
		return nil, err
	case err == nil || errors.Is(err, image.ErrNotFound):
		if i, err = r.fetch(ctx, name); err != nil {
			return nil, err
		}
	default:
		return nil, err
	}
	opened, err := r.opened(&i)
	if err == nil || r.pull != "missing" {
		return opened, err
	}
	// The record outlived a file, or that is damaged; a pull mends both.
	if i, ferr := r.fetch(ctx, name); ferr == nil {
		return r.opened(&i)
	}
	return nil, err
}

// local finds an image in the store: the one that is meant, and nothing that only looks
// like it. A short name, or a digest's beginning, is looked for among all images, as
// podman does, before Docker Hub is asked for it.
func (r *runImages) local(ref reference.Reference, name string) (image.Image, error) {
	p, err := r.chosenPlatform()
	if err != nil {
		return image.Image{}, err
	}
	i, err := r.store.Get(key(ref), p)
	short := ref.Kind == reference.Registry && ref.Host == reference.DockerHub && !strings.Contains(name, reference.DockerHub)
	if errors.Is(err, image.ErrNotFound) && short {
		return r.find(r.store, name, false)
	}
	return i, err
}

// held opens the image that a named container was made of.
func (r *runImages) held(made *step.Named) (*step.Image, error) {
	holds, err := r.store.Holds()
	for _, h := range holds {
		if h.Name == made.Name && string(h.Image.Manifest) == made.Digest {
			return r.opened(&h.Image)
		}
	}
	return nil, &fault.Error{
		What: fmt.Errorf("open container %s: %w", made.Name, errors.Join(errors.New("the store does not have its image "+made.Digest), err)),
		Hint: "was it made with another store? else: gangway image pull " + made.Image,
	}
}

// path opens a squashfs file or a directory in its place.
func (r *runImages) path(ctx context.Context, path string) (*step.Image, error) {
	st, err := os.Stat(path)
	if err != nil {
		return nil, fault.Usage(fmt.Errorf("open image: %w", err), "a name with a slash or a dot at its beginning, or ending in .sqsh, is a file's")
	}
	if st.IsDir() {
		r.say(path)
		c, err := image.DirConfig(path)
		return &step.Image{Name: path, Identity: identity(st), Dir: path, Config: imageConfig(c)}, err
	}
	if strings.HasSuffix(path, ".tar") || strings.Contains(path, ".tar.") {
		return nil, fault.Usage(fmt.Errorf("open image %s: an archive cannot be used in its place", path), "gangway image import "+path)
	}
	if proc.IsRoot() {
		return nil, rootMayNot("open image "+path, "run it as an ordinary user; root may use directories, and images of the store")
	}
	o, err := r.store.OpenFile(ctx, path, squashfs.ReaderOptions{Cache: r.cache})
	if err != nil {
		return nil, err
	}
	r.say(path)
	i, err := newStepImage(path, "", o)
	if err == nil {
		i.Identity = identity(st)
	}
	return i, err
}

// identity tells a file, or directory, from another that takes its place, for people to
// read.
func identity(st os.FileInfo) string {
	text := fmt.Sprintf("%d bytes of %s", st.Size(), st.ModTime().UTC().Format(time.RFC3339Nano))
	if sys, ok := st.Sys().(*syscall.Stat_t); ok {
		text += fmt.Sprintf(", inode %d", sys.Ino)
	}
	return text
}

// say says what runs, and where.
func (r *runImages) say(what string) {
	if !r.quiet && !r.dryRun {
		fmt.Fprintf(r.imageFlags.env.Stderr, "gangway: running here: %s\n", what)
	}
}

// fetch pulls an image, with progress on stderr.
func (r *runImages) fetch(ctx context.Context, name string) (image.Image, error) {
	pull := &pullFlags{imageFlags: r.imageFlags, quiet: r.quiet}
	p, err := pull.puller()
	if err != nil {
		return image.Image{}, err
	}
	defer p.client.Close()
	ref, err := p.parseReference(name)
	if err != nil {
		return image.Image{}, err
	}
	start := time.Now()
	i, err := p.fetch(ctx, ref, name, "")
	r.pulled = time.Since(start)
	// What the pull needed is not needed any more, and a fork would copy its tables.
	if r.imageFlags.env.Getenv("GOGC") == "" {
		debug.SetGCPercent(100) // as it was
	}
	debug.FreeOSMemory()
	return i, err
}

// opened opens an image of the store. Root's own process does not look into it.
func (r *runImages) opened(i *image.Image) (*step.Image, error) {
	if proc.IsRoot() {
		f, err := r.store.OpenFiles(i)
		if err != nil {
			return nil, err
		}
		c, err := f.Config()
		if err != nil {
			return nil, errors.Join(err, f.Close())
		}
		r.stored = i
		return &step.Image{Name: familiar(i.Reference), Digest: string(i.Manifest), Config: imageConfig(c), Files: f, Close: f.Close, Pulled: r.pulled}, nil
	}
	o, err := r.store.OpenImage(i, squashfs.ReaderOptions{Cache: r.cache})
	if err != nil {
		return nil, err
	}
	r.stored = i
	r.say(fmt.Sprintf("%s (%s)", familiar(i.Reference), i.Manifest.Short()))
	opened, err := newStepImage(familiar(i.Reference), string(i.Manifest), o)
	if err == nil {
		opened.Pulled = r.pulled
	}
	return opened, err
}

func newStepImage(name, digest string, o *image.Opened) (*step.Image, error) {
	c, err := o.Config()
	if err != nil {
		return nil, errors.Join(err, o.Close())
	}
	return &step.Image{Name: name, Digest: digest, Config: imageConfig(c), Opened: o, Close: o.Close}, nil
}

// imageConfig is all that an image may say: no labels, no volumes.
func imageConfig(c image.RunConfig) spec.Image {
	return spec.Image{
		Env: c.Env, Entrypoint: c.Entrypoint, Cmd: c.Cmd,
		WorkingDir: c.WorkingDir, User: c.User, StopSignal: c.StopSignal,
	}
}

// hold implements step.Options.Hold.
func (r *runImages) hold(ctx context.Context, name string, _ *step.Image) error {
	if r.stored == nil {
		return nil // files and directories are their owner's to keep
	}
	return r.store.Hold(ctx, name, r.stored)
}

// save implements step.Options.Save.
func (r *runImages) save(ctx context.Context, i *step.Image, upper, path string) error {
	return saveContainer(ctx, r.imageFlags.env, i, upper, path, true)
}
