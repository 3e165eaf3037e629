package server

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gangway-hpc/gangway/internal/api"
	"github.com/gangway-hpc/gangway/internal/job"
)

func TestJobRuns(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 4)
	id := w.submit(4, nil)
	j := w.waitState(id, job.Completed)
	if len(j.NodeList) != 4 || j.Exit != 0 || j.End < j.Start || j.Start < j.Submit {
		t.Errorf("job is %+v", j)
	}
	if got := w.started(); len(got) != 1 || got[job.StepKey{Job: id, Attempt: 1, Step: job.BatchStep, Try: 1}] != 1 {
		t.Errorf("started: %v", got)
	}
	for name, a := range w.agents {
		a.mu.Lock()
		if !slices.Contains(a.releases, attempt{id, 1}) {
			t.Errorf("node %s was not told to clean up", name)
		}
		a.mu.Unlock()
	}
	var page api.Page[api.Past]
	w.get("/v1/history", &page)
	if len(page.Items) != 1 || page.Items[0].Job.State != job.Completed || len(page.Items[0].Steps) != 1 || page.Items[0].Steps[0].Name != "batch" {
		t.Errorf("accounting has %+v", page.Items)
	}
}

// allocation is a job without a program that runs.
func (w *world) allocation(nodes int) job.ID {
	w.t.Helper()
	id := w.submit(nodes, func(q *api.Submit) { q.Program = nil; q.Spec.CPUsPerTask = 8 })
	w.waitState(id, job.Running)
	return id
}

func stepRequest(nodes, tasks int) *api.StepRequest {
	return &api.StepRequest{Name: "s", MinNodes: nodes, Tasks: tasks, Program: job.Program{Args: [][]byte{[]byte("true")}, KillOnBadExit: true}}
}

func (w *world) step(id job.ID, q *api.StepRequest) *api.Step {
	w.t.Helper()
	var s api.Step
	w.do("POST", "/v1/jobs/"+id.String()+"/steps", q, &s)
	return &s
}

func (w *world) stepEnd(s *api.Step) *api.Step {
	w.t.Helper()
	var now api.Step
	w.until("the step has ended", func() bool {
		w.get(fmt.Sprintf("/v1/jobs/%v/steps/%v", s.Key.Job, s.Key.Step), &now)
		return now.Phase == "ended"
	})
	return &now
}

func TestGangStartsTogether(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 4)
	id := w.allocation(4)
	slow := w.agents["n3"]
	slow.mu.Lock()
	slow.script = func(*job.StepSpec) fakeStep { return fakeStep{at: 300 * time.Millisecond, runs: time.Millisecond} }
	slow.mu.Unlock()
	s := w.step(id, stepRequest(4, 8))
	if want := [][]int{{0, 1}, {2, 3}, {4, 5}, {6, 7}}; fmt.Sprint(s.Ranks) != fmt.Sprint(want) {
		t.Errorf("ranks %v, want %v", s.Ranks, want)
	}
	time.Sleep(100 * time.Millisecond)
	if n := w.started()[s.Key]; n != 0 {
		t.Errorf("%d nodes have started before all were prepared", n)
	}
	if end := w.stepEnd(s); end.State != job.Completed || len(end.Ends) != 4 || w.started()[s.Key] != 4 {
		t.Errorf("step ended as %+v, started on %d nodes", end, w.started()[s.Key])
	}
	w.do("POST", "/v1/jobs/"+id.String()+"/end", &api.Change{}, nil)
	w.waitState(id, job.Completed)
}

func TestPrepareFailsOnOne(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 4)
	id := w.allocation(4)
	bad := w.agents["n2"]
	bad.mu.Lock()
	bad.script = func(*job.StepSpec) fakeStep {
		return fakeStep{fault: &job.Fault{What: "pull image: no space", Node: true}}
	}
	bad.mu.Unlock()
	// On all nodes of the job there is no other to try.
	end := w.stepEnd(w.step(id, stepRequest(4, 4)))
	if end.State != job.Failed || end.Fault == nil || !strings.Contains(end.Fault.What, "1 of 4 nodes: pull image: no space (n2)") {
		t.Errorf("step ended as %+v with %+v", end, end.Fault)
	}
	if n := w.started()[end.Key]; n != 0 {
		t.Errorf("%d nodes have started a step that was not prepared everywhere", n)
	}
	// With a node left over it runs there.
	end = w.stepEnd(w.step(id, stepRequest(3, 3)))
	if end.State != job.Completed || end.Key.Try != 2 || slices.Contains(end.Nodes, "n2") {
		t.Errorf("step ended as %+v", end)
	}
}

