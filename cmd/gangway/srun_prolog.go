package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"

	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/internal/slurm"
)

// prolog runs the program of --prolog here, before there is a step. If it fails there is none.
func (r *stepRun) prolog(ctx context.Context, id job.ID) error {
	code := r.runHere(ctx, r.options.Prolog, []string{"SLURM_JOB_ID=" + id.String(), "SLURM_JOBID=" + id.String()})
	if code == 0 {
		return nil
	}
	return &slurm.Refusal{Lines: []string{fmt.Sprintf("error: srun prolog failed rc = %d. Aborting step.", code)}, Code: code}
}

// epilog runs the program of --epilog here, after the step, whose exit code it does not change.
func (r *stepRun) epilog(ctx context.Context) {
	job, step := r.step.Key.Job.String(), r.step.Key.Step.String()
	code := r.runHere(ctx, r.options.Epilog, []string{
		"SLURM_JOB_ID=" + job, "SLURM_JOBID=" + job, "SLURM_STEP_ID=" + step, "SLURM_STEPID=" + step,
		"SLURM_NTASKS=" + strconv.Itoa(r.step.Tasks), "SLURM_NPROCS=" + strconv.Itoa(r.step.Tasks),
	})
	if code != 0 {
		r.tell("error: srun epilog failed status=%d", code)
	}
}

// runHere runs a program, with variables over those that there are, and returns its exit code. One
// that is not there is told of and has none, as with srun; "none" is none.
func (r *stepRun) runHere(ctx context.Context, name string, environ []string) int {
	if name == "" || name == toNobody {
		return 0
	}
	path := name
	if filepath.Base(name) == name {
		if found, err := exec.LookPath(name); err == nil {
			path = found
		} else {
			path = "./" + name
		}
	}
	if err := executable(path); err != nil {
		r.tell("Access denied for %s: %s", name, slurm.SystemError(err))
		return 0
	}
	cmd := exec.CommandContext(ctx, path)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), environ...)
	err := cmd.Run()
	var ended *exec.ExitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &ended) && ended.ExitCode() > 0:
		return ended.ExitCode()
	}
	r.tell("error: run %s: %v", name, err)
	return 1
}

// executable says why a file is none that can be executed.
func executable(path string) error {
	st, err := os.Stat(path)
	switch {
	case err != nil:
		return err
	case st.IsDir() || st.Mode()&0o111 == 0:
		return os.ErrPermission
	}
	return nil
}

// toNobody is the name of what is nothing.
const toNobody = "none"
