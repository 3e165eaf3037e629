package sched

import (
	"fmt"
	"math"
	"testing"

	"github.com/gangway-hpc/gangway/internal/job"
)

// TestChangedToHeld: a change to a request that is held holds the job, and one to a request
// that is not releases it; a change of something else does neither.
func TestChangedToHeld(t *testing.T) {
	zero := uint32(0)
	held, low := gpus(1, 8, 100), gpus(1, 8, 100)
	held.Hold, low.Priority = true, &zero
	for reason, p := range map[string]job.Spec{"JobHeldUser": held, "JobHeldAdmin": low} {
		s := cluster(t, 1, 2)
		apply(t, s, job.Submitted{At: 1, ID: 1, Spec: gpus(1, 8, 100)})
		apply(t, s, job.Changed{At: 1, ID: 1, Spec: p})
		want(t, s, "1:PENDING("+reason+")")
		apply(t, s, job.Released{At: 1, ID: 1})
		p.Nice = 5
		apply(t, s, job.Changed{At: 1, ID: 1, Spec: p})
		want(t, s, "1:PENDING(Resources)")
		apply(t, s, job.Held{At: 1, ID: 1, Admin: true})
		apply(t, s, job.Changed{At: 1, ID: 1, Spec: p})
		want(t, s, "1:PENDING(JobHeldAdmin)")
		apply(t, s, job.Submitted{At: 1, ID: 2, Spec: p})
		want(t, s, fmt.Sprintf("1:PENDING(JobHeldAdmin) 2:PENDING(%s)", reason))
		apply(t, s, job.Changed{At: 1, ID: 2, Spec: gpus(1, 8, 100)})
		decide(t, s, 1)
		want(t, s, "1:PENDING(JobHeldAdmin) 2:RUNNING")
	}
}

// TestNiceOfLargeWeight: the nicest job is last whatever its weight.
func TestNiceOfLargeWeight(t *testing.T) {
	for _, weight := range []uint32{1, 1 << 24, math.MaxUint32} {
		s := cluster(t, 1, 2)
		apply(t, s, job.Configured{Config: job.Config{Weights: job.Weights{Nice: weight, Partition: math.MaxUint32, Size: math.MaxUint32}}})
		for i, nice := range []int32{math.MaxInt32, 0, math.MinInt32} {
			p := gpus(1, 8, 100)
			p.Nice = nice
			apply(t, s, job.Submitted{At: 1, ID: job.ID(i + 1), Spec: p})
		}
		decide(t, s, 1)
		a, _ := s.Job(1)
		b, _ := s.Job(2)
		if c, _ := s.Job(3); c.State != job.Running || b.Expected >= a.Expected {
			t.Errorf("weight %d: nice jobs start at %d, %d and %d", weight, a.Expected, b.Expected, c.Start)
		}
	}
}

// TestRequeueOfACancelledJob: a job that was cancelled does not come back while it runs.
func TestRequeueOfACancelledJob(t *testing.T) {
	s := cluster(t, 1, 2)
	apply(t, s, job.Submitted{At: 1, ID: 1, Spec: gpus(1, 8, 100)})
	decide(t, s, 1)
	apply(t, s, job.Cancelled{At: 2, ID: 1})
	if err := s.Apply(job.Requeue{At: 2, ID: 1}); err == nil {
		t.Error("it was accepted")
	}
	apply(t, s, job.Ended{At: 3, ID: 1, State: job.Completed})
	want(t, s, "1:CANCELLED")
	apply(t, s, job.Requeue{At: 4, ID: 1})
}

// TestDevicesGetNumbersUnderAJob: a job that has no numbers of devices keeps them from being
// numbered.
func TestDevicesGetNumbersUnderAJob(t *testing.T) {
	s := New()
	n := job.Node{Name: "a", CPUs: 8, GRES: []job.GRES{{Name: "nic", Count: 4}}}
	apply(t, s, job.NodeSet{Node: n})
	apply(t, s, job.PartitionSet{Partition: job.Partition{Name: "p", Nodes: []string{"a"}}})
	apply(t, s, job.Submitted{At: 1, ID: 1, Spec: job.Spec{MinNodes: 1, TimeLimit: 100, GRES: []job.GRESRequest{{Name: "nic", Count: 3, Per: job.PerNode}}}})
	decide(t, s, 1)
	n.GRES = []job.GRES{{Name: "nic", Count: 4, Sockets: []int{0, 0, 1, 1}}}
	if err := s.Apply(job.NodeSet{At: 2, Node: n}); err == nil {
		t.Error("it was accepted")
	}
	apply(t, s, job.Ended{At: 3, ID: 1, State: job.Completed})
	apply(t, s, job.NodeSet{At: 3, Node: n})
}

// TestFewerLicencesSayWhy: who is promised another start by a new configuration is told so.
func TestFewerLicencesSayWhy(t *testing.T) {
	s := cluster(t, 4, 2)
	setLicenses(t, s, 0, job.License{Name: "a", Count: 4})
	for i := 1; i <= 4; i++ {
		apply(t, s, job.Submitted{At: 1, ID: job.ID(i), Spec: licensed(100, job.License{Name: "a", Count: 2})})
	}
	decide(t, s, 1)
	setLicenses(t, s, 2, job.License{Name: "a", Count: 2})
	for _, e := range decide(t, s, 2) {
		if p, ok := e.(job.Promised); ok && len(p.Broken) > 0 {
			if why := p.Broken[0].Why; why != "the configuration was changed" {
				t.Error(why)
			}
			return
		}
	}
	t.Error("no promise was broken")
}

// TestSingletonOfAnotherUser: jobs of one name wait for each other only if they are of one
// user.
func TestSingletonOfAnotherUser(t *testing.T) {
	s := cluster(t, 2, 2)
	for i, user := range []string{"ann", "bob", "ann"} {
		p := gpus(1, 1, job.Hour)
		p.Name, p.User = "one", user
		p.Dependencies = &job.Dependencies{List: []job.Dependency{{Type: job.Singleton}}}
		apply(t, s, job.Submitted{At: 1, ID: job.ID(i + 1), Spec: p})
	}
	decide(t, s, 1)
	want(t, s, "1:RUNNING 2:RUNNING 3:PENDING(Dependency)")
}

// TestAfterAnArrayFails: afternotok of an array is met once all of it has ended, if a task has
// failed, and never if none has.
func TestAfterAnArrayFails(t *testing.T) {
	for exit, last := range map[int]string{1: "3:RUNNING", 0: "3:PENDING(DependencyNeverSatisfied)"} {
		s := cluster(t, 2, 2)
		array := gpus(1, 1, job.Hour)
		array.Array = &job.Array{Tasks: []job.Range{{First: 0, Last: 1, Step: 1}}}
		after := gpus(1, 1, job.Hour)
		after.Dependencies = &job.Dependencies{List: []job.Dependency{{Type: job.AfterNotOK, Job: 1}}}
		apply(t, s, job.Submitted{At: 1, ID: 1, Spec: array})
		apply(t, s, job.Submitted{At: 1, ID: 3, Spec: after})
		decide(t, s, 1)
		apply(t, s, job.Ended{At: 2, ID: 1, State: job.Completed, Exit: exit})
		decide(t, s, 2)
		want(t, s, "1:COMPLETED 2:RUNNING 3:PENDING(Dependency)")
		apply(t, s, job.Ended{At: 3, ID: 2, State: job.Completed})
		decide(t, s, 3)
		want(t, s, "1:COMPLETED 2:COMPLETED "+last)
	}
}
