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
		"path": testClusterPath, "goes on": testClusterGoesOn, "kill": testClusterKill, "torch": testClusterTorch,
		"commands": testClusterCommands, "reading": testClusterReading,
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
