package sim_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/gangway-hpc/gangway/sched"
	"github.com/gangway-hpc/gangway/sched/sim"
)

// realTrace opens one of the traces that are not in the repository.
func realTrace(t *testing.T, name string, o sim.ReadOptions) *sim.Trace {
	t.Helper()
	dir := os.Getenv("TRACES")
	if dir == "" {
		t.Skip("needs TRACES=DIR with published traces")
	}
	trace, err := sim.Open(filepath.Join(dir, name), o)
	if err != nil {
		t.Fatal(err)
	}
	return trace
}

func TestRealPhilly(t *testing.T) {
	trace := realTrace(t, "philly/philly-sia.csv", sim.ReadOptions{Strict: true})
	if len(trace.Jobs) != 82_247 {
		t.Errorf("%d jobs, %+v", len(trace.Jobs), trace.LeftOut)
	}
	trace.Jobs = trace.Jobs[:60000]
	cluster := sim.Uniform(sim.Shape{Nodes: 52, CPUs: 64, GPUs: 8})
	report := sim.NewReport(trace, cluster)
	r, err := sim.Run(t.Context(), sched.New(), cluster, trace, sim.Options{})
	if err != nil {
		t.Fatal(err)
	}
	report.Results = append(report.Results, r)
	report.Text(os.Stderr)
}
