package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/gangway-hpc/gangway/internal/api"
	"github.com/gangway-hpc/gangway/internal/fault"
	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/internal/slurm"
	"github.com/gangway-hpc/gangway/internal/slurm/listing"
)

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
	if verb == "requeue" {
		outlast(ctx, s.env)
	}
	text := strings.Join(s.Args, ",")
	asked, failed := s.asked(ctx, text)
	last := ""
	for _, a := range asked {
		sentence, err := s.each(ctx, a, func(id string) error { return s.client.Change(ctx, id, verb, change) })
		if failed = errors.Join(failed, err); a.Tasks == nil {
			last = sentence
		}
	}
	var refused *slurm.Refusal
	if errors.As(failed, &refused) && asked == nil { // of what is no job's number
		sentence, _, isJob := strings.Cut(refused.Lines[0], " for job ")
		if isJob {
			last = sentence
		}
	}
	if refused != nil && last != "" && verb != "requeue" {
		failed = errors.Join(failed, &slurm.Refusal{Plain: true, Code: 1, Lines: []string{"slurm_suspend error: " + last}})
	}
	return failed
}

// asked reads jobs and tasks of arrays; jobs may be named, too.
func (s *controlled) asked(ctx context.Context, text string) ([]listing.JobIDs, error) {
	var all []listing.JobIDs
	for _, word := range slurm.SplitIDs(text) {
		name, isName := strings.CutPrefix(word, "name=")
		if !isName {
			name, isName = strings.CutPrefix(word, "jobname=")
		}
		if isName {
			jobs, err := s.namedJobs(ctx, name)
			if err != nil {
				return all, err
			}
			all = append(all, jobs...)
			continue
		}
		list, err := listing.ParseJobIDs(word)
		if err != nil {
			return all, notJob("", " for job "+text)
		}
		all = append(all, list...)
	}
	return all, nil
}

// namedJobs are the jobs, or arrays, of a name.
func (s *controlled) namedJobs(ctx context.Context, name string) ([]listing.JobIDs, error) {
	jobs, _, err := listJobs(ctx, s.env, s.client, &api.Query{Names: []string{name}})
	if err != nil {
		return nil, loading("slurm_load_jobs error", err)
	}
	var all []listing.JobIDs
	for i := range jobs {
		id := jobs[i].ID
		if jobs[i].Array != nil {
			id = jobs[i].Array.Job
		}
		if !slices.ContainsFunc(all, func(a listing.JobIDs) bool { return a.Job == id }) {
			all = append(all, listing.JobIDs{Job: id})
		}
	}
	if all == nil {
		return nil, &slurm.Refusal{Code: 1, Lines: []string{"error: JobName " + name + " not found"}}
	}
	return all, nil
}

// noError is Slurm's sentence for what went well beside what did not.
const noError = "No error"

// each does something to a job, or to the tasks of an array that were named, and says of those
// that it could not be done to why, as Slurm does. The sentence is that of a job as a whole.
func (s *controlled) each(ctx context.Context, a listing.JobIDs, do func(id string) error) (sentence string, failed error) {
	if a.Tasks == nil {
		err := do(a.Job.String())
		if err == nil {
			return noError, nil
		}
		sentence, err = sentenceOf(err)
		if err != nil {
			return "", err
		}
		if tasks := s.tasksOf(ctx, a.Job); len(tasks) > 0 {
			return "", s.plainly("%d_%s: %s", a.Job, listing.TaskList(tasks), sentence)
		}
		return sentence, s.plainly("%s for job %d", sentence, a.Job)
	}
	var order []string
	by := map[string][]uint32{}
	for _, task := range a.Tasks {
		sentence := noError
		if err := do(fmt.Sprintf("%d_%d", a.Job, task)); err != nil {
			if sentence, err = sentenceOf(err); err != nil {
				return "", err
			}
		}
		if by[sentence] == nil {
			order = append(order, sentence)
		}
		by[sentence] = append(by[sentence], task)
	}
	if len(order) == 1 && order[0] == noError {
		return "", nil
	}
	for _, sentence := range order {
		failed = errors.Join(failed, s.plainly("%d_%s: %s", a.Job, listing.TaskList(by[sentence]), sentence))
	}
	return "", failed
}

func (s *controlled) plainly(format string, args ...any) error {
	return &slurm.Refusal{Plain: true, Code: 1, Lines: []string{fmt.Sprintf(format, args...)}}
}

