package sched

import (
	"math"
	"slices"

	"github.com/gangway-hpc/gangway/internal/job"
)

// fewest is how many empty nodes of a kind do for spec; MaxInt if no number does.
func fewest(spec *job.Spec, part *job.Partition, k *kind) int {
	n := 1
	if spec.Tasks > 0 && spec.TasksPerNode > 0 {
		n = (spec.Tasks + spec.TasksPerNode - 1) / spec.TasksPerNode
	}
	for limit := max(spec.Tasks, perJob(spec), 1); n <= limit; n++ {
		if _, ok := perNode(spec, part, k, n); ok {
			return n
		}
		if n >= 64 { // far off: by halves
			lo, hi := n, limit
			if _, ok := perNode(spec, part, k, hi); !ok {
				return math.MaxInt
			}
			for lo+1 < hi {
				m := (lo + hi) / 2
				if _, ok := perNode(spec, part, k, m); ok {
					hi = m
				} else {
					lo = m
				}
			}
			return hi
		}
	}
	return math.MaxInt
}

// perJob is the largest number of GRES that are asked for for the whole job.
func perJob(spec *job.Spec) int {
	n := int64(0)
	for i := range spec.GRES {
		if spec.GRES[i].Per == job.PerJob {
			n = max(n, spec.GRES[i].Count)
		}
	}
	return int(min(n, 1<<20))
}

// tasksOn is how many tasks there are on a node at most.
func tasksOn(spec *job.Spec, nodes int) int {
	if spec.Tasks > 0 {
		return (spec.Tasks + nodes - 1) / nodes
	}
	return max(1, spec.TasksPerNode)
}

// perNode is what spec takes of a node of a kind if it has that many nodes; not ok if the
// node has not that much. Where there are several ways it is the first.
func perNode(spec *job.Spec, part *job.Partition, k *kind, nodes int) (v vec, ok bool) {
	eachShare(spec, part, k, nodes, func(way vec) bool {
		v, ok = way, true
		return false
	})
	return v, ok
}

// eachShare yields what spec may take of a node of a kind if it has that many nodes: there
// are several ways if it asks for GRES of any type and the node has several types.
func eachShare(spec *job.Spec, part *job.Partition, k *kind, nodes int, yield func(vec) bool) {
	tasks := int64(tasksOn(spec, nodes))
	if spec.Tasks > 0 && spec.TasksPerNode > 0 && tasks > int64(spec.TasksPerNode) {
		return
	}
	gpus := int64(0)
	counts := make([]int64, len(spec.GRES))
	for i := range spec.GRES {
		g := &spec.GRES[i]
		n := g.Count
		switch g.Per {
		case job.PerJob:
			n = (n + int64(nodes) - 1) / int64(nodes)
		case job.PerTask:
			n = mul(n, tasks)
		case job.PerSocket:
			n = mul(n, int64(max(1, k.spec.Sockets)))
		}
		if g.Name == "gpu" {
			gpus += n
		}
		counts[i] = n
	}
	cpus := mul(tasks, int64(max(1, spec.CPUsPerTask)))
	if spec.CPUsPerGPU > 0 {
		cpus = max(1, mul(gpus, int64(spec.CPUsPerGPU)))
	}
	// A core is one job's with all of its threads. Where a node's CPUs are its cores they
	// are counted by themselves.
	if tpc := int64(k.spec.ThreadsPerCore); tpc > 1 && int64(k.total[slotCPU])%tpc == 0 && int(k.total[slotCPU]) != k.spec.Sockets*k.spec.CoresPerSocket {
		use := tpc
		if spec.ThreadsPerCore > 0 {
			use = min(tpc, int64(spec.ThreadsPerCore))
		}
		cpus = mul((cpus+use-1)/use, tpc)
	}
	memory := memoryOn(spec, part, k, cpus, gpus)
	if cpus > int64(k.total[slotCPU]) || memory > int64(k.total[slotMemory]) {
		return
	}
	exclusive := spec.Exclusive || part.Exclusive
	k.mixes(spec.GRES, counts, vec{int32(cpus), int32(memory)}, func(v vec) bool {
		if exclusive {
			yield(k.total)
			return false
		}
		return yield(v)
	})
}

// mixes yields the ways to take so many of each request, added to v: first those that take
// each of one type, and of these the types that come first.
func (k *kind) mixes(requests []job.GRESRequest, counts []int64, v vec, yield func(vec) bool) bool {
	if len(requests) == 0 {
		return yield(v)
	}
	slots, n := k.slots(&requests[0]), counts[0]
	for _, slot := range slots {
		if n <= int64(k.total[slot]-v[slot]) {
			w := v
			w[slot] += int32(n)
			if !k.mixes(requests[1:], counts[1:], w, yield) {
				return false
			}
		}
		if n == 0 {
			return true
		}
	}
	return len(slots) < 2 || k.mixed(slots, n, 0, v, func(w vec) bool { return k.mixes(requests[1:], counts[1:], w, yield) })
}

