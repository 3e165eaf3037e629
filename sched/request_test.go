package sched

import (
	"fmt"
	"strings"
	"testing"

	"github.com/gangway-hpc/gangway/internal/job"
)

// typed makes n nodes of 16 CPUs with GRES, in one partition.
func typed(t testing.TB, n int, gres ...job.GRES) *Scheduler {
	t.Helper()
	s := New()
	var names []string
	for i := range n {
		names = append(names, fmt.Sprintf("n%d", i+1))
		apply(t, s, job.NodeSet{Node: job.Node{Name: names[i], CPUs: 16, GRES: gres}})
	}
	apply(t, s, job.PartitionSet{Partition: job.Partition{Name: "p", Nodes: names}})
	return s
}

// has is what a job has, in short: "n1 1t 1c gpu:a100:2(0-1), ...".
func has(v JobView) string {
	var all []string
	for _, n := range v.Allocation.Nodes {
		var text strings.Builder
		fmt.Fprintf(&text, "%s %dt %dc", n.Node, n.Tasks, n.CPUs)
		for _, d := range n.Devices {
			fmt.Fprintf(&text, " %s:%d", gresName(d.Name, d.Type), d.Count)
		}
		all = append(all, text.String())
	}
	return strings.Join(all, ", ")
}

// TestTotal: --gpus is shared out as Slurm 22.05 does on four nodes of four GPUs (asked of
// its controller), but that nodes get as many each where that comes out even.
func TestTotal(t *testing.T) {
	a100 := job.GRES{Name: "gpu", Type: "a100", Count: 4}
	named := func(node string, n int64) job.Spec {
		p := gpus(1, n, job.Hour)
		p.NodeList = []string{node}
		return p
	}
	for _, c := range []struct {
		spec   job.Spec
		gpus   int64
		before []job.Spec // what runs
		want   string     // empty: it waits; "!": it is refused
	}{
		{job.Spec{MinNodes: 2}, 5, nil, "n1 1t 1c gpu:a100:4, n2 1t 1c gpu:a100:1"},
		{job.Spec{MinNodes: 2}, 3, nil, "n1 1t 1c gpu:a100:2, n2 1t 1c gpu:a100:1"},
		{job.Spec{MinNodes: 2}, 6, nil, "n1 1t 1c gpu:a100:3, n2 1t 1c gpu:a100:3"}, // Slurm: 4 and 2
		{job.Spec{}, 8, nil, "n1 1t 1c gpu:a100:4, n2 1t 1c gpu:a100:4"},
		{job.Spec{}, 3, nil, "n1 1t 1c gpu:a100:3"},
		{job.Spec{}, 8, []job.Spec{named("n1", 2), named("n3", 2), named("n4", 4)}, "n1 1t 1c gpu:a100:2, n2 1t 1c gpu:a100:4, n3 1t 1c gpu:a100:2"},
		{job.Spec{MinNodes: 3}, 9, []job.Spec{named("n1", 2), named("n4", 4)}, "n1 1t 1c gpu:a100:2, n2 1t 1c gpu:a100:4, n3 1t 1c gpu:a100:3"},
		{job.Spec{MinNodes: 2}, 5, []job.Spec{named("n1", 4), named("n2", 4), named("n3", 2), named("n4", 2)}, ""},
		{job.Spec{MinNodes: 1, MaxNodes: 3}, 4, nil, "n1 1t 1c gpu:a100:4"},
		{job.Spec{Tasks: 4}, 6, nil, "n1 2t 2c gpu:a100:3, n2 2t 2c gpu:a100:3"}, // Slurm: 3 and 1 tasks, 4 and 2 GPUs
		{job.Spec{Tasks: 5}, 7, nil, "n1 3t 3c gpu:a100:4, n2 2t 3c gpu:a100:3"},
		{job.Spec{Tasks: 1}, 6, nil, "!"},
		{job.Spec{MinNodes: 1}, 5, nil, "!"},
		{job.Spec{MinNodes: 1, MaxNodes: 1}, 5, nil, "!"},
		{job.Spec{}, 20, nil, "!"},
		{job.Spec{MinNodes: 4}, 3, nil, "!"},
	} {
		s := typed(t, 4, a100)
		for i, p := range c.before {
			apply(t, s, job.Submitted{At: 1, ID: job.ID(i + 1), Spec: p})
		}
		decide(t, s, 1)
		spec := c.spec
		spec.TimeLimit = job.Hour
		spec.GRES = []job.GRESRequest{{Name: "gpu", Count: c.gpus, Per: job.PerJob}}
		err := s.Apply(job.Submitted{At: 1, ID: 9, Spec: spec})
		if (err != nil) != (c.want == "!") {
			t.Errorf("%d GPUs on %+v: %v", c.gpus, c.spec, err)
		}
		if err != nil {
			continue
		}
		decide(t, s, 1)
		v, _ := s.Job(9)
		if got := has(v); got != c.want {
			t.Errorf("%d GPUs on %+v: %q, not %q", c.gpus, c.spec, got, c.want)
		}
		if c.want == "" && v.Expected != job.Time(1).Add(job.Hour) {
			t.Errorf("%d GPUs on %+v: expected at %d", c.gpus, c.spec, v.Expected)
		}
	}
}

