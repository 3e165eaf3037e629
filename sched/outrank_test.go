package sched

import (
	"fmt"
	"slices"
	"testing"

	"github.com/gangway-hpc/gangway/internal/job"
)

// withPriority is a job of a priority.
func withPriority(spec job.Spec, priority uint32) job.Spec {
	spec.Priority = &priority
	return spec
}

// TestOutrankAtOnce: a job of a higher priority that can start without delaying others starts,
// and no promise is broken for it.
func TestOutrankAtOnce(t *testing.T) {
	s := cluster(t, 2, 2)
	apply(t, s, job.Submitted{At: 1, ID: 1, Spec: withPriority(gpus(1, 4, 100), 9)})
	apply(t, s, job.Submitted{At: 1, ID: 2, Spec: withPriority(gpus(2, 8, 100), 1)})
	decide(t, s, 1)
	apply(t, s, job.Submitted{At: 2, ID: 3, Spec: withPriority(gpus(1, 4, 50), 9)})
	out := decide(t, s, 2)
	if e, ok := out[0].(job.Started); len(out) != 1 || !ok || e.ID != 3 {
		t.Errorf("decided %+v", out)
	}
	if v, _ := s.Job(2); v.Expected != 101 {
		t.Errorf("job 2 is expected at %d, not at 101 as before", v.Expected)
	}
}

// TestOutrankMany: when a job comes before many others, few or most of those that are planned,
// all have the places that they would have if they had come in their order; licences too.
func TestOutrankMany(t *testing.T) {
	for _, behind := range []int{20, 300} {
		t.Run(fmt.Sprint(behind), func(t *testing.T) {
			r := rng(88172645463325252)
			const n = 400
			specs := make([]job.Spec, n)
			for i := range specs {
				specs[i] = gpus(1+r.next(2), int64(1+r.next(8)), job.Duration(1+r.next(50)))
				if r.next(3) > 0 {
					specs[i].Licenses = []job.License{{Name: "l", Count: 1}}
				}
			}
			urgent := gpus(2, 8, 70)
			urgent.Licenses = []job.License{{Name: "l", Count: 1}}
			plan := func(order []job.Spec, atOnce int) []string {
				s := cluster(t, 3, 2)
				setLicenses(t, s, 0, job.License{Name: "l", Count: 1})
				apply(t, s, job.Submitted{At: 1, ID: 1, Spec: gpus(3, 8, 1000)})
				decide(t, s, 1)
				for i, spec := range order {
					apply(t, s, job.Submitted{At: 1, ID: job.ID(i + 2), Spec: spec})
					if i >= atOnce-1 {
						decide(t, s, 1)
					}
				}
				decide(t, s, 1)
				var all []string
				for v := range s.Pending {
					all = append(all, fmt.Sprint(v.Expected, *v.Spec.Priority, v.Spec.MinNodes, v.Spec.GRES, v.Spec.TimeLimit, v.Spec.Licenses))
				}
				slices.Sort(all)
				return all
			}
			first := make([]job.Spec, n)
			for i := range specs {
				first[i] = withPriority(specs[i], 9)
				if i >= n-behind {
					first[i] = withPriority(specs[i], 1)
				}
			}
			urgent = withPriority(urgent, 5)
			late := plan(append(slices.Clone(first), urgent), n)
			inOrder := plan(slices.Insert(slices.Clone(first), n-behind, urgent), n+1)
			if !slices.Equal(late, inOrder) {
				t.Errorf("the plans are not those of the jobs in their order:\n%v\nnot\n%v", late, inOrder)
			}
			if len(late) != n+1 {
				t.Errorf("%d jobs wait", len(late))
			}
		})
	}
}
