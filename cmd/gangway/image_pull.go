package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"math"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/gangway-hpc/gangway/image"
	"github.com/gangway-hpc/gangway/image/layer"
	"github.com/gangway-hpc/gangway/image/reference"
	"github.com/gangway-hpc/gangway/image/registry"
	"github.com/gangway-hpc/gangway/image/service"
	"github.com/gangway-hpc/gangway/internal/cli"
	"github.com/gangway-hpc/gangway/internal/config"
	"github.com/gangway-hpc/gangway/internal/fault"
)

// pullFlags are what the verbs take that fetch images.
type pullFlags struct {
	*imageFlags
	maxSize    sizeFlag
	maxContent sizeFlag
	rate       sizeFlag
	maxEntries int
	quiet      bool
	json       bool
	pulled     func(done, total int64) // is told instead of people; nil: they are
}

func newPullFlags(env *cli.Env, cmd *cobra.Command) *pullFlags {
	f := &pullFlags{imageFlags: newImageFlags(env, cmd).withPlatform(cmd)}
	fl := cmd.Flags()
	fl.Var(&f.maxSize, "max-size", "do not fetch images with more bytes in their layers, compressed, as 50G")
	fl.Var(&f.maxContent, "max-unpacked", "refuse layers with more bytes, unpacked (default 1T, and 200 times the layer)")
	fl.IntVar(&f.maxEntries, "max-entries", 0, "refuse layers with more files (default 2000000)")
	fl.Var(&f.rate, "limit-rate", "fetch no more bytes a second, as 100M")
	fl.BoolVarP(&f.quiet, "quiet", "q", false, "print no progress")
	fl.BoolVar(&f.json, "json", false, "print progress and results as JSON, an object a line")
	return f
}

func imagePull(env *cli.Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "pull IMAGE...",
		Short: "fetch images into the store",
		Long: `Fetch images into the store, and print the digest of each.

IMAGE is what docker pull takes, or one of
  docker://[USER@]HOST#REPOSITORY:TAG    as with Enroot and Pyxis
  oci:DIR[:TAG]  oci-archive:FILE[:TAG]  docker-archive:FILE[:TAG]
  dockerd://IMAGE  podman://IMAGE        of this machine's engines
  ./DIR  ./FILE.sqsh  ./FILE.tar         a root file system, as gangway image import

Credentials come from docker login or podman login, their credential helpers, and
Enroot's .credentials. Registries, mirrors and certificate authorities are set in
gangway.toml:
  [registry."registry.example:5000"]
  mirrors = ["mirror.example"]
  ca = "/etc/ssl/registry.pem"
  plain_http = false`,
		Example: `gangway image pull debian:12
gangway image pull --platform linux/arm64 nvcr.io/nvidia/pytorch:25.02-py3
gangway image pull oci:./layout:1 docker-archive:image.tar`,
		SuggestFor: []string{"fetch", "get", "download"},
	}
	f := newPullFlags(env, cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		p, err := f.puller()
		if err != nil {
			return err
		}
		defer p.client.Close()
		for _, name := range args {
			if err := p.pull(cmd.Context(), name, ""); err != nil {
				return err
			}
		}
		return nil
	}
	return cmd
}

// puller pulls images as the flags say.
type puller struct {
	*pullFlags
	store  *image.Store
	client *registry.Client
	node   *service.Client // nil: images of registries are pulled into the user's own store
	config config.Config
	opts   image.PullOptions
}

func (f *pullFlags) puller() (*puller, error) {
	store, cfg, err := f.open()
	if err != nil {
		return nil, err
	}
	if f.maxEntries < 0 {
		return nil, fault.Usage(fmt.Errorf("--max-entries %d: it must not be negative", f.maxEntries), "leave it out for the default")
	}
	p := &puller{pullFlags: f, store: store, client: f.client(cfg, f.rate.n), config: cfg}
	if p.node, err = f.nodeStore(&cfg); err != nil {
		return nil, err
	}
	if p.opts.Platform, err = f.chosenPlatform(); err != nil {
		return nil, err
	}
	if p.opts.MaxSize, err = f.limit(cfg); err != nil {
		return nil, err
	}
	p.opts.Limits = f.layerLimits()
	setMemoryLimits(f.env)
	return p, nil
}

// setMemoryLimits makes the garbage collector's growth small: what converts holds
// hardly any pointers, so that collecting often is cheap, and halves the memory.
func setMemoryLimits(env *cli.Env) {
	if env.Getenv("GOGC") == "" {
		debug.SetGCPercent(25)
	}
}

// layerLimits are the limits of what is in a layer. Who says how much there may be
// does not mean how much it was compressed.
func (f *pullFlags) layerLimits() layer.Limits {
	l := layer.Limits{Entries: int64(f.maxEntries)}
	if f.maxContent.set {
		l.Bytes, l.Ratio = f.maxContent.n, math.MaxInt32
	}
	return l
}

// limit is --max-size, or what the configuration says.
func (f *pullFlags) limit(c config.Config) (int64, error) {
	if !f.maxSize.set {
		if c.Image.MaxSize == "" {
			return 0, nil
		}
		n, err := cli.ParseSize(c.Image.MaxSize)
		if err != nil {
			err = &fault.Error{What: fmt.Errorf("configuration: image.max_size: %w", err), Code: fault.CodeFailed}
		}
		return n, err
	}
	return f.maxSize.n, c.Override("--max-size", "image.max_size")
}

// pull pulls one image, keeps it under a name ("" is its own) and prints it.
func (p *puller) pull(ctx context.Context, name, as string) error {
	ref, err := p.parseReference(name)
	if err != nil {
		return err
	}
	if ref.Kind == reference.Path {
		return p.root(ctx, ref.Path, cmp.Or(as, key(ref)), image.RootOptions{})
	}
	i, err := p.fetch(ctx, ref, name, as)
	if err != nil {
		return err
	}
	return p.print(pulled{Event: "image", Image: i})
}

// show is who is told how far a pull is.
func (p *puller) show(name string) show {
	if p.pulled != nil {
		return &bytesOf{tell: p.pulled, layers: map[int]image.Progress{}}
	}
	return newShow(p.env, name, p.quiet, p.json)
}

// fetch makes the store have an image of a registry or an archive: the node's store, where
// there is one, an image of a registry, unless it is to have another name.
func (p *puller) fetch(ctx context.Context, ref reference.Reference, name, as string) (image.Image, error) {
	if p.node != nil && ref.Kind == reference.Registry && as == "" {
		show := p.show(name)
		i, err := p.forReference(p.node, &p.config, ref).Pull(ctx, p.request(ref, "always"), show.progress)
		show.end(err == nil)
		return i, err
	}
	src, err := p.store.OpenSource(ctx, p.client, ref)
	if err != nil {
		return image.Image{}, err
	}
	defer src.Close()
	o := p.opts
	o.Reference = cmp.Or(as, key(ref))
	show := p.show(name)
	o.Progress = show.progress
	i, err := p.store.Pull(ctx, src, o)
	show.end(err == nil)
	return i, err
}

func (p *puller) print(v pulled) error {
	if p.json {
		return printLine(p.env.Stdout, v)
	}
	return v.Text(p.env.Stdout)
}

// pulled is the result of a pull.
type pulled struct {
	Event string `json:"event"`
	image.Image
}

// Text prints what pins the image: a reference by digest.
func (p pulled) Text(w io.Writer) error {
	_, err := fmt.Fprintf(w, "%s %s\n", familiar(p.Reference), p.Manifest)
	return err
}
