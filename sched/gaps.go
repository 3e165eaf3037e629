package sched

import (
	"slices"

	"github.com/gangway-hpc/gangway/internal/job"
)

// gap is a span in which a node has what is needed, up to when something else begins there.
type gap struct {
	a, b   job.Time
	pos    int32  // in the cell; -1: it is no more
	change uint32 // the node's last one that it is after
}

func (a *gap) before(b *gap) bool { return a.a < b.a || a.a == b.a && a.pos < b.pos }

// holds says whether a gap is long enough for d from a time on.
func (a *gap) holds(from job.Time, d job.Duration) bool {
	return a.pos >= 0 && (a.b == job.Never || a.b.Sub(max(a.a, from)) >= d)
}

// gaps are those of all nodes of a cell for a need, by length: for each length of the pass
// those that are not shorter, but shorter than the next, as a heap by start and position.
//
// When a job takes a part of a gap nothing is done; only a search that comes upon it
// replaces it by what is left of it. So there is work for each part that a job leaves, and
// not for each search.
type gaps struct {
	cell int32
	need vec
	by   [][]gap
	next []job.Time // by length: when the first one begins; Never: there is none
	gone int        // how many of them are no more
}

// top notes which gap of length k is the first one now.
func (x *gaps) top(k int) {
	if h := x.by[k]; len(h) > 0 {
		x.next[k] = h[0].a
	} else {
		x.next[k] = job.Never
	}
}

// gapsOf are the gaps for a need, made when it is first asked for.
func (s *Scheduler) gapsOf(n *need) *gaps {
	for _, x := range s.pass.gaps {
		if x.cell == n.cell && x.need == n.v {
			return x
		}
	}
	x := &gaps{cell: n.cell, need: n.v, by: make([][]gap, len(s.pass.lengths)), next: make([]job.Time, len(s.pass.lengths))}
	for k := range x.next {
		x.next[k] = job.Never
	}
	last := len(x.by) - 1
	x.by[last] = make([]gap, 0, len(s.cells[n.cell].nodes)) // most nodes have one that never ends
	for pos, i := range s.cells[n.cell].nodes {
		if s.nodes[i].open() {
			s.remains(x, gap{s.now, job.Never, int32(pos), 0}, func(g gap) { x.add(s.pass, g) })
		}
	}
	s.pass.gaps = append(s.pass.gaps, x)
	return x
}

// remains yields what is left of a gap.
func (s *Scheduler) remains(x *gaps, g gap, yield func(gap)) {
	i := s.cells[x.cell].nodes[g.pos]
	s.nodes[i].line.windows(&x.need, g.a, g.b-1, s.pass.lengths[0], func(a, b job.Time) {
		yield(gap{a, b, g.pos, s.pass.changes[i]})
	})
}

// stands says whether a gap is as it was noted. What is left of it, if not, is kept.
func (s *Scheduler) stands(x *gaps, g *gap) bool {
	now := s.pass.changes[s.cells[x.cell].nodes[g.pos]]
	if g.change == now {
		return true
	}
	same := false
	first := len(s.pass.left)
	s.remains(x, *g, func(r gap) {
		same = r.a == g.a && r.b == g.b
		s.pass.left = append(s.pass.left, leftover{x, r})
	})
	if same {
		g.change = now
		s.pass.left = s.pass.left[:first]
	}
	return same
}

// leftover is a gap that is to be added.
type leftover struct {
	to *gaps
	gap
}

// settleGaps adds what is left over.
func (p *pass) settleGaps() {
	for _, l := range p.left {
		l.to.add(p, l.gap)
	}
	p.left = p.left[:0]
}

// classOf is the class of a gap's length.
func (p *pass) classOf(g *gap) int {
	if g.b == job.Never {
		return len(p.lengths) - 1
	}
	return p.class(g.b.Sub(g.a))
}

// add notes a gap, unless it is too short for every job.
func (x *gaps) add(p *pass, g gap) {
	if k := p.classOf(&g); k >= 0 {
		x.by[k] = append(x.by[k], g)
		up(x.by[k], len(x.by[k])-1)
		x.top(k)
	}
}

// remove drops gap i of length k.
func (x *gaps) remove(k, i int) {
	h := x.by[k]
	last := len(h) - 1
	h[i] = h[last]
	x.by[k] = h[:last]
	if i < last {
		down(h[:last], i)
		up(h[:last], i)
	}
	x.top(k)
}

// compact drops the gaps that are no more if they are many.
func (x *gaps) compact() {
	all := 0
	for _, h := range x.by {
		all += len(h)
	}
	if x.gone < 1024 || x.gone < all/2 {
		return
	}
	x.gone = 0
	for k := range x.by {
		x.by[k] = slices.DeleteFunc(x.by[k], func(g gap) bool { return g.pos < 0 })
		for i := len(x.by[k])/2 - 1; i >= 0; i-- {
			down(x.by[k], i)
		}
		x.top(k)
	}
}

func up(h []gap, i int) {
	g := h[i]
	for i > 0 {
		p := (i - 1) / 2
		if !g.before(&h[p]) {
			break
		}
		h[i] = h[p]
		i = p
	}
	h[i] = g
}

func down(h []gap, i int) {
	g := h[i]
	for {
		c := 2*i + 1
		if c >= len(h) {
			break
		}
		if c+1 < len(h) && h[c+1].before(&h[c]) {
			c++
		}
		if !h[c].before(&g) {
			break
		}
		h[i] = h[c]
		i = c
	}
	h[i] = g
}

// gapSearch is a search for the earliest gap, and of those the first in its cell.
type gapSearch struct {
	nodes []int32
	o     *option
	from  job.Time
	d     job.Duration
	start job.Time // of the best one so far
	pos   int32    // -1: none
	k, i  int      // where it is
}

