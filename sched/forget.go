package sched

import (
	"slices"

	"github.com/gangway-hpc/gangway/internal/job"
)

// A job that has ended is known for a while, and for as long as one waits for it. After
// that it does not exist: nobody can ask for it, depend on it or requeue it, and its id is
// not used again. When that is follows from events and time alone. When its memory is
// freed does not matter, so that is done rarely, for many at a time.

// minJobAge is Slurm's MinJobAge by default.
const minJobAge = 5 * job.Minute

// lookup is find for those who ask from outside: it does not find what is over.
func (s *Scheduler) lookup(id job.ID) (int, bool) {
	i, ok := s.find(id)
	if ok && s.over(s.jobs[i]) {
		return 0, false
	}
	return i, ok
}

// over says whether a job is no longer known. Tasks of an array are known together.
func (s *Scheduler) over(r *record) bool {
	switch {
	case !r.state.Done():
		return false
	case r.array >= 0:
		return s.arrayOver(s.arrays[r.array])
	}
	return s.aged(r)
}

func (s *Scheduler) arrayOver(a *array) bool {
	if a.ended < a.n || s.needed(a.dependents) {
		return false
	}
	first := s.index(a.first)
	return !slices.ContainsFunc(s.jobs[first:first+a.n], func(r *record) bool { return !s.aged(r) })
}

// aged says whether an ended job is old, and no other waits for it.
func (s *Scheduler) aged(r *record) bool {
	age := s.config.MinJobAge
	if age == 0 {
		age = minJobAge
	}
	return r.end.Add(age) <= s.now && !s.needed(r.dependents)
}

// needed says whether one of the jobs still waits for what it depends on.
func (s *Scheduler) needed(dependents []job.ID) bool {
	return slices.ContainsFunc(dependents, func(id job.ID) bool {
		r := s.record(id)
		return r != nil && r.state == job.Pending && !r.met
	})
}

// tidy frees the memory of what is over if that may be much: on average that costs little
// for each job that has ended.
func (s *Scheduler) tidy() {
	if len(s.jobs)-s.unfinished-s.remembered >= max(256, len(s.jobs)/4) {
		s.forget()
	}
	if len(s.classes) >= 2*s.classesKept+256 {
		s.forgetClasses()
	}
}

// forget frees the memory of all jobs that are over.
func (s *Scheduler) forget() {
	number, arrays := make([]int32, len(s.arrays)), []*array(nil)
	for i, a := range s.arrays {
		if number[i] = -1; !s.arrayOver(a) {
			number[i] = int32(len(arrays))
			arrays = append(arrays, a)
		}
	}
	var jobs []*record
	for i, r := range s.jobs {
		if gone := r.array >= 0 && number[r.array] < 0 || r.array < 0 && s.over(r); gone && jobs == nil {
			jobs = append(make([]*record, 0, len(s.jobs)), s.jobs[:i]...)
		} else if !gone && jobs != nil {
			jobs = append(jobs, r)
		}
	}
	if jobs != nil {
		s.jobs, s.jobsTok, s.arrays, s.arraysTok = slices.Clip(jobs), s.tok, arrays, s.tok
		for i, r := range s.jobs {
			if r.array >= 0 && number[r.array] != r.array {
				s.ownJob(i).array = number[r.array]
			}
		}
		s.forgetTimers()
	}
	s.remembered = len(s.jobs) - s.unfinished
}

// forgetTimers drops those that no longer mean anything. A sorted list is a heap.
func (s *Scheduler) forgetTimers() {
	for _, c := range []struct {
		clock *clock
		means func(timer, *record) bool
	}{
		{&s.wake, func(_ timer, r *record) bool { return r.state == job.Pending }},
		{&s.due, func(t timer, r *record) bool { return r.plan != nil && r.plan.start == t.t }},
		{&s.ends, func(t timer, r *record) bool {
			return r.ends == t.t && (r.state == job.Running || r.state == job.Completing)
		}},
	} {
		var kept timers
		for _, t := range c.clock.timers {
			if r := s.record(t.id); r != nil && c.means(t, r) {
				kept = append(kept, t)
			}
		}
		slices.SortFunc(kept, compareTimer)
		*c.clock = clock{kept, s.tok}
	}
}

// forgetClasses drops the classes of which no job waits.
func (s *Scheduler) forgetClasses() {
	number := make([]int32, len(s.classes))
	for _, r := range s.jobs {
		if r.state == job.Pending {
			number[r.class] = 1
		}
	}
	var classes []*class
	for i, c := range s.classes {
		if number[i] != 0 {
			number[i] = int32(len(classes))
			classes = append(classes, c)
		} else {
			number[i] = -1
		}
	}
	kinds := make(map[string]int32, len(classes))
	for k, i := range s.kinds.m {
		if number[i] >= 0 {
			kinds[k] = number[i]
		}
	}
	for i, r := range s.jobs {
		if r.state == job.Pending && number[r.class] != r.class {
			s.ownJob(i).class = number[r.class]
		}
	}
	s.classes, s.kinds, s.classesKept = classes, classIndex{s.tok, kinds}, len(classes)
}
