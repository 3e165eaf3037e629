package server

import (
	"testing"

	"github.com/gangway-hpc/gangway/internal/api"
	"github.com/gangway-hpc/gangway/internal/job"
)

func widthTwo(c *job.Cluster) { c.TreeWidth = 2 }

// TestTree: what is for many nodes goes by way of some, and so do the answers.
func TestTree(t *testing.T) {
	t.Parallel()
	w := newWorldOf(t, 9, widthTwo)
	id := w.allocation(9)
	s := w.step(id, stepRequest(9, 9))
	end := w.stepEnd(s)
	if end.Exit != 0 {
		t.Errorf("the step ended with %d: %+v", end.Exit, end.Fault)
	}
	for key, n := range w.started() {
		if n != 9 {
			t.Errorf("step %v was started %d times", key, n)
		}
	}
	if n := w.counter("gangway_forwarded_commands_total"); n < 2*9 {
		t.Errorf("%v commands went by the tree, want prepare and start of all", n)
	}
	if n := w.counter("gangway_relayed_answers_total"); n < 3*9 {
		t.Errorf("%v answers came by the tree", n)
	}
	_ = api.Step{}
}
