package rank

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/internal/slurm"
)

// Options say what the ranks of a node are told beside their step.
type Options struct {
	Spec *job.StepSpec
	Node int // index of Spec.Nodes
	// MasterAddr and MasterPort are where rank 0 serves the rendezvous; 0: not known, then
	// nothing is said of either.
	MasterAddr string
	MasterPort int
	// GPUs are how the ranks call the node's devices, in order; nil: the job has none.
	GPUs []string
	// Cluster is the address of the controller, as the ranks reach it; empty: unknown.
	Cluster string
	// Marker is a variable that all processes of the step have: NAME=VALUE; empty: none.
	Marker string
	// Cwd is where the ranks start, for PWD; empty: unknown, as in a container.
	Cwd string
	// Group is the name of the user's group; empty: unknown.
	Group string
	// Binding is how the node's tasks are bound to CPUs.
	Binding Binding
	// Near are the CPUs near each of GPUs; nil: not known, or of no use.
	Near [][]int
}

// Env is what the ranks of a step on one node are told.
type Env struct {
	Options
	node   *job.StepNode
	user   map[string]string // what the caller has set
	common []string
}

// New makes what all ranks of the node are told.
func New(o Options) (*Env, error) {
	if o.Node < 0 || o.Node >= len(o.Spec.Nodes) {
		return nil, fmt.Errorf("make environment: the step has no node %d", o.Node)
	}
	e := &Env{Options: o, node: &o.Spec.Nodes[o.Node], user: map[string]string{}}
	for _, v := range o.Spec.Program.Environ {
		if name, value, ok := strings.Cut(string(v), "="); ok {
			e.user[name] = value
		}
	}
	s := &set{}
	e.job(s)
	e.step(s)
	e.devices(s)
	e.limits(s)
	s.add("SLURMD_NODENAME", e.node.Name)
	s.number("SLURM_NODEID", o.Node)
	s.optional("GANGWAY_CLUSTER", o.Cluster)
	s.optional("PWD", o.Cwd)
	e.common = s.list
	return e, nil
}

// isBatch says whether the step is the script of a job, or the shell of an allocation:
// from these others are started, which inherit what they are told.
func (e *Env) isBatch() bool { return e.Spec.Key.Step < 0 }

// Rank returns what one of the node's ranks is told, as NAME=VALUE: it goes over
// what the caller has. local counts from 0.
func (e *Env) Rank(local int) ([]string, error) {
	if local < 0 || local >= len(e.node.Ranks) {
		return nil, fmt.Errorf("make environment: node %s has no task %d", e.node.Name, local)
	}
	s := &set{list: append([]string(nil), e.common...)}
	s.number("SLURM_PROCID", e.node.Ranks[local])
	s.number("SLURM_LOCALID", local)
	s.add("SLURM_GTIDS", list(e.node.Ranks))
	e.torch(s, local)
	if e.Marker != "" {
		s.list = append(s.list, e.Marker)
	}
	return s.list, nil
}

// Environ returns the whole environment of one of the node's ranks: what the caller has,
// and over it what it is told.
func (e *Env) Environ(local int) ([]string, error) {
	over, err := e.Rank(local)
	if err != nil {
		return nil, err
	}
	names := map[string]bool{}
	for _, v := range over {
		name, _, _ := strings.Cut(v, "=")
		names[name] = true
	}
	var all []string
	for _, v := range e.Caller() {
		name, _, _ := strings.Cut(v, "=")
		if !names[name] {
			all = append(all, v)
		}
	}
	return append(all, over...), nil
}

// Caller is the environment of who submitted the step, without what is another step's.
func (e *Env) Caller() []string {
	var all []string
	bare := e.withoutGPUs()
	for _, v := range e.Spec.Program.Environ {
		name, _, _ := strings.Cut(string(v), "=")
		if !ofOtherStep(name) && !(bare && slices.Contains(visible(), name)) {
			all = append(all, string(v))
		}
	}
	return all
}

// ofOtherStep says whether a variable is about the task that has it, and not about its job.
func ofOtherStep(name string) bool {
	switch name {
	case "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_GTIDS", "SLURM_TASK_PID", "SLURMD_NODENAME", "SLURM_STEPID",
		"SLURM_CPUS_ON_NODE", "SLURM_GPUS_ON_NODE",
		"SLURM_CPU_BIND", "SLURM_CPU_BIND_TYPE", "SLURM_CPU_BIND_LIST", "SLURM_CPU_BIND_VERBOSE",
		"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "NODE_RANK", "GROUP_RANK", "GROUP_WORLD_SIZE":
		return true
	}
	return strings.HasPrefix(name, "SLURM_STEP_")
}

