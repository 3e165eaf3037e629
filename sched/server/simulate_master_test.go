package server

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"reflect"
	"slices"
	"time"

	"github.com/gangway-hpc/gangway/internal/job"
)

// simMaster is a controller's process.
type simMaster struct {
	s          *sim
	c          *core
	opts       Options
	inputs     chan func(*core)
	stopped    chan struct{}
	dead       bool
	frozen     bool
	held       []func() // that came while it was frozen
	wake       time.Duration
	committing bool
	links      []*simLink
}

// simBegin is when virtual time begins.
var simBegin = time.Unix(1_700_000_000, 0)

func (s *sim) startMaster() {
	m := &simMaster{s: s, inputs: make(chan func(*core), maxInputs), stopped: make(chan struct{}), wake: -1}
	st := s.disk.open()
	if s.bug.lose != nil {
		s.bug.lose(s)
	}
	m.opts = Options{
		Cluster: s.cluster, Store: st, Log: slog.New(slog.DiscardHandler), Version: "sim", Address: "unix:/nowhere",
		Now: func() time.Time { return simBegin.Add(s.now + s.wall) }, SnapshotEvery: 400, KeepEvents: 3000,
	}
	m.c = m.newCore()
	s.restarts++
	s.note("ctl", "starts", st.own)
	m.c.leases = m.c.newGrants()
	if err := m.c.restore(context.Background()); err != nil {
		s.fail("the state cannot be restored: %v", err)
	}
	s.sameState("that is restored", m.c, "of the log", s.disk.shadow)
	if err := m.c.declare(s.cluster); err != nil {
		s.fail("the controller does not start: %v", err)
	}
	m.c.commit.failed = m.c.unstored
	m.c.commit.fatal = func(error) {}
	m.c.apart = m.apart
	s.master = m
	s.user.checkKnown(m.c)
	m.turn()
}

func (m *simMaster) newCore() *core {
	began := m.s.now
	c := newCore(&m.opts, m.inputs, m.stopped, m.s.meter)
	c.steady = func() time.Duration { return m.s.now - began }
	return c
}

// apart has something done that takes long. It waits for the core, so it needs a goroutine; this
// one waits for it, and does nothing else.
func (m *simMaster) apart(f func()) {
	m.s.after(m.s.between(time.Millisecond, 300*time.Millisecond), func() {
		if m.dead {
			return
		}
		done := make(chan any)
		go func() {
			defer func() { done <- recover() }()
			f()
		}()
		for {
			select {
			case g := <-m.inputs:
				g(m.c)
				continue
			case x := <-done:
				if x != nil {
					panic(x)
				}
			}
			break
		}
		m.turn()
	})
}

// sameState compares two states, but for what is not state, or forgotten some time.
func (s *sim) sameState(nameA string, a *core, nameB string, b *core) {
	a.forget(a.sched.Now())
	b.forget(a.sched.Now())
	x, y := a.picture(), b.picture()
	known := func(id job.ID) bool {
		_, ok := a.sched.Job(id)
		_, also := b.sched.Job(id)
		return ok && also
	}
	for _, p := range []*picture{x, y} {
		p.Facts, p.Past = nil, nil
		for _, sub := range p.subs {
			if known(sub.First) {
				p.Subs = append(p.Subs, savedSubmission{sub.First, sub.N, 0, sub.Seq})
				p.Facts = append(p.Facts, sub.Facts)
			}
		}
		maps.DeleteFunc(p.Fates, func(id job.ID, _ *fate) bool { return !known(id) })
		slices.SortFunc(p.Runs, func(a, b *run) int { return int(a.Of.Job) - int(b.Of.Job) })
		for _, r := range p.Runs {
			for i, st := range r.Done {
				r.Done[i] = &step{Spec: st.Spec, Result: st.Result}
			}
			for _, st := range r.Steps {
				for i := range st.Gang.Nodes {
					n := &st.Gang.Nodes[i] // what is heard again after a restart
					if n.Port, n.Image, n.Ready = 0, "", false; n.Phase != ended {
						n.Phase = unheard
					}
					if len(n.Due) == 0 {
						n.Due = nil
					}
				}
				st.Result = nil
				if r.Fate != nil { // it is told again to end
					st.Gang.Asked, st.Gang.Grace, st.Gang.Why = false, 0, ""
				}
			}
		}
		for name, list := range p.Dirty { // of runs that are being released it is known anew
			p.Dirty[name] = slices.DeleteFunc(list, func(a attempt) bool {
				return slices.ContainsFunc(p.Runs, func(r *run) bool { return r.Of == a })
			})
			if len(p.Dirty[name]) == 0 {
				delete(p.Dirty, name)
			}
		}
	}
	va, vb := reflect.ValueOf(x.saved), reflect.ValueOf(y.saved)
	for i := range va.NumField() {
		if va.Field(i).Kind() != reflect.Uint32 && va.Field(i).Len() == 0 && vb.Field(i).Len() == 0 {
			continue
		}
		if f, g := va.Field(i).Interface(), vb.Field(i).Interface(); !reflect.DeepEqual(f, g) && !same(f, g) {
			s.fail("the state %s has other %s than that %s: %s", nameA, va.Type().Field(i).Name, nameB, firstDifference(f, g))
		}
	}
}

