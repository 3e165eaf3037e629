package sched

import (
	"fmt"
	"testing"

	"github.com/gangway-hpc/gangway/internal/job"
)

// TestTopologyUnderAPlan: the topology changes after a gang was promised nodes that were near
// to each other. It is not started on what is far from each other now, and the log can be
// replayed.
func TestTopologyUnderAPlan(t *testing.T) {
	near := []string{"n0", "n1"}
	node := func(i int, w, b string) job.Node {
		return job.Node{Name: near[i], CPUs: 8, Switch: w, Block: b}
	}
	together := job.Network{Switches: []job.Switch{{Name: "s0", Nodes: near}}, Blocks: []job.Block{{Name: "b0", Nodes: near}}}
	apart := job.Network{
		Switches: []job.Switch{{Name: "s0", Nodes: near[:1]}, {Name: "s1", Nodes: near[1:]}, {Name: "top", Switches: []string{"s0", "s1"}}},
		Blocks:   []job.Block{{Name: "b0", Nodes: near[:1]}, {Name: "b1", Nodes: near[1:]}},
	}
	ways := map[string][2][]job.Event{
		"network": {{job.NetworkSet{Network: together}}, {job.NetworkSet{At: 2, Network: apart}}},
		"nodes": {
			{job.NodeSet{Node: node(0, "s0", "b0")}, job.NodeSet{Node: node(1, "s0", "b0")}},
			{job.NodeSet{At: 2, Node: node(1, "s1", "b1")}},
		},
	}
	for name, change := range ways {
		for _, topo := range []job.Topology{{Segment: 2}, {Required: 1}, {Switches: 1, Wait: job.Forever}} {
			t.Run(fmt.Sprintf("%s %+v", name, topo), func(t *testing.T) {
				var log []job.Event
				s := New()
				do := func(events ...job.Event) {
					t.Helper()
					for _, e := range events {
						apply(t, s, e)
						log = append(log, e)
					}
				}
				decide := func(now job.Time) {
					t.Helper()
					log = append(log, s.Decide(now)...)
					if err := s.Check(); err != nil {
						t.Fatal(err)
					}
				}
				do(job.NodeSet{Node: node(0, "", "")}, job.NodeSet{Node: node(1, "", "")})
				do(job.PartitionSet{Partition: job.Partition{Name: "p", Nodes: near}})
				do(change[0]...)
				do(job.Submitted{At: 1, ID: 1, Spec: job.Spec{MinNodes: 2, Exclusive: true, TimeLimit: 100}})
				do(job.Submitted{At: 1, ID: 2, Spec: job.Spec{MinNodes: 2, Exclusive: true, TimeLimit: 100, Topology: topo}})
				decide(1)
				if v, _ := s.Job(2); v.Expected != 101 {
					t.Fatalf("job 2 is expected at %d", v.Expected)
				}
				do(change[1]...)
				decide(2)
				if v, _ := s.Job(2); v.Expected != job.Never {
					t.Errorf("after the change job 2 is expected at %d", v.Expected)
				}
				do(job.Ended{At: 101, ID: 1, State: job.Completed})
				decide(101)
				if v, _ := s.Job(2); v.State == job.Running {
					t.Errorf("job 2, which asks for %+v, runs on %+v", topo, v.Allocation)
				}
				r := New()
				for _, e := range log {
					if err := r.Apply(e); err != nil {
						t.Errorf("replay %T: %v", e, err)
					}
				}
			})
		}
	}
}
