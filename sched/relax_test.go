package sched

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/gangway-hpc/gangway/internal/job"
)

// outcomeOf is when a job starts if these events happen to a copy.
func outcomeOf(t testing.TB, s *Scheduler, id job.ID, events ...job.Event) job.Time {
	t.Helper()
	c := s.Fork()
	for _, e := range events {
		if c.Apply(e) != nil {
			return job.Never
		}
	}
	c.Decide(s.now)
	if err := c.Check(); err != nil {
		t.Fatal(err)
	}
	return c.record(id).expected()
}

// TestSmallestRelaxation compares what is found with a search of all that could be given
// up: in small worlds with one job that waits, each step of each amount is tried for real.
func TestSmallestRelaxation(t *testing.T) {
	found := map[string]int{}
	rapid.Check(t, func(t *rapid.T) {
		s, id := New(), job.ID(0)
		n := rapid.IntRange(1, 4).Draw(t, "nodes")
		draw := func(low, high int, what string) int { return rapid.IntRange(low, high).Draw(t, what) }
		var names []string
		for i := range n {
			names = append(names, fmt.Sprintf("n%d", i))
			apply(t2(t), s, job.NodeSet{Node: job.Node{Name: names[i], CPUs: 8, Memory: 64, GRES: []job.GRES{{Name: "gpu", Count: 4}}}})
		}
		apply(t2(t), s, job.PartitionSet{Partition: job.Partition{Name: "p", Nodes: names, MemoryPerCPU: 1}})
		apply(t2(t), s, job.Configured{Config: job.Config{Licenses: []job.License{{Name: "l", Count: 4}}}})
		submit := func(limit int) {
			spec := job.Spec{
				MinNodes: draw(1, n, "on"), CPUsPerTask: draw(1, 8, "cpus"), Memory: job.Memory{MiB: int64(draw(1, 64, "memory")), Per: job.PerNode},
				TimeLimit: job.Duration(limit), GRES: []job.GRESRequest{{Name: "gpu", Count: int64(draw(1, 4, "gpus")), Per: job.PerNode}},
			}
			if l := draw(0, 4, "licences"); l > 0 {
				spec.Licenses = []job.License{{Name: "l", Count: int64(l)}}
			}
			id++
			apply(t2(t), s, job.Submitted{At: 1, ID: id, Spec: spec})
			s.Decide(1)
		}
		// One that waits is enough; behind another one its time limit counts too.
		waiting := draw(1, 2, "waiting")
		for s.planned < waiting && id < 12 {
			submit(draw(1, 40, "limit"))
		}
		if s.record(id).plan == nil {
			return
		}
		x, err := s.Explain(id, 1)
		if err != nil {
			t.Fatal(err)
		}
		verifyRelaxations(t2(t), s, id, x)
		spec := *s.record(id).spec
		for _, c := range []struct {
			text string
			n    int64
			set  func(*job.Spec, int64)
		}{
			{"--nodes=%d", int64(spec.MinNodes), func(p *job.Spec, n int64) { p.MinNodes = int(n) }},
			{"--cpus-per-task=%d", int64(spec.CPUsPerTask), func(p *job.Spec, n int64) { p.CPUsPerTask = int(n) }},
			{"--mem=%dM", spec.Memory.MiB, func(p *job.Spec, n int64) { p.Memory.MiB = n }},
			{"--gpus-per-node=%d", spec.GRES[0].Count, func(p *job.Spec, n int64) { p.GRES = []job.GRESRequest{{Name: "gpu", Count: n, Per: job.PerNode}} }},
			{"--time %d", int64(spec.TimeLimit), func(p *job.Spec, n int64) { p.TimeLimit = job.Duration(n) }},
		} {
			first, now := int64(0), int64(0) // the largest that starts it earlier, and now
			for n := c.n - 1; n > 0 && now == 0; n-- {
				p := spec
				c.set(&p, n)
				start := outcomeOf(t2(t), s, id, job.Changed{At: 1, ID: id, Spec: p})
				if first == 0 && start < x.Expected {
					first = n
				}
				if start == 1 {
					now = n
				}
			}
			is := func(x *Relaxation, n int64) bool {
				if strings.HasPrefix(c.text, "--time ") {
					return strings.HasPrefix(x.Text, "--time=") && int64(x.Spec.TimeLimit) == n
				}
				return x.Text == fmt.Sprintf(c.text, n)
			}
			for i, want := range []int64{first, now} {
				told := slices.ContainsFunc(x.Relaxations, func(r Relaxation) bool { return is(&r, want) && (i == 0 || r.Start == 1) })
				if want > 0 && !told && (i == 1 || len(x.Relaxations) < maxRelaxations) {
					t.Fatalf("%s would do in place of %d, from %d to %d: %+v", fmt.Sprintf(c.text, want), c.n, x.Expected, i, x.Relaxations)
				}
				if want > 0 {
					found[c.text]++
				}
			}
		}
	})
	t.Log(found)
	for _, text := range []string{"--nodes=%d", "--cpus-per-task=%d", "--mem=%dM", "--gpus-per-node=%d", "--time %d"} {
		if found[text] == 0 {
			t.Errorf("%s never helped: nothing was shown", text)
		}
	}
}

