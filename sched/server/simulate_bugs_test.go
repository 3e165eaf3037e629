package server

import (
	"bytes"
	"encoding/gob"
	"encoding/json"
	"fmt"
	"testing"

	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/internal/store"
	"github.com/gangway-hpc/gangway/internal/wire"
)

// planted is a bug that a simulation has to find. It is in what surrounds the code of
// production, which has no switches for it: what is lost on the way to the store is what nobody
// stored, and a message that says too much is an agent that said it.
type planted struct {
	name string
	rare bool   // it takes many events to be found, too many for -short
	from uint64 // the first seed: one that finds a rare one
	// batch changes what is stored, and snapshot what is saved.
	batch    func(*store.Batch)
	snapshot func(data []byte) []byte
	// lose is what is lost when the controller starts.
	lose func(*sim)
	// turn comes after each of the core.
	turn func(*core)
	// up and down change messages; nil: they are lost.
	up   func(*sim, *wire.AgentMessage) *wire.AgentMessage
	down func(*simLink, *wire.ControllerMessage) *wire.ControllerMessage

	early       bool // effects come before the batch is stored
	noFence     bool // the store takes batches of older controllers
	noIntent    bool // ranks start though it is not on disk that they are to
	forgetEpoch bool // the agent has the epoch in memory only
	lazySearch  bool // the agent says that a node is clean, and did not look
	startTwice  bool // a supervisor starts ranks for each START
}

// without is that events of a kind, with a text in them, are not stored.
func without(kind, text string) func(*store.Batch) {
	prefix := []byte(`{"K":"` + kind + `"`)
	return func(b *store.Batch) {
		for i, e := range b.Events {
			if bytes.HasPrefix(e, prefix) && bytes.Contains(e, []byte(text)) {
				b.Events[i] = []byte(`{"K":"Warned","V":{"At":1,"ID":0}}`) // means nothing
			}
		}
	}
}

// lacking is a snapshot that has not all of the state.
func lacking(drop func(*saved)) func([]byte) []byte {
	return func(data []byte) []byte {
		r := bytes.NewReader(data)
		var v saved
		if err := gob.NewDecoder(r).Decode(&v); err != nil {
			panic(err)
		}
		drop(&v)
		var b bytes.Buffer
		if err := gob.NewEncoder(&b).Encode(&v); err != nil {
			panic(err)
		}
		return append(b.Bytes(), data[len(data)-r.Len():]...)
	}
}

func plantedBugs() []planted {
	return []planted{
		{name: "answers before it is stored", early: true},
		{name: "an old controller is not fenced off", noFence: true},
		{name: "no intent before START", noIntent: true},
		{name: "START is not idempotent", startTwice: true},
		{name: "the agent forgets the epoch", forgetEpoch: true},
		{name: "clean without having looked", lazySearch: true},
		{name: "a signal is not kept", batch: without("SignalKept", "")},
		{name: "a drain is not kept", batch: without("NodeState", "bad disk")},
		{name: "a cancel is not kept", batch: without("Cancelled", "")},
		{name: "a job's end is not kept", batch: without("Ended", "")},
		{name: "what is left of a lost job is not kept", rare: true, from: 5, batch: without("NodeSoiled", "")},
		{name: "keys of requests are not kept", batch: func(b *store.Batch) {
			for i, e := range b.Events {
				b.Events[i] = bytes.Replace(e, []byte(`"Once":"once`), []byte(`"Twice":"once`), 1)
			}
		}},
		{name: "a snapshot lacks keys of requests", snapshot: lacking(func(v *saved) { v.Once = nil })},
		{name: "a snapshot lacks nodes that are not clean", snapshot: lacking(func(v *saved) { v.Dirty = nil })},
		{name: "a snapshot lacks what a job is ending as", rare: true, from: 1, snapshot: lacking(func(v *saved) {
			for _, r := range v.Runs {
				r.Fate = nil
			}
		})},
		{name: "a snapshot lacks signals", rare: true, from: 6, snapshot: lacking(func(v *saved) {
			for _, r := range v.Runs {
				for _, st := range r.Steps {
					for i := range st.Gang.Nodes {
						st.Gang.Nodes[i].Due = nil
					}
				}
			}
		})},
		{name: "the end of the log is lost", lose: func(s *sim) {
			keep := max(0, len(s.disk.all)-2)
			for _, snap := range s.disk.snapshots {
				keep = max(keep, int(snap.seq))
			}
			s.disk.all = s.disk.all[:keep]
		}},
		{name: "a gang does not wait for all nodes", turn: func(c *core) {
			for id, r := range c.runs {
				for _, st := range r.Steps {
					if st.Gang.Starting || st.Gang.count(prepared) == 0 {
						continue
					}
					for n := range st.Gang.each {
						n.Phase = max(n.Phase, prepared)
					}
					c.touched[id] = true
				}
			}
		}},
		{name: "nodes are given on that are not clean", turn: func(c *core) { clear(c.dirty) }},
		{name: "prepared is said when the prepare begins", up: func(_ *sim, m *wire.AgentMessage) *wire.AgentMessage {
			if p := m.GetProgress(); p != nil {
				return &wire.AgentMessage{Message: &wire.AgentMessage_Prepared{Prepared: &wire.Prepared{Key: p.Key}}}
			}
			return m
		}},
		{name: "the node is not looked at in an end", up: func(s *sim, m *wire.AgentMessage) *wire.AgentMessage {
			return of(s, m, func(c *core, end *job.StepEnd) bool {
				st := c.step(end.Key)
				if st == nil || len(st.Gang.Nodes) < 2 {
					return false
				}
				st.Gang.Nodes[0].Phase, st.Gang.Nodes[0].End = ended, end
				return true
			})
		}},
		{name: "a release is not waited for", down: func(l *simLink, m *wire.ControllerMessage) *wire.ControllerMessage {
			if r := m.GetRelease(); r != nil {
				l.m.post(func(c *core) { c.cleanedBy(l.n.name, &wire.Cleaned{Job: r.Job, Attempt: r.Attempt}) })
			}
			return m
		}},
	}
}

// of changes the end in a message.
func of(s *sim, m *wire.AgentMessage, change func(*core, *job.StepEnd) bool) *wire.AgentMessage {
	e := m.GetEnded()
	var end job.StepEnd
	if e == nil || s.master == nil || json.Unmarshal(e.End, &end) != nil || !change(s.master.c, &end) {
		return m
	}
	b, err := json.Marshal(end)
	if err != nil {
		panic(err)
	}
	return &wire.AgentMessage{Message: &wire.AgentMessage_Ended{Ended: &wire.Ended{End: b}}}
}

// plantedEvents is within how many events a planted bug is to be found, by some seed.
const (
	plantedSeeds  = 40
	plantedEvents = 20_000
)

// TestSimulateFindsBugs: what is wrong is found.
func TestSimulateFindsBugs(t *testing.T) {
	for _, bug := range plantedBugs() {
		if bug.rare && testing.Short() {
			continue
		}
		t.Run(bug.name, func(t *testing.T) {
			events := 0
			for seed := range uint64(plantedSeeds) {
				seed += bug.from
				s := newSim(t, seed, bug)
				err := s.run(plantedEvents)
				if events += s.count; err != nil {
					t.Logf("found by seed %d, after %d events: %s", seed, events, fmt.Sprintf("%.200s", err))
					return
				}
			}
			t.Errorf("it is not found in %d events", events)
		})
	}
}
