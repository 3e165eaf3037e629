package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/gangway-hpc/gangway/internal/api"
	"github.com/gangway-hpc/gangway/internal/cli"
	"github.com/gangway-hpc/gangway/internal/fault"
	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/internal/slurm"
)

// srun is Slurm's command of this name.
func srun(_ context.Context, env *cli.Env, args []string) error {
	o, err := slurm.Parse(slurm.Srun, slurm.Source{Args: args, Getenv: env.Getenv, Now: env.Now()})
	if err != nil || o.Help || o.Version {
		return aboutSlurm(env, o, err)
	}
	if len(o.Operands) == 0 {
		return &slurm.Refusal{Lines: []string{"fatal: No command given to execute."}, Code: 1}
	}
	if err := standsSomewhere(); err != nil {
		return err
	}
	if !o.MultiProg && env.Getenv("SLURM_TEST_EXEC") != "" && !canExecute(workDir(env, o.Chdir), o.Operands[0]) {
		return &slurm.Refusal{Lines: []string{"fatal: Can not execute " + o.Operands[0]}, Code: 1}
	}
	sayWarnings(env, o)
	c, err := contact(env)
	if err != nil {
		return err
	}
	r := &stepRun{env: env, name: "srun", quiet: o.Quiet > 0, options: o, client: c}
	return runStep(r, func(*stepRun) error { return nil })
}

// readMultiProg reads the configuration file that the first operand names, from which the number
// of tasks comes where nobody has said it.
func readMultiProg(env *cli.Env, command string, o *slurm.Options) error {
	name := o.Operands[0]
	path := name
	if !filepath.IsAbs(path) {
		path = filepath.Join(workDir(env, ""), path)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return &slurm.Refusal{Lines: []string{"error: Could not open multi_prog config file " + name}, Code: 1}
	}
	tasks := 0
	if o.Given("ntasks") {
		tasks = o.Job.Tasks
	}
	m, err := slurm.ParseMultiProg(text, name, tasks)
	if err != nil {
		return err
	}
	o.Program.MultiProg = text
	if tasks != 0 {
		return nil
	}
	said := len(o.Warnings)
	err = o.SetTasks(m.Tasks())
	for _, w := range o.Warnings[said:] {
		talk(env, command, "%s", w)
	}
	return err
}

// canExecute says whether a program is here, with a slash in its name or in PATH.
func canExecute(dir, name string) bool {
	if filepath.Base(name) != name && !filepath.IsAbs(name) {
		name = filepath.Join(dir, name)
	}
	_, err := exec.LookPath(name)
	return err == nil
}

// runStep runs a step in the job that is named, or else in one of its own. change may
// change the request for it.
func runStep(r *stepRun, change func(*stepRun) error) (err error) {
	env, o := r.env, r.options
	if o.MultiProg {
		if err := readMultiProg(env, r.name, o); err != nil {
			return err
		}
	}
	if o.Job.Name == "" || o.JobID != 0 && !o.Asked("job-name") {
		o.Job.Name = filepath.Base(o.Operands[0])
	}
	if r.request, err = stepRequest(env, o); err != nil {
		return err
	}
	if err := change(r); err != nil {
		return err
	}
	// Not the verb's context: what signals mean is the step's business.
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	r.cancel = cancel
	signals := r.catch()
	defer signals.stop()
	if o.JobID != 0 && !o.TestOnly {
		if err := r.everywhere(ctx); err != nil {
			return err
		}
		code, err := r.run(ctx, o.JobID)
		return ended(code, err)
	}
	s := submission(env, o)
	s.Allocation = true
	if o.TestOnly {
		answer, err := r.client.Submit(ctx, s)
		return sayTest(env, o, r.name, &answer, err)
	}
	a, err := allocate(ctx, r, s, o.Immediate)
	if err != nil {
		return err
	}
	code, err := r.run(ctx, a.id)
	a.end(max(code, fault.Code(err)))
	return ended(code, err)
}

