package sched

import (
	"reflect"
	"testing"

	"github.com/gangway-hpc/gangway/internal/job"
)

// TestPromisedOnce: a job that gets a better place twice in one decision is promised them
// in two events, so that it does not matter in which order one event is read.
func TestPromisedOnce(t *testing.T) {
	s := cluster(t, 2, 2)
	on := func(node string, spec job.Spec) job.Spec {
		spec.NodeList = []string{node}
		return spec
	}
	for i, spec := range []job.Spec{
		on("n0000", gpus(1, 8, 300)), on("n0001", gpus(1, 7, 200)), on("n0001", gpus(1, 1, 51)),
		gpus(2, 8, 160), on("n0001", gpus(1, 8, 50)),
	} {
		apply(t, s, job.Submitted{At: 1, ID: job.ID(i + 1), Spec: spec})
	}
	decide(t, s, 1)
	for id := range job.ID(2) {
		apply(t, s, job.Ended{At: 2, ID: id + 1, State: job.Completed})
	}
	// Job 4 comes behind job 5's place, then that one moves to where the third ends, and job 4
	// behind it.
	want := []job.Event{
		job.Promised{At: 2, Starts: []job.Promise{{ID: 4, Start: 251}, {ID: 5, Start: 52}}},
		job.Promised{At: 2, Starts: []job.Promise{{ID: 4, Start: 102}}},
	}
	if got := decide(t, s, 2); !reflect.DeepEqual(got, want) {
		t.Errorf("decided\n%+v\nnot\n%+v", got, want)
	}
}
