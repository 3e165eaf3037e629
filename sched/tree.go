package sched

import (
	"slices"

	"github.com/gangway-hpc/gangway/internal/job"
)

// lengths is how many lengths there are for which trees know when they are free first.
// The first one is any, the last one for ever.
const lengths = 8

// lengthTable is lengths, rising.
type lengthTable [lengths]job.Duration

// usual are the lengths that are used while nothing is known about the limits of jobs.
func usual() *lengthTable {
	return &lengthTable{1, 10 * job.Minute, job.Hour, 4 * job.Hour, 12 * job.Hour, 2 * job.Day, 7 * job.Day, job.Forever}
}

// class is the largest length that is not above d.
func (l *lengthTable) class(d job.Duration) int {
	lo, hi := 0, lengths
	for lo+1 < hi {
		if m := (lo + hi) / 2; l[m] <= d {
			lo = m
		} else {
			hi = m
		}
	}
	return lo
}

// fitLengths makes the lengths those of the sorted limits of jobs, so that a search looks at few spans
// that turn out too short. What is found does not depend on them.
func (s *Scheduler) fitLengths(limits []job.Duration) {
	if len(limits) < 1024 {
		return
	}
	l := lengthTable{0: 1, lengths - 1: job.Forever}
	distinct := slices.Compact(slices.Clone(limits))
	for i := 1; i < lengths-1; i++ {
		if len(distinct) <= lengths-2 {
			l[i] = distinct[min(i-1, len(distinct)-1)]
		} else {
			l[i] = limits[(i-1)*len(limits)/(lengths-2)]
		}
		l[i] = max(l[i], l[i-1])
	}
	if *s.lengths == l {
		return
	}
	s.lengths = &l
	for i := range s.cells {
		c := s.ownCell(int32(i))
		c.trees, c.change = nil, nil
	}
}

// tree knows for each node of a cell, and for each range of them, not after when something
// that a class needs is free for a length of time. It is a binary tree in an array: the
// children of i are 2i and 2i+1, the nodes begin at size. Its values are lower bounds:
// they are right when made, and what is free becomes less as time passes.
type tree struct {
	tok  *token
	need vec
	size int
	at   [][lengths]job.Time
}

// seen is a tree and how many of the cell's changes it has taken in.
type seen struct {
	*tree
	changes int
}

// maxTrees is how many trees a cell has at most. The one that was used longest ago goes.
const maxTrees = 16

// tree returns the tree for a need, up to date.
func (s *Scheduler) tree(c *cell, v *vec) *tree {
	for i, x := range c.trees {
		if x.need != *v {
			continue
		}
		t := x.tree
		if t.tok != s.tok {
			t = &tree{s.tok, t.need, t.size, slices.Clone(t.at)}
		}
		copy(c.trees[1:i+1], c.trees[:i])
		for _, pos := range c.change[x.changes:] {
			s.treeUpdate(c, t, pos)
		}
		c.trees[0] = seen{t, len(c.change)}
		c.compact()
		return t
	}
	t := &tree{tok: s.tok, need: *v, size: 1}
	for t.size < len(c.nodes) {
		t.size *= 2
	}
	t.at = make([][lengths]job.Time, 2*t.size)
	for i := len(c.nodes) + t.size; i < len(t.at); i++ {
		t.at[i] = never()
	}
	for pos := range c.nodes {
		t.at[t.size+pos] = s.firsts(c.nodes[pos], v)
	}
	for i := t.size - 1; i > 0; i-- {
		t.at[i] = least(&t.at[2*i], &t.at[2*i+1])
	}
	if len(c.trees) >= maxTrees {
		c.trees = c.trees[:maxTrees-1]
	}
	c.trees = slices.Insert(c.trees, 0, seen{t, len(c.change)})
	return t
}

// compact forgets the changes that every tree has seen.
func (c *cell) compact() {
	if len(c.change) < 256 {
		return
	}
	all := len(c.change)
	for i := range c.trees {
		all = min(all, c.trees[i].changes)
	}
	if all < len(c.change)/2 {
		return
	}
	c.change = append(c.change[:0], c.change[all:]...)
	for i := range c.trees {
		c.trees[i].changes -= all
	}
}

