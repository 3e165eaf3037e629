package server

import (
	"fmt"
	"net/http"
	"strings"

	"github.com/gangway-hpc/gangway/internal/api"
	"github.com/gangway-hpc/gangway/internal/fault"
	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/launcher/rank"
)

// stepAnswer is what a request for a step comes to.
type stepAnswer struct {
	step *api.Step
	err  error
}

// postStep makes a step in a job that runs, once it has its place and is durable.
func (s *Server) postStep(_ http.ResponseWriter, r *http.Request) (any, error) {
	who, refused := s.who(r)
	if refused != nil {
		return nil, refused
	}
	var q api.StepRequest
	if err := body(r, &q); err != nil {
		return nil, err
	}
	if err := checkProgram(&q.Program); err != nil {
		return nil, err
	}
	w := &stepWait{request: &q, gone: func() bool { return r.Context().Err() != nil }}
	whole := q.Program
	w.env, w.text, w.blobs = split(&q.Program)
	answer := make(chan stepAnswer, 1)
	_, err := ask(s, r, func(c *core) (struct{}, error) {
		id, v, err := c.owned(who, r.PathValue("id"))
		if err != nil {
			return struct{}{}, err
		}
		run := c.runs[id]
		switch {
		case c.commit.broken():
			return struct{}{}, c.commit.refusal("create step: it cannot be stored", ", then try again")
		case run == nil && v.State == job.Pending:
			return struct{}{}, &api.Error{What: fmt.Sprintf("create step: job %v does not run yet", id), Kind: "JOB_PENDING"}
		case run == nil || run.Fate != nil:
			return struct{}{}, &api.Error{What: fmt.Sprintf("create step: Job/step already completing or completed: job %v", id), Kind: "ALREADY_DONE"}
		}
		if st := run.once(q.Once); st != nil {
			v := c.stepView(st, false)
			c.after(func() { answer <- stepAnswer{step: v} })
			return struct{}{}, nil
		}
		w.note = oneTorchrun(run, &q, &whole)
		w.until = c.now.Add(q.Wait)
		w.answer = func(st *step, err error) {
			if err != nil {
				answer <- stepAnswer{err: err}
				return
			}
			v := c.stepView(st, false)
			c.after(func() { answer <- stepAnswer{step: v} })
		}
		run.now.waiting = append(run.now.waiting, w)
		c.touch(id)
		return struct{}{}, nil
	})
	if err != nil {
		return nil, err
	}
	select {
	case a := <-answer:
		if busy, ok := a.err.(*busyError); ok {
			return nil, &api.Error{What: "create step: Requested nodes are busy", Cause: busy.why, Kind: "NODES_BUSY"}
		}
		if a.err != nil {
			return nil, a.err
		}
		return a.step, nil
	case <-r.Context().Done():
		return nil, r.Context().Err()
	case <-s.stopped:
		return nil, stopping()
	}
}

// once is the step that was made for a request that is sent again.
func (r *run) once(text string) *step {
	if text == "" {
		return nil
	}
	for _, st := range r.Steps {
		if st.Want != nil && st.Want.Request.Once == text {
			return st
		}
	}
	for _, st := range r.Done {
		if st.Want != nil && st.Want.Request.Once == text {
			return st
		}
	}
	return nil
}

// oneTorchrun makes one task a node of a request that would start as many torchruns on a
// node as each of them starts workers, and says so.
func oneTorchrun(r *run, q *api.StepRequest, p *job.Program) (note string) {
	nodes := max(q.MinNodes, 1)
	tasks := q.TasksPerNode
	if tasks == 0 {
		tasks = (q.Tasks + nodes - 1) / nodes
	}
	gpus := 0
	for _, d := range r.Alloc.Nodes[0].Devices {
		if d.Name == "gpu" {
			gpus += int(d.Count)
		}
	}
	note, one := rank.OneTorchrun(p, tasks, gpus)
	if !one {
		return ""
	}
	q.Tasks, q.TasksPerNode = nodes, 1
	if q.CPUsPerTask > 0 {
		q.CPUsPerTask *= tasks
	}
	for i := range q.GRES {
		if q.GRES[i].Per == job.PerTask {
			q.GRES[i].Per, q.GRES[i].Count = job.PerNode, q.GRES[i].Count*int64(tasks)
		}
	}
	return note
}

