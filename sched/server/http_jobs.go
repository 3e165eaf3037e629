package server

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"

	"github.com/gangway-hpc/gangway/internal/api"
	"github.com/gangway-hpc/gangway/internal/fault"
	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/internal/slurm"
	"github.com/gangway-hpc/gangway/sched"
)

func (s *Server) postJob(_ http.ResponseWriter, r *http.Request) (any, error) {
	who, refused := s.who(r)
	if refused != nil {
		return nil, refused
	}
	var q api.Submit
	if err := body(r, &q); err != nil {
		return nil, err
	}
	answer := make(chan *api.Submitted, 2)
	s.submitOne(who, &q, func(a *api.Submitted) {
		select {
		case answer <- a:
		default: // it was refused before it was stored after all
		}
	})
	select {
	case a := <-answer:
		if a.Error != nil {
			return nil, a.Error
		}
		return a, nil
	case <-r.Context().Done():
		return nil, r.Context().Err()
	case <-s.stopped:
		return nil, stopping()
	}
}

// submitOne gives a job to the core. answer is called at least once: the first time counts.
func (s *Server) submitOne(who identity, q *api.Submit, answer func(*api.Submitted)) {
	p, refused := propose(who, q)
	if refused != nil {
		answer(&api.Submitted{Error: refused})
		return
	}
	f := func(c *core) {
		if q.TestOnly {
			answer(c.testOnly(p))
			return
		}
		c.submit(p, answer)
	}
	select {
	case s.inputs <- f:
	case <-s.stopped:
		answer(&api.Submitted{Error: stopping()})
	}
}

// postJobs takes a stream of jobs, and answers each in its turn.
func (s *Server) postJobs(w http.ResponseWriter, r *http.Request) (any, error) {
	who, refused := s.who(r)
	if refused != nil {
		return nil, refused
	}
	rc := http.NewResponseController(w)
	if err := rc.EnableFullDuplex(); err != nil {
		return nil, fmt.Errorf("answer while reading: %w", err)
	}
	answers := make(chan chan *api.Submitted, 4096)
	written := make(chan struct{})
	go func() {
		defer close(written)
		out := newWriter(w)
		for answer := range answers {
			select {
			case a := <-answer:
				_ = out.put(a)
			case <-s.stopped:
				_ = out.put(&api.Submitted{Error: stopping()})
			}
			if len(answers) == 0 {
				_ = out.flush()
			}
		}
		_ = out.flush()
	}()
	in := &documents{r: r.Body}
	dec := json.NewDecoder(in)
	dec.DisallowUnknownFields()
	for {
		var q api.Submit
		in.next()
		err := dec.Decode(&q)
		if errors.Is(err, io.EOF) {
			break
		}
		answer := make(chan *api.Submitted, 2)
		answers <- answer
		if errors.Is(err, errDocument) {
			answer <- &api.Submitted{Error: &api.Error{What: fmt.Sprintf("a job of the stream is longer than %d bytes", largeBody), Code: fault.CodeUsage, Kind: "PATHNAME_TOO_LONG"}}
			break
		}
		if err != nil {
			answer <- &api.Submitted{Error: &api.Error{What: "read the request: " + err.Error(), Code: fault.CodeUsage}}
			break
		}
		s.submitOne(who, &q, func(a *api.Submitted) {
			select {
			case answer <- a:
			default:
			}
		})
	}
	close(answers)
	<-written
	return nil, errDone
}

// owned is a job that who asks may change.
func (c *core) owned(who identity, text string) (job.ID, sched.JobView, error) {
	id, err := c.idOf(text)
	if err != nil {
		return 0, sched.JobView{}, err
	}
	v, ok := c.sched.Job(id)
	switch {
	case !ok:
		return 0, v, &api.Error{What: fmt.Sprintf("job %s: Invalid job id specified", text), Kind: "INVALID_JOB_ID"}
	case !who.may(v.Spec):
		return 0, v, &api.Error{What: fmt.Sprintf("job %s: it is %s's", text, v.Spec.User), Kind: "ACCESS_DENIED"}
	case !c.reaches(who, id):
		return 0, v, &api.Error{
			What:  fmt.Sprintf("job %s: %s %s may not speak for it", text, who.from.Role, who.from.Name),
			Cause: "it has not run on this node, and was not submitted there",
			Hint:  "type the command where gangwayd client runs, or where the controller is", Kind: "ACCESS_DENIED",
		}
	}
	return id, v, nil
}

