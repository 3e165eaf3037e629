package sched

import (
	"cmp"
	"slices"

	"github.com/gangway-hpc/gangway/internal/job"
)

// What a decision does for a job that was changed, up to where the job itself is given a
// place: that says when it starts, without the plans of all jobs behind it made anew.

const (
	// maxReplanned is how much is planned anew for relaxations to be tried in full, in jobs
	// times nodes: each is a search among these. It bounds work, not time, so that the same
	// is told on any machine.
	maxReplanned = 250_000
	// maxGiven is how many jobs behind one are looked at whether their plans can be given up.
	maxGiven = 500
)

// turn brings a copy to where a decision gives a place to job id, if its place in the order
// is k: those before it have looked at what it gave back, and what is planned for those
// behind it is given up, as far as it starts before a moment. It returns how many are behind
// it; of more than maxGiven only some plans are given up. The copy is good for looking for a
// place, and no more: the jobs still know their plans.
func (s *Scheduler) turn(k key, id job.ID, by job.Time) int {
	if s.config.Backfill == job.Conservative {
		s.startDue()
		f := filling{s: s, grown: s.takeGrown(), jobs: slices.DeleteFunc(s.takeArrivals(), func(other job.ID) bool { return other == id })}
		if len(f.grown) > 0 {
			f.addHolders()
			f.addClasses()
		}
		s.before(&f, k, id)
	}
	return s.giveUp(k, id, by)
}

// horizon is up to when plans of others matter to a job that starts before a moment.
func (s *Scheduler) horizon(r *record, before job.Time) job.Time {
	longest := job.Duration(0)
	for _, p := range s.partitionsOf(r.spec) {
		longest = max(longest, s.limitIn(r.spec, p))
	}
	return before.Add(longest)
}

// before has those before k look for a place, as fill does. The job of that id is left out.
func (s *Scheduler) before(f *filling, k key, id job.ID) {
	for {
		next, ok := f.next()
		if !ok || s.record(next).key.compare(k) >= 0 {
			return
		}
		i := s.index(next)
		if next == id || !s.jobs[i].queued || s.tryStart(i) {
			continue
		}
		if planned := s.jobs[i].plan != nil; !planned || f.improved < maxImproved {
			if planned {
				f.improved++
			}
			s.promise(i)
		}
	}
}

// giveUp takes the plans of jobs from k on but one, those that start before a moment, out of
// the timelines, and returns how many jobs there are.
func (s *Scheduler) giveUp(k key, but job.ID, by job.Time) int {
	var lanes []lane
	sum := 0
	for _, c := range s.classes {
		if l, n := c.queue.from(k, false); n > 0 {
			lanes = append(lanes, l)
			sum += n
		}
	}
	each := sum
	if sum > maxGiven { // the next ones of each class
		each = max(1, maxGiven/len(lanes))
	}
	for _, l := range lanes {
		left := each
		for at := -1; at < len(l.more) && left > 0; at++ {
			entries := l.rest
			if at >= 0 {
				entries = l.more[at].entries
			}
			entries = entries[:min(left, len(entries))]
			left -= len(entries)
			for i := range entries {
				if p := s.record(entries[i].id).plan; p != nil && p.start < by && entries[i].id != but {
					s.vacate(p)
				}
			}
		}
	}
	return sum
}

// vacate takes a plan out of the timelines; those who hold something stay known.
func (s *Scheduler) vacate(p *plan) {
	for x := range p.picks {
		n := s.own(p.picks[x].node)
		n.line.give(p.start, p.end, &p.picks[x].v)
		s.touched(n)
	}
	s.useLicenses(p.licenses, p.start, p.end, true)
}

// verified tries relaxations as these events, and a decision after them, would be. It returns
// those with which the job starts before a moment, the earliest first. If too many plans
// would be made anew for that, behind for each, the job's own place is what is tried: it is
// that of its search, unless its place in the order is another one, with these changes. The
// receiver has nothing given up, and base is a copy where what was planned for the job is.
func (s *Scheduler) verified(base *Scheduler, r *record, list []Relaxation, before job.Time, behind int) []Relaxation {
	full := (behind+1)*len(list)*len(s.nodes) <= maxReplanned
	given := 0
	list = slices.DeleteFunc(list, func(x Relaxation) bool { return x.Start >= before })
	for i := range list {
		x := &list[i]
		switch k := base.keyWith(r, x); {
		case full:
			x.Start = s.outcome(r.id, x, base.now)
		case k != r.key:
			given += base.placeAt(r, x, k, before, given < maxGiven)
			x.Latest = true
		default:
			x.Latest = true
		}
	}
	list = slices.DeleteFunc(list, func(x Relaxation) bool { return x.Start >= before })
	slices.SortStableFunc(list, func(a, b Relaxation) int { return cmp.Compare(a.Start, b.Start) })
	return list
}

// keyWith is what job r's place in the order would be.
func (s *Scheduler) keyWith(r *record, x *Relaxation) key {
	if !r.queued { // it has none yet
		return r.key
	}
	with := *r
	with.spec = &x.Spec
	return s.keyOf(&with)
}

// placeAt sets when job r starts at the latest with a relaxation that moves it to k in the
// order. What is planned for those behind k is given up for that, if it may be; how many
// jobs these are is returned.
func (s *Scheduler) placeAt(r *record, x *Relaxation, k key, before job.Time, mayGive bool) (given int) {
	c, by := s.Fork(), job.Time(0)
	if mayGive {
		by = s.horizon(r, before)
	}
	given = c.turn(k, r.id, by)
	search := search{s: c, r: c.ownJob(c.index(r.id)), tries: 1}
	x.Start = search.place(&x.Spec, job.Never)
	return given
}

// outcome is when a job starts with a relaxation, by a decision on a copy; job.Never if it
// cannot be had.
func (s *Scheduler) outcome(id job.ID, x *Relaxation, now job.Time) job.Time {
	c := s.Fork()
	for _, e := range x.Events(id, now) {
		if err := c.Apply(e); err != nil {
			return job.Never
		}
	}
	c.Decide(now)
	return c.record(id).expected()
}
