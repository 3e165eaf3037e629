package server

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/gangway-hpc/gangway/internal/api"
	"github.com/gangway-hpc/gangway/internal/job"
)

// declared is the configuration of a world that tests change.
type declared struct {
	next job.Cluster
	err  error

	mu      sync.Mutex
	kept    []job.Cluster
	changes int // how often was said that something has changed
}

// latest is what was kept last; nil: nothing was.
func (d *declared) latest() *job.Cluster {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.kept) == 0 {
		return nil
	}
	c := d.kept[len(d.kept)-1]
	return &c
}

func (d *declared) configuration() *Configuration {
	return &Configuration{
		Read: func(context.Context, *job.Cluster) (*job.Cluster, []string, error) {
			c := d.next
			return &c, []string{"a warning"}, d.err
		},
		Keep: func(c *job.Cluster) error {
			d.mu.Lock()
			defer d.mu.Unlock()
			d.kept = append(d.kept, *c)
			return nil
		},
		Changed: func() {
			d.mu.Lock()
			defer d.mu.Unlock()
			d.changes++
		},
	}
}

// reconfigures starts the world's controller again, with a configuration that can be changed.
func (w *world) reconfigures() *declared {
	w.t.Helper()
	d := &declared{next: *w.cluster}
	d.next.Nodes, d.next.Partitions = slices.Clone(w.cluster.Nodes), slices.Clone(w.cluster.Partitions)
	w.configuration = d.configuration()
	w.restart()
	w.until("all nodes are idle", func() bool {
		return !slices.ContainsFunc(w.nodes(), func(n api.Node) bool { return n.StateText != "idle" })
	})
	return d
}

func (w *world) nodes() []api.Node {
	w.t.Helper()
	var page api.Page[api.Node]
	w.get("/v1/nodes", &page)
	return page.Items
}

func (w *world) states() string {
	w.t.Helper()
	var all []string
	for _, n := range w.nodes() {
		all = append(all, n.Name+" "+n.StateText)
	}
	return strings.Join(all, ", ")
}

func (w *world) reconfigure(dry bool) []api.ConfigChange {
	w.t.Helper()
	var answer api.Reconfigured
	w.do("POST", "/v1/cluster/reconfigure", &api.Reconfigure{DryRun: dry}, &answer)
	if len(answer.Warnings) != 1 {
		w.t.Errorf("warnings: %q", answer.Warnings)
	}
	return answer.Changes
}

// short is a change in few words.
func short(all []api.ConfigChange) string {
	var lines []string
	for _, c := range all {
		var text strings.Builder
		text.WriteString(strings.TrimSpace(c.Kind+" "+c.Name) + " " + c.What + " " + c.Fate)
		for _, f := range c.Fields {
			text.WriteString(" " + f.Name + ":" + f.Was + ">" + f.Now)
		}
		if c.Jobs != nil {
			text.WriteString(" with jobs")
		}
		lines = append(lines, text.String())
	}
	return strings.Join(lines, "\n")
}

// A node that is idle goes at once, one with a job when that has ended; another comes; and
// what is changed is the same after a crash at any of these times.
func TestReconfigure(t *testing.T) {
	w := newWorld(t, 3)
	d := w.reconfigures()
	for _, a := range w.agents {
		a.set(func() { a.script = func(*job.StepSpec) fakeStep { return fakeStep{} } })
	}
	long := w.submit(1, func(q *api.Submit) { q.Spec.NodeList = []string{"n3"} })
	w.waitState(long, job.Running)
	if got := w.reconfigure(true); len(got) != 0 {
		t.Errorf("nothing differs, and yet: %s", short(got))
	}

	d.next.Nodes = append(d.next.Nodes[:1:1], job.Node{Name: "n4", Sockets: 1, CoresPerSocket: 4, ThreadsPerCore: 1, Memory: 100, Addr: "127.0.0.1"})
	d.next.Nodes[0].Features = []string{"fast"}
	d.next.Partitions[0].Nodes = []string{"n1", "n4"}
	d.next.Partitions[0].MaxTime = 2 * job.Hour
	d.next.Config.MaxArray = 50
	const want = `settings changed now MaxArray:0>50
node n1 changed now Features:>fast
node n4 added now CoresPerSocket:0>4 Memory:0>100 Sockets:0>1 ThreadsPerCore:0>1 Addr:>127.0.0.1
node n2 removed now
node n3 removed drains with jobs
partition main changed now Nodes:n[1-3]>n[1,4] MaxTime:>02:00:00`
	if got := short(w.reconfigure(true)); !sameLines(got, want) {
		t.Errorf("dry run:\n%s", got)
	}
	if got := w.states(); got != "n1 idle, n2 idle, n3 mixed" || d.latest() != nil {
		t.Errorf("after a dry run: %s; kept %v", got, d.latest())
	}
	if got := short(w.reconfigure(false)); !sameLines(got, want) {
		t.Errorf("reconfigure:\n%s", got)
	}
	if got := w.states(); got != "n1 idle, n3 draining, n4 unknown" {
		t.Errorf("after it: %s", got)
	}
	if k := d.latest(); len(k.Leaving) != 2 || k.Leaving[1].Name != "n3" {
		t.Errorf("leaving: %v", k.Leaving)
	}
	w.cluster = d.latest()
	w.restart()
	w.until("n3 drains still", func() bool { return strings.Contains(w.states(), "n3 draining") })
	var wrong error
	if err := w.server.do(t.Context(), func(c *core) { wrong = c.sched.Check() }); err != nil || wrong != nil {
		t.Error(err, wrong)
	}
	w.do("DELETE", "/v1/jobs/"+long.String(), nil, nil)
	w.waitState(long, job.CancelledState)
	w.until("n3 has left", func() bool { return w.states() == "n1 idle, n4 unknown" })
	w.until("this is kept", func() bool {
		var left int
		_ = w.server.do(context.Background(), func(c *core) { left = len(c.opts.Cluster.Leaving) })
		return left == 0
	})
	w.restart()
	if got := w.states(); strings.Contains(got, "n3") || strings.Contains(got, "n2") {
		t.Errorf("after a crash: %s", got)
	}
}

