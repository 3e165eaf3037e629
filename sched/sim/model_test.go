package sim_test

import (
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/sched"
	"github.com/gangway-hpc/gangway/sched/sim"
)

// recorder notes what a policy starts, in seconds since the first submission.
type recorder struct {
	sim.Policy
	zero   job.Time
	starts map[job.ID]int
	order  []job.ID
}

func (r *recorder) Apply(e job.Event) error {
	if s, ok := e.(job.Submitted); ok && r.zero == 0 {
		r.zero = s.At
	}
	return r.Policy.Apply(e)
}

func (r *recorder) Decide(now job.Time) []job.Event {
	events := r.Policy.Decide(now)
	for _, e := range events {
		if s, ok := e.(job.Started); ok {
			r.starts[s.ID] = int(now.Sub(r.zero) / job.Second)
			r.order = append(r.order, s.ID)
		}
	}
	return events
}

// startsOf runs a trace and returns when each job started, "-" for never.
func startsOf(t *testing.T, p sim.Policy, c *sim.Cluster, trace *sim.Trace) string {
	t.Helper()
	r := &recorder{Policy: p, starts: map[job.ID]int{}}
	if _, err := sim.Run(t.Context(), r, c, trace, sim.Options{}); err != nil {
		t.Fatal(err)
	}
	var all []string
	for i := range trace.Jobs {
		if at, ok := r.starts[job.ID(i+1)]; ok {
			all = append(all, fmt.Sprint(at))
		} else {
			all = append(all, "-")
		}
	}
	return strings.Join(all, " ")
}

// TestModels: worked examples. One cluster of two nodes of four GPUs.
func TestModels(t *testing.T) {
	two := sim.Shape{Nodes: 2, CPUs: 4, GPUs: 4}
	for _, c := range []struct {
		name        string
		trace       *sim.Trace
		fifo, cycle string
	}{
		{
			"the third job passes the second, which is not delayed",
			jobs([3]int{0, 100, 4}, [3]int{0, 50, 8}, [3]int{0, 100, 4}),
			"0 100 150", "0 100 0",
		},
		{
			"the third job would delay the second",
			jobs([3]int{0, 100, 4}, [3]int{0, 50, 8}, [3]int{0, 101, 4}),
			"0 100 150", "0 100 150",
		},
		{
			"a cycle is at most every 30 s",
			jobs([3]int{0, 100, 4}, [3]int{0, 50, 8}, [3]int{1, 60, 4}, [3]int{2, 5, 4}),
			"0 100 150 150", "0 100 30 90",
		},
		{
			"one that is too large is refused",
			jobs([3]int{0, 10, 4}, [3]int{0, 50, 12}, [3]int{1, 10, 4}),
			"0 - 1", "0 - 1",
		},
	} {
		if got := startsOf(t, sim.FIFOModel(), sim.Uniform(two), c.trace); got != c.fifo {
			t.Errorf("%s: strict FIFO starts at %s, want %s", c.name, got, c.fifo)
		}
		if got := startsOf(t, sim.CycleModel(), sim.Uniform(two), c.trace); got != c.cycle {
			t.Errorf("%s: the cycle starts at %s, want %s", c.name, got, c.cycle)
		}
	}
}

// TestModelDepth: the 501st job of the queue is not looked at.
func TestModelDepth(t *testing.T) {
	trace := jobs([3]int{0, 1000, 4}, [3]int{0, 1000, 8})
	for range 499 {
		trace.Jobs = append(trace.Jobs, sim.Job{Run: 2000 * job.Second, GPUs: 4})
	}
	trace.Jobs = append(trace.Jobs, sim.Job{Run: 10 * job.Second, GPUs: 4})
	cluster := sim.Uniform(sim.Shape{Nodes: 2, CPUs: 4, GPUs: 4})
	if got := strings.Fields(startsOf(t, sim.CycleModel(), cluster, trace))[501]; got == "0" {
		t.Error("the 501st job was started at once")
	}
	trace.Jobs = append(trace.Jobs[:3], trace.Jobs[4:]...)
	if got := strings.Fields(startsOf(t, sim.CycleModel(), cluster, trace))[500]; got != "0" {
		t.Errorf("the 500th job was started at %s", got)
	}
}

