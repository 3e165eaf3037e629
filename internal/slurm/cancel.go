package slurm

import (
	"errors"
	"slices"
	"strconv"
	"strings"

	"github.com/gangway-hpc/gangway/internal/job"
)

// Cancel is what scancel was asked for.
type Cancel struct {
	Targets                       []Target
	Account, User, QOS, Partition string
	Names, Nodes, States          []string
	Clusters                      []string // -M; nil: not said
	Signal                        string   // empty: the job ends
	Me                            bool     // of the caller's only
	Batch, Full, Interactive      bool
	Quiet, Verbose                int
	Help, Version                 bool
	filtered                      bool
}

// Filtered says whether jobs are chosen otherwise than by their ids alone.
func (c *Cancel) Filtered() bool { return c.filtered }

// Filters are what jobs have to be, as scancel says that there are none.
func (c *Cancel) Filters() string {
	var b strings.Builder
	for _, f := range [][2]string{
		{"account", c.Account},
		{"job_name", strings.Join(c.Names, ",")},
		{"partition", c.Partition},
		{"qos", c.QOS},
		{"state", strings.Join(c.States, ",")},
		{"user_name", c.User},
		{"nodelist", strings.Join(c.Nodes, ",")},
	} {
		if f[1] != "" {
			b.WriteString(f[0] + "=" + f[1] + " ")
		}
	}
	return b.String()
}

// Ends says whether whole jobs end, and are not only sent a signal.
func (c *Cancel) Ends() bool {
	sig := strings.TrimPrefix(strings.ToUpper(c.Signal), "SIG")
	return (sig == "" || sig == "9" || sig == "KILL") && !c.Batch && !c.Full
}

// Target is what an operand of scancel means: a job, tasks of an array, or a step.
type Target struct {
	Job  job.ID
	Task *job.Array  // nil: not said
	Text string      // of the tasks, as written
	Step *job.StepID // nil: the whole job
}

// Name is the target without its step, as the controller takes it: ID or ID_TASKS.
func (t Target) Name() string {
	if t.Task == nil {
		return t.Job.String()
	}
	return t.Job.String() + "_" + t.Text
}

// String is the target as it was written.
func (t Target) String() string {
	if t.Step != nil {
		return t.Name() + "." + t.Step.String()
	}
	return t.Name()
}

// Of is the target as that of one task of its array.
func (t Target) Of(task uint32) Target {
	t.Task = &job.Array{Tasks: []job.Range{{First: task, Last: task, Step: 1}}}
	t.Text = strconv.FormatUint(uint64(task), 10)
	return t
}

// Several says whether tasks are meant that only their array's list can tell.
func (t Target) Several() bool { return strings.HasPrefix(t.Text, "[") }

// Covers says whether a task of an array is meant.
func (t Target) Covers(task uint32) bool {
	return t.Task == nil || slices.ContainsFunc(t.Task.Tasks, func(r job.Range) bool {
		return task >= r.First && task <= r.Last && (task-r.First)%r.Step == 0
	})
}

// ParseTarget reads ID, ID_TASK, ID_[TASKS] or ID.STEP.
func ParseTarget(text string) (t Target, err error) {
	bad := refuse(1, "Invalid job id %s", text)
	rest, step, stepped := strings.Cut(text, ".")
	if stepped {
		id, err := job.ParseStepID(step)
		if err != nil {
			return t, bad
		}
		t.Step = &id
	}
	rest, tasks, tasked := strings.Cut(rest, "_")
	n, err := strconv.ParseUint(rest, 10, 32)
	if err != nil || n == 0 {
		return t, bad
	}
	t.Job = job.ID(n)
	switch {
	case !tasked || tasks == "*" || tasks == "[*]":
		return t, nil
	case !strings.HasPrefix(tasks, "["): // ranges are in brackets only, as for Slurm
		n, err := strconv.ParseUint(tasks, 10, 32)
		if err != nil || n > maxArrayIndex {
			return t, bad
		}
		return t.Of(uint32(n)), nil
	}
	if t.Task, err = ParseArray(tasks); err != nil || strings.Contains(tasks, "%") {
		return t, bad
	}
	t.Text = tasks
	return t, nil
}

// cancelFlags are scancel's options.
func cancelFlags() []Flag {
	return []Flag{
		{"account", 'A', RequiredArgument},
		{"batch", 'b', NoArgument},
		{"ctld", 0, NoArgument},
		{"cluster", 0, RequiredArgument},
		{"clusters", 'M', RequiredArgument},
		{"full", 'f', NoArgument},
		{"help", 0, NoArgument},
		{"hurry", 'H', NoArgument},
		{"interactive", 'i', NoArgument},
		{"jobname", 0, RequiredArgument},
		{"name", 'n', RequiredArgument},
		{"nodelist", 'w', RequiredArgument},
		{"partition", 'p', RequiredArgument},
		{"qos", 'q', RequiredArgument},
		{"quiet", 'Q', NoArgument},
		{"reservation", 'R', RequiredArgument},
		{"sibling", 0, RequiredArgument},
		{"signal", 's', RequiredArgument},
		{"state", 't', RequiredArgument},
		{"usage", 0, NoArgument},
		{"user", 'u', RequiredArgument},
		{"me", 0, NoArgument},
		{"verbose", 'v', NoArgument},
		{"version", 'V', NoArgument},
		{"wckey", 0, RequiredArgument},
	}
}

