package sched

import (
	"slices"

	"github.com/gangway-hpc/gangway/internal/job"
)

// Fork is an independent copy, made by copying on write: it costs next to
// nothing, and later a pointer a job and a node, and what either of the two changes.
func (s *Scheduler) Fork() *Scheduler {
	c := *s
	s.tok, c.tok = new(token), new(token)
	for _, x := range []*Scheduler{s, &c} { // an append makes a copy, a change sees the token
		x.nodes, x.jobs, x.arrays = slices.Clip(x.nodes), slices.Clip(x.jobs), slices.Clip(x.arrays)
	}
	c.classes = slices.Clone(s.classes)
	c.cells = slices.Clone(s.cells)
	c.parts = slices.Clone(s.parts)
	c.singles = slices.Clone(s.singles)
	c.arrivals = slices.Clone(s.arrivals)
	c.grown = slices.Clone(s.grown)
	c.lost = slices.Clone(s.lost)
	c.expired = slices.Clone(s.expired)
	c.pass, c.arrivalsSpare, c.grownSpare = nil, nil, nil
	c.out, c.scratch, c.cands, c.set, c.line = nil, nil, nil, nil, nil
	c.open, c.sorted = job.Promised{}, sorted{}
	c.runList, c.blockList, c.counts = nil, nil, nil
	return &c
}

// WhatIf applies events to a copy, decides there at a moment, and says whose expected start
// is another one: by what was submitted, drained or cancelled. The scheduler stays as it
// is, but for time: that does not pass either.
func (s *Scheduler) WhatIf(now job.Time, events ...job.Event) ([]Difference, error) {
	before, after := s.Fork(), s.Fork()
	before.Decide(now)
	for _, e := range events {
		if err := after.Apply(e); err != nil {
			return nil, err
		}
	}
	after.Decide(now)
	var all []Difference
	for _, r := range after.jobs {
		was, now := job.Time(0), r.expected()
		if r.id <= s.last {
			b := before.record(r.id)
			if b == nil || b == r {
				continue
			}
			was = b.expected()
		}
		if was != now {
			all = append(all, Difference{r.id, was, now})
		}
	}
	return all, nil
}

// expected is when a job starts, or did.
func (r *record) expected() job.Time {
	switch {
	case r.start != 0:
		return r.start
	case r.state != job.Pending || r.promise == 0:
		return job.Never
	}
	return r.promise
}
