package sched

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/gangway-hpc/gangway/internal/job"
)

// want proves in which states jobs are, and why they wait: "1:RUNNING 2:PENDING(Dependency)".
func want(t testing.TB, s *Scheduler, text string) {
	t.Helper()
	var got []string
	for _, r := range s.jobs {
		v := s.view(r)
		one := fmt.Sprintf("%v:%v", v.ID, v.State)
		if v.State == job.Pending {
			one += "(" + v.Reason + ")"
		}
		got = append(got, one)
	}
	if all := strings.Join(got, " "); all != text {
		t.Errorf("got  %s\nwant %s", all, text)
	}
}

func TestDependencies(t *testing.T) {
	one := func(kind job.DependencyType, on job.ID) job.Spec {
		p := gpus(1, 1, job.Hour)
		p.Dependencies = &job.Dependencies{List: []job.Dependency{{Type: kind, Job: on, Delay: 500}}}
		return p
	}
	s := cluster(t, 2, 2)
	apply(t, s, job.Submitted{At: 1, ID: 1, Spec: gpus(1, 1, job.Hour)})
	for i, kind := range []job.DependencyType{job.After, job.AfterAny, job.AfterOK, job.AfterNotOK} {
		apply(t, s, job.Submitted{At: 1, ID: job.ID(2 + i), Spec: one(kind, 1)})
	}
	decide(t, s, 1)
	want(t, s, "1:RUNNING 2:PENDING(Dependency) 3:PENDING(Dependency) 4:PENDING(Dependency) 5:PENDING(Dependency)")
	if next := s.Next(); next != 501 {
		t.Errorf("next is %d", next)
	}
	decide(t, s, 501)
	apply(t, s, job.Ended{At: 600, ID: 1, State: job.Failed, Exit: 1})
	decide(t, s, 600)
	want(t, s, "1:FAILED 2:RUNNING 3:RUNNING 4:PENDING(DependencyNeverSatisfied) 5:RUNNING")

	err := s.Apply(job.Submitted{At: 700, ID: 6, Spec: one(job.AfterOK, 77)})
	if err == nil || !strings.Contains(err.Error(), "job 77, which does not exist") {
		t.Errorf("unknown job: %v", err)
	}
	if err := s.Apply(job.Changed{At: 700, ID: 4, Spec: one(job.AfterAny, 4)}); err == nil {
		t.Error("a job depends on itself")
	}
	apply(t, s, job.Submitted{At: 700, ID: 6, Spec: one(job.AfterAny, 4)})
	if err := s.Apply(job.Changed{At: 700, ID: 4, Spec: one(job.AfterAny, 6)}); err == nil {
		t.Error("two jobs depend on each other")
	}
}

func TestSingletonAndAny(t *testing.T) {
	s := cluster(t, 2, 2)
	single := gpus(1, 1, job.Hour)
	single.Name = "one"
	single.Dependencies = &job.Dependencies{List: []job.Dependency{{Type: job.Singleton}}}
	apply(t, s, job.Submitted{At: 1, ID: 1, Spec: single})
	apply(t, s, job.Submitted{At: 1, ID: 2, Spec: single})
	either := gpus(1, 1, job.Hour)
	either.Dependencies = &job.Dependencies{Any: true, List: []job.Dependency{{Type: job.AfterOK, Job: 1}, {Type: job.AfterNotOK, Job: 1}}}
	apply(t, s, job.Submitted{At: 1, ID: 3, Spec: either})
	decide(t, s, 1)
	want(t, s, "1:RUNNING 2:PENDING(Dependency) 3:PENDING(Dependency)")
	apply(t, s, job.Ended{At: 2, ID: 1, State: job.Completed})
	decide(t, s, 2)
	want(t, s, "1:COMPLETED 2:RUNNING 3:RUNNING")
}

