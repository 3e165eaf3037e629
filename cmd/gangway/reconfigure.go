package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gangway-hpc/gangway/internal/api"
	"github.com/gangway-hpc/gangway/internal/cli"
	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/internal/slurm"
)

func reconfigureVerb(env *cli.Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "reconfigure",
		Short: "read the cluster's configuration again",
		Long: `Have the controller read the cluster's configuration again, and say what that changes:
slurm.conf and the files beside it, where the cluster was started with --slurm-conf, else
the state directory's cluster.json, to which gangwayd init adds nodes.

Jobs go on. A node with jobs that leaves, or has something else now, drains first, and a
partition with jobs that leaves takes no more; they are changed when their jobs have
ended, also if the controller is started again meanwhile. What cannot be read or taken
changes nothing at all. scontrol reconfigure and SIGHUP to the controller do the same.

With --dry-run nothing is changed.`,
		Example:    "gangway reconfigure --dry-run\ngangway reconfigure",
		Args:       cobra.NoArgs,
		SuggestFor: []string{"reload", "config", "reconfig"},
	}
	out := cli.NewReporter(env, cmd)
	var dry bool
	cmd.Flags().BoolVar(&dry, "dry-run", false, "only say what would be changed")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return withCluster(env, func(c *api.Client) error {
			r, err := c.Reconfigure(cmd.Context(), &api.Reconfigure{DryRun: dry})
			if err != nil {
				return err
			}
			for _, w := range r.Warnings {
				fmt.Fprintln(env.Stderr, "gangway: warning: "+w)
			}
			return out.Print(reconfigured{Changes: notNil(r.Changes), Warnings: notNil(r.Warnings), Starts: notNil(r.Starts), DryRun: dry})
		})
	}
	return cmd
}

// reconfigured is what "gangway reconfigure" prints.
type reconfigured struct {
	Changes  []api.ConfigChange `json:"changes"`
	Warnings []string           `json:"warnings"`
	Starts   []api.PlanChange   `json:"starts"`
	DryRun   bool               `json:"dry_run"`
}

// Text implements cli.Result: a line for each change, what is changed alike together.
func (r reconfigured) Text(w io.Writer) error {
	type group struct {
		names []string
		kind  string
		text  string
	}
	var groups []group
	for i := range r.Changes {
		c := &r.Changes[i]
		text := r.sentence(c)
		at := slices.IndexFunc(groups, func(g group) bool { return g.kind == c.Kind && g.text == text })
		if at < 0 || c.Kind != api.KindNode {
			at = len(groups)
			groups = append(groups, group{kind: c.Kind, text: text})
		}
		if c.Name != "" {
			groups[at].names = append(groups[at].names, c.Name)
		}
	}
	for _, g := range groups {
		subject := g.kind
		if g.names != nil {
			subject += " " + slurm.Fold(g.names)
		}
		if _, err := fmt.Fprintf(w, "%s %s\n", subject, g.text); err != nil {
			return err
		}
	}
	if len(groups) == 0 {
		_, err := fmt.Fprintln(w, "nothing differs: the cluster is as it is configured")
		return err
	}
	var later, never []job.ID
	for _, s := range r.Starts {
		if s.Now == job.Never {
			never = append(never, s.ID)
		} else {
			later = append(later, s.ID)
		}
	}
	if never != nil {
		fmt.Fprintf(w, "would not start any more as things are: %s; gangway explain says what they need\n", jobList(never))
	}
	if later != nil {
		fmt.Fprintf(w, "would start at another time: %s\n", jobList(later))
	}
	if r.DryRun {
		_, err := fmt.Fprintln(w, "nothing was changed: this was a dry run")
		return err
	}
	return nil
}

// sentence says what is changed, and when.
func (r *reconfigured) sentence(c *api.ConfigChange) string {
	text := c.What
	var fields []string
	for _, f := range c.Fields {
		if c.What == api.WhatAdded {
			fields = append(fields, f.Name+"="+f.Now)
		} else {
			fields = append(fields, f.Name+" "+orNone(f.Was)+" -> "+orNone(f.Now))
		}
	}
	if fields != nil {
		text += ": " + strings.Join(fields, ", ")
	}
	switch {
	case c.Fate == api.FateDrains && c.Kind == api.KindNode:
		text += "; it drains first, " + jobList(c.Jobs) + " on it"
	case c.Fate == api.FateDrains:
		text += "; it takes no new jobs, and goes when those in it have ended: " + jobList(c.Jobs)
	case c.Fate == api.FateRestart:
		text += "; it counts when the cluster is started again"
	case c.What == api.WhatStays:
		text += ": it takes jobs again"
	}
	return text
}

func orNone(text string) string {
	if text == "" || text == "null" {
		return "none"
	}
	return text
}

// jobList names jobs, not more than a few.
func jobList(all []job.ID) string {
	word := "jobs "
	if len(all) == 1 {
		word = "job "
	}
	return word + ids(all[:min(len(all), 10)], len(all))
}

// reconfigure is scontrol's: it says nothing where all is well.
func (s *controlled) reconfigure(ctx context.Context) error {
	r, err := s.client.Reconfigure(ctx, &api.Reconfigure{})
	if err != nil {
		return loading("slurm_reconfigure error", err)
	}
	if !s.Quiet {
		for _, w := range r.Warnings {
			fmt.Fprintln(s.env.Stderr, "scontrol: warning: "+w)
		}
	}
	return nil
}