// TestModelPriorityAndLicences: jobs come by priority; licences are not given twice.
func TestModelPriorityAndLicences(t *testing.T) {
	low, high := uint32(1), uint32(9)
	l := []job.License{{Name: "a", Count: 3}}
	trace := &sim.Trace{Jobs: []sim.Job{
		{Run: 10 * job.Second, CPUs: 4, Priority: &low},
		{Submit: 1000, Run: 10 * job.Second, CPUs: 4, Priority: &low},
		{Submit: 2000, Run: 10 * job.Second, CPUs: 3, TaskCPUs: 3, Priority: &high},
		{Submit: 100_000, Run: 10 * job.Second, CPUs: 1, Licenses: l},
		{Submit: 100_000, Run: 10 * job.Second, CPUs: 1, Licenses: l},
		{Submit: 100_000, Run: 10 * job.Second, CPUs: 1, Licenses: []job.License{{Name: "a", Count: 6}}},
	}}
	c := sim.Uniform(sim.Shape{Nodes: 1, CPUs: 4})
	c.Config.Licenses = []job.License{{Name: "a", Count: 5}}
	if got := startsOf(t, sim.FIFOModel(), c, trace); got != "0 20 10 100 110 -" {
		t.Errorf("%s", got)
	}
}

// TestModelFeatures: only nodes that have what a job wants.
func TestModelFeatures(t *testing.T) {
	c := sim.Uniform(sim.Shape{Nodes: 3, CPUs: 1, GPUs: 1})
	c.Nodes[1].Features, c.Nodes[2].Features = []string{"b"}, []string{"c"}
	trace := &sim.Trace{Jobs: []sim.Job{
		{Run: 10 * job.Second, GPUs: 1, AnyFeature: []string{"b", "c"}},
		{Run: 10 * job.Second, GPUs: 1, AnyFeature: []string{"b", "c"}},
		{Run: 10 * job.Second, GPUs: 1, AnyFeature: []string{"b", "c"}},
		{Run: 10 * job.Second, GPUs: 1, AnyFeature: []string{"d"}},
	}}
	if got := startsOf(t, sim.CycleModel(), c, trace); got != "0 0 10 -" {
		t.Errorf("%s", got)
	}
}

// TestModelsHold: whatever the jobs, no model gives anything twice (the simulation proves
// that), FIFO keeps the order, and all jobs end.
func TestModelsHold(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c, trace := draw(t)
		o := sim.Options{Limits: rapid.SampledFrom([]sim.Limits{sim.Exact, sim.Over}).Draw(t, "limits")}
		for _, m := range []*sim.Model{sim.FIFOModel(), sim.CycleModel()} {
			r := &recorder{Policy: m, starts: map[job.ID]int{}}
			result, err := sim.Run(t.Context(), r, c, trace, o)
			if err != nil {
				t.Fatal(err)
			}
			if result.Complete+result.Refused != len(trace.Jobs) {
				t.Fatalf("%s: %d of %d jobs ended, %d were refused", m.Name(), result.Complete, len(trace.Jobs), result.Refused)
			}
			for i := 1; i < len(r.order) && strings.Contains(m.Name(), "FIFO"); i++ {
				if r.order[i] < r.order[i-1] {
					t.Fatalf("job %d started before job %d", r.order[i-1], r.order[i])
				}
			}
		}
	})
}

// TestNodesOutOfService: nothing runs on them, whoever decides, and they are no place that a
// job could have had; switches that only nodes name are switches.
func TestNodesOutOfService(t *testing.T) {
	for _, p := range []sim.Policy{sched.New(), sim.CycleModel(), sim.FIFOModel()} {
		c := &sim.Cluster{}
		for i := range 8 {
			n := job.Node{Name: fmt.Sprintf("n%d", i), CPUs: 2, Memory: 2000, Switch: fmt.Sprintf("s%d", i/4)}
			if i%2 == 1 {
				n.State = []job.NodeState{job.NodeDown, job.NodeDrain}[i/4]
			}
			c.Nodes = append(c.Nodes, n)
		}
		trace := &sim.Trace{}
		for i := range 6 {
			trace.Jobs = append(trace.Jobs, sim.Job{Line: i + 1, Submit: job.Time(i), Run: 1000, CPUs: 6, Nodes: 3, TaskCPUs: 2})
		}
		r, err := sim.Run(t.Context(), p, c, trace, sim.Options{})
		if err != nil {
			t.Fatalf("%T: %v", p, err)
		}
		if r.Complete != 6 || r.Makespan < 6 || r.Spread.Jobs != 6 || r.Spread.Optimal != 1 || r.Spread.Ratio != 1 {
			t.Errorf("%T: %d completed in %v s, spread %+v", p, r.Complete, r.Makespan, r.Spread)
		}
		if report := sim.NewReport(trace, c); report.Cluster.Nodes != 4 || report.Cluster.Switches != 2 {
			t.Errorf("%+v", report.Cluster)
		}
	}
}
