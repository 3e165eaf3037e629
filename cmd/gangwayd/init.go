package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gangway-hpc/gangway/internal/cli"
	"github.com/gangway-hpc/gangway/internal/fault"
	"github.com/gangway-hpc/gangway/internal/host"
	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/internal/slurm"
	"github.com/gangway-hpc/gangway/launcher/tree"
)

// initFlags are what a cluster of several hosts is made of.
type initFlags struct {
	dir, name, nodes string
	slurmConf        string
	lostAfter        time.Duration
	treeWidth        int
}

func initVerb(env *cli.Env) *cobra.Command {
	i := &initFlags{}
	cmd := &cobra.Command{
		Use:   "init",
		Short: "make a cluster of several hosts: its state directory and its authority",
		Long: `Make a cluster of several hosts, here, where its controller will be: the state
directory, and in it the authority by whose certificates hosts know each other.

What the nodes have is found out by themselves when they join. With --slurm-conf nodes,
partitions and programs are those of slurm.conf, and a node that has less than it says is
drained when it joins, with the reason. Done again with other
nodes it adds these, and leaves the authority alone; a controller that runs takes them in
with gangway reconfigure.`,
		Example: `gangwayd init --state-dir DIR --name lab --nodes gpu[01-16]
gangwayd init --state-dir DIR --name lab --slurm-conf /etc/slurm
gangwayd controller --state-dir DIR --listen :7430
gangwayd token --state-dir DIR --node gpu01`,
	}
	f := cmd.Flags()
	f.StringVar(&i.dir, "state-dir", "", "the cluster's state directory")
	f.StringVar(&i.name, "name", "", "name of the cluster")
	f.StringVar(&i.nodes, "nodes", "", "names of its nodes, as gpu[01-16]")
	f.StringVar(&i.slurmConf, "slurm-conf", "", "directory of slurm.conf: nodes and partitions are those")
	f.DurationVar(&i.lostAfter, "lost-after", time.Minute, "how long a node may be silent until what ran there is lost")
	f.IntVar(&i.treeWidth, "tree-width", tree.Width, "to how many nodes the controller, and each node, passes on what is for more, as Slurm's TreeWidth")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if i.dir == "" || i.name == "" || (i.nodes == "") == (i.slurmConf == "") {
			return fault.Usage(errors.New("init: state directory, name and either nodes or slurm.conf's directory are to be named"), "gangwayd init --state-dir DIR --name lab --nodes gpu[01-16]")
		}
		return i.run(cmd.Context(), env)
	}
	return cmd
}

func (i *initFlags) run(ctx context.Context, env *cli.Env) error {
	dir, err := makeStateDir(i.dir)
	if err != nil {
		return err
	}
	if err := checkName(i.name); err != nil {
		return err
	}
	cluster, err := readCluster(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		cluster = job.Cluster{Name: i.name, ID: strings.ToLower(rand.Text()[:12])}
	case err != nil:
		return err
	case cluster.Name != i.name || cluster.Declared && !hasHosts(dir):
		return &fault.Error{What: fmt.Errorf("make cluster %s: %s has cluster %s", i.name, dir, cluster.Name), Hint: "take another state directory"}
	}
	if err := checkLost(i.lostAfter); err != nil {
		return err
	}
	if i.treeWidth < 1 || i.treeWidth > math.MaxUint16 {
		return fault.Usage(fmt.Errorf("--tree-width %d: from 1 to %d", i.treeWidth, math.MaxUint16), "--tree-width 32")
	}
	cluster.TreeWidth = i.treeWidth
	if i.slurmConf != "" {
		if cluster, err = i.fromSlurm(env, cluster.ID); err != nil {
			return err
		}
	} else if cluster.Nodes, cluster.Partitions, err = i.declare(cluster.Nodes); err != nil {
		return err
	}
	cluster.LostAfter = job.Duration(i.lostAfter.Milliseconds())
	a, err := host.Create(ctx, filepath.Join(dir, identityDir), cluster.Name, cluster.ID, env.Now())
	if errors.Is(err, fs.ErrExist) {
		a, err = host.Open(filepath.Join(dir, identityDir))
	}
	if err != nil {
		return err
	}
	if a.Cluster != cluster.Name || a.ID != cluster.ID {
		return fmt.Errorf("make cluster %s: the authority in %s is of cluster %s", cluster.Name, dir, a.Cluster)
	}
	if err := writeCluster(ctx, dir, &cluster); err != nil {
		return fmt.Errorf("write cluster: %w", err)
	}
	fmt.Fprintf(env.Stdout, "cluster %s has %d nodes; next: gangwayd controller --state-dir %s --listen :%d\n", cluster.Name, len(cluster.Nodes), dir, controllerPort)
	return nil
}

// hasHosts says whether a state directory is of a cluster of several hosts.
func hasHosts(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, identityDir))
	return err == nil
}

// fromSlurm is the cluster of slurm.conf, under its own name and id.
func (i *initFlags) fromSlurm(env *cli.Env, id string) (job.Cluster, error) {
	c, warnings, err := fromSlurm(i.slurmConf)
	if err != nil {
		return c, err
	}
	for _, w := range warnings {
		fmt.Fprintln(env.Stderr, "gangwayd: warning: "+w)
	}
	for _, n := range c.Nodes {
		if err := host.CheckName(n.Name); err != nil {
			return c, err
		}
	}
	c.ID, c.Name = id, i.name
	return c, nil
}

// checkLost refuses to take nodes for lost that are heard of.
func checkLost(after time.Duration) error {
	if after < time.Second {
		return fault.Usage(fmt.Errorf("--lost-after %s: at least a second", after), "--lost-after 60s")
	}
	return nil
}

// controllerPort and agentPort are those that help and defaults name.
const (
	controllerPort = 7430
	agentPort      = 7431
)

// declare adds the nodes to those that there are, and has all of them in one partition.
func (i *initFlags) declare(have []job.Node) ([]job.Node, []job.Partition, error) {
	names, err := slurm.Expand(i.nodes)
	if err != nil {
		return nil, nil, fault.Usage(fmt.Errorf("--nodes: %w", err), "--nodes gpu[01-16]")
	}
	known := map[string]bool{}
	for _, n := range have {
		known[n.Name] = true
	}
	for _, name := range names {
		if err := host.CheckName(name); err != nil {
			return nil, nil, err
		}
		if !known[name] {
			// What it has is not known before it joins.
			have = append(have, job.Node{Name: name, Sockets: 1, CoresPerSocket: 1, ThreadsPerCore: 1, CPUs: 1, Memory: 1})
		}
		known[name] = true
	}
	part := job.Partition{Name: "main", Default: true, Priority: 1, Tier: 1}
	for _, n := range have {
		part.Nodes = append(part.Nodes, n.Name)
	}
	return have, []job.Partition{part}, nil
}
