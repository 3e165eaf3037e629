// Package sim runs traces of jobs through a scheduler by a virtual clock, and measures what
// comes of it: waits, slowdowns, utilisation, how near the nodes of a job are to each
// other, whether promised starts were kept, and how long decisions took.
//
// First use: [Open] a trace, make a cluster ([Uniform], [ReadNodes], or of a slurm.conf),
// and [Run] both with package sched's scheduler, or with a model to compare it with
// ([CycleModel], [FIFOModel]). [Report] has the results as JSON, text and HTML.
//
// A run is deterministic but for the latencies, which are measured by the machine's clock:
// the same trace, cluster and options give the same decisions and the same hash.
// Runs share nothing; each belongs to one goroutine. Nothing is started and no node is
// needed. What is called a model is our own imitation of a policy, not its program.
package sim

import (
	"container/heap"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gangway-hpc/gangway/internal/job"
)

// Policy decides; package sched's scheduler is one, and so are the models.
type Policy interface {
	Apply(e job.Event) error
	Decide(now job.Time) []job.Event
	Next() job.Time
	Hash() uint64
}

// Limits says which time limits jobs are given.
type Limits string

// The kinds of limits.
const (
	Exact Limits = "exact" // what a job takes
	Over  Limits = "over"  // 2 to 10 times what it takes, drawn by a fixed seed
	Given Limits = "given" // what the trace says; exact where it says nothing
)

// Options say how a trace is run.
type Options struct {
	Limits Limits // empty: Exact
	Seed   uint64 // of Over
	// Progress is told now and then how many jobs have ended; nil: nobody.
	Progress func(ended, all int)
	// After is called after each moment, in tests; nil: not.
	After func(now job.Time) error
}

// simulation is one run.
type simulation struct {
	policy  Policy
	trace   *Trace
	options Options
	totals  totals
	now     job.Time
	outcome []outcome // of job i+1
	ends    endHeap
	meter   *meter
	result  *Result
	left    int // jobs that have not ended and were not refused
}

// outcome is what became of a job.
type outcome struct {
	limit    job.Duration
	start    job.Time // 0: not yet
	end      job.Time // 0: not yet
	promised job.Time // first promise; 0: none
	standing job.Time // the promise that holds; 0: none
	breached bool     // one was taken back
	attempt  int
	killed   job.Duration // of its runs that were lost
	refused  bool
	nodes    []int32
	shares   []share // on each of these
	share    share   // in all
}

// share is a part of a node, or of several.
type share struct{ cpus, gpus int32 }

// end is when a job's run ends.
type end struct {
	at      job.Time
	id      job.ID
	attempt int
	state   job.State
}

// endHeap has the next end first; those of one moment by their jobs.
type endHeap []end

func (h endHeap) Len() int { return len(h) }
func (h endHeap) Less(i, j int) bool {
	return h[i].at < h[j].at || h[i].at == h[j].at && h[i].id < h[j].id
}
func (h endHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i] }

// Push implements heap.Interface.
func (h *endHeap) Push(x any) { *h = append(*h, x.(end)) }

// Pop implements heap.Interface.
func (h *endHeap) Pop() any {
	last := (*h)[len(*h)-1]
	*h = (*h)[:len(*h)-1]
	return last
}

// ErrTooSmall is in the error of a run of which no job can ever run on the cluster.
var ErrTooSmall = errors.New("the trace cannot run on this cluster")

// firstMoment is where traces begin whose clocks begin at 0: times of 0 mean something
// else to a scheduler.
const firstMoment = job.Time(job.Day)

// maxIdle is how often in a row a policy may ask to be called for nothing.
const maxIdle = 1_000_000