// sameLines compares lines whose words come in any order behind the third.
func sameLines(got, want string) bool {
	norm := func(text string) []string {
		var all []string
		for line := range strings.SplitSeq(text, "\n") {
			fields := strings.Fields(line)
			slices.Sort(fields)
			all = append(all, strings.Join(fields, " "))
		}
		slices.Sort(all)
		return all
	}
	return slices.Equal(norm(got), norm(want))
}

// What was to leave or change and is declared again stays; a node that has something else now
// is changed when its job has ended, a partition goes with its last job.
func TestReconfigureReturns(t *testing.T) {
	w := newWorld(t, 2)
	d := w.reconfigures()
	for _, a := range w.agents {
		a.set(func() { a.script = func(*job.StepSpec) fakeStep { return fakeStep{} } })
	}
	first, nodes := d.next, slices.Clone(d.next.Nodes)
	id := w.submit(1, func(q *api.Submit) { q.Spec.NodeList = []string{"n2"} })
	w.waitState(id, job.Running)

	d.next.Nodes = nodes[:1]
	if got := short(w.reconfigure(false)); got != "node n2 removed drains with jobs" {
		t.Errorf("leaves: %s", got)
	}
	d.next = first
	if got := short(w.reconfigure(false)); got != "node n2 stays now" {
		t.Errorf("comes back: %s", got)
	}
	if got := w.states(); got != "n1 idle, n2 mixed" {
		t.Errorf("then: %s", got)
	}

	d.next.Nodes = slices.Clone(nodes)
	d.next.Nodes[1].CoresPerSocket = 4
	if got := short(w.reconfigure(false)); got != "node n2 changed drains CoresPerSocket:8>4 with jobs" {
		t.Errorf("has less: %s", got)
	}
	d.next.Partitions = []job.Partition{{Name: "other", Default: true, Nodes: []string{"n1", "n2"}}}
	if got := short(w.reconfigure(false)); !strings.Contains(got, "partition main removed drains with jobs") || !strings.Contains(got, "partition other added now") {
		t.Errorf("another partition:\n%s", got)
	}
	late := api.Submit{Spec: job.Spec{Name: "t", MinNodes: 1, Partitions: []string{"main"}, CPUsPerTask: 1}, Program: &job.Program{Script: []byte("#!/bin/sh\n"), Args: [][]byte{[]byte("x")}}}
	if err := w.call("POST", "/v1/jobs", &late, nil); err == nil {
		t.Error("a partition that goes takes a job")
	}
	w.cluster = d.latest()
	w.restart()
	w.do("DELETE", "/v1/jobs/"+id.String(), nil, nil)
	w.waitState(id, job.CancelledState)
	w.until("n2 has less and the partition is gone", func() bool {
		var parts api.Page[api.Partition]
		w.get("/v1/partitions", &parts)
		all := w.nodes()
		return len(parts.Items) == 1 && parts.Items[0].Name == "other" && all[1].CPUs == 4 && all[1].StateText == "idle"
	})
}

// What cannot be read, or not be so, changes nothing; and nobody but administrators asks.
func TestReconfigureRefused(t *testing.T) {
	w := newWorld(t, 2)
	if err := w.call("POST", "/v1/cluster/reconfigure", &api.Reconfigure{}, nil); err == nil || !strings.Contains(err.Error(), "no configuration") {
		t.Errorf("without any: %v", err)
	}
	d := w.reconfigures()
	d.err = errors.New("slurm.conf:12: NodeName=n[1: want a list")
	d.next.Nodes = nil
	var refused *api.Error
	if err := w.call("POST", "/v1/cluster/reconfigure", &api.Reconfigure{}, nil); !errors.As(err, &refused) || !strings.Contains(refused.What, "slurm.conf:12") || !strings.Contains(refused.Hint, "nothing was changed") {
		t.Errorf("bad file: %v", err)
	}
	d.err = nil
	d.next.Nodes = slices.Clone(w.cluster.Nodes)
	d.next.Nodes[0].Memory = -1
	d.next.Partitions = nil
	if err := w.call("POST", "/v1/cluster/reconfigure", &api.Reconfigure{}, nil); !errors.As(err, &refused) || !strings.Contains(refused.What, "n1") || refused.Hint != "nothing was changed" {
		t.Errorf("bad node: %v", err)
	}
	if got := w.states(); got != "n1 idle, n2 idle" || d.latest() != nil {
		t.Errorf("after that: %s, kept %v", got, d.latest())
	}
	if _, err := w.server.Reconfigure(t.Context()); err == nil { // as SIGHUP
		t.Error("a bad node is taken")
	}
	d.next = *w.cluster
	d.next.LostAfter = job.Minute * 2
	answer, err := w.server.Reconfigure(t.Context())
	if err != nil || short(answer.Changes) != "settings changed now LostAfter:>00:02:00" {
		t.Errorf("SIGHUP: %v %s", err, short(answer.Changes))
	}
	w.until("it counts", func() bool {
		var lost job.Duration
		_ = w.server.do(context.Background(), func(c *core) { lost = c.lostAfter() })
		return lost == 2*job.Minute
	})
}
