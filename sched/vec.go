package sched

import "github.com/gangway-hpc/gangway/internal/job"

// slots is how many kinds of resources one node can have: CPUs, memory and six GRES.
const slots = 8

const (
	slotCPU = iota
	slotMemory
	slotGRES // and those that follow
)

// vec is an amount of each resource of a node, in the order of its kind.
type vec [slots]int32

func (v *vec) holds(need *vec) bool {
	return need[0] <= v[0] && need[1] <= v[1] && need[2] <= v[2] && need[3] <= v[3] &&
		need[4] <= v[4] && need[5] <= v[5] && need[6] <= v[6] && need[7] <= v[7]
}

func (v *vec) add(w *vec) {
	for i := range v {
		v[i] += w[i]
	}
}

func (v *vec) sub(w *vec) {
	for i := range v {
		v[i] -= w[i]
	}
}

// step is what a node has free from a moment on, up to the next step.
type step struct {
	t    job.Time
	free vec
}

// timeline is what a node has free from now on: steps by rising time. The first begins
// long ago, the last one never ends. It holds what runs, up to its limit, and what is
// planned.
type timeline []step

// at is the index of the step in which t lies.
func (l timeline) at(t job.Time) int {
	if len(l) > 16 {
		lo, hi := 0, len(l)
		for lo+1 < hi {
			if m := (lo + hi) / 2; l[m].t <= t {
				lo = m
			} else {
				hi = m
			}
		}
		return lo
	}
	i := len(l) - 1
	for i > 0 && l[i].t > t {
		i--
	}
	return i
}

// until is when step i ends.
func (l timeline) until(i int) job.Time {
	if i+1 < len(l) {
		return l[i+1].t
	}
	return job.Never
}

// split makes a step begin at t and returns its index.
func (l *timeline) split(t job.Time) int {
	i := l.at(t)
	if (*l)[i].t == t || t < (*l)[0].t {
		return i
	}
	*l = append(*l, step{})
	copy((*l)[i+2:], (*l)[i+1:])
	(*l)[i+1] = step{t, (*l)[i].free}
	return i + 1
}

// take lowers what is free between from and to by v.
func (l *timeline) take(from, to job.Time, v *vec) {
	if from >= to {
		return
	}
	i := l.split(from)
	j := len(*l)
	if to != job.Never {
		j = l.split(to)
	}
	for ; i < j; i++ {
		(*l)[i].free.sub(v)
	}
}

// give is the opposite of take; steps that are no longer steps go.
func (l *timeline) give(from, to job.Time, v *vec) {
	if from >= to {
		return
	}
	i := l.split(from)
	j := len(*l)
	if to != job.Never {
		j = l.split(to)
	}
	for n := i; n < j; n++ {
		(*l)[n].free.add(v)
	}
	l.join(j)
	l.join(i)
}

// join drops step i if it is as the one before.
func (l *timeline) join(i int) {
	if i > 0 && i < len(*l) && (*l)[i].free == (*l)[i-1].free {
		*l = append((*l)[:i], (*l)[i+1:]...)
	}
}

// forget drops the steps that ended before now.
func (l *timeline) forget(now job.Time) {
	if len(*l) < 2 || (*l)[1].t > now {
		return
	}
	if i := l.at(now); i > 0 {
		*l = append((*l)[:0], (*l)[i:]...)
	}
}

// earliest is when need is free for d, not before from; Never if it never is.
func (l timeline) earliest(need *vec, from job.Time, d job.Duration) job.Time {
	start, open := from, false
	for i := l.at(from); i < len(l); i++ {
		if !l[i].free.holds(need) {
			open = false
			continue
		}
		if !open {
			start, open = max(from, l[i].t), true
		}
		if end := l.until(i); end == job.Never || end.Sub(start) >= d {
			return start
		}
	}
	return job.Never
}

// free is for how long need is free from t on; 0 if it is not.
func (l timeline) free(need *vec, t job.Time) job.Duration {
	for i := l.at(t); i < len(l); i++ {
		if !l[i].free.holds(need) {
			return max(0, l[i].t.Sub(t))
		}
	}
	return job.Forever
}

// windows yields the spans of at least d in which need is free, from from on, by rising
// start, up to the first that begins after last.
func (l timeline) windows(need *vec, from, last job.Time, d job.Duration, yield func(a, b job.Time)) {
	start, open := from, false
	for i := l.at(from); i < len(l); i++ {
		ok := l[i].free.holds(need)
		switch {
		case ok && !open:
			start, open = max(from, l[i].t), true
			if start > last {
				return
			}
		case !ok && open:
			if open = false; l[i].t.Sub(start) >= d {
				yield(start, l[i].t)
			}
		}
	}
	if open {
		yield(start, job.Never)
	}
}
