package listing

import (
	"io"
	"slices"
	"strings"
	"time"

	"github.com/gangway-hpc/gangway/internal/api"
	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/internal/slurm"
)

// Acct is a command line of sacct.
type Acct struct {
	Query                 api.Query
	Version, Help, Usage  bool
	HelpFormat            bool
	Script, Environment   bool // -B, --env-vars
	allocations, truncate bool
	expand                bool // --array: waiting tasks one by one
	table                 table[record]
	steps                 []stepFilter
	NoConvert             bool
	Clusters              []string // -M; nil: not said
	Unit                  byte
	stateSet              bool
	filters               []func(*api.Job) bool // all of which let a job through
}

var acctFlags = []slurm.Flag{
	{Long: "accounts", Short: 'A', Argument: slurm.RequiredArgument},
	{Long: "allclusters", Short: 'L'},
	{Long: "allocations", Short: 'X'},
	{Long: "allusers", Short: 'a'},
	{Long: "array"},
	{Long: "associations", Short: 'x', Argument: slurm.RequiredArgument},
	{Long: "batch-script", Short: 'B'},
	{Long: "brief", Short: 'b'},
	{Long: "cluster", Argument: slurm.RequiredArgument},
	{Long: "clusters", Short: 'M', Argument: slurm.RequiredArgument},
	{Long: "completion", Short: 'c'},
	{Long: "constraints", Short: 'C', Argument: slurm.RequiredArgument},
	{Long: "delimiter", Argument: slurm.RequiredArgument},
	{Long: "duplicates", Short: 'D'},
	{Long: "endtime", Short: 'E', Argument: slurm.RequiredArgument},
	{Long: "env-vars"},
	{Long: "federation"},
	{Long: "file", Short: 'f', Argument: slurm.RequiredArgument},
	{Long: "flags", Short: 'F', Argument: slurm.RequiredArgument},
	{Long: "format", Short: 'o', Argument: slurm.RequiredArgument},
	{Long: "gid", Short: 'g', Argument: slurm.RequiredArgument},
	{Long: "group", Argument: slurm.RequiredArgument},
	{Long: "help", Short: 'h'},
	{Long: "helpformat", Short: 'e'},
	{Long: "jobs", Short: 'j', Argument: slurm.RequiredArgument},
	{Long: "json", Argument: slurm.OptionalArgument},
	{Long: "local"},
	{Long: "long", Short: 'l'},
	{Long: "name", Argument: slurm.RequiredArgument},
	{Long: "ncpus", Short: 'I', Argument: slurm.RequiredArgument},
	{Long: "nnodes", Short: 'i', Argument: slurm.RequiredArgument},
	{Long: "noconvert"},
	{Long: "nodelist", Short: 'N', Argument: slurm.RequiredArgument},
	{Long: "noheader", Short: 'n'},
	{Long: "parsable", Short: 'p'},
	{Long: "parsable2", Short: 'P'},
	{Long: "partition", Short: 'r', Argument: slurm.RequiredArgument},
	{Long: "qos", Short: 'q', Argument: slurm.RequiredArgument},
	{Long: "reason", Short: 'R', Argument: slurm.RequiredArgument},
	{Long: "starttime", Short: 'S', Argument: slurm.RequiredArgument},
	{Long: "state", Short: 's', Argument: slurm.RequiredArgument},
	{Long: "timelimit-max", Short: 'K', Argument: slurm.RequiredArgument},
	{Long: "timelimit-min", Short: 'k', Argument: slurm.RequiredArgument},
	{Long: "truncate", Short: 'T'},
	{Long: "uid", Argument: slurm.RequiredArgument},
	{Long: "units", Argument: slurm.RequiredArgument},
	{Long: "usage"},
	{Long: "use-local-uid"},
	{Long: "user", Short: 'u', Argument: slurm.RequiredArgument},
	{Long: "verbose", Short: 'v'},
	{Long: "version", Short: 'V'},
	{Long: "wckeys", Short: 'W', Argument: slurm.RequiredArgument},
	{Long: "whole-hetjob", Argument: slurm.OptionalArgument},
	{Long: "yaml", Argument: slurm.OptionalArgument},
}

// The formats of sacct without -o, and with --brief and --long.
const (
	acctDefault = "jobid,jobname,partition,account,alloccpus,state,exitcode"
	acctBrief   = "jobid,state,exitcode"
	acctLong    = "jobid,jobidraw,jobname,partition,maxvmsize,maxvmsizenode,maxvmsizetask,avevmsize,maxrss,maxrssnode,maxrsstask,averss," +
		"maxpages,maxpagesnode,maxpagestask,avepages,mincpu,mincpunode,mincputask,avecpu,ntasks,alloccpus,elapsed,state,exitcode," +
		"avecpufreq,reqcpufreqmin,reqcpufreqmax,reqcpufreqgov,reqmem,consumedenergy,maxdiskread,maxdiskreadnode,maxdiskreadtask," +
		"avediskread,maxdiskwrite,maxdiskwritenode,maxdiskwritetask,avediskwrite,reqtres,alloctres," +
		"tresusageinave,tresusageinmax,tresusageinmaxnode,tresusageinmaxtask,tresusageinmin,tresusageinminnode," +
		"tresusageinmintask,tresusageintot,tresusageoutmax,tresusageoutmaxnode,tresusageoutmaxtask,tresusageoutave,tresusageouttot"
)