// set gathers variables.
type set struct{ list []string }

// add sets a variable, also where it was set before.
func (s *set) add(name, value string) {
	at := slices.IndexFunc(s.list, func(v string) bool { return len(v) > len(name) && v[len(name)] == '=' && v[:len(name)] == name })
	if at >= 0 {
		s.list[at] = name + "=" + value
		return
	}
	s.list = append(s.list, name+"="+value)
}

func (s *set) number(name string, value int) { s.add(name, strconv.Itoa(value)) }

// optional adds what there is.
func (s *set) optional(name, value string) {
	if value != "" {
		s.add(name, value)
	}
}

// positive adds a number that was asked for.
func (s *set) positive(name string, value int) {
	if value > 0 {
		s.number(name, value)
	}
}

func list(numbers []int) string {
	texts := make([]string, len(numbers))
	for i, n := range numbers {
		texts[i] = strconv.Itoa(n)
	}
	return strings.Join(texts, ",")
}

// job are the variables about the job.
func (e *Env) job(s *set) {
	spec, j := e.Spec, &e.Spec.Job
	id := spec.Key.Job.String()
	s.add("SLURM_JOB_ID", id)
	s.add("SLURM_JOBID", id)
	s.add("SLURM_JOB_NAME", j.Name)
	s.add("SLURM_JOB_USER", spec.User)
	s.number("SLURM_JOB_UID", int(spec.UID))
	s.number("SLURM_JOB_GID", int(spec.GID))
	s.optional("SLURM_JOB_GROUP", e.Group)
	s.optional("SLURM_JOB_ACCOUNT", j.Account)
	s.optional("SLURM_JOB_PARTITION", j.Partition)
	s.optional("SLURM_JOB_QOS", j.QOS)
	s.optional("SLURM_JOB_DEPENDENCY", j.Dependency)
	s.optional("SLURM_CLUSTER_NAME", spec.Cluster)
	nodes := slurm.Fold(j.Nodes)
	s.add("SLURM_JOB_NODELIST", nodes)
	s.number("SLURM_JOB_NUM_NODES", len(j.Nodes))
	s.add("SLURM_JOB_CPUS_PER_NODE", RunLength(j.CPUsPerNode))
	s.optional("SLURM_SUBMIT_DIR", string(j.SubmitDir))
	s.optional("SLURM_SUBMIT_HOST", j.SubmitHost)
	s.positive("SLURM_NTASKS_PER_NODE", j.NTasksPerNode)
	s.positive("SLURM_CPUS_PER_TASK", j.CPUsPerTask)
	if j.Memory.MiB > 0 {
		name := "SLURM_MEM_PER_NODE"
		switch j.Memory.Per {
		case job.PerCPU:
			name = "SLURM_MEM_PER_CPU"
		case job.PerGPU:
			name = "SLURM_MEM_PER_GPU"
		}
		s.add(name, strconv.FormatInt(j.Memory.MiB, 10))
	}
	if j.Start > 0 {
		s.add("SLURM_JOB_START_TIME", seconds(j.Start))
	}
	if j.End > 0 && j.End != job.Never {
		s.add("SLURM_JOB_END_TIME", seconds(j.End))
	}
	s.positive("SLURM_RESTART_COUNT", j.Restarts)
	if a := j.Array; a != nil {
		s.add("SLURM_ARRAY_JOB_ID", a.Job.String())
		for _, v := range []struct {
			name  string
			value uint32
		}{
			{"TASK_ID", a.Task}, {"TASK_COUNT", uint32(a.Count)}, {"TASK_MIN", a.Min}, {"TASK_MAX", a.Max}, {"TASK_STEP", a.Step},
		} {
			s.add("SLURM_ARRAY_"+v.name, strconv.FormatUint(uint64(v.value), 10))
		}
	}
	s.add("SLURM_PRIO_PROCESS", "0")
	s.optional("SLURM_WORKING_DIR", string(spec.Program.Cwd))
	if e.Cwd != "" && !e.has("TMPDIR") { // as Slurm's daemon does; in a container it is the image's to say
		s.add("TMPDIR", "/tmp")
	}
	e.addresses(s)
}

// seconds is a time as Slurm's variables have it.
func seconds(t job.Time) string { return strconv.FormatInt(int64(t)/1000, 10) }

