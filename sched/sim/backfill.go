package sim

import (
	"cmp"
	"math/bits"
	"slices"

	"github.com/gangway-hpc/gangway/internal/job"
)

// point is what is free from a moment on, until the next point.
type point struct {
	at   job.Time
	free room
}

// backfill is one cycle of a model: of the first jobs of the queue each gets the earliest
// start that delays no earlier one, and those whose start is now are started.
//
// Jobs whose pieces may be anywhere are planned by what is free in all, the others node by
// node. Licences are looked at only at the start.
func (m *Model) backfill(now job.Time) []job.Event {
	least := m.least()
	if !m.anyHolds(least[0]) {
		return nil
	}
	m.profiles(now)
	var total []point
	if slices.ContainsFunc(m.queue[:min(m.depth, len(m.queue))], func(j *modelJob) bool { return !j.gang }) {
		total = m.total(now)
	}
	bounds := make(bounds, len(m.kinds))
	var events []job.Event
	open, started := true, 0
	kept := m.queue[:0]
	for k, j := range m.queue {
		// What could not start now anyway needs no plan: plans end with the cycle.
		if started != len(events) || k < len(least) && (k == 0 || least[k] != least[k-1]) {
			open, started = m.anyHolds(least[min(k, len(least)-1)]), len(events)
		}
		if k >= m.depth || !open {
			kept = append(kept, m.queue[k:]...)
			break
		}
		var at job.Time
		var nodes []int
		from := bounds.from(j, now)
		if from > now.Add(m.window) {
			kept = append(kept, j)
			continue
		}
		if j.gang {
			at, nodes = m.earliest(j, from, now.Add(m.window))
		} else {
			at = fit(total, j.piece.times(j.count), from, j.limit)
		}
		bounds.found(j, at)
		if at > now.Add(m.window) {
			kept = append(kept, j) // beyond the window nothing is kept free for it
			continue
		}
		if at == now {
			if on := m.placeOn(j, nodes); on != nil {
				events = append(events, m.start(j, on, now))
				for _, t := range on {
					n := &m.nodes[t.node]
					n.profile = reserve(n.profile, j.piece.times(t.count), now, j.limit)
				}
				if total != nil {
					total = reserve(total, j.piece.times(j.count), now, j.limit)
				}
				continue
			}
		}
		for _, i := range nodes {
			m.nodes[i].profile = reserve(m.nodes[i].profile, j.piece, at, j.limit)
		}
		if total != nil {
			total = reserve(total, j.piece.times(j.count), at, j.limit)
		}
		kept = append(kept, j)
	}
	clear(m.queue[len(kept):])
	m.queue = kept
	return events
}

// least is, for each job within the depth, the least that it or a later one needs on a node.
func (m *Model) least() []room {
	all := make([]room, min(m.depth, len(m.queue)))
	for k := len(all) - 1; k >= 0; k-- {
		all[k] = m.queue[k].piece
		if k+1 < len(all) {
			n := all[k+1]
			all[k] = room{min(all[k].cpus, n.cpus), min(all[k].gpus, n.gpus), min(all[k].memory, n.memory)}
		}
	}
	return all
}

func (m *Model) anyHolds(r room) bool {
	return slices.ContainsFunc(m.nodes, func(n modelNode) bool { return n.free.holds(r) })
}

// bounds are moments before which jobs of a kind cannot start, by the power of two that
// their limit is at least: in a cycle room only becomes less, so what a shorter job of the
// kind did not get a longer one will not.
type bounds [][64]job.Time

// kind is what makes jobs alike but for their limits.
type kind struct {
	piece   room
	count   int
	gang    bool
	feature string
}

func (b bounds) from(j *modelJob, now job.Time) job.Time {
	return max(now, b[j.kind][bits.Len64(uint64(j.limit))-1])
}

func (b bounds) found(j *modelJob, at job.Time) {
	of := &b[j.kind]
	for i := bits.Len64(uint64(j.limit) - 1); i < 64; i++ {
		of[i] = max(of[i], at)
	}
}

