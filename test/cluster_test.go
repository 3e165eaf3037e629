package test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// allreduce is an image with a shell and a program whose ranks need each other.
func allreduce(t *testing.T, p *person) string {
	t.Helper()
	file := filepath.Join(p.dir, "allreduce")
	cmd := exec.Command("go", "build", "-trimpath", "-o", file, "./testdata/allreduce")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return p.image(t, nil, craft(t, entry{name: "bin/allreduce", content: string(b)}))
}

// pushed is that image in a registry.
func pushed(t *testing.T, p *person) string {
	t.Helper()
	layout := allreduce(t, p)
	host := startRegistry(t)
	push := exec.Command("skopeo", "--insecure-policy", "copy", "-q", "--preserve-digests", "--dest-no-creds", "--dest-tls-verify=false",
		layout, "docker://"+host+"/team/allreduce:1")
	if out, err := push.CombinedOutput(); err != nil {
		t.Fatalf("push: %v: %s", err, out)
	}
	return host + "#team/allreduce:1"
}

// sums are the lines of allreduce, which come in any order.
func sums(world int) string {
	var all []string
	for rank := range world {
		all = append(all, fmt.Sprintf("rank %d of %d: sum %d", rank, world, world*(world+1)/2))
	}
	slices.Sort(all)
	return strings.Join(all, "\n")
}

func sorted(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// TestCluster runs clusters of real processes beside each other.
func TestCluster(t *testing.T) {
	t.Parallel()
	bin := clusterPrograms(t)
	for name, test := range map[string]func(*testing.T, string){
		"path": testClusterPath, "goes on": testClusterGoesOn, "keep": testClusterKeep, "kill": testClusterKill, "torch": testClusterTorch,
		"commands": testClusterCommands, "reading": testClusterReading, "up": testClusterUp, "ends": testClusterEnds, "clients": testClusterClients,
		"programs": testClusterPrograms,
		"rolling":  testClusterRolling, "reconfigure": testClusterReconfigure, "top": testClusterTop,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, bin)
		})
	}
}

// testClusterPath is the path that everything else stands on: a script in the queue, a
// gang of four nodes, a container on each, all ranks at once, output, accounts.
func testClusterPath(t *testing.T, bin string) {
	c := newCluster(t, bin, "--gres", "gpu:h100:8", "--cpus-per-node", "8")
	image := pushed(t, c.person)
	id := c.submit(t, "scontrol show hostnames\nsrun --container-image="+image+" allreduce", "-N4", "-J", "sum", "-o", "out-%j")
	if got := c.ended(t, id); got != "COMPLETED|0:0" {
		t.Errorf("job %s: %s", id, got)
	}
	if got := sorted(c.file(t, "out-"+id, "")); got != "n1\nn2\nn3\nn4\n"+sums(4) {
		t.Errorf("output:\n%s", got)
	}
	if got := c.do(t, "sacct", "-n", "-P", "-j", id, "-o", "JobID,JobName,State,ExitCode"); got != id+"|sum|COMPLETED|0:0\n"+id+".batch|batch|COMPLETED|0:0\n"+id+".0|allreduce|COMPLETED|0:0\n" {
		t.Errorf("sacct:\n%s", got)
	}
	if got := c.do(t, "squeue", "-h"); got != "" {
		t.Errorf("squeue: %s", got)
	}
	// 32 ranks, without a script.
	o := outcomeOf(t, c.command("srun", "-N4", "--ntasks-per-node=8", "--container-image="+image, "allreduce", "3"))
	if o.code != 0 || sorted(o.out) != sums(32) {
		t.Errorf("srun: exit %d\n%s%s", o.code, o.out, o.err)
	}
	// A rank that fails ends the others, and its exit code is the gang's.
	began := time.Now()
	o = outcomeOf(t, c.command("srun", "-N4", "-K", "--container-image="+image, "sh", "-c", "test $SLURM_PROCID = 2 && exit 7; sleep 1000"))
	if o.code != 7 || time.Since(began) > clusterPatience {
		t.Errorf("srun of a failing rank: exit %d after %s\n%s%s", o.code, time.Since(began), o.out, o.err)
	}
	testDeclared(t, c, image)
	testOneNode(t, c, image)
}

// testDeclared: GPUs that nodes only are declared to have are not in containers, and this is
// said; the nodes stay in use.
func testDeclared(t *testing.T, c *cluster, image string) {
	if _, err := os.Stat("/proc/driver/nvidia"); err == nil {
		t.Log("the machine has GPUs: none is absent")
		return
	}
	o := outcomeOf(t, c.command("srun", "-N2", "--gres=gpu:h100:2", "--container-image="+image, "sh", "-c", "echo $SLURM_GPUS_ON_NODE; ls /dev/nvidia*"))
	if o.code == 0 || sorted(o.out) != "2\n2" || strings.Count(o.err, "declared to have GPUs that are not there: 2 of 2 are not in the container") != 2 {
		t.Errorf("GPUs that are not there: exit %d\n%s%s", o.code, o.out, o.err)
	}
	if got := strings.TrimSpace(c.do(t, "sinfo", "-h", "-o", "%D %T %G")); got != "4 idle gpu:h100:8" {
		t.Errorf("sinfo: %s", got)
	}
}

