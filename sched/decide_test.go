package sched

import (
	"testing"

	"github.com/gangway-hpc/gangway/internal/job"
)

// TestWaitForSwitchesEndsAfterANodeChanged: a job whose wait is over is in one queue, also if
// the index of nodes was not up to date then.
func TestWaitForSwitchesEndsAfterANodeChanged(t *testing.T) {
	s := cluster(t, 2, 2)
	near := gpus(2, 8, 100)
	near.Topology = job.Topology{Switches: 1, Wait: 10}
	for i, p := range []job.Spec{gpus(1, 1, 100), near} {
		apply(t, s, job.Submitted{At: 1, ID: job.ID(i + 1), Spec: p})
	}
	decide(t, s, 1)
	apply(t, s, job.NodeSet{At: 2, Node: job.Node{Name: "n0001", CPUs: 64}})
	apply(t, s, job.Ended{At: 20, ID: 1, State: job.Completed})
	if err := s.Check(); err != nil {
		t.Error(err)
	}
}
