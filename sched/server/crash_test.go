package server

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/gangway-hpc/gangway/internal/api"
	"github.com/gangway-hpc/gangway/internal/job"
)

// hex are addresses in what is printed with %+v.
var hex = regexp.MustCompile("0x[0-9a-f]+")

// TestRestartAdopts: what runs goes on when the controller dies, and its end is heard.
func TestRestartAdopts(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 4)
	w.runFor(0)
	batch := w.submit(2, nil)
	w.waitState(batch, job.Running)
	alloc := w.allocation(2)
	s := w.step(alloc, stepRequest(2, 2))
	w.until("all run", func() bool { m := w.started(); return m[s.Key] == 2 && len(m) == 2 })
	w.crash()
	// One ends while the controller is away.
	for _, a := range w.agents {
		a.mu.Lock()
		for key := range a.steps {
			if key.Job == batch {
				a.finish(key, 0)
			}
		}
		a.mu.Unlock()
	}
	w.start()
	w.waitState(batch, job.Completed)
	var now api.Step
	w.get(fmt.Sprintf("/v1/jobs/%v/steps/0", alloc), &now)
	if now.Phase != "running" || now.Key != s.Key {
		t.Errorf("the step is %+v after the restart", now)
	}
	w.do("DELETE", fmt.Sprintf("/v1/jobs/%v/steps/0", alloc), nil, nil)
	if end := w.stepEnd(&now); end.Signal != 15 {
		t.Errorf("it was ended as %+v", end)
	}
	for key, n := range w.started() {
		if want := map[job.ID]int{batch: 1, alloc: 2}[key.Job]; n != want {
			t.Errorf("%v was started %d times, want %d", key, n, want)
		}
	}
	if next := w.submit(1, nil); next != alloc+1 {
		t.Errorf("the next job is %v", next)
	}
}

// TestCrashesLoseNothing submits jobs while the controller crashes now and then: each that
// was acknowledged runs once, and no id is given twice.
func TestCrashesLoseNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 4)
	w.every, w.keep = 40, 60 // snapshots in between, and what is before them goes
	acked := map[job.ID]string{}
	rng := rand.New(rand.NewPCG(1, 2))
	for round := range 12 {
		stop := make(chan struct{})
		submitted, count := make(chan map[job.ID]string), make(chan struct{}, 10000)
		go func() {
			got := map[job.ID]string{}
			defer func() { submitted <- got }()
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				name := fmt.Sprintf("r%d-%d", round, i)
				var a api.Submitted
				q := api.Submit{
					Spec:    job.Spec{Name: name, MinNodes: 1 + i%3, TimeLimit: job.Hour},
					Program: &job.Program{Args: [][]byte{[]byte(name)}},
				}
				if w.call("POST", "/v1/jobs", &q, &a) != nil {
					return // it crashed
				}
				if other := got[a.ID]; other != "" {
					t.Errorf("job %v is %s and %s", a.ID, other, name)
				}
				got[a.ID] = name
				count <- struct{}{}
			}
		}()
		for range 1 + rng.IntN(10) {
			<-count
		}
		time.Sleep(time.Duration(rng.IntN(5000)) * time.Microsecond)
		w.crash()
		close(stop)
		for id, name := range <-submitted {
			if other := acked[id]; other != "" {
				t.Errorf("job %v is %s and %s", id, other, name)
			}
			acked[id] = name
		}
		w.start()
	}
	for id, name := range acked {
		if j := w.waitState(id, job.Completed); j.Name != name {
			t.Errorf("job %v is %s, and was acknowledged as %s", id, j.Name, name)
		}
	}
	if len(acked) < 12 {
		t.Errorf("only %d jobs were acknowledged", len(acked))
	}
	for key, n := range w.started() {
		if n != 1 {
			t.Errorf("%v was started %d times", key, n)
		}
	}
	w.store.mu.Lock()
	db := w.store.Store
	w.store.mu.Unlock()
	seen := map[job.ID]bool{}
	if db.Pruned() == 0 {
		t.Error("no event was removed")
	}
	if err := db.Read(t.Context(), db.Pruned(), func(_ uint64, b []byte) error {
		e, err := decode(b)
		if s, ok := e.(submitted); ok {
			if seen[s.ID] {
				t.Errorf("job %v is twice in the log", s.ID)
			}
			seen[s.ID] = true
		}
		return err
	}); err != nil {
		t.Error(err)
	}
}

// TestReplayIsTheState: the log alone makes the state that the controller had.
func TestReplayIsTheState(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 4)
	ids := []job.ID{w.submit(2, nil), w.submit(4, nil), w.submit(1, func(q *api.Submit) { q.Spec.Hold = true })}
	ids = append(ids, w.submit(1, func(q *api.Submit) { q.Spec.Array = &job.Array{Tasks: []job.Range{{First: 0, Last: 3, Step: 1}}} }))
	for _, id := range ids {
		if id != ids[2] {
			w.waitState(id, job.Completed)
		}
	}
	w.do("DELETE", "/v1/jobs/"+ids[2].String(), nil, nil)
	for i := range 4 {
		w.waitState(ids[3]+job.ID(i), job.Completed)
	}
	alloc := w.allocation(1)
	view := func() (all []string) {
		for id := job.ID(1); id <= alloc; id++ {
			j := w.job(id)
			j.Priority = 0
			all = append(all, fmt.Sprintf("%+v", *j))
		}
		return all
	}
	strip := func(all []string) []string { // pointers
		for i := range all {
			all[i] = hex.ReplaceAllString(all[i], "")
		}
		return all
	}
	before, hash := strip(view()), w.hash()
	w.restart()
	after := strip(view())
	for i := range before {
		if before[i] != after[i] {
			t.Errorf("before the restart %s\nand after it     %s", before[i], after[i])
		}
	}
	if got := w.hash(); got != hash {
		t.Errorf("the scheduler has decided otherwise: %x and %x", hash, got)
	}
	// And from a snapshot.
	w.stop()
	w.start()
	again := strip(view())
	if !slices.Equal(after, again) {
		t.Errorf("from the snapshot %s\nand from the log   %s", again, after)
	}
	if seq, err := w.store.Restore(t.Context(), func(uint64, []byte) error { return nil }); seq == 0 || err != nil {
		t.Errorf("the snapshot is of event %d, %v", seq, err)
	}
}