// addresses say where the node is in the topology: without switches it is only itself, as by
// Slurm's topology/flat.
func (e *Env) addresses(s *set) {
	address := e.node.Name
	for i, name := range e.Spec.Job.Nodes {
		if name == e.node.Name && i < len(e.Spec.Job.Switches) && e.Spec.Job.Switches[i] != "" {
			address = e.Spec.Job.Switches[i]
		}
	}
	s.add("SLURM_TOPOLOGY_ADDR", address)
	s.add("SLURM_TOPOLOGY_ADDR_PATTERN", strings.Repeat("switch.", strings.Count(address, ".")-strings.Count(e.node.Name, "."))+"node")
}

// step are the variables about the step.
func (e *Env) step(s *set) {
	spec, j := e.Spec, &e.Spec.Job
	cpus := e.node.CPUs
	if e.isBatch() {
		s.add("SLURM_NODELIST", slurm.Fold(j.Nodes))
		s.number("SLURM_NNODES", len(j.Nodes))
		s.add("SLURM_TASKS_PER_NODE", RunLength(j.TasksPerNode))
		tasks := JobTasks(j.Tasks, j.NTasksPerNode, j.TasksPerNode)
		s.positive("SLURM_NTASKS", tasks)
		s.positive("SLURM_NPROCS", tasks)
		s.add("ENVIRONMENT", "BATCH")
		s.add("HOSTNAME", e.node.Name)
		cpus = e.node.JobCPUs
	} else {
		var names []string
		var tasks []int
		for _, n := range spec.Nodes {
			names = append(names, n.Name)
			tasks = append(tasks, len(n.Ranks))
		}
		nodes, perNode := slurm.Fold(names), RunLength(tasks)
		id := spec.Key.Step.String()
		s.add("SLURM_STEP_ID", id)
		s.add("SLURM_STEPID", id)
		s.add("SLURM_STEP_NODELIST", nodes)
		s.number("SLURM_STEP_NUM_NODES", len(names))
		s.number("SLURM_STEP_NUM_TASKS", spec.Tasks)
		s.add("SLURM_STEP_TASKS_PER_NODE", perNode)
		s.add("SLURM_NODELIST", nodes)
		s.number("SLURM_NNODES", len(names))
		s.number("SLURM_NTASKS", spec.Tasks)
		s.number("SLURM_NPROCS", spec.Tasks)
		s.add("SLURM_TASKS_PER_NODE", perNode)
		s.positive("SLURM_NTASKS_PER_NODE", spec.TasksPerNode)
		s.positive("SLURM_CPUS_PER_TASK", spec.CPUsPerTask)
		s.distribution(spec.Distribution, spec.Tasks, len(names))
		s.optional("SLURM_LAUNCH_NODE_IPADDR", spec.Nodes[0].Addr)
		s.add("SLURM_MPI_TYPE", "none")
		s.add("SRUN_DEBUG", "3") // of srun's levels the one without -v
		e.Binding.variables(s)
	}
	s.positive("SLURM_CPUS_ON_NODE", cpus)
	s.add("SLURM_UMASK", fmt.Sprintf("%04o", spec.Program.Umask))
}

// distribution says how tasks were dealt, also where nobody has asked for that.
func (s *set) distribution(asked string, tasks, nodes int) {
	d, err := ParseDistribution(asked)
	if err == nil && asked == "" && tasks <= nodes {
		d.Kind = Cyclic // which is the same, and what Slurm calls it then
	}
	if err != nil {
		return
	}
	name, size, _ := strings.Cut(d.String(), "=")
	s.add("SLURM_DISTRIBUTION", name)
	s.optional("SLURM_DIST_PLANESIZE", size)
}

// JobTasks is how many tasks those are told of who start steps in a job, of the number that
// was asked for, the number on each node that was, and those that its nodes have. 0: neither was
// asked for, then nothing is said, as by Slurm.
func JobTasks(asked, askedPerNode int, perNode []int) int {
	if asked > 0 || askedPerNode <= 0 {
		return asked
	}
	sum := 0
	for _, n := range perNode {
		sum += n
	}
	return sum
}

// limits are the resource limits that are handed on.
func (e *Env) limits(s *set) {
	for _, name := range LimitNames() {
		value, ok := e.Spec.Program.Limits[name]
		switch {
		case !ok:
		case value >= 1<<63:
			s.add("SLURM_RLIMIT_"+name, "-1")
		default:
			s.add("SLURM_RLIMIT_"+name, strconv.FormatUint(value, 10))
		}
	}
}

// LimitNames are the names of resource limits that steps hand on, as Slurm has them.
func LimitNames() []string {
	return []string{"CPU", "FSIZE", "DATA", "STACK", "CORE", "RSS", "NPROC", "NOFILE", "MEMLOCK", "AS"}
}
