package agent

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gangway-hpc/gangway/hooks/nvidia"
	"github.com/gangway-hpc/gangway/internal/fault"
	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/internal/wire"
	"github.com/gangway-hpc/gangway/launcher/control"
)

func (a *Agent) dirOf(k job.StepKey) string { return filepath.Join(a.stepsDir(), control.DirOf(k)) }

// until waits for something that nobody says.
func until(t *testing.T, what string, f func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !f(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s does not come", what)
		}
	}
}

// gone waits until there is no such file any more.
func gone(t *testing.T, name string) {
	t.Helper()
	until(t, "the end of "+name, func() bool {
		_, err := os.Lstat(name)
		return err != nil
	})
}

// sleeper is an agent with a step that runs until it is ended.
func sleeper(t *testing.T, dir string) (m *master, a *Agent, end func()) {
	t.Helper()
	m = newMaster(t, dir)
	a, end = newAgent(t, dir)
	m.greeted()
	k := key()
	m.prepare(k, "", "sleep", "1000")
	m.prepared(k)
	m.start(k)
	m.started(k)
	return m, a, end
}

// TestStep: a step from its prepare to the removal of its directory; an end is said again
// until it was acknowledged.
func TestStep(t *testing.T) {
	t.Parallel()
	dir := shortDir(t)
	m := newMaster(t, dir)
	a, _ := newAgent(t, dir)
	h := m.greeted()
	if h.Node != "n1" || !h.Declared || h.Cluster != "c" || h.Protocol != wire.Protocol || h.BootId == "" {
		t.Errorf("hello %v", h)
	}
	k := key()
	m.prepare(k, "", "true")
	m.prepared(k)
	m.prepare(k, "", "true") // again: it is still prepared, once
	m.prepared(k)
	if _, err := os.Stat(filepath.Join(a.dirOf(k), control.IntentFile)); err == nil {
		t.Error("there is an intent before the start")
	}
	m.start(k)
	m.started(k)
	if e := m.end(k); e.Fault != nil || e.Start != 5 {
		t.Errorf("end %+v", e)
	}
	m.ack(k)
	gone(t, a.dirOf(k))
}

