package server

import (
	"fmt"
	"maps"
	"slices"

	"github.com/gangway-hpc/gangway/internal/api"
	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/internal/slurm"
)

// Spans of a job's end.
const (
	killWait    = 30 * job.Second // between TERM and KILL, as Slurm's KillWait
	cleanSpan   = 60 * job.Second // that nodes have to clean up
	holderSpan  = 15 * job.Second // that an allocation outlives its holder
	maxAttempts = 3               // of jobs that could not be prepared, and tries of steps
)

// present is what is known of a run, but is not state: after a restart it is found again.
type present struct {
	killed    bool     // its steps were told to end
	releasing bool     // its nodes were told to clean up
	cleanBy   job.Time // then the nodes are given on anyway
	waiting   []*stepWait
	lost      []job.StepID // steps that ran when it lost a node
	entering  bool         // its nodes were told to run the prolog
	entered   map[string]bool
}

// holding is who holds allocations.
type holding struct {
	count int
	gone  job.Time // since when there is none; 0: there is one
}

// drive sees to a run: what follows from how things are is done. It may be called at any
// time.
func (c *core) drive(r *run) {
	if c.runs[r.Of.Job] != r {
		return
	}
	for _, id := range sortedSteps(r.Steps) {
		if st := r.Steps[id]; st != nil {
			c.driveStep(r, st)
		}
	}
	if r.Fate == nil {
		c.driveLimits(r)
	}
	switch {
	case r.Fate == nil:
		c.enter(r)
		c.ensureBatch(r)
		c.driveWaiting(r)
	case len(r.Steps) > 0:
		c.killSteps(r)
	default:
		c.release(r)
	}
}

