package sched

import (
	"slices"
	"strings"
	"testing"

	"github.com/gangway-hpc/gangway/internal/job"
)

// TestNodeStates: in each of them but none a node takes nothing; going down ends what runs
// there, the others do not; and explain counts the node.
func TestNodeStates(t *testing.T) {
	for _, c := range []struct {
		state job.NodeState
		lost  bool
		word  string
	}{
		{job.NodeDown, true, "down"},
		{job.NodeDrain, false, "drained"},
		{job.NodeMaint, false, "in maintenance"},
		{job.NodeFuture, false, "of the future"},
		{job.NodeUnknown, false, "unknown"},
		{job.NodeSuspect, false, "not responding"},
		{job.NodeFail, false, "failing"},
		{job.NodeDown | job.NodeDrain, true, "down"},
	} {
		s := cluster(t, 1, 1)
		for id := range job.ID(2) {
			apply(t, s, job.Submitted{At: 1, ID: id + 1, Spec: gpus(1, 8, 100)})
		}
		decide(t, s, 1)
		apply(t, s, job.NodeStateSet{At: 2, Node: "n0000", State: c.state, Reason: "GPU 3: Xid 79"})
		var broken []job.Breach
		for _, e := range decide(t, s, 2) {
			if p, ok := e.(job.Promised); ok {
				broken = append(broken, p.Broken...)
			}
		}
		if len(broken) != 1 || broken[0] != (job.Breach{ID: 2, Was: 101, Now: job.Never, Why: "node n0000 is " + c.word}) {
			t.Errorf("%v: %+v", c.state, broken)
		}
		if v, _ := s.Job(1); (v.State == job.NodeFailed) != c.lost || v.State == job.Running == c.lost {
			t.Errorf("%v: job 1 is %v", c.state, v.State)
		}
		if !c.lost {
			apply(t, s, job.Ended{At: 50, ID: 1, State: job.Completed})
			decide(t, s, 50)
		}
		x, err := s.Explain(2, s.Now())
		if err != nil || x.Reason != "ReqNodeNotAvail" || len(x.Constraints) != 1 || x.Constraints[0].Name != "state" || x.Constraints[0].Nodes != 1 {
			t.Errorf("%v: %+v, %v", c.state, x, err)
		}
		apply(t, s, job.NodeStateSet{At: 60, Node: "n0000"})
		decide(t, s, 60)
		if v, _ := s.Job(2); v.State != job.Running {
			t.Errorf("after %v job 2 is %v", c.state, v.State)
		}
	}
}

// TestFutureNodes: a job for nodes that do not exist yet is taken and waits for them.
func TestFutureNodes(t *testing.T) {
	s := cluster(t, 1, 1)
	apply(t, s, job.NodeSet{Node: job.Node{Name: "later", CPUs: 64, State: job.NodeFuture, GRES: []job.GRES{{Name: "gpu", Type: "h100", Count: 8}}}})
	apply(t, s, job.PartitionSet{Partition: job.Partition{Name: "f", Nodes: []string{"later", "never"}}})
	p := gpus(2, 8, 100)
	p.Partitions = []string{"f"}
	apply(t, s, job.Submitted{At: 1, ID: 1, Spec: p})
	decide(t, s, 1)
	want(t, s, "1:PENDING(Resources)")
	apply(t, s, job.NodeStateSet{At: 2, Node: "later"})
	apply(t, s, job.NodeSet{At: 2, Node: job.Node{Name: "never", CPUs: 64, GRES: []job.GRES{{Name: "gpu", Type: "h100", Count: 8}}}})
	decide(t, s, 2)
	want(t, s, "1:RUNNING")
}

