package sched

import (
	"fmt"

	"github.com/gangway-hpc/gangway/internal/job"
)

// Apply takes in what happened, or a decision from the log. After an error the state is as
// it was; the error says why and, where there is one, the nearest thing that could be.
func (s *Scheduler) Apply(e job.Event) error {
	at, known := timeOf(e)
	if at == 0 {
		at = 1 // 0 is not known
	}
	switch {
	case !known:
		return &Refused{Event: fmt.Sprintf("apply %T", e), Why: "it is no event of package job"}
	case at < s.now:
		return &Refused{Event: fmt.Sprintf("apply %T", e), Why: fmt.Sprintf("its time %d is before %d, that of an earlier event", at, s.now), Nearest: "a clock went backwards"}
	case at > latestTime:
		return &Refused{Event: fmt.Sprintf("apply %T", e), Why: fmt.Sprintf("its time %d is too late", at)}
	}
	decision := isDecision(e)
	if s.dueBefore(at, decision) || decision && s.recheck {
		return s.applyLater(e, at)
	}
	return s.apply(e, at)
}

func isDecision(e job.Event) bool {
	switch e.(type) {
	case job.Started, job.Promised, job.Requeued, job.Killed:
		return true
	}
	return false
}

// dueBefore says whether time passing up to at changes more than the clock.
func (s *Scheduler) dueBefore(at job.Time, deciding bool) bool {
	for len(s.ends.timers) > 0 && (s.ends.timers[0].t < at || deciding && s.ends.timers[0].t == at) {
		if r := s.record(s.ends.timers[0].id); r != nil && r.ends == s.ends.timers[0].t && (r.state == job.Running || r.state == job.Completing) {
			return true
		}
		s.ownClock(&s.ends).pop()
	}
	return len(s.wake.timers) > 0 && s.wake.timers[0].t <= at
}

// applyLater applies e on a copy, so that if it is refused time has not passed either.
func (s *Scheduler) applyLater(e job.Event, at job.Time) error {
	was := s.Fork()
	if err := s.apply(e, at); err != nil {
		*s = *was
		return err
	}
	return nil
}

func (s *Scheduler) apply(e job.Event, at job.Time) error {
	was, decision := s.now, isDecision(e)
	if decision {
		s.refresh()
	}
	s.advance(at, decision)
	if decision {
		s.review()
	}
	err := s.dispatch(e)
	if err != nil {
		s.now = was
		return err
	}
	if decision {
		s.grown, s.arrivals, s.retry, s.anew, s.regrow = s.grown[:0], s.arrivals[:0], false, false, false
		if p, ok := e.(job.Promised); ok && (len(p.Starts) == 0 || p.Starts[0].Start != 0) {
			for _, x := range p.Starts {
				s.hash = hashPromise(s.hash, x.ID, x.Start)
			}
		} else {
			s.hash = hashEvent(s.hash, e)
		}
	}
	s.tidy()
	return nil
}

func (s *Scheduler) dispatch(e job.Event) error {
	switch e := e.(type) {
	case job.Configured:
		return s.configure(e)
	case job.NodeSet:
		return s.setNode(e)
	case job.NodeStateSet:
		return s.setNodeState(e)
	case job.NodeRemoved:
		return s.removeNode(e)
	case job.NetworkSet:
		return s.setNetwork(e)
	case job.PartitionSet:
		return s.setPartition(e)
	case job.PartitionRemoved:
		return s.removePartition(e)
	case job.Submitted:
		return s.submit(e)
	case job.Changed:
		return s.change(e)
	case job.Held:
		return s.hold(e)
	case job.Released:
		return s.releaseHold(e)
	case job.Cancelled:
		return s.cancel(e)
	case job.Ended:
		return s.end(e)
	case job.Requeue:
		return s.requeue(e)
	case job.ImagesSet:
		return s.setImages(e)
	case job.Started:
		return s.replayStart(e)
	case job.Promised:
		return s.replayPromise(e)
	case job.Requeued:
		return s.requeued(e)
	case job.Killed:
		return s.killed(e)
	}
	return &Refused{Event: fmt.Sprintf("apply %T", e), Why: "it is no event of package job"}
}

