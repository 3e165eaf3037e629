package sched

import (
	"fmt"
	"math"
	"math/bits"
	"slices"

	"github.com/gangway-hpc/gangway/internal/job"
)

// unplan gives back what is planned for job i. With grow its nodes are looked at for
// others.
func (s *Scheduler) unplan(i int, grow bool) {
	p := s.jobs[i].plan
	if p == nil {
		return
	}
	id := s.jobs[i].id
	s.ownJob(i).plan = nil
	s.planned--
	for k := range p.picks {
		n := s.own(p.picks[k].node)
		n.line.give(p.start, p.end, &p.picks[k].v)
		if h, ok := slices.BinarySearchFunc(n.holds, timer{p.start, id}, compareTimer); ok {
			n.holds = slices.Delete(n.holds, h, h+1)
		}
		s.touched(n)
		if grow {
			s.grow(p.picks[k].node)
		}
	}
	s.useLicenses(p.licenses, p.start, p.end, true)
}

func compareTimer(a, b timer) int {
	switch {
	case a.before(b):
		return -1
	case b.before(a):
		return 1
	}
	return 0
}

func (s *Scheduler) touched(n *node) {
	if !s.stale && n.place.cell >= 0 {
		s.touch(s.ownCell(n.place.cell), n)
	}
}

// setPlan sets nodes aside for job i.
func (s *Scheduler) setPlan(i int, p *plan) {
	r := s.ownJob(i)
	r.plan, r.promise = p, p.start
	s.planned++
	for k := range p.picks {
		n := s.own(p.picks[k].node)
		n.line.forget(s.now)
		n.line.take(p.start, p.end, &p.picks[k].v)
		n.hold(timer{p.start, r.id})
		s.touched(n)
	}
	s.useLicenses(p.licenses, p.start, p.end, false)
	s.ownClock(&s.due).push(timer{p.start, r.id})
}

// hold notes that a job is planned on a node. Mostly it is the last one there.
func (n *node) hold(t timer) {
	h := len(n.holds)
	if h > 0 && t.before(n.holds[h-1]) {
		h, _ = slices.BinarySearchFunc(n.holds, t, compareTimer)
	}
	n.holds = slices.Insert(n.holds, h, t)
}

// breach takes away what is planned for job i because it cannot be kept.
func (s *Scheduler) breach(i int, why string) {
	r := s.ownJob(i)
	s.unplan(i, true)
	if r.breach == "" {
		r.breach = why
	}
	s.arrivals = append(s.arrivals, r.id)
}

// start gives job i its nodes. They were checked.
func (s *Scheduler) start(i int, alloc *job.Allocation, picks []pick, licenses []job.License, attempt int) {
	overdue := s.jobs[i].plan != nil && s.jobs[i].plan.start < s.now
	s.unplan(i, true)
	r := s.ownJob(i)
	s.ownClass(r.class).queue.remove(r.key, s.tok)
	r.queued, r.promise, r.breach, r.met = false, 0, "", true
	r.state, r.start, r.end, r.limit = job.Running, s.now, 0, alloc.Limit
	r.alloc, r.picks, r.licenses, r.attempt = alloc, picks, licenses, attempt
	r.ends = s.now.Add(max(1, alloc.Limit))
	for k := range picks {
		n := s.own(picks[k].node)
		n.free.sub(&picks[k].v)
		n.line.forget(s.now)
		n.line.take(s.now, r.ends, &picks[k].v)
		s.useDevices(n, alloc.Nodes[k].Devices, true)
		at, _ := slices.BinarySearch(n.runs, r.id)
		n.runs = slices.Insert(n.runs, at, r.id)
		s.reindex(picks[k].node)
	}
	s.useLicenses(licenses, s.now, r.ends, false)
	s.holdLicenses(licenses, 1)
	s.ownClock(&s.ends).push(timer{r.ends, r.id})
	if overdue { // and ends later than was planned
		s.yield(r, late)
	}
	if r.array >= 0 {
		s.ownArray(r.array).started++
	}
	s.tell(i)
}

// useDevices marks devices as in use, or as free.
func (s *Scheduler) useDevices(n *node, devices []job.Devices, use bool) {
	has := n.spec.GRES
	if !s.stale && n.place.cell >= 0 {
		has = s.cells[n.place.cell].kind.spec.GRES // the same, and nearer
	}
	for d := range devices {
		if devices[d].Mask == 0 {
			continue
		}
		for g := range has {
			if has[g].Name == devices[d].Name && has[g].Type == devices[d].Type {
				if use {
					n.used[g] |= devices[d].Mask
				} else {
					n.used[g] &^= devices[d].Mask
				}
			}
		}
	}
}

