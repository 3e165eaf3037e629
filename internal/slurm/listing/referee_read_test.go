package listing_test

import (
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/gangway-hpc/gangway/internal/api"
	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/internal/slurm"
)

// records are what scontrol shows, one a line.
func (r *referee) records(kind string) []map[string]string {
	var all []map[string]string
	key := regexp.MustCompile(`(?:^| )([A-Za-z/:]+)=`)
	for line := range strings.Lines(r.run("scontrol", "-o", "-d", "show", kind)) {
		line = strings.TrimRight(line, "\n ")
		record := map[string]string{}
		places := key.FindAllStringSubmatchIndex(line, -1)
		for i, p := range places {
			end := len(line)
			if i+1 < len(places) {
				end = places[i+1][0]
			}
			if name := line[p[2]:p[3]]; record[name] == "" {
				record[name] = strings.TrimSpace(line[p[1]:end])
			}
		}
		if len(record) > 3 {
			all = append(all, record)
		}
	}
	return all
}

func (r *referee) moment(text string) job.Time {
	at, err := time.ParseInLocation("2006-01-02T15:04:05", text, r.zone)
	if err != nil {
		return 0 // Unknown, None, N/A
	}
	return job.Time(at.UnixMilli())
}

func none(text string) string {
	switch text {
	case "(null)", "N/A", "none":
		return ""
	}
	return text
}

// jobs makes our values of Slurm's jobs.
func (r *referee) jobs() []api.Job {
	var all []api.Job
	states := map[string]job.State{}
	for s := job.Pending; s <= job.Preempted; s++ {
		states[s.String()] = s
	}
	for _, f := range r.records("job") {
		number := func(key string) int {
			text, _, _ := strings.Cut(f[key], "-")
			n, _ := strconv.Atoi(text)
			return n
		}
		user, uid, _ := strings.Cut(strings.TrimSuffix(f["UserId"], ")"), "(")
		id, _ := strconv.Atoi(uid)
		j := api.Job{
			ID: job.ID(number("JobId")), Name: f["JobName"], User: user, UID: uint32(id), Account: none(f["Account"]), QOS: none(f["QOS"]),
			Partition: f["Partition"], State: states[f["JobState"]], Reason: strings.ReplaceAll(f["Reason"], "_", " "), Nice: int32(number("Nice")),
			Restarts: number("Restarts"), Submit: r.moment(f["SubmitTime"]), Eligible: r.moment(f["EligibleTime"]), Deadline: r.moment(f["Deadline"]),
			Nodes: number("NumNodes"), Tasks: number("NumTasks"), CPUs: number("NumCPUs"), GRES: strings.ReplaceAll(none(f["TresPerNode"]), "gres:", ""),
			Batch: f["BatchFlag"] == "1", Command: none(f["Command"]), Cwd: f["WorkDir"], Dependency: none(f["Dependency"]),
			Constraint: none(f["Features"]), Comment: none(f["Comment"]), SubmitHost: strings.Split(f["AllocNode:Sid"], ":")[0], Output: f["StdOut"], Error: f["StdErr"],
			Spec: &job.Spec{}, Requeue: f["Requeue"] == "1", Exclusive: f["OverSubscribe"] == "NO", Required: none(f["ReqNodeList"]), Scheduled: none(f["SchedNodeList"]),
		}
		priority, _ := strconv.ParseUint(f["Priority"], 10, 32)
		j.Priority = uint32(priority)
		j.Limit, _ = slurm.ParseTime(f["TimeLimit"])
		j.Memory.MiB = mib(f["MinMemoryNode"])
		j.NodeList, _ = slurm.Expand(f["NodeList"])
		j.Start, j.End = r.moment(f["StartTime"]), r.moment(f["EndTime"])
		if j.State == job.Pending {
			j.Expected, j.Start = j.Start, 0
		}
		if !j.State.Done() {
			j.End = 0
		}
		exit, signal, _ := strings.Cut(f["ExitCode"], ":")
		j.Exit, _ = strconv.Atoi(exit)
		j.Signal, _ = strconv.Atoi(signal)
		low, high, ranged := strings.Cut(f["NumNodes"], "-")
		if ranged {
			j.Spec.MinNodes, _ = strconv.Atoi(low)
			j.Spec.MaxNodes, _ = strconv.Atoi(high)
		}
		r.array(&j, f)
		all = append(all, j)
	}
	return all
}

