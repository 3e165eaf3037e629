package listing_test

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gangway-hpc/gangway/internal/api"
	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/internal/slurm"
	"github.com/gangway-hpc/gangway/internal/slurm/listing"
)

// referee is Slurm's own controller with four nodes of this machine, and jobs.
type referee struct {
	t    *testing.T
	dir  string
	zone *time.Location
}

const refereeNodes = 4

// startReferee starts Debian's Slurm, which wants to be root's.
func startReferee(t *testing.T) *referee {
	t.Helper()
	for _, program := range []string{"slurmctld", "slurmd", "squeue", "scontrol", "sinfo", "sbatch"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("needs %s of Debian's slurm-client, slurmd, slurmctld: %v", program, err)
		}
	}
	if os.Getuid() != 0 {
		t.Skip("needs root, which slurmd does")
	}
	r := &referee{t: t, dir: t.TempDir(), zone: time.Local}
	var conf strings.Builder
	fmt.Fprintf(&conf, `ClusterName=referee
SlurmctldHost=localhost
SlurmctldPort=%d
AuthType=auth/none
CredType=cred/none
SlurmUser=root
StateSaveLocation=%[2]s
SlurmctldPidFile=%[2]s/pid
SlurmdPidFile=%[2]s/%%n.pid
SlurmdSpoolDir=%[2]s/%%n
ProctrackType=proctrack/pgid
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
GresTypes=gpu
ReturnToService=2
SlurmdParameters=config_overrides
`, freePort(t), r.dir)
	devices := filepath.Join(r.dir, "dev")
	r.make(devices)
	for n := range 8 {
		r.write(fmt.Sprintf("dev/g%d", n), "")
	}
	for n := 1; n <= refereeNodes; n++ {
		fmt.Fprintf(&conf, "NodeName=n%d Port=%d NodeHostname=localhost CPUs=8 RealMemory=16000 Gres=gpu:h100:8 Feature=fast\n", n, freePort(t))
		r.make(filepath.Join(r.dir, fmt.Sprint("n", n)))
	}
	conf.WriteString("PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP\nPartitionName=debug Nodes=n1 MaxTime=2:00:00 DefaultTime=10 MaxNodes=1 State=UP\n")
	r.write("slurm.conf", conf.String())
	r.write("gres.conf", "NodeName=n[1-4] Name=gpu Type=h100 File="+devices+"/g[0-7]\n")
	r.daemon("slurmctld", "-D", "-i")
	r.until("a controller", func() bool { out, err := r.try("scontrol", "ping"); return err == nil && strings.Contains(out, "UP") })
	for n := 1; n <= refereeNodes; n++ {
		r.daemon("slurmd", "-D", "-N", fmt.Sprint("n", n))
	}
	r.until("idle nodes", func() bool {
		out, _ := r.try("sinfo", "-h", "-o", "%T %D", "-p", "main")
		return strings.TrimSpace(out) == "idle 4"
	})
	return r
}

func freePort(t *testing.T) int {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

func (r *referee) make(dir string) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		r.t.Fatal(err)
	}
}

func (r *referee) write(name, text string) {
	if err := os.WriteFile(filepath.Join(r.dir, name), []byte(text), 0o755); err != nil {
		r.t.Fatal(err)
	}
}

func (r *referee) command(name string, args ...string) *exec.Cmd {
	cmd := exec.Command(name, args...)
	cmd.Dir = r.dir
	cmd.Env = append(os.Environ(), "SLURM_CONF="+filepath.Join(r.dir, "slurm.conf"), "USER=root")
	return cmd
}

// daemon runs a program until the test ends.
func (r *referee) daemon(name string, args ...string) {
	cmd := r.command(name, args...)
	var log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() {
		_ = cmd.Process.Signal(os.Interrupt)
		ended := make(chan struct{})
		go func() { _ = cmd.Wait(); close(ended) }()
		select {
		case <-ended:
		case <-time.After(10 * time.Second):
			_ = cmd.Process.Kill()
			<-ended
		}
		if r.t.Failed() && name == "slurmctld" {
			r.t.Log(log.String())
		}
	})
}

func (r *referee) try(name string, args ...string) (string, error) {
	out, err := r.command(name, args...).Output()
	return string(out), err
}

func (r *referee) run(name string, args ...string) string {
	r.t.Helper()
	out, err := r.try(name, args...)
	if err != nil {
		r.t.Fatalf("%s %q: %v\n%s", name, args, err, out)
	}
	return out
}

func (r *referee) until(what string, f func() bool) {
	r.t.Helper()
	for end := time.Now().Add(40 * time.Second); !f(); time.Sleep(100 * time.Millisecond) {
		if time.Now().After(end) {
			r.t.Skipf("needs a Slurm that has %s within 40 s", what)
		}
	}
}

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
			Spec: &job.Spec{}, Requeue: f["Requeue"] == "1", Exclusive: f["OverSubscribe"] == "NO", Required: none(f["ReqNodeList"]),
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

func (r *referee) view(now time.Time) *listing.View {
	root := func(uint32) string { return "root" }
	return &listing.View{Now: job.Time(now.Unix() * 1000), Zone: r.zone, BitstrLen: 64, User: root, Group: root, Cluster: "referee"}
}

