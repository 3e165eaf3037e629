package main

import (
	"context"
	"os/signal"
	"syscall"

	"github.com/gangway-hpc/gangway/internal/cli"
)

// outlast lets a command within a job wait for its answer although the job is being ended. A job
// that requeues itself is sent TERM with all that runs in it, this command too, and that may be
// there before the answer. Who called, as submitit and Lightning do in a handler of a signal,
// would take the end by TERM for a requeue that failed.
func outlast(ctx context.Context, env *cli.Env) {
	if env.Getenv("SLURM_JOB_ID") == "" {
		return
	}
	_ = ctx.Err() // from now on, and no later, the context is one that signals cancel
	signal.Ignore(syscall.SIGTERM)
}
