package server

import (
	"testing"

	"github.com/gangway-hpc/gangway/internal/api"
	"github.com/gangway-hpc/gangway/internal/job"
)

// TestEndingJobLosesNode: a job that is ending and loses a node, or has it taken down, ends as it
// was to end: it is not run anew.
func TestEndingJobLosesNode(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]struct {
		begin func(w *world, id job.ID, agent *fakeAgent)
		state job.State
	}{
		"cancelled": {func(w *world, id job.ID, _ *fakeAgent) {
			w.do("DELETE", "/v1/jobs/"+id.String(), nil, nil)
		}, job.CancelledState},
		"its script has ended": {func(_ *world, id job.ID, agent *fakeAgent) {
			agent.mu.Lock()
			defer agent.mu.Unlock()
			agent.finish(job.StepKey{Job: id, Attempt: 1, Step: job.BatchStep, Try: 1}, 0)
		}, job.Completed},
		"its time is up": {func(w *world, id job.ID, _ *fakeAgent) {
			_ = w.server.do(w.t.Context(), func(c *core) { c.finish(c.runs[id], fate{State: job.Timeout}) })
		}, job.Timeout},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 2)
			w.runFor(0)
			id := w.submit(1, func(q *api.Submit) { q.Spec.Requeue = true })
			agent := w.agents[w.waitState(id, job.Running).NodeList[0]]
			w.until("it runs", func() bool { return len(w.started()) == 1 })
			s := w.step(id, stepRequest(1, 1))
			w.until("its step runs", func() bool { return w.started()[s.Key] == 1 })
			agent.mu.Lock()
			agent.deaf = true // what it is told to end goes on
			agent.mu.Unlock()
			end.begin(w, id, agent)
			w.until("it is ending", func() bool {
				ending := false
				_ = w.server.do(t.Context(), func(c *core) { ending = c.runs[id] == nil || c.runs[id].Fate != nil })
				return ending
			})
			w.do("POST", "/v1/nodes/"+agent.node.Name, &api.Change{State: "down", Reason: "smoke"}, nil)
			w.waitState(id, end.state)
			w.restart()
			if j := w.job(id); j.State != end.state || j.Attempt != 1 {
				t.Errorf("after a restart it is %v, attempt %d", j.State, j.Attempt)
			}
			var page api.Page[api.Past]
			w.get("/v1/history?ids="+id.String(), &page)
			if len(page.Items) != 1 || page.Items[0].Job.State != end.state || len(page.Items[0].Steps) != 2 {
				t.Errorf("accounting has %+v", page.Items)
			}
		})
	}
}
