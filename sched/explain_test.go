package sched

import (
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/gangway-hpc/gangway/internal/job"
)

func TestExplain(t *testing.T) {
	s := cluster(t, 4, 2)
	apply(t, s, job.Submitted{At: 1, ID: 1, Spec: gpus(3, 8, 10*job.Hour)})
	apply(t, s, job.Submitted{At: 1, ID: 2, Spec: gpus(2, 8, 10*job.Hour)})
	decide(t, s, 1)
	x, err := s.Explain(2, 1)
	if err != nil {
		t.Fatal(err)
	}
	if x.Reason != "Resources" || x.Nodes != 2 || x.Fit != 1 || x.Could != 4 || x.Expected != job.Time(1).Add(10*job.Hour) {
		t.Errorf("%+v", x)
	}
	if len(x.Constraints) != 1 || x.Constraints[0].Name != "busy" || x.Constraints[0].Nodes != 3 {
		t.Errorf("constraints %+v", x.Constraints)
	}
	if len(x.Relaxations) == 0 || x.Relaxations[0].Start != 1 {
		t.Fatalf("relaxations %+v", x.Relaxations)
	}
	verifyRelaxations(t, s, 2, x)
	if _, err := s.Explain(1, 1); err == nil {
		t.Error("a running job was explained")
	}
}

// TestExplainNoLimit: a start that waits for a job without a time limit is not said to be
// bounded by one.
func TestExplainNoLimit(t *testing.T) {
	for _, limit := range []job.Duration{0, job.Forever} {
		s := cluster(t, 4, 2)
		apply(t, s, job.Submitted{At: 1, ID: 1, Spec: gpus(4, 8, limit)})
		decide(t, s, 1)
		apply(t, s, job.Submitted{At: 1, ID: 2, Spec: gpus(2, 8, job.Hour)})
		decide(t, s, 1)
		x, err := s.Explain(2, 1)
		if err != nil || !strings.Contains(x.Basis, "job 1 on node n0000 has no time limit") || x.Expected < job.Time(year) {
			t.Errorf("%+v, %v", x, err)
		}
	}
}

// TestExplainOneOfTheLicences: a job that could have one of several licences, none of which
// is free, waits for these.
func TestExplainOneOfTheLicences(t *testing.T) {
	s := cluster(t, 4, 2)
	a, b := job.License{Name: "a", Count: 1}, job.License{Name: "b", Count: 1}
	setLicenses(t, s, 0, a, b)
	for i, list := range [][]job.License{{a}, {b}, {a, b}} {
		p := gpus(1, 1, 100)
		p.AnyLicense = list
		apply(t, s, job.Submitted{At: 1, ID: job.ID(i + 1), Spec: p})
	}
	decide(t, s, 1)
	x, err := s.Explain(3, 1)
	if err != nil || len(x.Constraints) != 1 || x.Constraints[0].Name != "licenses" || x.Constraints[0].Text != "of licences none of these is free: 1 of a, 1 of b" {
		t.Errorf("%+v, %v", x.Constraints, err)
	}
	apply(t, s, job.Ended{At: 2, ID: 2, State: job.Completed})
	if x, err := s.Explain(3, 2); err != nil || len(x.Constraints) != 0 {
		t.Errorf("%+v, %v", x.Constraints, err)
	}
}

// verifyRelaxations proves that with each of them the job starts when it says, or before.
func verifyRelaxations(t testing.TB, s *Scheduler, id job.ID, x Explanation) {
	t.Helper()
	for _, relax := range x.Relaxations {
		if x.Expected != 0 && relax.Start >= x.Expected {
			t.Fatalf("%s: job %v would start at %d, not before %d", relax.Text, id, relax.Start, x.Expected)
		}
		c := s.Fork()
		for _, e := range relax.Events(id, c.Now()) {
			if err := c.Apply(e); err != nil {
				t.Fatalf("%s: %v", relax.Text, err)
			}
		}
		c.Decide(c.Now())
		if err := c.Check(); err != nil {
			t.Fatalf("%v", err)
		}
		v, _ := c.Job(id)
		start := v.Start
		if v.State == job.Pending {
			start = v.Expected
		}
		if start == 0 || start > relax.Start {
			t.Fatalf("%s: job %v starts at %d, not at %d: %+v", relax.Text, id, start, relax.Start, v)
		}
	}
}

// TestExplainRandom explains jobs of random worlds, and tries what it says.
func TestExplainRandom(t *testing.T) {
	tried := 0
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t)
		for range 40 {
			w.step()
		}
		w.decide()
		if w.s.config.Backfill != job.Conservative {
			return
		}
		for v := range w.s.Pending {
			x, err := w.s.Explain(v.ID, w.now)
			if err != nil || x.Reason != v.Reason || x.Text == "" {
				t.Fatalf("%+v, %v", x, err)
			}
			if v.Array == 0 {
				tried += len(x.Relaxations)
				verifyRelaxations(t2(t), w.s, v.ID, x)
			}
		}
	})
	t.Logf("%d relaxations were tried", tried)
}
