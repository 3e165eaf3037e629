package sched

import (
	"slices"

	"github.com/gangway-hpc/gangway/internal/job"
)

// spans are the lengths for which trees know when they are free first. The last one is
// for ever.
const lengths = 4

func lengthClass(d job.Duration) int {
	switch {
	case d >= job.Forever:
		return 3
	case d >= 16*job.Hour:
		return 2
	case d >= 2*job.Hour:
		return 1
	}
	return 0
}

func lengthOf(class int) job.Duration {
	return [lengths]job.Duration{1, 2 * job.Hour, 16 * job.Hour, job.Forever}[class]
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
const maxTrees = 24

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
	for i := range t.at {
		t.at[i] = [lengths]job.Time{job.Never, job.Never, job.Never, job.Never}
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

func least(a, b *[lengths]job.Time) [lengths]job.Time {
	return [lengths]job.Time{min(a[0], b[0]), min(a[1], b[1]), min(a[2], b[2]), min(a[3], b[3])}
}

// firsts is when need is free on a node for each of the lengths, from long ago on.
func (s *Scheduler) firsts(i int32, need *vec) [lengths]job.Time {
	at := [lengths]job.Time{job.Never, job.Never, job.Never, job.Never}
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
			for c := range lengthClass(d) + 1 {
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
		v := least(&t.at[2*i], &t.at[2*i+1])
		if t.at[i] == v {
			return
		}
		t.at[i] = v
	}
}

// seek is a search for the earliest time at which one node is free.
type seek struct {
	s      *Scheduler
	c      *cell
	t      *tree
	o      *option
	from   job.Time
	d      job.Duration
	class  int
	lo, hi int32    // positions
	best   job.Time // what was found, and where
	pos    int32
}

// earliestNode is the earliest time, and of the nodes that are free then the first one, in
// a range of a cell, that is before best.
func (s *Scheduler) earliestNode(o *option, n *need, lo, hi int32, from job.Time, d job.Duration, best job.Time) (job.Time, int32) {
	c := s.ownCell(n.cell)
	k := seek{s: s, c: c, t: s.tree(c, &n.v), o: o, from: from, d: d, class: lengthClass(d), lo: lo, hi: hi, best: best, pos: -1}
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
	if b := k.bound(i); hi <= k.lo || lo >= k.hi || b > k.best || b == k.best && (k.pos < 0 || lo > k.pos) {
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
