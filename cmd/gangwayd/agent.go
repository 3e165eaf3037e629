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

	"github.com/spf13/cobra"

	"github.com/gangway-hpc/gangway/internal/cli"
	"github.com/gangway-hpc/gangway/internal/fault"
	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/launcher/agent"
)

func agentVerb(env *cli.Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "agent",
		Short: "be the daemon of a node",
		Long: `Be the daemon of a node: take steps from the controller and run them.

SIGTERM ends the agent and leaves its steps running; the next one takes them up again.
SIGINT ends the steps first.`,
		Example: "gangwayd agent --state-dir DIR --node n1",
	}
	var dir, node, wire, socket string
	f := cmd.Flags()
	f.StringVar(&dir, "state-dir", "", "the cluster's state directory")
	f.StringVar(&node, "node", "", "name of the node")
	f.StringVar(&wire, "wire", "", "the controller's socket for daemons (default STATE/wire.sock)")
	f.StringVar(&socket, "socket", "", "the agent's own socket (default STATE/nodes/NODE/agent.sock)")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if dir == "" || node == "" {
			return fault.Usage(errors.New("agent: state directory and node are to be named"), "gangwayd agent --state-dir DIR --node NAME")
		}
		o, err := agentOptions(env, dir, node)
		if err != nil {
			return err
		}
		if wire != "" {
			o.Wire = wire
		}
		if socket != "" {
			o.Socket = socket
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
	gangway, err := beside("gangway")
	if err != nil {
		return agent.Options{}, err
	}
	store, err := storeDir(env.Getenv)
	if err != nil {
		return agent.Options{}, err
	}
	for _, n := range cluster.Nodes {
		if n.Name == name {
			return agent.Options{
				Cluster: cluster.Name + "-" + cluster.ID, Name: cluster.Name, Node: n, Declared: cluster.Declared,
				Dir: filepath.Join(dir, "nodes", name), Wire: filepath.Join(dir, "wire.sock"), Socket: filepath.Join(dir, "nodes", name, "agent.sock"),
				Gangway: gangway, Environ: agent.Basic(os.Environ()), Store: store, Version: cli.Release(),
				Log: slog.New(slog.NewTextHandler(env.Stderr, nil)).With("node", name),
			}, nil
		}
	}
	return agent.Options{}, &fault.Error{
		What: fmt.Errorf("find node %s: %s does not declare it", name, filepath.Join(dir, clusterFile)),
		Hint: "start the cluster with it: gangway up --state-dir " + dir + " --nodes N",
	}
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
				cancel()
				return
			}
			a.Stop()
		}
	}()
	return a.Run(ctx)
}

// clusterFile is what a state directory declares: a job.Cluster.
const clusterFile = "cluster.json"

func readCluster(dir string) (c job.Cluster, err error) {
	b, err := os.ReadFile(filepath.Join(dir, clusterFile))
	if err == nil {
		err = json.Unmarshal(b, &c)
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

// storeDir is where this user's images are.
func storeDir(getenv func(string) string) (string, error) {
	if dir := getenv("GANGWAY_STORE"); filepath.IsAbs(dir) {
		return dir, nil
	}
	if dir := getenv("XDG_CACHE_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "gangway"), nil
	}
	home := getenv("HOME")
	if home == "" {
		return "", &fault.Error{What: errors.New("find the image store: HOME is not set"), Hint: "say where images go: GANGWAY_STORE=DIR"}
	}
	return filepath.Join(home, ".cache", "gangway"), nil
}
