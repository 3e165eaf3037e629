package server

import (
	"iter"
	"log/slog"
	"sync"
	"time"

	"github.com/gangway-hpc/gangway/internal/api"
	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/internal/store"
)

// committer makes batches durable, in their order and together where several wait, and
// then has their effects: answers and commands. It is the only one that appends.
//
// While the store takes nothing, batches are kept and tried again; who waits for a job to
// be stored is refused at once, and the core is told, so that it takes no new ones.
type committer struct {
	store  store.Store
	log    *slog.Logger
	failed func(queue []output, err error) []output // has the core refuse the jobs in what could not be stored
	fatal  func(error)

	mu      sync.Mutex
	trouble chan struct{} // closed while the store takes nothing
	why     error         // it takes nothing
	queue   []output
	ready   chan struct{} // one token
	closing bool
	dropped map[job.ID]bool // jobs that were refused after all
	ended   chan struct{}
	meter   *meter
}

func newCommitter(st store.Store, log *slog.Logger, m *meter) *committer {
	return &committer{store: st, log: log, ready: make(chan struct{}, 1), ended: make(chan struct{}), trouble: make(chan struct{}), meter: m}
}

// troubled is closed while the store takes nothing.
func (c *committer) troubled() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.trouble
}

// broken says whether the store takes nothing at the moment.
func (c *committer) broken() bool {
	select {
	case <-c.troubled():
		return true
	default:
		return false
	}
}

// setBroken notes that the store takes nothing, and why, or, by nil, that it does again.
func (c *committer) setBroken(why error) {
	broken := c.broken()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.why = why
	switch {
	case why != nil && !broken:
		close(c.trouble)
	case why == nil && broken:
		c.trouble = make(chan struct{})
	}
}

// refusal is the answer to who wants something to be stored while nothing is. next is what to
// do when there is room.
func (c *committer) refusal(what, next string) *api.Error {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := &api.Error{What: what, Kind: "CAN_NOT_SAVE", Hint: "make room where the controller keeps its state" + next + "; jobs that run go on"}
	if c.why != nil { // else it has just begun to take something
		e.Cause = c.why.Error()
	}
	return e
}

// drop notes that a job was refused because it could not be stored, and refused says so.
func (c *committer) drop(id job.ID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.dropped == nil {
		c.dropped = map[job.ID]bool{}
	}
	c.dropped[id] = true
}

func (c *committer) refused(id job.ID) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.dropped[id]
}

// put queues a batch.
func (c *committer) put(o output) {
	c.mu.Lock()
	c.queue = append(c.queue, o)
	c.mu.Unlock()
	c.wake()
}

func (c *committer) wake() {
	select {
	case c.ready <- struct{}{}:
	default:
	}
}

// close waits until everything is durable, or cannot be.
func (c *committer) close() {
	c.mu.Lock()
	c.closing = true
	c.mu.Unlock()
	c.wake()
	<-c.ended
}

func (c *committer) take() (queue []output, closing bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	queue, c.queue = c.queue, nil
	return queue, c.closing
}

// run is the committer's goroutine.
func (c *committer) run() {
	defer close(c.ended)
	for {
		<-c.ready
		queue, closing := c.take()
		if len(queue) > 0 {
			c.commit(queue)
			c.wake() // look again
			continue
		}
		if closing {
			return
		}
	}
}

// commit makes outputs durable, however long that takes, and has their effects.
func (c *committer) commit(queue []output) {
	for try := 0; ; try++ {
		rest, stored := c.attempt(queue, try)
		if stored {
			break
		}
		if rest == nil {
			return
		}
		queue = rest
		time.Sleep(min(time.Duration(1+try)*100*time.Millisecond, time.Second))
	}
	for f := range effects(queue) {
		f()
	}
}

// attempt tries to make outputs durable. What was not stored is to be tried again with what
// came since; nil: it never will be.
func (c *committer) attempt(queue []output, try int) (rest []output, stored bool) {
	b := together(queue)
	if len(b.Events)+len(b.Jobs)+len(b.Steps)+len(b.Drop) == 0 {
		return nil, true
	}
	began := time.Now()
	_, err := c.store.Append(b)
	if err == nil {
		c.meter.committed(time.Since(began), len(b.Events))
		if try > 0 {
			c.log.Info("store works again", "count", try)
			c.setBroken(nil)
		}
		return nil, true
	}
	c.meter.failures.Inc()
	c.setBroken(err)
	if store.IsFenced(err) {
		c.fatal(err)
		return nil, false
	}
	if try == 0 {
		c.log.Error("store takes nothing", "err", err)
	}
	// What is refused is cancelled before it is stored, so that it never is without that.
	queue = c.failed(queue, err)
	more, closing := c.take()
	if closing && try > 3 {
		c.log.Error("stopped with events that are not stored", "count", len(b.Events), "err", err)
		return nil, false
	}
	return append(queue, more...), false
}

// effects are those of outputs, in their order.
func effects(queue []output) iter.Seq[func()] {
	return func(yield func(func()) bool) {
		for i := range queue {
			for _, f := range queue[i].effects {
				if !yield(f) {
					return
				}
			}
		}
	}
}

// together is one batch of all.
func together(queue []output) *store.Batch {
	if len(queue) == 1 {
		return &queue[0].batch
	}
	var b store.Batch
	for i := range queue {
		o := &queue[i].batch
		b.Events = append(b.Events, o.Events...)
		b.Drop = append(b.Drop, o.Drop...)
		b.Blobs = append(b.Blobs, o.Blobs...)
		b.Jobs = append(b.Jobs, o.Jobs...)
		b.Steps = append(b.Steps, o.Steps...)
	}
	return &b
}
