package sched

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/gangway-hpc/gangway/internal/job"
)

// Explanation says why a job waits.
type Explanation struct {
	ID          job.ID
	Reason      string       // Slurm's one word
	Text        string       // a sentence for people
	Constraints []Constraint // what stands in its way, in the order in which it is looked at
	Nodes       int          // how many nodes it needs
	Fit         int          // nodes on which it could start now
	Could       int          // nodes on which it could ever run
	Ahead       []job.ID     // jobs that are looked at before it, at most 10
	AheadCount  int
	Expected    job.Time // job.Never: not as things are; 0: not planned
	Basis       string   // what the expected start rests on
	Relaxations []Relaxation
}

// Constraint is one thing that keeps nodes from a job.
type Constraint struct {
	Name  string // "partition", "features", "named", "size", "state", "busy", "planned", "topology", "licenses", ...
	Nodes int    // how many nodes it rules out, of those that earlier ones left
	Left  int    // how many are left
	Text  string
}

// Relaxation is a change to what a job asks for that starts it earlier. It was tried on a
// copy; if more than 2,000 jobs are planned, with all that is planned for others left as
// it is.
type Relaxation struct {
	Text  string // "--nodes=3"
	Start job.Time
	Spec  job.Spec
}

// Explain says why a pending job waits, when it is expected to start and what would start
// it sooner.
func (s *Scheduler) Explain(id job.ID, now job.Time) (Explanation, error) {
	if _, ok := s.lookup(id); !ok {
		return Explanation{}, &Refused{Event: "explain job " + id.String(), Why: "there is no such job"}
	}
	c := s.Fork()
	c.refresh()
	c.advance(min(max(now, c.now), latestTime), true)
	i := c.index(id)
	r := c.ownJob(i)
	if r.state != job.Pending {
		return Explanation{}, &Refused{Event: "explain job " + id.String(), Why: "it is " + r.state.String() + ", not PENDING"}
	}
	x := Explanation{ID: id, Reason: c.reason(r), Expected: r.promise, Basis: c.basis(r)}
	c.ahead(r, &x)
	c.unplan(i, false)
	c.constraints(r, &x)
	x.Text = c.sentence(r, &x)
	if r.queued {
		x.Relaxations = c.relaxations(r, &x)
		if s.planned <= maxVerified {
			x.Relaxations = s.verified(id, c.now, x.Relaxations, r.promise)
		}
	}
	return x, nil
}

// maxVerified is how many jobs may be planned for relaxations to be tried in full: then
// other jobs may move too.
const maxVerified = 2000

// verified tries relaxations as a change of the job, and a decision after it, would be.
func (s *Scheduler) verified(id job.ID, now job.Time, list []Relaxation, before job.Time) []Relaxation {
	var found []Relaxation
	for _, x := range list {
		c := s.Fork()
		if err := c.Apply(job.Changed{At: now, ID: id, Spec: x.Spec}); err != nil {
			continue
		}
		c.Decide(now)
		x.Start = c.record(id).expected()
		if x.Start != job.Never && (before == 0 || x.Start < before) {
			found = append(found, x)
		}
	}
	slices.SortStableFunc(found, func(a, b Relaxation) int { return cmp.Compare(a.Start, b.Start) })
	return found
}

// ahead lists the jobs before r that could use the same partitions.
func (s *Scheduler) ahead(r *record, x *Explanation) {
	if !r.queued {
		return
	}
	var first []key
	for _, c := range s.classes {
		if c.queue.n == 0 || !s.shareParts(c.spec, r.spec) {
			continue
		}
		for _, b := range c.queue.blocks {
			if b.entries[len(b.entries)-1].compare(r.key) < 0 {
				x.AheadCount += len(b.entries)
			} else {
				for i := range b.entries {
					if b.entries[i].compare(r.key) < 0 {
						x.AheadCount++
					}
				}
			}
			for i := range min(10, len(b.entries)) {
				if k := b.entries[i].key; k.compare(r.key) < 0 && len(first) < 4096 {
					first = append(first, k)
				}
			}
		}
	}
	slices.SortFunc(first, key.compare)
	for _, k := range first[:min(10, len(first))] {
		x.Ahead = append(x.Ahead, k.id)
	}
}

// basis is what has to happen for the expected start.
func (s *Scheduler) basis(r *record) string {
	switch {
	case r.promise == job.Never:
		return "no time within what is known: too few of its nodes are in service, or licences are missing"
	case r.plan == nil:
		return "it is not planned yet"
	}
	for k := range r.plan.picks {
		n := s.nodes[r.plan.picks[k].node]
		for _, id := range n.runs {
			if o := s.record(id); o.ends == r.plan.start {
				return fmt.Sprintf("job %v reaches its time limit on node %s; if it ends sooner, this may too", id, n.spec.Name)
			}
		}
		for _, h := range n.holds {
			if o := s.record(h.id); o.plan != nil && o.plan.end == r.plan.start {
				return fmt.Sprintf("job %v, which is to start before it, reaches its time limit on node %s", h.id, n.spec.Name)
			}
		}
	}
	return "the time limits of jobs that run and of those before it"
}

