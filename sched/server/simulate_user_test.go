package server

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gangway-hpc/gangway/internal/api"
	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/internal/store"
)

// simUser is all who ask the controller for something, and what they were told.
type simUser struct {
	s      *sim
	jobs   map[job.ID]*simJob
	active []*simJob
	sent   int
	asked  int               // requests that are not answered
	once   map[string]job.ID // what was acknowledged
	rows   map[string]job.ID // what was accounted
}

// simJob is a job of which the user knows.
type simJob struct {
	id        job.ID
	kind      string
	busy      bool // something is asked for it
	cancelled int  // the attempts that it had by then; -1: it is not
	signalled map[int]bool
}

func newSimUser(s *sim) *simUser {
	return &simUser{s: s, jobs: map[job.ID]*simJob{}, once: map[string]job.ID{}, rows: map[string]job.ID{}}
}

func (u *simUser) begin() {
	u.s.after(u.s.between(0, time.Second), func() {
		u.act()
		u.begin()
	})
}

const maxActive = 14

// act does one thing that users do.
func (u *simUser) act() {
	s := u.s
	u.forget()
	if !s.calm && len(u.active)+u.asked < maxActive {
		u.submit()
	}
	for _, j := range u.active {
		if j.kind == "wait" && !j.busy && s.chance(0.3) {
			u.signal(j)
		}
	}
	if len(u.active) > 0 {
		switch j := u.active[s.rng.IntN(len(u.active))]; {
		case j.busy || j.cancelled >= 0:
		case s.chance(0.06):
			u.cancel(j)
		case s.breaks(0.05):
			u.requeue(j)
		}
	}
	n := s.nodes[s.rng.IntN(len(s.nodes))]
	switch {
	case n.asked:
	case s.breaks(0.03):
		u.drain(n)
	case s.chance(0.1):
		u.resume(n)
	}
}

// ask has the controller do something. done is called once, if the answer comes: one that the
// controller died of, or before it, never does.
func (u *simUser) ask(f func(c *core, answer func(error)), done func(err error, lost bool)) {
	m := u.s.master
	if m == nil {
		u.s.after(u.s.between(10*time.Millisecond, time.Second), func() { done(nil, true) })
		return
	}
	u.asked++
	over := false
	finish := func(err error, lost bool) {
		if !over {
			over = true
			u.asked--
			done(err, lost)
		}
	}
	m.post(func(c *core) {
		f(c, func(err error) {
			if !m.dead {
				finish(err, false)
			}
		})
	})
	u.expect(m, func() bool { return over }, finish)
}

// expect finds out that an answer will not come.
func (u *simUser) expect(m *simMaster, over func() bool, finish func(error, bool)) {
	u.s.after(time.Second, func() {
		switch {
		case over():
		case m.dead:
			finish(nil, true)
		default:
			u.expect(m, over, finish)
		}
	})
}

// change asks for a change, as the public API does it.
func (u *simUser) change(f func(*core) error, done func(err error, lost bool)) {
	u.ask(func(c *core, answer func(error)) {
		if c.commit.broken() {
			answer(c.commit.refusal("store the change", ""))
			return
		}
		if err := f(c); err != nil {
			answer(err)
			return
		}
		c.after(func() { answer(nil) })
	}, done)
}

// submit submits a job, and again until it is known what became of that.
func (u *simUser) submit() {
	s := u.s
	u.sent++
	nodes, once := 1, fmt.Sprintf("once%d", u.sent)
	kind := []string{"run", "run", "wait", "gang"}[s.rng.IntN(4)]
	if kind == "gang" {
		nodes = 2 + s.rng.IntN(2)
	}
	exit := 0
	if s.chance(0.1) {
		exit = 3
	}
	ms := s.between(0, 15*time.Second).Milliseconds()
	limit := 5 * job.Minute
	if kind == "wait" { // it ends by its signal, which comes once
		limit = 365 * job.Day
	}
	spec := job.Spec{
		Name: once, User: "u", UID: 1000, MinNodes: nodes, MaxNodes: nodes, Partitions: []string{"main"}, TimeLimit: limit, CPUsPerTask: 1,
		Requeue: s.chance(0.7), GRES: []job.GRESRequest{{Name: "gpu", Per: job.PerNode, Count: int64(1 + s.rng.IntN(4))}},
	}
	program := &job.Program{Args: [][]byte{[]byte(kind), []byte(strconv.FormatInt(ms, 10)), []byte(strconv.Itoa(exit))}, Environ: [][]byte{[]byte("A=b")}}
	u.send(once, kind, func() *proposal {
		p, q := *program, spec
		pr := &proposal{submit: &api.Submit{Spec: q, Once: once}, facts: facts{Once: once}}
		pr.facts.Env, pr.facts.Text, pr.blobs = split(&p)
		pr.facts.Program = &p
		return pr
	})
}

