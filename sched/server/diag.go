package server

import (
	"cmp"
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/gangway-hpc/gangway/internal/api"
	"github.com/gangway-hpc/gangway/internal/job"
)

// tally counts what the controller does, from its start on. It is of the present: nothing of
// it is stored. Each has its own lock, and none waits for the core.
type tally struct {
	mu    sync.Mutex
	since time.Time
	diag  api.Diag // its counts
	calls map[string]*api.Called
	users map[uint32]*api.Called
	open  int
}

// maxCallers bounds how many users are told apart.
const maxCallers = 1000

func newTally(now time.Time) *tally {
	t := &tally{}
	t.reset(now)
	return t
}

// reset sets all counts to 0.
func (t *tally) reset(now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.since, t.diag, t.calls, t.users = now, api.Diag{}, map[string]*api.Called{}, map[uint32]*api.Called{}
}

// begun counts a request that came, and returns what counts that it was answered. Those that
// are answered for as long as somebody reads take no time.
func (t *tally) begun(r *http.Request, uid uint32) (answered func()) {
	began := time.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.open++
	return func() {
		took := time.Since(began).Microseconds()
		switch r.Pattern {
		case "GET /v1/watch", "GET /v1/jobs/{id}/hold", "POST /v1/submit", "POST /v1/precache":
			took = 0
		}
		t.mu.Lock()
		defer t.mu.Unlock()
		t.open--
		add(t.calls, r.Pattern, r.Pattern, took)
		if len(t.users) < maxCallers || t.users[uid] != nil {
			add(t.users, uid, "", took)
			t.users[uid].UID = uid
		}
	}
}

func add[K comparable](all map[K]*api.Called, key K, name string, took int64) {
	c := all[key]
	if c == nil {
		c = &api.Called{Name: name}
		all[key] = c
	}
	c.Count++
	c.Sum += took
}

// cycle counts something that has just been done, and how long it took.
func (t *tally) cycle(which func(*api.Diag) *api.Cycles, d time.Duration, decided int) {
	now, took := time.Now(), d.Microseconds()
	t.mu.Lock()
	defer t.mu.Unlock()
	c := which(&t.diag)
	c.Count++
	c.Last, c.Max, c.Sum = took, max(c.Max, took), c.Sum+took
	c.Depth += uint64(decided)
	c.At = job.Time(now.UnixMilli())
}

func cyclesOf(d *api.Diag) *api.Cycles  { return &d.Cycles }
func turnsOf(d *api.Diag) *api.Cycles   { return &d.Turns }
func commitsOf(d *api.Diag) *api.Cycles { return &d.Commits }

// event counts what an event says of jobs; waits says of a job that it has no nodes.
func (t *tally) event(e any, waits func(job.ID) bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	d := &t.diag
	switch e := e.(type) {
	case submitted:
		d.Submitted++
		if a := e.Spec.Array; a != nil {
			d.Submitted += uint64(a.Len() - 1)
		}
	case job.Started:
		d.Started++
	case job.Cancelled:
		if waits(e.ID) { // else it ends later
			d.Cancelled++
		}
	case job.Ended:
		switch e.State {
		case job.Completed:
			d.Completed++
		case job.CancelledState:
			d.Cancelled++
		default:
			d.Failed++
		}
	case job.Killed:
		d.Failed++
	}
}

// now is what was counted, with how things are.
func (t *tally) now(names func(uint32) string) api.Diag {
	t.mu.Lock()
	defer t.mu.Unlock()
	d := t.diag
	d.Since, d.Requests = job.Time(t.since.UnixMilli()), t.open
	ranked := func(all []*api.Called) []api.Called {
		slices.SortFunc(all, func(a, b *api.Called) int {
			return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Name, b.Name), cmp.Compare(a.UID, b.UID))
		})
		list := make([]api.Called, len(all))
		for i := range all {
			list[i] = *all[i]
		}
		return list
	}
	d.Calls, d.Users = ranked(slices.Collect(maps.Values(t.calls))), ranked(slices.Collect(maps.Values(t.users)))
	for i := range d.Users {
		d.Users[i].Name = names(d.Users[i].UID)
	}
	return d
}

// clockCalls is how long 1000 readings of the clock take, in microseconds.
func clockCalls() int {
	began := time.Now()
	for range 999 {
		_ = time.Now()
	}
	return int(time.Since(began).Microseconds())
}

func (s *Server) getDiag(_ http.ResponseWriter, r *http.Request) (any, error) {
	d := s.core.meter.tally.now(func(uid uint32) string { return nameOf(s.opts.Users, uid) })
	d.ClockCalls = clockCalls()
	err := s.do(r.Context(), func(c *core) {
		d.Now, d.Running = c.now, len(c.runs)
		for range c.sched.Pending {
			d.Pending++
		}
		for _, n := range c.nodes {
			if n.session != nil {
				d.Sessions++
				d.ToAgents += n.session.waiting()
			}
		}
		d.Unstored = c.commit.waiting()
	})
	return d, err
}

func (s *Server) resetDiag(_ http.ResponseWriter, r *http.Request) (any, error) {
	if _, err := s.admin(r); err != nil {
		return nil, err
	}
	s.core.meter.tally.reset(time.Now())
	return nil, nil
}

// waiting is how many messages the agent has to get.
func (s *session) waiting() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.queue)
}

// waiting is how many batches are not on stable storage yet, but for the one that is written.
func (c *committer) waiting() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.queue)
}