// TestAdopt: steps go on while there is no agent; the next one says what they are, and
// what became of those that ended meanwhile.
func TestAdopt(t *testing.T) {
	t.Parallel()
	dir := shortDir(t)
	m := newMaster(t, dir)
	_, kill1 := newAgent(t, dir)
	m.greeted()
	key := func(n job.ID) job.StepKey { return job.StepKey{Job: n, Attempt: 1, Step: job.BatchStep, Try: 1} }
	running, short, dead, waiting := key(1), key(2), key(3), key(4)
	m.prepare(running, "", "sleep", "1000")
	m.prepare(short, "", "sleep", "0.2")
	m.prepare(dead, "", "sleep", "1000")
	m.prepare(waiting, "", "sleep", "1000")
	for _, k := range []job.StepKey{running, short, dead} {
		m.start(k)
	}
	started := map[job.StepKey]bool{}
	m.expect("four steps", func(msg *wire.AgentMessage) bool {
		if p := msg.GetPrepared(); p.GetKey().Of() == waiting {
			started[waiting] = true
		}
		if p := msg.GetPrepared(); p != nil && p.Key.Of() != waiting {
			m.start(p.Key.Of())
		}
		if s := msg.GetStarted(); s != nil {
			started[s.Key.Of()] = true
		}
		return len(started) == 4
	})
	kill1()
	victim, err := readJSON[process](filepath.Join(dir, "steps", control.DirOf(dead), control.PIDFile))
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(victim.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	until(t, "the end of the short step", func() bool {
		_, err := os.Stat(filepath.Join(dir, "steps", control.DirOf(short), control.EndFile))
		return err == nil && !victim.alive()
	})
	a, _ := newAgent(t, dir)
	h := m.greeted()
	var keys []string
	for _, s := range h.Steps {
		keys = append(keys, s.Key.Of().String())
	}
	slices.Sort(keys)
	if want := []string{"1.batch", "2.batch", "3.batch", "4.batch"}; !slices.Equal(keys, want) {
		t.Errorf("steps %v, want %v", keys, want)
	}
	ends := map[job.StepKey]job.StepEnd{}
	ready := map[job.StepKey]bool{}
	m.expect("what became of them", func(msg *wire.AgentMessage) bool {
		var e job.StepEnd
		if msg.GetEnded() != nil && json.Unmarshal(msg.GetEnded().End, &e) == nil {
			ends[e.Key] = e
		}
		if s := msg.GetStarted(); s != nil && s.Fault == nil {
			ready[s.Key.Of()] = true
		}
		if p := msg.GetPrepared(); p.GetKey().Of() == waiting {
			ready[waiting] = true
		}
		return len(ends) == 2 && ready[running] && ready[waiting]
	})
	if f := ends[short].Fault; f != nil {
		t.Errorf("the short one: %+v", f)
	}
	if f := ends[dead].Fault; f == nil || !strings.Contains(f.What, "without a word") {
		t.Errorf("the dead one: %+v", f)
	}
	until(t, "the end of all of the dead one", func() bool { return len(marked(control.MarkerOf(a.Cluster, "n1", dead), nil)) == 0 })
	m.start(waiting)
	m.started(waiting)
}

// TestHalfStarted: what an agent that was killed had begun to prepare is begun anew, when
// it is sent again at once.
func TestHalfStarted(t *testing.T) {
	t.Parallel()
	dir := shortDir(t)
	m := newMaster(t, dir)
	k := key()
	half := filepath.Join(dir, "steps", control.DirOf(k))
	if err := os.MkdirAll(half, 0o700); err != nil {
		t.Fatal(err)
	}
	for n := range 2000 { // so that removing it takes a while
		if err := os.WriteFile(filepath.Join(half, fmt.Sprint(n)), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	newAgent(t, dir)
	if h := m.greeted(); len(h.Steps) != 0 {
		t.Errorf("steps %v", h.Steps)
	}
	m.prepare(k, "", "sleep", "0.2")
	m.prepared(k)
	m.start(k)
	m.started(k)
	if e := m.end(k); e.Fault != nil {
		t.Errorf("end %+v", e.Fault)
	}
}

// TestIntent: what may have been started is not started again, although nothing of it is
// there any more: its end is that nobody knows.
func TestIntent(t *testing.T) {
	t.Parallel()
	dir := shortDir(t)
	m := newMaster(t, dir)
	k := key()
	run := filepath.Join(dir, "steps", control.DirOf(k))
	if err := os.MkdirAll(run, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := writeJSON(t.Context(), filepath.Join(run, control.IntentFile), control.Start{}); err != nil {
		t.Fatal(err)
	}
	newAgent(t, dir)
	if h := m.greeted(); len(h.Steps) != 1 {
		t.Errorf("steps %v", h.Steps)
	}
	lost := func() {
		t.Helper()
		if e := m.end(k); e.Fault == nil || !strings.Contains(e.Fault.What, "without a word") || e.Fault.Node || e.Start != 0 {
			t.Errorf("end %+v, %+v", e, e.Fault)
		}
	}
	lost()
	m.prepare(k, "", "touch", filepath.Join(dir, "again"))
	lost()
	m.start(k)
	lost()
	if _, err := os.Lstat(filepath.Join(dir, "again")); err == nil {
		t.Error("it was started again")
	}
	m.ack(k)
	gone(t, run)
}

// TestOrphans: an agent ends what an earlier one of its node has left, and nothing of other
// nodes and other clusters, whose names begin alike.
func TestOrphans(t *testing.T) {
	t.Parallel()
	dir := shortDir(t)
	m := newMaster(t, dir)
	cluster := "c-" + filepath.Base(dir)
	start := func(cluster, node string) *exec.Cmd {
		cmd := exec.Command("sleep", "1000")
		cmd.Env = append(os.Environ(), control.Marker+"="+control.MarkerOf(cluster, node, key()))
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		return cmd
	}
	mine := start(cluster, "n1")
	others := []*exec.Cmd{start(cluster, "n10"), start(cluster, "n2"), start(cluster+"1", "n1"), start("x"+cluster, "n1")}
	newAgent(t, dir)
	m.greeted()
	if err := mine.Wait(); err == nil {
		t.Error("an orphan ended by itself")
	}
	for _, cmd := range others {
		if err := cmd.Process.Signal(syscall.Signal(0)); err != nil {
			t.Errorf("%s: %v", cmd.Env[len(cmd.Env)-1], err)
		}
		if err := cmd.Process.Kill(); err != nil {
			t.Error(err)
		}
		if err := cmd.Wait(); err == nil || markerOf(cmd.Process.Pid) != "" {
			t.Errorf("%v", err)
		}
	}
}

// TestRelease: what a supervisor that was killed left behind is ended, and what a step
// left that went its own way.
func TestRelease(t *testing.T) {
	t.Parallel()
	dir := shortDir(t)
	m := newMaster(t, dir)
	a, _ := newAgent(t, dir)
	m.greeted()
	k := key()
	// The rank leaves a process in a session of its own.
	m.prepare(k, "leaves", "sh", "-c", "setsid sleep 1000 & exit 0")
	m.prepared(k)
	m.start(k)
	m.end(k)
	prefix := a.Cluster + "/n1/7.1."
	m.send(&wire.ControllerMessage{Message: &wire.ControllerMessage_Release{Release: &wire.Release{Job: 7, Attempt: 1, Epoch: 3}}})
	c := m.expect("Cleaned", func(msg *wire.AgentMessage) bool { return msg.GetCleaned() != nil }).GetCleaned()
	if c.Job != 7 || c.Attempt != 1 || c.Left != "" {
		t.Errorf("cleaned %v", c)
	}
	m.ack(k)
	gone(t, a.dirOf(k))
	if left := marked(prefix, nil); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// TestHang: a prepare that has no progress is ended by the agent, which says so.
func TestHang(t *testing.T) {
	t.Parallel()
	dir := shortDir(t)
	m := newMaster(t, dir)
	newAgent(t, dir)
	m.greeted()
	k := key()
	m.prepare(k, "hang", "true")
	if e := m.end(k); e.Fault == nil || !e.Fault.Node || !strings.Contains(e.Fault.Cause, "no progress for 1s") || e.Start != 0 {
		t.Errorf("end %+v", e)
	}
}

// TestController: a controller that is away for a while is found again, an older one is
// not obeyed, and steps of which a new one knows nothing are ended.
func TestController(t *testing.T) {
	t.Parallel()
	m, _, _ := sleeper(t, shortDir(t))
	k := key()
	m.server.Stop()
	m.refuse()
	m.serve()
	if h := m.greeted(); len(h.Steps) != 1 || h.Steps[0].Phase != wire.StepState_RUNNING || h.Epoch != 3 {
		t.Errorf("hello %v", h)
	}
	m.started(k)
	m.send(&wire.ControllerMessage{Message: &wire.ControllerMessage_Kill{Kill: &wire.Kill{Key: wire.KeyOf(k), Epoch: 2}}})
	m.send(&wire.ControllerMessage{Message: &wire.ControllerMessage_Kill{Kill: &wire.Kill{Key: wire.KeyOf(k), Epoch: 3, Why: "enough"}}})
	if e := m.end(k); e.Fault == nil || e.Fault.What != "enough" {
		t.Errorf("end %+v", e)
	}
	other := job.StepKey{Job: 8, Attempt: 1, Try: 1}
	m.send(&wire.ControllerMessage{Message: &wire.ControllerMessage_Kill{Kill: &wire.Kill{Key: wire.KeyOf(other), Epoch: 3}}})
	if e := m.end(other); e.Fault == nil || !e.Fault.Node {
		t.Errorf("end of what is not here: %+v", e)
	}
}

// TestVersion: an agent whose controller speaks by another contract ends, and says what both
// speak and what to do.
func TestVersion(t *testing.T) {
	t.Parallel()
	dir := shortDir(t)
	newMasterOf(t, dir, true)
	err := agentIn(dir).Run(t.Context())
	f, ok := errors.AsType[*fault.Error](err)
	if !ok || f.Hint == "" || !strings.Contains(err.Error(), "register node n1: the agent speaks protocol 1, version test; this controller speaks 2, version v9.9") {
		t.Errorf("%v", err)
	}
}

// TestStop: an agent that is stopped ends its steps, and the next one says so.
func TestStop(t *testing.T) {
	t.Parallel()
	dir := shortDir(t)
	m, a, wait := sleeper(t, dir)
	k := key()
	a.Stop()
	if e := m.end(k); e.Fault == nil || e.Fault.What != "the cluster was stopped" {
		t.Errorf("end %+v", e)
	}
	wait()
	if left := marked(a.Cluster+"/", nil); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	b, _ := newAgent(t, dir)
	m.greeted()
	if e := m.end(k); e.Fault == nil || e.Fault.What != "the cluster was stopped" || !e.Fault.Node {
		t.Errorf("end %+v", e)
	}
	m.ack(k)
	gone(t, b.dirOf(k))
}

// TestIO: clients reach a step through the agent, and are told why not.
func TestIO(t *testing.T) {
	t.Parallel()
	_, a, _ := sleeper(t, shortDir(t))
	k := key()
	ask := func(name string) (status, rest string) {
		t.Helper()
		c, err := net.Dial("unix", a.Socket)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := fmt.Fprintf(c, "GET /v1/steps/%s/io HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: gangway-stdio\r\n\r\n{\"io\":{\"follow\":true}}\n", name); err != nil {
			t.Fatal(err)
		}
		r := bufio.NewReader(c)
		status, err = r.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		for line := ""; err == nil && line != "\r\n"; {
			line, err = r.ReadString('\n')
		}
		rest, _ = r.ReadString('\n')
		return status, rest
	}
	if status, rest := ask(control.DirOf(k)); !strings.Contains(status, "101") || rest != "input and output of 7.0: {\"follow\":true}\n" {
		t.Errorf("%q, %q", status, rest)
	}
	if status, _ := ask("7.1.1.1"); !strings.Contains(status, "404") {
		t.Error(status)
	}
	if status, _ := ask("x"); !strings.Contains(status, "400") {
		t.Error(status)
	}
}

// TestPrecache: images are fetched by a program of their own, one after the other, whatever
// becomes of each.
func TestPrecache(t *testing.T) {
	t.Parallel()
	dir := shortDir(t)
	m := newMaster(t, dir)
	newAgent(t, dir)
	m.greeted()
	m.send(&wire.ControllerMessage{Message: &wire.ControllerMessage_Precache{Precache: &wire.Precache{Id: "x", Images: []string{"bad", "good"}, Rate: 1 << 20}}})
	var got []string
	m.expect("what was fetched", func(msg *wire.AgentMessage) bool {
		p := msg.GetPrecached()
		if p == nil {
			return false
		}
		var f job.Fault
		if p.Fault != nil && json.Unmarshal(p.Fault, &f) != nil {
			t.Errorf("fault %s", p.Fault)
		}
		got = append(got, fmt.Sprintf("%s %s %d/%d %v %s %s", p.Id, p.Image, p.Bytes, p.Total, p.Done, p.Digest, f.Cause))
		return p.Done && p.Image == "good"
	})
	if want := []string{"x bad 5/10 false  ", "x bad 5/10 true  pull bad: no such image", "x good 5/10 false  ", "x good 5/10 true sha256:77 "}; !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
}

// TestPrecacheStuck: an image that makes no progress is given up with a word, and one that is
// slow is not.
func TestPrecacheStuck(t *testing.T) {
	t.Parallel()
	dir := shortDir(t)
	m := newMaster(t, dir)
	newAgent(t, dir, func(a *Agent) { a.patience = 3 * time.Second })
	m.greeted()
	m.send(&wire.ControllerMessage{Message: &wire.ControllerMessage_Precache{Precache: &wire.Precache{Id: "x", Images: []string{"stuck", "slow"}}}})
	faults := map[string]job.Fault{}
	m.expect("both are done", func(msg *wire.AgentMessage) bool {
		p := msg.GetPrecached()
		if p == nil || !p.Done {
			return false
		}
		var f job.Fault
		if p.Fault != nil && json.Unmarshal(p.Fault, &f) != nil {
			t.Errorf("fault %s", p.Fault)
		}
		faults[p.Image] = f
		return p.Image == "slow"
	})
	if f := faults["stuck"]; f.Cause != "no progress for 3s; it had 5 of 10 bytes of a layer" || !strings.Contains(f.Hint, "gangway image precache --nodes n1 stuck") {
		t.Errorf("%+v", f)
	}
	if f := faults["slow"]; f.What != "" {
		t.Errorf("%+v", f)
	}
}

// TestGPUs: models are types as administrators write them.
func TestGPUs(t *testing.T) {
	models := []string{"NVIDIA H100 80GB HBM3", "NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-40GB", "Tesla V100-SXM2-32GB", "NVIDIA GeForce RTX 4090", "Graphics Device"}
	var all []nvidia.GPU
	for _, m := range models {
		all = append(all, nvidia.GPU{Model: m})
	}
	var got []string
	for _, g := range gpus(all) {
		got = append(got, fmt.Sprintf("%s:%s:%d", g.Name, g.Type, g.Count))
	}
	if want := []string{"gpu:h100:2", "gpu:a100:1", "gpu:v100:1", "gpu:4090:1", "gpu::1"}; !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
	n, _, err := Hardware(t.Context(), "here")
	if err != nil || n.CPUs < 1 || n.Memory < 1 || n.Name != "here" {
		t.Errorf("%+v, %v", n, err)
	}
}
