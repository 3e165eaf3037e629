package sched

import (
	"bytes"
	"strings"
	"testing"

	"github.com/gangway-hpc/gangway/internal/job"
)

// TestPartitionRules: who may use a partition, and what for. Each job is refused, or waits
// for the reason, or runs ("").
func TestPartitionRules(t *testing.T) {
	spec := func(with func(*job.Spec)) job.Spec {
		p := gpus(1, 1, job.Hour)
		p.User, p.Account, p.QOS, p.Groups = "ann", "lab", "normal", []string{"users", "ml"}
		if with != nil {
			with(&p)
		}
		return p
	}
	for _, c := range []struct {
		part job.Partition
		with func(*job.Spec)
		want string
	}{
		{job.Partition{}, nil, ""},
		{job.Partition{AllowUsers: []string{"bob", "ann"}}, nil, ""},
		{job.Partition{AllowUsers: []string{"bob"}}, nil, "user ann is not allowed"},
		{job.Partition{DenyUsers: []string{"ann"}}, nil, "user ann is not allowed"},
		{job.Partition{AllowAccount: []string{"lab"}}, nil, ""},
		{job.Partition{AllowAccount: []string{"x"}}, nil, "account lab is not allowed"},
		{job.Partition{DenyAccount: []string{"lab"}}, nil, "account lab is not allowed"},
		{job.Partition{AllowQOS: []string{"normal"}}, nil, ""},
		{job.Partition{AllowQOS: []string{"high"}}, nil, "QOS normal is not allowed"},
		{job.Partition{DenyQOS: []string{"normal"}}, nil, "QOS normal is not allowed"},
		{job.Partition{AllowGroups: []string{"ml", "hpc"}}, nil, ""},
		{job.Partition{AllowGroups: []string{"hpc", "adm"}}, nil, "user ann is in none of the groups hpc, adm"},
		{job.Partition{AllowGroups: []string{"hpc"}}, func(p *job.Spec) { p.User = "root" }, ""},
		{job.Partition{MaxTime: job.Hour}, nil, ""},
		{job.Partition{MaxTime: job.Hour - 1}, nil, "time limit 01:00:00 is above its maximum 01:00:00"},
		{job.Partition{MaxTime: 30 * job.Minute}, func(p *job.Spec) { p.TimeMin = job.Minute }, ""},
		{job.Partition{MaxNodes: 2}, func(p *job.Spec) { p.MinNodes = 2 }, ""},
		{job.Partition{MaxNodes: 2}, func(p *job.Spec) { p.MinNodes = 3 }, "its maximum of 2 nodes"},
		{job.Partition{MinNodes: 2}, nil, "its minimum of 2 nodes"},
		{job.Partition{State: job.PartitionDown}, nil, "PartitionDown"},
		{job.Partition{State: job.PartitionDrain}, nil, "partition p takes no jobs"},
		{job.Partition{State: job.PartitionInactive}, nil, "partition p takes no jobs"},
		{job.Partition{Nodes: []string{}}, nil, "its partition has no nodes"},
	} {
		s := cluster(t, 4, 2)
		c.part.Name = "p"
		if c.part.Nodes == nil {
			c.part.Nodes = []string{"n0000", "n0001", "n0002", "n0003"}
		}
		apply(t, s, job.PartitionSet{Partition: c.part})
		p := spec(c.with)
		p.Partitions = []string{"p"}
		err := s.Apply(job.Submitted{At: 1, ID: 1, Spec: p})
		if err != nil {
			if c.want == "" || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%+v: %v, not %q", c.part, err, c.want)
			}
			continue
		}
		decide(t, s, 1)
		v, _ := s.Job(1)
		if v.State == job.Running != (c.want == "") || v.State != job.Running && v.Reason != c.want {
			t.Errorf("%+v: job is %v, %s, not %q", c.part, v.State, v.Reason, c.want)
		}
	}
}

// TestPartitionTimes: a job without a time limit has the partition's, one with a TimeMin at
// most the partition's longest, and all have one.
func TestPartitionTimes(t *testing.T) {
	for _, c := range []struct {
		part  job.Partition
		spec  job.Spec
		limit job.Duration
	}{
		{job.Partition{}, job.Spec{}, year},
		{job.Partition{MaxTime: 100}, job.Spec{}, 100},
		{job.Partition{MaxTime: 100, DefaultTime: 10}, job.Spec{}, 10},
		{job.Partition{MaxTime: 100, DefaultTime: 10}, job.Spec{TimeLimit: 50}, 50},
		{job.Partition{MaxTime: 100}, job.Spec{TimeLimit: 500, TimeMin: 5}, 100},
	} {
		s := cluster(t, 1, 1)
		c.part.Name, c.part.Nodes = "p", []string{"n0000"}
		apply(t, s, job.PartitionSet{Partition: c.part})
		c.spec.Partitions = []string{"p"}
		apply(t, s, job.Submitted{At: 1, ID: 1, Spec: c.spec})
		decide(t, s, 1)
		if v, _ := s.Job(1); v.Allocation.Limit != c.limit {
			t.Errorf("%+v, %+v: limit %d, not %d", c.part, c.spec, v.Allocation.Limit, c.limit)
		}
	}
}