func (u *simUser) send(once, kind string, make func() *proposal) {
	var got *api.Submitted
	u.ask(func(c *core, answer func(error)) {
		c.submit(make(), func(a *api.Submitted) {
			if got == nil {
				got = a
			}
			answer(nil)
		})
	}, func(_ error, lost bool) {
		switch {
		case lost || got.Error != nil && got.Error.Kind == "CAN_NOT_SAVE":
			u.s.after(u.s.between(100*time.Millisecond, 3*time.Second), func() { u.send(once, kind, make) })
		case got.Error != nil:
			u.s.fail("submit %s: %v", once, got.Error)
		default:
			u.acknowledged(once, kind, got.ID)
		}
	})
}

func (u *simUser) acknowledged(once, kind string, id job.ID) {
	u.s.note("user", "has submitted", id, once, kind)
	if had := u.once[once]; had != 0 && had != id {
		u.s.fail("%s is job %v, and was job %v", once, id, had)
	}
	u.once[once] = id
	if u.jobs[id] != nil {
		u.s.fail("job %v was given twice", id)
	}
	j := &simJob{id: id, kind: kind, cancelled: -1, signalled: map[int]bool{}}
	u.jobs[id], u.active = j, append(u.active, j)
}

func (u *simUser) cancel(j *simJob) {
	j.busy = true
	had := 0
	u.change(func(c *core) error {
		v, _ := c.sched.Job(j.id)
		had = v.Attempt
		err := c.cancel(j.id, "1000", nil)
		c.touch(j.id)
		return err
	}, func(err error, lost bool) {
		if j.busy = false; err == nil && !lost {
			u.s.note("user", "has cancelled", j.id)
			j.cancelled = had
		}
	})
}

func (u *simUser) requeue(j *simJob) {
	j.busy = true
	u.change(func(c *core) error {
		if c.submission(j.id) == nil {
			return fmt.Errorf("there is no job %v", j.id)
		}
		err := c.requeue(j.id, false)
		c.touch(j.id)
		return err
	}, func(err error, lost bool) {
		if j.busy = false; err == nil && !lost && !slices.Contains(u.active, j) {
			u.active = append(u.active, j)
		}
	})
}

// signal sends the signal that a script waits for.
func (u *simUser) signal(j *simJob) {
	j.busy = true
	at := 0
	u.change(func(c *core) error {
		r := c.runs[j.id]
		if r == nil || r.Fate != nil || r.Steps[job.BatchStep] == nil {
			return fmt.Errorf("job %v has no script that runs", j.id)
		}
		if at = r.Of.Attempt; j.signalled[at] {
			return nil
		}
		return c.signal(j.id, 10, &api.Change{Batch: true})
	}, func(err error, lost bool) {
		if j.busy = false; err == nil && !lost {
			u.s.note("user", "has signalled", j.id, at)
			j.signalled[at] = true
		}
	})
}

func (u *simUser) drain(n *simNode) {
	if n.drained > 0 {
		return
	}
	n.asked = true
	reason := fmt.Sprintf("bad disk %d", u.s.count)
	var at job.Time
	u.change(func(c *core) error {
		at = c.now
		return c.changeNode(n.name, "root", &api.Change{State: "drain", Reason: reason})
	}, func(err error, lost bool) {
		if n.asked = false; err == nil && !lost {
			u.s.note("user", "has drained", n.name, at)
			n.drained, n.reason = at, reason
		}
	})
}

func (u *simUser) resume(n *simNode) {
	n.asked, n.drained, n.reason = true, 0, ""
	state := "resume"
	if u.s.breaks(0.2) {
		state = "down"
	}
	u.change(func(c *core) error {
		return c.changeNode(n.name, "root", &api.Change{State: state, Reason: map[string]string{"down": "smoke"}[state]})
	}, func(error, bool) { n.asked = false })
}

