package sched

import (
	"cmp"
	"slices"

	"github.com/gangway-hpc/gangway/internal/job"
)

// A number of GRES for the whole job (--gpus) is shared out among its nodes as Slurm does:
// each has one at least, and the first ones as many as they have. Where each node can have
// as many as the others that is tried first.

// sharedTotal is the request of spec that its nodes may share in any way; nil: there is
// none, or it asks for something about its nodes that then is not looked at.
func sharedTotal(spec *job.Spec) *job.GRESRequest {
	var total *job.GRESRequest
	for i := range spec.GRES {
		if g := &spec.GRES[i]; g.Per == job.PerJob && g.Count > 1 {
			if total != nil {
				return nil
			}
			total = g
		}
	}
	if spec.Exclusive || spec.Contiguous || spec.Topology != (job.Topology{}) || len(spec.NodeList) > 0 || hasCounts(spec.Constraint) {
		return nil
	}
	return total
}

// sizeShared is size for a shared total.
func (o *option) sizeShared(spec *job.Spec, part *job.Partition) bool {
	if o.total = sharedTotal(spec); o.total == nil || part.Exclusive {
		return false
	}
	o.nodes = max(1, spec.MinNodes, part.MinNodes)
	most := int64(spec.MaxNodes)
	if most == 0 {
		most = int64(spec.MinNodes)
	}
	if most == 0 {
		most = o.total.Count
	}
	most = min(most, o.total.Count)
	for _, limit := range []int{spec.Tasks, part.MaxNodes} {
		if limit > 0 {
			most = min(most, int64(limit))
		}
	}
	o.most = int(most)
	return o.most > 1 && o.most >= o.nodes
}

// sharedNeed is what an option takes of nodes of a kind, for each part of the total.
func (o *option) sharedNeed(part *job.Partition, k *kind, cell int32) []need {
	x := need{cell: cell, slots: k.slots(o.total)}
	spec := *o.spec
	spec.GRES = slices.Clone(spec.GRES)
	at := slices.IndexFunc(spec.GRES, func(g job.GRESRequest) bool { return g == *o.total })
	most := int64(0)
	for _, slot := range x.slots {
		most += int64(k.total[slot])
	}
	for n := int64(1); n <= min(most, o.total.Count, 64); n++ {
		spec.GRES[at].Per, spec.GRES[at].Count = job.PerNode, n
		if spec.Tasks = 0; o.spec.Tasks > 0 {
			spec.TasksPerNode = o.tasksFor(n)
			if limit := o.spec.TasksPerNode; limit > 0 && spec.TasksPerNode > limit {
				break
			}
		}
		v, ok := perNode(&spec, part, k, 1)
		if !ok {
			break
		}
		if n == 1 {
			x.v = v
		}
		for _, slot := range x.slots {
			if v[slot] = 0; len(x.slots) > 1 {
				x.v[slot] = 0 // it may be of any type
			}
		}
		x.shares = append(x.shares, v)
	}
	if len(x.shares) == 0 {
		return nil
	}
	return []need{x}
}

// tasksFor is how many tasks go with n of the total.
func (o *option) tasksFor(n int64) int {
	return int((int64(o.spec.Tasks)*n + o.total.Count - 1) / o.total.Count)
}

// tasksAt is how many tasks node k of an allocation has: as many as go with its part, and
// one at least is left for each of the others.
func (o *option) tasksAt(s *Scheduler, picks []pick, k int) int {
	left := o.spec.Tasks
	for i := range picks {
		part := int64(0)
		for _, slot := range s.cells[s.nodes[picks[i].node].place.cell].kind.slots(o.total) {
			part += int64(picks[i].v[slot])
		}
		n := min(o.tasksFor(part), left-(len(picks)-1-i))
		if i == k {
			return n
		}
		left -= n
	}
	return 0
}

// room is how many of the total a node can give that has that much free.
func (x *need) room(free *vec) int {
	n := 0
	for _, slot := range x.slots {
		n += int(max(0, free[slot]))
	}
	n = min(n, len(x.shares))
	for n > 0 && !free.holds(&x.shares[n-1]) {
		n--
	}
	return n
}

// share is what n of the total take of a node that has that much free.
func (x *need) share(free *vec, n int) vec {
	v := x.shares[n-1]
	for _, slot := range x.slots {
		take := min(int32(n), free[slot])
		v[slot] += take
		n -= int(take)
	}
	return v
}

// low is the least that is free of each resource in a span.
func (l timeline) low(from job.Time, d job.Duration) vec {
	i := l.at(from)
	v, end := l[i].free, from.Add(d)
	for i++; i < len(l) && l[i].t < end; i++ {
		for k := range v {
			v[k] = min(v[k], l[i].free[k])
		}
	}
	return v
}

// giver is a node that could give some of a total.
type giver struct {
	cand
	free vec
	room int
}

// givers are the nodes that could give some of a total for a span, in the order of the
// topology.
func (s *Scheduler) givers(o *option, from job.Time, d job.Duration) []giver {
	var all []giver
	for x := range o.cells {
		for _, i := range s.cells[o.cells[x].cell].nodes {
			n := s.nodes[i]
			if !n.open() || o.excludes(i) || !n.total.holds(&o.cells[x].v) {
				continue
			}
			free := n.line.low(from, d)
			if from == s.now {
				for k := range free {
					free[k] = min(free[k], n.free[k])
				}
			}
			if room := o.cells[x].room(&free); room > 0 {
				all = append(all, giver{cand{i, int16(x), false}, free, room})
			}
		}
	}
	slices.SortFunc(all, func(a, b giver) int { return cmp.Compare(s.net.order[a.node], s.net.order[b.node]) })
	return all
}

