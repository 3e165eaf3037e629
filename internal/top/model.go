package top

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/gangway-hpc/gangway/internal/api"
	"github.com/gangway-hpc/gangway/internal/job"
)

// What is heard.
type (
	happened struct{ events []api.Event }
	listed   struct { // asked for: nodes, and jobs with when they are expected to start
		nodes []api.Node
		jobs  []api.Job
		name  string // of the cluster
	}
	used struct { // by the ranks of a step, at a time
		key   job.StepKey
		ranks []job.RankUsage
		at    time.Time
	}
	printed struct { // the end of a job's output, or why there is none
		id    job.ID
		lines []string
		note  string
	}
	clock struct{ now time.Time }
	away  struct{ err error } // nil: the controller is there again
)

// shownAfter is how long jobs that have ended are shown.
const shownAfter = 2 * time.Minute

// history is how many measurements are kept.
const history = 120

// selection is the job whose ranks and output are wanted, and its steps.
type selection struct {
	job   api.Job
	steps []api.Step
}

// model is what is known and what is shown of it.
type model struct {
	width, height int
	color         bool
	now           time.Time
	name          string
	err           error // why nothing new comes
	synced        bool

	jobs   map[jobKey]*api.Job
	steps  map[job.StepKey]*api.Step
	nodes  []api.Node
	usage  map[job.StepKey]*series
	output printed

	wanted   jobKey // the selected job; none: the first
	selected func(selection)
}

// jobKey is a job, or those tasks of an array that wait, which are one.
type jobKey struct {
	id      job.ID
	waiting bool
}

func keyOf(j *api.Job) jobKey { return jobKey{j.ID, len(j.Waiting) > 0} }

// series is what the ranks of a step used, one value a measurement.
type series struct {
	at    time.Time
	last  map[int]job.RankUsage
	ranks map[int]*rankSeries
}

// rankSeries is that of one rank.
type rankSeries struct {
	node string
	cpu  []float64 // processors in use
	rss  int64
}

func newModel(color bool) *model {
	return &model{
		width: 80, height: 24, color: color, now: time.Now(), selected: func(selection) {},
		jobs: map[jobKey]*api.Job{}, steps: map[job.StepKey]*api.Step{}, usage: map[job.StepKey]*series{},
	}
}

// hear takes what was heard.
func (m *model) hear(msg any) {
	switch msg := msg.(type) {
	case happened:
		for i := range msg.events {
			m.event(&msg.events[i])
		}
	case listed:
		m.listed(&msg)
	case used:
		m.used(&msg)
	case printed:
		m.output = msg
	case clock:
		m.now = msg.now
		m.forget()
	case away:
		m.err = msg.err
		if msg.err == nil { // all is told anew
			m.jobs, m.steps, m.synced = map[jobKey]*api.Job{}, map[job.StepKey]*api.Step{}, false
		}
	}
	m.tell()
}

// listed takes what was asked for, which may be older than what was pushed: a job that has ended
// stays so, unless it runs anew.
func (m *model) listed(l *listed) {
	m.nodes, m.name = l.nodes, l.name
	maps.DeleteFunc(m.jobs, func(_ jobKey, j *api.Job) bool { return j.State == job.Pending }) // all are in the list
	for i := range l.jobs {
		j := &l.jobs[i]
		if old := m.jobs[keyOf(j)]; old == nil || !old.State.Done() || j.Attempt > old.Attempt {
			m.jobs[keyOf(j)] = j
		}
	}
}

func (m *model) event(e *api.Event) {
	switch {
	case e.Synced:
		m.synced = true
	case e.Job != nil:
		if j := e.Job; j.State == job.Pending && j.Array != nil && len(j.Waiting) == 0 && m.jobs[jobKey{j.Array.Job, true}] != nil {
			delete(m.jobs, keyOf(j)) // it is one of those that are shown together
			return
		}
		m.jobs[keyOf(e.Job)] = e.Job
	case e.Step != nil:
		m.steps[e.Step.Key] = e.Step
		if e.Step.Phase == "ended" {
			delete(m.usage, e.Step.Key)
		}
	}
}

// forget drops what ended a while ago.
func (m *model) forget() {
	for key, j := range m.jobs {
		if j.State.Done() && m.now.Sub(moment(j.End)) > shownAfter {
			delete(m.jobs, key)
			maps.DeleteFunc(m.steps, func(step job.StepKey, _ *api.Step) bool { return step.Job == key.id })
		}
	}
}

