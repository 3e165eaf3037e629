package sched

import (
	"cmp"
	"slices"

	"github.com/gangway-hpc/gangway/internal/job"
)

// Relaxation is a change that starts a job earlier. It was tried on a copy.
type Relaxation struct {
	Text    string // as one would write it: "--nodes=3"
	Start   job.Time
	Latest  bool     // Start is the latest it can be: tried without all that would move behind the job, which is too much
	Release bool     // it is released before
	Spec    job.Spec // what it asks for then
	changed bool     // Spec is not what it asks for now

	of, most int // how much of what could be given up is
}

// Events are what changes the job at a moment.
func (x *Relaxation) Events(id job.ID, at job.Time) []job.Event {
	var all []job.Event
	if x.Release {
		all = append(all, job.Released{At: at, ID: id})
	}
	if x.changed {
		all = append(all, job.Changed{At: at, ID: id, Spec: x.Spec})
	}
	return all
}

const (
	// leastTrials is how many changes are looked at, each with a search for a place, on
	// clusters of any size: on smaller ones that costs less, and there are up to mostTrials.
	leastTrials, mostTrials = 100, 1000
	// maxRelaxations is how many are told.
	maxRelaxations = 8
	// maxParts is how finely an amount is searched: into so many parts.
	maxParts = 1 << 16
)

// relaxations are the smallest changes with which a job starts before a moment: those that
// do it now, and those that give up less and do it later; 0 is any moment. The receiver is a
// copy of the scheduler that is handed in, and what was planned for the job is given up in it.
func (s *Scheduler) relaxations(of *Scheduler, r *record, before job.Time) []Relaxation {
	if before == 0 {
		before = job.Never
	}
	c := s.Fork()
	if open, ok := s.opened(r); ok {
		before = min(before, s.opens(r)) // it may have a promise from before
		for _, e := range open.Events(r.id, s.now) {
			if c.Apply(e) != nil {
				return nil
			}
		}
		t := c.record(r.id)
		if !t.queued {
			return nil
		}
		behind := c.turn(t.key, r.id, c.horizon(t, before))
		open.Start = c.earliest(t, c.now).start
		return of.verified(s, r, []Relaxation{open}, before, behind)
	}
	if !r.queued {
		return nil
	}
	behind := c.turn(r.key, r.id, s.horizon(r, before))
	x := search{s: c, r: c.ownJob(c.index(r.id)), before: before}
	x.tries = min(max(leastTrials, 1_000_000/len(c.nodes)), mostTrials)
	x.few = x.tries / 6
	x.all()
	slices.SortStableFunc(x.found, func(a, b Relaxation) int {
		return cmp.Or(cmp.Compare(a.Start, b.Start), cmp.Compare(a.of*b.most, b.of*a.most))
	})
	return of.verified(s, r, x.found[:min(maxRelaxations, len(x.found))], before, behind)
}

// change is something that a job could do with less of, in steps: step 0 is what it asks
// for, and each later one gives up more. It is uneven if a later step may be worse than an
// earlier one: 8 tasks on two nodes may need more of each than 9 on three.
type change struct {
	most   int
	uneven bool
	at     func(step int) (text string, spec job.Spec)
}

// search looks for relaxations of a job.
type search struct {
	s      *Scheduler
	r      *record
	before job.Time
	tries  int // that are left
	few    int // how many may go into the steps of one uneven change
	found  []Relaxation
}

// start is when the job would start with a step of a change, if that is before a moment;
// else, or if there are no tries left, it is that moment.
func (x *search) start(c *change, step int, before job.Time) job.Time {
	_, spec := c.at(step)
	return x.place(&spec, before)
}