// constraints counts on how many nodes each condition fails, one after the other.
func (s *Scheduler) constraints(r *record, x *Explanation) {
	c := s.classes[r.class]
	parts := s.partitionsOf(r.spec)
	x.Could = c.could
	var o *option
	if len(c.options) > 0 {
		o = &c.options[0]
		x.Nodes = o.nodes
	}
	left := 0
	var counts [7]int
	names := [7]string{"partition", "features", "named", "size", "state", "busy", "planned"}
	texts := [7]string{
		"not in its partitions", "without the features", "excluded by name", "too small, even when empty", "not in service",
		"with too little free now", "needed by other jobs before it would end",
	}
	for i, n := range s.nodes {
		if n.gone {
			continue
		}
		left++
		if why := s.hinders(r, c, parts, int32(i)); why >= 0 {
			counts[why]++
		} else {
			x.Fit++
		}
	}
	for i, n := range counts {
		if n == 0 {
			continue
		}
		left -= n
		x.Constraints = append(x.Constraints, Constraint{names[i], n, left, fmt.Sprintf("%d nodes are %s", n, texts[i])})
	}
	if o != nil && x.Fit >= o.nodes && r.queued {
		if _, ok := s.placeNow(c, o, s.leastIn(r.spec, o.part)); !ok {
			x.Constraints = append(x.Constraints, Constraint{"topology", x.Fit, 0, fmt.Sprintf("%d nodes could take their share, and not near enough to each other", x.Fit)})
		}
	}
	s.otherConstraints(r, x)
}

// otherConstraints adds those that are not about nodes.
func (s *Scheduler) otherConstraints(r *record, x *Explanation) {
	add := func(name, text string) {
		x.Constraints = append(x.Constraints, Constraint{Name: name, Left: x.Fit, Text: text})
	}
	if r.held != 0 {
		add("held", "it is held")
	}
	if r.spec.Begin > s.now {
		add("begin", fmt.Sprintf("it is not to begin before %d", r.spec.Begin))
	}
	if f, _ := s.dependency(r); f == open {
		add("dependency", "jobs that it depends on have not got that far")
	} else if f == hopeless {
		add("dependency", "what it depends on will never happen")
	}
	if r.array >= 0 && !r.queued && r.held == 0 {
		if a := s.arrays[r.array]; a.throttle > 0 && a.active >= a.throttle {
			add("throttle", fmt.Sprintf("%d tasks of its array may run at a time", a.throttle))
		}
	}
	for _, l := range r.spec.Licenses {
		if s.licenseFree(l, s.now, 1) != s.now {
			add("licenses", fmt.Sprintf("fewer than %d of licence %s are free", l.Count, l.Name))
		}
	}
	var any []string
	for _, l := range r.spec.AnyLicense {
		if s.licenseFree(l, s.now, 1) == s.now {
			return
		}
		any = append(any, fmt.Sprintf("%d of %s", l.Count, l.Name))
	}
	if len(any) > 0 {
		add("licenses", "of licences none of these is free: "+strings.Join(any, ", "))
	}
}

// hinders is which of the conditions fails first on a node; -1: none does.
func (s *Scheduler) hinders(r *record, c *class, parts []int, i int32) int {
	n := s.nodes[i]
	if n.place.cell < 0 || !slices.ContainsFunc(parts, func(p int) bool { return s.cells[n.place.cell].kind.in(p) }) {
		return 0
	}
	if slices.Contains(r.spec.Exclude, n.spec.Name) {
		return 2
	}
	best := 1
	if slices.ContainsFunc(alternatives(r.spec.Constraint), func(a *job.Constraint) bool {
		all, _ := splitCounts(a)
		return satisfies(all, n.spec.Features)
	}) {
		best = 3
	}
	for k := range c.options {
		o := &c.options[k]
		for x := range o.cells {
			if o.cells[x].cell != n.place.cell {
				continue
			}
			switch {
			case !n.open():
				best = max(best, 4)
			case !n.free.holds(&o.cells[x].v):
				best = max(best, 5)
			case n.line.free(&o.cells[x].v, s.now) < s.leastIn(r.spec, o.part):
				best = max(best, 6)
			default:
				return -1
			}
		}
	}
	return best
}

