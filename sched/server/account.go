package server

import (
	"encoding/json"
	"slices"

	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/internal/store"
)

// account notes the end of a run for the accounting.
func (c *core) account(r *run, f fate) {
	v := c.jobView(r.Of.Job)
	if v == nil || f.Unstored {
		return
	}
	c.fillRun(v, r)
	v.State, v.End, v.Attempt, v.Phase, v.Reason = f.State, c.now, r.Of.Attempt, "", "None"
	v.Exit, v.Signal, v.Fault, v.Failed, v.FailedRanks = f.Exit, f.Signal, f.Fault, f.Failed, f.FailedRanks
	v.CancelledBy, v.Requeued = f.By, f.Requeue
	v.Spec, v.Expected = nil, 0
	data, err := json.Marshal(v)
	if err != nil {
		c.log.Error("account job", "job", r.Of.Job, "err", err)
		return
	}
	row := store.JobRow{
		Job: v.ID, Array: v.ID, Attempt: r.Of.Attempt, UID: v.UID, User: v.User, Account: v.Account, Partition: v.Partition,
		Name: v.Name, State: f.State, Submit: v.Submit, Start: v.Start, End: c.now, Nodes: v.NodeList, Data: data,
	}
	if v.Array != nil {
		row.Array = v.Array.Job
	}
	c.out.batch.Jobs = append(c.out.batch.Jobs, row)
}

// accountPending notes the end of a job that did not run.
func (c *core) accountPending(id job.ID) {
	v := c.jobView(id)
	if v == nil || !v.State.Done() || c.nobodys(id) {
		return
	}
	v.Spec = nil
	data, err := json.Marshal(v)
	if err != nil {
		c.log.Error("account job", "job", id, "err", err)
		return
	}
	row := store.JobRow{
		Job: v.ID, Array: v.ID, UID: v.UID, User: v.User, Account: v.Account, Partition: v.Partition, Name: v.Name, State: v.State,
		Attempt: v.Attempt + 1, Submit: v.Submit, Start: v.Start, End: v.End, Data: data,
	}
	if v.Array != nil {
		row.Array = v.Array.Job
	}
	c.out.batch.Jobs = append(c.out.batch.Jobs, row)
}

// accountStep notes the end of a step for the accounting.
func (c *core) accountStep(r *run, st *step) {
	if c.nobodys(r.Of.Job) {
		return
	}
	v := c.stepView(st, true)
	for i := range v.Ends {
		v.Ends[i].Ranks = slices.Clone(v.Ends[i].Ranks)
		for k := range v.Ends[i].Ranks {
			v.Ends[i].Ranks[k].Tail = nil // the first one that failed is kept
		}
	}
	data, err := json.Marshal(v)
	if err != nil {
		c.log.Error("account step", "step", st.Spec.Key, "err", err)
		return
	}
	c.out.batch.Steps = append(c.out.batch.Steps, store.StepRow{Key: st.Spec.Key, Data: data})
}
