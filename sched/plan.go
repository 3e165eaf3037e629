package sched

import (
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
	if s.pass != nil { // whose cursors are moved: a fork may have the class, too
		c = s.ownClass(r.class)
	}
	for i := range c.options {
		o := &c.options[i]
		d := s.leastOf(r, o.part)
		if !s.parts[o.part].starts() {
			continue
		}
		single := o.single(c)
		at := from
		if !single { // of one node what is free is found at once
			at = s.cursor(c, i, from, d)
		}
		for at < best.start {
			p := s.earliestIn(c, o, at, d, best.start)
			if p.start >= best.start {
				break
			}
			if !single {
				s.moveCursor(c, i, p.start, d)
			}
			if l := s.licensed(c.spec, p.start, d); l > p.start {
				at = l
				continue
			}
			best = p
			break
		}
	}
	if best.option != nil && (s.pass == nil || r.elastic) && r.spec.TimeMin > 0 {
		best.limit = s.stretch(r.spec, best.picks, best.start, best.limit, s.limitIn(r.spec, best.option.part))
	}
	return best
}

// leastOf is leastIn for a job that gets a plan. In a pass it is in a queue, which mostly
// knows it, and its spec need not be fetched from far away.
func (s *Scheduler) leastOf(r *record, p int) job.Duration {
	if s.pass != nil && len(s.classes[r.class].options) == 1 {
		return r.queueLimit
	}
	return s.leastIn(r.spec, p)
}

// single says whether an option takes one node, wherever that is.
func (o *option) single(c *class) bool {
	return o.nodes == 1 && o.total == nil && len(o.must) <= 1 && len(o.counts) == 0 && c.spec.Topology.Segment == 0 && !c.spec.Topology.Block
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
	if o.single(c) {
		for x := range o.cells {
			n := &o.cells[x]
			if t, pos := s.earliestNode(o, n, from, d, p.start); pos >= 0 {
				p.start, p.picks = t, append(p.picks[:0], pick{s.cells[n.cell].nodes[pos], n.v})
			}
		}
		return p
	}
	g := gang{s: s, c: c, o: o, from: from, before: before, d: d, class: s.lengths.class(d)}
	if t, chosen := g.find(); t < before {
		p.start, p.picks = t, s.picks(o, chosen)
	}
	return p
}
