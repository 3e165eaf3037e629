package sched

import (
	"testing"

	"github.com/gangway-hpc/gangway/internal/job"
)

// TestGangStartsOnAnotherNode: a gang is planned on a node that is idle and one that is busy.
// Another node becomes idle: it starts on that, though the node that it has set aside for
// itself is free until then only.
func TestGangStartsOnAnotherNode(t *testing.T) {
	s := cluster(t, 3, 3)
	for i, p := range []job.Spec{gpus(1, 8, 100), gpus(1, 8, 200), gpus(2, 8, 100)} {
		apply(t, s, job.Submitted{At: 1, ID: job.ID(i + 1), Spec: p})
	}
	decide(t, s, 1)
	if v, _ := s.Job(3); v.Expected != 101 {
		t.Fatalf("job 3 is expected at %d", v.Expected)
	}
	apply(t, s, job.Ended{At: 50, ID: 2, State: job.Completed})
	decide(t, s, 50)
	if v, _ := s.Job(3); v.State != job.Running {
		t.Errorf("job 3 is %v, expected at %d; two of three nodes are idle", v.State, v.Expected)
	}
}