// TestRequeueCount: a job keeps its id through failures, counts its starts, is held after
// so many, and goes on when it is released. Spares are carried along.
func TestRequeueCount(t *testing.T) {
	s := cluster(t, 1, 1)
	p := gpus(1, 8, 100)
	p.Requeue, p.MaxRequeue, p.Spares = true, 2, 3
	apply(t, s, job.Submitted{At: 1, ID: 1, Spec: p})
	now := job.Time(1)
	for attempt := 1; attempt <= 3; attempt++ {
		decide(t, s, now)
		if v, _ := s.Job(1); v.State != job.Running || v.Attempt != attempt || v.Spec.Spares != 3 || len(v.Allocation.Nodes) != 1 {
			t.Fatalf("attempt %d: %+v", attempt, v)
		}
		apply(t, s, job.NodeStateSet{At: now + 1, Node: "n0000", State: job.NodeDown})
		var got job.Requeued
		for _, e := range decide(t, s, now+1) {
			if r, ok := e.(job.Requeued); ok {
				got = r
			}
		}
		if got.Cause != "node n0000 is down" || got.Hold != (attempt == 3) {
			t.Errorf("attempt %d: %+v", attempt, got)
		}
		now += 2
		apply(t, s, job.NodeStateSet{At: now, Node: "n0000"})
	}
	decide(t, s, now)
	want(t, s, "1:PENDING(JobHoldMaxRequeue)")
	s = restored(t, s)
	apply(t, s, job.Released{At: now, ID: 1})
	decide(t, s, now)
	want(t, s, "1:RUNNING")
}

// TestSwitches: few switches are waited for, and after the time anything will do.
func TestSwitches(t *testing.T) {
	s := cluster(t, 4, 2)
	for i, node := range []string{"n0000", "n0002"} {
		p := gpus(1, 8, 1000)
		p.NodeList = []string{node}
		apply(t, s, job.Submitted{At: 1, ID: job.ID(i + 1), Spec: p})
	}
	near := gpus(2, 8, 100)
	near.Topology = job.Topology{Switches: 1, Wait: 60}
	apply(t, s, job.Submitted{At: 1, ID: 3, Spec: near})
	near.Topology.Wait = job.Forever
	apply(t, s, job.Submitted{At: 1, ID: 4, Spec: near})
	decide(t, s, 1)
	want(t, s, "1:RUNNING 2:RUNNING 3:PENDING(Resources) 4:PENDING(Priority)")
	if x, err := s.Explain(3, 1); err != nil || x.Constraints[len(x.Constraints)-1].Name != "topology" || !slices.ContainsFunc(x.Relaxations, func(x Relaxation) bool { return x.Text == "without --switches" && x.Start == 1 }) {
		t.Errorf("%+v, %v", x, err)
	}
	decide(t, s, 60)
	if v, _ := s.Job(3); v.State != job.Pending || s.Next() != 61 {
		t.Errorf("before the wait is over: %+v, next %d", v, s.Next())
	}
	decide(t, s, 61)
	if v, _ := s.Job(3); nodesOf(v) != "n0001 n0003" {
		t.Errorf("after the wait: %s", nodesOf(v))
	}
	if v, _ := s.Job(4); v.Expected != 1001 {
		t.Errorf("job 4 is expected at %d", v.Expected)
	}
}

// TestSegments: groups of nodes, each within a block, or if they are larger than a block
// within what several blocks make together.
func TestSegments(t *testing.T) {
	s := cluster(t, 12, 12)
	var blocks []job.Block
	for i := range 6 {
		blocks = append(blocks, job.Block{Name: string(rune('a' + i)), Nodes: []string{s.nodes[2*i].spec.Name, s.nodes[2*i+1].spec.Name}})
	}
	apply(t, s, job.NetworkSet{Network: job.Network{Blocks: blocks, BlockSizes: []int{2, 4}}})
	one := gpus(1, 8, 1000)
	one.NodeList = []string{"n0002"} // blocks b and the first four have a hole
	apply(t, s, job.Submitted{At: 1, ID: 1, Spec: one})
	for i, c := range []struct {
		nodes, segment int
		want           string
	}{
		{4, 2, "n0000 n0001 n0004 n0005"},
		{4, 4, "n0004 n0005 n0006 n0007"},
		{8, 4, "n0004 n0005 n0006 n0007 n0008 n0009 n0010 n0011"},
		{3, 3, "n0000 n0001 n0003"},
		{6, 3, "n0000 n0001 n0003 n0004 n0005 n0006"},
		{3, 1, "n0000 n0001 n0003"},
		{12, 4, ""},
	} {
		p := gpus(c.nodes, 8, 10)
		p.Topology.Segment = c.segment
		id := job.ID(i + 2)
		apply(t, s, job.Submitted{At: 1, ID: id, Spec: p})
		decide(t, s, 1)
		v, _ := s.Job(id)
		if got := nodesOf(v); got != c.want {
			t.Errorf("%d nodes in segments of %d: %s, not %s", c.nodes, c.segment, got, c.want)
		}
		if c.want == "" {
			apply(t, s, job.Cancelled{At: 1, ID: id})
		} else {
			apply(t, s, job.Ended{At: 1, ID: id, State: job.Completed})
		}
	}
	p := gpus(10, 8, 10)
	p.Topology.Segment = 5
	if err := s.Apply(job.Submitted{At: 1, ID: 99, Spec: p}); err == nil {
		t.Error("segments larger than all blocks were accepted")
	}
}