// release takes back what a running job has.
func (s *Scheduler) release(i int) {
	r := s.ownJob(i)
	for k := range r.picks {
		n := s.own(r.picks[k].node)
		n.free.add(&r.picks[k].v)
		n.line.forget(s.now)
		n.line.give(s.now, r.ends, &r.picks[k].v)
		s.useDevices(n, r.alloc.Nodes[k].Devices, false)
		if at, ok := slices.BinarySearch(n.runs, r.id); ok {
			n.runs = slices.Delete(n.runs, at, at+1)
		}
		s.reindex(r.picks[k].node)
		if n.open() {
			s.grow(r.picks[k].node)
		}
	}
	if len(r.licenses) > 0 {
		s.useLicenses(r.licenses, s.now, r.ends, true)
		s.holdLicenses(r.licenses, -1)
		s.regrow = true
	}
	r.picks, r.licenses, r.lost = nil, nil, ""
	if r.array >= 0 {
		s.ownArray(r.array).active--
	}
}

// finish ends job i in a state.
func (s *Scheduler) finish(i int, st job.State, exit int) {
	r := s.ownJob(i)
	r.state, r.end, r.exit, r.queued, r.promise = st, s.now, exit, false, 0
	s.unfinished--
	if r.array >= 0 {
		a := s.ownArray(r.array)
		a.ended++
		if r.start == 0 {
			a.started++ // or was cancelled
		}
		if st == job.Completed && exit == 0 {
			a.ok++
		} else {
			a.failed++
		}
		s.promote(r.array)
	}
	if at := slices.Index(s.singles, r.id); at >= 0 {
		s.singles = slices.Delete(slices.Clone(s.singles), at, at+1)
	}
	s.tell(i)
}

func (s *Scheduler) end(e job.Ended) error {
	i, ok := s.lookup(e.ID)
	refuse := func(why, nearest string) error {
		return &Refused{Event: "end job " + e.ID.String(), Why: why, Nearest: nearest}
	}
	switch {
	case !ok:
		return refuse("there is no such job", "")
	case s.jobs[i].state != job.Running && s.jobs[i].state != job.Completing:
		return refuse("it is "+s.jobs[i].state.String()+", not RUNNING", "")
	case !e.State.Done() || e.State > job.Preempted:
		return refuse(e.State.String()+" is no state of an ended job", "COMPLETED")
	}
	st := e.State
	if s.jobs[i].state == job.Completing {
		st = s.jobs[i].toState
	}
	s.release(i)
	s.finish(i, st, e.Exit)
	return nil
}

func (s *Scheduler) cancel(e job.Cancelled) error {
	what := "cancel job " + e.ID.String()
	i, ok := s.lookup(e.ID)
	if !ok {
		return &Refused{Event: what, Why: "there is no such job"}
	}
	switch s.jobs[i].state {
	case job.Pending:
		s.dequeue(i)
		s.finish(i, job.CancelledState, 0)
	case job.Running:
		r := s.ownJob(i)
		r.state, r.toState = job.Completing, job.CancelledState
	default:
		return &Refused{Event: what, Why: "it is " + s.jobs[i].state.String() + " already"}
	}
	return nil
}

// hold keeps a job from starting: one that runs, once it has been put back into the queue.
func (s *Scheduler) hold(e job.Held) error {
	i, ok := s.find(e.ID)
	if !ok || s.jobs[i].state != job.Pending && s.jobs[i].state != job.Running {
		return &Refused{Event: "hold job " + e.ID.String(), Why: "there is no such job that waits or runs"}
	}
	r := s.ownJob(i)
	if e.Admin {
		r.held |= heldAdmin
	} else {
		r.held |= heldUser
	}
	if r.state != job.Pending {
		return nil
	}
	s.dequeue(i)
	if r.array >= 0 {
		s.promote(r.array)
	}
	return nil
}

func (s *Scheduler) releaseHold(e job.Released) error {
	i, ok := s.find(e.ID)
	if !ok || s.jobs[i].state != job.Pending && s.jobs[i].state != job.Running || s.jobs[i].held == 0 {
		return &Refused{Event: "release job " + e.ID.String(), Why: "there is no such held job"}
	}
	r := s.ownJob(i)
	if r.held = 0; r.state == job.Pending {
		s.consider(i)
	}
	return nil
}

