package test

import (
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// wantChanges changes a job that runs, one that waits, an array and a partition, and looks at
// what they are then; after the controller was killed it is the same.
func (c *cluster) wantChanges(t *testing.T, runs, waits, array string) {
	c.do(t, "scontrol", "update", "JobId="+runs, "TimeLimit=+30", "Comment=for longer")
	c.do(t, "scontrol", "update", "JobId="+waits, "TimeLimit=20", "Nice=5", "Dependency=afterok:"+runs, "ExcNodeList=n4", "NumNodes=2", "Comment=")
	c.do(t, "scontrol", "update", "JobId="+array+"_3", "TimeLimit=3")
	c.do(t, "scontrol", "update", "JobId="+array, "ArrayTaskThrottle=5", "JobName=rows")
	c.do(t, "scontrol", "update", "PartitionName=main", "MaxTime=10:00:00", "DefaultTime=30")
	look := func() {
		t.Helper()
		c.wants(t, runs+"|1:30:00|for longer", "squeue", "-h", "-j", runs, "-o", "%i|%l|%k")
		c.wants(t, waits+"|20:00|5|afterok:"+runs+"(unfulfilled)|n4|2|Dependency", "squeue", "-h", "-j", waits, "-o", "%i|%l|%y|%E|%x|%D|%r")
		c.wants(t, "2 <\\S+>\n3 3:00", "squeue", "-h", "-r", "-j", array+"_[2-3]", "-S", "i", "-o", "%K %l")
		c.wants(t, array+"_[0-9%5] rows", "squeue", "-h", "-j", array, "-o", "%i %j")
		c.wants(t, "10:00:00 30:00", "sinfo", "-h", "-o", "%l %L")
	}
	look()
	for line := range strings.Lines(c.do(t, "scontrol", "update", "JobId="+array+"_[8-9]", "Nice=1")) {
		t.Errorf("scontrol update says %q", line)
	}
	c.refuses(t, 1, array+"_8-9: No error\n"+array+"_10-11: Invalid job id specified\n", "scontrol", "update", "JobId="+array+"_[8-11]", "Nice=1")
	c.refuses(t, 1, "TimeLimit decrement larger than current time limit (100 > 20)", "scontrol", "update", "JobId="+waits, "TimeLimit-=100")
	c.refuses(t, 1, "Job is no longer pending execution for job "+runs, "scontrol", "update", "JobId="+runs, "NumNodes=3")
	c.refuses(t, 1, "Invalid node name specified for job "+waits, "scontrol", "update", "JobId="+waits, "ReqNodeList=n9")
	c.refuses(t, 1, "slurm_update error: Invalid node name specified", "scontrol", "update", "PartitionName=main", "Nodes=n[1-9]")
	c.refuses(t, 1, array+"_0-9: Job is pending execution", "scontrol", "requeue", array)
	c.killed(t, `^\S*gangwayd controller `)
	waitFor(t, func() bool { return outcomeOf(t, c.command("scontrol", "ping")).code == 0 })
	look()
	c.do(t, "scontrol", "update", "JobId="+waits, "Dependency=", "ExcNodeList=", "NumNodes=4")
	c.do(t, "scontrol", "update", "PartitionName=main", "MaxTime=UNLIMITED", "DefaultTime=NONE")
	c.do(t, "scontrol", "wait_job", runs)
	c.refuses(t, 1, "Problem running job 4000000", "scontrol", "wait_job", "4000000")
	c.wants(t, "No reservations in the system", "scontrol", "show", "reservations")
	c.wants(t, "n1 n2 n3 n4", "scontrol", "show", "aliases")
	for _, verb := range []string{"top", "suspend", "create", "reboot"} {
		c.refuses(t, 1, "scontrol "+verb+" is not supported by Gangway", "scontrol", verb, "x")
	}
}

// wantUsage looks at what ranks of a running step use, and at what the controller has done.
func (c *cluster) wantUsage(t *testing.T) {
	id := c.submit(t, "srun -n2 --exact sh -c 'i=0; while :; do i=$((i+1)); done'", "-N2", "-n2", "-J", "spins")
	c.reaches(t, id, "RUNNING")
	used := func(field string) int {
		text := strings.TrimSpace(c.do(t, "sstat", "-n", "-P", "-j", id+".0", "-o", field))
		digits := regexp.MustCompile(`\d+`).FindAllString(text, -1)
		n := 0
		for _, d := range digits {
			part, err := strconv.Atoi(d)
			if err != nil {
				t.Fatal(err)
			}
			n = 60*n + part
		}
		return n
	}
	waitFor(t, func() bool { return strings.Contains(c.do(t, "squeue", "-h", "-s", "-j", id, "-o", "%i"), id+".0") })
	waitFor(t, func() bool { return used("AveCPU") >= 1 })
	c.wants(t, id+".0|2|<n\\d>|<[01]>|<\\d+K>|<\\d+K>", "sstat", "-n", "-P", "-j", id, "-o", "JobID,NTasks,MaxRSSNode,MaxRSSTask,MaxRSS,AveVMSize")
	c.wants(t, id+".batch|1\n"+id+".0|2", "sstat", "-n", "-P", "-a", "-j", id, "-o", "JobID,NTasks")
	c.wants(t, "PID JOBID STEPID LOCALID GLOBALID\n<\\d+> "+id+" 0 0 0\n<\\d+> "+id+" 0 0 1", "scontrol", "listpids", id+".0")
	if o := outcomeOf(t, c.command("sstat", "-j", "4000000")); o.code != 0 || !strings.Contains(o.err, "sstat: error: couldn't get steps for job 4000000") {
		t.Errorf("sstat of no job: %d, %s", o.code, o.err)
	}
	before := c.do(t, "sdiag")
	for _, want := range []string{`Jobs running: +[1-9]`, `Agent count: +4\n`, `\tREQUEST_SUBMIT_BATCH_JOB +\( 4003\) count:[1-9]`, `Remote Procedure Call statistics by user\n\t\S`} {
		if !regexp.MustCompile(want).MatchString(before) {
			t.Errorf("sdiag has no %s:\n%s", want, before)
		}
	}
	count := func(text string) string { return regexp.MustCompile(`Jobs submitted: \d+`).FindString(text) }
	c.submit(t, "true")
	if after := c.do(t, "sdiag"); count(after) == count(before) || count(after) == "" {
		t.Errorf("sdiag does not count: %q", count(after))
	}
	c.wants(t, "Reset scheduling statistics", "sdiag", "-r")
	if got := count(c.do(t, "sdiag")); got != "Jobs submitted: 0" {
		t.Errorf("sdiag -r: %s", got)
	}
	c.do(t, "scancel", id)
	c.ended(t, id)
}
