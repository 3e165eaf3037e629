package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/gangway-hpc/gangway/image"
	"github.com/gangway-hpc/gangway/internal/api"
	"github.com/gangway-hpc/gangway/internal/cli"
	"github.com/gangway-hpc/gangway/internal/fault"
	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/internal/slurm"
	"github.com/gangway-hpc/gangway/internal/slurm/listing"
)

// sheet writes names and values below each other, without those that have none.
type sheet struct{ t *tabwriter.Writer }

func newSheet(w io.Writer) sheet { return sheet{tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)} }

func (s sheet) line(name, format string, args ...any) {
	value := fmt.Sprintf(format, args...)
	if value != "" && value != "-" {
		fmt.Fprintf(s.t, "%s\t%s\n", name, value)
	}
}

// shownJob is what "gangway show job" prints.
type shownJob struct {
	api.Past
	now  job.Time
	view *listing.View
}

// Text implements cli.Result.
func (x shownJob) Text(w io.Writer) error {
	j, s := &x.Job, newSheet(w)
	s.line("job", "%s  %s", x.view.JobID(j), quoteName(j.Name))
	s.line("user", "%s", j.User)
	s.line("account", "%s", j.Account)
	s.line("partition", "%s", j.Partition)
	state := stateWord(j)
	if j.State == job.Pending {
		state += ": " + j.Reason
	}
	s.line("state", "%s", state)
	s.line("why", "%s", j.Why)
	s.line("asks for", "%s", asks(j))
	s.line("constraint", "%s", j.Constraint)
	s.line("depends on", "%s", j.Dependency)
	s.line("priority", "%d", j.Priority)
	s.line("submitted", "%s", stamp(j.Submit))
	s.line("started", "%s", stamp(j.Start))
	if j.State == job.Pending {
		s.line("expected", "%s", expectedWord(j.Expected, x.now))
	}
	s.line("ended", "%s", stamp(j.End))
	s.line("time", "%s of %s", runTime(j, x.now), limitWord(j.Limit))
	s.line("nodes", "%s", slurm.Fold(j.NodeList))
	for i := range j.Shares {
		n := &j.Shares[i]
		s.line("  "+n.Node, "%s, %s, %s%s", plural(n.Tasks, "task"), plural(n.CPUs, "CPU"), image.FormatBytes(n.Memory<<20), withDevices(n.Devices))
	}
	s.line("attempt", "%s", attemptWord(j))
	if j.State.Done() {
		s.line("exit", "%d", j.Exit)
		s.line("signal", "%s", number(j.Signal))
		if uid, err := strconv.ParseUint(j.CancelledBy, 10, 32); err == nil {
			s.line("cancelled by", "%s", nameOfUser(uint32(uid)))
		}
	}
	s.fault(j.Fault)
	s.failed(j.Failed, j.FailedRanks)
	s.line("image", "%s", j.Image)
	s.line("digest", "%s", j.Digest)
	s.line("command", "%s", j.Command)
	s.line("directory", "%s", j.Cwd)
	s.line("output", "%s", j.Output)
	if j.Error != j.Output {
		s.line("errors", "%s", j.Error)
	}
	s.line("comment", "%s", j.Comment)
	for i := range x.Steps {
		st := &x.Steps[i]
		state := strings.ToLower(st.State.String())
		if st.Phase == "preparing" {
			state = strings.TrimSpace("preparing " + st.Progress)
		}
		s.line("step "+st.Key.Step.String(), "%s  %s  %s, %s on %s", quoteName(st.Name), state, stepTime(st, x.now), plural(st.Tasks, "task"), slurm.Fold(st.Nodes))
	}
	return s.t.Flush()
}

func (s sheet) fault(f *job.Fault) {
	if f != nil {
		s.line("failed", "%s", f.What)
		s.line("cause", "%s", f.Cause)
		s.line("hint", "%s", f.Hint)
	}
}

