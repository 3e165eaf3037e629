package sched

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/gangway-hpc/gangway/internal/job"
)

// bytesOf is a snapshot of s.
func bytesOf(t testing.TB, s *Scheduler) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := s.Snapshot(&b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// busy is a cluster in which everything that can be refused could change something: jobs
// run, are planned, held, of arrays, and over their limit; a partition has just changed.
func busy(t testing.TB) *Scheduler {
	t.Helper()
	s := cluster(t, 4, 2)
	for _, n := range s.nodes {
		spec := *n.spec
		spec.Memory = 1000
		apply(t, s, job.NodeSet{Node: spec})
	}
	shared := *s.parts[0].spec
	shared.MemoryPerNode = 1
	apply(t, s, job.PartitionSet{Partition: shared})
	apply(t, s, job.Configured{Config: job.Config{Licenses: []job.License{{Name: "ansys", Count: 2}}, MaxArray: 1001}})
	array := gpus(1, 2, 50)
	array.Array = &job.Array{Tasks: []job.Range{{First: 0, Last: 3, Step: 1}}, Throttle: 2}
	held := gpus(1, 1, 10)
	held.Hold = true
	late := gpus(1, 1, 10)
	late.Begin, late.Deadline = 500, 900
	for i, p := range []job.Spec{gpus(3, 8, 100), gpus(4, 8, 50), held, late, gpus(1, 8, 60), gpus(1, 8, 60), array} {
		apply(t, s, job.Submitted{At: 1, ID: job.ID(i + 1), Spec: p})
	}
	decide(t, s, 1)
	apply(t, s, job.Ended{At: 40, ID: 5, State: job.Failed, Exit: 1})
	decide(t, s, 40)
	p := *s.parts[0].spec
	p.Priority = 7
	apply(t, s, job.PartitionSet{At: 60, Partition: p})
	return s
}

// TestRefusedEvents: events that are duplicate, in the wrong order, late, unknown or of
// nonsense are refused, and leave the state as it was, to the byte.
func TestRefusedEvents(t *testing.T) {
	for _, now := range []job.Time{60, 101, 110} { // job 1's limit is over at 101
		refusedAt(t, now)
	}
}

func refusedAt(t *testing.T, now job.Time) {
	s := busy(t)
	last := s.last
	node := func(n job.Node) job.Event { n.Name = "n0000"; return job.NodeSet{At: now, Node: n} }
	started := job.Allocation{Partition: "main", Limit: 50, Nodes: []job.NodeShare{{Node: "n0003", Tasks: 1, CPUs: 1}}}
	with := func(change func(*job.Spec)) job.Event {
		p := gpus(1, 1, 10)
		change(&p)
		return job.Submitted{At: now, ID: last + 1, Spec: p}
	}
	for name, e := range map[string]job.Event{
		"a duplicate submission":          job.Submitted{At: now, ID: last, Spec: gpus(1, 1, 1)},
		"an id below":                     job.Submitted{At: now, ID: 2, Spec: gpus(1, 1, 1)},
		"no id":                           job.Submitted{At: now, Spec: gpus(1, 1, 1)},
		"a duplicate end":                 job.Ended{At: now, ID: 5, State: job.Completed},
		"an end before a start":           job.Ended{At: now, ID: 2, State: job.Completed},
		"an end that is none":             job.Ended{At: now, ID: 1, State: job.Running},
		"an end of an unknown state":      job.Ended{At: now, ID: 1, State: 99},
		"an end of an unknown job":        job.Ended{At: now, ID: 99, State: job.Completed},
		"a cancel of an ended job":        job.Cancelled{At: now, ID: 5},
		"a hold of an ended job":          job.Held{At: now, ID: 5},
		"a release of a free running job": job.Released{At: now, ID: 1},
		"a release of a job that is free": job.Released{At: now, ID: 2},
		"a change of a running job":       job.Changed{At: now, ID: 1, Spec: gpus(1, 1, 1)},
		"a change to what can never run":  job.Changed{At: now, ID: 2, Spec: gpus(9, 8, 1)},
		"a requeue of a waiting job":      job.Requeue{At: now, ID: 2},
		"a start without nodes":           job.Started{At: now, ID: 2, Attempt: 1},
		"a start on a node in use":        job.Started{At: now, ID: 2, Attempt: 1, Allocation: job.Allocation{Partition: "main", Limit: 9, Nodes: []job.NodeShare{{Node: "n0000", Tasks: 1, CPUs: 64, Devices: []job.Devices{{Name: "gpu", Type: "h100", Count: 8, Mask: 255}}}}}},
		"a start of an unknown attempt":   job.Started{At: now, ID: 2, Attempt: 3, Allocation: started},
		"a start of a held job":           job.Started{At: now, ID: 3, Attempt: 1, Allocation: started},
		"a promise in the past":           job.Promised{At: now, Starts: []job.Promise{{ID: 2, Start: 5}}},
		"a promise that cannot be kept":   job.Promised{At: now, Starts: []job.Promise{{ID: 2, Start: now}}},
		"a promise to a running job":      job.Promised{At: now, Starts: []job.Promise{{ID: 1, Start: 200}}},
		"a kill of an ended job":          job.Killed{At: now, ID: 5, State: job.NodeFailed},
		"a kill to no end":                job.Killed{At: now, ID: 1, State: job.Running},
		"a requeue of a job that waits":   job.Requeued{At: now, ID: 2},
		"a clock that goes backwards":     job.Cancelled{At: 59, ID: 2},
		"a clock beyond all times":        job.Cancelled{At: math.MaxInt64 / 2, ID: 2},
		"no event":                        nil,
		"a pointer to an event":           (*job.Cancelled)(nil),
		"a node of negative memory":       node(job.Node{Memory: -1}),
		"a node of too many CPUs":         node(job.Node{CPUs: math.MaxInt32 + 1}),
		"a node of negative CPUs":         node(job.Node{CPUs: -4}),
		"a node of too many sockets":      node(job.Node{Sockets: 1 << 20}),
		"a node of negative GPUs":         node(job.Node{GRES: []job.GRES{{Name: "gpu", Count: -1}}}),
		"a node of two GRES of one name":  node(job.Node{GRES: []job.GRES{{Name: "gpu", Count: 1}, {Name: "gpu", Count: 1}}}),
		"another node under a job":        node(job.Node{CPUs: 1}),
		"a node in use removed":           job.NodeRemoved{At: now, Node: "n0000"},
		"a node that is none removed":     job.NodeRemoved{At: now, Node: "x"},
		"a node in a state that is none":  job.NodeSet{At: now, Node: job.Node{Name: "x", CPUs: 4, State: 1 << 12}},
		"a node's state that is none":     job.NodeStateSet{At: now, Node: "n0000", State: 1 << 12},
		"a state of a node that is none":  job.NodeStateSet{At: now, Node: "n0009"},
		"images of a node that is none":   job.ImagesSet{At: now, Node: "n0009"},
		"a partition with jobs removed":   job.PartitionRemoved{At: now, Partition: "main"},
		"a partition of negative time":    job.PartitionSet{At: now, Partition: job.Partition{Name: "main", MaxTime: -1}},
		"a partition of contradictions":   job.PartitionSet{At: now, Partition: job.Partition{Name: "main", MinNodes: 3, MaxNodes: 2}},
		"a partition in no state":         job.PartitionSet{At: now, Partition: job.Partition{Name: "main", State: 9}},
		"CPUs that are shared":            job.PartitionSet{At: now, Partition: job.Partition{Name: "main", Oversubscribe: 4}},
		"a licence given twice":           job.Configured{At: now, Config: job.Config{Licenses: []job.License{{Name: "a"}, {Name: "a"}}}},
		"a negative licence":              job.Configured{At: now, Config: job.Config{Licenses: []job.License{{Name: "a", Count: -1}}}},
		"a negative limit":                job.Configured{At: now, Config: job.Config{MaxJobs: -1}},
		"a negative age":                  job.Configured{At: now, Config: job.Config{MinJobAge: -1}},
		"a network with a cycle":          job.NetworkSet{At: now, Network: job.Network{Switches: []job.Switch{{Name: "a", Switches: []string{"a"}}}}},
		"a network with two parents":      job.NetworkSet{At: now, Network: job.Network{Switches: []job.Switch{{Name: "a", Switches: []string{"c"}}, {Name: "b", Switches: []string{"c"}}, {Name: "c"}}}},
		"a network with an unknown child": job.NetworkSet{At: now, Network: job.Network{Switches: []job.Switch{{Name: "a", Switches: []string{"b"}}}}},
		"block sizes that fall":           job.NetworkSet{At: now, Network: job.Network{BlockSizes: []int{4, 2}}},
		"a negative number of tasks":      with(func(p *job.Spec) { p.Tasks = -1 }),
		"an overflowing number of tasks":  with(func(p *job.Spec) { p.Tasks = math.MaxInt }),
		"an overflowing product":          with(func(p *job.Spec) { p.MinNodes, p.TasksPerNode, p.CPUsPerTask = 1, 1<<24, 1<<24 }),
		"overflowing memory":              with(func(p *job.Spec) { p.Memory = job.Memory{MiB: math.MaxInt64, Per: job.PerCPU} }),
		"negative memory":                 with(func(p *job.Spec) { p.Memory.MiB = -1 }),
		"overflowing GPUs":                with(func(p *job.Spec) { p.GRES[0].Count, p.GRES[0].Per, p.Tasks = 1<<31-1, job.PerTask, 1<<20 }),
		"a negative number of GPUs":       with(func(p *job.Spec) { p.GRES[0].Count = -1 }),
		"a negative time":                 with(func(p *job.Spec) { p.TimeLimit = -1 }),
		"an absurd array":                 with(func(p *job.Spec) { p.Array = &job.Array{Tasks: []job.Range{{Last: math.MaxUint32, Step: 1}}} }),
		"an array past the highest index": with(func(p *job.Spec) { p.Array = &job.Array{Tasks: []job.Range{{First: 1001, Last: 1001, Step: 1}}} }),
		"an array that falls":             with(func(p *job.Spec) { p.Array = &job.Array{Tasks: []job.Range{{First: 5, Last: 4, Step: 1}}} }),
		"an array that overlaps": with(func(p *job.Spec) {
			p.Array = &job.Array{Tasks: []job.Range{{First: 0, Last: 5, Step: 1}, {First: 5, Last: 6, Step: 1}}}
		}),
		"an array without a step": with(func(p *job.Spec) { p.Array = &job.Array{Tasks: []job.Range{{First: 0, Last: 5, Step: 0}}} }),
		"an array without tasks":  with(func(p *job.Spec) { p.Array = &job.Array{} }),
		"an array with a negative throttle": with(func(p *job.Spec) {
			p.Array = &job.Array{Tasks: []job.Range{{First: 0, Last: 5, Step: 1}}, Throttle: -1}
		}),
		"a dependency on itself":  with(func(p *job.Spec) { p.Dependencies = &job.Dependencies{List: []job.Dependency{{Job: last + 1}}} }),
		"a dependency on nothing": with(func(p *job.Spec) { p.Dependencies = &job.Dependencies{List: []job.Dependency{{Job: 99}}} }),
		"a dependency on an unknown task": with(func(p *job.Spec) {
			p.Dependencies = &job.Dependencies{List: []job.Dependency{{Job: 7, Task: new(uint32(9))}}}
		}),
		"a dependency of no type":    with(func(p *job.Spec) { p.Dependencies = &job.Dependencies{List: []job.Dependency{{Job: 1, Type: 99}}} }),
		"a dependency in the past":   with(func(p *job.Spec) { p.Dependencies = &job.Dependencies{List: []job.Dependency{{Job: 1, Delay: -1}}} }),
		"a licence that is unknown":  with(func(p *job.Spec) { p.Licenses = []job.License{{Name: "ansis", Count: 1}} }),
		"more licences than are":     with(func(p *job.Spec) { p.Licenses = []job.License{{Name: "ansys", Count: 3}} }),
		"no licences":                with(func(p *job.Spec) { p.Licenses = []job.License{{Name: "ansys"}} }),
		"a constraint without parts": with(func(p *job.Spec) { p.Constraint = &job.Constraint{And: []*job.Constraint{nil}} }),
		"a deadline before begin":    with(func(p *job.Spec) { p.Begin, p.Deadline = 300, 200 }),
	} {
		before, hash := bytesOf(t, s), s.Hash()
		err := s.Apply(e)
		var refused *Refused
		if !errors.As(err, &refused) || refused.Event == "" || refused.Why == "" {
			t.Errorf("%s: %v", name, err)
		}
		if s.Hash() != hash || !bytes.Equal(bytesOf(t, s), before) {
			t.Fatalf("%s has changed the state: %v", name, err)
		}
		if err := s.Check(); err != nil {
			t.Fatalf("after %s: %v", name, err)
		}
	}
}

// brackets is [0|..|last]&[0|..|last] of n names each.
func brackets(n int, last string) *job.Constraint {
	list := []*job.Constraint{}
	for i := range n - 1 {
		list = append(list, &job.Constraint{Feature: fmt.Sprint("x", i)})
	}
	list = append(list, &job.Constraint{Feature: last})
	return &job.Constraint{And: []*job.Constraint{{OneOf: list}, {OneOf: list}}}
}

// TestNeverRuns: what can never run, and what contradicts itself, is refused with the
// reason and the nearest thing that could run: and that does.
func TestNeverRuns(t *testing.T) {
	type change func(*job.Spec)
	for _, c := range []struct {
		with     change
		why, and string // and: what is near
		instead  change // nil: nothing is
	}{
		{func(p *job.Spec) { p.MinNodes = 9 }, "it asks for 9 nodes, and its partition has 8", "--nodes=8", func(p *job.Spec) { p.MinNodes = 8 }},
		{func(p *job.Spec) { p.MinNodes, p.Tasks, p.CPUsPerTask, p.GRES = 0, 70, 8, nil }, "its 70 tasks need 9 nodes, and its partition has 8", "--ntasks=64", func(p *job.Spec) { p.MinNodes, p.Tasks, p.CPUsPerTask, p.GRES = 0, 64, 8, nil }},
		{func(p *job.Spec) { p.GRES[0].Count = 9 }, "none of the 8 nodes", "the largest node has 64 CPUs, 8 gpu:h100", func(p *job.Spec) { p.GRES[0].Count = 8 }},
		{func(p *job.Spec) { p.CPUsPerTask = 65 }, "none of the 8 nodes", "64 CPUs", func(p *job.Spec) { p.CPUsPerTask = 64 }},
		{func(p *job.Spec) { p.MinNodes, p.MaxNodes = 4, 2 }, "at least 4 and at most 2 nodes", "--nodes=2-4", func(p *job.Spec) { p.MinNodes, p.MaxNodes = 2, 4 }},
		{func(p *job.Spec) { p.CPUsPerTask, p.CPUsPerGPU = 2, 2 }, "both --cpus-per-task and --cpus-per-gpu", "--cpus-per-gpu", func(p *job.Spec) { p.CPUsPerGPU = 2 }},
		{func(p *job.Spec) { p.Exclusive, p.Oversubscribe = true, true }, "both --exclusive and --oversubscribe", "one of them", func(p *job.Spec) { p.Oversubscribe = true }},
		{func(p *job.Spec) { p.TimeMin = 2 * job.Hour }, "--time-min is above --time", "--time-min=01:00:00", func(p *job.Spec) { p.TimeMin = job.Hour }},
		{func(p *job.Spec) { p.Tasks, p.TasksPerNode, p.MinNodes, p.MaxNodes = 8, 2, 2, 2 }, "8 tasks do not fit on 2 nodes with 2 on each", "--nodes=4", func(p *job.Spec) { p.Tasks, p.TasksPerNode, p.MinNodes = 8, 2, 4 }},
		{func(p *job.Spec) { p.MinNodes, p.Topology.Segment = 3, 2 }, "no multiple of segments of 2", "--nodes=4", func(p *job.Spec) { p.MinNodes, p.Topology.Segment = 4, 2 }},
		{func(p *job.Spec) { p.MinNodes, p.Topology.Segment, p.NodeList = 2, 2, []string{"n0001"} }, "--segment or blocks with --nodelist", "--segment without them", func(p *job.Spec) { p.MinNodes, p.Topology.Segment = 2, 2 }},
		{func(p *job.Spec) { p.MinNodes, p.Topology.Segment = 8, 8 }, "not near enough", "", func(p *job.Spec) { p.MinNodes, p.Topology.Segment = 8, 4 }},
		{func(p *job.Spec) { p.MinNodes, p.Topology.Required = 3, 1 }, "not near enough", "", func(p *job.Spec) { p.MinNodes, p.Topology.Required = 3, 2 }},
		{func(p *job.Spec) { p.MinNodes, p.Topology = 3, job.Topology{Switches: 1, Wait: job.Forever} }, "not near enough", "", func(p *job.Spec) { p.MinNodes, p.Topology = 3, job.Topology{Switches: 1, Wait: 5} }},
		{func(p *job.Spec) { p.MinNodes, p.NodeList = 1, []string{"n0001", "n0002"} }, "2 nodes are named", "--nodes=2", func(p *job.Spec) { p.MinNodes, p.NodeList = 2, []string{"n0001", "n0002"} }},
		{func(p *job.Spec) { p.NodeList = []string{"n001"} }, "there is no node n001", "n0001", func(p *job.Spec) { p.NodeList = []string{"n0001"} }},
		{func(p *job.Spec) { p.NodeList, p.Exclude = []string{"n0001"}, []string{"n0001"} }, "both asked for and excluded", "", nil},
		{func(p *job.Spec) { p.Partitions = []string{"mian"} }, "there is no partition mian", "main", func(p *job.Spec) { p.Partitions = []string{"main"} }},
		{func(p *job.Spec) { p.Constraint = &job.Constraint{Feature: "a100"} }, "none of the 8 nodes", "features h100", func(p *job.Spec) { p.Constraint = &job.Constraint{Feature: "h100"} }},
		{func(p *job.Spec) { p.GRES[0].Type = "a100" }, "none of the 8 nodes", "8 gpu:h100", func(p *job.Spec) { p.GRES[0].Type = "h100" }},
		{func(p *job.Spec) { p.Licenses = []job.License{{Name: "ansis", Count: 1}} }, "there is no licence ansis", "ansys", func(p *job.Spec) { p.Licenses = []job.License{{Name: "ansys", Count: 1}} }},
		{func(p *job.Spec) { p.Licenses = []job.License{{Name: "ansys", Count: 9}} }, "there are 2 of licence ansys", "--licenses=ansys:2", func(p *job.Spec) { p.Licenses = []job.License{{Name: "ansys", Count: 2}} }},
		{func(p *job.Spec) { p.AnyLicense = []job.License{{Name: "ansys", Count: 9}} }, "there are 2 of licence ansys", "--licenses=ansys:2", func(p *job.Spec) { p.AnyLicense = []job.License{{Name: "ansys", Count: 2}} }},
		{func(p *job.Spec) {
			p.Licenses, p.AnyLicense = []job.License{{Name: "ansys", Count: 3}}, []job.License{{Name: "fluent", Count: 1}}
		}, "there are 2 of licence ansys", "--licenses=ansys:2", func(p *job.Spec) {
			p.AnyLicense = []job.License{{Name: "ansys", Count: 3}, {Name: "fluent", Count: 1}}
		}},
		{func(p *job.Spec) { p.Deadline = job.Time(job.Hour) }, "it cannot end before its deadline", "", func(p *job.Spec) { p.Deadline = job.Time(job.Hour) + 1 }},
		{func(p *job.Spec) { p.Begin, p.Deadline = 1e7, 1e7+job.Time(job.Hour)-1 }, "it cannot end before its deadline", "", func(p *job.Spec) { p.Deadline, p.TimeMin = 1e6, job.Minute }},
		{func(p *job.Spec) { p.Constraint = brackets(17, "h100") }, "more than 256 combinations", "", func(p *job.Spec) { p.Constraint = brackets(16, "h100") }},
		{func(p *job.Spec) { p.Array = &job.Array{Tasks: []job.Range{{First: 0, Last: 1001, Step: 1}}} }, "array index 1001 is not below 1001", "--array=0-1000", func(p *job.Spec) { p.Array = &job.Array{Tasks: []job.Range{{First: 0, Last: 1000, Step: 1}}} }},
		{func(p *job.Spec) { p.MinNodes, p.GRES[0].Count, p.GRES[0].Per = 4, 3, job.PerJob }, "3 gpu in all are fewer than 4 nodes", "--nodes=3", func(p *job.Spec) { p.MinNodes, p.GRES[0].Count, p.GRES[0].Per = 3, 3, job.PerJob }},
	} {
		s := cluster(t, 8, 2)
		apply(t, s, job.Configured{Config: job.Config{Licenses: []job.License{{Name: "ansys", Count: 2}, {Name: "fluent", Count: 1}}}})
		for i, n := range s.nodes {
			spec := *n.spec
			spec.Features = []string{"h100"}
			spec.Block = "b" + string(rune('0'+i/4))
			apply(t, s, job.NodeSet{Node: spec})
		}
		apply(t, s, job.NetworkSet{Network: job.Network{Switches: []job.Switch{{Name: "up", Switches: []string{"leaf0", "leaf1"}}, {Name: "leaf0", Nodes: []string{"n0000", "n0001"}}, {Name: "leaf1", Nodes: []string{"n0002", "n0003"}}}}})
		p := gpus(1, 1, job.Hour)
		c.with(&p)
		err := s.Apply(job.Submitted{At: 1, ID: 1, Spec: p})
		if err == nil || !strings.Contains(err.Error(), c.why) || !strings.Contains(err.Error(), c.and) {
			t.Errorf("%v\nwant %q (%s)", err, c.why, c.and)
		}
		if c.instead == nil {
			continue
		}
		p = gpus(1, 1, job.Hour)
		c.instead(&p)
		apply(t, s, job.Submitted{At: 1, ID: 1, Spec: p})
		decide(t, s, 1)
		if v, _ := s.Job(1); v.State != job.Running {
			t.Errorf("%q: what is near does not run: %+v", c.why, v)
		}
	}
}
