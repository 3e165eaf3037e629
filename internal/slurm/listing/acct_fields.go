package listing

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/internal/slurm"
)

// blank is a field of what is not measured or does not exist here; Slurm's are empty too
// where a plugin is missing.
func blank(*View, *record) string { return "" }

func zero(*View, *record) string { return "0" }

// acctFields are sacct's, with Slurm 22.05's widths; AllocGRES and ReqGRES, which that
// has no more, as they were.
var acctFields = []tableField[record]{
	{"Account", 10, func(_ *View, r *record) string { return r.job.Account }},
	{"AdminComment", 15, blank},
	{"AllocCPUS", 10, func(_ *View, r *record) string { return strconv.Itoa(r.cpus()) }},
	{"AllocGRES", 12, (*View).allocGRES},
	{"AllocNodes", 10, func(_ *View, r *record) string { return strconv.Itoa(r.nodes()) }},
	{"AllocTRES", 10, func(v *View, r *record) string { return v.acctTRES(r, true) }},
	{"AssocID", 7, zero},
	{"AveCPU", 10, func(_ *View, r *record) string {
		return r.perTask(func(u *job.Usage) int64 { return int64(u.User + u.System) }, cpuTime)
	}},
	{"AveCPUFreq", 10, blank},
	{"AveDiskRead", 14, func(v *View, r *record) string {
		return r.perTask(func(u *job.Usage) int64 { return u.Read }, v.disk)
	}},
	{"AveDiskWrite", 14, func(v *View, r *record) string {
		return r.perTask(func(u *job.Usage) int64 { return u.Write }, v.disk)
	}},
	{"AvePages", 10, blank},
	{"AveRSS", 10, func(v *View, r *record) string {
		return r.ofStep(func(u *job.Usage) string { return v.rss(u.MaxRSS) })
	}},
	{"AveVMSize", 10, blank},
	{"BlockID", 16, blank},
	{"Cluster", 10, func(v *View, _ *record) string { return v.Cluster }},
	{"Comment", 14, func(_ *View, r *record) string { return r.ofJob(r.job.Comment) }},
	{"Constraints", 19, func(_ *View, r *record) string { return r.ofJob(r.job.Constraint) }},
	{"ConsumedEnergy", 14, blank},
	{"ConsumedEnergyRaw", 17, blank},
	{"Container", 19, func(_ *View, r *record) string { return r.job.Image }},
	{"CPUTime", 10, func(v *View, r *record) string {
		return slurm.FormatTime(v.elapsed(r) * job.Duration(r.cpus()))
	}},
	{"CPUTimeRAW", 10, func(v *View, r *record) string { return seconds(v.elapsed(r) * job.Duration(r.cpus())) }},
	{"DBIndex", -10, func(_ *View, r *record) string { return r.job.ID.String() }},
	{"DerivedExitCode", 15, func(_ *View, r *record) string { return r.ofJob(r.derived()) }},
	{"Elapsed", 10, func(v *View, r *record) string { return slurm.FormatTime(v.elapsed(r)) }},
	{"ElapsedRaw", 10, func(v *View, r *record) string { return seconds(v.elapsed(r)) }},
	{"Eligible", 19, func(v *View, r *record) string { return v.when(r.job.Eligible, "Unknown") }},
	{"End", 19, func(v *View, r *record) string { return v.when(r.end(), "Unknown") }},
	{"ExitCode", 8, func(_ *View, r *record) string { return r.exitCode() }},
	{"Flags", 19, blank},
	{"GID", 6, func(_ *View, r *record) string { return r.ofJob(strconv.Itoa(int(r.job.GID))) }},
	{"Group", 9, func(v *View, r *record) string { return r.ofJob(v.group(r.job.GID)) }},
	{"JobID", -12, (*View).acctID},
	{"JobIDRaw", -12, func(_ *View, r *record) string {
		if r.step != nil {
			return r.job.ID.String() + "." + r.step.Key.Step.String()
		}
		return r.job.ID.String()
	}},
	{"JobName", 10, func(_ *View, r *record) string {
		if r.step != nil {
			return r.step.Name
		}
		return r.job.Name
	}},
	{"Layout", 9, blank},
	{"MaxDiskRead", 12, func(v *View, r *record) string {
		return r.ofStep(func(u *job.Usage) string { return v.disk(u.Read) })
	}},
	{"MaxDiskReadNode", 15, blank},
	{"MaxDiskReadTask", 15, blank},
	{"MaxDiskWrite", 12, func(v *View, r *record) string {
		return r.ofStep(func(u *job.Usage) string { return v.disk(u.Write) })
	}},
	{"MaxDiskWriteNode", 16, blank},
	{"MaxDiskWriteTask", 16, blank},
	{"MaxPages", 8, blank},
	{"MaxPagesNode", 12, blank},
	{"MaxPagesTask", 14, blank},
	{"MaxRSS", 10, func(v *View, r *record) string {
		return r.ofStep(func(u *job.Usage) string { return v.rss(u.MaxRSS) })
	}},
	{"MaxRSSNode", 10, blank},
	{"MaxRSSTask", 10, blank},
	{"MaxVMSize", 10, blank},
	{"MaxVMSizeNode", 14, blank},
	{"MaxVMSizeTask", 14, blank},
	{"McsLabel", 12, blank},
	{"MinCPU", 10, blank},
	{"MinCPUNode", 10, blank},
	{"MinCPUTask", 10, blank},
	{"NCPUS", 10, func(_ *View, r *record) string { return strconv.Itoa(r.cpus()) }},
	{"NNodes", 8, func(_ *View, r *record) string { return strconv.Itoa(r.wantNodes()) }},
	{"NodeList", 15, func(_ *View, r *record) string {
		if r.step != nil {
			return slurm.Fold(r.step.Nodes)
		}
		return or(slurm.Fold(r.job.NodeList), "None assigned")
	}},
	{"NTasks", 8, func(_ *View, r *record) string {
		if r.step == nil {
			return ""
		}
		return strconv.Itoa(r.step.Tasks)
	}},
	{"Partition", 10, func(_ *View, r *record) string { return r.ofJob(r.job.Partition) }},
	{"Priority", 10, func(_ *View, r *record) string { return r.ofJob(number(r.job.Priority)) }},
	{"QOS", 10, func(_ *View, r *record) string { return r.ofJob(r.job.QOS) }},
	{"QOSRAW", 6, blank},
	{"Reason", 22, func(_ *View, r *record) string { return r.ofJob(or(r.job.Reason, "None")) }},
	{"ReqCPUFreq", 10, blank},
	{"ReqCPUFreqGov", 13, blank},
	{"ReqCPUFreqMax", 13, blank},
	{"ReqCPUFreqMin", 13, blank},
	{"ReqCPUS", 8, func(_ *View, r *record) string {
		if r.step != nil {
			return strconv.Itoa(r.step.CPUs)
		}
		return strconv.Itoa(r.job.CPUs)
	}},
	{"ReqGRES", 12, func(_ *View, r *record) string { return r.ofJob(r.job.GRES) }},
	{"ReqMem", 10, func(v *View, r *record) string {
		if r.step != nil {
			return ""
		}
		return v.memory(jobMemory(r.job))
	}},
	{"ReqNodes", 8, func(_ *View, r *record) string { return strconv.Itoa(r.wantNodes()) }},
	{"ReqTRES", 10, func(v *View, r *record) string { return r.ofJob(v.acctTRES(r, false)) }},
	{"Reservation", 20, blank},
	{"ReservationId", 8, blank},
	{"Reserved", 10, func(v *View, r *record) string { return r.ofJob(slurm.FormatTime(v.waited(r))) }},
	{"Restarts", 8, func(_ *View, r *record) string { return r.ofJob(strconv.Itoa(r.job.Restarts)) }},
	{"ResvCPU", 10, func(v *View, r *record) string {
		return r.ofJob(slurm.FormatTime(v.waited(r) * job.Duration(r.job.CPUs)))
	}},
	{"ResvCPURAW", 10, func(v *View, r *record) string { return r.ofJob(seconds(v.waited(r) * job.Duration(r.job.CPUs))) }},
	{"Start", 19, func(v *View, r *record) string { return v.when(r.start(), "Unknown") }},
	{"State", 10, func(_ *View, r *record) string { return r.state() }},
	{"StdErr", 20, func(_ *View, r *record) string { return r.ofJob(or(r.job.Error, r.job.Output)) }},
	{"StdIn", 20, func(_ *View, r *record) string { return r.ofJob(or(r.job.Input, "/dev/null")) }},
	{"StdOut", 20, func(_ *View, r *record) string { return r.ofJob(r.job.Output) }},
	{"Submit", 19, func(v *View, r *record) string {
		if r.step != nil {
			return v.when(r.step.Start, "Unknown")
		}
		return v.when(r.job.Submit, "Unknown")
	}},
	{"SubmitLine", 20, blank},
	{"Suspended", 10, func(*View, *record) string { return "00:00:00" }},
	{"SystemComment", 15, blank},
	{"SystemCPU", 10, func(_ *View, r *record) string {
		return cpuTime(int64(r.usage().System))
	}},
	{"Timelimit", 10, func(_ *View, r *record) string {
		return r.ofJob(limited(r.job.Limit))
	}},
	{"TimelimitRaw", 10, func(_ *View, r *record) string {
		if r.job.Limit == 0 || r.job.Limit == job.Forever {
			return r.ofJob("UNLIMITED")
		}
		return r.ofJob(strconv.FormatInt(int64(r.job.Limit/job.Minute), 10))
	}},
	{"TotalCPU", 10, func(_ *View, r *record) string {
		u := r.usage()
		return cpuTime(int64(u.User + u.System))
	}},
	{"TRESUsageInAve", 14, func(_ *View, r *record) string {
		return r.ofStep(func(u *job.Usage) string { return spent((u.User+u.System)/r.tasks(), u.Read/int64(r.tasks())) })
	}},
	{"TRESUsageInMax", 14, func(_ *View, r *record) string {
		return r.ofStep(func(u *job.Usage) string { return "mem=" + strconv.FormatInt(u.MaxRSS>>10, 10) + "K" })
	}},
	{"TRESUsageInMaxNode", 18, blank},
	{"TRESUsageInMaxTask", 18, blank},
	{"TRESUsageInMin", 14, blank},
	{"TRESUsageInMinNode", 18, blank},
	{"TRESUsageInMinTask", 18, blank},
	{"TRESUsageInTot", 14, func(_ *View, r *record) string {
		return r.ofStep(func(u *job.Usage) string { return spent(u.User+u.System, u.Read) })
	}},
	{"TRESUsageOutAve", 15, func(_ *View, r *record) string {
		return r.ofStep(func(u *job.Usage) string { return written(u.Write / int64(r.tasks())) })
	}},
	{"TRESUsageOutMax", 15, blank},
	{"TRESUsageOutMaxNode", 19, blank},
	{"TRESUsageOutMaxTask", 19, blank},
	{"TRESUsageOutMin", 15, blank},
	{"TRESUsageOutMinNode", 19, blank},
	{"TRESUsageOutMinTask", 19, blank},
	{"TRESUsageOutTot", 15, func(_ *View, r *record) string {
		return r.ofStep(func(u *job.Usage) string { return written(u.Write) })
	}},
	{"UID", 6, func(_ *View, r *record) string { return r.ofJob(number(r.job.UID)) }},
	{"User", 9, func(v *View, r *record) string { return r.ofJob(v.jobUser(r.job)) }},
	{"UserCPU", 10, func(_ *View, r *record) string { return cpuTime(int64(r.usage().User)) }},
	{"WCKey", 10, blank},
	{"WCKeyID", 10, blank},
	{"WorkDir", 20, func(_ *View, r *record) string { return r.ofJob(r.job.Cwd) }},
}

