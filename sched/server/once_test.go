package server

import (
	"errors"
	"sync"
	"testing"

	"github.com/gangway-hpc/gangway/internal/api"
	"github.com/gangway-hpc/gangway/internal/job"
)

// TestOnceRefused: a submit that was refused, because it could not be stored, and is sent again
// is a new job: that of the first time is cancelled, and nobody knows of it.
func TestOnceRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	w.runFor(0)
	q := &api.Submit{Spec: job.Spec{Name: "x"}, Program: &job.Program{Args: [][]byte{[]byte("x")}}, Once: "abc"}
	w.store.fail(errors.New("no room"))
	if err := w.call("POST", "/v1/jobs", q, nil); err == nil {
		t.Fatal("it was taken by a store that takes nothing")
	}
	w.store.fail(nil)
	w.until("the store works again", func() bool { return !w.server.core.commit.broken() })
	id := w.submit(1, func(s *api.Submit) { s.Once = "abc" })
	if j := w.job(id); j.State.Done() {
		t.Errorf("sent again it is job %v, which is %v", id, j.State)
	}
	w.restart()
	if again := w.submit(1, func(s *api.Submit) { s.Once = "abc" }); again != id {
		t.Errorf("sent a third time it is job %v, and was %v", again, id)
	}
}

// TestOnceTogether: a submit that is sent again while the first is not stored yet is refused
// with that.
func TestOnceTogether(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	q := &api.Submit{Spec: job.Spec{Name: "x", Hold: true}, Program: &job.Program{Args: [][]byte{[]byte("x")}}, Once: "abc"}
	w.store.fail(errors.New("no room"))
	w.store.gate.Lock()
	unlock := sync.OnceFunc(w.store.gate.Unlock)
	defer unlock()
	answers := make(chan error, 2)
	for i := range 2 {
		go func() { answers <- w.call("POST", "/v1/jobs", q, nil) }()
		w.until("it is taken", func() bool {
			taken := false
			_ = w.server.do(t.Context(), func(c *core) { taken = c.last == 1 && w.waiting() == i })
			return taken
		})
	}
	unlock()
	for range 2 {
		if err := <-answers; err == nil {
			t.Error("it was taken by a store that takes nothing")
		}
	}
}
