package sched

import (
	"slices"

	"github.com/gangway-hpc/gangway/internal/job"
)

// conservative gives every job that may start a place: now if there is one, or else the
// earliest that delays no other's. Jobs are looked at in their order.
func (s *Scheduler) conservative() {
	looked := s.retry || s.anew || s.regrow
	s.revise()
	s.startDue()
	for round := 0; ; round++ {
		if !s.anyQueued() {
			s.grown, s.arrivals = s.grown[:0], s.arrivals[:0]
			break
		}
		grown, arrivals := s.takeGrown(), s.takeArrivals()
		if len(grown) == 0 && len(arrivals) == 0 {
			break
		}
		looked = true
		s.fill(grown, arrivals, round)
	}
	if looked && len(s.out) == 0 && len(s.open.Starts) == 0 && s.anyQueued() {
		s.note(job.Promised{At: s.now}) // so that who reads the log does not look again
	}
}

// anyQueued says whether a job waits that may be started.
func (s *Scheduler) anyQueued() bool {
	for _, c := range s.classes {
		if c.queue.n > 0 {
			return true
		}
	}
	return false
}

// review drops plans that are no longer allowed.
func (s *Scheduler) review() {
	if !s.recheck {
		return
	}
	s.recheck, s.retry = false, true
	for i, r := range s.jobs {
		if r.plan != nil && !s.allowed(r) {
			s.breach(i, "its partition or the nodes have changed")
		}
	}
}

// revise has another look at jobs that had no place, and if everything is to be planned
// anew does that.
func (s *Scheduler) revise() {
	if s.regrow {
		s.regrow = false
		for i := range s.nodes {
			s.grown = append(s.grown, int32(i))
		}
	}
	if s.retry || s.anew {
		s.retry = false
		s.arrivals = slices.DeleteFunc(s.arrivals, func(id job.ID) bool { r := s.record(id); return r == nil || r.plan == nil })
		for _, r := range s.jobs {
			if r.queued && r.plan == nil {
				s.arrivals = append(s.arrivals, r.id)
			}
		}
	}
	if s.anew {
		s.anew = false
		s.replan(key{}, true)
	}
}

// allowed says whether a job may still have what is planned for it.
func (s *Scheduler) allowed(r *record) bool {
	p := r.plan
	closed := func(x pick) bool { return !s.nodes[x.node].open() }
	return s.parts[p.part].starts() && !slices.ContainsFunc(p.picks, closed) && s.asked(r, p.part, p.picks)
}

// startDue starts the jobs whose time has come.
func (s *Scheduler) startDue() {
	var ids []job.ID
	for len(s.due.timers) > 0 && s.due.timers[0].t <= s.now {
		t := s.ownClock(&s.due).pop()
		if r := s.record(t.id); r != nil && r.plan != nil && r.plan.start == t.t {
			ids = append(ids, t.id)
		}
	}
	s.sortByKey(ids)
	for _, id := range slices.Compact(ids) {
		i := s.index(id)
		if r := s.jobs[i]; r.plan == nil || s.tryStart(i) || s.startPlanned(i) {
			continue
		}
		s.breach(i, s.obstacle(s.jobs[i]))
	}
}

// startPlanned starts a job just where it was planned. If that is late it also ends later
// than was planned, and others may lose what they were promised: it comes before them, as
// it was planned before them.
func (s *Scheduler) startPlanned(i int) bool {
	r := s.jobs[i]
	p := r.plan
	for k := range p.picks {
		if n := s.nodes[p.picks[k].node]; !n.open() || !n.free.holds(&p.picks[k].v) {
			return false
		}
	}
	if _, ok := s.licensesLeft(r, p.end.Sub(p.start)); !ok {
		return false
	}
	c := s.classes[r.class]
	for x := range c.options {
		if c.options[x].part == p.part {
			s.launch(i, &c.options[x], p.picks, p.end.Sub(p.start))
			return true
		}
	}
	return false
}

// late is why a promise is broken if Decide is called after the moment that Next gave.
const late = "the decision came late"

// obstacle is why a job cannot start when it was to.
func (s *Scheduler) obstacle(r *record) string {
	for k := range r.plan.picks {
		for _, id := range s.nodes[r.plan.picks[k].node].runs {
			if o := s.record(id); o.start.Add(max(1, o.limit)) <= s.now {
				return "job " + id.String() + " is over its limit"
			}
		}
	}
	if s.now > r.plan.start {
		return late
	}
	return "what was planned for it is not free"
}

