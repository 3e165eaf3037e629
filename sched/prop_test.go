package sched

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/gangway-hpc/gangway/internal/job"
)

// world is a random cluster with what happens to it.
type world struct {
	t    *rapid.T
	s    *Scheduler
	now  job.Time
	last job.ID
	log  []job.Event
	said map[job.ID]job.Time // promises
	late int                 // by how many ms decisions come late at most

	beside *beside // nil: none

	limited job.Partition // whose longest time is below that of some jobs
}

func newWorld(t *rapid.T) *world {
	w := &world{t: t, s: New(), now: 1, said: map[job.ID]job.Time{}}
	w.s.largePass = 1 // its few jobs would do without gaps
	w.late = rapid.SampledFrom([]int{0, 0, 1, 12}).Draw(t, "late")
	n := rapid.IntRange(1, 8).Draw(t, "nodes")
	var names []string
	for i := range n {
		node := job.Node{Name: fmt.Sprintf("n%d", i), CPUs: 8, Switch: fmt.Sprintf("s%d", i/3), Block: fmt.Sprintf("b%d", i/2), Features: []string{"all"}}
		if kind := rapid.IntRange(0, 4).Draw(t, "gpus"); kind > 0 {
			node.GRES = []job.GRES{{Name: "gpu", Count: 4}}
			if kind == 1 {
				node.GRES = []job.GRES{{Name: "gpu", Type: "a", Count: 2}, {Name: "gpu", Type: "b", Count: 3}}
			}
			node.Features = append(node.Features, "gpu")
		}
		if rapid.IntRange(0, 4).Draw(t, "big") == 0 {
			node.Memory, node.Weight = 1000, 1
		}
		names = append(names, node.Name)
		w.do(job.NodeSet{Node: node})
	}
	w.do(job.PartitionSet{Partition: job.Partition{Name: "p", Nodes: names, Default: true, DefaultTime: 10, MemoryPerCPU: 10, DenyUsers: []string{"mallory"}}})
	w.limited = job.Partition{Name: "q", Nodes: names[:(n+1)/2], Priority: 10, MaxTime: 15, MemoryPerCPU: 10}
	w.do(job.PartitionSet{Partition: w.limited})
	w.do(job.Configured{Config: job.Config{
		Weights: job.Weights{Partition: uint32(rapid.IntRange(0, 1).Draw(t, "weight")) * 1000}, Licenses: []job.License{{Name: "l", Count: 2}, {Name: "m", Count: 1}},
		Backfill: job.Backfill(rapid.SampledFrom([]int{0, 0, 0, 1, 2}).Draw(t, "backfill")), MaxRequeue: 2,
		MinJobAge: job.Duration(rapid.SampledFrom([]int{0, 1, 20}).Draw(t, "age")),
	}})
	return w
}

// do applies an event; one that is refused must not change anything.
func (w *world) do(e job.Event) bool {
	err := w.s.Apply(e)
	if err == nil {
		w.log = append(w.log, e)
	}
	if check := w.s.Check(); check != nil {
		w.t.Fatalf("%#v: %v\n%v", e, err, check)
	}
	if w.beside != nil {
		w.beside.apply(w.t, e, err == nil)
	}
	return err == nil
}

func (w *world) decide() {
	if w.beside != nil {
		w.disturb()
	}
	out := w.s.Decide(w.now)
	for _, e := range out {
		w.log = append(w.log, e)
		w.listen(e)
	}
	if w.beside != nil {
		w.beside.follow(w.t, w.s, out, w.now)
		w.conserves()
	}
	if err := w.s.Check(); err != nil {
		w.t.Fatal(err)
	}
	w.forgotten()
	if next := w.s.Next(); next <= w.now {
		for _, e := range w.log {
			w.t.Logf("%+v", e)
		}
		w.t.Fatalf("after a decision at %d the next is at %d", w.now, next)
	}
}

// forgotten proves that it cannot be seen whether the memory of what is over was freed,
// and that nothing is over that may be waited for.
func (w *world) forgotten() {
	f := w.s.Fork()
	f.forget()
	if err := f.Check(); err != nil {
		w.t.Fatal(err)
	}
	for id := job.ID(1); id <= w.last; id++ {
		_, a := w.s.Job(id)
		v, b := f.Job(id)
		if a != b || b != (f.record(id) != nil) || b && v.State.Done() && f.over(f.record(id)) {
			w.t.Fatalf("job %v is known: %v; after forgetting: %v", id, a, b)
		}
	}
	for v := range w.s.Pending {
		if v.Spec.Dependencies == nil || w.s.record(v.ID).met {
			continue
		}
		for _, d := range v.Spec.Dependencies.List {
			if _, ok := w.s.Job(d.Job); !ok && d.Type != job.Singleton {
				w.t.Fatalf("job %v waits for job %v, which is forgotten", v.ID, d.Job)
			}
		}
	}
}

