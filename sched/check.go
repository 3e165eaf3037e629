package sched

import (
	"fmt"
	"math/bits"
	"slices"

	"github.com/gangway-hpc/gangway/internal/job"
)

// Check proves the invariants, in time proportional to the state. An error is a bug.
func (s *Scheduler) Check() error {
	for i := range s.nodes {
		if err := s.checkNode(int32(i)); err != nil {
			return fmt.Errorf("check node %s: %w", s.nodes[i].spec.Name, err)
		}
	}
	queued, unfinished, planned := 0, 0, 0
	for i, r := range s.jobs {
		if i > 0 && r.id <= s.jobs[i-1].id {
			return fmt.Errorf("check job %v: it is not above the one before", r.id)
		}
		if err := s.checkJob(r); err != nil {
			return fmt.Errorf("check job %v: %w", r.id, err)
		}
		if r.queued {
			queued++
		}
		if r.plan != nil {
			planned++
		}
		if !r.state.Done() {
			unfinished++
		}
	}
	for _, c := range s.classes {
		queued -= c.queue.n
		if err := c.queue.check(); err != nil {
			return err
		}
	}
	if queued != 0 || unfinished != s.unfinished || planned != s.planned {
		return fmt.Errorf("check counts: %d too many queued, %d unfinished, not %d, %d planned, not %d", queued, unfinished, s.unfinished, planned, s.planned)
	}
	if err := s.checkLicenses(); err != nil {
		return err
	}
	return s.checkArrays()
}

// checkLicenses proves that the timelines of licences follow from jobs and plans, that
// nothing was started with one that was in use, and that nothing is planned with one that
// will be.
func (s *Scheduler) checkLicenses() error {
	for i := range s.licenses {
		l := &s.licenses[i]
		used, want := int64(0), timeline{{s.now, vec{l.total}}}
		var plans timeline
		for _, r := range s.jobs {
			if at := slices.IndexFunc(r.licenses, func(x job.License) bool { return x.Name == l.name }); at >= 0 {
				used += r.licenses[at].Count
				want.take(s.now, max(s.now, r.ends), &vec{int32(r.licenses[at].Count)})
			}
			if p := r.plan; p != nil && takes(p.licenses, l.name) {
				at := slices.IndexFunc(p.licenses, func(x job.License) bool { return x.Name == l.name })
				want.take(max(s.now, p.start), p.end, &vec{int32(p.licenses[at].Count)})
				plans = append(plans, step{t: p.start}, step{t: p.end})
			}
		}
		if used != l.used || used > int64(l.total)+l.excess {
			return fmt.Errorf("check licence %s: %d of %d are in use, not %d", l.name, used, l.total, l.used)
		}
		for _, list := range []timeline{want, l.line} {
			for _, st := range list {
				t := max(st.t, s.now)
				if a, b := want[want.at(t)].free[0], l.line[l.line.at(t)].free[0]; a != b {
					return fmt.Errorf("check licence %s: at %d there are %d left, not %d", l.name, t, b, a)
				}
			}
		}
		for ; len(plans) > 0 && !s.anew; plans = plans[2:] {
			if from, to := max(s.now, plans[0].t), plans[1].t; from < to && !l.line.sane(from, to) {
				return fmt.Errorf("check licence %s: what is planned from %d to %d has more than there are", l.name, from, to)
			}
		}
	}
	return nil
}

// checkNode proves that nothing is used twice, now or later, and that the timeline is what
// follows from jobs and plans.
func (s *Scheduler) checkNode(i int32) error {
	n := s.nodes[i]
	free, used := n.total, [slots - slotGRES]uint64{}
	for _, id := range n.runs {
		r := s.record(id)
		k := slices.IndexFunc(r.picks, func(p pick) bool { return p.node == i })
		if k < 0 {
			return fmt.Errorf("job %v has nothing of it", id)
		}
		free.sub(&r.picks[k].v)
		for _, d := range r.alloc.Nodes[k].Devices {
			for g := range n.spec.GRES {
				if n.spec.GRES[g].Name != d.Name || n.spec.GRES[g].Type != d.Type {
					continue
				}
				if used[g]&d.Mask != 0 || d.Mask != 0 && bits.OnesCount64(d.Mask) != int(d.Count) {
					return fmt.Errorf("devices %#x of %s are used twice or not as many as they should be", d.Mask, d.Name)
				}
				used[g] |= d.Mask
			}
		}
	}
	if free != n.free || used != n.used || !free.holds(&vec{}) {
		return fmt.Errorf("it has %v and devices %x free, not %v and %x", n.free, n.used, free, used)
	}
	want := timeline{{s.now, n.total}}
	for _, id := range n.runs {
		r := s.record(id)
		for _, p := range r.picks {
			if p.node == i {
				want.take(s.now, max(s.now, r.ends), &p.v)
			}
		}
	}
	for _, h := range n.holds {
		r := s.record(h.id)
		if r == nil || r.plan == nil || r.plan.start != h.t || !n.open() {
			return fmt.Errorf("job %v is not planned on it at %d", h.id, h.t)
		}
		for _, p := range r.plan.picks {
			if p.node == i {
				want.take(max(s.now, r.plan.start), r.plan.end, &p.v)
			}
		}
	}
	for _, l := range []timeline{want, n.line} {
		for _, st := range l {
			if st.t < s.now {
				st.t = s.now
			}
			a, b := want[want.at(st.t)].free, n.line[n.line.at(st.t)].free
			if a != b || !a.holds(&vec{}) {
				return fmt.Errorf("at %d it has %v free, not %v", st.t, b, a)
			}
		}
	}
	if s.stale || n.place.cell < 0 {
		return nil
	}
	c := s.cells[n.place.cell]
	bucket := int16(-1)
	if n.open() {
		if bucket = c.kind.bucket(n.free[c.kind.prim]); n.free == n.total {
			bucket = int16(len(c.free) - 1)
		}
	}
	if n.place.bucket != bucket || c.nodes[n.place.pos] != i || bucket >= 0 && c.free[bucket][n.place.pos/64]&(1<<(n.place.pos%64)) == 0 {
		return fmt.Errorf("it is at the wrong place in the index")
	}
	return nil
}