// ofJob is a text that lines of steps do not have.
func (r *record) ofJob(text string) string {
	if r.step != nil {
		return ""
	}
	return text
}

// ofStep is a measured text, which lines of jobs do not have.
func (r *record) ofStep(text func(*job.Usage) string) string {
	if r.step == nil || r.step.End == 0 {
		return ""
	}
	return text(&r.step.Usage)
}

// spent and written are what TRESUsage says of processor time and of bytes.
func spent(cpu job.Duration, read int64) string {
	return "cpu=" + slurm.FormatTime(cpu/job.Second*job.Second) + ",fs/disk=" + strconv.FormatInt(read, 10)
}

func written(bytes int64) string { return "fs/disk=" + strconv.FormatInt(bytes, 10) }

// tasks is how many a step has, at least one.
func (r *record) tasks() job.Duration { return job.Duration(max(1, r.step.Tasks)) }

// perTask is the mean of what the tasks of a step used.
func (r *record) perTask(value func(*job.Usage) int64, text func(int64) string) string {
	return r.ofStep(func(u *job.Usage) string { return text(value(u) / int64(max(1, r.step.Tasks))) })
}

func (r *record) start() job.Time {
	if r.step != nil {
		return r.step.Start
	}
	return r.job.Start
}

func (r *record) end() job.Time {
	if r.step != nil {
		return r.step.End
	}
	return r.job.End
}

