package server

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strconv"
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
	id := w.submit(nodes, func(q *api.Submit) { q.Program, q.Allocation = nil, true; q.Spec.CPUsPerTask = 8 })
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
	id := w.submit(1, func(q *api.Submit) { q.Spec.Requeue = true })
	j := w.waitState(id, job.Completed)
	if j.Attempt != 2 || len(j.Spec.Exclude) != 1 || slices.Contains(j.NodeList, j.Spec.Exclude[0]) {
		t.Errorf("job is %+v, excludes %v", j, j.Spec.Exclude)
	}
	// Who has it run again has seen to the cause.
	w.do("POST", "/v1/jobs/"+id.String()+"/requeue", nil, nil)
	w.until("it has run again", func() bool { j := w.job(id); return j.State == job.Completed && j.Attempt == 3 })
	if j := w.job(id); len(j.Spec.Exclude) != 0 {
		t.Errorf("requeued by hand it still excludes %v", j.Spec.Exclude)
	}
	// What its owner excludes stays so.
	own := w.submit(1, func(q *api.Submit) { q.Spec.Exclude, q.Spec.Requeue = []string{"n1"}, true })
	w.waitState(own, job.Failed)
	w.do("POST", "/v1/jobs/"+own.String()+"/requeue", nil, nil)
	w.until("it has run again", func() bool { j := w.job(own); return j.State == job.Completed && j.Attempt > 1 })
	if j := w.job(own); !slices.Equal(j.Spec.Exclude, []string{"n1"}) {
		t.Errorf("requeued by hand it excludes %v, want n1", j.Spec.Exclude)
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

// TestOrders: the orders by which steps are ended say why.
func TestOrders(t *testing.T) {
	t.Parallel()
	for want, f := range map[string]fate{
		job.EndTimeLimit:   {State: job.Timeout},
		job.EndNodeFailure: {State: job.NodeFailed, Requeue: true},
		job.EndRequeue:     {State: job.CancelledState, Requeue: true},
		job.EndCancelled:   {State: job.CancelledState},
	} {
		if got := f.order(); got != want {
			t.Errorf("%+v: %s, want %s", f, got, want)
		}
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
		return agent.steps[key] != nil && slices.Equal(agent.steps[key].signals, []int{-10}) // to the shell alone
	})
	w.do("DELETE", "/v1/jobs/"+a.String(), nil, nil)
	if j := w.waitState(a, job.CancelledState); j.Reason != "None" {
		t.Errorf("the reason of who was cancelled is %s", j.Reason)
	}
	if j := w.waitState(b, job.Timeout); j.Reason != "TimeLimit" {
		t.Errorf("the reason of a time limit is %s", j.Reason)
	}
	var e *api.Error
	if err := w.call("DELETE", "/v1/jobs/"+a.String(), nil, nil); !errors.As(err, &e) || e.Kind != "ALREADY_DONE" {
		t.Errorf("cancelled once more: %v", err)
	}
}

func TestHoldReleaseRequeue(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	id := w.submit(1, func(q *api.Submit) { q.Spec.Hold, q.Spec.Requeue = true, true })
	if j := w.job(id); j.State != job.Pending || !j.Held {
		t.Errorf("job is %+v", j)
	}
	w.do("POST", "/v1/jobs/"+id.String()+"/release", nil, nil)
	w.waitState(id, job.Completed)
	w.do("POST", "/v1/jobs/"+id.String()+"/requeue", nil, nil)
	w.until("it has run again", func() bool { j := w.job(id); return j.State == job.Completed && j.Attempt == 2 })
	w.runFor(0)
	id = w.submit(1, func(q *api.Submit) { q.Spec.Requeue = true })
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
	} else if !page.Items[0].Job.Requeued || page.Items[1].Job.Requeued {
		t.Errorf("the accounting's attempts are %+v, want that the first was requeued", page.Items)
	}
}

