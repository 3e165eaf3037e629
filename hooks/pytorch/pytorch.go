// Package pytorch says what the ranks of a step find in their environment, so that those
// of PyTorch meet: the variables of torch.distributed's "env://", and those from which
// torchrun takes the options that its command line does not give.
//
// First call: [Rank.Environ] for a program that is a rank itself, [ParseTorchrun] for one
// that may be torchrun, and then [Torchrun.Environ]. The package is pure: it opens nothing
// and asks nobody, so its functions may be called by any number of goroutines.
//
// It does not choose a port: MASTER_PORT is one that the caller holds on the first
// node, because a number computed from the job's collides with the next job's. It
// claims nothing that is not so: TORCHELASTIC_* are torchrun's own and stay unset, and
// without them rank 0 serves the store.
package pytorch

import (
	"strconv"

	cdi "tags.cncf.io/container-device-interface/specs-go"
)

// Rank is a task of a step that is a rank of torch.distributed.
type Rank struct {
	Rank, Local       int // among all, and on its node
	World, LocalWorld int // how many there are
	Node, Nodes       int
	MasterAddr        string // how rank 0 is reached
	MasterPort        int    // held free for it; 0: unknown, then nothing is said of either
}

// Environ returns the variables, NAME=VALUE. has says what the person has set: of that
// MASTER_ADDR and MASTER_PORT stay. Who one is, is never the person's to set: RANK and
// the like come from a login shell or an outer job by accident.
func (r Rank) Environ(has func(name string) bool) []string {
	var env []string
	for _, v := range []struct {
		name  string
		value int
	}{
		{"RANK", r.Rank},
		{"LOCAL_RANK", r.Local},
		{"WORLD_SIZE", r.World},
		{"LOCAL_WORLD_SIZE", r.LocalWorld},
		{"NODE_RANK", r.Node},
		{"GROUP_RANK", r.Node},
		{"GROUP_WORLD_SIZE", r.Nodes},
	} {
		env = append(env, v.name+"="+strconv.Itoa(v.value))
	}
	return append(env, r.Master(has)...)
}

// Master returns MASTER_ADDR and MASTER_PORT, as far as the person has not set them.
func (r Rank) Master(has func(name string) bool) []string {
	var env []string
	if r.MasterPort == 0 {
		return nil
	}
	if !has("MASTER_ADDR") {
		env = append(env, "MASTER_ADDR="+r.MasterAddr)
	}
	if !has("MASTER_PORT") {
		env = append(env, "MASTER_PORT="+strconv.Itoa(r.MasterPort))
	}
	return env
}

// traces is where a container sees the directory of [Traces].
const traces = "/run/gangway/torch"

// traceEntries is how many calls the flight recorder remembers. One takes about 1 KiB.
const traceEntries = 2000

// Traces has NCCL's flight recorder write what each rank was doing when a collective hangs,
// to a directory of the host, but for what the person has set.
func Traces(dir string, has func(name string) bool) *cdi.ContainerEdits {
	e := &cdi.ContainerEdits{
		Mounts: []*cdi.Mount{{HostPath: dir, ContainerPath: traces, Options: []string{"bind", "rw", "nosuid", "nodev", "noexec"}}},
	}
	for _, v := range [][2]string{
		// Newer versions of torch know both names of a pair and warn of the older;
		// older versions know only that.
		{"TORCH_NCCL_TRACE_BUFFER_SIZE", strconv.Itoa(traceEntries)},
		{"TORCH_FR_BUFFER_SIZE", strconv.Itoa(traceEntries)},
		{"TORCH_NCCL_DEBUG_INFO_TEMP_FILE", traces + "/nccl_trace_rank_"},
		{"TORCH_FR_DUMP_TEMP_FILE", traces + "/nccl_trace_rank_"},
		{"TORCH_NCCL_DUMP_ON_TIMEOUT", "1"},
	} {
		if !has(v[0]) {
			e.Env = append(e.Env, v[0]+"="+v[1])
		}
	}
	return e
}
