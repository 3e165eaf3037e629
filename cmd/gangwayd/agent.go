package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/gangway-hpc/gangway/internal/cli"
	"github.com/gangway-hpc/gangway/internal/config"
	"github.com/gangway-hpc/gangway/internal/fault"
	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/launcher/agent"
	"github.com/gangway-hpc/gangway/launcher/step"
)

func agentVerb(env *cli.Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "agent",
		Short: "be the daemon of a node",
		Long: `Be the daemon of a node: take steps from the controller and run them.

On a host of its own the agent joins the cluster with a token of gangwayd token, once.
From then on the state directory is all that it needs: it has the certificate, which is
renewed in time, and knows where the controller was. --controller says that this is
elsewhere now; that the node's own address has changed needs no word.

As root it runs steps of all users of the machine, each with his own rights
(--mode=system), else those of who runs it.

SIGTERM ends the agent and leaves its steps running; the next one takes them up again.
SIGINT ends the steps first.`,
		Example: `gangwayd agent --state-dir DIR --join TOKEN --controller HOST:PORT
gangwayd agent --state-dir DIR`,
	}
	var dir, node, wire, socket, listen, address string
	m, mode := &memberFlags{}, &modeFlags{}
	f := cmd.Flags()
	f.StringVar(&dir, "state-dir", "", "the cluster's state directory")
	f.StringVar(&node, "node", "", "name of a node on the controller's own host")
	f.StringVar(&wire, "wire", "", "the controller's socket for daemons (default STATE/wire.sock)")
	f.StringVar(&socket, "socket", "", "the agent's own socket (default STATE/nodes/NODE/agent.sock)")
	f.StringVar(&listen, "listen", fmt.Sprintf(":%d", agentPort), "where the controller reaches the agent, as HOST:PORT")
	f.StringVar(&address, "address", "", "by which address others reach this host (default the one from which it reaches the controller)")
	m.add(cmd)
	mode.add(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if dir == "" {
			return fault.Usage(errors.New("agent: the state directory is to be named"), "gangwayd agent --state-dir DIR")
		}
		if node == "" {
			if wire != "" || socket != "" {
				return fault.Usage(errors.New("agent: --wire and --socket are for nodes on the controller's own host"), "--node NAME")
			}
			return runHostAgent(context.WithoutCancel(cmd.Context()), env, dir, m, mode, listen, address)
		}
		for _, name := range []string{"join", "controller", "listen", "address"} {
			if f.Changed(name) {
				return fault.Usage(fmt.Errorf("agent: --%s is for hosts of their own, and --node is not", name), "leave one of the two out")
			}
		}
		o, err := agentOptions(env, dir, node)
		if err != nil {
			return err
		}
		system, err := mode.system()
		if err != nil {
			return err
		}
		if system {
			sockets, err := mode.sockets(o.Name, node)
			if err == nil {
				err = mode.users(&o, sockets)
			}
			if err != nil {
				return err
			}
		}
		if wire != "" {
			o.Wire = wire
		}
		if socket != "" {
			o.Socket = socket
		}
		if o.Orphans, err = agent.AdoptOrphans(nil); err != nil {
			return err
		}
		return runAgent(context.WithoutCancel(cmd.Context()), agent.New(o))
	}
	return cmd
}

// agentOptions are those of a node that the state directory declares.
func agentOptions(env *cli.Env, dir, name string) (agent.Options, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return agent.Options{}, err
	}
	cluster, err := readCluster(dir)
	if err != nil {
		return agent.Options{}, err
	}
	o, err := programs(env)
	if err != nil {
		return o, err
	}
	for _, n := range agentsOf(&cluster) {
		if n.Name == name {
			o.Dir, o.Wire, o.Socket = filepath.Join(dir, "nodes", name), filepath.Join(dir, "wire.sock"), filepath.Join(dir, "nodes", name, "agent.sock")
			return optionsOf(&cluster, n, o), nil
		}
	}
	return agent.Options{}, &fault.Error{
		What: fmt.Errorf("find node %s: %s does not declare it", name, filepath.Join(dir, clusterFile)),
		Hint: "start the cluster with it: gangway up --state-dir " + dir + " --nodes N",
	}
}

// programs are the options that say what an agent runs, where images are, and who hears it.
func programs(env *cli.Env) (o agent.Options, err error) {
	o.Log = slog.New(slog.NewTextHandler(env.Stderr, nil))
	if o.Gangway, err = beside("gangway"); err != nil {
		return o, err
	}
	o.Store, err = storeDir(env.Getenv)
	return o, err
}

// optionsOf completes the options of a node's agent: where all is they have already.
func optionsOf(c *job.Cluster, n job.Node, o agent.Options) agent.Options {
	o.Cluster, o.Name, o.Node, o.Declared = c.ID, c.Name, n, c.Declared
	o.Environ, o.Version, o.Log = agent.Basic(os.Environ()), cli.Release(), o.Log.With("node", n.Name)
	o.Leftovers = func() error { return step.NodeLeftovers(o.Dir, o.Store) }
	return o
}

func runAgent(ctx context.Context, a *agent.Agent) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	defer signal.Stop(signals)
	go func() {
		for s := range signals {
			if s == syscall.SIGTERM {
				giveUp(a.Log, "agent")
				cancel()
				return
			}
			a.Stop()
		}
	}()
	return a.Run(ctx)
}

// maxEnding is how long a daemon may take to end by SIGTERM.
const maxEnding = 10 * time.Second

// giveUp ends this process if it has not ended by itself in time: it has too much to do, or
// waits for something that does not come, and nobody may be left who would kill it. What
// was acknowledged is on disk, and the next one goes on from there.
func giveUp(log *slog.Logger, title string) {
	time.AfterFunc(maxEnding, func() {
		log.Error(title+" does not end by itself", "after", maxEnding)
		os.Exit(fault.CodeFailed)
	})
}

// clusterFile is what a state directory declares: a job.Cluster.
const clusterFile = "cluster.json"

func readCluster(dir string) (c job.Cluster, err error) {
	b, err := os.ReadFile(filepath.Join(dir, clusterFile))
	if err == nil {
		err = json.Unmarshal(b, &c)
	}
	if err == nil && c.ID == "" {
		err = errors.New("it has no ID, by which its processes are known")
	}
	if err != nil {
		return c, fmt.Errorf("read cluster in %s: %w", dir, err)
	}
	return c, nil
}

// beside is the path of a program that lies beside this one.
func beside(name string) (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("find program %s: %w", name, err)
	}
	path := filepath.Join(filepath.Dir(self), name)
	if _, err := os.Stat(path); err != nil {
		return "", &fault.Error{
			What: fmt.Errorf("find program %s: %w", name, err),
			Hint: "gangway and gangwayd lie in one directory: make install puts them there",
		}
	}
	return path, nil
}

// storeDir is where this user's images are: of all nodes of the machine, and of the commands.
func storeDir(getenv func(string) string) (string, error) {
	c, err := config.ForImages(getenv, "")
	if err != nil {
		return "", err
	}
	return c.StoreDir(getenv)
}
