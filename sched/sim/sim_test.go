package sim_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/sched/sim"
)

// fake is a policy that does as it is told: at each moment the decisions of its script.
type fake struct {
	script  map[job.Time][]job.Event // by seconds since the first submission
	next    []job.Time
	zero    job.Time
	applied []job.Event
	refuse  map[job.ID]error
}

func (f *fake) Apply(e job.Event) error {
	if s, ok := e.(job.Submitted); ok {
		if f.zero == 0 {
			f.zero = s.At
		}
		if err := f.refuse[s.ID]; err != nil {
			return err
		}
	}
	f.applied = append(f.applied, e)
	return nil
}

func (f *fake) Decide(now job.Time) []job.Event {
	at := job.Time(now.Sub(f.zero) / job.Second)
	for len(f.next) > 0 && f.next[0] <= at {
		f.next = f.next[1:]
	}
	events := f.script[at]
	delete(f.script, at)
	return events
}

func (f *fake) Next() job.Time {
	if len(f.next) == 0 {
		return job.Never
	}
	return f.zero.Add(job.Duration(f.next[0]) * job.Second)
}

func (f *fake) Hash() uint64 { return 0xabc }

// restless is a policy that wants to be called all the time and decides nothing.
type restless struct{}

func (restless) Apply(job.Event) error       { return nil }
func (restless) Decide(job.Time) []job.Event { return nil }
func (restless) Next() job.Time              { return 1 }
func (restless) Hash() uint64                { return 0 }

// on is an allocation of GPUs on nodes.
func on(gpus int64, nodes ...string) job.Allocation {
	var a job.Allocation
	for _, n := range nodes {
		a.Nodes = append(a.Nodes, job.NodeShare{Node: n, CPUs: int(gpus), Devices: []job.Devices{{Name: "gpu", Count: gpus}}})
	}
	return a
}

// jobs is a trace of jobs: submission, run (seconds) and GPUs.
func jobs(all ...[3]int) *sim.Trace {
	t := &sim.Trace{Name: "test"}
	for i, j := range all {
		t.Jobs = append(t.Jobs, sim.Job{Line: i + 1, Submit: job.Time(j[0]) * 1000, Run: job.Duration(j[1]) * job.Second, GPUs: j[2]})
	}
	return t
}

func near(t *testing.T, name string, got, want float64) {
	t.Helper()
	if math.Abs(got-want) > 1e-3 {
		t.Errorf("%s is %v, want %v", name, got, want)
	}
}

