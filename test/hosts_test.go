package test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestHosts is a cluster on five hosts with addresses of their own.
func TestHosts(t *testing.T) {
	t.Parallel()
	h := newHosts(t, clusterPrograms(t))
	daemons := h.begin(t)
	image := allreduce(t, h.person)

	t.Run("less than configured", func(t *testing.T) { h.less(t) })
	t.Run("path", func(t *testing.T) { h.path(t, image) })
	t.Run("cut off", func(t *testing.T) { h.cutOff(t, image) })
	t.Run("where it runs", func(t *testing.T) { h.look(t, image) })
	t.Run("users", func(t *testing.T) { h.users(t) })
	t.Run("controller away", func(t *testing.T) { daemons[0] = h.controllerAway(t, image, daemons[0]) })
	t.Run("starts again", func(t *testing.T) { daemons[0], daemons[4] = h.startsAgain(t, daemons[0], daemons[4]) })
	t.Run("paused", func(t *testing.T) { h.paused(t, daemons[3]) })
	t.Run("agent stopped", func(t *testing.T) { h.stopped(t, image, "agent", 3, daemons[3], false) })
	t.Run("all stopped", func(t *testing.T) { h.stopped(t, image, "all", 4, daemons[4], true) })
	t.Run("rough", func(t *testing.T) { h.rough(t, image) })
	t.Run("moved", func(t *testing.T) { h.moved(t) })
	t.Run("renewed", func(t *testing.T) {
		waitFor(t, func() bool { return strings.Contains(daemons[1].out.String(), "certificate is renewed") })
		h.nodes(t, "n1 idle\nn2 idle\nn3 idle\nn4 idle\n")
	})
	t.Run("revoked", func(t *testing.T) { h.revoked(t) })
}

// path: a script, its step in containers on all hosts, whose ranks reach each other by
// the hosts' addresses; and a step without a script.
func (h *hosts) path(t *testing.T, image string) {
	id := h.submit(t, "srun sh -c 'echo $(hostname) $MASTER_ADDR'\nsrun --container-image="+image+" allreduce 3", "-N4", "-o", "out-%j")
	h.completes(t, id)
	if got := sorted(h.file(t, "out-"+id, "")); got != "n1 10.77.0.2\nn2 10.77.0.2\nn3 10.77.0.2\nn4 10.77.0.2\n"+sums(4) {
		t.Errorf("output:\n%s", got)
	}
	o := outcomeOf(t, h.command("srun", "-N4", "--container-image="+image, "allreduce", "3"))
	if o.code != 0 || sorted(o.out) != sums(4) {
		t.Errorf("srun: exit %d\n%s%s", o.code, o.out, o.err)
	}
	// Four nodes are more than the tree is wide: two of them passed on for the others, by TLS.
	at := filepath.Join(h.all[0].state, "controller.sock")
	if n := metricOf(t, at, "gangway_forwarded_commands_total"); n < 16 {
		t.Errorf("%v commands went by the tree", n)
	}
	if n := metricOf(t, at, "gangway_relayed_answers_total"); n < 16 {
		t.Errorf("%v answers came by the tree", n)
	}
	if n := metricOf(t, at, "gangway_missed_commands_total"); n > 0 {
		t.Errorf("%v commands did not get to their nodes by the tree", n)
	}
}

// completes waits until a job has.
func (h *hosts) completes(t *testing.T, id string) {
	t.Helper()
	if got := h.ended(t, id); got != "COMPLETED|0:0" {
		t.Errorf("job %s: %s\n%s", id, got, h.do(t, "show", "job", id))
	}
}

