package sched

import (
	"cmp"
	"math"
	"math/bits"
	"slices"

	"github.com/gangway-hpc/gangway/internal/job"
)

// pick is a node and what is taken of it.
type pick struct {
	node int32
	v    vec
}

// placement is where and when a job could run.
type placement struct {
	option *option
	start  job.Time
	limit  job.Duration
	picks  []pick
}

// cand is a node that could be part of a placement.
type cand struct {
	node int32
	cell int16 // index into the option's cells
	far  bool  // it has not the image that is wanted
}

// placeNow finds the best place at which a job with limit d could start now: one that it
// prefers, if there is one.
func (s *Scheduler) placeNow(c *class, o *option, d job.Duration) ([]pick, bool) {
	if c.spec.Prefer != nil {
		preferred := *o
		preferred.cells = nil
		for _, n := range o.cells {
			if satisfies(c.spec.Prefer, s.cells[n.cell].kind.spec.Features) {
				preferred.cells = append(preferred.cells, n)
			}
		}
		if picks, ok := s.placeIn(c, &preferred, d); ok {
			return picks, true
		}
	}
	return s.placeIn(c, o, d)
}

// placeIn is placeNow among the cells of an option.
func (s *Scheduler) placeIn(c *class, o *option, d job.Duration) ([]pick, bool) {
	if o.total != nil {
		return s.shareOut(o, s.givers(o, s.now, d))
	}
	if o.nodes == 1 && o.most == 1 && len(o.must) == 0 && len(o.counts) == 0 && c.spec.Topology.Segment == 0 && !c.spec.Topology.Block {
		return s.placeOne(c, o, d)
	}
	cands := s.gather(o, d)
	for k := min(o.most, len(cands)); k >= o.nodes; k-- {
		if chosen, ok := s.choose(c, o, cands, k); ok {
			return s.picks(o, chosen), true
		}
	}
	return nil, false
}

func (s *Scheduler) picks(o *option, chosen []cand) []pick {
	picks := make([]pick, len(chosen))
	uneven := o.uneven(len(chosen))
	for i, x := range chosen {
		picks[i] = pick{x.node, o.cells[x.cell].v}
		if uneven {
			picks[i].v = o.trimmed(s, picks[i], i, len(chosen))
		}
	}
	return picks
}

// free says whether a node has v free now, and until d is over.
func (s *Scheduler) freeNow(i int32, v *vec, d job.Duration) bool {
	n := s.nodes[i]
	return n.free.holds(v) && (len(n.holds) == 0 || n.line.free(v, s.now) >= d)
}

// placeOne finds the node that is left with least: of those with the least weight the one
// with the fewest GPUs left over, and if it has to be one on which nothing runs, below the
// leaf switch that has the fewest of those.
func (s *Scheduler) placeOne(c *class, o *option, d job.Duration) ([]pick, bool) {
	for i := 0; i < len(o.cells); {
		weight := s.cells[o.cells[i].cell].kind.spec.Weight
		best, left := pick{node: -1}, int32(1<<30)
		for ; i < len(o.cells) && s.cells[o.cells[i].cell].kind.spec.Weight == weight; i++ {
			n := &o.cells[i]
			cell := s.cells[n.cell]
			if node := s.bestFit(c, o, cell, n, d); node >= 0 {
				l := s.nodes[node].free[cell.kind.prim] - n.v[cell.kind.prim]
				if o.twins {
					l = cell.kind.left(&s.nodes[node].free, &n.v)
				}
				if l < left {
					best, left = pick{node, n.v}, l
				}
			}
		}
		if best.node >= 0 {
			return []pick{best}, true
		}
	}
	return nil, false
}

// bestFit is the node of a cell that is left with least; -1: none.
func (s *Scheduler) bestFit(c *class, o *option, cell *cell, n *need, d job.Duration) int32 {
	top := len(cell.free) - 1
	for b := int(cell.kind.bucket(n.v[cell.kind.prim])); b <= top; b++ {
		found, tried := int32(-1), 0
		if cell.count[b] == 0 {
			continue
		}
		if b == top {
			return s.freshNode(o, cell, n, d)
		}
		for w, word := range cell.free[b] {
			for ; word != 0; word &= word - 1 {
				i := cell.nodes[w*64+bits.TrailingZeros64(word)]
				if !s.freeNow(i, &n.v, d) || o.excludes(i) {
					continue
				}
				if c.spec.Image == "" || s.hasImage(i, c.spec.Image) {
					return i
				}
				if found < 0 {
					found = i
				}
				if tried++; tried == 64 {
					return found
				}
			}
		}
		if found >= 0 {
			return found
		}
	}
	return -1
}

