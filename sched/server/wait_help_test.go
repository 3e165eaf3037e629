package server

import (
	"fmt"
	"time"

	"github.com/gangway-hpc/gangway/internal/api"
	"github.com/gangway-hpc/gangway/internal/job"
)

func (w *world) job(id job.ID) *api.Job {
	w.t.Helper()
	var j api.Job
	w.get("/v1/jobs/"+id.String(), &j)
	return &j
}

func (w *world) waitState(id job.ID, want job.State) *api.Job {
	w.t.Helper()
	var j *api.Job
	w.until(fmt.Sprintf("job %v is %v", id, want), func() bool {
		j = w.job(id)
		return j.State == want
	})
	return j
}

// until waits for something, for a while.
func (w *world) until(what string, f func() bool) {
	w.t.Helper()
	for end := time.Now().Add(20 * time.Second); !f(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			w.t.Fatalf("after 20 s it is still not so that %s", what)
		}
	}
}

// started is how often each step was started, on all nodes.
func (w *world) started() map[job.StepKey]int {
	all := map[job.StepKey]int{}
	for _, a := range w.agents {
		a.mu.Lock()
		for k, n := range a.starts {
			all[k] += n
		}
		a.mu.Unlock()
	}
	return all
}

// runFor has all steps to come run for a time; 0: until they are told to end.
func (w *world) runFor(d time.Duration) {
	for _, a := range w.agents {
		a.mu.Lock()
		a.script = func(*job.StepSpec) fakeStep { return fakeStep{runs: d} }
		a.mu.Unlock()
	}
}