// SplitIDs splits a list of jobs at commas and blanks that are in no brackets.
func SplitIDs(text string) []string {
	var all []string
	depth, begin := 0, 0
	for i := range len(text) + 1 {
		switch {
		case i < len(text) && text[i] == '[':
			depth++
		case i < len(text) && text[i] == ']':
			depth--
		case i == len(text) || depth <= 0 && (text[i] == ',' || text[i] == ' '):
			if i > begin {
				all = append(all, text[begin:i])
			}
			begin = i + 1
		}
	}
	return all
}

// ParseCancel reads scancel's command line and variables.
func ParseCancel(args []string, getenv func(string) string) (*Cancel, error) {
	c := &Cancel{}
	for _, v := range []struct{ variable, option string }{
		{"SCANCEL_ACCOUNT", "account"},
		{"SCANCEL_BATCH", "batch"},
		{"SCANCEL_FULL", "full"},
		{"SCANCEL_INTERACTIVE", "interactive"},
		{"SCANCEL_NAME", "name"},
		{"SCANCEL_PARTITION", "partition"},
		{"SCANCEL_QOS", "qos"},
		{"SCANCEL_STATE", "state"},
		{"SCANCEL_USER", "user"},
		{"SCANCEL_VERBOSE", "verbose"},
		{"SCANCEL_WCKEY", "wckey"},
		{"SLURM_CLUSTERS", "clusters"},
	} {
		text := getenv(v.variable)
		if text == "" || !(value{text: text, from: fromEnviron}).on() {
			continue
		}
		err := c.set(v.option, text)
		if bad := (*Refusal)(nil); errors.As(err, &bad) && v.option == "state" {
			bad.Lines[0] = "Unrecognized " + v.variable + " value: " + text
		}
		if err != nil {
			return nil, err
		}
	}
	flags := cancelFlags()
	given, operands, err := Getopt(flags, args, false)
	if err != nil {
		return nil, err
	}
	for _, g := range given {
		if err := c.set(flags[g.Flag].Long, g.Value); err != nil {
			return nil, err
		}
	}
	for _, operand := range operands {
		for _, word := range SplitIDs(operand) {
			t, err := ParseTarget(word)
			if err != nil {
				return nil, err
			}
			c.Targets = append(c.Targets, t)
		}
	}
	if len(c.Targets) == 0 && !c.filtered && !c.Help && !c.Version {
		return nil, refuse(1, "No job identification provided")
	}
	return c, nil
}

// set sets an option.
func (c *Cancel) set(name, text string) error {
	filter := true
	switch name {
	case "account":
		c.Account = text
	case "user":
		c.User = text
	case "me":
		c.Me = true
	case "qos":
		c.QOS = text
	case "partition":
		c.Partition = text
	case "name", "jobname":
		c.Names = splitList(text)
	case "nodelist":
		nodes, err := nodeNames(text)
		if bad := (*SyntaxError)(nil); errors.As(err, &bad) {
			err = refuse(1, "Invalid node name specified: %s", err)
		}
		if err != nil {
			return err
		}
		c.Nodes = nodes
	case "state":
		return c.setState(text)
	case "cluster", "clusters":
		c.Clusters, filter = splitList(text), false
	case "reservation", "wckey", "sibling":
		return refuse(1, "--%s: not supported by Gangway yet", name)
	default:
		filter = false
	}
	c.filtered = c.filtered || filter
	switch name {
	case "signal":
		if _, err := ParseSignal(text); err != nil {
			return &Refusal{Lines: []string{"Unknown job signal: " + text}, Plain: true, Code: 1}
		}
		c.Signal = text
	case "batch":
		c.Batch = true
	case "full":
		c.Full = true
	case "interactive":
		c.Interactive = true
	case "quiet":
		c.Quiet++
	case "verbose":
		c.Verbose++
	case "help", "usage":
		c.Help = true
	case "version":
		c.Version = true
	}
	return nil
}

func (c *Cancel) setState(text string) error {
	for _, s := range []struct{ long, short string }{{"PENDING", "PD"}, {"RUNNING", "R"}, {"SUSPENDED", "S"}} {
		if strings.EqualFold(text, s.long) || strings.EqualFold(text, s.short) {
			c.States, c.filtered = []string{s.long}, true
			return nil
		}
	}
	return &Refusal{Lines: []string{"Invalid job state specified: " + text, "Valid job states are PENDING, RUNNING, and SUSPENDED"}, Plain: true, Code: 1}
}

// CancelUsage is what scancel --help prints.
const CancelUsage = `Usage: scancel [OPTIONS] [job_id[_array_id][.step_id]]
  -A, --account=account           act only on jobs charging this account
  -b, --batch                     signal batch shell for specified job
  -f, --full                      signal batch shell and all steps for specified job
  -i, --interactive               require response from user for each job
      --me                        act only on your jobs
  -M, --clusters=names            where the jobs are: this cluster, or all
  -n, --name=job_name             act only on jobs with this name
  -p, --partition=partition       act only on jobs in this partition
  -Q, --quiet                     disable warnings
  -q, --qos=qos                   act only on jobs with this quality of service
  -s, --signal=name | integer     signal to send to job, default is SIGKILL
  -t, --state=states              act only on jobs in this state.  Valid job
                                  states are PENDING, RUNNING and SUSPENDED
  -u, --user=user_name            act only on jobs of this user
  -V, --version                   output version information and exit
  -v, --verbose                   verbosity level
  -w, --nodelist                  act only on jobs on these nodes
`