// freshNode is a node on which nothing runs, below the leaf that has the fewest of them.
func (s *Scheduler) freshNode(o *option, cell *cell, n *need, d job.Duration) int32 {
	for least := int32(1); ; {
		next := int32(math.MaxInt32)
		for l, count := range cell.fresh {
			if count != least {
				if count > least {
					next = min(next, count)
				}
				continue
			}
			for pos := cell.spans[0][l].lo; pos < cell.spans[0][l].hi; pos++ {
				if i := cell.nodes[pos]; s.nodes[i].place.fresh && s.freeNow(i, &n.v, d) && !o.excludes(i) {
					return i
				}
			}
		}
		if next == math.MaxInt32 {
			return -1
		}
		least = next
	}
}

func (s *Scheduler) far(o *option, i int32) bool {
	return o.spec.Image != "" && !s.hasImage(i, o.spec.Image)
}

func (s *Scheduler) hasImage(i int32, image string) bool {
	_, ok := slices.BinarySearch(s.nodes[i].images, image)
	return ok
}

// gather returns the nodes that are free now, for d, in the order of the topology.
func (s *Scheduler) gather(o *option, d job.Duration) []cand {
	all := s.cands[:0]
	for x := range o.cells {
		n := &o.cells[x]
		cell := s.cells[n.cell]
		first := int(cell.kind.bucket(n.v[cell.kind.prim]))
		if first >= len(cell.free) {
			continue
		}
		set := s.set[:0]
		set = append(set, cell.free[first]...)
		for _, more := range cell.free[first+1:] {
			for w := range set {
				set[w] |= more[w]
			}
		}
		s.set = set
		each(set, func(pos int32) bool {
			if i := cell.nodes[pos]; !o.excludes(i) && s.freeNow(i, &n.v, d) {
				all = append(all, cand{i, int16(x), s.far(o, i)})
			}
			return true
		})
	}
	if len(o.cells) > 1 {
		all = s.sortCands(all)
	}
	s.cands = all
	return all
}

// sortCands puts nodes into the order of the topology: as a set of places there they are.
// One that can be had in several ways is left with the first.
func (s *Scheduler) sortCands(all []cand) []cand {
	if words := (len(s.net.order) + 63) / 64; len(all) > 16+words/16 {
		return s.sorted.sort(all, s.net.order, words)
	}
	slices.SortFunc(all, func(a, b cand) int {
		if a.node != b.node {
			return cmp.Compare(s.net.order[a.node], s.net.order[b.node])
		}
		return cmp.Compare(a.cell, b.cell)
	})
	return slices.CompactFunc(all, func(a, b cand) bool { return a.node == b.node })
}

// sorted is a set of nodes by their place in the topology, empty between uses.
type sorted struct {
	set  []uint64
	cand []cand // by place
}

func (x *sorted) sort(all []cand, order []int32, words int) []cand {
	if len(x.set) < words {
		x.set, x.cand = make([]uint64, words), make([]cand, 64*words)
	}
	for _, c := range all {
		at := order[c.node]
		if bit := uint64(1) << (at % 64); x.set[at/64]&bit == 0 || c.cell < x.cand[at].cell {
			x.set[at/64] |= bit
			x.cand[at] = c
		}
	}
	i := 0
	each(x.set[:words], func(at int32) bool {
		all[i] = x.cand[at]
		i++
		return true
	})
	clear(x.set[:words])
	return all[:i]
}

// choose picks k of the nodes, as near to each other as can be, so that what is left over
// is of most use. cands are in the order of the topology, and so is what it returns.
func (s *Scheduler) choose(c *class, o *option, cands []cand, k int) ([]cand, bool) {
	if len(cands) < k {
		return nil, false
	}
	topo := c.topology()
	s.costly = s.weighted || c.spec.Image != ""
	var chosen []cand
	var ok bool
	switch {
	case c.spec.Contiguous:
		chosen, ok = s.chooseRun(o, cands, k)
	case len(o.must) > 0 || len(o.counts) > 0:
		chosen, ok = s.chooseGivenNear(o, cands, k, topo)
	case topo.Segment > 0:
		chosen, ok = s.chooseBlocks(cands, k, topo.Segment)
	case topo.Block:
		chosen, ok = s.chooseBlocks(cands, k, 1)
	case topo.Required > 0:
		chosen, ok = s.chooseBelow(cands, k, min(topo.Required, s.net.levels)-1)
	case topo.Switches > 0:
		chosen, ok = s.pack(nil, cands, k, 1), true
		if s.net.levels > 1 {
			if near := s.climb(cands, k); s.leaves(near) < s.leaves(chosen) {
				chosen = near
			}
		}
	default:
		chosen, ok = s.climb(cands, k), true
	}
	if !ok || topo.Switches > 0 && s.leaves(chosen) > topo.Switches {
		return nil, false
	}
	s.sortCands(chosen)
	if topo.Segment > 0 || topo.Block {
		block := s.net.blocksOf(topo.Segment, s.network.BlockSizes)
		slices.SortStableFunc(chosen, func(a, b cand) int { return cmp.Compare(block[a.node], block[b.node]) })
	}
	return chosen, true
}

