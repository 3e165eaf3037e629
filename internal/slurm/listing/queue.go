package listing

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/gangway-hpc/gangway/internal/api"
	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/internal/slurm"
)

// Queue is a command line of squeue.
type Queue struct {
	Query    api.Query
	Start    bool // --start: only what waits, with when it is expected to start
	Steps    bool // -s
	NoHeader bool
	Version  bool
	Help     bool
	Usage    bool
	Dated    bool // the first line is the date

	NoConvert bool
	Clusters  []string // -M; nil: not said
	Warnings  []error  // parts of the format that are no fields

	Iterate int // seconds between reports; 0: one

	tasks  map[job.ID][]uint32 // tasks of arrays that were asked for; nil: all
	all    bool                // states: all
	nobody bool                // what was asked for does not exist here
	qos    []string
	lics   []string
	badKey string // what cannot be sorted by
	jobs   Format[api.Job]
	steps  Format[Step]
	sort   []sortKey
	stepID []stepFilter
}

type sortKey struct {
	letter  byte
	falling bool
}

// refuse makes an error as Slurm's commands print it, with the exit code 1.
func refuse(format string, args ...any) error {
	return &slurm.Refusal{Lines: []string{"error: " + fmt.Sprintf(format, args...)}, Code: 1}
}

// unsupported is an option that Slurm has and we have not.
func unsupported(option string) error {
	return refuse("option --%s is not supported by Gangway", option)
}

// queueFlags are squeue's options.
var queueFlags = []slurm.Flag{
	{Long: "account", Short: 'A', Argument: slurm.RequiredArgument},
	{Long: "all", Short: 'a'},
	{Long: "array", Short: 'r'},
	{Long: "array-unique"},
	{Long: "clusters", Short: 'M', Argument: slurm.RequiredArgument},
	{Long: "cluster", Argument: slurm.RequiredArgument},
	{Long: "expand-patterns"},
	{Long: "federation"},
	{Long: "format", Short: 'o', Argument: slurm.RequiredArgument},
	{Long: "Format", Short: 'O', Argument: slurm.RequiredArgument},
	{Long: "help"},
	{Long: "hide"},
	{Long: "iterate", Short: 'i', Argument: slurm.RequiredArgument},
	{Long: "jobs", Short: 'j', Argument: slurm.OptionalArgument},
	{Long: "json", Argument: slurm.OptionalArgument},
	{Long: "licenses", Short: 'L', Argument: slurm.RequiredArgument},
	{Long: "local"},
	{Long: "long", Short: 'l'},
	{Long: "me"},
	{Long: "name", Short: 'n', Argument: slurm.RequiredArgument},
	{Long: "noconvert"},
	{Long: "node", Argument: slurm.RequiredArgument},
	{Long: "nodelist", Short: 'w', Argument: slurm.RequiredArgument},
	{Long: "nodes", Argument: slurm.RequiredArgument},
	{Long: "noheader", Short: 'h'},
	{Long: "only-job-state"},
	{Long: "partition", Short: 'p', Argument: slurm.RequiredArgument},
	{Long: "priority", Short: 'P'},
	{Long: "qos", Short: 'q', Argument: slurm.RequiredArgument},
	{Long: "reservation", Short: 'R', Argument: slurm.RequiredArgument},
	{Long: "sibling"},
	{Long: "sort", Short: 'S', Argument: slurm.RequiredArgument},
	{Long: "start"},
	{Long: "states", Short: 't', Argument: slurm.RequiredArgument},
	{Long: "steps", Short: 's', Argument: slurm.OptionalArgument},
	{Long: "usage"},
	{Long: "user", Short: 'u', Argument: slurm.RequiredArgument},
	{Long: "verbose", Short: 'v'},
	{Long: "version", Short: 'V'},
	{Long: "yaml", Argument: slurm.OptionalArgument},
}

// People answers questions about users.
type People interface {
	// Lookup returns the name of a user, given a name or a number; empty: there is none.
	Lookup(text string) string
	// Group returns the number of a group, given a name or a number.
	Group(text string) (gid uint32, ok bool)
	// Me is the name of the caller.
	Me() string
}

// queueReader is what is gathered of a command line.
type queueReader struct {
	q           *Queue
	people      People
	short, long string
	shortSet    bool
	longSet     bool
	longer      bool
	sorts       string
}