type acctReader struct {
	q                     *Acct
	people                People
	now                   time.Time
	format, start, end    string
	everybody, usersGiven bool
	root                  bool
	formatSet             bool
	least, most           job.Duration // time limits; 0: not said
}

// ParseAcct reads sacct's command line, without the program's name, and its environment.
// Root sees everybody's jobs.
func ParseAcct(args []string, getenv func(string) string, people People, root bool, now time.Time) (*Acct, error) {
	given, operands, err := slurm.Getopt(acctFlags, args, false)
	if err != nil {
		return nil, err
	}
	if len(operands) > 0 {
		return nil, &slurm.Refusal{Lines: []string{"Unknown arguments:", " " + strings.Join(operands, "\n ")}, Plain: true, Code: 1}
	}
	r := &acctReader{q: &Acct{table: table[record]{delimiter: "|"}}, people: people, now: now, root: root, format: acctDefault}
	if f := getenv("SACCT_FORMAT"); f != "" {
		r.format = f
	}
	for _, g := range given {
		if err := r.option(acctFlags[g.Flag].Long, g.Value); err != nil {
			return nil, err
		}
	}
	if err := r.columns(); err != nil {
		return nil, err
	}
	r.limits()
	return r.q, r.window()
}

func (r *acctReader) option(name, value string) error {
	q := r.q
	switch name {
	case "accounts":
		q.Query.Accounts = words(value)
	case "allocations":
		q.allocations = true
	case "allusers":
		r.everybody = true
	case "batch-script":
		q.Script = true
	case "env-vars":
		q.Environment = true
	case "cluster", "clusters":
		q.Clusters = words(value)
	case "brief":
		r.add(acctBrief)
	case "long":
		r.add(acctLong)
	case "delimiter":
		q.table.delimiter = value
	case "endtime":
		r.end = value
	case "starttime":
		r.start = value
	case "format":
		r.add(value)
	case "help":
		q.Help = true
	case "helpformat":
		q.HelpFormat = true
	case "usage":
		q.Usage = true
	case "version":
		q.Version = true
	case "jobs":
		return r.ids(value)
	case "name":
		q.Query.Names = words(value)
	case "noconvert":
		q.NoConvert = true
	case "nodelist":
		names, err := slurm.Expand(value)
		if err != nil {
			return refuse("Invalid node list %s", value)
		}
		q.Query.Nodes = names
	case "noheader":
		q.table.noHeader = true
	case "gid", "group", "qos", "reason", "constraints", "timelimit-min", "timelimit-max", "nnodes", "ncpus":
		return r.filter(name, value)
	case "parsable":
		q.table.parsable, q.table.trailing = true, true
	case "parsable2":
		q.table.parsable, q.table.trailing = true, false
	case "partition":
		q.Query.Partitions = words(value)
	case "state":
		return r.states(value)
	case "truncate":
		q.truncate = true
	case "user", "uid":
		return r.users(value)
	case "units":
		if !strings.Contains("KMGTP", strings.ToUpper(value)) || len(value) != 1 {
			return &slurm.Refusal{Code: 1, Lines: []string{
				"error: Invalid unit type '" + value + "'. Possible options are 'KMGTP'", "fatal: Invalid unit type",
			}}
		}
		q.Unit = strings.ToUpper(value)[0]
	case "array":
		q.expand = true
	case "duplicates":
		q.Query.Attempts = true
	case "allclusters", "federation", "local", "verbose", "use-local-uid", "whole-hetjob":
		// There is one cluster, and there are no heterogeneous jobs.
	default:
		return unsupported(name)
	}
	return nil
}

// add is -o, which may come several times.
func (r *acctReader) add(format string) {
	if r.formatSet {
		format = r.format + "," + format
	}
	r.format, r.formatSet = format, true
}

func (r *acctReader) users(value string) error {
	r.usersGiven = true
	for _, word := range words(value) {
		name := r.people.Lookup(word)
		if name == "" && strings.Trim(word, "0123456789") != "" {
			return refuse("Invalid user id: %s", word)
		}
		r.q.Query.Users = append(r.q.Query.Users, or(name, word))
	}
	return nil
}

// ids reads jobs and steps: 5,3_2,7.0,8.batch.
func (r *acctReader) ids(value string) error {
	all, err := parseTargets([]string{value})
	if err != nil {
		return err
	}
	for _, f := range all {
		r.q.steps = append(r.q.steps, f)
		r.q.expand = r.q.expand || f.job.Tasks != nil
		if !slices.Contains(r.q.Query.IDs, f.job.Job) {
			r.q.Query.IDs = append(r.q.Query.IDs, f.job.Job)
		}
	}
	return nil
}

