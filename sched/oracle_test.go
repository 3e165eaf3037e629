package sched

import (
	"fmt"
	"math/bits"
	"slices"
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
			for g := range n.GRES {
				row[t][slotGRES+g] = int32(n.GRES[g].Count)
			}
		}
		o.free = append(o.free, row)
	}
	return o
}

// total is how many GPUs a job asks for for all of its nodes; 0: for each.
func total(spec *job.Spec) int {
	if len(spec.GRES) > 0 && spec.GRES[0].Per == job.PerJob {
		return int(spec.GRES[0].Count)
	}
	return 0
}

// low is the least that a node has free of each resource while a job that begins at t runs.
func (o *naive) low(spec *job.Spec, n, t int) vec {
	v := o.free[n][t]
	for at := t; at < t+int(spec.TimeLimit) && at < o.length; at++ {
		for k, free := range o.free[n][at] {
			v[k] = min(v[k], free)
		}
	}
	return v
}

// gives is how many GPUs, of whatever type, a node can give a job from t on.
func (o *naive) gives(spec *job.Spec, n, t int) int {
	v := o.low(spec, n, t)
	return int(v[slotGRES] + v[slotGRES+1])
}

// fits says whether a node has room for a share of a job from t on.
func (o *naive) fits(spec *job.Spec, n, t int) bool {
	v := o.low(spec, n, t)
	if spec.Exclusive {
		all := newNaive(o.nodes[n:n+1], 1).free[0][0]
		return v.holds(&all)
	}
	gpus := 0
	if total(spec) > 0 {
		gpus = 1
	} else if len(spec.GRES) > 0 {
		gpus = int(spec.GRES[0].Count)
	}
	return int(v[slotCPU]) >= max(1, spec.CPUsPerTask) && o.gives(spec, n, t) >= gpus
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
		sum := 0
		for n := range o.nodes {
			if set&(1<<n) != 0 {
				sum += o.gives(spec, n, t)
			}
		}
		if set&^room == 0 && sum >= total(spec) && o.allowed(spec, set) {
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
			switch rapid.IntRange(0, 3).Draw(t, "gpu") {
			case 0, 1:
				n.GRES = []job.GRES{{Name: "gpu", Count: 2}}
			case 2:
				n.GRES = []job.GRES{{Name: "gpu", Type: "a", Count: 1}, {Name: "gpu", Type: "b", Count: 1}}
			}
			nodes, names = append(nodes, n), append(names, n.Name)
			apply(t2(t), s, job.NodeSet{Node: n})
		}
		apply(t2(t), s, job.PartitionSet{Partition: job.Partition{Name: "p", Nodes: names, Default: true}})
		jobs := rapid.IntRange(1, 6).Draw(t, "jobs")
		for i := range jobs {
			spec := job.Spec{MinNodes: rapid.IntRange(1, 4).Draw(t, "n"), TimeLimit: job.Duration(rapid.IntRange(1, 6).Draw(t, "limit"))}
			switch rapid.IntRange(0, 4).Draw(t, "shape") {
			case 0:
				spec.Exclusive = true
			case 1:
				spec.GRES = []job.GRESRequest{{Name: "gpu", Count: int64(rapid.IntRange(1, 2).Draw(t, "g")), Per: job.PerNode}}
			case 2:
				spec.GRES = []job.GRESRequest{{Name: "gpu", Count: int64(spec.MinNodes + rapid.IntRange(0, 3).Draw(t, "more")), Per: job.PerJob}}
			default:
				spec.CPUsPerTask = rapid.IntRange(1, 3).Draw(t, "c")
			}
			kinds := 5
			if total(&spec) > 0 {
				kinds = -1 // totals are shared evenly where nodes have to be near
			}
			switch rapid.IntRange(min(0, kinds), kinds).Draw(t, "topology") {
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
				if low := o.low(r.spec, int(p.node), start); !o.fits(r.spec, int(p.node), start) || !low.holds(&p.v) {
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
			if r.state == job.Running && total(r.spec) == 0 {
				cases++
				if _, fewest := o.possible(r.spec, 1); o.spread(r.spec, set) == fewest {
					spread++
				} else {
					worse = append(worse, r.spec.Topology)
				}
			}
			given := 0
			for _, p := range picks {
				given += int(p.v[slotGRES] + p.v[slotGRES+1])
				for at := start; at < start+int(r.spec.TimeLimit); at++ {
					o.free[p.node][at].sub(&p.v)
				}
			}
			if n := total(r.spec); n > 0 && given != n {
				t.Fatalf("job %v has %d GPUs, not %d", r.id, given, n)
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

// TestNamedAndNear compares with a search of all subsets: a job that names nodes, or counts
// features, and asks for one switch, starts if and only if some nodes are all of that.
func TestNamedAndNear(t *testing.T) {
	yes, no := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		draw := func(low, high int, what string) int { return rapid.IntRange(low, high).Draw(t, what) }
		s, n := New(), draw(2, 7, "nodes")
		var names []string
		for i := range n {
			node := job.Node{Name: fmt.Sprintf("n%d", i), CPUs: 1, Switch: fmt.Sprintf("s%d", draw(0, 2, "leaf"))}
			if draw(0, 1, "feature") == 1 {
				node.Features = []string{"f"}
			}
			if draw(0, 3, "busy") == 0 {
				node.State = job.NodeDrain
			}
			names = append(names, node.Name)
			apply(t2(t), s, job.NodeSet{Node: node})
		}
		apply(t2(t), s, job.PartitionSet{Partition: job.Partition{Name: "p", Nodes: names}})
		p := job.Spec{MinNodes: draw(1, min(3, n), "size"), TimeLimit: 10}
		if p.Topology.Required = draw(0, 1, "level"); p.Topology.Required == 0 {
			p.Topology = job.Topology{Switches: 1, Wait: job.Forever}
		}
		counted := draw(0, p.MinNodes, "counted")
		if counted > 0 {
			p.Constraint = &job.Constraint{Feature: "f", Count: counted}
		}
		if draw(0, 1, "named") == 1 {
			p.NodeList = []string{names[draw(0, n-1, "name")]}
		}
		able := func(use func(*node) bool) bool {
			for set := range 1 << n {
				size, features, named, leaves := 0, 0, 0, map[string]bool{}
				for i, x := range s.nodes {
					if set&(1<<i) == 0 {
						continue
					}
					if !use(x) {
						size = -n
					}
					size++
					features += len(x.spec.Features)
					leaves[x.spec.Switch] = true
					if slices.Contains(p.NodeList, x.spec.Name) {
						named++
					}
				}
				if size == p.MinNodes && features >= counted && named == len(p.NodeList) && len(leaves) == 1 {
					return true
				}
			}
			return false
		}
		err := s.Apply(job.Submitted{At: 1, ID: 1, Spec: p})
		if ever := able(func(*node) bool { return true }); ever != (err == nil) {
			t.Fatalf("it can run: %v; %v", ever, err)
		}
		if err != nil {
			no++
			return
		}
		s.Decide(1)
		if err := s.Check(); err != nil {
			t.Fatal(err)
		}
		v, _ := s.Job(1)
		if now := able((*node).open); now != (v.State == job.Running) {
			t.Fatalf("it can start: %v; it is %v on %+v", now, v.State, v.Allocation.Nodes)
		}
		leaves := map[string]bool{}
		for _, share := range v.Allocation.Nodes {
			i, _ := s.nodeNumber(share.Node)
			leaves[s.nodes[i].spec.Switch] = true
		}
		if len(leaves) > 1 {
			t.Fatalf("it is below several switches: %+v", v.Allocation.Nodes)
		}
		yes++
	})
	t.Logf("%d could ever run, %d could not", yes, no)
}