func TestArray(t *testing.T) {
	s := cluster(t, 4, 2)
	p := gpus(1, 1, job.Hour)
	p.Array = &job.Array{Tasks: []job.Range{{First: 3, Last: 9, Step: 3}, {First: 10, Last: 10, Step: 1}}, Throttle: 2}
	apply(t, s, job.Submitted{At: 1, ID: 10, Spec: p})
	after := gpus(1, 1, job.Hour)
	after.Dependencies = &job.Dependencies{List: []job.Dependency{{Type: job.AfterOK, Job: 10}}}
	apply(t, s, job.Submitted{At: 1, ID: 14, Spec: after})
	corr := p
	corr.Dependencies = &job.Dependencies{List: []job.Dependency{{Type: job.AfterCorr, Job: 10}}}
	apply(t, s, job.Submitted{At: 1, ID: 15, Spec: corr})
	decide(t, s, 1)
	want(t, s, "10:RUNNING 11:RUNNING 12:PENDING(JobArrayTaskLimit) 13:PENDING(JobArrayTaskLimit) 14:PENDING(Dependency) "+
		"15:PENDING(Dependency) 16:PENDING(Dependency) 17:PENDING(Dependency) 18:PENDING(Dependency)")
	apply(t, s, job.Ended{At: 2, ID: 11, State: job.Completed})
	decide(t, s, 2)
	want(t, s, "10:RUNNING 11:COMPLETED 12:RUNNING 13:PENDING(JobArrayTaskLimit) 14:PENDING(Dependency) "+
		"15:PENDING(Dependency) 16:RUNNING 17:PENDING(Dependency) 18:PENDING(Dependency)")
	for _, id := range []job.ID{10, 12} {
		apply(t, s, job.Ended{At: 3, ID: id, State: job.Completed})
	}
	decide(t, s, 3)
	apply(t, s, job.Ended{At: 4, ID: 13, State: job.Completed})
	decide(t, s, 4)
	if v, _ := s.Job(14); v.State != job.Running {
		t.Errorf("the job after the array is %v", v.State)
	}
	if v, _ := s.Job(12); v.Array != 10 || v.Task != 9 {
		t.Errorf("job 12 is task %d of %v", v.Task, v.Array)
	}
	p.Array = &job.Array{Tasks: []job.Range{{First: 0, Last: 4000000000, Step: 1}}}
	if err := s.Apply(job.Submitted{At: 5, ID: 30, Spec: p}); err == nil {
		t.Error("an absurd array was accepted")
	}
}

func TestNodeFailure(t *testing.T) {
	s := cluster(t, 3, 3)
	apply(t, s, job.Configured{At: 1, Config: job.Config{MaxRequeue: 1}})
	p := gpus(2, 8, job.Hour)
	p.Requeue = true
	apply(t, s, job.Submitted{At: 1, ID: 1, Spec: p})
	apply(t, s, job.Submitted{At: 1, ID: 2, Spec: gpus(1, 8, job.Hour)})
	decide(t, s, 1)
	want(t, s, "1:RUNNING 2:RUNNING")
	v, _ := s.Job(1)
	lost := v.Allocation.Nodes[0].Node
	w, _ := s.Job(2)
	other := w.Allocation.Nodes[0].Node
	apply(t, s, job.NodeStateSet{At: 2, Node: lost, State: job.NodeDown})
	apply(t, s, job.NodeStateSet{At: 2, Node: other, State: job.NodeDrain})
	decide(t, s, 2)
	want(t, s, "1:PENDING(ReqNodeNotAvail) 2:RUNNING")
	apply(t, s, job.NodeStateSet{At: 3, Node: lost})
	decide(t, s, 3)
	want(t, s, "1:RUNNING 2:RUNNING")
	if v, _ := s.Job(1); v.Attempt != 2 {
		t.Errorf("attempt %d", v.Attempt)
	}
	apply(t, s, job.NodeStateSet{At: 4, Node: lost, State: job.NodeDown})
	apply(t, s, job.NodeStateSet{At: 4, Node: other, State: job.NodeDown})
	decide(t, s, 4)
	want(t, s, "1:PENDING(JobHoldMaxRequeue) 2:NODE_FAIL")
}

