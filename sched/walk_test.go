package sched

import (
	"fmt"
	"math"
	"os"
	"reflect"
	"testing"

	"pgregory.net/rapid"

	"github.com/gangway-hpc/gangway/internal/job"
)

// reshape is a change of the cluster or its rules, which may forbid what is planned.
func (w *world) reshape() {
	t := w.t
	node := fmt.Sprintf("n%d", rapid.IntRange(0, 8).Draw(t, "node"))
	switch rapid.IntRange(0, 6).Draw(t, "reshape") {
	case 0:
		w.do(job.NetworkSet{At: w.now, Network: w.network()})
	case 1:
		w.do(job.NodeRemoved{At: w.now, Node: node})
	case 2:
		n := job.Node{Name: node, CPUs: rapid.SampledFrom([]int{4, 8, 16}).Draw(t, "cpus"), Features: []string{"all", "gpu"}}
		n.Switch, n.Block = fmt.Sprintf("s%d", rapid.IntRange(0, 3).Draw(t, "switch")), fmt.Sprintf("b%d", rapid.IntRange(0, 3).Draw(t, "block"))
		n.GRES = []job.GRES{{Name: "gpu", Count: 4}}
		n.Weight = rapid.IntRange(0, 1).Draw(t, "weight")
		w.do(job.NodeSet{At: w.now, Node: n})
	case 3:
		w.do(job.PartitionRemoved{At: w.now, Partition: rapid.SampledFrom([]string{"p", "q", "r"}).Draw(t, "part")})
	case 4:
		p := job.Partition{Name: rapid.SampledFrom([]string{"p", "q", "r"}).Draw(t, "part"), MemoryPerCPU: 10}
		for i := range 9 {
			if rapid.IntRange(0, 3).Draw(t, "in") > 0 {
				p.Nodes = append(p.Nodes, fmt.Sprintf("n%d", i))
			}
		}
		p.Default = p.Name == "p"
		p.Tier = uint32(rapid.IntRange(0, 1).Draw(t, "tier"))
		p.Priority = uint32(rapid.IntRange(0, 10).Draw(t, "priority"))
		p.MaxTime = job.Duration(rapid.SampledFrom([]int{0, 0, 15, 25}).Draw(t, "most"))
		p.MaxNodes = rapid.SampledFrom([]int{0, 0, 2, 3}).Draw(t, "nodes")
		p.Exclusive = rapid.IntRange(0, 9).Draw(t, "exclusive") == 0
		p.State = job.PartitionState(rapid.SampledFrom([]int{0, 0, 0, 1, 2, 3}).Draw(t, "state"))
		w.do(job.PartitionSet{At: w.now, Partition: p})
	case 5:
		c := w.s.config
		one := func(name string) uint32 { return 1000 * uint32(rapid.IntRange(0, 1).Draw(t, name)) }
		c.Weights = job.Weights{Age: one("age"), Size: one("size"), Partition: one("partition"), Nice: one("nice"), MaxAge: job.Minute}
		c.Licenses = nil
		for _, n := range []string{"l", "m"} {
			if k := rapid.IntRange(0, 3).Draw(t, "licences"); k > 0 {
				c.Licenses = append(c.Licenses, job.License{Name: n, Count: int64(k)})
			}
		}
		w.do(job.Configured{At: w.now, Config: c})
	case 6:
		id := job.ID(rapid.IntRange(1, int(w.last)+1).Draw(t, "id"))
		v, ok := w.s.Job(id)
		if !ok {
			return
		}
		spec, prio := *v.Spec, uint32(rapid.IntRange(0, 9).Draw(t, "priority"))
		spec.Priority = &prio
		if w.do(job.Changed{At: w.now, ID: id, Spec: spec}) {
			w.unsaid(id)
		}
	}
}

// network is a tree of three levels, and blocks across it.
func (w *world) network() job.Network {
	t := w.t
	var net job.Network
	leaves := make([][]string, 5) // the last of them is below no switch
	for i := range 9 {
		l := rapid.IntRange(0, 4).Draw(t, "leaf")
		leaves[l] = append(leaves[l], fmt.Sprintf("n%d", i))
	}
	middle := []job.Switch{{Name: "A"}, {Name: "B"}}
	for l := range 4 {
		name := fmt.Sprintf("s%d", l)
		net.Switches = append(net.Switches, job.Switch{Name: name, Nodes: leaves[l]})
		middle[l%2].Switches = append(middle[l%2].Switches, name)
	}
	net.Switches = append(net.Switches, middle[0], middle[1], job.Switch{Name: "root", Switches: []string{"A", "B"}})
	if rapid.Bool().Draw(t, "blocks") {
		for k := range 3 {
			net.Blocks = append(net.Blocks, job.Block{Name: fmt.Sprintf("B%d", k), Nodes: []string{fmt.Sprintf("n%d", 3*k), fmt.Sprintf("n%d", 3*k+1), fmt.Sprintf("n%d", 3*k+2)}})
		}
		if rapid.Bool().Draw(t, "sizes") {
			net.BlockSizes = []int{3, 6}
		}
	}
	return net
}

