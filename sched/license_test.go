package sched

import (
	"strings"
	"testing"
	"time"

	"github.com/gangway-hpc/gangway/internal/job"
)

// licensed is a job of one GPU with licences.
func licensed(limit job.Duration, all ...job.License) job.Spec {
	p := gpus(1, 1, limit)
	p.Licenses = all
	return p
}

func setLicenses(t testing.TB, s *Scheduler, at job.Time, list ...job.License) {
	t.Helper()
	apply(t, s, job.Configured{At: at, Config: job.Config{Licenses: list}})
}

// TestLicenceAskedForTwice: one licence is not given twice to one job.
func TestLicenceAskedForTwice(t *testing.T) {
	a := job.License{Name: "a", Count: 1}
	twice := licensed(100, a, a)
	both := licensed(100, a)
	both.AnyLicense = []job.License{a}
	for _, p := range []job.Spec{twice, both} {
		s := cluster(t, 4, 2)
		setLicenses(t, s, 0, a)
		if err := s.Apply(job.Submitted{At: 1, ID: 1, Spec: p}); err == nil || !strings.Contains(err.Error(), "licence a is asked for twice") {
			t.Error(err)
		}
	}
}

// TestLicenceGoneForAWhile: what has a licence that is removed has it still when it is back,
// also after a restart.
func TestLicenceGoneForAWhile(t *testing.T) {
	s := cluster(t, 8, 2)
	setLicenses(t, s, 0, job.License{Name: "a", Count: 4})
	for i := 1; i <= 5; i++ {
		apply(t, s, job.Submitted{At: 1, ID: job.ID(i), Spec: licensed(100, job.License{Name: "a", Count: 2})})
	}
	decide(t, s, 1)
	setLicenses(t, s, 2)
	decide(t, s, 2)
	setLicenses(t, s, 3, job.License{Name: "a", Count: 3})
	decide(t, s, 3)
	want(t, s, "1:RUNNING 2:RUNNING 3:PENDING(Licenses) 4:PENDING(Licenses) 5:PENDING(Licenses)")
	r, err := Restore(strings.NewReader(string(bytesOf(t, s))))
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range []*Scheduler{s, r} {
		apply(t, x, job.Ended{At: 4, ID: 1, State: job.Completed})
		apply(t, x, job.Ended{At: 4, ID: 2, State: job.Completed})
		decide(t, x, 4)
		want(t, x, "1:COMPLETED 2:COMPLETED 3:RUNNING 4:PENDING(Licenses) 5:PENDING(Licenses)")
	}
}

// TestLoggedStartWithoutLicences: a start from the log does not get licences that are in use.
func TestLoggedStartWithoutLicences(t *testing.T) {
	s := cluster(t, 4, 2)
	setLicenses(t, s, 0, job.License{Name: "a", Count: 1})
	any := gpus(1, 1, 100)
	any.AnyLicense = []job.License{{Name: "a", Count: 1}}
	for i, p := range []job.Spec{licensed(100, job.License{Name: "a", Count: 1}), licensed(100, job.License{Name: "a", Count: 1}), any} {
		apply(t, s, job.Submitted{At: 1, ID: job.ID(i + 1), Spec: p})
	}
	apply(t, s, startOf(1, "n0003", 1))
	for id, node := range map[job.ID]string{2: "n0002", 3: "n0001"} {
		if err := s.Apply(startOf(id, node, 1)); err == nil || !strings.Contains(err.Error(), "its licences are in use") {
			t.Error(err)
		}
		if err := s.Check(); err != nil {
			t.Error(err)
		}
	}
}

// startOf is the start of a job of one GPU.
func startOf(id job.ID, node string, mask uint64) job.Started {
	return job.Started{At: 1, ID: id, Attempt: 1, Allocation: job.Allocation{Partition: "main", Limit: 100, Nodes: []job.NodeShare{
		{Node: node, Tasks: 1, CPUs: 1, Devices: []job.Devices{{Name: "gpu", Type: "h100", Count: 1, Mask: mask}}},
	}}}
}

// TestOverrunKeepsItsLicences: what was planned with the licence of a job that does not end
// is promised anew, with the reason.
func TestOverrunKeepsItsLicences(t *testing.T) {
	s := cluster(t, 4, 2)
	setLicenses(t, s, 0, job.License{Name: "a", Count: 1})
	for i, limit := range []job.Duration{1000, 10, 10} {
		apply(t, s, job.Submitted{At: 1, ID: job.ID(i + 1), Spec: licensed(limit, job.License{Name: "a", Count: 1})})
	}
	decide(t, s, 1)
	out := decide(t, s, 1001)
	p, ok := out[0].(job.Promised)
	if !ok || len(p.Broken) != 2 || p.Broken[1].Why != "job 1 is over its limit" || p.Broken[1].Was != 1011 {
		t.Errorf("%+v", out)
	}
}

// TestDecideAtTheEndOfTime: there is nothing to wait for while a job runs, and who waits
// until then gets an answer.
func TestDecideAtTheEndOfTime(t *testing.T) {
	s := cluster(t, 1, 2)
	apply(t, s, job.Submitted{At: 1, ID: 1, Spec: gpus(1, 8, 100)})
	decide(t, s, 1)
	if s.Next() != job.Never {
		t.Fatalf("next is %d", s.Next())
	}
	done := make(chan bool)
	go func() {
		s.Decide(s.Next())
		done <- true
	}()
	select {
	case <-done:
	case <-time.After(time.Minute):
		t.Fatal("it hangs")
	}
	apply(t, s, job.Submitted{At: s.Now(), ID: 2, Spec: gpus(1, 8, 100)})
	if _, err := s.Explain(2, job.Never); err != nil {
		t.Error(err)
	}
}
