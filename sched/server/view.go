package server

import (
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/gangway-hpc/gangway/internal/api"
	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/internal/slurm"
	"github.com/gangway-hpc/gangway/launcher/rank"
	"github.com/gangway-hpc/gangway/sched"
)

// jobView is a job for the API; nil if there is no such job.
func (c *core) jobView(id job.ID) *api.Job {
	v, ok := c.sched.Job(id)
	if !ok {
		return nil
	}
	j := c.viewOf(&v)
	c.whole(j)
	return j
}

// whole fills in what only a single job, or one of a list of whole ones, has.
func (c *core) whole(j *api.Job) {
	c.files(j)
	names := c.sched.PlannedNodes(j.ID)
	slurm.SortHosts(names)
	j.Scheduled = slurm.Fold(names)
}

// files makes the names of a batch job's files what they are.
func (c *core) files(j *api.Job) {
	if !j.Batch {
		return
	}
	names := rank.Names{Job: j.ID, Array: j.Array, Step: job.BatchStep, Restarts: j.Restarts, JobName: j.Name, User: j.User}
	if len(j.NodeList) > 0 {
		names.Node = j.NodeList[0]
	}
	if j.Output == "" {
		if j.Output = "slurm-%j.out"; j.Array != nil {
			j.Output = "slurm-%A_%a.out"
		}
	}
	if j.Error == "" {
		j.Error = j.Output
	}
	if j.Input == "" {
		j.Input = "/dev/null"
	}
	for _, p := range []*string{&j.Input, &j.Output, &j.Error} {
		if *p = names.Expand(*p); !filepath.IsAbs(*p) && *p != "none" {
			*p = filepath.Join(j.Cwd, *p)
		}
	}
}

// viewOf is what the scheduler knows of a job, with all else.
func (c *core) viewOf(v *sched.JobView) *api.Job {
	p := v.Spec
	j := &api.Job{
		ID: v.ID, Name: p.Name, User: p.User, UID: p.UID, Account: p.Account, QOS: p.QOS, Partition: strings.Join(p.Partitions, ","),
		State: v.State, Reason: v.Reason, Priority: v.Priority, Nice: p.Nice, Attempt: v.Attempt, Restarts: max(0, v.Attempt-1),
		Submit: v.Submit, Eligible: v.Eligible, Start: v.Start, Expected: v.Expected, Limit: c.limitOf(p), Deadline: p.Deadline,
		Nodes: max(1, p.MinNodes), Memory: p.Memory, Spec: p, Array: c.arrayFactsOf(v), Exit: v.Exit, Image: p.Image,
		Held: v.State == job.Pending && v.Priority == 0,
	}
	j.Tasks, j.CPUs, j.GRES = tasksAsked(p), cpusAsked(p), gresText(p.GRES)
	j.Requeue, j.Exclusive, j.Required, j.Excluded = p.Requeue, p.Exclusive, slurm.Fold(p.NodeList), slurm.Fold(p.Exclude)
	if p.Array != nil {
		j.Throttle = p.Array.Throttle
	}
	if p.Constraint != nil {
		j.Constraint = constraintText(p.Constraint)
	}
	if v.State.Done() {
		j.End = v.End
	}
	if len(v.Allocation.Nodes) > 0 {
		fillShares(j, &v.Allocation)
	}
	if j.Partition == "" { // it waits, or has never run
		j.Partition = c.defaultPartition()
	}
	if p.TimeLimit == 0 && !c.limited(j.Partition) {
		j.Limit = 0 // the scheduler plans with a long one
	}
	if sub := c.submission(v.ID); sub != nil {
		c.fillFacts(j, sub.Facts)
	}
	if text, ok := c.comments[v.ID]; ok {
		j.Comment = text
	}
	j.Dependency = c.dependencyText(v.ID, p.Dependencies)
	if r := c.runs[v.ID]; r != nil {
		c.fillRun(j, r)
	} else if f := c.fates[v.ID]; f != nil && v.State.Done() {
		j.Exit, j.Signal, j.Fault, j.Failed, j.FailedRanks = f.Exit, f.Signal, f.Fault, f.Failed, f.FailedRanks
		j.CancelledBy = f.By
		j.Reason = endReason(v.State, f, j.Reason)
	}
	return j
}

