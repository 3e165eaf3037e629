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
		"update": s.update, "ping": s.ping, "write": s.write,
	}[c.Verb]
	if work == nil {
		return &slurm.Refusal{Lines: []string{"error: scontrol " + c.Verb + " is not supported by Gangway"}, Code: 1}
	}
	if s.client, err = contact(env); err != nil {
		return loading("slurm_load_jobs error", err)
	}
	defer s.client.Close()
	s.view = newView(env)
	return work(ctx)
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
		jobs, now, err := allJobs(ctx, s.client, &api.Query{Recent: true})
		if err != nil {
			return loading("slurm_load_jobs error", err)
		}
		if s.view.Now = now; len(jobs) == 0 && !s.Quiet {
			_, err := fmt.Fprintln(s.env.Stdout, "No jobs in the system")
			return err
		}
		return s.showAll(ctx, jobs)
	}
	for _, arg := range s.Args {
		ids, err := listing.ParseJobIDs(arg)
		if err != nil {
			return err
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
	for _, task := range id.Tasks {
		j, err := s.client.JobText(ctx, fmt.Sprintf("%d_%d", id.Job, task))
		if err != nil {
			return loading("slurm_load_jobs error", err)
		}
		if err := s.showJob(ctx, &j, false); err != nil {
			return err
		}
	}
	if id.Tasks != nil {
		return nil
	}
	jobs, now, err := allJobs(ctx, s.client, &api.Query{IDs: []job.ID{id.Job}, Recent: true})
	if err != nil || len(jobs) == 0 {
		if err == nil {
			err = &api.Error{What: "there is no job " + id.Job.String(), Kind: "INVALID_JOB_ID"}
		}
		return loading("slurm_load_jobs error", err)
	}
	s.view.Now = now
	return s.showAll(ctx, jobs)
}

func (s *controlled) showAll(ctx context.Context, jobs []api.Job) error {
	jobs = listing.Merge(jobs)
	for i := range jobs {
		if err := s.showJob(ctx, &jobs[i], true); err != nil {
			return err
		}
	}
	return nil
}

// showJob writes a record. The answer for a single job has more than that for many.
func (s *controlled) showJob(ctx context.Context, j *api.Job, whole bool) error {
	if whole && j.Waiting == nil {
		// One that has just gone is shown as it was.
		if full, err := s.client.JobText(ctx, j.ID.String()); err == nil {
			j = &full
		}
	}
	if s.view.Now == 0 {
		s.view.Now = job.Time(s.env.Now().UnixMilli())
	}
	return s.view.JobRecord(s.env.Stdout, j, s.Control)
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
			fmt.Fprintf(s.env.Stdout, "Node %s not found\n", name)
			failed = fault.Exit(1)
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
		fmt.Fprintf(s.env.Stdout, "Partition %s not found\n", s.Args[0])
		return fault.Exit(1)
	}
	return nil
}

func (s *controlled) showSteps(ctx context.Context) error {
	q, err := listing.ParseQueue(append([]string{"-s"}, s.Args...), s.env.Getenv, hostPeople{})
	if err != nil {
		return err
	}
	q.Query.Tasks = true
	jobs, now, err := allJobs(ctx, s.client, &q.Query)
	if err != nil {
		return loading("slurm_load_jobs error", err)
	}
	steps, err := s.client.RunningSteps(ctx, &api.Query{})
	if err != nil {
		return loading("slurm_get_job_steps error", err)
	}
	s.view.Now = now
	all := q.Join(steps.Items, jobs)
	if len(all) == 0 && len(s.Args) > 0 {
		fmt.Fprintf(s.env.Stdout, "Job step %s not found\n", s.Args[0])
		return fault.Exit(1)
	}
	for i := range all {
		if err := s.view.StepRecord(s.env.Stdout, &all[i], s.Control); err != nil {
			return err
		}
	}
	return nil
}

func (s *controlled) showConfig(ctx context.Context) error {
	p, err := s.client.Ping(ctx)
	if err != nil {
		return loading("slurm_load_ctl_conf error", err)
	}
	s.view.Now = p.Now
	return s.view.Config(s.env.Stdout, &p)
}

func (s *controlled) ping(ctx context.Context) error {
	if _, err := s.client.Ping(ctx); err != nil {
		_, _ = fmt.Fprintf(s.env.Stdout, "Slurmctld(primary) at %s is DOWN\n", s.client.Address())
		return fault.Exit(1)
	}
	_, err := fmt.Fprintf(s.env.Stdout, "Slurmctld(primary) at %s is UP\n", s.client.Address())
	return err
}

