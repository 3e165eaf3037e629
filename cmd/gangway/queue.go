package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/gangway-hpc/gangway/internal/api"
	"github.com/gangway-hpc/gangway/internal/cli"
	"github.com/gangway-hpc/gangway/internal/fault"
	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/internal/slurm"
	"github.com/gangway-hpc/gangway/internal/slurm/listing"
)

// jobFilter are the flags by which reading verbs choose jobs, in Slurm's spelling.
type jobFilter struct {
	users, states, partitions, names, nodes []string
	me                                      bool
}

func newJobFilter(cmd *cobra.Command) *jobFilter {
	f := &jobFilter{}
	fl := cmd.Flags()
	fl.StringSliceVarP(&f.users, "user", "u", nil, "only jobs of these `users`")
	fl.BoolVar(&f.me, "me", false, "only my jobs")
	fl.StringSliceVarP(&f.states, "states", "t", nil, "only jobs in these `states`: running, pending, failed, all, ...")
	fl.StringSliceVarP(&f.partitions, "partition", "p", nil, "only jobs of these `partitions`")
	fl.StringSliceVarP(&f.names, "name", "n", nil, "only jobs with these `names`")
	fl.StringSliceVarP(&f.nodes, "nodelist", "w", nil, "only jobs on these `nodes`, as in n[1-4]")
	return f
}

// query is what the flags and the named jobs ask for.
func (f *jobFilter) query(ids []string) (*api.Query, error) {
	q := &api.Query{Users: f.users, Partitions: f.partitions, Names: f.names}
	if f.me {
		q.Users = []string{hostPeople{}.Me()}
	}
	for _, word := range f.states {
		name, ok := listing.ParseState(word)
		switch {
		case strings.EqualFold(word, "all"):
			q.Recent = true
		case !ok:
			return nil, fault.Usage(fmt.Errorf("there is no state %q", word), "running, pending, completing, completed, failed, cancelled, timeout, node_fail, out_of_memory, all")
		default:
			q.States = append(q.States, name)
			q.Recent = true
		}
	}
	for _, word := range f.nodes {
		names, err := slurm.Expand(word)
		if err != nil {
			return nil, fault.Usage(err, "--nodelist n[1-4,7]")
		}
		q.Nodes = append(q.Nodes, names...)
	}
	for _, word := range ids {
		list, err := listing.ParseJobIDs(word)
		if err != nil {
			return nil, fault.Usage(fmt.Errorf("%q is not a job", word), "jobs are written 12, 12_3 or 12_[1-4]")
		}
		for _, id := range list {
			q.IDs = append(q.IDs, id.Job)
			q.Tasks = q.Tasks || id.Tasks != nil
		}
	}
	return q, nil
}

// exist refuses nodes and partitions that there are not: none of their jobs is no answer.
func (f *jobFilter) exist(ctx context.Context, c *api.Client, nodes []string) error {
	for _, name := range f.partitions {
		if _, err := onePartition(ctx, c, name); err != nil {
			return err
		}
	}
	if nodes == nil {
		return nil
	}
	page, err := c.Nodes(ctx)
	if err != nil {
		return err
	}
	return known(nodes, page.Items)
}

// queueList is what "gangway queue" prints.
type queueList struct {
	Jobs []api.Job `json:"jobs"`
	Now  job.Time  `json:"now"` // the controller's clock, ms since 1970
	view *listing.View
}

// Text implements cli.Result.
func (l queueList) Text(w io.Writer) error {
	if len(l.Jobs) == 0 {
		_, err := fmt.Fprintln(w, "no jobs")
		return err
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "JOB\tNAME\tUSER\tSTATE\tTIME\tLIMIT\tNODES\tCPUS\tGPUS\tWHERE, OR WHY NOT")
	for i := range l.Jobs {
		j := &l.Jobs[i]
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%d\t%d\t%s\t%s\n", l.view.JobID(j), quoteName(shorten(j.Name, 24)), j.User, stateWord(j), runTime(j, l.Now), limitWord(j.Limit),
			j.Nodes, j.CPUs, gpuWord(j), whereOrWhy(j, l.Now))
	}
	return t.Flush()
}

func shorten(text string, n int) string {
	if r := []rune(text); len(r) > n {
		return string(r[:n-1]) + "…"
	}
	return text
}

// stateWord is a job's state, and what it is busy with.
func stateWord(j *api.Job) string {
	word := strings.ToLower(j.State.String())
	switch {
	case j.Phase == "preparing" && j.State == job.Running:
		return "preparing"
	case j.State == job.Pending && j.Held:
		return "held"
	}
	return word
}

// runTime is how long a job has run, or has waited since.
func runTime(j *api.Job, now job.Time) string {
	if j.Start == 0 {
		return "-"
	}
	return shortSpan(cmp.Or(j.End, now).Sub(j.Start))
}

// shortSpan is a length of time in its two largest units: 45s, 12m05s, 3h20m, 2d4h.
func shortSpan(d job.Duration) string {
	s := int64(max(0, d) / job.Second)
	switch {
	case s < 60:
		return fmt.Sprintf("%ds", s)
	case s < 3600:
		return fmt.Sprintf("%dm%02ds", s/60, s%60)
	case s < 86400:
		return fmt.Sprintf("%dh%02dm", s/3600, s/60%60)
	}
	return fmt.Sprintf("%dd%dh", s/86400, s/3600%24)
}