// TestSeveralPartitions: a job that names several starts in the first that can, of a higher
// tier first, and those that it may not use do not count.
func TestSeveralPartitions(t *testing.T) {
	s := cluster(t, 4, 2)
	for _, p := range []job.Partition{
		{Name: "small", Nodes: []string{"n0000"}, Tier: 1},
		{Name: "high", Nodes: []string{"n0001"}, Tier: 2},
		{Name: "closed", Nodes: []string{"n0002"}, Tier: 3, AllowUsers: []string{"root"}},
		{Name: "down", Nodes: []string{"n0003"}, Tier: 4, State: job.PartitionDown},
	} {
		apply(t, s, job.PartitionSet{Partition: p})
	}
	p := gpus(1, 8, 100)
	p.Partitions = []string{"small", "closed", "down", "high"}
	for id := range job.ID(3) {
		apply(t, s, job.Submitted{At: 1, ID: id + 1, Spec: p})
	}
	decide(t, s, 1)
	want(t, s, "1:RUNNING 2:RUNNING 3:PENDING(Resources)")
	for id, part := range []string{"high", "small"} {
		if v, _ := s.Job(job.ID(id + 1)); v.Allocation.Partition != part {
			t.Errorf("job %v is in %s, not in %s", v.ID, v.Allocation.Partition, part)
		}
	}
	down := *s.parts[4].spec
	down.State = job.PartitionUp
	apply(t, s, job.PartitionSet{At: 2, Partition: down})
	decide(t, s, 2)
	if v, _ := s.Job(3); v.Allocation.Partition != "down" {
		t.Errorf("%+v", v)
	}
}

// TestMemory in Slurm's forms: of a node, of a CPU, of a GPU, all, and the partition's.
func TestMemory(t *testing.T) {
	for _, c := range []struct {
		memory job.Memory
		part   job.Partition
		want   int64
	}{
		{job.Memory{MiB: 300, Per: job.PerNode}, job.Partition{}, 300},
		{job.Memory{MiB: 300}, job.Partition{}, 300},
		{job.Memory{MiB: 10, Per: job.PerCPU}, job.Partition{}, 60},
		{job.Memory{MiB: 100, Per: job.PerGPU}, job.Partition{}, 200},
		{job.Memory{All: true}, job.Partition{}, 1000},
		{job.Memory{}, job.Partition{}, 1000},
		{job.Memory{}, job.Partition{MemoryPerCPU: 7}, 42},
		{job.Memory{}, job.Partition{MemoryPerNode: 77}, 77},
		{job.Memory{MiB: 1001}, job.Partition{}, 0},
		{job.Memory{MiB: 501, Per: job.PerGPU}, job.Partition{}, 0},
	} {
		s := New()
		apply(t, s, job.NodeSet{Node: job.Node{Name: "n", CPUs: 8, Memory: 1000, GRES: []job.GRES{{Name: "gpu", Count: 2}}}})
		c.part.Name, c.part.Nodes = "p", []string{"n"}
		apply(t, s, job.PartitionSet{Partition: c.part})
		p := gpus(1, 2, job.Hour)
		p.Memory, p.TasksPerNode, p.CPUsPerTask = c.memory, 2, 3
		if err := s.Apply(job.Submitted{At: 1, ID: 1, Spec: p}); (err != nil) != (c.want == 0) {
			t.Errorf("%+v: %v", c.memory, err)
		} else if err != nil {
			continue
		}
		decide(t, s, 1)
		if v, _ := s.Job(1); v.Allocation.Nodes[0].Memory != c.want {
			t.Errorf("%+v, %+v: %d MiB, not %d", c.memory, c.part, v.Allocation.Nodes[0].Memory, c.want)
		}
	}
}