func TestOtherReasons(t *testing.T) {
	s := cluster(t, 2, 2)
	apply(t, s, job.Configured{At: 1, Config: job.Config{Licenses: []job.License{{Name: "ansys", Count: 1}}}})
	begin, deadline, licensed, held := gpus(1, 1, 100), gpus(2, 8, 100), gpus(1, 1, 100), gpus(1, 1, 100)
	begin.Begin, deadline.Deadline, held.Hold = 50, 150, true
	licensed.Licenses = []job.License{{Name: "ansys", Count: 1}}
	for i, p := range []job.Spec{begin, deadline, licensed, licensed, held} {
		apply(t, s, job.Submitted{At: 1, ID: job.ID(i + 1), Spec: p})
	}
	decide(t, s, 1)
	want(t, s, "1:PENDING(BeginTime) 2:RUNNING 3:PENDING(Resources) 4:PENDING(Priority) 5:PENDING(JobHeldUser)")
	apply(t, s, job.Submitted{At: 40, ID: 6, Spec: deadline})
	decide(t, s, 40)
	decide(t, s, 52)
	apply(t, s, job.Ended{At: 100, ID: 2, State: job.Completed})
	decide(t, s, 100)
	want(t, s, "1:RUNNING 2:COMPLETED 3:RUNNING 4:PENDING(Licenses) 5:PENDING(JobHeldUser) 6:DEADLINE")
	apply(t, s, job.Released{At: 101, ID: 5})
	apply(t, s, job.Cancelled{At: 101, ID: 4})
	apply(t, s, job.Cancelled{At: 101, ID: 1})
	decide(t, s, 101)
	want(t, s, "1:COMPLETING 2:COMPLETED 3:RUNNING 4:CANCELLED 5:RUNNING 6:DEADLINE")
}

// TestRefused: what can never be is refused with the reason and the nearest thing that
// could, and nothing changes.
func TestRefused(t *testing.T) {
	s := cluster(t, 4, 2)
	five, nine, segment := gpus(5, 8, job.Hour), gpus(1, 9, job.Hour), gpus(3, 8, job.Hour)
	segment.Topology.Segment = 2
	feature, partition, deny := gpus(1, 1, 1), gpus(1, 1, 1), gpus(1, 1, 1)
	feature.Constraint = &job.Constraint{Feature: "a100"}
	partition.Partitions = []string{"mian"}
	deny.NodeList, deny.Exclude = []string{"n0001"}, []string{"n0001"}
	near := gpus(3, 8, job.Hour)
	near.Topology.Required = 1
	minus := gpus(-1, 1, 1)
	huge := gpus(1, 1<<40, 1)
	for _, c := range []struct {
		spec job.Spec
		text string
	}{
		{five, "--nodes=4"},
		{nine, "the largest node has 64 CPUs, 8 gpu:h100"},
		{segment, "--nodes=4"},
		{feature, "none of the 4 nodes"},
		{partition, "(main)"},
		{deny, "both asked for and excluded"},
		{near, "not near enough"},
		{minus, "--nodes -1"},
		{huge, "1099511627776"},
	} {
		before := s.Hash()
		err := s.Apply(job.Submitted{At: 9, ID: 1, Spec: c.spec})
		var refused *Refused
		if !errors.As(err, &refused) || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%+v: %v, not %q", c.spec, err, c.text)
		}
		if s.Now() != 1 || s.Hash() != before || len(s.jobs) != 0 {
			t.Errorf("%q has changed something", c.text)
		}
	}
	for _, e := range []job.Event{
		job.Ended{ID: 7},
		job.Cancelled{ID: 7},
		job.Requeue{ID: 7},
		job.Held{ID: 7},
		job.Released{ID: 7},
		job.Started{ID: 7},
		job.Killed{ID: 7},
		job.Requeued{ID: 7},
		job.Promised{Starts: []job.Promise{{ID: 7, Start: 9}}},
		job.NodeStateSet{Node: "n9999"},
		job.NodeRemoved{Node: "n9999"},
		job.PartitionRemoved{Partition: "x"},
		job.PartitionSet{},
		job.NodeSet{},
		job.NodeSet{Node: job.Node{Name: "x", CPUs: -1}},
		nil,
		job.NodeSet{Node: job.Node{Name: "x", Memory: 1 << 40}},
		job.ImagesSet{Node: "n9999"},
		job.NetworkSet{Network: job.Network{Switches: []job.Switch{{Name: "a", Switches: []string{"b"}}, {Name: "b", Switches: []string{"a"}}}}},
		job.NetworkSet{Network: job.Network{Switches: []job.Switch{{Name: "a", Switches: []string{"x"}}}}},
		job.NetworkSet{Network: job.Network{Switches: []job.Switch{{Name: "a", Nodes: []string{"n"}}, {Name: "b", Nodes: []string{"n"}}}}},
		job.NetworkSet{Network: job.Network{Blocks: []job.Block{{Name: "a", Nodes: []string{"n"}}, {Name: "b", Nodes: []string{"n"}}}}},
		job.Configured{Config: job.Config{Backfill: 9}},
	} {
		if err := s.Apply(e); err == nil {
			t.Errorf("%#v was accepted", e)
		}
	}
	apply(t, s, job.PartitionSet{At: 9, Partition: job.Partition{Name: "future", Nodes: []string{"not", "yet"}}})
	later := gpus(2, 8, job.Hour)
	later.Partitions = []string{"future"}
	apply(t, s, job.Submitted{At: 9, ID: 1, Spec: later})
	decide(t, s, 9)
	if err := s.Apply(job.NodeStateSet{At: 8, Node: "n0000"}); err == nil {
		t.Error("time went backwards")
	}
	for _, name := range []string{"not", "yet"} {
		apply(t, s, job.NodeSet{At: 10, Node: job.Node{Name: name, CPUs: 8, GRES: []job.GRES{{Name: "gpu", Count: 8}}}})
	}
	decide(t, s, 10)
	want(t, s, "1:RUNNING")
}

