package job

// Programs are those that agents run for administrators, as slurm.conf names them: on each
// node, as the agent's user.
type Programs struct {
	// Prolog and Epilog are full paths, or patterns of them: what runs before the first step of
	// a job on a node, and after its last. They run in this order, and what a pattern matches in
	// the reverse of the alphabet's, as with Slurm.
	Prolog, Epilog []string `json:",omitempty"`
	// PrologTimeout and EpilogTimeout are how long each may take; 0: as long as it likes.
	PrologTimeout, EpilogTimeout Duration `json:",omitempty"`
	Alloc                        bool     `json:",omitempty"` // the prolog runs on all nodes of a job when it gets them
	DeferBatch                   bool     `json:",omitempty"` // with Alloc: a script starts when it has run on all
	Serial                       bool     `json:",omitempty"` // on a node one runs at a time

	// Health is a full path; it runs when an agent starts, and HealthEvery on nodes whose state
	// is one of HealthStates, which are Slurm's words; none: all.
	Health       string   `json:",omitempty"`
	HealthEvery  Duration `json:",omitempty"` // 0: not again
	HealthStates []string `json:",omitempty"`
}

// OfJobs says whether anything is run for jobs.
func (p *Programs) OfJobs() bool { return p != nil && len(p.Prolog)+len(p.Epilog) > 0 }

// JobEnv is what a prolog and an epilog are told of a job, on one node.
type JobEnv struct {
	ID          ID
	UID, GID    uint32
	User        string
	Name        string
	Account     string
	Partition   string
	Comment     string
	Constraints string
	WorkDir     string
	Nodes       []string
	CPUsPerNode []int
	Start, End  Time
	Restarts    int
	Array       *ArrayFacts
	Devices     []Devices // of this node
	// Ended is set for epilogs: how the job ended, with the highest exit code of its steps.
	Ended *JobExit `json:",omitempty"`
}

// JobExit is how a job ended.
type JobExit struct{ Exit, Signal, Derived int }
