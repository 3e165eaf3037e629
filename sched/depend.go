package sched

import (
	"slices"

	"github.com/gangway-hpc/gangway/internal/job"
)

// taskOf is where a task of the array is that job i is of; -1: nowhere.
func (s *Scheduler) taskOf(i int, task uint32) int {
	r := s.jobs[i]
	if r.array < 0 {
		return -1
	}
	a := s.arrays[r.array]
	first, ok := s.find(a.first)
	if !ok {
		return -1
	}
	n, found := slices.BinarySearchFunc(s.jobs[first:first+a.n], task, func(r *record, task uint32) int { return int(int64(r.task) - int64(task)) })
	if !found {
		return -1
	}
	return first + n
}

// await puts a job on the lists of those it depends on.
func (s *Scheduler) await(r *record) {
	if r.spec.Dependencies == nil {
		return
	}
	for _, d := range r.spec.Dependencies.List {
		if d.Type == job.Singleton {
			continue // see enter
		}
		i := s.index(d.Job)
		if t := s.target(r, d); t >= 0 {
			o := s.ownJob(t)
			o.dependents = append(o.dependents, r.id)
			continue
		}
		a := s.ownArray(s.jobs[i].array)
		a.dependents = append(a.dependents, r.id)
	}
}

// target is the one job that d is about; -1: a whole array.
func (s *Scheduler) target(r *record, d job.Dependency) int {
	i := s.index(d.Job)
	other := s.jobs[i]
	switch {
	case d.Task != nil:
		return s.taskOf(i, *d.Task)
	case d.Type == job.AfterCorr && r.array >= 0 && other.array >= 0:
		return max(s.taskOf(i, r.task), -1)
	case other.array >= 0 && s.arrays[other.array].first == d.Job:
		return -1
	}
	return i
}

func singleton(p *job.Spec) bool {
	return p.Dependencies != nil && slices.ContainsFunc(p.Dependencies.List, func(d job.Dependency) bool { return d.Type == job.Singleton })
}

// fate is what is known about a dependency.
type fate uint8

const (
	open fate = iota
	met
	hopeless
)

// dependency says whether the conditions of a job are met, and if one will be met by
// itself, when.
func (s *Scheduler) dependency(r *record) (fate, job.Time) {
	if r.met || r.spec.Dependencies == nil || len(r.spec.Dependencies.List) == 0 {
		return met, 0
	}
	any, at := r.spec.Dependencies.Any, job.Never
	anyMet, allMet, someHopeless, allHopeless := false, true, false, true
	for _, d := range r.spec.Dependencies.List {
		f, when := s.condition(r, d)
		if f == open {
			at = min(at, when)
		}
		anyMet = anyMet || f == met
		allMet = allMet && f == met
		someHopeless = someHopeless || f == hopeless
		allHopeless = allHopeless && f == hopeless
	}
	switch {
	case allMet || any && anyMet:
		return met, 0
	case allHopeless || !any && someHopeless:
		return hopeless, job.Never
	}
	return open, at
}

func (s *Scheduler) condition(r *record, d job.Dependency) (fate, job.Time) {
	if d.Type == job.Singleton {
		for _, o := range s.jobs {
			if o.id >= r.id {
				break
			}
			if !o.state.Done() && o.spec.Name == r.spec.Name && o.spec.User == r.spec.User && (r.array < 0 || o.array != r.array) {
				return open, job.Never
			}
		}
		return met, 0
	}
	t := s.target(r, d)
	if t < 0 {
		return s.arrayCondition(s.arrays[s.jobs[s.index(d.Job)].array], d)
	}
	o := s.jobs[t]
	ok := o.state == job.Completed && o.exit == 0
	verdict := func(good bool) (fate, job.Time) {
		switch {
		case !o.state.Done():
			return open, job.Never
		case good:
			return met, 0
		}
		return hopeless, job.Never
	}
	switch d.Type {
	case job.After:
		return s.since(o.begun(), d.Delay)
	case job.AfterOK, job.AfterCorr:
		return verdict(ok)
	case job.AfterNotOK:
		return verdict(!ok)
	}
	return verdict(true)
}

// begun is when a job started, or was cancelled before it did; 0: neither.
func (r *record) begun() job.Time {
	if r.start == 0 && r.state.Done() {
		return r.end
	}
	return r.start
}

// since is whether so much time has passed since a moment, or else when it will have.
func (s *Scheduler) since(begun job.Time, delay job.Duration) (fate, job.Time) {
	if begun == 0 {
		return open, job.Never
	}
	if at := begun.Add(delay); at > s.now {
		return open, at
	}
	return met, 0
}

