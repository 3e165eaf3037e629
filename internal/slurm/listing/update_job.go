package listing

import (
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gangway-hpc/gangway/internal/api"
	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/internal/slurm"
)

// jobUpdate makes a change to jobs of KEY=VALUE.
type jobUpdate struct {
	change *api.Change
	now    time.Time
}

// spec is what is asked for, of which these fields are meant.
func (u *jobUpdate) spec(fields ...string) *job.Spec {
	if u.change.Spec == nil {
		u.change.Spec = &job.Spec{}
	}
	for _, f := range fields {
		if !slices.Contains(u.change.Fields, f) {
			u.change.Fields = append(u.change.Fields, f)
		}
	}
	return u.change.Spec
}

func (u *jobUpdate) set(p pair) error {
	switch p.key {
	case "jobid", "job":
	case "name", "jobname":
		u.spec("Name").Name = p.value
	case "account":
		u.spec("Account").Account = p.value
	case "qos":
		u.spec("QOS").QOS = p.value
	case "comment":
		u.change.Comment = &p.value
	case "partition":
		u.spec("Partitions").Partitions = words(p.value)
	case "timelimit", "timemin":
		return u.limit(p)
	case "starttime", "eligibletime", "deadline":
		return u.moment(p)
	case "reqnodelist", "reqnodes", "nodelist", "excnodelist":
		return u.nodeList(p)
	case "numnodes", "minnodes":
		return u.nodes(p)
	case "dependency":
		return u.dependency(p)
	case "features":
		return u.features(p)
	case "gres", "trespernode":
		return u.gres(p)
	case "licenses":
		return u.licenses(p)
	case "minmemorynode", "minmemorycpu":
		return u.memory(p)
	default:
		return u.number(p)
	}
	return nil
}

// limit is a new time limit, or with + or - before it another by so much.
func (u *jobUpdate) limit(p pair) error {
	text, sign := p.value, p.sign
	if sign == 0 && len(text) > 1 && (text[0] == '+' || text[0] == '-' && text != "-1") {
		text, sign = text[1:], text[0]
	}
	d, err := slurm.ParseTime(text)
	switch {
	case p.key == "timemin" && (err != nil || sign != 0):
		return refuse("Invalid TimeMin value")
	case err != nil || sign != 0 && (d <= 0 || d == job.Forever):
		return refuse("Invalid TimeLimit value")
	case p.key == "timemin":
		u.spec("TimeMin").TimeMin = slurm.Minutes(d)
	case sign == '-':
		u.change.Longer = -slurm.Minutes(d)
	case sign == '+':
		u.change.Longer = slurm.Minutes(d)
	default:
		u.spec("TimeLimit").TimeLimit = slurm.Minutes(d)
	}
	return nil
}

func (u *jobUpdate) moment(p pair) error {
	at, err := slurm.ParseMoment(p.value, u.now)
	if err != nil {
		return &slurm.Refusal{Plain: true, Code: 1, Lines: []string{err.Error(), "No changes specified"}}
	}
	if p.key == "deadline" {
		u.spec("Deadline").Deadline = at
	} else {
		u.spec("Begin").Begin = at
	}
	return nil
}

func (u *jobUpdate) nodeList(p pair) error {
	names, err := slurm.Expand(p.value)
	if err != nil {
		return refuse("%s", err)
	}
	if p.key == "excnodelist" {
		u.spec("Exclude").Exclude = names
	} else {
		u.spec("NodeList").NodeList = names
	}
	return nil
}

// nodes is MIN or MIN-MAX.
func (u *jobUpdate) nodes(p pair) error {
	low, high, ranged := strings.Cut(p.value, "-")
	if !ranged {
		high = low
	}
	a, errA := strconv.ParseUint(low, 10, 24)
	b, errB := strconv.ParseUint(high, 10, 24)
	if errA != nil || errB != nil || a == 0 || b < a {
		return refuse("Invalid numeric value %q for requested node count.", p.value)
	}
	spec := u.spec("MinNodes", "MaxNodes")
	spec.MinNodes, spec.MaxNodes = int(a), int(b)
	return nil
}

func (u *jobUpdate) dependency(p pair) error {
	spec := u.spec("Dependencies")
	if p.value == "" {
		return nil
	}
	d, err := slurm.ParseDependency(p.value)
	if err != nil {
		return refuse("%s", err)
	}
	spec.Dependencies = d
	return nil
}

