package slurm

import (
	"errors"
	"slices"
	"strconv"
	"strings"

	"github.com/gangway-hpc/gangway/internal/job"
)

// jobOptions say what the job is, and when it may run.
func jobOptions() []option {
	return []option{
		{Flag: Flag{"job-name", 'J', RequiredArgument}, in: asking, env: "JOB_NAME", set: intoText(func(o *Options) *string { return &o.Job.Name })},
		{Flag: Flag{"account", 'A', RequiredArgument}, in: asking, env: "ACCOUNT", set: func(o *Options, v value) error {
			o.Job.Account = unequal(v.text)
			return nil
		}},
		{Flag: Flag{"qos", 'q', RequiredArgument}, in: asking, env: "QOS", set: intoText(func(o *Options) *string { return &o.Job.QOS })},
		{Flag: Flag{"comment", 0, RequiredArgument}, in: asking, set: intoText(func(o *Options) *string { return &o.Comment })},
		{Flag: Flag{"time", 't', RequiredArgument}, in: asking, env: "TIMELIMIT", set: intoTime(func(o *Options) *job.Duration { return &o.Job.TimeLimit })},
		{Flag: Flag{"time-min", 0, RequiredArgument}, in: asking, set: intoTime(func(o *Options) *job.Duration { return &o.Job.TimeMin })},
		{Flag: Flag{"begin", 'b', RequiredArgument}, in: asking, set: intoMoment(func(o *Options) *job.Time { return &o.Job.Begin })},
		{Flag: Flag{"deadline", 0, RequiredArgument}, in: asking, set: intoMoment(func(o *Options) *job.Time { return &o.Job.Deadline })},
		{Flag: Flag{"array", 'a', RequiredArgument}, in: Sbatch, env: "ARRAY_INX", set: setArray},
		{Flag: Flag{"dependency", 'd', RequiredArgument}, in: asking, env: "", set: setDependency},
		{Flag: Flag{"hold", 'H', NoArgument}, in: asking, set: intoBool(func(o *Options) *bool { return &o.Job.Hold })},
		{Flag: Flag{"nice", 0, OptionalArgument}, in: asking, set: setNice},
		{Flag: Flag{"priority", 0, RequiredArgument}, in: asking, set: setPriority},
		{Flag: Flag{"requeue", 0, NoArgument}, in: Sbatch, env: "REQUEUE", set: setRequeue(true)},
		{Flag: Flag{"no-requeue", 0, NoArgument}, in: Sbatch, env: "NO_REQUEUE", set: setRequeue(false)},
		{Flag: Flag{"signal", 0, RequiredArgument}, in: asking, env: "SIGNAL", set: setSignal},
		{Flag: Flag{"test-only", 0, NoArgument}, in: batchy, set: intoBool(func(o *Options) *bool { return &o.TestOnly })},
	}
}

// intoTime is the setter of a span of time, in whole minutes.
func intoTime(field func(*Options) *job.Duration) func(*Options, value) error {
	return func(o *Options, v value) error {
		d, err := ParseTime(v.text)
		if err != nil {
			return v.invalid()
		}
		*field(o) = Minutes(d)
		return nil
	}
}

// intoMoment is the setter of a moment.
func intoMoment(field func(*Options) *job.Time) func(*Options, value) error {
	return func(o *Options, v value) error {
		at, pos, err := parseMoment(v.text, o.now)
		if err != nil {
			if v.text == "" {
				return v.invalid()
			}
			return &Refusal{Code: badOption, Lines: []string{
				badMoment(pos, v.text),
				o.Command.String() + ": error: Invalid --" + v.name + " specification",
			}, Plain: true}
		}
		*field(o) = at
		return nil
	}
}

func setArray(o *Options, v value) error {
	a, err := ParseArray(v.text)
	if err != nil {
		return o.refused("Invalid job array specification", err)
	}
	o.Job.Array = a
	return nil
}

