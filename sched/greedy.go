package sched

import "github.com/gangway-hpc/gangway/internal/job"

// greedy starts jobs in their order, and at the first that cannot start plans it (EASY:
// others pass it if they do not delay it; A. Mu'alem and D. Feitelson, 2001) or ends (None).
//
// A job that could not start cannot start later either, unless there is more to give: the
// first one's place comes nearer. So if nothing has grown only new jobs are looked at.
func (s *Scheduler) greedy() {
	all := len(s.grown) > 0 || s.recheck || s.retry || s.anew || s.regrow || s.planned != 1
	arrivals := s.takeArrivals()
	s.recheck, s.retry, s.anew, s.regrow = false, false, false, false
	s.startDue()
	all = all || len(s.grown) > 0 || s.planned != 1
	head := job.ID(0)
	for q := newMerged(s); len(q.heads) > 0; {
		id := q.heads[0].id
		i := s.index(id)
		if head == 0 && (s.planned > 1 || s.jobs[i].plan == nil) {
			s.dropOthers(id)
			all = true
		}
		if s.tryStart(i) {
			all = true
			q.next(false)
			continue
		}
		q.next(true)
		if head != 0 {
			continue
		}
		head = id
		if s.config.Backfill == job.None {
			break
		}
		s.promise(i)
		if !all {
			for _, id := range arrivals {
				if i := s.index(id); s.jobs[i].queued && id != head {
					s.tryStart(i)
				}
			}
			break
		}
	}
	s.grown = nil
}

// dropOthers gives up what is planned for jobs other than the first.
func (s *Scheduler) dropOthers(head job.ID) {
	if s.planned == 0 {
		return
	}
	for i, r := range s.jobs {
		if r.plan == nil || r.id == head {
			continue
		}
		was := r.promise
		s.unplan(i, false)
		s.ownJob(i).promise = 0
		s.note(job.Promised{
			At: s.now, Starts: []job.Promise{{ID: r.id}},
			Broken: []job.Breach{{ID: r.id, Was: was, Now: job.Never, Why: "job " + head.String() + " comes before it"}},
		})
	}
}

// merged is the jobs of all queues in their order: the next one of each class, as a heap.
// Of a class of which one cannot start only those are left that are shorter.
type merged struct {
	s     *Scheduler
	heads []mergedHead
}

type mergedHead struct {
	entry
	class int32
	limit job.Duration // longer ones are left out
}

func newMerged(s *Scheduler) merged {
	m := merged{s: s}
	for i, c := range s.classes {
		if c.queue.n > 0 {
			m.heads = append(m.heads, mergedHead{c.queue.blocks[0].entries[0], int32(i), job.Forever})
		}
	}
	for i := len(m.heads)/2 - 1; i >= 0; i-- {
		m.down(i)
	}
	return m
}

// next drops the first job. If it is blocked those of its class that are not shorter are
// left out.
func (m *merged) next(blocked bool) {
	h := &m.heads[0]
	if blocked {
		h.limit = h.entry.limit - 1
	}
	e, ok := m.s.classes[h.class].queue.after(h.key, false, h.limit)
	if h.entry = e; !ok {
		last := len(m.heads) - 1
		m.heads[0] = m.heads[last]
		m.heads = m.heads[:last]
	}
	m.down(0)
}

// down moves head i to where it belongs in the heap.
func (m *merged) down(i int) {
	for h := m.heads; ; {
		c := 2*i + 1
		if c >= len(h) {
			return
		}
		if c+1 < len(h) && h[c+1].compare(h[c].key) < 0 {
			c++
		}
		if h[c].compare(h[i].key) >= 0 {
			return
		}
		h[i], h[c] = h[c], h[i]
		i = c
	}
}
