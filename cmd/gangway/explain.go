package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/gangway-hpc/gangway/internal/api"
	"github.com/gangway-hpc/gangway/internal/cli"
	"github.com/gangway-hpc/gangway/internal/fault"
	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/internal/slurm"
	"github.com/gangway-hpc/gangway/internal/slurm/listing"
)

// at is a moment as package time has it.
func at(t job.Time) time.Time { return time.UnixMilli(int64(t)) }

// explained is what "gangway explain" prints.
type explained struct {
	api.Explanation
	name string // of the job, as it was asked for
	now  job.Time
}

// Text implements cli.Result.
func (x explained) Text(w io.Writer) error {
	fmt.Fprintf(w, "job %s waits (%s): %s\n", x.name, x.Reason, x.Explanation.Text)
	if x.AheadCount > 0 {
		fmt.Fprintf(w, "%s ahead of it: %s\n", plural(x.AheadCount, "job"), ids(x.Ahead, x.AheadCount))
	}
	fmt.Fprintf(w, "it needs %s; it could ever run on %d, and start now on %d\n", plural(x.Nodes, "node"), x.Could, x.Fit)
	if word := expectedWord(x.Expected, x.now); word != "" {
		fmt.Fprintf(w, "expected to start: %s\n", word)
	}
	if x.Basis != "" {
		fmt.Fprintf(w, "because: %s\n", x.Basis)
	}
	if len(x.Constraints) > 0 {
		fmt.Fprintln(w, "\nwhat stands in its way:")
		t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
		fmt.Fprintln(t, "CONSTRAINT\tRULES OUT\tLEAVES\tWHAT")
		for _, c := range x.Constraints {
			fmt.Fprintf(t, "%s\t%d\t%d\t%s\n", c.Name, c.Nodes, c.Left, c.Text)
		}
		if err := t.Flush(); err != nil {
			return err
		}
	}
	if len(x.Relaxations) > 0 {
		fmt.Fprintln(w, "\nwhat would start it sooner:")
		t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
		said := map[string]bool{}
		for _, r := range x.Relaxations {
			if !said[r.Text] {
				word := expectedWord(r.Start, x.now)
				if r.Latest && r.Start > x.now {
					word += ", at the latest"
				}
				fmt.Fprintf(t, "  %s\t%s\n", r.Text, word)
			}
			said[r.Text] = true
		}
		return t.Flush()
	}
	return nil
}

// ids lists jobs, and that there are more.
func ids(list []job.ID, count int) string {
	var all []string
	for _, id := range list {
		all = append(all, id.String())
	}
	if count > len(list) {
		all = append(all, "...")
	}
	return strings.Join(all, ", ")
}

func explainVerb(env *cli.Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "explain JOB",
		Short: "say why a job waits, when it will start, and what would start it sooner",
		Long: `Say why a job waits: everything that stands in its way, with how many nodes each thing
rules out; which jobs come first; when it is expected to start, and what that rests on;
and the smallest changes that would start it sooner, each of which was tried.`,
		Example:    "gangway explain 12\ngangway explain --json 12_3",
		SuggestFor: []string{"why"},
	}
	out := cli.NewReporter(env, cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return withCluster(env, func(c *api.Client) error {
			x, err := c.Explain(cmd.Context(), args[0])
			if err == nil {
				return out.Print(explained{x, args[0], nowOf(env)})
			}
			if j, failed := c.JobText(cmd.Context(), args[0]); failed == nil && j.State != job.Pending {
				return &fault.Error{What: fmt.Errorf("job %s does not wait: it is %s", args[0], stateWord(&j)), Hint: "gangway show job " + args[0]}
			}
			return err
		})
	}
	return cmd
}

// planned is what "gangway plan" prints.
type planned struct {
	Changes []api.PlanChange `json:"changes"`
	Frees   []api.Freed      `json:"frees,omitempty"`
	Now     job.Time         `json:"now"`
	names   map[job.ID]string
	ids     map[job.ID]string // as people see them
}

