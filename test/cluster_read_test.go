package test

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"
)

// testClusterReading looks at a cluster with all of the reading commands.
func testClusterReading(t *testing.T, bin string) {
	c := newCluster(t, bin, "--gres", "gpu:h100:8", "--cpus-per-node", "8")
	fails := c.submit(t, "exit 3", "-J", "fails")
	gang := c.submit(t, "srun sleep 0.1", "-J", "gang", "-N4", "--gres=gpu:8", "--time=10")
	for id, want := range map[string]string{fails: "FAILED|3:0", gang: "COMPLETED|0:0"} {
		if got := c.ended(t, id); got != want {
			t.Errorf("job %s ended as %s, want %s", id, got, want)
		}
	}
	runs := c.submit(t, "sleep 1000", "-J", "a-long-name-of-a-job", "-N2", "--gres=gpu:h100:8", "--time=1:00:00", "--comment=why")
	c.reaches(t, runs, "RUNNING")
	waits := c.submit(t, "true", "-J", "waits", "-N4", "--gres=gpu:8", "--time=30")
	array := c.submit(t, "true", "-J", "array", "--array=0-9%2", "--begin=now+1hour")
	held := c.submit(t, "true", "-J", "held", "--hold")

	t.Run("squeue", func(t *testing.T) { c.wantQueue(t, runs, waits, array, held) })
	t.Run("sacct", func(t *testing.T) { c.wantAccounts(t, fails, gang, runs) })
	t.Run("scontrol", func(t *testing.T) { c.wantControl(t, runs, waits, held) })
	t.Run("sinfo", func(t *testing.T) { c.wantNodes(t) })
	t.Run("native", func(t *testing.T) { c.wantNative(t, fails, runs, waits) })
	t.Run("changes", func(t *testing.T) { c.wantChanges(t, runs, waits, array) })
	t.Run("usage", func(t *testing.T) { c.wantUsage(t) })
	c.do(t, "scancel", runs, waits, array) // held has run
	c.ended(t, runs)
}

// reaches waits until a job is in a state.
func (c *cluster) reaches(t *testing.T, id, want string) {
	t.Helper()
	for deadline := time.Now().Add(clusterPatience); ; time.Sleep(20 * time.Millisecond) {
		got := strings.TrimSpace(c.do(t, "squeue", "-h", "-t", "all", "-j", id, "-o", "%T"))
		if got == want {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("job %s is %s, want %s", id, got, want)
		}
	}
}

// wants compares a command's output with a pattern, line by line: in it, what is in <> is a
// regular expression, and spaces stand for any number of them.
func (c *cluster) wants(t *testing.T, pattern, name string, args ...string) {
	t.Helper()
	got := strings.TrimSpace(regexp.MustCompile(` +`).ReplaceAllString(c.do(t, name, args...), " "))
	var b strings.Builder
	for i, part := range regexp.MustCompile(`[<>]`).Split(strings.TrimSpace(pattern), -1) {
		if i%2 == 1 {
			b.WriteString("(?:" + part + ")")
		} else {
			b.WriteString(regexp.QuoteMeta(part))
		}
	}
	want := regexp.MustCompile(`^` + strings.ReplaceAll(b.String(), "\n", " ?\n ?") + `$`)
	if !want.MatchString(strings.ReplaceAll(got, " \n", "\n")) {
		t.Errorf("%s %q is\n%s\nwant\n%s", name, args, got, pattern)
	}
}

// refuses is a command that has to fail with a code, and say so.
func (c *cluster) refuses(t *testing.T, code int, says, name string, args ...string) {
	t.Helper()
	if o := outcomeOf(t, c.command(name, args...)); o.code != code || !strings.Contains(o.err, says) {
		t.Errorf("%s %q: exit %d, %q; want %d and %q", name, args, o.code, o.err, code, says)
	}
}

