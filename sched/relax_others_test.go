package sched

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/gangway-hpc/gangway/internal/job"
)

// amount is something that a job asks for, and can ask less of.
type amount struct {
	name string
	of   func(*job.Spec) int64
	set  func(*job.Spec, int64)
}

func amounts() []amount {
	return []amount{
		{"nodes", func(p *job.Spec) int64 { return int64(p.MinNodes) }, func(p *job.Spec, n int64) { p.MinNodes = int(n) }},
		{"tasks", func(p *job.Spec) int64 { return int64(p.Tasks) }, func(p *job.Spec, n int64) { p.Tasks = int(n) }},
		{"cpus", func(p *job.Spec) int64 { return int64(p.CPUsPerTask) }, func(p *job.Spec, n int64) { p.CPUsPerTask = int(n) }},
		{"time", func(p *job.Spec) int64 { return int64(p.TimeLimit) }, func(p *job.Spec, n int64) { p.TimeLimit = job.Duration(n) }},
		{"gpus", func(p *job.Spec) int64 {
			if len(p.GRES) == 0 {
				return 0
			}
			return p.GRES[0].Count
		}, func(p *job.Spec, n int64) {
			p.GRES = slices.Clone(p.GRES)
			p.GRES[0].Count = n
		}},
	}
}

// smallestTold tries less of each amount for real, step by step: the first step that starts
// the job earlier and the first that starts it now have to be among what is told. It returns
// of which amounts there are such steps.
func smallestTold(t testing.TB, s *Scheduler, id job.ID) (helped []string) {
	t.Helper()
	x, err := s.Explain(id, s.now)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range x.Relaxations {
		if got := outcomeOf(t, s, id, r.Events(id, s.now)...); got != r.Start || got >= x.Expected {
			t.Fatalf("job %v: %s starts it at %d, told %d; expected %d", id, r.Text, got, r.Start, x.Expected)
		}
	}
	asked := *s.record(id).spec
	full := len(x.Relaxations) >= maxRelaxations
	for _, a := range amounts() {
		first, now := int64(0), int64(0)
		for n := a.of(&asked) - 1; n > 0 && now == 0; n-- {
			spec := asked
			a.set(&spec, n)
			start := outcomeOf(t, s, id, job.Changed{At: s.now, ID: id, Spec: spec})
			if first == 0 && start < x.Expected {
				first = n
			}
			if start == s.now {
				now = n
			}
		}
		told := func(n int64, now bool) bool {
			return slices.ContainsFunc(x.Relaxations, func(r Relaxation) bool { return a.of(&r.Spec) == n && (!now || r.Start == s.now) })
		}
		if first > 0 && !told(first, false) && !full || now > 0 && !told(now, true) {
			t.Fatalf("job %v expected at %d: %s %d do earlier and %d now, in place of %d; told: %s", id, x.Expected, a.name, first, now, a.of(&asked), strings.Join(texts(x.Relaxations), "; "))
		}
		if first > 0 {
			helped = append(helped, a.name)
		}
	}
	return helped
}

// TestRelaxationsAmongOthers: what is told is the smallest, and true, for jobs that others
// wait behind: these give up their places for what comes before them.
func TestRelaxationsAmongOthers(t *testing.T) {
	helped := map[string]int{}
	rapid.Check(t, func(t *rapid.T) {
		draw := func(low, high int, what string) int { return rapid.IntRange(low, high).Draw(t, what) }
		n := draw(2, 5, "nodes")
		s := grid(t2(t), n, false)
		for id := job.ID(1); id <= 10; id++ {
			spec := job.Spec{CPUsPerTask: draw(1, 6, "cpus"), TimeLimit: job.Duration(draw(1, 30, "limit"))}
			switch draw(0, 2, "kind") {
			case 0:
				spec.Tasks = draw(1, 3*n, "tasks")
			case 1:
				spec.MinNodes = draw(1, n, "on")
				spec.GRES = []job.GRESRequest{{Name: "gpu", Count: int64(draw(1, 4, "gpus")), Per: job.PerNode}}
			default:
				spec.GRES = []job.GRESRequest{{Name: "gpu", Count: int64(draw(1, 4*n, "gpus")), Per: job.PerJob}}
			}
			if s.Apply(job.Submitted{At: 1, ID: s.last + 1, Spec: spec}) == nil {
				s.Decide(1)
			}
		}
		few := 0
		for v := range s.Pending {
			if few++; few > 3 || s.record(v.ID).plan == nil {
				continue
			}
			for _, name := range smallestTold(t2(t), s, v.ID) {
				if v.ID < s.last {
					helped[name]++
				}
			}
		}
	})
	t.Log(helped)
	for _, a := range amounts() {
		if helped[a.name] == 0 {
			t.Errorf("fewer %s never helped a job that others wait behind: nothing was shown", a.name)
		}
	}
}

