package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/gangway-hpc/gangway/internal/cli"
	"github.com/gangway-hpc/gangway/internal/fault"
	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/internal/slurm"
	"github.com/gangway-hpc/gangway/launcher/agent"
)

// upFlags are what "up" is told.
type upFlags struct {
	stateDir, name, gres, slurmConf string
	nodes, cpus                     int
	memory                          string
	lostAfter                       time.Duration
	keep                            bool
	given                           bool // something of what the cluster is like
}

func upVerb(env *cli.Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "up",
		Short: "run a whole cluster on this machine, in the foreground",
		Long: `Run a whole cluster on this machine, in the foreground: a controller and a daemon for
each node, as processes of yours. Commands of yours find it without any setting; where
several run, GANGWAY_CLUSTER=NAME chooses.

What the nodes have is declared, not measured: --gres gpu:h100:8 gives nodes that are
scheduled as if they had eight GPUs each. CPUs are by default the machine's for each
node, memory is divided among them. With --slurm-conf nodes, partitions and topology are
those of slurm.conf, gres.conf and topology.conf; gangway slurm lint DIR says what in them
means nothing here, what differs, and what cannot do what was meant.

All is kept in the state directory, and the next up there continues: what waits goes on
waiting, and what is known stays known. Flags that say what the cluster is like replace
what was said before; what runs on nodes that are not declared any more is ended. A daemon
that dies is started again; jobs do not notice. It prints what to type in another terminal to have
Slurm's commands, and on a terminal what becomes of jobs; gangway top shows more.

Ctrl-C ends the cluster: running steps are ended, and their jobs start again with the
next up if they may be requeued, or else have failed. With --keep they go on running, and
the next up takes them up again. If this process is killed, steps go on as with --keep.`,
		Example: `gangway up --nodes 4
gangway up --nodes 4 --gres gpu:h100:8 --cpus-per-node 64
gangway up --slurm-conf /etc/slurm --state-dir ~/trial`,
	}
	u := &upFlags{}
	f := cmd.Flags()
	f.IntVar(&u.nodes, "nodes", 1, "how many nodes")
	f.StringVar(&u.gres, "gres", "", "generic resources of each node, as gpu:h100:8")
	f.IntVar(&u.cpus, "cpus-per-node", 0, "CPUs of each node (default the machine's)")
	f.StringVar(&u.memory, "mem", "", "memory of each node, as 64G (default the machine's, divided)")
	f.StringVar(&u.slurmConf, "slurm-conf", "", "directory of slurm.conf: nodes and partitions are those")
	f.StringVar(&u.stateDir, "state-dir", "", "where all is kept (default $XDG_STATE_HOME/gangway/up, ~/.local/state/gangway/up)")
	f.StringVar(&u.name, "name", "", "name of the cluster (default that of the state directory, or slurm.conf's)")
	f.DurationVar(&u.lostAfter, "lost-after", time.Minute, "how long a node may be silent until what ran there is lost")
	f.BoolVar(&u.keep, "keep", false, "leave running steps alone when this ends")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		for _, name := range []string{"nodes", "gres", "cpus-per-node", "mem", "slurm-conf", "lost-after"} {
			u.given = u.given || f.Changed(name)
		}
		if u.slurmConf != "" {
			for _, name := range []string{"nodes", "gres", "cpus-per-node", "mem"} {
				if f.Changed(name) {
					return fault.Usage(fmt.Errorf("--%s with --slurm-conf: what nodes have is in slurm.conf", name), "leave one of the two out")
				}
			}
		}
		if err := checkLost(u.lostAfter); err != nil {
			return err
		}
		return u.run(context.WithoutCancel(cmd.Context()), env)
	}
	return cmd
}

func (u *upFlags) run(ctx context.Context, env *cli.Env) error {
	began := env.Now()
	if err := u.findState(env.Getenv); err != nil {
		return err
	}
	state, err := openState(ctx, u.stateDir)
	if err != nil {
		return err
	}
	defer state.close()
	cluster, err := u.declare(ctx, state)
	if err != nil {
		return err
	}
	warn := func(text string) { fmt.Fprintln(env.Stderr, "gangway: warning: "+text) }
	for _, w := range state.warnings {
		warn(w)
	}
	if err := state.makeSockets(env.Getenv, cluster); err != nil {
		return err
	}
	found, err := newDiscovery(env.Getenv, cluster.Name, state.controller())
	if err != nil {
		return err
	}
	return errors.Join(u.runDaemons(ctx, env, state, cluster, found, began), found.remove())
}