// listen proves that promises are kept: a later one only with a reason.
func (w *world) listen(e job.Event) {
	switch e := e.(type) {
	case job.Promised:
		seen := map[job.ID]bool{}
		for _, p := range e.Starts {
			if seen[p.ID] {
				w.t.Fatalf("at %d: job %v is promised two starts at once: %+v", w.now, p.ID, e)
			}
			if seen[p.ID] = true; p.Start == 0 {
				continue
			}
			was := w.said[p.ID]
			broken := slices.ContainsFunc(e.Broken, func(b job.Breach) bool { return b.ID == p.ID && b.Was == was && b.Now == p.Start && b.Why != "" })
			if was != 0 && p.Start > was && !broken {
				w.t.Fatalf("at %d: job %v was promised %d, and without a reason %d", w.now, p.ID, was, p.Start)
			}
			w.said[p.ID] = p.Start
		}
		for _, b := range e.Broken {
			if b.Why == late && w.late == 0 {
				w.t.Fatalf("at %d, which is in time: %+v", w.now, b)
			}
			w.said[b.ID] = b.Now
		}
	case job.Started:
		if spec := w.s.record(e.ID).spec; spec.TimeMin == 0 && e.Allocation.Limit != spec.TimeLimit {
			w.t.Fatalf("at %d: job %v of %d is given %d in %s", w.now, e.ID, spec.TimeLimit, e.Allocation.Limit, e.Allocation.Partition)
		}
		if was := w.said[e.ID]; was != 0 && w.now > was {
			for _, e := range w.log {
				w.t.Logf("%+v", e)
			}
			w.t.Fatalf("job %v was promised %d and started at %d", e.ID, was, w.now)
		}
		delete(w.said, e.ID)
	case job.Requeued:
		delete(w.said, e.ID)
	}
}