// Text implements cli.Result.
func (p planned) Text(w io.Writer) error {
	for i := range p.Frees {
		f := &p.Frees[i]
		fmt.Fprintf(w, "job %s gives back %s", cmp.Or(p.ids[f.ID], f.ID.String()), freedText(f.Shares))
		if f.Until != job.Never {
			fmt.Fprintf(w, ", which it may have until %s", clock(f.Until, p.Now))
		}
		fmt.Fprintln(w)
	}
	if len(p.Changes) == 0 {
		_, err := fmt.Fprintln(w, "no job would start at another time")
		return err
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "JOB\tNAME\tSTARTS\tWOULD START\tCHANGE")
	for _, c := range p.Changes {
		id, name := cmp.Or(p.ids[c.ID], c.ID.String()), p.names[c.ID]
		if c.ID == 0 {
			id, name = "-", "what you asked about"
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\n", id, shorten(name, 24), planWord(c.Was, p.Now), planWord(c.Now, p.Now), changeWord(&c))
	}
	return t.Flush()
}

// freedText is what a job has: "2 nodes (n[1-2]): 16 CPUs, 8 gpu:h100".
func freedText(shares []job.NodeShare) string {
	var names, kinds []string
	cpus, memory, devices := 0, int64(0), map[string]int64{}
	for i := range shares {
		names = append(names, shares[i].Node)
		cpus, memory = cpus+shares[i].CPUs, memory+shares[i].Memory
		for _, d := range shares[i].Devices {
			kind := strings.TrimSuffix(d.Name+":"+d.Type, ":")
			if _, ok := devices[kind]; !ok {
				kinds = append(kinds, kind)
			}
			devices[kind] += d.Count
		}
	}
	parts := []string{plural(cpus, "CPU")}
	if memory > 0 {
		parts = append(parts, fmt.Sprintf("%d MiB", memory))
	}
	for _, kind := range kinds {
		parts = append(parts, fmt.Sprintf("%d %s", devices[kind], kind))
	}
	return fmt.Sprintf("%s (%s): %s", plural(len(names), "node"), slurm.Fold(names), strings.Join(parts, ", "))
}

func planWord(t, now job.Time) string {
	switch {
	case t == 0:
		return "-"
	case t == job.Never:
		return "never"
	case t <= now:
		return "now"
	case t > now.Add(foreseen):
		return "not within 300 days"
	}
	return clock(t, now)
}

func changeWord(c *api.PlanChange) string {
	switch {
	case c.Was == 0:
		return "-"
	case c.Now == job.Never:
		return "could not run"
	case c.Was == job.Never:
		return "could run"
	case c.Now > c.Was:
		return shortSpan(c.Now.Sub(c.Was)) + " later"
	}
	return shortSpan(c.Was.Sub(c.Now)) + " sooner"
}

func planVerb(env *cli.Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "plan [SCRIPT]",
		Short: "say what a job, a drain or a cancellation would change",
		Long: `Say which jobs would start at another time if a job was submitted (SCRIPT, or options of
sbatch), nodes were drained, or jobs cancelled. Nothing is changed: it is tried on a copy.`,
		Example:    "gangway plan --nodes 4 --gres gpu:8 --time 2:00:00\ngangway plan --drain n[1-2]\ngangway plan --cancel 12",
		SuggestFor: []string{"whatif", "dry-run"},
	}
	out := cli.NewReporter(env, cmd)
	var drain, cancel []string
	cmd.Flags().StringArrayVar(&drain, "drain", nil, "if these `nodes` were drained")
	cmd.Flags().StringArrayVar(&cancel, "cancel", nil, "if these `jobs` were cancelled")
	options := addChoices(env, cmd, slurm.Sbatch, "test-only")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		r, err := planRequest(env, options, drain, cancel, args)
		if err != nil {
			return err
		}
		return withCluster(env, func(c *api.Client) error {
			page, err := c.Plan(cmd.Context(), r)
			if err != nil {
				return err
			}
			jobs, now, err := listJobs(cmd.Context(), env, c, &api.Query{Tasks: true})
			if err != nil {
				return err
			}
			p := planned{Changes: notNil(page.Items), Frees: page.Frees, Now: cmp.Or(page.Now, now), names: map[job.ID]string{}, ids: map[job.ID]string{}}
			v := newView(env)
			for i := range jobs {
				j := &jobs[i]
				p.names[j.ID], p.ids[j.ID] = j.Name, v.JobID(j)
			}
			slices.SortStableFunc(p.Changes, func(a, b api.PlanChange) int { return cmp.Compare(a.ID, b.ID) })
			return out.Print(p)
		})
	}
	return cmd
}

func planRequest(env *cli.Env, options *choices, drain, cancel, args []string) (r *api.PlanRequest, err error) {
	r = &api.PlanRequest{}
	if r.Drain, err = expandAll(drain); err != nil {
		return nil, err
	}
	for _, text := range cancel {
		list, err := listing.ParseJobIDs(text)
		if err != nil {
			return nil, fault.Usage(fmt.Errorf("%q is not a job", text), "gangway plan --cancel 12")
		}
		for _, id := range list {
			r.Cancel = append(r.Cancel, id.Job)
		}
	}
	if len(args) == 0 && len(options.all) == 0 {
		if r.Drain == nil && r.Cancel == nil {
			return nil, fault.Usage(errors.New("plan: nothing to try"), "gangway plan SCRIPT, --drain NODES or --cancel JOB")
		}
		return r, nil
	}
	script := func(o *slurm.Options) ([]byte, error) {
		if len(o.Operands) == 0 {
			return []byte("#!/bin/sh\n"), nil
		}
		b, _, err := readScript(env, o.Operands)
		return b, err
	}
	o, err := options.parse(env, args, script)
	if err != nil {
		return nil, err
	}
	r.Submit = &o.Job
	return r, nil
}
