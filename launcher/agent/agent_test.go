package agent

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gangway-hpc/gangway/hooks/nvidia"
	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/internal/wire"
	"github.com/gangway-hpc/gangway/launcher/control"
)

func (a *Agent) dirOf(k job.StepKey) string { return filepath.Join(a.stepsDir(), control.DirOf(k)) }

// gone waits until there is no such file any more.
func gone(t *testing.T, name string) {
	t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		if _, err := os.Lstat(name); err != nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s is still there", name)
		}
	}
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
	for deadline := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		if _, err := os.Stat(filepath.Join(dir, "steps", control.DirOf(short), control.EndFile)); err == nil && !victim.alive() {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the short step does not end")
		}
	}
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
	for deadline := time.Now().Add(patience); len(marked(control.MarkerOf(a.Cluster, "n1", dead), nil)) > 0; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("of the dead one something is left")
		}
	}
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
	m.prepare(k, "", "sh", "-c", "setsid sleep 1000 & exit 0")
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
	dir := shortDir(t)
	m := newMaster(t, dir)
	newAgent(t, dir)
	m.greeted()
	k := key()
	m.prepare(k, "", "sleep", "1000")
	m.prepared(k)
	m.start(k)
	m.started(k)
	m.server.Stop()
	time.Sleep(100 * time.Millisecond)
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

// TestStop: an agent that is stopped ends its steps, and the next one says so.
func TestStop(t *testing.T) {
	t.Parallel()
	dir := shortDir(t)
	m := newMaster(t, dir)
	a, wait := newAgent(t, dir)
	m.greeted()
	k := key()
	m.prepare(k, "", "sleep", "1000")
	m.prepared(k)
	m.start(k)
	m.started(k)
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
	dir := shortDir(t)
	m := newMaster(t, dir)
	a, _ := newAgent(t, dir)
	m.greeted()
	k := key()
	m.prepare(k, "", "sleep", "1000")
	m.prepared(k)
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
