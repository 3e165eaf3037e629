package sim_test

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/sched"
	"github.com/gangway-hpc/gangway/sched/sim"
)

// draw makes a random cluster and trace.
func draw(t *rapid.T) (*sim.Cluster, *sim.Trace) {
	shape := sim.Shape{Nodes: rapid.IntRange(1, 9).Draw(t, "nodes"), CPUs: 8, GPUs: 4, Leaf: 2}
	trace := &sim.Trace{}
	at := 0
	for range rapid.IntRange(1, 40).Draw(t, "jobs") {
		at += rapid.IntRange(0, 50).Draw(t, "later")
		j := sim.Job{Submit: job.Time(at) * 1000, Run: job.Duration(rapid.IntRange(1, 300).Draw(t, "run")) * job.Second}
		if rapid.Bool().Draw(t, "gpu") {
			j.GPUs = rapid.IntRange(1, 4*shape.Nodes).Draw(t, "gpus")
		} else {
			j.CPUs = rapid.IntRange(1, 8*shape.Nodes).Draw(t, "cpus")
		}
		trace.Jobs = append(trace.Jobs, j)
	}
	return sim.Uniform(shape), trace
}

// TestSchedulerHolds: whatever the jobs, the scheduler gives nothing twice (the simulation
// proves that by itself), its own invariants hold at every moment, all jobs end, without
// backfill none starts before one that came earlier, and no promise is broken nor late.
func TestSchedulerHolds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c, trace := draw(t)
		c.Config.Backfill = rapid.SampledFrom([]job.Backfill{job.Conservative, job.EASY, job.None}).Draw(t, "backfill")
		s := sched.New()
		r := &recorder{Policy: s, starts: map[job.ID]int{}}
		o := sim.Options{
			Limits: rapid.SampledFrom([]sim.Limits{sim.Exact, sim.Over}).Draw(t, "limits"), Seed: 1,
			After: func(job.Time) error { return s.Check() },
		}
		result, err := sim.Run(t.Context(), r, c, trace, o)
		if err != nil {
			t.Fatal(err)
		}
		if result.Complete+result.Refused != len(trace.Jobs) {
			t.Fatalf("%d of %d jobs ended, %d were refused", result.Complete, len(trace.Jobs), result.Refused)
		}
		if result.Promise.Breaches > 0 || result.Promise.Late > 0 || result.Promise.Unsaid > 0 {
			t.Fatalf("promises: %+v", result.Promise)
		}
		for i := 1; i < len(r.order) && c.Config.Backfill == job.None; i++ {
			if r.order[i] < r.order[i-1] {
				t.Fatalf("job %d started before job %d", r.order[i-1], r.order[i])
			}
		}
	})
}