// firstDifference is where the texts of two values begin to differ.
func firstDifference(a, b any) string {
	x, _ := json.Marshal(a)
	y, _ := json.Marshal(b)
	i := 0
	for i < len(x) && i < len(y) && x[i] == y[i] {
		i++
	}
	return fmt.Sprintf("after %s there is %.200s, and %.200s", x[max(0, i-200):i], x[i:], y[i:])
}

// post has the core do something.
func (m *simMaster) post(f func(*core)) {
	m.s.after(m.s.between(10*time.Microsecond, time.Millisecond), func() { m.do(f) })
}

// do is what the core's loop does with an input.
func (m *simMaster) do(f func(*core)) {
	switch {
	case m.dead:
		return
	case m.frozen:
		m.held = append(m.held, func() { m.do(f) })
		return
	}
	m.c.clock()
	f(m.c)
	m.turn()
}

func (m *simMaster) turn() {
	m.c.turn()
	if m.s.bug.turn != nil {
		m.s.bug.turn(m.c)
	}
	if m.s.count%64 == 0 {
		if err := m.c.sched.Check(); err != nil {
			m.s.fail("the scheduler's state: %v", err)
		}
		if m.s.master == m {
			m.s.user.checkNodes(m.c)
		}
	}
	if m.s.count%512 == 0 {
		m.compare()
	}
	m.settle()
}

// compare compares what the controller knows with the log, if that has all of it.
func (m *simMaster) compare() {
	if !m.dead && m.s.master == m && !m.committing && len(m.c.commit.queue) == 0 {
		m.s.sameState("of the controller", m.c, "of the log", m.s.disk.shadow)
	}
}

// settle sees to what a turn, or effects, have left.
func (m *simMaster) settle() {
	for more := true; more; {
		select {
		case f := <-m.inputs:
			m.post(f)
		default:
			more = false
		}
	}
	if !m.committing && len(m.c.commit.queue) > 0 {
		m.committing = true
		m.s.after(m.s.between(50*time.Microsecond, 5*time.Millisecond), m.commit)
	}
	for _, l := range slices.Clone(m.links) {
		l.flushDown()
	}
	wait := m.c.late.Sub(m.c.now)
	if next := m.c.sched.Next(); next != job.Never {
		wait = min(wait, next.Sub(m.c.now))
	}
	at := m.s.now + max(time.Millisecond, time.Duration(wait)*time.Millisecond)
	if m.wake < m.s.now || at < m.wake {
		m.wake = at
		m.s.after(at-m.s.now, func() {
			if m.wake == at {
				m.wake = -1
				m.do(func(*core) {})
			}
		})
	}
}

// commit is the committer's goroutine.
func (m *simMaster) commit() {
	if m.frozen {
		m.held = append(m.held, m.commit)
		return
	}
	if m.dead || m.boundary("before a batch is stored") {
		return
	}
	queue, _ := m.c.commit.take()
	if m.s.bug.early && len(queue) > 0 {
		m.effects(queue)
		for i := range queue {
			queue[i].effects = nil
		}
		if m.dead || m.boundary("before a batch is stored") {
			return
		}
	}
	m.attempt(queue, 0)
}

func (m *simMaster) attempt(queue []output, try int) {
	if m.dead {
		return
	}
	rest, stored := m.c.commit.attempt(queue, try)
	switch {
	case stored:
		if m.s.breaks(0.01) { // it does not get the processor just now
			m.s.after(m.s.between(0, time.Second), func() { m.effects(queue) })
			return
		}
		m.effects(queue)
	case rest == nil:
		m.s.note("ctl", "is fenced")
		m.die()
	default:
		m.s.after(time.Duration(1+try)*100*time.Millisecond, func() { m.attempt(rest, try+1) })
		m.settle()
	}
}

func (m *simMaster) effects(queue []output) {
	if m.frozen {
		m.held = append(m.held, func() { m.effects(queue) })
		return
	}
	for f := range effects(queue) {
		if m.dead || m.boundary("among the effects of a batch") {
			return
		}
		f()
	}
	m.committing = false
	m.settle()
}

// boundary is a place where a process may die. It says whether it has.
func (m *simMaster) boundary(where string) bool {
	if m.s.doomed("ctl", m) {
		m.s.note("ctl", "crashes", where)
		m.crash()
		return true
	}
	return false
}

// die ends the process: its connections end.
func (m *simMaster) die() {
	if m.dead {
		return
	}
	m.dead = true
	close(m.stopped)
	for _, l := range slices.Clone(m.links) {
		l.cut()
	}
}

// crash ends the process, and has another one start.
func (m *simMaster) crash() {
	m.compare()
	m.die()
	if m.s.master == m {
		m.s.master = nil
		m.s.after(m.s.between(10*time.Millisecond, 15*time.Second), func() {
			if m.s.master == nil {
				m.s.startMaster()
			}
		})
	}
}

// freeze stops the process for a while; another one may start meanwhile.
func (m *simMaster) freeze(d time.Duration, replaced bool) {
	m.frozen = true
	m.s.after(d, func() {
		m.frozen = false
		held := m.held
		m.held = nil
		for _, f := range held {
			f()
		}
	})
	if replaced {
		m.s.after(m.s.between(0, d), func() {
			if m.s.master == m && !m.dead {
				m.s.startMaster()
			}
		})
	}
}
