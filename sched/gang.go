package sched

import (
	"cmp"
	"slices"

	"github.com/gangway-hpc/gangway/internal/job"
)

// gang is a search for the earliest time at which several nodes are free.
type gang struct {
	s            *Scheduler
	c            *class
	o            *option
	from, before job.Time // between which it is to begin
	d            job.Duration
	class        int // of its length, for trees
	meter        meter
	seen         int // of the windows
	lists
}

// lists are of a search for a gang.
type lists struct {
	windows []window // of nodes, by their start: those up to a moment
	ends    timers   // of those that are counted: the last moment at which it could begin
	open    []cand
	heads   timers // of gaps that were not looked at yet, by their start; ids are indexes
	at      []head
}

// empty is the lists, to be used again.
func (l *lists) empty() lists {
	return lists{l.windows[:0], l.ends[:0], l.open[:0], l.heads[:0], l.at[:0]}
}

// window is a span of time in which a node is free.
type window struct {
	a, b job.Time
	gone bool
	cand
}

// find returns the earliest time and the nodes that are best then; job.Never if there is
// none.
func (g *gang) find() (job.Time, []cand) {
	g.meter = newMeter(g.s, g.c, g.o)
	if g.s.pass.keepsGaps(g.d) {
		g.lists = g.s.pass.lists.empty()
		f := gapFeed{gang: g}
		t, chosen := g.sweep(f.more)
		f.end()
		return t, chosen
	}
	return g.sweep(g.gather())
}

// gather finds all windows that matter. It bounds the time from above by when enough nodes
// are free for ever.
func (g *gang) gather() func() (job.Time, bool) {
	limit := g.before - 1
	if len(g.o.must) == 0 && len(g.o.counts) == 0 && !g.c.spec.Contiguous {
		limit = min(limit, g.forever())
		g.meter.reset()
	}
	for x := range g.o.cells {
		n := &g.o.cells[x]
		cell := g.s.ownCell(n.cell)
		t := g.s.tree(cell, &n.v)
		g.collect(x, cell, t, 1, 0, int32(t.size), limit)
	}
	all := g.windows
	slices.SortFunc(all, func(a, b window) int { return cmp.Compare(a.a, b.a) })
	g.windows = all[:0]
	return func() (job.Time, bool) {
		n := len(g.windows)
		if n == len(all) {
			return 0, false
		}
		t := all[n].a
		for n < len(all) && all[n].a == t {
			n++
		}
		g.windows = all[:n]
		return t, true
	}
}

// collect gathers the windows that begin up to last.
func (g *gang) collect(x int, c *cell, t *tree, i int, lo, hi int32, last job.Time) {
	if at := t.at[i][g.class]; at == job.Never || at > last {
		return
	}
	if hi-lo > 1 {
		m := (lo + hi) / 2
		g.collect(x, c, t, 2*i, lo, m, last)
		g.collect(x, c, t, 2*i+1, m, hi, last)
		return
	}
	node := c.nodes[lo]
	if g.o.excludes(node) {
		return
	}
	g.s.nodes[node].line.windows(&t.need, g.from, last, g.d, func(a, b job.Time) {
		g.windows = append(g.windows, window{a: a, b: b, cand: cand{node, int16(x), g.s.far(g.o, node)}})
	})
}

// sweep lets time pass until the windows that are open are enough. more adds those that
// begin next.
func (g *gang) sweep(more func() (job.Time, bool)) (job.Time, []cand) {
	for {
		t, ok := more()
		if !ok {
			return job.Never, nil
		}
		for ; g.seen < len(g.windows); g.seen++ {
			w := &g.windows[g.seen]
			g.meter.add(w.node, 1)
			if w.b != job.Never {
				g.ends.push(timer{w.b.Add(-g.d), job.ID(g.seen)})
			}
		}
		for len(g.ends) > 0 && g.ends[0].t < t {
			w := &g.windows[g.ends.pop().id]
			w.gone = true
			g.meter.add(w.node, -1)
		}
		if !g.meter.ok() {
			continue
		}
		g.open = g.open[:0]
		for i := range g.windows {
			if !g.windows[i].gone {
				g.open = append(g.open, g.windows[i].cand)
			}
		}
		g.open = g.s.sortCands(g.open)
		if chosen, ok := g.s.choose(g.c, g.o, g.open, g.o.nodes); ok {
			return t, chosen
		}
	}
}

// branch is a part of a tree in a search, best first.
type branch struct {
	at     job.Time
	x      int32 // cell
	i      int32 // in the tree
	lo, hi int32
}

