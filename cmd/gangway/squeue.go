package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/user"
	"strconv"

	"github.com/gangway-hpc/gangway/internal/api"
	"github.com/gangway-hpc/gangway/internal/cli"
	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/internal/slurm"
	"github.com/gangway-hpc/gangway/internal/slurm/listing"
)

// squeue is Slurm's command of that name.
func squeue(ctx context.Context, env *cli.Env, args []string) error {
	q, err := listing.ParseQueue(args, env.Getenv, hostPeople{})
	if err != nil {
		return err
	}
	switch {
	case q.Version:
		return slurmVersion(env)
	case q.Help, q.Usage:
		return listing.QueueUsage(env.Stdout)
	}
	warn(env, "squeue", q.Warnings)
	client, err := contact(env)
	if err != nil {
		return loading("slurm_load_jobs error", err)
	}
	defer client.Close()
	v := newView(env)
	v.NoConvert = q.NoConvert
	if q.Steps {
		return squeueSteps(ctx, env, client, q, v)
	}
	jobs, now, err := allJobs(ctx, client, &q.Query)
	if err != nil {
		return loading("slurm_load_jobs error", err)
	}
	if len(jobs) == 0 && len(q.Query.IDs) == 1 {
		// One that there is not is an error, one that has ended is not shown.
		if _, err := client.Job(ctx, q.Query.IDs[0]); err != nil {
			return loading("slurm_load_jobs error", err)
		}
	}
	v.Now = now
	return q.Print(env.Stdout, v, q.Select(v, jobs))
}

func squeueSteps(ctx context.Context, env *cli.Env, client *api.Client, q *listing.Queue, v *listing.View) error {
	q.Query.Tasks = true
	jobs, _, err := allJobs(ctx, client, &q.Query)
	if err != nil {
		return loading("slurm_load_jobs error", err)
	}
	steps, err := client.RunningSteps(ctx, &q.Query)
	if err != nil {
		return loading("slurm_get_job_steps error", err)
	}
	v.Now = steps.Now
	return q.PrintSteps(env.Stdout, v, q.Join(steps.Items, jobs))
}

// allJobs asks for all pages.
func allJobs(ctx context.Context, client *api.Client, q *api.Query) ([]api.Job, job.Time, error) {
	var all []api.Job
	for page := *q; ; {
		p, err := client.Jobs(ctx, &page)
		if err != nil {
			return nil, 0, err
		}
		if all == nil {
			all = p.Items
		} else {
			all = append(all, p.Items...)
		}
		if page.After = p.Next; p.Next == "" {
			return all, p.Now, nil
		}
	}
}

// newView is how the caller sees things.
func newView(env *cli.Env) *listing.View {
	return listing.NewView(env.Getenv, nameOfUser, groupName)
}

// hostPeople are the users that the host knows.
type hostPeople struct{}

// Lookup implements listing.People.
func (hostPeople) Lookup(text string) string {
	u, err := user.Lookup(text)
	if err != nil {
		if u, err = user.LookupId(text); err != nil {
			return ""
		}
	}
	return u.Username
}

// Me implements listing.People.
func (hostPeople) Me() string { return nameOfUser(uint32(os.Getuid())) }

// nameOfUser is the name of a user, or else the number.
func nameOfUser(uid uint32) string {
	id := strconv.FormatUint(uint64(uid), 10)
	if u, err := user.LookupId(id); err == nil {
		return u.Username
	}
	return id
}

func groupName(gid uint32) string {
	id := strconv.FormatUint(uint64(gid), 10)
	if g, err := user.LookupGroupId(id); err == nil {
		return g.Name
	}
	return id
}

