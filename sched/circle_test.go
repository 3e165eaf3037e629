package sched

import (
	"testing"

	"github.com/gangway-hpc/gangway/internal/job"
)

// TestDependencyCircles: a change by which jobs would wait for each other for ever is
// refused, also by way of arrays, their tasks, and jobs of the same name; others are not.
func TestDependencyCircles(t *testing.T) {
	after := func(id job.ID) job.Dependency { return job.Dependency{Type: job.AfterAny, Job: id} }
	task := func(id job.ID, n uint32) job.Dependency {
		return job.Dependency{Type: job.AfterAny, Job: id, Task: &n}
	}
	one := job.Dependency{Type: job.Singleton}
	type change struct {
		id      job.ID
		on      job.Dependency
		refused bool
	}
	for name, changes := range map[string][]change{
		"two jobs":               {{5, after(6), false}, {6, after(5), true}},
		"itself":                 {{5, after(5), true}},
		"its own array":          {{2, after(1), true}},
		"a task of its array":    {{2, task(1, 3), false}, {4, task(1, 2), false}, {3, task(1, 1), true}},
		"an array":               {{3, after(5), false}, {5, after(1), true}},
		"another task":           {{3, after(5), false}, {5, task(1, 1), false}},
		"the same task":          {{3, after(5), false}, {5, task(1, 2), true}},
		"an array and further":   {{3, after(5), false}, {6, after(1), false}, {5, after(6), true}},
		"corresponding tasks":    {{3, job.Dependency{Type: job.AfterCorr, Job: 10}, false}, {11, after(3), false}, {12, after(3), true}},
		"a singleton":            {{7, one, false}, {5, after(7), true}},
		"a later job":            {{7, one, false}, {8, after(7), false}},
		"singletons of an array": {{3, one, false}, {9, one, false}, {2, after(3), false}, {1, after(9), true}},
	} {
		t.Run(name, func(t *testing.T) {
			s := cluster(t, 1, 2)
			array := gpus(1, 8, 100)
			array.Name = "x"
			array.Array = &job.Array{Tasks: []job.Range{{First: 0, Last: 3, Step: 1}}}
			single := gpus(1, 8, 100)
			single.Name = "x"
			apply(t, s, job.Submitted{At: 1, ID: 1, Spec: array})
			for id := job.ID(5); id < 10; id++ {
				apply(t, s, job.Submitted{At: 1, ID: id, Spec: single})
			}
			apply(t, s, job.Submitted{At: 1, ID: 10, Spec: array})
			for _, c := range changes {
				spec := single
				spec.Dependencies = &job.Dependencies{List: []job.Dependency{c.on}}
				if err := s.Apply(job.Changed{At: 1, ID: c.id, Spec: spec}); (err != nil) != c.refused {
					t.Fatalf("job %v on %+v: %v", c.id, c.on, err)
				}
			}
		})
	}
}

// TestRenamedIntoCircle: a job that others of its name would wait for must not wait for one
// of them.
func TestRenamedIntoCircle(t *testing.T) {
	s := cluster(t, 1, 2)
	a, b := gpus(1, 8, 100), gpus(1, 8, 100)
	a.Hold, b.Name = true, "x"
	b.Dependencies = &job.Dependencies{List: []job.Dependency{{Type: job.Singleton}}}
	apply(t, s, job.Submitted{At: 1, ID: 1, Spec: a})
	apply(t, s, job.Submitted{At: 1, ID: 2, Spec: b})
	a.Dependencies = &job.Dependencies{List: []job.Dependency{{Type: job.AfterAny, Job: 2}}}
	apply(t, s, job.Changed{At: 1, ID: 1, Spec: a})
	a.Name = "x"
	if s.Apply(job.Changed{At: 1, ID: 1, Spec: a}) == nil {
		t.Error("job 1 waits for job 2, a singleton that waits for it")
	}
}

// TestLongChain: nothing depends on a job that is new, so that the chain before it need not
// be looked at. Where it was, this took minutes.
func TestLongChain(t *testing.T) {
	s := cluster(t, 1, 2)
	apply(t, s, job.Submitted{At: 1, ID: 1, Spec: gpus(1, 8, 100)})
	for id := job.ID(2); id <= 20000; id++ {
		spec := gpus(1, 8, 100)
		spec.Dependencies = &job.Dependencies{List: []job.Dependency{{Type: job.AfterAny, Job: id - 1}}}
		apply(t, s, job.Submitted{At: 1, ID: id, Spec: spec})
	}
	spec := gpus(1, 8, 100)
	spec.Dependencies = &job.Dependencies{List: []job.Dependency{{Type: job.AfterAny, Job: 20000}}}
	if s.Apply(job.Changed{At: 1, ID: 1, Spec: spec}) == nil {
		t.Error("the first of a chain waits for the last")
	}
}
