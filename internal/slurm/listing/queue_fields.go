package listing

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/gangway-hpc/gangway/internal/api"
	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/internal/slurm"
)

// same is a field that has one value here, for all jobs.
func same[T any](letter byte, name, heading, value string) Field[T] {
	return Field[T]{Letter: letter, Name: name, Heading: heading, Text: func(*View, *T) string { return value }}
}

// jobFields are squeue's, in the order of "%all". Texts of what there is none of are those
// of Slurm.
var jobFields = []Field[api.Job]{
	{Letter: 'a', Name: "account", Heading: "ACCOUNT", Text: func(_ *View, j *api.Job) string { return null(j.Account) }},
	{Letter: 'b', Name: "trespernode", Heading: "TRES_PER_NODE", Text: func(_ *View, j *api.Job) string { return or(tresPerNode(j.GRES), "N/A") }},
	{Name: "gres", Heading: "GRES", Text: func(_ *View, j *api.Job) string { return or(j.GRES, "N/A") }},
	{Letter: 'c', Name: "mincpus", Heading: "MIN_CPUS", Text: func(_ *View, j *api.Job) string { return strconv.Itoa(minCPUs(j)) }},
	same[api.Job]('d', "mintmpdisk", "MIN_TMP_DISK", "0"),
	{Letter: 'e', Name: "endtime", Heading: "END_TIME", Text: jobEnd},
	{Letter: 'f', Name: "feature", Heading: "FEATURES", Text: func(_ *View, j *api.Job) string { return null(j.Constraint) }},
	{Letter: 'g', Name: "groupname", Heading: "GROUP", Text: func(v *View, j *api.Job) string { return v.group(j.GID) }},
	{Letter: 'h', Name: "oversubscribe", Heading: "OVER_SUBSCRIBE", Text: func(_ *View, j *api.Job) string { return jobShares(j) }},
	{Letter: 'i', Name: "jobarrayid", Heading: "JOBID", Text: (*View).JobID},
	{Letter: 'j', Name: "name", Heading: "NAME", Text: func(_ *View, j *api.Job) string { return j.Name }},
	{Letter: 'k', Name: "comment", Heading: "COMMENT", Text: func(_ *View, j *api.Job) string { return null(j.Comment) }},
	{Letter: 'l', Name: "timelimit", Heading: "TIME_LIMIT", Cut: CutWords, Text: func(_ *View, j *api.Job) string { return jobLimit(j) }},
	{Letter: 'm', Name: "minmemory", Heading: "MIN_MEMORY", Text: func(v *View, j *api.Job) string { return v.minMemory(j) }},
	{Letter: 'n', Name: "reqnodes", Heading: "REQ_NODES", Text: func(_ *View, j *api.Job) string { return j.Required }},
	{Letter: 'o', Name: "command", Heading: "COMMAND", Text: func(_ *View, j *api.Job) string { return null(j.Command) }},
	{Letter: 'p', Name: "priority", Heading: "PRIORITY", Text: func(_ *View, j *api.Job) string {
		return strconv.FormatFloat(float64(j.Priority)/math.MaxUint32, 'f', 14, 64)
	}},
	{Letter: 'q', Name: "qos", Heading: "QOS", Text: func(_ *View, j *api.Job) string { return null(j.QOS) }},
	{Letter: 'r', Name: "reason", Heading: "REASON", Text: func(_ *View, j *api.Job) string { return or(j.Reason, "None") }},
	same[api.Job]('s', "selectjobinfo", "", ""),
	{Letter: 't', Name: "statecompact", Heading: "ST", Text: func(_ *View, j *api.Job) string { return shortState(j.State) }},
	{Letter: 'u', Name: "username", Heading: "USER", Text: (*View).jobUser},
	same[api.Job]('v', "reservation", "RESERVATION", "(null)"),
	same[api.Job]('w', "wckey", "WCKEY", "(null)"),
	{Letter: 'x', Name: "excnodes", Heading: "EXC_NODES", Text: func(_ *View, j *api.Job) string { return j.Excluded }},
	{Letter: 'y', Name: "nice", Heading: "NICE", Text: func(_ *View, j *api.Job) string { return strconv.Itoa(int(j.Nice)) }},
	same[api.Job]('z', "sct", "S:C:T", "*:*:*"),
	{Letter: 'A', Name: "jobid", Heading: "JOBID", Text: func(_ *View, j *api.Job) string { return j.ID.String() }},
	{Letter: 'B', Name: "batchhost", Heading: "EXEC_HOST", Text: func(_ *View, j *api.Job) string { return or(firstNode(j), "n/a") }},
	{Letter: 'C', Name: "numcpus", Heading: "CPUS", Text: func(_ *View, j *api.Job) string { return strconv.Itoa(j.CPUs) }},
	{Letter: 'D', Name: "numnodes", Heading: "NODES", Text: func(_ *View, j *api.Job) string { return strconv.Itoa(j.Nodes) }},
	{Letter: 'E', Name: "dependency", Heading: "DEPENDENCY", Text: func(_ *View, j *api.Job) string { return null(j.Dependency) }},
	{Letter: 'F', Name: "arrayjobid", Heading: "ARRAY_JOB_ID", Text: func(_ *View, j *api.Job) string { return arrayID(j).String() }},
	{Letter: 'G', Name: "groupid", Heading: "GROUP", Text: func(_ *View, j *api.Job) string { return strconv.Itoa(int(j.GID)) }},
	same[api.Job]('H', "sockets", "SOCKETS_PER_NODE", "*"),
	same[api.Job]('I', "cores", "CORES_PER_SOCKET", "*"),
	same[api.Job]('J', "threads", "THREADS_PER_CORE", "*"),
	{Letter: 'K', Name: "arraytaskid", Heading: "ARRAY_TASK_ID", Text: func(v *View, j *api.Job) string { return v.arrayTask(j) }},
	{Letter: 'L', Name: "timeleft", Heading: "TIME_LEFT", Cut: CutWords, Text: func(v *View, j *api.Job) string { return v.jobLeft(j) }},
	{Letter: 'M', Name: "timeused", Heading: "TIME", Cut: CutWords, Text: func(v *View, j *api.Job) string { return span(v.used(j.Start, j.End)) }},
	{Letter: 'N', Name: "nodelist", Heading: "NODELIST", Cut: CutLong, Text: func(_ *View, j *api.Job) string { return slurm.Fold(j.NodeList) }},
	{Letter: 'O', Name: "contiguous", Heading: "CONTIGUOUS", Text: func(_ *View, j *api.Job) string { return bit(j.Spec != nil && j.Spec.Contiguous) }},
	{Letter: 'P', Name: "partition", Heading: "PARTITION", Text: func(_ *View, j *api.Job) string { return j.Partition }},
	{Letter: 'Q', Name: "prioritylong", Heading: "PRIORITY", Text: func(_ *View, j *api.Job) string { return number(j.Priority) }},
	{Letter: 'R', Name: "reasonlist", Heading: "NODELIST(REASON)", Cut: CutReasons, Text: reasonList},
	{Letter: 'S', Name: "starttime", Heading: "START_TIME", Text: func(v *View, j *api.Job) string { return v.when(startOf(j), "N/A") }},
	{Letter: 'T', Name: "state", Heading: "STATE", Text: func(_ *View, j *api.Job) string { return j.State.String() }},
	{Letter: 'U', Name: "userid", Heading: "UID", Text: func(_ *View, j *api.Job) string { return number(j.UID) }},
	{Letter: 'V', Name: "submittime", Heading: "SUBMIT_TIME", Text: func(v *View, j *api.Job) string { return v.when(j.Submit, "N/A") }},
	{Letter: 'W', Name: "licenses", Heading: "LICENSES", Text: func(_ *View, j *api.Job) string { return licenses(j) }},
	same[api.Job]('X', "corespec", "CORE_SPEC", "N/A"),
	{Letter: 'Y', Name: "schednodes", Heading: "SCHEDNODES", Text: func(_ *View, j *api.Job) string { return null(j.Scheduled) }},
	{Letter: 'Z', Name: "workdir", Heading: "WORK_DIR", Text: func(_ *View, j *api.Job) string { return j.Cwd }},

	{Name: "accruetime", Heading: "ACCRUE_TIME", Text: func(v *View, j *api.Job) string { return v.when(j.Eligible, "N/A") }},
	{Name: "allocnodes", Heading: "ALLOC_NODES", Text: func(_ *View, j *api.Job) string { return null(j.SubmitHost) }},
	same[api.Job](0, "allocsid", "ALLOC_SID", "0"),
	same[api.Job](0, "associd", "ASSOC_ID", "0"),
	{Name: "batchflag", Heading: "BATCH_FLAG", Text: func(_ *View, j *api.Job) string { return bit(j.Batch) }},
	same[api.Job](0, "burstbuffer", "BURST_BUFFER", "(null)"),
	same[api.Job](0, "burstbufferstate", "BURST_BUFFER_STATE", "(null)"),
	{Name: "cluster", Heading: "CLUSTER", Text: func(v *View, _ *api.Job) string { return v.Cluster }},
	{Name: "container", Heading: "CONTAINER", Text: func(_ *View, j *api.Job) string { return null(j.Image) }},
	{Name: "cpuspertask", Heading: "CPUS_PER_TASK", Text: func(_ *View, j *api.Job) string { return strconv.Itoa(cpusPerTask(j)) }},
	same[api.Job](0, "cpuspertres", "CPUS_PER_TRES", "N/A"),
	{Name: "deadline", Heading: "DEADLINE", Text: func(v *View, j *api.Job) string { return v.when(j.Deadline, "N/A") }},
	same[api.Job](0, "delayboot", "DELAY_BOOT", "0:00"),
	{Name: "derivedec", Heading: "DERIVED_EC", Text: func(_ *View, j *api.Job) string { return strconv.Itoa(j.Exit) }},
	{Name: "eligibletime", Heading: "ELIGIBLE_TIME", Text: func(v *View, j *api.Job) string { return v.when(j.Eligible, "N/A") }},
	{Name: "exitcode", Heading: "EXIT_CODE", Text: func(_ *View, j *api.Job) string { return strconv.Itoa(j.Exit<<8 | j.Signal) }},
	same[api.Job](0, "hetjobid", "HET_JOB_ID", "N/A"),
	same[api.Job](0, "hetjobidset", "HET_JOB_ID_SET", "N/A"),
	same[api.Job](0, "hetjoboffset", "HET_JOB_OFFSET", "N/A"),
	{Name: "maxcpus", Heading: "MAX_CPUS", Text: func(_ *View, j *api.Job) string { return strconv.Itoa(j.CPUs) }},
	{Name: "maxnodes", Heading: "MAX_NODES", Text: func(_ *View, j *api.Job) string { return strconv.Itoa(j.Nodes) }},
	same[api.Job](0, "mcslabel", "MCSLABEL", "(null)"),
	same[api.Job](0, "mempertres", "MEM_PER_TRES", "N/A"),
	{Name: "mintime", Heading: "TIME_MIN", Text: func(_ *View, j *api.Job) string {
		if j.Spec == nil {
			return "0:00"
		}
		return span(j.Spec.TimeMin)
	}},
	same[api.Job](0, "network", "NETWORK", "(null)"),
	{Name: "numtasks", Heading: "TASKS", Text: func(_ *View, j *api.Job) string { return strconv.Itoa(j.Tasks) }},
	{Name: "pendingtime", Heading: "PENDING_TIME", Text: func(v *View, j *api.Job) string { return strconv.FormatInt(v.pendingTime(j), 10) }},
	same[api.Job](0, "preempttime", "PREEMPT_TIME", "N/A"),
	same[api.Job](0, "prefer", "PREFER", "(null)"),
	same[api.Job](0, "profile", "PROFILE", "NotSet"),
	same[api.Job](0, "reboot", "REBOOT", "0"),
	{Name: "requeue", Heading: "REQUEUE", Text: func(_ *View, j *api.Job) string { return bit(j.Requeue) }},
	{Name: "reqswitch", Heading: "REQ_SWITCH", Text: func(_ *View, j *api.Job) string {
		if j.Spec == nil {
			return "0"
		}
		return strconv.Itoa(j.Spec.Topology.Switches)
	}},
	same[api.Job](0, "resizetime", "RESIZE_TIME", "N/A"),
	{Name: "restartcnt", Heading: "RESTART_COUNT", Text: func(_ *View, j *api.Job) string { return strconv.Itoa(j.Restarts) }},
	{Name: "stderr", Heading: "STDERR", Text: func(_ *View, j *api.Job) string { return or(j.Error, j.Output) }},
	{Name: "stdin", Heading: "STDIN", Text: func(_ *View, j *api.Job) string { return or(j.Input, "/dev/null") }},
	{Name: "stdout", Heading: "STDOUT", Text: func(_ *View, j *api.Job) string { return j.Output }},
	{Name: "tresalloc", Heading: "TRES_ALLOC", Text: func(v *View, j *api.Job) string { return v.tres(j) }},
	same[api.Job](0, "tresperjob", "TRES_PER_JOB", "N/A"),
	same[api.Job](0, "trespersocket", "TRES_PER_SOCKET", "N/A"),
	same[api.Job](0, "trespertask", "TRES_PER_TASK", "N/A"),

	same[api.Job](0, "admincomment", "ADMIN_COMMENT", "(null)"),
	same[api.Job](0, "boardspernode", "BOARDS_PER_NODE", "0"),
	same[api.Job](0, "clusterfeature", "CLUSTER_FEATURES", "(null)"),
	same[api.Job](0, "lastschedeval", "LAST_SCHED_EVAL", "N/A"),
	same[api.Job](0, "ntperboard", "NTASKS_PER_BOARD", "0"),
	same[api.Job](0, "ntpercore", "NTASKS_PER_CORE", "N/A"),
	same[api.Job](0, "ntpernode", "NTASKS_PER_NODE", "0"),
	same[api.Job](0, "ntpersocket", "NTASKS_PER_SOCKET", "N/A"),
	same[api.Job](0, "origin", "ORIGIN", "NA"),
	same[api.Job](0, "originraw", "ORIGIN_RAW", "NA"),
	same[api.Job](0, "siblingsactive", "ACTIVE_SIBLINGS", "NA"),
	same[api.Job](0, "siblingsactiveraw", "ACTIVE_SIBLINGS_RAW", "NA"),
	same[api.Job](0, "siblingsviable", "VIABLE_SIBLINGS", "NA"),
	same[api.Job](0, "siblingsviableraw", "VIALBLE_SIBLINGS_RAW", "NA"), // as Slurm spells it
	same[api.Job](0, "sperboard", "SOCKETS_PER_BOARD", "0"),
	same[api.Job](0, "systemcomment", "SYSTEM_COMMENT", "(null)"),
	same[api.Job](0, "tresbind", "TRES_BIND", "N/A"),
	same[api.Job](0, "tresfreq", "TRES_FREQ", "N/A"),
	same[api.Job](0, "wait4switch", "WAIT4SWITCH", "0:00"),
}

