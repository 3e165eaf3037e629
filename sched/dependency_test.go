package sched

import (
	"fmt"
	"testing"

	"github.com/gangway-hpc/gangway/internal/job"
)

// TestEveryDependency goes through all types, on a job, on one task of an array and on a
// whole array, and how these end: started, ended well, ended badly, cancelled while waiting.
func TestEveryDependency(t *testing.T) {
	const (
		waits = "PENDING(Dependency)"
		never = "PENDING(DependencyNeverSatisfied)"
		runs  = "RUNNING"
	)
	task := uint32(7)
	ends := []string{"waiting", "running", "well", "badly", "cancelled"}
	for _, c := range []struct {
		kind job.DependencyType
		want [5]string // in the order of ends
	}{
		{job.After, [5]string{waits, runs, runs, runs, runs}},
		{job.AfterAny, [5]string{waits, waits, runs, runs, runs}},
		{job.AfterOK, [5]string{waits, waits, runs, never, never}},
		{job.AfterNotOK, [5]string{waits, waits, never, runs, runs}},
		{job.AfterCorr, [5]string{waits, waits, runs, never, never}},
		{job.AfterBurst, [5]string{waits, waits, runs, runs, runs}},
	} {
		for target, on := range map[string]job.Dependency{
			"job": {Type: c.kind, Job: 1}, "task": {Type: c.kind, Job: 2, Task: &task}, "array": {Type: c.kind, Job: 2},
		} {
			for i, end := range ends {
				t.Run(fmt.Sprintf("%s/%s/%s", dependencyText(&job.Dependency{Type: c.kind}), target, end), func(t *testing.T) {
					s := cluster(t, 2, 2)
					first := gpus(1, 1, job.Hour)
					first.Hold = i == 0 || i == 4
					array := first
					array.Array = &job.Array{Tasks: []job.Range{{First: 5, Last: 7, Step: 2}}}
					apply(t, s, job.Submitted{At: 1, ID: 1, Spec: first})
					apply(t, s, job.Submitted{At: 1, ID: 2, Spec: array})
					after := gpus(1, 1, job.Hour)
					after.Dependencies = &job.Dependencies{List: []job.Dependency{on}}
					apply(t, s, job.Submitted{At: 1, ID: 4, Spec: after})
					decide(t, s, 1)
					targets := map[string][]job.ID{"job": {1}, "task": {3}, "array": {2, 3}}[target]
					for k, id := range targets {
						if k > 0 && i > 1 { // an array has not ended before its last task has
							if v, _ := s.Job(4); c.kind == job.AfterAny && v.State != job.Pending {
								t.Errorf("after one task of two it is %v", v.State)
							}
						}
						switch end {
						case "well":
							apply(t, s, job.Ended{At: 2, ID: id, State: job.Completed})
						case "badly":
							apply(t, s, job.Ended{At: 2, ID: id, State: job.Failed, Exit: 1})
						case "cancelled":
							apply(t, s, job.Cancelled{At: 2, ID: id})
						}
						decide(t, s, 2)
					}
					v, _ := s.Job(4)
					got := v.State.String()
					if v.State == job.Pending {
						got += "(" + v.Reason + ")"
					}
					if got != c.want[i] {
						t.Errorf("it is %s, not %s", got, c.want[i])
					}
				})
			}
		}
	}
}

// TestAllOrOneOfThem: with commas all conditions have to be met, with question marks one,
// and a condition that can never be met ends the hope only where all are needed.
func TestAllOrOneOfThem(t *testing.T) {
	for _, c := range []struct {
		any          bool
		first, third string // after job 1 has failed, and after job 2 has completed
	}{
		{false, "4:PENDING(DependencyNeverSatisfied)", "4:PENDING(DependencyNeverSatisfied)"},
		{true, "4:PENDING(Dependency)", "4:RUNNING"},
	} {
		s := cluster(t, 2, 2)
		for id := range job.ID(3) {
			apply(t, s, job.Submitted{At: 1, ID: id + 1, Spec: gpus(1, 1, job.Hour)})
		}
		p := gpus(1, 1, job.Hour)
		p.Dependencies = &job.Dependencies{Any: c.any, List: []job.Dependency{{Type: job.AfterOK, Job: 1}, {Type: job.AfterOK, Job: 2}}}
		apply(t, s, job.Submitted{At: 1, ID: 4, Spec: p})
		decide(t, s, 1)
		apply(t, s, job.Ended{At: 2, ID: 1, State: job.Failed})
		decide(t, s, 2)
		want(t, s, "1:FAILED 2:RUNNING 3:RUNNING "+c.first)
		apply(t, s, job.Ended{At: 3, ID: 2, State: job.Completed})
		decide(t, s, 3)
		want(t, s, "1:FAILED 2:COMPLETED 3:RUNNING "+c.third)
	}
}
