package sched

import "github.com/gangway-hpc/gangway/internal/job"

// Unmet is a dependency that keeps a job from starting. Never: it will not be met any more.
type Unmet struct {
	job.Dependency
	Never bool
}

// Unmet says for what a pending job waits of what it depends on.
func (s *Scheduler) Unmet(id job.ID) []Unmet {
	r := s.record(id)
	if r == nil || r.state != job.Pending || r.met || r.spec.Dependencies == nil {
		return nil
	}
	var all []Unmet
	for _, d := range r.spec.Dependencies.List {
		if f, _ := s.condition(r, d); f != met {
			all = append(all, Unmet{d, f == hopeless})
		}
	}
	return all
}

// PlannedNodes are those on which a pending job is planned; nil: it is not.
func (s *Scheduler) PlannedNodes(id job.ID) []string {
	r := s.record(id)
	if r == nil || r.plan == nil {
		return nil
	}
	names := make([]string, len(r.plan.picks))
	for k := range r.plan.picks {
		names[k] = s.nodes[r.plan.picks[k].node].spec.Name
	}
	return names
}
