package slurm

import (
	"errors"
	"os"
	"strconv"
	"strings"

	"github.com/gangway-hpc/gangway/internal/job"
)

// placeOptions say where.
func placeOptions() []option {
	return []option{
		{Flag: Flag{"partition", 'p', RequiredArgument}, in: asking, env: "PARTITION", set: setPartitions},
		{Flag: Flag{"nodelist", 'w', RequiredArgument}, in: asking, set: setNodeList},
		{Flag: Flag{"nodefile", 'F', RequiredArgument}, in: asking, set: setNodeFile},
		{Flag: Flag{"exclude", 'x', RequiredArgument}, in: asking, set: setExclude},
		{Flag: Flag{"constraint", 'C', RequiredArgument}, in: asking, env: "CONSTRAINT", set: setConstraint},
		{Flag: Flag{"prefer", 0, RequiredArgument}, in: asking, env: "PREFER", set: setPrefer},
		{Flag: Flag{"contiguous", 0, NoArgument}, in: asking, set: intoBool(func(o *Options) *bool { return &o.Job.Contiguous })},
		{Flag: Flag{"switches", 0, RequiredArgument}, in: asking, env: "REQ_SWITCH", set: setSwitches},
		{Flag: Flag{"segment", 0, RequiredArgument}, in: asking, env: "SEGMENT_SIZE", set: intoInt(1, func(o *Options) *int { return &o.Job.Topology.Segment })},
		{Flag: Flag{"distribution", 'm', RequiredArgument}, in: asking, env: "DISTRIBUTION", set: setDistribution},
		{Flag: Flag{"gpu-bind", 0, RequiredArgument}, in: asking, env: "GPU_BIND", set: setGPUBind},
		{Flag: Flag{"cpu-bind", 0, RequiredArgument}, in: Srun, env: "CPU_BIND", set: setCPUBind},
		{Flag: Flag{"cpu_bind", 0, RequiredArgument}, in: Srun, set: setCPUBind},
	}
}

func setPartitions(o *Options, v value) error {
	o.Job.Partitions = splitList(v.text)
	return nil
}

func setNodeList(o *Options, v value) error {
	names, err := nodeNames(v.text)
	if err != nil {
		return err
	}
	o.Job.NodeList = names
	return nil
}

func setExclude(o *Options, v value) error {
	names, err := nodeNames(v.text)
	if err != nil {
		return err
	}
	o.Job.Exclude = names
	return nil
}

// nodeNames reads a hostlist, or the file of one where the text has a slash.
func nodeNames(text string) ([]string, error) {
	if strings.Contains(text, "/") {
		return nodeFile(text)
	}
	names, err := Expand(text)
	if err != nil {
		return nil, refuse(1, "Invalid node name specified: %s", err)
	}
	return names, nil
}

func setNodeFile(o *Options, v value) error {
	names, err := nodeFile(v.text)
	if err != nil {
		return err
	}
	o.Job.NodeList = names
	return nil
}

// nodeFile reads a file of hostlists, one a line or with commas.
func nodeFile(name string) ([]string, error) {
	b, err := os.ReadFile(name)
	if err != nil {
		var path *os.PathError
		cause := err
		if errors.As(err, &path) {
			cause = path.Err
		}
		text := cause.Error()
		return nil, &Refusal{Code: badOption, Lines: []string{
			"error: slurm_allocate_resources error opening file " + name + ", " + strings.ToUpper(text[:1]) + text[1:],
			"error: Invalid --nodefile node file",
		}}
	}
	var all []string
	for word := range strings.FieldsSeq(string(b)) {
		names, err := Expand(word)
		if err != nil {
			return nil, refuse(badOption, "Invalid --nodefile node file")
		}
		all = append(all, names...)
	}
	return all, nil
}

func setConstraint(o *Options, v value) (err error) {
	if o.Job.Constraint, err = ParseConstraint(v.text); err != nil {
		return refuse(1, "Invalid feature specification: %s", err)
	}
	return nil
}

