package listing_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
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
	if testing.Short() {
		t.Skip("-short: starts Slurm's slurmctld and four slurmd, which takes ten seconds")
	}
	var missing []string
	for _, program := range []string{"slurmctld", "slurmd", "squeue", "scontrol", "sinfo", "sbatch"} {
		if _, err := exec.LookPath(program); err != nil {
			missing = append(missing, program)
		}
	}
	if len(missing) > 0 {
		t.Skipf("needs %s: apt-get install slurm-client slurmd slurmctld", strings.Join(missing, ", "))
	}
	if os.Getuid() != 0 {
		t.Skip("needs root: slurmd starts for nobody else")
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
			r.t.Fatalf("Slurm has not %s within 40 s", what)
		}
	}
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
		{"-S", "+j,-i"},
		{"-t", "ST"},
		{"-t", "cg,st"},
		{"-q", "x"},
		{"-R", "x"},
		{"-O", ""},
		{"-O", ",jobid:.5,"},
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
		{"-O", "admin_comment:30|,BoardsPerNode:|,ClusterFeature:|,NTPerBoard:|,NTPerCore:|,NTPerNode:|,NTPerSocket:|,Origin:|,OriginRaw:|"},
		{"-O", "SiblingsActive:|,SiblingsActiveRaw:|,SiblingsViable:|,SiblingsViableRaw:|,SPerBoard:|,system_comment:|,tres-bind:|,tres-freq:|,Wait4Switch:|"},
		{"-O", "jobid:|,HetJobID:|,HetJobIDSet:|,HetJobOffset:|,MaxCPUs:|,MaxNodes:|,MCSLabel:|,mem-per-tres:|,MinTime:|,Network:|,PreemptTime:|,Prefer:|"},
		{"-O", "jobid:|,Profile:|,Reboot:|,ReqSwitch:|,ResizeTime:|,tres-per-job:|,tres-per-socket:|,tres-per-task:|,cpus-per-tres:|,DelayBoot:|,BurstBuffer:|"},
		{"-O", "jobid:|,BurstBufferState:|,AllocNodes:|,AssocID:|,Contiguous:|,CoreSpec:|,SCT:|,SelectJobInfo:|,SchedNodes:|,WCKey:|,Container:|,Licenses:|"},
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
		{"-s"},
		{"-s", "-o", "%i|%j|%l|%u|%A|%M|%N|%P|%S|%U"},
		{"-s", "-O", "ArrayJobID,ArrayTaskID,Cluster,JobID,NumCPUs,NumTasks,StepID,StepName,StepState,TimeLimit,TimeUsed,UserID,UserName"},
		{"-s", "-O", "CPUFreq,cpus-per-tres,mem-per-tres,Network,ResvPorts,tres-bind,tres-freq,tres-per-socket"},
		{"-s", "-O", "tres-per-step,tres-per-task,Container,Nodes,Partition,StartTime"},
	} {
		q, err := listing.ParseQueue(args, nothing, people{})
		if err != nil {
			t.Fatal(err)
		}
		var ours bytes.Buffer
		if err := q.PrintSteps(&ours, r.view(time.Now()), nil); err != nil {
			t.Fatal(err)
		}
		if theirs, _, _ := strings.Cut(r.run("squeue", args...), "\n"); theirs+"\n" != ours.String() {
			t.Errorf("squeue %q: the headings are\n%swith Slurm's own\n%s", args, ours.String(), theirs)
		}
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
		{"-t", ""},
		{"-t", "idle&drain"},
		{"-t", "down,no_respond"},
		{"-o", "%P|%N|%D|%c|%m|%d|%w|%f|%G|%T", "-S", "-N"},
		{"-S", "D,N"},
		{"-S", "-P,-t"},
		{"-O", "partition:.7|,available:3,nodes:.4,statecompact:>"},
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
	r := startReferee(t)
	r.submit()
	t.Cleanup(func() { _, _ = r.try("scancel", "-u", "root", "-s", "KILL"); _, _ = r.try("scancel", "-u", "root") })
	c := &listing.Control{}
	for _, kind := range []string{"job", "node", "partition"} {
		var theirs, ours string
		// Slurm's scheduler looks at some jobs only in its next turns, which shows.
		for end := time.Now().Add(20 * time.Second); theirs == "" || time.Now().Before(end); time.Sleep(200 * time.Millisecond) {
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

// said is what a command says of an error, as cmd/gangway does it, and its exit code.
func said(name string, err error) (text string, code int) {
	var refusal *slurm.Refusal
	var usage *slurm.UsageError
	switch {
	case errors.As(err, &refusal):
		for _, line := range refusal.Lines {
			if !refusal.Plain {
				text += name + ": "
			}
			text += line + "\n"
		}
		return text, refusal.Code
	case errors.As(err, &usage):
		return name + ": " + usage.Text + "\nTry \"" + name + " --help\" for more information\n", 1
	}
	return fmt.Sprint(err), -1
}

// TestBadInputAgainstSlurm: what cannot be read is refused in Slurm's words, with its exit code.
func TestBadInputAgainstSlurm(t *testing.T) {
	r := startReferee(t)
	now := time.Now()
	parse := map[string]func([]string) error{
		"squeue": func(args []string) error {
			q, err := listing.ParseQueue(args, nothing, people{})
			if err == nil {
				err = q.Print(io.Discard, r.view(now), q.Select(r.view(now), nil))
			}
			return err
		},
		"sinfo":   func(args []string) error { _, err := listing.ParseInfo(args, nothing); return err },
		"sstat":   func(args []string) error { _, err := listing.ParseStat(args); return err },
		"sdiag":   func(args []string) error { _, err := listing.ParseDiag(args); return err },
		"scancel": func(args []string) error { _, err := slurm.ParseCancel(args, nothing); return err },
		"scontrol": func(args []string) error {
			c, err := listing.ParseControl(args)
			switch {
			case err == nil && c.Verb == "update":
				_, err = listing.ParseUpdate(c.Args, now)
			case err == nil && c.Verb == "listpids":
				_, err = listing.ParsePIDs(c.Args)
			}
			return err
		},
	}
	for _, command := range []string{
		"squeue -t foo", "squeue -t pd,foo", "squeue -t all,foo", "squeue -j abc", "squeue -j 1,abc", "squeue -j 0", "squeue -j 1.0", "squeue -j 1_x",
		"squeue -S xyz", "squeue -S q", "squeue -S !", "squeue -S i,q", "squeue -i 0", "squeue -i abc", "squeue -s x", "squeue --foo", "squeue -Z", "squeue -o",
		"sinfo -t foo", "sinfo -t idle,foo", "sinfo -t idle+drain", "sinfo -i 0", "sinfo --foo", "sinfo -Z",
		"sstat -j abc", "sstat foo", "sstat", "sstat -a", "sstat -j 1.x", "sstat -j 1 -o nosuch", "sstat -j 1 -o all",
		"sdiag -Z", "sdiag --foo",
		"scancel", "scancel abc", "scancel 1_x", "scancel 0", "scancel -s FOO 1", "scancel -t foo", "scancel foo bar",
		"scontrol foo", "scontrol show", "scontrol show foo", "scontrol show hostlist n1 n2", "scontrol hold", "scontrol release", "scontrol requeue",
		"scontrol wait_job", "scontrol listpids abc", "scontrol update", "scontrol update foo", "scontrol update foo=bar", "scontrol update jobid=1",
		"scontrol update jobid=1 foo=bar", "scontrol update jobid=1 timelimit=abc", "scontrol update jobid=1 priority=abc", "scontrol update jobid=1 numtasks=abc",
		"scontrol update jobid=1 requeue=abc", "scontrol update jobid=1 starttime=abc", "scontrol update jobid=1 deadline=abc",
		"scontrol update jobid=1 minmemorynode=abc", "scontrol update jobid=1 contiguous=abc", "scontrol update jobid=1 shared=abc",
		"scontrol update nodename=n1", "scontrol update nodename=n1 state=drain", "scontrol update nodename=n1 foo=bar",
		"scontrol update partitionname=main", "scontrol update partitionname=main maxnodes=abc",
	} {
		words := strings.Fields(command)
		var stderr bytes.Buffer
		cmd := r.command(words[0], words[1:]...)
		cmd.Stderr = &stderr
		_ = cmd.Run() // how it ends is compared
		text, code := said(words[0], parse[words[0]](words[1:]))
		if text != stderr.String() || code != cmd.ProcessState.ExitCode() {
			t.Errorf("%s: ours\n%d %q\nis, with Slurm's own,\n%d %q", command, code, text, cmd.ProcessState.ExitCode(), stderr.String())
		}
	}
}
