package listing

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/internal/slurm"
)

// Stat is a command line of sstat.
type Stat struct {
	AllSteps             bool
	Version, Help, Usage bool
	HelpFormat           bool
	NoConvert            bool
	Verbose              int

	targets []stepFilter
	table   table[statRow]
}

// statRow is a line of sstat: a step with what its ranks used, or, in a format with
// processes, those on one node.
type statRow struct {
	step  *Step
	node  string
	ranks []job.RankUsage
}

var statFlags = []slurm.Flag{
	{Long: "allsteps", Short: 'a'},
	{Long: "format", Short: 'o', Argument: slurm.RequiredArgument},
	{Long: "fields", Argument: slurm.RequiredArgument},
	{Long: "help", Short: 'h'},
	{Long: "helpformat", Short: 'e'},
	{Long: "jobs", Short: 'j', Argument: slurm.RequiredArgument},
	{Long: "noconvert"},
	{Long: "noheader", Short: 'n'},
	{Long: "parsable", Short: 'p'},
	{Long: "parsable2", Short: 'P'},
	{Long: "pidformat", Short: 'i'},
	{Long: "usage"},
	{Long: "verbose", Short: 'v'},
	{Long: "version", Short: 'V'},
}

// The formats of sstat without -o, and with --pidformat.
const (
	statDefault = "jobid,maxvmsize,maxvmsizenode,maxvmsizetask,avevmsize,maxrss,maxrssnode,maxrsstask,averss,maxpages,maxpagesnode," +
		"maxpagestask,avepages,mincpu,mincpunode,mincputask,avecpu,ntasks,avecpufreq,reqcpufreqmin,reqcpufreqmax,reqcpufreqgov," +
		"consumedenergy,maxdiskread,maxdiskreadnode,maxdiskreadtask,avediskread,maxdiskwrite,maxdiskwritenode,maxdiskwritetask," +
		"avediskwrite,tresusageinave,tresusageinmax,tresusageinmaxnode,tresusageinmaxtask,tresusageinmin,tresusageinminnode," +
		"tresusageinmintask,tresusageintot,tresusageoutave,tresusageoutmax,tresusageoutmaxnode,tresusageoutmaxtask,tresusageoutmin," +
		"tresusageoutminnode,tresusageoutmintask,tresusageouttot"
	statPIDs = "jobid,nodelist,pids"
)

// ParseStat reads sstat's command line, without the program's name.
func ParseStat(args []string) (*Stat, error) {
	given, operands, err := slurm.Getopt(statFlags, args, false)
	if err != nil {
		return nil, err
	}
	q := &Stat{table: table[statRow]{delimiter: "|"}}
	var format []string
	for _, g := range given {
		switch statFlags[g.Flag].Long {
		case "allsteps":
			q.AllSteps = true
		case "format", "fields":
			format = append(format, g.Value)
		case "pidformat":
			format = append(format, statPIDs)
		case "help":
			q.Help = true
		case "usage":
			q.Usage = true
		case "helpformat":
			q.HelpFormat = true
		case "version":
			q.Version = true
		case "noconvert":
			q.NoConvert = true
		case "noheader":
			q.table.noHeader = true
		case "parsable":
			q.table.parsable, q.table.trailing = true, true
		case "parsable2":
			q.table.parsable, q.table.trailing = true, false
		case "verbose":
			q.Verbose++
		case "jobs":
			operands = append([]string{g.Value}, operands...)
		}
	}
	if q.Version || q.Help || q.Usage || q.HelpFormat {
		return q, nil
	}
	if q.targets, err = parseTargets(operands); err != nil {
		return nil, err
	}
	if format == nil {
		format = []string{statDefault}
	}
	if err := q.table.columns(statFields, strings.Join(format, ",")); err != nil {
		return nil, err
	}
	if len(q.targets) == 0 {
		return nil, refuse("You didn't give me any jobs to stat.")
	}
	return q, nil
}

// parseTargets reads lists of jobs and steps: 5,3_2,7.0,8.batch.
func parseTargets(lists []string) ([]stepFilter, error) {
	var all []stepFilter
	for _, list := range lists {
		for _, word := range slurm.SplitIDs(list) {
			f, err := parseTarget(word)
			if err != nil {
				return nil, err
			}
			all = append(all, f)
		}
	}
	return all, nil
}

// parseTarget reads a job, or a step of one, as sacct and sstat do.
func parseTarget(word string) (stepFilter, error) {
	fatal := func(format string, args ...any) error {
		return &slurm.Refusal{Lines: []string{"fatal: " + fmt.Sprintf(format, args...)}, Code: 1}
	}
	head, tail, dotted := strings.Cut(word, ".")
	head, _, _ = strings.Cut(head, "+")
	ids, err := ParseJobIDs(head)
	if err != nil || len(ids) != 1 {
		return stepFilter{}, fatal("Bad job/step specified: %s", word)
	}
	f := stepFilter{job: ids[0]}
	if dotted {
		step, err := job.ParseStepID(tail)
		if err != nil {
			return f, fatal("Bad step specified: %s", head)
		}
		f.step = &step
	}
	return f, nil
}

// Jobs are the jobs, or arrays, of which steps were asked for.
func (q *Stat) Jobs() []job.ID {
	var all []job.ID
	for _, f := range q.targets {
		if !slices.Contains(all, f.job.Job) {
			all = append(all, f.job.Job)
		}
	}
	return all
}

