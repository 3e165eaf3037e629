package server

import (
	"bytes"
	"context"
	"encoding/gob"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"time"

	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/sched"
)

// saved is a state as a snapshot has it, beside the scheduler's own.
type saved struct {
	Subs  []savedSubmission
	Facts []*facts
	Runs  []*run
	Once  map[string]onceSent
	Fates map[job.ID]*fate
	Held  map[job.ID]bool
	Dirty map[string][]attempt
	Past  []*run
	Last  job.ID
	Met   map[string]meeting
	Pins  map[job.ID]map[string]string
	Known []job.Node
	Parts []job.Partition
	// Comments and Declared may be missing in what older controllers have saved.
	Comments map[job.ID]string
	Declared map[string]job.Partition
	Dead     map[attempt][]string
	Councils map[string][]council
}

// savedSubmission is a submission whose facts are the At-th.
type savedSubmission struct {
	First job.ID
	N, At int
	Seq   uint64
}

// restore makes the state of what the store has: a snapshot, and the events after it. The
// older of two snapshots does if the later one cannot be read, and all events without any.
func (c *core) restore(ctx context.Context) error {
	began := time.Now()
	from, err := c.store.Restore(ctx, func(_ uint64, data []byte) error {
		err := c.load(data)
		if err != nil {
			c.state = *newState()
		}
		return err
	})
	if err != nil {
		c.log.Warn("a snapshot is not used", "err", err)
	}
	c.seq, c.saved = from, from
	if failed := c.readAll(ctx, from); failed != nil {
		return fmt.Errorf("restore the state: %w", errors.Join(failed, err))
	}
	c.log.Info("state is restored", "events", c.seq, "after_snapshot", c.seq-from, "jobs", c.last, "dur", time.Since(began))
	return nil
}

// maxAhead is how many events are decoded before they are replayed.
const maxAhead = 1024

// decoding is an event that is being decoded.
type decoding struct {
	seq  uint64
	data []byte
	e    any
	err  error
	done chan struct{}
}

// readAll replays the events after one. They are decoded by several goroutines, and
// replayed in their order by this one.
func (c *core) readAll(ctx context.Context, from uint64) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	work, order := make(chan *decoding, maxAhead), make(chan *decoding, maxAhead)
	for range runtime.GOMAXPROCS(0) {
		go func() {
			for d := range work {
				d.e, d.err = decode(d.data)
				close(d.done)
			}
		}()
	}
	read := make(chan error, 1)
	go func() {
		defer close(work)
		defer close(order)
		read <- c.store.Read(ctx, from, func(seq uint64, b []byte) error {
			d := &decoding{seq: seq, data: b, done: make(chan struct{})}
			for _, ch := range []chan *decoding{work, order} {
				select {
				case ch <- d:
				case <-ctx.Done():
					return ctx.Err()
				}
			}
			return nil
		})
	}()
	for d := range order {
		<-d.done
		if d.err == nil {
			d.err = c.replay(d.e)
		}
		if d.err != nil {
			return fmt.Errorf("event %d: %w", d.seq, d.err)
		}
		c.seq = d.seq
	}
	return <-read
}

func (c *core) load(data []byte) error {
	r := bytes.NewReader(data)
	var v saved
	if err := gob.NewDecoder(r).Decode(&v); err != nil {
		return fmt.Errorf("read snapshot: %w", err)
	}
	s, err := sched.Restore(r)
	if err != nil {
		return fmt.Errorf("read snapshot: %w", err)
	}
	c.state = state{
		sched: s, runs: map[job.ID]*run{}, once: v.Once, fates: v.Fates, dirty: v.Dirty, past: v.Past, last: v.Last,
		known: v.Known, parts: v.Parts, held: v.Held, met: v.Met, pins: v.Pins,
		comments: v.Comments, declared: v.Declared, dead: v.Dead, councils: v.Councils,
	}
	c.fillMaps()
	for _, sub := range v.Subs {
		if sub.At >= len(v.Facts) {
			return fmt.Errorf("read snapshot: job %v has no facts", sub.First)
		}
		c.subs = append(c.subs, submission{sub.First, sub.N, v.Facts[sub.At], sub.Seq})
	}
	for _, r := range append(v.Runs, v.Past...) {
		if sub := c.submission(r.Of.Job); sub != nil {
			r.Facts = sub.Facts
		}
		if r.Steps == nil {
			r.Steps = map[job.StepID]*step{}
		}
	}
	for _, r := range v.Runs {
		c.runs[r.Of.Job] = r
		for _, st := range r.Steps {
			st.Gang.killing = st.Gang.Asked || st.Gang.Failing != nil
		}
	}
	return nil
}

// picture is a state as it is at a moment: what is changed later is not changed in it, so
// that it can be written while the core goes on.
type picture struct {
	saved
	subs  []submission
	sched *sched.Scheduler
}