// TestConstraints: features that all nodes have, one of several that all have the same of,
// so many nodes of each, and those that are only preferred.
func TestConstraints(t *testing.T) {
	feature := func(f string) *job.Constraint { return &job.Constraint{Feature: f} }
	s := New()
	var names []string
	for i, f := range []string{"a", "a", "b", "b", "b"} {
		names = append(names, fmt.Sprintf("n%d", i))
		apply(t, s, job.NodeSet{Node: job.Node{Name: names[i], CPUs: 4, Features: []string{f, "all"}}})
	}
	apply(t, s, job.PartitionSet{Partition: job.Partition{Name: "p", Nodes: names}})
	for i, c := range []struct {
		nodes              int
		constraint, prefer *job.Constraint
		want               string
	}{
		{3, &job.Constraint{OneOf: []*job.Constraint{feature("a"), feature("b")}}, nil, "n2 n3 n4"},
		{3, &job.Constraint{And: []*job.Constraint{{Feature: "a", Count: 1}, {Feature: "b", Count: 2}}}, nil, "n0 n2 n3"},
		{2, &job.Constraint{And: []*job.Constraint{feature("a"), feature("all")}}, nil, "n0 n1"},
		{5, &job.Constraint{Or: []*job.Constraint{feature("a"), feature("b")}}, nil, "n0 n1 n2 n3 n4"},
		{1, nil, feature("b"), "n2"},
		{1, nil, feature("c"), "n0"},
	} {
		id := job.ID(i + 1)
		apply(t, s, job.Submitted{ID: id, Spec: job.Spec{MinNodes: c.nodes, Constraint: c.constraint, Prefer: c.prefer, TimeLimit: job.Hour}})
		decide(t, s, 1)
		v, _ := s.Job(id)
		var got []string
		for _, n := range v.Allocation.Nodes {
			got = append(got, n.Node)
		}
		if all := strings.Join(got, " "); all != c.want {
			t.Errorf("job %v has %s, not %s", id, all, c.want)
		}
		apply(t, s, job.Ended{ID: id, At: 1, State: job.Completed})
	}
}