// runDaemons runs those of the cluster until its end is asked for.
func (u *upFlags) runDaemons(ctx context.Context, env *cli.Env, state *state, cluster *job.Cluster, found *discovery, began time.Time) error {
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer signal.Stop(signals)
	d := &daemons{dir: state.dir, say: func(text string) { fmt.Fprintln(env.Stderr, "gangway: "+text) }, environ: daemonEnviron(os.Environ())}
	var err error
	if d.program, err = os.Executable(); err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	gangway, err := beside("gangway")
	if err != nil {
		return err
	}
	// Each step has another working directory, and all have one store.
	store, err := storeDir(env.Getenv)
	if err != nil {
		return err
	}
	if env.Getenv("GANGWAY_STORE") != "" {
		d.environ = append(d.environ, "GANGWAY_STORE="+store)
	}
	removed, err := state.removed(cluster)
	if err != nil {
		return err
	}
	if len(removed) > 0 {
		d.say("ending what runs on nodes that the cluster has not any more: " + strings.Join(removed, ", "))
		if err := state.remove(ctx, cluster, removed, agent.Options{Gangway: gangway, Store: store}); err != nil {
			return err
		}
	}
	// Orphans of an agent that was killed are this process's. What has a step's marker is the
	// next agent's all the same.
	if d.orphans, err = agent.AdoptOrphans(agent.OfStep); err != nil {
		return err
	}
	watching, stopWatching := context.WithCancel(ctx)
	defer stopWatching()
	go d.orphans.Watch(watching)
	changes, err := d.heed()
	if err != nil {
		return err
	}
	d.start(daemonController, "controller", "--mode", modeUser, "--state-dir", state.dir, "--socket", state.controller(), "--wire", state.wire(), "--tell", "3")
	for _, n := range agentsOf(cluster) {
		d.startAgent(state, n.Name)
	}
	ready := make(chan error, 1)
	waiting, stopWaiting := context.WithCancel(ctx)
	defer stopWaiting()
	go func() { ready <- waitReady(waiting, state.controller(), len(agentsOf(cluster)), found.publish) }()
	k := &keeper{daemons: d, state: state, cluster: cluster, remains: agent.Options{Gangway: gangway, Store: store}, changes: changes}
	stop := u.watch(ctx, env, k, ready, signals, began)
	stopWaiting()
	return errors.Join(stop, found.hide(), d.end(u.keep, signals))
}

// watch waits for the end, and says meanwhile that the cluster is ready.
func (u *upFlags) watch(ctx context.Context, env *cli.Env, k *keeper, ready <-chan error, signals <-chan os.Signal, began time.Time) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for {
		select {
		case err := <-ready:
			if err != nil {
				return err
			}
			ready = nil
			fmt.Fprintf(env.Stdout, "cluster %s is ready after %s: %s; try: gangway run -N%d -- hostname; Ctrl-C ends it\n",
				k.cluster.Name, env.Now().Sub(began).Round(10*time.Millisecond), describe(k.cluster), len(k.cluster.Nodes))
			if use, err := k.state.use(ctx, k.remains.Gangway, k.cluster.Name); err != nil {
				k.say(err.Error())
			} else {
				fmt.Fprintf(env.Stdout, "Slurm's commands for it, in another terminal: %s\n", use)
			}
			if env.Terminal(env.Stdout) || env.Terminal(env.Stderr) {
				go tellJobs(ctx, env, k.state.controller())
			}
			if f, ok := env.Stdout.(interface{ Flush() error }); ok {
				if err := f.Flush(); err != nil {
					return err
				}
			}
		case <-k.changes:
			k.follow(ctx)
		case err := <-k.failed:
			return err
		case s := <-signals:
			k.say("stopping (" + s.String() + ")")
			return nil
		}
	}
}

// describe is what the nodes are, in some words.
func describe(c *job.Cluster) string {
	n := c.Nodes[0]
	for _, other := range c.Nodes[1:] {
		if other.CPUs != n.CPUs || len(other.GRES) != len(n.GRES) {
			return fmt.Sprintf("%d nodes", len(c.Nodes))
		}
	}
	names := make([]string, len(c.Nodes))
	for i := range c.Nodes {
		names[i] = c.Nodes[i].Name
	}
	text := fmt.Sprintf("%s with %d CPUs", slurm.Fold(names), n.CPUs)
	if len(n.GRES) > 0 {
		var all []string
		for _, g := range n.GRES {
			all = append(all, strings.Trim(g.Name+":"+g.Type, ":")+fmt.Sprintf(":%d", g.Count))
		}
		text += " and " + strings.Join(all, ",")
	}
	if len(c.Nodes) > 1 {
		text += " each"
	}
	return text
}

// findState makes the state directory's path absolute.
func (u *upFlags) findState(getenv func(string) string) (err error) {
	if u.stateDir == "" {
		base := getenv("XDG_STATE_HOME")
		if !filepath.IsAbs(base) {
			home := getenv("HOME")
			if home == "" {
				return &fault.Error{What: errors.New("find state directory: HOME is not set"), Hint: "say where all is kept: --state-dir DIR"}
			}
			base = filepath.Join(home, ".local", "state")
		}
		u.stateDir = filepath.Join(base, "gangway", "up")
	}
	u.stateDir, err = filepath.Abs(u.stateDir)
	return err
}