// place is start for what the job may ask for.
func (x *search) place(spec *job.Spec, before job.Time) job.Time {
	s, r := x.s, x.r
	if x.tries <= 0 {
		return before
	}
	x.tries--
	class, no := s.accept(spec, r.id)
	if no != nil {
		return before
	}
	if o := s.classes[class].options; len(o) > 0 && o[0].nodes > 1 {
		x.tries-- // a gang takes longer
	}
	with := *r
	with.spec, with.class, with.soft = spec, class, false
	if waits(spec) && (r.eligible.Add(spec.Topology.Wait) <= s.now || s.classes[class].missing == 0 && !s.possible(class)) {
		with.class, with.soft = s.classOf(spec, true), true
	}
	if t := s.earliestBefore(&with, s.now, before).start; t < before || before <= s.now || spec.Topology.Segment == 0 {
		return t
	}
	if s.atOnce(&with) { // which is another search than for later
		return s.now
	}
	return before
}

// atOnce says whether a decision would start a job, before it looks for a later time.
func (s *Scheduler) atOnce(r *record) bool {
	c := s.classes[r.class]
	return s.licensesNow(r.spec) && slices.ContainsFunc(c.options, func(o option) bool {
		d := s.leastIn(r.spec, o.part)
		if !s.parts[o.part].starts() || s.licensed(r.spec, s.now, d) != s.now {
			return false
		}
		_, ok := s.placeNow(c, &o, d)
		return ok
	})
}

// try looks for the smallest step with which the job starts earlier, and for the smallest
// with which it starts as early as any step makes it.
func (x *search) try(c change) {
	switch {
	case c.most <= 0:
	case c.most <= 4 || c.uneven && c.most <= x.few:
		x.scan(&c)
	case c.uneven:
		x.probe(&c)
	default:
		best := x.start(&c, c.most, x.before)
		if best >= x.before {
			return
		}
		step, t := x.smallest(&c, 0, c.most, x.before-1, best)
		x.keep(&c, step, t)
		if t > best {
			step, t = x.smallest(&c, step, c.most, best, best)
			x.keep(&c, step, t)
		}
	}
}

// smallest is the first step after low with which the job starts by a moment, and when, if
// each step is as good as those before it. The step known does, and starts it at last.
func (x *search) smallest(c *change, low, known int, by, last job.Time) (int, job.Time) {
	for low+1 < known && x.tries > 0 {
		m := (low + known) / 2
		if t := x.start(c, m, by+1); t <= by {
			known, last = m, t
		} else {
			low = m
		}
	}
	return known, last
}

// scan is try step by step.
func (x *search) scan(c *change) {
	best, first, last := x.before, 0, 0
	for step := 1; step <= c.most && best > x.s.now && x.tries > 0; step++ {
		t := x.start(c, step, best)
		if t >= best {
			continue
		}
		best = t
		if last = step; first == 0 {
			first = step
			x.keep(c, step, t)
		}
	}
	if last > first {
		x.keep(c, last, best)
	}
}

// probe is try for an uneven change of so many steps that not each can be looked at: steps
// that are twice as far each time, those between one that does and the one before it, and
// some right before what is found.
func (x *search) probe(c *change) {
	type tried struct {
		step int
		t    job.Time
	}
	var first, best tried
	best.t = x.before
	for step := 1; best.t > x.s.now && x.tries > 0; step = min(2*step, c.most) {
		if t := x.start(c, step, best.t); t < best.t {
			best = tried{step, t}
			if first.step == 0 {
				first = best
			}
		}
		if step == c.most {
			break
		}
	}
	if first.step == 0 {
		return
	}
	near := func(low int, known tried, by job.Time) tried {
		step, t := x.smallest(c, low, known.step, by, known.t)
		found := tried{step, t}
		for back := step - 1; back > low && back >= step-x.few && x.tries > 0; back-- {
			if t := x.start(c, back, by+1); t <= by {
				found = tried{back, t}
			}
		}
		return found
	}
	first = near(first.step/2, first, x.before-1)
	x.keep(c, first.step, first.t)
	if first.t > best.t {
		best = near(first.step, best, best.t)
		x.keep(c, best.step, best.t)
	}
}

// keep notes a change, if the job may be what it makes of it.
func (x *search) keep(c *change, step int, start job.Time) {
	text, spec := c.at(step)
	if _, no := x.s.accept(&spec, x.r.id); no == nil {
		x.found = append(x.found, Relaxation{Text: text, Start: start, Spec: spec, changed: true, of: step, most: c.most})
	}
}
