package listing

import (
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/gangway-hpc/gangway/internal/api"
	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/internal/slurm"
)

// Step is a step and the job that it is of.
type Step struct {
	api.Step
	Job api.Job
}

// ID is a step's name as people see it: 12.0, 3_4.batch.
func (v *View) ID(s *Step) string { return v.JobID(&s.Job) + "." + s.Key.Step.String() }

// stepFields are those of "squeue -s".
var stepFields = []Field[Step]{
	{Letter: 'i', Name: "stepid", Heading: "STEPID", Text: (*View).ID},
	{Letter: 'j', Name: "stepname", Heading: "NAME", Text: func(_ *View, s *Step) string { return s.Name }},
	{Letter: 'l', Name: "timelimit", Heading: "TIME_LIMIT", Text: func(_ *View, s *Step) string { return jobLimit(&s.Job) }},
	{Letter: 'u', Name: "username", Heading: "USER", Text: func(v *View, s *Step) string { return v.jobUser(&s.Job) }},
	{Letter: 'A', Name: "numtasks", Heading: "TASKS", Text: func(_ *View, s *Step) string { return strconv.Itoa(s.Tasks) }},
	{Letter: 'M', Name: "timeused", Heading: "TIME", Text: func(v *View, s *Step) string { return span(v.used(s.Start, s.End)) }},
	{Letter: 'N', Name: "nodes", Heading: "NODELIST", Cut: CutLong, Text: func(_ *View, s *Step) string { return slurm.Fold(s.Nodes) }},
	{Letter: 'P', Name: "partition", Heading: "PARTITION", Text: func(_ *View, s *Step) string { return s.Job.Partition }},
	{Letter: 'S', Name: "starttime", Heading: "START_TIME", Text: func(v *View, s *Step) string { return v.when(s.Start, "N/A") }},
	{Letter: 'U', Name: "userid", Heading: "UID", Text: func(_ *View, s *Step) string { return number(s.Job.UID) }},
	{Name: "arrayjobid", Heading: "ARRAY_JOB_ID", Text: func(_ *View, s *Step) string { return arrayID(&s.Job).String() }},
	{Name: "arraytaskid", Heading: "ARRAY_TASK_ID", Text: func(v *View, s *Step) string { return v.arrayTask(&s.Job) }},
	{Name: "cluster", Heading: "CLUSTER", Text: func(v *View, _ *Step) string { return v.Cluster }},
	{Name: "jobid", Heading: "JOB_ID", Text: func(_ *View, s *Step) string { return s.Key.Job.String() }},
	{Name: "numcpus", Heading: "NUM_CPUS", Text: func(_ *View, s *Step) string { return strconv.Itoa(s.CPUs) }},
	same[Step](0, "cpufreq", "CPU_FREQ", "N/A"),
	same[Step](0, "cpuspertres", "CPUS_PER_TRES", "N/A"),
	same[Step](0, "mempertres", "MEM_PER_TRES", "N/A"),
	same[Step](0, "network", "NETWORK", "(null)"),
	same[Step](0, "resvport", "RESERVED_PORTS", "(null)"),
	same[Step](0, "resvports", "RESERVED_PORTS", "(null)"),
	same[Step](0, "tresbind", "TRES_BIND", "N/A"),
	same[Step](0, "tresfreq", "TRES_FREQ", "N/A"),
	same[Step](0, "tresperjob", "TRES_PER_JOB", "N/A"),
	{Name: "trespernode", Heading: "TRES_PER_NODE", Text: func(_ *View, s *Step) string { return or(tresPerNode(s.GRES), "N/A") }},
	same[Step](0, "trespersocket", "TRES_PER_SOCKET", "N/A"),
	same[Step](0, "tresperstep", "TRES_PER_STEP", "N/A"),
	same[Step](0, "trespertask", "TRES_PER_TASK", "N/A"),
	{Name: "container", Heading: "CONTAINER", Text: func(_ *View, s *Step) string { return null(s.Job.Image) }},
	{Name: "stepstate", Heading: "STATE", Text: func(_ *View, s *Step) string { return s.State.String() }},
}

// stepFilter is a step, or all of a job.
type stepFilter struct {
	job  JobIDs
	step *job.StepID
}

func (r *queueReader) stepIDs(value string) error {
	for _, word := range slurm.SplitIDs(value) {
		head, tail, dotted := strings.Cut(word, ".")
		ids, err := ParseJobIDs(head)
		if err != nil || len(ids) != 1 {
			return refuse("Invalid job_step id: %s.??", head)
		}
		f := stepFilter{job: ids[0]}
		if dotted {
			step, err := job.ParseStepID(tail)
			if err != nil {
				return refuse("Invalid job_step id: %s", word)
			}
			f.step = &step
		}
		r.q.stepID = append(r.q.stepID, f)
	}
	return nil
}

func (f *stepFilter) matches(s *Step) bool {
	if arrayID(&s.Job) != f.job.Job && s.Job.ID != f.job.Job {
		return false
	}
	if f.job.Tasks != nil && (s.Job.Array == nil || !slices.Contains(f.job.Tasks, s.Job.Array.Task)) {
		return false
	}
	return f.step == nil || *f.step == s.Key.Step
}

// JoinSteps gives steps the jobs they are of, and leaves out those of others.
func JoinSteps(steps []api.Step, jobs []api.Job) []Step {
	byID := make(map[job.ID]*api.Job, len(jobs))
	for i := range jobs {
		byID[jobs[i].ID] = &jobs[i]
	}
	var all []Step
	for i := range steps {
		if j := byID[steps[i].Key.Job]; j != nil {
			all = append(all, Step{steps[i], *j})
		}
	}
	return all
}

// Join is JoinSteps of those that were asked for.
func (q *Queue) Join(steps []api.Step, jobs []api.Job) []Step {
	return slices.DeleteFunc(JoinSteps(steps, jobs), func(s Step) bool {
		return q.stepID != nil && !slices.ContainsFunc(q.stepID, func(f stepFilter) bool { return f.matches(&s) })
	})
}

// PrintSteps writes steps.
func (q *Queue) PrintSteps(w io.Writer, v *View, steps []Step) error {
	return printRows(w, v, &q.steps, false, q.NoHeader, pointers(steps))
}