// testOneNode: where one node of four cannot, none starts, and the one cause names it; it
// can again when it is mended.
func testOneNode(t *testing.T, c *cluster, image string) {
	steps := filepath.Join(c.state, "nodes", "n3", "steps")
	if err := os.Chmod(steps, 0o500); err != nil {
		t.Fatal(err)
	}
	o := outcomeOf(t, c.command("srun", "-N4", "--container-image="+image, "allreduce"))
	if err := os.Chmod(steps, 0o700); err != nil {
		t.Fatal(err)
	}
	if o.code == 0 || o.out != "" || strings.Count(o.err, "permission denied") != 1 || !strings.Contains(o.err, "n3") || strings.Contains(o.err, "n[") {
		t.Errorf("a node that cannot: exit %d\n%s%s", o.code, o.out, o.err)
	}
	if o := outcomeOf(t, c.command("srun", "-N4", "--container-image="+image, "allreduce")); o.code != 0 || sorted(o.out) != sums(4) {
		t.Errorf("after it was mended: exit %d\n%s%s", o.code, o.out, o.err)
	}
}

// testClusterGoesOn: a second "up" is refused, the cluster that was killed goes on with
// what it had, jobs that run do not notice; Ctrl-C ends them, and they start again.
func testClusterGoesOn(t *testing.T, bin string) {
	c := newCluster(t, bin)
	o := outcomeOf(t, c.command("up", "--state-dir", c.state))
	o.want(t, 125, "", "(?s)another gangway up has it.*process "+fmt.Sprint(c.up.cmd.Process.Pid)+" has run it since.*hint:")
	o = outcomeOf(t, c.command("up", "--state-dir", c.state+"2", "--name", "state"))
	o.want(t, 125, "", "(?s)another one of that name runs.*--name")
	long := c.submit(t, "echo one >> runs; srun sh -c 'echo runs >> ranks; sleep 5; echo done >> ranks'", "-N2", "-o", "long")
	queued := c.submit(t, "echo queued", "-N4", "-o", "queued")
	c.file(t, "ranks", "runs\nruns\n")
	c.up.signal(t, syscall.SIGKILL)
	waitFor(t, c.up.ended)
	// Daemons end with it, and steps do not.
	waitFor(t, func() bool {
		for _, p := range c.processes(t) {
			if p.marker == "" {
				return false
			}
		}
		return true
	})
	o = outcomeOf(t, c.command("squeue"))
	if o.code != 1 {
		t.Errorf("squeue without a cluster: exit %d\n%s%s", o.code, o.out, o.err)
	}
	c.start(t)
	if got := c.ended(t, long); got != "COMPLETED|0:0" {
		t.Errorf("job %s: %s", long, got)
	}
	if got := c.file(t, "runs", "") + c.file(t, "ranks", ""); got != "one\nruns\nruns\ndone\ndone\n" {
		t.Errorf("the job ran %q", got)
	}
	if got := c.ended(t, queued); got != "COMPLETED|0:0" {
		t.Errorf("job %s: %s", queued, got)
	}
	again := c.submit(t, "echo again >> again; sleep 2", "-N1", "--requeue", "-o", "again-out")
	never := c.submit(t, "echo never >> never; sleep 1000", "-N1", "--no-requeue", "-o", "never-out")
	c.file(t, "again", "again")
	c.file(t, "never", "never")
	c.stop(t)
	c.wantNothing(t)
	c.start(t)
	if got := c.ended(t, again); got != "COMPLETED|0:0" {
		t.Errorf("job %s: %s", again, got)
	}
	if got := c.file(t, "again", ""); got != "again\nagain\n" {
		t.Errorf("the job ran %q", got)
	}
	if got := c.ended(t, never); !strings.HasPrefix(got, "NODE_FAIL") && !strings.HasPrefix(got, "FAILED") {
		t.Errorf("job %s: %s", never, got)
	}
}

// testClusterKeep: with --keep the end of the cluster is not that of its steps. They go on
// without daemons, and the next "up" takes them up again, and what became of them.
func testClusterKeep(t *testing.T, bin string) {
	c := newCluster(t, bin, "--keep")
	short := c.submit(t, "echo short >> begun; while ! test -e go; do sleep 0.05; done; echo short >> done", "-N1", "-o", "short", "--no-requeue")
	long := c.submit(t, "echo long >> begun; srun sh -c 'echo rank >> ranks; while ! test -e goon; do sleep 0.05; done; echo rank >> done'", "-N2", "-o", "long", "--no-requeue")
	c.file(t, "begun", "(?s)(short.*long|long.*short)")
	c.file(t, "ranks", "(rank\n){2}")
	c.stop(t)
	kept := map[int]bool{}
	for _, p := range c.processes(t) {
		if p.marker == "" {
			t.Errorf("a daemon is left: %d %s", p.pid, p.command)
		}
		kept[p.pid] = strings.Contains(p.command, "gangway step")
	}
	home := filepath.Join(c.dir, "home")
	touch := func(name string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(home, name), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	touch("go")
	c.file(t, "done", "short")
	c.start(t)
	if got := c.ended(t, short); got != "COMPLETED|0:0" {
		t.Errorf("the job that ended without daemons: %s", got)
	}
	for _, p := range c.processes(t) {
		if strings.Contains(p.command, "gangway step") && !kept[p.pid] {
			t.Errorf("a step was started anew: %d %s", p.pid, p.command)
		}
	}
	touch("goon")
	if got := c.ended(t, long); got != "COMPLETED|0:0" {
		t.Errorf("the job that goes on: %s", got)
	}
	if got := sorted(c.file(t, "begun", "")) + " " + sorted(c.file(t, "done", "")); got != "long\nshort rank\nrank\nshort" {
		t.Errorf("they ran %q", got)
	}
}