// ParseQueue reads squeue's command line, without the program's name, and its environment.
func ParseQueue(args []string, getenv func(string) string, people People) (*Queue, error) {
	r := &queueReader{q: &Queue{}, people: people}
	given, operands, err := slurm.Getopt(queueFlags, args, false)
	if err != nil {
		return nil, err
	}
	for _, e := range queueEnviron {
		if value := getenv(e.variable); value != "" && !has(given, queueFlags, e.option) {
			if err := r.set(e.option, value, false); err != nil {
				return nil, err
			}
		}
	}
	for _, g := range given {
		if err := r.set(queueFlags[g.Flag].Long, g.Value, g.Bare); err != nil {
			return nil, err
		}
	}
	// "squeue -j 5" and "-s 5.0" have their value as an operand, since it is optional.
	if len(operands) > 0 {
		switch {
		case has(given, queueFlags, "jobs") && r.q.Query.IDs == nil:
			err = r.ids(strings.Join(operands, ","))
		case r.q.Steps && r.q.stepID == nil:
			err = r.stepIDs(strings.Join(operands, ","))
		default:
			err = refuse("Unrecognized option: %s", operands[0])
		}
		if err != nil {
			return nil, err
		}
	}
	r.formats()
	r.q.Query.Whole = r.q.Query.Whole || r.q.jobs.uses(ofSpec()...)
	r.sorting()
	return r.q, nil
}

// seconds1 is a number of seconds, at least one; 0: it is none.
func seconds1(text string) int {
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		return 0
	}
	return n
}

// queueEnviron are the variables that stand for options.
var queueEnviron = []struct{ variable, option string }{
	{"SQUEUE_ACCOUNT", "account"},
	{"SQUEUE_ARRAY", "array"},
	{"SQUEUE_ARRAY_UNIQUE", "array-unique"},
	{"SQUEUE_FORMAT", "format"},
	{"SQUEUE_FORMAT2", "Format"},
	{"SQUEUE_LICENSES", "licenses"},
	{"SQUEUE_NAMES", "name"},
	{"SQUEUE_PARTITION", "partition"},
	{"SQUEUE_QOS", "qos"},
	{"SQUEUE_SORT", "sort"},
	{"SQUEUE_STATES", "states"},
	{"SQUEUE_USERS", "user"},
	{"SLURM_CLUSTERS", "clusters"},
}

// has says whether an option was given.
func has(given []slurm.Given, flags []slurm.Flag, name string) bool {
	return slices.ContainsFunc(given, func(g slurm.Given) bool { return flags[g.Flag].Long == name })
}

func (r *queueReader) set(name, value string, bare bool) error {
	q := r.q
	switch name {
	case "account":
		q.Query.Accounts = words(value)
	case "cluster", "clusters":
		q.Clusters = words(value)
	case "array", "array-unique":
		q.Query.Tasks = true
	case "format":
		r.short, r.shortSet, r.longSet = value, true, false
	case "Format":
		r.long, r.longSet, r.shortSet = value, true, false
	case "help":
		q.Help = true
	case "usage":
		q.Usage = true
	case "version":
		q.Version = true
	case "jobs":
		if bare {
			return nil
		}
		return r.ids(value)
	case "long":
		r.longer = true
	case "me":
		q.Query.Users = []string{r.people.Me()}
	case "name":
		q.Query.Names = words(value)
	case "noconvert":
		q.NoConvert = true
	case "noheader":
		q.NoHeader = true
	case "node", "nodes", "nodelist":
		names, err := slurm.Expand(value)
		if err != nil {
			return refuse("Invalid node name %s", value)
		}
		q.Query.Nodes = names
	case "partition":
		q.Query.Partitions = words(value)
	case "qos":
		q.qos = words(value)
	case "licenses":
		q.lics, q.Query.Whole = words(value), true
	case "reservation":
		q.nobody = true // there are none
	case "iterate":
		if q.Iterate = seconds1(value); q.Iterate == 0 {
			return refuse("--iterate=%s\n", value)
		}
		q.Dated = true
	case "sort":
		r.sorts = value
	case "start":
		q.Start = true
	case "states":
		return r.states(value)
	case "steps":
		q.Steps = true
		if !bare {
			return r.stepIDs(value)
		}
	case "user":
		return r.users(value)
	case "all", "hide", "local", "priority", "verbose", "federation", "sibling", "expand-patterns":
		// They change nothing here: there are no hidden partitions and no federations, and
		// a job of several partitions has one line.
	case "only-job-state":
	default:
		return unsupported(name)
	}
	return nil
}