// ofSpec are the fields that say what only answers with the whole job have.
func ofSpec() []string {
	return []string{"contiguous", "licenses", "mintime", "oversubscribe", "reqswitch", "schednodes"}
}

func bit(on bool) string {
	if on {
		return "1"
	}
	return "0"
}

// tresPerNode is gpu:h100:8 as gres/gpu:h100:8.
func tresPerNode(gres string) string {
	if gres == "" {
		return ""
	}
	return "gres/" + strings.ReplaceAll(gres, ",", ",gres/")
}

func cpusPerTask(j *api.Job) int {
	if j.Tasks == 0 {
		return 1
	}
	return max(1, j.CPUs/j.Tasks)
}

// minCPUs is how many processors a node has to have for one of the job's tasks.
func minCPUs(j *api.Job) int { return cpusPerTask(j) }

func firstNode(j *api.Job) string {
	if len(j.NodeList) == 0 {
		return ""
	}
	return j.NodeList[0]
}

// startOf is when a job started or is expected to.
func startOf(j *api.Job) job.Time {
	if j.Start == 0 && j.State == job.Pending {
		return j.Expected
	}
	return j.Start
}

// jobEnd is when a job ended, or has to.
func jobEnd(v *View, j *api.Job) string {
	start := startOf(j)
	switch {
	case j.End != 0:
		return v.when(j.End, "N/A")
	case start == 0 || start == job.Never:
		return "N/A"
	case j.Limit == job.Forever || j.Limit == 0:
		return "NONE"
	}
	return v.when(start.Add(j.Limit), "N/A")
}

