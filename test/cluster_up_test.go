package test

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// astray is a script that starts processes which nothing but their parents tells whose they
// are, writes down their numbers in a file, and goes on.
func astray(file string) string {
	one := "env -i /bin/sh -c 'echo $$ >> " + file + "; exec /bin/sleep 1000'"
	return "setsid " + one + " & setsid env -i /bin/sh -c '/usr/bin/setsid " + strings.ReplaceAll(one, "'", `'\''`) + " & echo $$ >> " + file + "; wait' &\n" +
		"sleep 1000"
}

// strays are the processes whose numbers are in the file.
func (c *cluster) strays(t *testing.T, file string) []int {
	t.Helper()
	var all []int
	for text := range strings.FieldsSeq(c.file(t, file, `(\d+\n){3}`)) {
		pid, err := strconv.Atoi(text)
		if err != nil || syscall.Kill(pid, 0) != nil {
			t.Fatalf("process %s does not run: %v", text, err)
		}
		t.Cleanup(func() {
			if b, _ := os.ReadFile("/proc/" + text + "/cmdline"); strings.Contains(string(b), "1000") {
				t.Errorf("process %d is left: %s", pid, b)
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
		})
		all = append(all, pid)
	}
	return all
}

// wantDead waits until processes are.
func wantDead(t *testing.T, what string, pids []int) {
	t.Helper()
	deadline := time.Now().Add(clusterPatience)
	for _, pid := range pids {
		for !errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
			if time.Now().After(deadline) {
				t.Fatalf("%s: process %d is left", what, pid)
			}
			time.Sleep(10 * time.Millisecond)
		}
	}
}