// ids reads 5, 3_2, 3_[1-4] and lists of them.
func (r *queueReader) ids(value string) error {
	list, err := ParseJobIDs(value)
	if err != nil {
		return err
	}
	q := r.q
	for _, id := range list {
		if !slices.Contains(q.Query.IDs, id.Job) {
			q.Query.IDs = append(q.Query.IDs, id.Job)
		}
		if id.Tasks != nil {
			if q.tasks == nil {
				q.tasks = map[job.ID][]uint32{}
			}
			q.tasks[id.Job] = append(q.tasks[id.Job], id.Tasks...)
		}
	}
	return nil
}

func (r *queueReader) users(value string) error {
	var names []string
	for _, word := range words(value) {
		name := r.people.Lookup(word)
		if name == "" {
			// Slurm says so, and shows nothing.
			r.q.Warnings = append(r.q.Warnings, &slurm.UsageError{Text: "Invalid user: " + word + "\n"})
			name = word
		}
		names = append(names, name)
	}
	r.q.Query.Users = names
	return nil
}

// states reads the names of states; all is any.
func (r *queueReader) states(value string) error {
	q := r.q
	q.Query.States, q.Query.Recent, q.nobody = nil, true, false
	if q.all = strings.EqualFold(value, "all"); q.all {
		return nil
	}
	for word := range strings.SplitSeq(value, ",") {
		name, ok := ParseState(word)
		switch {
		case word == "":
		case !ok:
			return stateError(word)
		case known(name):
			q.Query.States = append(q.Query.States, name)
		}
	}
	q.nobody = q.Query.States == nil && strings.Trim(value, ",") != "" // no job is ever in these
	return nil
}

// known says whether jobs can be in a state here.
func known(name string) bool {
	for s := job.Pending; s <= job.Preempted; s++ {
		if s.String() == name {
			return true
		}
	}
	return false
}

func (r *queueReader) formats() {
	q := r.q
	switch {
	case q.Steps:
		format := "%.15i %.8j %.9P %.8u %.9M %N"
		if r.shortSet {
			format = r.short
		}
		if r.longSet {
			q.steps, q.Warnings = ParseLong(stepFields, stepKind, r.long)
			return
		}
		q.steps, q.Warnings = ParseShort(stepFields, stepKind, format)
		return
	case r.longSet:
		var errs []error
		q.jobs, errs = ParseLong(jobFields, jobKind, r.long)
		q.Warnings = append(q.Warnings, errs...)
		return
	}
	format := "%.18i %.9P %.8j %.8u %.2t %.10M %.6D %R"
	switch {
	case r.shortSet:
		format = r.short
	case q.Start:
		format = "%.18i %.9P %.8j %.8u %.2t %.19S %.6D %20Y %R"
	case r.longer:
		format, q.Dated = "%.18i %.9P %.8j %.8u %.8T %.10M %.9l %.6D %R", true
	}
	var errs []error
	q.jobs, errs = ParseShort(jobFields, jobKind, format)
	q.Warnings = append(q.Warnings, errs...)
}

// unsorted are the letters of fields that squeue does not sort by.
const unsorted = "akoqrswxyAEFKRWXYZ"

// sorting reads -S: letters of fields, with - before those that fall. The last one that is none
// is told when all is there that could be sorted, as Slurm does. Steps have their own order.
func (r *queueReader) sorting() {
	text := r.sorts
	switch {
	case r.q.Steps:
		return
	case text == "" && r.q.Start:
		text = "S,-p"
	case text == "":
		text = "P,t,-p"
	}
	falling := false
	for _, c := range []byte(text) {
		switch c {
		case '-':
			falling = true
		case '+':
			falling = false
		case ',':
		default:
			if letterField(jobFields, c) == nil || strings.IndexByte(unsorted, c) >= 0 {
				r.q.badKey = string(rune(c))
			}
			r.q.sort = append(r.q.sort, sortKey{c, falling})
			falling = false
		}
	}
}

// Select is what of the answer is to be shown, in its order.
func (q *Queue) Select(v *View, jobs []api.Job) []*api.Job {
	if !q.Query.Tasks {
		jobs = Merge(jobs)
	}
	kept := make([]*api.Job, 0, len(jobs))
	for i := range jobs {
		j := &jobs[i]
		if tasks, ok := q.tasks[arrayID(j)]; ok && (j.Array != nil || j.Waiting != nil) && !narrow(j, tasks) {
			continue
		}
		if j.State.Done() && !q.Query.Recent || !q.wants(j) {
			continue // named, but nobody asked for those that have ended
		}
		if q.Start && (j.State != job.Pending || !q.jobs.uses("starttime")) {
			continue
		}
		kept = append(kept, j)
	}
	if q.badKey == "" {
		slices.SortFunc(kept, func(a, b *api.Job) int { return q.compare(v, a, b) })
	}
	return kept
}

