package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/gangway-hpc/gangway/image"
	"github.com/gangway-hpc/gangway/image/credential"
	"github.com/gangway-hpc/gangway/image/oci"
	"github.com/gangway-hpc/gangway/image/reference"
	"github.com/gangway-hpc/gangway/image/service"
	"github.com/gangway-hpc/gangway/internal/cli"
	"github.com/gangway-hpc/gangway/internal/config"
	"github.com/gangway-hpc/gangway/internal/proc"
	"github.com/gangway-hpc/gangway/launcher/step"
	"github.com/gangway-hpc/gangway/squashfs"
)

// nodeStore is the node's image store, which images of registries come from, with the
// socket's path; nil where they come from the user's own.
func (f *imageFlags) nodeStore(c *config.Config) (*service.Client, error) {
	path, err := c.ServiceSocket(f.env.Getenv, f.store)
	if err != nil || path == "" {
		return nil, err
	}
	return &service.Client{Socket: path}, nil
}

// forReference is the client for an image of a registry: its credentials, and those of the
// registry's mirrors, are all that the service may ask for.
func (f *imageFlags) forReference(node *service.Client, c *config.Config, ref reference.Reference) *service.Client {
	hosts := []string{ref.Host}
	for _, m := range c.Registry[ref.Host].Mirrors {
		if _, rest, ok := strings.Cut(m, "://"); ok {
			m = rest
		}
		host, _, _ := strings.Cut(m, "/")
		hosts = append(hosts, host)
	}
	return &service.Client{Socket: node.Socket, Hosts: hosts, Credentials: credential.New(credential.Options{Log: f.env.Logger()})}
}

// request asks for an image of a registry as the flags say.
func (p *puller) request(ref reference.Reference, pull string) service.Request {
	return service.Request{
		Reference: ref.String(), Platform: p.platform, Pull: pull, MaxSize: p.opts.MaxSize,
		MaxEntries: int64(p.maxEntries), MaxContent: p.maxContent.n, Rate: p.rate.n,
	}
}

// handed opens an image that the node's image store hands over.
func (r *runImages) handed(ctx context.Context, ref reference.Reference, name string) (*step.Image, error) {
	p := &puller{pullFlags: &pullFlags{imageFlags: r.imageFlags, quiet: r.quiet, pulled: r.runFlags.pulled}}
	var err error
	if p.opts.MaxSize, err = p.limit(r.config); err != nil {
		return nil, err
	}
	show := p.show(name)
	begin, fetched := time.Now(), false
	progress := func(i image.Progress) {
		fetched = fetched || i.Phase != image.PhaseCached
		show.progress(i)
	}
	h, err := r.imageFlags.forReference(r.node, &r.config, ref).Open(ctx, p.request(ref, r.pull), progress)
	show.end(err == nil)
	if err != nil {
		return nil, err
	}
	i, err := r.ofHanded(h)
	if err == nil && fetched {
		i.Pulled = time.Since(begin)
	}
	return i, err
}

// heldBy opens the image that a named container holds in the node's store: made.Digest.
func (r *runImages) heldBy(ctx context.Context, made *step.Named) (*step.Image, error) {
	h, err := r.node.Held(ctx, filepath.Dir(made.Upper()), oci.Digest(made.Digest))
	if err == nil {
		return r.ofHanded(h)
	}
	ref, perr := r.parseReference(made.Image)
	if !errors.Is(err, image.ErrNotFound) || perr != nil || ref.Kind != reference.Registry {
		return nil, err
	}
	// It was made with another store.
	ref.Digest = oci.Digest(made.Digest)
	i, err := r.handed(ctx, ref, made.Image)
	if err == nil {
		err = r.hold(ctx, made.Name, i)
	}
	return i, err
}

// ofHanded makes an image of what was handed over.
func (r *runImages) ofHanded(h *service.Handed) (*step.Image, error) {
	files, err := image.Handed(h.Files, h.Config, r.hotPath(&h.Image))
	if err != nil {
		return nil, errors.Join(err, h.Close())
	}
	i, err := r.ofFiles(files, &h.Image)
	if err != nil {
		return nil, errors.Join(err, files.Close(), h.Close())
	}
	inner := i.Close
	i.Close = func() error { return errors.Join(inner(), h.Close()) }
	i.Store = r.node.Socket
	r.handle = h
	r.say(fmt.Sprintf("%s (%s), of the node's image store", i.Name, h.Image.Manifest.Short()))
	return i, nil
}

// ofFiles makes an image of open files, which belong to it if there is no error.
func (r *runImages) ofFiles(f *image.Files, i *image.Image) (*step.Image, error) {
	if proc.IsRoot() {
		c, err := f.Config()
		if err != nil {
			return nil, err
		}
		return &step.Image{Name: familiar(i.Reference), Digest: string(i.Manifest), Config: imageConfig(c), Files: f, Close: f.Close}, nil
	}
	o, err := f.Open(squashfs.ReaderOptions{Cache: r.cache})
	if err != nil {
		return nil, err
	}
	opened, err := newStepImage(familiar(i.Reference), string(i.Manifest), o)
	if err != nil {
		return nil, err
	}
	opened.Close = func() error { return errors.Join(o.Close(), f.Close()) }
	return opened, nil
}

// hotPath names the file for what containers of the image read when they start. The
// node's store is not the user's to write, so that it lies in his own.
func (r *runImages) hotPath(i *image.Image) string {
	name := r.store.HotPath(i.Manifest)
	if _, err := os.Stat(filepath.Dir(name)); err != nil && os.MkdirAll(filepath.Dir(name), 0o700) != nil {
		return "" // the next containers start slower
	}
	return name
}

// releaseNode ends what a named container holds in the node's store, where there is one
// that answers.
func (f *imageFlags) releaseNode(ctx context.Context, c *config.Config, name, dir string) {
	node, err := f.nodeStore(c)
	if err == nil && node != nil {
		err = node.Release(ctx, name, dir)
	}
	if err != nil {
		f.env.Logger().Warn("the node's image store keeps the image of a container that is removed", "container", name, "err", err)
	}
}

// atNode has the node's store do something, where that is what is meant: root looks after
// it, unless he names another store. Images are found by name in it; only is for what
// changes something. The result is nil where it is about the user's own store.
func (f *imageFlags) atNode(ctx context.Context, q *service.Admin, names []string, only bool) (*service.AdminResult, error) {
	if !proc.IsRoot() {
		return nil, nil
	}
	c, err := f.config()
	if err != nil {
		return nil, err
	}
	node, err := f.nodeStore(&c)
	if err != nil || node == nil {
		return nil, err
	}
	if len(names) > 0 {
		all, err := node.Admin(ctx, &service.Admin{Do: service.AdminList})
		if err != nil {
			return nil, err
		}
		var images []image.Image
		for _, i := range all.Images {
			images = append(images, i.Image)
		}
		for _, name := range names {
			canonical, platform, err := f.meant(name)
			if err != nil {
				return nil, err
			}
			i, err := image.Find(images, name, canonical, platform, only)
			if err != nil {
				return nil, err
			}
			q.Images = append(q.Images, i)
		}
	}
	return node.Admin(ctx, q)
}

// printNode prints what the node's store did, if it did.
func printNode(out *cli.Reporter, err error, result func() cli.Result) error {
	if err != nil {
		return err
	}
	return out.Print(result())
}

// errOf is that something in the node's store is damaged.
func errOf(r *service.AdminResult) error {
	if r == nil {
		return nil
	}
	return r.Verify.Err()
}