func (w *world) spec() job.Spec {
	t := w.t
	p := job.Spec{TimeLimit: job.Duration(rapid.IntRange(1, 30).Draw(t, "limit")), Name: "x"}
	switch rapid.IntRange(0, 4).Draw(t, "size") {
	case 0:
		p.MinNodes = rapid.IntRange(1, 4).Draw(t, "n")
		p.MaxNodes = p.MinNodes + rapid.IntRange(0, 1).Draw(t, "more")
		p.Exclusive = true
	case 1:
		p.Tasks, p.CPUsPerTask = rapid.IntRange(1, 12).Draw(t, "tasks"), rapid.IntRange(1, 3).Draw(t, "cpus")
	default:
		p.MinNodes = rapid.IntRange(1, 3).Draw(t, "n")
		p.GRES = []job.GRESRequest{{Name: "gpu", Count: int64(rapid.IntRange(1, 4).Draw(t, "gpus")), Per: job.PerNode}}
	}
	switch rapid.IntRange(0, 20).Draw(t, "extra") {
	case 0:
		p.Topology = job.Topology{Switches: 1, Wait: job.Duration(rapid.IntRange(0, 20).Draw(t, "wait"))}
	case 1:
		p.Topology.Required = 1
	case 2:
		if p.MinNodes%2 == 0 {
			p.Topology.Segment = 2
		}
	case 3:
		l, m := []job.License{{Name: "l", Count: 1}}, []job.License{{Name: "m", Count: 1}}
		switch rapid.IntRange(0, 2).Draw(t, "licences") {
		case 0:
			p.Licenses = l
		case 1:
			p.Licenses, p.AnyLicense = l, m
		default:
			p.AnyLicense = slices.Concat(l, m)
		}
	case 4, 18, 19, 20: // the limit may be too long for one of them
		p.Partitions = []string{"q", "p"}
	case 5:
		p.Begin = w.now.Add(job.Duration(rapid.IntRange(0, 20).Draw(t, "begin")))
	case 6:
		p.Deadline = w.now.Add(job.Duration(rapid.IntRange(1, 60).Draw(t, "deadline")))
	case 7:
		p.Array = &job.Array{Tasks: []job.Range{{First: 0, Last: uint32(rapid.IntRange(0, 5).Draw(t, "last")), Step: 1}}, Throttle: rapid.IntRange(0, 2).Draw(t, "throttle")}
	case 8:
		if w.last > 0 {
			types := []job.DependencyType{job.After, job.AfterAny, job.AfterOK, job.AfterNotOK, job.AfterCorr, job.Singleton}
			p.Dependencies = &job.Dependencies{List: []job.Dependency{{
				Type: rapid.SampledFrom(types).Draw(t, "type"), Job: job.ID(rapid.IntRange(1, int(w.last)).Draw(t, "on")),
				Delay: job.Duration(rapid.IntRange(0, 1).Draw(t, "delay") * 7),
			}}}
		}
	case 9:
		p.Constraint = &job.Constraint{Feature: "gpu"}
		p.Exclude = []string{"n0"}
	case 10:
		p.NodeList = []string{"n0"}
		p.Topology.Required = rapid.IntRange(0, 1).Draw(t, "level")
	case 11:
		p.Partitions = []string{"q"}
		p.TimeMin = 1
	case 12:
		p.TimeMin = (p.TimeLimit + 1) / 2
	case 13:
		if p.Contiguous = p.MinNodes == 0 || rapid.Bool().Draw(t, "contiguous"); !p.Contiguous {
			p.Constraint = &job.Constraint{And: []*job.Constraint{{Feature: "all"}, {Feature: "gpu", Count: 1}}}
			p.Topology = job.Topology{Switches: rapid.IntRange(0, 1).Draw(t, "switches"), Wait: 10}
		}
	case 14, 15:
		for i := range p.GRES {
			p.GRES[i].Per = job.PerJob
		}
	case 16:
		for i := range p.GRES {
			p.GRES[i].Type = "a"
		}
	case 17:
		if p.GRES = nil; rapid.Bool().Draw(t, "tasks") {
			p.GRES = []job.GRESRequest{{Name: "gpu", Count: int64(rapid.IntRange(1, 12).Draw(t, "gpus")), Per: job.PerJob}}
			p.MinNodes, p.Exclusive, p.Tasks = 0, false, rapid.IntRange(0, 6).Draw(t, "n")
		}
	}
	p.Requeue = rapid.Bool().Draw(t, "requeue")
	p.Nice = int32(rapid.IntRange(0, 20).Draw(t, "nice") / 19)
	return p
}

// step is something that happens.
func (w *world) step() {
	t := w.t
	if rapid.IntRange(0, 2).Draw(t, "wait") == 0 {
		then := w.now + job.Time(rapid.IntRange(0, 10).Draw(t, "ms"))
		for w.s.Next() <= then {
			w.now = max(w.now, w.s.Next())
			if w.late > 0 { // and may come after other events
				w.now += job.Time(rapid.IntRange(0, w.late).Draw(t, "late"))
			}
			if w.now > then && w.late > 0 {
				break
			}
			w.decide()
		}
		w.now = max(w.now, then)
	}
	if rapid.IntRange(0, 5).Draw(t, "forget") == 0 {
		w.s.forget()
	}
	some := func() job.ID { return job.ID(rapid.IntRange(1, int(w.last)+1).Draw(t, "id")) }
	switch rapid.IntRange(0, 15).Draw(t, "event") {
	case 15:
		w.reshape()
	case 0, 1, 2, 3:
		spec := w.spec()
		n := 1
		if spec.Array != nil {
			n = spec.Array.Len()
		}
		if w.do(job.Submitted{At: w.now, ID: w.last + 1, Spec: spec}) {
			w.last += job.ID(n)
		}
	case 4, 5, 6:
		var ids []job.ID
		for v := range w.s.Running {
			ids = append(ids, v.ID)
		}
		if len(ids) > 0 {
			w.do(job.Ended{At: w.now, ID: rapid.SampledFrom(ids).Draw(t, "ended"), State: job.Completed, Exit: rapid.IntRange(0, 1).Draw(t, "exit")})
		}
	case 7:
		w.do(job.NodeStateSet{At: w.now, Node: fmt.Sprintf("n%d", rapid.IntRange(0, 7).Draw(t, "node")), State: rapid.SampledFrom([]job.NodeState{0, 0, job.NodeDown, job.NodeDrain}).Draw(t, "state")})
	case 8:
		id := some()
		if w.do(job.Cancelled{At: w.now, ID: id}) {
			delete(w.said, id)
		}
	case 9:
		id := some()
		if w.do(job.Held{At: w.now, ID: id}) {
			delete(w.said, id)
		}
	case 10:
		w.do(job.Released{At: w.now, ID: some()})
	case 11:
		id := some()
		if v, ok := w.s.Job(id); ok {
			spec := *v.Spec
			spec.Nice++
			if rapid.Bool().Draw(t, "free") && v.State == job.Pending {
				spec.Dependencies = nil
			}
			if rapid.Bool().Draw(t, "limit") {
				spec.TimeLimit = job.Duration(rapid.IntRange(1, 30).Draw(t, "other"))
			}
			if spec.Array != nil && rapid.Bool().Draw(t, "throttle") {
				array := *spec.Array
				array.Throttle = rapid.IntRange(0, 3).Draw(t, "tasks")
				spec.Array = &array
			}
			if w.do(job.Changed{At: w.now, ID: id, Spec: spec}) {
				w.unsaid(id) // tasks that are too many with another throttle have none either
			}
		}
	case 12:
		id := some()
		if w.do(job.Requeue{At: w.now, ID: id, Hold: rapid.Bool().Draw(t, "hold")}) {
			delete(w.said, id)
		}
	case 13:
		w.do(job.Ended{At: w.now - 1, ID: some(), State: job.Completed})
		w.do(job.NodeSet{At: w.now, Node: job.Node{Name: fmt.Sprintf("n%d", rapid.IntRange(0, 8).Draw(t, "node")), CPUs: 8}})
	case 14:
		w.limited.MaxTime = job.Duration(rapid.SampledFrom([]int{0, 5, 15, 25}).Draw(t, "most"))
		w.do(job.PartitionSet{At: w.now, Partition: w.limited})
	}
	if rapid.IntRange(0, 2).Draw(t, "decide") > 0 {
		w.decide()
	}
}