func TestBatchGoesElsewhere(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	for _, name := range []string{"n1", "n2"} {
		a := w.agents[name]
		a.mu.Lock()
		a.script = func(s *job.StepSpec) fakeStep {
			if s.Key.Attempt == 1 {
				return fakeStep{fault: &job.Fault{What: "mount: broken", Node: true}}
			}
			return fakeStep{runs: time.Millisecond}
		}
		a.mu.Unlock()
	}
	id := w.submit(1, nil)
	j := w.waitState(id, job.Completed)
	if j.Attempt != 2 || len(j.Spec.Exclude) != 1 || slices.Contains(j.NodeList, j.Spec.Exclude[0]) {
		t.Errorf("job is %+v, excludes %v", j, j.Spec.Exclude)
	}
	// And where there is none left it fails with the cause.
	for _, a := range w.agents {
		a.mu.Lock()
		a.script = func(*job.StepSpec) fakeStep { return fakeStep{fault: &job.Fault{What: "mount: broken", Node: true}} }
		a.mu.Unlock()
	}
	id = w.submit(1, nil)
	j = w.waitState(id, job.Failed)
	if j.Fault == nil || !strings.Contains(j.Fault.What, "mount: broken") {
		t.Errorf("job failed with %+v", j.Fault)
	}
}

func TestOneRankFails(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 4)
	id := w.allocation(4)
	w.runFor(0)
	bad := w.agents["n3"]
	bad.mu.Lock()
	bad.script = func(*job.StepSpec) fakeStep { return fakeStep{runs: 20 * time.Millisecond, exit: 7} }
	bad.mu.Unlock()
	end := w.stepEnd(w.step(id, stepRequest(4, 4)))
	if end.Exit != 7 || end.Failed == nil || end.Failed.Node != "n3" || end.Failed.Rank != 2 || end.FailedRanks != 4 {
		t.Errorf("step ended as %+v, first %+v", end, end.Failed)
	}
}

func TestCancelLimitSignal(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	w.runFor(0)
	a := w.submit(1, nil)
	b := w.submit(1, func(q *api.Submit) { q.Spec.TimeLimit = job.Second })
	w.waitState(a, job.Running)
	key := job.StepKey{Job: a, Attempt: 1, Step: job.BatchStep, Try: 1}
	w.until("it runs", func() bool { return w.started()[key] == 1 })
	w.do("POST", "/v1/jobs/"+a.String()+"/signal", &api.Change{Signal: "USR1", Batch: true}, nil)
	agent := w.agents[w.job(a).NodeList[0]]
	w.until("the signal has come", func() bool {
		agent.mu.Lock()
		defer agent.mu.Unlock()
		return agent.steps[key] != nil && slices.Equal(agent.steps[key].signals, []int{10})
	})
	w.do("DELETE", "/v1/jobs/"+a.String(), nil, nil)
	w.waitState(a, job.CancelledState)
	w.waitState(b, job.Timeout)
	var e *api.Error
	if err := w.call("DELETE", "/v1/jobs/"+a.String(), nil, nil); !errors.As(err, &e) || e.Kind != "ALREADY_DONE" {
		t.Errorf("cancelled once more: %v", err)
	}
}