func jobLimit(j *api.Job) string {
	if j.Limit == 0 || j.Limit == job.Forever {
		return "UNLIMITED"
	}
	return span(j.Limit)
}

// used is how long something has run, by the controller's clock.
func (v *View) used(start, end job.Time) job.Duration {
	switch {
	case start == 0:
		return 0
	case end == 0:
		end = v.Now
	}
	return max(0, end.Sub(start))
}

func (v *View) jobLeft(j *api.Job) string {
	if j.Limit == 0 || j.Limit == job.Forever {
		return jobLimit(j)
	}
	return span(max(0, j.Limit-v.used(j.Start, j.End)))
}

func (v *View) pendingTime(j *api.Job) int64 {
	until := j.Start
	if until == 0 {
		until = v.Now
	}
	return int64(until.Sub(j.Submit) / job.Second)
}

func (v *View) minMemory(j *api.Job) string {
	if j.Memory.MiB == 0 {
		return "0"
	}
	return v.memory(j.Memory.MiB)
}

func (v *View) arrayTask(j *api.Job) string {
	switch {
	case j.Waiting != nil:
		return v.tasks(j)
	case j.Array != nil:
		return number(j.Array.Task)
	}
	return "N/A"
}

func (v *View) jobUser(j *api.Job) string {
	if j.User == "" {
		return v.user(j.UID)
	}
	return j.User
}