// replayed applies the log to a new scheduler.
func (w *world) replayed() *Scheduler {
	s := New()
	for i, e := range w.log {
		if err := s.Apply(e); err != nil {
			w.t.Fatalf("replay event %d of %d, %#v: %v", i, len(w.log), e, err)
		}
	}
	return s
}

// restored is a scheduler from a snapshot.
func (w *world) restored() *Scheduler {
	var b bytes.Buffer
	if err := w.s.Snapshot(&b); err != nil {
		w.t.Fatal(err)
	}
	s, err := Restore(bytes.NewReader(b.Bytes()))
	if err != nil {
		w.t.Fatal(err)
	}
	var again bytes.Buffer
	if err := s.Snapshot(&again); err != nil || !bytes.Equal(b.Bytes(), again.Bytes()) {
		w.t.Fatalf("%v; the snapshot of what was restored is another one", err)
	}
	return s
}

// same proves that two schedulers have decided, and will decide, the same.
func (w *world) same(what string, s *Scheduler) {
	if err := s.Check(); err != nil {
		w.t.Fatalf("%s: %v", what, err)
	}
	if a, b := w.s.Hash(), s.Hash(); a != b {
		w.t.Fatalf("%s: hash %x, not %x", what, b, a)
	}
	a, b := w.s.Fork(), s
	for now := w.now; now < w.now+200; now += 7 {
		x, y := a.Decide(now), b.Decide(now)
		if a.Hash() != b.Hash() {
			w.t.Fatalf("%s: at %d (now %d) it decides\n%+v\nnot\n%+v", what, now, w.now, y, x)
		}
		for v := range a.Running {
			if v.End <= now {
				e := job.Ended{At: now, ID: v.ID, State: job.Completed}
				if err := a.Apply(e); err != nil {
					w.t.Fatal(err)
				}
				if err := b.Apply(e); err != nil {
					w.t.Fatalf("%s: %v", what, err)
				}
			}
		}
	}
}

// TestProperty plays random events, 100,000 of them, with all invariants proved after each:
// nothing is used twice, gangs are whole, promises are kept. At the end a snapshot and a
// replay of the log decide the same as the original from there on.
func TestProperty(t *testing.T) {
	const steps = 60
	rounds := 17 // of 100 worlds
	if os.Getenv("GANGWAY_TEST_LONG") != "" {
		rounds = 1000
	} else if testing.Short() {
		rounds = 1
	}
	for i := range rounds {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				w := newWorld(t)
				for range steps {
					w.step()
				}
				w.decide()
				w.same("restored", w.restored())
				w.same("replayed", w.replayed())
			})
		})
	}
}