// TestEarlierAndNow: what gives up least is told, though it starts the job only earlier, and
// what gives up least to start it now; and nothing in between.
func TestEarlierAndNow(t *testing.T) {
	s := cluster(t, 1, 1)
	for i, p := range []job.Spec{gpus(1, 4, 100), gpus(1, 2, 50), gpus(1, 8, 100)} {
		apply(t, s, job.Submitted{At: 1, ID: job.ID(i + 1), Spec: p})
	}
	decide(t, s, 1)
	x, err := s.Explain(3, 1)
	if got := fmt.Sprint(texts(x.Relaxations)); err != nil || got != "[--gpus-per-node=2 at 1 --gpus-per-node=4 at 51]" {
		t.Errorf("%s, %v", got, err)
	}
}

// TestOpened: for a job that is not even planned the change is what lets it start, no more
// and no less, whatever keeps it.
func TestOpened(t *testing.T) {
	zero := uint32(0)
	task := uint32(2)
	depends := func(any bool, list ...job.Dependency) func(*job.Spec) {
		return func(p *job.Spec) { p.Dependencies = &job.Dependencies{Any: any, List: list} }
	}
	// Job 1 runs and job 2 failed; jobs 3 to 5 are an array that runs one task at a time.
	for _, c := range []struct {
		name, text string
		change     func(*job.Spec)
	}{
		{"held", "released", func(p *job.Spec) { p.Hold = true }},
		{"held by an administrator", "released", func(p *job.Spec) { p.Priority = &zero }},
		{"begin", "--begin=now", func(p *job.Spec) { p.Begin = 5000 }},
		{"dependency", "without --dependency=afterok:1", depends(false, job.Dependency{Type: job.AfterOK, Job: 1})},
		{"never", "without --dependency=afterok:2", depends(false, job.Dependency{Type: job.AfterOK, Job: 2})},
		{"one of two", "without --dependency=afterany:1", depends(false, job.Dependency{Type: job.AfterNotOK, Job: 2}, job.Dependency{Type: job.AfterAny, Job: 1})},
		{"any of two", "without --dependency=afterok:2?afterok:3_2", depends(true, job.Dependency{Type: job.AfterOK, Job: 2}, job.Dependency{Type: job.AfterOK, Job: 3, Task: &task})},
		{"delay", "without --dependency=after:1+10", depends(false, job.Dependency{Type: job.After, Job: 1, Delay: 10 * job.Minute})},
		{"singleton", "without --dependency=singleton", func(p *job.Spec) {
			p.Name = "one"
			p.Dependencies = &job.Dependencies{List: []job.Dependency{{Type: job.Singleton}}}
		}},
		{"all of them", "released, --begin=now, without --dependency=afterok:1", func(p *job.Spec) {
			p.Hold, p.Begin = true, 5000
			p.Dependencies = &job.Dependencies{List: []job.Dependency{{Type: job.AfterOK, Job: 1}}}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := cluster(t, 4, 2)
			first := gpus(1, 8, job.Hour)
			first.Name = "one"
			array := gpus(1, 8, job.Hour)
			array.Array = &job.Array{Tasks: []job.Range{{First: 1, Last: 3, Step: 1}}, Throttle: 1}
			for i, p := range []job.Spec{first, gpus(1, 8, job.Hour), array} {
				apply(t, s, job.Submitted{At: 1, ID: job.ID(i + 1), Spec: p})
			}
			decide(t, s, 1)
			apply(t, s, job.Ended{At: 2, ID: 2, State: job.Failed, Exit: 1})
			p := gpus(1, 8, job.Hour)
			c.change(&p)
			apply(t, s, job.Submitted{At: 2, ID: 6, Spec: p})
			decide(t, s, 2)
			x, err := s.Explain(6, 2)
			if err != nil || len(x.Relaxations) != 1 || x.Relaxations[0].Text != c.text || x.Relaxations[0].Start != 2 {
				t.Fatalf("%+v, %v", x, err)
			}
			verifyRelaxations(t, s, 6, x)
			// A part of it is not enough.
			for _, e := range x.Relaxations[0].Events(6, 2) {
				if all := x.Relaxations[0].Events(6, 2); len(all) > 1 && outcomeOf(t, s, 6, e) <= 2 {
					t.Errorf("%+v is enough by itself", e)
				}
			}
		})
	}
}

