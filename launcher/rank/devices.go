package rank

import (
	"math/bits"
	"strconv"
	"strings"

	"github.com/gangway-hpc/gangway/internal/job"
)

// Indices are the numbers of the devices of a name, such as gpu, in ascending order.
func Indices(all []job.Devices, name string) []int {
	var mask uint64
	for _, d := range all {
		if d.Name == name {
			mask |= d.Mask
		}
	}
	var list []int
	for ; mask != 0; mask &= mask - 1 {
		list = append(list, bits.TrailingZeros64(mask))
	}
	return list
}

// devices are the variables about GPUs that all ranks of the node have.
func (e *Env) devices(s *set) {
	j := &e.Spec.Job
	s.optional("SLURM_GPUS", j.GPUs)
	s.optional("SLURM_GPUS_PER_NODE", j.GPUsPerNode)
	s.optional("SLURM_GPUS_PER_TASK", j.GPUsPerTask)
	s.optional("SLURM_GPU_BIND", e.Spec.GPUBind)
	all := e.node.Devices
	if e.isBatch() {
		all = e.node.JobDevices
	}
	numbers := Indices(all, "gpu")
	if len(numbers) == 0 {
		return
	}
	s.number("SLURM_GPUS_ON_NODE", len(numbers))
	name := "SLURM_STEP_GPUS"
	if e.isBatch() {
		name = "SLURM_JOB_GPUS"
	}
	s.add(name, list(numbers))
}

// share is which of the node's GPUs a rank may use, as positions in all: all of them,
// unless the step says how they are dealt.
func (e *Env) share(local int) []int {
	n := len(e.GPUs)
	all := make([]int, n)
	for i := range all {
		all[i] = i
	}
	kind, value, _ := strings.Cut(strings.TrimPrefix(strings.ToLower(e.Spec.GPUBind), "verbose,"), ":")
	per := e.Spec.GPUsPerTask
	switch kind {
	case "none":
		return all
	case "single": // so many tasks share one
		if tasks, err := strconv.Atoi(value); err == nil && tasks > 0 && n > 0 {
			at := local / tasks % n
			return all[at : at+1]
		}
	case "per_task":
		if count, err := strconv.Atoi(value); err == nil && count > 0 {
			per = count
		}
	case "map_gpu":
		if numbers, err := numbers(value); err == nil && len(numbers) > 0 {
			if at := numbers[local%len(numbers)]; at < n {
				return all[at : at+1]
			}
		}
	}
	if per == 0 || per*len(e.node.Ranks) > n {
		return all
	}
	return all[local*per : (local+1)*per]
}

// numbers reads a list of numbers, each of which may be repeated as in 0*4.
func numbers(text string) ([]int, error) {
	var all []int
	for part := range strings.SplitSeq(text, ",") {
		value, times, repeated := strings.Cut(part, "*")
		n, err := strconv.ParseUint(value, 0, 16)
		if err != nil {
			return nil, err
		}
		count := uint64(1)
		if repeated {
			if count, err = strconv.ParseUint(times, 10, 16); err != nil {
				return nil, err
			}
		}
		for range count {
			all = append(all, int(n))
		}
	}
	return all, nil
}