// unsaid forgets what a job, and the other tasks of its array, was promised: they were
// changed.
func (w *world) unsaid(id job.ID) {
	delete(w.said, id)
	v, _ := w.s.Job(id)
	for task := range w.said {
		if other, ok := w.s.Job(task); ok && v.Array != 0 && other.Array == v.Array {
			delete(w.said, task)
		}
	}
}

// beside are schedulers that go the same way.
type beside struct {
	twin    *Scheduler // decides for itself, keeps no gaps, and was never forked or restored
	replica *Scheduler // is given the log
}

// apply applies an event to the twin, which says of it what the original said, and if it is
// in the log to the replica.
func (b *beside) apply(t *rapid.T, e job.Event, ok bool) {
	if err := b.twin.Apply(e); (err == nil) != ok {
		t.Fatalf("twin: %#v: %v, and elsewhere accepted: %v", e, err, ok)
	}
	if !ok {
		return
	}
	if err := b.replica.Apply(e); err != nil {
		t.Fatalf("replay %#v: %v", e, err)
	}
}

// follow proves that the twin decides the same, and that the log gives the same state
// after each of its events.
func (b *beside) follow(t *rapid.T, s *Scheduler, out []job.Event, now job.Time) {
	if own := b.twin.Decide(now); b.twin.Hash() != s.Hash() || !reflect.DeepEqual(own, out) {
		t.Fatalf("at %d the twin decides\n%+v\nnot\n%+v", now, own, out)
	}
	for _, e := range out {
		if err := b.replica.Apply(e); err != nil {
			t.Fatalf("replay at %d %#v: %v", now, e, err)
		}
		if err := b.replica.Check(); err != nil {
			t.Fatalf("replay at %d %#v: %v", now, e, err)
		}
	}
	if b.replica.Hash() != s.Hash() {
		t.Fatalf("at %d the log gives another hash", now)
	}
}

// conserves proves that a conservative plan leaves nothing idle that a job could start on
// now, and gives a place to all that have one.
func (w *world) conserves() {
	if w.s.config.Backfill != job.Conservative {
		return
	}
	f := w.s.Fork()
	for i, r := range f.jobs {
		if !r.queued {
			continue
		}
		if p := f.earliest(r, f.now); r.plan == nil && p.start != job.Never {
			w.t.Fatalf("at %d job %v, promised %d, could be planned at %d: %+v", w.now, r.id, r.promise, p.start, r.spec)
		}
		if w.s.Fork().tryStart(i) {
			w.t.Fatalf("at %d job %v, promised %d, could start now: %+v", w.now, r.id, r.promise, r.spec)
		}
	}
}

// disturb does with forks, and to the original, what must not change what is decided.
func (w *world) disturb() {
	t := w.t
	switch rapid.IntRange(0, 5).Draw(t, "disturb") {
	case 0:
		f := w.s.Fork()
		f.Decide(w.now.Add(job.Duration(rapid.IntRange(0, 30).Draw(t, "later"))))
		if err := f.Check(); err != nil {
			t.Fatal(err)
		}
	case 1:
		f := w.s.Fork()
		for v := range w.s.Running {
			if err := f.Apply(job.Ended{At: w.now, ID: v.ID, State: job.Completed}); err != nil {
				t.Fatal(err)
			}
		}
		f.Decide(w.now)
		if err := f.Check(); err != nil {
			t.Fatal(err)
		}
	case 2:
		w.s = w.restored()
		w.s.largePass = 1
	case 3:
		old := w.s
		w.s = old.Fork()
		old.Decide(w.now.Add(3))
	case 4:
		_, _ = w.s.WhatIf(w.now, job.Submitted{At: w.now, ID: w.last + 1, Spec: job.Spec{MinNodes: 1, TimeLimit: 5}})
	}
}

// TestWalk plays random events as TestProperty does, and beside the scheduler, which is
// forked, restored and asked in between, one that is not and one that is given its log: all
// three decide the same. Nothing that could start waits.
func TestWalk(t *testing.T) {
	rounds := 1 // of 100 worlds
	if os.Getenv("GANGWAY_TEST_LONG") != "" {
		rounds = 300
	}
	for i := range rounds {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				w := newWorld(t)
				w.beside = &beside{New(), New()}
				w.beside.twin.largePass = math.MaxInt
				for _, e := range w.log {
					w.beside.apply(t, e, true)
				}
				for range 60 {
					w.step()
				}
				w.decide()
				w.same("restored", w.restored())
				w.same("replayed", w.replayed())
			})
		})
	}
}
