package server

import (
	"maps"
	"testing"

	"github.com/gangway-hpc/gangway/internal/job"
)

// TestSwitchPaths: where nodes are in a tree, whatever the order of its lines; circles end.
func TestSwitchPaths(t *testing.T) {
	got := switchPaths(&job.Network{Switches: []job.Switch{
		{Name: "l1", Nodes: []string{"n1", "n2"}},
		{Name: "top", Switches: []string{"s1"}},
		{Name: "s1", Switches: []string{"l1", "l2"}},
		{Name: "l2", Nodes: []string{"n3"}},
		{Name: "alone", Nodes: []string{"n4"}},
	}})
	want := map[string]string{"n1": "top.s1.l1.n1", "n2": "top.s1.l1.n2", "n3": "top.s1.l2.n3", "n4": "alone.n4"}
	if !maps.Equal(got, want) {
		t.Errorf("%v", got)
	}
	circle := switchPaths(&job.Network{Switches: []job.Switch{{Name: "a", Switches: []string{"b"}, Nodes: []string{"n"}}, {Name: "b", Switches: []string{"a"}}}})
	if circle["n"] == "" {
		t.Errorf("%v", circle)
	}
}
