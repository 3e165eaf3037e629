package sched

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/gangway-hpc/gangway/internal/job"
)

// submit adds a job, or the tasks of an array.
func (s *Scheduler) submit(e job.Submitted) error {
	refuse := func(no *Refused) error { // its text is not made for those that are accepted
		no.Event = "submit job " + e.ID.String()
		return no
	}
	n := 1
	if e.Spec.Array != nil {
		n = e.Spec.Array.Len()
	}
	switch {
	case e.ID <= s.last:
		return refuse(&Refused{Why: fmt.Sprintf("its id is not above %v", s.last), Nearest: fmt.Sprintf("%v", s.last+1)})
	case n > math.MaxUint32-int(e.ID):
		return refuse(&Refused{Why: "there are not enough ids above its own"})
	case s.config.MaxJobs > 0 && s.unfinished+n > s.config.MaxJobs:
		return refuse(&Refused{Why: fmt.Sprintf("there would be more than %d jobs", s.config.MaxJobs)})
	}
	spec := e.Spec
	s.refresh()
	class, no := s.accept(&spec, e.ID)
	if no != nil {
		return refuse(no)
	}
	at := int32(-1)
	if spec.Array != nil {
		at = int32(len(s.arrays))
		s.arrays = append(s.arrays, &array{tok: s.tok, first: e.ID, n: n, throttle: spec.Array.Throttle})
	}
	base := record{
		tok: s.tok, array: at, spec: &spec, class: class, submit: e.At,
	}
	base.heldBy(&job.Spec{}, &spec)
	id := e.ID
	if at < 0 {
		r := base
		r.id = id
		s.jobs = append(s.jobs, &r)
	} else {
		for _, span := range spec.Array.Tasks {
			for i := range span.Len() {
				r := base
				r.id, r.task = id, span.First+uint32(i)*span.Step
				s.jobs = append(s.jobs, &r)
				id++
			}
		}
	}
	s.unfinished += n
	s.last = e.ID + job.ID(n) - 1
	for i := len(s.jobs) - n; i < len(s.jobs); i++ {
		s.await(s.jobs[i])
		s.enter(i)
	}
	return nil
}

// heldBy holds a job, or ends that, where its spec says another thing than the one before.
func (r *record) heldBy(was, is *job.Spec) {
	set := func(bit uint8, was, is bool) {
		if was && !is {
			r.held &^= bit
		} else if is && !was {
			r.held |= bit
		}
	}
	zero := func(p *job.Spec) bool { return p.Priority != nil && *p.Priority == 0 }
	set(heldUser, was.Hold, is.Hold)
	set(heldAdmin, zero(was), zero(is))
}

// enter has a job that is new, or asks for something new, wait for what it has to.
func (s *Scheduler) enter(i int) {
	r := s.jobs[i]
	if !r.met && singleton(r.spec) && !slices.Contains(s.singles, r.id) {
		s.singles = append(slices.Clip(s.singles), r.id)
	}
	if t := r.spec.Begin; t > s.now {
		s.ownClock(&s.wake).push(timer{t, r.id})
	}
	if t := s.latest(r); t >= s.now {
		s.ownClock(&s.wake).push(timer{t.Add(1), r.id})
	} else if t > 0 {
		s.expired = append(s.expired, r.id)
	}
	s.consider(i)
}

// latest is the last moment at which a job can start; 0 if it has no deadline.
func (s *Scheduler) latest(r *record) job.Time {
	if r.spec.Deadline == 0 {
		return 0
	}
	return max(1, r.spec.Deadline.Add(-s.leastOfParts(r.spec)))
}

// leastOfParts is the least limit that a spec can have in any of its partitions.
func (s *Scheduler) leastOfParts(spec *job.Spec) job.Duration {
	limit := job.Forever
	for _, p := range s.partitionsOf(spec) {
		limit = min(limit, s.leastIn(spec, p))
	}
	return limit
}

