package server

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/gangway-hpc/gangway/internal/api"
	"github.com/gangway-hpc/gangway/internal/job"
)

// TestNothingIsToldTooEarly: while a batch is not on stable storage, nobody hears of what is
// in it: not who asked, not who looks, not who watches.
func TestNothingIsToldTooEarly(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	first := w.submit(1, func(q *api.Submit) { q.Spec.Hold = true })
	resp, err := w.client.Get("http://c/v1/watch?ids=" + first.String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	lines := bufio.NewScanner(resp.Body)
	watched := func() (e api.Event) {
		if !lines.Scan() {
			t.Fatal("the watch ended")
		}
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			t.Fatal(err)
		}
		return e
	}
	for !watched().Synced {
	}
	w.store.gate.Lock()
	told := make(chan string, 10)
	var answers []func() error
	go func() {
		told <- fmt.Sprintf("watch %v", watched().Job.State)
	}()
	answers = append(answers, func() error { return w.call("DELETE", "/v1/jobs/"+first.String(), nil, nil) })
	answers = append(answers, func() error {
		q := api.Submit{Spec: job.Spec{Name: "x"}, Program: &job.Program{Args: [][]byte{[]byte("x")}}}
		return w.call("POST", "/v1/jobs", &q, nil)
	})
	for i, f := range answers {
		go func() {
			err := f()
			told <- fmt.Sprintf("change %d %v", i, err)
		}()
	}
	w.until("the core has taken them", func() bool {
		taken := false
		_ = w.server.do(t.Context(), func(c *core) {
			v, _ := c.sched.Job(first)
			taken = v.State.Done() && c.last == first+1
		})
		return taken
	})
	asked := w.waiting()
	for _, path := range []string{"/v1/jobs/" + first.String(), "/v1/jobs", "/v1/history", "/v1/nodes", "/v1/watch?ids=" + (first + 1).String()} {
		go func() {
			resp, err := w.client.Get("http://c" + path)
			if err == nil {
				_ = resp.Body.Close()
			}
			told <- fmt.Sprintf("GET %s %v", path, err)
		}()
	}
	w.until("the core has taken the questions", func() bool { return w.waiting() >= asked+5 })
	time.Sleep(20 * time.Millisecond) // an answer that is given too early is on its way now
	for range len(told) {
		t.Errorf("answered before it was durable: %s", <-told)
	}
	w.store.gate.Unlock()
	if t.Failed() {
		return
	}
	var got []string
	for range 8 {
		got = append(got, <-told)
	}
	slices.Sort(got)
	want := []string{
		"GET /v1/history <nil>", "GET /v1/jobs <nil>", "GET /v1/jobs/1 <nil>", "GET /v1/nodes <nil>", "GET /v1/watch?ids=2 <nil>",
		"change 0 <nil>", "change 1 <nil>", "watch CANCELLED",
	}
	if !slices.Equal(got, want) {
		t.Errorf("told %q, want %q", got, want)
	}
}

// waiting is how much is to be done once what was decided is on stable storage.
func (w *world) waiting() (n int) {
	c := w.server.core.commit
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range c.queue {
		n += len(c.queue[i].effects)
	}
	return n
}

// TestAgentsAfterRestart: where the output of a step is can be asked before the nodes have
// come back, because they run on meanwhile.
func TestAgentsAfterRestart(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	w.runFor(0)
	id := w.allocation(2)
	s := w.step(id, stepRequest(2, 2))
	want := []string{"unix:/nowhere", "unix:/nowhere"}
	if !slices.Equal(s.Agents, want) {
		t.Fatalf("agents are %q", s.Agents)
	}
	w.until("it runs", func() bool { return w.started()[s.Key] == 2 })
	for _, a := range w.agents {
		a.pause(true)
	}
	for _, restart := range []func(){w.restart, func() { w.stop(); w.start() }} { // from the log, and from a snapshot
		restart()
		var now api.Step
		w.get(fmt.Sprintf("/v1/jobs/%v/steps/0", id), &now)
		if !slices.Equal(now.Agents, want) || now.Key != s.Key {
			t.Errorf("after a restart agents are %q", now.Agents)
		}
	}
}

// sessions are the nodes that have one.
func (w *world) sessions() (names []string) {
	w.t.Helper()
	if err := w.server.do(w.t.Context(), func(c *core) {
		for name, n := range c.nodes {
			if n.session != nil {
				names = append(names, name)
			}
		}
	}); err != nil {
		w.t.Fatal(err)
	}
	return names
}

