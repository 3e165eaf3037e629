package sched

import (
	"runtime"
	"strings"
	"testing"

	"github.com/gangway-hpc/gangway/internal/job"
)

// after asks for one GPU when a job has got so far.
func after(kind job.DependencyType, on job.ID) job.Spec {
	p := gpus(1, 1, job.Hour)
	p.Dependencies = &job.Dependencies{List: []job.Dependency{{Type: kind, Job: on}}}
	return p
}

// TestForget: an ended job is known for MinJobAge, longer if another waits for it, and
// then for nobody; its id stays used.
func TestForget(t *testing.T) {
	s := cluster(t, 2, 2)
	age := job.Time(minJobAge)
	known := func(ids ...job.ID) {
		t.Helper()
		for id := range job.ID(8) {
			_, ok := s.Job(id)
			want := false
			for _, i := range ids {
				want = want || i == id
			}
			if ok != want {
				t.Errorf("at %d job %v is known: %v", s.Now(), id, ok)
			}
		}
	}
	held := after(job.AfterOK, 2)
	held.Hold = true
	for i, p := range []job.Spec{gpus(1, 1, job.Hour), gpus(1, 1, job.Hour), held, after(job.AfterOK, 2)} {
		apply(t, s, job.Submitted{At: 1, ID: job.ID(i + 1), Spec: p})
	}
	decide(t, s, 1)
	for id := range job.ID(2) {
		apply(t, s, job.Ended{At: 10, ID: id + 1, State: job.Completed})
	}
	decide(t, s, 10)
	decide(t, s, 9+age)
	known(1, 2, 3, 4)
	decide(t, s, 10+age)
	known(2, 3, 4) // job 3 is held, and depends on job 2

	for _, e := range []job.Event{
		job.Submitted{At: 11 + age, ID: 5, Spec: after(job.AfterAny, 1)},
		job.Requeue{At: 11 + age, ID: 1},
		job.Cancelled{At: 11 + age, ID: 1},
		job.Changed{At: 11 + age, ID: 3, Spec: after(job.AfterAny, 1)},
		job.Submitted{At: 11 + age, ID: 1, Spec: gpus(1, 1, job.Hour)},
		job.Submitted{At: 11 + age, ID: 4, Spec: gpus(1, 1, job.Hour)},
	} {
		if err := s.Apply(e); err == nil || !strings.Contains(err.Error(), "no such job") && !strings.Contains(err.Error(), "does not exist") && !strings.Contains(err.Error(), "not above") {
			t.Errorf("%+v: %v", e, err)
		}
	}
	if _, err := s.Explain(1, s.Now()); err == nil {
		t.Error("a forgotten job was explained")
	}

	apply(t, s, job.Cancelled{At: 12 + age, ID: 3})
	known(3, 4) // nobody waits for job 2 now: job 4 has started
	apply(t, s, job.Requeue{At: 13 + age, ID: 4})
	decide(t, s, 13+age)
	if v, _ := s.Job(4); v.State != job.Running {
		t.Errorf("job 4, whose dependency was met once, is %v, %s", v.State, v.Reason)
	}
	if err := s.Apply(job.Requeue{At: 13 + age, ID: 3}); err == nil || !strings.Contains(err.Error(), "depends on job 2, which does not exist") {
		t.Errorf("job 3, which never started, is requeued: %v", err)
	}
	if err := s.Apply(job.Submitted{At: 14 + age, ID: 4, Spec: gpus(1, 1, 1)}); err == nil {
		t.Error("an id was used again")
	}
	if got := restored(t, s); got.last != 4 {
		t.Errorf("the last id is %v after a snapshot", got.last)
	}
}

// TestForgetArray: tasks are known together, until the last one is over.
func TestForgetArray(t *testing.T) {
	s := cluster(t, 2, 2)
	apply(t, s, job.Configured{Config: job.Config{MinJobAge: 100}})
	apply(t, s, job.Submitted{At: 1, ID: 1, Spec: gpus(1, 1, job.Hour)})
	p := gpus(1, 1, job.Hour)
	p.Array = &job.Array{Tasks: []job.Range{{First: 0, Last: 2, Step: 1}}}
	apply(t, s, job.Submitted{At: 1, ID: 2, Spec: p})
	apply(t, s, job.Submitted{At: 1, ID: 5, Spec: p})
	decide(t, s, 1)
	for id := job.ID(1); id < 8; id++ {
		apply(t, s, job.Ended{At: job.Time(10 * id), ID: id, State: job.Completed})
	}
	s.Decide(139)
	s.forget()
	if len(s.jobs) != 6 || len(s.arrays) != 2 {
		t.Errorf("%d jobs and %d arrays are left", len(s.jobs), len(s.arrays))
	}
	s.Decide(140)
	s.forget()
	want(t, s, "5:COMPLETED 6:COMPLETED 7:COMPLETED")
	if err := s.Check(); err != nil || len(s.arrays) != 1 {
		t.Errorf("%d arrays are left: %v", len(s.arrays), err)
	}
}

// TestForgetMemory: a million jobs of a hundred thousand shapes leave no more behind than
// those of the last minutes.
func TestForgetMemory(t *testing.T) {
	s := cluster(t, 4, 4)
	n := 100_000
	if testing.Short() {
		n = 10_000
	}
	apply(t, s, job.Configured{Config: job.Config{MaxArray: 1 << 20}})
	used := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := used()
	for i := range n {
		now := job.Time(i) * 1000
		p := gpus(1, 8, job.Day)
		p.Image = job.ID(i).String()
		apply(t, s, job.Submitted{At: now, ID: job.ID(i + 1), Spec: p})
		s.Decide(now)
		apply(t, s, job.Ended{At: now + 900, ID: job.ID(i + 1), State: job.Completed})
	}
	if err := s.Check(); err != nil {
		t.Fatal(err)
	}
	if len(s.jobs) > 1000 || len(s.classes) > 1000 || len(s.ends.timers) > 1000 || used() > before+4<<20 {
		t.Errorf("%d jobs, %d classes, %d timers and %d KiB are left", len(s.jobs), len(s.classes), len(s.ends.timers), (used()-before)>>10)
	}
}
