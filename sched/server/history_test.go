package server

import (
	"testing"

	"github.com/gangway-hpc/gangway/internal/api"
	"github.com/gangway-hpc/gangway/internal/job"
)

// TestLatest: of a job that was requeued one attempt is shown, whenever that ends: what runs
// is looked at before the accounting is read, and whether it still does after that.
func TestLatest(t *testing.T) {
	t.Parallel()
	of := func(attempt int, state job.State) []api.Past {
		return []api.Past{{Job: api.Job{ID: 7, Attempt: attempt, State: state}}}
	}
	for _, c := range []struct {
		what        string
		items, live []api.Past
		done        bool
		left        int
	}{
		{"it has ended before", of(1, job.Completed), nil, true, 1},
		{"it runs again", of(1, job.Failed), of(2, job.Running), false, 0},
		{"it ran again, and ends just now", of(1, job.Failed), of(2, job.Running), true, 0},
		{"it ended before the accounting was read", of(2, job.Completed), of(2, job.Running), true, 1},
		{"it is requeued just now", of(1, job.Failed), of(1, job.Running), false, 0},
		{"it waits again", of(1, job.Failed), of(1, job.Pending), false, 0},
		{"it runs again, and that is not asked for", of(1, job.Failed), nil, false, 0},
		{"others", of(1, job.Completed), []api.Past{{Job: api.Job{ID: 8, Attempt: 2}}}, true, 1},
	} {
		if got := latest(c.items, c.live, func(job.ID) bool { return c.done }); len(got) != c.left {
			t.Errorf("%s: %d are left, want %d", c.what, len(got), c.left)
		}
	}
}
