package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os/user"
	"strconv"
	"strings"

	"github.com/gangway-hpc/gangway/internal/api"
	"github.com/gangway-hpc/gangway/internal/cli"
	"github.com/gangway-hpc/gangway/internal/fault"
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
	if o.User != "" {
		if o.User, err = userName(o.User); err != nil {
			return err
		}
	}
	c, err := contact(env)
	if err != nil {
		return err
	}
	s := &canceller{env: env, client: c, options: o}
	if o.Filtered() || o.Interactive {
		return s.chosen(ctx)
	}
	for _, target := range o.Targets {
		s.one(ctx, target)
	}
	return s.result()
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

// one ends a job, array task or step, or sends it the signal.
func (s *canceller) one(ctx context.Context, t slurm.Target) {
	o := s.options
	if o.Verbose > 0 {
		word := "Terminating"
		if o.Signal != "" {
			word = "Signal " + o.Signal + " to"
		}
		talk(s.env, "scancel", "%s job %s", word, t)
	}
	err := cancelOne(ctx, s.client, o, t)
	if err == nil {
		return
	}
	var refused *api.Error
	if errors.As(err, &refused) && refused.Kind == "ALREADY_DONE" && o.Quiet > 0 {
		return // as Slurm has it
	}
	s.failed++
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
	if away != nil && s.failed == 1 {
		talk(s.env, "scancel", "error: %s", away.Error())
	}
}

// cancelOne ends a job, array task or step, or sends it the signal.
func cancelOne(ctx context.Context, c *api.Client, o *slurm.Cancel, t slurm.Target) error {
	sig := strings.TrimPrefix(strings.ToUpper(o.Signal), "SIG")
	switch {
	case t.Step != nil && sig == "":
		return c.EndStep(ctx, t.Job, *t.Step)
	case (sig == "" || sig == "9" || sig == "KILL") && t.Step == nil && !o.Batch && !o.Full:
		return c.CancelNamed(ctx, t.Name())
	case sig == "":
		sig = "KILL"
	}
	return c.SignalNamed(ctx, t.Name(), &api.Change{Signal: sig, Batch: o.Batch, Full: o.Full, Step: t.Step})
}

// chosen ends the jobs that the filters let through, each after a question if that is
// wanted.
func (s *canceller) chosen(ctx context.Context) error {
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
	page, err := s.client.Jobs(ctx, &q)
	if err != nil {
		return err
	}
	in := bufio.NewReader(s.env.Stdin)
	for i := range page.Items {
		j := &page.Items[i]
		if o.QOS != "" && j.QOS != o.QOS || j.State.Done() {
			continue
		}
		t := slurm.Target{Job: j.ID}
		if len(o.Targets) > 0 {
			if t, err = matching(o.Targets, j); err != nil {
				continue
			}
		}
		if o.Interactive && !s.confirm(in, j, t) {
			continue
		}
		s.one(ctx, t)
	}
	return s.result()
}

var errOther = errors.New("another job")

// matching is the operand that means a job.
func matching(targets []slurm.Target, j *api.Job) (slurm.Target, error) {
	for _, t := range targets {
		switch {
		case t.Job == j.ID:
			t.Task = nil // the id is the task's own
			return t, nil
		case j.Array != nil && t.Job == j.Array.Job && (t.Task == nil || t.Covers(j.Array.Task)):
			return slurm.Target{Job: j.ID, Step: t.Step}, nil
		}
	}
	return slurm.Target{}, errOther
}

// confirm asks before a job is ended.
func (s *canceller) confirm(in *bufio.Reader, j *api.Job, t slurm.Target) bool {
	fmt.Fprintf(s.env.Stderr, "Cancel job_id=%s name=%s partition=%s [y/n]? ", t, j.Name, j.Partition)
	line, _ := in.ReadString('\n')
	line = strings.TrimSpace(line)
	return line != "" && (line[0] == 'y' || line[0] == 'Y')
}