// TestMultifactor: priorities as Slurm 22.05's controller computed them on 8 nodes of 4
// CPUs, and those of the guides.
func TestMultifactor(t *testing.T) {
	prio := uint32(77)
	for _, c := range []struct {
		weights job.Weights
		spec    job.Spec
		wait    job.Duration
		want    uint32
	}{
		{job.Weights{Size: 1_000_000, Partition: 2000}, job.Spec{MinNodes: 1}, 0, 80125},
		{job.Weights{Size: 1_000_000, Partition: 2000}, job.Spec{MinNodes: 2}, 0, 158250},
		{job.Weights{Size: 1_000_000, Partition: 2000}, job.Spec{MinNodes: 3}, 0, 236375},
		{job.Weights{Size: 1_000_000, Partition: 2000}, job.Spec{MinNodes: 6}, 0, 470750},
		{job.Weights{Size: 1000}, job.Spec{MinNodes: 2, Tasks: 8}, 0, 250},
		{job.Weights{Size: 1000, FavorSmall: true}, job.Spec{MinNodes: 2, Tasks: 8}, 0, 750},
		{job.Weights{Partition: 5000}, job.Spec{Partitions: []string{"p"}}, 0, 5000},
		{job.Weights{Partition: 5000}, job.Spec{Partitions: []string{"q"}}, 0, 2500},
		{job.Weights{Partition: 5000}, job.Spec{Partitions: []string{"q", "p"}}, 0, 5000},
		{job.Weights{Age: 1000, MaxAge: 10 * job.Day}, job.Spec{}, 5 * job.Day, 500},
		{job.Weights{Age: 1000, MaxAge: 10 * job.Day}, job.Spec{}, 50 * job.Day, 1000},
		{job.Weights{Age: 1000}, job.Spec{}, 7 * job.Day / 2, 500}, // PriorityMaxAge is 7-0
		{job.Weights{Partition: 5000}, job.Spec{Nice: 100}, 0, 4900},
		{job.Weights{Partition: 5000}, job.Spec{Nice: -100}, 0, 5100},
		{job.Weights{Partition: 5000}, job.Spec{Nice: 9000}, 0, 1}, // 0 is held
		{job.Weights{Partition: 5000}, job.Spec{Hold: true}, 0, 0},
		{job.Weights{Partition: 5000}, job.Spec{Priority: &prio}, job.Day, 77},
	} {
		s := New()
		var names []string
		for i := range 8 {
			names = append(names, string(rune('a'+i)))
			apply(t, s, job.NodeSet{Node: job.Node{Name: names[i], CPUs: 4, State: job.NodeDown}})
		}
		factors := map[string]uint32{"p": 20, "q": 10}
		if c.weights.Size > 0 {
			factors["p"], factors["q"] = 1, 1
		}
		for _, name := range []string{"p", "q"} {
			apply(t, s, job.PartitionSet{Partition: job.Partition{Name: name, Nodes: names, Priority: factors[name], Default: name == "p"}})
		}
		apply(t, s, job.Configured{Config: job.Config{Weights: c.weights}})
		apply(t, s, job.Submitted{At: 1, ID: 1, Spec: c.spec})
		decide(t, s, 1)
		decide(t, s, job.Time(1).Add(c.wait))
		if v, _ := s.Job(1); v.Priority != c.want {
			t.Errorf("%+v, %+v after %d: %d, not %d", c.weights, c.spec, c.wait, v.Priority, c.want)
		}
	}
}

// TestOrder: who is first: by tier, priority, time of submission; and a change of a
// partition's factor changes places in the queue, also after a snapshot.
func TestOrder(t *testing.T) {
	s := cluster(t, 2, 2)
	apply(t, s, job.Configured{Config: job.Config{Weights: job.Weights{Partition: 1000}}})
	for _, p := range []job.Partition{{Name: "a", Priority: 5}, {Name: "b", Priority: 10}, {Name: "top", Tier: 1}} {
		p.Nodes = []string{"n0000", "n0001"}
		apply(t, s, job.PartitionSet{Partition: p})
	}
	in := func(part string, nice int32) job.Spec {
		p := gpus(2, 8, 100)
		p.Partitions, p.Nice = []string{part}, nice
		return p
	}
	for i, p := range []job.Spec{in("main", 0), in("a", 0), in("b", 600), in("b", 0), in("b", 0), in("top", 999)} {
		apply(t, s, job.Submitted{At: 1, ID: job.ID(i + 1), Spec: p})
	}
	order := func(s *Scheduler, want ...job.ID) {
		t.Helper()
		var got []job.ID
		for v := range s.Pending {
			got = append(got, v.ID)
		}
		if len(got) != len(want) {
			t.Fatalf("%v, not %v", got, want)
		}
		for i := range got {
			if got[i] != want[i] {
				t.Fatalf("%v, not %v", got, want)
			}
		}
	}
	order(s, 6, 4, 5, 2, 3, 1)
	p := *s.parts[1].spec
	p.Priority = 100
	apply(t, s, job.PartitionSet{At: 2, Partition: p})
	r := restored(t, s)
	decide(t, s, 2)
	decide(t, r, 2)
	order(s, 2, 4, 5, 1, 3)
	order(r, 2, 4, 5, 1, 3)
	if s.Hash() != r.Hash() {
		t.Error("after a snapshot others are decided about first")
	}
}

