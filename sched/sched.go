// Package sched is the scheduler: a pure, deterministic state machine over the events of
// package internal/job. It decides which jobs start where, when those that wait are
// expected to start, and says why they wait.
//
// First use: [New], then [Scheduler.Apply] for what happens outside (nodes, partitions,
// submitted and ended jobs), and [Scheduler.Decide] to get, and log, what follows from it.
// The state is a function of the sequence of events: who applies the logged events, the
// decisions among them, in their order has the same state, without Decide.
//
// A Scheduler has one owner: nothing in it is safe for concurrent use. [Scheduler.Fork]
// makes an independent copy. The package opens nothing, knows no clock and no randomness;
// it imports internal/job only, and starts and kills nothing itself.
package sched

import (
	"errors"
	"io"

	"github.com/gangway-hpc/gangway/internal/job"
)

// Scheduler is the state. Its zero value is of no use: see [New].
type Scheduler struct {
	now  job.Time
	hash uint64
}

// New is a scheduler without nodes, partitions and jobs.
func New() *Scheduler { return &Scheduler{} }

// Apply takes in what happened, or a decision from the log. After an error the state is as
// it was; the error says why and, where there is one, the nearest thing that could be.
func (s *Scheduler) Apply(e job.Event) error { return errors.New("apply event: not built yet") }

// Decide decides at a moment, applies what it decided and returns it for the log.
func (s *Scheduler) Decide(now job.Time) []job.Event { return nil }

// Next is when Decide has to be called though nothing happens until then; job.Never if
// only events can change anything.
func (s *Scheduler) Next() job.Time { return job.Never }

// Now is the moment of the latest event or decision.
func (s *Scheduler) Now() job.Time { return s.now }

// Hash is of all decisions so far.
func (s *Scheduler) Hash() uint64 { return s.hash }

// Job returns what is known about a job, in a copy.
func (s *Scheduler) Job(id job.ID) (JobView, bool) { return JobView{}, false }

// Pending yields the jobs that wait, in the order in which they are looked at.
func (s *Scheduler) Pending(yield func(JobView) bool) {}

// Running yields the jobs that have nodes, by rising id.
func (s *Scheduler) Running(yield func(JobView) bool) {}

// Check proves the invariants, in time proportional to the state. An error is a bug.
func (s *Scheduler) Check() error { return nil }

// Snapshot writes the state, from which [Restore] makes the same one.
func (s *Scheduler) Snapshot(w io.Writer) error { return nil }

// Restore reads what [Scheduler.Snapshot] wrote.
func Restore(r io.Reader) (*Scheduler, error) { return New(), nil }

// Fork is an independent copy, made by copying on write.
func (s *Scheduler) Fork() *Scheduler { c := *s; return &c }

// Explain says why a pending job waits, when it is expected to start and what would start
// it sooner.
func (s *Scheduler) Explain(id job.ID, now job.Time) (Explanation, error) {
	return Explanation{}, nil
}

// WhatIf applies events to a copy and says whose expected start changes.
func (s *Scheduler) WhatIf(now job.Time, events ...job.Event) ([]Difference, error) {
	return nil, nil
}
