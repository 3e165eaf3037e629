package sched

import (
	"fmt"

	"github.com/gangway-hpc/gangway/internal/job"
)

// checkDependencies is why job id cannot have the dependencies of spec; empty if it can.
func (s *Scheduler) checkDependencies(spec *job.Spec, id job.ID) string {
	if spec.Dependencies == nil {
		return ""
	}
	for _, d := range spec.Dependencies.List {
		if d.Type == job.Singleton {
			continue
		}
		if d.Type > job.Singleton || d.Delay < 0 {
			return "a dependency is of no known type, or has a negative delay"
		}
		i, ok := s.lookup(d.Job)
		if !ok {
			return "it depends on job " + d.Job.String() + ", which does not exist"
		}
		if d.Task != nil && s.taskOf(i, *d.Task) < 0 {
			return fmt.Sprintf("job %v has no task %d", d.Job, *d.Task)
		}
	}
	i, ok := s.find(id)
	if !ok {
		return "" // nothing depends on what is new
	}
	c := circle{s: s, id: id, spec: spec, seen: map[job.ID]bool{}, arrays: map[int32]bool{}, names: map[single]job.ID{}}
	for _, d := range spec.Dependencies.List {
		if !c.closed(s.jobs[i], d) {
			continue
		}
		if d.Type == job.Singleton {
			return "it would depend on itself, by way of jobs of its name"
		}
		return "it would depend on itself, by way of job " + d.Job.String()
	}
	return ""
}

// circle looks for a way from what a job is to depend on back to it. Each job, array and
// name is looked at once.
type circle struct {
	s      *Scheduler
	id     job.ID
	spec   *job.Spec // that job id is to have
	seen   map[job.ID]bool
	arrays map[int32]bool
	names  map[single]job.ID // up to which job they were followed
	found  bool
	next   []*record // still to be followed
}

// single is singletons that wait for the same jobs, but for later ones: those of a name and
// user that are not of their own array.
type single struct {
	name, user string
	array      int32
}

// closed says whether dependency d of r leads back to the job.
func (c *circle) closed(r *record, d job.Dependency) bool {
	c.follow(r, d)
	for !c.found && len(c.next) > 0 {
		last := len(c.next) - 1
		r, c.next = c.next[last], c.next[:last]
		for _, d := range r.spec.Dependencies.List {
			c.follow(r, d)
		}
	}
	return c.found
}

// follow comes to all that dependency d of r is about.
func (c *circle) follow(r *record, d job.Dependency) {
	if d.Type == job.Singleton {
		c.followName(r)
		return
	}
	s := c.s
	if t := s.target(r, d); t >= 0 {
		c.reach(s.jobs[t])
		return
	}
	at := s.jobs[s.index(d.Job)].array
	if c.arrays[at] {
		return
	}
	c.arrays[at] = true
	first := s.index(s.arrays[at].first)
	for _, o := range s.jobs[first : first+s.arrays[at].n] {
		c.reach(o)
	}
}

// followName comes to the jobs before r that have its name and user.
func (c *circle) followName(r *record) {
	spec := c.specOf(r)
	who := single{spec.Name, spec.User, r.array}
	from := c.names[who]
	if from >= r.id {
		return
	}
	c.names[who] = r.id
	i, _ := c.s.find(from)
	for _, o := range c.s.jobs[i:] {
		if o.id >= r.id {
			return
		}
		if p := c.specOf(o); p.Name == who.name && p.User == who.user && (r.array < 0 || o.array != r.array) {
			c.reach(o)
		}
	}
}

func (c *circle) specOf(r *record) *job.Spec {
	if r.id == c.id {
		return c.spec
	}
	return r.spec
}

// reach comes to a job: to the one at which the circle began, or to one that may wait.
func (c *circle) reach(r *record) {
	switch {
	case r.id == c.id:
		c.found = true
	case r.state == job.Pending && !r.met && r.spec.Dependencies != nil && !c.seen[r.id]:
		c.seen[r.id] = true
		c.next = append(c.next, r)
	}
}
