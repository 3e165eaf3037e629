package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/gangway-hpc/gangway/image"
	"github.com/gangway-hpc/gangway/image/layer"
	"github.com/gangway-hpc/gangway/image/registry"
	"github.com/gangway-hpc/gangway/image/service"
	"github.com/gangway-hpc/gangway/internal/cli"
	"github.com/gangway-hpc/gangway/internal/config"
	"github.com/gangway-hpc/gangway/internal/fault"
	"github.com/gangway-hpc/gangway/internal/proc"
	"github.com/gangway-hpc/gangway/internal/socket"
)

// storeFlags are those of the verb store.
type storeFlags struct {
	dir, socket string
	lease       time.Duration
	maxSize     string
	maxContent  string
	maxEntries  int64
}

func storeVerb(env *cli.Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "store",
		Short: "be the image store that all users of a node share",
		Long: `Be the image store that all users of a node share, as a user of its own who has
no other rights: it refuses to be root. Images of registries are fetched and converted
here once; gangway run and gangway image pull of any user ask for them at the socket,
and get the open files, once the registry has said that this user may read the image.
His credentials stay in his own process until the registry demands them, and are kept
here in memory, for that request.

The registry's word counts for --lease; then it is asked again, with one request. Where
it does not answer, nobody gets a cached image after that time. Settings of registries
are those of /etc/gangway/gangway.toml and of this user; those of its clients do not count.

The directory of the socket is to be root's or this user's, with mode 0755. Root looks
after the store with gangway image ls, pin, unpin, rm, gc and verify.`,
		Example: `gangwayd store
gangwayd store --dir /data/images --socket /run/gangway-store/store.sock --lease 1m`,
	}
	f := &storeFlags{}
	fl := cmd.Flags()
	fl.StringVar(&f.dir, "dir", "/var/lib/gangway-store", "the directory of the images, of this user alone")
	fl.StringVar(&f.socket, "socket", config.DefaultService, "where users ask for images")
	fl.DurationVar(&f.lease, "lease", 5*time.Minute, "how long a registry's word counts that a user may read an image; 0 asks each time")
	fl.StringVar(&f.maxSize, "max-size", "", "refuse images with more bytes in their layers, compressed, as 50G (default image.max_size)")
	fl.StringVar(&f.maxContent, "max-unpacked", "", "refuse layers with more bytes, unpacked (default 1T, and 200 times the layer)")
	fl.Int64Var(&f.maxEntries, "max-entries", 0, "refuse layers with more files (default 2000000)")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return runStore(context.WithoutCancel(cmd.Context()), env, f)
	}
	return cmd
}

func runStore(ctx context.Context, env *cli.Env, f *storeFlags) error {
	if f.lease < 0 || f.maxEntries < 0 {
		return fault.Usage(errors.New("store: --lease and --max-entries must not be negative"), "leave them out for the defaults")
	}
	if err := proc.Renounce(); err != nil {
		return &fault.Error{
			What:  fmt.Errorf("be the node's image store: %w", err),
			Cause: "it takes apart what strangers wrote",
			Hint:  "run it as a user of its own: runuser -u gangway-store -- gangwayd store",
		}
	}
	o, err := storeOptions(env, f)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(f.socket), 0o755); err != nil {
		return fmt.Errorf("make the directory of the socket: %w", err)
	}
	l, err := socket.ListenForAll(f.socket)
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	context.AfterFunc(ctx, func() { giveUp(o.Log, "store") })
	o.Log.Info("the image store is there", "dir", o.Store.Dir(), "socket", f.socket)
	return service.New(o).Serve(ctx, l)
}

func storeOptions(env *cli.Env, f *storeFlags) (service.Options, error) {
	o := service.Options{Lease: f.lease, Log: slog.New(slog.NewTextHandler(env.Stderr, nil)), Now: env.Now}
	c, err := config.Load(config.Paths(env.Getenv))
	if err != nil {
		return o, err
	}
	if o.MaxSize, err = sizeOf("--max-size", f.maxSize); err == nil && f.maxSize == "" {
		o.MaxSize, err = sizeOf("configuration: image.max_size", c.Image.MaxSize)
	}
	if err != nil {
		return o, err
	}
	o.Limits = layer.Limits{Entries: f.maxEntries}
	if o.Limits.Bytes, err = sizeOf("--max-unpacked", f.maxContent); err != nil {
		return o, err
	}
	if o.Limits.Bytes > 0 {
		o.Limits.Ratio = 1<<31 - 1 // who says how much there may be does not mean how much it was compressed
	}
	hosts := map[string]registry.Host{}
	for name, r := range c.Registry {
		hosts[name] = registry.Host{Mirrors: r.Mirrors, CAFile: r.CA, PlainHTTP: r.PlainHTTP, SkipVerify: r.SkipVerify}
	}
	o.Registry = func(credentials registry.Credentials, rate int64) *registry.Client {
		return registry.New(registry.Options{Credentials: credentials, Hosts: hosts, UserAgent: "gangway", Bandwidth: rate, Log: o.Log})
	}
	if env.Getenv("GOGC") == "" {
		debug.SetGCPercent(25) // as gangway image pull does
	}
	o.Store, err = image.Open(image.Options{Dir: f.dir, Log: o.Log, Now: env.Now})
	return o, err
}

// sizeOf is a number of bytes as it is written at some place; none is 0.
func sizeOf(place, text string) (int64, error) {
	if text == "" {
		return 0, nil
	}
	n, err := cli.ParseSize(text)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", place, err)
	}
	return n, nil
}