func nothing(string) string { return "" }

// same compares what Slurm prints with what we do of the same. Clocks go on meanwhile, so
// ours may be of one of three seconds.
func (r *referee) same(name string, args []string, ours func(v *listing.View, w *bytes.Buffer) error) {
	r.t.Helper()
	var theirs string
	var got bytes.Buffer
	for range 5 { // what changes while it is looked at is looked at again
		before := time.Now()
		theirs = r.run(name, args...)
		for second := range 3 {
			got.Reset()
			if err := ours(r.view(before.Add(time.Duration(second)*time.Second)), &got); err != nil {
				r.t.Errorf("%s %q: %v", name, args, err)
				return
			}
			if got.String() == theirs {
				return
			}
		}
	}
	r.t.Errorf("%s %q: ours\n%sis, with Slurm's own,\n%s", name, args, got.String(), theirs)
}

// submit puts jobs of many kinds into Slurm's queue.
func (r *referee) submit() {
	r.write("sleep.sh", "#!/bin/bash\nsleep 1000\n")
	for _, args := range []string{
		"-N2 --gres=gpu:8 -t 60 -J train-with-a-long-name sleep.sh",
		"-N4 --gres=gpu:h100:8 --exclusive --comment=why sleep.sh",
		"--array=0-9%2 -n2 -c2 -t 2-00:00:00 sleep.sh",
		"--array=1-99:7 sleep.sh",
		"--hold -n1 --nice=7 sleep.sh",
		"-d afterok:1 -n1 --mem=1536 -C fast sleep.sh",
		"-b now+1hour -n1 -p debug sleep.sh",
		"-n3 -p debug --mem=100 -w n1 sleep.sh",
	} {
		r.run("sbatch", strings.Fields(args)...)
	}
	r.until("a running job", func() bool { out, _ := r.try("squeue", "-h", "-j", "1", "-o", "%T"); return out == "RUNNING\n" })
	r.run("scontrol", "update", "nodename=n4", "state=drain", "reason=bad gpu on it")
	time.Sleep(1500 * time.Millisecond) // for what the scheduler says of those that wait
}

// TestAgainstSlurm: what squeue, sinfo and "scontrol show" print of a situation is, to the
// letter, what Slurm's own print of it.
func TestAgainstSlurm(t *testing.T) {
	if testing.Short() {
		t.Skip("runs Slurm's daemons")
	}
	r := startReferee(t)
	r.submit()
	t.Cleanup(func() { _, _ = r.try("scancel", "-u", "root", "-s", "KILL"); _, _ = r.try("scancel", "-u", "root") })
	for _, args := range [][]string{
		{},
		{"-l"},
		{"-h"},
		{"-t", "all"},
		{"-t", "PD"},
		{"-t", "r,pending"},
		{"--start", "-S", "i"},
		{"-p", "debug"},
		{"-n", "sleep.sh"},
		{"-S", "i"},
		{"-S", "-i"},
		{"-S", "j,-i"},
		{"-S", "-p,i"},
		{"-S", "t,-M,i"},
		{"-S", "D,i"},
		{"-S", "-C,i"},
		{"-S", "l,i"},
		{"-S", "V,i"},
		{"-o", "%i|%j|%P|%a|%c|%C|%d|%D|%e|%E|%f|%F|%g|%G"},
		{"-o", "%A %h|%H|%I|%J|%k|%K|%l|%L|%m|%M|%n|%N|%o|%O"},
		{"-o", "%p|%q|%Q|%r|%R|%s|%S|%t|%T|%u|%U|%v|%V|%w|%W|%x|%X|%y|%Y|%z|%Z"},
		{"-o", "%.5N|%.5R|%5j|%5Z|%3i|%.3i|%.4M|%.6S|%.3D|%.2Q|%3f|%.3P|%.3u|%.3l|%.3o|%t"},
		{"-o", `{"a": "%a", "id": %A}`},
		{"-o", "no fields"},
		{"-o", "%i%%x"},
		{"-o", "%.30i %20P"},
		{"-O", "jobid:.5,name:3,nodelist:4|,reasonlist:.5,starttime"},
		{"-O", "JobID,ArrayJobID,ArrayTaskID,JobArrayID,NumCPUs,NumNodes,NumTasks,cpus-per-task,State,StateCompact,TimeLeft,TimeLimit,TimeUsed"},
		{"-O", "account:|,jobid:.9X,UserName,UserID,WorkDir:60,Requeue,RestartCnt,BatchFlag,BatchHost,Comment,Deadline,Nice,PriorityLong,Reason:40"},
		{"-O", "EligibleTime,EndTime,SubmitTime,STDIN,Dependency,Feature,MinMemory,exit_code,DerivedEC,Cluster,Command:60"},
	} {
		r.same("squeue", args, func(v *listing.View, w *bytes.Buffer) error {
			q, err := listing.ParseQueue(args, nothing, people{})
			if err != nil {
				return err
			}
			return q.Print(w, v, q.Select(v, chosen(q, r.jobs())))
		})
	}
	for _, args := range [][]string{
		{},
		{"-s"},
		{"-N"},
		{"-l"},
		{"-N", "-l"},
		{"-R"},
		{"-h"},
		{"-p", "debug"},
		{"-n", "n1,n4"},
		{"-t", "drain"},
		{"-t", "idle"},
		{"-e"},
		{"-o", "%P|%a|%l|%D|%t|%N|%T|%R"},
		{"-o", "%F %C"},
		{"-o", "%N %c %m %G %f %w %X %Y %Z %z %E"},
		{"-o", "%P %p %I %L %s %r %h %g %M %S %B"},
		{"-h", "-o", "%D,%T", "-S", "T"},
		{"-o", "%20P|%.20t|%4N|%.4D"},
		{"-N", "-O", "nodelist,allocmem,memory,cpusstate,statelong,gres:30"},
		{"-N", "-h", "-o", "%N|%u|%H|%E"},
	} {
		r.same("sinfo", args, func(v *listing.View, w *bytes.Buffer) error {
			q, err := listing.ParseInfo(args, nothing)
			if err != nil {
				return err
			}
			return q.Print(w, v, q.Rows(v, r.nodes(), r.partitions()))
		})
	}
}