// Run runs a trace on a cluster until all of its jobs have ended or none can start.
func Run(ctx context.Context, p Policy, c *Cluster, t *Trace, o Options) (*Result, error) {
	if len(t.Jobs) == 0 {
		return nil, errors.New("the trace has no jobs")
	}
	c.partition()
	s := &simulation{policy: p, trace: t, options: o, totals: c.totals(), outcome: make([]outcome, len(t.Jobs)), left: len(t.Jobs)}
	if s.totals.nodes == 0 {
		return nil, errors.New("the cluster has no node that takes jobs")
	}
	offset := job.Duration(0)
	if t.Jobs[0].Submit < firstMoment {
		offset = firstMoment.Sub(0)
	}
	s.now = t.Jobs[0].Submit.Add(offset)
	s.meter = newMeter(c, s.totals.gpus > 0)
	s.result = &Result{Limits: o.limits(), begin: s.now, WhyNot: []Why{}, Promise: Promises{Reasons: []Reason{}}}
	for _, e := range c.events(s.now) {
		if err := p.Apply(e); err != nil {
			return nil, fmt.Errorf("set the cluster up: %w", err)
		}
	}
	began := time.Now()
	next, idle := 0, 0
	for s.left > 0 {
		if err := ctx.Err(); err != nil {
			return nil, context.Cause(ctx)
		}
		at := p.Next()
		if at = max(at, s.now); at == s.now && s.result.moments > 0 {
			at++ // it was asked at this moment
		}
		if next < len(t.Jobs) {
			at = min(at, t.Jobs[next].Submit.Add(offset))
		}
		if len(s.ends) > 0 {
			at = min(at, s.ends[0].at)
		}
		if at == job.Never {
			break // what waits can never start
		}
		s.now = at
		progress := next + s.result.started - s.left
		if err := s.endAll(); err != nil {
			return nil, err
		}
		for ; next < len(t.Jobs) && t.Jobs[next].Submit.Add(offset) == s.now; next++ {
			s.submit(next)
		}
		if err := s.decide(); err != nil {
			return nil, err
		}
		if o.After != nil {
			if err := o.After(s.now); err != nil {
				return nil, err
			}
		}
		if idle++; progress != next+s.result.started-s.left {
			idle = 0
		}
		if idle > maxIdle {
			return nil, fmt.Errorf("it asked to be called %d times in a row, until %d, and nothing came of it", idle, s.now)
		}
		if o.Progress != nil && s.result.moments%4096 == 0 {
			o.Progress(len(t.Jobs)-s.left, len(t.Jobs))
		}
		s.result.moments++
	}
	if why := s.result.WhyNot; s.result.Refused == len(t.Jobs) {
		return nil, fmt.Errorf("%w: none of %d jobs; that of line %d: %s", ErrTooSmall, len(t.Jobs), why[0].Line, why[0].Why)
	}
	s.result.wall = time.Since(began)
	s.finish(offset)
	return s.result, nil
}

func (o *Options) limits() Limits {
	if o.Limits == "" {
		return Exact
	}
	return o.Limits
}

// limit is the time limit of a job of a trace.
func (o *Options) limit(i int, j *Job) job.Duration {
	switch o.limits() {
	case Given:
		if j.Limit > 0 {
			return j.Limit
		}
	case Over:
		return job.Duration(float64(j.Run) * (2 + 8*draw(o.Seed, uint64(i))))
	}
	return j.Run
}

// draw is a number from 0 to 1, the same one for a seed and an index on every machine
// (SplitMix64).
func draw(seed, index uint64) float64 {
	z := seed + (index+1)*0x9e3779b97f4a7c15
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return float64((z^z>>31)>>11) / (1 << 53)
}

// submit hands job i in. One that is refused is counted.
func (s *simulation) submit(i int) {
	j, o := &s.trace.Jobs[i], &s.outcome[i]
	o.limit = s.options.limit(i, j)
	spec := s.totals.spec(j, o.limit)
	begin := time.Now()
	err := s.policy.Apply(job.Submitted{At: s.now, ID: job.ID(i + 1), Spec: spec})
	s.result.applied.add(time.Since(begin))
	if err != nil {
		o.refused = true
		s.left--
		s.result.refuse(j, err)
		return
	}
	s.meter.queued(s.now, 1)
}

