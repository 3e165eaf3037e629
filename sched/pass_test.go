package sched

import (
	"math"
	"slices"
	"testing"

	"github.com/gangway-hpc/gangway/internal/job"
)

// TestGapsFindTheSame: a plan of many jobs that is made from gaps is the one that is made
// by looking at every node.
func TestGapsFindTheSame(t *testing.T) {
	for seed := range 4 {
		r := rng(88172645463325252 + seed)
		s := cluster(t, 96, 8)
		for id := range job.ID(700) {
			spec := shaped(&r)
			if spec.MinNodes > 8 {
				spec.MinNodes, spec.MaxNodes = 8, 8
			}
			if seed > 1 { // more lengths than a pass tells apart
				spec.TimeLimit += job.Duration(r.next(7200)) * job.Second
			}
			if r.next(9) == 0 {
				spec.Exclude = []string{"n0001", "n0017"}
			}
			if err := s.Apply(job.Submitted{At: 1, ID: id + 1, Spec: spec}); err != nil {
				continue // there are no blocks
			}
		}
		s.Decide(1)
		plans := func(from int) []*plan {
			c := s.Fork()
			c.largePass = from
			c.replan(key{}, true)
			if err := c.Check(); err != nil {
				t.Fatal(err)
			}
			var all []*plan
			for _, r := range c.jobs {
				all = append(all, r.plan)
			}
			return all
		}
		gaps, all := plans(1), plans(math.MaxInt)
		planned := 0
		for i := range all {
			a, b := gaps[i], all[i]
			if (a == nil) != (b == nil) || a != nil && (a.start != b.start || a.end != b.end || !slices.Equal(a.picks, b.picks)) {
				t.Fatalf("seed %d, job %v: from gaps it is planned as %+v, else as %+v", seed, s.jobs[i].id, a, b)
			}
			if a != nil {
				planned++
			}
		}
		if planned < 300 {
			t.Errorf("seed %d: %d jobs are planned", seed, planned)
		}
	}
}
