package server

import (
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/gangway-hpc/gangway/internal/api"
	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/internal/wire"
	"github.com/gangway-hpc/gangway/launcher/tree"
)

func widthTwo(c *job.Cluster) { c.TreeWidth = 2 }

// startedOnce refuses steps that were not started just once on each of so many nodes.
func (w *world) startedOnce(key job.StepKey, nodes int) {
	w.t.Helper()
	for _, a := range w.agents {
		a.set(func() {
			if n := a.starts[key]; n > 1 {
				w.t.Errorf("step %v was started %d times on %s", key, n, a.node.Name)
			}
		})
	}
	if n := w.started()[key]; n != nodes {
		w.t.Errorf("step %v was started on %d nodes, want %d", key, n, nodes)
	}
}

// TestTree: what is for many nodes goes by way of some, and so do the answers, also heartbeats;
// signals come in their order.
func TestTree(t *testing.T) {
	t.Parallel()
	w := newWorldOf(t, 15, widthTwo)
	w.runFor(0)
	id := w.allocation(15)
	s := w.step(id, stepRequest(15, 15))
	w.until("it runs", func() bool { return w.started()[s.Key] == 15 })
	var want []int
	for n := range 20 {
		name := []string{"USR1", "USR2"}[n%2]
		w.do("POST", "/v1/jobs/"+id.String()+"/signal", &api.Change{Signal: name, Step: &s.Key.Step}, nil)
		want = append(want, map[string]int{"USR1": 10, "USR2": 12}[name])
	}
	for name, a := range w.agents {
		w.until(name+" has all signals", func() bool { return len(a.has(s.Key)) == len(want) })
		if got := a.has(s.Key); !slices.Equal(got, want) {
			t.Errorf("%s: signals %v, want %v", name, got, want)
		}
	}
	for _, a := range w.agents {
		a.set(func() { a.finish(s.Key, 0) })
	}
	if end := w.stepEnd(s); end.Exit != 0 {
		t.Errorf("the step ended with %d: %+v", end.Exit, end.Fault)
	}
	w.startedOnce(s.Key, 15)
	if n := w.counter("gangway_forwarded_commands_total"); n < 15*15 {
		t.Errorf("%v commands went by the tree", n)
	}
	if n := w.counter("gangway_relayed_answers_total"); n < 15*15 {
		t.Errorf("%v answers came by the tree", n)
	}
	w.until("heartbeats come together", func() bool {
		alone := 0
		_ = w.server.do(t.Context(), func(c *core) {
			for _, n := range c.nodes {
				if n.session == nil || n.session.gathered == 0 {
					alone++
				}
			}
		})
		return alone <= 2 // the first of the tree
	})
}

// TestTreeNarrow: what is for no more nodes than the tree is wide goes to each.
func TestTreeNarrow(t *testing.T) {
	t.Parallel()
	w := newWorldOf(t, 4, func(c *job.Cluster) { c.TreeWidth = 4 })
	w.stepEnd(w.step(w.allocation(4), stepRequest(4, 4)))
	if n := w.counter("gangway_forwarded_commands_total"); n != 0 {
		t.Errorf("%v commands went by a tree", n)
	}
}

// TestTreeDies: an agent that passes on goes away, before, between and after all that it has to
// pass on. The others do not notice but for the time, and nothing is started twice.
func TestTreeDies(t *testing.T) {
	t.Parallel()
	for _, phase := range []string{"prepare", "start", "end"} {
		t.Run(phase, func(t *testing.T) {
			t.Parallel()
			w := newWorldOf(t, 15, widthTwo)
			id := w.allocation(15)
			w.runFor(0)
			var top *fakeAgent // of one half
			for _, a := range w.agents {
				a.set(func() {
					a.script = func(*job.StepSpec) fakeStep { return fakeStep{at: 200 * time.Millisecond} }
				})
				if a.node.Name == "n1" {
					top = a
				}
			}
			s := w.step(id, stepRequest(15, 15))
			cut := func() {
				top.pause(true) // its session and its streams end: it says later what it had to say
				w.until("it is away", func() bool { return !slices.Contains(w.sessions(), "n1") })
				top.pause(false)
			}
			if phase == "prepare" {
				cut()
			}
			w.until("all are told to prepare", func() bool { return w.prepares(s.Key) == 15 })
			if phase == "start" {
				cut()
			}
			w.until("all run", func() bool { return w.started()[s.Key] == 15 })
			for _, a := range w.agents {
				a.set(func() { a.finish(s.Key, 0) })
			}
			if phase == "end" {
				cut()
			}
			if end := w.stepEnd(s); end.Exit != 0 || end.Fault != nil {
				t.Errorf("the step ended with %d: %+v", end.Exit, end.Fault)
			}
			w.startedOnce(s.Key, 15)
		})
	}
}

// TestTreeDeaf: agents that nobody can reach, and that say so, or do not, get their commands in
// their session.
func TestTreeDeaf(t *testing.T) {
	t.Parallel()
	w := newWorldOf(t, 9, widthTwo)
	for _, name := range []string{"n1", "n4", "n7"} {
		w.agents[name].relaying.current.Store(nil)
	}
	s := w.step(w.allocation(9), stepRequest(9, 9))
	if end := w.stepEnd(s); end.Exit != 0 {
		t.Errorf("the step ended with %d: %+v", end.Exit, end.Fault)
	}
	w.startedOnce(s.Key, 9)
	if n := w.counter("gangway_missed_commands_total"); n < 1 {
		t.Errorf("%v commands were missed", n)
	}
}

