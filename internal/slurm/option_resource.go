package slurm

import (
	"strconv"
	"strings"

	"github.com/gangway-hpc/gangway/internal/job"
)

// resourceOptions say how much is asked for.
func resourceOptions() []option {
	return []option{
		{Flag: Flag{"nodes", 'N', RequiredArgument}, in: asking, set: setNodes},
		{Flag: Flag{"ntasks", 'n', RequiredArgument}, in: asking, set: intoInt(1, func(o *Options) *int { return &o.Job.Tasks })},
		{Flag: Flag{"cpus-per-task", 'c', RequiredArgument}, in: asking, set: intoInt(1, func(o *Options) *int { return &o.Job.CPUsPerTask })},
		{Flag: Flag{"ntasks-per-node", 0, RequiredArgument}, in: asking, set: intoInt(1, func(o *Options) *int { return &o.Job.TasksPerNode })},
		{Flag: Flag{"tasks-per-node", 0, RequiredArgument}, in: asking, set: intoInt(1, func(o *Options) *int { return &o.Job.TasksPerNode })},
		{Flag: Flag{"ntasks-per-gpu", 0, RequiredArgument}, in: asking, set: intoInt(1, func(o *Options) *int { return &o.perGPU })},
		{Flag: Flag{"mem", 0, RequiredArgument}, in: asking, env: "MEM_PER_NODE", set: setMemory(0)},
		{Flag: Flag{"mem-per-cpu", 0, RequiredArgument}, in: asking, env: "MEM_PER_CPU", set: setMemory(1)},
		{Flag: Flag{"mem-per-gpu", 0, RequiredArgument}, in: asking, env: "MEM_PER_GPU", set: setMemory(2)},
		{Flag: Flag{"gres", 0, RequiredArgument}, in: asking, env: "GRES", set: setGRES},
		{Flag: Flag{"gpus", 'G', RequiredArgument}, in: asking, env: "GPUS", set: setGPUs(job.PerJob)},
		{Flag: Flag{"gpus-per-node", 0, RequiredArgument}, in: asking, env: "GPUS_PER_NODE", set: setGPUs(job.PerNode)},
		{Flag: Flag{"gpus-per-task", 0, RequiredArgument}, in: asking, env: "GPUS_PER_TASK", set: setGPUs(job.PerTask)},
		{Flag: Flag{"gpus-per-socket", 0, RequiredArgument}, in: asking, env: "GPUS_PER_SOCKET", why: "GPUs per socket are not supported by Gangway yet; use --gpus-per-node"},
		{Flag: Flag{"cpus-per-gpu", 0, RequiredArgument}, in: asking, env: "CPUS_PER_GPU", set: intoInt(1, func(o *Options) *int { return &o.Job.CPUsPerGPU })},
		{Flag: Flag{"exclusive", 0, OptionalArgument}, in: asking, env: "EXCLUSIVE", set: setExclusive},
		{Flag: Flag{"oversubscribe", 's', NoArgument}, in: asking, env: "", set: intoBool(func(o *Options) *bool { return &o.Job.Oversubscribe })},
		{Flag: Flag{"threads-per-core", 0, RequiredArgument}, in: asking, env: "THREADS_PER_CORE", set: intoInt(1, func(o *Options) *int { return &o.Job.ThreadsPerCore })},
		{Flag: Flag{"hint", 0, RequiredArgument}, in: asking, env: "HINT", set: setHint},
		{Flag: Flag{"licenses", 'L', RequiredArgument}, in: asking, set: setLicenses},
	}
}

// intoInt is the setter of a whole number of at least low.
func intoInt(low int, field func(*Options) *int) func(*Options, value) error {
	return func(o *Options, v value) error {
		n, err := v.number(low)
		if err == nil {
			*field(o) = n
		}
		return err
	}
}

// intoBool is the setter of a switch.
func intoBool(field func(*Options) *bool) func(*Options, value) error {
	return func(o *Options, v value) error {
		*field(o) = v.on()
		return nil
	}
}

// intoText is the setter of a text that means what it is.
func intoText(field func(*Options) *string) func(*Options, value) error {
	return func(o *Options, v value) error {
		*field(o) = v.text
		return nil
	}
}

// setNodes reads N, or MIN-MAX, each with k for 1024.
func setNodes(o *Options, v value) error {
	low, high, ranged := strings.Cut(strings.Trim(v.text, spaces), "-")
	first, err := nodeCount(low)
	if err != nil {
		return err
	}
	last := first
	if ranged {
		if last, err = nodeCount(high); err != nil {
			return err
		}
		if last < first {
			return refuse(badOption, "Maximum node count %d is less than minimum node count %d", last, first)
		}
	}
	o.Job.MinNodes, o.Job.MaxNodes = first, last
	return nil
}

