package step

import (
	"fmt"
	"log/slog"
	"testing"

	"github.com/gangway-hpc/gangway/hooks/nvidia"
	"github.com/gangway-hpc/gangway/hooks/nvidia/fakedriver"
	"github.com/gangway-hpc/gangway/internal/job"
)

// TestNear: what is near the GPUs of a step, and of each of its ranks, as the machine says: here
// the first two of four are near CPUs 0 to 31.
func TestNear(t *testing.T) {
	tree := fakedriver.New(t, fakedriver.Options{GPUs: 4})
	for _, test := range []struct {
		gpus    uint64 // of the step
		perTask int
		bind    string
		want    string // first and last of the CPUs of each rank
	}{
		{0b1111, 2, "", "[0-31 32-63]"},
		{0b1111, 1, "", "[0-31 0-31]"},
		{0b1010, 1, "", "[0-31 32-63]"},
		{0b1010, 0, "map_gpu:1,0", "[32-63 0-31]"},
		{0b1100, 0, "", "[32-63 32-63]"},
		{0b1111, 0, "", "[0-63 0-63]"},
		{0, 0, "", "[]"},
		{0b10000, 0, "", "[]"}, // a node that is declared to have more than it has
	} {
		spec := stepSpec(2)
		spec.GPUsPerTask, spec.GPUBind = test.perTask, test.bind
		spec.Nodes[0].Devices = []job.Devices{{Name: "gpu", Mask: test.gpus}}
		s := &supervisor{SuperviseOptions: SuperviseOptions{Log: slog.New(slog.DiscardHandler)}, spec: spec}
		for local, rank := range spec.Nodes[0].Ranks {
			s.ranks = append(s.ranks, &member{rank: rank, local: local})
		}
		s.near = s.nearGPUs(t.Context(), nvidia.Options{Root: tree.Root})
		got := []string{}
		for _, cpus := range s.nearRanks() {
			got = append(got, fmt.Sprintf("%d-%d", cpus[0], cpus[len(cpus)-1]))
		}
		if fmt.Sprint(got) != test.want {
			t.Errorf("GPUs %b, %d a task, %q: %v, want %s", test.gpus, test.perTask, test.bind, got, test.want)
		}
	}
}