// hash is of all that the scheduler has decided, which is checked.
func (w *world) hash() (h uint64) {
	w.t.Helper()
	err := w.server.do(w.t.Context(), func(c *core) {
		h = c.sched.Hash()
		if err := c.sched.Check(); err != nil {
			w.t.Error(err)
		}
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return h
}

// TestStoreTakesNothing: with a full disk submits are refused, and what runs goes on.
func TestStoreTakesNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	w.runFor(0)
	running := w.submit(1, nil)
	w.waitState(running, job.Running)
	key := job.StepKey{Job: running, Attempt: 1, Step: job.BatchStep, Try: 1}
	w.until("it runs", func() bool { return w.started()[key] == 1 })
	w.store.fail(errors.New("no space left on device"))
	for range 3 {
		var e *api.Error
		err := w.call("POST", "/v1/jobs", &api.Submit{Spec: job.Spec{Name: "x"}, Program: &job.Program{Args: [][]byte{[]byte("x")}}}, nil)
		if !errors.As(err, &e) || e.Kind != "CAN_NOT_SAVE" || e.Cause == "" {
			t.Errorf("submit without space: %v", err)
		}
	}
	var page api.Page[api.Job]
	w.get("/v1/jobs?recent=1", &page)
	if len(page.Items) != 1 || page.Items[0].ID != running {
		t.Errorf("after three refusals the queue has %+v", page.Items)
	}
	if err := w.call("GET", "/healthz", nil, nil); err == nil {
		t.Error("the controller says that it is healthy")
	}
	if j := w.job(running); j.State != job.Running {
		t.Errorf("the job that runs is %v", j.State)
	}
	for _, a := range w.agents {
		a.mu.Lock()
		a.finish(key, 0)
		a.mu.Unlock()
	}
	time.Sleep(50 * time.Millisecond)
	w.store.fail(nil)
	w.waitState(running, job.Completed)
	next := w.submit(1, nil)
	w.until("it runs", func() bool { return len(w.started()) == 2 })
	for key := range w.started() {
		if key.Job != running && key.Job != next {
			t.Errorf("job %v was refused and has run", key.Job)
		}
	}
	for _, restart := range w.again() {
		var past api.Page[api.Past]
		w.get("/v1/history", &past)
		for _, p := range past.Items {
			if p.Job.ID != running && p.Job.ID != next {
				t.Errorf("job %v was refused and is accounted as %v", p.Job.ID, p.Job.State)
			}
		}
		restart()
	}
}

// TestNodeLost: what ran on a node that does not answer is run elsewhere, and nothing is
// started on the node before it is clean.
func TestNodeLost(t *testing.T) {
	t.Parallel()
	w, id, first := lossy(t)
	first.pause(true)
	w.until("the node is suspect", first.is("mixed*"))
	w.until("it runs elsewhere", func() bool {
		j := w.job(id)
		return j.State == job.Running && j.Attempt == 2 && j.NodeList[0] != first.node.Name
	})
	w.until("the node is down", first.is("down*"))
	first.mu.Lock()
	first.dirty = true
	first.mu.Unlock()
	first.pause(false)
	w.until("the node is back", first.is("idle"))
	second := w.submit(1, func(q *api.Submit) { q.Spec.NodeList = []string{first.node.Name} })
	w.waitState(second, job.Running)
	time.Sleep(100 * time.Millisecond)
	first.mu.Lock()
	if len(first.starts) != 1 {
		t.Errorf("started on a node that is not clean: %v", first.starts)
	}
	if !slices.Contains(first.releases, attempt{id, 1}) {
		t.Error("the node was not told to clean up")
	}
	first.dirty = false
	first.mu.Unlock()
	first.pause(true)
	first.pause(false)
	w.until("it runs once the node is clean", func() bool {
		first.mu.Lock()
		defer first.mu.Unlock()
		return len(first.starts) == 2
	})
}

// TestHolderGone: an allocation does not outlive its holder.
func TestHolderGone(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	id := w.allocation(1)
	resp, err := w.client.Get("http://c/v1/jobs/" + id.String() + "/hold")
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if err := w.server.do(t.Context(), func(c *core) {
		if h := c.holders[id]; h != nil && h.count == 0 {
			h.gone = 1 // long ago
		}
	}); err != nil {
		t.Fatal(err)
	}
	w.until("it has ended", func() bool {
		_ = w.server.do(t.Context(), func(c *core) {
			if h := c.holders[id]; h != nil && h.count == 0 {
				h.gone = 1
			}
		})
		return w.job(id).State == job.CancelledState
	})
}
