package sched

import "github.com/gangway-hpc/gangway/internal/job"

// JobView is what is known about a job.
type JobView struct {
	ID         job.ID
	Array      job.ID    // the first task of its array; 0: it is not of an array
	Task       uint32    // its index there
	Spec       *job.Spec // shared, not to be changed
	State      job.State
	Reason     string // Slurm's one word for why it waits or ended; "None"
	Priority   uint32
	Submit     job.Time
	Eligible   job.Time // since when nothing but resources holds it; 0: not yet
	Start      job.Time // 0: not started
	End        job.Time // of a running job: when its limit is reached; of an ended one: when it did
	Expected   job.Time // when a pending job is promised to start; 0: not planned yet, Never: see Reason
	Attempt    int      // how many times it was started
	Exit       int
	Allocation job.Allocation // of a running or ended job; its slices are shared
}

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

// Difference is a job whose expected start would be another one.
type Difference struct {
	ID       job.ID
	Was, Now job.Time // job.Never: none; Was is 0 for a job that is new
}