// arrayCondition is about all tasks of an array.
func (s *Scheduler) arrayCondition(a *array, d job.Dependency) (fate, job.Time) {
	switch d.Type {
	case job.After:
		if a.started < a.n {
			return open, job.Never
		}
		last, first := job.Time(0), s.index(a.first)
		for _, r := range s.jobs[first : first+a.n] {
			last = max(last, r.begun())
		}
		return s.since(last, d.Delay)
	case job.AfterOK, job.AfterCorr:
		if a.failed > 0 {
			return hopeless, job.Never
		}
		if a.ok == a.n {
			return met, 0
		}
		return open, job.Never
	case job.AfterNotOK:
		switch {
		case a.ended < a.n:
			return open, job.Never
		case a.failed > 0:
			return met, 0
		}
		return hopeless, job.Never
	}
	if a.ended == a.n {
		return met, 0
	}
	return open, job.Never
}

// tell has those that depend on job i look again.
func (s *Scheduler) tell(i int) {
	r := s.jobs[i]
	lists := [2][]job.ID{r.dependents}
	if r.array >= 0 {
		lists[1] = s.arrays[r.array].dependents
	}
	for _, list := range lists {
		for _, id := range list {
			if k, ok := s.find(id); ok { // they may be forgotten before it is
				s.consider(k)
			}
		}
	}
	if len(s.singles) > 0 && r.state.Done() {
		for _, id := range slices.Clone(s.singles) {
			if o := s.record(id); o.spec.Name == r.spec.Name && o.spec.User == r.spec.User {
				s.consider(s.index(id))
			}
		}
	}
}

// consider puts a pending job into its queue if nothing but resources keeps it.
func (s *Scheduler) consider(i int) {
	r := s.jobs[i]
	if r.state != job.Pending || r.queued {
		return
	}
	f, at := s.dependency(r)
	if never := f == hopeless; never != r.never {
		r = s.ownJob(i)
		r.never = never
	}
	if at > s.now && at != job.Never && at != 0 {
		s.ownClock(&s.wake).push(timer{at, r.id})
	}
	if f != met || r.held != 0 || r.spec.Begin > s.now {
		return
	}
	if r.array >= 0 {
		if a := s.arrays[r.array]; a.throttle > 0 && a.active >= a.throttle {
			if at := i - s.index(a.first); at < a.next {
				s.ownArray(r.array).next = at
			}
			return
		}
		s.ownArray(r.array).active++
	}
	possible := true
	if waits(r.spec) && !r.soft { // in vain, if there are no nodes so near to each other
		s.refresh()
		possible = s.classes[r.class].missing > 0 || s.possible(r.class)
	}
	r = s.ownJob(i)
	r.queued = true
	if r.eligible == 0 {
		r.eligible = max(s.now, r.spec.Begin)
	}
	r.key = s.keyOf(r)
	if waits(r.spec) && !r.soft {
		if until := r.eligible.Add(r.spec.Topology.Wait); until > s.now && possible {
			s.ownClock(&s.wake).push(timer{until, r.id})
		} else {
			r.soft, r.class = true, s.classOf(r.spec, true)
		}
	}
	s.enqueue(r)
	s.arrivals = append(s.arrivals, r.id)
}

func (s *Scheduler) enqueue(r *record) {
	r.queueLimit, r.elastic = s.leastOfAll(r), r.spec.TimeMin > 0
	s.ownClass(r.class).queue.insert(entry{r.key, r.queueLimit}, s.tok)
}

// leastOfAll is the least limit that a job can have in any of its partitions.
func (s *Scheduler) leastOfAll(r *record) job.Duration {
	limit := job.Forever
	c := s.classes[r.class]
	for i := range c.options {
		limit = min(limit, s.leastIn(r.spec, c.options[i].part))
	}
	return limit
}

// dequeue takes a job out of its queue, and what is planned for it back.
func (s *Scheduler) dequeue(i int) {
	if !s.jobs[i].queued {
		return
	}
	r := s.ownJob(i)
	s.unplan(i, true)
	s.ownClass(r.class).queue.remove(r.key, s.tok)
	r.queued, r.promise, r.breach = false, 0, ""
	if r.array >= 0 {
		s.ownArray(r.array).active--
	}
}

// promote has further tasks of an array queue when others have ended.
func (s *Scheduler) promote(a int32) {
	x := s.arrays[a]
	if x.throttle == 0 {
		return
	}
	first, at := s.index(x.first), x.next
	for ; at < x.n && s.arrays[a].active < x.throttle; at++ {
		s.consider(first + at)
	}
	s.ownArray(a).next = at
}