// look searches heap k from i down.
func (f *gapSearch) look(h []gap, k, i int) {
	if i >= len(h) {
		return
	}
	g := &h[i]
	t := max(g.a, f.from)
	if t > f.start || t == f.start && (f.pos < 0 || g.a == t && g.pos > f.pos) {
		return // and so are those below
	}
	if g.holds(t, f.d) && (t < f.start || g.pos < f.pos) && !f.o.excludes(f.nodes[g.pos]) {
		f.start, f.pos, f.k, f.i = t, g.pos, k, i
	}
	f.look(h, k, 2*i+1)
	f.look(h, k, 2*i+2)
}

// lookIn searches the heap of length k, if it may have something better.
func (f *gapSearch) lookIn(x *gaps, k int) {
	for x.next[k] <= f.start && len(x.by[k]) > 0 && x.by[k][0].pos < 0 {
		x.remove(k, 0)
		x.gone--
	}
	if x.next[k] <= f.start {
		f.look(x.by[k], k, 0)
	}
}

// earliestGap is the earliest time, and of the nodes that are free then the first one of a
// cell, that is before a time; position -1 if there is none.
func (s *Scheduler) earliestGap(o *option, n *need, from job.Time, d job.Duration, before job.Time) (job.Time, int32) {
	x := s.gapsOf(n)
	f := gapSearch{nodes: s.cells[n.cell].nodes, o: o, from: from, d: d}
	first := s.pass.class(d)
	for {
		f.start, f.pos = before, -1
		at, least := first, job.Never
		for k, t := range x.next[first:] {
			if t < least {
				at, least = first+k, t
			}
		}
		f.lookIn(x, at) // mostly what is found there is before all others
		for k := first; k < len(x.next); k++ {
			if x.next[k] <= f.start && k != at {
				f.lookIn(x, k)
			}
		}
		if f.pos < 0 || s.stands(x, &x.by[f.k][f.i]) {
			return f.start, f.pos
		}
		x.replace(s.pass, f.k, f.i)
	}
}

// replace puts what is left over in place of gap i of length k.
func (x *gaps) replace(p *pass, k, i int) {
	if len(p.left) > 0 && p.classOf(&p.left[0].gap) == k {
		x.by[k][i] = p.left[0].gap
		down(x.by[k], i) // it begins later
		x.top(k)
		p.left[0] = p.left[len(p.left)-1]
		p.left = p.left[:len(p.left)-1]
	} else {
		x.remove(k, i)
	}
	p.settleGaps()
}

// gapFeed yields the windows for a gang from gaps, by their start.
type gapFeed struct {
	*gang
	gaps []*gaps // by cell of the option
	heap bool    // heads are a heap
}

// head is a gap, and all below it in its heap; below none if k is -1.
type head struct {
	x    int16
	k, i int32
}

// more adds the windows that begin next, and returns when that is. The first are those that
// are open when the search begins.
func (f *gapFeed) more() (job.Time, bool) {
	if f.gaps == nil {
		for x := range f.o.cells {
			f.gaps = append(f.gaps, f.s.gapsOf(&f.o.cells[x]))
			for k := f.s.pass.class(f.d); k < len(f.gaps[x].by); k++ {
				f.look(head{int16(x), int32(k), 0}, f.from)
			}
		}
		if len(f.windows) > 0 {
			return f.from, true
		}
	}
	if !f.heap { // mostly that is not needed
		f.heap = true
		f.heads.heapify()
	}
	for n := len(f.windows); len(f.heads) > 0; {
		t := f.heads[0].t
		for len(f.heads) > 0 && f.heads[0].t == t {
			if h := f.at[f.heads.pop().id]; h.k >= 0 {
				f.look(h, t)
			} else {
				f.offer(h.x, f.s.pass.left[h.i].gap)
			}
		}
		if len(f.windows) > n {
			return t, true
		}
	}
	return 0, false
}

// look takes what begins up to t of a gap and those below it, and notes where the others
// begin.
func (f *gapFeed) look(h head, t job.Time) {
	x := f.gaps[h.x]
	if int(h.i) >= len(x.by[h.k]) {
		return
	}
	g := &x.by[h.k][h.i]
	if g.a > t {
		f.later(h, g.a)
		return
	}
	if g.pos >= 0 {
		if first := len(f.s.pass.left); f.s.stands(x, g) {
			f.offer(h.x, *g)
		} else {
			g.pos = -1
			x.gone++
			for i, l := range f.s.pass.left[first:] {
				if l.a > t {
					f.later(head{h.x, -1, int32(first + i)}, l.a)
				} else {
					f.offer(h.x, l.gap)
				}
			}
		}
	}
	f.look(head{h.x, h.k, 2*h.i + 1}, t)
	f.look(head{h.x, h.k, 2*h.i + 2}, t)
}

func (f *gapFeed) later(h head, t job.Time) {
	if t < f.before {
		f.heads = append(f.heads, timer{t, job.ID(len(f.at))})
		f.at = append(f.at, h)
		if f.heap {
			f.heads.up(len(f.heads) - 1)
		}
	}
}

// offer adds a gap to the windows if the gang could begin in it.
func (f *gapFeed) offer(x int16, g gap) {
	node := f.s.cells[f.gaps[x].cell].nodes[g.pos]
	if g.holds(f.from, f.d) && !f.o.excludes(node) {
		f.windows = append(f.windows, window{a: max(g.a, f.from), b: g.b, cand: cand{node, x, f.s.far(f.o, node)}})
	}
}

// end adds what is left of gaps to them.
func (f *gapFeed) end() {
	f.s.pass.lists = f.lists
	f.s.pass.settleGaps()
	for _, x := range f.gaps {
		x.compact()
	}
}