// sentence says it in one.
func (s *Scheduler) sentence(r *record, x *Explanation) string {
	var why []string
	for _, c := range x.Constraints {
		if c.Name != "partition" {
			why = append(why, c.Text)
		}
	}
	text := fmt.Sprintf("it needs %d nodes; %d have room for it now", x.Nodes, x.Fit)
	if len(why) > 0 {
		text += ": " + strings.Join(why, ", ")
	}
	if x.AheadCount > 0 {
		text += fmt.Sprintf("; %d jobs are before it", x.AheadCount)
	}
	return text
}

// relaxations tries changes to what a job asks for, each by itself, and returns those with
// which it starts earlier: the earliest first. The receiver is a copy, and what was planned
// for the job is given up in it.
func (s *Scheduler) relaxations(r *record, x *Explanation) []Relaxation {
	var found []Relaxation
	before := r.promise
	if before == 0 {
		before = job.Never
	}
	was, class, soft := r.spec, r.class, r.soft
	s.eachChange(r, x, func(text string, spec job.Spec) {
		spec.Array = was.Array
		c, no := s.accept(&spec, r.id)
		if no != nil {
			return
		}
		r.spec, r.class, r.soft = &spec, c, false
		if p := s.earliest(r, s.now); p.start < before {
			found = append(found, Relaxation{text, p.start, spec})
		}
		r.spec, r.class, r.soft = was, class, soft
	})
	slices.SortStableFunc(found, func(a, b Relaxation) int { return cmp.Compare(a.Start, b.Start) })
	return found[:min(5, len(found))]
}

// eachChange yields changes that could help, the smallest first.
func (s *Scheduler) eachChange(r *record, x *Explanation, try func(string, job.Spec)) {
	spec := *r.spec
	if t := spec.Topology; t.Switches > 0 || t.Required > 0 || t.Segment > 0 || t.Block {
		with := spec
		with.Topology = job.Topology{}
		try("without --switches, --segment or a level of topology", with)
	}
	for i := range s.classes[r.class].options {
		o := &s.classes[r.class].options[i]
		if reach := s.reachOf(o); reach >= job.Minute && reach < s.limitIn(r.spec, o.part) {
			with := spec
			with.TimeLimit = reach / job.Minute * job.Minute
			with.TimeMin = 0
			try("--time="+spanText(with.TimeLimit), with)
			break
		}
	}
	if x.Fit > 0 && x.Fit < x.Nodes && spec.MinNodes > 1 {
		with := spec
		with.MinNodes, with.MaxNodes = x.Fit, 0
		try(fmt.Sprintf("--nodes=%d", x.Fit), with)
	}
	if spec.MinNodes > 1 {
		with := spec
		with.MinNodes, with.MaxNodes = (spec.MinNodes+1)/2, 0
		try(fmt.Sprintf("--nodes=%d", with.MinNodes), with)
	}
	if spec.Constraint != nil {
		with := spec
		with.Constraint = nil
		try("without --constraint", with)
	}
	if len(spec.NodeList) > 0 || len(spec.Exclude) > 0 {
		with := spec
		with.NodeList, with.Exclude = nil, nil
		try("without --nodelist and --exclude", with)
	}
	if spec.Exclusive {
		with := spec
		with.Exclusive = false
		try("without --exclusive", with)
	}
	for i := range spec.GRES {
		for _, n := range []int64{spec.GRES[i].Count - 1, spec.GRES[i].Count / 2} {
			if n <= 0 {
				continue
			}
			with := spec
			with.GRES = slices.Clone(spec.GRES)
			with.GRES[i].Count = n
			try(fmt.Sprintf("%d %s in place of %d", n, gresName(with.GRES[i].Name, with.GRES[i].Type), spec.GRES[i].Count), with)
		}
		if spec.GRES[i].Type != "" {
			with := spec
			with.GRES = slices.Clone(spec.GRES)
			with.GRES[i].Type = ""
			try("any type of "+spec.GRES[i].Name, with)
		}
	}
	if spec.Memory.MiB > 1 || spec.Memory.All {
		with := spec
		with.Memory = job.Memory{MiB: max(1, spec.Memory.MiB/2), Per: spec.Memory.Per}
		try(fmt.Sprintf("half of the memory, %d MiB", with.Memory.MiB), with)
	}
	if spec.CPUsPerTask > 1 {
		with := spec
		with.CPUsPerTask = spec.CPUsPerTask / 2
		try(fmt.Sprintf("--cpus-per-task=%d", with.CPUsPerTask), with)
	}
	if len(spec.Licenses)+len(spec.AnyLicense) > 0 {
		with := spec
		with.Licenses, with.AnyLicense = nil, nil
		try("without --licenses", with)
	}
	for i := range s.parts {
		if p := &s.parts[i]; !p.gone && !slices.Contains(s.partitionsOf(r.spec), i) {
			with := spec
			with.Partitions = []string{p.spec.Name}
			try("--partition="+p.spec.Name, with)
		}
	}
}
