package sched

import (
	"testing"

	"github.com/gangway-hpc/gangway/internal/job"
)

// TestLoggedStartOfNonsense: a start from the log that gives what is not there, or not what
// was asked for, is refused and changes nothing.
func TestLoggedStartOfNonsense(t *testing.T) {
	gpu := func(count int64, mask uint64) job.Devices {
		return job.Devices{Name: "gpu", Type: "h100", Count: count, Mask: mask}
	}
	s := cluster(t, 4, 2)
	apply(t, s, job.PartitionSet{Partition: job.Partition{Name: "other", Nodes: []string{"n0000"}}})
	for i, p := range []job.Spec{gpus(1, 1, 100), gpus(3, 1, 100)} {
		apply(t, s, job.Submitted{At: 1, ID: job.ID(i + 1), Spec: p})
	}
	for name, change := range map[string]func(*job.Started, *job.NodeShare){
		"negative CPUs":           func(_ *job.Started, n *job.NodeShare) { n.CPUs = -5 },
		"CPUs that wrap":          func(_ *job.Started, n *job.NodeShare) { n.CPUs = 1<<32 + 1 },
		"no CPUs":                 func(_ *job.Started, n *job.NodeShare) { n.CPUs = 0 },
		"other CPUs":              func(_ *job.Started, n *job.NodeShare) { n.CPUs = 2 },
		"negative memory":         func(_ *job.Started, n *job.NodeShare) { n.Memory = -7 },
		"negative tasks":          func(_ *job.Started, n *job.NodeShare) { n.Tasks = -1 },
		"more devices than count": func(_ *job.Started, n *job.NodeShare) { n.Devices[0].Mask = 255 },
		"a device that is none":   func(_ *job.Started, n *job.NodeShare) { n.Devices[0].Mask = 1 << 40 },
		"no number of a device":   func(_ *job.Started, n *job.NodeShare) { n.Devices[0].Mask = 0 },
		"a device twice":          func(_ *job.Started, n *job.NodeShare) { n.Devices = []job.Devices{gpu(1, 1), gpu(1, 1)} },
		"devices below none":      func(_ *job.Started, n *job.NodeShare) { n.Devices[0].Count = -1 },
		"devices that wrap":       func(_ *job.Started, n *job.NodeShare) { n.Devices[0].Count = 1 << 32 },
		"other devices":           func(_ *job.Started, n *job.NodeShare) { n.Devices[0] = gpu(2, 3) },
		"nothing":                 func(_ *job.Started, n *job.NodeShare) { *n = job.NodeShare{Node: n.Node} },
		"part of a gang":          func(e *job.Started, _ *job.NodeShare) { e.ID = 2 },
		"another partition":       func(e *job.Started, _ *job.NodeShare) { e.Allocation.Partition = "other" },
		"another limit":           func(e *job.Started, _ *job.NodeShare) { e.Allocation.Limit = 1e6 },
	} {
		e := startOf(1, "n0003", 1)
		change(&e, &e.Allocation.Nodes[0])
		if err := s.Apply(e); err == nil {
			t.Fatalf("%s was accepted", name)
		}
		if err := s.Check(); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	if err := s.Apply(job.Killed{At: 1, ID: 1, State: 99}); err == nil {
		t.Error("it was killed into a state that is none")
	}
	apply(t, s, startOf(1, "n0003", 1))
}

// TestNodesOfAnotherPartition: a start from the log is on nodes of its partition.
func TestNodesOfAnotherPartition(t *testing.T) {
	s := cluster(t, 4, 2)
	apply(t, s, job.PartitionSet{Partition: job.Partition{Name: "other", Nodes: []string{"n0000"}}})
	p := gpus(1, 1, 100)
	p.Partitions = []string{"other", "main"}
	apply(t, s, job.Submitted{At: 1, ID: 1, Spec: p})
	e := startOf(1, "n0003", 1)
	e.Allocation.Partition = "other"
	if err := s.Apply(e); err == nil {
		t.Error("it was accepted")
	}
	e.Allocation.Partition = "main"
	apply(t, s, e)
}

// TestLoggedStartElsewhere: a start from the log is on the nodes that a job names, with the
// features that it counts, near enough to each other, and with all of its tasks.
func TestLoggedStartElsewhere(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*job.Spec)
		nodes  []string // that will not do
		good   []string
	}{
		"nodelist": {func(p *job.Spec) { p.NodeList = []string{"n0003"} }, []string{"n0000", "n0001"}, []string{"n0000", "n0003"}},
		"level":    {func(p *job.Spec) { p.Topology.Required = 1 }, []string{"n0001", "n0002"}, []string{"n0002", "n0003"}},
		"switches": {func(p *job.Spec) { p.Topology = job.Topology{Switches: 1, Wait: job.Forever} }, []string{"n0001", "n0002"}, []string{"n0000", "n0001"}},
		"segment":  {func(p *job.Spec) { p.Topology.Segment = 2 }, []string{"n0001", "n0002"}, []string{"n0000", "n0001"}},
		"block":    {func(p *job.Spec) { p.Topology.Block = true }, []string{"n0003", "n0004"}, []string{"n0001", "n0002"}},
		"counted": {func(p *job.Spec) {
			p.Constraint = &job.Constraint{And: []*job.Constraint{{Feature: "odd", Count: 1}, {Feature: "even", Count: 1}}}
		}, []string{"n0001", "n0003"}, []string{"n0000", "n0003"}},
		"tasks": {func(p *job.Spec) { p.Tasks = 2 }, nil, []string{"n0000", "n0003"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := cluster(t, 5, 2)
			for i, n := range s.nodes[:4] {
				spec := *n.spec
				spec.Block, spec.Features = []string{"a", "b"}[i/2], []string{[]string{"even", "odd"}[i%2]}
				apply(t, s, job.NodeSet{Node: spec})
			}
			p := gpus(2, 1, 100)
			c.change(&p)
			apply(t, s, job.Submitted{At: 1, ID: 1, Spec: p})
			start := func(nodes []string) job.Started {
				e := startOf(1, nodes[0], 1)
				e.Allocation.Nodes = append(e.Allocation.Nodes, startOf(1, nodes[1], 1).Allocation.Nodes...)
				return e
			}
			if c.nodes == nil {
				e := start(c.good)
				e.Allocation.Nodes[1].Tasks = 7
				if err := s.Apply(e); err == nil {
					t.Error("8 tasks of 2 were accepted")
				}
			} else if err := s.Apply(start(c.nodes)); err == nil {
				t.Errorf("%v was accepted", c.nodes)
			}
			apply(t, s, start(c.good))
		})
	}
}
