package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/user"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/gangway-hpc/gangway/internal/api"
	"github.com/gangway-hpc/gangway/internal/cli"
	"github.com/gangway-hpc/gangway/internal/fault"
	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/internal/slurm"
)

// scancel is Slurm's command of this name.
func scancel(ctx context.Context, env *cli.Env, args []string) error {
	o, err := slurm.ParseCancel(args, env.Getenv)
	if err != nil {
		return err
	}
	switch {
	case o.Version:
		_, err := fmt.Fprintln(env.Stdout, slurm.VersionText)
		return err
	case o.Help:
		_, err := io.WriteString(env.Stdout, slurm.CancelUsage)
		return err
	}
	switch {
	case o.Me:
		o.User = nameOfUser(uint32(os.Getuid()))
	case o.User != "":
		if o.User, err = userName(o.User); err != nil {
			return err
		}
	}
	c, err := contact(env)
	if err != nil {
		return err
	}
	defer c.Close()
	if _, err := sameCluster(ctx, c, o.Clusters); err != nil {
		return err
	}
	s := &canceller{env: env, client: c, options: o}
	targets := s.chosen
	if !o.Filtered() && !o.Interactive {
		targets = s.named
	}
	return s.all(ctx, targets)
}

// userName reads a user's name or number.
func userName(text string) (string, error) {
	if u, err := user.Lookup(text); err == nil {
		return u.Username, nil
	}
	if u, err := user.LookupId(text); err == nil {
		return u.Username, nil
	}
	if _, err := strconv.ParseUint(text, 10, 32); err == nil {
		return text, nil
	}
	return "", &slurm.Refusal{Lines: []string{"error: Invalid user name: " + text}, Code: 1}
}

// canceller carries scancel out.
type canceller struct {
	env     *cli.Env
	client  *api.Client
	options *slurm.Cancel
	failed  int
}

// result is scancel's exit code.
func (s *canceller) result() error {
	if s.failed > 0 {
		return fault.Exit(1)
	}
	return nil
}

// callers is how many jobs are ended at a time: their changes share what they cost to store.
const callers = 10

// all ends what there is to end, and says in its order what could not be. What waits goes
// first, so that it does not start in the place of what runs.
func (s *canceller) all(ctx context.Context, choose func(context.Context) (waiting, others []slurm.Target, err error)) error {
	waiting, others, err := choose(ctx)
	if err != nil {
		return err
	}
	for _, targets := range [][]slurm.Target{waiting, others} {
		errs := make([]error, len(targets))
		var calls sync.WaitGroup
		free := make(chan struct{}, callers)
		for i, t := range targets {
			if s.options.Verbose > 0 {
				word, what := "Terminating", "job"
				if s.options.Signal != "" {
					word = "Signal " + s.options.Signal + " to"
				}
				if t.Step != nil {
					what = "step"
				}
				talk(s.env, "scancel", "%s %s %s", word, what, t)
			}
			free <- struct{}{}
			calls.Go(func() {
				errs[i] = cancelOne(ctx, s.client, s.options, t)
				<-free
			})
		}
		calls.Wait()
		for i, t := range targets {
			s.tell(t, errs[i])
		}
	}
	return s.result()
}

// tell says why a job, array task or step could not be ended or sent the signal. That there
// is nothing left to end is no failure, and nor is it that a job is not known any more, which
// is all that is left of one that ended long ago: of either hears who asks for more words.
func (s *canceller) tell(t slurm.Target, err error) {
	o := s.options
	var refused *api.Error
	errors.As(err, &refused)
	over := refused != nil && refused.Kind == "ALREADY_DONE"
	gone := over || refused != nil && refused.Kind == "INVALID_JOB_ID"
	ends := o.Ends() && t.Step == nil
	if err == nil || gone && ends && o.Verbose == 0 || gone && o.Quiet > 0 {
		return // as Slurm has it
	}
	if !gone || !ends {
		s.failed++
	}
	why := err.Error()
	var away *api.Unreachable
	switch {
	case errors.As(err, &away):
		why = "Unable to contact slurm controller (connect failure)"
	case refused != nil && slurm.ErrorText(refused.Kind) != "":
		why = slurm.ErrorText(refused.Kind)
	}
	what := "job"
	if t.Step != nil {
		what = "job step"
	}
	talk(s.env, "scancel", "error: Kill job error on %s id %s: %s", what, t, why)
	if refused != nil && refused.Kind == "CAN_NOT_SAVE" && s.failed == 1 {
		talk(s.env, "scancel", "cause: %s", refused.Cause)
		talk(s.env, "scancel", "hint:  %s", refused.Hint)
	}
	if away != nil && s.failed == 1 {
		talk(s.env, "scancel", "error: %s", away.Error())
	}
}

// cancelOne ends a job, array task or step, or sends it the signal.
func cancelOne(ctx context.Context, c *api.Client, o *slurm.Cancel, t slurm.Target) error {
	sig := o.Signal
	switch {
	case t.Step != nil && sig == "":
		return endStep(ctx, c, t)
	case o.Ends() && t.Step == nil:
		return c.CancelNamed(ctx, t.Name())
	case sig == "":
		sig = "KILL"
	}
	sig = strings.TrimPrefix(strings.ToUpper(sig), "SIG")
	return c.SignalNamed(ctx, t.Name(), &api.Change{Signal: sig, Batch: o.Batch, Full: o.Full, Step: t.Step})
}