// killed kills the one process of the cluster whose command matches, and returns its number.
func (c *cluster) killed(t *testing.T, pattern string) int {
	t.Helper()
	match := regexp.MustCompile(pattern)
	for _, p := range c.processes(t) {
		if match.MatchString(p.command) {
			if err := syscall.Kill(p.pid, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			return p.pid
		}
	}
	t.Fatalf("no process is %s", pattern)
	return 0
}

// testClusterUp: what "up" does besides starting daemons. What is left by supervisors that
// are killed goes, whatever it has done to be nobody's; what ran on nodes that are not
// declared any more goes before it is run again; a name and a machine are taken once.
func testClusterUp(t *testing.T, bin string) {
	c := newCluster(t, bin, "--nodes", "2")
	testRefused(t, c)
	testStuckController(t, c)

	// Its agent has them.
	id := c.submit(t, astray("one"), "-w", "n1", "--no-requeue", "-o", "/dev/null")
	pids := c.strays(t, "one")
	c.killed(t, "^\\S*gangway step --node n1 ")
	wantDead(t, "left by a supervisor", pids)
	if got := c.ended(t, id); strings.HasPrefix(got, "COMPLETED") {
		t.Errorf("job %s: %s", id, got)
	}

	// The agent that started it is gone.
	id = c.submit(t, astray("two"), "-w", "n1", "--no-requeue", "-o", "/dev/null")
	pids = c.strays(t, "two")
	old := c.killed(t, "^\\S*gangwayd agent .*--node n1 ")
	waitFor(t, func() bool {
		for _, p := range c.processes(t) {
			if p.pid != old && strings.Contains(p.command, "gangwayd agent") && strings.Contains(p.command, "--node n1 ") {
				return true
			}
		}
		return false
	})
	c.killed(t, "^\\S*gangway step --node n1 ")
	wantDead(t, "left by a supervisor without its agent", pids)
	c.ended(t, id)
	testFewerNodes(t, c)
}

// testFewerNodes: the cluster is killed and goes on with one node less, and under another name.
func testFewerNodes(t *testing.T, c *cluster) {
	stays := c.submit(t, "touch stays; while ! test -e go; do sleep 0.05; done", "-w", "n1", "--no-requeue", "-o", "/dev/null")
	c.file(t, "stays", "")
	c.submit(t, astray("three"), "-w", "n2", "--requeue", "-o", "/dev/null")
	pids := c.strays(t, "three")
	// What is left of a step of the other name is known by the cluster's id.
	c.submit(t, "setsid sleep 1000 & echo $! > marked; exec sleep 1000", "-w", "n1", "--no-requeue", "-o", "/dev/null")
	marked, err := strconv.Atoi(strings.TrimSpace(c.file(t, "marked", `\d+\n`)))
	if err != nil {
		t.Fatal(err)
	}
	c.up.signal(t, syscall.SIGKILL)
	waitFor(t, c.up.ended)
	for _, p := range c.processes(t) {
		if strings.Contains(p.command, "gangway step --node n1 ") && !strings.HasPrefix(p.marker, "n1/"+stays+".") {
			_ = syscall.Kill(p.pid, syscall.SIGKILL)
		}
	}
	c.args = []string{"--nodes", "1", "--name", "renamed"}
	c.start(t)
	if !strings.Contains(c.up.out.String(), "the cluster has not any more: n2") {
		t.Errorf("up says:\n%s", c.up.out.String())
	}
	wantDead(t, "left by a step of the other name", []int{marked})
	for _, pid := range pids { // by now
		if !errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
			t.Errorf("process %d of a node that was removed is left", pid)
		}
	}
	if _, err := os.Lstat(filepath.Join(c.state, "nodes", "n2")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("directory of a node that was removed: %v", err)
	}
	if err := os.WriteFile(filepath.Join(c.dir, "home", "go"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if got := c.ended(t, stays); got != "COMPLETED|0:0" {
		t.Errorf("the job of the node that stayed: %s", got)
	}
	// As timeout(1) does.
	c.submit(t, "sleep 1000", "-o", "/dev/null")
	c.up.signal(t, syscall.SIGTERM)
	c.up.signal(t, syscall.SIGTERM)
	c.up.ends(t, 0)
}

// testRefused: of two clusters of a name that are started at once there is one, and one that
// the machine has no room for is not started.
func testRefused(t *testing.T, c *cluster) {
	o := outcomeOf(t, c.command("up", "--state-dir", c.state+"3", "--nodes", "100000"))
	o.want(t, 2, "", "(?s)run 100000 nodes on this machine: it has room for .*hint:  gangway up --nodes ")
	var twins []*background
	for _, name := range []string{"1", "2"} {
		twins = append(twins, inBackground(t, c.command("up", "--state-dir", c.state+name, "--name", "twin", "--nodes", "1")))
	}
	waitFor(t, func() bool { return twins[0].ended() || twins[1].ended() })
	loser, winner := twins[0], twins[1]
	if twins[1].ended() {
		loser, winner = winner, loser
	}
	loser.ends(t, 125)
	if text := loser.out.String(); !strings.Contains(text, "another one of that name runs") {
		t.Errorf("the one of two says:\n%s", text)
	}
	waitFor(t, func() bool { return strings.Contains(winner.out.String(), "is ready") })
	winner.signal(t, syscall.SIGINT)
	winner.ends(t, 0)
}

// testStuckController: a controller that waits for what does not come ends all the same.
func testStuckController(t *testing.T, c *cluster) {
	dir := filepath.Join(t.TempDir(), "stuck")
	if err := errors.Join(os.Mkdir(dir, 0o700), syscall.Mkfifo(filepath.Join(dir, "cluster.json"), 0o600)); err != nil {
		t.Fatal(err)
	}
	stuck := inBackground(t, exec.Command(filepath.Join(filepath.Dir(c.bin), "gangwayd"), "controller", "--mode=user", "--state-dir", dir))
	var writer *os.File
	waitFor(t, func() bool { // it reads
		f, err := os.OpenFile(filepath.Join(dir, "cluster.json"), os.O_WRONLY|syscall.O_NONBLOCK, 0)
		writer = f
		return err == nil
	})
	defer writer.Close()
	stuck.signal(t, syscall.SIGTERM)
	stuck.ends(t, 125)
}