// endReason is Slurm's word for what was wrong with the end of a job that has run, by which
// clients explain it; another one where nothing was, or somebody cancelled it.
func endReason(state job.State, f *fate, other string) string {
	switch state {
	case job.Failed:
		if f.Fault != nil {
			return "JobLaunchFailure"
		}
		return "NonZeroExitCode"
	case job.Timeout:
		return "TimeLimit"
	case job.OutOfMemory:
		return "OutOfMemory"
	case job.NodeFailed:
		return "NodeDown"
	}
	return other
}

func (c *core) limitOf(p *job.Spec) job.Duration {
	if p.TimeLimit > 0 {
		return p.TimeLimit
	}
	name := c.defaultPartition()
	if len(p.Partitions) > 0 {
		name = p.Partitions[0]
	}
	if part := c.partition(name); part != nil {
		return part.DefaultTime
	}
	return 0
}

// limited says whether a partition has a time limit for jobs that have none.
func (c *core) limited(name string) bool {
	p := c.partition(name)
	return p != nil && (p.DefaultTime > 0 || p.MaxTime > 0) || c.opts.Cluster.Config.DefaultLimit > 0
}

func (c *core) defaultPartition() string {
	for i := range c.parts {
		if c.parts[i].Default {
			return c.parts[i].Name
		}
	}
	if len(c.parts) > 0 {
		return c.parts[0].Name
	}
	return ""
}

// noLimit is from where on a limit is none: the scheduler has a long one in its place.
const noLimit = 100 * 365 * job.Day

func fillShares(j *api.Job, a *job.Allocation) {
	j.Partition, j.Limit, j.Shares, j.Nodes, j.CPUs = a.Partition, a.Limit, a.Nodes, len(a.Nodes), 0
	j.NodeList = make([]string, len(a.Nodes))
	if j.Limit >= noLimit {
		j.Limit = job.Forever
	}
	tasks := 0
	for i := range a.Nodes {
		j.NodeList[i] = a.Nodes[i].Node
		j.CPUs += a.Nodes[i].CPUs
		tasks += a.Nodes[i].Tasks
	}
	j.Tasks = max(tasks, 1)
}

func (c *core) fillFacts(j *api.Job, f *facts) {
	j.GID, j.Comment, j.SubmitHost, j.Command = f.GID, f.Comment, f.SubmitHost, f.Command
	if p := f.Program; p != nil {
		j.Batch = true
		j.Cwd, j.Input, j.Output, j.Error = string(p.Cwd), p.Input, p.Output, p.Error
		if image, _ := imageOf(p.Container); image != "" {
			j.Image, j.Digest = image, c.digestOf(j.ID, p)
		}
	} else {
		j.Cwd = string(f.SubmitDir)
	}
}

// fillRun is what a run adds to a view.
func (c *core) fillRun(j *api.Job, r *run) {
	limit := j.Limit
	fillShares(j, &r.Alloc)
	if limit == 0 {
		j.Limit = 0
	}
	j.Start, j.Attempt, j.End = r.Start, r.Of.Attempt, 0
	if r.Fate != nil {
		f := r.Fate
		j.State, j.Phase = job.Completing, "ending"
		j.Exit, j.Signal, j.Fault, j.Failed, j.FailedRanks = f.Exit, f.Signal, f.Fault, f.Failed, f.FailedRanks
		j.CancelledBy = f.By
		return
	}
	if st := r.Steps[job.BatchStep]; st != nil && !st.Gang.Starting {
		j.Phase = "preparing"
	}
}

func tasksAsked(p *job.Spec) int {
	switch {
	case p.Tasks > 0:
		return p.Tasks
	case p.TasksPerNode > 0:
		return p.TasksPerNode * max(1, p.MinNodes)
	}
	return max(1, p.MinNodes)
}

