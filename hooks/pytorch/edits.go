package pytorch

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	cdi "tags.cncf.io/container-device-interface/specs-go"
)

// traces is where the container sees Step.Trace.
const traces = "/run/gangway/torch"

// traceEntries is how many calls the flight recorder remembers. One takes about 1 KiB.
const traceEntries = 2000

// Edits returns what all ranks of a node's container share: who serves the rendezvous,
// how many threads OpenMP has, torchrun's options, and where NCCL's flight recorder
// writes what each rank was doing when a collective hangs.
func (l *Layout) Edits(node int) (*cdi.ContainerEdits, error) {
	if node < 0 || node >= len(l.step.Nodes) {
		return nil, fmt.Errorf("make variables for torch: there is no node %d", node)
	}
	e := &cdi.ContainerEdits{}
	addr, port := l.master()
	e.Env = append(e.Env, "MASTER_ADDR="+addr)
	if port != "" {
		e.Env = append(e.Env, "MASTER_PORT="+port)
	}
	if value, ok := l.user["OMP_NUM_THREADS"]; ok {
		e.Env = append(e.Env, "OMP_NUM_THREADS="+value)
	} else if n := l.threads(node); n > 0 && !slices.ContainsFunc(l.step.Image, func(s string) bool { return strings.HasPrefix(s, "OMP_NUM_THREADS=") }) {
		e.Env = append(e.Env, "OMP_NUM_THREADS="+strconv.Itoa(n))
	}
	if l.step.Torchrun > 0 {
		e.Env = append(e.Env, l.torchrun(node)...)
	}
	if l.step.Trace != "" {
		e.Mounts = []*cdi.Mount{{HostPath: l.step.Trace, ContainerPath: traces, Options: []string{"bind", "rw", "nosuid", "nodev", "noexec"}}}
		for _, v := range [][2]string{
			// Newer versions of torch know both names of a pair and warn of the older;
			// older versions know only that.
			{"TORCH_NCCL_TRACE_BUFFER_SIZE", strconv.Itoa(traceEntries)},
			{"TORCH_FR_BUFFER_SIZE", strconv.Itoa(traceEntries)},
			{"TORCH_NCCL_DEBUG_INFO_TEMP_FILE", traces + "/nccl_trace_rank_"},
			{"TORCH_FR_DUMP_TEMP_FILE", traces + "/nccl_trace_rank_"},
			{"TORCH_NCCL_DUMP_ON_TIMEOUT", "1"},
		} {
			if _, ok := l.user[v[0]]; !ok {
				e.Env = append(e.Env, v[0]+"="+v[1])
			}
		}
	}
	return e, nil
}