func (s *Scheduler) requeue(e job.Requeue) error {
	what := "requeue job " + e.ID.String()
	i, ok := s.lookup(e.ID)
	if !ok {
		return &Refused{Event: what, Why: "there is no such job"}
	}
	switch st := s.jobs[i].state; {
	case st == job.Pending:
		return &Refused{Event: what, Why: "it waits already"}
	case st == job.Completing:
		return &Refused{Event: what, Why: "it was cancelled and still runs", Nearest: "after its end"}
	case !st.Done():
		s.again(i, e.Hold)
		return nil
	}
	if r := s.jobs[i]; !r.met {
		if why := s.checkDependencies(r.spec, r.id); why != "" {
			return &Refused{Event: what, Why: why}
		}
	}
	r := s.ownJob(i)
	if r.array >= 0 {
		a := s.ownArray(r.array)
		a.ended--
		if r.start == 0 {
			a.started--
		}
		if r.state == job.Completed && r.exit == 0 {
			a.ok--
		} else {
			a.failed--
		}
	}
	s.unfinished++
	s.wait(i, e.Hold)
	return nil
}

// again puts a running job back into the queue.
func (s *Scheduler) again(i int, hold bool) {
	s.release(i)
	s.wait(i, hold)
	if a := s.jobs[i].array; a >= 0 {
		s.promote(a)
	}
}

func (s *Scheduler) wait(i int, hold bool) {
	r := s.ownJob(i)
	if r.array >= 0 && r.start > 0 {
		s.ownArray(r.array).started--
	}
	r.state, r.start, r.end, r.exit, r.alloc, r.soft = job.Pending, 0, 0, 0, nil, false
	r.requeues++
	if hold {
		r.held |= heldRequeue
	}
	s.refresh()
	r.class = s.classOf(r.spec, false)
	s.enter(i)
}

// requeued carries out what was decided about a job that lost a node.
func (s *Scheduler) requeued(e job.Requeued) error {
	i, ok := s.find(e.ID)
	if !ok || s.jobs[i].state != job.Running {
		return &Refused{Event: "requeue job " + e.ID.String(), Why: "there is no such running job"}
	}
	s.again(i, e.Hold)
	return nil
}

func (s *Scheduler) killed(e job.Killed) error {
	i, ok := s.find(e.ID)
	what := "kill job " + e.ID.String()
	if !ok || s.jobs[i].state.Done() || !e.State.Done() || e.State > job.Preempted {
		return &Refused{Event: what, Why: "there is no such job, it has ended, or the state is none of an ended job"}
	}
	if s.jobs[i].state == job.Pending {
		s.dequeue(i)
	} else {
		s.release(i)
	}
	s.finish(i, e.State, 0)
	return nil
}

// replayStart carries out a logged decision to start a job.
func (s *Scheduler) replayStart(e job.Started) error {
	what := "start job " + e.ID.String()
	i, ok := s.find(e.ID)
	if !ok || !s.jobs[i].queued {
		return &Refused{Event: what, Why: "there is no such job that could be started"}
	}
	if e.Attempt != s.jobs[i].attempt+1 {
		return &Refused{Event: what, Why: fmt.Sprintf("this would be attempt %d, not %d", s.jobs[i].attempt+1, e.Attempt)}
	}
	part, ok := s.partNumber(e.Allocation.Partition)
	if !ok || len(e.Allocation.Nodes) == 0 || e.Allocation.Limit <= 0 {
		return &Refused{Event: what, Why: "it has no partition, nodes or limit"}
	}
	s.refresh()
	r := s.jobs[i]
	if !slices.Contains(s.partitionsOf(r.spec), part) || e.Allocation.Limit < s.leastIn(r.spec, part) || e.Allocation.Limit > s.limitIn(r.spec, part) {
		return &Refused{Event: what, Why: "it does not ask for this partition or limit"}
	}
	picks := make([]pick, 0, len(e.Allocation.Nodes))
	taken := map[int32]bool{}
	for k := range e.Allocation.Nodes {
		share := &e.Allocation.Nodes[k]
		n, ok := s.nodeNumber(share.Node)
		if !ok || !s.nodes[n].open() || taken[n] {
			return &Refused{Event: what, Why: "node " + share.Node + " is unknown, takes nothing or is named twice"}
		}
		taken[n] = true
		v, free := s.shareOf(s.nodes[n], share)
		if !free || !s.nodes[n].free.holds(&v) {
			return &Refused{Event: what, Why: "node " + share.Node + " has not that much free"}
		}
		picks = append(picks, pick{n, v})
	}
	if !s.asked(r, part, picks) || r.spec.Tasks > 0 && tasksOf(&e.Allocation) != r.spec.Tasks {
		return &Refused{Event: what, Why: "this is not what it asks for"}
	}
	alloc := e.Allocation
	licenses, ok := s.licensesLeft(r, alloc.Limit)
	if !ok {
		return &Refused{Event: what, Why: "its licences are in use"}
	}
	s.start(i, &alloc, picks, licenses, e.Attempt)
	return nil
}

