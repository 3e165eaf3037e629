package sched

import "github.com/gangway-hpc/gangway/internal/job"

// Explanation says why a job waits.
type Explanation struct {
	ID          job.ID
	Reason      string       // Slurm's one word
	Text        string       // a sentence for people
	Constraints []Constraint // what stands in its way, the widest first
	Nodes       int          // how many nodes it needs
	Fit         int          // nodes on which it could start now
	Could       int          // nodes on which it could ever run
	Ahead       []job.ID     // jobs that are looked at before it, at most 10
	AheadCount  int
	Expected    job.Time // job.Never: not as things are
	Basis       string   // what the expected start rests on
	Relaxations []Relaxation
}

// Constraint is one thing that keeps nodes from a job.
type Constraint struct {
	Name  string // "state", "partition", "features", "gpu", "cpus", ...
	Nodes int    // how many nodes it rules out, of those that earlier ones left
	Left  int    // how many are left
	Text  string
}

// Relaxation is a change to what a job asks for that starts it earlier. It was tried on a
// copy.
type Relaxation struct {
	Text  string // "--nodes=3"
	Start job.Time
	Spec  job.Spec
}

// Explain says why a pending job waits, when it is expected to start and what would start
// it sooner.
func (s *Scheduler) Explain(id job.ID, now job.Time) (Explanation, error) {
	return Explanation{}, nil
}
