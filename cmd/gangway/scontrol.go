package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/gangway-hpc/gangway/internal/api"
	"github.com/gangway-hpc/gangway/internal/cli"
	"github.com/gangway-hpc/gangway/internal/fault"
	"github.com/gangway-hpc/gangway/internal/job"
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
	case "nothing":
		return nil
	case "version":
		return slurmVersion(env)
	case "help":
		return listing.ControlUsage(env.Stdout)
	case "hostnames", "hostlist", "hostlistsorted":
		return hostlist(env, c)
	}
	s := &controlled{env: env, Control: c}
	work := map[string]func(context.Context) error{
		"jobs": s.showJobs, "nodes": s.showNodes, "partitions": s.showPartitions, "steps": s.showSteps, "config": s.showConfig,
		"hold": s.change, "holdu": s.change, "uhold": s.change, "release": s.change, "requeue": s.change, "requeuehold": s.change,
		"licenses": s.showLicenses, "reservations": s.showReservations, "topology": s.showTopology, "aliases": s.showAliases,
		"update": s.update, "wait_job": s.waitJob, "ping": s.ping, "write": s.write, "listpids": s.listPIDs, "reconfigure": s.reconfigure,
	}[c.Verb]
	if work == nil {
		return &slurm.Refusal{Lines: []string{"error: scontrol " + c.Verb + " is not supported by Gangway"}, Code: 1}
	}
	if s.client, err = contact(env); err != nil {
		return loading("slurm_load_jobs error", err)
	}
	defer s.client.Close()
	if _, err := sameCluster(ctx, s.client, c.Clusters); err != nil {
		return err
	}
	s.view = newView(env)
	return s.said(work(ctx))
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

// controlled is scontrol at work.
type controlled struct {
	*listing.Control
	env    *cli.Env
	client *api.Client
	view   *listing.View
}

func (s *controlled) showJobs(ctx context.Context) error {
	if len(s.Args) == 0 {
		jobs, now, err := listJobs(ctx, s.env, s.client, &api.Query{Recent: true, Whole: true})
		if err != nil {
			return loading("slurm_load_jobs error", err)
		}
		if s.view.Now = now; len(jobs) == 0 && !s.Quiet {
			_, err := fmt.Fprintln(s.env.Stdout, "No jobs in the system")
			return err
		}
		return s.showAll(jobs)
	}
	for _, arg := range s.Args {
		ids, err := listing.ParseJobIDs(arg)
		if err != nil {
			return notJob("scontrol_print_job error: ", "")
		}
		for _, id := range ids {
			if err := s.showOne(ctx, id); err != nil {
				return err
			}
		}
	}
	return nil
}

// showOne shows a job, the tasks of an array that were named, or all of them.
func (s *controlled) showOne(ctx context.Context, id listing.JobIDs) error {
	s.view.Now = job.Time(s.env.Now().UnixMilli())
	for _, task := range id.Tasks {
		j, err := s.client.JobText(ctx, fmt.Sprintf("%d_%d", id.Job, task))
		if err != nil {
			return loading("slurm_load_jobs error", err)
		}
		if err := s.view.JobRecord(s.env.Stdout, &j, s.Control); err != nil {
			return err
		}
	}
	if id.Tasks != nil {
		return nil
	}
	jobs, now, err := listJobs(ctx, s.env, s.client, &api.Query{IDs: []job.ID{id.Job}, Recent: true, Whole: true})
	if err != nil || len(jobs) == 0 {
		if err == nil {
			err = &api.Error{What: "there is no job " + id.Job.String(), Kind: "INVALID_JOB_ID"}
		}
		return loading("slurm_load_jobs error", err)
	}
	s.view.Now = now
	return s.showAll(jobs)
}

func (s *controlled) showAll(jobs []api.Job) error {
	jobs = listing.Merge(jobs)
	for i := range jobs {
		if err := s.view.JobRecord(s.env.Stdout, &jobs[i], s.Control); err != nil {
			return err
		}
	}
	return nil
}

// missing is what Slurm says, on stdout, of what there is not.
func (s *controlled) missing(what, name string) error {
	if !s.Quiet {
		_, _ = fmt.Fprintf(s.env.Stdout, "%s %s not found\n", what, name)
	}
	return fault.Exit(1)
}

// notJob is what it says of what is no job's number.
func notJob(before, behind string) error {
	return &slurm.Refusal{Plain: true, Code: 1, Lines: []string{before + slurm.ErrorText("INVALID_JOB_ID") + behind}}
}

