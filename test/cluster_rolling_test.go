package test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// newerPrograms builds both programs as a later release has them.
func newerPrograms(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w -X github.com/gangway-hpc/gangway/internal/cli.version=v9.9.9", "-o", dir, "../cmd/gangway", "../cmd/gangwayd")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return dir
}

// copyFile puts a file where another may be that is in use.
func copyFile(t *testing.T, from, to string) {
	t.Helper()
	b, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(to+".new", b, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(to+".new", to); err != nil {
		t.Fatal(err)
	}
}

// testClusterRolling: the controller and then each agent end by SIGTERM and are started again
// as a newer release, while jobs run. No rank ends by it, no output is lost, nothing is
// started twice, and what is submitted at any time is run.
func testClusterRolling(t *testing.T, bin string) {
	own := publicDir(t) // programs that are replaced under the feet of nobody else
	for _, name := range []string{"gangway", "gangwayd"} {
		copyFile(t, filepath.Join(bin, name), filepath.Join(own, name))
	}
	for _, name := range []string{"sbatch", "srun", "squeue", "sacct", "scontrol", "sinfo"} {
		if err := os.Symlink("gangway", filepath.Join(own, name)); err != nil {
			t.Fatal(err)
		}
	}
	newer := newerPrograms(t)
	c := newCluster(t, own)
	// Each rank counts, until it is told to stop: what it wrote shows that it was one process.
	const ranks = "srun -c1 --exact sh -c 'echo $$ >> ranks.$SLURM_PROCID; i=0; while ! test -e stop; do i=$((i+1)); echo $SLURM_PROCID-$i; sleep 0.05; done; echo end-$SLURM_PROCID-$i'"
	long := c.submit(t, "echo once >> begun\n"+ranks, "-N4", "--ntasks-per-node=1", "-o", "long", "--no-requeue", "-c1")
	for rank := range 4 {
		c.file(t, fmt.Sprintf("ranks.%d", rank), `\d+\n`)
	}
	live := inBackground(t, c.command("srun", "-N1", "-c1", "sh", "-c", "echo live; while ! test -e stop; do sleep 0.05; done; echo over"))
	waitFor(t, func() bool { return strings.Contains(live.out.String(), "live") })

	for _, name := range []string{"gangway", "gangwayd"} {
		copyFile(t, filepath.Join(newer, name), filepath.Join(own, name))
	}
	between := []string{}
	ask := func() {
		t.Helper()
		between = append(between, c.submit(t, "srun echo served-$SLURM_JOB_ID", "-N1", "-c1", "-o", "between-%j"))
	}
	ask()
	c.renewed(t, `^\S*gangwayd controller `, func() bool {
		o := outcomeOf(t, c.command("scontrol", "ping"))
		return o.code == 0
	})
	ask()
	for _, node := range []string{"n1", "n2", "n3", "n4"} {
		c.renewed(t, `^\S*gangwayd agent .*--node `+node+` `, func() bool {
			return strings.Contains(c.do(t, "scontrol", "show", "node", node), "Version=v9.9.9")
		})
		ask()
	}
	for _, id := range between {
		if got := c.ended(t, id); got != "COMPLETED|0:0" {
			t.Errorf("job %s, submitted meanwhile: %s", id, got)
		}
		if got := c.file(t, "between-"+id, "served"); got != "served-"+id+"\n" {
			t.Errorf("its output: %q", got)
		}
	}
	if err := os.WriteFile(filepath.Join(c.dir, "home", "stop"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if got := c.ended(t, long); got != "COMPLETED|0:0" {
		t.Errorf("the job that ran all the time: %s\n%s", got, c.do(t, "scontrol", "show", "job", long))
	}
	live.ends(t, 0)
	if got := live.out.String(); !strings.HasSuffix(got, "live\nover\n") {
		t.Errorf("the srun that looked on: %q", got)
	}
	if got := c.file(t, "begun", ""); got != "once\n" {
		t.Errorf("the script ran %q", got)
	}
	text := c.file(t, "long", "")
	for rank := range 4 {
		if got := strings.Fields(c.file(t, fmt.Sprintf("ranks.%d", rank), "")); len(got) != 1 {
			t.Errorf("rank %d was started %d times", rank, len(got))
		}
		wantCounted(t, text, rank)
	}
}

// wantCounted says that a rank's lines are all there, once and in order.
func wantCounted(t *testing.T, text string, rank int) {
	t.Helper()
	lines := regexp.MustCompile(fmt.Sprintf(`(?m)^%d-(\d+)$`, rank)).FindAllStringSubmatch(text, -1)
	for i, m := range lines {
		if m[1] != fmt.Sprint(i+1) {
			t.Errorf("rank %d: line %d of its output is %s", rank, i+1, m[0])
			return
		}
	}
	if want := fmt.Sprintf("end-%d-%d\n", rank, len(lines)); !strings.Contains(text, want) || len(lines) == 0 {
		t.Errorf("rank %d wrote %d lines, and not %q", rank, len(lines), want)
	}
}

// renewed ends a daemon as an administrator does who has installed another release, and waits
// until another process of it does its work.
func (c *cluster) renewed(t *testing.T, pattern string, works func() bool) {
	t.Helper()
	match := regexp.MustCompile(pattern)
	find := func() (pids []int) {
		for _, p := range c.processes(t) {
			if match.MatchString(p.command) {
				pids = append(pids, p.pid)
			}
		}
		return pids
	}
	var old []int
	waitFor(t, func() bool { // what it starts has its name for a moment
		old = find()
		return len(old) == 1
	})
	if err := syscall.Kill(old[0], syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	waitFor(t, func() bool {
		now := find()
		return len(now) == 1 && !slices.Contains(old, now[0])
	})
	waitFor(t, works)
}

const roll = `ClusterName=lab
SlurmctldHost=localhost
NodeName=%s CPUs=4 RealMemory=1000 Weight=%d
PartitionName=main Nodes=ALL Default=YES MaxTime=%s
`

// testClusterReconfigure: a configuration that is changed under a running cluster: what a dry
// run says is what happens, and nothing before; a bad file changes nothing.
func testClusterReconfigure(t *testing.T, bin string) {
	conf := filepath.Join(publicDir(t), "slurm.conf")
	write := func(format string, args ...any) {
		t.Helper()
		if err := os.WriteFile(conf, fmt.Appendf(nil, format, args...), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write(roll, "m[1-3]", 1, "UNLIMITED")
	c := newClusterOf(t, bin, "--slurm-conf", filepath.Dir(conf))
	id := c.submit(t, "echo runs > runs; while ! test -e go; do sleep 0.05; done; echo done", "-w", "m3", "-o", "leaver")
	c.file(t, "runs", "runs")
	c.wants(t, "nothing differs: the cluster is as it is configured", "reconfigure", "--dry-run")

	write(roll, "m[1,3-4", 1, "UNLIMITED")
	c.refuses(t, 125, "slurm.conf:3: ", "reconfigure")
	c.refuses(t, 1, "slurm.conf:3: ", "scontrol", "reconfigure")
	c.wants(t, "m[1-3] 3", "sinfo", "-h", "-o", "%N %D")

	write(roll, "m[1-2,4]", 7, "2:00:00")
	waits := c.submit(t, "true", "-w", "m3", "--exclusive", "-o", "/dev/null")
	const change = "node m\\[1-2\\] changed: Weight 1 -> 7\nnode m4 added: \\S.*\nnode m3 removed; it drains first, job %s on it\npartition main changed: Nodes m\\[1-3\\] -> m\\[1-2,4\\], MaxTime none -> 02:00:00\n"
	out := c.do(t, "reconfigure", "--dry-run")
	if !regexp.MustCompile(fmt.Sprintf(change, id) + "would not start any more as things are: job " + waits + ";.*\nnothing was changed: this was a dry run\n$").MatchString(out) {
		t.Errorf("dry run:\n%s", out)
	}
	c.wants(t, "m[1-3] 3 1", "sinfo", "-h", "-o", "%N %D %w")
	out = c.do(t, "reconfigure")
	if !regexp.MustCompile(fmt.Sprintf(change, id) + "$").MatchString(out) {
		t.Errorf("reconfigure:\n%s", out)
	}
	c.do(t, "scancel", waits)
	c.wants(t, "m4", "srun", "-w", "m4", "sh", "-c", "echo $SLURMD_NODENAME")
	if got := c.do(t, "scontrol", "-o", "show", "node", "m3"); !strings.Contains(got, "+DRAIN") || !strings.Contains(got, "Reason=leaves the cluster when its jobs have ended (reconfigure)") {
		t.Errorf("the node that leaves: %s", got)
	}
	if err := os.WriteFile(filepath.Join(c.dir, "home", "go"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if got := c.ended(t, id); got != "COMPLETED|0:0" {
		t.Errorf("the job of the node that leaves: %s", got)
	}
	waitFor(t, func() bool { // with its daemon, and its directory
		_, err := os.Lstat(filepath.Join(c.state, "nodes", "m3"))
		return os.IsNotExist(err) && strings.TrimSpace(c.do(t, "sinfo", "-h", "-o", "%N")) == "m[1-2,4]"
	})

	// SIGHUP, and one that takes effect while there is no controller.
	write(roll, "m[1-2,4-5]", 7, "2:00:00")
	controller := regexp.MustCompile(`^\S*gangwayd controller `)
	for _, p := range c.processes(t) {
		if controller.MatchString(p.command) {
			if err := syscall.Kill(p.pid, syscall.SIGHUP); err != nil {
				t.Fatal(err)
			}
		}
	}
	waitFor(t, func() bool {
		return strings.TrimSpace(c.do(t, "sinfo", "-h", "-t", "idle", "-o", "%N")) == "m[1-2,4-5]"
	})
	write(roll, "m[1-2,4]", 7, "2:00:00")
	c.do(t, "scontrol", "reconfigure")
	c.killed(t, `^\S*gangwayd controller `)
	waitFor(t, func() bool {
		_, err := os.Lstat(filepath.Join(c.state, "nodes", "m5"))
		o := outcomeOf(t, c.command("sinfo", "-h", "-o", "%N"))
		return os.IsNotExist(err) && strings.TrimSpace(o.out) == "m[1-2,4]"
	})
}
