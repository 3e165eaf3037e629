package test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// programsCluster is a cluster of slurm.conf, with programs that write down what they were run
// for, and do wrong where a file says so.
type programsCluster struct {
	*cluster
	conf string
}

// shellProgram is a script in the cluster's configuration.
func (c *programsCluster) shellProgram(t *testing.T, name, text string) {
	t.Helper()
	path := filepath.Join(c.conf, name)
	if err := os.WriteFile(path, []byte("#!/bin/sh\ncd "+filepath.Join(c.dir, "home")+" || exit 9\n"+text+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, 0o755); err != nil { // whatever the umask is
		t.Fatal(err)
	}
}

// mark makes a file that programs look for, or removes it.
func (c *programsCluster) mark(t *testing.T, name string, there bool) {
	t.Helper()
	path := filepath.Join(c.dir, "home", name)
	var err error
	if there {
		err = os.WriteFile(path, nil, 0o644)
	} else {
		err = os.Remove(path)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// configure writes slurm.conf.
func (c *programsCluster) configure(t *testing.T, lines string) {
	t.Helper()
	text := "ClusterName=trial\nNodeName=n[1-3] CPUs=4 RealMemory=1000\nPartitionName=main Nodes=ALL Default=YES\n" + strings.ReplaceAll(lines, "CONF", c.conf)
	if err := os.WriteFile(filepath.Join(c.conf, "slurm.conf"), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// testClusterPrograms: prolog, epilog and health check of slurm.conf, by real agents.
func testClusterPrograms(t *testing.T, bin string) {
	p := newPersonWith(t, filepath.Join(bin, "gangway"))
	c := &programsCluster{conf: p.mkdir(t, "home/slurm"), cluster: &cluster{person: p, state: filepath.Join(p.dir, "home", "state")}}
	p.mkdir(t, "home/slurm/prolog.d")
	c.args = []string{"--slurm-conf", c.conf}
	// A program waits while a file is there that is named as it and its node, and fails at one more.
	waits := "echo %[1]s $$ > at-%[1]s-$SLURMD_NODENAME; while test -e wait-%[1]s-$SLURMD_NODENAME; do /bin/sleep 0.05; done\n" +
		"if test -e bad-%[1]s-$SLURMD_NODENAME; then echo it is bad; exit 3; fi\n"
	c.shellProgram(t, "prolog.d/20", "echo 20 $SLURM_JOB_ID $SLURMD_NODENAME >> ran")
	c.shellProgram(t, "prolog.d/10", fmt.Sprintf(waits, "prolog")+"echo 10 $SLURM_JOB_ID $SLURMD_NODENAME >> ran; /usr/bin/env > env-prolog")
	c.shellProgram(t, "epilog", fmt.Sprintf(waits, "epilog")+"echo epilog $SLURM_JOB_ID $SLURMD_NODENAME $SLURM_JOB_EXIT_CODE2 >> ran; /usr/bin/env > env-epilog")
	c.shellProgram(t, "health", "echo $SLURMD_NODENAME >> checks\nif test -e sick-$SLURMD_NODENAME; then "+
		filepath.Join(bin, "scontrol")+" update NodeName=$SLURMD_NODENAME State=DRAIN Reason=fever; fi\nexit 1")
	c.configure(t, "Prolog=CONF/prolog.d/*\nEpilog=CONF/epilog\nHealthCheckProgram=CONF/health\nHealthCheckInterval=1\n")
	t.Cleanup(func() {
		if t.Failed() {
			c.showLogs(t)
		}
		c.wantNothing(t)
	})
	c.start(t)

	c.run(t)
	c.epilogHolds(t)
	c.badPrograms(t)
	c.killedWithin(t)
	c.health(t)
	c.allocated(t)
}

// ran waits until the programs of a job have run as is said, in their order on each node.
func (c *programsCluster) ran(t *testing.T, id, want string) {
	t.Helper()
	got := ""
	waitFor(t, func() bool {
		b, _ := os.ReadFile(filepath.Join(c.dir, "home", "ran"))
		all := map[string]string{}
		for line := range strings.Lines(string(b)) {
			if f := strings.Fields(line); len(f) > 2 && f[1] == id {
				all[f[2]] += " " + strings.Join(append(f[:1:1], f[3:]...), " ")
			}
		}
		var nodes []string
		for node, what := range all {
			nodes = append(nodes, node+":"+what)
		}
		slices.Sort(nodes)
		got = strings.Join(nodes, "; ")
		return got == want || strings.Count(got, " ") > strings.Count(want, " ")
	})
	if got != want {
		t.Errorf("programs of job %s: %s; want %s", id, got, want)
	}
}

// run: the prolog runs on each node before what first runs there, with the job's environment,
// and the epilog when the job is over.
func (c *programsCluster) run(t *testing.T) {
	id := c.submit(t, "cat ran > at-begin; srun -N2 true; exit 7", "-N2", "-w", "n1,n2", "-J", "named", "--comment=a b", "-o", "out-%j")
	if got := c.ended(t, id); got != "FAILED|7:0" {
		t.Errorf("job %s: %s\n%s", id, got, c.file(t, "out-"+id, ""))
	}
	c.ran(t, id, "n1: 20 10 epilog 7:0; n2: 20 10 epilog 7:0")
	if got := c.file(t, "at-begin", ""); got != "20 "+id+" n1\n10 "+id+" n1\n" { // n2's comes with the step
		t.Errorf("when the script began there was %q", got)
	}
	has := c.file(t, "env-prolog", "CONTEXT")
	for _, want := range []string{
		"SLURM_JOB_ID=" + id, "SLURM_JOBID=" + id, fmt.Sprintf("SLURM_JOB_UID=%d", c.uid()), "SLURM_JOB_USER=\\w+", "SLURM_JOB_GID=\\d+", "SLURM_JOB_PARTITION=main",
		"SLURM_JOB_NODELIST=n\\[1-2\\]", "SLURM_CLUSTER_NAME=trial", "SLURMD_NODENAME=n[12]", "SLURM_JOB_NAME=named", "SLURM_JOB_COMMENT=a b",
		"SLURM_SCRIPT_CONTEXT=prolog_slurmd", "SLURM_JOB_CPUS_PER_NODE=\\d\\(x2\\)", "SLURM_JOB_WORK_DIR=" + filepath.Join(c.dir, "home"),
	} {
		if !regexp.MustCompile("(?m)^" + want + "$").MatchString(has) {
			t.Errorf("the prolog's environment has no %s:\n%s", want, has)
		}
	}
	if regexp.MustCompile(`(?m)^(HOME|PATH|LD_\w+|SLURM_JOB_EXIT_CODE2)=`).MatchString(has) {
		t.Errorf("the prolog's environment is\n%s", has)
	}
	if got := c.file(t, "env-epilog", "CONTEXT"); !strings.Contains(got, "SLURM_JOB_EXIT_CODE2=7:0\n") || !strings.Contains(got, "SLURM_JOB_EXIT_CODE=1792\n") {
		t.Errorf("the epilog's environment is\n%s", got)
	}
	// An epilog runs on nodes of the job where nothing has.
	id = c.submit(t, "true", "-N2", "-w", "n1,n2")
	c.ended(t, id)
	c.ran(t, id, "n1: 20 10 epilog 0:0; n2: epilog 0:0")
}

// epilogHolds: a node is given on when its epilog has ended.
func (c *programsCluster) epilogHolds(t *testing.T) {
	c.mark(t, "wait-epilog-n1", true)
	id := c.submit(t, "true", "-w", "n1", "--exclusive")
	next := c.submit(t, "date", "-w", "n1", "-o", "out-%j")
	waitFor(t, func() bool { return strings.HasPrefix(c.do(t, "squeue", "-h", "-j", id, "-o", "%t"), "CG") })
	c.file(t, "at-epilog-n1", "epilog")
	if got := strings.TrimSpace(c.do(t, "squeue", "-h", "-j", next, "-o", "%t")); got != "PD" {
		t.Errorf("the next job is %s while the epilog runs", got)
	}
	c.mark(t, "wait-epilog-n1", false)
	if got := c.ended(t, id); got != "COMPLETED|0:0" {
		t.Errorf("job %s: %s", id, got)
	}
	c.ended(t, next)
}

// drained waits until a node is, for a reason, and lets it go on.
func (c *programsCluster) drained(t *testing.T, node, reason string) {
	t.Helper()
	waitFor(t, func() bool {
		return strings.TrimSpace(c.do(t, "sinfo", "-h", "-N", "-n", node, "-o", "%T %E")) == "drained "+reason
	})
}

func (c *programsCluster) resume(t *testing.T, node string) {
	t.Helper()
	c.do(t, "scontrol", "update", "NodeName="+node, "State=RESUME")
}

// badPrograms: a node whose prolog or epilog fails is drained, and a job that could not begin
// there runs elsewhere, or waits.
func (c *programsCluster) badPrograms(t *testing.T) {
	c.mark(t, "bad-prolog-n1", true)
	id := c.submit(t, "echo on $SLURMD_NODENAME ${SLURM_RESTART_COUNT:-0}", "-o", "out-%j")
	if got := c.ended(t, id); got != "COMPLETED|0:0" {
		t.Errorf("job %s: %s", id, got)
	}
	if got := c.file(t, "out-"+id, ""); got != "on n2 1\n" {
		t.Errorf("output %q", got)
	}
	c.drained(t, "n1", "Prolog error")
	if log, err := os.ReadFile(filepath.Join(c.state, "log", "n1.log")); err != nil || !strings.Contains(string(log), "it is bad") || !strings.Contains(string(log), "exit code 3") {
		t.Errorf("the agent's log: %v: %s", err, log)
	}
	// Where no other node is free of it the job waits, until it is mended.
	id = c.submit(t, "true", "-w", "n1")
	c.resume(t, "n1")
	c.drained(t, "n1", "Prolog error")
	if got := strings.TrimSpace(c.do(t, "squeue", "-h", "-j", id, "-o", "%t")); got != "PD" {
		t.Errorf("job %s is %s", id, got)
	}
	c.mark(t, "bad-prolog-n1", false)
	c.resume(t, "n1")
	if got := c.ended(t, id); got != "COMPLETED|0:0" {
		t.Errorf("job %s: %s", id, got)
	}
	c.mark(t, "bad-prolog-n3", true)
	o := outcomeOf(t, c.command("srun", "-w", "n3", "true"))
	o.want(t, 1, "", "run the prolog of the cluster on node n3")
	c.drained(t, "n3", "Prolog error")
	c.mark(t, "bad-prolog-n3", false)
	c.resume(t, "n3")

	c.mark(t, "bad-epilog-n2", true)
	id = c.submit(t, "true", "-w", "n2")
	if got := c.ended(t, id); got != "COMPLETED|0:0" {
		t.Errorf("job %s: %s", id, got)
	}
	c.drained(t, "n2", "Epilog error")
	c.mark(t, "bad-epilog-n2", false)
	c.resume(t, "n2")
}

// killedWithin: a program that runs while its agent is killed is ended, and run again; one that
// has ended is not.
func (c *programsCluster) killedWithin(t *testing.T) {
	agent := `^\S*gangwayd agent .*--node n1 `
	for _, what := range []string{"prolog", "epilog"} {
		file := "at-" + what + "-n1"
		_ = os.Remove(filepath.Join(c.dir, "home", file))
		c.mark(t, "wait-"+what+"-n1", true)
		id := c.submit(t, "echo began; while test -e hold; do sleep 0.05; done; srun true", "-w", "n1", "-o", "out-%j")
		first := c.pidIn(t, file, 0)
		c.killed(t, agent)
		again := c.pidIn(t, file, first)
		if err := syscall.Kill(first, 0); err == nil && again != first {
			t.Errorf("the first %s still runs", what)
		}
		c.mark(t, "wait-"+what+"-n1", false)
		if got := c.ended(t, id); got != "COMPLETED|0:0" {
			t.Errorf("job %s: %s", id, got)
		}
		c.ran(t, id, map[string]string{"prolog": "n1: 20 20 10 epilog 0:0", "epilog": "n1: 20 10 epilog 0:0"}[what])
	}
	c.mark(t, "hold", true)
	id := c.submit(t, "echo began; while test -e hold; do sleep 0.05; done; srun true", "-w", "n1", "-o", "out-%j")
	c.file(t, "out-"+id, "began")
	c.killed(t, agent)
	c.mark(t, "hold", false)
	if got := c.ended(t, id); got != "COMPLETED|0:0" {
		t.Errorf("job %s: %s", id, got)
	}
	c.ran(t, id, "n1: 20 10 epilog 0:0")
}

// pidIn waits until a program has written its number, another one than it was.
func (c *programsCluster) pidIn(t *testing.T, name string, not int) (pid int) {
	t.Helper()
	waitFor(t, func() bool {
		b, _ := os.ReadFile(filepath.Join(c.dir, "home", name))
		if f := strings.Fields(string(b)); len(f) == 2 {
			pid, _ = strconv.Atoi(f[1])
		}
		return pid != 0 && pid != not
	})
	return pid
}

// health: the check runs again and again, its exit code means nothing, and what it does to its
// node counts.
func (c *programsCluster) health(t *testing.T) {
	count := func() int { return strings.Count(c.file(t, "checks", "n3"), "n3\n") }
	before := count()
	waitFor(t, func() bool { return count() > before+1 })
	c.mark(t, "sick-n3", true)
	c.drained(t, "n3", "fever")
	c.mark(t, "sick-n3", false)
	c.resume(t, "n3")
}

// allocated: with PrologFlags=Alloc the prolog runs when a job gets its nodes, on all of them.
func (c *programsCluster) allocated(t *testing.T) {
	c.configure(t, "Prolog=CONF/prolog.d/*\nEpilog=CONF/epilog\nPrologFlags=Alloc,DeferBatch\n")
	c.do(t, "scontrol", "reconfigure")
	if got := c.do(t, "scontrol", "show", "config"); !regexp.MustCompile("(?m)^PrologFlags +=.*Alloc,DeferBatch$").MatchString(got) {
		t.Errorf("the configuration is\n%s", got)
	}
	c.mark(t, "wait-prolog-n2", true)
	_ = os.Remove(filepath.Join(c.dir, "home", "at-prolog-n2"))
	id := c.submit(t, "cat ran > at-begin", "-N2", "-w", "n1,n2")
	c.pidIn(t, "at-prolog-n2", 0)
	c.ran(t, id, "n1: 20 10; n2: 20")
	c.mark(t, "wait-prolog-n2", false)
	if got := c.ended(t, id); got != "COMPLETED|0:0" {
		t.Errorf("job %s: %s", id, got)
	}
	if got := c.file(t, "at-begin", ""); strings.Count(got, "10 "+id+" ") != 2 {
		t.Errorf("when the script began there was\n%s", got)
	}
	c.ran(t, id, "n1: 20 10 epilog 0:0; n2: 20 10 epilog 0:0")
	c.mark(t, "bad-prolog-n2", true)
	id = c.submit(t, "echo $SLURM_JOB_NODELIST", "-N2", "-o", "out-%j")
	if got := c.ended(t, id); got != "COMPLETED|0:0" {
		t.Errorf("job %s: %s", id, got)
	}
	if got := c.file(t, "out-"+id, ""); got != "n[1,3]\n" {
		t.Errorf("it ran on %s", got)
	}
	c.drained(t, "n2", "Prolog error")
}