// stepOf finds a step of a job, that runs or has ended lately.
func (c *core) stepOf(id job.ID, text string) (*run, *step, error) {
	want, err := job.ParseStepID(text)
	if err != nil {
		return nil, nil, &api.Error{What: err.Error(), Code: fault.CodeUsage, Kind: "INVALID_JOB_ID"}
	}
	for _, r := range []*run{c.runs[id], c.lately(id)} {
		if r == nil {
			continue
		}
		if st := r.Steps[want]; st != nil {
			return r, st, nil
		}
		for _, st := range r.Done {
			if st.Spec.Key.Step == want {
				return r, st, nil
			}
		}
	}
	return nil, nil, &api.Error{What: fmt.Sprintf("step %v.%s: Invalid job id specified", id, text), Kind: "INVALID_JOB_ID"}
}

func (s *Server) oneStep(r *http.Request, id, step string) (any, error) {
	who, refused := s.who(r)
	if refused != nil {
		return nil, refused
	}
	return ask(s, r, func(c *core) (*api.Step, error) {
		id, err := c.idOf(id)
		if err != nil {
			return nil, err
		}
		_, st, err := c.stepOf(id, step)
		if err != nil {
			return nil, err
		}
		return c.stepForPerson(who, c.stepView(st, true), c.ownerOf(id)), nil
	})
}

func (s *Server) getStep(_ http.ResponseWriter, r *http.Request) (any, error) {
	return s.oneStep(r, r.PathValue("id"), r.PathValue("step"))
}

func (s *Server) getStepByKey(_ http.ResponseWriter, r *http.Request) (any, error) {
	id, step, ok := strings.Cut(r.PathValue("key"), ".")
	if !ok {
		return nil, &api.Error{What: fmt.Sprintf("step %q: it is written JOB.STEP", r.PathValue("key")), Code: fault.CodeUsage}
	}
	return s.oneStep(r, id, step)
}

func (s *Server) endStep(_ http.ResponseWriter, r *http.Request) (any, error) {
	return nil, s.change(r, func(c *core, id job.ID) error {
		run, st, err := c.stepOf(id, r.PathValue("step"))
		if err != nil {
			return err
		}
		if st.Result != nil || st.Gang.killing {
			return nil
		}
		why := job.EndCancelled
		if r.URL.Query().Get("overtime") == "1" {
			why = job.EndTimeLimit
		}
		c.stopStep(run, st, killWait, why)
		return nil
	})
}

func (s *Server) getJobSteps(_ http.ResponseWriter, r *http.Request) (any, error) {
	who, refused := s.who(r)
	if refused != nil {
		return nil, refused
	}
	return ask(s, r, func(c *core) (api.Page[*api.Step], error) {
		page := api.Page[*api.Step]{Now: c.now}
		id, err := c.idOf(r.PathValue("id"))
		if err != nil {
			return page, err
		}
		run := c.runs[id]
		if run == nil {
			run = c.lately(id)
		}
		if run == nil {
			return page, nil
		}
		for _, st := range run.Done {
			page.Items = append(page.Items, c.stepForPerson(who, c.stepView(st, false), c.ownerOf(run.Of.Job)))
		}
		for _, id := range sortedSteps(run.Steps) {
			page.Items = append(page.Items, c.stepForPerson(who, c.stepView(run.Steps[id], false), c.ownerOf(run.Of.Job)))
		}
		return page, nil
	})
}

// getSteps answers with the steps that have not ended, of the jobs that a query chooses.
func (s *Server) getSteps(_ http.ResponseWriter, r *http.Request) (any, error) {
	who, refused := s.who(r)
	if refused != nil {
		return nil, refused
	}
	q, err := api.ParseQuery(r.URL.Query())
	if err != nil {
		return nil, &api.Error{What: err.Error(), Code: fault.CodeUsage}
	}
	return ask(s, r, func(c *core) (api.Page[*api.Step], error) {
		page := api.Page[*api.Step]{Now: c.now}
		for v := range c.sched.Running {
			run := c.runs[v.ID]
			if run == nil || !c.wanted(&q, nil, &v) || len(q.IDs) > 0 && !containsJob(q.IDs, v.ID, v.Array) {
				continue
			}
			for _, id := range sortedSteps(run.Steps) {
				page.Items = append(page.Items, c.stepForPerson(who, c.stepView(run.Steps[id], false), v.Spec.UID))
			}
		}
		return page, nil
	})
}

func containsJob(ids []job.ID, id, array job.ID) bool {
	for _, one := range ids {
		if one == id || array != 0 && one == array {
			return true
		}
	}
	return false
}
