package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"github.com/gangway-hpc/gangway/internal/fault"
	"github.com/gangway-hpc/gangway/internal/fsx"
	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/internal/slurm"
	"github.com/gangway-hpc/gangway/sched/server"
)

// declaration is the cluster.json of a state directory, and what that was made of.
type declaration struct {
	dir  string
	tell io.Writer // a line on it says that the file has changed; nil: nobody is told
}

func (d declaration) configuration() *server.Configuration {
	return &server.Configuration{Read: d.read, Keep: d.keep, Changed: d.changed}
}

// read reads Slurm's configuration again, where the cluster is made of one; else the file,
// to which "gangwayd init" may have added nodes. The cluster stays the same one.
func (d declaration) read(_ context.Context, was *job.Cluster) (*job.Cluster, []string, error) {
	c, err := readCluster(d.dir)
	if err != nil {
		return nil, nil, err
	}
	if c.Leaving = nil; c.SlurmConf == "" {
		return &c, nil, nil
	}
	conf, warnings, err := fromSlurm(c.SlurmConf)
	if err != nil {
		return nil, nil, err
	}
	if more := len(conf.Nodes) - len(was.Nodes); more > 0 && !hasHosts(d.dir) { // the others are there
		if err := fits(more, rooms()); err != nil {
			return nil, nil, err
		}
	}
	if conf.Name != "" && conf.Name != was.Name {
		warnings = append(warnings, fmt.Sprintf("ClusterName=%s: the cluster stays %s, by which its daemons and commands know it; with the next start: gangway up --name %s", conf.Name, was.Name, conf.Name))
	}
	conf.ID, conf.Name = was.ID, was.Name
	conf.SuspectAfter, conf.LostAfter = c.SuspectAfter, c.LostAfter
	return &conf, warnings, nil
}

func (d declaration) keep(c *job.Cluster) error { return writeCluster(context.Background(), d.dir, c) }

func (d declaration) changed() {
	if d.tell != nil {
		_, _ = fmt.Fprintln(d.tell, "changed") // who is not there any more need not know
	}
}

// writeCluster replaces the cluster.json of a state directory.
func writeCluster(ctx context.Context, dir string, c *job.Cluster) error {
	return fsx.WriteFile(ctx, filepath.Join(dir, clusterFile), fsx.Options{Mode: 0o600}, func(f *os.File) error {
		e := json.NewEncoder(f)
		e.SetIndent("", "  ")
		return e.Encode(c)
	})
}

// fromSlurm is the cluster of Slurm's configuration, and what is to be said about it.
func fromSlurm(dir string) (job.Cluster, []string, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return job.Cluster{}, nil, err
	}
	conf, err := slurm.Load(dir)
	if err != nil {
		return job.Cluster{}, nil, err
	}
	var warnings []string
	for _, w := range conf.Warnings {
		warnings = append(warnings, w.String())
	}
	if conf.More > 0 {
		warnings = append(warnings, fmt.Sprintf("%d more settings cannot do what was meant, or are otherwise than in Slurm; see gangway slurm lint %s", conf.More, dir))
	}
	c := job.Cluster{Name: conf.Name, Declared: true, Partitions: conf.Partitions, Network: conf.Network, Config: conf.Config, Programs: conf.Programs, SlurmConf: dir, TreeWidth: conf.TreeWidth}
	for _, n := range conf.Nodes {
		if n.State&job.NodeFuture != 0 {
			continue
		}
		n.Addr = "127.0.0.1"
		c.Nodes = append(c.Nodes, n)
	}
	if len(c.Nodes) == 0 {
		return c, warnings, &fault.Error{
			What: fmt.Errorf("read Slurm's configuration in %s: it has no nodes", dir),
			Hint: "add a line: NodeName=n[1-4] CPUs=8 RealMemory=16000",
		}
	}
	return c, warnings, nil
}

// agentsOf are the nodes that have an agent: those that are declared, and those that leave.
func agentsOf(c *job.Cluster) []job.Node { return slices.Concat(c.Nodes, c.Leaving) }