func (c *cluster) wantQueue(t *testing.T, runs, waits, array, held string) {
	c.wants(t, `
JOBID PARTITION NAME USER ST TIME NODES NODELIST(REASON)
 `+waits+` main waits <\S+> PD 0:00 4 (Resources)
 `+array+`_[0-9%2] main array <\S+> PD 0:00 1 (BeginTime)
 `+held+` main held <\S+> PD 0:00 1 (JobHeldUser)
 `+runs+` main a-long-n <\S+> R 0:<\d\d> 2 <n\[1-2\]|n\[2-3\]|n\[3-4\]|n\[1,3\]|n\[1,4\]|n\[2,4\]>`, "squeue")
	guide := "%.18i %.9P %.30j %.8u %.8T %.10M %.6D %R %b"
	c.wants(t, runs+` main a-long-name-of-a-job <\S+> RUNNING 0:<\d\d> 2 n<\S+> gres/gpu:h100:8`, "squeue", "-h", "-j", runs, "--format="+guide)
	c.wants(t, runs+`|R|00`, "squeue", "--noheader", "-j", runs, "-o", "%i|%t|00")
	c.wants(t, array+"_[1,4%2]", "squeue", "-h", "-j", array+"_1,"+array+"_4", "-o", "%i")
	c.wants(t, strings.TrimSpace(strings.Repeat("array PENDING\n", 10)), "squeue", "-h", "-r", "-n", "array", "-o", "%j %T")
	c.wants(t, "JOBID ST REASON\n"+held+" PD JobHeldUser", "squeue", "-j", held, "-O", "JobArrayID,StateCompact,Reason")
	c.wants(t, waits+`|PENDING`, "squeue", "--job", waits, "-h", "-o", "%i|%T")
	if start := strings.TrimSpace(c.do(t, "squeue", "--start", "-h", "-j", waits, "-o", "%S")); !regexp.MustCompile(`^20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d$`).MatchString(start) {
		t.Errorf("job %s is expected to start at %q", waits, start)
	}
	c.wants(t, waits+" <20\\S+> n[1-4]", "squeue", "--start", "-h", "-j", waits, "-o", "%i %S %Y")
	c.wants(t, runs+`.batch batch main <\S+> 0:<\d\d> n<\d>`, "squeue", "-s", "-h")
	c.refuses(t, 1, "slurm_load_jobs error: Invalid job id specified", "squeue", "-j", "4000000")
	c.refuses(t, 1, "squeue: error: Invalid job state specified: nonsense", "squeue", "-t", "nonsense")
	c.refuses(t, 1, "squeue: error: Invalid node name n9", "squeue", "-w", "n[1,9]")
	c.refuses(t, 1, "'nosuch' can't be reached now", "squeue", "-M", "nosuch")
	c.refuses(t, 1, "squeue: error: --iterate=0", "squeue", "-i", "0")
	c.refuses(t, 1, "unrecognized option '--nonsense'", "squeue", "--nonsense")
}

func (c *cluster) wantAccounts(t *testing.T, fails, gang, runs string) {
	c.wants(t, `
JobID JobName Partition Account AllocCPUS State ExitCode
------------ ---------- ---------- ---------- ---------- ---------- --------
`+fails+` fails main 1 FAILED 3:0
`+fails+`.batch batch 1 FAILED 3:0`, "sacct", "-j", fails)
	c.wants(t, `
JobID|AllocGRES|State|NodeList
`+gang+`|gpu:32|COMPLETED|n[1-4]
`+gang+`.batch|gpu:8|COMPLETED|n1
`+gang+`.0|gpu:32|COMPLETED|n[1-4]`, "sacct", "--parsable2", "-j", gang, "--format=JobID,AllocGRES,State,NodeList")
	c.wants(t, gang+`|COMPLETED|`, "sacct", "-X", "-n", "-p", "-o", "jobid,state", "-j", gang)
	c.wants(t, "COMPLETED", "sacct", "-X", "-n", "-o", "state", "--name", "gang")
	c.wants(t, "a-long-na+", "sacct", "-X", "-n", "-o", "jobname", "-j", runs)
	c.wants(t, fails+"|1", "sacct", "-X", "-n", "-P", "-S", "now-1hour", "-s", "failed", "-o", "jobid,alloccpus")
	c.wants(t, "JobID|State", "sacct", "-P", "-o", "JobID,State", "-j", "4000000")
	c.wants(t, "", "squeue", "-h", "-j", fails) // who waits until it is gone sees that it is
	again := c.submit(t, "sleep 1000", "-J", "again")
	c.reaches(t, again, "RUNNING")
	c.do(t, "scontrol", "requeue", again)
	attempts := []string{"sacct", "-D", "-X", "-n", "-P", "-j", again, "-o", "State"}
	waitFor(t, func() bool { return c.do(t, attempts[0], attempts[1:]...) == "REQUEUED\nRUNNING\n" })
	c.do(t, "scancel", again)
	c.ended(t, again)
	c.wants(t, "REQUEUED\nCANCELLED by <\\d+>", attempts[0], attempts[1:]...)
	c.wants(t, "CANCELLED by <\\d+>", "sacct", "-X", "-n", "-P", "-j", again, "-o", "State")
	c.refuses(t, 1, `Invalid field requested: "nonsense"`, "sacct", "-o", "nonsense")
}