// TestTasks: tasks that nodes cannot share evenly take no more CPUs than there are
// tasks, and a job with a range of nodes has as many as it may, as for Slurm 22.05.
func TestTasks(t *testing.T) {
	for _, c := range []struct {
		spec job.Spec
		want string
	}{
		{job.Spec{Tasks: 5, MinNodes: 2}, "n1 3t 3c, n2 2t 2c"}, // Slurm: 4 and 1
		{job.Spec{Tasks: 4, MinNodes: 1, MaxNodes: 3}, "n1 2t 2c, n2 1t 1c, n3 1t 1c"},
		{job.Spec{Tasks: 12, MinNodes: 1, MaxNodes: 3}, "n1 4t 4c, n2 4t 4c, n3 4t 4c"},
		{job.Spec{MinNodes: 1, MaxNodes: 3}, "n1 1t 1c, n2 1t 1c, n3 1t 1c"},
		{job.Spec{Tasks: 2, MinNodes: 4}, "n1 1t 1c, n2 1t 1c"}, // "can't run 2 processes on 4 nodes"
		{job.Spec{Tasks: 20}, "n1 10t 10c, n2 10t 10c"},
		{job.Spec{Tasks: 20, TasksPerNode: 7}, "n1 7t 7c, n2 7t 7c, n3 6t 6c"},
		{job.Spec{MinNodes: 2, TasksPerNode: 3, CPUsPerTask: 2}, "n1 3t 6c, n2 3t 6c"},
		{job.Spec{Tasks: 3, MinNodes: 2, GRES: []job.GRESRequest{{Name: "gpu", Count: 2, Per: job.PerTask}}}, "n1 2t 2c gpu:4, n2 1t 1c gpu:2"},
		{job.Spec{MinNodes: 1, CPUsPerGPU: 3, GRES: []job.GRESRequest{{Name: "gpu", Count: 4, Per: job.PerNode}}}, "n1 1t 12c gpu:4"},
		{job.Spec{MinNodes: 2, Exclusive: true}, "n1 1t 16c gpu:4, n2 1t 16c gpu:4"},
	} {
		s := typed(t, 4, job.GRES{Name: "gpu", Count: 4})
		c.spec.TimeLimit = job.Hour
		apply(t, s, job.Submitted{At: 1, ID: 1, Spec: c.spec})
		decide(t, s, 1)
		if v, _ := s.Job(1); has(v) != c.want {
			t.Errorf("%+v: %q, not %q", c.spec, has(v), c.want)
		}
	}
}