func (u *jobUpdate) features(p pair) error {
	spec := u.spec("Constraint")
	if p.value == "" {
		return nil
	}
	c, err := slurm.ParseConstraint(p.value)
	if err != nil {
		return refuse("Invalid Features value: %s", p.value)
	}
	spec.Constraint = c
	return nil
}

func (u *jobUpdate) gres(p pair) error {
	spec := u.spec("GRES")
	if p.value == "" {
		return nil
	}
	all, err := slurm.ParseGRESRequest(strings.ReplaceAll(p.value, "gres/", ""), "", job.PerNode)
	if err != nil {
		return refuse("%s", err)
	}
	spec.GRES = all
	return nil
}

// licenses is NAME[:COUNT],...
func (u *jobUpdate) licenses(p pair) error {
	spec := u.spec("Licenses", "AnyLicense")
	for _, word := range words(p.value) {
		name, count, counted := strings.Cut(word, ":")
		l := job.License{Name: name, Count: 1}
		if counted {
			n, err := within("Licenses", count, 1, math.MaxInt32)
			if err != nil {
				return invalid("Licenses", p.value)
			}
			l.Count = n
		}
		spec.Licenses = append(spec.Licenses, l)
	}
	return nil
}

func (u *jobUpdate) memory(p pair) error {
	name, per := "MinMemoryNode", job.PerNode
	if p.key == "minmemorycpu" {
		name, per = "MinMemoryCPU", job.PerCPU
	}
	mib, err := slurm.ParseSize(p.value)
	if err != nil {
		return invalid(name, p.value)
	}
	u.spec("Memory").Memory = job.Memory{MiB: mib, Per: per, All: mib == 0}
	return nil
}

// number takes what is a number, or one of two words.
func (u *jobUpdate) number(p pair) error {
	counts := map[string]struct {
		name, field string
		into        func(*job.Spec) *int
	}{
		"numtasks":      {"NumTasks", "Tasks", func(s *job.Spec) *int { return &s.Tasks }},
		"numcpus":       {"NumCPUs", "Tasks", func(s *job.Spec) *int { return &s.Tasks }}, // of one CPU each, as for Slurm
		"cpuspertask":   {"CPUs/Task", "CPUsPerTask", func(s *job.Spec) *int { return &s.CPUsPerTask }},
		"cpus/task":     {"CPUs/Task", "CPUsPerTask", func(s *job.Spec) *int { return &s.CPUsPerTask }},
		"ntaskspernode": {"TasksPerNode", "TasksPerNode", func(s *job.Spec) *int { return &s.TasksPerNode }},
		"taskspernode":  {"TasksPerNode", "TasksPerNode", func(s *job.Spec) *int { return &s.TasksPerNode }},
		"tasks/node":    {"TasksPerNode", "TasksPerNode", func(s *job.Spec) *int { return &s.TasksPerNode }},
	}
	if c, ok := counts[p.key]; ok {
		n, err := within(c.name, p.value, 1, 1<<24)
		if err == nil {
			*c.into(u.spec(c.field)) = int(n)
		}
		return err
	}
	switch p.key {
	case "nice":
		if p.value == "" && !strings.Contains(p.text, "=") {
			p.value = "100"
		}
		n, err := within("Nice", p.value, math.MinInt32, math.MaxInt32)
		if err == nil {
			u.spec("Nice").Nice = int32(n)
		}
		return err
	case "priority":
		n, err := within("Priority", p.value, 0, math.MaxUint32)
		if err == nil {
			priority := uint32(n)
			u.spec("Priority").Priority = &priority
		}
		return err
	case "arraytaskthrottle":
		n, err := within("ArrayTaskThrottle", p.value, 0, math.MaxInt32)
		if err == nil {
			u.spec("Array").Array = &job.Array{Throttle: int(n)}
		}
		return err
	case "requeue":
		n, err := within("Requeue", p.value, 0, 1)
		if err == nil {
			u.spec("Requeue").Requeue = n == 1
		}
		return err
	case "contiguous":
		on, ok := boolean(p.value, "yes", "no")
		if !ok {
			return invalid("Contiguous", p.value)
		}
		u.spec("Contiguous").Contiguous = on
		return nil
	case "oversubscribe", "shared":
		on, ok := boolean(p.value, "yes", "no")
		if !ok {
			return invalid("OverSubscribe", p.value)
		}
		spec := u.spec("Oversubscribe", "Exclusive")
		spec.Oversubscribe, spec.Exclusive = on, !on
		return nil
	}
	return unknownKey(p.text)
}
