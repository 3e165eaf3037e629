package server

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/gangway-hpc/gangway/internal/job"
)

// gangOf is a gang of n nodes.
func gangOf(n int) *gang {
	spec := &job.StepSpec{Key: job.StepKey{Job: 1, Attempt: 1, Try: 1}}
	for i := range n {
		spec.Nodes = append(spec.Nodes, job.StepNode{Name: fmt.Sprintf("n%d", i+1)})
	}
	return newGang(spec)
}

func (g *gang) finish(i int, e job.StepEnd) {
	e.Key, e.Node = g.Key, g.Nodes[i].Name
	g.Nodes[i].Phase, g.Nodes[i].End = ended, &e
}

func kinds(actions []action) (all []string) {
	names := map[actionKind]string{doStarting: "starting", doStart: "start", doKill: "kill", doRenew: "renew", doDone: "done"}
	for _, a := range actions {
		if a.do == doFail { // what follows from it says so
			continue
		}
		all = append(all, names[a.do]+" "+a.node)
	}
	return all
}

func wants(t *testing.T, what string, got []action, texts ...string) {
	t.Helper()
	if !slices.Equal(kinds(got), texts) {
		t.Errorf("%s: %q, want %q", what, kinds(got), texts)
	}
}

func TestGang(t *testing.T) {
	t.Parallel()
	p := &job.Program{KillOnBadExit: true}
	at := job.Time(1000000)
	t.Run("life", func(t *testing.T) {
		g := gangOf(3)
		wants(t, "nothing was heard", g.decide(p, at))
		g.Nodes[0].Phase, g.Nodes[2].Phase = prepared, prepared
		wants(t, "two are prepared", g.decide(p, at+1000))
		wants(t, "their lease is renewed", g.decide(p, at+10000), "renew n1", "renew n3")
		wants(t, "once", g.decide(p, at+10001))
		g.Nodes[1].Phase = prepared
		wants(t, "all are prepared", g.decide(p, at+11000), "starting ")
		wants(t, "it has begun", g.decide(p, at+11001))
		wants(t, "START was lost", g.again(&g.Nodes[1]), "start n2")
		for i := range g.Nodes {
			g.Nodes[i].Phase = running
		}
		wants(t, "all run", g.decide(p, at+job.Time(job.Day)))
		for i := range g.Nodes {
			g.finish(i, job.StepEnd{Start: at, End: at + 5, Ranks: []job.RankEnd{{Rank: i}}})
		}
		wants(t, "all have ended", g.decide(p, at), "done ")
		if r := g.result(at, false); r.State != job.Completed || r.Exit != 0 || r.Start != at {
			t.Errorf("result %+v", r)
		}
	})
	t.Run("not started in time", func(t *testing.T) {
		g := gangOf(2)
		g.Nodes[0].Phase, g.Nodes[1].Phase = prepared, prepared
		g.decide(p, at)
		g.Nodes[0].Phase = running
		wants(t, "before the deadline", g.decide(p, at+9999))
		wants(t, "after it", g.decide(p, at+10000), "kill n1", "kill n2")
		g.finish(0, job.StepEnd{Start: at, Ranks: []job.RankEnd{{Signal: 9}}})
		g.finish(1, job.StepEnd{Fault: &job.Fault{What: "killed"}})
		if r := g.result(at, false); r.State != job.Failed || !slices.Equal(r.FaultNodes, []string{"n2"}) || !r.Fault.Node {
			t.Errorf("result %+v, %+v", r, r.Fault)
		}
	})
	t.Run("stopped", func(t *testing.T) {
		g := gangOf(1)
		if all := g.stop(killWait, "cancelled"); len(all) != 1 || all[0].grace != 0 {
			t.Errorf("where nothing runs: %+v", all)
		}
		g.Starting = true
		if all := g.stop(killWait, "cancelled"); len(all) != 1 || all[0].grace != killWait {
			t.Errorf("where ranks may run: %+v", all)
		}
	})
	t.Run("grouped", func(t *testing.T) {
		g := gangOf(4)
		g.finish(2, job.StepEnd{End: 7, Fault: &job.Fault{What: "no space", Node: true}})
		wants(t, "one cannot", g.decide(p, at), "kill n1", "kill n2", "kill n4")
		g.finish(0, job.StepEnd{End: 3, Fault: &job.Fault{What: "was ended"}}) // its clock is behind
		g.finish(1, job.StepEnd{End: 9, Fault: &job.Fault{What: "no space", Node: true}})
		g.finish(3, job.StepEnd{End: 9, Fault: &job.Fault{What: "was ended"}})
		r := g.result(at, false)
		if r.State != job.Failed || r.Fault.What != "no space" || !slices.Equal(r.FaultNodes, []string{"n3", "n2"}) {
			t.Errorf("result %+v, %+v", r, r.Fault)
		}
		if f := r.grouped(4); f.What != "2 of 4 nodes: no space (n[2-3])" {
			t.Errorf("grouped: %q", f.What)
		}
	})
	t.Run("first failing rank", func(t *testing.T) {
		g := gangOf(2)
		g.Starting = true
		for i := range g.Nodes {
			g.Nodes[i].Phase = running
		}
		g.finish(1, job.StepEnd{Start: 1, Ranks: []job.RankEnd{{Rank: 2, At: 50, Exit: 1}, {Rank: 3, At: 20, Signal: 11}}})
		wants(t, "a rank failed", g.decide(p, at), "kill n1")
		g.finish(0, job.StepEnd{Start: 1, Ranks: []job.RankEnd{{Rank: 0, At: 60, Signal: 15}}})
		if r := g.result(at, false); r.Failed.Rank != 3 || r.Signal != 11 || r.Exit != 0 || r.FailedRanks != 3 {
			t.Errorf("result %+v", r)
		}
	})
	t.Run("waits after an exit", func(t *testing.T) {
		g, p := gangOf(2), &job.Program{WaitAfterExit: 5 * job.Second}
		g.Starting = true
		g.Nodes[0].Phase = running
		g.finish(1, job.StepEnd{Start: 1, Ranks: []job.RankEnd{{Exit: 1}}})
		wants(t, "one has ended", g.decide(p, at))
		wants(t, "not long ago", g.decide(p, at+4999))
		wants(t, "long ago", g.decide(p, at+5000), "kill n1")
	})
	t.Run("memory", func(t *testing.T) {
		g := gangOf(1)
		g.finish(0, job.StepEnd{Start: 1, Ranks: []job.RankEnd{{Signal: 9, OOM: true}}})
		if r := g.result(at, false); r.State != job.OutOfMemory {
			t.Errorf("result %+v", r)
		}
	})
	t.Run("cancelled", func(t *testing.T) {
		g := gangOf(2)
		wants(t, "told to end", g.stop(0, "no more"), "kill n1", "kill n2")
		wants(t, "once more, to one that is back", g.again(&g.Nodes[0]), "kill n1")
		for i := range g.Nodes {
			g.finish(i, job.StepEnd{Fault: &job.Fault{What: "unknown here", Node: true}})
		}
		if r := g.result(at, false); r.State != job.CancelledState || r.Fault != nil {
			t.Errorf("result %+v", r)
		}
	})
}

