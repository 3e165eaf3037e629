package sim_test

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/sched"
	"github.com/gangway-hpc/gangway/sched/sim"
)

var update = flag.Bool("update", false, "rewrite the golden file")

const hashes = "testdata/hashes.golden"

// kueueBaseline has the numbers of Kueue's baseline test, a tenth of its jobs.
const kueueBaseline = `cohorts:
- className: cohort
  count: 5
  queuesSets:
  - className: cq
    count: 6
    nominalQuota: 20
    borrowingLimit: 100
    workloadsSets:
    - {35 100 200 50 1}
    - {10 500 500 100 5}
    - {5 1200 1000 200 20}
`

// generated are three traces from published marginals, each with its cluster.
func generated(t *testing.T) map[string]struct {
	trace   *sim.Trace
	cluster *sim.Cluster
} {
	t.Helper()
	text := kueueBaseline
	for line := range strings.Lines(kueueBaseline) {
		var n [5]int
		if _, err := fmt.Sscanf(line, "    - {%d %d %d %d %d}", &n[0], &n[1], &n[2], &n[3], &n[4]); err == nil {
			text = strings.Replace(text, line, fmt.Sprintf("    - count: %d\n      creationIntervalMs: %d\n      workloads:\n      - runtimeMs: %d\n        priority: %d\n        request: %d\n",
				n[0], n[1], n[2], n[3], n[4]), 1)
		}
	}
	kueue := read(t, text, sim.ReadOptions{Strict: true})
	return map[string]struct {
		trace   *sim.Trace
		cluster *sim.Cluster
	}{
		"philly 0.90 on 128 GPUs": {sim.PhillyMarginals().Generate(5_000, 128, 0.9, 1), sim.Uniform(sim.Shape{Nodes: 16, CPUs: 64, GPUs: 8, Leaf: 4})},
		"openb 0.90 on 64 GPUs":   {sim.OpenBMarginals().Generate(5_000, 64, 0.9, 2), sim.Uniform(sim.Shape{Nodes: 8, CPUs: 64, GPUs: 8, Leaf: 2})},
		"kueue baseline":          {kueue, kueue.Cluster},
	}
}

// TestGoldenHashes: the same trace and policy give the same decisions on every machine. A
// change of these hashes is a change of decisions, to be made on purpose (-update).
func TestGoldenHashes(t *testing.T) {
	traces := generated(t)
	var got strings.Builder
	for _, name := range []string{"kueue baseline", "openb 0.90 on 64 GPUs", "philly 0.90 on 128 GPUs"} {
		in := traces[name]
		for _, limits := range []sim.Limits{sim.Exact, sim.Over} {
			for _, p := range []struct {
				name   string
				policy func() sim.Policy
				kind   job.Backfill
			}{
				{"conservative", func() sim.Policy { return sched.New() }, job.Conservative},
				{"easy", func() sim.Policy { return sched.New() }, job.EASY},
				{"fifo", func() sim.Policy { return sched.New() }, job.None},
				{"model cycle", func() sim.Policy { return sim.CycleModel() }, 0},
				{"model fifo", func() sim.Policy { return sim.FIFOModel() }, 0},
			} {
				c := *in.cluster
				c.Config.Backfill = p.kind
				r, err := sim.Run(t.Context(), p.policy(), &c, in.trace, sim.Options{Limits: limits, Seed: 1})
				if err != nil {
					t.Fatalf("%s, %s, %s: %v", name, limits, p.name, err)
				}
				if r.Promise.Unsaid > 0 {
					t.Errorf("%s, %s, %s: %d starts are later than promised, without a reason", name, limits, p.name, r.Promise.Unsaid)
				}
				fmt.Fprintf(&got, "%-24s %-6s %-13s %s completed=%d wait=%.3f p95=%.3f used=%.4f broken=%d\n",
					name, limits, p.name, r.DecisionHash, r.Complete, r.Wait.Mean, r.Wait.P95, r.Utilisation, r.Promise.Breaches)
			}
		}
	}
	if *update {
		if err := os.WriteFile(hashes, []byte(got.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(hashes)
	if err != nil || string(want) != got.String() {
		t.Errorf("decisions are not those of %s:\n%s%v", hashes, got.String(), err)
	}
}