// grid is nodes of 8 CPUs and 4 GPUs, two to a block if there are some.
func grid(t testing.TB, n int, blocks bool) *Scheduler {
	s := New()
	var names []string
	for i := range n {
		node := job.Node{Name: fmt.Sprintf("n%d", i), CPUs: 8, GRES: []job.GRES{{Name: "gpu", Count: 4}}}
		if blocks {
			node.Block = fmt.Sprintf("b%d", i/2)
		}
		names = append(names, node.Name)
		apply(t, s, job.NodeSet{Node: node})
	}
	apply(t, s, job.PartitionSet{Partition: job.Partition{Name: "p", Nodes: names, MemoryPerCPU: 1}})
	return s
}

// TestUnevenAmounts: of tasks, CPUs and GPUs that are shared out among nodes fewer may be
// worse, as they may be on fewer nodes: the first step that does is told all the same.
func TestUnevenAmounts(t *testing.T) {
	tried := 0
	try := func(blocks bool, busy, spec job.Spec) {
		s := grid(t, 4, blocks)
		busy.MinNodes, busy.TimeLimit, spec.TimeLimit = 4, 100, 100
		apply(t, s, job.Submitted{At: 1, ID: 1, Spec: busy})
		if s.Apply(job.Submitted{At: 1, ID: 2, Spec: spec}) != nil {
			return
		}
		if s.Decide(1); s.record(2).plan != nil {
			tried += len(smallestTold(t, s, 2))
		}
	}
	try(true, job.Spec{TasksPerNode: 1, CPUsPerTask: 3}, job.Spec{Tasks: 4, CPUsPerTask: 4, Topology: job.Topology{Segment: 2}})
	for busy := 1; busy <= 7; busy += 2 {
		for tasks := 2; tasks <= 24; tasks += 2 {
			for cpus := 1; cpus <= 3; cpus++ {
				try(false, job.Spec{TasksPerNode: 1, CPUsPerTask: busy}, job.Spec{Tasks: tasks, CPUsPerTask: cpus})
			}
		}
	}
	gpus := func(n int, per job.Unit) []job.GRESRequest {
		return []job.GRESRequest{{Name: "gpu", Count: int64(n), Per: per}}
	}
	for busy := 1; busy < 4; busy++ {
		for all := 2; all <= 16; all++ {
			for tasks := 0; tasks <= 6; tasks += 2 {
				try(false, job.Spec{GRES: gpus(busy, job.PerNode)}, job.Spec{Tasks: tasks, GRES: gpus(all, job.PerJob)})
			}
		}
	}
	if tried < 100 {
		t.Errorf("only %d amounts helped", tried)
	}
}

// TestRelaxedBeforeLaterJobs: the gap that a job would take with fewer nodes is a later
// job's, which comes after it and gives it up.
func TestRelaxedBeforeLaterJobs(t *testing.T) {
	s := cluster(t, 2, 2)
	for i, p := range []job.Spec{gpus(1, 8, 100), gpus(1, 8, 50), gpus(2, 8, 100), gpus(1, 8, 50)} {
		apply(t, s, job.Submitted{At: 1, ID: job.ID(i + 1), Spec: p})
	}
	decide(t, s, 1)
	x, err := s.Explain(3, 1)
	if err != nil || !slices.Contains(texts(x.Relaxations), "--nodes=1 at 51") {
		t.Errorf("%+v, %v", texts(x.Relaxations), err)
	}
}

// TestRelaxationsOfManyPlanned: where too much is planned to try all of it, a start that is
// told is the latest there can be, and says so; and it is an improvement.
func TestRelaxationsOfManyPlanned(t *testing.T) {
	r := rng(88172645463325252)
	s := cluster(t, 96, 8)
	for range 3200 {
		spec := shaped(&r)
		if spec.MinNodes > 8 {
			spec.MinNodes, spec.MaxNodes = 8, 8
		}
		if s.Apply(job.Submitted{At: 1, ID: s.last + 1, Spec: spec}) != nil {
			continue // segments that this cluster has not
		}
	}
	s.Decide(1)
	all, latest, exact := 0, 0, 0
	for id := job.ID(90); id <= s.last; id += 311 {
		if s.record(id).plan == nil {
			continue
		}
		x, err := s.Explain(id, 1)
		if err != nil {
			t.Fatal(err)
		}
		for _, y := range x.Relaxations {
			got := outcomeOf(t, s, id, y.Events(id, 1)...)
			if got > y.Start || got >= x.Expected || !y.Latest && got != y.Start {
				t.Errorf("job %v: %s starts it at %d, told %d, the latest: %v; expected %d", id, y.Text, got, y.Start, y.Latest, x.Expected)
			}
			all++
			if y.Latest {
				latest++
			}
			if got == y.Start {
				exact++
			}
		}
	}
	t.Logf("of %d relaxations %d say that it is the latest, and %d are exact", all, latest, exact)
	if latest == 0 || latest == all || exact < all/2 {
		t.Errorf("of %d relaxations %d say that it is the latest, and %d are exact", all, latest, exact)
	}
}