// TestTypes: a request without a type may be of several types of a node, as for Slurm, and
// leaves a type to those that ask for it. MIG profiles are types.
func TestTypes(t *testing.T) {
	any, a, h := gpus(1, 0, job.Hour), gpus(1, 0, job.Hour), gpus(1, 0, job.Hour)
	ask := func(p job.Spec, nodes int, n int64, per job.Unit, typ string) job.Spec {
		p.MinNodes, p.GRES = nodes, []job.GRESRequest{{Name: "gpu", Type: typ, Count: n, Per: per}}
		return p
	}
	for _, c := range []struct {
		specs []job.Spec
		want  string
	}{
		{[]job.Spec{ask(any, 1, 4, job.PerNode, "")}, "n1 1t 1c gpu:a100:2 gpu:3g.20gb:2"},
		{[]job.Spec{ask(any, 1, 3, job.PerNode, "")}, "n1 1t 1c gpu:a100:2 gpu:3g.20gb:1"},
		{[]job.Spec{ask(any, 1, 1, job.PerNode, "")}, "n1 1t 1c gpu:a100:1"},
		{[]job.Spec{ask(a, 1, 1, job.PerNode, "a100"), ask(any, 1, 2, job.PerNode, "")}, "n1 1t 1c gpu:a100:1; n1 1t 1c gpu:3g.20gb:2"},
		{[]job.Spec{ask(a, 1, 1, job.PerNode, "a100"), ask(any, 1, 3, job.PerNode, "")}, "n1 1t 1c gpu:a100:1; n1 1t 1c gpu:a100:1 gpu:3g.20gb:2"},
		{[]job.Spec{ask(h, 1, 2, job.PerNode, "3g.20gb"), ask(a, 2, 1, job.PerNode, "a100")}, "n1 1t 1c gpu:3g.20gb:2; n1 1t 1c gpu:a100:1, n2 1t 1c gpu:a100:1"},
		{[]job.Spec{ask(h, 1, 1, job.PerNode, "3g.20gb"), ask(any, 2, 3, job.PerNode, "")}, "n1 1t 1c gpu:3g.20gb:1; n1 1t 1c gpu:a100:2 gpu:3g.20gb:1, n2 1t 1c gpu:a100:2 gpu:3g.20gb:1"},
		{[]job.Spec{ask(h, 1, 2, job.PerNode, "3g.20gb"), ask(any, 2, 5, job.PerJob, "")}, "n1 1t 1c gpu:3g.20gb:2; n1 1t 1c gpu:a100:2, n2 1t 1c gpu:a100:2 gpu:3g.20gb:1"},
	} {
		s := typed(t, 2, job.GRES{Name: "gpu", Type: "a100", Count: 2}, job.GRES{Name: "gpu", Type: "3g.20gb", Count: 2})
		var got []string
		for i, p := range c.specs {
			apply(t, s, job.Submitted{At: 1, ID: job.ID(i + 1), Spec: p})
			decide(t, s, 1)
			v, _ := s.Job(job.ID(i + 1))
			got = append(got, has(v))
		}
		if all := strings.Join(got, "; "); all != c.want {
			t.Errorf("%+v:\n%q, not\n%q", c.specs, all, c.want)
		}
	}
	s := typed(t, 2, job.GRES{Name: "gpu", Type: "a100", Count: 2}, job.GRES{Name: "gpu", Type: "3g.20gb", Count: 2})
	for _, p := range []job.Spec{ask(any, 1, 5, job.PerNode, ""), ask(any, 1, 3, job.PerNode, "a100"), ask(any, 1, 1, job.PerNode, "7g.80gb"), ask(any, 3, 1, job.PerNode, "")} {
		if err := s.Apply(job.Submitted{At: 1, ID: 1, Spec: p}); err == nil {
			t.Errorf("%+v was accepted", p)
		}
	}
}

// TestCores: a core is one job's with all of its threads, and may be had with fewer of them
// in use; where a node's CPUs are its cores, each is one. What is per socket counts these.
func TestCores(t *testing.T) {
	for _, c := range []struct {
		cpus int // of the node
		spec job.Spec
		want int // CPUs of the job
		runs int // jobs that fit at once
	}{
		{16, job.Spec{CPUsPerTask: 1}, 2, 8},
		{16, job.Spec{CPUsPerTask: 3}, 4, 4},
		{16, job.Spec{Tasks: 3, MinNodes: 1}, 4, 4},
		{16, job.Spec{CPUsPerTask: 3, ThreadsPerCore: 1}, 6, 2},
		{16, job.Spec{CPUsPerTask: 3, ThreadsPerCore: 2}, 4, 4},
		{8, job.Spec{CPUsPerTask: 1}, 1, 8},
		{8, job.Spec{CPUsPerTask: 3, ThreadsPerCore: 1}, 3, 2},
		{0, job.Spec{CPUsPerTask: 1}, 2, 8},
		{16, job.Spec{GRES: []job.GRESRequest{{Name: "gpu", Count: 2, Per: job.PerSocket}}}, 2, 1},
		{16, job.Spec{GRES: []job.GRESRequest{{Name: "gpu", Count: 1, Per: job.PerSocket}}}, 2, 2},
	} {
		s := New()
		apply(t, s, job.NodeSet{Node: job.Node{
			Name: "n", CPUs: c.cpus, Sockets: 2, CoresPerSocket: 4, ThreadsPerCore: 2, GRES: []job.GRES{{Name: "gpu", Count: 4}},
		}})
		apply(t, s, job.PartitionSet{Partition: job.Partition{Name: "p", Nodes: []string{"n"}}})
		c.spec.TimeLimit = job.Hour
		for id := range job.ID(10) {
			apply(t, s, job.Submitted{At: 1, ID: id + 1, Spec: c.spec})
		}
		decide(t, s, 1)
		runs := 0
		for range s.Running {
			runs++
		}
		if v, _ := s.Job(1); v.Allocation.Nodes[0].CPUs != c.want || runs != c.runs {
			t.Errorf("%d CPUs, %+v: %d CPUs each, %d run; want %d and %d", c.cpus, c.spec, v.Allocation.Nodes[0].CPUs, runs, c.want, c.runs)
		}
	}
}