func TestHoldReleaseRequeue(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	id := w.submit(1, func(q *api.Submit) { q.Spec.Hold = true })
	if j := w.job(id); j.State != job.Pending || !j.Held {
		t.Errorf("job is %+v", j)
	}
	w.do("POST", "/v1/jobs/"+id.String()+"/release", nil, nil)
	w.waitState(id, job.Completed)
	w.do("POST", "/v1/jobs/"+id.String()+"/requeue", nil, nil)
	w.until("it has run again", func() bool { j := w.job(id); return j.State == job.Completed && j.Attempt == 2 })
	w.runFor(0)
	id = w.submit(1, nil)
	w.waitState(id, job.Running)
	w.do("POST", "/v1/jobs/"+id.String()+"/requeue", nil, nil)
	w.until("it runs again", func() bool { j := w.job(id); return j.State == job.Running && j.Attempt == 2 })
	var page api.Page[api.Past]
	w.get("/v1/history?ids="+id.String(), &page)
	if len(page.Items) != 1 || page.Items[0].Job.Attempt != 2 {
		t.Errorf("accounting has %+v, want the attempt that runs", page.Items)
	}
	w.get("/v1/history?duplicates=1&ids="+id.String(), &page)
	if len(page.Items) != 2 {
		t.Errorf("accounting has %d attempts, want the one that was ended and the one that runs", len(page.Items))
	}
}

func TestArray(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	w.runFor(0)
	id := w.submit(1, func(q *api.Submit) {
		q.Spec.CPUsPerTask = 8
		q.Spec.Array = &job.Array{Tasks: []job.Range{{First: 0, Last: 9, Step: 1}}}
	})
	w.waitState(id, job.Running)
	var page api.Page[api.Job]
	w.get("/v1/jobs", &page)
	if len(page.Items) != 2 || fmt.Sprint(page.Items[1].Waiting) != "[{1 9 1}]" {
		t.Errorf("queue has %+v", page.Items)
	}
	w.get("/v1/jobs?tasks=1", &page)
	if len(page.Items) != 10 {
		t.Errorf("queue has %d tasks", len(page.Items))
	}
	w.get("/v1/jobs?limit=3&tasks=1", &page)
	next := page.Next
	if len(page.Items) != 3 || next == "" {
		t.Errorf("page has %d tasks, next %q", len(page.Items), next)
	}
	w.get("/v1/jobs?limit=30&tasks=1&after="+next, &page)
	if len(page.Items) != 7 {
		t.Errorf("the rest has %d tasks", len(page.Items))
	}
	var j api.Job
	w.get(fmt.Sprintf("/v1/jobs/%v_3", id), &j)
	if j.Array == nil || j.Array.Task != 3 || j.ID != id+3 {
		t.Errorf("task 3 is %+v", j)
	}
	w.do("DELETE", "/v1/jobs/"+id.String(), nil, nil)
	w.waitState(id+9, job.CancelledState)
	w.waitState(id, job.CancelledState)
	if next := w.submit(1, nil); next != id+10 {
		t.Errorf("the next job is %v", next)
	}
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	good := func() *api.Submit {
		return &api.Submit{Spec: job.Spec{MinNodes: 1}, Program: &job.Program{Args: [][]byte{[]byte("true")}}}
	}
	for name, c := range map[string]struct {
		method, path string
		in           any
		kind, text   string
	}{
		"too large": {"POST", "/v1/jobs", func() *api.Submit { q := good(); q.Spec.MinNodes = 3; return q }(), "REQUESTED_NODE_CONFIG_UNAVAILABLE", "--nodes=2"},
		"partition": {"POST", "/v1/jobs", func() *api.Submit { q := good(); q.Spec.Partitions = []string{"mian"}; return q }(), "INVALID_PARTITION_NAME", "main"},
		"nothing":   {"POST", "/v1/jobs", &api.Submit{Program: &job.Program{}}, "NO_JOB_SCRIPT", "nothing to run"},
		"no job":    {"GET", "/v1/jobs/99", nil, "INVALID_JOB_ID", "Invalid job id"},
		"not an id": {"GET", "/v1/jobs/zzz", nil, "INVALID_JOB_ID", "zzz"},
		"signal":    {"POST", "/v1/jobs/1/signal", &api.Change{Signal: "NOPE"}, "BAD_SIGNAL", "NOPE"},
		"no node":   {"GET", "/v1/nodes/n9", nil, "INVALID_NODE_NAME", "n9"},
		"drain":     {"POST", "/v1/nodes/n1", &api.Change{State: "drain"}, "MISSING_REASON", "reason"},
		"state":     {"GET", "/v1/jobs?states=FOO", nil, "INVALID_JOB_STATE", "Invalid job state specified: FOO"},
		"ids":       {"GET", "/v1/jobs?ids=a", nil, "", "not a job id"},
	} {
		err := w.call(c.method, c.path, c.in, nil)
		var e *api.Error
		if !errors.As(err, &e) || e.Kind != c.kind || !strings.Contains(e.What+e.Hint, c.text) {
			t.Errorf("%s: refused with %+v, want %s and %q", name, err, c.kind, c.text)
		}
	}
	id := w.submit(1, func(q *api.Submit) {
		q.Program.Environ = [][]byte{make([]byte, 0), []byte("BIG=" + strings.Repeat("x", 1<<20))}
	})
	w.waitState(id, job.Completed)
	err := w.call("POST", "/v1/jobs", &api.Submit{Program: &job.Program{Args: [][]byte{[]byte("true")}, Environ: [][]byte{[]byte("BIG=" + strings.Repeat("x", maxProgram))}}}, nil)
	if err == nil || !strings.Contains(err.Error(), "environment") {
		t.Errorf("an environment of 16 MiB: %v", err)
	}
}