// limit ends a step in a job of others when its own --time is up; stop takes that back.
func (r *stepRun) limit(ctx context.Context) (stop func()) {
	limit := r.options.Job.TimeLimit
	if r.options.JobID == 0 || limit <= 0 || limit >= job.Forever {
		return func() {}
	}
	key := r.step.Key
	t := time.AfterFunc(time.Duration(limit)*time.Millisecond, func() {
		r.abort()
		if err := r.client.EndStepOvertime(ctx, key.Job, key.Step); err != nil && ctx.Err() == nil {
			r.tell("error: end step %s.%s: %v", key.Job, key.Step, err)
		}
	})
	return func() { t.Stop() }
}

// everywhere makes a step for which nothing was said one of all nodes of its job.
func (r *stepRun) everywhere(ctx context.Context) error {
	q := r.request
	if q.MinNodes > 0 || q.Tasks > 0 || len(q.NodeList) > 0 {
		return nil
	}
	j, err := r.client.Job(ctx, r.options.JobID)
	var refused *api.Error
	if errors.As(err, &refused) {
		return stepRefused(r.name, r.options.JobID, err)
	}
	if err == nil && len(j.NodeList) > 0 {
		q.MinNodes = len(j.NodeList)
		q.MaxNodes = q.MinNodes
	}
	return err
}

// ended makes an exit code an error.
func ended(code int, err error) error {
	if err != nil || code == 0 {
		return err
	}
	return fault.Exit(code)
}

// stepRequest makes the request for a step of what options say.
func stepRequest(env *cli.Env, o *slurm.Options) (*api.StepRequest, error) {
	p := o.Program
	for _, arg := range o.Operands {
		p.Args = append(p.Args, []byte(arg))
	}
	if err := completeProgram(env, o, &p); err != nil {
		return nil, err
	}
	j := &o.Job
	return &api.StepRequest{
		Name: j.Name, MinNodes: j.MinNodes, MaxNodes: j.MaxNodes, Tasks: j.Tasks, TasksPerNode: j.TasksPerNode,
		CPUsPerTask: j.CPUsPerTask, GRES: j.GRES, Memory: j.Memory, NodeList: o.Hosts(), Exclude: j.Exclude,
		Overcommit: o.Overcommit, Overlap: o.Overlap, Exact: o.Exact || o.ExclusiveStep, Exclusive: o.ExclusiveStep, Relative: max(o.Relative, 0),
		Distribution: o.Distribution, GPUBind: o.GPUBind, CPUBind: o.CPUBind, Program: p, Interactive: o.Interactive, Once: once(),
	}, nil
}

// allocation is a job without a program, which lasts as long as it is held.
type allocation struct {
	id     job.ID
	run    *stepRun
	cancel context.CancelFunc
}

// allocate asks for a job and waits until it has its nodes, at most limit where that is
// not 0.
func allocate(ctx context.Context, r *stepRun, s *api.Submit, limit job.Duration) (*allocation, error) {
	answer, err := r.client.Submit(ctx, s)
	if err != nil {
		return nil, err
	}
	r.notes(answer.Notes)
	hold, cancel := context.WithCancel(ctx)
	a := &allocation{id: answer.ID, run: r, cancel: cancel}
	go a.hold(hold)
	wait := ctx
	if limit > 0 {
		var stop context.CancelFunc
		wait, stop = context.WithTimeout(ctx, time.Duration(limit)*time.Millisecond)
		defer stop()
	}
	started, err := r.awaitNodes(wait, a.id)
	switch {
	case err == nil && started:
		return a, nil
	case err == nil:
		err = &slurm.Refusal{Lines: []string{fmt.Sprintf("error: Job allocation %s has been revoked", a.id)}, Code: 1}
	case wait.Err() != nil && ctx.Err() == nil:
		err = &slurm.Refusal{Lines: []string{"error: Unable to allocate resources: Requested nodes are busy"}, Code: codeFrom(r.env, "SLURM_EXIT_IMMEDIATE", 1)}
	}
	a.drop()
	return nil, err
}