// TestTreeKeptBack: an agent keeps back what it is to pass on, down or up. It goes the direct way
// then.
func TestTreeKeptBack(t *testing.T) {
	t.Parallel()
	w := newWorldOf(t, 15, widthTwo)
	id := w.allocation(15)
	for _, a := range w.agents {
		a.set(func() {
			a.script = func(*job.StepSpec) fakeStep {
				if n1 := w.agents["n1"]; a == n1 { // it has passed on the command, and keeps the answers
					n1.relaying.keeps.Store(true)
				}
				return fakeStep{runs: time.Millisecond, at: 100 * time.Millisecond}
			}
		})
	}
	for _, early := range []bool{false, true} {
		w.agents["n1"].relaying.keeps.Store(early)
		s := w.step(id, stepRequest(15, 15))
		if end := w.stepEnd(s); end.Exit != 0 || end.Fault != nil {
			t.Errorf("the step ended with %d: %+v", end.Exit, end.Fault)
		}
		w.startedOnce(s.Key, 15)
	}
	if n := w.counter("gangway_missed_commands_total"); n < 1 {
		t.Errorf("%v commands went the direct way", n)
	}
}

// TestTreeForged: what an agent says for another is refused unless that one has sealed it, now
// and for the first time; what it says for itself counts.
func TestTreeForged(t *testing.T) {
	t.Parallel()
	w := newWorldOf(t, 5, widthTwo)
	w.runFor(0)
	s := w.step(w.allocation(5), stepRequest(5, 5))
	w.until("it runs", func() bool { return w.started()[s.Key] == 5 })
	var by, of *session
	w.core(func(c *core) { by, of = c.nodes["n1"].session, c.nodes["n2"].session })
	body := func(m *wire.AgentMessage) []byte {
		b, err := proto.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	over := body(&wire.AgentMessage{Message: &wire.AgentMessage_Ended{Ended: &wire.Ended{
		End: []byte(`{"Key":{"Job":1,"Attempt":1,"Step":0,"Try":1},"Node":"n2"}`), Key: wire.KeyOf(s.Key),
	}}})
	sealed := func(key tree.Secret, seq uint64, b []byte) *wire.Reply {
		a := &wire.Reply{Node: "n2", Seq: seq, Body: b}
		key.SealAnswer(a)
		return a
	}
	ends := func() (n int) {
		w.core(func(c *core) {
			if st := c.step(s.Key); st != nil {
				n = st.Gang.count(ended)
			}
		})
		return n
	}
	beat := sealed(of.secret, 9000, body(&wire.AgentMessage{Message: &wire.AgentMessage_Heartbeat{Heartbeat: &wire.Heartbeat{FreeMemory: 77}}}))
	changed := proto.CloneOf(beat)
	changed.Body = over
	for name, a := range map[string]*wire.Reply{
		"without a seal":              {Node: "n2", Seq: 9001, Body: over},
		"by another's secret":         sealed(by.secret, 9002, over),
		"by no secret":                sealed(nil, 9003, over),
		"changed":                     changed,
		"of a node that is not there": {Node: "n99", Seq: 1, Body: over},
		"a session in another":        sealed(of.secret, 9004, body(&wire.AgentMessage{Message: &wire.AgentMessage_Hello{Hello: &wire.Hello{Node: "n2"}}})),
		"one within another":          sealed(of.secret, 9005, body(&wire.AgentMessage{Message: &wire.AgentMessage_Relayed{Relayed: &wire.Up{Answers: []*wire.Reply{sealed(by.secret, 1, over)}}}})),
		"what is no message":          sealed(of.secret, 9006, []byte{0xff}),
	} {
		w.core(func(c *core) { c.relayed(by, &wire.Up{Answers: []*wire.Reply{a}}) })
		if n := ends(); n != 0 {
			t.Fatalf("%s: it ended the step on %d nodes", name, n)
		}
	}
	var seen, again job.Time
	w.core(func(c *core) {
		c.relayed(by, &wire.Up{Answers: []*wire.Reply{beat}})
		if c.nodes["n2"].beat.FreeMemory != 77 {
			t.Errorf("a heartbeat that is sealed is not taken")
		}
		c.nodes["n2"].seen = c.now.Add(-job.Hour)
		seen = c.nodes["n2"].seen
		c.relayed(by, &wire.Up{Answers: []*wire.Reply{beat}})
		again = c.nodes["n2"].seen
		c.nodes["n2"].seen = c.now
	})
	if seen != again {
		t.Error("a repeated heartbeat keeps its node alive")
	}
	w.core(func(c *core) { c.relayed(by, &wire.Up{Answers: []*wire.Reply{sealed(of.secret, 9007, over)}}) })
	if n := ends(); n != 1 {
		t.Errorf("what its node has sealed ended the step on %d nodes", n)
	}
}

// core has the core do something.
func (w *world) core(f func(*core)) {
	w.t.Helper()
	if err := w.server.do(w.t.Context(), f); err != nil {
		w.t.Fatal(err)
	}
}

// prepares is how many nodes were told to prepare a step, and say that they did.
func (w *world) prepares(key job.StepKey) (n int) {
	for _, a := range w.agents {
		a.set(func() {
			if a.steps[key] != nil {
				n++
			}
		})
	}
	return n
}
