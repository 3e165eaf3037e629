package server

import (
	"bytes"
	"context"
	"encoding/gob"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/sched"
)

// saved is a state as a snapshot has it, beside the scheduler's own.
type saved struct {
	Subs  []submission
	Runs  []*run
	Once  map[string]job.ID
	Fates map[job.ID]*fate
	Held  map[job.ID]bool
	Dirty map[string][]attempt
	Past  []*run
	Last  job.ID
	Known []job.Node
	Parts []job.Partition
}

// restore makes the state of what the store has: the snapshot, and the events after it. A
// snapshot that cannot be read is left aside, since all events are there.
func (c *core) restore(ctx context.Context) error {
	began := time.Now()
	from, data, err := c.store.Snapshot()
	if err != nil {
		c.log.Warn("read snapshot", "err", err)
	}
	if from > 0 {
		if err := c.load(data); err != nil {
			c.log.Warn("the snapshot is not used", "err", err)
			c.state, from = *newState(), 0
		}
	}
	c.seq, c.saved = from, from
	err = c.store.Read(ctx, from, func(seq uint64, b []byte) error {
		e, err := decode(b)
		if err == nil {
			err = c.replay(e)
		}
		if err != nil {
			return fmt.Errorf("event %d: %w", seq, err)
		}
		c.seq = seq
		return nil
	})
	if err != nil {
		return fmt.Errorf("restore the state: %w", err)
	}
	c.log.Info("state is restored", "events", c.seq, "after_snapshot", c.seq-from, "jobs", c.last, "dur", time.Since(began))
	return nil
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
		sched: s, subs: v.Subs, runs: map[job.ID]*run{}, once: v.Once, fates: v.Fates, dirty: v.Dirty, past: v.Past, last: v.Last,
		known: v.Known, parts: v.Parts, held: v.Held,
	}
	if c.held == nil {
		c.held = map[job.ID]bool{}
	}
	if c.once == nil {
		c.once = map[string]job.ID{}
	}
	if c.fates == nil {
		c.fates = map[job.ID]*fate{}
	}
	if c.dirty == nil {
		c.dirty = map[string][]attempt{}
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
	}
	return nil
}

// dump writes a snapshot of the state.
func (c *core) dump() ([]byte, error) {
	v := saved{Subs: c.subs, Once: c.once, Fates: c.fates, Held: c.held, Dirty: c.dirty, Last: c.last, Known: c.known, Parts: c.parts}
	short := func(r *run) *run {
		c := *r
		c.Facts, c.now = nil, present{}
		return &c
	}
	for _, r := range c.runs {
		v.Runs = append(v.Runs, short(r))
	}
	for _, r := range c.past {
		v.Past = append(v.Past, short(r))
	}
	var b bytes.Buffer
	if err := gob.NewEncoder(&b).Encode(&v); err != nil {
		return nil, fmt.Errorf("write snapshot: %w", err)
	}
	if err := c.sched.Snapshot(&b); err != nil {
		return nil, fmt.Errorf("write snapshot: %w", err)
	}
	return b.Bytes(), nil
}

// snapshot has the present state saved once its events are durable.
func (c *core) snapshot() {
	data, err := c.dump()
	if err != nil {
		c.log.Error("make snapshot", "err", err)
		return
	}
	seq := c.seq
	c.saved = seq
	c.after(func() {
		if !c.saving.TryLock() {
			return // the one before is still being written
		}
		go func() {
			defer c.saving.Unlock()
			if err := c.store.SaveSnapshot(seq, data); err != nil {
				c.log.Error("save snapshot", "err", err)
			}
		}()
	})
}

// saveNow saves a snapshot when the core and the committer have ended.
func (c *core) saveNow() {
	c.saving.Lock()
	defer c.saving.Unlock()
	if c.seq == c.saved || c.commit.broken.Load() {
		return
	}
	data, err := c.dump()
	if err == nil {
		err = c.store.SaveSnapshot(c.seq, data)
	}
	if err != nil {
		c.log.Error("save snapshot", "err", err)
	}
}

// declare takes in what the cluster is declared to be, as far as that is new.
func (c *core) declare(cluster *job.Cluster) error {
	c.clock()
	if len(c.known) == 0 {
		if err := c.apply(job.Configured{At: c.now, Config: cluster.Config}); err != nil {
			return fmt.Errorf("configure the cluster: %w", err)
		}
		if err := c.apply(job.NetworkSet{At: c.now, Network: cluster.Network}); err != nil {
			return fmt.Errorf("configure the cluster: %w", err)
		}
	}
	for _, n := range cluster.Nodes {
		have := c.knownNode(n.Name)
		if have != nil {
			n.State, n.Reason = have.State, have.Reason
			if !cluster.Declared || same(n, *have) {
				continue
			}
		} else {
			n.State |= job.NodeUnknown
		}
		if err := c.apply(job.NodeSet{At: c.now, Node: n}); err != nil && have == nil {
			return fmt.Errorf("add node %s: %w", n.Name, err)
		} else if err != nil {
			c.log.Warn("node stays as it was", "node", n.Name, "err", err)
		}
	}
	for _, p := range cluster.Partitions {
		have := c.partition(p.Name)
		if have != nil {
			p.State = have.State
			if same(p, *have) {
				continue
			}
		}
		if err := c.apply(job.PartitionSet{At: c.now, Partition: p}); err != nil {
			return fmt.Errorf("add partition %s: %w", p.Name, err)
		}
	}
	for _, n := range c.known {
		c.nodes[n.Name] = &node{spec: n, state: n.State, reason: n.Reason, seen: c.now, since: c.now}
	}
	for _, r := range c.runs {
		c.touched[r.Of.Job] = true
		for _, st := range r.Steps {
			if st.Gang.Starting { // its nodes have to come back first
				st.Gang.deadline = c.now.Add(c.lostAfter() + startSpan)
			}
		}
	}
	for id := range c.held {
		c.holders[id] = &holding{gone: c.now} // its holder comes back, or it ends
	}
	return nil
}

func same(a, b any) bool {
	x, errX := json.Marshal(a)
	y, errY := json.Marshal(b)
	return errX == nil && errY == nil && slices.Equal(x, y)
}