// Choose takes of the steps that run those that were asked for, in the order in which they
// were, and says which there are not. Of a job without a step it is the first one that srun
// has made, or all.
func (q *Stat) Choose(steps []Step) (chosen []*Step, missing []error) {
	for _, f := range q.targets {
		var found []*Step
		for i := range steps {
			if f.matches(&steps[i]) && (f.step != nil || q.AllSteps || steps[i].Key.Step >= 0) {
				found = append(found, &steps[i])
			}
		}
		slices.SortFunc(found, func(a, b *Step) int { return compareSteps(a, b) })
		if f.step == nil && !q.AllSteps {
			found = slices.CompactFunc(found, func(a, b *Step) bool { return a.Key.Job == b.Key.Job })
		}
		switch {
		case len(found) > 0:
		case f.step != nil:
			missing = append(missing, refuse("StepId=%d.%s not found running.", f.job.Job, f.step))
		default:
			missing = append(missing, refuse("couldn't get steps for job %d", f.job.Job))
		}
		chosen = append(chosen, found...)
	}
	return chosen, missing
}

// compareSteps has the script of a job before its steps.
func compareSteps(a, b *Step) int {
	return slices.Compare([]int{int(a.Key.Job), int(a.Key.Step)}, []int{int(b.Key.Job), int(b.Key.Step)})
}

// Header writes the headings.
func (q *Stat) Header(w io.Writer) error { return q.table.header(w) }

// Print writes a step with what its ranks used.
func (q *Stat) Print(w io.Writer, v *View, s *Step, ranks []job.RankUsage) error {
	if !q.table.uses("Pids") {
		return q.table.row(w, v, &statRow{s, slurm.Fold(s.Nodes), ranks})
	}
	for _, node := range s.Nodes {
		var of []job.RankUsage
		for _, r := range ranks {
			if r.Node == node {
				of = append(of, r)
			}
		}
		if err := q.table.row(w, v, &statRow{s, node, of}); err != nil {
			return err
		}
	}
	return nil
}

// Fields writes the names of all fields, four a line.
func (q *Stat) Fields(w io.Writer) error { return fieldNames(w, statFields) }

// PIDs is a command line of "scontrol listpids".
type PIDs struct {
	target *stepFilter // nil: all
	node   string      // empty: not said
}

// ParsePIDs reads [JOB[.STEP] [NODE]].
func ParsePIDs(args []string) (*PIDs, error) {
	p := &PIDs{}
	if len(args) > 2 {
		return nil, plainly("too many arguments for keyword:listpids")
	}
	if len(args) > 0 && args[0] != "*" {
		f, err := parseTarget(args[0])
		if err != nil {
			return nil, plainly("%q does not look like a jobid", args[0])
		}
		p.target = &f
	}
	if len(args) > 1 {
		p.node = args[1]
	}
	return p, nil
}

// Jobs are the jobs of which processes were asked for; nil: all.
func (p *PIDs) Jobs() []job.ID {
	if p.target == nil {
		return nil
	}
	return []job.ID{p.target.job.Job}
}

// Header writes the headings.
func (p *PIDs) Header(w io.Writer) error {
	_, err := io.WriteString(w, "PID      JOBID    STEPID   LOCALID GLOBALID\n")
	return err
}

// Choose takes of steps those that were asked for and have something on the node that was, or
// else on the one that the caller is on.
func (p *PIDs) Choose(steps []Step, here string) []*Step {
	if p.node == "" {
		p.node = here
	}
	var all []*Step
	for i := range steps {
		s := &steps[i]
		if (p.target == nil || p.target.matches(s)) && (p.node == "" || slices.Contains(s.Nodes, p.node)) {
			all = append(all, s)
		}
	}
	slices.SortFunc(all, func(a, b *Step) int {
		batch := func(s *Step) int { // comes behind the others
			return int(max(0, -s.Key.Step))
		}
		return slices.Compare([]int{int(a.Key.Job), batch(a), int(a.Key.Step)}, []int{int(b.Key.Job), batch(b), int(b.Key.Step)})
	})
	return all
}

// Print writes the processes of a step; of ranks with their numbers on their node and in the
// step.
func (p *PIDs) Print(w io.Writer, s *Step, ranks []job.RankUsage) error {
	local := map[string]int{}
	for _, r := range ranks {
		if p.node != "" && r.Node != p.node {
			continue
		}
		for i, pid := range r.PIDs {
			own, all := strconv.Itoa(local[r.Node]), strconv.Itoa(r.Rank)
			if i > 0 {
				own, all = "-", "-"
			}
			if _, err := fmt.Fprintf(w, "%-8d %-8d %-8s %-7s %-8s\n", pid, s.Key.Job, s.Key.Step, own, all); err != nil {
				return err
			}
		}
		local[r.Node]++
	}
	return nil
}

// None is what is said where there is nothing to be listed.
func (p *PIDs) None() string {
	switch {
	case p.target == nil:
		return "No job steps exist on this node."
	case p.target.step != nil:
		return fmt.Sprintf("StepId=%d.%s does not exist on node %s.", p.target.job.Job, p.target.step, null(p.node))
	}
	return fmt.Sprintf("JobId=%d does not exist on node %s.", p.target.job.Job, null(p.node))
}
