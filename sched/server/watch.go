package server

import (
	"slices"

	"github.com/gangway-hpc/gangway/internal/api"
	"github.com/gangway-hpc/gangway/internal/job"
)

// maxBehind is how many changes somebody who watches may not have read yet; then the watch
// ends, and is to be begun anew.
const maxBehind = 4096

// watcher is somebody who watches jobs.
type watcher struct {
	ids    []job.ID // jobs or arrays; none: all
	events chan api.Event
}

// watchers are all who watch, and what changed in this turn.
type watchers struct {
	all   []*watcher
	jobs  []job.ID
	steps []stepChange
	seq   uint64
}

type stepChange struct {
	run  *run
	step *step
}

func (w *watchers) job(id job.ID) {
	if len(w.all) > 0 && !slices.Contains(w.jobs, id) {
		w.jobs = append(w.jobs, id)
	}
}

func (w *watchers) step(r *run, st *step) {
	if len(w.all) > 0 && r != nil && !slices.ContainsFunc(w.steps, func(s stepChange) bool { return s.step == st }) {
		w.steps = append(w.steps, stepChange{r, st})
	}
}

func (w *watcher) wants(id, array job.ID) bool {
	return len(w.ids) == 0 || slices.Contains(w.ids, id) || array != 0 && slices.Contains(w.ids, array)
}

// subscribe adds a watcher: first it gets how things are.
func (c *core) subscribe(ids []job.ID) *watcher {
	w := &watcher{ids: ids}
	var present []api.Event
	add := func(j *api.Job) {
		if j == nil {
			return
		}
		j.Spec = nil
		present = append(present, api.Event{At: c.now, Job: j})
		r := c.runs[j.ID]
		if r == nil {
			r = c.lately(j.ID)
		}
		if r != nil {
			for _, st := range r.Done {
				present = append(present, api.Event{At: c.now, Step: c.stepView(r, st, false)})
			}
			for _, id := range sortedSteps(r.Steps) {
				present = append(present, api.Event{At: c.now, Step: c.stepView(r, r.Steps[id], false)})
			}
		}
	}
	if len(ids) > 0 {
		for _, id := range ids {
			for _, one := range c.tasksOf(id) {
				add(c.jobView(one))
			}
		}
	} else {
		for v := range c.sched.Running {
			add(c.viewOf(&v))
		}
		for v := range c.sched.Pending {
			add(c.viewOf(&v))
		}
	}
	w.events = make(chan api.Event, len(present)+maxBehind)
	for _, e := range present {
		w.events <- e
	}
	w.events <- api.Event{Seq: c.watch.seq, At: c.now, Synced: true}
	c.watch.all = append(c.watch.all, w)
	return w
}

func (c *core) unsubscribe(w *watcher) {
	if i := slices.Index(c.watch.all, w); i >= 0 {
		c.watch.all = slices.Delete(c.watch.all, i, i+1)
		close(w.events)
	}
}

// tasksOf are the ids of a job, or of all tasks of an array.
func (c *core) tasksOf(id job.ID) []job.ID {
	sub := c.submission(id)
	if sub == nil {
		return nil
	}
	if sub.First != id {
		return []job.ID{id}
	}
	ids := make([]job.ID, sub.N)
	for i := range ids {
		ids[i] = id + job.ID(i)
	}
	return ids
}

// publish tells those who watch what changed in this turn, once it is durable.
func (c *core) publish() {
	w := &c.watch
	jobs, steps := w.jobs, w.steps
	w.jobs, w.steps = nil, nil
	if len(w.all) == 0 || len(jobs)+len(steps) == 0 {
		return
	}
	type change struct {
		event     api.Event
		id, array job.ID
	}
	var changes []change
	for _, s := range steps {
		w.seq++
		changes = append(changes, change{api.Event{Seq: w.seq, At: c.now, Step: c.stepView(s.run, s.step, false)}, s.run.Of.Job, 0})
	}
	for _, id := range jobs {
		if j := c.jobView(id); j != nil {
			w.seq++
			j.Spec = nil
			array := job.ID(0)
			if j.Array != nil {
				array = j.Array.Job
			}
			changes = append(changes, change{api.Event{Seq: w.seq, At: c.now, Job: j}, id, array})
		}
	}
	c.after(func() {
		// The channels are closed by the core: it sends what is durable.
		c.later(func(c *core) {
			for _, w := range slices.Clone(c.watch.all) {
				for i := range changes {
					if !w.wants(changes[i].id, changes[i].array) {
						continue
					}
					select {
					case w.events <- changes[i].event:
						continue
					default:
					}
					c.unsubscribe(w) // it does not read
					break
				}
			}
		})
	})
}
