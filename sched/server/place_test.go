package server

import (
	"errors"
	"fmt"
	"testing"

	"github.com/gangway-hpc/gangway/internal/api"
	"github.com/gangway-hpc/gangway/internal/job"
)

// TestPlacedSteps: where the ranks of steps go in a job of three nodes with eight CPUs each, or by
// Slurm's name why they go nowhere.
func TestPlacedSteps(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 3)
	id := w.allocation(3)
	for name, test := range map[string]struct {
		change func(*api.StepRequest)
		want   string
	}{
		"block":                     {func(q *api.StepRequest) { q.MinNodes, q.Tasks = 3, 5 }, "[n1 n2 n3] [[0 1] [2 3] [4]]"},
		"plane":                     {func(q *api.StepRequest) { q.MinNodes, q.Tasks, q.Distribution = 3, 4, "plane=4" }, "[n1 n2 n3] [[0 1] [2] [3]]"},
		"packed":                    {func(q *api.StepRequest) { q.MinNodes, q.Tasks, q.Distribution = 3, 9, "block,pack" }, "[n1 n2] [[0 1 2 3 4 5 6 7] [8]]"},
		"arbitrary":                 {func(q *api.StepRequest) { q.NodeList, q.Distribution = []string{"n3", "n1", "n3"}, "arbitrary" }, "[n1 n3] [[1] [0 2]]"},
		"arbitrary, of too many":    {func(q *api.StepRequest) { q.NodeList, q.Tasks, q.Distribution = []string{"n3"}, 2, "arbitrary" }, "BAD_TASK_COUNT"},
		"arbitrary, without a list": {func(q *api.StepRequest) { q.Distribution = "arbitrary" }, "BAD_TASK_COUNT"},
		"arbitrary, too full": {func(q *api.StepRequest) {
			q.NodeList, q.Distribution, q.CPUsPerTask = []string{"n3", "n3"}, "arbitrary", 5
		}, "TOO_MANY_REQUESTED_CPUS"},
		"in the job's order":         {func(q *api.StepRequest) { q.NodeList, q.MinNodes, q.Tasks = []string{"n2"}, 2, 2 }, "[n1 n2] [[0] [1]]"},
		"more nodes named than used": {func(q *api.StepRequest) { q.NodeList, q.Tasks = []string{"n2", "n1", "n3"}, 2 }, "[n1 n2] [[0] [1]]"},
		"as many as a range has":     {func(q *api.StepRequest) { q.MinNodes, q.MaxNodes, q.Tasks = 1, 3, 3 }, "[n1 n2 n3] [[0] [1] [2]]"},
		"shared CPUs":                {func(q *api.StepRequest) { q.MinNodes, q.MaxNodes, q.Tasks, q.Overcommit = 1, 1, 10, true }, "[n1] [[0 1 2 3 4 5 6 7 8 9]]"},
		"too many tasks":             {func(q *api.StepRequest) { q.MinNodes, q.MaxNodes, q.Tasks = 1, 1, 10 }, "TOO_MANY_REQUESTED_CPUS"},
		"too many CPUs":              {func(q *api.StepRequest) { q.MinNodes, q.Tasks, q.CPUsPerTask = 1, 1, 9 }, "TOO_MANY_REQUESTED_CPUS"},
		"devices": {func(q *api.StepRequest) {
			q.MinNodes, q.Tasks, q.GRES = 1, 1, []job.GRESRequest{{Name: "gpu", Count: 9, Per: job.PerNode}}
		}, "INVALID_GRES"},
		"a word": {func(q *api.StepRequest) { q.MinNodes, q.Tasks, q.Distribution = 1, 1, "round" }, "BAD_DIST"},
	} {
		t.Run(name, func(t *testing.T) {
			q := stepRequest(0, 0)
			q.Overlap = true
			test.change(q)
			var s api.Step
			got := ""
			err := w.call("POST", "/v1/jobs/"+id.String()+"/steps", q, &s)
			var refused *api.Error
			if errors.As(err, &refused) {
				got = refused.Kind
			} else {
				got = fmt.Sprint(s.Nodes, " ", s.Ranks)
			}
			if got != test.want {
				t.Errorf("%s (%v), want %s", got, err, test.want)
			}
		})
	}
}

// TestUnknownFeature: a job that names a feature of no node is refused by Slurm's name for that.
func TestUnknownFeature(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	feature := func(name string) *job.Constraint { return &job.Constraint{Feature: name} }
	for name, edit := range map[string]func(*job.Spec){
		"needed": func(s *job.Spec) { s.Constraint = feature("foo") },
		"one of two": func(s *job.Spec) {
			s.Constraint = &job.Constraint{Or: []*job.Constraint{feature("foo"), feature("bar")}}
		},
		"preferred": func(s *job.Spec) { s.Prefer = feature("foo") },
	} {
		for _, test := range []bool{false, true} {
			q := &api.Submit{Allocation: true, TestOnly: test, Spec: job.Spec{Name: "x", MinNodes: 1, MaxNodes: 1}}
			edit(&q.Spec)
			var refused *api.Error
			if err := w.call("POST", "/v1/jobs", q, nil); !errors.As(err, &refused) || refused.Kind != "INVALID_FEATURE" {
				t.Errorf("%s, a test %v: %v", name, test, err)
			}
		}
	}
}