// TestRecordsAgainstSlurm: so do the records of "scontrol show", but for what is only
// Slurm's.
func TestRecordsAgainstSlurm(t *testing.T) {
	if testing.Short() {
		t.Skip("runs Slurm's daemons")
	}
	r := startReferee(t)
	r.submit()
	t.Cleanup(func() { _, _ = r.try("scancel", "-u", "root", "-s", "KILL"); _, _ = r.try("scancel", "-u", "root") })
	c := &listing.Control{}
	for _, kind := range []string{"job", "node", "partition"} {
		var theirs, ours string
		for range 5 {
			before := time.Now()
			theirs = comparable(r.run("scontrol", "show", kind))
			for second := range 3 {
				var w bytes.Buffer
				v := r.view(before.Add(time.Duration(second) * time.Second))
				r.show(v, &w, kind, c)
				if ours = comparable(w.String()); ours == theirs {
					break
				}
			}
			if ours == theirs {
				break
			}
		}
		if ours != theirs {
			t.Errorf("scontrol show %s: %s", kind, differences(ours, theirs))
		}
	}
}

func (r *referee) show(v *listing.View, w *bytes.Buffer, kind string, c *listing.Control) {
	nodes := r.nodes()
	switch kind {
	case "job":
		for _, j := range r.jobs() {
			if err := v.JobRecord(w, &j, c); err != nil {
				r.t.Fatal(err)
			}
		}
	case "node":
		for i := range nodes {
			if err := v.NodeRecord(w, &nodes[i], c); err != nil {
				r.t.Fatal(err)
			}
		}
	case "partition":
		for _, p := range r.partitions() {
			if err := v.PartitionRecord(w, &p, nodes, c); err != nil {
				r.t.Fatal(err)
			}
		}
	}
}

// comparable leaves out what one of both alone can know: sessions, ports, kernels, power, scheduling cycles, GPUs
// as TRES, and the newer text of TresPerNode.
func comparable(text string) string {
	for _, only := range []string{
		`AllocNode:Sid=\S+`, `LastSchedEval=\S+ Scheduler=\S+`, `TresPerNode=\S+`, `NodeHostName=\S+( Port=\S+)?`, `OS=.*`, `BootTime=.*`, `LastBusyTime=\S+`,
		`CPULoad=\S+`, `FreeMem=\S+`, `CapWatts.*`, `CurrentWatts.*`, `ExtSensors.*`, `gres/gpu(:h100)?=\d+`, `,mem=[^,\s]+`, `Reason=.*UnavailableNodes\S*`, `Std(Err|Out)=\S*4294967294\S*`,
	} {
		text = regexp.MustCompile(only).ReplaceAllString(text, "")
	}
	var lines []string
	for line := range strings.Lines(text) {
		if line = strings.TrimRight(strings.TrimRight(line, "\n "), ","); line != "" {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "\n")
}

// differences are the lines in which texts differ.
func differences(ours, theirs string) string {
	a, b := strings.Split(ours, "\n"), strings.Split(theirs, "\n")
	var text strings.Builder
	for i := range max(len(a), len(b)) {
		x, y := "", ""
		if i < len(a) {
			x = a[i]
		}
		if i < len(b) {
			y = b[i]
		}
		if x != y {
			fmt.Fprintf(&text, "\n  ours   %s\n  theirs %s", x, y)
		}
	}
	return text.String()
}

// chosen is what the controller would leave of jobs.
func chosen(q *listing.Queue, jobs []api.Job) []api.Job {
	return slices.DeleteFunc(jobs, func(j api.Job) bool {
		w := &q.Query
		return len(w.States) > 0 && !slices.Contains(w.States, j.State.String()) || !w.Recent && j.State.Done() ||
			len(w.Partitions) > 0 && !slices.Contains(w.Partitions, j.Partition) || len(w.Names) > 0 && !slices.Contains(w.Names, j.Name)
	})
}