// picture costs next to nothing but for what runs.
func (c *core) picture() *picture {
	p := &picture{sched: c.sched.Fork(), subs: c.subs[:len(c.subs):len(c.subs)], saved: saved{
		Once: maps.Clone(c.once), Fates: maps.Clone(c.fates), Held: maps.Clone(c.held), Dirty: map[string][]attempt{},
		Last: c.last, Met: maps.Clone(c.met), Pins: map[job.ID]map[string]string{}, Known: slices.Clone(c.known), Parts: slices.Clone(c.parts),
		Comments: maps.Clone(c.comments), Declared: maps.Clone(c.declared), Dead: maps.Clone(c.dead), Councils: maps.Clone(c.councils),
	}}
	for name, list := range c.dirty {
		p.Dirty[name] = slices.Clone(list)
	}
	for id, pins := range c.pins {
		p.Pins[id] = maps.Clone(pins)
	}
	for _, r := range c.runs {
		p.Runs = append(p.Runs, r.copy())
	}
	for _, r := range c.past {
		p.Past = append(p.Past, &run{Of: r.Of, Alloc: r.Alloc, Start: r.Start, Done: r.Done, Next: r.Next, Fate: r.Fate})
	}
	return p
}

// copy is what is saved of a run. Steps that have ended are not changed any more.
func (r *run) copy() *run {
	c := &run{
		Of: r.Of, Alloc: r.Alloc, Start: r.Start, Done: slices.Clone(r.Done), Next: r.Next, Fate: r.Fate, Warned: r.Warned,
		Steps: map[job.StepID]*step{},
	}
	for id, st := range r.Steps {
		g := &gang{Key: st.Gang.Key, Nodes: slices.Clone(st.Gang.Nodes), Starting: st.Gang.Starting, Asked: st.Gang.Asked, Grace: st.Gang.Grace, Why: st.Gang.Why, Failing: st.Gang.Failing}
		for i := range g.Nodes {
			g.Nodes[i].Due = slices.Clone(g.Nodes[i].Due)
		}
		c.Steps[id] = &step{
			Spec: st.Spec, Env: st.Env, Text: st.Text, Want: st.Want, Made: st.Made, Begun: st.Begun, Gang: g, Result: st.Result, Avoid: st.Avoid,
			Warned: st.Warned,
		}
	}
	return c
}

// bytes is a picture as it is saved.
func (p *picture) bytes() ([]byte, error) {
	for i := range p.subs {
		if i == 0 || p.subs[i].Facts != p.subs[i-1].Facts {
			p.Facts = append(p.Facts, p.subs[i].Facts)
		}
		p.Subs = append(p.Subs, savedSubmission{p.subs[i].First, p.subs[i].N, len(p.Facts) - 1, p.subs[i].Seq})
	}
	var b bytes.Buffer
	if err := gob.NewEncoder(&b).Encode(&p.saved); err != nil {
		return nil, fmt.Errorf("write snapshot: %w", err)
	}
	if err := p.sched.Snapshot(&b); err != nil {
		return nil, fmt.Errorf("write snapshot: %w", err)
	}
	return b.Bytes(), nil
}

// snapshot has the present state saved once its events are durable.
func (c *core) snapshot() {
	if !c.saving.TryLock() {
		return // the one before is still being written
	}
	p, seq := c.picture(), c.seq
	c.saved = seq
	c.fresh = map[string]bool{}
	c.after(func() {
		c.apart(func() {
			defer c.saving.Unlock()
			if c.save(p, seq) {
				c.prune(p, seq)
			}
		})
	})
}

// save writes a snapshot, and says whether it is there.
func (c *core) save(p *picture, seq uint64) bool {
	data, err := p.bytes()
	if err == nil {
		err = c.store.SaveSnapshot(seq, data)
	}
	if err != nil {
		c.log.Error("save snapshot", "err", err)
	}
	return err == nil
}

// prune removes what a snapshot makes needless: events of which no job that is known has
// any, and scripts and environments of none. It is not called by the core.
func (c *core) prune(p *picture, seq uint64) {
	upTo := seq
	if len(p.subs) > 0 {
		upTo = min(seq, max(p.subs[0].Seq, 1)-1)
	}
	if kept := uint64(c.opts.KeepEvents); seq > kept {
		upTo = max(upTo, seq-kept)
	}
	if err := c.store.Prune(upTo); err != nil {
		c.log.Error("remove old events", "err", err)
	}
	needed := p.blobs()
	var dead []string
	err := c.store.Blobs(context.Background(), func(digest string) error {
		if !needed[digest] {
			dead = append(dead, digest)
		}
		return nil
	})
	if err != nil {
		c.log.Error("remove old scripts and environments", "err", err)
	}
	if len(dead) == 0 {
		return
	}
	done := make(chan struct{})
	c.later(func(c *core) {
		defer close(done)
		c.drop(dead)
	})
	select { // the next picture is taken after this
	case <-done:
	case <-c.stopped:
	}
}

// drop removes blobs, but for those that were needed since they were found needless.
func (c *core) drop(dead []string) {
	for _, digest := range dead {
		if !c.fresh[digest] {
			delete(c.stored, digest)
			c.out.batch.Drop = append(c.out.batch.Drop, digest)
		}
	}
}

// blobs are the digests of those that jobs and steps may still need.
func (p *picture) blobs() map[string]bool {
	needed := map[string]bool{}
	for i := range p.subs {
		needed[p.subs[i].Facts.Env], needed[p.subs[i].Facts.Text] = true, true
	}
	for _, r := range p.Runs {
		for _, st := range r.Steps {
			needed[st.Env], needed[st.Text] = true, true
		}
	}
	return needed
}

// saveNow saves a snapshot when the core and the committer have ended.
func (c *core) saveNow() {
	if c.commit.broken() { // some of its events are not stored
		return
	}
	c.saving.Lock()
	defer c.saving.Unlock()
	if c.seq != c.saved {
		c.save(c.picture(), c.seq)
	}
}