// forever is when enough nodes are free and stay so, but for what is not planned yet.
func (g *gang) forever() job.Time {
	g.meter.reset()
	var heap branches
	trees := make([]*tree, len(g.o.cells))
	for x := range g.o.cells {
		n := &g.o.cells[x]
		trees[x] = g.s.tree(g.s.ownCell(n.cell), &n.v)
		heap.push(branch{trees[x].at[1][lengths-1], int32(x), 1, 0, int32(trees[x].size)})
	}
	for len(heap) > 0 {
		b := heap.pop()
		if b.at == job.Never {
			break
		}
		if b.at >= g.before {
			break
		}
		if b.hi-b.lo == 1 {
			node := g.s.cells[g.o.cells[b.x].cell].nodes[b.lo]
			if g.o.excludes(node) {
				continue
			}
			g.meter.add(node, 1)
			if g.meter.ok() {
				return max(b.at, g.from)
			}
			continue
		}
		m, at := (b.lo+b.hi)/2, trees[b.x].at
		heap.push(branch{at[2*b.i][lengths-1], b.x, 2 * b.i, b.lo, m})
		heap.push(branch{at[2*b.i+1][lengths-1], b.x, 2*b.i + 1, m, b.hi})
	}
	return job.Never
}

// before is the order of a search: the earliest first, and of those the smallest.
func (b branch) before(o branch) bool { return b.at < o.at || b.at == o.at && b.hi-b.lo < o.hi-o.lo }

// branches is a heap, the earliest first.
type branches []branch

func (h *branches) push(b branch) {
	*h = append(*h, b)
	s := *h
	i := len(s) - 1
	for i > 0 {
		p := (i - 1) / 2
		if !b.before(s[p]) {
			break
		}
		s[i] = s[p]
		i = p
	}
	s[i] = b
}

func (h *branches) pop() branch {
	s := *h
	top, last := s[0], s[len(s)-1]
	s = s[:len(s)-1]
	*h = s
	if len(s) == 0 {
		return top
	}
	i := 0
	for {
		c := 2*i + 1
		if c >= len(s) {
			break
		}
		if c+1 < len(s) && s[c+1].before(s[c]) {
			c++
		}
		if !s[c].before(last) {
			break
		}
		s[i] = s[c]
		i = c
	}
	s[i] = last
	return top
}

// meter counts nodes until they may be enough for a class: there are enough of them, and
// near enough to each other. What it does not count, choose decides.
type meter struct {
	nodes   int
	total   int
	group   []int32 // by node: what is counted together; nil: all
	seg     int     // of a group only multiples of this count; 0: see largest
	largest int     // the so many largest groups are enough; 0: all of them
	count   []int32 // by group
	whole   int     // with seg: the sum; with largest 1: how many groups are enough
	ways    []int32 // by node: in how many ways it can be had; nil: there is one
}

// zeros is n counts of nothing, in a list that is used again by the next gang.
func (s *Scheduler) zeros(n int32) []int32 {
	s.counts = slices.Grow(s.counts[:0], int(n))[:n]
	clear(s.counts)
	return s.counts
}

func newMeter(s *Scheduler, c *class, o *option) meter {
	m := meter{nodes: o.nodes}
	if o.twins {
		m.ways = make([]int32, len(s.nodes))
	}
	topo := c.topology()
	switch {
	case len(o.must) > 0 || len(o.counts) > 0:
	case topo.Segment > 0 || topo.Block:
		m.group, m.seg, m.count = s.net.blocksOf(topo.Segment, s.network.BlockSizes), max(1, topo.Segment), s.zeros(s.net.blocks)
	case topo.Required > 0:
		level := min(topo.Required, s.net.levels) - 1
		m.group, m.largest, m.count = s.net.domain[level], 1, s.zeros(s.net.count[level])
	case topo.Switches > 0:
		m.group, m.largest, m.count = s.net.domain[0], topo.Switches, s.zeros(s.net.count[0])
	}
	return m
}

func (m *meter) reset() {
	m.total, m.whole = 0, 0
	clear(m.count)
	clear(m.ways)
}

func (m *meter) add(node, by int32) {
	if m.ways != nil {
		was := m.ways[node]
		m.ways[node] += by
		if was > 0 && m.ways[node] > 0 {
			return
		}
	}
	m.total += int(by)
	if m.group == nil {
		return
	}
	g := m.group[node]
	if g < 0 {
		return
	}
	before := int(m.count[g])
	m.count[g] += by
	switch {
	case m.seg > 0:
		m.whole += int(m.count[g])/m.seg*m.seg - before/m.seg*m.seg
	case m.largest == 1:
		m.whole += min(1, int(m.count[g])/m.nodes) - min(1, before/m.nodes)
	}
}

func (m *meter) ok() bool {
	switch {
	case m.total < m.nodes:
		return false
	case m.group == nil:
		return true
	case m.seg > 0:
		return m.whole >= m.nodes
	case m.largest == 1:
		return m.whole > 0
	}
	top := slices.Clone(m.count)
	slices.Sort(top)
	sum := 0
	for _, n := range top[max(0, len(top)-m.largest):] {
		sum += int(n)
	}
	return sum >= m.nodes
}