func setPrefer(o *Options, v value) (err error) {
	if o.Job.Prefer, err = ParseConstraint(v.text); err != nil {
		return refuse(1, "Invalid feature specification: %s", err)
	}
	return nil
}

// switchWait is how long a job waits for few switches where it does not say:
// max_switch_wait of SchedulerParameters.
const switchWait = 300 * job.Second

// setSwitches reads COUNT[@TIME].
func setSwitches(o *Options, v value) error {
	count, wait, timed := strings.Cut(v.text, "@")
	n, err := strconv.Atoi(count)
	if err != nil || n < 0 {
		return refuse(1, "Invalid numeric value %q for --switches.", count)
	}
	t := job.Topology{Switches: n, Wait: switchWait, Required: o.Job.Topology.Required, Segment: o.Job.Topology.Segment}
	if timed {
		if t.Wait, err = ParseTime(wait); err != nil {
			return v.invalid()
		}
	}
	o.Job.Topology = t
	return nil
}

// setDistribution reads how tasks are laid out over nodes; what follows the first colon is
// about sockets and cores.
func setDistribution(o *Options, v value) error {
	nodes, cores, fine := strings.Cut(v.text, ":")
	nodes, _, _ = strings.Cut(nodes, ",")
	plane, size, sized := strings.Cut(nodes, "=")
	switch {
	case nodes == "*" || nodes == "block" || nodes == "cyclic" || nodes == "arbitrary":
	case plane == "plane" && sized:
		if n, err := strconv.Atoi(size); err != nil || n < 1 {
			return v.invalid()
		}
	default:
		return v.invalid()
	}
	if fine {
		for part := range strings.SplitSeq(strings.TrimSuffix(strings.TrimSuffix(cores, ",NoPack"), ",Pack"), ":") {
			if part != "*" && part != "block" && part != "cyclic" && part != "fcyclic" {
				return v.invalid()
			}
		}
	}
	o.Distribution = nodes
	return nil
}

// setGPUBind reads which of a node's GPUs a task sees.
func setGPUBind(o *Options, v value) error {
	text := strings.TrimPrefix(v.text, "verbose,")
	text = strings.TrimPrefix(strings.TrimPrefix(text, "v,"), "gpu:")
	kind, rest, _ := strings.Cut(text, ":")
	number := func(words string, base int) bool {
		for word := range strings.SplitSeq(words, ",") {
			word, _, _ = strings.Cut(word, "*")
			if _, err := strconv.ParseUint(word, base, 64); err != nil {
				return false
			}
		}
		return true
	}
	ok := false
	switch kind {
	case "none", "closest":
		ok = rest == ""
	case "single", "per_task":
		ok = number(rest, 10)
	case "map_gpu", "map":
		ok = number(rest, 0)
	case "mask_gpu", "mask":
		ok = number(rest, 0)
	}
	if !ok {
		return refuse(badOption, "Invalid --gpu-bind argument: gpu:%s", text)
	}
	o.GPUBind = text
	return nil
}

// setCPUBind reads how tasks are bound to CPUs. "closest" is meant for --gpu-bind; here it
// is the cores near the task's GPUs, which Slurm does not know.
func setCPUBind(o *Options, v value) error {
	known := []string{
		"none", "no", "quiet", "verbose", "q", "v", "rank", "rank_ldom", "sockets", "socket", "cores", "core",
		"threads", "thread", "ldoms", "ldom", "boards", "closest", "one_thread", "map_cpu", "mask_cpu", "map_ldom", "mask_ldom",
	}
	kind := v.text
	for {
		first, rest, more := strings.Cut(kind, ",")
		if !more || first != "quiet" && first != "verbose" && first != "q" && first != "v" {
			break
		}
		kind = rest
	}
	word, _, _ := strings.Cut(kind, ":")
	for _, k := range known {
		if strings.EqualFold(k, word) {
			o.CPUBind = kind
			return nil
		}
	}
	return &Refusal{Code: 1, Lines: []string{
		"error: unrecognized --cpu-bind argument " + strconv.Quote(v.text), "fatal: Failed to parse --cpu-bind= values.",
	}}
}