func (r *acctReader) states(value string) error {
	r.q.stateSet = true
	for _, word := range words(value) {
		name, ok := ParseState(word)
		if !ok {
			return &slurm.Refusal{Lines: []string{"fatal: unrecognized job state value '" + word + "'"}, Code: 1}
		}
		r.q.Query.States = append(r.q.Query.States, name)
	}
	return nil
}

// columns reads the format, in which "all" is every field.
func (r *acctReader) columns() error {
	for word := range strings.SplitSeq(r.format, ",") {
		if !strings.EqualFold(strings.TrimSpace(word), "all") {
			if err := r.q.table.columns(acctFields, word); err != nil {
				return err
			}
			continue
		}
		for i := range acctFields {
			r.q.table.fields = append(r.q.table.fields, tableColumn[record]{&acctFields[i], acctFields[i].width})
		}
	}
	return nil
}

// window is between which times jobs were alive: since midnight, unless they are named.
func (r *acctReader) window() error {
	q := r.q
	midnight := time.Date(r.now.Year(), r.now.Month(), r.now.Day(), 0, 0, 0, 0, r.now.Location())
	q.Query.Since = job.Time(midnight.UnixMilli())
	if len(q.steps) > 0 {
		q.Query.Since = 0
	}
	if q.stateSet && r.start == "" && r.end == "" && len(q.steps) == 0 {
		q.Query.Since = job.Time(r.now.UnixMilli())
	}
	for _, side := range []struct {
		text string
		into *job.Time
	}{{r.start, &q.Query.Since}, {r.end, &q.Query.Until}} {
		if side.text == "" {
			continue
		}
		at, err := ParsePast(side.text, r.now)
		if err != nil {
			return &slurm.Refusal{Lines: []string{err.Error()}, Plain: true, Code: 1}
		}
		*side.into = at
	}
	if q.Query.Until != 0 && q.Query.Since > q.Query.Until {
		at := func(t job.Time) string {
			return time.UnixMilli(int64(t)).In(r.now.Location()).Format("2006-01-02T15:04:05")
		}
		return refuse("Start time (%s) requested is after end time (%s).", at(q.Query.Since), at(q.Query.Until))
	}
	switch {
	case !r.usersGiven && !r.everybody && !r.root && len(q.steps) == 0:
		q.Query.Users = []string{r.people.Me()}
	case slices.Contains(q.Query.Users, ""):
		q.Query.Users = nil
	}
	return nil
}

// ParsePast reads a moment that is meant to be over: 08:00 is today's.
func ParsePast(text string, now time.Time) (job.Time, error) {
	at, err := slurm.ParseMoment(text, now)
	if err == nil && at > job.Time(now.UnixMilli()) && !strings.ContainsAny(text, "-/.nt") {
		if day := job.Time(job.Day); at > day {
			at -= day
		}
	}
	return at, err
}

// record is a line of sacct: a job, or a step of one.
type record struct {
	job  *api.Job
	past *api.Past
	step *api.Step // nil: the job itself
}

// Print writes jobs and steps.
func (q *Acct) Print(w io.Writer, v *View, past []api.Past) error {
	if err := q.table.header(w); err != nil {
		return err
	}
	if !q.expand {
		past = Gather(past)
	}
	for i := range past {
		p := &past[i]
		if slices.ContainsFunc(q.filters, func(let func(*api.Job) bool) bool { return !let(&p.Job) }) {
			continue
		}
		if q.wants(p, nil) {
			if err := q.table.row(w, v, &record{&p.Job, p, nil}); err != nil {
				return err
			}
		}
		if q.allocations {
			continue
		}
		for n := range p.Steps {
			if q.wants(p, &p.Steps[n]) {
				if err := q.table.row(w, v, &record{&p.Job, p, &p.Steps[n]}); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// Gather makes one line of the tasks of an array that wait.
func Gather(past []api.Past) []api.Past {
	kept := make([]api.Past, 0, len(past))
	at := map[job.ID]int{}
	for i := range past {
		p := past[i]
		j := &p.Job
		if j.State != job.Pending || j.Array == nil || j.Waiting != nil || len(p.Steps) > 0 {
			kept = append(kept, p)
			continue
		}
		task := job.Range{First: j.Array.Task, Last: j.Array.Task, Step: 1}
		if n, ok := at[j.Array.Job]; ok {
			kept[n].Job.Waiting = append(kept[n].Job.Waiting, task)
			continue
		}
		at[j.Array.Job] = len(kept)
		j.Waiting = []job.Range{task}
		kept = append(kept, p)
	}
	return kept
}

// wants says whether a job, or a step of it, was asked for.
func (q *Acct) wants(p *api.Past, s *api.Step) bool {
	if len(q.steps) == 0 {
		return true
	}
	return slices.ContainsFunc(q.steps, func(f stepFilter) bool {
		one := Step{Job: p.Job}
		if s != nil {
			one.Step = *s
			return f.matches(&one)
		}
		return f.step == nil && f.matches(&one)
	})
}

// Fields writes the names of all fields, four a line.
func (q *Acct) Fields(w io.Writer) error { return fieldNames(w, acctFields) }