// look: the output of ranks on other hosts is read, and programs are run beside them, from
// the controller's host and from within the job.
func (h *hosts) look(t *testing.T, image string) {
	id := h.submit(t, "srun --container-image="+image+" sh -c 'echo here $SLURM_PROCID; while ! test -e /tmp/go; do sleep 0.1; done' &\n"+
		"while ! test -e inner; do sleep 0.1; done\ngangway exec $SLURM_JOB_ID.0:1 -- hostname; wait", "-N2", "-o", "out-%j")
	h.reaches(t, id, "RUNNING")
	waitFor(t, func() bool {
		return sorted(outcomeOf(t, h.command("logs", id+".0")).out) == "here 0\nhere 1"
	})
	for rank, want := range []string{"n1\n", "n2\n"} {
		o := outcomeOf(t, h.command("exec", fmt.Sprintf("%s.0:%d", id, rank), "--", "hostname"))
		if o.code != 0 || o.out != want {
			t.Errorf("exec beside rank %d: exit %d\n%s%s", rank, o.code, o.out, o.err)
		}
	}
	if err := os.WriteFile(filepath.Join(h.dir, "home", "inner"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	h.file(t, "out-"+id, "(?m)^n2$")
	for rank := range 2 {
		h.do(t, "exec", fmt.Sprintf("%s.0:%d", id, rank), "--", "touch", "/tmp/go")
	}
	h.completes(t, id)
}

// users: a node speaks for those whose jobs run there, a client for its users.
func (h *hosts) users(t *testing.T) {
	n1 := h.all[1]
	squeue := func() outcome {
		cmd := h.gangwayd()
		cmd.Path, cmd.Args = filepath.Join(filepath.Dir(h.bin), "squeue"), []string{"squeue", "-h", "-o", "%i"}
		return outcomeOf(t, h.on(n1, cmd))
	}
	if o := squeue(); o.code != 1 || !regexp.MustCompile("(?i)permission denied").MatchString(o.err) {
		t.Errorf("squeue on a node without a job: exit %d\n%s%s", o.code, o.out, o.err)
	}
	id := h.submit(t, "squeue -h -o %i; sleep 1000", "-w", "n1", "-o", "out-%j")
	h.file(t, "out-"+id, "^"+id+"\n")
	if o := squeue(); o.code != 0 || o.out != id+"\n" {
		t.Errorf("squeue on a node with a job: exit %d\n%s%s", o.code, o.out, o.err)
	}
	h.do(t, "scancel", id)
	h.ended(t, id)

	dir := filepath.Join(n1.state, "login")
	token := h.admin(t, "token", "--state-dir", h.all[0].state, "--client", "login")
	b := h.daemon(n1, "", "client", "--state-dir", dir, "--join", token, "--controller", h.all[0].address+":7430")
	waitFor(t, func() bool { return strings.Contains(b.out.String(), "users of this host are heard") })
	for verb, state := range map[string]string{"client": dir, "agent": n1.state} {
		o := outcomeOf(t, h.on(n1, h.gangwayd(verb, "--state-dir", state)))
		o.want(t, 125, "", "another daemon of this host has it")
	}
	srun := h.gangwayd()
	srun.Path, srun.Args = filepath.Join(filepath.Dir(h.bin), "srun"), []string{"srun", "-w", "n3", "hostname"}
	srun = h.on(n1, srun)
	srun.Env = append(srun.Env, "GANGWAY_CLUSTER=unix:"+filepath.Join(dir, "gangway.sock"))
	if o := outcomeOf(t, srun); o.code != 0 || o.out != "n3\n" {
		t.Errorf("srun on a client: exit %d\n%s%s", o.code, o.out, o.err)
	}
}

// startsAgain: an agent needs nothing but its state directory, and finds its steps again;
// a controller that was killed finds its nodes, and programs of a job wait for it.
func (h *hosts) startsAgain(t *testing.T, controller, agent *background) (c, a *background) {
	id := h.submit(t, "echo begins; while ! test -e away; do sleep 0.1; done; srun hostname", "-w", "n4", "-N2", "-o", "out-%j")
	h.file(t, "out-"+id, "begins")
	for _, b := range []*background{controller, agent} {
		b.signal(t, syscall.SIGKILL)
		waitFor(t, b.ended)
	}
	if o := outcomeOf(t, h.command("squeue")); o.code != 1 || !strings.Contains(o.err, "Unable to contact") {
		t.Errorf("squeue without a controller: exit %d\n%s%s", o.code, o.out, o.err)
	}
	a = h.daemon(h.all[4], "", "agent", "--state-dir", h.all[4].state)
	if err := os.WriteFile(filepath.Join(h.dir, "home", "away"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	waitFor(t, func() bool { // it asks by now
		return slices.ContainsFunc(h.processes(t), func(p clusterProcess) bool { return strings.HasPrefix(p.command, "srun hostname") })
	})
	c = h.control()
	h.completes(t, id)
	if got := sorted(h.file(t, "out-"+id, "")); got != "begins\nn1\nn4" {
		t.Errorf("output:\n%s", got)
	}
	return c, a
}

// paused: a node whose agent is silent for a while takes nothing new, and loses nothing.
func (h *hosts) paused(t *testing.T, agent *background) {
	agent.signal(t, syscall.SIGSTOP)
	defer agent.signal(t, syscall.SIGCONT)
	waitFor(t, func() bool { return strings.HasSuffix(h.do(t, "sinfo", "-h", "-n", "n3", "-o", "%T"), "*\n") })
	if o := outcomeOf(t, h.command("srun", "-w", "n3", "--immediate=1", "true")); o.code == 0 {
		t.Errorf("srun on a silent node: %s%s", o.out, o.err)
	}
	agent.signal(t, syscall.SIGCONT)
	h.nodes(t, "n1 idle\nn2 idle\nn3 idle\nn4 idle\n")
	// What runs there outlives a pause that its lease outlives.
	id := h.submit(t, "while ! test -e on; do sleep 0.1; done; echo on", "-w", "n3", "-o", "out-%j")
	h.reaches(t, id, "RUNNING")
	agent.signal(t, syscall.SIGSTOP)
	h.do(t, "sinfo")
	agent.signal(t, syscall.SIGCONT)
	if err := os.WriteFile(filepath.Join(h.dir, "home", "on"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	h.completes(t, id)
	h.nodes(t, "n1 idle\nn2 idle\nn3 idle\nn4 idle\n")
}

// moved: a host that gets another address is found there, with nothing said.
func (h *hosts) moved(t *testing.T) {
	h.root(t, h.all[3], "ip addr add 10.77.0.104/24 dev eth0; ip addr del 10.77.0.4/24 dev eth0; ip addr add 10.77.0.104/24 dev eth0 2>/dev/null || true")
	for deadline := time.Now().Add(2 * clusterPatience); ; time.Sleep(100 * time.Millisecond) {
		got := h.do(t, "scontrol", "show", "node", "n3")
		if strings.Contains(got, "NodeAddr=10.77.0.104") {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("node is\n%s", got)
		}
	}
	h.nodes(t, "n1 idle\nn2 idle\nn3 idle\nn4 idle\n")
	if o := outcomeOf(t, h.command("srun", "-w", "n3", "sh", "-c", "echo $MASTER_ADDR")); o.code != 0 || o.out != "10.77.0.104\n" {
		t.Errorf("srun: exit %d\n%s%s", o.code, o.out, o.err)
	}
}

// revoked: a node whose certificate is taken back has no session any more, and joins with
// another token only.
func (h *hosts) revoked(t *testing.T) {
	ctl, n4 := h.all[0], h.all[4]
	unused := h.admin(t, "token", "--state-dir", ctl.state, "--node", "n4", "--replace")
	if got := h.admin(t, "token", "--state-dir", ctl.state, "--list"); !regexp.MustCompile(`(?m)^node +n4 +certificate .*\nnode +n4 +token `).MatchString(got) {
		t.Errorf("what counts:\n%s", got)
	}
	if got := h.admin(t, "revoke", "--state-dir", ctl.state, "--node", "n4", "--reason", "stolen"); !strings.HasPrefix(got, "revoked 2 certificates and 2 tokens") && !strings.HasPrefix(got, "revoked 1 certificates and 2 tokens") {
		t.Errorf("it says %q", got)
	}
	h.nodes(t, "n1 idle\nn2 idle\nn3 idle\nn4 down*\n")
	if got := h.admin(t, "token", "--state-dir", ctl.state, "--list"); strings.Contains(got, " n4 ") || !strings.Contains(got, " n1 ") {
		t.Errorf("certificates that count:\n%s", got)
	}
	for token, want := range map[string]string{
		h.admin(t, "token", "--state-dir", ctl.state, "--node", "n1"): "(?s)node n1 is there already.*hint:.*--replace",
		unused: "(?s)the join token of node n4 was revoked.*hint:.*gangwayd token --node n4",
	} {
		o := outcomeOf(t, h.on(n4, h.gangwayd("agent", "--state-dir", filepath.Join(n4.state, "new"), "--join", token, "--controller", ctl.address+":7430", "--listen", ":7432")))
		o.want(t, 125, "", want)
	}
}
