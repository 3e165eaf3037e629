package server

import (
	"slices"
	"testing"

	"github.com/gangway-hpc/gangway/internal/api"
	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/internal/wire"
)

// set changes how an agent is.
func (a *fakeAgent) set(f func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	f()
}

// has are the signals that an agent got for a step.
func (a *fakeAgent) has(key job.StepKey) (signals []int) {
	a.set(func() {
		if st := a.steps[key]; st != nil {
			signals = slices.Clone(st.signals)
		}
	})
	return signals
}

// cutShort ends the agent's session, as its death does, and lets it come back.
func (w *world) cutShort(agent *fakeAgent, f func()) {
	w.t.Helper()
	agent.pause(true)
	w.until("it is away", func() bool { return !slices.Contains(w.sessions(), agent.node.Name) })
	agent.set(f)
	agent.pause(false)
	w.until("it is back", func() bool { return slices.Contains(w.sessions(), agent.node.Name) })
}

// TestSignalsOfDyingAgent: a signal that was sent to an agent that died of something else just
// then comes from the next one, once, whether the first one had it or not.
func TestSignalsOfDyingAgent(t *testing.T) {
	t.Parallel()
	for name, dies := range map[string]func(*fakeAgent) func(){
		"before it came":     func(a *fakeAgent) func() { return func() { a.deaf = !a.deaf } },
		"before it said so":  func(a *fakeAgent) func() { return func() { a.mute = !a.mute } },
		"when nothing comes": func(*fakeAgent) func() { return func() {} },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 1)
			w.runFor(0)
			id := w.allocation(1)
			agent := w.agents["n1"]
			s := w.step(id, stepRequest(1, 1))
			w.until("it runs", func() bool { return w.started()[s.Key] == 1 })
			agent.set(dies(agent))
			for _, signal := range []string{"USR1", "USR2"} {
				w.do("POST", "/v1/jobs/"+id.String()+"/signal", &api.Change{Signal: signal, Step: &s.Key.Step}, nil)
			}
			w.cutShort(agent, dies(agent))
			w.wantSignals(agent, s.Key, "HUP", 10, 12, 1)
			w.until("nothing is due any more", func() (none bool) {
				if err := w.server.do(t.Context(), func(c *core) { none = len(c.step(s.Key).Gang.Nodes[0].Due) == 0 }); err != nil {
					t.Fatal(err)
				}
				return none
			})
		})
	}
}

// hanging has all steps to come hang in their prepare.
func (w *world) hanging() {
	for _, a := range w.agents {
		a.set(func() { a.script = func(*job.StepSpec) fakeStep { return fakeStep{hang: true} } })
	}
}

// goOn ends the prepare of a step that hangs, on all nodes.
func (w *world) goOn(key job.StepKey) {
	for _, a := range w.agents {
		a.set(func() { a.prepared(key) })
	}
}

// TestSignalsInPrepare: signals that come before ranks run reach these, also those of the next
// try, and after a restart; one that is to end them ends the prepare.
func TestSignalsInPrepare(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	id := w.allocation(2)
	for name, restart := range w.again() {
		w.hanging()
		s := w.step(id, stepRequest(1, 1))
		agent := w.agents[s.Nodes[0]]
		preparing := func(a *fakeAgent, key job.StepKey) {
			w.until("it prepares", func() (yes bool) {
				a.set(func() { yes = a.steps[key] != nil && a.steps[key].phase == wire.StepState_PREPARING })
				return yes
			})
		}
		preparing(agent, s.Key)
		for _, signal := range []string{"USR1", "USR2"} {
			w.do("POST", "/v1/jobs/"+id.String()+"/signal", &api.Change{Signal: signal, Step: &s.Key.Step}, nil)
		}
		restart()
		agent.set(func() { agent.steps[s.Key].fault = &job.Fault{What: "no space", Node: true} })
		w.until("the node is back", func() bool { return slices.Contains(w.sessions(), agent.node.Name) })
		w.goOn(s.Key)
		next := s.Key
		next.Try = 2
		other := w.agents["n1"]
		if other == agent {
			other = w.agents["n2"]
		}
		preparing(other, next)
		if got := other.has(next); len(got) > 0 {
			t.Errorf("%s: signals %v have come to no ranks", name, got)
		}
		w.goOn(next)
		w.until("its ranks have the signals", func() bool { return len(other.has(next)) >= 2 })
		if got := other.has(next); !slices.Equal(got, []int{10, 12}) {
			t.Errorf("%s: signals %v have come", name, got)
		}
		w.do("DELETE", "/v1/jobs/"+id.String()+"/steps/"+s.Key.Step.String(), nil, nil)
		w.stepEnd(s)
	}
	for _, signal := range []string{"TERM", "INT", "KILL"} {
		w.hanging()
		s := w.step(id, stepRequest(1, 1))
		w.do("POST", "/v1/jobs/"+id.String()+"/signal", &api.Change{Signal: signal, Step: &s.Key.Step}, nil)
		if end := w.stepEnd(s); end.State != job.CancelledState || w.started()[s.Key] > 0 {
			t.Errorf("%s in the prepare: %+v", signal, end)
		}
	}
}
