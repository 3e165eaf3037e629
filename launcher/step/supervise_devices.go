package step

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/gangway-hpc/gangway/hooks/nvidia"
	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/launcher/rank"
)

// indices are the numbers of the node's GPUs that the step has.
func (s *supervisor) indices() []int {
	n := &s.spec.Nodes[s.node]
	devices := n.Devices
	if s.spec.Key.Step < 0 {
		devices = n.JobDevices
	}
	return rank.Indices(devices, "gpu")
}

// gpus are these, as ranks on the host call them.
func (s *supervisor) gpus() []string {
	var all []string
	for _, i := range s.indices() {
		all = append(all, strconv.Itoa(i))
	}
	return all
}

// allot gives a container the GPUs that the step has, and no others. Those that a node was
// declared to have and has not are left out, which is said.
func (s *supervisor) allot(ctx context.Context, o *Options) error {
	indices := s.indices()
	if len(indices) == 0 {
		asks := o.Devices.GPUs != "" || slices.ContainsFunc(o.Devices.CDI, func(name string) bool { return strings.HasPrefix(name, nvidia.Kind+"=") })
		if asks {
			o.Devices.Allocation = []string{}
		}
		return nil
	}
	driver, _, err := nvidia.Cached(ctx, filepath.Join(o.Dirs[0], "gpus"), o.Devices.Nvidia)
	if err != nil && !errors.Is(err, nvidia.ErrNoDriver) {
		return err
	}
	var there []string
	var missing []int
	for _, i := range indices {
		if driver != nil && i < len(driver.GPUs) && driver.GPUs[i].UUID != "" {
			there = append(there, driver.GPUs[i].UUID)
		} else {
			missing = append(missing, i)
		}
	}
	if len(missing) > 0 {
		s.notes = append(s.notes, fmt.Sprintf("node %s is declared to have GPUs that are not there: %d of %d are not in the container", s.Node, len(missing), len(indices)))
	}
	if len(there) > 0 {
		o.Devices.Allocation = there
	}
	return nil
}

// limitMemory gives a container the memory that the step has on the node, unless its user
// says another limit.
func (s *supervisor) limitMemory(o *Options) {
	if o.Limits.Memory == 0 {
		o.Limits.Memory = s.memoryLimit()
	}
}

// memoryLimit is how many bytes the step may have on the node, where somebody has said so,
// of the job or of the step; 0: as many as there are.
func (s *supervisor) memoryLimit() int64 {
	if n := &s.spec.Nodes[s.node]; n.Memory > 0 && (s.spec.Job.Memory != (job.Memory{}) || n.Memory < n.JobMemory) {
		return n.Memory << 20
	}
	return 0
}