// sortByKey puts jobs into their order. Their keys are fetched once, not at each comparison.
func (s *Scheduler) sortByKey(ids []job.ID) {
	if len(ids) < 2 {
		return
	}
	var few [16]key
	keys := few[:0]
	for _, id := range ids {
		keys = append(keys, s.record(id).key)
	}
	slices.SortFunc(keys, key.compare)
	for i := range keys {
		ids[i] = keys[i].id
	}
}

func (s *Scheduler) takeGrown() []int32 {
	grown := s.grown
	s.grown, s.grownSpare = s.grownSpare[:0], grown
	slices.Sort(grown)
	return slices.Compact(grown)
}

// takeArrivals returns the jobs that have no plan, or look for a better one, in order.
func (s *Scheduler) takeArrivals() []job.ID {
	if len(s.arrivals) == 0 {
		return nil
	}
	ids := slices.DeleteFunc(s.arrivals, func(id job.ID) bool { r := s.record(id); return r == nil || !r.queued })
	s.arrivals, s.arrivalsSpare = s.arrivalsSpare[:0], ids
	s.sortByKey(ids)
	return slices.Compact(ids)
}

// fill gives what nodes have more to jobs that can start on them now, and a place to jobs
// that have none. Jobs that were planned on these nodes may get an earlier place.
func (s *Scheduler) fill(grown []int32, arrivals []job.ID, round int) {
	f := filling{s: s, grown: grown, round: round}
	f.jobs = arrivals
	if len(grown) > 0 {
		f.addHolders()
		f.addClasses()
	}
	for {
		id, ok := f.next()
		if !ok {
			return
		}
		i := s.index(id)
		r := s.jobs[i]
		if !r.queued {
			continue
		}
		if s.tryStart(i) {
			continue // which delays nobody
		}
		if r.plan == nil && f.outranks(r) {
			s.replan(r.key, false)
			return // and with it all that come after
		}
		switch {
		case r.plan == nil && len(f.jobs) >= manyArrivals:
			s.replan(r.key, false) // of those that come after none has a plan: this is only faster
			return
		case r.plan == nil:
			s.promise(i)
		case f.improved < maxImproved:
			f.improved++
			s.promise(i)
		}
	}
}

// manyArrivals is from how many jobs on it is worth while to give them places in one pass.
const manyArrivals = 256

// maxImproved is how many promises are looked at again after one event.
const maxImproved = 32

// filling is one round of fill.
type filling struct {
	s        *Scheduler
	grown    []int32
	round    int
	jobs     []job.ID // in order: arrivals and holders
	classes  []reach
	improved int
	last     key // of the last job that is planned, if known
	known    bool
}

// reach is for how long the grown nodes are free now for a class.
type reach struct {
	class int32
	limit job.Duration
	next  entry
	tries int
}

// addHolders adds jobs that are planned on a grown node and that would fit there now, and
// some of the others.
func (f *filling) addHolders() {
	s := f.s
	var seen map[job.ID]bool
	later := 0
	for _, x := range f.grown {
		if seen == nil && len(s.nodes[x].holds) > 0 {
			seen = map[job.ID]bool{}
		}
		for h, t := range s.nodes[x].holds {
			if t.t <= s.now || seen[t.id] {
				continue
			}
			r := s.record(t.id)
			if s.fitsNow(r, x) {
				seen[t.id] = true
				f.jobs = append(f.jobs, t.id)
			} else if h < 4 && f.round == 0 && later < maxImproved && s.fitsSooner(r, x) {
				later++
				seen[t.id] = true
				f.jobs = append(f.jobs, t.id)
			}
		}
	}
	s.sortByKey(f.jobs)
	f.jobs = slices.Compact(f.jobs)
}

// fitsNow says whether a job would fit on a node from now on if it were not planned there.
func (s *Scheduler) fitsNow(r *record, x int32) bool {
	n := s.nodes[x]
	c := s.classes[r.class]
	for i := range c.options {
		o := &c.options[i]
		for k := range o.cells {
			if o.cells[k].cell != n.place.cell || !n.free.holds(&o.cells[k].v) {
				continue
			}
			end, fits := s.now.Add(s.leastIn(r.spec, o.part)), true
			for j := n.line.at(s.now); fits && j < len(n.line) && n.line[j].t < end; j++ {
				free := n.line[j].free
				if st := n.line[j].t; st >= r.plan.start && st < r.plan.end {
					for y := range r.plan.picks {
						if r.plan.picks[y].node == x {
							free.add(&r.plan.picks[y].v)
						}
					}
				}
				fits = free.holds(&o.cells[k].v)
			}
			if fits {
				return true
			}
		}
	}
	return false
}

