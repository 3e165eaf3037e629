package sched

import (
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
	c.unplan(i, true)
	c.constraints(r, &x)
	x.Text = c.sentence(r, &x)
	x.Relaxations = c.relaxations(s, r, x.Expected)
	return x, nil
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
	case !r.queued:
		return "it is planned when nothing but resources keeps it from starting"
	case r.promise == job.Never:
		return "no time within what is known: too few of its nodes are in service, or licences are missing"
	case r.plan == nil:
		return "it is not planned yet"
	}
	for k := range r.plan.picks {
		n := s.nodes[r.plan.picks[k].node]
		for _, id := range n.runs {
			if o := s.record(id); o.ends == r.plan.start {
				if o.ends.Sub(o.start) >= year {
					return noLimit(id, n.spec.Name)
				}
				return fmt.Sprintf("job %v reaches its time limit on node %s; if it ends sooner, this may too", id, n.spec.Name)
			}
		}
		for _, h := range n.holds {
			if o := s.record(h.id); o.plan != nil && o.plan.end == r.plan.start {
				if o.plan.end.Sub(o.plan.start) >= year {
					return noLimit(h.id, n.spec.Name)
				}
				return fmt.Sprintf("job %v, which is to start before it, reaches its time limit on node %s", h.id, n.spec.Name)
			}
		}
	}
	return "the time limits of jobs that run and of those before it"
}

// noLimit is the basis of a start that nothing bounds.
func noLimit(id job.ID, node string) string {
	return fmt.Sprintf("job %v on node %s has no time limit: nothing bounds when this starts", id, node)
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
		"too full now", "needed by other jobs before it would end",
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
		x.Constraints = append(x.Constraints, Constraint{names[i], n, left, are(n) + " " + texts[i]})
	}
	if o != nil && x.Fit >= o.nodes && r.queued {
		if _, ok := s.placeNow(c, o, s.leastIn(r.spec, o.part)); !ok {
			x.Constraints = append(x.Constraints, Constraint{"topology", x.Fit, 0, fmt.Sprintf("%d of the nodes could take their share, and not near enough to each other", x.Fit)})
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
		add("begin", "it is to begin in "+spanText(r.spec.Begin.Sub(s.now))+", not before")
	}
	if f, _ := s.dependency(r); f == open {
		add("dependency", "what it depends on has not happened yet: "+s.unmet(r))
	} else if f == hopeless {
		add("dependency", "what it depends on will never happen: "+s.unmet(r))
	}
	if s.throttled(r) {
		add("throttle", fmt.Sprintf("%d tasks of its array may run at a time", s.arrays[r.array].throttle))
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

// plural is a number of things.
func plural(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

// are is what something is said of.
func are(nodes int) string {
	if nodes == 1 {
		return "1 node is"
	}
	return plural(nodes, "node") + " are"
}

// sentence says it in one.
func (s *Scheduler) sentence(r *record, x *Explanation) string {
	var why []string
	for _, c := range x.Constraints {
		if c.Name != "partition" {
			why = append(why, c.Text)
		}
	}
	text := fmt.Sprintf("it needs %s; %d could take their share now", plural(x.Nodes, "node"), x.Fit)
	if len(why) > 0 {
		text += ": " + strings.Join(why, ", ")
	}
	if x.AheadCount > 0 {
		text += "; " + plural(x.AheadCount, "job") + " before it"
	}
	return text
}
