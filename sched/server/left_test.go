package server

import (
	"testing"

	"github.com/gangway-hpc/gangway/internal/api"
	"github.com/gangway-hpc/gangway/internal/job"
)

// TestLeftBehind: steps that a script leaves running when it has done its work are ended, and
// have not completed, though their job has.
func TestLeftBehind(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	w.runFor(0)
	batch := job.StepKey{Attempt: 1, Step: job.BatchStep, Try: 1}
	agent := w.agents["n1"]
	agent.mu.Lock()
	agent.script = func(*job.StepSpec) fakeStep { return fakeStep{} } // until they are told to end
	agent.mu.Unlock()
	id := w.submit(1, func(q *api.Submit) { q.Spec.CPUsPerTask = 8 })
	batch.Job = id
	w.until("the script runs", func() bool { return w.started()[batch] == 1 })
	left := w.step(id, stepRequest(1, 1))
	w.until("its step runs", func() bool { return w.started()[left.Key] == 1 })
	agent.mu.Lock()
	agent.finish(batch, 0)
	agent.mu.Unlock()
	w.waitState(id, job.Completed)
	var page api.Page[api.Past]
	w.get("/v1/history", &page)
	if len(page.Items) != 1 || len(page.Items[0].Steps) != 2 {
		t.Fatalf("accounting has %+v", page.Items)
	}
	for _, s := range page.Items[0].Steps {
		want := job.Completed
		if s.Key == left.Key {
			want = job.CancelledState
		}
		if s.State != want {
			t.Errorf("step %s is %s, want %s", s.Key, s.State, want)
		}
	}
}

// TestEndReason: a job that has ended says in a word what was wrong, as clients look it up.
func TestEndReason(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	agent := w.agents["n1"]
	for exit, want := range map[int]string{0: "None", 7: "NonZeroExitCode"} {
		agent.mu.Lock()
		agent.script = func(*job.StepSpec) fakeStep { return fakeStep{runs: 1, exit: exit} }
		agent.mu.Unlock()
		state := job.Completed
		if exit != 0 {
			state = job.Failed
		}
		if j := w.waitState(w.submit(1, nil), state); j.Reason != want {
			t.Errorf("exit %d: the reason is %s, want %s", exit, j.Reason, want)
		}
	}
	for state, want := range map[job.State]string{job.OutOfMemory: "OutOfMemory", job.NodeFailed: "NodeDown", job.Timeout: "TimeLimit", job.CancelledState: "other"} {
		if got := endReason(state, &fate{}, "other"); got != want {
			t.Errorf("%s: %s, want %s", state, got, want)
		}
	}
	if got := endReason(job.Failed, &fate{Fault: &job.Fault{What: "no image"}}, "None"); got != "JobLaunchFailure" {
		t.Errorf("a job without its image: %s", got)
	}
}