func (v *View) user(uid uint32) string {
	if v.User == nil {
		return number(uid)
	}
	return or(v.User(uid), number(uid))
}

func (v *View) group(gid uint32) string {
	if v.Group == nil {
		return number(gid)
	}
	return or(v.Group(gid), number(gid))
}

// reasonList is why a job waits or has failed, else its nodes.
func reasonList(_ *View, j *api.Job) string {
	switch j.State {
	case job.Pending, job.Failed, job.Timeout, job.OutOfMemory, job.DeadlineMissed:
		return "(" + or(j.Reason, "None") + ")"
	}
	return slurm.Fold(j.NodeList)
}

// shortState is Slurm's compact form of a state.
func shortState(s job.State) string {
	names := [...]string{"PD", "R", "CG", "CD", "CA", "F", "TO", "NF", "OOM", "DL", "PR"}
	if int(s) < len(names) {
		return names[s]
	}
	return "?"
}

// tres is what a job has or asks for: cpu=4,mem=16000M,node=1,billing=4,gres/gpu=8.
func (v *View) tres(j *api.Job) string {
	words := []string{fmt.Sprintf("cpu=%d", j.CPUs)}
	if mib := jobMemory(j); mib > 0 {
		words = append(words, "mem="+v.memory(mib))
	}
	words = append(words, fmt.Sprintf("node=%d", j.Nodes), fmt.Sprintf("billing=%d", j.CPUs))
	for _, g := range jobGRES(j) {
		words = append(words, gresTRES(g.name, g.kind, g.count*int64(j.Nodes))...)
	}
	return strings.Join(words, ",")
}