// TestOpenedInVain: a begin time is not blamed where the job could not start before it
// anyhow, and where it could there is when.
func TestOpenedInVain(t *testing.T) {
	for _, c := range []struct {
		begin, start job.Time
		want         int
	}{{50, 0, 0}, {101, 0, 0}, {102, 101, 1}} {
		s := cluster(t, 1, 1)
		apply(t, s, job.Submitted{At: 1, ID: 1, Spec: gpus(1, 8, 100)})
		p := gpus(1, 8, 100)
		p.Begin = c.begin
		apply(t, s, job.Submitted{At: 1, ID: 2, Spec: p})
		decide(t, s, 1)
		x, err := s.Explain(2, 1)
		if err != nil || len(x.Relaxations) != c.want || c.want > 0 && x.Relaxations[0].Start != c.start {
			t.Errorf("begin %d: %+v, %v", c.begin, x.Relaxations, err)
		}
	}
}

// TestThrottleOfAnArray: it is raised for a task that waits for it, is the same for all
// tasks, and can be lowered below what runs and taken away.
func TestThrottleOfAnArray(t *testing.T) {
	s := cluster(t, 8, 2)
	p := gpus(1, 8, job.Hour)
	p.Array = &job.Array{Tasks: []job.Range{{First: 1, Last: 8, Step: 1}}, Throttle: 2}
	apply(t, s, job.Submitted{At: 1, ID: 1, Spec: p})
	decide(t, s, 1)
	x, err := s.Explain(6, 1)
	if err != nil || x.Reason != "JobArrayTaskLimit" || len(x.Relaxations) != 1 || x.Relaxations[0].Text != "ArrayTaskThrottle=3" || x.Relaxations[0].Start != 1 {
		t.Fatalf("%+v, %v", x, err)
	}
	verifyRelaxations(t, s, 6, x)
	set := func(id job.ID, throttle int) {
		t.Helper()
		v, _ := s.Job(id)
		spec, array := *v.Spec, *v.Spec.Array
		array.Throttle = throttle
		spec.Array = &array
		apply(t, s, job.Changed{At: s.now, ID: id, Spec: spec})
		decide(t, s, s.now)
	}
	running := func(want string) {
		t.Helper()
		var all []string
		for v := range s.Running {
			all = append(all, v.ID.String())
		}
		if got := strings.Join(all, " "); got != want {
			t.Fatalf("%s run, not %s", got, want)
		}
	}
	set(6, 3)
	running("1 2 6")
	if v, _ := s.Job(8); v.Spec.Array.Throttle != 3 {
		t.Errorf("task 8 says %d", v.Spec.Array.Throttle)
	}
	set(7, 1) // what runs goes on
	running("1 2 6")
	for _, id := range []job.ID{1, 2} {
		apply(t, s, job.Ended{At: s.now, ID: id, State: job.Completed})
	}
	decide(t, s, s.now)
	running("6")
	// A change of another thing leaves it alone.
	v, _ := s.Job(8)
	spec := *v.Spec
	spec.Nice = 1
	apply(t, s, job.Changed{At: s.now, ID: 8, Spec: spec})
	apply(t, s, job.Ended{At: s.now, ID: 6, State: job.Completed})
	decide(t, s, s.now)
	running("3")
	set(8, 0)
	running("3 4 5 7 8")
	spec.Array = &job.Array{Tasks: spec.Array.Tasks, Throttle: -1}
	if err := s.Apply(job.Changed{At: s.now, ID: 8, Spec: spec}); err == nil {
		t.Error("a negative throttle was taken")
	}
}

