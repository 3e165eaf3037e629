package listing

import (
	"fmt"
	"io"
	"slices"
	"strconv"
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
	allocations, noHeader bool
	parsable, truncate    bool
	expand                bool // --array: waiting tasks one by one
	trailing              bool // --parsable ends lines with the delimiter
	delimiter             string
	fields                []acctColumn
	steps                 []stepFilter
	NoConvert             bool
	Unit                  byte
	stateSet              bool
}

type acctColumn struct {
	field *acctField
	width int // below 0: left-justified
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
		"avediskread,maxdiskwrite,maxdiskwritenode,maxdiskwritetask,avediskwrite,reqtres,alloctres"
)

type acctReader struct {
	q                     *Acct
	people                People
	now                   time.Time
	format, start, end    string
	everybody, usersGiven bool
	root                  bool
	formatSet             bool
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
	r := &acctReader{q: &Acct{delimiter: "|"}, people: people, now: now, root: root, format: acctDefault}
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
	case "brief":
		r.add(acctBrief)
	case "long":
		r.add(acctLong)
	case "delimiter":
		q.delimiter = value
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
		q.noHeader = true
	case "parsable":
		q.parsable, q.trailing = true, true
	case "parsable2":
		q.parsable, q.trailing = true, false
	case "partition":
		q.Query.Partitions = words(value)
	case "state":
		return r.states(value)
	case "truncate":
		q.truncate = true
	case "user", "uid":
		r.users(value)
	case "units":
		if !strings.Contains("KMGTP", strings.ToUpper(value)) || len(value) != 1 {
			return &slurm.Refusal{Lines: []string{"fatal: Invalid unit type " + value}, Code: 1}
		}
		q.Unit = strings.ToUpper(value)[0]
	case "array":
		q.expand = true
	case "allclusters", "duplicates", "federation", "local", "verbose", "cluster", "clusters", "use-local-uid", "whole-hetjob":
		// One cluster, all of whose jobs are shown, as they ran last.
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

func (r *acctReader) users(value string) {
	r.usersGiven = true
	for _, word := range words(value) {
		r.q.Query.Users = append(r.q.Query.Users, or(r.people.Lookup(word), word))
	}
}

// ids reads jobs and steps: 5,3_2,7.0,8.batch.
func (r *acctReader) ids(value string) error {
	for _, word := range splitIDs(value) {
		head, tail, dotted := strings.Cut(word, ".")
		head, _, _ = strings.Cut(head, "+")
		ids, err := ParseJobIDs(head)
		if err != nil || len(ids) != 1 {
			return &slurm.Refusal{Lines: []string{"fatal: Bad job/step specified: " + word}, Code: 1}
		}
		f := stepFilter{job: ids[0]}
		if dotted {
			step, err := job.ParseStepID(tail)
			if err != nil {
				return &slurm.Refusal{Lines: []string{"fatal: Bad job/step specified: " + word}, Code: 1}
			}
			f.step = &step
		}
		r.q.steps = append(r.q.steps, f)
		r.q.expand = r.q.expand || f.job.Tasks != nil
		if !slices.Contains(r.q.Query.IDs, ids[0].Job) {
			r.q.Query.IDs = append(r.q.Query.IDs, ids[0].Job)
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

func (r *acctReader) columns() error {
	for word := range strings.SplitSeq(r.format, ",") {
		name, size, sized := strings.Cut(strings.TrimSpace(word), "%")
		if name == "" {
			continue
		}
		if strings.EqualFold(name, "all") {
			for i := range acctFields {
				r.q.fields = append(r.q.fields, acctColumn{&acctFields[i], acctFields[i].width})
			}
			continue
		}
		f := findAcct(name)
		if f == nil {
			return refuse("Invalid field requested: %q", name)
		}
		c := acctColumn{f, f.width}
		if n, err := strconv.Atoi(size); sized && err == nil && n != 0 && n > -10000 && n < 10000 {
			c.width = n
		}
		r.q.fields = append(r.q.fields, c)
	}
	return nil
}

// findAcct finds a field by its name, or the first that begins so.
func findAcct(name string) *acctField {
	for i := range acctFields {
		if strings.EqualFold(acctFields[i].name, name) {
			return &acctFields[i]
		}
	}
	for i := range acctFields {
		if len(acctFields[i].name) > len(name) && strings.EqualFold(acctFields[i].name[:len(name)], name) {
			return &acctFields[i]
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
		return &slurm.Refusal{Lines: []string{"fatal: Start time (" + r.start + ") requested is after end time (" + r.end + ")."}, Code: 1}
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
	if !q.noHeader {
		if err := q.header(w); err != nil {
			return err
		}
	}
	if !q.expand {
		past = Gather(past)
	}
	for i := range past {
		p := &past[i]
		if q.wants(p, nil) {
			if err := q.row(w, v, &record{&p.Job, p, nil}); err != nil {
				return err
			}
		}
		if q.allocations {
			continue
		}
		for n := range p.Steps {
			if q.wants(p, &p.Steps[n]) {
				if err := q.row(w, v, &record{&p.Job, p, &p.Steps[n]}); err != nil {
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

func (q *Acct) header(w io.Writer) error {
	var names, dashes []byte
	for i, c := range q.fields {
		if q.parsable {
			names = q.part(names, c.field.name, i)
			continue
		}
		width, right := max(c.width, -c.width), c.width > 0
		names = append(pad(names, c.field.name, width, right, false), ' ')
		dashes = append(append(dashes, strings.Repeat("-", width)...), ' ')
	}
	lines := append(names, '\n')
	if !q.parsable {
		lines = append(append(lines, dashes...), '\n')
	}
	_, err := w.Write(lines)
	return err
}

// part appends a text and the delimiter, which the last one may have to do without.
func (q *Acct) part(b []byte, text string, i int) []byte {
	b = append(b, text...)
	if i < len(q.fields)-1 || q.trailing {
		b = append(b, q.delimiter...)
	}
	return b
}

func (q *Acct) row(w io.Writer, v *View, r *record) error {
	var b []byte
	for i, c := range q.fields {
		text := c.field.text(v, r)
		if q.parsable {
			b = q.part(b, text, i)
			continue
		}
		width, right := max(c.width, -c.width), c.width > 0
		if len(text) > width {
			text = text[:width-1] + "+"
		}
		b = append(pad(b, text, width, right, false), ' ')
	}
	_, err := w.Write(append(b, '\n'))
	return err
}

// Fields writes the names of all fields, four a line.
func (q *Acct) Fields(w io.Writer) error {
	var b strings.Builder
	for i := range acctFields {
		fmt.Fprintf(&b, "%-19s", acctFields[i].name)
		if i%4 == 3 || i == len(acctFields)-1 {
			b.WriteByte('\n')
		} else {
			b.WriteByte(' ')
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}