// forget drops the jobs that have ended.
func (u *simUser) forget() {
	if u.s.master == nil {
		return
	}
	c := u.s.master.c
	u.active = slices.DeleteFunc(u.active, func(j *simJob) bool {
		v, ok := c.sched.Job(j.id)
		return !j.busy && (!ok || v.State.Done()) && len(c.commit.queue) == 0 && !u.s.master.committing
	})
}

// mayRun says that ranks of a job run that was cancelled.
func (u *simUser) mayRun(key job.StepKey) {
	if j := u.jobs[key.Job]; j != nil && j.cancelled >= 0 && key.Attempt > j.cancelled {
		u.s.fail("job %v was cancelled in attempt %d, and runs as attempt %d", key.Job, j.cancelled, key.Attempt)
	}
}

// checkKnown compares what a controller knows with what users were told.
func (u *simUser) checkKnown(c *core) {
	for _, id := range slices.Sorted(maps.Keys(u.jobs)) {
		j := u.jobs[id]
		v, ok := c.sched.Job(id)
		if !ok && !u.accounted(id) {
			u.s.fail("job %v was acknowledged, and is lost", id)
		}
		if r := c.runs[id]; ok && j.cancelled >= 0 && !v.State.Done() && (r == nil || r.Fate == nil) {
			u.s.fail("job %v was cancelled, and is %v", id, v.State)
		}
	}
	u.checkNodes(c)
}

func (u *simUser) accounted(id job.ID) bool {
	for at := range 20 {
		if _, ok := u.s.disk.rows[attempt{id, at}]; ok {
			return true
		}
	}
	return false
}

// checkNodes sees whether what is drained is so, and why.
func (u *simUser) checkNodes(c *core) {
	for _, n := range u.s.nodes {
		have := c.nodes[n.name]
		if n.drained > 0 && (have.state&job.NodeDrain == 0 || !strings.HasPrefix(have.reason, n.reason)) {
			u.s.fail("node %s was drained for %q, and is %v for %q", n.name, n.reason, have.state, have.reason)
		}
	}
}

// srun is what a script does: it has a step run on all nodes of the job, and ends as that does.
func (u *simUser) srun(st *simStep) {
	s := u.s
	runs := func() bool { return st.alive && st.phase == running }
	if !runs() {
		return
	}
	s.after(s.between(200*time.Millisecond, 800*time.Millisecond), func() { u.srun(st) })
	if s.master == nil {
		return
	}
	once := "srun"
	s.master.post(func(c *core) {
		r := c.runs[st.key.Job]
		switch {
		case !runs() || c.commit.broken():
			return
		case r == nil || r.Of != attemptOf(st.key) || r.Fate != nil:
			s.after(0, func() { st.end(nil, 1, 0) })
			return
		}
		if made := r.once(once); made != nil {
			if made.Result != nil {
				exit := 0
				if made.Result.State != job.Completed {
					exit = 1
				}
				c.after(func() { st.end(nil, exit, 0) })
			}
			return
		}
		if len(r.now.waiting) > 0 {
			return
		}
		q := &api.StepRequest{Name: "s", Once: once, MinNodes: len(r.Alloc.Nodes), Tasks: len(r.Alloc.Nodes), Wait: 30 * job.Second, Program: job.Program{Args: st.spec.Program.Args, KillOnBadExit: true}}
		q.Program.Args = append([][]byte{[]byte("run")}, q.Program.Args[1:]...)
		w := &stepWait{request: q, until: c.now.Add(q.Wait), gone: func() bool { return !runs() }, answer: func(_ *step, err error) {
			if err != nil {
				s.after(0, func() { st.end(nil, 1, 0) })
			}
		}}
		w.env, w.text, w.blobs = split(&q.Program)
		r.now.waiting = append(r.now.waiting, w)
		c.touch(st.key.Job)
	})
}

// rowed compares rows with each other.
func (u *simUser) rowed(row *store.JobRow) {
	if had := u.rows[row.Name]; had != 0 && had != row.Job {
		u.s.fail("%s was submitted once, and is accounted as jobs %v and %v", row.Name, had, row.Job)
	}
	u.rows[row.Name] = row.Job
}