func (s *controlled) showNodes(ctx context.Context) error {
	page, err := s.client.Nodes(ctx)
	if err != nil {
		return loading("slurm_load_node error", err)
	}
	s.view.Now = page.Now
	listing.SortNodes(page.Items)
	byName := map[string]*api.Node{}
	var names []string
	for i := range page.Items {
		byName[page.Items[i].Name] = &page.Items[i]
		names = append(names, page.Items[i].Name)
	}
	if len(s.Args) > 0 {
		if names, err = slurm.Expand(strings.Join(s.Args, ",")); err != nil {
			return err
		}
	}
	var failed error
	for _, name := range names {
		n := byName[name]
		if n == nil {
			failed = errors.Join(failed, s.missing("Node", name))
			continue
		}
		if err := s.view.NodeRecord(s.env.Stdout, n, s.Control); err != nil {
			return err
		}
	}
	return failed
}

func (s *controlled) showPartitions(ctx context.Context) error {
	parts, err := s.client.Partitions(ctx)
	if err != nil {
		return loading("slurm_load_partitions error", err)
	}
	nodes, err := s.client.Nodes(ctx)
	if err != nil {
		return loading("slurm_load_node error", err)
	}
	found := false
	for i := range parts.Items {
		p := &parts.Items[i]
		if len(s.Args) > 0 && p.Name != s.Args[0] {
			continue
		}
		found = true
		if err := s.view.PartitionRecord(s.env.Stdout, p, nodes.Items, s.Control); err != nil {
			return err
		}
	}
	if !found && len(s.Args) > 0 {
		return s.missing("Partition", s.Args[0])
	}
	return nil
}

func (s *controlled) showSteps(ctx context.Context) error {
	q, err := listing.ParseQueue(append([]string{"-s"}, s.Args...), s.env.Getenv, hostPeople{})
	if err != nil {
		return err
	}
	q.Query.Tasks = true
	jobs, now, err := listJobs(ctx, s.env, s.client, &q.Query)
	if err != nil {
		return loading("slurm_get_job_steps error", err)
	}
	steps, err := s.client.RunningSteps(ctx, &api.Query{})
	if err != nil {
		return loading("slurm_get_job_steps error", err)
	}
	s.view.Now = now
	all := q.Join(steps.Items, jobs)
	switch {
	case len(all) == 0 && len(s.Args) > 0:
		return s.missing("Job step", s.Args[0])
	case len(all) == 0 && !s.Quiet:
		_, err := fmt.Fprintln(s.env.Stdout, "No job steps in the system")
		return err
	}
	for i := range all {
		if err := s.view.StepRecord(s.env.Stdout, &all[i], s.Control); err != nil {
			return err
		}
	}
	return nil
}

func (s *controlled) ping(ctx context.Context) error {
	if _, err := s.client.Ping(ctx); err != nil {
		_, _ = fmt.Fprintf(s.env.Stdout, "Slurmctld(primary) at %s is DOWN\n", s.client.Address())
		return fault.Exit(1)
	}
	_, err := fmt.Fprintf(s.env.Stdout, "Slurmctld(primary) at %s is UP\n", s.client.Address())
	return err
}

// said makes refusals one, and leaves its words out where nothing shall be said.
func (s *controlled) said(err error) error {
	all := refusals(err)
	if all == nil {
		return err
	}
	r := &slurm.Refusal{Plain: all[0].Plain, Code: all[0].Code}
	for _, one := range all {
		if !s.Quiet {
			r.Lines = append(r.Lines, one.Lines...)
		}
	}
	return r
}

// refusals are those of which an error is joined; nil: it is something else.
func refusals(err error) []*slurm.Refusal {
	if r, ok := err.(*slurm.Refusal); ok {
		return []*slurm.Refusal{r}
	}
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return nil
	}
	var all []*slurm.Refusal
	for _, one := range joined.Unwrap() {
		r := refusals(one)
		if r == nil {
			return nil
		}
		all = append(all, r...)
	}
	return all
}

// write is "scontrol write batch_script JOB [FILE]".
func (s *controlled) write(ctx context.Context) error {
	if len(s.Args) < 2 || !strings.HasPrefix("batch_script", strings.ToLower(s.Args[0])) {
		return &slurm.Refusal{Lines: []string{"error: scontrol write takes batch_script JOB [FILE]"}, Code: 1}
	}
	id := s.Args[1]
	text, err := s.client.Script(ctx, id)
	if err != nil {
		return loading("job script retrieval failed", err)
	}
	name := "slurm-" + id + ".sh"
	if len(s.Args) > 2 {
		name = s.Args[2]
	}
	if name == "-" {
		_, err := s.env.Stdout.Write(text)
		return err
	}
	if err := os.WriteFile(name, text, 0o700); err != nil {
		return err
	}
	_, err = fmt.Fprintf(s.env.Stdout, "batch script for job %s written to %s\n", id, name)
	return err
}