func sortedSteps(steps map[job.StepID]*step) []job.StepID {
	ids := make([]job.StepID, 0, len(steps))
	for id := range steps {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

// driveLimits ends a run whose time is up, and warns it, or those of its steps that want it,
// before.
func (c *core) driveLimits(r *run) {
	end := r.Start.Add(r.Alloc.Limit)
	if c.now >= end {
		c.log.Info("time limit", "job", r.Of.Job)
		c.finish(r, fate{State: job.Timeout, Fault: &job.Fault{What: "the time limit was reached"}})
		return
	}
	due := func(p *job.Program) bool { return p != nil && p.Signal != "" && c.now >= end.Add(-p.SignalBefore) }
	p := r.Facts.Program
	e := jobWarned{At: c.now, ID: r.Of.Job, Whole: due(p) && !r.Warned}
	for _, id := range sortedSteps(r.Steps) {
		st := r.Steps[id]
		switch own := &st.Spec.Program; {
		case e.Whole && (id == job.BatchStep) == p.SignalBatch:
			c.warn(st, p.Signal)
		case id >= 0 && due(own) && !st.Warned:
			e.Steps = append(e.Steps, id)
			c.warn(st, own.Signal)
		}
	}
	if e.Whole || len(e.Steps) > 0 {
		c.emit(e)
	}
}

// warn sends a step the signal that it gets before the end of its time.
func (c *core) warn(st *step, name string) {
	n, err := slurm.ParseSignal(name)
	if err != nil {
		c.log.Error("signal before the end of a job", "step", st.Spec.Key, "err", err)
		return
	}
	c.signalStep(st, int(n), true)
}

// finish begins the end of a run. What was decided first counts.
func (c *core) finish(r *run, f fate) {
	if r.Fate != nil {
		return
	}
	c.emit(jobEnding{At: c.now, ID: r.Of.Job, Fate: f})
	for _, w := range r.now.waiting {
		w.answer(nil, &api.Error{What: fmt.Sprintf("job %v is ending", r.Of.Job), Kind: "ALREADY_DONE"})
	}
	r.now.waiting = nil
	c.touch(r.Of.Job)
}

// killSteps tells the steps of a run that ends to end: with grace where the run had to be
// ended, at once where it ended by itself and they are left over.
func (c *core) killSteps(r *run) {
	if r.now.killed {
		return
	}
	r.now.killed = true
	grace := killWait
	if r.Fate.State == job.Completed || r.Fate.State == job.Failed {
		grace = 2 * job.Second
	}
	for _, id := range sortedSteps(r.Steps) {
		c.act(r, r.Steps[id], r.Steps[id].Gang.stop(grace, r.Fate.order()))
		c.watch.step(r, r.Steps[id])
	}
}

// release has all nodes of a run cleaned, and then ends it.
func (c *core) release(r *run) {
	if !r.now.releasing {
		r.now.releasing, r.now.cleanBy = true, c.now.Add(cleanSpan)
		for i := range r.Alloc.Nodes {
			c.soil(r.Alloc.Nodes[i].Node, r.Of)
			c.sendRelease(r.Alloc.Nodes[i].Node, r.Of)
		}
	}
	left := c.unclean(r)
	if len(left) > 0 && (c.now < r.now.cleanBy || c.waitsForEpilog(left)) {
		return
	}
	if len(left) > 0 {
		c.log.Warn("nodes are given on without having said that they are clean", "job", r.Of.Job, "nodes", left)
	}
	c.end(r)
}

// unclean are the nodes of a run on which something of it may be left.
func (c *core) unclean(r *run) []string {
	var left []string
	for i := range r.Alloc.Nodes {
		if name := r.Alloc.Nodes[i].Node; slices.Contains(c.dirty[name], r.Of) {
			left = append(left, name)
		}
	}
	return left
}

// endOn ends the runs that are ending and have a node that is taken down: as they were to
// end, and before the scheduler takes them for runs that go on, which would begin anew.
func (c *core) endOn(node string) {
	for _, id := range slices.Sorted(maps.Keys(c.runs)) {
		r := c.runs[id]
		if r.Fate == nil || !r.on(node) {
			continue
		}
		c.killSteps(r)
		for _, step := range sortedSteps(r.Steps) {
			st := r.Steps[step]
			for n := range st.Gang.each {
				c.emit(nodeEnded{At: c.now, End: job.StepEnd{Key: st.Spec.Key, Node: n.Name, Start: st.Begun, End: c.now, Fault: &job.Fault{
					What: "node " + node + " was lost while the step was ended", Node: true,
				}}})
			}
			c.driveStep(r, st)
		}
		c.release(r)
		if c.runs[id] == r {
			c.end(r)
		}
	}
}

// end is the end of a run, or of an attempt of it. Nodes that are not clean by then are cleaned
// before others start there.
func (c *core) end(r *run) {
	left := c.unclean(r)
	c.conclude(r)
	for _, name := range left {
		c.emit(nodeSoiled{At: c.now, Node: name, Of: r.Of})
	}
}

func (c *core) conclude(r *run) {
	f, id := r.Fate, r.Of.Job
	c.account(r, *f)
	if !f.Requeue {
		if err := c.apply(job.Ended{At: c.now, ID: id, State: f.State, Exit: f.code()}); err != nil {
			c.log.Error("end job", "job", id, "err", err)
		}
		c.watch.job(id)
		return
	}
	if err := c.apply(job.Requeue{At: c.now, ID: id, Hold: f.Hold}); err != nil {
		c.log.Error("requeue job", "job", id, "err", err)
		return
	}
	switch {
	case len(f.Exclude) > 0:
		c.exclude(id, f)
	case f.State == job.CancelledState: // somebody asked for it
		c.forgive(id)
	}
	c.touch(id)
}

// exclude keeps a job that waits again away from nodes. Where that leaves it nowhere to
// run it fails with the cause.
func (c *core) exclude(id job.ID, f *fate) {
	v, ok := c.sched.Job(id)
	if !ok {
		return
	}
	spec := *v.Spec
	spec.Exclude = slices.Clone(spec.Exclude)
	for _, name := range f.Exclude {
		if !slices.Contains(spec.Exclude, name) {
			spec.Exclude = append(spec.Exclude, name)
		}
	}
	if err := c.apply(job.Changed{At: c.now, ID: id, Spec: spec}); err == nil {
		return
	}
	if err := c.apply(job.Killed{At: c.now, ID: id, State: job.Failed, Cause: "it cannot run without the nodes that failed"}); err != nil {
		c.log.Error("end job", "job", id, "err", err)
		return
	}
	last := *f
	last.Requeue, last.State = false, job.Failed
	c.emit(jobFate{At: c.now, ID: id, Fate: last})
	c.accountPending(id)
}

// forgive lets a job that a person requeued have the nodes again that it failed on: who asked
// has seen to the cause.
func (c *core) forgive(id job.ID) {
	v, ok := c.sched.Job(id)
	asked := c.submission(id).Facts.Exclude
	if !ok || slices.Equal(v.Spec.Exclude, asked) {
		return
	}
	spec := *v.Spec
	spec.Exclude = slices.Clone(asked)
	if err := c.apply(job.Changed{At: c.now, ID: id, Spec: spec}); err != nil {
		c.log.Error("let job have all nodes again", "job", id, "err", err)
	}
}

// code is the exit code of the job as the scheduler keeps it: 0 is for success only.
func (f *fate) code() int {
	if f.Exit == 0 && f.Signal != 0 {
		return 128 + f.Signal
	}
	return f.Exit
}

// order is the reason for which the steps of a run are ended that has this fate.
func (f *fate) order() string {
	switch {
	case f.State == job.Timeout:
		return job.EndTimeLimit
	case f.State == job.NodeFailed:
		return job.EndNodeFailure
	case f.Requeue:
		return job.EndRequeue
	}
	return job.EndCancelled
}

// lostRun sees to a run that the scheduler has ended because of its nodes: what is left of
// it is cleaned before anything else starts there.
func (c *core) lostRun(r *run) {
	if r == nil {
		return
	}
	for _, w := range r.now.waiting {
		w.answer(nil, &api.Error{What: fmt.Sprintf("job %v has lost a node", r.Of.Job), Kind: "NODE_FAIL"})
	}
	for _, st := range r.Done {
		if slices.Contains(r.now.lost, st.Spec.Key.Step) {
			for n := range st.Gang.each { // before its node is told to clean up: it says why
				c.sendKill(st, action{node: n.Name, why: r.Fate.order()})
			}
			c.accountStep(r, st)
			c.watch.step(r, st)
		}
	}
	c.account(r, *r.Fate)
	for i := range r.Alloc.Nodes {
		c.sendRelease(r.Alloc.Nodes[i].Node, r.Of)
	}
}

// ensureBatch makes the batch step of a job that has a program.
func (c *core) ensureBatch(r *run) {
	if r.Facts.Program == nil || r.Steps[job.BatchStep] != nil || c.deferred(r) {
		return
	}
	for _, st := range r.Done {
		if st.Spec.Key.Step == job.BatchStep {
			return
		}
	}
	share := &r.Alloc.Nodes[0]
	p := *r.Facts.Program
	spec := c.stepSpec(r, job.BatchStep, 1)
	spec.Name, spec.Tasks, spec.Overlap, spec.Program = "batch", 1, true, p
	spec.Nodes = []job.StepNode{c.stepNode(share)}
	spec.Nodes[0].Ranks = []int{0}
	spec.Image = c.imageFor(spec, "")
	c.make(r, stepMade{At: c.now, Spec: spec, Env: r.Facts.Env, Text: r.Facts.Text})
}

// batchDone is the end of the batch step: it ends the job.
func (c *core) batchDone(r *run, st *step) {
	res := st.Result
	f := fate{State: res.State, Exit: res.Exit, Signal: res.Signal, Fault: res.Fault, Failed: res.Failed, FailedRanks: res.FailedRanks}
	if res.Fault != nil && res.Fault.Node {
		v, _ := c.sched.Job(r.Of.Job)
		began := res.Start > 0
		switch {
		case !began && r.Of.Attempt < maxAttempts:
			f.Requeue, f.Exclude = true, c.taking(res.FaultNodes)
		case !began && len(res.FaultNodes) > 0 && len(c.taking(res.FaultNodes)) == 0:
			f.Requeue, f.Hold = true, true // nodes that were drained one after the other
		case began && v.Spec != nil && v.Spec.Requeue:
			f.Requeue = true
		case began:
			f.State = job.NodeFailed
		}
	}
	c.finish(r, f)
}