// TestHoldRunning: a job that runs may be held, and waits then once it is requeued; released,
// it does not. One that was submitted with --no-requeue is never requeued.
func TestHoldRunning(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	w.runFor(0)
	id := w.submit(1, func(q *api.Submit) { q.Spec.Requeue = true })
	path := "/v1/jobs/" + id.String()
	w.waitState(id, job.Running)
	w.do("POST", path+"/release", nil, nil) // nothing to be done
	w.do("POST", path+"/hold", nil, nil)
	w.restart()
	w.do("POST", path+"/requeue", nil, nil)
	w.until("it waits, held", func() bool { j := w.job(id); return j.State == job.Pending && j.Held && j.Reason == "JobHeldUser" })
	w.do("POST", path+"/release", nil, nil)
	w.until("it runs again", func() bool { j := w.job(id); return j.State == job.Running && j.Attempt == 2 })
	w.do("POST", path+"/hold", nil, nil)
	w.do("POST", path+"/release", nil, nil)
	w.do("POST", path+"/requeue", nil, nil)
	w.until("it runs once more", func() bool { j := w.job(id); return j.State == job.Running && j.Attempt == 3 })
	w.do("DELETE", path, nil, nil)

	once := w.submit(1, nil)
	refused := func(when string) {
		t.Helper()
		var e *api.Error
		if err := w.call("POST", "/v1/jobs/"+once.String()+"/requeue", nil, nil); !errors.As(err, &e) || e.Kind != "DISABLED" {
			t.Errorf("requeued though --no-requeue while it %s: %v", when, err)
		}
	}
	w.waitState(once, job.Running)
	refused("runs")
	w.do("DELETE", "/v1/jobs/"+once.String(), nil, nil)
	w.waitState(once, job.CancelledState)
	refused("has ended")
}

// TestCancelledWhilePending: a job that was cancelled while it waited keeps the partition that
// it waited in, though none was named.
func TestCancelledWhilePending(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	id := w.submit(1, func(q *api.Submit) { q.Spec.Hold, q.Spec.Partitions = true, nil })
	w.do("DELETE", "/v1/jobs/"+id.String(), nil, nil)
	j := w.waitState(id, job.CancelledState)
	var page api.Page[api.Past]
	w.get("/v1/history?ids="+id.String(), &page)
	if len(page.Items) != 1 || j.Partition != "main" || page.Items[0].Job.Partition != "main" {
		t.Errorf("its partition is %q, and in the accounting %+v", j.Partition, page.Items)
	}
}

