package slurm

import (
	"fmt"
	"strconv"
	"strings"
)

// checkTasks compares tasks with nodes.
func (o *Options) checkTasks() error {
	s := &o.Job
	if o.Given("gpus-per-task") && s.Tasks == 0 && s.TasksPerNode == 0 && s.MinNodes == 0 {
		return refuse(1, "--gpus-per-task needs a number of tasks: give --ntasks, or --nodes")
	}
	if o.arbitrary() && o.Command == Srun {
		return o.checkArbitrary()
	}
	s.NodeList = uniqueNames(s.NodeList)
	if n := len(s.NodeList); n > s.Tasks && s.Tasks > 0 && s.MinNodes == 0 && o.asked("ntasks") && !o.Given("nodes") {
		s.MinNodes, s.MaxNodes = n, n // the nodes that are named are a number of them, too
	}
	// More nodes than tasks: as many nodes as tasks, says Slurm.
	if s.Tasks > 0 && s.MinNodes > s.Tasks && o.Given("ntasks") {
		if !(o.Command == Srun && o.given["ntasks"] == fromEnviron) && !strings.HasSuffix(o.Distribution, ",pack") {
			o.Warnings = append(o.Warnings, fmt.Sprintf("Warning: can't run %d processes on %d nodes, setting nnodes to %d", s.Tasks, s.MinNodes, s.Tasks))
		}
		s.MinNodes = s.Tasks
		s.MaxNodes = max(min(s.MaxNodes, s.Tasks), s.MinNodes)
		if len(s.NodeList) > s.MaxNodes && !o.Given("nodes") {
			s.NodeList = s.NodeList[:s.MaxNodes]
		}
	}
	if n := len(s.NodeList); n > 0 && s.MaxNodes > 0 && n > s.MaxNodes {
		if o.Command != Srun {
			return refuse(1, "invalid number of nodes (-N %d-%d)", n, s.MaxNodes)
		}
		o.Warnings = append(o.Warnings, fmt.Sprintf("error: Required nodelist includes more nodes than permitted by max-node count (%d > %d). Eliminating nodes from the nodelist.", n, s.MaxNodes))
		s.NodeList = s.NodeList[:s.MaxNodes]
	}
	return nil
}

// checkStep compares what a step of a job asks for with what srun knows of that: its environment.
func (o *Options) checkStep() error {
	s := &o.Job
	if o.Command != Srun || o.JobID == 0 {
		return nil
	}
	have, _ := strconv.Atoi(o.getenv("SLURM_JOB_NUM_NODES")) // 0: not known here
	known := have > 0 && strings.TrimSpace(o.getenv("SLURM_JOB_ID")) == o.JobID.String()
	name := "--nodes"
	if o.given["nodes"] == fromEnviron {
		name = "SLURM_JOB_NUM_NODES"
	}
	switch {
	case known && o.Given("relative") && o.Relative+max(1, s.MinNodes) > have:
		return refuse(1, "--relative and %s option incompatible with count of allocated nodes (%d+%d>%d)", name, o.Relative, s.MinNodes, have)
	case known && s.MinNodes > have:
		return refuse(1, "Only allocated %d nodes asked for %d", have, s.MinNodes)
	}
	nodes := s.MinNodes
	if strings.HasSuffix(o.Distribution, ",pack") {
		nodes = min(nodes, 1)
	}
	// Slurm holds to a number on each node only where it comes to the number of tasks.
	if s.TasksPerNode > 0 && s.Tasks > s.TasksPerNode && nodes > 0 && s.Tasks != s.TasksPerNode*nodes && o.Given("ntasks") && !o.arbitrary() {
		o.Warnings = append(o.Warnings, fmt.Sprintf("Warning: can't honor --ntasks-per-node set to %d which doesn't match the requested tasks %d with the number of requested nodes %d. Ignoring --ntasks-per-node.",
			s.TasksPerNode, s.Tasks, nodes))
		s.TasksPerNode = 0
	}
	return nil
}
