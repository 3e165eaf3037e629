package test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	vocabulary "github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/internal/usertest"
)

// usersCluster is a cluster of root's daemons for all users of a machine: three nodes, of
// which n3 does not know bob, and takes another one for alice. The machine is a mount
// namespace with accounts of its own; n3 is one within it.
type usersCluster struct {
	dir, bin    string
	state, id   string
	alice, bob  *account
	root        *account
	machine, n3 *exec.Cmd // whose namespaces they are
	daemons     map[string]*background
}

// account is a user of the machine.
type account struct {
	name     string
	uid, gid int
	groups   []int // besides gid
	home     string
}

const labGroup = usertest.ID + 40 // alice and bob are in it

// newUsersCluster starts one. It ends with the test, and nothing of it may be left.
func newUsersCluster(t *testing.T) *usersCluster {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root runs daemons of all users, and makes a mount namespace with other accounts")
	}
	bin := clusterPrograms(t)
	c := &usersCluster{dir: publicDir(t), bin: bin, daemons: map[string]*background{}}
	c.root = &account{name: "root", home: "/root"}
	c.alice = &account{name: "alice", uid: usertest.ID + 41, gid: usertest.ID + 41, groups: []int{labGroup}}
	c.bob = &account{name: "bob", uid: usertest.ID + 42, gid: usertest.ID + 42, groups: []int{labGroup}}
	for _, a := range []*account{c.alice, c.bob} {
		a.home = filepath.Join(c.dir, a.name)
		if err := os.Mkdir(a.home, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Chown(a.home, a.uid, a.gid); err != nil {
			t.Fatal(err)
		}
	}
	line := func(a *account, name string) string {
		return fmt.Sprintf("%s:x:%d:%d::%s:/bin/sh\n", name, a.uid, a.gid, a.home)
	}
	root := "root:x:0:0:root:/root:/bin/sh\n"
	for name, text := range map[string]string{
		"passwd":   root + line(c.alice, "alice") + line(c.bob, "bob"),
		"passwd.3": root + line(c.alice, "mallory"),
		"group": fmt.Sprintf("root:x:0:\nalice:x:%d:\nbob:x:%d:\nlab:x:%d:alice,bob\n",
			c.alice.gid, c.bob.gid, labGroup),
		"nsswitch.conf": "passwd: files\ngroup: files\n",
	} {
		if err := os.WriteFile(filepath.Join(c.dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	c.machine = c.namespace(t, nil, "mount -t tmpfs -o mode=755 none /var/spool; for f in passwd group nsswitch.conf; do mount --bind "+c.dir+"/$f /etc/$f; done")
	c.n3 = c.namespace(t, c.machine, "mount --bind "+c.dir+"/passwd.3 /etc/passwd")
	c.declare(t)
	t.Cleanup(func() { c.wantNothing(t) })
	c.control(t)
	for _, node := range []string{"n1", "n2", "n3"} {
		c.agent(t, node)
	}
	c.until(t, "all nodes are idle", func() bool {
		o := c.as(t, c.alice, "sinfo", "-h", "-N", "-o", "%N %T")
		return o.out == "n1 idle\nn2 idle\nn3 idle\n"
	})
	return c
}

// namespace makes a mount namespace within another one, which ends with the test.
func (c *usersCluster) namespace(t *testing.T, in *exec.Cmd, script string) *exec.Cmd {
	t.Helper()
	args := []string{"unshare", "--mount", "sh", "-ec", script + "; echo made; read end || true"}
	if in != nil {
		args = append([]string{"nsenter", "-t", strconv.Itoa(in.Process.Pid), "--mount", "--"}, args...)
	}
	holder := exec.Command(args[0], args[1:]...)
	input, err := holder.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := holder.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	holder.Stderr = os.Stderr
	if err := holder.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = input.Close()
		_ = holder.Wait() // it read the end
	})
	if _, err := out.Read(make([]byte, 10)); err != nil {
		t.Fatalf("make namespace: %v", err)
	}
	return holder
}

// declare writes the cluster's state directory.
func (c *usersCluster) declare(t *testing.T) {
	t.Helper()
	c.state, c.id = filepath.Join(c.dir, "state"), fmt.Sprintf("users%d", os.Getpid())
	if err := os.Mkdir(c.state, 0o700); err != nil {
		t.Fatal(err)
	}
	cluster := vocabulary.Cluster{Name: "lab", ID: c.id, Declared: true, Partitions: []vocabulary.Partition{{Name: "main", Default: true, Priority: 1, Tier: 1}}}
	for _, name := range []string{"n1", "n2", "n3"} {
		cluster.Nodes = append(cluster.Nodes, vocabulary.Node{Name: name, Sockets: 1, CoresPerSocket: 8, ThreadsPerCore: 1, CPUs: 8, Memory: 4096, Addr: "127.0.0.1"})
		cluster.Partitions[0].Nodes = append(cluster.Partitions[0].Nodes, name)
	}
	b, err := json.Marshal(cluster)
	if err == nil {
		err = os.WriteFile(filepath.Join(c.state, "cluster.json"), b, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// daemon starts gangwayd in a namespace.
func (c *usersCluster) daemon(t *testing.T, name string, in *exec.Cmd, args ...string) {
	t.Helper()
	cmd := exec.Command("nsenter", append([]string{"-t", strconv.Itoa(in.Process.Pid), "--mount", "--", filepath.Join(c.bin, "gangwayd")}, args...)...)
	cmd.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "SECRET_OF_ROOT=yes"}
	cmd.Dir = "/"
	b := inBackground(t, cmd)
	c.daemons[name] = b
	t.Cleanup(func() {
		if c.daemons[name] == b && !b.ended() {
			b.signal(t, syscall.SIGINT)
			select {
			case <-b.done:
			case <-time.After(30 * time.Second):
				t.Errorf("%s does not end", name)
			}
		}
	})
}

func (c *usersCluster) control(t *testing.T) {
	t.Helper()
	c.daemon(t, "controller", c.machine, "controller", "--state-dir", c.state)
	c.until(t, "the controller is ready", func() bool {
		return strings.Contains(c.daemons["controller"].out.String(), "controller is ready")
	})
}

func (c *usersCluster) agent(t *testing.T, node string) {
	t.Helper()
	in := c.machine
	if node == "n3" {
		in = c.n3
	}
	c.daemon(t, node, in, "agent", "--state-dir", c.state, "--node", node)
}

// command is a program that a user runs on the machine, in his home.
func (c *usersCluster) command(a *account, name string, args ...string) *exec.Cmd {
	bin := name
	if _, err := os.Lstat(filepath.Join(c.bin, name)); err == nil {
		bin = filepath.Join(c.bin, name)
	} else if !strings.Contains(name, "/") { // a verb
		bin, args = filepath.Join(c.bin, "gangway"), append([]string{name}, args...)
	}
	var groups strings.Builder
	groups.WriteString(strconv.Itoa(a.gid))
	for _, g := range a.groups {
		groups.WriteString("," + strconv.Itoa(g))
	}
	all := []string{
		"-t", strconv.Itoa(c.machine.Process.Pid), "--mount", "--wdns=" + a.home, "--", "setpriv", "--reuid", strconv.Itoa(a.uid), "--regid", strconv.Itoa(a.gid),
		"--groups", groups.String(), "--", "timeout", "-s", "KILL", "60", bin,
	}
	cmd := exec.Command("nsenter", append(all, args...)...)
	cmd.Env = []string{"PATH=" + c.bin + ":/usr/local/bin:/usr/bin:/bin", "HOME=" + a.home, "USER=" + a.name, "LOGNAME=" + a.name, "SHELL=/bin/sh", "TERM=dumb", "SECRET=of-" + a.name}
	return cmd
}

// as runs a program of a user's.
func (c *usersCluster) as(t *testing.T, a *account, name string, args ...string) outcome {
	t.Helper()
	return outcomeOf(t, c.command(a, name, args...))
}

// does runs one that has to work.
func (c *usersCluster) does(t *testing.T, a *account, name string, args ...string) string {
	t.Helper()
	o := c.as(t, a, name, args...)
	if o.code != 0 {
		t.Fatalf("%s: %s %q: exit %d\n%s%s", a.name, name, args, o.code, o.out, o.err)
	}
	return o.out
}

// submit submits a script of a user's, and returns the job's id.
func (c *usersCluster) submit(t *testing.T, a *account, script string, args ...string) string {
	t.Helper()
	return strings.TrimSpace(c.does(t, a, "sbatch", append(append([]string{"--parsable"}, args...), "--wrap", script)...))
}

// ends waits for the end of a job, and returns its state and exit code.
func (c *usersCluster) ends(t *testing.T, id string) string {
	t.Helper()
	text := ""
	c.until(t, "the end of job "+id, func() bool {
		text = strings.TrimSpace(c.as(t, c.root, "sacct", "-n", "-P", "-X", "-j", id, "-o", "state,exitcode").out)
		state, _, _ := strings.Cut(text, "|")
		switch state {
		case "", "PENDING", "RUNNING", "COMPLETING", "REQUEUED":
			return false
		}
		return true
	})
	return text
}

// runs waits until a job has begun.
func (c *usersCluster) runs(t *testing.T, id string) {
	t.Helper()
	c.until(t, "the start of job "+id, func() bool {
		return strings.TrimSpace(c.as(t, c.root, "squeue", "-h", "-j", id, "-o", "%T").out) == "RUNNING"
	})
}

// file is what is in a file of a user's home, once it is there.
func (c *usersCluster) file(t *testing.T, a *account, name string) string {
	t.Helper()
	var b []byte
	c.until(t, a.name+"'s file "+name, func() bool {
		var err error
		b, err = os.ReadFile(filepath.Join(a.home, name))
		return err == nil && len(b) > 0
	})
	return string(b)
}

func (c *usersCluster) until(t *testing.T, what string, so func() bool) {
	t.Helper()
	for deadline := time.Now().Add(2 * clusterPatience); !so(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s does not come\n%s", what, c.as(t, c.root, "squeue", "-l").out)
		}
	}
}

// wantNothing fails if a process of the users, or of the cluster, is left.
func (c *usersCluster) wantNothing(t *testing.T) {
	t.Helper()
	var left []string
	for deadline := time.Now().Add(clusterPatience); ; time.Sleep(50 * time.Millisecond) {
		if left = c.processes(); len(left) == 0 || time.Now().After(deadline) {
			break
		}
	}
	if len(left) > 0 {
		t.Errorf("processes are left:\n%s", strings.Join(left, "\n"))
	}
}

// processes are those of the users, and all that carry the cluster's marker.
func (c *usersCluster) processes() []string {
	var all []string
	entries, _ := os.ReadDir("/proc") // it is there
	for _, e := range entries {
		if _, err := strconv.Atoi(e.Name()); err != nil {
			continue
		}
		status, err := os.ReadFile("/proc/" + e.Name() + "/status")
		if err != nil || strings.Contains(string(status), "\nState:\tZ") {
			continue
		}
		environ, _ := os.ReadFile("/proc/" + e.Name() + "/environ") // it may have ended
		theirs := strings.Contains(string(environ), "GANGWAY_STEP="+c.id+"/")
		for _, a := range []*account{c.alice, c.bob} {
			theirs = theirs || strings.Contains(string(status), fmt.Sprintf("\nUid:\t%d\t", a.uid)) && strings.Contains(string(environ), c.dir)
		}
		if theirs {
			command, _ := os.ReadFile("/proc/" + e.Name() + "/cmdline") // likewise
			all = append(all, e.Name()+" "+strings.ReplaceAll(string(command), "\x00", " "))
		}
	}
	return all
}
