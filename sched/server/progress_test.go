package server

import (
	"testing"

	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/internal/wire"
)

// TestProgress: one line for all nodes, with bytes and speed of those that pull, and
// nothing of those that are ready.
func TestProgress(t *testing.T) {
	spec := &job.StepSpec{Nodes: []job.StepNode{{Name: "a"}, {Name: "b"}, {Name: "c"}, {Name: "d"}}}
	st := &step{Spec: spec, Gang: newGang(spec), progress: map[string]*nodeProgress{}}
	if text := st.progressText(); text != "" {
		t.Errorf("nothing is known: %q", text)
	}
	hear := func(node, phase string, bytes, total int64, now job.Time) {
		st.heardOf(node, &wire.Progress{Phase: phase, Bytes: bytes, Total: total}, now)
	}
	for i, test := range []struct {
		node, phase  string
		bytes, total int64
		now          job.Time
		text         string
	}{
		{"a", "prepare", 0, 0, 1000, "0 of 4 nodes are ready; 1: prepare"},
		{"a", "pull image", 100e6, 400e6, 1000, "0 of 4 nodes are ready; 1: pull image 100.0 MB of 400.0 MB"},
		{"a", "pull image", 200e6, 400e6, 3000, "0 of 4 nodes are ready; 1: pull image 200.0 MB of 400.0 MB, 50.0 MB/s, 4 s left"},
		{"b", "pull image", 0, 400e6, 3000, "0 of 4 nodes are ready; 2: pull image 200.0 MB of 800.0 MB, 50.0 MB/s, 12 s left"},
		{"c", "mount", 0, 0, 3000, "0 of 4 nodes are ready; 1: mount; 2: pull image 200.0 MB of 800.0 MB, 50.0 MB/s, 12 s left"},
	} {
		if hear(test.node, test.phase, test.bytes, test.total, test.now); st.progressText() != test.text {
			t.Errorf("%d: %q, want %q", i, st.progressText(), test.text)
		}
	}
	st.Gang.node("a").Phase, st.Gang.node("c").Phase = prepared, prepared
	if text := st.progressText(); text != "2 of 4 nodes are ready; 1: pull image 0.0 MB of 400.0 MB" {
		t.Errorf("two are ready: %q", text)
	}
}