func (v *View) elapsed(r *record) job.Duration {
	return v.used(r.start(), r.end()) / job.Second * job.Second
}

// waited is how long a job that could have run did not.
func (v *View) waited(r *record) job.Duration {
	if r.job.Eligible == 0 {
		return 0
	}
	until := cmp.Or(r.job.Start, r.job.End, v.Now)
	return max(0, until.Sub(r.job.Eligible)) / job.Second * job.Second
}

func seconds(d job.Duration) string { return strconv.FormatInt(int64(d/job.Second), 10) }

// cpus is how many the job or step has; 0 if it never started.
func (r *record) cpus() int {
	switch {
	case r.step != nil:
		return r.step.CPUs
	case r.job.Start == 0:
		return 0
	}
	return r.job.CPUs
}

func (r *record) nodes() int {
	switch {
	case r.step != nil:
		return len(r.step.Nodes)
	case r.job.Start == 0:
		return 0
	}
	return r.job.Nodes
}

func (r *record) wantNodes() int {
	if r.step != nil {
		return len(r.step.Nodes)
	}
	return r.job.Nodes
}

func (r *record) exitCode() string {
	if r.step != nil {
		return fmt.Sprintf("%d:%d", r.step.Exit, r.step.Signal)
	}
	return fmt.Sprintf("%d:%d", r.job.Exit, r.job.Signal)
}

