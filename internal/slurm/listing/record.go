package listing

import (
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/gangway-hpc/gangway/internal/api"
	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/internal/slurm"
)

// writeRecord writes the lines of a record of scontrol: below each other, or as one.
func writeRecord(w io.Writer, oneLine bool, lines []string) error {
	text := strings.Join(lines, "\n   ") + "\n\n"
	if oneLine {
		text = strings.Join(lines, " ") + "\n"
	}
	_, err := io.WriteString(w, text)
	return err
}

// JobRecord writes a job as "scontrol show job" does.
func (v *View) JobRecord(w io.Writer, j *api.Job, c *Control) error {
	lines := []string{v.jobHead(j)}
	add := func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) }
	add("UserId=%s(%d) GroupId=%s(%d) MCS_label=N/A", v.jobUser(j), j.UID, v.group(j.GID), j.GID)
	add("Priority=%d Nice=%d Account=%s QOS=%s", j.Priority, j.Nice, null(j.Account), null(j.QOS))
	add("JobState=%s Reason=%s Dependency=%s", j.State, strings.ReplaceAll(or(j.Reason, "None"), " ", "_"), null(j.Dependency))
	add("Requeue=%s Restarts=%d BatchFlag=%s Reboot=0 ExitCode=%d:%d", bit(j.Requeue), j.Restarts, bit(j.Batch), j.Exit, j.Signal)
	if c.Details {
		add("DerivedExitCode=0:0")
	}
	add("RunTime=%s TimeLimit=%s TimeMin=%s", slurm.FormatTime(v.used(j.Start, j.End)), limited(j.Limit), v.timeMin(j))
	add("SubmitTime=%s EligibleTime=%s", v.when(j.Submit, "Unknown"), v.when(j.Eligible, "Unknown"))
	add("AccrueTime=%s", v.when(j.Eligible, "Unknown"))
	add("StartTime=%s EndTime=%s Deadline=%s", v.when(startOf(j), "Unknown"), v.recordEnd(j), v.when(j.Deadline, "N/A"))
	add("SuspendTime=None SecsPreSuspend=0 LastSchedEval=%s Scheduler=Main", v.when(max(j.Submit, j.Start), "Unknown"))
	add("Partition=%s AllocNode:Sid=%s:0", j.Partition, null(j.SubmitHost))
	add("ReqNodeList=%s ExcNodeList=%s", null(j.Required), null(j.Excluded))
	nodes := slurm.Fold(j.NodeList)
	if j.Scheduled != "" {
		nodes += " SchedNodeList=" + j.Scheduled
	}
	add("NodeList=%s", nodes)
	if first := firstNode(j); first != "" && j.Batch {
		add("BatchHost=%s", first)
	}
	add("NumNodes=%s NumCPUs=%d NumTasks=%d CPUs/Task=%d ReqB:S:C:T=0:0:*:*", numNodes(j), j.CPUs, j.Tasks, cpusPerTask(j))
	add("TRES=%s", v.tres(j))
	add("Socks/Node=* NtasksPerN:B:S:C=%d:0:*:* CoreSpec=*", tasksPerNode(j))
	if c.Details && j.Shares != nil {
		lines = append(lines, v.shares(j)...)
	}
	add("MinCPUsNode=%d MinMemory%s=%s MinTmpDiskNode=0", minCPUs(j)*max(1, tasksPerNode(j)), memoryUnit(j), v.minMemory(j))
	add("Features=%s DelayBoot=00:00:00", null(j.Constraint))
	add("OverSubscribe=%s Contiguous=%s Licenses=%s Network=(null)", jobShares(j), bit(j.Spec != nil && j.Spec.Contiguous), licenses(j))
	add("Command=%s", null(j.Command))
	add("WorkDir=%s", j.Cwd)
	if j.Comment != "" {
		add("Comment=%s ", j.Comment)
	}
	if j.Batch {
		add("StdErr=%s", or(j.Error, j.Output))
		add("StdIn=%s", or(j.Input, "/dev/null"))
		add("StdOut=%s", j.Output)
	}
	add("Power=")
	if j.GRES != "" {
		add("TresPerNode=%s", tresPerNode(j.GRES))
	}
	if j.Image != "" {
		add("ContainerImage=%s", j.Image)
	}
	return writeRecord(w, c.OneLine, lines)
}