// run is a part of a list of nodes that have a switch or a block in common.
type run struct{ lo, hi int }

// runs is the function of that name in a list that is used again at the next call.
func (s *Scheduler) runs(cands []cand, number []int32) []run {
	s.runList = runs(cands, number, s.runList[:0])
	return s.runList
}

// runs divides nodes by what number gives.
func runs(cands []cand, number []int32, all []run) []run {
	for lo := 0; lo < len(cands); {
		hi := lo + 1
		for hi < len(cands) && number[cands[hi].node] == number[cands[lo].node] {
			hi++
		}
		all = append(all, run{lo, hi})
		lo = hi
	}
	return all
}

// tightest is the smallest run with at least k nodes; -1: none.
func tightest(all []run, k int) int {
	best := -1
	for i, r := range all {
		if r.hi-r.lo >= k && (best < 0 || r.hi-r.lo < all[best].hi-all[best].lo) {
			best = i
		}
	}
	return best
}

// climb takes the lowest level at which one switch has k nodes, and there the tightest.
func (s *Scheduler) climb(cands []cand, k int) []cand {
	for level := range s.net.levels {
		all := s.runs(cands, s.net.domain[level])
		if i := s.cheapest(cands, all, tightest(all, k), k); i >= 0 {
			return s.pack(nil, cands[all[i].lo:all[i].hi], k, level)
		}
	}
	return s.pack(nil, cands, k, s.net.levels)
}

// cheapest is of the runs that are as long as run i the one whose k best nodes weigh least,
// and then have the image most often.
func (s *Scheduler) cheapest(cands []cand, all []run, i, k int) int {
	if i < 0 || !s.costly {
		return i
	}
	best, least := i, s.costOf(cands[all[i].lo:all[i].hi], k)
	for j := i + 1; j < len(all); j++ {
		if all[j].hi-all[j].lo != all[i].hi-all[i].lo {
			continue
		}
		if c := s.costOf(cands[all[j].lo:all[j].hi], k); c < least {
			best, least = j, c
		}
	}
	return best
}

// costOf is the weight of the k best nodes, and in its last digits how many of them have
// not the image.
func (s *Scheduler) costOf(cands []cand, k int) int64 {
	cost := int64(0)
	for _, c := range s.bestOf(cands, k) {
		cost += int64(s.nodes[c.node].spec.Weight) << 24
		if c.far {
			cost++
		}
	}
	return cost
}

// pack takes k of the nodes below one switch of a level: whole children first, the largest
// ones, and the rest from the one that it fills best.
func (s *Scheduler) pack(to, cands []cand, k, level int) []cand {
	if k == len(cands) {
		return append(to, cands...)
	}
	if level == 0 {
		return append(to, s.bestOf(cands, k)...)
	}
	all := s.runs(cands, s.net.domain[level-1])
	slices.SortStableFunc(all, func(a, b run) int { return (b.hi - b.lo) - (a.hi - a.lo) })
	for k > 0 {
		if i := s.cheapest(cands, all, tightest(all, k), k); i >= 0 {
			return s.pack(to, cands[all[i].lo:all[i].hi], k, level-1)
		}
		n := all[0].hi - all[0].lo
		i := s.cheapest(cands, all, 0, n)
		to = append(to, cands[all[i].lo:all[i].hi]...)
		k -= n
		all = slices.Delete(all, i, i+1)
	}
	return to
}

// bestOf takes k nodes: those with the least weight, of these those with the least left
// over, and of these those that have the image.
func (s *Scheduler) bestOf(cands []cand, k int) []cand {
	sorted := slices.Clone(cands)
	slices.SortStableFunc(sorted, func(a, b cand) int {
		x, y := s.nodes[a.node], s.nodes[b.node]
		if w := cmp.Compare(x.spec.Weight, y.spec.Weight); w != 0 {
			return w
		}
		if x.place.fresh != y.place.fresh {
			if y.place.fresh {
				return -1
			}
			return 1
		}
		if x.place.bucket != y.place.bucket || a.far == b.far {
			return cmp.Compare(x.place.bucket, y.place.bucket)
		}
		if b.far {
			return -1
		}
		return 1
	})
	return sorted[:k]
}