// placeOn is place on given nodes, or anywhere if there are none.
func (m *Model) placeOn(j *modelJob, nodes []int) []taken {
	if nodes == nil {
		return m.place(j)
	}
	for _, l := range j.licenses {
		if m.licenses[l.Name] < l.Count {
			return nil
		}
	}
	var on []taken
	for _, i := range nodes {
		on = append(on, taken{i, 1})
	}
	return on
}

// profiles makes the profile of each node of what runs.
func (m *Model) profiles(now job.Time) {
	for i := range m.nodes {
		m.nodes[i].profile = append(m.nodes[i].profile[:0], point{now, m.nodes[i].free})
	}
	byEnd := m.byEnd(now)
	for _, e := range byEnd {
		for _, t := range e.job.on {
			n := &m.nodes[t.node]
			n.profile = rise(n.profile, e.at, e.job.piece.times(t.count))
		}
	}
}

// total is what is free on all nodes.
func (m *Model) total(now job.Time) []point {
	p := []point{{at: now}}
	for i := range m.nodes {
		p[0].free = p[0].free.minus(m.nodes[i].free.times(-1))
	}
	for _, e := range m.byEnd(now) {
		p = rise(p, e.at, e.job.piece.times(e.job.count))
	}
	return p
}

// planned is when a job that runs has to end.
type planned struct {
	at  job.Time
	job *modelJob
}

func (m *Model) byEnd(now job.Time) []planned {
	all := make([]planned, 0, len(m.running))
	for _, j := range m.running {
		all = append(all, planned{max(j.start.Add(j.limit), now+1), j})
	}
	slices.SortStableFunc(all, func(a, b planned) int { return cmp.Compare(a.at, b.at) })
	return all
}

// rise adds room from a moment on, which is not before the last point.
func rise(p []point, at job.Time, r room) []point {
	last := p[len(p)-1]
	if free := last.free.minus(r.times(-1)); last.at == at {
		p[len(p)-1].free = free
	} else {
		p = append(p, point{at, free})
	}
	return p
}

// fit is the earliest moment from which a profile has room for so long.
func fit(p []point, need room, from job.Time, length job.Duration) job.Time {
	at, good := job.Never, false
	first, found := slices.BinarySearchFunc(p, from, func(x point, at job.Time) int { return cmp.Compare(x.at, at) })
	if !found {
		first-- // the one that holds at that moment
	}
	for i := max(first, 0); i < len(p); i++ {
		switch {
		case !p[i].free.holds(need):
			good = false
		case !good:
			at, good = max(p[i].at, from), true
		}
		if good && (i+1 == len(p) || p[i+1].at >= at.Add(length)) {
			return at
		}
	}
	return job.Never
}

// reserve takes room out of a profile from a moment on for so long.
func reserve(p []point, r room, at job.Time, length job.Duration) []point {
	end := at.Add(length)
	p = split(split(p, at), end)
	for i := range p {
		if p[i].at >= at && p[i].at < end {
			p[i].free = p[i].free.minus(r)
		}
	}
	return p
}

// split makes a moment after the first point a point.
func split(p []point, at job.Time) []point {
	i, found := slices.BinarySearchFunc(p, at, func(x point, at job.Time) int { return cmp.Compare(x.at, at) })
	if found || i == 0 || at == job.Never {
		return p
	}
	return slices.Insert(p, i, point{at, p[i-1].free})
}

// earliest is when as many nodes as a gang needs have room at the same time, and which:
// the fullest ones of a leaf that has all of them, if there is one.
// After the last moment it is Never.
func (m *Model) earliest(j *modelJob, from, last job.Time) (job.Time, []int) {
	times := make([]job.Time, 0, len(m.nodes))
	for {
		times = times[:0]
		var can []taken
		for i := range m.nodes {
			n := &m.nodes[i]
			if !n.all.holds(j.piece) || !n.has(j) {
				continue
			}
			at := fit(n.profile, j.piece, from, j.limit)
			times = append(times, at)
			if at == from {
				can = append(can, taken{i, 1})
			}
		}
		if len(can) >= j.count {
			var nodes []int
			for _, t := range m.choose(j, can) {
				nodes = append(nodes, t.node)
			}
			return from, nodes
		}
		if len(times) < j.count {
			return job.Never, nil
		}
		slices.Sort(times)
		if next := times[j.count-1]; next > from && next <= last {
			from = next
			continue
		}
		return job.Never, nil
	}
}