// TestDevices: two devices that are linked are taken before two that are not, and what is
// left stays together.
func TestDevices(t *testing.T) {
	s := New()
	links := [][]int{{-1, 1, 4, 1}, {1, -1, 1, 4}, {4, 1, -1, 1}, {1, 4, 1, -1}}
	apply(t, s, job.NodeSet{Node: job.Node{Name: "n", CPUs: 8, GRES: []job.GRES{{Name: "gpu", Count: 4, Links: links}}}})
	apply(t, s, job.PartitionSet{Partition: job.Partition{Name: "p", Nodes: []string{"n"}}})
	for id, mask := range []uint64{0b0101, 0b0010, 0b1000} {
		n := int64(1)
		if id == 0 {
			n = 2
		}
		apply(t, s, job.Submitted{ID: job.ID(id + 1), Spec: gpus(1, n, job.Hour)})
		decide(t, s, 1)
		if v, _ := s.Job(job.ID(id + 1)); v.Allocation.Nodes[0].Devices[0].Mask != mask {
			t.Errorf("job %d has %+v, not %#x", id+1, v.Allocation.Nodes[0].Devices, mask)
		}
	}
}

// TestTopologyExample is the tree of Slurm's topology guide: s0 and s1 with two nodes each
// below s2, and the same again below s5, all below s6.
func TestTopologyExample(t *testing.T) {
	s := New()
	var names []string
	for i := range 8 {
		names = append(names, fmt.Sprintf("tux%d", i))
		apply(t, s, job.NodeSet{Node: job.Node{Name: names[i], CPUs: 1}})
	}
	apply(t, s, job.NetworkSet{Network: job.Network{Switches: []job.Switch{
		{Name: "s0", Nodes: names[0:2]},
		{Name: "s1", Nodes: names[2:4]},
		{Name: "s2", Switches: []string{"s0", "s1"}},
		{Name: "s3", Nodes: names[4:6]},
		{Name: "s4", Nodes: names[6:8]},
		{Name: "s5", Switches: []string{"s3", "s4"}},
		{Name: "s6", Switches: []string{"s2", "s5"}},
	}}})
	apply(t, s, job.PartitionSet{Partition: job.Partition{Name: "p", Nodes: names}})
	for i, c := range []struct {
		nodes int
		want  string
	}{{1, "tux0"}, {2, "tux2 tux3"}, {4, "tux4 tux5 tux6 tux7"}, {1, "tux1"}} {
		apply(t, s, job.Submitted{ID: job.ID(i + 1), Spec: job.Spec{MinNodes: c.nodes, TimeLimit: job.Hour}})
		decide(t, s, 1)
		var got []string
		v, _ := s.Job(job.ID(i + 1))
		for _, n := range v.Allocation.Nodes {
			got = append(got, n.Node)
		}
		if all := strings.Join(got, " "); all != c.want {
			t.Errorf("job %d has %s, not %s", i+1, all, c.want)
		}
	}
}

// TestBackfillExample is the usual picture of backfill: a wide job waits for a long one,
// and a short one passes it, but not one that would delay it.
func TestBackfillExample(t *testing.T) {
	for _, kind := range []job.Backfill{job.Conservative, job.EASY, job.None} {
		s := cluster(t, 4, 4)
		apply(t, s, job.Configured{Config: job.Config{Backfill: kind}})
		for i, p := range []job.Spec{gpus(3, 8, 100), gpus(4, 8, 50), gpus(1, 8, 120), gpus(1, 8, 90)} {
			apply(t, s, job.Submitted{ID: job.ID(i + 1), Spec: p})
		}
		decide(t, s, 1)
		switch kind {
		case job.None:
			want(t, s, "1:RUNNING 2:PENDING(Resources) 3:PENDING(Priority) 4:PENDING(Priority)")
			continue
		default:
			want(t, s, "1:RUNNING 2:PENDING(Resources) 3:PENDING(Priority) 4:RUNNING")
		}
		second, _ := s.Job(2)
		third, _ := s.Job(3)
		if second.Expected != 101 {
			t.Errorf("job 2 is expected at %d", second.Expected)
		}
		if w := map[job.Backfill]job.Time{job.Conservative: 151, job.EASY: 0}[kind]; third.Expected != w {
			t.Errorf("job 3 is expected at %d, not %d", third.Expected, w)
		}
	}
}

