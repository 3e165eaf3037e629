package main

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"runtime/metrics"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/gangway-hpc/gangway/internal/cli"
	"github.com/gangway-hpc/gangway/internal/fault"
	"github.com/gangway-hpc/gangway/internal/host"
	"github.com/gangway-hpc/gangway/internal/socket"
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

With --listen, daemons of other hosts are heard as well, by TLS and with certificates of
the cluster's authority (gangwayd init, token): sessions of nodes, requests of their
users, and hosts that join.

As root it answers all users of the machine, each with his own rights (--mode=system):
commands find it without any setting. It need not be root for that, only its agents do.

SIGHUP has the cluster's configuration read again, as gangway reconfigure does.
SIGTERM ends the controller; what runs goes on, and the next controller on the same
state directory takes it up again.`,
		Example: `gangwayd controller --state-dir DIR
gangwayd controller --state-dir DIR --listen :7430`,
	}
	var dir, socket, wire, listen string
	var life time.Duration
	mode := &modeFlags{}
	var tell int
	f := cmd.Flags()
	f.StringVar(&dir, "state-dir", "", "the cluster's state directory")
	f.StringVar(&socket, "socket", "", "the public API's socket (default STATE/controller.sock, or in the mode system RUN/CLUSTER/controller.sock)")
	f.StringVar(&wire, "wire", "", "the socket for daemons (default STATE/wire.sock)")
	f.StringVar(&listen, "listen", "", "HOST:PORT for daemons of other hosts (default: there are none)")
	f.DurationVar(&life, "certificate-life", certificateLife, "how long hosts' certificates live; they are renewed after two thirds of it")
	mode.add(cmd)
	f.IntVar(&tell, "tell", 0, "descriptor on which a line says that the state directory's cluster.json has changed")
	_ = f.MarkHidden("tell") // it is there
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if dir == "" {
			return fault.Usage(errors.New("controller: the state directory is to be named"), "gangwayd controller --state-dir DIR")
		}
		dir, err := filepath.Abs(dir)
		if err != nil {
			return err
		}
		if wire == "" {
			wire = filepath.Join(dir, "wire.sock")
		}
		ctx, stop := signal.NotifyContext(context.WithoutCancel(cmd.Context()), syscall.SIGTERM, syscall.SIGINT)
		defer stop()
		if err := checkLife(life); err != nil {
			return err
		}
		log := slog.New(slog.NewTextHandler(env.Stderr, nil))
		defer context.AfterFunc(ctx, func() { giveUp(log, "controller") })()
		c := &controller{dir: dir, socket: socket, wire: wire, listen: listen, life: life, log: log, now: env.Now, mode: mode}
		c.declared = declaration{dir: dir}
		if tell > 2 {
			syscall.CloseOnExec(tell)
			c.declared.tell = os.NewFile(uintptr(tell), "tell")
		}
		return c.run(ctx)
	}
	return cmd
}

// controllerHeap is what the controller's memory is kept below where it can be.
const controllerHeap = 200 << 20

// boundHeap keeps memory below controllerHeap, or where what lives is nearly that, below half
// more than lives: to collect garbage all the time would be worse. It returns with ctx.
func boundHeap(ctx context.Context) {
	live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	for limit := int64(0); ; {
		metrics.Read(live)
		if want := max(controllerHeap, int64(live[0].Value.Uint64())/2*3); want != limit {
			limit = want
			debug.SetMemoryLimit(limit) // stops the world
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(time.Second):
		}
	}
}

// controller is what a controller is started with.
type controller struct {
	dir, socket, wire, listen string
	life                      time.Duration
	log                       *slog.Logger
	mode                      *modeFlags
	now                       func() time.Time
	declared                  declaration
}

func (c *controller) run(ctx context.Context) error {
	bounding, done := context.WithCancel(ctx)
	defer done()
	go boundHeap(bounding)
	cluster, err := readCluster(c.dir)
	if err != nil {
		return err
	}
	system, withdraw, err := c.place(ctx, cluster.Name)
	if err != nil {
		return err
	}
	defer withdraw()
	db, err := store.Open(ctx, filepath.Join(c.dir, databaseFile))
	if err != nil {
		return err
	}
	defer func() { _ = db.Close() }()
	public, err := listenFor(system, c.socket)
	if err != nil {
		return err
	}
	daemons, err := socket.Listen(c.wire)
	if err != nil {
		return errors.Join(err, public.Close())
	}
	hosts, err := c.hosts(ctx)
	if err != nil {
		return errors.Join(err, public.Close(), daemons.Close())
	}
	s, err := server.New(ctx, server.Options{Cluster: &cluster, Store: db, Log: c.log, Version: cli.Release(), Address: "unix:" + c.socket, Hosts: hosts, Multiuser: system, Configuration: c.declared.configuration()})
	if err != nil {
		return errors.Join(err, public.Close(), daemons.Close())
	}
	c.declared.changed() // it may have been while there was no controller
	defer c.onHangUp(ctx, s)()
	c.log.Info("controller is ready", "address", c.socket, "listen", c.listen, "epoch", db.Epoch())
	return s.Serve(ctx, public, daemons)
}

// place finds where the public API's socket is, and whether everybody may connect to it;
// then commands find it until withdraw is called.
func (c *controller) place(ctx context.Context, cluster string) (system bool, withdraw func(), err error) {
	if system, err = c.mode.system(); err != nil {
		return false, nil, err
	}
	if !system {
		if c.socket == "" {
			c.socket = filepath.Join(c.dir, "controller.sock")
		}
		return false, func() {}, nil
	}
	if c.socket == "" {
		dir, err := c.mode.sockets(cluster)
		if err != nil {
			return false, nil, err
		}
		c.socket = filepath.Join(dir, "controller.sock")
	}
	withdraw, err = c.mode.announce(ctx, cluster, "", c.socket)
	return true, withdraw, err
}

// onHangUp has the configuration read again at each SIGHUP, until the function that it
// returns is called.
func (c *controller) onHangUp(ctx context.Context, s *server.Server) func() {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGHUP)
	done := make(chan struct{})
	go func() {
		for {
			select {
			case <-signals:
			case <-done:
				return
			}
			answer, err := s.Reconfigure(ctx)
			if err != nil {
				c.log.Error("reconfigure: nothing was changed", "err", err)
				continue
			}
			for _, w := range answer.Warnings {
				c.log.Warn("reconfigure", "warning", w)
			}
			c.log.Info("reconfigured", "changes", len(answer.Changes))
		}
	}()
	return func() {
		signal.Stop(signals)
		close(done)
	}
}

// hosts is how daemons of other hosts are heard; nil: they are not.
func (c *controller) hosts(ctx context.Context) (*server.Hosts, error) {
	if c.listen == "" {
		return nil, nil
	}
	a, err := openAuthority(c.dir)
	if err != nil {
		return nil, err
	}
	self, err := a.Controller(c.life, c.now())
	if err != nil {
		return nil, err
	}
	l, err := self.Listen(ctx, c.listen, host.Rules{Roles: server.HostRules(), Alive: a.Alive, Stays: func(p host.Peer) error { return a.Stays(p, c.now()) }, Log: c.log, Now: c.now})
	if err != nil {
		return nil, err
	}
	go a.Keep(ctx, self, c.life, c.log)
	return &server.Hosts{Listener: l, Identity: self, Service: &host.Service{Authority: a, Life: c.life, Now: c.now}}, nil
}
