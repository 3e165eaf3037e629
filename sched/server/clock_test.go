package server

import (
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/gangway-hpc/gangway/internal/api"
	"github.com/gangway-hpc/gangway/internal/job"
)

func TestClock(t *testing.T) {
	t.Parallel()
	var k clock
	for _, c := range []struct {
		what   string
		wall   job.Time
		steady time.Duration
		want   job.Time
	}{
		{"at first", 1_000_000, time.Second, 1_000_000},
		{"both go on", 1_000_250, 1250 * time.Millisecond, 1_000_250},
		{"set forward", 5_000_000, 2 * time.Second, 5_000_000},
		{"set back", 900_000, 3 * time.Second, 5_001_000},
		{"it runs on", 900_400, 3400*time.Millisecond + 700*time.Microsecond, 5_001_400},
		{"by the other one", 900_401, 3401*time.Millisecond + 300*time.Microsecond, 5_001_401},
		{"joined again", 5_001_402, 3402 * time.Millisecond, 5_001_402},
	} {
		if got := k.read(c.wall, c.steady, 1); got != c.want {
			t.Errorf("%s: %d, want %d", c.what, got, c.want)
		}
	}
	var restored clock
	if got := restored.read(900_000, 0, 5_000_000); got != 5_000_000 {
		t.Errorf("restored: %d", got)
	}
	if got := restored.read(901_000, time.Second, 5_000_000); got != 5_001_000 {
		t.Errorf("restored, a second later: %d", got)
	}
}

// TestClockAlways: however the machine's clock is set, time never goes back, and goes on at
// least as fast as the other one.
func TestClockAlways(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var k clock
		wall, steady := job.Time(rapid.Int64Range(0, 1<<41).Draw(t, "wall")), time.Duration(0)
		first := k.read(wall, steady, 1)
		last := first
		for range rapid.IntRange(1, 50).Draw(t, "reads") {
			passed := time.Duration(rapid.Int64Range(0, int64(time.Second)).Draw(t, "passed"))
			steady += passed
			wall = max(0, wall+job.Time(passed.Milliseconds())+job.Time(rapid.SampledFrom([]int64{0, 0, 0, -3600000, -1, 1, 60000}).Draw(t, "set")))
			now := k.read(wall, steady, last)
			if now < last || now < wall || now.Sub(first) < job.Duration(steady.Milliseconds()) {
				t.Fatalf("%d after %d, wall %d, %s after %d", now, last, wall, steady, first)
			}
			last = now
		}
	})
}

// TestTimeIsSet: when the clock is set forward, or the controller was stopped for a while,
// nothing is given up for that. When it is set back time goes on, also after a restart.
func TestTimeIsSet(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	var ahead atomic.Int64
	w.now = func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
	w.restart()
	w.runFor(0)
	for _, a := range w.agents {
		a.mu.Lock()
		a.script = func(spec *job.StepSpec) fakeStep { return fakeStep{hang: spec.Key.Step >= 0} }
		a.mu.Unlock()
	}
	id := w.submit(2, func(q *api.Submit) { q.Spec.TimeLimit = 100 * job.Hour })
	w.waitState(id, job.Running)
	key := job.StepKey{Job: id, Attempt: 1, Step: job.BatchStep, Try: 1}
	w.until("it runs", func() bool { return w.started()[key] == 1 })
	hangs := w.step(id, stepRequest(2, 2))
	look := func(f func(*core)) {
		t.Helper()
		if err := w.server.do(t.Context(), f); err != nil {
			t.Fatal(err)
		}
	}
	var before, after job.Time
	look(func(c *core) { before = c.now })
	ahead.Add(int64(2 * time.Hour))
	look(func(*core) {}) // notes it, and is followed by a tick
	look(func(c *core) { // behind that
		after = c.late
		for name, n := range c.nodes {
			if n.state&(job.NodeDown|job.NodeSuspect) != 0 {
				t.Errorf("node %s is %v", name, n.state)
			}
		}
		if st := c.step(hangs.Key); st == nil || st.Gang.killing {
			t.Error("the step that is being prepared was ended")
		}
	})
	if after.Sub(before) < 2*job.Hour {
		t.Fatalf("no tick has seen the time: %d and %d", before, after)
	}
	if j := w.job(id); j.State != job.Running || j.Attempt != 1 {
		t.Errorf("job is %v, attempt %d", j.State, j.Attempt)
	}
	w.do("DELETE", "/v1/jobs/"+id.String(), nil, nil)
	w.waitState(id, job.CancelledState)
	ahead.Add(-int64(time.Hour))
	for _, restart := range []func(){func() {}, w.restart} {
		restart()
		short := w.submit(1, func(q *api.Submit) { q.Spec.TimeLimit = job.Second })
		w.waitState(short, job.Timeout)
	}
}
