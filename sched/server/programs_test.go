package server

import (
	"encoding/json"
	"slices"
	"testing"

	"github.com/gangway-hpc/gangway/internal/api"
	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/internal/wire"
)

// newProgramWorld is a world whose agents are told of programs.
func newProgramWorld(t *testing.T, nodes int, p job.Programs) *world {
	w := newWorld(t, nodes)
	w.crash()
	w.cluster.Programs = &p
	w.start()
	w.idle()
	return w
}

func (w *world) idle() {
	w.t.Helper()
	w.until("all nodes are idle", func() bool {
		var page api.Page[api.Node]
		w.get("/v1/nodes", &page)
		return !slices.ContainsFunc(page.Items, func(n api.Node) bool { return n.StateText != "idle" })
	})
}

func (w *world) node(name string) *api.Node {
	w.t.Helper()
	var n api.Node
	w.get("/v1/nodes/"+name, &n)
	return &n
}

// change does something to an agent's fields.
func (a *fakeAgent) change(f func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	f()
}

var oneProlog = job.Programs{Prolog: []string{"/p"}, Epilog: []string{"/e"}}

// TestPrologFails: the node is drained by Slurm's reason, and the job runs elsewhere, or waits
// for it; nothing of that is forgotten by a crash.
func TestPrologFails(t *testing.T) {
	w := newProgramWorld(t, 2, oneProlog)
	fault := &job.Fault{What: "run the prolog", Node: true}
	w.agents["n1"].change(func() {
		w.agents["n1"].script = func(*job.StepSpec) fakeStep { return fakeStep{fault: fault, drain: "Prolog error"} }
	})
	id := w.submit(1, nil)
	w.waitState(id, job.Completed)
	if n := w.node("n1"); n.StateText != "drained" || n.Reason != "Prolog error" || n.ReasonUser != agentUser {
		t.Errorf("n1 is %s because of %q, by %q", n.StateText, n.Reason, n.ReasonUser)
	}
	w.restart()
	w.until("n2 is back", func() bool { return w.node("n2").StateText == "idle" })
	if n := w.node("n1"); n.Reason != "Prolog error" {
		t.Errorf("after a crash n1 is %s because of %q", n.StateText, n.Reason)
	}
	only := w.submit(1, func(q *api.Submit) { q.Spec.NodeList = []string{"n1"} })
	w.do("POST", "/v1/nodes/n1", &api.Change{State: "resume"}, nil)
	w.until("it is drained again", func() bool { return w.node("n1").State&job.NodeDrain != 0 })
	w.waitState(only, job.Pending)
	w.agents["n1"].change(func() { w.agents["n1"].script = func(*job.StepSpec) fakeStep { return fakeStep{runs: 1} } })
	w.do("POST", "/v1/nodes/n1", &api.Change{State: "resume"}, nil)
	w.waitState(only, job.Completed)
}

// TestPrologFailsEverywhere: a job that was refused by one node after the other is held at last.
func TestPrologFailsEverywhere(t *testing.T) {
	w := newProgramWorld(t, 4, oneProlog)
	for _, a := range w.agents {
		a.change(func() {
			a.script = func(*job.StepSpec) fakeStep {
				return fakeStep{fault: &job.Fault{What: "run the prolog", Node: true}, drain: "Prolog error"}
			}
		})
	}
	id := w.submit(1, nil)
	w.until("it is held", func() bool { return w.job(id).Reason == "JobHoldMaxRequeue" })
	drained := 0
	for name := range w.agents {
		if w.node(name).Reason == "Prolog error" {
			drained++
		}
	}
	if drained != maxAttempts {
		t.Errorf("%d nodes are drained", drained)
	}
}

// TestEpilog: a job ends when its epilog has, however long that takes, and one that fails drains
// its node; what is told of the job is what is known of it.
func TestEpilog(t *testing.T) {
	w := newProgramWorld(t, 1, oneProlog)
	a := w.agents["n1"]
	a.change(func() { a.dirty = true })
	id := w.submit(1, func(q *api.Submit) { q.Spec.Name, q.Spec.Account, q.Comment = "named", "ml", "a b" })
	var e job.JobEnv
	w.until("it is released", func() bool {
		a.mu.Lock()
		defer a.mu.Unlock()
		return len(a.envs) > 0 && json.Unmarshal(a.envs[len(a.envs)-1], &e) == nil && e.Ended != nil
	})
	if e.ID != id || e.Name != "named" || e.Account != "ml" || e.Comment != "a b" || !slices.Equal(e.Nodes, []string{"n1"}) || e.Partition != "main" || *e.Ended != (job.JobExit{}) {
		t.Errorf("%+v", e)
	}
	for range 2 { // as if a minute had passed
		if err := w.server.do(t.Context(), func(c *core) { c.runs[id].now.cleanBy, c.late = 1, 0 }); err != nil {
			t.Fatal(err)
		}
	}
	if got := w.job(id).State; got.Done() {
		t.Errorf("it is %v", got)
	}
	a.change(func() {
		a.send(&wire.AgentMessage{Message: &wire.AgentMessage_Cleaned{Cleaned: &wire.Cleaned{Job: uint32(id), Attempt: 1, Drain: "Epilog error"}}})
	})
	w.waitState(id, job.Completed)
	if n := w.node("n1"); n.StateText != "drained" || n.Reason != "Epilog error" {
		t.Errorf("n1 is %s because of %q", n.StateText, n.Reason)
	}
	w.do("POST", "/v1/nodes/n1", &api.Change{State: "resume"}, nil)
	a.change(func() { // it was said before
		a.send(&wire.AgentMessage{Message: &wire.AgentMessage_Cleaned{Cleaned: &wire.Cleaned{Job: uint32(id), Attempt: 1, Drain: "Epilog error"}}})
		a.dirty = false
	})
	w.waitState(w.submit(1, nil), job.Completed)
}