func limitWord(d job.Duration) string {
	if d == 0 || d == job.Forever {
		return "none"
	}
	return shortSpan(d)
}

// gpuWord is how many GPUs a job has on each node: 8xh100.
func gpuWord(j *api.Job) string {
	requests, _ := slurm.ParseGRESRequest(j.GRES, "", job.PerNode)
	var all []string
	for _, r := range requests {
		switch {
		case r.Name != "gpu":
			all = append(all, fmt.Sprintf("%d %s", r.Count, r.Name))
		case r.Type != "":
			all = append(all, fmt.Sprintf("%dx%s", r.Count, r.Type))
		default:
			all = append(all, fmt.Sprint(r.Count))
		}
	}
	if all == nil {
		return "-"
	}
	return strings.Join(all, "+")
}

// whereOrWhy is a job's nodes, or why it waits and how long still, or how it ended.
func whereOrWhy(j *api.Job, now job.Time) string {
	switch {
	case j.State == job.Pending:
		text := j.Reason
		switch {
		case j.Expected == job.Never:
			text += ", not as things are"
		case j.Expected > now.Add(foreseen):
			text += ", not expected within 300 days"
		case j.Expected > now:
			text += ", expected in " + shortSpan(j.Expected.Sub(now))
		}
		return text
	case j.State.Done():
		return endWord(j)
	}
	return slurm.Fold(j.NodeList)
}

// endWord is how a job ended, in few words.
func endWord(j *api.Job) string {
	where := slurm.Fold(j.NodeList)
	switch {
	case j.Failed != nil && j.Failed.Signal != 0:
		return fmt.Sprintf("rank %d on %s: signal %d", j.Failed.Rank, j.Failed.Node, j.Failed.Signal)
	case j.Failed != nil:
		return fmt.Sprintf("rank %d on %s: exit %d", j.Failed.Rank, j.Failed.Node, j.Failed.Exit)
	case j.Fault != nil:
		return shorten(j.Fault.What, 60)
	case j.Signal != 0:
		return fmt.Sprintf("signal %d, %s", j.Signal, where)
	case j.Exit != 0:
		return fmt.Sprintf("exit %d, %s", j.Exit, where)
	}
	return where
}

func queueVerb(env *cli.Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "queue [JOB...]",
		Short: "list jobs that wait or run",
		Long: `List jobs that run, then those that wait, in the order in which they are looked at.
JOB is 12, or 12_3 for a task of an array.`,
		Example:    "gangway queue\ngangway queue --me --states failed\ngangway queue --json 12",
		SuggestFor: []string{"ps", "jobs", "squeue", "list"},
	}
	f := newJobFilter(cmd)
	out := cli.NewReporter(env, cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		q, err := f.query(args)
		if err != nil {
			return err
		}
		return withCluster(env, func(c *api.Client) error {
			if err := f.exist(cmd.Context(), c, q.Nodes); err != nil {
				return err
			}
			jobs, now, err := listJobs(cmd.Context(), env, c, q)
			if err != nil {
				return err
			}
			if !q.Tasks {
				jobs = listing.Merge(jobs)
			}
			slices.SortStableFunc(jobs, func(a, b api.Job) int {
				return cmp.Or(cmp.Compare(rankOf(&a), rankOf(&b)), cmp.Compare(b.Priority, a.Priority), cmp.Compare(a.ID, b.ID))
			})
			v := newView(env)
			v.Now = now
			return out.Print(queueList{Jobs: notNil(jobs), Now: now, view: v})
		})
	}
	return cmd
}

// rankOf puts what runs before what waits, and what is over behind.
func rankOf(j *api.Job) int {
	switch {
	case j.State == job.Pending:
		return 1
	case j.State.Done():
		return 2
	}
	return 0
}

// notNil is a list that is never null in JSON.
func notNil[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}

// withCluster calls f with a client of the cluster that is meant.
func withCluster(env *cli.Env, f func(*api.Client) error) error {
	c, err := contact(env)
	if err != nil {
		return err
	}
	defer c.Close()
	return f(c)
}

// history is what "gangway history" prints.
type history struct {
	Jobs  []api.Past `json:"jobs"`
	Now   job.Time   `json:"now"`
	view  *listing.View
	steps bool
}

