package server

import (
	"fmt"
	"strings"

	"github.com/gangway-hpc/gangway/internal/job"
)

// hasLess is in what a node has less than it was declared to have, by Slurm's words; empty: it
// has it all. GPUs are what agents find of generic resources: of others nothing is known.
func hasLess(declared, found *job.Node) string {
	var all []string
	less := func(format string, args ...any) { all = append(all, fmt.Sprintf(format, args...)) }
	if want, have := gpusOf(declared), gpusOf(found); have < want {
		less("gres/gpu count reported lower than configured (%d < %d)", have, want)
	}
	if threadsOf(found) < threadsOf(declared) {
		less("Low socket*core*thread count")
	}
	if found.CPUs < declared.CPUs {
		less("Low CPUs")
	}
	if found.Memory < declared.Memory {
		less("Low RealMemory (reported:%d < 100.00%% of configured:%d)", found.Memory, declared.Memory)
	}
	return strings.Join(all, ", ")
}

func gpusOf(n *job.Node) (count int64) {
	for _, g := range n.GRES {
		if g.Name == "gpu" {
			count += g.Count
		}
	}
	return count
}

func threadsOf(n *job.Node) int {
	return max(1, n.Sockets) * max(1, n.CoresPerSocket) * max(1, n.ThreadsPerCore)
}