func TestSubmitStream(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	const n = 500
	r, pipe := io.Pipe()
	go func() {
		enc := json.NewEncoder(pipe)
		for i := range n {
			q := api.Submit{Spec: job.Spec{Name: fmt.Sprint(i), Hold: true}, Program: &job.Program{Args: [][]byte{[]byte("true")}}}
			if i == 7 {
				q.Spec.MinNodes = 1000
			}
			_ = enc.Encode(&q)
		}
		_ = pipe.Close()
	}()
	req, _ := http.NewRequest("POST", "http://c/v1/submit", r)
	resp, err := w.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	lines, last := bufio.NewScanner(resp.Body), job.ID(0)
	count := 0
	for ; lines.Scan(); count++ {
		var a api.Submitted
		if err := json.Unmarshal(lines.Bytes(), &a); err != nil {
			t.Fatal(err)
		}
		if (a.Error != nil) != (count == 7) {
			t.Errorf("answer %d is %s", count, lines.Bytes())
		}
		if a.Error == nil {
			if a.ID != last+1 {
				t.Errorf("answer %d is for job %v after %v", count, a.ID, last)
			}
			last = a.ID
		}
	}
	if count != n {
		t.Errorf("%d answers, want %d", count, n)
	}
}

func TestOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	once := func(q *api.Submit) { q.Once = "abc" }
	first := w.submit(1, once)
	w.restart()
	if second := w.submit(1, once); second != first {
		t.Errorf("sent again it is job %v, and was %v", second, first)
	}
}

// TestForgotten: a job that has ended long ago is only in the accounting.
func TestForgotten(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	w.stop()
	w.cluster.Config.MinJobAge = 50 * job.Millisecond
	if err := os.Remove(filepath.Join(w.dir, "db")); err != nil { // the configuration is taken once
		t.Fatal(err)
	}
	for _, suffix := range []string{"-wal", "-shm", "-snapshot"} {
		_ = os.Remove(filepath.Join(w.dir, "db"+suffix))
	}
	w.start()
	w.until("the node is idle", func() bool { var n api.Node; w.get("/v1/nodes/n1", &n); return n.StateText == "idle" })
	id := w.submit(1, func(q *api.Submit) { q.Once = "again" })
	w.until("it is forgotten", func() bool {
		var e *api.Error
		err := w.call("GET", "/v1/jobs/"+id.String(), nil, nil)
		return errors.As(err, &e) && e.Kind == "INVALID_JOB_ID"
	})
	if err := w.server.do(t.Context(), func(c *core) { c.forget(c.now) }); err != nil {
		t.Fatal(err)
	}
	var page api.Page[api.Past]
	w.get("/v1/history?ids="+id.String(), &page)
	if len(page.Items) != 1 || page.Items[0].Job.State != job.Completed {
		t.Errorf("accounting has %+v", page.Items)
	}
	for _, path := range []string{"/v1/jobs?ids=" + id.String(), "/v1/watch?ids=" + id.String()} {
		if err := w.call("GET", path, nil, nil); err == nil {
			t.Errorf("%s is answered", path)
		}
	}
	if again := w.submit(1, func(q *api.Submit) { q.Once = "again" }); again != id {
		t.Errorf("sent again it is job %v", again)
	}
	w.restart()
	if next := w.submit(1, nil); next != id+1 {
		t.Errorf("the next job is %v", next)
	}
}
