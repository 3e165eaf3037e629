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

// setPartitions reads the partitions of a job.
func setPartitions(o *Options, v value) error {
	o.Job.Partitions = splitList(unequal(v.text))
	return nil
}

// unequal is a name without the equals sign that is left of -p=NAME, and of -A=NAME, as NeMo-Run
// writes them: no partition or account begins with one.
func unequal(text string) string { return strings.TrimPrefix(text, "=") }

func setNodeList(o *Options, v value) error {
	names, err := o.nodeNames(v.text)
	if err != nil {
		return err
	}
	o.Job.NodeList = names
	return nil
}

func setExclude(o *Options, v value) error {
	names, err := o.nodeNames(v.text)
	if err != nil {
		return err
	}
	o.Job.Exclude = names
	return nil
}

// nodeNames reads a hostlist, or the file of one where the text has a slash.
func (o *Options) nodeNames(text string) ([]string, error) {
	names, err := nodeNames(text)
	if bad := (*SyntaxError)(nil); errors.As(err, &bad) {
		return nil, o.refused("Invalid node name specified", err)
	}
	return names, err
}

// nodeNames is the same for commands that have other words for what is wrong.
func nodeNames(text string) ([]string, error) {
	if strings.Contains(text, "/") {
		return nodeFile(text)
	}
	return Expand(text)
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
		return nil, &Refusal{Code: badOption, Lines: []string{
			"error: slurm_allocate_resources error opening file " + name + ", " + SystemError(err),
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
		return o.refused("Invalid feature specification", err)
	}
	return nil
}

// refused is a refusal in the words of Slurm's controller, and what is wrong.
func (o *Options) refused(sentence string, why error) error {
	return &Refusal{Code: 1, Lines: []string{"error: " + o.Failed() + ": " + sentence, "error: " + why.Error()}}
}

func setPrefer(o *Options, v value) (err error) {
	if o.Job.Prefer, err = ParseConstraint(v.text); err != nil {
		return o.refused("Invalid feature specification", err)
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
	if err != nil || n < 1 {
		return refuse(1, "Invalid numeric value %q for --switches.", count)
	}
	t := job.Topology{Switches: n, Wait: switchWait, Required: o.Job.Topology.Required, Segment: o.Job.Topology.Segment}
	if !timed && v.from == fromEnviron {
		wait = o.getenv(o.Command.prefix() + "WAIT4SWITCH")
		timed = wait != ""
	}
	if timed {
		if t.Wait, err = ParseTime(wait); err != nil {
			return v.invalid()
		}
	}
	o.Job.Topology = t
	return nil
}
