package fault_test

import (
	"slices"
	"testing"

	"github.com/gangway-hpc/gangway/internal/fault"
)

// TestNearest: beginnings first, then what few letters make of it, and nothing that is far.
func TestNearest(t *testing.T) {
	names := []string{"nodes", "nodelist", "ntasks", "partition", "time"}
	for typed, want := range map[string][]string{
		"node": {"nodes", "nodelist"}, "ntaks": {"ntasks"}, "partitoin": {"partition"}, "tiem": {"time"}, "x": nil, "": nil, "colour": nil,
	} {
		if got := fault.Nearest(typed, names); !slices.Equal(got, want) {
			t.Errorf("%q: %q, want %q", typed, got, want)
		}
	}
}