// TestWhoCancelled: the accounting names who cancelled a job, whether it waited or ran.
func TestWhoCancelled(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	w.runFor(0)
	waits, runs := w.submit(1, func(q *api.Submit) { q.Spec.Hold = true }), w.submit(1, nil)
	w.waitState(runs, job.Running)
	for _, id := range []job.ID{waits, runs} {
		w.do("DELETE", "/v1/jobs/"+id.String(), nil, nil)
		w.waitState(id, job.CancelledState)
		var page api.Page[api.Past]
		w.get("/v1/history?ids="+id.String(), &page)
		for _, j := range []*api.Job{w.job(id), &page.Items[0].Job} {
			if j.CancelledBy != strconv.Itoa(os.Getuid()) {
				t.Errorf("job %v was cancelled by %q, want %d", id, j.CancelledBy, os.Getuid())
			}
		}
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

// TestThrottleChanged: what "scontrol update ArrayTaskThrottle" sends counts at once, and
// explain says that it would help.
func TestThrottleChanged(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	w.runFor(0)
	id := w.submit(1, func(q *api.Submit) {
		q.Spec.Array = &job.Array{Tasks: []job.Range{{First: 0, Last: 2, Step: 1}}, Throttle: 1}
	})
	w.waitState(id, job.Running)
	var x api.Explanation
	w.get(fmt.Sprintf("/v1/explain/%v", id+2), &x)
	if len(x.Relaxations) != 1 || x.Relaxations[0].Text != "ArrayTaskThrottle=2" {
		t.Fatalf("%+v", x)
	}
	w.do("POST", fmt.Sprintf("/v1/jobs/%v", id+2), &api.Change{Spec: &x.Relaxations[0].Spec}, nil)
	w.waitState(id+2, job.Running)
	if j := w.job(id + 1); j.State != job.Pending {
		t.Errorf("task 1 is %v", j.State)
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
		"limit":     {"GET", "/v1/jobs?limit=abc", nil, "", "limit=abc"},
		"no filter": {"GET", "/v1/history?user=x", nil, "", "users"},
		"null":      {"POST", "/v1/jobs", nil, "NO_JOB_SCRIPT", "Allocation"},
		"empty":     {"POST", "/v1/jobs", struct{}{}, "NO_JOB_SCRIPT", "Allocation"},
		"misspelt":  {"POST", "/v1/jobs", map[string]any{"Programm": good().Program}, "BAD_REQUEST", "Programm"},
		"below":     {"POST", "/v1/jobs", map[string]any{"Program": good().Program, "Spec": map[string]any{"MinNode": 2}}, "BAD_REQUEST", "MinNode"},
		"both":      {"POST", "/v1/jobs", func() *api.Submit { q := good(); q.Allocation = true; return q }(), "BAD_REQUEST", "no program"},
		"verb":      {"POST", "/v1/jobs/1/signal", map[string]any{"Signl": "TERM"}, "BAD_REQUEST", "Signl"},
	} {
		err := w.call(c.method, c.path, c.in, nil)
		var e *api.Error
		if !errors.As(err, &e) || e.Kind != c.kind || !strings.Contains(e.What+e.Hint, c.text) {
			t.Errorf("%s: refused with %+v, want %s and %q", name, err, c.kind, c.text)
		}
	}
	for _, text := range []string{"", " ", `{"Allocation":true} {}`, `{"Allocation":true`} {
		resp, err := w.client.Post("http://c/v1/jobs", "application/json", strings.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		if resp.StatusCode != http.StatusBadRequest || resp.Body.Close() != nil {
			t.Errorf("%q is answered with %s", text, resp.Status)
		}
	}
	var jobs api.Page[api.Job]
	if w.get("/v1/jobs", &jobs); len(jobs.Items) != 0 {
		t.Errorf("jobs were made: %+v", jobs.Items)
	}
	req, err := http.NewRequest("POST", "http://c/v1/jobs", strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set(api.VersionHeader, "2 v9.9")
	resp, err := w.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	var e api.Error
	err = errors.Join(json.NewDecoder(resp.Body).Decode(&e), resp.Body.Close())
	if err != nil || resp.StatusCode != http.StatusUnprocessableEntity || e.Kind != "PROTOCOL_VERSION_ERROR" || e.Hint == "" ||
		!strings.Contains(e.What, "version 2 of the API (release v9.9), and the controller version 1 (release test)") {
		t.Errorf("another version: %v, %+v", err, e)
	}
	id := w.submit(1, func(q *api.Submit) {
		q.Program.Environ = [][]byte{make([]byte, 0), []byte("BIG=" + strings.Repeat("x", 1<<20))}
	})
	w.waitState(id, job.Completed)
	err = w.call("POST", "/v1/jobs", &api.Submit{Program: &job.Program{Args: [][]byte{[]byte("true")}, Environ: [][]byte{[]byte("BIG=" + strings.Repeat("x", maxProgram))}}}, nil)
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
	w.renew()
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
	var events api.Page[api.Logged]
	w.get("/v1/jobs/"+id.String()+"/events", &events)
	if kinds := fmt.Sprint(kindsOf(events.Items)); !strings.Contains(kinds, "Started") || !strings.Contains(kinds, "Ended") {
		t.Errorf("what happened to it is %v", kinds)
	}
	for path, kind := range map[string]string{"/v1/jobs/99/events": "INVALID_JOB_ID", "/v1/jobs/" + id.String() + "_0/events": "INVALID_JOB_ID"} {
		if e := w.askAs(uint32(os.Getuid()), "GET", path, nil); e == nil || e.Kind != kind {
			t.Errorf("%s: %+v, want %s", path, e, kind)
		}
	}
	if e := w.askAs(4000000002, "GET", "/v1/jobs/"+id.String()+"/events", nil); e == nil || e.Kind != "ACCESS_DENIED" {
		t.Errorf("a stranger's events: %+v", e)
	}
	if again := w.submit(1, func(q *api.Submit) { q.Once = "again" }); again != id {
		t.Errorf("sent again it is job %v", again)
	}
	w.restart()
	if next := w.submit(1, nil); next != id+1 {
		t.Errorf("the next job is %v", next)
	}
}

func kindsOf(events []api.Logged) (kinds []string) {
	for i := range events {
		kinds = append(kinds, events[i].Kind)
	}
	return kinds
}
