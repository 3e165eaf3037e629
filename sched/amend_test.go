package sched

import (
	"testing"

	"github.com/gangway-hpc/gangway/internal/job"
)

// TestLimitOfARunningJob: a longer limit puts off what is planned behind the job, with the
// reason, a shorter one brings it forward; what the job has stays.
func TestLimitOfARunningJob(t *testing.T) {
	s := cluster(t, 1, 2)
	var log []job.Event
	long := gpus(1, 8, 100)
	apply(t, s, job.Submitted{At: 1, ID: 1, Spec: long})
	decide(t, s, 1)
	apply(t, s, job.Submitted{At: 2, ID: 2, Spec: gpus(1, 8, 50)})
	decide(t, s, 2)
	expect := func(id job.ID, start job.Time) {
		t.Helper()
		if v, _ := s.Job(id); v.Expected != start {
			t.Errorf("job %v is expected at %d, want %d", id, v.Expected, start)
		}
		if err := s.Check(); err != nil {
			t.Error(err)
		}
	}
	expect(2, 101)
	if got := s.PlannedNodes(2); len(got) != 1 || got[0] == "" || s.PlannedNodes(1) != nil || s.PlannedNodes(9) != nil {
		t.Errorf("planned on %q", got)
	}
	long.TimeLimit = 200
	apply(t, s, job.Changed{At: 3, ID: 1, Spec: long})
	log = s.Decide(3)
	expect(2, 201)
	broken := false
	for _, e := range log {
		if p, ok := e.(job.Promised); ok {
			for _, b := range p.Broken {
				broken = broken || b.ID == 2 && b.Was == 101 && b.Now == 201 && b.Why == "job 1 was given more time"
			}
		}
	}
	if !broken {
		t.Errorf("nobody says why the promise was broken: %+v", log)
	}
	long.TimeLimit = 40
	apply(t, s, job.Changed{At: 4, ID: 1, Spec: long})
	decide(t, s, 4)
	expect(2, 41)
	if v, _ := s.Job(1); v.State != job.Running || v.Allocation.Limit != 40 || v.End != 41 {
		t.Errorf("%+v", v)
	}
	long.TimeLimit = 1 // it is over
	apply(t, s, job.Changed{At: 5, ID: 1, Spec: long})
	if err := s.Check(); err != nil {
		t.Error(err)
	}
	for _, wrong := range []func(*job.Spec){
		func(p *job.Spec) { p.MinNodes = 2 },
		func(p *job.Spec) { p.NodeList = []string{"n1"} },
		func(p *job.Spec) { p.Partitions = []string{"p"} },
		func(p *job.Spec) { p.Begin = 9 },
		func(p *job.Spec) { p.TimeLimit = -1 },
	} {
		other := long
		wrong(&other)
		if err := s.Apply(job.Changed{At: 5, ID: 1, Spec: other}); err == nil {
			t.Errorf("%+v of a running job was accepted", other)
		}
	}
	other := long
	other.Name, other.Nice, other.Requeue = "other", 7, true
	apply(t, s, job.Changed{At: 5, ID: 1, Spec: other})
	apply(t, s, job.Requeue{At: 6, ID: 1})
	if v, _ := s.Job(1); v.Spec.Name != "other" || v.State != job.Pending || v.Spec.TimeLimit != 1 {
		t.Errorf("%+v", v)
	}
}

// TestNameOfASingleton: a job that waits for others of its name goes on when a running one has
// another.
func TestNameOfASingleton(t *testing.T) {
	s := cluster(t, 2, 2)
	one := gpus(1, 8, 100)
	one.Name = "x"
	two := one
	two.Dependencies = &job.Dependencies{List: []job.Dependency{{Type: job.Singleton}}}
	apply(t, s, job.Submitted{At: 1, ID: 1, Spec: one})
	apply(t, s, job.Submitted{At: 1, ID: 2, Spec: two})
	decide(t, s, 1)
	want(t, s, "1:RUNNING 2:PENDING(Dependency)")
	one.Name = "y"
	apply(t, s, job.Changed{At: 2, ID: 1, Spec: one})
	decide(t, s, 2)
	want(t, s, "1:RUNNING 2:RUNNING")
}
