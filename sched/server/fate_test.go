package server

import (
	"testing"

	"github.com/gangway-hpc/gangway/internal/api"
	"github.com/gangway-hpc/gangway/internal/job"
)

// TestCancelOfRequeued: a job that is cancelled while it is ended to run anew does not run
// anew, and who did that is known, also after a restart before and after its end.
func TestCancelOfRequeued(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	w.runFor(0)
	agent := w.agents["n1"]
	for name, restart := range w.again() {
		id := w.submit(1, func(q *api.Submit) { q.Spec.Requeue = true })
		key := job.StepKey{Job: id, Attempt: 1, Step: job.BatchStep, Try: 1}
		w.until("it runs", func() bool { return w.started()[key] == 1 })
		agent.set(func() { agent.dirty = true })
		w.do("POST", "/v1/jobs/"+id.String()+"/requeue", nil, nil)
		w.waitState(id, job.Completing)
		w.do("DELETE", "/v1/jobs/"+id.String(), nil, nil)
		restart()
		agent.set(func() { agent.dirty = false })
		agent.pause(true)
		agent.pause(false)
		for range 2 {
			if j := w.waitState(id, job.CancelledState); j.CancelledBy == "" || j.Attempt != 1 {
				t.Errorf("%s: cancelled by %q in attempt %d", name, j.CancelledBy, j.Attempt)
			}
			restart()
		}
	}
}