// leaves is below how many leaf switches the nodes are.
func (s *Scheduler) leaves(cands []cand) int {
	s.sortCands(cands)
	return len(s.runs(cands, s.net.domain[0]))
}

// chooseBelow takes nodes below one switch of a level.
func (s *Scheduler) chooseBelow(cands []cand, k, level int) ([]cand, bool) {
	for l := range level + 1 {
		all := s.runs(cands, s.net.domain[l])
		if i := s.cheapest(cands, all, tightest(all, k), k); i >= 0 {
			return s.pack(nil, cands[all[i].lo:all[i].hi], k, l), true
		}
	}
	return nil, false
}

// chooseBlocks takes groups of seg nodes, each within a block, from as few blocks as can
// be. If k is no multiple of seg the last group is smaller.
func (s *Scheduler) chooseBlocks(cands []cand, k, seg int) ([]cand, bool) {
	block := s.net.blocksOf(seg, s.network.BlockSizes)
	in := slices.DeleteFunc(slices.Clone(cands), func(c cand) bool { return block[c.node] < 0 })
	slices.SortStableFunc(in, func(a, b cand) int { return cmp.Compare(block[a.node], block[b.node]) })
	s.blockList = runs(in, block, s.blockList[:0]) // climb uses the other list
	all := s.blockList
	slices.SortStableFunc(all, func(a, b run) int { return (b.hi - b.lo) - (a.hi - a.lo) })
	var chosen []cand
	for k > 0 {
		if i := tightest(all, k); i >= 0 {
			return append(chosen, s.climb(in[all[i].lo:all[i].hi], k)...), true
		}
		if len(all) == 0 {
			return nil, false
		}
		n := (all[0].hi - all[0].lo) / seg * seg
		if n == 0 {
			return nil, false
		}
		chosen = append(chosen, s.climb(in[all[0].lo:all[0].hi], n)...)
		k -= n
		all = all[1:]
	}
	return chosen, true
}

// chooseRun takes nodes that follow each other in the order of the topology, those that
// are asked for by name among them: from the shortest run that has so many.
func (s *Scheduler) chooseRun(o *option, cands []cand, k int) ([]cand, bool) {
	best, length := -1, 0
	var first, last int32 // of those that are asked for
	for i, n := range o.must {
		at := s.net.order[n]
		if first = min(first, at); i == 0 {
			first = at
		}
		last = max(last, at)
	}
	for lo := 0; lo < len(cands); {
		hi := lo + 1
		for hi < len(cands) && s.net.order[cands[hi].node] == s.net.order[cands[hi-1].node]+1 {
			hi++
		}
		from := lo
		if len(o.must) > 0 { // as far to the front as takes the last one in
			for from < hi-k && s.net.order[cands[from+k-1].node] < last {
				from++
			}
		}
		has := len(o.must) == 0 || hi-from >= k && s.net.order[cands[from].node] <= first && s.net.order[cands[from+k-1].node] >= last
		if hi-lo >= k && has && (best < 0 || hi-lo < length) {
			best, length = from, hi-lo
		}
		lo = hi
	}
	if best < 0 {
		return nil, false
	}
	return slices.Clone(cands[best : best+k]), true
}

// chooseGiven takes the nodes that are asked for by name, then as many with each counted
// feature as are asked for, and then others.
func (s *Scheduler) chooseGiven(o *option, cands []cand, k int) ([]cand, bool) {
	var chosen []cand
	rest := slices.Clone(cands)
	move := func(take func(cand) bool, n int) int {
		rest = slices.DeleteFunc(rest, func(c cand) bool {
			if n == 0 || !take(c) {
				return false
			}
			chosen = append(chosen, c)
			n--
			return true
		})
		return n
	}
	if move(func(c cand) bool { _, ok := slices.BinarySearch(o.must, c.node); return ok }, len(o.must)) > 0 {
		return nil, false
	}
	for x, want := range o.counts {
		has := func(c cand, y int) bool { return satisfies(o.counts[y].feature, s.nodes[c.node].spec.Features) }
		n := want.n
		for _, c := range chosen[:min(len(o.must), len(chosen))] {
			if n > 0 && has(c, x) {
				n--
			}
		}
		n = move(func(c cand) bool { // those that no later one could use
			for y := x + 1; y < len(o.counts); y++ {
				if has(c, y) {
					return false
				}
			}
			return has(c, x)
		}, n)
		if move(func(c cand) bool { return has(c, x) }, n) > 0 {
			return nil, false
		}
	}
	if len(chosen) > k || len(chosen)+len(rest) < k {
		return nil, false
	}
	if len(chosen) == k {
		return chosen, true
	}
	return append(chosen, s.climb(rest, k-len(chosen))...), true
}