// TestMaximumOfOthers: a partition's longest time counts for each job by itself, though
// jobs that differ in their limits alone are looked at together.
func TestMaximumOfOthers(t *testing.T) {
	for _, limits := range [][]job.Duration{{10, 1000}, {1000, 10}} {
		s := New()
		for _, p := range []job.Partition{{Name: "short", MaxTime: 50}, {Name: "long"}} {
			p.Nodes = []string{p.Name}
			apply(t, s, job.NodeSet{Node: job.Node{Name: p.Name, CPUs: 8}})
			apply(t, s, job.PartitionSet{Partition: p})
		}
		for i, limit := range limits {
			spec := job.Spec{MinNodes: 1, Exclusive: true, TimeLimit: limit, Partitions: []string{"short", "long"}}
			apply(t, s, job.Submitted{At: 1, ID: job.ID(i + 1), Spec: spec})
		}
		decide(t, s, 1)
		for i, limit := range limits {
			v, _ := s.Job(job.ID(i + 1))
			if want := map[job.Duration]string{10: "short", 1000: "long"}[limit]; v.Allocation.Partition != want || v.Allocation.Limit != limit {
				t.Errorf("limits %v: the job of %d has %+v", limits, limit, v.Allocation)
			}
		}
	}
}

// TestMaximumChanges: when a partition's longest time falls, jobs above it wait, and the
// others do not; when it is gone all have a place.
func TestMaximumChanges(t *testing.T) {
	s := cluster(t, 1, 2)
	for i, limit := range []job.Duration{100, 100, 10} {
		apply(t, s, job.Submitted{At: 1, ID: job.ID(i + 1), Spec: gpus(1, 8, limit)})
	}
	decide(t, s, 1)
	main := job.Partition{Name: "main", Nodes: []string{"n0000"}, Default: true, MaxTime: 50}
	apply(t, s, job.PartitionSet{At: 2, Partition: main})
	apply(t, s, job.Submitted{At: 2, ID: 4, Spec: gpus(1, 8, 10)})
	apply(t, s, job.Ended{At: 3, ID: 1, State: job.Completed})
	decide(t, s, 3)
	for id, want := range map[job.ID]job.Time{2: job.Never, 3: 3, 4: 13} {
		if v, _ := s.Job(id); v.Expected != want && v.Start != want {
			t.Errorf("job %v is expected at %d, started at %d, not %d", id, v.Expected, v.Start, want)
		}
	}
	main.MaxTime = 0
	apply(t, s, job.PartitionSet{At: 4, Partition: main})
	decide(t, s, 4)
	if v, _ := s.Job(2); v.Expected != 13 { // it comes before job 4
		t.Errorf("without a maximum job 2 is expected at %d, not 13", v.Expected)
	}
}

// TestMaximumRestored: which partitions a job may be in does not depend on those that came
// before it and are gone.
func TestMaximumRestored(t *testing.T) {
	s := New()
	for _, p := range []job.Partition{{Name: "long"}, {Name: "short", MaxTime: 50}} {
		p.Nodes = []string{p.Name}
		apply(t, s, job.NodeSet{Node: job.Node{Name: p.Name, CPUs: 8, State: job.NodeDrain}})
		apply(t, s, job.PartitionSet{Partition: p})
	}
	for i, limit := range []job.Duration{10, 1000} {
		spec := job.Spec{MinNodes: 1, Exclusive: true, TimeLimit: limit, Partitions: []string{"long", "short"}}
		apply(t, s, job.Submitted{At: 1, ID: job.ID(i + 1), Spec: spec})
	}
	apply(t, s, job.Cancelled{At: 2, ID: 1})
	var b bytes.Buffer
	if err := s.Snapshot(&b); err != nil {
		t.Fatal(err)
	}
	r, err := Restore(&b)
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range []*Scheduler{s, r} {
		apply(t, x, job.NodeStateSet{At: 3, Node: "short"})
		decide(t, x, 3)
		if v, _ := x.Job(2); v.State != job.Pending {
			t.Errorf("job 2 of 1000 is %v in %s", v.State, v.Allocation.Partition)
		}
	}
	if s.Hash() != r.Hash() {
		t.Error("what was restored decides something else")
	}
}