// accept returns the class of a spec, or why jobs of that spec cannot be, without the event.
func (s *Scheduler) accept(spec *job.Spec, id job.ID) (int32, *Refused) {
	refuse := func(why, nearest string) (int32, *Refused) {
		return 0, &Refused{Why: why, Nearest: nearest}
	}
	if why, nearest := checkSpec(spec); why != "" {
		return refuse(why, nearest)
	}
	if spec.Array != nil {
		limit := s.config.MaxArray
		if limit == 0 {
			limit = 1001
		}
		if last := spec.Array.Tasks[len(spec.Array.Tasks)-1].Last; last >= limit {
			return refuse(fmt.Sprintf("array index %d is not below %d", last, limit), fmt.Sprintf("--array=0-%d", limit-1))
		}
	}
	for _, name := range spec.Partitions {
		if _, ok := s.partNumber(name); !ok {
			return refuse("there is no partition "+name, s.nearestPart(name))
		}
	}
	var few [4]int
	parts := s.partitionsIn(few[:0], spec)
	if len(parts) == 0 {
		return refuse("there is no partition", "")
	}
	if why, nearest := s.unlicensed(spec); why != "" {
		return refuse(why, nearest)
	}
	for _, name := range spec.NodeList {
		if i, ok := s.nodeNumber(name); !ok || s.nodes[i].gone {
			return refuse("there is no node "+name, s.nearestNode(name))
		}
	}
	if i, ok := s.find(id); !ok || !s.jobs[i].met || !sameDependencies(spec, s.jobs[i].spec) {
		if why := s.checkDependencies(spec, id); why != "" {
			return refuse(why, "")
		}
	}
	var last string
	open := 0
	for _, p := range parts {
		if why := s.parts[p].refuses(spec); why != "" {
			last = "partition " + s.parts[p].spec.Name + ": " + why
		} else if st := s.parts[p].spec.State; st == job.PartitionDrain || st == job.PartitionInactive {
			last = "partition " + s.parts[p].spec.Name + " takes no jobs"
		} else {
			open++
		}
	}
	if open == 0 {
		return refuse(last, "")
	}
	if t := max(s.now, spec.Begin); spec.Deadline > 0 && t.Add(s.leastOfParts(spec)) > spec.Deadline {
		return refuse("it cannot end before its deadline", "--deadline later, or less --time")
	}
	class := s.classOf(spec, false)
	if s.classes[class].missing > 0 || s.possible(class) {
		return class, nil
	}
	if waits(spec) && s.possible(s.classOf(spec, true)) {
		return class, nil
	}
	why, nearest := s.impossible(s.classes[class])
	return refuse(why, nearest)
}

// waits says whether spec asks for few switches for a while only.
func waits(spec *job.Spec) bool {
	return spec.Topology.Switches > 0 && spec.Topology.Wait < job.Forever
}

// possible says whether a class could start if nothing else ran.
func (s *Scheduler) possible(class int32) bool {
	c := s.classes[class]
	if c.checked {
		return c.possible
	}
	c = s.ownClass(class) // which a fork may have, too
	c.checked = true
	for i := range c.options {
		o := &c.options[i]
		if o.total != nil {
			if s.possibleShared(o) {
				c.possible = true
				return true
			}
			continue
		}
		topo := c.topology()
		if len(o.must) == 0 && len(o.counts) == 0 && topo.Segment == 0 && !topo.Block && topo.Required == 0 && topo.Switches == 0 && !c.spec.Contiguous {
			c.possible = true
			return true
		}
		var all []cand
		for x := range o.cells {
			for _, n := range s.cells[o.cells[x].cell].nodes {
				if !o.excludes(n) {
					all = append(all, cand{n, int16(x), false})
				}
			}
		}
		all = s.sortCands(all)
		if _, ok := s.choose(c, o, all, o.nodes); ok {
			c.possible = true
			return true
		}
	}
	return false
}

