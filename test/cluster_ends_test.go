package test

import (
	"regexp"
	"strings"
	"testing"
)

// testClusterEnds: a script that is ended by its limit, by scancel, by a requeue or since it
// has lost a node, and the step that it runs, have Slurm's line about that in their output,
// and srun says that it waits for the end.
func testClusterEnds(t *testing.T, bin string) {
	c := newCluster(t, bin, "--cpus-per-node", "2")
	at := `CANCELLED AT \d{4}-\d\d-\d\dT\d\d:\d\d:\d\d`
	aborted := `srun: Job step aborted: Waiting up to 32 seconds for job step to finish\.`
	broken := c.submit(t, "echo begun\nexec sleep 600", "-w", "n3,n4", "--exclusive", "--no-requeue", "-o", "end-%j")
	c.file(t, "end-"+broken, "begun")
	limited := c.submit(t, "echo begun\nsrun sleep 600", "-N2", "-o", "end-%j", "--time", "0:01")
	// So has a step whose own limit it is. No limit is shorter than a minute.
	own := inBackground(t, c.command("salloc", "-Q", "srun", "--time=0:01", "sleep", "600"))
	cancelled := c.submit(t, "echo begun\nsrun sh -c 'echo ranks; exec sleep 600'", "-o", "end-%j")
	requeued := c.submit(t, "echo begun $SLURM_RESTART_COUNT\nexec sleep 600", "-o", "end-%j", "--open-mode=append")
	c.file(t, "end-"+cancelled, "ranks")
	c.do(t, "scancel", cancelled)
	c.file(t, "end-"+requeued, "begun")
	c.do(t, "scontrol", "requeue", requeued)
	c.file(t, "end-"+requeued, "begun 1")
	c.do(t, "scancel", requeued)
	c.do(t, "scontrol", "update", "nodename=n4", "state=down", "reason=test")
	for id, lines := range map[string][]string{
		limited: {`slurmstepd: error: \*\*\* JOB ` + limited + ` ON n\d ` + at + ` DUE TO TIME LIMIT \*\*\*`, `slurmstepd: error: \*\*\* STEP ` + limited + `\.0 ON n\d ` + at + ` DUE TO TIME LIMIT \*\*\*`, aborted},
		cancelled: {
			`slurmstepd: error: \*\*\* JOB ` + cancelled + ` ON n\d ` + at + ` \*\*\*`,
			`slurmstepd: error: \*\*\* STEP ` + cancelled + `\.0 ON n\d ` + at + ` \*\*\*`, aborted,
		},
		requeued: {`slurmstepd: error: \*\*\* JOB ` + requeued + ` ON n\d ` + at + ` DUE TO JOB REQUEUE \*\*\*`},
		broken:   {`slurmstepd: error: \*\*\* JOB ` + broken + ` ON n3 ` + at + ` DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS \*\*\*`},
	} {
		c.ended(t, id)
		got := c.file(t, "end-"+id, "")
		for _, line := range lines {
			if n := len(regexp.MustCompile("(?m)^"+line+"$").FindAllString(got, -1)); n != 1 {
				t.Errorf("%d lines %s in\n%s", n, line, got)
			}
		}
	}
	waitFor(t, own.ended)
	if got := own.out.String(); !regexp.MustCompile(`(?s)` + aborted + `\n.*slurmstepd: error: \*\*\* STEP \d+\.0 ON n\d ` + at + ` DUE TO TIME LIMIT \*\*\*\n`).MatchString(got) {
		t.Errorf("srun:\n%s", got)
	}
	testAborted(t, c, aborted)
}

// testAborted: who ends a job, or its step, from elsewhere is not the only one to know: srun,
// of which the job is, says once that it is being ended.
func testAborted(t *testing.T, c *cluster, line string) {
	for _, step := range []string{"", ".0"} {
		b := inBackground(t, c.command("srun", "-J", "gone", "sh", "-c", "trap 'echo term; exit 3' TERM; echo ready; while :; do sleep 0.1; done"))
		waitFor(t, func() bool { return strings.Contains(b.out.String(), "ready") })
		id := strings.TrimSpace(c.do(t, "squeue", "-h", "-n", "gone", "-o", "%i"))
		c.do(t, "scancel", id+step)
		waitFor(t, b.ended)
		if got := b.out.String(); len(regexp.MustCompile("(?m)^"+line+"$").FindAllString(got, -1)) != 1 || !strings.Contains(got, "term") {
			t.Errorf("srun of %s after its end by scancel:\n%s", id+step, got)
		}
	}
}