// hold keeps the allocation as long as ctx lasts, whatever happens to the controller.
func (a *allocation) hold(ctx context.Context) {
	for ctx.Err() == nil {
		err := a.run.client.Hold(ctx, a.id)
		var refused *api.Error
		if err == nil || errors.Is(err, io.EOF) || errors.As(err, &refused) {
			return // the job has ended
		}
		select {
		case <-ctx.Done():
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// endTime is how long the controller is asked to note the end of an allocation.
const endTime = 30 * time.Second

// end gives the nodes back, once the controller can write that down: it would cancel the job
// otherwise, when nobody holds it any more.
func (a *allocation) end(code int) {
	ctx, cancel := context.WithTimeout(context.Background(), endTime)
	defer cancel()
	defer a.cancel()
	for told := false; ; {
		err := a.run.client.End(ctx, a.id, code)
		var refused *api.Error
		if err == nil || errors.As(err, &refused) && refused.Kind != "CAN_NOT_SAVE" {
			return // or the job has ended by itself
		}
		if !told && refused != nil {
			a.run.tell("warning: the end of job %s is not noted yet, trying again for %d s: %v", a.id, endTime/time.Second, err)
			told = true
		}
		select {
		case <-ctx.Done():
			return // it ends by itself
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// drop cancels a job that is not waited for any more.
func (a *allocation) drop() {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	_ = a.run.client.Cancel(ctx, a.id) // as in end
	a.cancel()
}

// awaitNodes waits until a job runs. started is false if it ended before.
func (r *stepRun) awaitNodes(ctx context.Context, id job.ID) (started bool, err error) {
	said, done := false, false
	for {
		err := r.client.Watch(ctx, &api.Query{IDs: []job.ID{id}}, func(e *api.Event) bool {
			j := e.Job
			if j == nil || j.ID != id {
				return true
			}
			switch {
			case j.State == job.Pending:
				if !said {
					if r.options.Command == slurm.Salloc {
						r.say("Pending job allocation %s", id)
					}
					r.say("job %s queued and waiting for resources", id)
					said = true
				}
				return true
			case j.State == job.Running:
				started = true
			}
			done = true
			return false
		})
		if done {
			break
		}
		if err != nil && (r.interrupted.Load() || ctx.Err() != nil) {
			return false, interruptedError()
		}
		if err := waitForController(ctx, err); err != nil {
			return false, err
		}
	}
	if said && started {
		r.say("job %s has been allocated resources", id)
	}
	return started, nil
}

// notes prints what the controller has to say beside its answer.
func (r *stepRun) notes(all []string) {
	for _, note := range all {
		r.say("%s", note)
	}
}

// say prints a line of talk, unless that is not wanted.
func (r *stepRun) say(format string, args ...any) {
	if !r.quiet {
		r.tell(format, args...)
	}
}

// tell prints a line that is not to be missed, unless there is a hurry and nobody reads it.
func (r *stepRun) tell(format string, args ...any) {
	r.within(func() {
		r.progress.clear()
		talk(r.env, r.name, format, args...)
	})
}

// within does what may have to wait for who reads this process's output: not for long if
// there is a hurry, and not at all once something waits for too long.
func (r *stepRun) within(write func()) {
	if !r.hurried.Load() {
		write()
		return
	}
	if r.unread.Load() {
		return
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		write()
		r.unread.Store(false)
	}()
	t := time.NewTimer(stuckTime)
	defer t.Stop()
	select {
	case <-done:
	case <-t.C:
		r.unread.Store(true)
	}
}

// stdout and stderr are the process's own, not buffered.
func stdout() io.Writer { return os.Stdout }
func stderr() io.Writer { return os.Stderr }
