package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/gangway-hpc/gangway/internal/api"
	"github.com/gangway-hpc/gangway/internal/cli"
	"github.com/gangway-hpc/gangway/internal/fault"
	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/internal/slurm/listing"
	"github.com/gangway-hpc/gangway/launcher/attach"
)

// sstat is Slurm's command of that name: what the ranks of running steps have used so far.
func sstat(ctx context.Context, env *cli.Env, args []string) error {
	q, err := listing.ParseStat(args)
	if err != nil {
		return err
	}
	if q.HelpFormat {
		return q.Fields(env.Stdout)
	}
	if done, err := about(env, q.Version, q.Help || q.Usage, listing.StatUsage); done {
		return err
	}
	client, err := contact(env)
	if err != nil {
		return loading("sstat: error: slurm_job_step_stat", err)
	}
	defer client.Close()
	steps, err := runningSteps(ctx, env, client, q.Jobs())
	if err != nil {
		return loading("sstat: error: slurm_job_step_stat", err)
	}
	v := newView(env)
	v.NoConvert = q.NoConvert
	if err := q.Header(env.Stdout); err != nil {
		return err
	}
	chosen, missing := q.Choose(steps)
	for _, s := range chosen {
		ranks, err := attach.Usage(ctx, &s.Step)
		if err != nil {
			talk(env, "sstat", "error: StepId=%s: %s", v.ID(s), strings.ReplaceAll(err.Error(), "\n", "; "))
		}
		if err := q.Print(env.Stdout, v, s, ranks); err != nil {
			return err
		}
	}
	for _, err := range missing {
		talk(env, "sstat", "%v", err)
	}
	return nil
}

// runningSteps are the steps of jobs, with these; of jobs that there are not, none.
func runningSteps(ctx context.Context, env *cli.Env, client *api.Client, ids []job.ID) ([]listing.Step, error) {
	jobs, _, err := listJobs(ctx, env, client, &api.Query{IDs: ids, Tasks: true, Recent: true})
	if refused, ok := errors.AsType[*api.Error](err); ok && refused.Kind == "INVALID_JOB_ID" {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	page, err := client.RunningSteps(ctx, &api.Query{IDs: ids})
	if err != nil {
		return nil, err
	}
	return listing.JoinSteps(page.Items, jobs), nil
}

// sdiag is Slurm's command of that name: what the controller has done.
func sdiag(ctx context.Context, env *cli.Env, args []string) error {
	q, err := listing.ParseDiag(args)
	if err != nil {
		return err
	}
	if done, err := about(env, q.Version, q.Help || q.Usage, listing.DiagUsage); done {
		return err
	}
	client, err := contact(env)
	if err != nil {
		return loading("slurm_get_statistics", err)
	}
	defer client.Close()
	if _, err := sameCluster(ctx, client, q.Clusters); err != nil {
		return err
	}
	if q.Reset {
		if err := client.ResetDiag(ctx); err != nil {
			return loading("slurm_reset_statistics", err)
		}
		_, err := fmt.Fprintln(env.Stdout, "Reset scheduling statistics")
		return err
	}
	d, err := client.Diag(ctx)
	if err != nil {
		return loading("slurm_get_statistics", err)
	}
	return q.Print(env.Stdout, newView(env), &d)
}

// listPIDs is "scontrol listpids [JOB[.STEP] [NODE]]": the processes of steps on a node, by
// default this one, or all that run here where this is none of the cluster's.
func (s *controlled) listPIDs(ctx context.Context) error {
	p, err := listing.ParsePIDs(s.Args)
	if err != nil {
		return err
	}
	steps, err := runningSteps(ctx, s.env, s.client, p.Jobs())
	if err != nil {
		return loading("slurm_get_job_steps error", err)
	}
	if err := p.Header(s.env.Stdout); err != nil {
		return err
	}
	found := false
	for _, step := range p.Choose(steps, s.env.Getenv("SLURMD_NODENAME")) {
		found = true
		ranks, err := attach.Usage(ctx, &step.Step)
		if err != nil {
			talk(s.env, "scontrol", "error: StepId=%s: %s", s.view.ID(step), strings.ReplaceAll(err.Error(), "\n", "; "))
		}
		if err := p.Print(s.env.Stdout, step, ranks); err != nil {
			return err
		}
	}
	if !found {
		_, _ = fmt.Fprintln(s.env.Stderr, p.None())
		return fault.Exit(1)
	}
	return nil
}
