package server

import (
	"testing"

	"github.com/gangway-hpc/gangway/internal/api"
)

// TestDrainReasonIsKept: why a node is drained is known after it was lost and came back, however
// often, and after the controller has started again; so it is where it is drained meanwhile.
func TestDrainReasonIsKept(t *testing.T) {
	t.Parallel()
	w, _, agent := lossy(t)
	path := "/v1/nodes/" + agent.node.Name
	want := func(when, state, reason string) {
		t.Helper()
		w.until(when+": "+state, agent.is(state))
		var n api.Node
		w.get(path, &n)
		if n.Reason != reason {
			t.Errorf("%s: the reason is %q, want %q", when, n.Reason, reason)
		}
	}
	w.do("POST", path, &api.Change{State: "drain", Reason: "bad disk"}, nil)
	agent.pause(true)
	want("lost", "down*", "bad disk; Not responding")
	w.restart()
	want("lost, after a restart", "down*", "bad disk; Not responding")
	agent.pause(false)
	want("back", "drained", "bad disk")
	w.restart()
	want("after a restart", "drained", "bad disk")
	w.do("POST", path, &api.Change{State: "resume"}, nil)
	want("resumed", "idle", "")
	agent.pause(true)
	want("lost again", "down*", "Not responding")
	w.do("POST", path, &api.Change{State: "drain", Reason: "worse disk"}, nil)
	want("drained meanwhile", "down*", "worse disk; Not responding")
	agent.pause(false)
	want("back again", "drained", "worse disk")
	w.do("POST", path, &api.Change{State: "down", Reason: "smoke"}, nil)
	agent.pause(true)
	w.do("POST", path, &api.Change{State: "undrain"}, nil)
	agent.pause(false)
	want("taken down", "down", "smoke")
}
