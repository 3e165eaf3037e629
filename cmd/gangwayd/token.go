package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/gangway-hpc/gangway/internal/cli"
	"github.com/gangway-hpc/gangway/internal/fault"
	"github.com/gangway-hpc/gangway/internal/host"
)

// holderFlags name a host and what it is.
type holderFlags struct{ dir, node, client string }

func (h *holderFlags) add(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&h.dir, "state-dir", "", "the cluster's state directory")
	f.StringVar(&h.node, "node", "", "name of a node")
	f.StringVar(&h.client, "client", "", "name of a host that runs no jobs")
}

// holder is who is meant; ok: somebody is.
func (h *holderFlags) holder() (role host.Role, name string, ok bool) {
	if h.client != "" {
		return host.Client, h.client, h.node == ""
	}
	return host.Node, h.node, h.node != ""
}

// authority is that of the state directory.
func (h *holderFlags) authority() (*host.Authority, error) { return openAuthority(h.dir) }

func openAuthority(dir string) (*host.Authority, error) {
	if dir == "" {
		return nil, fault.Usage(errors.New("the state directory is to be named"), "--state-dir DIR")
	}
	a, err := host.Open(filepath.Join(dir, identityDir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, &fault.Error{What: fmt.Errorf("open authority of the cluster: %w", err), Hint: "make one: gangwayd init --state-dir " + dir + " --name NAME --nodes NODES"}
	}
	return a, err
}

func tokenVerb(env *cli.Env) *cobra.Command {
	h := &holderFlags{}
	cmd := &cobra.Command{
		Use:   "token",
		Short: "make a token by which one host joins the cluster",
		Long: `Make a token by which one host joins the cluster, once and soon: for a node, which runs
jobs, or for a client, whose users give commands.

Until it is used, whoever has the token can join in that host's place: hand it over as you
would a password. It says by which authority the host is to know the controller, so that
nobody else gets to see it.

With --list it says instead which certificates of hosts count, and which tokens nobody has
used yet. What was handed to the wrong one is taken back by gangwayd revoke.`,
		Example: `gangwayd token --state-dir DIR --node gpu01
gangwayd token --state-dir DIR --client login1 --life 10m
gangwayd token --state-dir DIR --list`,
	}
	h.add(cmd)
	f := cmd.Flags()
	life := f.Duration("life", time.Hour, "how long it counts, at most 30 days")
	replace := f.Bool("replace", false, "let it take the name of a host that is gone, whose certificate is revoked then")
	list := f.Bool("list", false, "list the certificates and tokens that count")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		a, err := h.authority()
		if err != nil {
			return err
		}
		role, name, ok := h.holder()
		switch {
		case *list && (h.node != "" || h.client != ""):
			return fault.Usage(errors.New("token: --list lists all hosts"), "leave --node and --client out")
		case *list:
			return listHeld(env, a)
		case !ok:
			return fault.Usage(errors.New("token: one node or one client is to be named"), cmd.Example)
		}
		if role == host.Node {
			if err := hasNode(h.dir, name); err != nil {
				return err
			}
		}
		text, err := a.NewToken(context.WithoutCancel(cmd.Context()), role, name, *life, *replace, env.Now())
		if err == nil {
			fmt.Fprintln(env.Stdout, text)
		}
		return err
	}
	return cmd
}

// hasNode refuses a node that the cluster has not: its sessions would be.
func hasNode(dir, name string) error {
	cluster, err := readCluster(dir)
	if err != nil {
		return err
	}
	names := make([]string, len(cluster.Nodes))
	for i := range cluster.Nodes {
		names[i] = cluster.Nodes[i].Name
	}
	if slices.Contains(names, name) {
		return nil
	}
	return &fault.Error{
		What: fmt.Errorf("make token: cluster %s has no node %s", cluster.Name, name),
		Hint: "add it: gangwayd init --state-dir " + dir + " --name " + cluster.Name + " --nodes " + name + ", then start the controller again",
	}
}

func listHeld(env *cli.Env, a *host.Authority) error {
	all, err := a.List(env.Now())
	if err != nil {
		return err
	}
	for _, c := range all {
		kind := "certificate"
		if c.Token {
			kind = "token"
		}
		fmt.Fprintf(env.Stdout, "%-10s %-20s %-11s %s  %s\n", c.Role, c.Name, kind, c.Serial, c.Until.UTC().Format(time.RFC3339))
	}
	return nil
}

func revokeVerb(env *cli.Env) *cobra.Command {
	h := &holderFlags{}
	cmd := &cobra.Command{
		Use:   "revoke",
		Short: "take back what lets a host be of the cluster",
		Long: `Take back what lets a host be of the cluster: all of its certificates and tokens, used or
not, or the one certificate with a serial number, and the token that it joined by. Its connections end within a
second, if the controller runs; steps that run on the node go on until the node is lost.

The host joins again with another token.`,
		Example: `gangwayd revoke --state-dir DIR --node gpu01 --reason stolen
gangwayd revoke --state-dir DIR --serial 4f0c...`,
	}
	h.add(cmd)
	serial := cmd.Flags().String("serial", "", "serial number of one certificate, as token --list has it")
	reason := cmd.Flags().String("reason", "", "why, for those who ask")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		role, name, ok := h.holder()
		if ok == (*serial != "") || *serial != "" && (h.node != "" || h.client != "") {
			return fault.Usage(errors.New("revoke: one node, one client or one serial number is to be named"), cmd.Example)
		}
		a, err := h.authority()
		if err != nil {
			return err
		}
		n, tokens, err := a.Revoke(context.WithoutCancel(cmd.Context()), role, name, *serial, *reason, env.Now())
		if err == nil {
			fmt.Fprintf(env.Stdout, "revoked %d certificates and %d tokens\n", n, tokens)
		}
		return err
	}
	return cmd
}