// gresTRES is so many of a resource, by type and in all.
func gresTRES(name, kind string, count int64) []string {
	all := fmt.Sprintf("gres/%s=%d", name, count)
	if kind == "" {
		return []string{all}
	}
	return []string{fmt.Sprintf("gres/%s:%s=%d", name, kind, count), all}
}

// jobMemory is how much memory a job has or asks for in all, MiB.
func jobMemory(j *api.Job) int64 {
	total := int64(0)
	for i := range j.Shares {
		total += j.Shares[i].Memory
	}
	if total > 0 {
		return total
	}
	switch j.Memory.Per {
	case job.PerCPU:
		return j.Memory.MiB * int64(j.CPUs)
	case job.PerGPU:
		for _, g := range jobGRES(j) {
			if g.name == "gpu" {
				total += j.Memory.MiB * g.count * int64(j.Nodes)
			}
		}
		return total
	}
	return j.Memory.MiB * int64(j.Nodes)
}

// gres is resources of one name and type, of a node.
type gres struct {
	name, kind string
	count      int64
}

// jobGRES reads what a job asks for on each node.
func jobGRES(j *api.Job) []gres {
	requests, _ := slurm.ParseGRESRequest(j.GRES, "", job.PerNode)
	all := make([]gres, 0, len(requests))
	for _, r := range requests {
		all = append(all, gres{r.Name, r.Type, r.Count})
	}
	return all
}