// TestGangCosts: leaves of which as much is free are told apart by weight, then by image;
// below one leaf the same decides about nodes.
func TestGangCosts(t *testing.T) {
	s := cluster(t, 6, 2)
	run := func(want string, image string, nodes int) {
		t.Helper()
		p := gpus(nodes, 8, 10)
		p.Image = image
		id := s.last + 1
		apply(t, s, job.Submitted{At: 1, ID: id, Spec: p})
		decide(t, s, 1)
		v, _ := s.Job(id)
		if nodesOf(v) != want {
			t.Errorf("%d nodes for %q: %s, not %s", nodes, image, nodesOf(v), want)
		}
		apply(t, s, job.Ended{At: 1, ID: id, State: job.Completed})
	}
	run("n0000 n0001", "x", 2)
	apply(t, s, job.ImagesSet{At: 1, Node: "n0003", Images: []string{"x", "y"}})
	run("n0002 n0003", "x", 2)
	run("n0000 n0001", "z", 2)
	weigh := func(i, weight int) {
		spec := *s.nodes[i].spec
		spec.Weight = weight
		apply(t, s, job.NodeSet{At: 1, Node: spec})
	}
	for i := range 4 {
		weigh(i, 9)
	}
	run("n0004 n0005", "x", 2)
	run("n0002 n0003 n0004 n0005", "x", 4) // n0003 has the image
}

// TestOtherRequests: what else a job may ask for.
func TestOtherRequests(t *testing.T) {
	s := cluster(t, 4, 2)
	apply(t, s, job.Configured{Config: job.Config{Licenses: []job.License{{Name: "a", Count: 1}, {Name: "b", Count: 1}}}})
	exclude := gpus(1, 8, 100)
	exclude.Exclude = []string{"n0000", "n0001", "n0003"}
	either := gpus(1, 1, 100)
	either.AnyLicense = []job.License{{Name: "a", Count: 1}, {Name: "b", Count: 1}}
	both := gpus(1, 1, 100)
	both.Licenses = []job.License{{Name: "a", Count: 1}, {Name: "b", Count: 1}}
	zero := uint32(0)
	held := gpus(1, 1, 100)
	held.Priority = &zero
	array := gpus(1, 1, 100)
	array.Array = &job.Array{Tasks: []job.Range{{First: 4, Last: 5, Step: 1}}}
	for i, p := range []job.Spec{exclude, either, either, both, held, array} {
		apply(t, s, job.Submitted{At: 1, ID: job.ID(i + 1), Spec: p})
	}
	task := gpus(1, 1, 100)
	task.Dependencies = &job.Dependencies{List: []job.Dependency{{Type: job.AfterOK, Job: 6, Task: new(uint32(5))}, {Type: job.AfterBurst, Job: 2}}}
	apply(t, s, job.Submitted{At: 1, ID: 8, Spec: task})
	decide(t, s, 1)
	want(t, s, "1:RUNNING 2:RUNNING 3:RUNNING 4:PENDING(Licenses) 5:PENDING(JobHeldAdmin) 6:RUNNING 7:RUNNING 8:PENDING(Dependency)")
	if v, _ := s.Job(1); nodesOf(v) != "n0002" {
		t.Errorf("job 1 has %s", nodesOf(v))
	}
	apply(t, s, job.Ended{At: 2, ID: 7, State: job.Completed})
	apply(t, s, job.Ended{At: 2, ID: 2, State: job.Failed, Exit: 3})
	decide(t, s, 2)
	want(t, s, "1:RUNNING 2:FAILED 3:RUNNING 4:PENDING(Licenses) 5:PENDING(JobHeldAdmin) 6:RUNNING 7:COMPLETED 8:RUNNING")
	if x, err := s.Explain(4, 2); err != nil || x.Constraints[len(x.Constraints)-1].Name != "licenses" || x.Expected != 101 || x.Relaxations[0].Text != "without licence b" {
		t.Errorf("%+v, %v", x, err)
	}
}