func (v *View) jobHead(j *api.Job) string {
	text := "JobId=" + j.ID.String() + " "
	if j.Array != nil || j.Waiting != nil {
		text += "ArrayJobId=" + arrayID(j).String() + " ArrayTaskId=" + v.arrayTask(j) + " "
		if j.Throttle > 0 {
			text += fmt.Sprintf("ArrayTaskThrottle=%d ", j.Throttle)
		}
	}
	return text + "JobName=" + j.Name
}

func (v *View) timeMin(j *api.Job) string {
	if j.Spec == nil || j.Spec.TimeMin == 0 {
		return "N/A"
	}
	return slurm.FormatTime(j.Spec.TimeMin)
}

func (v *View) recordEnd(j *api.Job) string {
	start := startOf(j)
	switch {
	case j.End != 0:
		return v.when(j.End, "Unknown")
	case start == 0 || start == job.Never || j.Limit == job.Forever || j.Limit == 0:
		return "Unknown"
	}
	return v.when(start.Add(j.Limit), "Unknown")
}

// numNodes is how many nodes a job has, or asks for: 2-4.
func numNodes(j *api.Job) string {
	if j.State == job.Pending && j.Spec != nil && j.Spec.MinNodes > 0 {
		return fmt.Sprintf("%d-%d", j.Spec.MinNodes, max(j.Spec.MinNodes, j.Spec.MaxNodes))
	}
	return strconv.Itoa(j.Nodes)
}

func tasksPerNode(j *api.Job) int {
	if j.Spec == nil {
		return 0
	}
	return j.Spec.TasksPerNode
}

func memoryUnit(j *api.Job) string {
	if j.Memory.Per == job.PerCPU {
		return "CPU"
	}
	return "Node"
}

func jobShares(j *api.Job) string {
	switch {
	case j.Exclusive:
		return "NO"
	case j.Spec != nil && j.Spec.Oversubscribe:
		return "YES"
	}
	return "OK"
}

func licenses(j *api.Job) string {
	if j.Spec == nil {
		return "(null)"
	}
	var all []string
	for _, l := range j.Spec.Licenses {
		all = append(all, fmt.Sprintf("%s:%d", l.Name, l.Count))
	}
	return null(strings.Join(all, ","))
}

// shares are the lines that say what a job has on which node; nodes that are alike share
// one.
func (v *View) shares(j *api.Job) []string {
	lines := []string{"JOB_GRES=" + null(jobDevices(j))}
	var names []string
	last := ""
	flush := func() {
		if names != nil {
			lines = append(lines, "  Nodes="+slurm.Fold(names)+" "+last)
		}
		names = nil
	}
	for i := range j.Shares {
		s := &j.Shares[i]
		text := fmt.Sprintf("CPUs=%d Mem=%d GRES=%s", s.CPUs, s.Memory, deviceText(s.Devices))
		if text != last {
			flush()
		}
		names, last = append(names, s.Node), text
	}
	flush()
	return lines
}

func jobDevices(j *api.Job) string {
	var order []string
	sum := map[string]int64{}
	for i := range j.Shares {
		for _, d := range j.Shares[i].Devices {
			key := d.Name
			if d.Type != "" {
				key += ":" + d.Type
			}
			if sum[key] == 0 {
				order = append(order, key)
			}
			sum[key] += d.Count
		}
	}
	for i, key := range order {
		order[i] = fmt.Sprintf("%s:%d", key, sum[key])
	}
	return strings.Join(order, ",")
}

// deviceText is gpu:h100:8(IDX:0-7).
func deviceText(devices []job.Devices) string {
	var all []string
	for _, d := range devices {
		text := gresText(d.Name, d.Type, d.Count)
		if d.Mask != 0 {
			text += "(IDX:" + Indices(d.Mask) + ")"
		}
		all = append(all, text)
	}
	return strings.Join(all, ",")
}