// tasksOf are the tasks of an array that have not ended; of another job there are none.
func (s *controlled) tasksOf(ctx context.Context, id job.ID) []uint32 {
	jobs, _, err := listJobs(ctx, s.env, s.client, &api.Query{IDs: []job.ID{id}, Tasks: true})
	if err != nil {
		return nil
	}
	var all []uint32
	for i := range jobs {
		if a := jobs[i].Array; a != nil && a.Job == id && !jobs[i].State.Done() {
			all = append(all, a.Task)
		}
	}
	return all
}

// sentenceOf is what Slurm says of a refusal; an error is one of another kind.
func sentenceOf(err error) (string, error) {
	refused, ok := errors.AsType[*api.Error](err)
	switch {
	case !ok:
		return "", loading("slurm_update error", err)
	case refused.Kind == "TIME_LIMIT_DECREMENT":
		return "", &slurm.Refusal{Code: 1, Lines: []string{"error: " + refused.What}}
	}
	return cmp.Or(slurm.ErrorText(refused.Kind), refused.What), nil
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
	asked, failed := s.asked(ctx, strings.Join(u.Jobs, ","))
	if u.JobName != "" && u.Jobs == nil {
		asked, failed = s.namedJobs(ctx, u.JobName)
	}
	for _, a := range asked {
		_, err := s.each(ctx, a, func(id string) error { return s.client.Change(ctx, id, "", &u.Change) })
		failed = errors.Join(failed, err)
	}
	return failed
}

// waitJob is "scontrol wait_job JOB": until its nodes are ready for it.
func (s *controlled) waitJob(ctx context.Context) error {
	if len(s.Args) == 0 {
		return s.plainly("too few arguments for keyword:%s", s.Verb)
	}
	ids, err := listing.ParseJobIDs(s.Args[0])
	if err != nil || len(ids) != 1 || ids[0].Tasks != nil {
		return s.plainly("Invalid job_id %s", s.Args[0])
	}
	ready := false
	err = s.client.Watch(ctx, &api.Query{IDs: []job.ID{ids[0].Job}}, func(e *api.Event) bool {
		if e.Job == nil || e.Job.ID != ids[0].Job {
			return true
		}
		ready = e.Job.State == job.Running && e.Job.Phase != "preparing"
		return !ready && !e.Job.State.Done()
	})
	var refused *api.Error
	switch {
	case errors.Is(err, io.EOF), errors.As(err, &refused), err == nil && !ready:
		_, _ = fmt.Fprintf(s.env.Stderr, "scontrol: Problem running job %d\n", ids[0].Job)
		return fault.Exit(1)
	}
	return err
}

// showAliases names the nodes, or those at an address.
func (s *controlled) showAliases(ctx context.Context) error {
	page, err := s.client.Nodes(ctx)
	if err != nil {
		return loading("slurm_load_node error", err)
	}
	listing.SortNodes(page.Items)
	var names []string
	for i := range page.Items {
		if len(s.Args) == 0 || slices.Contains(s.Args, page.Items[i].Name) || slices.Contains(s.Args, page.Items[i].Addr) {
			names = append(names, page.Items[i].Name)
		}
	}
	if len(names) == 0 {
		return nil
	}
	_, err = fmt.Fprintln(s.env.Stdout, strings.Join(names, " "))
	return err
}

// showReservations says that there are none.
func (s *controlled) showReservations(context.Context) error {
	if len(s.Args) > 0 {
		return s.missing("Reservation", s.Args[0])
	}
	if s.Quiet {
		return nil
	}
	_, err := fmt.Fprintln(s.env.Stdout, "No reservations in the system")
	return err
}

func (s *controlled) showLicenses(ctx context.Context) error {
	c, err := s.client.Cluster(ctx)
	if err != nil {
		return loading("slurm_load_licenses error", err)
	}
	return listing.Licenses(s.env.Stdout, c.Licenses, s.Control)
}

func (s *controlled) showTopology(ctx context.Context) error {
	c, err := s.client.Cluster(ctx)
	if err != nil {
		return loading("slurm_load_topo error", err)
	}
	return listing.Topology(s.env.Stdout, &c.Network, s.Control)
}

func (s *controlled) showConfig(ctx context.Context) error {
	c, err := s.client.Cluster(ctx)
	if err != nil {
		return loading("slurm_load_ctl_conf error", err)
	}
	s.view.Now = c.Now
	return s.view.Config(s.env.Stdout, &c)
}
