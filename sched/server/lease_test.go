package server

import (
	"fmt"
	"slices"
	"testing"

	"github.com/gangway-hpc/gangway/internal/api"
	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/internal/wire"
)

func TestUnreached(t *testing.T) {
	t.Parallel()
	const unknown, none, host, agent = wire.Probed_UNKNOWN, wire.Probed_NONE, wire.Probed_HOST, wire.Probed_AGENT
	for _, c := range []struct {
		said []wire.Probed_Reach
		want bool
	}{
		{nil, false},
		{[]wire.Probed_Reach{unknown}, false},
		{[]wire.Probed_Reach{none}, true}, // there is only one to be asked
		{[]wire.Probed_Reach{none, unknown}, false},
		{[]wire.Probed_Reach{none, none}, true},
		{[]wire.Probed_Reach{none, none, unknown}, true}, // who does not answer may be away itself
		{[]wire.Probed_Reach{none, none, host}, false},
		{[]wire.Probed_Reach{none, agent, none}, false},
		{[]wire.Probed_Reach{host}, false},
	} {
		said := map[string]wire.Probed_Reach{}
		for i, r := range c.said {
			said[fmt.Sprint(i)] = r
		}
		if got := unreached(said); got != c.want {
			t.Errorf("%v: %v", c.said, got)
		}
	}
}

// TestSpread: councils have no node twice, never the node itself, and those of a rack ask
// others than themselves.
func TestSpread(t *testing.T) {
	t.Parallel()
	var names []string
	for i := range 64 {
		names = append(names, fmt.Sprintf("n%02d", i))
	}
	asked := map[string]int{}
	for i, name := range names {
		others := slices.Delete(slices.Clone(names), i, i+1)
		got := spread(name, others)
		if len(slices.Compact(slices.Clone(got))) != mostMembers || slices.Contains(got, name) {
			t.Errorf("%s asks %v", name, got)
		}
		near := 0
		for _, m := range got {
			asked[m]++
			if j := slices.Index(names, m); j/8 == i/8 {
				near++
			}
		}
		if near > 2 {
			t.Errorf("%s asks %v: %d are beside it", name, got, near)
		}
	}
	for name, n := range asked {
		if n > 2*mostMembers {
			t.Errorf("%s is asked by %d", name, n)
		}
	}
	if got := spread("a", nil); len(got) != 0 {
		t.Errorf("alone it asks %v", got)
	}
	if got := spread("b", []string{"c", "a"}); !slices.Equal(got, []string{"a", "c"}) {
		t.Errorf("of two it asks %v", got)
	}
}

func TestCommon(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		a, b string
		want int
	}{{"s.l1.a", "s.l1.b", 2}, {"s.l1.a", "s.l2.b", 1}, {"s.l1.a", "t.l1.b", 0}, {"", "s.l.a", 0}, {"", "", 0}, {"s.a", "s.a", 1}} {
		if got := common(c.a, c.b); got != c.want {
			t.Errorf("%s and %s share %d, want %d", c.a, c.b, got, c.want)
		}
	}
}

// TestNextAttemptWaits: where a node is lost, no rank of the next attempt starts before the
// others have said that nothing of the one before is left, also not where it is prepared.
func TestNextAttemptWaits(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 4)
	w.crash()
	w.cluster.SuspectAfter, w.cluster.LostAfter = 300*job.Millisecond+heartbeatSpan, 800*job.Millisecond+heartbeatSpan
	w.start()
	w.runFor(0)
	id := w.submit(2, func(q *api.Submit) { q.Spec.Requeue, q.Spec.CPUsPerTask = true, 8 })
	nodes := w.waitState(id, job.Running).NodeList
	w.until("it runs", func() bool { return len(w.started()) == 1 })
	there, lost := w.agents[nodes[0]], w.agents[nodes[1]]
	there.set(func() { there.dirty = true })
	w.do("POST", "/v1/nodes/"+nodes[0], &api.Change{State: "drain", Reason: "so that the next attempt is elsewhere"}, nil)
	lost.silence(true)
	next := job.StepKey{Job: id, Attempt: 2, Step: job.BatchStep, Try: 1}
	held := ""
	w.until("the next attempt is prepared and held", func() bool {
		err := w.server.do(t.Context(), func(c *core) {
			if st := c.step(next); st != nil && st.Gang.count(prepared) == len(st.Gang.Nodes) {
				held = st.Gang.held
			}
		})
		return err == nil && held != ""
	})
	if held != nodes[0] || w.started()[next] != 0 {
		t.Errorf("it waits for node %q, not %q; started %d times", held, nodes[0], w.started()[next])
	}
	there.set(func() {
		there.dirty = false
		there.send(&wire.AgentMessage{Message: &wire.AgentMessage_Cleaned{Cleaned: &wire.Cleaned{Job: uint32(id), Attempt: 1}}})
	})
	w.until("it starts", func() bool { return w.started()[next] == 1 })
	w.restart()
	if err := w.server.do(t.Context(), func(c *core) {
		if c.lingers(c.runs[id]) != "" {
			t.Error("after a restart it is not known that it could start")
		}
	}); err != nil {
		t.Fatal(err)
	}
}

// TestWrongClocks: a node whose clock is an hour off takes nothing from what a step took, and is
// not taken for lost.
func TestWrongClocks(t *testing.T) {
	t.Parallel()
	for name, off := range map[string]job.Duration{"ahead": job.Hour, "behind": -job.Hour} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 1)
			w.runFor(0)
			id := w.allocation(1)
			s := w.step(id, stepRequest(1, 1))
			w.until("it runs", func() bool { return w.started()[s.Key] == 1 })
			err := w.server.do(t.Context(), func(c *core) {
				at := c.now.Add(off)
				c.nodeEnd("n1", job.StepEnd{Key: s.Key, Node: "n1", Start: at, End: at, Ranks: []job.RankEnd{{At: at}}})
			})
			if err != nil {
				t.Fatal(err)
			}
			end := w.stepEnd(s)
			if took := end.End.Sub(end.Start); took < 0 || took > job.Minute {
				t.Errorf("it began at %d and ended at %d", end.Start, end.End)
			}
			if !w.agents["n1"].is("allocated")() {
				t.Error("the node is not what it was")
			}
		})
	}
}