// NodeRecord writes a node as "scontrol show node" does.
func (v *View) NodeRecord(w io.Writer, n *api.Node, c *Control) error {
	sockets, cores, threads := geometry(n)
	total := cpusOf(n)
	lines := []string{fmt.Sprintf("NodeName=%s Arch=x86_64 CoresPerSocket=%d ", n.Name, cores)}
	add := func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) }
	add("CPUAlloc=%d CPUEfctv=%d CPUTot=%d CPULoad=%s", n.UsedCPUs, total, total, load(n))
	features := null(strings.Join(n.Features, ","))
	add("AvailableFeatures=%s", features)
	add("ActiveFeatures=%s", features)
	add("Gres=%s", null(nodeGRES(n)))
	if c.Details && len(n.GRES) > 0 {
		add("GresDrain=N/A")
		add("GresUsed=%s", gresUsed(n))
	}
	add("NodeAddr=%s NodeHostName=%s Version=%s", or(n.Addr, n.Name), n.Name, or(n.Version, "N/A"))
	free := "N/A"
	if n.FreeMemory > 0 {
		free = strconv.FormatInt(n.FreeMemory, 10)
	}
	add("RealMemory=%d AllocMem=%d FreeMem=%s Sockets=%d Boards=1", n.Memory, n.UsedMemory, free, sockets)
	add("State=%s ThreadsPerCore=%d TmpDisk=0 Weight=%d Owner=N/A MCS_label=N/A", FullState(n), threads, max(1, n.Weight))
	add("Partitions=%s ", strings.Join(n.Partitions, ","))
	add("BootTime=%s SlurmdStartTime=%s", v.when(n.Boot, "None"), v.when(n.Boot, "None"))
	add("LastBusyTime=%s", v.when(n.Seen, "Unknown"))
	add("CfgTRES=%s", v.nodeTRES(total, n.Memory, n.GRES, true))
	add("AllocTRES=%s", v.usedTRES(n))
	if n.Declared {
		add("Comment=declared: the hardware is as configured, whatever is there")
	}
	if n.Reason != "" {
		add("Reason=%s [%s@%s]", n.Reason, or(n.ReasonUser, "unknown"), v.when(n.ReasonSince, "Unknown"))
	}
	return writeRecord(w, c.OneLine, lines)
}

func (v *View) nodeTRES(cpus, memory int64, all []job.GRES, billing bool) string {
	words := []string{fmt.Sprintf("cpu=%d", cpus)}
	if memory > 0 {
		words = append(words, "mem="+v.memory(memory))
	}
	if billing {
		words = append(words, fmt.Sprintf("billing=%d", cpus))
	}
	for _, g := range all {
		words = append(words, fmt.Sprintf("gres/%s=%d", g.Name, g.Count))
	}
	return strings.Join(words, ",")
}

func (v *View) usedTRES(n *api.Node) string {
	if n.UsedCPUs == 0 {
		return ""
	}
	var used []job.GRES
	for _, d := range n.Used {
		used = append(used, job.GRES{Name: d.Name, Count: d.Count})
	}
	return v.nodeTRES(int64(n.UsedCPUs), n.UsedMemory, used, false)
}

