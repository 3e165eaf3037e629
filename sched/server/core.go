package server

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/gangway-hpc/gangway/internal/api"
	"github.com/gangway-hpc/gangway/internal/fault"
	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/internal/lease"
	"github.com/gangway-hpc/gangway/internal/store"
	"github.com/gangway-hpc/gangway/sched"
)

// core is the state with what is known of the present. It belongs to one goroutine: [core.loop]
// runs what others put into inputs, one after the other, and what has to be said goes out
// through the committer, once the events are durable.
type core struct {
	state
	opts   *Options
	log    *slog.Logger
	store  store.Store
	commit *committer
	inputs chan func(*core)
	now    job.Time // of the input that is being taken
	time   clock
	leases *lease.Grants
	probes uint64               // that were made
	began  time.Time            // when the controller started
	steady func() time.Duration // the clock that only runs
	apart  func(func())         // has something done that takes long, while the core goes on

	nodes     map[string]*node
	holders   map[job.ID]*holding
	precaches map[string]*precaching
	out       output            // of the present turn
	views     []sched.JobView   // room for those of a query
	places    map[string]string // of nodes in the tree of switches
	touched   map[job.ID]bool   // jobs that changed in this turn
	stored    map[string]bool   // digests of blobs that are in the store, or will be before what comes
	fresh     map[string]bool   // digests of blobs that were needed since the latest snapshot
	late      job.Time          // when the next tick is due
	forgot    job.Time          // when the latest jobs were forgotten
	asked     prefetched        // images that nodes were told to have ready
	watch     watchers
	meter     *meter
	unsettled bool            // the cluster is not yet as it is declared
	settle    job.Time        // when that is looked at next
	saving    sync.Mutex      // while a snapshot is written
	saved     uint64          // of the latest snapshot
	stopped   <-chan struct{} // closed when the core has ended
}

func newCore(opts *Options, inputs chan func(*core), stopped <-chan struct{}, m *meter) *core {
	began := time.Now()
	return &core{
		state: *newState(), opts: opts, log: opts.Log, store: opts.Store, inputs: inputs, nodes: map[string]*node{},
		holders: map[job.ID]*holding{}, precaches: map[string]*precaching{}, asked: prefetched{of: map[nodeImage]job.Time{}}, touched: map[job.ID]bool{}, stored: map[string]bool{}, fresh: map[string]bool{}, meter: m,
		commit: newCommitter(opts.Store, opts.Log, m), stopped: stopped, began: began,
		steady: func() time.Duration { return time.Since(began) }, apart: func(f func()) { go f() },
	}
}

// begin has the core know what the store knows.
func (c *core) begin(ctx context.Context) error {
	c.leases = c.newGrants()
	if err := c.restore(ctx); err != nil {
		return err
	}
	return c.declare(c.opts.Cluster)
}

// output is what a turn made.
type output struct {
	batch   store.Batch
	effects []func()  // once the batch is durable
	submits []waiting // jobs in this batch
}

// waiting is a job that was not acknowledged yet.
type waiting struct {
	id     job.ID
	n      int         // with its tasks
	refuse func(error) // if it could not be stored
	blobs  []string    // digests of those that are stored for it first
}

// Bounds of a turn, and the span of ticks.
const (
	maxInputs = 512
	tickSpan  = 200 * job.Millisecond
)

// do runs f in the core's goroutine and waits for it. It says false if the core has ended
// or ctx has.
func (s *Server) do(ctx context.Context, f func(*core)) error {
	done := make(chan struct{})
	select {
	case s.inputs <- func(c *core) { defer close(done); f(c) }:
	case <-ctx.Done():
		return ctx.Err()
	case <-s.stopped:
		return stopping()
	}
	select {
	case <-done:
		return nil
	case <-s.stopped:
		return stopping()
	}
}

// put has f run in the core's goroutine, some time.
func (s *Server) put(f func(*core)) {
	select {
	case s.inputs <- f:
	case <-s.stopped:
	}
}

// loop is the core's goroutine.
func (c *core) loop(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case f := <-c.inputs:
			c.clock()
			f(c)
			c.gather()
		case <-timer.C:
			c.clock()
		}
		c.turn()
		wait := c.late.Sub(c.now)
		if next := c.sched.Next(); next != job.Never {
			wait = min(wait, next.Sub(c.now))
		}
		timer.Reset(max(0, time.Duration(wait)*time.Millisecond))
	}
}

