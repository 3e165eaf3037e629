package sched

import (
	"fmt"
	"math/bits"
	"testing"

	"pgregory.net/rapid"

	"github.com/gangway-hpc/gangway/internal/job"
)

// naive is a scheduler that tries every time and every set of nodes. It knows what each
// node has free in each millisecond.
type naive struct {
	nodes  []job.Node
	leaf   []int
	block  []int
	free   [][]vec // by node, by time
	length int
}

func newNaive(nodes []job.Node, length int) *naive {
	o := &naive{nodes: nodes, length: length}
	leaves, blocks := map[string]int{}, map[string]int{}
	for _, n := range nodes {
		if _, ok := leaves[n.Switch]; !ok {
			leaves[n.Switch] = len(leaves)
		}
		if _, ok := blocks[n.Block]; !ok {
			blocks[n.Block] = len(blocks)
		}
		o.leaf = append(o.leaf, leaves[n.Switch])
		o.block = append(o.block, blocks[n.Block])
		row := make([]vec, length)
		for t := range row {
			row[t] = vec{int32(n.CPUs)}
			if len(n.GRES) > 0 {
				row[t][slotGRES] = int32(n.GRES[0].Count)
			}
		}
		o.free = append(o.free, row)
	}
	return o
}

// need is what a job takes of a node, by itself.
func (o *naive) need(spec *job.Spec, n int) (vec, bool) {
	if spec.Exclusive {
		v := vec{int32(o.nodes[n].CPUs)}
		if len(o.nodes[n].GRES) > 0 {
			v[slotGRES] = int32(o.nodes[n].GRES[0].Count)
		}
		return v, true
	}
	v := vec{int32(max(1, spec.CPUsPerTask))}
	if len(spec.GRES) > 0 {
		if len(o.nodes[n].GRES) == 0 {
			return v, false
		}
		v[slotGRES] = int32(spec.GRES[0].Count)
	}
	return v, true
}

// fits says whether a node has room from t on.
func (o *naive) fits(spec *job.Spec, n, t int) bool {
	v, ok := o.need(spec, n)
	for at := t; ok && at < t+int(spec.TimeLimit) && at < o.length; at++ {
		ok = o.free[n][at].holds(&v)
	}
	return ok
}

// allowed says whether a set of nodes satisfies what a job asks of their nearness.
func (o *naive) allowed(spec *job.Spec, set uint) bool {
	if bits.OnesCount(set) != spec.MinNodes {
		return false
	}
	leaves, perBlock := uint(0), map[int]int{}
	for n := range o.nodes {
		if set&(1<<n) != 0 {
			leaves |= 1 << o.leaf[n]
			perBlock[o.block[n]]++
		}
	}
	topo := spec.Topology
	if topo.Switches > 0 && bits.OnesCount(leaves) > topo.Switches || topo.Required == 1 && bits.OnesCount(leaves) > 1 {
		return false
	}
	for _, n := range perBlock {
		if topo.Segment > 0 && n%topo.Segment != 0 {
			return false
		}
	}
	return true
}

// spread is below how many leaves nodes are; of segments, in how many blocks.
func (o *naive) spread(spec *job.Spec, set uint) int {
	at := o.leaf
	if spec.Topology.Segment > 0 {
		at = o.block
	}
	seen := uint(0)
	for n := range o.nodes {
		if set&(1<<n) != 0 {
			seen |= 1 << at[n]
		}
	}
	return bits.OnesCount(seen)
}

// possible says whether a job could start at t, and with how little spread.
func (o *naive) possible(spec *job.Spec, t int) (bool, int) {
	room := uint(0)
	for n := range o.nodes {
		if o.fits(spec, n, t) {
			room |= 1 << n
		}
	}
	found, fewest := false, 99
	for set := uint(1); set < 1<<len(o.nodes); set++ {
		if set&^room == 0 && o.allowed(spec, set) {
			found, fewest = true, min(fewest, o.spread(spec, set))
		}
	}
	return found, fewest
}

