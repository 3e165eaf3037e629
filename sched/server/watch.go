package server

import (
	"fmt"
	"slices"
	"sync"

	"github.com/gangway-hpc/gangway/internal/api"
	"github.com/gangway-hpc/gangway/internal/job"
)

// maxBehind is how many changes somebody who watches may not have read yet; then the watch
// ends, and is to be begun anew.
const maxBehind = 4096

// watcher is somebody who watches jobs.
type watcher struct {
	who  identity
	ids  []job.ID // jobs or arrays; none: all
	from uint64   // what was before this it has seen as it was at first

	mu    sync.Mutex
	queue []api.Event   // that were not sent yet
	most  int           // that may be in it
	over  bool          // no more come
	ready chan struct{} // one token: there is something in the queue, or it is over
}

// give queues events, unless too many wait already.
func (w *watcher) give(events ...api.Event) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.queue)+len(events) > w.most {
		return false
	}
	w.queue = append(w.queue, events...)
	w.wake()
	return true
}

// end says that no more come.
func (w *watcher) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.over = true
	w.wake()
}

func (w *watcher) wake() {
	select {
	case w.ready <- struct{}{}:
	default:
	}
}

// take is what is queued, and whether that was all.
func (w *watcher) take() ([]api.Event, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	queue := w.queue
	w.queue = nil
	return queue, w.over
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
func (c *core) subscribe(who identity, ids []job.ID) (*watcher, error) {
	w := &watcher{who: who, ids: ids, from: c.watch.seq, ready: make(chan struct{}, 1)}
	if len(ids) == 0 {
		all := 0
		for _, other := range c.watch.all {
			if len(other.ids) == 0 {
				all++
			}
		}
		if all >= maxWatchAll {
			return nil, &api.Error{What: fmt.Sprintf("%d watch all jobs already", all), Hint: "name the jobs to watch: ?ids=1,2", Kind: "CONTROLLER_BUSY"}
		}
	}
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
				present = append(present, api.Event{At: c.now, Step: c.stepView(st, false)})
			}
			for _, id := range sortedSteps(r.Steps) {
				present = append(present, api.Event{At: c.now, Step: c.stepView(r.Steps[id], false)})
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
	for i := range present {
		present[i] = c.eventForPerson(who, present[i])
	}
	w.most = len(present) + maxBehind
	w.give(append(present, api.Event{Seq: c.watch.seq, At: c.now, Synced: true})...)
	c.watch.all = append(c.watch.all, w)
	return w, nil
}

func (c *core) unsubscribe(w *watcher) {
	if i := slices.Index(c.watch.all, w); i >= 0 {
		c.watch.all = slices.Delete(c.watch.all, i, i+1)
		w.end()
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
		changes = append(changes, change{api.Event{Seq: w.seq, At: c.now, Step: c.stepView(s.step, false)}, s.run.Of.Job, 0})
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
		c.later(func(c *core) {
			for _, w := range slices.Clone(c.watch.all) {
				for i := range changes {
					if changes[i].event.Seq <= w.from || !w.wants(changes[i].id, changes[i].array) {
						continue
					}
					if !w.give(c.eventForPerson(w.who, changes[i].event)) {
						c.unsubscribe(w) // it does not read
						break
					}
				}
			}
		})
	})
}
