package sched

import (
	"bytes"
	"fmt"
	"runtime"
	"slices"
	"testing"

	"github.com/gangway-hpc/gangway/internal/job"
)

// trace is jobs that were generated from the marginals of a published trace.
type trace struct {
	name  string
	nodes int
	jobs  int
	gap   int // mean ms between submissions
	spec  func(*rng) (job.Spec, job.Duration)
	hash  uint64
}

func traces() []trace {
	// Durations are log-uniform: a median of minutes, and a tail of days.
	duration := func(r *rng, least int) job.Duration {
		return job.Duration(least+r.next(least)) * job.Second << r.next(9)
	}
	over := func(r *rng, d job.Duration) job.Duration { return d * job.Duration(10+r.next(90)) / 10 }
	return []trace{
		{"philly", 52, 3000, 60000, func(r *rng) (job.Spec, job.Duration) {
			spec, d := philly(r), duration(r, 120)
			spec.TimeLimit = over(r, d)
			return spec, d
		}, 0xa9be72effa6fdc34},
		{"llm", 256, 1200, 2000000, func(r *rng) (job.Spec, job.Duration) {
			spec, d := gpus(1<<r.next(7), 8, 0), duration(r, 300)
			if r.next(3) == 0 {
				spec.Topology = job.Topology{Switches: 1 + r.next(2), Wait: job.Duration(r.next(3600)) * job.Second}
			}
			spec.TimeLimit = over(r, d)
			return spec, d
		}, 0x815ff661ee8e0851},
		{"mixed", 64, 2000, 200000, func(r *rng) (job.Spec, job.Duration) {
			d := duration(r, 120)
			spec := job.Spec{Tasks: 1 + r.next(64), CPUsPerTask: 1 + r.next(4), TimeLimit: over(r, d), Requeue: r.next(2) == 0}
			if r.next(2) == 0 {
				spec = gpus(1+r.next(2), int64(1+r.next(8)), over(r, d))
			}
			if r.next(10) == 0 {
				spec.Array = &job.Array{Tasks: []job.Range{{First: 1, Last: uint32(1 + r.next(8)), Step: 1}}, Throttle: r.next(4)}
			}
			return spec, d
		}, 0xc12a314173a4049},
	}
}

// driver plays a trace, as a simulator would.
type driver struct {
	t    testing.TB
	s    *Scheduler
	log  []job.Event
	ends timers
	runs map[job.ID]job.Duration
}

func (d *driver) do(e job.Event) {
	apply(d.t, d.s, e)
	d.log = append(d.log, e)
}

// until lets time pass.
func (d *driver) until(t job.Time) {
	for {
		next := d.s.Next()
		if len(d.ends) > 0 {
			next = min(next, d.ends[0].t)
		}
		if next > t {
			return
		}
		for len(d.ends) > 0 && d.ends[0].t == next {
			id := d.ends.pop().id
			if v, _ := d.s.Job(id); v.State == job.Running && v.Start.Add(d.runs[id]) == next {
				d.do(job.Ended{At: next, ID: id, State: job.Completed})
			}
		}
		d.decide(next)
	}
}

func (d *driver) decide(now job.Time) {
	for _, e := range d.s.Decide(now) {
		d.log = append(d.log, e)
		if st, ok := e.(job.Started); ok {
			d.ends.push(timer{st.At.Add(d.runs[st.ID]), st.ID})
		}
	}
}

func (c trace) play(t testing.TB) *driver {
	s := cluster(t, c.nodes, 16)
	d := &driver{t: t, s: s, runs: map[job.ID]job.Duration{}}
	r := rng(88172645463325252)
	now, id := job.Time(0), job.ID(1)
	for i := range c.jobs {
		now += job.Time(1 + r.next(2*c.gap))
		d.until(now)
		spec, run := c.spec(&r)
		e := job.Submitted{At: now, ID: id, Spec: spec}
		if err := s.Apply(e); err != nil {
			continue
		}
		d.log = append(d.log, e)
		n := job.ID(1)
		if spec.Array != nil {
			n = job.ID(spec.Array.Len())
		}
		for k := range n {
			d.runs[id+k] = run
		}
		id += n
		if i%200 == 100 {
			node := fmt.Sprintf("n%04d", r.next(c.nodes))
			d.do(job.NodeStateSet{At: now, Node: node, State: job.NodeDown})
			d.decide(now)
			d.do(job.NodeStateSet{At: now, Node: node})
		}
		d.decide(now)
	}
	d.until(job.Never - 1)
	return d
}