// TestLoweredThrottle: tasks that are planned, and not yet started, wait again.
func TestLoweredThrottle(t *testing.T) {
	s := cluster(t, 2, 2)
	p := gpus(1, 8, job.Hour)
	p.Array = &job.Array{Tasks: []job.Range{{First: 1, Last: 6, Step: 1}}, Throttle: 5}
	apply(t, s, job.Submitted{At: 1, ID: 1, Spec: p})
	decide(t, s, 1)
	spec := p
	spec.Array = &job.Array{Tasks: p.Array.Tasks, Throttle: 3}
	apply(t, s, job.Changed{At: 1, ID: 6, Spec: spec})
	decide(t, s, 1)
	want(t, s, "1:RUNNING 2:RUNNING 3:PENDING(Resources) 4:PENDING(JobArrayTaskLimit) 5:PENDING(JobArrayTaskLimit) 6:PENDING(JobArrayTaskLimit)")
}

// TestRelaxationTexts: what is told can be written as it stands.
func TestRelaxationTexts(t *testing.T) {
	s := New()
	var names []string
	for i := range 8 {
		n := job.Node{Name: fmt.Sprintf("n%d", i), CPUs: 8, Memory: 8000, Switch: fmt.Sprintf("s%d", i/2), Block: fmt.Sprintf("b%d", i/4), GRES: []job.GRES{{Name: "gpu", Type: "a", Count: 4}, {Name: "nic", Count: 2}}, Features: []string{"ib"}}
		if i > 1 {
			n.Features = append(n.Features, "big")
		}
		if i%2 == 1 {
			n.GRES[0].Type = "b"
		}
		names = append(names, n.Name)
		apply(t, s, job.NodeSet{Node: n})
	}
	apply(t, s, job.PartitionSet{Partition: job.Partition{Name: "p", Nodes: names[:6], Default: true}})
	apply(t, s, job.PartitionSet{Partition: job.Partition{Name: "q", Nodes: names[6:]}})
	apply(t, s, job.Configured{Config: job.Config{Licenses: []job.License{{Name: "l", Count: 3}}}})
	// Two CPUs, 2,000 MiB, a GPU and a NIC of each node of p are free.
	apply(t, s, job.Submitted{At: 1, ID: 1, Spec: job.Spec{
		MinNodes: 6, Tasks: 6, CPUsPerTask: 6, Memory: job.Memory{MiB: 6000, Per: job.PerNode}, TimeLimit: 10 * job.Hour,
		GRES: []job.GRESRequest{{Name: "gpu", Count: 3, Per: job.PerNode}, {Name: "nic", Count: 1, Per: job.PerNode}}, Licenses: []job.License{{Name: "l", Count: 2}},
	}})
	decide(t, s, 1)
	one := func(change func(*job.Spec)) job.Spec {
		p := job.Spec{MinNodes: 1, MaxNodes: 1, Memory: job.Memory{MiB: 100, Per: job.PerNode}, TimeLimit: job.Hour}
		change(&p)
		return p
	}
	gres := func(name, kind string, n int64, per job.Unit) []job.GRESRequest {
		return []job.GRESRequest{{Name: name, Type: kind, Count: n, Per: per}}
	}
	feature := func(name string) *job.Constraint { return &job.Constraint{Feature: name} }
	for _, c := range []struct {
		want string
		spec job.Spec
	}{
		{"--mem=2000M", one(func(p *job.Spec) { p.Memory.MiB = 4000 })},
		{"--mem=2000M", one(func(p *job.Spec) { p.Memory = job.Memory{} })}, // all of its memory
		{"--mem-per-cpu=1000M", one(func(p *job.Spec) { p.CPUsPerTask = 2; p.Memory = job.Memory{MiB: 1500, Per: job.PerCPU} })},
		{"--cpus-per-task=2", one(func(p *job.Spec) { p.CPUsPerTask = 5 })},
		{"--gpus-per-node=1", one(func(p *job.Spec) { p.GRES = gres("gpu", "", 3, job.PerNode) })},
		{"--gpus-per-node=b:1", one(func(p *job.Spec) { p.GRES = gres("gpu", "b", 3, job.PerNode) })},
		{"--gpus=1", one(func(p *job.Spec) { p.GRES = gres("gpu", "", 2, job.PerJob) })},
		{"--gres=nic:1", one(func(p *job.Spec) { p.GRES = gres("nic", "", 2, job.PerNode) })},
		{"1 of licence l in place of 3", one(func(p *job.Spec) { p.Licenses = []job.License{{Name: "l", Count: 3}} })},
		{"--partition=q", one(func(p *job.Spec) { p.CPUsPerTask = 8 })},
		{"without --exclusive", one(func(p *job.Spec) { p.Exclusive = true })},
		{"--ntasks=2", one(func(p *job.Spec) { p.Tasks = 4 })},
		{"--ntasks-per-node=2", one(func(p *job.Spec) { p.TasksPerNode = 4 })},
	} {
		tell(t, s, c.spec, c.want)
	}
	// And where near nodes are not free: n0 and n1 are, and half of another pair.
	apply(t, s, job.Ended{At: s.now, ID: 1, State: job.Completed})
	apply(t, s, job.Submitted{At: s.now, ID: s.last + 1, Spec: func() job.Spec {
		p := one(func(*job.Spec) {})
		p.Exclusive, p.NodeList = true, []string{"n3"}
		return p
	}()})
	decide(t, s, s.now)
	for _, c := range []struct {
		want string
		spec job.Spec
	}{
		{"--segment=2", one(func(p *job.Spec) { p.MinNodes, p.MaxNodes, p.Exclusive = 4, 4, true; p.Topology.Segment = 4 })},
		{"--constraint=ib", one(func(p *job.Spec) {
			p.MinNodes, p.MaxNodes, p.Exclusive = 4, 4, true
			p.Constraint = &job.Constraint{And: []*job.Constraint{feature("ib"), feature("big")}}
		})},
		{"without --nodelist", one(func(p *job.Spec) { p.Exclusive, p.NodeList = true, []string{"n3"} })},
		{"without --exclude", one(func(p *job.Spec) { p.MinNodes, p.MaxNodes, p.Exclusive, p.Exclude = 5, 5, true, []string{"n0"} })},
	} {
		tell(t, s, c.spec, c.want)
	}
}

