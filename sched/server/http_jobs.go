package server

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
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
	dec := json.NewDecoder(r.Body)
	for {
		var q api.Submit
		err := dec.Decode(&q)
		if errors.Is(err, io.EOF) {
			break
		}
		answer := make(chan *api.Submitted, 2)
		answers <- answer
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
	return nil, s.change(r, func(c *core, id job.ID) error { return c.cancel(id, nil) })
}

// cancel ends a job that waits or runs.
func (c *core) cancel(id job.ID, why *job.Fault) error {
	r := c.runs[id]
	if r != nil && r.Fate != nil && !r.Fate.Requeue {
		return nil // it is ending
	}
	if err := c.apply(job.Cancelled{At: c.now, ID: id}); err != nil {
		return err
	}
	if r == nil {
		if why != nil {
			c.emit(jobFate{At: c.now, ID: id, Fate: fate{State: job.CancelledState, Fault: why}})
		}
		c.accountPending(id)
	} else if r.Fate == nil {
		c.finish(r, fate{State: job.CancelledState, Fault: why})
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
		if err := c.cancel(id, &job.Fault{What: "it could not be stored"}); err != nil {
			c.log.Error("cancel job", "job", id, "err", err)
		}
	}
}

func (s *Server) changeJob(_ http.ResponseWriter, r *http.Request) (any, error) {
	var q api.Change
	if err := body(r, &q); err != nil {
		return nil, err
	}
	if q.Spec == nil {
		return nil, &api.Error{What: "change job: there is no Spec", Code: fault.CodeUsage}
	}
	return nil, s.change(r, func(c *core, id job.ID) error {
		v, _ := c.sched.Job(id)
		spec := *q.Spec
		spec.UID, spec.User, spec.Array = v.Spec.UID, v.Spec.User, v.Spec.Array
		return c.apply(job.Changed{At: c.now, ID: id, Spec: spec})
	})
}