// TestExplainConstraints: every thing that keeps nodes from a job is named, with how many.
func TestExplainConstraints(t *testing.T) {
	s := cluster(t, 8, 4)
	for i, n := range s.nodes {
		spec := *n.spec
		if i != 2 {
			spec.Features = []string{"ib"}
		}
		if i == 4 {
			spec.GRES = []job.GRES{{Name: "gpu", Type: "h100", Count: 4}}
		}
		apply(t, s, job.NodeSet{Node: spec})
	}
	part := job.Partition{Name: "p", Nodes: []string{"n0000", "n0001", "n0002", "n0003", "n0004", "n0005", "n0006"}} // not n0007
	apply(t, s, job.PartitionSet{Partition: part})
	apply(t, s, job.NodeStateSet{Node: "n0005", State: job.NodeDrain})
	on := func(node string, n int, limit job.Duration) job.Spec {
		p := gpus(n, 8, limit)
		p.Partitions = []string{"p"}
		if node != "" {
			p.NodeList = []string{node}
		}
		return p
	}
	apply(t, s, job.Submitted{At: 1, ID: 1, Spec: on("n0000", 1, 100)})
	apply(t, s, job.Submitted{At: 1, ID: 2, Spec: func() job.Spec { p := on("", 2, 50); p.NodeList = []string{"n0000", "n0001"}; return p }()})
	p := on("", 2, 500)
	p.Constraint, p.Exclude = &job.Constraint{Feature: "ib"}, []string{"n0003"}
	apply(t, s, job.Submitted{At: 1, ID: 3, Spec: p})
	decide(t, s, 1)
	x, err := s.Explain(3, 1)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, c := range x.Constraints {
		got = append(got, c.Name+" "+string(rune('0'+c.Nodes)))
	}
	if all := strings.Join(got, ", "); all != "partition 1, features 1, named 1, size 1, state 1, busy 1, planned 1" || x.Fit != 1 || x.Nodes != 2 {
		t.Errorf("%s; %+v", all, x)
	}
	if x.AheadCount != 1 || x.Ahead[0] != 2 || x.Expected != 151 || !strings.Contains(x.Basis, "job 2, which is to start before it") {
		t.Errorf("%+v", x)
	}
	verifyRelaxations(t, s, 3, x)
	if len(x.Relaxations) == 0 || x.Relaxations[0].Start != 1 {
		t.Errorf("%+v", x.Relaxations)
	}
}

// TestWhatIfDrain: what a drain would delay, and that nothing happens.
func TestWhatIfDrain(t *testing.T) {
	s := cluster(t, 2, 2)
	for i, p := range []job.Spec{gpus(2, 8, 100), gpus(2, 8, 100), gpus(1, 8, 100)} {
		apply(t, s, job.Submitted{At: 1, ID: job.ID(i + 1), Spec: p})
	}
	decide(t, s, 1)
	before := bytesOf(t, s)
	diff, err := s.WhatIf(1, job.NodeStateSet{At: 1, Node: "n0001", State: job.NodeDrain})
	if err != nil || len(diff) != 2 || diff[0] != (Difference{2, 101, job.Never}) || diff[1] != (Difference{3, 201, 101}) {
		t.Errorf("%+v, %v", diff, err)
	}
	if string(bytesOf(t, s)) != string(before) {
		t.Error("the state has changed")
	}
	if _, err := s.WhatIf(1, job.Cancelled{At: 1, ID: 77}); err == nil {
		t.Error("an event that is refused was taken")
	}
}