// change is hold, release and requeue.
func (s *controlled) change(ctx context.Context) error {
	if len(s.Args) == 0 {
		return &slurm.Refusal{Plain: true, Code: 1, Lines: []string{"too few arguments for keyword:" + s.Verb}}
	}
	verb, change := s.Verb, &api.Change{}
	switch verb {
	case "holdu", "uhold":
		verb = "hold"
	case "requeuehold":
		verb, change.Hold = "requeue", true
	}
	ids, err := s.ids(ctx, strings.Join(s.Args, ","))
	if err != nil {
		return err
	}
	var failed error
	for _, id := range ids {
		if err := s.client.Change(ctx, id, verb, change); err != nil {
			failed = errors.Join(failed, s.failed(id, err))
		}
	}
	return s.said(failed)
}

// ids are the names of jobs, as the controller takes them; jobs may be named, too.
func (s *controlled) ids(ctx context.Context, text string) ([]string, error) {
	var all []string
	for word := range strings.SplitSeq(text, ",") {
		name, isName := strings.CutPrefix(word, "name=")
		if !isName {
			name, isName = strings.CutPrefix(word, "jobname=")
		}
		if isName {
			jobs, _, err := allJobs(ctx, s.client, &api.Query{Names: []string{name}})
			if err != nil {
				return nil, loading("slurm_load_jobs error", err)
			}
			for i := range jobs {
				all = append(all, jobs[i].ID.String())
			}
			continue
		}
		list, err := listing.ParseJobIDs(word)
		if err != nil {
			return nil, err
		}
		for _, id := range list {
			for _, task := range id.Tasks {
				all = append(all, fmt.Sprintf("%d_%d", id.Job, task))
			}
			if id.Tasks == nil {
				all = append(all, id.Job.String())
			}
		}
	}
	return all, nil
}

// failed is what Slurm says of a job that cannot be changed.
func (s *controlled) failed(id string, err error) error {
	var refused *api.Error
	if !errors.As(err, &refused) {
		return err
	}
	text := slurm.ErrorText(refused.Kind)
	if text == "" {
		text = refused.What
	}
	return fmt.Errorf("%s for job %s", text, id)
}

// said prints refusals, unless it shall not be said, and makes them the exit code.
func (s *controlled) said(err error) error {
	if err == nil {
		return nil
	}
	var away *api.Unreachable
	if errors.As(err, &away) {
		return loading("slurm_update error", err)
	}
	r := &slurm.Refusal{Plain: true, Code: 1}
	if !s.Quiet {
		r.Lines = strings.Split(err.Error(), "\n")
	}
	return r
}

func (s *controlled) update(ctx context.Context) error {
	u, err := listing.ParseUpdate(s.Args, s.env.Now())
	if err != nil {
		return err
	}
	for _, name := range u.Nodes {
		if err := s.client.ChangeNode(ctx, name, &u.Change); err != nil {
			return loading("slurm_update error", err)
		}
	}
	if u.Partition != "" {
		if err := s.client.ChangePartition(ctx, u.Partition, &u.Change); err != nil {
			return loading("slurm_update error", err)
		}
	}
	var failed error
	if len(u.Jobs) > 0 {
		ids, err := s.ids(ctx, strings.Join(u.Jobs, ","))
		if err != nil {
			return err
		}
		for _, id := range ids {
			if err := s.updateJob(ctx, id, u); err != nil {
				failed = errors.Join(failed, s.failed(id, err))
			}
		}
	}
	return s.said(failed)
}

func (s *controlled) updateJob(ctx context.Context, id string, u *listing.Update) error {
	j, err := s.client.JobText(ctx, id)
	if err != nil {
		return err
	}
	if j.Spec == nil {
		return fmt.Errorf("job %s cannot be changed", id)
	}
	spec := *j.Spec
	for _, set := range u.Specs {
		if err := set(&spec); err != nil {
			return err
		}
	}
	return s.client.Change(ctx, id, "", &api.Change{Spec: &spec})
}

// write is "scontrol write batch_script JOB [FILE]".
func (s *controlled) write(ctx context.Context) error {
	if len(s.Args) < 2 || !strings.HasPrefix("batch_script", strings.ToLower(s.Args[0])) {
		return &slurm.Refusal{Lines: []string{"error: scontrol write takes batch_script JOB [FILE]"}, Code: 1}
	}
	id := s.Args[1]
	text, err := s.client.Script(ctx, id)
	if err != nil {
		return s.said(s.failed(id, err))
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
