package sched

import (
	"fmt"
	"slices"

	"github.com/gangway-hpc/gangway/internal/job"
)

// Decide decides at a moment, which counts as the last one that an event can have if it is
// after that (as [job.Never] is), applies what it decided and returns it for the log.
func (s *Scheduler) Decide(now job.Time) []job.Event {
	s.refresh()
	s.advance(min(max(now, s.now), latestTime), true)
	s.out = nil
	s.review()
	s.settle()
	switch s.config.Backfill {
	case job.EASY, job.None:
		s.greedy()
	default:
		s.conservative()
	}
	s.flush()
	s.tidy()
	out := s.out
	s.out = nil
	return out
}

// advance lets time pass: begin times and the like come. A job that is still there at its
// limit is expected to go on for a minute, then for two, four and so on; in a decision
// already at its limit, before an event only after it.
func (s *Scheduler) advance(now job.Time, deciding bool) {
	for len(s.wake.timers) > 0 && s.wake.timers[0].t <= now {
		t := s.ownClock(&s.wake).pop()
		s.now = max(s.now, t.t)
		s.woken(t)
	}
	s.now = max(s.now, now)
	for len(s.ends.timers) > 0 && (s.ends.timers[0].t < s.now || deciding && s.ends.timers[0].t == s.now) {
		t := s.ownClock(&s.ends).pop()
		i, ok := s.find(t.id)
		if !ok || s.jobs[i].ends != t.t || s.jobs[i].state != job.Running && s.jobs[i].state != job.Completing {
			continue
		}
		s.overrun(i)
	}
}

// woken looks at a job at a moment that it waited for.
func (s *Scheduler) woken(t timer) {
	i, ok := s.find(t.id)
	if !ok || s.jobs[i].state != job.Pending {
		return
	}
	r := s.jobs[i]
	if last := s.latest(r); last > 0 && s.now > last {
		if !slices.Contains(s.expired, r.id) {
			s.expired = append(s.expired, r.id)
		}
		return
	}
	if topo := r.spec.Topology; r.queued && !r.soft && topo.Switches > 0 && topo.Wait < job.Forever && s.now >= r.eligible.Add(topo.Wait) {
		s.soften(i)
		return
	}
	s.consider(i)
}

// soften ends a job's wait for near nodes: from now on any will do. It keeps its plan
// until there is a better one.
func (s *Scheduler) soften(i int) {
	s.refresh() // may put it into its queue again, or into another class
	r := s.ownJob(i)
	s.ownClass(r.class).queue.remove(r.key, s.tok)
	r.soft, r.class = true, s.classOf(r.spec, true)
	s.enqueue(r)
	s.arrivals = append(s.arrivals, r.id)
}

// overrun has a job that did not end at its limit be expected to end later.
func (s *Scheduler) overrun(i int) {
	r := s.ownJob(i)
	limit := r.start.Add(max(1, r.limit))
	old := r.ends
	for r.ends <= s.now {
		r.ends = r.ends.Add(max(job.Minute, r.ends.Sub(limit)))
	}
	for k := range r.picks {
		n := s.own(r.picks[k].node)
		n.line.take(old, r.ends, &r.picks[k].v)
		s.touched(n)
	}
	s.useLicenses(r.licenses, old, r.ends, false)
	s.yield(r, "job "+r.id.String()+" is over its limit")
	s.ownClock(&s.ends).push(timer{r.ends, r.id})
}

// yield takes away what is planned on the nodes and with the licences of a running job, up
// to its end, and cannot be beside it.
func (s *Scheduler) yield(r *record, why string) {
	for k := range r.picks {
		i := r.picks[k].node
		for t := s.nodes[i].line.over(s.now, r.ends); t != job.Never; t = s.nodes[i].line.over(s.now, r.ends) {
			at := slices.IndexFunc(s.nodes[i].holds, func(h timer) bool { return s.holdsAt(h.id, i, t) })
			if at < 0 {
				break
			}
			s.breach(s.index(s.nodes[i].holds[at].id), why)
		}
	}
	s.yieldLicenses(r.licenses, r.ends, why)
}

// holdsAt says whether at a moment something of a node is planned for a job of which the
// node has less than nothing left then.
func (s *Scheduler) holdsAt(id job.ID, node int32, t job.Time) bool {
	p := s.record(id).plan
	if t < p.start || t >= p.end {
		return false
	}
	l := s.nodes[node].line
	free := &l[l.at(t)].free
	return slices.ContainsFunc(p.picks, func(x pick) bool {
		for slot := range free {
			if x.node == node && x.v[slot] > 0 && free[slot] < 0 {
				return true
			}
		}
		return false
	})
}

// over is the first moment between two times at which something is taken twice; Never if
// there is none.
func (l timeline) over(from, to job.Time) job.Time {
	for i := l.at(from); i < len(l) && l[i].t < to; i++ {
		if !l[i].free.holds(&vec{}) {
			return max(from, l[i].t)
		}
	}
	return job.Never
}

