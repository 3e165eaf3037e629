package sched

import (
	"slices"

	"github.com/gangway-hpc/gangway/internal/job"
)

// JobView is what is known about a job.
type JobView struct {
	ID         job.ID
	Array      job.ID    // the first task of its array; 0: it is not of an array
	Task       uint32    // its index there
	Spec       *job.Spec // shared, not to be changed
	State      job.State
	Reason     string // Slurm's one word for why it waits; "None" if it does not
	Priority   uint32
	AdminHold  bool // an administrator holds it, which may run
	Submit     job.Time
	Eligible   job.Time // since when nothing but resources holds it; 0: not yet
	Start      job.Time // 0: not started
	End        job.Time // of a running job: when it is expected to end; of an ended one: when it did
	Expected   job.Time // when a pending job is promised to start; 0: not planned yet, Never: see Reason
	Attempt    int      // how many times it was started
	Exit       int
	Allocation job.Allocation // of a running or ended job; its slices are shared
}

// Job returns what is known about a job, in a copy.
func (s *Scheduler) Job(id job.ID) (JobView, bool) {
	i, ok := s.lookup(id)
	if !ok {
		return JobView{}, false
	}
	return s.view(s.jobs[i]), true
}

func (s *Scheduler) view(r *record) JobView {
	v := JobView{
		ID: r.id, Task: r.task, Spec: r.spec, State: r.state, Reason: s.reason(r), Priority: s.priority(r), Submit: r.submit,
		Eligible: r.eligible, Start: r.start, End: r.end, Expected: r.promise, Attempt: r.attempt, Exit: r.exit,
		AdminHold: r.held&heldAdmin != 0,
	}
	if r.array >= 0 {
		v.Array = s.arrays[r.array].first
	}
	if r.alloc != nil {
		v.Allocation = *r.alloc
	}
	if r.state == job.Running || r.state == job.Completing {
		v.End = r.ends
	}
	return v
}

// Pending yields the jobs that wait: those that may start in the order in which they are
// looked at, and then the others by id.
func (s *Scheduler) Pending(yield func(JobView) bool) {
	for _, id := range s.ordered() {
		if !yield(s.view(s.record(id))) {
			return
		}
	}
	for _, r := range s.jobs {
		if r.state == job.Pending && !r.queued && !yield(s.view(r)) {
			return
		}
	}
}

// Coming yields the jobs that are planned to start before a moment, the earliest first, with
// the nodes that they are planned on. Which these are may still change.
func (s *Scheduler) Coming(before job.Time, yield func(id job.ID, nodes []string) bool) {
	due := slices.Clone(s.due.timers)
	for len(due) > 0 && due[0].t < before {
		t := due.pop()
		i, ok := s.find(t.id)
		if !ok {
			continue
		}
		r := s.jobs[i]
		if r.state != job.Pending || r.plan == nil || r.plan.start != t.t {
			continue // it was planned anew
		}
		var nodes []string
		for k := range r.plan.picks {
			nodes = append(nodes, s.nodes[r.plan.picks[k].node].spec.Name)
		}
		if !yield(t.id, nodes) {
			return
		}
	}
}

// ordered is the jobs that may start, in their order.
func (s *Scheduler) ordered() []job.ID {
	var all []key
	for _, c := range s.classes {
		for _, b := range c.queue.blocks {
			for i := range b.entries {
				all = append(all, b.entries[i].key)
			}
		}
	}
	slices.SortFunc(all, key.compare)
	ids := make([]job.ID, len(all))
	for i := range all {
		ids[i] = all[i].id
	}
	return ids
}

// Running yields the jobs that have nodes, by rising id.
func (s *Scheduler) Running(yield func(JobView) bool) {
	for _, r := range s.jobs {
		if (r.state == job.Running || r.state == job.Completing) && !yield(s.view(r)) {
			return
		}
	}
}

// reason is Slurm's one word for why a job waits. The job that has the first place of all
// that wait in its partition waits for Resources, those behind it for Priority.
func (s *Scheduler) reason(r *record) string {
	if r.state != job.Pending {
		return "None"
	}
	switch {
	case r.held&heldRequeue != 0:
		return "JobHoldMaxRequeue"
	case r.held&heldAdmin != 0:
		return "JobHeldAdmin"
	case r.held&heldUser != 0:
		return "JobHeldUser"
	case r.never:
		return "DependencyNeverSatisfied"
	case r.spec.Begin > s.now:
		return "BeginTime"
	}
	if f, _ := s.dependency(r); f != met {
		return "Dependency"
	}
	if !r.queued {
		if r.array >= 0 {
			return "JobArrayTaskLimit"
		}
		return "None"
	}
	if p := s.partitionReason(r); p != "" {
		return p
	}
	if s.unavailable(r) {
		return "ReqNodeNotAvail"
	}
	if s.licensed(r.spec, s.now, 1) != s.now {
		return "Licenses"
	}
	if s.first(r) {
		return "Resources"
	}
	return "Priority"
}

// partitionReason is what its partitions have against a job; empty: nothing.
func (s *Scheduler) partitionReason(r *record) string {
	reason := "PartitionConfig"
	for _, p := range s.partitionsOf(r.spec) {
		part := &s.parts[p]
		switch {
		case part.spec.State == job.PartitionDown:
			reason = "PartitionDown"
		case part.spec.State == job.PartitionInactive:
			reason = "PartitionInactive"
		case part.spec.MaxNodes > 0 && r.spec.MinNodes > part.spec.MaxNodes:
			reason = "PartitionNodeLimit"
		case part.spec.MaxTime > 0 && r.spec.TimeLimit > part.spec.MaxTime:
			reason = "PartitionTimeLimit"
		case part.starts():
			return ""
		}
	}
	return reason
}

// unavailable says whether so many nodes are out of service that a job cannot start until
// one of them is back.
func (s *Scheduler) unavailable(r *record) bool {
	if r.promise != job.Never {
		return false
	}
	c := s.classes[r.class]
	for i := range c.options {
		if c.options[i].nodes <= c.could {
			return true
		}
	}
	return false
}

// first says whether no other job is before r in the partitions that it can use.
func (s *Scheduler) first(r *record) bool {
	for _, c := range s.classes {
		if c.queue.n == 0 {
			continue
		}
		k := c.queue.blocks[0].entries[0].key
		if k.compare(r.key) < 0 && s.shareParts(c.spec, r.spec) {
			return false
		}
	}
	return true
}

func (s *Scheduler) shareParts(a, b *job.Spec) bool {
	theirs := s.partitionsOf(b)
	return slices.ContainsFunc(s.partitionsOf(a), func(p int) bool { return slices.Contains(theirs, p) })
}

// Difference is a job whose expected start would be another one.
type Difference struct {
	ID       job.ID
	Was, Now job.Time // job.Never: none; Was is 0 for a job that is new
}