func nodeCount(text string) (int, error) {
	digits, factor := text, 1
	if rest, ok := strings.CutSuffix(strings.ToLower(text), "k"); ok {
		digits, factor = rest, 1024
	} else if rest, ok := strings.CutSuffix(strings.ToLower(text), "m"); ok {
		digits, factor = rest, 1024*1024
	}
	n, err := strconv.ParseUint(digits, 10, 20)
	if err != nil {
		return 0, refuse(badOption, "%q is not a valid node count", text)
	}
	return int(n) * factor, nil
}

// setMemory is the setter of --mem (0), --mem-per-cpu (1) and --mem-per-gpu (2). What the
// environment says yields to another one of them that was asked for.
func setMemory(kind int) func(*Options, value) error {
	return func(o *Options, v value) error {
		mib, err := ParseSize(v.text)
		if err != nil {
			return v.invalid()
		}
		o.memory[kind] = mib
		return nil
	}
}

// setGRES reads --gres, per node.
func setGRES(o *Options, v value) error {
	all, err := ParseGRESRequest(v.text, "", job.PerNode)
	if err != nil || strings.Contains(v.text, "gres/") {
		return refuse(1, "Invalid generic resource (gres) specification")
	}
	o.gres = all
	return nil
}

// setGPUs is the setter of the options that count GPUs.
func setGPUs(per job.Unit) func(*Options, value) error {
	return func(o *Options, v value) error {
		all, err := ParseGRESRequest(v.text, "gpu", per)
		if err != nil {
			return refuse(1, "Invalid generic resource (gres) specification")
		}
		switch per {
		case job.PerJob:
			o.gpus[0], o.GPUs = all, v.text
		case job.PerNode:
			o.gpus[1], o.GPUsPerNode = all, v.text
		default:
			o.gpus[2], o.GPUsPerTask = all, v.text
		}
		return nil
	}
}

// setExclusive reads --exclusive: of a job whole nodes, of a step CPUs of its own.
func setExclusive(o *Options, v value) error {
	switch text := strings.ToLower(v.text); {
	case v.bare || text == "" || v.from == fromEnviron && text == "1":
		o.Job.Exclusive, o.ExclusiveStep = true, true
	case text == "user" || text == "mcs" || text == "topo":
		return refuse(badOption, "--exclusive=%s: not supported by Gangway yet; --exclusive is", v.text)
	default:
		return v.invalid()
	}
	return nil
}

// hintHelp is what Slurm says of --hint.
const hintHelp = `Application hint options:
    --hint=             Bind tasks according to application hints
        compute_bound   use all cores in each socket
        memory_bound    use only one core in each socket
        [no]multithread [don't] use extra threads with in-core multi-threading
        help            show this help message`

// setHint reads --hint.
func setHint(o *Options, v value) error {
	for word := range strings.SplitSeq(strings.ToLower(v.text), ",") {
		switch word {
		case "nomultithread":
			o.Job.ThreadsPerCore = 1
		case "multithread":
		case "compute_bound": // all cores, with a thread each
			o.Job.ThreadsPerCore = 1
			if o.Command == Srun && o.CPUBind == "" {
				o.CPUBind = "cores"
			}
		case "memory_bound":
			return refuse(1, "--hint=%s: one core of each socket is not supported by Gangway yet; compute_bound and nomultithread are", v.text)
		case "help":
			return &Refusal{Plain: true, Code: 1, Lines: strings.Split(hintHelp, "\n")}
		default:
			return refuse(1, "unrecognized --hint argument %q, see --hint=help", v.text)
		}
	}
	return nil
}

// setLicenses reads NAME[:COUNT],... of which all are needed, or with "|" one.
func setLicenses(o *Options, v value) error {
	sign, into := ",", &o.Job.Licenses
	if strings.Contains(v.text, "|") {
		sign, into = "|", &o.Job.AnyLicense
	}
	bad := &SyntaxError{Key: "licenses", Value: v.text, Want: "NAME[:COUNT] with commas (all) or | (any)"}
	*into = nil
	for word := range strings.SplitSeq(v.text, sign) {
		name, count, counted := strings.Cut(word, ":")
		l := job.License{Name: name, Count: 1}
		if counted {
			l.Count, _ = strconv.ParseInt(count, 10, 64) // 0 if it is none
		}
		if name == "" || l.Count < 1 {
			return o.refused("Invalid license specification", bad)
		}
		*into = append(*into, l)
	}
	return nil
}