// loading makes the refusal of a question the sentence that Slurm's commands print, which
// programs look for.
func loading(what string, err error) error {
	var (
		away    *api.Unreachable
		refused *api.Error
	)
	sentence := ""
	switch {
	case errors.As(err, &away):
		why := "connect failure"
		if away.Timeout {
			why = "no answer"
		}
		return &slurm.Refusal{Plain: true, Code: 1, Lines: []string{
			what + ": Unable to contact slurm controller (" + why + ")", away.Error(),
		}}
	case errors.Is(err, api.ErrNoCluster):
		return &slurm.Refusal{Plain: true, Code: 1, Lines: []string{
			what + ": Unable to contact slurm controller (connect failure)", err.Error(),
		}}
	case errors.As(err, &refused):
		sentence = slurm.ErrorText(refused.Kind)
	}
	if sentence == "" {
		return err
	}
	return &slurm.Refusal{Plain: true, Code: 1, Lines: []string{what + ": " + sentence}}
}

// warn prints what a command goes on after.
func warn(env *cli.Env, name string, errs []error) {
	for _, err := range errs {
		talk(env, name, "error: %v", err)
	}
}

// slurmVersion is what programs read that ask for it.
func slurmVersion(env *cli.Env) error {
	_, err := fmt.Fprintln(env.Stdout, slurm.VersionText)
	return err
}

// sinfo is Slurm's command of that name.
func sinfo(ctx context.Context, env *cli.Env, args []string) error {
	q, err := listing.ParseInfo(args, env.Getenv)
	if err != nil {
		return err
	}
	switch {
	case q.Version:
		return slurmVersion(env)
	case q.Help, q.Usage:
		return listing.InfoUsage(env.Stdout)
	}
	warn(env, "sinfo", q.Warnings)
	client, err := contact(env)
	if err != nil {
		return loading("slurm_load_partitions", err)
	}
	defer client.Close()
	partitions, err := client.Partitions(ctx)
	if err != nil {
		return loading("slurm_load_partitions", err)
	}
	nodes, err := client.Nodes(ctx)
	if err != nil {
		return loading("slurm_load_node", err)
	}
	v := newView(env)
	v.NoConvert, v.Now = q.NoConvert, nodes.Now
	return q.Print(env.Stdout, v, q.Rows(v, nodes.Items, partitions.Items))
}

// sacct is Slurm's command of that name.
func sacct(ctx context.Context, env *cli.Env, args []string) error {
	q, err := listing.ParseAcct(args, env.Getenv, hostPeople{}, os.Getuid() == 0, env.Now())
	if err != nil {
		return err
	}
	switch {
	case q.Version:
		return slurmVersion(env)
	case q.HelpFormat:
		return q.Fields(env.Stdout)
	case q.Help, q.Usage:
		return listing.AcctUsage(env.Stdout)
	}
	client, err := contact(env)
	if err != nil {
		return loading("sacct: error: slurm_load_jobs error", err)
	}
	defer client.Close()
	past, now, err := allHistory(ctx, client, &q.Query)
	if err != nil {
		return loading("sacct: error: slurm_load_jobs error", err)
	}
	if q.Script {
		return sacctScripts(ctx, env.Stdout, client, past)
	}
	v := newView(env)
	v.NoConvert, v.Unit, v.Now = q.NoConvert, q.Unit, now
	ping, err := client.Ping(ctx)
	v.Cluster = ping.Cluster
	if err != nil {
		return err
	}
	return q.Print(env.Stdout, v, past)
}

// allHistory asks for all pages.
func allHistory(ctx context.Context, client *api.Client, q *api.Query) ([]api.Past, job.Time, error) {
	var all []api.Past
	for page := *q; ; {
		p, err := client.History(ctx, &page)
		if err != nil {
			return nil, 0, err
		}
		all = append(all, p.Items...)
		if page.After = p.Next; p.Next == "" {
			return all, p.Now, nil
		}
	}
}

// sacctScripts is "sacct -B".
func sacctScripts(ctx context.Context, w io.Writer, client *api.Client, past []api.Past) error {
	for i := range past {
		id := past[i].Job.ID.String()
		text, err := client.Script(ctx, id)
		if err != nil {
			return err
		}
		if _, err := fmt.Fprintf(w, "Batch Script for %s\n%s\n%s\n", id, dashes, text); err != nil {
			return err
		}
	}
	return nil
}

const dashes = "--------------------------------------------------------------------------------"