// sane says whether nothing is taken twice between two times.
func (l timeline) sane(from, to job.Time) bool { return l.over(from, to) == job.Never }

// settle decides about jobs whose nodes are gone or whose deadline cannot be met.
func (s *Scheduler) settle() {
	lost := s.lost
	s.lost = nil
	slices.Sort(lost)
	for _, id := range lost {
		i, ok := s.find(id)
		if !ok || s.jobs[i].lost == "" {
			continue
		}
		r := s.jobs[i]
		most := r.spec.MaxRequeue
		if most == 0 {
			most = s.config.MaxRequeue
		}
		if most == 0 {
			most = 5
		}
		if r.state == job.Running && r.spec.Requeue {
			s.decide(job.Requeued{At: s.now, ID: id, Cause: r.lost, Hold: r.requeues+1 > most})
		} else {
			st := job.NodeFailed
			if r.state == job.Completing {
				st = r.toState
			}
			s.decide(job.Killed{At: s.now, ID: id, State: st, Cause: r.lost})
		}
	}
	expired := s.expired
	s.expired = nil
	slices.Sort(expired)
	for _, id := range expired {
		if i, ok := s.find(id); ok && s.jobs[i].state == job.Pending && s.now > s.latest(s.jobs[i]) {
			s.decide(job.Killed{At: s.now, ID: id, State: job.DeadlineMissed, Cause: "it cannot end before its deadline"})
		}
	}
}

// decide applies a decision that is known to be possible, and notes it.
func (s *Scheduler) decide(e job.Event) {
	var err error
	switch e := e.(type) {
	case job.Requeued:
		err = s.requeued(e)
	case job.Killed:
		err = s.killed(e)
	}
	if err != nil {
		panic(err) // it was looked at just before
	}
	s.note(e)
}

// flush ends the promises that are being collected.
func (s *Scheduler) flush() {
	if len(s.open.Starts) > 0 {
		s.out = append(s.out, s.open)
		s.open = job.Promised{}
		s.flushes++
	}
}

func (s *Scheduler) note(e job.Event) {
	s.flush()
	s.hash = hashEvent(s.hash, e)
	s.out = append(s.out, e)
}

// tryStart starts job i if it can start now beside all that is planned for others. What is
// planned for itself is given up for that.
func (s *Scheduler) tryStart(i int) bool {
	r := s.jobs[i]
	if !s.licensesNow(r.spec) {
		return false
	}
	old := r.plan
	if old != nil {
		s.lift(old, r.id)
	}
	c := s.classes[r.class]
	for x := range c.options {
		o := &c.options[x]
		if !s.parts[o.part].starts() {
			continue
		}
		d := s.limitIn(r.spec, o.part)
		picks, ok := s.placeNow(c, o, d)
		if least := s.leastIn(r.spec, o.part); least < d && (!ok || s.licensed(r.spec, s.now, d) != s.now) {
			if picks, ok = s.placeNow(c, o, least); ok {
				d = s.stretch(r.spec, picks, s.now, least, d)
			}
		}
		if !ok || s.licensed(r.spec, s.now, d) != s.now {
			continue
		}
		if old != nil {
			s.lower(old, r.id)
		}
		s.launch(i, o, picks, d)
		return true
	}
	if old != nil {
		s.lower(old, r.id)
	}
	return false
}

// lift takes a plan out of the timelines for a moment, and lower puts it back.
func (s *Scheduler) lift(p *plan, id job.ID) {
	for k := range p.picks {
		n := s.own(p.picks[k].node)
		n.line.give(p.start, p.end, &p.picks[k].v)
		if h, ok := slices.BinarySearchFunc(n.holds, timer{p.start, id}, compareTimer); ok {
			n.holds = slices.Delete(n.holds, h, h+1)
		}
		s.touched(n)
	}
	s.useLicenses(p.licenses, p.start, p.end, true)
}

func (s *Scheduler) lower(p *plan, id job.ID) {
	for k := range p.picks {
		n := s.own(p.picks[k].node)
		n.line.take(p.start, p.end, &p.picks[k].v)
		n.hold(timer{p.start, id})
		s.touched(n)
	}
	s.useLicenses(p.licenses, p.start, p.end, false)
}

// leastIn is the limit down to which a job's may be shortened in a partition so that it can
// start: its own, unless it has a TimeMin.
func (s *Scheduler) leastIn(spec *job.Spec, p int) job.Duration {
	d := s.limitIn(spec, p)
	if spec.TimeMin > 0 {
		d = min(d, spec.TimeMin)
	}
	return d
}