// fitsSooner says whether a job would fit on a node before it is planned there.
func (s *Scheduler) fitsSooner(r *record, x int32) bool {
	n := s.nodes[x]
	line := append(s.line[:0], n.line...)
	for k := range r.plan.picks {
		if r.plan.picks[k].node == x {
			line.give(r.plan.start, r.plan.end, &r.plan.picks[k].v)
		}
	}
	s.line = line
	c := s.classes[r.class]
	for i := range c.options {
		o := &c.options[i]
		for k := range o.cells {
			if o.cells[k].cell == n.place.cell && line.earliest(&o.cells[k].v, s.now, s.leastIn(r.spec, o.part)) < r.plan.start {
				return true
			}
		}
	}
	return false
}

// addClasses finds for each class the first job that is short enough for the grown nodes.
func (f *filling) addClasses() {
	s := f.s
	for i, c := range s.classes {
		if c.queue.n == 0 {
			continue
		}
		limit := job.Duration(0)
		for x := range c.options {
			o := &c.options[x]
			if o.nodes > 1 && s.idle(o) < o.nodes {
				continue
			}
			for k := range o.cells {
				for _, g := range f.grown {
					n := s.nodes[g]
					if n.place.cell == o.cells[k].cell && n.free.holds(&o.cells[k].v) && !o.excludes(g) {
						limit = max(limit, n.line.free(&o.cells[k].v, s.now))
					}
				}
			}
		}
		if limit <= 0 {
			continue
		}
		if e, ok := c.queue.after(key{}, true, limit); ok {
			f.classes = append(f.classes, reach{int32(i), limit, e, 0})
		}
	}
}

// idle is how many nodes have free what an option takes of the first of its resources, or
// more than have. What is planned does not count: it may be the job's own.
func (s *Scheduler) idle(o *option) int {
	n := 0
	for x := range o.cells {
		cell := s.cells[o.cells[x].cell]
		for b := int(cell.kind.bucket(o.cells[x].v[cell.kind.prim])); b < len(cell.count); b++ {
			n += int(cell.count[b])
		}
	}
	return n
}

// next is the job that is looked at next: the first of all.
func (f *filling) next() (job.ID, bool) {
	best := -1
	for i := range f.classes {
		if best < 0 || f.classes[i].next.compare(f.classes[best].next.key) < 0 {
			best = i
		}
	}
	if len(f.jobs) > 0 {
		r := f.s.record(f.jobs[0])
		if best < 0 || r.key.compare(f.classes[best].next.key) <= 0 {
			f.jobs = f.jobs[1:]
			return r.id, true
		}
	}
	if best < 0 {
		return 0, false
	}
	c := &f.classes[best]
	id := c.next.id
	if f.tried(c) {
		f.classes = slices.Delete(f.classes, best, best+1)
	}
	return id, true
}

// maxTries is how many jobs of a class are tried on the same nodes.
const maxTries = 64

// tried moves a class on to its next job. It is true if there is none.
func (f *filling) tried(c *reach) bool {
	c.tries++
	e, ok := f.s.classes[c.class].queue.after(c.next.key, false, c.limit)
	c.next = e
	return !ok || c.tries >= maxTries
}

// outranks says whether a job without a plan is before one that has one.
func (f *filling) outranks(r *record) bool {
	if !f.known {
		f.known = true
		f.last = f.s.lastPlanned()
	}
	return f.last.id != 0 && r.key.compare(f.last) < 0
}

// lastPlanned is the last job that has a plan; its id is 0 if none has.
func (s *Scheduler) lastPlanned() key {
	var last key
	if s.planned == 0 {
		return last
	}
	for _, c := range s.classes {
	class:
		for b := len(c.queue.blocks) - 1; b >= 0; b-- {
			entries := c.queue.blocks[b].entries
			for i := len(entries) - 1; i >= 0; i-- {
				if last.id != 0 && entries[i].compare(last) < 0 {
					break class
				}
				if s.record(entries[i].id).plan != nil {
					last = entries[i].key
					break class
				}
			}
		}
	}
	return last
}
