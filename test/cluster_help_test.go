package test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	vocabulary "github.com/gangway-hpc/gangway/internal/job"
)

// cluster is a cluster of four nodes on this machine, run by "gangway up" as an ordinary
// user, with commands of his that find it.
type cluster struct {
	*person
	state string // its directory
	id    string // of cluster.json: what processes of it are known by
	args  []string
	up    *background
	enter func(*exec.Cmd) *exec.Cmd // goes where commands are typed; nil: here
}

// clusterPrograms builds what clusters are of: both programs, and the names of Slurm's
// commands beside them.
func clusterPrograms(t *testing.T) string {
	t.Helper()
	watchSources(t)
	dir := publicDir(t)
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", dir, "../cmd/gangway", "../cmd/gangwayd")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, name := range []string{"sbatch", "srun", "salloc", "squeue", "scancel", "sinfo", "sacct", "scontrol"} {
		if err := os.Symlink("gangway", filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// newCluster starts a cluster, and ends it with the test: nothing of it may be left then.
func newCluster(t *testing.T, bin string, args ...string) *cluster {
	t.Helper()
	return newClusterOf(t, bin, append([]string{"--nodes", "4"}, args...)...)
}

// newClusterOf is newCluster with other nodes.
func newClusterOf(t *testing.T, bin string, args ...string) *cluster {
	t.Helper()
	return newClusterFor(t, newPersonWith(t, filepath.Join(bin, "gangway")), args...)
}

// newClusterFor is newClusterOf for a user that is there.
func newClusterFor(t *testing.T, p *person, args ...string) *cluster {
	t.Helper()
	c := &cluster{person: p, state: filepath.Join(p.dir, "home", "state"), args: args}
	t.Cleanup(func() {
		if t.Failed() {
			c.showLogs(t)
		}
		c.wantNothing(t)
	})
	c.start(t)
	return c
}

// start starts "gangway up", and waits until it says that it is ready.
func (c *cluster) start(t *testing.T) {
	t.Helper()
	c.up = inBackground(t, c.command("up", append([]string{"--state-dir", c.state}, c.args...)...))
	t.Cleanup(func() { c.stop(t) })
	for deadline := time.Now().Add(clusterPatience); !strings.Contains(c.up.out.String(), "is ready"); time.Sleep(5 * time.Millisecond) {
		if c.up.ended() || time.Now().After(deadline) {
			c.showLogs(t)
			t.Fatalf("the cluster is not up after %s:\n%s", clusterPatience, c.up.out.String())
		}
	}
	var declared vocabulary.Cluster
	if b, err := os.ReadFile(filepath.Join(c.state, "cluster.json")); err != nil || json.Unmarshal(b, &declared) != nil || declared.ID == "" {
		t.Fatalf("cluster.json: %v: %s", err, b)
	}
	c.id = declared.ID
}

// clusterPatience is how long tests wait for what a cluster has to do.
const clusterPatience = 30 * time.Second

// stop ends the cluster as Ctrl-C does.
func (c *cluster) stop(t *testing.T) {
	t.Helper()
	if !c.up.ended() {
		c.up.signal(t, syscall.SIGINT)
		c.up.ends(t, 0)
	}
}

// command is one of the user's programs: gangway, or one of Slurm's names.
func (c *cluster) command(name string, args ...string) *exec.Cmd {
	bin := filepath.Join(filepath.Dir(c.bin), name)
	if _, err := os.Lstat(bin); err != nil { // a verb
		bin, args = c.bin, append([]string{name}, args...)
	}
	cmd := exec.Command(bin, args...)
	cmd.Dir = filepath.Join(c.dir, "home")
	cmd.Env = append(c.environ(), "PATH="+filepath.Dir(c.bin)+":/usr/local/bin:/usr/bin:/bin")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: c.cred}
	if c.enter != nil {
		return c.enter(cmd)
	}
	return cmd
}

// do runs one that has to work, and returns its output.
func (c *cluster) do(t *testing.T, name string, args ...string) string {
	t.Helper()
	o := outcomeOf(t, c.command(name, args...))
	if o.code != 0 {
		t.Fatalf("%s %q: exit %d\n%s%s", name, args, o.code, o.out, o.err)
	}
	return o.out
}

// submit gives sbatch a script, and returns the job's number.
func (c *cluster) submit(t *testing.T, script string, args ...string) string {
	t.Helper()
	cmd := c.command("sbatch", append([]string{"--parsable"}, args...)...)
	cmd.Stdin = strings.NewReader("#!/bin/sh\n" + script + "\n")
	o := outcomeOf(t, cmd)
	id := strings.TrimSpace(o.out)
	if _, err := strconv.Atoi(id); o.code != 0 || err != nil {
		t.Fatalf("sbatch %q: exit %d\n%s%s", args, o.code, o.out, o.err)
	}
	return id
}

// ended waits until a job has ended, and returns its state and exit code as sacct has them.
func (c *cluster) ended(t *testing.T, id string) string {
	t.Helper()
	for deadline := time.Now().Add(4 * clusterPatience); ; time.Sleep(50 * time.Millisecond) {
		o := outcomeOf(t, c.command("sacct", "-X", "-n", "-P", "-o", "State,ExitCode", "-j", id))
		state := strings.TrimSpace(o.out)
		name, _, _ := strings.Cut(state, "|")
		switch {
		case o.code != 0, name == "", name == "PENDING", name == "RUNNING", name == "COMPLETING", name == "REQUEUED":
		default:
			return state
		}
		if time.Now().After(deadline) {
			t.Fatalf("job %s does not end: %q %s", id, state, o.err)
		}
	}
}

// file waits for a file in the user's home that holds something that matches.
func (c *cluster) file(t *testing.T, name, pattern string) string {
	t.Helper()
	match := regexp.MustCompile(pattern)
	var b []byte
	for deadline := time.Now().Add(clusterPatience); ; time.Sleep(10 * time.Millisecond) {
		b, _ = os.ReadFile(filepath.Join(c.dir, "home", name))
		if match.Match(b) {
			return string(b)
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s has no %q:\n%s", name, pattern, b)
		}
	}
}

// process is one of the cluster's.
type clusterProcess struct {
	pid     int
	command string
	marker  string // of a step: GANGWAY_STEP; empty: a daemon's
}

// processes are those of the cluster: daemons by their state directory, the others by their
// marker.
func (c *cluster) processes(t *testing.T) []clusterProcess {
	t.Helper()
	var all []clusterProcess
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		environ, _ := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid)) // it may have ended
		line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		command := strings.TrimSpace(string(bytes.ReplaceAll(line, []byte{0}, []byte{' '})))
		_, marker, found := bytes.Cut(append([]byte{0}, environ...), []byte("\x00GANGWAY_STEP="+c.id+"/"))
		marker, _, _ = bytes.Cut(marker, []byte{0})
		if found || strings.Contains(command, "--state-dir "+c.state) {
			all = append(all, clusterProcess{pid, command, string(marker)})
		}
	}
	return all
}

