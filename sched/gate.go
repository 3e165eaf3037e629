package sched

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gangway-hpc/gangway/internal/job"
)

// What keeps a job from being planned at all: a hold, a begin time, what it depends on, the
// throttle of its array.

// throttled says whether a job waits for other tasks of its array to end.
func (s *Scheduler) throttled(r *record) bool {
	if r.array < 0 || r.queued {
		return false
	}
	a := s.arrays[r.array]
	return a.throttle > 0 && a.active >= a.throttle
}

// opened is the change without which a job would not even be planned: all that keeps it from
// that, since less would not do. It is not ok if nothing does.
func (s *Scheduler) opened(r *record) (x Relaxation, ok bool) {
	x.Spec = *r.spec
	var what []string
	if r.held != 0 {
		x.Release = true
		what = append(what, "released")
	}
	if r.spec.Begin > s.now {
		x.Spec.Begin, x.changed = 0, true
		what = append(what, "--begin=now")
	}
	if f, _ := s.dependency(r); f != met {
		x.Spec.Dependencies, x.changed = s.metOnly(r), true
		what = append(what, "without --dependency="+s.unmet(r))
	}
	if s.throttled(r) {
		array := *r.spec.Array
		array.Throttle = s.arrays[r.array].active + 1
		x.Spec.Array, x.changed = &array, true
		what = append(what, fmt.Sprintf("ArrayTaskThrottle=%d", array.Throttle))
	}
	x.Text = strings.Join(what, ", ")
	return x, len(what) > 0
}

// opens is when a job that is not planned would start if all goes on as it is known to:
// job.Never if that is not known. Nothing is set aside for it until then.
func (s *Scheduler) opens(r *record) job.Time {
	f, at := s.dependency(r)
	if r.held != 0 || s.throttled(r) || f == hopeless || f == open && at == job.Never {
		return job.Never
	}
	if f == met {
		at = 0
	}
	return s.earliest(r, max(s.now, at, r.spec.Begin)).start
}

// metOnly is what is left of the dependencies of a job without those that keep it; where one
// of several is enough, all do.
func (s *Scheduler) metOnly(r *record) *job.Dependencies {
	d := *r.spec.Dependencies
	d.List = slices.DeleteFunc(slices.Clone(d.List), func(d job.Dependency) bool {
		f, _ := s.condition(r, d)
		return f != met
	})
	if len(d.List) == 0 {
		return nil
	}
	return &d
}

// unmet is the dependencies that keep a job, as Slurm writes them.
func (s *Scheduler) unmet(r *record) string {
	var all []string
	for _, d := range r.spec.Dependencies.List {
		if f, _ := s.condition(r, d); f != met {
			all = append(all, dependencyText(&d))
		}
	}
	if r.spec.Dependencies.Any {
		return strings.Join(all, "?")
	}
	return strings.Join(all, ",")
}

func dependencyText(d *job.Dependency) string {
	names := [...]string{"after", "afterany", "afterok", "afternotok", "aftercorr", "afterburstbuffer", "singleton"}
	if d.Type == job.Singleton {
		return names[d.Type]
	}
	text := names[d.Type] + ":" + d.Job.String()
	if d.Task != nil {
		text += fmt.Sprintf("_%d", *d.Task)
	}
	if d.Delay > 0 {
		text += fmt.Sprintf("+%d", (d.Delay+job.Minute-1)/job.Minute)
	}
	return text
}

// setThrottle has an array run so many tasks at a time, job first before the others that
// wait; 0: all. What runs goes on; tasks that were planned and are too many wait again.
func (s *Scheduler) setThrottle(i int32, throttle, first int) {
	a := s.ownArray(i)
	a.throttle = throttle
	from := s.index(a.first)
	specs := map[*job.Spec]*job.Spec{}
	for at := a.n - 1; at >= 0; at-- {
		r := s.ownJob(from + at)
		if specs[r.spec] == nil {
			spec, array := *r.spec, *r.spec.Array
			array.Throttle = throttle
			spec.Array, specs[r.spec] = &array, &spec
		}
		r.spec = specs[r.spec]
		if throttle > 0 && r.queued && s.arrays[i].active > throttle {
			s.dequeue(from + at)
			a = s.ownArray(i)
			a.next = min(a.next, at)
		}
	}
	s.consider(first)
	if throttle > 0 {
		s.promote(i)
		return
	}
	for at := range a.n {
		s.consider(from + at)
	}
}