// endStep ends a step; it is an error that it has ended.
func endStep(ctx context.Context, c *api.Client, t slurm.Target) error {
	id, err := jobID(ctx, c, t)
	if err != nil {
		return err
	}
	page, err := c.Steps(ctx, id)
	if err != nil {
		return err
	}
	over := func(s api.Step) bool { return s.Key.Job == id && s.Key.Step == *t.Step && s.Phase == "ended" }
	if slices.ContainsFunc(page.Items, over) {
		return &api.Error{What: "step " + t.String() + " has ended", Kind: "INVALID_JOB_ID"}
	}
	return c.EndStepNamed(ctx, t.Name(), *t.Step)
}

// named are the jobs, array tasks and steps that were named.
func (s *canceller) named(ctx context.Context) (waiting, others []slurm.Target, err error) {
	for _, t := range s.options.Targets {
		tasks, err := tasksOf(ctx, s.env, s.client, t)
		if err != nil {
			return nil, nil, loading("slurm_load_jobs error", err)
		}
		others = append(others, tasks...)
	}
	return nil, others, nil
}

// tasksOf are the tasks that a target with a list of them means, as far as there are any of
// them that have not ended; else the target itself.
func tasksOf(ctx context.Context, env *cli.Env, c *api.Client, t slurm.Target) ([]slurm.Target, error) {
	if !t.Several() {
		return []slurm.Target{t}, nil
	}
	jobs, _, err := listJobs(ctx, env, c, &api.Query{IDs: []job.ID{t.Job}, Tasks: true, Recent: true})
	if err != nil {
		return nil, err
	}
	var all []slurm.Target
	known := false
	for i := range jobs {
		j := &jobs[i]
		if j.Array == nil || j.Array.Job != t.Job || !t.Covers(j.Array.Task) {
			continue
		}
		if known = true; !j.State.Done() {
			all = append(all, t.Of(j.Array.Task))
		}
	}
	if !known {
		return []slurm.Target{t}, nil // which the controller refuses
	}
	slices.SortStableFunc(all, func(a, b slurm.Target) int { return cmp.Compare(a.Task.Tasks[0].First, b.Task.Tasks[0].First) })
	return all, nil
}

// chosen are the jobs that the filters let through, each after a question if that is wanted.
func (s *canceller) chosen(ctx context.Context) (waiting, others []slurm.Target, err error) {
	o := s.options
	q := api.Query{States: o.States, Tasks: true}
	add := func(list *[]string, text string) {
		if text != "" {
			*list = append(*list, text)
		}
	}
	add(&q.Users, o.User)
	add(&q.Accounts, o.Account)
	add(&q.Partitions, o.Partition)
	q.Names, q.Nodes = o.Names, o.Nodes
	for _, t := range o.Targets {
		q.IDs = append(q.IDs, t.Job)
	}
	jobs, _, err := listJobs(ctx, s.env, s.client, &q)
	if err != nil {
		return nil, nil, loading("slurm_load_jobs error", err)
	}
	in := bufio.NewReader(s.env.Stdin)
	for i := range jobs {
		j := &jobs[i]
		if o.QOS != "" && j.QOS != o.QOS || j.State.Done() {
			continue
		}
		t, meant := matching(o.Targets, j)
		if !meant || o.Interactive && !s.confirm(in, j, t) {
			continue
		}
		if j.State == job.Pending {
			waiting = append(waiting, t)
		} else {
			others = append(others, t)
		}
	}
	if len(jobs) == 0 && o.Verbose > 0 {
		talk(s.env, "scancel", "error: No active jobs match ALL job filters, including: %s", o.Filters())
	}
	return waiting, others, nil
}

// matching is what operands mean of a job, all of it where there are none. A task of an array
// is named as one: the number of the first is the whole array's, too.
func matching(targets []slurm.Target, j *api.Job) (t slurm.Target, meant bool) {
	own := slurm.Target{Job: j.ID}
	if j.Array != nil {
		own = slurm.Target{Job: j.Array.Job}.Of(j.Array.Task)
	}
	for _, t := range targets {
		inArray := j.Array != nil && t.Job == j.Array.Job && t.Covers(j.Array.Task)
		if inArray || t.Job == j.ID && t.Task == nil {
			own.Step = t.Step
			return own, true
		}
	}
	return own, len(targets) == 0
}

// confirm asks before a job is ended.
func (s *canceller) confirm(in *bufio.Reader, j *api.Job, t slurm.Target) bool {
	fmt.Fprintf(s.env.Stderr, "Cancel job_id=%s name=%s partition=%s [y/n]? ", t, j.Name, j.Partition)
	line, _ := in.ReadString('\n')
	line = strings.TrimSpace(line)
	return line != "" && (line[0] == 'y' || line[0] == 'Y')
}