// shareOut picks the nodes that give a total: below the lowest switch that can, of those the
// one with the least room, and there as few nodes as can be.
func (s *Scheduler) shareOut(o *option, all []giver) ([]pick, bool) {
	for level := range s.net.levels + 1 {
		var best []giver
		least := 0
		for lo := 0; lo < len(all); {
			hi := lo + 1
			for hi < len(all) && (level == s.net.levels || s.net.domain[level][all[hi].node] == s.net.domain[level][all[lo].node]) {
				hi++
			}
			if chosen, sum, ok := o.fewestGivers(all[lo:hi]); ok && (best == nil || len(chosen) < len(best) || len(chosen) == len(best) && sum < least) {
				best, least = chosen, sum
			}
			lo = hi
		}
		if best != nil {
			return s.shareAmong(o, best), true
		}
	}
	return nil, false
}

// fewestGivers takes those with the most room, but for the last one, which is the one with
// the least that does. It also returns how much room they have together.
func (o *option) fewestGivers(all []giver) ([]giver, int, bool) {
	sorted := slices.Clone(all)
	slices.SortStableFunc(sorted, func(a, b giver) int { return b.room - a.room })
	total, sum := int(o.total.Count), 0
	for i := range sorted[:min(len(sorted), o.most)] {
		need := max(1, total-sum)
		if i+1 >= o.nodes && sorted[i].room >= need {
			last := i
			for j := i + 1; j < len(sorted) && sorted[j].room >= need; j++ {
				if sorted[j].room < sorted[last].room {
					last = j
				}
			}
			return append(sorted[:i:i], sorted[last]), sum + sorted[last].room, true
		}
		sum += sorted[i].room
	}
	return nil, 0, false
}

// shareAmong gives each node its part of the total: the first ones as much as they have.
func (s *Scheduler) shareAmong(o *option, chosen []giver) []pick {
	slices.SortFunc(chosen, func(a, b giver) int { return cmp.Compare(s.net.order[a.node], s.net.order[b.node]) })
	picks := make([]pick, len(chosen))
	left := int(o.total.Count)
	for i := range chosen {
		g := &chosen[i]
		n := min(g.room, left-(len(chosen)-i-1))
		picks[i] = pick{g.node, o.cells[g.cell].share(&g.free, n)}
		left -= n
	}
	return picks
}

// roomEvent is that from a moment on a job of a length could have more of a total, or less.
type roomEvent struct {
	t           job.Time
	room, nodes int
}

// earliestShared is when, before a time, nodes could give a total at the earliest.
func (s *Scheduler) earliestShared(o *option, from job.Time, d job.Duration, before job.Time) placement {
	p := placement{option: o, start: before, limit: d}
	var events []roomEvent
	for x := range o.cells {
		for _, i := range s.cells[o.cells[x].cell].nodes {
			if n := s.nodes[i]; n.open() && !o.excludes(i) {
				events = o.cells[x].rooms(n.line, from, d, events)
			}
		}
	}
	slices.SortFunc(events, func(a, b roomEvent) int { return cmp.Compare(a.t, b.t) })
	room, nodes := 0, 0
	for i, e := range events {
		if e.t >= before {
			break
		}
		room, nodes = room+e.room, nodes+e.nodes
		if i+1 < len(events) && events[i+1].t == e.t || room < int(o.total.Count) || nodes < o.nodes {
			continue
		}
		if picks, ok := s.shareOut(o, s.givers(o, e.t, d)); ok {
			p.start, p.picks = e.t, picks
			break
		}
	}
	return p
}

// rooms appends when a node has room for 1, 2, ... of a total for d, from from on: for each
// number when the spans in which it has begin, and up to when a job may begin in them.
func (x *need) rooms(l timeline, from job.Time, d job.Duration, events []roomEvent) []roomEvent {
	first := l.at(from)
	most := 0
	for i := first; i < len(l); i++ {
		most = max(most, x.room(&l[i].free))
	}
	for n := 1; n <= most; n++ {
		nodes := 0
		if n == 1 {
			nodes = 1
		}
		for i := first; i < len(l); i++ {
			if x.room(&l[i].free) < n {
				continue
			}
			start := max(from, l[i].t)
			for i+1 < len(l) && x.room(&l[i+1].free) >= n {
				i++
			}
			end := l.until(i)
			if end != job.Never && end.Sub(start) < d {
				continue
			}
			events = append(events, roomEvent{start, 1, nodes})
			if end != job.Never {
				events = append(events, roomEvent{end.Add(-d) + 1, -1, -nodes})
			}
		}
	}
	return events
}

// possibleShared says whether empty nodes could give a total.
func (s *Scheduler) possibleShared(o *option) bool {
	var all []giver
	for x := range o.cells {
		cell := s.cells[o.cells[x].cell]
		for _, i := range cell.nodes {
			if !o.excludes(i) {
				all = append(all, giver{cand{i, int16(x), false}, cell.kind.total, o.cells[x].room(&cell.kind.total)})
			}
		}
	}
	_, _, ok := o.fewestGivers(all)
	return ok
}
