package test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// testClusterTree: a gang of more nodes than a tree is wide is launched, signalled and ended by
// way of its agents, of which one is killed, or stopped for a while, in each phase.
func testClusterTree(t *testing.T, bin string) {
	const nodes = 8
	c := &cluster{person: newPersonWith(t, filepath.Join(bin, "gangway"))}
	c.state = filepath.Join(c.dir, "home", "state")
	conf := filepath.Join(c.dir, "home", "conf")
	if err := os.Mkdir(conf, 0o755); err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprintf("ClusterName=tree\nTreeWidth=2\nNodeName=n[1-%d] CPUs=4 RealMemory=1000\nPartitionName=main Nodes=ALL Default=YES\n", nodes)
	if err := os.WriteFile(filepath.Join(conf, "slurm.conf"), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	c.args = []string{"--slurm-conf", conf}
	t.Cleanup(func() {
		if t.Failed() {
			c.showLogs(t)
		}
		c.wantNothing(t)
	})
	c.start(t)
	if got := c.do(t, "scontrol", "show", "config"); !regexp.MustCompile(`TreeWidth +=  ?2\n`).MatchString(got) {
		t.Errorf("scontrol show config has not TreeWidth 2:\n%s", got)
	}
	ranks := make([]string, 2*nodes)
	for i := range ranks {
		ranks[i] = strconv.Itoa(i)
	}
	slices.Sort(ranks)
	run := []string{fmt.Sprintf("-N%d", nodes), "--ntasks-per-node=2", "sh", "-c"}
	o := outcomeOf(t, c.command("srun", append(run, "echo $SLURM_PROCID")...))
	if o.code != 0 || sorted(o.out) != strings.Join(ranks, "\n") {
		t.Fatalf("srun: exit %d\n%s%s", o.code, o.out, o.err)
	}
	if n := c.metric(t, "gangway_forwarded_commands_total"); n < 2*nodes {
		t.Errorf("%v commands went by the tree", n)
	}
	if n := c.metric(t, "gangway_relayed_answers_total"); n < 2*nodes {
		t.Errorf("%v answers came by the tree", n)
	}
	// Ranks that take a signal, and end when all have it, with a node's agent gone meanwhile.
	script := `trap 'echo signal; exit 0' USR1; echo $SLURM_PROCID > run-$SLURM_JOB_ID-$SLURM_PROCID; while :; do sleep 0.1; done`
	for _, how := range []syscall.Signal{syscall.SIGKILL, syscall.SIGSTOP} {
		for _, phase := range []string{"launch", "running", "signal"} {
			c.treePhase(t, how, phase, nodes, script)
		}
	}
}

// treePhase runs a job, and does something to the agent of its first node in a phase.
func (c *cluster) treePhase(t *testing.T, how syscall.Signal, phase string, nodes int, script string) {
	t.Helper()
	what := fmt.Sprintf("%v while it is in its phase %s", how, phase)
	strike := func() {
		for _, p := range c.processes(t) {
			if strings.Contains(p.command, "gangwayd agent") && strings.Contains(p.command, "--node n1 ") {
				if err := syscall.Kill(p.pid, how); err != nil {
					t.Errorf("%s: %v", what, err)
				}
				if how == syscall.SIGSTOP {
					time.AfterFunc(5*time.Second, func() { _ = syscall.Kill(p.pid, syscall.SIGCONT) })
				}
				return
			}
		}
		t.Errorf("%s: there is no agent of n1", what)
	}
	file := filepath.Join(c.dir, "home", "script.sh")
	if err := os.WriteFile(file, []byte(script+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	id := c.submit(t, "exec srun --ntasks-per-node=2 sh script.sh", fmt.Sprintf("-N%d", nodes), "--ntasks-per-node=2", "-o", "out-%j")
	run := func() int {
		found, _ := filepath.Glob(filepath.Join(c.dir, "home", "run-"+id+"-*"))
		return len(found)
	}
	if phase == "launch" {
		of := regexp.MustCompile("/" + id + `\.\d+\.0\.`) // the first processes of the step
		waitFor(t, func() bool {
			return slices.ContainsFunc(c.processes(t), func(p clusterProcess) bool { return of.MatchString(p.marker) })
		})
		strike()
	}
	waitFor(t, func() bool { return run() == 2*nodes })
	if phase == "running" {
		strike()
	}
	signalled := make(chan struct{})
	go func() {
		defer close(signalled)
		cmd := c.command("scancel", "-s", "USR1", id+".0")
		cmd.Stdout, cmd.Stderr = io.Discard, io.Discard
		_ = cmd.Run()
	}()
	if phase == "signal" {
		strike()
	}
	<-signalled
	if got := c.ended(t, id); got != "COMPLETED|0:0" {
		t.Errorf("%s: job %s: %s\n%s", what, id, got, c.file(t, "out-"+id, ""))
	}
	if got := strings.Count(c.file(t, "out-"+id, ""), "signal\n"); got != 2*nodes {
		t.Errorf("%s: %d ranks had the signal, want %d\n%s", what, got, 2*nodes, c.file(t, "out-"+id, ""))
	}
}

// metric is a value of the controller's /metrics.
func (c *cluster) metric(t *testing.T, name string) float64 {
	t.Helper()
	return metricOf(t, filepath.Join(c.state, "controller.sock"), name)
}

// metricOf is one of the controller that listens on a socket.
func metricOf(t *testing.T, socket, name string) float64 {
	t.Helper()
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}}}
	resp, err := client.Get("http://controller/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			n, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			return n
		}
	}
	t.Fatalf("/metrics has no %s", name)
	return 0
}