// stretch is the longest limit, from least to most, for which picks stay free from t on.
func (s *Scheduler) stretch(spec *job.Spec, picks []pick, t job.Time, least, most job.Duration) job.Duration {
	d := most
	for k := range picks {
		d = min(d, s.nodes[picks[k].node].line.free(&picks[k].v, t))
	}
	if d < least || s.licensed(spec, t, d) != t {
		return least
	}
	return d
}

// launch starts job i and notes it.
func (s *Scheduler) launch(i int, o *option, picks []pick, d job.Duration) {
	r := s.jobs[i]
	alloc := s.allocate(r, o, picks, d)
	e := job.Started{At: s.now, ID: r.id, Attempt: r.attempt + 1, Allocation: *alloc}
	if r.promise != 0 && s.now > r.promise {
		why := r.breach
		if why == "" {
			why = late
		}
		s.note(job.Promised{At: s.now, Broken: []job.Breach{{ID: r.id, Was: r.promise, Now: s.now, Why: why}}})
	}
	licenses, _ := s.licensesLeft(r, d) // there are enough: it was looked at before
	s.start(i, alloc, picks, licenses, e.Attempt)
	s.note(e)
}

// promise plans job i at the earliest time, or not at all as things are, and notes it.
// What was planned for it before is given up for something earlier only.
func (s *Scheduler) promise(i int) {
	r := s.jobs[i]
	old := r.plan
	if old != nil {
		s.lift(old, r.id)
	}
	before := job.Never
	if old != nil {
		before = old.start
	}
	p := s.earliestBefore(r, s.now, before)
	if old != nil {
		s.lower(old, r.id)
		if p.start >= before {
			return
		}
	}
	if p.start == job.Never && r.promise == job.Never && r.breach == "" {
		return
	}
	s.promiseAt(i, p)
}

// promiseAt carries a plan out, and notes it in one event with those before it. A second
// one of the same job is in the next event: in one, who reads it could not say which of
// them Broken is about.
func (s *Scheduler) promiseAt(i int, p placement) {
	s.unplan(i, true)
	r := s.ownJob(i)
	if r.said == s.flushes {
		s.flush()
	}
	r.said = s.flushes
	s.open.At = s.now
	s.open.Starts = append(s.open.Starts, job.Promise{ID: r.id, Start: p.start})
	if r.breach != "" && r.promise != 0 && p.start > r.promise {
		s.open.Broken = append(s.open.Broken, job.Breach{ID: r.id, Was: r.promise, Now: p.start, Why: r.breach})
	}
	s.hash = hashPromise(s.hash, r.id, p.start)
	s.keepPlan(i, p)
}

// keepPlan makes a placement the plan of job i.
func (s *Scheduler) keepPlan(i int, p placement) {
	r := s.ownJob(i)
	r.breach = ""
	r.promise = p.start
	if p.start == job.Never {
		return
	}
	x := s.newPlan()
	x.part, x.start, x.end, x.picks = p.option.part, p.start, p.start.Add(p.limit), p.picks
	x.licenses = s.takesLicenses(s.classes[r.class].spec, p.start, p.limit)
	if len(p.picks) == 1 { // they may be in a place that is used again
		x.one[0] = p.picks[0]
		x.picks = x.one[:]
	}
	s.setPlan(i, x)
}

// dropDue drops what was planned to start by now: what of it could start has started.
func (s *Scheduler) dropDue() {
	for len(s.due.timers) > 0 && s.due.timers[0].t <= s.now {
		t := s.ownClock(&s.due).pop()
		if i, ok := s.find(t.id); ok && s.jobs[i].plan != nil && s.jobs[i].plan.start == t.t {
			s.breach(i, s.obstacle(s.jobs[i]))
		}
	}
}

// replayPromise carries out logged promises, one after the other.
func (s *Scheduler) replayPromise(e job.Promised) error {
	for _, x := range e.Starts {
		if i, ok := s.find(x.ID); !ok || !s.jobs[i].queued {
			return &Refused{Event: "promise a start to job " + x.ID.String(), Why: "it is not in a queue"}
		}
		if x.Start != 0 && x.Start < s.now {
			return &Refused{Event: "promise a start to job " + x.ID.String(), Why: fmt.Sprintf("%d is in the past", x.Start)}
		}
	}
	s.refresh()
	was := s.Fork()
	if len(e.Starts) > 0 && e.Starts[0].Start != 0 {
		s.dropDue()
	}
	for _, x := range e.Starts {
		i := s.index(x.ID)
		s.unplan(i, true)
		if x.Start == 0 {
			continue
		}
		p := placement{start: job.Never}
		if x.Start != job.Never {
			if p = s.earliest(s.jobs[i], x.Start); p.start != x.Start {
				*s = *was
				return &Refused{Event: "promise a start to job " + x.ID.String(), Why: fmt.Sprintf("there is no place for it at %d", x.Start)}
			}
		}
		s.keepPlan(i, p)
	}
	return nil
}
