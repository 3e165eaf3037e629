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
)

// hosts are hosts of their own on this machine: namespaces of network, names and mounts,
// linked by a bridge. What they share is the user's home, as by a network file system,
// without the state directories of each other.
type hosts struct {
	*cluster
	all []*lonelyHost // the first has the controller
	hub *lonelyHost   // has the bridge
	t   *testing.T    // with which daemons end
}

// lonelyHost is one.
type lonelyHost struct {
	name, address, state string
	holder               *exec.Cmd // its namespaces are this process's
}

// newHosts makes them: a controller's, and n1 to n4.
func newHosts(t *testing.T, bin string) *hosts {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root makes network namespaces with addresses of their own")
	}
	p := newPersonWith(t, filepath.Join(bin, "gangway"))
	h := &hosts{t: t, cluster: &cluster{person: p, state: filepath.Join(p.dir, "home", "hosts")}}
	p.mkdir(t, "home/hosts")
	h.hub = h.host(t, "hub", "", "ip link add br0 type bridge; ip link set br0 up")
	names := []string{"ctl", "n1", "n2", "n3", "n4"}
	for _, name := range names {
		p.mkdir(t, "home/hosts/"+name)
		p.mkdir(t, "home/hosts/"+name+"/run")
	}
	for i, name := range names {
		var script strings.Builder
		script.WriteString("ip link set lo up")
		for _, other := range names {
			if other != name {
				script.WriteString("; mount -t tmpfs -o size=4k none " + filepath.Join(h.state, other))
			}
		}
		one := h.host(t, name, fmt.Sprintf("10.77.0.%d", i+1), script.String())
		h.all = append(h.all, one)
		for _, line := range []string{
			fmt.Sprintf("ip link add v%d type veth peer name eth0 netns %d", i, one.holder.Process.Pid),
			fmt.Sprintf("ip link set v%d master br0 up", i),
		} {
			h.root(t, h.hub, line)
		}
		h.root(t, one, "ip addr add "+one.address+"/24 dev eth0; ip link set eth0 up")
	}
	h.enter = func(cmd *exec.Cmd) *exec.Cmd { return h.on(h.all[0], cmd) }
	return h
}

// host makes the namespaces of one, which end with the test, whatever ends that.
func (h *hosts) host(t *testing.T, name, address, script string) *lonelyHost {
	t.Helper()
	one := &lonelyHost{name: name, address: address, state: filepath.Join(h.state, name)}
	one.holder = exec.Command("unshare", "--net", "--uts", "--mount", "sh", "-ec", "hostname "+name+"; "+script+"; echo made; read end || true")
	in, err := one.holder.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := one.holder.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	one.holder.Stderr = os.Stderr
	if err := one.holder.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = in.Close()
		_ = one.holder.Wait() // it read the end
	})
	if _, err := out.Read(make([]byte, 10)); err != nil {
		t.Fatalf("make host %s: %v", name, err)
	}
	return one
}

// on has a command run on a host: as the user, if it is one of his.
func (h *hosts) on(one *lonelyHost, cmd *exec.Cmd) *exec.Cmd {
	args := []string{"-t", strconv.Itoa(one.holder.Process.Pid), "--net", "--uts", "--mount", "--wdns=" + cmd.Dir, "--"}
	if c := cmd.SysProcAttr.Credential; c != nil {
		id := strconv.FormatUint(uint64(c.Uid), 10)
		args = append(args, "setpriv", "--reuid", id, "--regid", id, "--clear-groups", "--")
	}
	there := exec.Command("nsenter", append(append(args, cmd.Path), cmd.Args[1:]...)...)
	there.Env = append(cmd.Env, "GANGWAY_RUNTIME_DIR="+filepath.Join(one.state, "run"), "GANGWAY_STORE="+filepath.Join(one.state, "store"))
	there.Env = append(there.Env, "GANGWAY_CLUSTER=unix:"+filepath.Join(one.state, map[bool]string{true: "controller.sock", false: "gangway.sock"}[one == h.all[0]]))
	return there
}