// mib reads 1.50G.
func mib(text string) int64 {
	n, _ := strconv.ParseFloat(strings.TrimRight(text, "MG"), 64)
	if strings.HasSuffix(text, "G") {
		n *= 1024
	}
	return int64(n)
}

// array reads the tasks of an array.
func (r *referee) array(j *api.Job, f map[string]string) {
	array, _ := strconv.Atoi(f["ArrayJobId"])
	if array == 0 {
		return
	}
	j.Array = &job.ArrayFacts{Job: job.ID(array)}
	j.Throttle, _ = strconv.Atoi(f["ArrayTaskThrottle"])
	list, _, _ := strings.Cut(f["ArrayTaskId"], "%")
	if n, err := strconv.Atoi(list); err == nil && j.State != job.Pending {
		j.Array.Task = uint32(n)
		return
	}
	for part := range strings.SplitSeq(list, ",") {
		span, step, stepped := strings.Cut(part, ":")
		first, last, ranged := strings.Cut(span, "-")
		if !ranged {
			last = first
		}
		if !stepped {
			step = "1"
		}
		a, _ := strconv.Atoi(first)
		b, _ := strconv.Atoi(last)
		c, _ := strconv.Atoi(step)
		j.Waiting = append(j.Waiting, job.Range{First: uint32(a), Last: uint32(b), Step: uint32(c)})
	}
}

// nodes makes our values of Slurm's nodes.
func (r *referee) nodes() []api.Node {
	var all []api.Node
	for _, f := range r.records("node") {
		number := func(key string) int { n, _ := strconv.Atoi(f[key]); return n }
		n := api.Node{
			Node: job.Node{
				Name: f["NodeName"], Sockets: number("Sockets"), CoresPerSocket: number("CoresPerSocket"), ThreadsPerCore: number("ThreadsPerCore"),
				CPUs: number("CPUTot"), Memory: int64(number("RealMemory")), Weight: number("Weight"), Addr: f["NodeAddr"],
			},
			UsedCPUs: number("CPUAlloc"), UsedMemory: int64(number("AllocMem")), FreeMemory: int64(number("FreeMem")), Version: f["Version"],
			Partitions: strings.Split(f["Partitions"], ","), Seen: 1,
		}
		n.Features = strings.FieldsFunc(none(f["AvailableFeatures"]), func(c rune) bool { return c == ',' })
		n.GRES, _ = slurm.ParseGRES(f["Gres"])
		n.Load, _ = strconv.ParseFloat(f["CPULoad"], 64)
		for i, word := range strings.Split(f["State"], "+") {
			switch {
			case i == 0:
				n.StateText = strings.ToLower(word)
			case word == "DRAIN":
				n.State = job.NodeDrain
				n.StateText = "drained"
				if n.UsedCPUs > 0 {
					n.StateText = "draining"
				}
			case word == "PLANNED" && n.StateText == "idle":
				n.StateText = "planned"
			}
		}
		if at := strings.LastIndex(f["Reason"], " ["); at > 0 {
			n.Reason = f["Reason"][:at]
			who, when, _ := strings.Cut(strings.Trim(f["Reason"][at:], " []"), "@")
			n.ReasonUser, n.ReasonSince = who, r.moment(when)
		}
		all = append(all, n)
	}
	return all
}

func (r *referee) partitions() []api.Partition {
	c, err := slurm.Load(filepath.Join(r.dir, "slurm.conf"))
	if err != nil {
		r.t.Fatal(err)
	}
	var all []api.Partition
	for _, p := range c.Partitions {
		all = append(all, api.Partition{Partition: p, TotalNodes: len(p.Nodes), TotalCPUs: 8 * len(p.Nodes)})
	}
	return all
}