func TestPlanCancel(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	w.runFor(0)
	runs := w.submit(2, func(q *api.Submit) {
		q.Spec.CPUsPerTask = 8
		q.Spec.GRES = []job.GRESRequest{{Name: "gpu", Count: 4, Per: job.PerNode}}
	})
	w.waitState(runs, job.Running)
	plan := func(ids ...job.ID) (p api.Plan, err error) {
		err = w.call("POST", "/v1/plan", &api.PlanRequest{Cancel: ids}, &p)
		return p, err
	}
	p, err := plan(runs)
	if err != nil || len(p.Items) != 0 || len(p.Frees) != 1 || p.Frees[0].ID != runs || len(p.Frees[0].Shares) != 2 ||
		p.Frees[0].Shares[0].CPUs != 8 || p.Frees[0].Shares[0].Devices[0].Count != 4 || p.Frees[0].Until <= p.Now {
		t.Errorf("alone: %+v, %v", p, err)
	}
	waits := w.submit(1, func(q *api.Submit) {
		q.Spec.CPUsPerTask = 8
		q.Spec.Array = &job.Array{Tasks: []job.Range{{First: 0, Last: 1, Step: 1}}}
	})
	p, err = plan(runs)
	if err != nil || len(p.Items) != 2 || p.Items[0].ID != waits || p.Items[0].Now > p.Now || p.Items[0].Was <= p.Now {
		t.Errorf("with others behind it: %+v, %v", p, err)
	}
	if p, err = plan(waits); err != nil || len(p.Frees) != 0 {
		t.Errorf("an array that waits: %+v, %v", p, err)
	}
	if _, err := plan(99); err == nil {
		t.Error("a job that is not there can be cancelled")
	}
	if j := w.job(runs); j.State != job.Running {
		t.Errorf("the job is %v after being planned about", j.State)
	}
	w.do("DELETE", "/v1/jobs/"+runs.String(), nil, nil)
	w.waitState(runs, job.CancelledState)
	if _, err := plan(runs); err == nil {
		t.Error("a job that has ended can be cancelled")
	}
}

// TestForgottenGoes: events, scripts and environments of jobs that nobody knows any more
// do not stay, those of others do, and what was removed is stored again when it is needed.
func TestForgottenGoes(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	w.stop()
	w.cluster.Config.MinJobAge = 50 * job.Millisecond
	w.every, w.keep = 20, 30
	w.renew()
	script := func(text string) func(*api.Submit) {
		return func(q *api.Submit) { q.Program.Script = []byte("#!/bin/sh\n" + text) }
	}
	over := func(id job.ID) { // a job that has ended is soon not known any more
		w.until("the job is over", func() bool {
			var j api.Job
			return w.call("GET", "/v1/jobs/"+id.String(), nil, &j) != nil || j.State == job.Completed
		})
	}
	old := w.submit(1, script("old"))
	over(old)
	held := w.submit(1, func(q *api.Submit) { script("held")(q); q.Spec.Hold = true })
	events := func() (n int) {
		if err := w.store.Read(t.Context(), w.store.Pruned(), func(uint64, []byte) error { n++; return nil }); err != nil {
			t.Fatal(err)
		}
		return n
	}
	blobs := func() (n int) {
		if err := w.store.Blobs(t.Context(), func(string) error { n++; return nil }); err != nil {
			t.Fatal(err)
		}
		return n
	}
	i := 0
	w.until("the old is gone", func() bool {
		over(w.submit(1, script(fmt.Sprint(i))))
		i++
		if err := w.server.do(t.Context(), func(c *core) { c.forget(c.now) }); err != nil {
			t.Fatal(err)
		}
		return i > 20 && w.store.Pruned() > 100 && events() < 150 && blobs() < i/2
	})
	get := func(id job.ID) string {
		resp, err := w.client.Get("http://c/v1/jobs/" + id.String() + "/script")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = resp.Body.Close() }()
		line, _ := bufio.NewReader(resp.Body).ReadString(0)
		if resp.StatusCode != http.StatusOK {
			return resp.Status
		}
		return line
	}
	if got := get(held); got != "#!/bin/sh\nheld" {
		t.Errorf("the script of a job that waits is %q", got)
	}
	w.restart()
	w.until("the node is back", func() bool { return len(w.sessions()) == 1 })
	if got := get(held); got != "#!/bin/sh\nheld" {
		t.Errorf("the script of a job that waits is %q after a restart", got)
	}
	again := w.submit(1, func(q *api.Submit) { script("old")(q); q.Spec.Hold = true })
	if got := get(again); got != "#!/bin/sh\nold" {
		t.Errorf("a script that was removed comes back as %q", got)
	}
	var page api.Page[api.Logged]
	w.get("/v1/jobs/"+held.String()+"/events", &page)
	if len(page.Items) == 0 || page.Items[0].Kind != "Pruned" {
		t.Errorf("events are %+v, want to hear that there were earlier ones", page.Items)
	}
	w.do("POST", "/v1/jobs/"+held.String()+"/release", nil, nil)
	w.waitState(held, job.Completed)
	if next := w.submit(1, nil); next != again+1 {
		t.Errorf("the next job is %v after %v", next, again)
	}
}