// mixed yields the ways to take n from several slots, at least from two: as many as can be
// from the first ones first.
func (k *kind) mixed(slots []int, n int64, used int, v vec, yield func(vec) bool) bool {
	if n == 0 {
		return used < 2 || yield(v)
	}
	if len(slots) == 0 {
		return true
	}
	room := min(n, int64(k.total[slots[0]]-v[slots[0]]))
	for take := room; take > 0; take-- {
		w := v
		w[slots[0]] += int32(take)
		if !k.mixed(slots[1:], n-take, used+1, w, yield) {
			return false
		}
	}
	return k.mixed(slots[1:], n, used, v, yield)
}

// memoryOn is the memory in MiB that spec takes of a node. A node of which no memory is
// known is not asked for any.
func memoryOn(spec *job.Spec, part *job.Partition, k *kind, cpus, gpus int64) int64 {
	total := int64(k.total[slotMemory])
	switch m := spec.Memory; {
	case total == 0:
		return 0
	case m.All:
		return total
	case m.MiB > 0 && m.Per == job.PerCPU:
		return mul(m.MiB, cpus)
	case m.MiB > 0 && m.Per == job.PerGPU:
		return mul(m.MiB, gpus)
	case m.MiB > 0:
		return m.MiB
	case part.MemoryPerNode > 0:
		return part.MemoryPerNode
	case part.MemoryPerCPU > 0:
		return mul(part.MemoryPerCPU, cpus)
	}
	return total
}

// mul does not overflow.
func mul(a, b int64) int64 {
	if a > 0 && b > math.MaxInt64/a {
		return math.MaxInt64
	}
	return a * b
}

// slots are where a kind has the GRES of a request.
func (k *kind) slots(g *job.GRESRequest) []int {
	var all []int
	for i := range k.spec.GRES {
		if has := &k.spec.GRES[i]; has.Name == g.Name && (g.Type == "" || g.Type == has.Type) {
			all = append(all, slotGRES+i)
		}
	}
	return all
}

// left is how many GPUs of all types a node of a kind has left after v.
func (k *kind) left(free, v *vec) int32 {
	n := int32(0)
	for i := range k.spec.GRES {
		if k.spec.GRES[i].Name == "gpu" {
			n += free[slotGRES+i] - v[slotGRES+i]
		}
	}
	return n
}

// maxWays is how many ways to take GRES of any type from a node are looked at.
const maxWays = 16

// needs are what an option takes of nodes of a kind: one for each way.
func (o *option) needs(part *job.Partition, k *kind, cell int32) []need {
	if o.total != nil {
		return o.sharedNeed(part, k, cell)
	}
	var all []need
	eachShare(o.spec, part, k, o.nodes, func(v vec) bool {
		all = append(all, need{cell: cell, v: v})
		return len(all) < maxWays
	})
	return all
}

// uneven says whether so many nodes do not share tasks or a total evenly, or are more than
// have to be.
func (o *option) uneven(nodes int) bool {
	return !o.twins && (o.spec.Tasks%nodes != 0 || o.spec.Tasks > 0 && nodes > o.nodes || slices.ContainsFunc(o.spec.GRES, func(g job.GRESRequest) bool { return g.Per == job.PerJob && g.Count%int64(nodes) != 0 }))
}

// trimmed is what node i of so many takes if they do not share evenly: the first ones have
// one task, or one of a total, more than the others, and p has what these take.
func (o *option) trimmed(s *Scheduler, p pick, i, nodes int) vec {
	spec := *o.spec
	spec.GRES = slices.Clone(spec.GRES)
	if spec.Tasks > 0 && i >= spec.Tasks%nodes {
		spec.Tasks, spec.TasksPerNode = 0, spec.Tasks/nodes
	}
	for g := range spec.GRES {
		if r := &spec.GRES[g]; r.Per == job.PerJob && int64(i) >= r.Count%int64(nodes) {
			r.Per, r.Count = job.PerNode, r.Count/int64(nodes)
		}
	}
	less, ok := perNode(&spec, s.parts[o.part].spec, s.cells[s.nodes[p.node].place.cell].kind, nodes)
	if !ok || !p.v.holds(&less) {
		return p.v
	}
	return less
}

// takes says whether an option takes of a node what pick k of a plan has.
func (s *Scheduler) takes(o *option, picks []pick, k int) bool {
	p := picks[k]
	return slices.ContainsFunc(o.cells, func(x need) bool {
		if x.cell != s.nodes[p.node].place.cell {
			return false
		}
		if o.total == nil {
			return x.v == p.v || o.uneven(len(picks)) && o.trimmed(s, pick{p.node, x.v}, k, len(picks)) == p.v
		}
		v, n := p.v, 0
		for _, slot := range x.slots {
			n += int(v[slot])
			v[slot] = 0
		}
		return n > 0 && n <= len(x.shares) && x.shares[n-1] == v
	})
}
