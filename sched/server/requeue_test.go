package server

import (
	"fmt"
	"slices"
	"testing"

	"github.com/gangway-hpc/gangway/internal/api"
	"github.com/gangway-hpc/gangway/internal/job"
)

// TestAccountOfRequeued: each run of a job has its row in the accounting, also where the job was
// cancelled while it waited for that run, and requeued then.
func TestAccountOfRequeued(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	hold := func(q *api.Submit) { q.Spec.Requeue, q.Spec.Hold = true, true }
	path := func(id job.ID, verb string) string { return "/v1/jobs/" + id.String() + verb }
	rows := func(id job.ID) (all []string) {
		var page api.Page[api.Past]
		w.get("/v1/history?duplicates=true&ids="+id.String(), &page)
		for _, p := range page.Items {
			all = append(all, fmt.Sprintf("%d %v ran=%v nodes=%v steps=%d", p.Job.Attempt, p.Job.State, p.Job.Start > 0, p.Job.NodeList, len(p.Steps)))
		}
		return all
	}
	want := func(when string, id job.ID, want ...string) {
		t.Helper()
		if got := rows(id); !slices.Equal(got, want) {
			t.Errorf("%s: accounting has %q, want %q", when, got, want)
		}
	}
	id := w.submit(1, hold)
	w.do("DELETE", path(id, ""), nil, nil)
	want("cancelled before it ran", id, "0 CANCELLED ran=false nodes=[] steps=0")
	w.do("POST", path(id, "/requeue"), &api.Change{}, nil)
	w.do("POST", path(id, "/release"), &api.Change{}, nil)
	w.waitState(id, job.Completed)
	want("requeued", id, "1 COMPLETED ran=true nodes=[n1] steps=1")
	w.do("POST", path(id, "/requeue"), &api.Change{Hold: true}, nil)
	w.do("DELETE", path(id, ""), nil, nil)
	w.do("POST", path(id, "/requeue"), &api.Change{}, nil)
	w.do("POST", path(id, "/release"), &api.Change{}, nil)
	w.until("it ran again", func() bool { j := w.job(id); return j.State == job.Completed && j.Attempt == 2 })
	w.restart()
	want("cancelled between two runs", id, "1 COMPLETED ran=true nodes=[n1] steps=1", "2 COMPLETED ran=true nodes=[n1] steps=1")
}
