package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"syscall"
	"time"

	"github.com/gangway-hpc/gangway/image"
	"github.com/gangway-hpc/gangway/image/reference"
	"github.com/gangway-hpc/gangway/image/service"
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
	handle *service.Handed // the image of the node's store that was opened
	node   *service.Client // nil: images of registries come from the user's own store
	stored *image.Image    // the image of the store that was opened
	pulled time.Duration
}

func newRunImages(f *runFlags) (*runImages, error) {
	store, c, err := f.open()
	if err != nil {
		return nil, err
	}
	node, err := f.nodeStore(&c)
	return &runImages{runFlags: f, store: store, config: c, node: node}, err
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
			return r.held(ctx, made)
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
	i, err := r.inStore(r.store, ref, name)
	// What the user's own store has under this name is his.
	if r.node != nil && ref.Kind == reference.Registry && (r.pull == "always" || errors.Is(err, image.ErrNotFound)) {
		return r.handed(ctx, ref, name)
	}
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

// held opens the image that a named container was made of. Where the store has it, but
// nothing that keeps it for the container, it is kept from now on.
func (r *runImages) held(ctx context.Context, made *step.Named) (*step.Image, error) {
	dir := filepath.Dir(made.Upper())
	holds, err := r.store.Holds()
	for _, h := range holds {
		if h.Dir == dir && string(h.Image.Manifest) == made.Digest {
			return r.opened(&h.Image)
		}
	}
	images, lerr := r.store.List()
	for _, h := range holds { // another container's is as good
		images = append(images, h.Image)
	}
	for n := range images {
		if i := &images[n]; string(i.Manifest) == made.Digest {
			if err := r.store.Hold(ctx, made.Name, dir, i); err != nil {
				return nil, err
			}
			return r.opened(i)
		}
	}
	if r.node != nil {
		return r.heldBy(ctx, made)
	}
	f := &fault.Error{
		What: fmt.Errorf("open container %s: %w", made.Name, errors.Join(fmt.Errorf("the store %s does not have its image %s", r.store.Dir(), made.Digest), err, lerr)),
		Hint: "fetch it again: gangway image pull " + made.Image,
	}
	if made.Store != "" && made.Store != r.store.Dir() {
		f.Hint = "it was made with another store: --store " + made.Store
	}
	return nil, f
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
		if err != nil {
			return nil, err
		}
		id, err := identity(path, st)
		return &step.Image{Name: path, Identity: id, Dir: path, Config: imageConfig(c)}, err
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
	id, err := identity(path, st)
	if err != nil {
		return nil, errors.Join(err, o.Close())
	}
	i, err := newStepImage(path, "", o)
	if err == nil {
		i.Identity = id
	}
	return i, err
}

// identity tells a squashfs file, or a directory, from another that takes its place, for
// people to read: not by what touches and copies change. A file is known by its superblock,
// and by its end, where the tables are that say how long each block is; a directory is
// itself, whatever is in it by now.
func identity(path string, st os.FileInfo) (string, error) {
	if st.IsDir() {
		sys, ok := st.Sys().(*syscall.Stat_t)
		if !ok {
			return "", fmt.Errorf("look at %s: %w", path, errors.ErrUnsupported)
		}
		return fmt.Sprintf("the directory with inode %d", sys.Ino), nil
	}
	const head, tail = 96, 64 << 10
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	for _, part := range []*io.SectionReader{io.NewSectionReader(f, 0, head), io.NewSectionReader(f, max(0, st.Size()-tail), tail)} {
		if _, err := io.Copy(h, part); err != nil {
			return "", fmt.Errorf("read %s: %w", path, err)
		}
	}
	return fmt.Sprintf("%d bytes with tables of digest %.16x", st.Size(), h.Sum(nil)), nil
}

// say says what runs, and where.
func (r *runImages) say(what string) {
	if !r.quiet && !r.dryRun {
		fmt.Fprintf(r.imageFlags.env.Stderr, "gangway: running here: %s\n", what)
	}
}

// fetch pulls an image, with progress on stderr.
func (r *runImages) fetch(ctx context.Context, name string) (image.Image, error) {
	pull := &pullFlags{imageFlags: r.imageFlags, quiet: r.quiet, pulled: r.runFlags.pulled}
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
		return &step.Image{Name: familiar(i.Reference), Digest: string(i.Manifest), Config: imageConfig(c), Files: f, Close: f.Close, Pulled: r.pulled, Store: r.store.Dir()}, nil
	}
	o, err := r.store.OpenImage(i, squashfs.ReaderOptions{Cache: r.cache})
	if err != nil {
		return nil, err
	}
	r.stored = i
	r.say(fmt.Sprintf("%s (%s)", familiar(i.Reference), i.Manifest.Short()))
	opened, err := newStepImage(familiar(i.Reference), string(i.Manifest), o)
	if err == nil {
		opened.Pulled, opened.Store = r.pulled, r.store.Dir()
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
	if r.stored == nil && r.handle == nil {
		return nil // files and directories are their owner's to keep
	}
	dir, err := step.NamedDir(r.imageFlags.env.Getenv)
	if err != nil {
		return err
	}
	dir = filepath.Join(dir, name)
	if r.handle != nil {
		return r.handle.Hold(ctx, name, dir)
	}
	return r.store.Hold(ctx, name, dir, r.stored)
}

// save implements step.Options.Save.
func (r *runImages) save(ctx context.Context, i *step.Image, w step.Written, path string) error {
	return saveContainer(ctx, r.imageFlags.env, i, w, path, true)
}