// checkJob proves that a job is where its state says, and has all of its nodes or none.
func (s *Scheduler) checkJob(r *record) error {
	runs := r.state == job.Running || r.state == job.Completing
	switch {
	case r.queued && (r.state != job.Pending || r.held != 0 || r.never):
		return fmt.Errorf("it is %v, held %d, and in a queue", r.state, r.held)
	case r.plan != nil && !r.queued:
		return fmt.Errorf("it has a plan and does not wait")
	case r.plan != nil && r.promise != r.plan.start:
		return fmt.Errorf("it was promised %d and is planned at %d", r.promise, r.plan.start)
	case r.plan != nil && !s.stale && !s.recheck && !s.asked(r, r.plan.part, r.plan.picks):
		return fmt.Errorf("what is planned for it is not what it asks for")
	case runs != (len(r.picks) > 0):
		return fmt.Errorf("it is %v and has %d nodes", r.state, len(r.picks))
	case runs && len(r.picks) != len(r.alloc.Nodes):
		return fmt.Errorf("it has %d nodes, not %d", len(r.picks), len(r.alloc.Nodes))
	case runs && r.spec.MinNodes > len(r.picks) && (r.spec.Tasks == 0 || r.spec.Tasks > len(r.picks)):
		return fmt.Errorf("it has %d of %d nodes", len(r.picks), r.spec.MinNodes)
	}
	for _, p := range r.picks {
		if _, ok := slices.BinarySearch(s.nodes[p.node].runs, r.id); !ok {
			return fmt.Errorf("node %s does not know it", s.nodes[p.node].spec.Name)
		}
	}
	if r.queued {
		c := s.classes[r.class]
		b, i, ok := c.queue.find(r.key)
		if !ok || c.queue.blocks[b].entries[i].limit != r.queueLimit || !s.stale && s.leastOfAll(r) != r.queueLimit {
			return fmt.Errorf("it is not in its queue under its limit")
		}
	}
	return nil
}

func (q *queue) check() error {
	n := 0
	var last key
	for _, b := range q.blocks {
		least := job.Forever
		for _, e := range b.entries {
			if n > 0 && last.compare(e.key) >= 0 {
				return fmt.Errorf("check queue: job %v is not after job %v", e.id, last.id)
			}
			last, least = e.key, min(least, e.limit)
			n++
		}
		if least != b.least || len(b.entries) == 0 || len(b.entries) > blockSize {
			return fmt.Errorf("check queue: a block of %d has the least limit %d, not %d", len(b.entries), least, b.least)
		}
	}
	if n != q.n {
		return fmt.Errorf("check queue: it has %d jobs, not %d", n, q.n)
	}
	return nil
}

// checkArrays proves the counts of arrays, and that no more tasks run than may.
func (s *Scheduler) checkArrays() error {
	for _, a := range s.arrays {
		got := array{tok: a.tok, first: a.first, n: a.n, throttle: a.throttle, dependents: a.dependents}
		first, queued := s.index(a.first), false
		for i, r := range s.jobs[first : first+a.n] {
			if i < a.next && r.state == job.Pending && !r.queued && r.held == 0 && r.spec.Begin <= s.now && (r.met || r.spec.Dependencies == nil) {
				return fmt.Errorf("check job %v: it would never be found when another task ends", r.id)
			}
			queued = queued || r.queued
			if r.queued || r.state == job.Running || r.state == job.Completing {
				got.active++
			}
			if r.start > 0 || r.state.Done() || r.state == job.Running || r.state == job.Completing {
				got.started++
			}
			if r.state.Done() {
				got.ended++
				if r.state == job.Completed && r.exit == 0 {
					got.ok++
				} else {
					got.failed++
				}
			}
		}
		if got.active != a.active || got.started != a.started || got.ended != a.ended || got.ok != a.ok || got.failed != a.failed {
			return fmt.Errorf("check array %v: it counts %d active, %d started, %d ended, not %d, %d, %d", a.first, a.active, a.started, a.ended, got.active, got.started, got.ended)
		}
		if a.throttle > 0 && a.active > a.throttle && queued { // more may run since before it was lowered
			return fmt.Errorf("check array %v: %d tasks at a time are more than %d", a.first, a.active, a.throttle)
		}
	}
	return nil
}
