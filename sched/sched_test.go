package sched

import (
	"fmt"
	"testing"

	"github.com/gangway-hpc/gangway/internal/job"
)

// cluster makes a scheduler with n nodes of 8 GPUs below leaves of that many, and one
// partition.
func cluster(t testing.TB, n, perLeaf int) *Scheduler {
	t.Helper()
	s := New()
	var names []string
	for i := range n {
		name := fmt.Sprintf("n%04d", i)
		names = append(names, name)
		apply(t, s, job.NodeSet{Node: job.Node{
			Name: name, CPUs: 64, GRES: []job.GRES{{Name: "gpu", Type: "h100", Count: 8}}, Switch: fmt.Sprintf("leaf%d", i/perLeaf),
		}})
	}
	apply(t, s, job.PartitionSet{Partition: job.Partition{Name: "main", Nodes: names, Default: true}})
	return s
}

func apply(t testing.TB, s *Scheduler, e job.Event) {
	t.Helper()
	if err := s.Apply(e); err != nil {
		t.Fatalf("%#v: %v", e, err)
	}
}

// gpus asks for a number of nodes and GPUs on each.
func gpus(nodes int, perNode int64, limit job.Duration) job.Spec {
	return job.Spec{MinNodes: nodes, GRES: []job.GRESRequest{{Name: "gpu", Count: perNode, Per: job.PerNode}}, TimeLimit: limit}
}

func decide(t testing.TB, s *Scheduler, now job.Time) []job.Event {
	t.Helper()
	out := s.Decide(now)
	if err := s.Check(); err != nil {
		t.Fatal(err)
	}
	return out
}

// TestFirst: a gang has all of its nodes or waits; what it would need is kept for it from
// those behind it, unless they are over by then.
func TestFirst(t *testing.T) {
	s := cluster(t, 4, 2)
	for i, p := range []job.Spec{gpus(3, 8, job.Hour), gpus(2, 8, job.Hour), gpus(1, 1, job.Hour), gpus(1, 8, 2*job.Hour)} {
		apply(t, s, job.Submitted{ID: job.ID(i + 1), Spec: p})
	}
	decide(t, s, 0)
	want(t, s, "1:RUNNING 2:PENDING(Resources) 3:RUNNING 4:PENDING(Priority)")
	if a, _ := s.Job(2); a.Expected != job.Time(1).Add(job.Hour) {
		t.Errorf("job 2 is expected at %d", a.Expected)
	}
	apply(t, s, job.Ended{At: 1000, ID: 1, State: job.Completed})
	decide(t, s, 1000)
	want(t, s, "1:COMPLETED 2:RUNNING 3:RUNNING 4:RUNNING")
}
