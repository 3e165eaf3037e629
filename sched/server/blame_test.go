package server

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gangway-hpc/gangway/internal/api"
	"github.com/gangway-hpc/gangway/internal/job"
)

// TestBlame: whose a fault is that may be the node's or the user's follows from the others of
// the gang, or else from where it was tried before.
func TestBlame(t *testing.T) {
	t.Parallel()
	missing := &job.Fault{What: "no such directory", Doubtful: true, Code: 2}
	for _, c := range []struct {
		name   string
		failed []int // of three nodes
		ready  []int
		tried  bool
		node   bool
	}{
		{"one lacks it that others have", []int{1}, []int{0, 2}, false, true},
		{"so it was before", []int{1}, []int{0}, true, true},
		{"all lack it", []int{0, 1, 2}, nil, false, false},
		{"nobody knows", []int{1}, nil, false, true},
		{"nobody knows twice", []int{1}, nil, true, false},
	} {
		g := gangOf(3)
		for _, i := range c.failed {
			g.finish(i, job.StepEnd{Fault: missing})
		}
		for _, i := range c.ready {
			g.Nodes[i].Ready = true
		}
		for i := range g.Nodes {
			if g.Nodes[i].Phase != ended {
				g.finish(i, job.StepEnd{Fault: &job.Fault{What: "it was ended"}})
			}
		}
		g.Failing = &failing{}
		for _, i := range c.failed {
			g.Failing.First = append(g.Failing.First, g.Nodes[i].Name)
		}
		if r := g.result(1, c.tried); r.Fault == nil || r.Fault.Node != c.node || r.Exit != 2 {
			t.Errorf("%s: %+v of %v", c.name, r.Fault, r.FaultNodes)
		}
	}
	if missing.Node {
		t.Error("what a node said was changed")
	}
}

// TestMissingOnOneNode: a job is not ended because one node lacks a directory, but because two
// do; a step runs on nodes of its job that have it.
func TestMissingOnOneNode(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 3)
	lacks := func(names ...string) {
		for name, a := range w.agents {
			a.set(func() {
				a.script = func(*job.StepSpec) fakeStep {
					if slices.Contains(names, name) {
						return fakeStep{fault: &job.Fault{What: "chdir /data: no such directory", Doubtful: true, Code: 2}}
					}
					return fakeStep{runs: time.Millisecond}
				}
			})
		}
	}
	lacks("n1")
	id := w.submit(1, func(q *api.Submit) { q.Spec.NodeList = nil })
	if j := w.waitState(id, job.Completed); j.NodeList[0] == "n1" || j.Attempt > 2 {
		t.Errorf("job ran on %v in attempt %d", j.NodeList, j.Attempt)
	}
	first := w.submit(1, func(q *api.Submit) { q.Spec.Exclude = []string{"n2", "n3"} })
	if j := w.waitState(first, job.Failed); j.Exit != 2 || j.Fault == nil || !strings.Contains(j.Fault.What, "chdir /data") {
		t.Errorf("where there is no other node: %+v, %+v", j, j.Fault)
	}
	alloc := w.allocation(3)
	if end := w.stepEnd(w.step(alloc, stepRequest(2, 2))); end.State != job.Completed || end.Key.Try != 2 {
		t.Errorf("step ended as %+v, %+v", end, end.Fault)
	}
	w.do("DELETE", "/v1/jobs/"+alloc.String(), nil, nil)
	w.waitState(alloc, job.CancelledState)
	lacks("n1", "n2", "n3")
	id = w.submit(1, nil)
	if j := w.waitState(id, job.Failed); j.Attempt != 2 || j.Exit != 2 || j.Fault == nil || j.Fault.Node {
		t.Errorf("a directory that no node has: attempt %d, exit %d, %+v", j.Attempt, j.Exit, j.Fault)
	}
}
