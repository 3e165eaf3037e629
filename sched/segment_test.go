package sched

import (
	"fmt"
	"strings"
	"testing"

	"github.com/gangway-hpc/gangway/internal/job"
)

// TestSegmentWithoutNodes: a segment with tasks, and no number of nodes, is on whole segments,
// or refused with what could be. What is accepted has an expected start, and starts then.
func TestSegmentWithoutNodes(t *testing.T) {
	for _, c := range []struct {
		tasks, segment, most int
		nodes                int    // that it has
		refused              string // in place of that: the nearest
	}{
		{tasks: 1, segment: 1, nodes: 1},
		{tasks: 1, segment: 2, refused: "--segment=1"},
		{tasks: 2, segment: 2, nodes: 2},
		{tasks: 3, segment: 2, nodes: 2},
		{tasks: 3, segment: 4, refused: "--segment=3"},
		{tasks: 4, segment: 2, nodes: 2},
		{tasks: 5, segment: 2, nodes: 4}, // three would do
		{tasks: 5, segment: 3, nodes: 3},
		{tasks: 5, segment: 2, most: 3, refused: "--segment=1"},
		{tasks: 7, segment: 3, refused: "--segment=2"}, // on four nodes
		{tasks: 8, segment: 4, nodes: 4},
	} {
		t.Run(fmt.Sprintf("%+v", c), func(t *testing.T) {
			s := New()
			var names []string
			for i := range 4 {
				n := job.Node{Name: fmt.Sprintf("n%d", i), CPUs: 8, Block: "b"}
				names = append(names, n.Name)
				apply(t, s, job.NodeSet{Node: n})
			}
			apply(t, s, job.PartitionSet{Partition: job.Partition{Name: "p", Nodes: names, MaxNodes: c.most}})
			spec := job.Spec{Tasks: c.tasks, CPUsPerTask: 4, TimeLimit: 100, Topology: job.Topology{Segment: c.segment}}
			apply(t, s, job.Submitted{At: 1, ID: 1, Spec: job.Spec{MinNodes: 2, Exclusive: true, TimeLimit: 100}})
			apply(t, s, job.Submitted{At: 1, ID: 2, Spec: job.Spec{MinNodes: 2, Exclusive: true, TimeLimit: 100}})
			err := s.Apply(job.Submitted{At: 1, ID: 3, Spec: spec})
			if c.refused != "" {
				if err == nil || !strings.Contains(err.Error(), "segment") || !strings.Contains(err.Error(), c.refused+")") {
					t.Errorf("%v, want to be told %s", err, c.refused)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			decide(t, s, 1)
			if v, _ := s.Job(3); v.Expected != 101 {
				t.Errorf("it is expected at %d", v.Expected)
			}
			for id := range job.ID(2) {
				apply(t, s, job.Ended{At: 50, ID: id + 1, State: job.Completed})
			}
			decide(t, s, 50)
			if v, _ := s.Job(3); v.State != job.Running || len(v.Allocation.Nodes) != c.nodes {
				t.Errorf("it is %v on %+v", v.State, v.Allocation)
			}
		})
	}
}