// TestPriority: a job of a higher partition comes first, and breaks promises with a reason.
func TestPriority(t *testing.T) {
	s := cluster(t, 2, 2)
	high := *s.parts[0].spec
	high.Name, high.Tier, high.Default = "high", 2, false
	apply(t, s, job.PartitionSet{Partition: high})
	for i, p := range []job.Spec{gpus(2, 8, 100), gpus(2, 8, 100)} {
		apply(t, s, job.Submitted{ID: job.ID(i + 1), Spec: p})
	}
	decide(t, s, 1)
	p := gpus(2, 8, 50)
	p.Partitions = []string{"high"}
	apply(t, s, job.Submitted{At: 2, ID: 3, Spec: p})
	var broken []job.Breach
	for _, e := range decide(t, s, 2) {
		if e, ok := e.(job.Promised); ok {
			broken = append(broken, e.Broken...)
		}
	}
	if len(broken) != 1 || broken[0] != (job.Breach{ID: 2, Was: 101, Now: 151, Why: "job 3 comes before it"}) {
		t.Errorf("%+v", broken)
	}
}

func TestWhatIf(t *testing.T) {
	s := cluster(t, 2, 2)
	for i := range 3 {
		apply(t, s, job.Submitted{ID: job.ID(i + 1), Spec: gpus(1, 8, 100)})
	}
	decide(t, s, 1)
	diff, err := s.WhatIf(1, job.Cancelled{At: 1, ID: 1}, job.Ended{At: 1, ID: 1, State: job.CancelledState}, job.Submitted{At: 1, ID: 4, Spec: gpus(1, 8, 100)})
	if err != nil || len(diff) != 2 || diff[0] != (Difference{3, 101, 1}) || diff[1] != (Difference{4, 0, 101}) {
		t.Errorf("%+v, %v", diff, err)
	}
	if v, _ := s.Job(1); v.State != job.Running {
		t.Error("the scheduler itself has changed")
	}
}