func never() (at [lengths]job.Time) {
	for i := range at {
		at[i] = job.Never
	}
	return at
}

func least(a, b *[lengths]job.Time) (at [lengths]job.Time) {
	for i := range at {
		at[i] = min(a[i], b[i])
	}
	return at
}

// firsts is when need is free on a node for each of the lengths, from long ago on.
func (s *Scheduler) firsts(i int32, need *vec) [lengths]job.Time {
	at := never()
	n := s.nodes[i]
	if !n.open() || !n.total.holds(need) {
		return at
	}
	l := n.line
	for i := len(l) - 1; i >= 0; {
		if !l[i].free.holds(need) {
			i--
			continue
		}
		end := l.until(i)
		for i > 0 && l[i-1].free.holds(need) {
			i--
		}
		start := l[i].t
		d := job.Forever
		if end != job.Never {
			d = end.Sub(max(start, s.now))
		}
		if d > 0 {
			for c := 0; c < lengths && s.lengths[c] <= d; c++ {
				at[c] = start
			}
		}
		i--
	}
	return at
}

func (s *Scheduler) treeUpdate(c *cell, t *tree, pos int32) {
	i := t.size + int(pos)
	v := s.firsts(c.nodes[pos], &t.need)
	if t.at[i] == v {
		return
	}
	t.at[i] = v
	for i /= 2; i > 0; i /= 2 {
		a, b, p := &t.at[2*i], &t.at[2*i+1], &t.at[i]
		changed := false
		for c := range p {
			if m := min(a[c], b[c]); p[c] != m {
				p[c], changed = m, true
			}
		}
		if !changed {
			return
		}
	}
}

// seek is a search for the earliest time at which one node is free.
type seek struct {
	s     *Scheduler
	c     *cell
	t     *tree
	o     *option
	from  job.Time
	d     job.Duration
	class int
	best  job.Time // what was found, and where
	pos   int32
}

// earliestNode is the earliest time, and of the nodes of a cell that are free then the
// first one, that is before a time; position -1 if there is none.
func (s *Scheduler) earliestNode(o *option, n *need, from job.Time, d job.Duration, before job.Time) (job.Time, int32) {
	if len(o.must) == 1 {
		node := s.nodes[o.must[0]]
		if node.place.cell == n.cell && node.open() && !o.excludes(o.must[0]) {
			if t := node.line.earliest(&n.v, from, d); t < before {
				return t, node.place.pos
			}
		}
		return before, -1
	}
	if s.pass.keepsGaps(d) {
		return s.earliestGap(o, n, from, d, before)
	}
	c := s.ownCell(n.cell)
	k := seek{s: s, c: c, t: s.tree(c, &n.v), o: o, from: from, d: d, class: s.lengths.class(d), best: before, pos: -1}
	k.visit(1, 0, int32(k.t.size))
	return k.best, k.pos
}

func (k *seek) bound(i int) job.Time {
	if t := k.t.at[i][k.class]; t == job.Never {
		return t
	} else {
		return max(t, k.from)
	}
}

func (k *seek) visit(i int, lo, hi int32) {
	if b := k.bound(i); b > k.best || b == k.best && (k.pos < 0 || lo > k.pos) {
		return
	}
	if hi-lo == 1 {
		n := k.c.nodes[lo]
		if k.o.excludes(n) {
			return
		}
		t := k.s.nodes[n].line.earliest(&k.t.need, k.from, k.d)
		if t < k.best || t == k.best && lo < k.pos {
			k.best, k.pos = t, lo
		}
		if t > k.bound(i) {
			k.s.treeUpdate(k.c, k.t, lo) // time has passed
		}
		return
	}
	m := (lo + hi) / 2
	if k.bound(2*i) <= k.bound(2*i+1) {
		k.visit(2*i, lo, m)
		k.visit(2*i+1, m, hi)
	} else {
		k.visit(2*i+1, m, hi)
		k.visit(2*i, lo, m)
	}
}