// tasksOf is how many tasks an allocation has.
func tasksOf(a *job.Allocation) int {
	n := 0
	for i := range a.Nodes {
		n += a.Nodes[i].Tasks
	}
	return n
}

// asked says whether a job that takes these nodes has one of the things that it asks for.
func (s *Scheduler) asked(r *record, part int, picks []pick) bool {
	c := s.classes[r.class]
	return slices.ContainsFunc(c.options, func(o option) bool {
		if o.part != part || len(picks) < o.nodes || len(picks) > o.most {
			return false
		}
		for k := range picks {
			if o.excludes(picks[k].node) || !s.takes(&o, picks, k) {
				return false
			}
		}
		return s.suits(c, &o, picks)
	})
}

// shareOf is what a share takes of a node, and whether that can be: the node has so much, and
// its devices are free.
func (s *Scheduler) shareOf(n *node, share *job.NodeShare) (vec, bool) {
	between := func(n, most int64) bool { return 0 <= n && n <= most }
	if !between(int64(share.CPUs)-1, math.MaxInt32-1) || !between(share.Memory, math.MaxInt32) || !between(int64(share.Tasks), 1<<24) {
		return vec{}, false
	}
	v := vec{int32(share.CPUs), int32(share.Memory)}
	for _, d := range share.Devices {
		g := slices.IndexFunc(n.spec.GRES, func(g job.GRES) bool { return g.Name == d.Name && g.Type == d.Type })
		if g < 0 || v[slotGRES+g] != 0 || !between(d.Count-1, n.spec.GRES[g].Count-1) || d.Mask&n.used[g] != 0 {
			return v, false
		}
		v[slotGRES+g] = int32(d.Count)
		if has := &n.spec.GRES[g]; identity(has) {
			if bits.OnesCount64(d.Mask) != int(d.Count) || bits.Len64(d.Mask) > int(has.Count) {
				return v, false
			}
		} else if d.Mask != 0 {
			return v, false
		}
	}
	return v, true
}

// allocate makes an allocation of picks: which devices, and how many tasks on each node.
func (s *Scheduler) allocate(r *record, o *option, picks []pick, limit job.Duration) *job.Allocation {
	alloc, all := newAllocation(len(picks))
	alloc.Partition, alloc.Limit = s.parts[o.part].spec.Name, limit
	tasks, rest := max(1, r.spec.TasksPerNode), 0
	if r.spec.Tasks > 0 {
		tasks, rest = r.spec.Tasks/len(picks), r.spec.Tasks%len(picks)
	}
	for k := range picks {
		n, v := s.nodes[picks[k].node], &picks[k].v
		share := &alloc.Nodes[k]
		if o.total != nil && r.spec.Tasks > 0 {
			tasks, rest = o.tasksAt(s, picks, k), 0
		}
		*share = job.NodeShare{Node: n.spec.Name, Tasks: tasks, CPUs: int(v[slotCPU]), Memory: int64(v[slotMemory])}
		if k < rest {
			share.Tasks++
		}
		first, kind := len(all), s.cells[n.place.cell].kind
		for g := range kind.spec.GRES { // the node's own are the same, and further away
			count := v[slotGRES+g]
			if count == 0 {
				continue
			}
			d := job.Devices{Name: kind.spec.GRES[g].Name, Type: kind.spec.GRES[g].Type, Count: int64(count)}
			if a := kind.devices[g]; a != nil {
				d.Mask = a.pick(n.used[g], int(count))
			}
			all = append(all, d)
		}
		share.Devices = all[first:len(all):len(all)]
	}
	return alloc
}

// newAllocation is an empty allocation of n nodes, and room for its devices. That of one
// node is one piece of memory, as most are.
func newAllocation(n int) (*job.Allocation, []job.Devices) {
	if n > 1 {
		return &job.Allocation{Nodes: make([]job.NodeShare, n)}, make([]job.Devices, 0, n)
	}
	one := &struct {
		job.Allocation
		nodes   [1]job.NodeShare
		devices [1]job.Devices
	}{}
	one.Nodes = one.nodes[:]
	return &one.Allocation, one.devices[:0]
}
