package server

import (
	"fmt"
	"net/http"

	"github.com/gangway-hpc/gangway/internal/api"
	"github.com/gangway-hpc/gangway/internal/job"
)

// postPlan says what would change, without changing anything.
func (s *Server) postPlan(_ http.ResponseWriter, r *http.Request) (any, error) {
	who, refused := s.who(r)
	if refused != nil {
		return nil, refused
	}
	var q api.PlanRequest
	if err := body(r, &q); err != nil {
		return nil, err
	}
	return ask(s, r, func(c *core) (api.Plan, error) { return c.plan(who, &q) })
}

func (c *core) plan(who identity, q *api.PlanRequest) (api.Plan, error) {
	plan := api.Plan{Page: api.Page[api.PlanChange]{Now: c.now}}
	var events []job.Event
	for _, name := range q.Drain {
		n := c.nodes[name]
		if n == nil {
			return plan, noNode(name)
		}
		events = append(events, job.NodeStateSet{At: c.now, Node: name, State: n.state | job.NodeDrain, Reason: "plan"})
	}
	for _, id := range q.Cancel {
		more, frees, err := c.planCancel(id)
		if err != nil {
			return plan, err
		}
		events, plan.Frees = append(events, more...), append(plan.Frees, frees...)
	}
	if q.Submit != nil {
		spec := *q.Submit
		spec.UID, spec.User, spec.Groups = who.uid, who.name(), who.groups()
		events = append(events, job.Submitted{At: c.now, ID: c.last + 1, Spec: spec})
	}
	changes, err := c.sched.WhatIf(c.now, events...)
	if err != nil {
		return plan, refusedJob(err)
	}
	for _, d := range changes {
		change := api.PlanChange{ID: d.ID, Was: d.Was, Now: d.Now}
		if d.ID > c.last {
			change.ID, change.Was = 0, 0
		}
		plan.Items = append(plan.Items, change)
	}
	return plan, nil
}

// planCancel is what cancelling a job, or all tasks of an array, comes to: the events, and
// what they give back.
func (c *core) planCancel(id job.ID) (events []job.Event, frees []api.Freed, err error) {
	known := false
	for _, one := range c.tasksOf(id) {
		v, ok := c.sched.Job(one)
		if known = known || ok; !ok || v.State.Done() {
			continue
		}
		if v.State != job.Completing { // that one was cancelled already, and has to end
			events = append(events, job.Cancelled{At: c.now, ID: one})
		}
		if v.State == job.Pending {
			continue
		}
		events = append(events, job.Ended{At: c.now, ID: one, State: job.CancelledState})
		freed := api.Freed{ID: one, Shares: v.Allocation.Nodes, Until: v.Start.Add(v.Allocation.Limit)}
		if r := c.runs[one]; r != nil {
			freed.Shares, freed.Until = r.Alloc.Nodes, r.Start.Add(r.Alloc.Limit)
		}
		frees = append(frees, freed)
	}
	switch {
	case !known:
		return nil, nil, &api.Error{What: fmt.Sprintf("job %v: Invalid job id specified", id), Kind: "INVALID_JOB_ID"}
	case len(events) == 0:
		return nil, nil, &api.Error{What: fmt.Sprintf("plan to cancel job %v: it has ended", id), Kind: "ALREADY_DONE"}
	}
	return events, frees, nil
}
