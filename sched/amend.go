package sched

import (
	"reflect"
	"slices"

	"github.com/gangway-hpc/gangway/internal/job"
)

// amend changes what a running job asks for, as far as that can be: how long it may run, and
// what counts when it waits again, or for others to see. What it has stays as it is.
func (s *Scheduler) amend(i int, e job.Changed) error {
	what := "change job " + e.ID.String()
	was := s.jobs[i].spec
	if fixed := lasting(was, &e.Spec); !reflect.DeepEqual(&fixed, was) {
		return &Refused{Event: what, Why: "it is RUNNING, not PENDING"}
	}
	spec := e.Spec
	spec.Array = was.Array
	if why, nearest := checkSpec(&spec); why != "" {
		return &Refused{Event: what, Why: why, Nearest: nearest}
	}
	if a := e.Spec.Array; a != nil && s.jobs[i].array >= 0 && a.Throttle < 0 {
		return &Refused{Event: what, Why: "a negative number of tasks at a time"}
	}
	r := s.ownJob(i)
	r.heldBy(was, &spec)
	r.spec = &spec
	if spec.Name != was.Name { // others of its old name may have waited for its end
		for _, id := range slices.Clone(s.singles) {
			s.consider(s.index(id))
		}
	}
	if spec.TimeLimit != was.TimeLimit {
		if p, ok := s.partNumber(r.alloc.Partition); ok {
			s.setLimit(i, s.limitIn(&spec, p))
		}
	}
	if a := e.Spec.Array; a != nil && r.array >= 0 && a.Throttle != s.arrays[r.array].throttle {
		s.setThrottle(r.array, a.Throttle, i)
		s.promote(r.array)
	}
	return nil
}

// lasting is a request with all of another one that may change while a job runs taken back.
func lasting(was, now *job.Spec) job.Spec {
	p := *now
	p.Name, p.Account, p.QOS, p.TimeLimit, p.TimeMin = was.Name, was.Account, was.QOS, was.TimeLimit, was.TimeMin
	p.Nice, p.Priority, p.Hold = was.Nice, was.Priority, was.Hold
	p.Requeue, p.MaxRequeue, p.Array = was.Requeue, was.MaxRequeue, was.Array
	return p
}

// setLimit gives a running job another time limit: what is planned behind it may come sooner,
// or has to give way.
func (s *Scheduler) setLimit(i int, limit job.Duration) {
	r := s.ownJob(i)
	alloc := *r.alloc
	alloc.Limit = limit
	r.alloc, r.limit = &alloc, limit
	old, ends := r.ends, r.start.Add(max(1, limit))
	if ends <= s.now {
		ends = s.now.Add(1) // it is over at once
	}
	if ends == old {
		return
	}
	r.ends = ends
	for k := range r.picks {
		n := s.own(r.picks[k].node)
		n.line.forget(s.now)
		if ends > old {
			n.line.take(old, ends, &r.picks[k].v)
		} else {
			n.line.give(ends, old, &r.picks[k].v)
		}
		s.touched(n)
		if ends < old {
			s.grow(r.picks[k].node)
		}
	}
	if ends > old {
		s.useLicenses(r.licenses, old, ends, false)
		s.yield(r, "job "+r.id.String()+" was given more time")
	} else {
		s.useLicenses(r.licenses, ends, old, true)
		s.regrow = s.regrow || len(r.licenses) > 0
	}
	s.ownClock(&s.ends).push(timer{ends, r.id})
}