// change runs f for a job, or all tasks of an array, of who asks. It fails if it fails for
// all of them.
func (s *Server) change(r *http.Request, f func(*core, job.ID) error) error {
	who, refused := s.who(r)
	if refused != nil {
		return refused
	}
	return s.durably(r, func(c *core) error {
		id, _, err := c.owned(who, r.PathValue("id"))
		if err != nil {
			return err
		}
		ids := []job.ID{id}
		if !strings.Contains(r.PathValue("id"), "_") {
			ids = c.tasksOf(id)
		}
		var first error
		done := 0
		for _, one := range ids {
			switch err := f(c, one); {
			case err == nil:
				done++
				c.touch(one)
			case first == nil:
				first = err
			}
		}
		if done > 0 {
			return nil
		}
		var refused *sched.Refused
		if errors.As(first, &refused) {
			return refusedJob(first)
		}
		return first
	})
}

func (s *Server) cancelJob(_ http.ResponseWriter, r *http.Request) (any, error) {
	who, refused := s.who(r)
	if refused != nil {
		return nil, refused
	}
	return nil, s.change(r, func(c *core, id job.ID) error { return c.cancel(id, number(who.uid), nil) })
}

func number(n uint32) string { return strconv.FormatUint(uint64(n), 10) }

// cancel ends a job that waits or runs, as somebody wants it, by his uid; empty is the controller itself.
func (c *core) cancel(id job.ID, by string, why *job.Fault) error {
	return c.abandon(id, fate{State: job.CancelledState, Fault: why, By: by})
}

// abandon ends a job that waits or runs. If it is ending, that is how it ends, unless it was to
// run anew.
func (c *core) abandon(id job.ID, f fate) error {
	r := c.runs[id]
	if r != nil && r.Fate != nil && !r.Fate.Requeue {
		return nil // it is ending
	}
	if err := c.apply(job.Cancelled{At: c.now, ID: id}); err != nil {
		return err
	}
	if r == nil {
		if f.Fault != nil || f.By != "" {
			c.emit(jobFate{At: c.now, ID: id, Fate: f})
		}
		c.accountPending(id)
	} else if r.Fate == nil {
		c.finish(r, f)
	} else {
		c.emit(jobEnding{At: c.now, ID: id, Fate: f})
	}
	c.touch(id)
	return nil
}

// cancelUnstored ends a job that could not be stored, before anybody hears of it.
func (c *core) cancelUnstored(w waiting) {
	c.clock()
	for i := range w.n {
		id := w.id + job.ID(i)
		c.commit.drop(id)
		if err := c.abandon(id, fate{State: job.CancelledState, Fault: &job.Fault{What: "it could not be stored"}, Unstored: true}); err != nil {
			c.log.Error("cancel job", "job", id, "err", err)
		}
	}
}

// verbJob does what the last word of the path says.
func (s *Server) verbJob(_ http.ResponseWriter, r *http.Request) (any, error) {
	var q api.Change
	if err := mayBody(r, &q); err != nil {
		return nil, err
	}
	who, refused := s.who(r)
	if refused != nil {
		return nil, refused
	}
	switch verb := r.PathValue("verb"); verb {
	case "hold":
		return nil, s.change(r, func(c *core, id job.ID) error {
			v, ok := c.sched.Job(id)
			return c.apply(job.Held{At: c.now, ID: id, Admin: ok && who.uid != v.Spec.UID})
		})
	case "release":
		return nil, s.change(r, func(c *core, id job.ID) error {
			v, ok := c.sched.Job(id)
			switch {
			case ok && v.AdminHold && !who.admin():
				return &api.Error{What: fmt.Sprintf("release job %v: an administrator holds it", id), Kind: "ACCESS_DENIED"}
			case ok && !v.State.Done() && v.Priority != 0:
				return nil // it is not held, and would not be after a requeue
			}
			return c.apply(job.Released{At: c.now, ID: id})
		})
	case "requeue":
		return nil, s.change(r, func(c *core, id job.ID) error { return c.requeue(id, q.Hold) })
	case "signal":
		n, err := slurm.ParseSignal(q.Signal)
		if err != nil {
			return nil, &api.Error{What: err.Error(), Code: fault.CodeUsage, Kind: "BAD_SIGNAL"}
		}
		return nil, s.change(r, func(c *core, id job.ID) error { return c.signal(id, int(n), &q) })
	case "end":
		return nil, s.change(r, func(c *core, id job.ID) error { return c.endAllocation(id, number(who.uid), q.Exit) })
	default:
		return nil, &api.Error{What: fmt.Sprintf("%q is nothing that is done to a job", verb), Code: fault.CodeUsage}
	}
}