// TestGangAlways: whatever nodes say in whatever order, nothing starts before all are
// prepared, every node that has not ended when the gang fails is told to end, and when all
// have ended the gang is done.
func TestGangAlways(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		g := gangOf(rapid.IntRange(1, 5).Draw(t, "nodes"))
		p := &job.Program{KillOnBadExit: rapid.Bool().Draw(t, "kill"), WaitAfterExit: job.Duration(rapid.SampledFrom([]int{0, 3000}).Draw(t, "wait"))}
		now, begun := job.Time(1000), false
		started, killed := map[string]bool{}, map[string]bool{}
		for g.count(ended) < len(g.Nodes) {
			now += job.Time(rapid.IntRange(0, 8000).Draw(t, "passes"))
			i := rapid.IntRange(0, len(g.Nodes)-1).Draw(t, "node")
			n := &g.Nodes[i]
			switch what := rapid.IntRange(0, 9).Draw(t, "what"); {
			case n.Phase == ended:
			case what == 0: // it fails, or is lost
				g.finish(i, job.StepEnd{End: now, Fault: &job.Fault{What: "it broke", Node: true}})
			case killed[n.Name]:
				g.finish(i, job.StepEnd{End: now, Fault: &job.Fault{What: "it was ended"}})
			case n.Phase == unheard:
				n.Phase = prepared
			case n.Phase == prepared && started[n.Name]:
				n.Phase = running
			case n.Phase == running && what > 6:
				g.finish(i, job.StepEnd{Start: 1, End: now, Ranks: []job.RankEnd{{Exit: what - 7, At: now}}})
			}
			before := g.count(prepared)
			for _, a := range g.decide(p, now) {
				switch a.do {
				case doStarting:
					if begun || before < len(g.Nodes) || g.count(ended) > 0 {
						t.Fatalf("it starts, with %d of %d prepared, %d ended", before, len(g.Nodes), g.count(ended))
					}
					begun = true
					for k := range g.Nodes {
						started[g.Nodes[k].Name] = true
					}
				case doKill:
					killed[a.node] = true
				case doDone:
					if g.count(ended) < len(g.Nodes) {
						t.Fatal("it is done before all have ended")
					}
				}
			}
			for n := range g.each {
				if g.killing && !killed[n.Name] {
					t.Fatalf("node %s was not told to end", n.Name)
				}
			}
		}
		want := []action{{do: doDone}}
		if got := g.decide(p, now); !slices.Equal(got, want) {
			t.Fatalf("all have ended: %v", got)
		}
		r := g.result(now, false)
		if !begun && r.State != job.Failed {
			t.Fatalf("it never began, and is %v", r.State)
		}
		if r.State == job.Failed && r.Exit == 0 && r.Signal == 0 {
			t.Fatalf("it failed without a code: %+v", r)
		}
	})
}