// failed says which rank failed first, and its last lines.
func (s sheet) failed(r *job.RankEnd, ranks int) {
	if r == nil {
		return
	}
	how := fmt.Sprintf("exit %d", r.Exit)
	if r.Signal != 0 {
		how = fmt.Sprintf("signal %d", r.Signal)
	}
	if r.OOM {
		how += ", out of memory"
	}
	if ranks > 1 {
		how += fmt.Sprintf(", and %d others", ranks-1)
	}
	s.line("first failure", "rank %d on %s: %s", r.Rank, r.Node, how)
	for line := range strings.Lines(string(r.Tail)) {
		s.line("  last lines", "%s", strings.TrimRight(line, "\n"))
	}
}

// asks is what a job asks for.
func asks(j *api.Job) string {
	text := plural(j.Nodes, "node") + ", " + plural(j.Tasks, "task") + ", " + plural(j.CPUs, "CPU")
	if j.GRES != "" {
		text += ", " + j.GRES + " a node"
	}
	if j.Memory.MiB > 0 {
		per := [...]string{"", " a node", " a task", " a socket", " a CPU", " a GPU"}[min(int(j.Memory.Per), 5)]
		text += ", " + image.FormatBytes(j.Memory.MiB<<20) + per
	}
	return text
}

func withDevices(all []job.Devices) string {
	words := []string{""}
	for _, d := range all {
		text := fmt.Sprintf("%d %s", d.Count, strings.TrimSuffix(d.Name+" "+d.Type, " "))
		if d.Mask != 0 {
			text += " (" + listing.Indices(d.Mask) + ")"
		}
		words = append(words, text)
	}
	return strings.Join(words, ", ")
}

func attemptWord(j *api.Job) string {
	if j.Attempt < 2 {
		return ""
	}
	return fmt.Sprint(j.Attempt)
}

func number(n int) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprint(n)
}

// stamp is a moment in full.
func stamp(t job.Time) string {
	if t == 0 || t == job.Never {
		return ""
	}
	return at(t).Format("2006-01-02 15:04:05")
}

// foreseen is how far ahead a start is told. What is expected later rests on jobs without a time
// limit, for which the scheduler counts a year.
const foreseen = 300 * job.Day

// expectedWord is when a job is expected to start.
func expectedWord(t, now job.Time) string {
	switch {
	case t == job.Never:
		return "not as things are; gangway explain says what would help"
	case t == 0:
		return ""
	case t <= now:
		return "now"
	case t > now.Add(foreseen):
		return "not within 300 days, as jobs before it have no time limit"
	}
	return stamp(t) + ", in " + shortSpan(t.Sub(now))
}

// jobEvents is what "gangway show --events job" prints.
type jobEvents struct {
	Events []api.Logged `json:"events"`
}

// Text implements cli.Result.
func (x jobEvents) Text(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "TIME\tEVENT\tWHAT")
	for _, e := range x.Events {
		text := e.Text
		if text == "" {
			text = eventText(&e)
		}
		fmt.Fprintf(t, "%s\t%s\t%s\n", at(e.At).Format("15:04:05.000"), e.Kind, text)
	}
	return t.Flush()
}

// shownNode is what "gangway show node" prints.
type shownNode struct {
	api.Node
	now job.Time
}

// Text implements cli.Result.
func (n shownNode) Text(w io.Writer) error {
	s := newSheet(w)
	s.line("node", "%s", n.Name)
	s.line("state", "%s", n.StateText)
	s.line("reason", "%s", reasonOf(&n.Node, n.now))
	s.line("partitions", "%s", strings.Join(n.Partitions, ", "))
	s.line("CPUs", "%d of %d in use", n.UsedCPUs, n.CPUs)
	s.line("memory", "%s of %s in use", image.FormatBytes(n.UsedMemory<<20), image.FormatBytes(n.Memory<<20))
	s.line("devices", "%s", devicesUsed(&n.Node))
	s.line("features", "%s", strings.Join(n.Features, ", "))
	s.line("switch", "%s", n.Switch)
	s.line("block", "%s", n.Block)
	ids := make([]string, len(n.Jobs))
	for i, id := range n.Jobs {
		ids[i] = id.String()
	}
	s.line("jobs", "%s", strings.Join(ids, ", "))
	s.line("address", "%s", n.Addr)
	s.line("agent", "%s", n.Version)
	s.line("booted", "%s", stamp(n.Boot))
	s.line("last heard of", "%s", stamp(n.Seen))
	s.line("load", "%.2f", n.Load)
	s.line("images", "%d", n.Images)
	if n.Declared {
		s.line("hardware", "as declared, whatever is there")
	}
	return s.t.Flush()
}