// impossible says why a class can never start and what the nearest is that could.
func (s *Scheduler) impossible(c *class) (why, nearest string) {
	most, biggest := 0, vec{}
	var best *kind
	for _, p := range s.partitionsOf(c.spec) {
		if !s.admits(c, p) {
			continue
		}
		for _, cell := range s.cells {
			if !cell.kind.in(p) {
				continue
			}
			most += len(cell.nodes)
			for i, n := range cell.kind.total {
				if biggest[i] < n {
					biggest[i] = n
				}
			}
			if best == nil || cell.kind.total[cell.kind.prim] > best.total[best.prim] || best.prim == slotCPU && cell.kind.prim != slotCPU {
				best = cell.kind
			}
		}
	}
	if best == nil {
		return "its partition has no nodes", ""
	}
	if why, nearest := s.brokenSegments(c); why != "" {
		return why, nearest
	}
	if c.could > 0 {
		return s.tooFew(c, most)
	}
	has := []string{fmt.Sprintf("%d CPUs", biggest[slotCPU])}
	if biggest[slotMemory] > 0 {
		has = append(has, fmt.Sprintf("%d MiB of memory", biggest[slotMemory]))
	}
	for i := range best.spec.GRES {
		g := &best.spec.GRES[i]
		has = append(has, fmt.Sprintf("%d %s", g.Count, gresName(g.Name, g.Type)))
	}
	if len(best.spec.Features) > 0 {
		has = append(has, "features "+strings.Join(best.spec.Features, ","))
	}
	return fmt.Sprintf("none of the %d nodes of its partition has what it asks for, or not enough of them do", most), "the largest node has " + strings.Join(has, ", ")
}

// change replaces what a job asks for; of one that runs, what amend says.
func (s *Scheduler) change(e job.Changed) error {
	what := "change job " + e.ID.String()
	i, ok := s.lookup(e.ID)
	if !ok {
		return &Refused{Event: what, Why: "there is no such job"}
	}
	switch st := s.jobs[i].state; st {
	case job.Pending:
	case job.Running:
		return s.amend(i, e)
	default:
		return &Refused{Event: what, Why: "it is " + st.String() + ", not PENDING"}
	}
	s.refresh()
	spec := e.Spec
	spec.Array = s.jobs[i].spec.Array
	class, no := s.accept(&spec, e.ID)
	if no != nil {
		no.Event = what
		return no
	}
	if a := e.Spec.Array; a != nil && s.jobs[i].array >= 0 && a.Throttle < 0 {
		return &Refused{Event: what, Why: fmt.Sprintf("%d tasks at a time are negative", a.Throttle)}
	}
	s.dequeue(i)
	r := s.ownJob(i)
	r.heldBy(r.spec, &spec)
	same := sameDependencies(&spec, r.spec)
	r.spec, r.class, r.soft, r.never = &spec, class, false, false
	if !same {
		r.met = false
		s.await(r)
	}
	if a := e.Spec.Array; a != nil && r.array >= 0 && a.Throttle != s.arrays[r.array].throttle {
		s.setThrottle(r.array, a.Throttle, i)
	}
	s.enter(i)
	if r.array >= 0 {
		s.promote(r.array)
	}
	return nil
}

// sameDependencies says whether two specs depend on the same.
func sameDependencies(a, b *job.Spec) bool {
	if a.Dependencies == nil || b.Dependencies == nil {
		return a.Dependencies == b.Dependencies
	}
	return a.Dependencies.Any == b.Dependencies.Any && slices.EqualFunc(a.Dependencies.List, b.Dependencies.List, func(a, b job.Dependency) bool {
		sameTask := a.Task == b.Task || a.Task != nil && b.Task != nil && *a.Task == *b.Task
		return sameTask && a.Type == b.Type && a.Job == b.Job && a.Delay == b.Delay
	})
}
