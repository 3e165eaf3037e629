package sched

import (
	"io"
	"sync"
	"testing"

	"github.com/gangway-hpc/gangway/internal/job"
)

// TestForksAtOnce: what others do with forks, each in a goroutine of its own, and what the
// original does meanwhile touch nothing that they share. The race detector proves it, and
// that each is still right Check.
func TestForksAtOnce(t *testing.T) {
	r := rng(88172645463325252)
	s := cluster(t, 32, 8)
	id := job.ID(0)
	submit := func(s *Scheduler, now job.Time, prio *uint32) {
		spec := shaped(&r)
		if spec.Priority = prio; spec.MinNodes > 8 || prio != nil {
			spec.MinNodes, spec.MaxNodes = min(8, spec.MinNodes), min(8, spec.MinNodes)
		}
		if s.Apply(job.Submitted{At: now, ID: id + 1, Spec: spec}) == nil {
			id++
		}
	}
	endOne := func(s *Scheduler, now job.Time) {
		for v := range s.Running {
			apply(t, s, job.Ended{At: now, ID: v.ID, State: job.Completed})
			return
		}
	}
	for range 600 {
		submit(s, 1, nil)
	}
	decide(t, s, 1)
	top := uint32(1 << 30)
	shapes := make([]job.Spec, 8)
	for i := range shapes {
		shapes[i] = shaped(&r)
		shapes[i].MinNodes, shapes[i].MaxNodes = 1, 1+i
	}
	for round := range 8 {
		now := job.Time(1000 * (round + 1))
		apply(t, s, job.NodeSet{At: now, Node: *s.nodes[3].spec})
		decide(t, s, now) // has all classes made anew: which could start is known of none
		var at sync.WaitGroup
		last := id
		for _, use := range []func(*Scheduler){
			func(f *Scheduler) {
				looked := 0
				for v := range f.Pending {
					if looked++; looked > 3 {
						break
					}
					if _, err := f.Explain(v.ID, now); err != nil {
						t.Error(err)
					}
				}
			},
			func(f *Scheduler) { endOne(f, now); f.Decide(now) },
			func(f *Scheduler) { f.replan(key{}, true) },
			func(f *Scheduler) {
				for i, spec := range shapes {
					_ = f.Apply(job.Submitted{At: now, ID: last + job.ID(i) + 1, Spec: spec})
				}
				f.Decide(now)
			},
			func(f *Scheduler) {
				if err := f.Snapshot(io.Discard); err != nil {
					t.Error(err)
				}
			},
			func(f *Scheduler) {
				_ = f.Apply(job.NodeStateSet{At: now, Node: "n0003", State: job.NodeDrain})
				f.Decide(now)
			},
			func(f *Scheduler) { _, _ = f.WhatIf(now, job.Submitted{At: now, ID: last + 1, Spec: shapes[0]}) },
		} {
			f := s.Fork()
			at.Go(func() {
				use(f)
				if err := f.Check(); err != nil {
					t.Error(err)
				}
			})
		}
		endOne(s, now)
		submit(s, now, &top)
		for _, spec := range shapes {
			if s.Apply(job.Submitted{At: now, ID: id + 1, Spec: spec}) == nil {
				id++
			}
		}
		decide(t, s, now)
		at.Wait()
	}
}
