package server

import (
	"fmt"
	"slices"
	"testing"

	"github.com/gangway-hpc/gangway/internal/api"
	"github.com/gangway-hpc/gangway/internal/job"
)

// lossy is a controller that gives nodes up soon, with a job that runs on the first of two.
func lossy(t *testing.T) (w *world, id job.ID, first *fakeAgent) {
	w = newWorld(t, 2)
	w.crash()
	w.cluster.SuspectAfter, w.cluster.LostAfter = 300*job.Millisecond+heartbeatSpan, 800*job.Millisecond+heartbeatSpan
	w.start()
	w.runFor(0)
	id = w.submit(1, func(q *api.Submit) { q.Spec.Requeue = true })
	first = w.agents[w.waitState(id, job.Running).NodeList[0]]
	w.until("it runs", func() bool { return len(w.started()) == 1 })
	return w, id, first
}

// is says whether the node is in a state.
func (a *fakeAgent) is(want string) func() bool {
	return func() bool {
		var n api.Node
		a.w.get("/v1/nodes/"+a.node.Name, &n)
		return n.StateText == want
	}
}

// TestSilentNode: a node of which the agent was stopped, with its session open, is given up,
// and comes back when the agent goes on.
func TestSilentNode(t *testing.T) {
	t.Parallel()
	w, id, first := lossy(t)
	first.silence(true)
	w.until("the node is down", first.is("down*"))
	w.until("it runs elsewhere", func() bool {
		j := w.job(id)
		return j.State == job.Running && j.Attempt == 2 && j.NodeList[0] != first.node.Name
	})
	first.silence(false)
	w.until("the node is back", first.is("idle"))
	next := w.submit(1, func(q *api.Submit) { q.Spec.NodeList = []string{first.node.Name} })
	w.waitState(next, job.Running)
	w.until("it runs there", func() bool {
		return w.started()[job.StepKey{Job: next, Attempt: 1, Step: job.BatchStep, Try: 1}] == 1
	})
}

// again are ways in which a controller starts again: from the log, and from a snapshot.
func (w *world) again() map[string]func() {
	return map[string]func(){"log": w.restart, "snapshot": func() { w.stop(); w.start() }}
}

// TestCancelIsKept: the end of a step that somebody wanted while its node was away comes, even
// if the controller has started again meanwhile.
func TestCancelIsKept(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	w.runFor(0)
	id := w.allocation(1)
	agent := w.agents[w.job(id).NodeList[0]]
	for name, restart := range w.again() {
		s := w.step(id, stepRequest(1, 1))
		w.until("it runs", func() bool { return w.started()[s.Key] == 1 })
		agent.pause(true)
		w.until("it is away", func() bool { return !slices.Contains(w.sessions(), agent.node.Name) })
		w.do("DELETE", fmt.Sprintf("/v1/jobs/%v/steps/%v", id, s.Key.Step), nil, nil)
		restart()
		agent.pause(false)
		if end := w.stepEnd(s); end.Signal != 15 || end.Fault != nil || end.Key != s.Key {
			t.Errorf("%s: step ended as %+v, %+v", name, end, end.Fault)
		}
	}
	if j := w.job(id); j.State != job.Running {
		t.Errorf("the allocation is %v", j.State)
	}
}

// wantSignals waits for the signals that an agent has got for a step, after one more that is
// sent now: nothing is under way before that.
func (w *world) wantSignals(agent *fakeAgent, key job.StepKey, last string, want ...int) {
	w.t.Helper()
	w.until("the node is back", func() bool { return slices.Contains(w.sessions(), agent.node.Name) })
	w.do("POST", "/v1/jobs/"+key.Job.String()+"/signal", &api.Change{Signal: last, Step: &key.Step}, nil)
	var got []int
	w.until("the last signal has come", func() bool {
		agent.mu.Lock()
		defer agent.mu.Unlock()
		if st := agent.steps[key]; st != nil {
			got = slices.Clone(st.signals)
		}
		return len(got) > 0 && (got[len(got)-1] == want[len(want)-1] || got[len(got)-1] == -want[len(want)-1])
	})
	if !slices.Equal(got, want) {
		w.t.Errorf("signals %v have come, want %v", got, want)
	}
}

// TestSignalsAreKept: signals for a node that is away come when it is back, and once, even if
// the controller has started again meanwhile.
func TestSignalsAreKept(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	w.runFor(0)
	id := w.allocation(1)
	agent := w.agents[w.job(id).NodeList[0]]
	for name, restart := range w.again() {
		t.Log("from the", name)
		s := w.step(id, stepRequest(1, 1))
		w.until("it runs", func() bool { return w.started()[s.Key] == 1 })
		agent.pause(true)
		w.until("it is away", func() bool { return !slices.Contains(w.sessions(), agent.node.Name) })
		for _, signal := range []string{"USR1", "USR2", "USR1"} { // what is pending twice comes once
			w.do("POST", "/v1/jobs/"+id.String()+"/signal", &api.Change{Signal: signal, Step: &s.Key.Step}, nil)
		}
		restart()
		agent.pause(false)
		w.wantSignals(agent, s.Key, "HUP", 10, 12, 1)
		restart()
		w.wantSignals(agent, s.Key, "CONT", 10, 12, 1, 18)
		w.do("DELETE", fmt.Sprintf("/v1/jobs/%v/steps/%v", id, s.Key.Step), nil, nil)
		w.stepEnd(s)
	}
}

// TestWarningIsKept: the signal before the end of the time comes once, though the node is away
// when it is due, and the controller starts again.
func TestWarningIsKept(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	w.runFor(0)
	for name, restart := range w.again() {
		id := w.submit(1, func(q *api.Submit) {
			q.Program.Signal, q.Program.SignalBatch, q.Program.SignalBefore = "USR1", true, job.Hour-2*job.Second
		})
		agent := w.agents[w.waitState(id, job.Running).NodeList[0]]
		key := job.StepKey{Job: id, Attempt: 1, Step: job.BatchStep, Try: 1}
		w.until("it runs", func() bool { return w.started()[key] == 1 })
		agent.pause(true)
		warned := func() (yes bool) {
			if err := w.server.do(t.Context(), func(c *core) { yes = c.runs[id].Warned }); err != nil {
				t.Fatal(err)
			}
			return yes
		}
		if warned() {
			t.Fatalf("%s: it was warned before the node was away", name)
		}
		w.until("it is warned", warned)
		restart()
		agent.pause(false)
		w.wantSignals(agent, key, "HUP", -10, -1)
		restart()
		w.wantSignals(agent, key, "CONT", -10, -1, -18)
	}
}