// ParseArray reads --array: numbers and ranges FIRST-LAST[:STEP] with commas, and %COUNT
// for how many tasks may run at a time. Brackets around the list are allowed.
func ParseArray(text string) (*job.Array, error) {
	bad := &SyntaxError{Key: "array", Value: text, Want: "numbers and ranges as 0-15:4,20%8"}
	list, throttle, limited := strings.Cut(text, "%")
	a := &job.Array{}
	if limited {
		n, err := strconv.Atoi(throttle)
		if err != nil || n < 0 {
			return nil, bad
		}
		a.Throttle = n
	}
	if inner, ok := strings.CutPrefix(list, "["); ok {
		if list, ok = strings.CutSuffix(inner, "]"); !ok {
			return nil, bad
		}
	}
	for part := range strings.SplitSeq(list, ",") {
		r, ok := arrayRange(part)
		if !ok {
			return nil, bad
		}
		a.Tasks = append(a.Tasks, r)
	}
	slices.SortFunc(a.Tasks, func(x, y job.Range) int { return int(x.First) - int(y.First) })
	for i := 1; i < len(a.Tasks); i++ {
		if a.Tasks[i].First <= a.Tasks[i-1].Last {
			a.Tasks = merged(a.Tasks)
			break
		}
	}
	return a, nil
}

// maxArrayIndex is above what any configuration of Slurm allows.
const maxArrayIndex = 4_000_000

func arrayRange(text string) (r job.Range, ok bool) {
	text, step, stepped := strings.Cut(text, ":")
	low, high, ranged := strings.Cut(text, "-")
	number := func(s string) uint32 {
		n, err := strconv.ParseUint(s, 10, 32)
		if err != nil || n > maxArrayIndex {
			ok = false
		}
		return uint32(n)
	}
	ok = true
	r = job.Range{First: number(low), Step: 1}
	r.Last = r.First
	if ranged {
		r.Last = number(high)
	}
	if stepped {
		r.Step = number(step)
	}
	if r.Last < r.First || r.Step == 0 || stepped && !ranged {
		return r, false
	}
	r.Last = r.First + (r.Last-r.First)/max(r.Step, 1)*r.Step
	return r, ok
}

// merged makes ranges that overlap single tasks, each once.
func merged(ranges []job.Range) []job.Range {
	var all []uint32
	for _, r := range ranges {
		for n := r.First; n <= r.Last; n += r.Step {
			all = append(all, n)
		}
	}
	slices.Sort(all)
	var out []job.Range
	for _, n := range slices.Compact(all) {
		if k := len(out) - 1; k >= 0 && out[k].Last+1 == n {
			out[k].Last = n
			continue
		}
		out = append(out, job.Range{First: n, Last: n, Step: 1})
	}
	return out
}

func setDependency(o *Options, v value) error {
	d, err := ParseDependency(v.text)
	if err != nil {
		return o.refused("Job dependency problem", err)
	}
	o.Job.Dependencies, o.Dependency = d, v.text
	return nil
}

// ParseDependency reads --dependency: conditions TYPE[:ID[_TASK][+MINUTES]...] with commas,
// all of which count, or with question marks, of which one does. An id alone is afterany.
func ParseDependency(text string) (*job.Dependencies, error) {
	bad := &SyntaxError{Key: "dependency", Value: text, Want: "TYPE:ID[:ID...], as afterok:4711, with commas (all) or question marks (any)"}
	d := &job.Dependencies{Any: strings.Contains(text, "?")}
	sign := ","
	if d.Any {
		sign = "?"
		if strings.Contains(text, ",") {
			return nil, bad
		}
	}
	types := map[string]job.DependencyType{
		"after": job.After, "afterany": job.AfterAny, "afterok": job.AfterOK, "afternotok": job.AfterNotOK,
		"aftercorr": job.AfterCorr, "afterburstbuffer": job.AfterBurst,
	}
	for word := range strings.SplitSeq(text, sign) {
		parts := strings.Split(word, ":")
		parts[0] = strings.ToLower(parts[0])
		if parts[0] == "singleton" && len(parts) == 1 {
			d.List = append(d.List, job.Dependency{Type: job.Singleton})
			continue
		}
		kind, known := types[parts[0]]
		switch {
		case known:
			parts = parts[1:]
		case len(parts) == 1:
			kind = job.AfterAny
		default:
			return nil, bad
		}
		if len(parts) == 0 {
			return nil, bad
		}
		for _, id := range parts {
			one := job.Dependency{Type: kind}
			if !parseDependent(id, &one) {
				return nil, bad
			}
			d.List = append(d.List, one)
		}
	}
	return d, nil
}