// TestMeasures works the figures of a small run out by hand. Two leaves of two nodes of
// four GPUs.
func TestMeasures(t *testing.T) {
	c := sim.Uniform(sim.Shape{Nodes: 4, CPUs: 4, GPUs: 4, Leaf: 2})
	trace := jobs([3]int{0, 100, 4}, [3]int{0, 100, 8}, [3]int{10, 5, 4}, [3]int{20, 50, 4}, [3]int{20, 50, 4})
	p := &fake{next: []job.Time{30, 60}, refuse: map[job.ID]error{5: errors.New("never")}, script: map[job.Time][]job.Event{}}
	limited := on(4, "n00002")
	limited.Limit = 20 * job.Second
	p.script[0] = []job.Event{
		job.Started{ID: 1, Allocation: on(4, "n00001")},
		job.Started{ID: 2, Allocation: on(4, "n00002", "n00003")}, // two leaves, and one would have done
	}
	p.script[10] = []job.Event{job.Promised{Starts: []job.Promise{{ID: 3, Start: firstDay(40)}}}}
	p.script[20] = []job.Event{job.Promised{Starts: []job.Promise{{ID: 4, Start: firstDay(60)}, {ID: 3, Start: firstDay(35)}}}}
	p.script[30] = []job.Event{
		job.Started{ID: 3, Allocation: on(4, "n00004")},
		job.Requeued{ID: 2, Cause: "node down"},
		job.Promised{Broken: []job.Breach{{ID: 4, Was: firstDay(60), Now: firstDay(60), Why: "job 2 comes before it"}}},
	}
	p.script[60] = []job.Event{job.Started{ID: 4, Allocation: limited}, job.Started{ID: 2, Allocation: on(4, "n00003", "n00004")}}
	r, err := sim.Run(t.Context(), p, c, trace, sim.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if r.Complete != 3 || r.Timeouts != 1 || r.Refused != 1 || r.Stuck != 0 || r.Started != 5 || r.WhyNot[0] != (sim.Why{Line: 5, Why: "never"}) {
		t.Errorf("%+v", r)
	}
	// Waits: 0, 60 (of the second start), 20, 40.
	near(t, "mean wait", r.Wait.Mean, 30)
	near(t, "median wait", r.Wait.P50, 20)
	near(t, "longest wait", r.Wait.Max, 60)
	// (0+100)/100, (60+100)/100, (20+5)/10, (40+20)/20
	near(t, "slowdown", r.Slowdown.Mean, (1+1.6+2.5+3)/4)
	near(t, "makespan", r.Makespan, 160)
	near(t, "GPU hours", r.GPUHours, (4*100+8*100+4*5+4*20)/3600.)
	near(t, "GPU hours lost", r.GPUHoursLost, 8*30/3600.)
	near(t, "utilisation", r.Utilisation, (4*100+8*100+4*5+4*20+8*30)/(16*160.))
	near(t, "utilisation while jobs come", r.UtilisationLoaded, 12/16.)
	if r.MostWaiting != 2 || r.DecisionHash != "0000000000000abc" {
		t.Errorf("%d waited at most, hash %s", r.MostWaiting, r.DecisionHash)
	}
	// Job 2 had two leaves at first, where one would have done, and one later.
	if r.Spread.Jobs != 2 || r.Spread.Optimal != 0.5 || r.Spread.Ratio != 1.5 {
		t.Errorf("%+v", r.Spread)
	}
	// Job 3 started 10 s before its first promise, job 4 at it.
	if p := r.Promise; p.Jobs != 2 || p.Error.Mean != 5 || p.Bias != -5 || p.Late != 0 || p.Broken != 1 || p.Breaches != 1 || p.Unsaid != 0 || p.Reasons[0] != (sim.Reason{Why: "job X comes before it", Times: 1}) {
		t.Errorf("%+v", p)
	}
}

// firstDay is seconds after the first submission of a trace that begins at 0.
func firstDay(seconds int) job.Time {
	return job.Time(job.Day) + job.Time(seconds)*1000
}

// TestPromises: a promise that is taken back several times counts once a job and each time;
// a start that comes late though nothing was taken back is told apart.
func TestPromises(t *testing.T) {
	c := sim.Uniform(sim.Shape{Nodes: 3, CPUs: 4, GPUs: 4})
	breach := func(id job.ID, now int, why string) job.Event {
		return job.Promised{Starts: []job.Promise{{ID: id, Start: firstDay(now)}}, Broken: []job.Breach{{ID: id, Now: firstDay(now), Why: why}}}
	}
	p := &fake{next: []job.Time{10, 20, 30, 60}, script: map[job.Time][]job.Event{
		0:  {job.Promised{Starts: []job.Promise{{ID: 1, Start: firstDay(10)}, {ID: 2, Start: firstDay(10)}, {ID: 3, Start: firstDay(20)}}}},
		10: {breach(1, 30, "node n00001 is down"), breach(1, 50, "job 7 comes before it")},
		20: {job.Promised{Starts: []job.Promise{{ID: 1}}}, job.Started{ID: 3, Allocation: on(4, "n00003")}},
		30: {job.Started{ID: 2, Allocation: on(4, "n00001")}, breach(1, 60, "job 8 comes before it")},
		60: {job.Started{ID: 1, Allocation: on(4, "n00002")}},
	}}
	r, err := sim.Run(t.Context(), p, c, jobs([3]int{0, 5, 4}, [3]int{0, 5, 4}, [3]int{0, 5, 4}), sim.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if q := r.Promise; q.Jobs != 3 || q.Late != 2 || q.Broken != 1 || q.Breaches != 3 || q.Unsaid != 1 || fmt.Sprint(q.Reasons) != "[{node X is down 1} {job X comes before it 2}]" {
		t.Errorf("%+v", q)
	}
	var text strings.Builder
	report := sim.NewReport(&sim.Trace{}, c)
	report.Results = []*sim.Result{r}
	if err := report.Text(&text); err != nil || !strings.Contains(text.String(), "of 1 jobs, 3 times; 1: node X is down; 2: job X comes before it; 1 WITHOUT A REASON") {
		t.Errorf("%v\n%s", err, text.String())
	}
}

// TestRefusesNonsense: decisions that cannot be are errors of the run.
func TestRefusesNonsense(t *testing.T) {
	c := sim.Uniform(sim.Shape{Nodes: 2, CPUs: 4, GPUs: 4})
	for want, decisions := range map[string][]job.Event{
		"there is none such":         {job.Started{ID: 9, Allocation: on(4, "n00001")}},
		"promise job 9 a start":      {job.Promised{Starts: []job.Promise{{ID: 9, Start: 1}}}},
		"it runs or has ended":       {job.Started{ID: 1, Allocation: on(1, "n00001")}, job.Started{ID: 1, Allocation: on(1, "n00001")}},
		"0 CPUs and 1 GPUs too few":  {job.Started{ID: 1, Allocation: job.Allocation{Nodes: []job.NodeShare{{Node: "n00001", Devices: []job.Devices{{Name: "gpu", Count: 5}}}}}}},
		"there is no node elsewhere": {job.Started{ID: 1, Allocation: on(1, "elsewhere")}},
		"it has no nodes":            {job.Started{ID: 1}},
	} {
		_, err := sim.Run(t.Context(), &fake{script: map[job.Time][]job.Event{0: decisions}}, c, jobs([3]int{0, 5, 4}), sim.Options{})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v; want %s", err, want)
		}
	}
	if _, err := sim.Run(t.Context(), &fake{}, &sim.Cluster{}, jobs([3]int{0, 5, 4}), sim.Options{}); err == nil {
		t.Error("ran on no node")
	}
	if _, err := sim.Run(t.Context(), &fake{}, c, &sim.Trace{}, sim.Options{}); err == nil {
		t.Error("ran no jobs")
	}
	if _, err := sim.Run(t.Context(), restless{}, c, jobs([3]int{0, 5, 4}), sim.Options{}); err == nil || !strings.Contains(err.Error(), "nothing came of it") {
		t.Errorf("%v", err)
	}
	ctx, stop := context.WithCancelCause(t.Context())
	enough := errors.New("enough")
	stop(enough)
	if _, err := sim.Run(ctx, &fake{}, c, jobs([3]int{0, 5, 4}), sim.Options{}); !errors.Is(err, enough) {
		t.Errorf("%v", err)
	}
}

// TestStuckAndKilled: jobs that nobody starts, and those that are killed.
func TestStuckAndKilled(t *testing.T) {
	c := sim.Uniform(sim.Shape{Nodes: 2, CPUs: 4, GPUs: 4})
	p := &fake{next: []job.Time{7}, script: map[job.Time][]job.Event{
		0: {job.Started{ID: 1, Allocation: on(4, "n00001")}},
		7: {job.Killed{ID: 1, State: job.NodeFailed}, job.Killed{ID: 2, State: job.DeadlineMissed}},
	}}
	r, err := sim.Run(t.Context(), p, c, jobs([3]int{0, 50, 4}, [3]int{0, 50, 4}, [3]int{0, 50, 4}), sim.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if r.Failed != 2 || r.Stuck != 1 || r.Complete != 0 {
		t.Errorf("%+v", r)
	}
	near(t, "makespan", r.Makespan, 7)
}

// limitsOf are the limits that jobs are submitted with.
func limitsOf(t *testing.T, o sim.Options) []job.Duration {
	t.Helper()
	trace := &sim.Trace{}
	for range 200 {
		trace.Jobs = append(trace.Jobs, sim.Job{Run: 100 * job.Second, Limit: 300 * job.Second, CPUs: 1})
	}
	trace.Jobs[7].Limit = 0
	p := &fake{}
	if _, err := sim.Run(t.Context(), p, sim.Uniform(sim.Shape{Nodes: 1, CPUs: 1}), trace, o); err != nil {
		t.Fatal(err)
	}
	var limits []job.Duration
	for _, e := range p.applied {
		if s, ok := e.(job.Submitted); ok {
			limits = append(limits, s.Spec.TimeLimit)
		}
	}
	return limits
}

func TestLimits(t *testing.T) {
	for i, l := range limitsOf(t, sim.Options{}) {
		if l != 100*job.Second {
			t.Fatalf("exact limit %d is %d", i, l)
		}
	}
	for i, l := range limitsOf(t, sim.Options{Limits: sim.Given}) {
		if want := 300 * job.Second; l != want && i != 7 || i == 7 && l != 100*job.Second {
			t.Fatalf("given limit %d is %d", i, l)
		}
	}
	one, two := limitsOf(t, sim.Options{Limits: sim.Over, Seed: 1}), limitsOf(t, sim.Options{Limits: sim.Over, Seed: 2})
	sum := job.Duration(0)
	for i, l := range one {
		if l < 200*job.Second || l > 1000*job.Second {
			t.Fatalf("limit %d is %d", i, l)
		}
		sum += l
	}
	if mean := sum / job.Duration(len(one)); mean < 550*job.Second || mean > 650*job.Second {
		t.Errorf("limits are %d on average", mean)
	}
	if fmt.Sprint(one) == fmt.Sprint(two) || fmt.Sprint(one) != fmt.Sprint(limitsOf(t, sim.Options{Limits: sim.Over, Seed: 1})) {
		t.Error("limits are not a function of the seed")
	}
}

// TestSpecs: what is asked for on a cluster.
func TestSpecs(t *testing.T) {
	trace := &sim.Trace{Jobs: []sim.Job{
		{Run: 1, GPUs: 3, Partition: "all"},
		{Run: 1, GPUs: 12, Partition: "other"},
		{Run: 1, GPUs: 8, Nodes: 4, CPUs: 10, Memory: 401},
		{Run: 1, CPUs: 6, TaskCPUs: 2, Required: 1, Memory: 13},
		{Run: 1, GPUs: 1, AnyFeature: []string{"a"}},
		{Run: 1, GPUs: 1, AnyFeature: []string{"a", "b"}},
	}}
	p := &fake{}
	if _, err := sim.Run(t.Context(), p, sim.Uniform(sim.Shape{Nodes: 4, CPUs: 32, GPUs: 8}), trace, sim.Options{}); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range p.applied {
		if e, ok := e.(job.Submitted); ok {
			s := e.Spec
			var line strings.Builder
			line.WriteString(fmt.Sprintf("nodes %d-%d tasks %d x %d mem %d/%d", s.MinNodes, s.MaxNodes, s.Tasks, s.CPUsPerTask, s.Memory.MiB, s.Memory.Per))
			line.WriteString(strings.Join(append([]string{""}, s.Partitions...), " in "))
			for _, g := range s.GRES {
				line.WriteString(fmt.Sprintf(" %s:%d/%d", g.Name, g.Count, g.Per))
			}
			if c := s.Constraint; c != nil {
				line.WriteString(" " + c.Feature)
				for _, or := range c.Or {
					line.WriteString("|" + or.Feature)
				}
			}
			got = append(got, line.String())
		}
	}
	want := []string{
		"nodes 1-1 tasks 0 x 12 mem 0/0 in all gpu:3/1",
		"nodes 2-2 tasks 0 x 24 mem 0/0 gpu:6/1",
		"nodes 4-4 tasks 0 x 3 mem 101/1 gpu:2/1",
		"nodes 0-0 tasks 3 x 2 mem 3/4",
		"nodes 1-1 tasks 0 x 4 mem 0/0 gpu:1/1 a",
		"nodes 1-1 tasks 0 x 4 mem 0/0 gpu:1/1 |a|b",
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestUniform(t *testing.T) {
	c := sim.Uniform(sim.Shape{Nodes: 100, CPUs: 4, Leaf: 4})
	leaves, top := 0, c.Network.Switches[len(c.Network.Switches)-1]
	for _, s := range c.Network.Switches {
		if len(s.Nodes) > 0 {
			leaves++
		}
	}
	if leaves != 25 || len(c.Network.Switches) != 25+7+2+1 || len(top.Switches) != 2 || c.Nodes[99].Switch != "s0-25" {
		t.Errorf("%d leaves, %d switches, top %+v", leaves, len(c.Network.Switches), top)
	}
	if small := sim.Uniform(sim.Shape{Nodes: 8, CPUs: 1}); len(small.Network.Switches) > 0 || len(small.Partitions) != 1 {
		t.Errorf("%+v", small.Network)
	}
}
