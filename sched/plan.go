package sched

import (
	"cmp"
	"slices"

	"github.com/gangway-hpc/gangway/internal/job"
)

// earliest finds when and where a job with that limit could start at the earliest, not
// before from, with what runs and what is planned as it is. Its start is job.Never if it
// cannot, as things are.
func (s *Scheduler) earliest(r *record, from job.Time) placement {
	return s.earliestBefore(r, from, job.Never)
}

// earliestBefore is earliest if that is before a time; else it has no picks.
func (s *Scheduler) earliestBefore(r *record, from, before job.Time) placement {
	best := placement{start: before}
	c := s.classes[r.class]
	for i := range c.options {
		o := &c.options[i]
		d := s.leastIn(r.spec, o.part)
		if !s.parts[o.part].starts() {
			continue
		}
		for at := s.cursor(c, i, from, d); at < best.start; {
			p := s.earliestIn(c, o, at, d, best.start)
			if p.start >= best.start {
				break
			}
			if at == from || s.pass != nil {
				s.moveCursor(c, i, p.start, d)
			}
			if l := s.licensed(r.spec, p.start, d); l > p.start {
				at = l
				continue
			}
			best = p
			break
		}
	}
	if best.option != nil && r.spec.TimeMin > 0 {
		best.limit = s.stretch(r.spec, best.picks, best.start, best.limit, s.limitIn(r.spec, best.option.part))
	}
	return best
}

// cursors are for each option of a class up to when nothing was found, by length: while
// what is free only becomes less, that stays so for the same length and longer ones.
type cursors struct {
	pass *token
	by   [][lengths]cursorAt
}

type cursorAt struct {
	d job.Duration
	t job.Time
}

// cursor is from when on a search has to look.
func (s *Scheduler) cursor(c *class, option int, from job.Time, d job.Duration) job.Time {
	if s.pass == nil || c.cursors == nil || c.cursors.pass != s.pass {
		return from
	}
	class := s.lengths.class(d)
	for i := range class + 1 {
		if at := c.cursors.by[option][i]; at.d <= d {
			from = max(from, at.t)
		}
	}
	return from
}

// moveCursor notes what a search has found.
func (s *Scheduler) moveCursor(c *class, option int, t job.Time, d job.Duration) {
	if s.pass == nil {
		return
	}
	if c.cursors == nil || c.cursors.pass != s.pass {
		c.cursors = &cursors{s.pass, make([][lengths]cursorAt, len(c.options))}
	}
	at := &c.cursors.by[option][s.lengths.class(d)]
	if t > at.t || t == at.t && d < at.d {
		*at = cursorAt{d, t}
	}
}

// earliestIn is earliest for one option, and nodes alone, if it is before limit.
func (s *Scheduler) earliestIn(c *class, o *option, from job.Time, d job.Duration, before job.Time) placement {
	if o.total != nil {
		return s.earliestShared(o, from, d, before)
	}
	p := placement{option: o, start: before, limit: d}
	if len(c.options) == 1 {
		p.picks = s.one[:0]
	}
	if o.nodes == 1 && len(o.must) <= 1 && len(o.counts) == 0 && c.spec.Topology.Segment == 0 && !c.spec.Topology.Block {
		for x := range o.cells {
			n := &o.cells[x]
			lo, hi := int32(0), int32(len(s.cells[n.cell].nodes))
			if len(o.must) == 1 {
				at := s.nodes[o.must[0]].place
				if at.cell != n.cell {
					continue
				}
				lo, hi = at.pos, at.pos+1
			}
			if t, pos := s.earliestNode(o, n, lo, hi, from, d, p.start); pos >= 0 {
				p.start, p.picks = t, append(p.picks[:0], pick{s.cells[n.cell].nodes[pos], n.v})
			}
		}
		return p
	}
	g := gang{s: s, c: c, o: o, from: from, d: d, last: before, class: s.lengths.class(d)}
	if t, chosen := g.find(); t < before {
		p.start, p.picks = t, s.picks(o, chosen)
	}
	return p
}

// gang is a search for the earliest time at which several nodes are free.
type gang struct {
	s       *Scheduler
	c       *class
	o       *option
	from    job.Time
	d       job.Duration
	last    job.Time // later ones are of no interest
	class   int      // of its length
	meter   meter
	windows []window
}

// window is a span of time in which a node is free.
type window struct {
	a, b  job.Time
	order int32
	cand
}