// used adds a measurement: processor time since the last one.
func (m *model) used(u *used) {
	s := m.usage[u.key]
	if s == nil {
		s = &series{ranks: map[int]*rankSeries{}}
		m.usage[u.key] = s
	}
	span := u.at.Sub(s.at).Seconds()
	last := map[int]job.RankUsage{}
	for _, r := range u.ranks {
		last[r.Rank] = r
		of := s.ranks[r.Rank]
		if of == nil {
			of = &rankSeries{}
			s.ranks[r.Rank] = of
		}
		of.node, of.rss = r.Node, r.RSS
		before, ok := s.last[r.Rank]
		if !ok || span <= 0 {
			continue
		}
		spent := r.User + r.System - before.User - before.System
		of.cpu = append(of.cpu, max(0, float64(spent)/float64(job.Second)/span))
		of.cpu = of.cpu[max(0, len(of.cpu)-history):]
	}
	s.last, s.at = last, u.at
}

// key does what a key means, and says whether it is the end.
func (m *model) key(name string) (quit bool) {
	queue := m.queue()
	at := m.at(queue)
	switch name {
	case "q", "ctrl+c", "esc":
		return true
	case "up", "k":
		at--
	case "down", "j":
		at++
	case "pgup":
		at -= 10
	case "pgdown":
		at += 10
	case "home", "g":
		at = 0
	case "end", "G":
		at = len(queue) - 1
	default:
		return false
	}
	if len(queue) > 0 {
		m.wanted = keyOf(queue[min(max(0, at), len(queue)-1)])
		m.tell()
	}
	return false
}

// at is where the selected job is in the queue; the first where it is not there.
func (m *model) at(queue []*api.Job) int {
	return max(0, slices.IndexFunc(queue, func(j *api.Job) bool { return keyOf(j) == m.wanted }))
}

// queue is the jobs in the order in which they are shown: what runs, what waits, in the order of
// their expected starts, and what has ended.
func (m *model) queue() []*api.Job {
	all := make([]*api.Job, 0, len(m.jobs))
	for _, j := range m.jobs {
		all = append(all, j)
	}
	rank := func(j *api.Job) int {
		switch {
		case j.State.Done():
			return 2
		case j.State == job.Pending:
			return 1
		}
		return 0
	}
	slices.SortFunc(all, func(a, b *api.Job) int {
		if c := cmp.Compare(rank(a), rank(b)); c != 0 {
			return c
		}
		if rank(a) == 2 { // the last one first
			return cmp.Or(cmp.Compare(b.End, a.End), cmp.Compare(b.ID, a.ID))
		}
		return cmp.Or(cmp.Compare(expected(a), expected(b)), cmp.Compare(a.ID, b.ID))
	})
	return all
}

// expected is when a waiting job starts, for the order: what nobody knows is last.
func expected(j *api.Job) job.Time {
	if j.State != job.Pending {
		return 0
	}
	if j.Expected == 0 {
		return job.Never
	}
	return j.Expected
}

// chosen is the selected job; nil: there is none.
func (m *model) chosen() *api.Job {
	queue := m.queue()
	if len(queue) == 0 {
		return nil
	}
	return queue[m.at(queue)]
}

// stepsOf are the steps of a job, the script's first.
func (m *model) stepsOf(id job.ID) []api.Step {
	var all []api.Step
	for key, s := range m.steps {
		if key.Job == id {
			all = append(all, *s)
		}
	}
	slices.SortFunc(all, func(a, b api.Step) int {
		if c := cmp.Compare(boolean(b.Key.Step == job.BatchStep), boolean(a.Key.Step == job.BatchStep)); c != 0 {
			return c
		}
		return cmp.Compare(a.Key.Step, b.Key.Step)
	})
	return all
}

func boolean(b bool) int {
	if b {
		return 1
	}
	return 0
}

// tell tells the feed of which job more is to be known.
func (m *model) tell() {
	if j := m.chosen(); j != nil {
		m.selected(selection{*j, m.stepsOf(j.ID)})
	}
}

// moment is a time of the cluster's as one of Go's.
func moment(t job.Time) time.Time { return time.UnixMilli(int64(t)) }
