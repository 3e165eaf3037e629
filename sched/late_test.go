package sched

import (
	"testing"

	"github.com/gangway-hpc/gangway/internal/job"
)

// broken is the reasons for which promises were broken, by job.
func broken(events []job.Event) map[job.ID]string {
	why := map[job.ID]string{}
	for _, e := range events {
		if p, ok := e.(job.Promised); ok {
			for _, b := range p.Broken {
				why[b.ID] = b.Why
			}
		}
	}
	return why
}

// TestLateDecision: who decides a moment after Next, as with every real clock, starts the job
// that is due, and it is said of that and of those behind it why they are later.
func TestLateDecision(t *testing.T) {
	for name, spec := range map[string]job.Spec{
		"nodes":    gpus(1, 8, 100),
		"licences": {MinNodes: 1, TimeLimit: 100, Licenses: []job.License{{Name: "l", Count: 1}}},
		"either":   {MinNodes: 1, TimeLimit: 100, AnyLicense: []job.License{{Name: "l", Count: 1}, {Name: "m", Count: 1}}},
	} {
		t.Run(name, func(t *testing.T) {
			var log []job.Event
			s := cluster(t, 1, 1)
			r := cluster(t, 1, 1)
			do := func(e job.Event) {
				t.Helper()
				apply(t, s, e)
				log = append(log, e)
			}
			check := func() {
				t.Helper()
				if err := s.Check(); err != nil {
					t.Error(err)
				}
			}
			do(job.Configured{Config: job.Config{Licenses: []job.License{{Name: "l", Count: 1}, {Name: "m", Count: 1}}}})
			for i := range 4 {
				do(job.Submitted{At: 1, ID: job.ID(i + 1), Spec: spec})
			}
			log = append(log, s.Decide(1)...)
			// Of those that may have either licence two run at a time.
			due := job.ID(2)
			if spec.AnyLicense != nil {
				due = 3
			}
			for id := job.ID(1); id < due; id++ {
				do(job.Ended{At: 101, ID: id, State: job.Completed})
			}
			if next := s.Next(); next != 101 {
				t.Fatalf("the next decision is at %d", next)
			}
			out := s.Decide(103)
			log = append(log, out...)
			check()
			why := broken(out)
			for id := due; id <= 4; id++ {
				if why[id] == "" || id == due && why[id] != late {
					t.Errorf("that job %v is later: %q", id, why[id])
				}
			}
			if v, _ := s.Job(due); v.State != job.Running || v.Start != 103 {
				t.Errorf("job %v is %v since %d", due, v.State, v.Start)
			}
			do(job.Ended{At: 203, ID: due, State: job.Completed})
			out = s.Decide(203)
			log = append(log, out...)
			check()
			if why := broken(out); len(why) > 0 {
				t.Errorf("in time: %v", why)
			}
			for _, e := range log {
				if err := r.Apply(e); err != nil {
					t.Fatalf("replay %#v: %v", e, err)
				}
				if err := r.Check(); err != nil {
					t.Fatalf("replay %#v: %v", e, err)
				}
			}
			if r.Hash() != s.Hash() {
				t.Error("the log gives another state")
			}
		})
	}
}
