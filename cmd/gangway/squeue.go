package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/user"
	"runtime/debug"
	"slices"
	"strconv"
	"time"

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
	if done, err := about(env, q.Version, q.Help || q.Usage, listing.QueueUsage); done {
		return err
	}
	warn(env, "squeue", q.Warnings)
	client, err := contact(env)
	if err != nil {
		return loading("slurm_load_jobs error", err)
	}
	defer client.Close()
	if err := titled(ctx, env, client, q.Clusters, q.NoHeader); err != nil {
		return err
	}
	if err := knownNodes(ctx, client, q.Query.Nodes); err != nil {
		return err
	}
	v := newView(env)
	v.NoConvert = q.NoConvert
	return again(ctx, env, q.Iterate, func() error {
		if q.Steps {
			return squeueSteps(ctx, env, client, q, v)
		}
		return squeueJobs(ctx, env, client, q, v)
	})
}

// again makes a report every so many seconds, until it fails; with 0, once.
func again(ctx context.Context, env *cli.Env, every int, report func() error) error {
	for {
		err := report()
		if err != nil || every == 0 {
			return err
		}
		if _, err := fmt.Fprintln(env.Stdout); err != nil {
			return err
		}
		if out, ok := env.Stdout.(interface{ Flush() error }); ok {
			if err := out.Flush(); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Duration(every) * time.Second):
		}
	}
}

func squeueJobs(ctx context.Context, env *cli.Env, client *api.Client, q *listing.Queue, v *listing.View) error {
	jobs, now, err := listJobs(ctx, env, client, &q.Query)
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

// knownNodes is Slurm's refusal of nodes that there are not.
func knownNodes(ctx context.Context, client *api.Client, names []string) error {
	if len(names) == 0 {
		return nil
	}
	nodes, err := client.Nodes(ctx)
	if err != nil {
		return loading("slurm_load_node error", err)
	}
	for _, name := range names {
		if !slices.ContainsFunc(nodes.Items, func(n api.Node) bool { return n.Name == name }) {
			return &slurm.Refusal{Code: 1, Lines: []string{"error: Invalid node name " + name}}
		}
	}
	return nil
}

func squeueSteps(ctx context.Context, env *cli.Env, client *api.Client, q *listing.Queue, v *listing.View) error {
	q.Query.Tasks = true
	jobs, _, err := listJobs(ctx, env, client, &q.Query)
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

// allPages asks for all pages of what q chooses.
func allPages[T any](ctx context.Context, ask func(context.Context, *api.Query) (api.Page[T], error), q *api.Query) ([]T, job.Time, error) {
	var all []T
	for page := *q; ; {
		p, err := ask(ctx, &page)
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

// listJobs asks for all jobs that q chooses. One page of them is kept to the end, so that
// collecting garbage meanwhile would only cost time: a third of that of "squeue".
func listJobs(ctx context.Context, env *cli.Env, client *api.Client, q *api.Query) ([]api.Job, job.Time, error) {
	if env.Getenv("GOGC") == "" {
		debug.SetGCPercent(pageHeap / 4 * 100) // the runtime starts at 4 MiB for 100 percent
	}
	return allPages(ctx, func(ctx context.Context, q *api.Query) (api.Page[api.Job], error) {
		p, err := client.Jobs(ctx, q)
		if p.Next != "" && env.Getenv("GOGC") == "" {
			debug.SetGCPercent(100) // nobody knows how many more there are
		}
		return p, err
	}, q)
}

// pageHeap is what a page of jobs needs with all that is made of it, MiB.
const pageHeap = 64

// sameCluster is Slurm's refusal of clusters that are not the one that there is.
func sameCluster(ctx context.Context, client *api.Client, asked []string) (name string, err error) {
	if asked == nil {
		return "", nil
	}
	ping, err := client.Ping(ctx)
	if err != nil {
		return "", loading("slurm_load_jobs error", err)
	}
	for _, other := range asked {
		if other != ping.Cluster && other != "all" {
			return "", &slurm.Refusal{Code: 1, Lines: []string{
				"error: '" + other + "' can't be reached now, or it is an invalid entry for --cluster.", "error: the cluster here is " + ping.Cluster,
			}}
		}
	}
	return ping.Cluster, nil
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

// Group implements listing.People.
func (hostPeople) Group(text string) (gid uint32, ok bool) {
	g, err := user.LookupGroup(text)
	if err == nil {
		text = g.Gid
	}
	n, err := strconv.ParseUint(text, 10, 32)
	return uint32(n), err == nil
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
		if bad, ok := errors.AsType[*listing.FormatError](err); ok && bad.Kind == "node" {
			_, _ = fmt.Fprintln(env.Stderr, bad) // as sinfo does
			continue
		}
		talk(env, name, "error: %v", err)
	}
}

// titled writes the line by which reports of chosen clusters begin.
func titled(ctx context.Context, env *cli.Env, client *api.Client, asked []string, noHeader bool) error {
	name, err := sameCluster(ctx, client, asked)
	if err == nil && name != "" && !noHeader {
		_, err = fmt.Fprintln(env.Stdout, "CLUSTER: "+name)
	}
	return err
}

// about does what of a command line needs no controller: --version and --help.
func about(env *cli.Env, version, help bool, usage func(io.Writer) error) (done bool, err error) {
	switch {
	case version:
		return true, slurmVersion(env)
	case help:
		return true, usage(env.Stdout)
	}
	return false, nil
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
	if done, err := about(env, q.Version, q.Help || q.Usage, listing.InfoUsage); done {
		return err
	}
	warn(env, "sinfo", q.Warnings)
	client, err := contact(env)
	if err != nil {
		return loading("slurm_load_partitions", err)
	}
	defer client.Close()
	if err := titled(ctx, env, client, q.Clusters, q.NoHeader); err != nil {
		return err
	}
	if q.Reservations {
		_, err := fmt.Fprintln(env.Stdout, "No reservations in the system")
		return err
	}
	return again(ctx, env, q.Iterate, func() error {
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
	})
}

// sacct is Slurm's command of that name.
func sacct(ctx context.Context, env *cli.Env, args []string) error {
	q, err := listing.ParseAcct(args, env.Getenv, hostPeople{}, os.Getuid() == 0, env.Now())
	if err != nil {
		return err
	}
	if q.HelpFormat {
		return q.Fields(env.Stdout)
	}
	if done, err := about(env, q.Version, q.Help || q.Usage, listing.AcctUsage); done {
		return err
	}
	client, err := contact(env)
	if err != nil {
		return loading("sacct: error: slurm_load_jobs error", err)
	}
	defer client.Close()
	if _, err := sameCluster(ctx, client, q.Clusters); err != nil {
		return err
	}
	past, now, err := allPages(ctx, client.History, &q.Query)
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