func (c *cluster) wantControl(t *testing.T, runs, waits, held string) {
	record := c.do(t, "scontrol", "show", "job", runs)
	for _, want := range []string{
		"JobId=" + runs + " JobName=a-long-name-of-a-job\n", "JobState=RUNNING Reason=None", "TimeLimit=01:00:00", "BatchHost=n", "NumNodes=2 NumCPUs=2 NumTasks=2",
		"BatchFlag=1", "TresPerNode=gres/gpu:h100:8", "Comment=why", "StdOut=/", "WorkDir=/",
	} {
		if !strings.Contains(record, want) {
			t.Errorf("scontrol show job %s has no %q:\n%s", runs, want, record)
		}
	}
	if one := c.do(t, "scontrol", "-o", "show", "job="+waits); strings.Count(one, "\n") != 1 || !strings.Contains(one, " JobState=PENDING Reason=Resources ") {
		t.Errorf("scontrol -o: %s", one)
	}
	c.do(t, "scontrol", "release", held)
	c.ended(t, held)
	c.do(t, "scontrol", "hold", waits)
	c.wants(t, "JobHeldUser", "squeue", "-h", "-j", waits, "-o", "%r")
	c.do(t, "scontrol", "release", waits)
	c.do(t, "scontrol", "update", "JobId="+waits, "TimeLimit=45", "Name=another")
	c.wants(t, "another 45:00", "squeue", "-h", "-j", waits, "-o", "%j %l")
	c.wants(t, "n1\nn2\nn3", "scontrol", "show", "hostnames", "n[1-3]")
	c.wants(t, "n[1-3,7]", "scontrol", "show", "hostlist", "n1,n2,n3,n7")
	c.refuses(t, 1, "host list is empty", "scontrol", "show", "hostnames")
	c.refuses(t, 1, "slurm_load_jobs error: Invalid job id specified", "scontrol", "show", "job", "4000000")
	c.refuses(t, 1, "'nosuch' can't be reached now", "scontrol", "-M", "nosuch", "show", "job")
	if o := outcomeOf(t, c.command("scontrol", "-Q", "show", "job", "4000000")); o.code != 1 || o.err != "" {
		t.Errorf("scontrol -Q says %q and exits with %d", o.err, o.code)
	}
	c.refuses(t, 1, "Invalid job id specified for job 4000000", "scontrol", "hold", "4000000")
	c.refuses(t, 1, "Update of this parameter is not supported: Nonsense=1", "scontrol", "update", "JobId="+waits, "Nonsense=1")
	c.refuses(t, 1, "You must specify a reason when DOWNING or DRAINING a node", "scontrol", "update", "NodeName=n4", "State=DRAIN")
	if config := c.do(t, "scontrol", "show", "config"); !strings.Contains(config, "MinJobAge               = 300 sec\n") {
		t.Errorf("scontrol show config:\n%s", config)
	}
}