// wantNothing fails if anything of the cluster is left: processes, mounts, containers, steps
// without an end, and the word that it runs.
func (c *cluster) wantNothing(t *testing.T) {
	t.Helper()
	var left []clusterProcess
	for deadline := time.Now().Add(5 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		if left = c.processes(t); len(left) == 0 || time.Now().After(deadline) {
			break
		}
	}
	for _, p := range left {
		t.Errorf("process %d is left: %s %s", p.pid, p.command, p.marker)
		_ = syscall.Kill(p.pid, syscall.SIGKILL)
	}
	if b, err := os.ReadFile("/proc/self/mountinfo"); err != nil || strings.Contains(string(b), c.dir) {
		t.Errorf("mounts are left: %v: %s", err, b)
	}
	// What nodes keep of containers and of steps whose end nobody has acknowledged.
	if files, _ := filepath.Glob(filepath.Join(c.state, "nodes", "*", "run", "gangway", "*", "*")); len(files) > 0 {
		t.Errorf("containers are left: %s", files)
	}
	steps, _ := filepath.Glob(filepath.Join(c.state, "nodes", "*", "steps", "*"))
	for _, dir := range steps {
		if _, err := os.Stat(filepath.Join(dir, "end.json")); err != nil {
			t.Errorf("a step has no end: %v", err)
		}
	}
	if files, _ := filepath.Glob(filepath.Join(c.dir, "run", "gangway", "clusters", "*")); len(files) > 0 {
		t.Errorf("the cluster is still said to run: %s", files)
	}
}

func (c *cluster) showLogs(t *testing.T) {
	t.Helper()
	logs, _ := filepath.Glob(filepath.Join(c.state, "log", "*.log"))
	steps, _ := filepath.Glob(filepath.Join(c.state, "nodes", "*", "steps", "*", "log"))
	for _, name := range append(logs, steps...) {
		b, _ := os.ReadFile(name)
		t.Logf("%s:\n%s", strings.TrimPrefix(name, c.state), b[max(0, len(b)-3000):])
	}
}