// TestGolden: the decisions on three traces are what they were. A change of the hash is a
// change of what is decided: it needs a reason, and a new number here.
func TestGolden(t *testing.T) {
	for _, c := range traces() {
		t.Run(c.name, func(t *testing.T) {
			d := c.play(t)
			if err := d.s.Check(); err != nil {
				t.Fatal(err)
			}
			for _, r := range d.s.jobs {
				if !r.state.Done() {
					t.Fatalf("job %v is %v at the end", r.id, r.state)
				}
			}
			if h := d.s.Hash(); h != c.hash {
				t.Errorf("the hash of decisions is %#x, not %#x", h, c.hash)
			}
		})
	}
}

// TestPrefix: any prefix of a log gives a state that can be written and read, and decides
// the same after it.
func TestPrefix(t *testing.T) {
	c := traces()[2]
	c.jobs = 150
	d := c.play(t)
	s := cluster(t, c.nodes, 16)
	for i, e := range d.log {
		if err := s.Apply(e); err != nil {
			t.Fatalf("event %d, %#v: %v", i, e, err)
		}
		if i%17 != 0 {
			continue
		}
		var b bytes.Buffer
		if err := s.Snapshot(&b); err != nil {
			t.Fatal(err)
		}
		r, err := Restore(&b)
		if err != nil {
			t.Fatalf("after event %d: %v", i, err)
		}
		if err := r.Check(); err != nil {
			t.Fatalf("after event %d: %v", i, err)
		}
		f := s.Fork()
		f.Decide(f.Now() + 1000)
		r.Decide(r.Now() + 1000)
		if f.Hash() != r.Hash() {
			t.Fatalf("after event %d, %#v, the restored state decides otherwise", i, e)
		}
	}
	if s.Hash() != d.s.Hash() {
		t.Errorf("the log gives %#x, not %#x", s.Hash(), d.s.Hash())
	}
}

// TestProcessors: how many processors there are decides nothing.
func TestProcessors(t *testing.T) {
	c := traces()[2]
	c.jobs = 400
	hash := c.play(t).s.Hash()
	for _, n := range []int{1, 2, 7} {
		was := runtime.GOMAXPROCS(n)
		again := c.play(t).s.Hash()
		runtime.GOMAXPROCS(was)
		if again != hash {
			t.Errorf("on %d processors the hash is %x, not %x", n, again, hash)
		}
	}
}

// TestMetamorphic: neither a further node nor a job that ends early delays a promise.
func TestMetamorphic(t *testing.T) {
	for seed := range 30 {
		s := cluster(t, 12, 4)
		r := rng(88172645463325252 + seed)
		for id := range 60 {
			spec := gpus(1+r.next(6), int64(1+r.next(8)), job.Duration(1+r.next(100))*job.Minute)
			if r.next(6) == 0 {
				spec.Topology.Required = 1
				spec.MinNodes = min(spec.MinNodes, 4)
			}
			apply(t, s, job.Submitted{At: 1, ID: job.ID(id + 1), Spec: spec})
		}
		decide(t, s, 1)
		for now := job.Time(60000); ; now += 60000 {
			said := map[job.ID]job.Time{}
			for v := range s.Pending {
				said[v.ID] = v.Expected
			}
			if len(said) == 0 {
				break
			}
			now = min(now, s.Next())
			for v := range s.Running {
				now = min(now, v.End)
			}
			for v := range s.Running {
				if v.End == now || r.next(10) == 0 {
					apply(t, s, job.Ended{At: now, ID: v.ID, State: job.Completed})
				}
			}
			if r.next(20) == 0 {
				apply(t, s, job.NodeSet{At: now, Node: job.Node{Name: fmt.Sprintf("x%d", now), CPUs: 64, GRES: []job.GRES{{Name: "gpu", Type: "h100", Count: 8}}}})
				p := *s.parts[0].spec
				p.Nodes = append(slices.Clone(p.Nodes), fmt.Sprintf("x%d", now))
				apply(t, s, job.PartitionSet{At: now, Partition: p})
			}
			for _, e := range decide(t, s, now) {
				if p, ok := e.(job.Promised); ok && len(p.Broken) > 0 {
					t.Errorf("seed %d at %d: %+v", seed, now, p.Broken)
				}
			}
			for id, was := range said {
				v, _ := s.Job(id)
				if v.State == job.Pending && v.Expected > was || v.State != job.Pending && v.Start > was {
					t.Fatalf("seed %d at %d: job %v was promised %d: %+v", seed, now, id, was, v)
				}
			}
		}
	}
}