// TestAlloc: the prolog is to run on all nodes of a job at once, a script waits for it, and where
// it fails the job runs elsewhere; what somebody holds is over.
func TestAlloc(t *testing.T) {
	p := oneProlog
	p.Alloc, p.DeferBatch = true, true
	w := newProgramWorld(t, 3, p)
	id := w.submit(2, nil)
	entered := func(name string, id job.ID, fault *job.Fault) {
		t.Helper()
		a := w.agents[name]
		w.until("the prolog is to run on "+name, func() bool {
			a.mu.Lock()
			defer a.mu.Unlock()
			return slices.ContainsFunc(a.entered, func(at attempt) bool { return at.Job == id })
		})
		a.change(func() {
			a.entered = nil
			m := &wire.Entered{Job: uint32(id), Attempt: 1}
			if fault != nil {
				m.Fault, m.Drain = mustJSON(fault), "Prolog error"
			}
			a.send(&wire.AgentMessage{Message: &wire.AgentMessage_Entered{Entered: m}})
		})
	}
	entered("n1", id, nil)
	w.restart() // who has said so is asked again
	entered("n1", id, nil)
	if n := len(w.started()); n != 0 {
		t.Errorf("%d steps have begun", n)
	}
	entered("n2", id, nil)
	w.waitState(id, job.Completed)

	held := w.submit(1, func(q *api.Submit) { q.Program, q.Allocation = nil, true })
	w.waitState(held, job.Running)
	entered(w.job(held).NodeList[0], held, &job.Fault{What: "run the prolog", Node: true})
	j := w.waitState(held, job.Failed)
	if j.Fault == nil || j.Fault.What != "run the prolog" {
		t.Errorf("%+v", j.Fault)
	}
}

// TestHealth: nodes whose state is asked for are told to check theirs, those that are away are
// not.
func TestHealth(t *testing.T) {
	w := newProgramWorld(t, 2, job.Programs{Health: "/h", HealthEvery: 100, HealthStates: []string{"IDLE"}})
	checks := func(name string) int {
		a := w.agents[name]
		a.mu.Lock()
		defer a.mu.Unlock()
		return a.checks
	}
	w.until("both were checked", func() bool { return checks("n1") > 1 && checks("n2") > 1 })
	w.runFor(0)
	id := w.submit(1, func(q *api.Submit) { q.Spec.NodeList, q.Spec.Exclusive = []string{"n1"}, true })
	w.waitState(id, job.Running)
	before, others := checks("n1"), checks("n2")
	w.until("the idle one was checked again", func() bool { return checks("n2") > others+2 })
	if n := checks("n1"); n > before+1 { // one may have been on its way
		t.Errorf("n1 was checked %d times more", n-before)
	}
}

func TestWantsCheck(t *testing.T) {
	for _, c := range []struct {
		states     []string
		word       string
		used, cpus int
		want       bool
	}{
		{nil, "idle", 0, 8, true},
		{[]string{"ANY"}, "down", 0, 8, true},
		{[]string{"CYCLE"}, "idle", 0, 8, true},
		{[]string{"CYCLE", "MIXED"}, "idle", 0, 8, false},
		{[]string{"IDLE"}, "drained", 0, 8, true},
		{[]string{"IDLE"}, "idle", 1, 8, false},
		{[]string{"NONDRAINED_IDLE"}, "drained", 0, 8, false},
		{[]string{"NONDRAINED_IDLE"}, "idle", 0, 8, true},
		{[]string{"ALLOC", "MIXED"}, "idle", 8, 8, true},
		{[]string{"ALLOC"}, "idle", 7, 8, false},
		{[]string{"MIXED"}, "idle", 7, 8, true},
		{[]string{"START_ONLY"}, "idle", 0, 8, false},
	} {
		if got := wantsCheck(c.states, c.word, c.used, c.cpus); got != c.want {
			t.Errorf("%v of a node that is %s with %d of %d CPUs: %v", c.states, c.word, c.used, c.cpus, got)
		}
	}
	p := &job.Programs{HealthEvery: 60_000, HealthStates: []string{"CYCLE"}}
	if a, b := firstCheck(p, 1000, 0, 4), firstCheck(p, 1000, 3, 4); a != 16_000 || b != 61_000 {
		t.Errorf("in turns: at %d and %d", a, b)
	}
	p.HealthStates = nil
	if a, b := firstCheck(p, 1000, 0, 4), firstCheck(p, 1000, 3, 4); a != 61_000 || b != a {
		t.Errorf("at once: at %d and %d", a, b)
	}
}
