package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/gangway-hpc/gangway/internal/cli"
	"github.com/gangway-hpc/gangway/internal/fault"
	"github.com/gangway-hpc/gangway/internal/store"
	"github.com/gangway-hpc/gangway/sched/server"
)

// databaseFile is the store's in a state directory.
const databaseFile = "gangway.db"

func controllerVerb(env *cli.Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "controller",
		Short: "be the controller of a cluster",
		Long: `Be the controller of a cluster: keep the queue, decide what starts where, have the
nodes' daemons run it, and answer the commands.

SIGTERM ends the controller; what runs goes on, and the next controller on the same
state directory takes it up again.`,
		Example: "gangwayd controller --state-dir DIR",
	}
	var dir, socket, wire, listen string
	f := cmd.Flags()
	f.StringVar(&dir, "state-dir", "", "the cluster's state directory")
	f.StringVar(&socket, "socket", "", "the public API's socket (default STATE/controller.sock)")
	f.StringVar(&wire, "wire", "", "the socket for daemons (default STATE/wire.sock)")
	f.StringVar(&listen, "wire-listen", "", "a TCP address for daemons as well, without any encryption: HOST:PORT")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if dir == "" {
			return fault.Usage(errors.New("controller: the state directory is to be named"), "gangwayd controller --state-dir DIR")
		}
		dir, err := filepath.Abs(dir)
		if err != nil {
			return err
		}
		if socket == "" {
			socket = filepath.Join(dir, "controller.sock")
		}
		if wire == "" {
			wire = filepath.Join(dir, "wire.sock")
		}
		ctx, stop := signal.NotifyContext(context.WithoutCancel(cmd.Context()), syscall.SIGTERM, syscall.SIGINT)
		defer stop()
		return runController(ctx, dir, socket, wire, listen, slog.New(slog.NewTextHandler(env.Stderr, nil)))
	}
	return cmd
}

// controllerHeap is what the controller's heap is kept below where it can be.
const controllerHeap = 230 << 20

func runController(ctx context.Context, dir, socket, wire, listen string, log *slog.Logger) error {
	debug.SetMemoryLimit(controllerHeap)
	cluster, err := readCluster(dir)
	if err != nil {
		return err
	}
	db, err := store.Open(ctx, filepath.Join(dir, databaseFile))
	if err != nil {
		return err
	}
	defer func() { _ = db.Close() }()
	public, err := listenUnix(socket)
	if err != nil {
		return err
	}
	daemons, err := listenUnix(wire)
	if err != nil {
		return errors.Join(err, public.Close())
	}
	agents := []net.Listener{daemons}
	if listen != "" {
		l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", listen)
		if err != nil {
			return fmt.Errorf("listen for daemons: %w", err)
		}
		agents = append(agents, l)
	}
	s, err := server.New(ctx, server.Options{Cluster: &cluster, Store: db, Log: log, Version: cli.Release(), Address: "unix:" + socket})
	if err != nil {
		return errors.Join(err, public.Close(), daemons.Close())
	}
	log.Info("controller is ready", "address", socket, "epoch", db.Epoch())
	return s.Serve(ctx, public, agents...)
}

// listenUnix listens on a socket. One that a dead controller left is replaced: who shares
// the store with one that lives finds out when it appends.
func listenUnix(path string) (net.Listener, error) {
	if st, err := os.Lstat(path); err == nil && st.Mode().Type() == fs.ModeSocket {
		if err := os.Remove(path); err != nil {
			return nil, fmt.Errorf("listen on %s: %w", path, err)
		}
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	// A later controller makes its own under this name.
	l.SetUnlinkOnClose(false)
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(fmt.Errorf("listen on %s: %w", path, err), l.Close())
	}
	return l, nil
}
