package main

import (
	"bufio"
	"context"
	"os"
	"strings"

	"github.com/gangway-hpc/gangway/internal/cli"
	"github.com/gangway-hpc/gangway/internal/slurm"
	"github.com/gangway-hpc/gangway/internal/slurm/listing"
)

// scontrol is Slurm's command of that name.
func scontrol(ctx context.Context, env *cli.Env, args []string) error {
	c, err := listing.ParseControl(args)
	if err != nil {
		return err
	}
	switch c.Verb {
	case "version":
		return slurmVersion(env)
	case "help":
		return listing.ControlUsage(env.Stdout)
	case "hostnames", "hostlist", "hostlistsorted":
		return hostlist(env, c)
	}
	return nil
}

// hostlist is "scontrol show hostnames" and its like, which ask nobody.
func hostlist(env *cli.Env, c *listing.Control) error {
	list := strings.Join(c.Args, ",")
	if list == "" {
		list = env.Getenv("SLURM_JOB_NODELIST")
	}
	if list == "" {
		list = env.Getenv("SLURM_NODELIST")
	}
	if list == "" {
		return &slurm.Refusal{Lines: []string{"error: host list is empty"}, Code: 1}
	}
	if strings.HasPrefix(list, "/") {
		b, err := os.ReadFile(list)
		if err != nil {
			return &slurm.Refusal{Lines: []string{"error: " + err.Error()}, Code: 1}
		}
		list = strings.Join(strings.Fields(string(b)), ",")
	}
	names, err := slurm.Expand(list)
	if err != nil {
		return &slurm.Refusal{Lines: []string{"error: " + err.Error()}, Code: 1}
	}
	w := bufio.NewWriter(env.Stdout)
	switch c.Verb {
	case "hostlistsorted":
		slurm.SortHosts(names)
		fallthrough
	case "hostlist":
		_, _ = w.WriteString(slurm.Fold(names) + "\n")
	default:
		for _, name := range names {
			_, _ = w.WriteString(name + "\n")
		}
	}
	return w.Flush()
}