// parseDependent reads ID[_TASK|_*][+MINUTES].
func parseDependent(text string, d *job.Dependency) bool {
	text, minutes, delayed := strings.Cut(text, "+")
	if delayed {
		n, err := strconv.ParseUint(minutes, 10, 31)
		if err != nil || d.Type != job.After {
			return false
		}
		d.Delay = job.Duration(n) * job.Minute
	}
	text, task, hasTask := strings.Cut(text, "_")
	if hasTask && task != "*" {
		n, err := strconv.ParseUint(task, 10, 32)
		if err != nil {
			return false
		}
		t := uint32(n)
		d.Task = &t
	}
	n, err := strconv.ParseUint(text, 10, 32)
	d.Job = job.ID(n)
	return err == nil && n > 0
}

// niceDefault is --nice without a number; more than niceMost is refused.
const (
	niceDefault = 100
	niceMost    = 2147483645
)

func setNice(o *Options, v value) error {
	if v.bare {
		o.Job.Nice = niceDefault
		return nil
	}
	n, err := strconv.ParseInt(v.text, 10, 64)
	if err != nil && !errors.Is(err, strconv.ErrRange) {
		return refuse(badOption, "Invalid --nice value %q", v.text) // Slurm takes it for 0
	}
	if err != nil || n > niceMost || n < -niceMost {
		return refuse(badOption, "Invalid --nice value, out of range (+/- %d)", niceMost)
	}
	o.Job.Nice = int32(n)
	return nil
}

func setPriority(o *Options, v value) error {
	var p uint32
	if strings.EqualFold(v.text, "TOP") {
		p = 1<<32 - 3
	} else {
		n, err := strconv.ParseInt(v.text, 10, 64)
		switch {
		case err != nil && !errors.Is(err, strconv.ErrRange):
			return v.invalid() // Slurm takes it for 0
		case n < 0:
			return refuse(badOption, "Priority must be >= 0")
		case n >= 1<<32-2:
			return refuse(badOption, "Priority must be < %d", uint32(1<<32-2))
		}
		p = uint32(n)
	}
	o.Job.Priority = &p
	return nil
}

func setRequeue(on bool) func(*Options, value) error {
	return func(o *Options, v value) error {
		if v.on() {
			o.Job.Requeue = on
		}
		return nil
	}
}

// signalBefore is how long before the end --signal is sent where it does not say.
const signalBefore = 60 * job.Second

// setSignal reads [{R|B|RB}:]SIGNAL[@SECONDS]. R lets a job begin in a reservation of
// others, of which there are none.
func setSignal(o *Options, v value) error {
	text, batch := v.text, false
	if flags, rest, flagged := strings.Cut(text, ":"); flagged {
		if flags == "" || strings.Trim(flags, "RBrb") != "" {
			return v.invalid()
		}
		text, batch = rest, strings.ContainsAny(flags, "Bb")
	}
	name, before, timed := strings.Cut(text, "@")
	if _, err := ParseSignal(name); err != nil {
		return v.invalid()
	}
	o.signal = v.text
	o.Program.Signal, o.Program.SignalBatch, o.Program.SignalBefore = name, batch, signalBefore
	if timed {
		n, err := strconv.ParseUint(before, 10, 32)
		if err != nil || n > 0xffff {
			return v.invalid()
		}
		o.Program.SignalBefore = job.Duration(n) * job.Second
	}
	return nil
}
