package server

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/gangway-hpc/gangway/internal/api"
	"github.com/gangway-hpc/gangway/internal/job"
)

// TestChangesAreKept: what is changed of jobs that wait and that run, and of partitions, is so
// after a crash, which replays the log, and after a restart, which has a snapshot.
func TestChangesAreKept(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	w.runFor(0)
	runs := w.submit(2, func(q *api.Submit) { q.Spec.Exclusive = true })
	w.waitState(runs, job.Running)
	waits := w.submit(2, func(q *api.Submit) { q.Spec.Exclusive = true; q.Comment = "first" })
	array := w.submit(2, func(q *api.Submit) {
		q.Spec.Exclusive, q.Spec.Array = true, &job.Array{Tasks: []job.Range{{First: 0, Last: 3, Step: 1}}}
	})
	change := func(id string, c api.Change) {
		t.Helper()
		w.do("POST", "/v1/jobs/"+id, &c, nil)
	}
	spec := func(fields string, s job.Spec) api.Change {
		return api.Change{Spec: &s, Fields: strings.Fields(fields)}
	}
	change(runs.String(), api.Change{Longer: 30 * job.Minute})
	change(runs.String(), spec("Name Requeue", job.Spec{Name: "other", Requeue: true}))
	change(waits.String(), api.Change{Longer: -15 * job.Minute, Comment: new("second")})
	change(waits.String(), spec("Dependencies Nice", job.Spec{Nice: 7, Dependencies: &job.Dependencies{List: []job.Dependency{{Type: job.AfterOK, Job: runs}}}}))
	change(fmt.Sprintf("%d_2", array), spec("TimeLimit", job.Spec{TimeLimit: 3 * job.Minute}))
	change(array.String(), spec("Nice", job.Spec{Nice: 9})) // and nothing else of any task
	change(array.String(), spec("Array", job.Spec{Array: &job.Array{Throttle: 2}}))
	w.do("POST", "/v1/partitions/main", &api.Change{Partition: &job.Partition{MaxTime: 3 * job.Hour}, Fields: []string{"MaxTime"}}, nil)
	w.do("POST", "/v1/partitions/main", &api.Change{State: "drain"}, nil)

	look := func(when string) {
		t.Helper()
		j := w.job(runs)
		if j.State != job.Running || j.Limit != 90*job.Minute || j.Name != "other" || !j.Requeue || j.Attempt != 1 {
			t.Errorf("%s: the job that runs is %+v", when, j)
		}
		j = w.job(waits)
		if j.Limit != 45*job.Minute || j.Comment != "second" || j.Nice != 7 || j.Dependency != fmt.Sprintf("afterok:%d(unfulfilled)", runs) || j.Reason != "Dependency" {
			t.Errorf("%s: the job that waits is %+v", when, j)
		}
		var page api.Page[api.Job]
		w.get(fmt.Sprintf("/v1/jobs?tasks=1&ids=%d", array), &page)
		if len(page.Items) != 4 {
			t.Fatalf("%s: %+v", when, page)
		}
		for i := range page.Items {
			limit := job.Hour
			if i == 2 {
				limit = 3 * job.Minute
			}
			if j := &page.Items[i]; j.Limit != limit || j.Nice != 9 || j.Throttle != 2 {
				t.Errorf("%s: task %d is %+v", when, i, j)
			}
		}
		var parts api.Page[api.Partition]
		w.get("/v1/partitions", &parts)
		if p := parts.Items[0]; p.MaxTime != 3*job.Hour || p.State != job.PartitionDrain {
			t.Errorf("%s: %+v", when, p)
		}
	}
	look("at once")
	w.restart()
	look("after a crash")
	w.stop()
	w.start()
	look("after a restart")

	// Another configuration of the partition counts.
	w.stop()
	w.cluster.Partitions[0].MaxTime = 2 * job.Hour
	w.start()
	var parts api.Page[api.Partition]
	w.get("/v1/partitions", &parts)
	if p := parts.Items[0]; p.MaxTime != 2*job.Hour {
		t.Errorf("configured anew: %+v", p)
	}

	// The limit of a job that runs is what ends it.
	change(runs.String(), spec("TimeLimit", job.Spec{TimeLimit: 1}))
	w.waitState(runs, job.Timeout)
	w.until("the other will never start", func() bool { return w.job(waits).Reason == "DependencyNeverSatisfied" })
	if got := w.job(waits).Dependency; got != fmt.Sprintf("afterok:%d(failed)", runs) {
		t.Errorf("dependency %q", got)
	}
}