func (c *cluster) wantNodes(t *testing.T) {
	c.wants(t, `
PARTITION AVAIL TIMELIMIT NODES STATE NODELIST
main* up infinite 2 mix n<\S+>
main* up infinite 2 idle n<\S+>`, "sinfo")
	c.do(t, "scontrol", "update", "NodeName=n4", "State=DRAIN", "Reason=bad gpu")
	c.wants(t, `
REASON USER TIMESTAMP NODELIST
bad gpu <\S+ \S+> n4`, "sinfo", "-R")
	c.wants(t, `n4|<drained|draining>|bad gpu`, "sinfo", "-h", "-N", "-n", "n4", "-o", "%N|%T|%E")
	c.do(t, "scontrol", "update", "NodeName=n4", "State=RESUME")
	c.wants(t, `2/2/0/4 2/30/0/32`, "sinfo", "-h", "-o", "%F %C")
	c.wants(t, "gpu:h100:8", "sinfo", "-h", "-n", "n1", "-o", "%G")
	record := c.do(t, "scontrol", "show", "node", "n1")
	if !strings.Contains(record, "NodeName=n1 ") || !strings.Contains(record, "Gres=gpu:h100:8") || !strings.Contains(record, "declared") {
		t.Error(record)
	}
}

func (c *cluster) wantNative(t *testing.T, fails, runs, waits string) {
	var queue struct {
		Jobs []struct {
			ID   int
			Name string
		}
	}
	if b := c.do(t, "queue", "--json"); json.Unmarshal([]byte(b), &queue) != nil || len(queue.Jobs) < 3 || fmt.Sprint(queue.Jobs[0].ID) != runs {
		t.Errorf("gangway queue --json: %s", b)
	}
	for args, want := range map[string]string{
		"queue":                          `(?m)^` + runs + ` +a-long-name-of-a-job +\S+ +running +\d+s +1h00m +2 +2 +8xh100 +n\[`,
		"nodes":                          `(?m)^n\S+ +2 +mixed +1 of 8 .* 8 of 8 h100`,
		"history " + fails:               `(?m)^` + fails + ` .*failed .*exit 3`,
		"show job " + runs:               `(?m)^time +\d+s of 1h00m$`,
		"show " + fails:                  `(?m)^exit +3$`,
		"show --events job " + fails:     `(?m) Started +attempt 1 gets n`,
		"show node n1":                   `(?m)^hardware +as declared`,
		"show partition main":            `(?m)^partition +main \(default\)$`,
		"explain " + waits:               `(?s)^job ` + waits + ` waits \(Resources\).*expected to start: .*job ` + runs + ` reaches its time limit.*busy`,
		"plan --drain n[1-4]":            `(?m)^` + waits + ` .*never +could not run$`,
		"plan --nodes 2 --gres gpu:h100": `what you asked about`,
	} {
		if got := c.do(t, strings.Fields(args)[0], strings.Fields(args)[1:]...); !regexp.MustCompile(want).MatchString(got) {
			t.Errorf("gangway %s:\n%swant %s", args, got, want)
		}
	}
	for _, args := range []string{"nodes", "history", "show job " + runs, "show node n1", "show partition main", "explain " + waits, "plan --drain n1", "image ls --nodes all"} {
		b := c.do(t, strings.Fields(args)[0], append(strings.Fields(args)[1:], "--json")...)
		if !json.Valid([]byte(b)) {
			t.Errorf("gangway %s --json: %s", args, b)
		}
	}
	c.refuses(t, 2, "there is no node n9", "nodes", "n9")
	c.refuses(t, 2, "there is no partition nosuch", "nodes", "--partition", "nosuch")
	c.refuses(t, 2, `there is no state "nosuch" of nodes`, "nodes", "--states", "nosuch")
	c.refuses(t, 2, "there is no partition nosuch", "queue", "--partition", "nosuch")
	c.refuses(t, 2, "there is no node n9", "queue", "--nodelist", "n9")
	c.refuses(t, 125, "does not wait: it is running", "explain", runs)
	c.refuses(t, 125, "Invalid job id specified", "show", "job", "4000000")
}