// gather takes what else is queued.
func (c *core) gather() {
	for range maxInputs {
		select {
		case f := <-c.inputs:
			f(c)
		default:
			return
		}
	}
}

// turn decides, sees to what changed, and hands everything to the committer.
func (c *core) turn() {
	began, deciding, decided := time.Now(), time.Duration(0), 0
	for range 4 { // what is decided may end what lets more be decided
		before := time.Now()
		events := c.sched.Decide(c.now)
		deciding, decided = deciding+time.Since(before), decided+len(events)
		for _, e := range events {
			c.decided(e)
		}
		if c.now >= c.late {
			c.late = c.now.Add(tickSpan)
			c.tick()
		}
		if !c.driveTouched() {
			break
		}
	}
	c.publish()
	c.flush()
	c.meter.turned(time.Since(began), deciding, decided)
}

// flush hands what the turn made to the committer.
func (c *core) flush() {
	if len(c.out.batch.Events) == 0 && len(c.out.batch.Drop) == 0 && len(c.out.effects) == 0 {
		return
	}
	c.commit.put(c.out)
	c.out = output{}
}

// emit takes an event in. One of the scheduler's must have been taken by it.
func (c *core) emit(e any) {
	b, err := encode(e)
	if err == nil {
		c.meter.tally.event(e, func(id job.ID) bool { return c.runs[id] == nil })
		err = c.follow(e)
	}
	if err != nil {
		c.log.Error("event is not stored", "err", err)
		return
	}
	c.seq++
	c.out.batch.Events = append(c.out.batch.Events, b)
}

// apply gives an event to the scheduler and takes it in.
func (c *core) apply(e job.Event) error {
	if err := c.sched.Apply(e); err != nil {
		return err
	}
	c.emit(e)
	return nil
}

// after does something once all that was decided so far is durable.
func (c *core) after(f func()) { c.out.effects = append(c.out.effects, f) }

// touch has a job looked at in this turn, and those who watch told.
func (c *core) touch(id job.ID) {
	c.touched[id] = true
	c.watch.job(id)
}

// later has something done in a turn to come. It is called by others than the core.
func (c *core) later(f func(*core)) {
	select {
	case c.inputs <- f:
	case <-c.stopped:
	}
}

// decided takes in what the scheduler decided.
func (c *core) decided(e job.Event) {
	var lost *run
	switch e := e.(type) {
	case job.Requeued:
		lost = c.runs[e.ID]
	case job.Killed:
		lost = c.runs[e.ID]
	}
	if lost != nil {
		lost.now.lost = sortedSteps(lost.Steps)
	}
	c.emit(e)
	switch e := e.(type) {
	case job.Started:
		c.touch(e.ID)
	case job.Requeued:
		c.lostRun(lost)
		c.touch(e.ID)
	case job.Killed:
		if lost != nil {
			c.lostRun(lost)
		} else {
			c.accountPending(e.ID)
		}
		c.touch(e.ID)
	}
}

// driveTouched sees to the runs that were touched, and says whether anything may have
// changed by that.
func (c *core) driveTouched() bool {
	before := c.seq
	for len(c.touched) > 0 {
		for _, id := range slices.Sorted(maps.Keys(c.touched)) {
			delete(c.touched, id)
			if r := c.runs[id]; r != nil {
				c.drive(r)
			}
		}
	}
	return c.seq != before
}

// tick sees to everything for which time may have come.
func (c *core) tick() {
	c.tickNodes()
	for _, id := range slices.Sorted(maps.Keys(c.runs)) {
		r := c.runs[id]
		if r == nil {
			continue
		}
		c.drive(r)
		for _, st := range r.Steps {
			c.tellProgress(r, st)
		}
	}
	c.tickHolders()
	c.tickHealth()
	c.tickSettle()
	c.prefetch()
	if c.now >= c.forgot.Add(job.Minute) {
		c.forgot = c.now
		c.forget(c.now)
	}
	if c.seq >= c.saved+uint64(c.opts.SnapshotEvery) {
		c.snapshot()
	}
}

// stopping is the answer of a controller that ends.
func stopping() *api.Error {
	return &api.Error{What: "the controller is stopping", Code: fault.CodeUnreachable, Kind: "CONTROLLER_UNREACHABLE"}
}