// find bounds the time from above by when enough nodes are free for ever, and then looks
// through all windows before that.
func (g *gang) find() (job.Time, []cand) {
	g.meter = newMeter(g.s, g.c, g.o)
	limit := g.last
	if len(g.o.must) == 0 && len(g.o.counts) == 0 && !g.c.spec.Contiguous {
		forever := g.forever()
		if forever == job.Never {
			return job.Never, nil
		}
		limit = min(limit, forever)
	}
	for x := range g.o.cells {
		n := &g.o.cells[x]
		cell := g.s.ownCell(n.cell)
		t := g.s.tree(cell, &n.v)
		g.collect(x, cell, t, 1, 0, int32(t.size), limit)
	}
	slices.SortFunc(g.windows, func(a, b window) int {
		if a.a != b.a {
			return cmp.Compare(a.a, b.a)
		}
		return cmp.Compare(a.order, b.order)
	})
	return g.sweep()
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
		g.windows = append(g.windows, window{a, b, g.s.net.order[node], cand{node, int16(x), g.s.far(g.o, node)}})
	})
}

// sweep goes through the windows by their start until those that are open are enough.
func (g *gang) sweep() (job.Time, []cand) {
	g.meter.reset()
	var ends timers // of windows, by when a job of that length has to have begun
	gone := make([]bool, len(g.windows))
	for i := 0; i < len(g.windows); {
		t := g.windows[i].a
		for ; i < len(g.windows) && g.windows[i].a == t; i++ {
			g.meter.add(g.windows[i].node, 1)
			if b := g.windows[i].b; b != job.Never {
				ends.push(timer{b.Add(-g.d), job.ID(i)})
			}
		}
		for len(ends) > 0 && ends[0].t < t {
			w := ends.pop().id
			gone[w] = true
			g.meter.add(g.windows[w].node, -1)
		}
		if !g.meter.ok() {
			continue
		}
		var open []cand
		for w := range i {
			if !gone[w] {
				open = append(open, g.windows[w].cand)
			}
		}
		open = g.s.sortCands(open)
		if chosen, ok := g.s.choose(g.c, g.o, open, g.o.nodes); ok {
			return t, chosen
		}
	}
	return job.Never, nil
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
		if b.at >= g.last {
			return g.last
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
	s       *Scheduler
	nodes   int
	total   int
	group   []int32 // by node: what is counted together; nil: all
	seg     int     // of a group only multiples of this count; 0: see largest
	largest int     // the so many largest groups are enough; 0: all of them
	count   []int32 // by group
	whole   int     // with seg: the sum
	top     int32   // with largest 1: the largest one
	ways    []int32 // by node: in how many ways it can be had; nil: there is one
}

func newMeter(s *Scheduler, c *class, o *option) meter {
	m := meter{s: s, nodes: o.nodes}
	if o.twins {
		m.ways = make([]int32, len(s.nodes))
	}
	topo := c.topology()
	switch {
	case len(o.must) > 0 || len(o.counts) > 0:
	case topo.Segment > 0 || topo.Block:
		m.group, m.seg, m.count = s.net.blocksOf(topo.Segment, s.network.BlockSizes), max(1, topo.Segment), make([]int32, s.net.blocks)
	case topo.Required > 0:
		level := min(topo.Required, s.net.levels) - 1
		m.group, m.largest, m.count = s.net.domain[level], 1, make([]int32, s.net.count[level])
	case topo.Switches > 0:
		m.group, m.largest, m.count = s.net.domain[0], topo.Switches, make([]int32, s.net.count[0])
	}
	return m
}

func (m *meter) reset() {
	m.total, m.whole, m.top = 0, 0, 0
	clear(m.count)
	clear(m.ways)
}

func (m *meter) add(node int32, by int32) {
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
	before := m.count[g]
	m.count[g] += by
	if m.seg > 0 {
		m.whole += int(m.count[g])/m.seg*m.seg - int(before)/m.seg*m.seg
	}
	m.top = max(m.top, m.count[g])
}

func (m *meter) ok() bool {
	switch {
	case m.total < m.nodes:
		return false
	case m.group == nil:
		return true
	case m.seg > 0:
		return m.whole >= m.nodes
	case m.largest == 1 && int(m.top) < m.nodes:
		return false
	}
	top := slices.Clone(m.count)
	slices.Sort(top)
	sum := 0
	for _, n := range top[max(0, len(top)-m.largest):] {
		sum += int(n)
	}
	return sum >= m.nodes
}