// endAll ends the runs whose time has come.
func (s *simulation) endAll() error {
	for len(s.ends) > 0 && s.ends[0].at == s.now {
		e := heap.Pop(&s.ends).(end)
		o := &s.outcome[e.id-1]
		if o.attempt != e.attempt || o.end != 0 || o.start == 0 {
			continue // it was started anew since
		}
		begin := time.Now()
		err := s.policy.Apply(job.Ended{At: s.now, ID: e.id, State: e.state})
		s.result.applied.add(time.Since(begin))
		if err != nil {
			return fmt.Errorf("end job %d at %d: %w", e.id, s.now, err)
		}
		o.end = s.now
		s.meter.stop(s.now, o)
		s.left--
		s.result.count(e.state)
	}
	return nil
}

// decide lets the policy decide and does what it says.
func (s *simulation) decide() error {
	begin := time.Now()
	decisions := s.policy.Decide(s.now)
	s.result.decided.add(time.Since(begin))
	for _, d := range decisions {
		switch d := d.(type) {
		case job.Started:
			if err := s.start(d); err != nil {
				return err
			}
		case job.Promised:
			if err := s.promise(d); err != nil {
				return err
			}
		case job.Requeued:
			o := &s.outcome[d.ID-1]
			s.meter.stop(s.now, o)
			s.meter.queued(s.now, 1)
			o.killed += s.now.Sub(o.start)
			o.start, o.standing = 0, 0
		case job.Killed:
			o := &s.outcome[d.ID-1]
			if o.start != 0 {
				s.meter.stop(s.now, o)
			} else {
				s.meter.queued(s.now, -1)
			}
			o.end = s.now
			s.left--
			s.result.count(d.State)
		}
	}
	return nil
}

// promise notes what jobs are promised, and what is taken back.
func (s *simulation) promise(d job.Promised) error {
	for _, p := range d.Starts {
		if p.ID < 1 || int(p.ID) > len(s.outcome) {
			return fmt.Errorf("promise job %d a start: there is none such", p.ID)
		}
		o := &s.outcome[p.ID-1]
		if p.Start == 0 || p.Start == job.Never {
			continue // its place is given up, and another one follows; or nothing is promised
		}
		if o.promised == 0 {
			o.promised = p.Start
		}
		// What replaces a promise without a word must be earlier.
		if o.standing == 0 || p.Start < o.standing {
			o.standing = p.Start
		}
	}
	for _, b := range d.Broken {
		if b.ID < 1 || int(b.ID) > len(s.outcome) {
			return fmt.Errorf("take back a promise of job %d: there is none such", b.ID)
		}
		o := &s.outcome[b.ID-1]
		o.standing, o.breached = b.Now, true
		s.result.Promise.Breaches++
		s.result.whyBroken(b.Why)
	}
	return nil
}

// start starts a job: it ends when it has run, or at its limit.
func (s *simulation) start(d job.Started) error {
	if d.ID < 1 || int(d.ID) > len(s.outcome) {
		return fmt.Errorf("start job %d: there is none such", d.ID)
	}
	o, j := &s.outcome[d.ID-1], &s.trace.Jobs[d.ID-1]
	if o.start != 0 || o.end != 0 || o.refused {
		return fmt.Errorf("start job %d at %d: it runs or has ended", d.ID, s.now)
	}
	if o.standing != 0 && s.now > o.standing {
		s.result.Promise.Unsaid++
	}
	o.start = s.now
	o.attempt++
	e := end{at: s.now.Add(j.Run), id: d.ID, attempt: o.attempt, state: job.Completed}
	if limit := d.Allocation.Limit; limit > 0 && limit < j.Run {
		e.at, e.state = s.now.Add(limit), job.Timeout
	}
	heap.Push(&s.ends, e)
	s.meter.queued(s.now, -1)
	if err := s.meter.start(s.now, o, d.Allocation); err != nil {
		return fmt.Errorf("start job %d at %d: %w", d.ID, s.now, err)
	}
	s.result.started++
	return nil
}