// shownPartition is what "gangway show partition" prints.
type shownPartition struct{ api.Partition }

// Text implements cli.Result.
func (p shownPartition) Text(w io.Writer) error {
	s := newSheet(w)
	name := p.Name
	if p.Default {
		name += " (default)"
	}
	s.line("partition", "%s", name)
	s.line("state", "%s", [...]string{"up", "down: jobs are queued, not started", "drain: jobs are started, not queued", "inactive"}[min(int(p.State), 3)])
	s.line("nodes", "%s (%d, %d CPUs)", slurm.Fold(p.Nodes), p.TotalNodes, p.TotalCPUs)
	s.line("time limit", "%s", limitWord(p.MaxTime))
	s.line("without one", "%s", limitWord(cmp.Or(p.DefaultTime, p.MaxTime)))
	s.line("most nodes", "%s", number(p.MaxNodes))
	s.line("least nodes", "%s", number(p.MinNodes))
	s.line("users", "%s", strings.Join(p.AllowUsers, ", "))
	s.line("groups", "%s", strings.Join(p.AllowGroups, ", "))
	s.line("accounts", "%s", strings.Join(p.AllowAccount, ", "))
	if p.Exclusive {
		s.line("sharing", "whole nodes only")
	}
	return s.t.Flush()
}

func showVerb(env *cli.Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "show KIND ID",
		Short: "print all that is known of a job, node or partition",
		Long: `Print all that is known of one thing. KIND is job, node or partition; for a job it may
be left out.`,
		Example:    "gangway show job 12\ngangway show --events job 12\ngangway show node n1",
		SuggestFor: []string{"describe", "info", "scontrol"},
		Args:       cobra.RangeArgs(1, 2),
	}
	out := cli.NewReporter(env, cmd)
	events := cmd.Flags().Bool("events", false, "all that happened to the job, as the controller wrote it down")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) == 1 {
			args = []string{"job", args[0]}
		}
		return withCluster(env, func(c *api.Client) error {
			switch kind := strings.ToLower(args[0]); {
			case strings.HasPrefix("jobs", kind) && *events:
				p, err := c.JobEvents(cmd.Context(), args[1])
				if err != nil {
					return err
				}
				return out.Print(jobEvents{notNil(p.Items)})
			case strings.HasPrefix("jobs", kind):
				past, err := oneJob(cmd.Context(), c, args[1])
				if err != nil {
					return err
				}
				return out.Print(shownJob{past, nowOf(env), newView(env)})
			case strings.HasPrefix("nodes", kind):
				n, err := oneNode(cmd.Context(), c, args[1])
				if err != nil {
					return err
				}
				return out.Print(shownNode{n, nowOf(env)})
			case strings.HasPrefix("partitions", kind):
				p, err := onePartition(cmd.Context(), c, args[1])
				if err != nil {
					return err
				}
				return out.Print(shownPartition{p})
			}
			return fault.Usage(fmt.Errorf("show: there is no kind %q", args[0]), "gangway show job|node|partition ID")
		})
	}
	return cmd
}

func nowOf(env *cli.Env) job.Time { return job.Time(env.Now().UnixMilli()) }

func oneNode(ctx context.Context, c *api.Client, name string) (api.Node, error) {
	page, err := c.Nodes(ctx)
	if err != nil {
		return api.Node{}, err
	}
	for i := range page.Items {
		if page.Items[i].Name == name {
			return page.Items[i], nil
		}
	}
	return api.Node{}, known([]string{name}, page.Items)
}

func onePartition(ctx context.Context, c *api.Client, name string) (api.Partition, error) {
	page, err := c.Partitions(ctx)
	if err != nil {
		return api.Partition{}, err
	}
	var names []string
	for i := range page.Items {
		if page.Items[i].Name == name {
			return page.Items[i], nil
		}
		names = append(names, page.Items[i].Name)
	}
	return api.Partition{}, &fault.Error{
		What: fmt.Errorf("there is no partition %s", name), Hint: "there are " + strings.Join(names, ", "), Code: fault.CodeUsage,
	}
}