// Text implements cli.Result.
func (h history) Text(w io.Writer) error {
	if len(h.Jobs) == 0 {
		_, err := fmt.Fprintln(w, "no jobs in that time")
		return err
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "JOB\tNAME\tUSER\tSTATE\tSTARTED\tTIME\tNODES\tCPUS\tGPUS\tHOW IT ENDED, OR WHERE IT IS")
	for i := range h.Jobs {
		j := &h.Jobs[i].Job
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%d\t%d\t%s\t%s\n", h.view.JobID(j), quoteName(shorten(j.Name, 24)), j.User, stateWord(j),
			clock(j.Start, h.Now), runTime(j, h.Now), j.Nodes, j.CPUs, gpuWord(j), whereOrWhy(j, h.Now))
		if !h.steps {
			continue
		}
		for n := range h.Jobs[i].Steps {
			s := &h.Jobs[i].Steps[n]
			fmt.Fprintf(t, "%s.%s\t%s\t\t%s\t%s\t%s\t%d\t%d\t%s\t%s\n", h.view.JobID(j), s.Key.Step, quoteName(shorten(s.Name, 24)), strings.ToLower(s.State.String()),
				clock(s.Start, h.Now), stepTime(s, h.Now), len(s.Nodes), s.CPUs, cmp.Or(s.GRES, "-"), stepEnd(s))
		}
	}
	return t.Flush()
}

func stepTime(s *api.Step, now job.Time) string {
	if s.Start == 0 {
		return "-"
	}
	return shortSpan(cmp.Or(s.End, now).Sub(s.Start))
}

func stepEnd(s *api.Step) string {
	switch {
	case s.Failed != nil && s.Failed.Signal != 0:
		return fmt.Sprintf("rank %d on %s: signal %d", s.Failed.Rank, s.Failed.Node, s.Failed.Signal)
	case s.Failed != nil:
		return fmt.Sprintf("rank %d on %s: exit %d", s.Failed.Rank, s.Failed.Node, s.Failed.Exit)
	case s.Fault != nil:
		return shorten(s.Fault.What, 60)
	}
	return slurm.Fold(s.Nodes)
}

// clock is a moment for people: the time of today, else the date.
func clock(t, now job.Time) string {
	if t == 0 || t == job.Never {
		return "-"
	}
	when, today := at(t), at(now)
	if when.YearDay() == today.YearDay() && when.Year() == today.Year() {
		return when.Format("15:04:05")
	}
	return when.Format("2006-01-02 15:04")
}

func historyVerb(env *cli.Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "history [JOB...]",
		Short: "list jobs that are over, and how they ended",
		Long: `List the jobs of the last days, those that wait or run among them, oldest first.
Times are as Slurm takes them: 2026-03-01, 08:00, now-2hours, yesterday's is now-1day.`,
		Example:    "gangway history\ngangway history --steps 12\ngangway history --starttime now-1hour --states failed,timeout",
		SuggestFor: []string{"sacct", "past", "accounting"},
	}
	f := newJobFilter(cmd)
	out := cli.NewReporter(env, cmd)
	var since, until string
	var steps bool
	limit := 50
	fl := cmd.Flags()
	fl.StringVarP(&since, "starttime", "S", "now-7days", "jobs that were alive after this `time`")
	fl.StringVarP(&until, "endtime", "E", "", "jobs that were alive before this `time`")
	fl.BoolVarP(&steps, "steps", "s", false, "their steps, too")
	fl.IntVar(&limit, "limit", limit, "the last `N` of them; 0: all")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		q, err := f.query(args)
		if err != nil {
			return err
		}
		if err := historyWindow(env, q, since, until, cmd.Flags().Changed("starttime")); err != nil {
			return err
		}
		return withCluster(env, func(c *api.Client) error {
			past, now, err := allPages(cmd.Context(), c.History, q)
			if err != nil {
				return err
			}
			if !q.Tasks {
				past = listing.Gather(past)
			}
			if limit > 0 && len(past) > limit {
				past = past[len(past)-limit:]
			}
			return out.Print(history{Jobs: notNil(past), Now: now, view: newView(env), steps: steps})
		})
	}
	return cmd
}

// historyWindow reads between which times jobs have to have been alive. Named jobs are of
// all times, unless one is given.
func historyWindow(env *cli.Env, q *api.Query, since, until string, given bool) error {
	if len(q.IDs) > 0 && !given {
		since = ""
	}
	for _, side := range []struct {
		text string
		into *job.Time
	}{{since, &q.Since}, {until, &q.Until}} {
		if side.text == "" {
			continue
		}
		at, err := listing.ParsePast(side.text, env.Now())
		if err != nil {
			return fault.Usage(err, "--starttime 2026-03-01T08:00, 08:00 or now-2hours")
		}
		*side.into = at
	}
	return nil
}

// oneJob asks for a job by its name; the controller has forgotten those that ended long
// ago, the accounting has not.
func oneJob(ctx context.Context, c *api.Client, id string) (past api.Past, err error) {
	if past.Job, err = c.JobText(ctx, id); err == nil {
		steps, err := c.Steps(ctx, past.Job.ID)
		past.Steps = steps.Items
		return past, err
	}
	ids, bad := listing.ParseJobIDs(id)
	if bad != nil || len(ids) != 1 {
		return past, fault.Usage(fmt.Errorf("%q is not a job", id), "jobs are written 12, or 12_3")
	}
	all, _, failed := allPages(ctx, c.History, &api.Query{IDs: []job.ID{ids[0].Job}})
	for _, p := range slices.Backward(all) {
		if ids[0].Tasks == nil || p.Job.Array != nil && slices.Contains(ids[0].Tasks, p.Job.Array.Task) {
			return p, nil
		}
	}
	return past, cmp.Or(failed, err)
}