// requeue has a job run anew: once it has ended, if it runs.
func (c *core) requeue(id job.ID, hold bool) error {
	r := c.runs[id]
	sub := c.submission(id)
	if sub.Facts.Program == nil {
		return &api.Error{What: fmt.Sprintf("requeue job %v: it is an allocation, without a script", id), Kind: "DISABLED"}
	}
	if v, ok := c.sched.Job(id); ok && !v.Spec.Requeue {
		return &api.Error{What: fmt.Sprintf("requeue job %v: it was submitted with --no-requeue", id), Kind: "DISABLED"}
	}
	if v, ok := c.sched.Job(id); ok && v.State == job.Pending {
		return &api.Error{What: fmt.Sprintf("requeue job %v: it waits already", id), Kind: "JOB_PENDING"}
	}
	if r == nil {
		if err := c.apply(job.Requeue{At: c.now, ID: id, Hold: hold}); err != nil {
			return err
		}
		c.forgive(id)
		return nil
	}
	if r.Fate != nil {
		return &api.Error{What: fmt.Sprintf("requeue job %v: it is ending", id), Kind: "JOB_PENDING"}
	}
	c.finish(r, fate{State: job.CancelledState, Requeue: true, Hold: hold})
	return nil
}

// signal sends a signal to what a job runs.
func (c *core) signal(id job.ID, n int, q *api.Change) error {
	r := c.runs[id]
	if r == nil {
		if v, ok := c.sched.Job(id); ok && v.State.Done() {
			return &api.Error{What: fmt.Sprintf("signal job %v: it has ended", id), Kind: "ALREADY_DONE"}
		}
		return &api.Error{What: fmt.Sprintf("signal job %v: it does not run", id), Kind: "JOB_PENDING"}
	}
	if q.Step != nil && r.Steps[*q.Step] == nil {
		return &api.Error{What: fmt.Sprintf("signal step %v.%v: there is none that runs", id, *q.Step), Kind: "INVALID_JOB_ID"}
	}
	for step, st := range r.Steps {
		batch := step == job.BatchStep
		switch {
		case q.Step != nil:
			if step != *q.Step {
				continue
			}
		case q.Full:
		case q.Batch != batch:
			continue
		}
		c.signalStep(st, n, !q.Full)
	}
	return nil
}

// endAllocation is that the owner of an allocation is done with it.
func (c *core) endAllocation(id job.ID, by string, exit int) error {
	r := c.runs[id]
	if r == nil {
		if v, ok := c.sched.Job(id); ok && v.State == job.Pending {
			return c.cancel(id, by, nil)
		}
		return &api.Error{What: fmt.Sprintf("end job %v: it does not run", id), Kind: "ALREADY_DONE"}
	}
	f := fate{State: job.Completed, Exit: exit}
	if exit != 0 {
		f.State = job.Failed
	}
	c.finish(r, f)
	return nil
}

func (s *Server) getJob(_ http.ResponseWriter, r *http.Request) (any, error) {
	who, refused := s.who(r)
	if refused != nil {
		return nil, refused
	}
	return ask(s, r, func(c *core) (*api.Job, error) {
		id, err := c.idOf(r.PathValue("id"))
		if err != nil {
			return nil, err
		}
		return c.forPerson(who, c.jobView(id)), nil
	})
}

func (s *Server) getScript(w http.ResponseWriter, r *http.Request) (any, error) {
	who, refused := s.who(r)
	if refused != nil {
		return nil, refused
	}
	digest, err := ask(s, r, func(c *core) (string, error) {
		id, _, err := c.owned(who, r.PathValue("id"))
		if err != nil {
			return "", err
		}
		return c.submission(id).Facts.Text, nil
	})
	if err != nil {
		return nil, err
	}
	if digest == "" {
		return nil, &api.Error{What: "job " + r.PathValue("id") + " has no script", Kind: "INVALID_JOB_ID"}
	}
	b, err := s.opts.Store.Blob(digest)
	if err != nil {
		return nil, err
	}
	_, _ = w.Write(b)
	return nil, errDone
}
