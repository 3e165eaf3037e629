package server

import (
	"testing"

	"github.com/gangway-hpc/gangway/internal/api"
	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/internal/wire"
)

func TestLacking(t *testing.T) {
	declared := job.Node{Sockets: 2, CoresPerSocket: 4, ThreadsPerCore: 1, CPUs: 8, Memory: 1000, GRES: []job.GRES{{Name: "gpu", Type: "a", Count: 4}, {Name: "gpu", Type: "b", Count: 4}, {Name: "disk", Count: 2}}}
	full := job.Node{Sockets: 1, CoresPerSocket: 8, ThreadsPerCore: 1, CPUs: 8, Memory: 1000, GRES: []job.GRES{{Name: "gpu", Count: 8}}}
	for want, change := range map[string]func(*job.Node){
		"":                             func(n *job.Node) { n.Memory = 2000 },
		"Low socket*core*thread count": func(n *job.Node) { n.CoresPerSocket = 7 },
		"Low CPUs":                     func(n *job.Node) { n.CPUs = 7 },
		"Low RealMemory (reported:999 < 100.00% of configured:1000)":      func(n *job.Node) { n.Memory = 999 },
		"gres/gpu count reported lower than configured (0 < 8)":           func(n *job.Node) { n.GRES = nil },
		"gres/gpu count reported lower than configured (7 < 8), Low CPUs": func(n *job.Node) { n.GRES, n.CPUs = []job.GRES{{Name: "gpu", Count: 7}}, 1 },
	} {
		found := full
		change(&found)
		if got := hasLess(&declared, &found); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// TestLessThanDeclared: a node whose agent finds less than it was declared to have is drained,
// and keeps what it was declared to have; when it has it, an administrator lets it go on.
func TestLessThanDeclared(t *testing.T) {
	w := newWorld(t, 2)
	a := w.agents["n1"]
	found := func(cpus int) {
		a.pause(true)
		a.change(func() {
			a.found = &job.Node{CPUs: cpus, Sockets: 1, CoresPerSocket: cpus, ThreadsPerCore: 1, Memory: 1000, GRES: []job.GRES{{Name: "gpu", Count: 8}}}
		})
		a.pause(false)
	}
	found(4)
	w.until("n1 is drained", func() bool { return w.node("n1").StateText == "drained" })
	if n := w.node("n1"); n.Reason != "Low socket*core*thread count" || n.CPUs != 8 {
		t.Errorf("it is so because of %q, and has %d CPUs", n.Reason, n.CPUs)
	}
	w.do("POST", "/v1/nodes/n1", &api.Change{State: "resume"}, nil)
	found(16)
	seen := w.node("n1").Seen
	w.until("n1 is idle", func() bool { n := w.node("n1"); return n.StateText == "idle" && n.Seen > seen })
	if n := w.node("n1"); n.CPUs != 8 {
		t.Errorf("it has %d CPUs", n.CPUs)
	}
}

// finds says what the agent finds by itself, if it does.
func (a *fakeAgent) finds(h *wire.Hello) {
	if a.found != nil {
		h.Declared, h.Hardware = false, mustJSON(a.found)
	}
}
