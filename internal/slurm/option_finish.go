package slurm

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/gangway-hpc/gangway/internal/job"
)

// finish checks what options say together, and makes the job of it.
func (o *Options) finish() error {
	for _, check := range []func() error{o.checkMemory, o.checkGPUs, o.checkTasks, o.checkStep, o.checkLimits} {
		if err := check(); err != nil {
			return err
		}
	}
	if o.Given("relative") && o.JobID == 0 {
		return fatal("--relative option invalid for job allocation request")
	}
	o.Program.Container = o.flags()
	if !o.Given("propagate") {
		o.Propagate = limitNames() // as Slurm's PropagateResourceLimits has it
	}
	if o.Command == Srun {
		o.streams()
	}
	return nil
}

// SetTasks says how many tasks there are, as --ntasks does.
func (o *Options) SetTasks(n int) error {
	o.Job.Tasks = n
	o.given["ntasks"] = fromLine
	return o.checkTasks()
}

// streams makes of srun's --output and --error what goes to files, and what comes here: "all"
// (as without any), or that of one rank. Errors go where output goes, unless they have a
// place of their own.
func (o *Options) streams() {
	p := &o.Program
	if p.Error == "" && p.Output != "" {
		p.Error = p.Output
	}
	for _, s := range []struct {
		name *string
		only *int
	}{{&p.Output, &o.OnlyOutput}, {&p.Error, &o.OnlyError}} {
		if n, err := strconv.Atoi(*s.name); err == nil && n >= 0 {
			*s.name, *s.only = "", n
		} else if *s.name == "all" {
			*s.name = ""
		}
	}
}

// checkMemory makes --mem and its like one amount. They exclude each other, but what the
// environment says yields.
func (o *Options) checkMemory() error {
	names := [...]string{"mem", "mem-per-cpu", "mem-per-gpu"}
	units := [...]job.Unit{job.PerNode, job.PerCPU, job.PerGPU}
	asked, given, last := 0, 0, -1
	for i, name := range names {
		if o.asked(name) {
			asked++
			last = i
		}
	}
	for i, name := range names {
		if o.Given(name) {
			given++
			if asked == 0 {
				last = i
			}
		}
	}
	if asked > 1 || asked == 0 && given > 1 {
		return fatal("--mem, --mem-per-cpu, and --mem-per-gpu are mutually exclusive.")
	}
	if last >= 0 {
		o.Job.Memory = job.Memory{MiB: o.memory[last], Per: units[last], All: last == 0 && o.memory[0] == 0}
	}
	return nil
}

// checkGPUs makes one request of all that counts GPUs, and of --gres.
func (o *Options) checkGPUs() error {
	if o.Given("cpus-per-gpu") && o.Given("cpus-per-task") {
		if !o.asked("cpus-per-gpu") && o.asked("cpus-per-task") {
			o.Job.CPUsPerGPU = 0
		} else if o.asked("cpus-per-gpu") && !o.asked("cpus-per-task") {
			o.Job.CPUsPerTask = 0
		} else {
			return fatal("--cpus-per-gpu is mutually exclusive with --cpus-per-task")
		}
	}
	if o.Given("gpus-per-task") && o.Given("ntasks-per-gpu") {
		return fatal("--gpus-per-task is mutually exclusive with --ntasks-per-gpu and SLURM_NTASKS_PER_GPU")
	}
	o.Job.GRES = slices.Concat(o.gres, o.perTask)
	if o.Given("gpus-per-node") {
		for _, g := range o.gres {
			if g.Name == "gpu" {
				if o.asked("gres") && o.asked("gpus-per-node") {
					return refuse(1, "Invalid generic resource (gres) specification: --gres=gpu and --gpus-per-node exclude each other")
				}
				o.gpus[1] = nil
			}
		}
	}
	for _, all := range o.gpus {
		o.Job.GRES = append(o.Job.GRES, all...)
	}
	// A step's job has made tasks of it already.
	if handed := o.Command == Srun && o.given["ntasks-per-gpu"] == fromEnviron && o.Given("ntasks"); o.perGPU > 0 && !handed {
		return o.tasksPerGPU()
	}
	return nil
}

// tasksPerGPU makes tasks of --ntasks-per-gpu and GPUs, or GPUs of it and tasks.
func (o *Options) tasksPerGPU() error {
	var perJob, perNode int64
	for _, g := range o.Job.GRES {
		switch {
		case g.Name != "gpu":
		case g.Per == job.PerJob:
			perJob += g.Count
		case g.Per == job.PerNode:
			perNode += g.Count
		}
	}
	switch {
	case o.Given("ntasks-per-node"):
		return fatal("--ntasks-per-gpu and --ntasks-per-node are mutually exclusive")
	case perJob > 0:
		o.Job.Tasks = int(perJob) * o.perGPU
	case perNode > 0:
		o.Job.TasksPerNode = int(perNode) * o.perGPU
		if o.Job.MinNodes > 0 {
			o.Job.Tasks = o.Job.MinNodes * o.Job.TasksPerNode
		}
	case o.Job.Tasks > 0:
		n := (o.Job.Tasks + o.perGPU - 1) / o.perGPU
		o.Job.GRES = append(o.Job.GRES, job.GRESRequest{Name: "gpu", Count: int64(n), Per: job.PerJob})
		o.GPUs = fmt.Sprint(n)
	default:
		return fatal("--ntasks-per-gpu needs to be used with --ntasks or a number of GPUs")
	}
	return nil
}

// checkLimits refuses what Slurm's controller does of numbers that contradict each other. A
// step has none of these.
func (o *Options) checkLimits() error {
	s := &o.Job
	sentence := ""
	switch {
	case o.JobID != 0:
	case o.Given("nodes") && s.MaxNodes == 0:
		sentence = "Node count specification invalid"
	case o.Given("time") && o.Given("time-min") && s.TimeMin > s.TimeLimit && s.TimeLimit > 0:
		sentence = "Invalid time-min specification (exceeds job's time or other limits)"
	}
	if sentence == "" {
		return nil
	}
	return refuse(1, "%s: %s", o.Failed(), sentence)
}