// timeOf is when an event was.
func timeOf(e job.Event) (job.Time, bool) {
	switch e := e.(type) {
	case job.Configured:
		return e.At, true
	case job.NodeSet:
		return e.At, true
	case job.NodeStateSet:
		return e.At, true
	case job.NodeRemoved:
		return e.At, true
	case job.NetworkSet:
		return e.At, true
	case job.PartitionSet:
		return e.At, true
	case job.PartitionRemoved:
		return e.At, true
	case job.Submitted:
		return e.At, true
	case job.Changed:
		return e.At, true
	case job.Held:
		return e.At, true
	case job.Released:
		return e.At, true
	case job.Cancelled:
		return e.At, true
	case job.Ended:
		return e.At, true
	case job.Requeue:
		return e.At, true
	case job.ImagesSet:
		return e.At, true
	case job.Started:
		return e.At, true
	case job.Promised:
		return e.At, true
	case job.Requeued:
		return e.At, true
	case job.Killed:
		return e.At, true
	}
	return 0, false
}

func (s *Scheduler) configure(e job.Configured) error {
	c := e.Config
	if c.Backfill > job.None || c.Weights.MaxAge < 0 || c.MaxJobs < 0 || c.MaxRequeue < 0 || c.MinJobAge < 0 || c.DefaultLimit < 0 {
		return &Refused{Event: "configure", Why: "a limit is negative, or the kind of backfill is unknown"}
	}
	for i, l := range c.Licenses {
		if l.Name == "" || l.Count < 0 {
			return &Refused{Event: "configure", Why: fmt.Sprintf("licence %d has no name or a negative count", i+1)}
		}
		for _, o := range c.Licenses[:i] {
			if o.Name == l.Name {
				return &Refused{Event: "configure", Why: "licence " + l.Name + " is given twice"}
			}
		}
	}
	s.forget() // what is over by the rule that was
	s.config = c
	s.setLicenses(c.Licenses)
	s.stale = true // and places in queues change with the weights
	s.anew = s.planned > 0
	s.retry, s.regrow = true, true
	return nil
}

// reorder gives the jobs in queues the places and limits that they have with new weights,
// partitions or nodes.
func (s *Scheduler) reorder() {
	for i, r := range s.jobs {
		if !r.queued || s.keyOf(r) == r.key && s.leastOfAll(r) == r.queueLimit {
			continue
		}
		r = s.ownJob(i)
		s.ownClass(r.class).queue.remove(r.key, s.tok)
		r.key = s.keyOf(r)
		s.enqueue(r)
	}
}

// reclass puts the jobs that wait into the classes that they are of now.
func (s *Scheduler) reclass() {
	for i, r := range s.jobs {
		if r.state != job.Pending {
			continue
		}
		class := s.classOf(r.spec, r.soft)
		if class == r.class {
			continue
		}
		r = s.ownJob(i)
		if r.queued {
			s.ownClass(r.class).queue.remove(r.key, s.tok)
		}
		r.class = class
		if r.queued {
			s.enqueue(r)
		}
	}
}

func (s *Scheduler) setNetwork(e job.NetworkSet) error {
	if err := checkNetwork(&e.Network); err != nil {
		return err
	}
	s.network = e.Network
	s.stale, s.recheck, s.regrow = true, true, true
	return nil
}

// The hash is FNV-1a over 64-bit words.
const prime = 1099511628211

func mix(h, v uint64) uint64 { return (h ^ v) * prime }

func mixText(h uint64, text string) uint64 {
	for i := range len(text) {
		h = (h ^ uint64(text[i])) * prime
	}
	return mix(h, uint64(len(text)))
}

func hashPromise(h uint64, id job.ID, start job.Time) uint64 {
	return mix(mix(mix(h, 2), uint64(id)), uint64(start))
}

func hashEvent(h uint64, e job.Event) uint64 {
	switch e := e.(type) {
	case job.Started:
		h = mix(mix(mix(mix(h, 1), uint64(e.At)), uint64(e.ID)), uint64(e.Attempt))
		h = mix(mixText(h, e.Allocation.Partition), uint64(e.Allocation.Limit))
		for i := range e.Allocation.Nodes {
			n := &e.Allocation.Nodes[i]
			h = mix(mix(mix(mixText(h, n.Node), uint64(n.Tasks)), uint64(n.CPUs)), uint64(n.Memory))
			for _, d := range n.Devices {
				h = mix(mix(mixText(mixText(h, d.Name), d.Type), d.Mask), uint64(d.Count))
			}
		}
	case job.Promised:
		for _, p := range e.Starts {
			h = hashPromise(h, p.ID, p.Start)
		}
	case job.Requeued:
		h = mix(mix(mixText(mix(h, 3), e.Cause), uint64(e.ID)), uint64(e.At))
	case job.Killed:
		h = mix(mix(mix(mixText(mix(h, 4), e.Cause), uint64(e.ID)), uint64(e.At)), uint64(e.State))
	}
	return h
}