// root runs lines of a shell on a host, as root.
func (h *hosts) root(t *testing.T, one *lonelyHost, script string) {
	t.Helper()
	out, err := exec.Command("nsenter", "-t", strconv.Itoa(one.holder.Process.Pid), "--net", "--", "sh", "-ec", script).CombinedOutput()
	if err != nil {
		t.Fatalf("%s on %s: %v: %s", script, one.name, err, out)
	}
}

// daemon starts gangwayd on a host; it ends with the test, and its steps with it.
func (h *hosts) daemon(one *lonelyHost, stdin string, args ...string) *background {
	h.t.Helper()
	cmd := h.on(one, h.gangwayd(args...))
	cmd.Stdin = strings.NewReader(stdin)
	b := inBackground(h.t, cmd)
	h.t.Cleanup(func() {
		if !b.ended() {
			b.signal(h.t, syscall.SIGINT)
			select {
			case <-b.done:
			case <-time.After(20 * time.Second):
				h.t.Errorf("%q does not end", args)
			}
		}
	})
	return b
}

func (h *hosts) gangwayd(args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(filepath.Dir(h.bin), "gangwayd"), args...)
	cmd.Dir = filepath.Join(h.dir, "home")
	cmd.Env = append(h.environ(), "PATH="+filepath.Dir(h.bin)+":/usr/local/bin:/usr/bin:/bin")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: h.cred}
	return cmd
}

// admin runs gangwayd where the controller is, and returns what it prints.
func (h *hosts) admin(t *testing.T, args ...string) string {
	t.Helper()
	o := outcomeOf(t, h.on(h.all[0], h.gangwayd(args...)))
	if o.code != 0 {
		t.Fatalf("gangwayd %q: exit %d\n%s%s", args, o.code, o.out, o.err)
	}
	return strings.TrimSpace(o.out)
}

// join starts the agent of a host with a token, and waits until its node is there.
func (h *hosts) join(t *testing.T, one *lonelyHost) *background {
	t.Helper()
	token := h.admin(t, "token", "--state-dir", h.all[0].state, "--node", one.name)
	return h.daemon(one, token+"\n", "agent", "--state-dir", one.state, "--join", "-", "--controller", h.all[0].address+":7430")
}

// begin makes the cluster and starts its daemons.
func (h *hosts) begin(t *testing.T) []*background {
	t.Helper()
	ctl := h.all[0]
	h.admin(t, "init", "--state-dir", ctl.state, "--name", "lab", "--nodes", "n[1-4]", "--lost-after", "20s")
	var declared vocabulary.Cluster
	if b, err := os.ReadFile(filepath.Join(ctl.state, "cluster.json")); err != nil || json.Unmarshal(b, &declared) != nil {
		t.Fatalf("cluster.json: %v: %s", err, b)
	}
	h.id = declared.ID
	t.Cleanup(func() { h.wantNothing(t) })
	all := []*background{h.control()}
	waitFor(t, func() bool { return strings.Contains(all[0].out.String(), "controller is ready") })
	for _, one := range h.all[1:] {
		all = append(all, h.join(t, one))
	}
	h.nodes(t, "n1 idle\nn2 idle\nn3 idle\nn4 idle\n")
	return all
}

// control starts the controller. Certificates are renewed after 100 s.
func (h *hosts) control() *background {
	h.t.Helper()
	ctl := h.all[0]
	return h.daemon(ctl, "", "controller", "--state-dir", ctl.state, "--listen", ctl.address+":7430", "--certificate-life", "150s")
}

// nodes waits until the nodes are as is said.
func (h *hosts) nodes(t *testing.T, want string) {
	t.Helper()
	got := ""
	for deadline := time.Now().Add(2 * clusterPatience); got != want; time.Sleep(50 * time.Millisecond) {
		got = outcomeOf(t, h.command("sinfo", "-h", "-N", "-o", "%N %T")).out
		if time.Now().After(deadline) {
			t.Fatalf("nodes are\n%s, not\n%s", got, want)
		}
	}
}
