package sched

import (
	"testing"

	"github.com/gangway-hpc/gangway/internal/job"
)

// TestArrayAtOnce: the tasks of a large array get the places that they would get one after
// the other, and who replays the log comes to the same.
func TestArrayAtOnce(t *testing.T) {
	const n = 3 * manyArrivals
	var log []job.Event
	one, all, replayed := cluster(t, 3, 2), cluster(t, 3, 2), cluster(t, 3, 2)
	array := gpus(1, 3, 100)
	array.Array = &job.Array{Tasks: []job.Range{{First: 0, Last: n - 1, Step: 1}}}
	for _, e := range []job.Event{job.Submitted{At: 1, ID: 1, Spec: gpus(2, 8, 50)}, job.Submitted{At: 1, ID: 2, Spec: array}} {
		apply(t, all, e)
		log = append(log, e)
	}
	log = append(log, decide(t, all, 1)...)
	apply(t, one, job.Submitted{At: 1, ID: 1, Spec: gpus(2, 8, 50)})
	for id := job.ID(2); id < n+2; id++ {
		apply(t, one, job.Submitted{At: 1, ID: id, Spec: gpus(1, 3, 100)})
		one.Decide(1)
	}
	for _, e := range log {
		apply(t, replayed, e)
	}
	if all.Hash() != replayed.Hash() {
		t.Error("the replay has another hash")
	}
	for id := job.ID(1); id < n+2; id++ {
		a, _ := one.Job(id)
		for what, s := range map[string]*Scheduler{"at once": all, "replayed": replayed} {
			if b, _ := s.Job(id); a.State != b.State || a.Start != b.Start || a.Expected != b.Expected {
				t.Fatalf("%s job %v is %v, from %d, expected at %d, not %v, %d, %d", what, id, b.State, b.Start, b.Expected, a.State, a.Start, a.Expected)
			}
		}
	}
}

// TestThrottledArray: as many tasks run as may, in their order, until all are over; one that
// was held comes when it is released. Looking at
// all tasks at each end would take many times as long.
func TestThrottledArray(t *testing.T) {
	const n = 20000
	s := cluster(t, 1, 2)
	apply(t, s, job.Configured{Config: job.Config{MaxArray: n}})
	spec := gpus(1, 1, 100)
	spec.Array = &job.Array{Tasks: []job.Range{{First: 0, Last: n - 1, Step: 1}}, Throttle: 4}
	apply(t, s, job.Submitted{At: 1, ID: 1, Spec: spec})
	apply(t, s, job.Held{At: 1, ID: 2})
	over := map[job.ID]bool{}
	for now := job.Time(1); len(over) < n; now++ {
		s.Decide(now)
		var ids []job.ID
		for v := range s.Running {
			ids = append(ids, v.ID)
		}
		if len(ids) != min(4, n-len(over)) {
			t.Fatalf("at %d, after %d tasks, %v run", now, len(over), ids)
		}
		if now == 100 {
			apply(t, s, job.Released{At: now, ID: 2})
		}
		if now == 102 && !over[2] {
			t.Error("the task that was released has not run")
		}
		for _, id := range ids {
			over[id] = true
			apply(t, s, job.Ended{At: now, ID: id, State: job.Completed})
		}
	}
	if err := s.Check(); err != nil {
		t.Error(err)
	}
}