// TestOracle compares plans with all that are possible: up to 8 nodes and 6 jobs. Each job
// has its place at the earliest time that those before it leave, and what starts now is
// below as few leaf switches as can be.
func TestOracle(t *testing.T) {
	cases, spread := 0, 0
	var worse []job.Topology
	rapid.Check(t, func(t *rapid.T) {
		s := New()
		var nodes []job.Node
		var names []string
		for i := range rapid.IntRange(1, 8).Draw(t, "nodes") {
			n := job.Node{Name: fmt.Sprintf("n%d", i), CPUs: rapid.IntRange(1, 4).Draw(t, "cpus"), Switch: fmt.Sprintf("s%d", rapid.IntRange(0, 2).Draw(t, "leaf")), Block: fmt.Sprintf("b%d", i/3)}
			if rapid.Bool().Draw(t, "gpu") {
				n.GRES = []job.GRES{{Name: "gpu", Count: 2}}
			}
			nodes, names = append(nodes, n), append(names, n.Name)
			apply(t2(t), s, job.NodeSet{Node: n})
		}
		apply(t2(t), s, job.PartitionSet{Partition: job.Partition{Name: "p", Nodes: names, Default: true}})
		jobs := rapid.IntRange(1, 6).Draw(t, "jobs")
		for i := range jobs {
			spec := job.Spec{MinNodes: rapid.IntRange(1, 4).Draw(t, "n"), TimeLimit: job.Duration(rapid.IntRange(1, 6).Draw(t, "limit"))}
			switch rapid.IntRange(0, 3).Draw(t, "shape") {
			case 0:
				spec.Exclusive = true
			case 1:
				spec.GRES = []job.GRESRequest{{Name: "gpu", Count: int64(rapid.IntRange(1, 2).Draw(t, "g")), Per: job.PerNode}}
			default:
				spec.CPUsPerTask = rapid.IntRange(1, 3).Draw(t, "c")
			}
			switch rapid.IntRange(0, 5).Draw(t, "topology") {
			case 0:
				spec.Topology = job.Topology{Switches: rapid.IntRange(1, 2).Draw(t, "switches"), Wait: job.Forever}
			case 1:
				spec.Topology.Required = 1
			case 2:
				if spec.MinNodes%2 == 0 {
					spec.Topology.Segment = 2
				}
			}
			o := newNaive(nodes, 8)
			can, _ := o.possible(&spec, 0)
			if err := s.Apply(job.Submitted{At: 1, ID: job.ID(i + 1), Spec: spec}); (err == nil) != can {
				t.Fatalf("job %d %+v: refused with %v, but possible is %v", i+1, spec, err, can)
			}
		}
		s.Decide(1)
		o := newNaive(nodes, 64)
		for _, r := range s.jobs {
			start, picks := int(r.promise), []pick(nil)
			if r.state == job.Running {
				start, picks = int(r.start), r.picks
			} else if r.plan != nil {
				picks = r.plan.picks
			}
			set := uint(0)
			for _, p := range picks {
				set |= 1 << p.node
				if !o.fits(r.spec, int(p.node), start) {
					t.Fatalf("job %v does not fit on node %d at %d", r.id, p.node, start)
				}
			}
			if !o.allowed(r.spec, set) {
				t.Fatalf("job %v may not have the nodes %b", r.id, set)
			}
			for at := 1; at < start; at++ {
				if ok, _ := o.possible(r.spec, at); ok {
					t.Fatalf("job %v could start at %d, and is planned at %d", r.id, at, start)
				}
			}
			if r.state == job.Running {
				cases++
				if _, fewest := o.possible(r.spec, 1); o.spread(r.spec, set) == fewest {
					spread++
				} else {
					worse = append(worse, r.spec.Topology)
				}
			}
			for _, p := range picks {
				v, _ := o.need(r.spec, int(p.node))
				for at := start; at < start+int(r.spec.TimeLimit); at++ {
					o.free[p.node][at].sub(&v)
				}
			}
		}
	})
	if spread*100 < cases*99 {
		t.Errorf("%d of %d jobs have the best spread, fewer than 99 %%", spread, cases)
	}
	t.Logf("%d of %d jobs have the best spread; not so %+v", spread, cases, worse)
}

// t2 lets helpers of tests be used in properties.
func t2(t *rapid.T) testing.TB { return fatal{t: t} }

type fatal struct {
	testing.TB
	t *rapid.T
}

func (f fatal) Helper()                           {}
func (f fatal) Fatalf(format string, args ...any) { f.t.Fatalf(format, args...) }