// derived is the highest exit code of the steps that are not the script.
func (r *record) derived() string {
	exit, signal := 0, 0
	for i := range r.past.Steps {
		if s := &r.past.Steps[i]; s.Key.Step >= 0 && (s.Exit > exit || exit == 0 && s.Signal > signal) {
			exit, signal = s.Exit, s.Signal
		}
	}
	return fmt.Sprintf("%d:%d", exit, signal)
}

func (r *record) state() string {
	state := r.job.State
	if r.step != nil {
		state = r.step.State
	}
	if state == job.CancelledState && r.step == nil {
		switch {
		case r.job.Requeued:
			return "REQUEUED"
		case r.job.CancelledBy != "":
			return "CANCELLED by " + r.job.CancelledBy
		}
	}
	if state == job.Completing {
		return "RUNNING"
	}
	return state.String()
}

func (v *View) acctID(r *record) string {
	id := v.JobID(r.job)
	if r.step != nil {
		id += "." + r.step.Key.Step.String()
	}
	return id
}

// allocGRES is what a job or step had in all, in the text of old: gpu:h100:8.
func (v *View) allocGRES(r *record) string {
	if r.job.Start == 0 {
		return ""
	}
	var all []string
	for _, g := range jobGRES(r.job) {
		all = append(all, gresText(g.name, g.kind, g.count*int64(r.nodes())))
	}
	return strings.Join(all, ",")
}

// acctTRES is what was given or asked for, by name: billing=128,cpu=128,gres/gpu=8,...
func (v *View) acctTRES(r *record, given bool) string {
	cpus, nodes, memory := r.job.CPUs, r.job.Nodes, jobMemory(r.job)
	if given || r.step != nil {
		if cpus, nodes = r.cpus(), r.nodes(); cpus == 0 {
			return ""
		}
	}
	if r.step != nil {
		memory = memory * int64(nodes) / int64(max(1, r.job.Nodes))
	}
	words := []string{fmt.Sprintf("cpu=%d", cpus)}
	if r.step == nil {
		words = append(words, fmt.Sprintf("billing=%d", cpus))
	}
	if memory > 0 {
		words = append(words, "mem="+v.memory(memory))
	}
	words = append(words, fmt.Sprintf("node=%d", nodes))
	for _, g := range jobGRES(r.job) {
		words = append(words, gresTRES(g.name, g.kind, g.count*int64(nodes))...)
	}
	slices.Sort(words)
	return strings.Join(words, ",")
}

// usage is the step's, or the sum of all steps of the job.
func (r *record) usage() job.Usage {
	if r.step != nil {
		return r.step.Usage
	}
	var sum job.Usage
	for i := range r.past.Steps {
		u := &r.past.Steps[i].Usage
		sum.User += u.User
		sum.System += u.System
		sum.Read += u.Read
		sum.Write += u.Write
		sum.MaxRSS = max(sum.MaxRSS, u.MaxRSS)
	}
	return sum
}

// cpuTime is processor time in milliseconds: [D-[HH:]]MM:SS.mmm, without the fraction from
// an hour on.
func cpuTime(ms int64) string {
	s := ms / 1000
	switch {
	case s >= 86400:
		return fmt.Sprintf("%d-%02d:%02d:%02d", s/86400, s/3600%24, s/60%60, s%60)
	case s >= 3600:
		return fmt.Sprintf("%02d:%02d:%02d", s/3600, s/60%60, s%60)
	}
	return fmt.Sprintf("%02d:%02d.%03d", s/60, s%60, ms%1000)
}

// rss is bytes as Slurm prints what it measured in KiB.
func (v *View) rss(bytes int64) string {
	if bytes == 0 {
		return "0"
	}
	return v.size(bytes&^1023, 1)
}

// disk is bytes in MiB, as Slurm prints them.
func (v *View) disk(bytes int64) string {
	if v.Unit != 0 {
		return inUnit(bytes, v.Unit)
	}
	return strconv.FormatFloat(float64(bytes)/(1<<20), 'f', 2, 64) + "M"
}