func cpusAsked(p *job.Spec) int { return tasksAsked(p) * max(1, p.CPUsPerTask) }

func gresText(list []job.GRESRequest) string {
	var all []string
	for _, g := range list {
		text := g.Name + ":"
		if g.Type != "" {
			text += g.Type + ":"
		}
		all = append(all, text+strconv.FormatInt(g.Count, 10))
	}
	return strings.Join(all, ",")
}

func constraintText(c *job.Constraint) string {
	join := func(list []*job.Constraint, by string) string {
		all := make([]string, len(list))
		for i := range list {
			all[i] = constraintText(list[i])
		}
		return strings.Join(all, by)
	}
	text := c.Feature
	switch {
	case c.And != nil:
		text = join(c.And, "&")
	case c.Or != nil:
		text = join(c.Or, "|")
	case c.OneOf != nil:
		text = "[" + join(c.OneOf, "|") + "]"
	}
	if c.Count > 0 {
		text += fmt.Sprintf("*%d", c.Count)
	}
	return text
}

// arrayFacts places a job in its array; nil if it is of none.
func (c *core) arrayFacts(id job.ID) *job.ArrayFacts {
	v, ok := c.sched.Job(id)
	if !ok {
		return nil
	}
	return c.arrayFactsOf(&v)
}

func (c *core) arrayFactsOf(v *sched.JobView) *job.ArrayFacts {
	if v.Array == 0 || v.Spec.Array == nil || len(v.Spec.Array.Tasks) == 0 {
		return nil
	}
	a := v.Spec.Array
	f := &job.ArrayFacts{Job: v.Array, Task: v.Task, Count: a.Len(), Min: a.Tasks[0].First, Step: a.Tasks[0].Step}
	for _, r := range a.Tasks {
		if n := r.Len(); n > 0 {
			f.Max = max(f.Max, r.First+uint32(n-1)*r.Step)
		}
	}
	return f
}

// stepView is a step for the API; with ends the ends of its ranks are in it.
func (c *core) stepView(st *step, ends bool) *api.Step {
	v := &api.Step{
		Key: st.Spec.Key, Name: st.Spec.Name, State: job.Running, Tasks: st.Spec.Tasks, Start: st.Begun, Notes: slices.Clone(st.notes),
		Phase: "preparing", Progress: st.progressText(),
	}
	if st.Gang.Starting {
		v.Phase, v.Progress, v.Stopped = "running", "", st.Gang.Asked
	}
	for i := range st.Spec.Nodes {
		n := &st.Spec.Nodes[i]
		v.Nodes = append(v.Nodes, n.Name)
		v.Ranks = append(v.Ranks, n.Ranks)
		v.Agents = append(v.Agents, c.agentOf(n.Name))
		v.CPUs += n.CPUs
		if g := st.Gang.Nodes[i]; g.End != nil && ends {
			v.Ends = append(v.Ends, *g.End)
		}
	}
	if res := st.Result; res != nil {
		v.Phase, v.State, v.Exit, v.Signal, v.Start, v.End = "ended", res.State, res.Exit, res.Signal, res.Start, res.End
		v.Fault, v.Failed, v.FailedRanks, v.Usage = res.grouped(len(v.Nodes)), res.Failed, res.FailedRanks, res.Usage
	}
	return v
}

// grouped is the fault of a step with the nodes that have it, where there are several.
func (r *result) grouped(of int) *job.Fault {
	if r.Fault == nil || len(r.FaultNodes) == 0 || of < 2 {
		return r.Fault
	}
	f := *r.Fault
	names := slices.Clone(r.FaultNodes)
	slurm.SortHosts(names)
	f.What = fmt.Sprintf("%d of %d nodes: %s (%s)", len(names), of, f.What, slurm.Fold(names))
	return &f
}

func contains(list []string, s string) bool { return slices.Contains(list, s) }
