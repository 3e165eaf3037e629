package sched

import (
	"slices"

	"github.com/gangway-hpc/gangway/internal/job"
)

// replan plans the jobs from k on anew, in their order: one with a higher priority has
// come, or lost its place.
func (s *Scheduler) replan(k key, all bool) {
	queued := s.inOrder(k, all)
	why := "the configuration was changed" // nothing else has all planned anew
	if !all {
		why = "job " + k.id.String() + " comes before it"
	}
	drop := job.Promised{At: s.now, Starts: make([]job.Promise, 0, min(s.planned, len(queued)))}
	used := make([]*plan, len(queued))
	// Few of those planned, or few on each node: to lay anew all that stays would take longer.
	few := !all && (len(queued) < s.planned/4 || s.planned < 4*len(s.nodes))
	for k := range queued {
		id := queued[k].id
		i := s.index(id)
		if s.jobs[i].plan == nil {
			continue
		}
		r := s.ownJob(i)
		if r.breach == "" {
			r.breach = why
		}
		used[k] = r.plan
		if few {
			s.unplan(i, false)
		} else {
			r.plan = nil
		}
		drop.Starts = append(drop.Starts, job.Promise{ID: id})
	}
	if !few {
		s.dropPlans(used)
	}
	if len(drop.Starts) > 0 {
		s.note(drop)
	}
	limits := make([]job.Duration, len(queued))
	for k := range queued {
		limits[k] = queued[k].limit
	}
	slices.Sort(limits)
	s.fitLengths(limits)
	s.pass = s.newPass(limits)
	s.open.Starts = slices.Grow(s.open.Starts, len(queued))
	for k := range queued {
		i := s.index(queued[k].id)
		p := s.earliest(s.jobs[i], s.now)
		s.pass.used = used[k]
		if r := s.jobs[i]; p.start == job.Never && r.promise == job.Never && r.breach == "" {
			continue // it is known
		}
		s.promiseAt(i, p)
	}
	s.pass = nil
	s.startDue()
}

// inOrder is the jobs of all queues from k on, in their order.
func (s *Scheduler) inOrder(k key, all bool) []entry {
	var from lanes
	sum := 0
	for _, c := range s.classes {
		if l, n := c.queue.from(k, all); n > 0 {
			from = append(from, l)
			sum += n
		}
	}
	return from.merge(sum)
}

// dropPlans takes plans that are no job's any more out of the timelines. That is unplan for
// many at once: the nodes' timelines are made anew, of what stays.
func (s *Scheduler) dropPlans(dropped []*plan) {
	nodes := make([]uint64, (len(s.nodes)+63)/64)
	for _, p := range dropped {
		if p == nil {
			continue
		}
		s.planned--
		for k := range p.picks {
			i := p.picks[k].node
			nodes[i/64] |= 1 << (i % 64)
		}
	}
	stays := func(t timer) bool {
		if s.planned == 0 {
			return false
		}
		r := s.record(t.id)
		return r != nil && r.plan != nil && r.plan.start == t.t
	}
	each(nodes, func(i int32) bool {
		s.relay(i, stays)
		return true
	})
	due := s.ownClock(&s.due)
	*due = slices.DeleteFunc(*due, func(t timer) bool { return !stays(t) })
	due.heapify()
	s.layLicenses()
	if len(s.licenses) == 0 || s.planned == 0 {
		return
	}
	for _, r := range s.jobs {
		if p := r.plan; p != nil {
			s.useLicenses(p.licenses, p.start, p.end, false)
		}
	}
}

// relay makes a node's timeline anew: of what runs there, and of the plans that stay.
func (s *Scheduler) relay(i int32, stays func(timer) bool) {
	n := s.own(i)
	n.line = append(n.line[:0], step{s.now, n.total})
	lay := func(picks []pick, from, to job.Time) {
		for k := range picks {
			if picks[k].node == i {
				n.line.take(max(s.now, from), max(s.now, to), &picks[k].v)
			}
		}
	}
	for _, id := range n.runs {
		r := s.record(id)
		lay(r.picks, s.now, r.ends)
	}
	n.holds = slices.DeleteFunc(n.holds, func(t timer) bool { return !stays(t) })
	for _, t := range n.holds {
		p := s.record(t.id).plan
		lay(p.picks, p.start, p.end)
	}
	s.touched(n)
}