// TestBadChanges: what cannot be changed is refused by what it is, and changes nothing.
func TestBadChanges(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	w.runFor(0)
	id := w.submit(1, func(q *api.Submit) { q.Spec.TimeLimit = job.Hour })
	w.waitState(id, job.Running)
	before := w.job(id)
	job1 := func(c api.Change) error { return w.call("POST", "/v1/jobs/"+id.String(), &c, nil) }
	part := func(c api.Change) error { return w.call("POST", "/v1/partitions/main", &c, nil) }
	for what, c := range map[string]struct {
		err  error
		says string
	}{
		"nothing":            {job1(api.Change{}), "there is neither"},
		"who":                {job1(api.Change{Spec: &job.Spec{UID: 7}, Fields: []string{"UID"}}), `there is no field "UID"`},
		"no field":           {job1(api.Change{Spec: &job.Spec{}, Fields: []string{"Nodes"}}), `there is no field "Nodes"`},
		"nodes of a run":     {job1(api.Change{Spec: &job.Spec{MinNodes: 2}, Fields: []string{"MinNodes"}}), "not PENDING"},
		"throttle":           {job1(api.Change{Spec: &job.Spec{Array: &job.Array{Throttle: 2}}, Fields: []string{"Array"}}), "no array"},
		"too much less time": {job1(api.Change{Longer: -2 * job.Hour}), "TimeLimit decrement larger than current time limit (120 > 60)"},
		"no such job":        {w.call("POST", "/v1/jobs/99", &api.Change{Comment: new("x")}, nil), "Invalid job id"},
		"no such partition":  {w.call("POST", "/v1/partitions/x", &api.Change{State: "up"}, nil), "Invalid partition name"},
		"state":              {part(api.Change{State: "odd"}), `"odd" is no state`},
		"no change":          {part(api.Change{}), "is no state"},
		"its name":           {part(api.Change{Partition: &job.Partition{Name: "x"}, Fields: []string{"Name"}}), `there is no field "Name"`},
		"unknown node":       {part(api.Change{Partition: &job.Partition{Nodes: []string{"n9"}}, Fields: []string{"Nodes"}}), "n9: Invalid node name"},
		"negative":           {part(api.Change{Partition: &job.Partition{MaxTime: -1}, Fields: []string{"MaxTime"}}), "negative"},
	} {
		if c.err == nil || !strings.Contains(c.err.Error(), c.says) {
			t.Errorf("%s: %v, want %q", what, c.err, c.says)
		}
	}
	after := w.job(id)
	if after.Limit != before.Limit || after.Name != before.Name || after.Nodes != before.Nodes {
		t.Errorf("it is %+v", after)
	}
}

// TestDiag: what the controller does is counted, by kind and by who asks, until the counts are
// set to 0.
func TestDiag(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	w.runFor(time.Millisecond)
	for range 3 {
		w.waitState(w.submit(1, nil), job.Completed)
	}
	held := w.submit(1, func(q *api.Submit) { q.Spec.Hold = true })
	w.do("DELETE", "/v1/jobs/"+held.String(), nil, nil)
	w.submit(1, func(q *api.Submit) { q.Spec.Hold = true })
	var d api.Diag
	w.get("/v1/diag", &d)
	if d.Submitted != 5 || d.Started != 3 || d.Completed != 3 || d.Cancelled != 1 || d.Failed != 0 || d.Pending != 1 || d.Running != 0 || d.Sessions != 2 {
		t.Errorf("%+v", d)
	}
	if d.Cycles.Count < 3 || d.Cycles.Max < d.Cycles.Last || d.Cycles.Sum < d.Cycles.Max || d.Cycles.Depth < 3 || d.Turns.Count < d.Cycles.Count || d.Commits.Count < 3 || d.Requests != 1 {
		t.Errorf("%+v", d)
	}
	calls := map[string]uint64{}
	for _, c := range d.Calls {
		calls[c.Name] = c.Count
	}
	if calls["POST /v1/jobs"] != 5 || calls["DELETE /v1/jobs/{id}"] != 1 || calls["GET /v1/jobs/{id}"] < 3 || calls["GET /v1/diag"] != 0 {
		t.Errorf("%+v", d.Calls)
	}
	if len(d.Users) != 1 || d.Users[0].Name == "" || d.Users[0].Count < 9 {
		t.Errorf("%+v", d.Users)
	}
	w.do("POST", "/v1/diag/reset", nil, nil)
	var again api.Diag
	w.get("/v1/diag", &again)
	if again.Submitted != 0 || again.Commits.Count != 0 || again.Pending != 1 || again.Since < d.Since || len(again.Calls) != 1 {
		t.Errorf("%+v", again)
	}
}
