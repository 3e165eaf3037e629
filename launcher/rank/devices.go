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

// visible are the variables by which programs know the GPUs that they may use: first the one
// of NVIDIA, which takes names as well, and those of others, which take numbers only.
func visible() []string {
	return []string{"CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK"}
}

// withoutGPUs says whether the step has none of the GPUs that its job has on this node: what
// the caller was told of these is not for it.
func (e *Env) withoutGPUs() bool {
	return !e.isBatch() && len(Indices(e.node.JobDevices, "gpu")) > 0 && len(Indices(e.node.Devices, "gpu")) == 0
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
	if mine := closest(e.Spec.GPUBind, e.Binding, e.Near, local); len(mine) > 0 && len(e.Near) == n {
		return mine
	}
	return Share(e.Spec, n, len(e.node.Ranks), local)
}

// closest are the GPUs near the CPUs to which a rank is bound; none: nobody has asked for these,
// or it is not bound, or there are none.
func closest(gpuBind string, b Binding, near [][]int, local int) []int {
	if !wantsClosest(gpuBind) || b.CPUs == nil {
		return nil
	}
	var mine []int
	for at, cpus := range near {
		if len(intersect(cpus, b.CPUs[local])) > 0 {
			mine = append(mine, at)
		}
	}
	return mine
}

func wantsClosest(gpuBind string) bool { return strings.HasSuffix(strings.ToLower(gpuBind), "closest") }

// Share is which of a node's n GPUs a rank may use, by --gpu-bind and --gpus-per-task of its step, as
// positions; local is its number among the node's tasks. Which GPUs are near a rank is not asked.
func Share(spec *job.StepSpec, n, tasks, local int) []int {
	all := make([]int, n)
	for i := range all {
		all[i] = i
	}
	kind, value, _ := strings.Cut(strings.TrimPrefix(strings.ToLower(spec.GPUBind), "verbose,"), ":")
	per := spec.GPUsPerTask
	switch kind {
	case "none":
		return all
	case "single": // so many tasks share one
		if share, err := strconv.Atoi(value); err == nil && share > 0 && n > 0 {
			at := local / share % n
			return all[at : at+1]
		}
	case "per_task":
		if count, err := strconv.Atoi(value); err == nil && count > 0 {
			per = count
		}
	case "mask_gpu", "mask":
		if masks := strings.Split(value, ","); value != "" {
			if mine, ok := masked(masks, local, n); ok {
				return mine
			}
		}
	case "map_gpu", "map":
		if numbers, err := numbers(value); err == nil && len(numbers) > 0 {
			if at := numbers[local%len(numbers)]; at < n {
				return all[at : at+1]
			}
		}
	}
	if per == 0 || per*tasks > n {
		return all
	}
	return all[local*per : (local+1)*per]
}

// NotBound says why --gpu-bind=closest leaves all GPUs to every task; empty: it does not, or there
// is nothing to bind. near are the CPUs near each GPU.
func NotBound(gpuBind string, gpus int, b Binding, near [][]int) string {
	switch {
	case gpus == 0 || !wantsClosest(gpuBind):
	case len(near) == 0:
		return "--gpu-bind=closest: every task sees all of the node's GPUs: which CPUs are near them the machine does not say; --gpu-bind=per_task:N, map_gpu and mask_gpu choose"
	case b.CPUs == nil:
		return "--gpu-bind=closest: every task sees all of the node's GPUs: tasks are not bound to CPUs; --cpu-bind=cores binds them, and --cpu-bind=closest --gpu-bind=per_task:N deals GPUs first"
	}
	return ""
}

// masked are the positions below n that the task's mask has, of masks each of which may be
// repeated as in 0x3*4, and which begin anew where there are more tasks; not ok: there are none.
func masked(masks []string, local, n int) (mine []int, ok bool) {
	var all []uint64
	for _, word := range masks {
		digits, times, repeated := strings.Cut(word, "*")
		mask, err := strconv.ParseUint(strings.TrimPrefix(digits, "0x"), 16, 64)
		count := uint64(1)
		if repeated && err == nil {
			count, err = strconv.ParseUint(times, 10, 16)
		}
		if err != nil {
			return nil, false
		}
		for range count {
			all = append(all, mask)
		}
	}
	if len(all) == 0 {
		return nil, false
	}
	for i := range min(n, 64) {
		if all[local%len(all)]>>i&1 != 0 {
			mine = append(mine, i)
		}
	}
	return mine, len(mine) > 0
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