// verbJob does what the last word of the path says.
func (s *Server) verbJob(_ http.ResponseWriter, r *http.Request) (any, error) {
	var q api.Change
	if err := body(r, &q); err != nil {
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
		return nil, s.change(r, func(c *core, id job.ID) error { return c.apply(job.Released{At: c.now, ID: id}) })
	case "requeue":
		return nil, s.change(r, func(c *core, id job.ID) error { return c.requeue(id, q.Hold) })
	case "signal":
		n, err := slurm.ParseSignal(q.Signal)
		if err != nil {
			return nil, &api.Error{What: err.Error(), Code: fault.CodeUsage, Kind: "BAD_SIGNAL"}
		}
		return nil, s.change(r, func(c *core, id job.ID) error { return c.signal(id, int(n), &q) })
	case "end":
		return nil, s.change(r, func(c *core, id job.ID) error { return c.endAllocation(id, q.Exit) })
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
	if r == nil {
		return c.apply(job.Requeue{At: c.now, ID: id, Hold: hold})
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
		c.signalStep(st, n)
	}
	return nil
}

// endAllocation is that the owner of an allocation is done with it.
func (c *core) endAllocation(id job.ID, exit int) error {
	r := c.runs[id]
	if r == nil {
		if v, ok := c.sched.Job(id); ok && v.State == job.Pending {
			return c.cancel(id, nil)
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

// getJobs answers a query for jobs as they are.
func (s *Server) getJobs(w http.ResponseWriter, r *http.Request) (any, error) {
	q, err := api.ParseQuery(r.URL.Query())
	if err != nil {
		return nil, &api.Error{What: err.Error(), Code: fault.CodeUsage}
	}
	states, err := statesOf(q.States)
	if err != nil {
		return nil, err
	}
	page, err := ask(s, r, func(c *core) (api.Page[*api.Job], error) { return c.jobs(&q, states) })
	if err != nil || r.Header.Get("Accept") != api.Packed {
		return page, err
	}
	w.Header().Set("Content-Type", api.Packed)
	_, _ = w.Write(api.AppendPacked(make([]byte, 0, 256*(1+len(page.Items))), page.Items, page.Next, page.Now))
	return nil, errDone
}

// recently is how long ended jobs are shown by those who ask for them.
const recently = 5 * job.Minute

func (c *core) jobs(q *api.Query, states []job.State) (api.Page[*api.Job], error) {
	page := api.Page[*api.Job]{Now: c.now}
	limit := cmp.Or(q.Limit, 10000)
	after := job.ID(0)
	if q.After != "" {
		n, err := strconv.ParseUint(q.After, 10, 32)
		if err != nil {
			return page, &api.Error{What: fmt.Sprintf("after=%s is no page's", q.After), Code: fault.CodeUsage}
		}
		after = job.ID(n)
	}
	views, err := c.chosen(q, states)
	if err != nil {
		return page, err
	}
	shown := map[job.ID]*api.Job{} // by array: its tasks that wait
	for i := range views {
		v := &views[i]
		if v.ID <= after || i > 0 && v.ID == views[i-1].ID || !c.wanted(q, states, v) {
			continue
		}
		if v.Array != 0 && v.State == job.Pending && !q.Tasks {
			if first := shown[v.Array]; first != nil && first.Held == (v.Priority == 0) {
				first.Waiting = addTask(first.Waiting, v.Task)
				continue
			}
		}
		if len(page.Items) == limit {
			page.Next = strconv.FormatUint(uint64(page.Items[len(page.Items)-1].ID), 10)
			break
		}
		j := c.viewOf(v)
		if j.Spec, j.Shares = nil, nil; v.Array != 0 && v.State == job.Pending && !q.Tasks {
			j.Waiting = addTask(nil, v.Task)
			shown[v.Array] = j
		}
		page.Items = append(page.Items, j)
	}
	return page, nil
}

// chosen are the jobs that a query may choose, by their ids.
func (c *core) chosen(q *api.Query, states []job.State) ([]sched.JobView, error) {
	var views []sched.JobView
	add := func(id job.ID) {
		if v, ok := c.sched.Job(id); ok {
			views = append(views, v)
		}
	}
	for _, id := range q.IDs {
		ids := c.tasksOf(id)
		if _, ok := c.sched.Job(id); !ok && len(q.IDs) == 1 {
			return nil, &api.Error{What: fmt.Sprintf("job %v: Invalid job id specified", id), Kind: "INVALID_JOB_ID"}
		}
		for _, id := range ids {
			add(id)
		}
	}
	if len(q.IDs) == 0 {
		for v := range c.sched.Running {
			views = append(views, v)
		}
		for v := range c.sched.Pending {
			views = append(views, v)
		}
		if q.Recent || len(states) > 0 {
			for _, id := range c.ended(c.now.Add(-recently)) {
				add(id)
			}
		}
	}
	slices.SortFunc(views, func(a, b sched.JobView) int { return cmp.Compare(a.ID, b.ID) })
	return views, nil
}

// addTask adds the next task to ranges, and makes ranges with a step of what has one.
func addTask(list []job.Range, task uint32) []job.Range {
	if n := len(list); n > 0 {
		last := &list[n-1]
		if last.First == last.Last {
			last.Step, last.Last = task-last.First, task
			return list
		}
		if task == last.Last+last.Step {
			last.Last = task
			return list
		}
		if last.Last == last.First+last.Step && last.Step > 1 { // two are no range
			second := last.Last
			last.Last, last.Step = last.First, 1
			return append(list, job.Range{First: second, Last: task, Step: task - second})
		}
	}
	return append(list, job.Range{First: task, Last: task, Step: 1})
}

// wanted says whether a query chooses a job.
func (c *core) wanted(q *api.Query, states []job.State, v *sched.JobView) bool {
	p, state := v.Spec, v.State
	if r := c.runs[v.ID]; r != nil && r.Fate != nil {
		state = job.Completing
	}
	in := func(list []string, names ...string) bool {
		return len(list) == 0 || slices.ContainsFunc(names, func(n string) bool { return slices.Contains(list, n) })
	}
	parts := p.Partitions
	if v.Allocation.Partition != "" {
		parts = []string{v.Allocation.Partition}
	} else if len(parts) == 0 {
		parts = []string{c.defaultPartition()}
	}
	switch {
	case !in(q.Users, p.User, strconv.FormatUint(uint64(p.UID), 10)), !in(q.Accounts, p.Account), !in(q.Names, p.Name), !in(q.Partitions, parts...):
		return false
	case len(q.Nodes) > 0 && !slices.ContainsFunc(v.Allocation.Nodes, func(n job.NodeShare) bool { return slices.Contains(q.Nodes, n.Node) }):
		return false
	case len(states) > 0:
		return slices.Contains(states, state)
	case state.Done():
		return len(q.IDs) > 0 || q.Recent && v.End >= c.now.Add(-recently)
	}
	return true
}

// statesOf reads the names of states, long or short.
func statesOf(names []string) ([]job.State, error) {
	short := map[string]job.State{
		"PD": job.Pending, "R": job.Running, "CG": job.Completing, "CD": job.Completed, "CA": job.CancelledState, "F": job.Failed,
		"TO": job.Timeout, "NF": job.NodeFailed, "OOM": job.OutOfMemory, "DL": job.DeadlineMissed, "PR": job.Preempted,
	}
	var all []job.State
	for _, name := range names {
		up := strings.ToUpper(name)
		if up == "ALL" {
			for st := job.Pending; st <= job.Preempted; st++ {
				all = append(all, st)
			}
			continue
		}
		st, ok := short[up]
		for _, one := range short {
			if one.String() == up {
				st, ok = one, true
			}
		}
		if !ok {
			return nil, &api.Error{What: "Invalid job state specified: " + name, Code: fault.CodeUsage, Kind: "INVALID_JOB_STATE"}
		}
		all = append(all, st)
	}
	return all, nil
}

func (s *Server) getJob(_ http.ResponseWriter, r *http.Request) (any, error) {
	return ask(s, r, func(c *core) (*api.Job, error) {
		id, err := c.idOf(r.PathValue("id"))
		if err != nil {
			return nil, err
		}
		return c.jobView(id), nil
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