// TestNearerThanThereIs: where not all nodes can be near to each other, as few switches as
// do are told, and how long it can run before somebody else's turn.
func TestNearerThanThereIs(t *testing.T) {
	s := cluster(t, 8, 4)
	busy := gpus(4, 8, 5*job.Hour)
	busy.NodeList = []string{"n0000", "n0001", "n0004", "n0005"}
	apply(t, s, job.Submitted{At: 1, ID: 1, Spec: busy})
	near := gpus(3, 8, job.Hour)
	near.Topology = job.Topology{Switches: 1, Wait: job.Forever}
	apply(t, s, job.Submitted{At: 1, ID: 2, Spec: near})
	apply(t, s, job.Submitted{At: 1, ID: 3, Spec: gpus(4, 8, 7*job.Hour+30*job.Minute)})
	decide(t, s, 1)
	for id, want := range map[job.ID]string{2: "--switches=2 at 1", 3: "--time=05:00:00 at 1"} {
		x, err := s.Explain(id, 1)
		if err != nil || !slices.Contains(texts(x.Relaxations), want) {
			t.Errorf("%+v, %v", texts(x.Relaxations), err)
		}
		verifyRelaxations(t, s, id, x)
	}
}

// tell proves that a job is told something with which it starts now, and takes it away again.
func tell(t *testing.T, s *Scheduler, spec job.Spec, want string) {
	t.Helper()
	apply(t, s, job.Submitted{At: s.now, ID: s.last + 1, Spec: spec})
	decide(t, s, s.now)
	x, err := s.Explain(s.last, s.now)
	if now := fmt.Sprintf("%s at %d", want, s.now); err != nil || !slices.Contains(texts(x.Relaxations), now) {
		t.Errorf("%s is not there: %+v, %v", now, texts(x.Relaxations), err)
	}
	verifyRelaxations(t, s, s.last, x)
	apply(t, s, job.Cancelled{At: s.now, ID: s.last})
}

func texts(list []Relaxation) []string {
	var all []string
	for _, x := range list {
		all = append(all, fmt.Sprintf("%s at %d", x.Text, x.Start))
	}
	return all
}