// PartitionRecord writes a partition as "scontrol show partition" does; nodes are all.
func (v *View) PartitionRecord(w io.Writer, p *api.Partition, nodes []api.Node, c *Control) error {
	all := func(words []string) string { return or(strings.Join(words, ","), "ALL") }
	limit := func(d job.Duration, none string) string {
		if d == 0 || d == job.Forever {
			return none
		}
		return slurm.FormatTime(d)
	}
	most := "UNLIMITED"
	if p.MaxNodes > 0 {
		most = strconv.Itoa(p.MaxNodes)
	}
	memory := "DefMemPerNode=UNLIMITED"
	switch {
	case p.MemoryPerCPU > 0:
		memory = fmt.Sprintf("DefMemPerCPU=%d", p.MemoryPerCPU)
	case p.MemoryPerNode > 0:
		memory = fmt.Sprintf("DefMemPerNode=%d", p.MemoryPerNode)
	}
	lines := []string{"PartitionName=" + p.Name}
	add := func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) }
	add("AllowGroups=%s AllowAccounts=%s AllowQos=%s", all(p.AllowGroups), all(p.AllowAccount), all(p.AllowQOS))
	add("AllocNodes=ALL Default=%s QoS=N/A", yes(p.Default))
	add("DefaultTime=%s DisableRootJobs=NO ExclusiveUser=NO GraceTime=0 Hidden=NO", limit(p.DefaultTime, "NONE"))
	add("MaxNodes=%s MaxTime=%s MinNodes=%d LLN=NO MaxCPUsPerNode=UNLIMITED", most, limit(p.MaxTime, "UNLIMITED"), p.MinNodes)
	add("Nodes=%s", slurm.Fold(p.Nodes))
	add("PriorityJobFactor=%d PriorityTier=%d RootOnly=NO ReqResv=NO OverSubscribe=%s", max(1, p.Priority), max(1, p.Tier), oversubscribe(p))
	add("OverTimeLimit=NONE PreemptMode=OFF")
	state := [...]string{"UP", "DOWN", "DRAIN", "INACTIVE"}[min(int(p.State), 3)]
	add("State=%s TotalCPUs=%d TotalNodes=%d SelectTypeParameters=NONE", state, p.TotalCPUs, p.TotalNodes)
	add("JobDefaults=(null)")
	add("%s MaxMemPerNode=UNLIMITED", memory)
	add("TRES=%s", v.partitionTRES(p, nodes))
	return writeRecord(w, c.OneLine, lines)
}

func yes(on bool) string {
	if on {
		return "YES"
	}
	return "NO"
}

func (v *View) partitionTRES(p *api.Partition, nodes []api.Node) string {
	var memory int64
	var order []string
	sum := map[string]int64{}
	member := map[string]bool{}
	for _, name := range p.Nodes {
		member[name] = true
	}
	for i := range nodes {
		if !member[nodes[i].Name] {
			continue
		}
		memory += nodes[i].Memory
		for _, g := range nodes[i].GRES {
			if _, ok := sum[g.Name]; !ok {
				order = append(order, g.Name)
			}
			sum[g.Name] += g.Count
		}
	}
	words := []string{fmt.Sprintf("cpu=%d", p.TotalCPUs)}
	if memory > 0 {
		words = append(words, "mem="+v.memory(memory))
	}
	words = append(words, fmt.Sprintf("node=%d", p.TotalNodes), fmt.Sprintf("billing=%d", p.TotalCPUs))
	for _, name := range order {
		words = append(words, fmt.Sprintf("gres/%s=%d", name, sum[name]))
	}
	return strings.Join(words, ",")
}

// StepRecord writes a step as "scontrol show step" does.
func (v *View) StepRecord(w io.Writer, s *Step, c *Control) error {
	lines := []string{fmt.Sprintf("StepId=%s UserId=%d StartTime=%s TimeLimit=%s", v.ID(s), s.Job.UID, v.when(s.Start, "Unknown"), limited(s.Job.Limit))}
	add := func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) }
	add("State=%s Partition=%s NodeList=%s", s.State, s.Job.Partition, slurm.Fold(s.Nodes))
	add("Nodes=%d CPUs=%d Tasks=%d Name=%s Network=(null)", len(s.Nodes), s.CPUs, s.Tasks, s.Name)
	tres := fmt.Sprintf("cpu=%d,node=%d", s.CPUs, len(s.Nodes))
	if s.GRES != "" {
		tres += ",gres/" + s.GRES
	}
	add("TRES=%s", tres)
	add("ResvPorts=(null)")
	add("CPUFreqReq=Default")
	add("SrunHost:Pid=(null):0")
	if s.Phase != "" && s.Phase != "running" {
		add("Phase=%s", s.Phase)
	}
	return writeRecord(w, c.OneLine, lines)
}