// restored is what a snapshot of s gives back.
func restored(t testing.TB, s *Scheduler) *Scheduler {
	t.Helper()
	var b bytes.Buffer
	if err := s.Snapshot(&b); err != nil {
		t.Fatal(err)
	}
	r, err := Restore(&b)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestAfterArray: "after" an array, and minutes later, counts from the start of its last
// task, or from when that was cancelled.
func TestAfterArray(t *testing.T) {
	s := cluster(t, 1, 1)
	p := gpus(1, 8, 100)
	p.Array = &job.Array{Tasks: []job.Range{{First: 0, Last: 2, Step: 1}}}
	apply(t, s, job.Submitted{At: 1, ID: 1, Spec: p})
	later := job.Spec{MinNodes: 1, TimeLimit: job.Hour, Dependencies: &job.Dependencies{List: []job.Dependency{{Type: job.After, Job: 1, Delay: job.Minute}}}}
	apply(t, s, job.Submitted{At: 1, ID: 4, Spec: later})
	decide(t, s, 1)
	apply(t, s, job.Ended{At: 50, ID: 1, State: job.Completed})
	decide(t, s, 50)
	want(t, s, "1:COMPLETED 2:RUNNING 3:PENDING(Resources) 4:PENDING(Dependency)")
	apply(t, s, job.Cancelled{At: 70, ID: 3})
	s = restored(t, s)
	decide(t, s, 70+60000-1)
	want(t, s, "1:COMPLETED 2:RUNNING 3:CANCELLED 4:PENDING(Dependency)")
	if s.Next() != 70+60000 {
		t.Errorf("next is %d", s.Next())
	}
	apply(t, s, job.Ended{At: 70 + 60000, ID: 2, State: job.Completed})
	decide(t, s, 70+60000)
	want(t, s, "1:COMPLETED 2:COMPLETED 3:CANCELLED 4:RUNNING")
}

// TestContiguous: nodes that follow each other, those asked for by name among them, from
// the shortest run that does; a hole in the way is waited out.
func TestContiguous(t *testing.T) {
	s := cluster(t, 8, 4)
	one := gpus(1, 8, 100)
	one.NodeList = []string{"n0002"}
	apply(t, s, job.Submitted{At: 1, ID: 1, Spec: one})
	decide(t, s, 1)
	for i, c := range []struct {
		nodes int
		named string
		want  string
	}{
		{2, "", "n0000 n0001"}, // the shortest run
		{3, "", "n0003 n0004 n0005"},
		{3, "n0006", "n0004 n0005 n0006"},
		{2, "n0007", "n0006 n0007"},
		{5, "", "n0003 n0004 n0005 n0006 n0007"},
		{6, "", ""},
		{2, "n0003", "n0003 n0004"},
	} {
		p := gpus(c.nodes, 8, 50)
		p.Contiguous = true
		if c.named != "" {
			p.NodeList = []string{c.named}
		}
		id := job.ID(i + 2)
		apply(t, s, job.Submitted{At: 1, ID: id, Spec: p})
		decide(t, s, 1)
		v, _ := s.Job(id)
		if got := nodesOf(v); got != c.want {
			t.Errorf("%d nodes, %s among them: %q, not %q", c.nodes, c.named, got, c.want)
		}
		if c.want == "" {
			if v.Expected != 101 {
				t.Errorf("job %v is expected at %d, not when the hole is gone", id, v.Expected)
			}
			apply(t, s, job.Cancelled{At: 1, ID: id})
			continue
		}
		apply(t, s, job.Ended{At: 1, ID: id, State: job.Completed})
	}
	both := gpus(2, 8, 50)
	both.Contiguous, both.Topology.Segment = true, 2
	if err := s.Apply(job.Submitted{At: 1, ID: 20, Spec: both}); err == nil || !strings.Contains(err.Error(), "--contiguous with") {
		t.Errorf("%v", err)
	}
	far := gpus(2, 8, 50)
	far.Contiguous, far.NodeList = true, []string{"n0000", "n0005"}
	if err := s.Apply(job.Submitted{At: 1, ID: 20, Spec: far}); err == nil || !strings.Contains(err.Error(), "not near enough") {
		t.Errorf("%v", err)
	}
}

// nodesOf is the nodes that a job has, by rising rank.
func nodesOf(v JobView) string {
	var all []string
	for _, n := range v.Allocation.Nodes {
		all = append(all, n.Node)
	}
	return strings.Join(all, " ")
}

// TestTimeMin: a job's limit is shortened, no further than it lets it be, so that it can
// start in a gap: now, or at a later time that is promised. One that need not be is not.
func TestTimeMin(t *testing.T) {
	s := cluster(t, 4, 4)
	min := func(limit, least job.Duration) job.Spec {
		p := gpus(1, 8, limit)
		p.TimeMin = least
		return p
	}
	// As Slurm 22.05 does: three of four nodes are in use, the next job needs all four.
	for i, p := range []job.Spec{
		gpus(3, 8, 100),                         // 1: to 101
		gpus(4, 8, 50),                          // 2: from 101 to 151
		min(60*job.Second, 30),                  // 3: in the gap, to 101
		min(60*job.Second, 101),                 // 4: after 2
		min(100, 10),                            // 5: after 2 too, no need to shorten it
		gpus(4, 8, 1000),                        // 6: after 4 and 5
		{MinNodes: 2, TimeMin: 5, TimeLimit: 9}, // 7: now
	} {
		if i == 6 {
			p.Exclusive = true
		}
		apply(t, s, job.Submitted{At: 1, ID: job.ID(i + 1), Spec: p})
	}
	decide(t, s, 1)
	limit := func(id job.ID) (job.Time, job.Duration) {
		r := s.record(id)
		if r.state == job.Running {
			return r.start, r.limit
		}
		return r.plan.start, r.plan.end.Sub(r.plan.start)
	}
	for id, want := range map[job.ID][2]int64{
		1: {1, 100}, 2: {101, 50}, 3: {1, 100}, 4: {151, 60000}, 5: {151, 100}, 6: {60151, 1000}, 7: {151, 9},
	} {
		if start, d := limit(id); int64(start) != want[0] || int64(d) != want[1] {
			t.Errorf("job %v starts at %d for %d, not at %d for %d", id, start, d, want[0], want[1])
		}
	}
	apply(t, s, job.Ended{At: 90, ID: 1, State: job.Completed})
	decide(t, s, 90)
	if start, d := limit(5); start != 90 || d != 11 {
		t.Errorf("job 5 starts at %d for %d", start, d)
	}
}