// wants says whether a job is one of those that only this package tells apart.
func (q *Queue) wants(j *api.Job) bool {
	has := func(name string) bool {
		return j.Spec != nil && slices.ContainsFunc(j.Spec.Licenses, func(l job.License) bool { return l.Name == name })
	}
	return !q.nobody && (q.qos == nil || slices.Contains(q.qos, j.QOS)) && (q.lics == nil || slices.ContainsFunc(q.lics, has))
}

// narrow keeps only some tasks of an array.
func narrow(j *api.Job, tasks []uint32) bool {
	if j.Waiting == nil {
		return slices.Contains(tasks, j.Array.Task)
	}
	var kept []job.Range
	for _, task := range slices.Compact(slices.Sorted(slices.Values(tasks))) {
		for _, r := range j.Waiting {
			if task >= r.First && task <= r.Last && (task-r.First)%max(1, r.Step) == 0 {
				kept = append(kept, job.Range{First: task, Last: task, Step: 1})
			}
		}
	}
	j.Waiting = kept
	return kept != nil
}

func (q *Queue) compare(v *View, a, b *api.Job) int {
	for _, key := range q.sort {
		c := compareJobs(v, key.letter, a, b)
		if key.falling {
			c = -c
		}
		if c != 0 {
			return c
		}
	}
	return cmp.Compare(a.ID, b.ID)
}

// compareJobs compares by a field: numbers and times by their value, the rest by text.
func compareJobs(v *View, letter byte, a, b *api.Job) int {
	switch letter {
	case 'i', 'A':
		return cmp.Compare(a.ID, b.ID)
	case 'P':
		return cmp.Compare(a.Partition, b.Partition)
	case 't', 'T':
		return cmp.Compare(shortState(a.State), shortState(b.State))
	case 'p', 'Q':
		return cmp.Compare(a.Priority, b.Priority)
	case 'C':
		return cmp.Compare(a.CPUs, b.CPUs)
	case 'D':
		return cmp.Compare(a.Nodes, b.Nodes)
	case 'e':
		return cmp.Compare(a.End, b.End)
	case 'l':
		return cmp.Compare(a.Limit, b.Limit)
	case 'm':
		return cmp.Compare(a.Memory.MiB, b.Memory.MiB)
	case 'M':
		return cmp.Compare(v.used(a.Start, a.End), v.used(b.Start, b.End))
	case 'S':
		return cmp.Compare(timed(startOf(a)), timed(startOf(b)))
	case 'U':
		return cmp.Compare(a.UID, b.UID)
	case 'V':
		return cmp.Compare(a.Submit, b.Submit)
	case 'y':
		return cmp.Compare(a.Nice, b.Nice)
	}
	f := letterField(jobFields, letter)
	return cmp.Compare(f.Text(v, a), f.Text(v, b))
}

// timed puts what has no time behind what has one.
func timed(t job.Time) job.Time {
	if t == 0 {
		return job.Never
	}
	return t
}

// Print writes jobs.
func (q *Queue) Print(w io.Writer, v *View, jobs []*api.Job) error {
	if q.badKey != "" {
		return errors.Join(printRows(w, v, &q.jobs, q.Dated, q.NoHeader, nil), refuse("Invalid sort specification: %s", q.badKey))
	}
	return printRows(w, v, &q.jobs, q.Dated, q.NoHeader, jobs)
}

// printRows writes a report, with the date, if it is to be dated, and headings.
func printRows[T any](w io.Writer, v *View, f *Format[T], dated, noHeader bool, rows []*T) error {
	if !noHeader {
		if dated {
			if _, err := fmt.Fprintln(w, v.Date()); err != nil {
				return err
			}
		}
		if _, err := w.Write(f.heading(nil)); err != nil {
			return err
		}
	}
	var line []byte
	for _, row := range rows {
		line = f.row(line[:0], v, row)
		if _, err := w.Write(line); err != nil {
			return err
		}
	}
	return nil
}

func pointers[T any](list []T) []*T {
	all := make([]*T, len(list))
	for i := range list {
		all[i] = &list[i]
	}
	return all
}
