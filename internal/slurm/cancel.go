package slurm

import (
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
	Signal                        string // empty: the job ends
	Batch, Full, Interactive      bool
	Quiet, Verbose                int
	Help, Version                 bool
	filtered                      bool
}

// Filtered says whether jobs are chosen otherwise than by their ids alone.
func (c *Cancel) Filtered() bool { return c.filtered }

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

// Covers says whether a task of an array is meant.
func (t Target) Covers(task uint32) bool {
	return slices.ContainsFunc(t.Task.Tasks, func(r job.Range) bool {
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
	if tasked && tasks != "" && tasks != "*" && tasks != "[*]" {
		if t.Task, err = ParseArray(tasks); err != nil || t.Task.Throttle != 0 {
			return t, bad
		}
		t.Text = tasks
	}
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
	} {
		text := getenv(v.variable)
		if text == "" || !(value{text: text, from: fromEnviron}).on() {
			continue
		}
		if err := c.set(v.option, text, getenv); err != nil {
			return nil, err
		}
	}
	flags := cancelFlags()
	given, operands, err := Getopt(flags, args, false)
	if err != nil {
		return nil, err
	}
	for _, g := range given {
		if err := c.set(flags[g.Flag].Long, g.Value, getenv); err != nil {
			return nil, err
		}
	}
	for _, operand := range operands {
		for word := range strings.SplitSeq(operand, ",") {
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
func (c *Cancel) set(name, text string, getenv func(string) string) error {
	filter := true
	switch name {
	case "account":
		c.Account = text
	case "user":
		c.User = text
	case "me":
		c.User = getenv("USER")
	case "qos":
		c.QOS = text
	case "partition":
		c.Partition = text
	case "name", "jobname":
		c.Names = splitList(text)
	case "nodelist":
		nodes, err := nodeNames(text)
		if err != nil {
			return err
		}
		c.Nodes = nodes
	case "state":
		return c.setState(text)
	case "reservation", "wckey", "sibling", "cluster", "clusters", "ctld":
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
