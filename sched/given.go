package sched

import (
	"slices"

	"github.com/gangway-hpc/gangway/internal/job"
)

// chooseGivenNear is chooseGiven below one switch, where that is asked for too: of those
// that have the nodes, the one with the fewest others.
func (s *Scheduler) chooseGivenNear(o *option, cands []cand, k int, topo job.Topology) ([]cand, bool) {
	level := topo.Required - 1
	if topo.Switches == 1 {
		level = 0
	}
	if level < 0 {
		return s.chooseGiven(o, cands, k)
	}
	all := runs(cands, s.net.domain[min(level, s.net.levels-1)], nil)
	slices.SortStableFunc(all, func(a, b run) int { return (a.hi - a.lo) - (b.hi - b.lo) })
	for _, r := range all {
		if chosen, ok := s.chooseGiven(o, cands[r.lo:r.hi], k); ok {
			return chosen, true
		}
	}
	return nil, false
}

// suits says whether nodes are all that a class asks for besides what each of them has: those
// that it names, so many with a feature, and near enough to each other.
func (s *Scheduler) suits(c *class, o *option, picks []pick) bool {
	has := func(n int32) bool { return slices.ContainsFunc(picks, func(p pick) bool { return p.node == n }) }
	if slices.ContainsFunc(o.must, func(n int32) bool { return !has(n) }) {
		return false
	}
	for _, want := range o.counts {
		n := 0
		for _, p := range picks {
			if satisfies(want.feature, s.nodes[p.node].spec.Features) {
				n++
			}
		}
		if n < want.n {
			return false
		}
	}
	topo := c.topology()
	if topo.Required > 0 && s.spread(picks, s.net.domain[min(topo.Required, s.net.levels)-1]) > 1 || topo.Switches > 0 && s.spread(picks, s.net.domain[0]) > topo.Switches {
		return false
	}
	if topo.Segment == 0 && !topo.Block {
		return true
	}
	block, of := s.net.blocksOf(topo.Segment, s.network.BlockSizes), map[int32]int{}
	whole, segment := 0, max(1, topo.Segment)
	for _, p := range picks {
		if b := block[p.node]; b >= 0 {
			if of[b]++; of[b]%segment == 0 {
				whole += segment
			}
		}
	}
	return whole == len(picks)/segment*segment
}

// spread is in how many domains nodes are.
func (s *Scheduler) spread(picks []pick, domain []int32) int {
	in := map[int32]bool{}
	for _, p := range picks {
		in[domain[p.node]] = true
	}
	return len(in)
}
