package api

import "github.com/gangway-hpc/gangway/internal/job"

// Submit asks for a job: POST /v1/jobs. The answer is a [Submitted], once the job is on
// stable storage. A stream of them, a line each, to POST /v1/submit is answered by a line
// each, in their order.
type Submit struct {
	Spec job.Spec
	// Program is what the job's batch step runs. It is nil of an Allocation only, which ends
	// when its owner does, see Hold: a request that just lacks it is refused.
	Program    *job.Program `json:",omitempty"`
	Allocation bool         `json:",omitempty"`
	// Comment and the like are kept and shown, and mean nothing.
	Comment    string `json:",omitempty"`
	SubmitHost string `json:",omitempty"`
	SubmitDir  []byte `json:",omitempty"`
	Dependency string `json:",omitempty"` // as written
	// GPUs and the like are as written, for the environment.
	GPUs, GPUsPerNode, GPUsPerTask string `json:",omitempty"`
	// TestOnly: the job is not made, but checked, and Submitted.Start says when it would
	// start.
	TestOnly bool `json:",omitempty"`
	// Command is shown as what the job runs: the path of its script.
	Command string `json:",omitempty"`
	// Unheld: an allocation lasts although nobody holds it.
	Unheld bool `json:",omitempty"`
	// Once is a random text: a request that is sent again with the same one within a day
	// has the answer of the first.
	Once string `json:",omitempty"`
}

// Submitted is the answer to Submit, or, in a stream, an Error in its place.
type Submitted struct {
	ID    job.ID
	Tasks int      `json:",omitempty"` // of an array
	Start job.Time `json:",omitempty"` // TestOnly: when; job.Never: not as things are
	Nodes []string `json:",omitempty"` // TestOnly: where
	CPUs  int      `json:",omitempty"` // TestOnly: how many
	Notes []string `json:",omitempty"` // for the person
	Part  string   `json:",omitempty"` // TestOnly: the partition
	Error *Error   `json:",omitempty"`
}

// Job is a job as it is now.
type Job struct {
	ID    job.ID
	Array *job.ArrayFacts `json:",omitempty"`
	// Waiting are the tasks of an array that are shown by one Job, as Slurm does; then ID
	// is the array's.
	Waiting   []job.Range `json:",omitempty"`
	Throttle  int         `json:",omitempty"`
	Name      string
	User      string
	UID       uint32
	GID       uint32
	Account   string `json:",omitempty"`
	QOS       string `json:",omitempty"`
	Partition string // where it runs, or all where it may
	State     job.State
	// Step says what a job in a started state is doing: "preparing" before its ranks run.
	Phase    string `json:",omitempty"`
	Reason   string // Slurm's word, "None" if there is none
	Why      string `json:",omitempty"` // the same in a sentence
	Priority uint32
	Nice     int32 `json:",omitempty"`
	Restarts int   `json:",omitempty"`
	Attempt  int
	Held     bool `json:",omitempty"`

	Submit, Eligible, Start, End job.Time // 0: not yet
	Expected                     job.Time // of a pending job; 0: not known, job.Never: not as things are
	Limit                        job.Duration
	Deadline                     job.Time `json:",omitempty"`

	Nodes    int // that it has, or asks for
	Tasks    int
	CPUs     int
	Memory   job.Memory
	GRES     string   // per node, as asked for: gpu:h100:8
	NodeList []string `json:",omitempty"` // while it runs and after
	// Scheduled is the hostlist of nodes on which a pending job is planned: where a job has
	// its Spec.
	Scheduled string          `json:",omitempty"`
	Shares    []job.NodeShare `json:",omitempty"` // single jobs only: GET /v1/jobs/ID

	Exit, Signal int          // of the job, once it has ended
	Fault        *job.Fault   `json:",omitempty"` // why, if it is not a rank's
	Failed       *job.RankEnd `json:",omitempty"` // the first rank that failed
	FailedRanks  int          `json:",omitempty"`
	CancelledBy  string       `json:",omitempty"` // the uid of who did; empty: nobody, or not known
	Requeued     bool         `json:",omitempty"` // history: this attempt was ended to run anew

	Batch                bool      `json:",omitempty"` // it has a script, and is no allocation
	Command              string    `json:",omitempty"` // path of the script, or the command
	Cwd                  string    `json:",omitempty"`
	Input, Output, Error string    `json:",omitempty"` // patterns resolved
	Image                string    `json:",omitempty"`
	Digest               string    `json:",omitempty"`
	Comment              string    `json:",omitempty"`
	Dependency           string    `json:",omitempty"`
	Constraint           string    `json:",omitempty"`
	Required, Excluded   string    `json:",omitempty"` // nodes, as hostlists
	Requeue, Exclusive   bool      `json:",omitempty"`
	Spec                 *job.Spec `json:",omitempty"` // single jobs only
	SubmitHost           string    `json:",omitempty"`
}

// Query chooses jobs: the parameters of GET /v1/jobs and GET /v1/history, where lists are
// separated by commas.
type Query struct {
	IDs          []job.ID // jobs or arrays
	Users        []string
	Partitions   []string
	Accounts     []string
	States       []string // Slurm's long or short names; none: those that have not ended
	Names        []string
	Nodes        []string
	Since, Until job.Time // history: that were alive between these
	Tasks        bool     // each task of an array by itself
	Limit        int      // 0: 10,000
	After        string   // Page.Next of the page before
	Recent       bool     // those that ended lately too
	Whole        bool     // jobs with what single ones have, too: Spec and Shares, and names of files in full
	Attempts     bool     // history: each attempt of a job that ran anew, not only the last
}

// Page is a part of an answer.
type Page[T any] struct {
	Items []T
	Next  string   `json:",omitempty"` // for Query.After; empty: that was all
	Now   job.Time // of the controller
}

// Step is a step of a job, in the answers of queries, history, and POST /v1/jobs/ID/steps.
type Step struct {
	Key   job.StepKey
	Name  string
	State job.State
	Phase string // preparing, running, ended
	// Stopped: somebody has ordered the end of its ranks, which did run.
	Stopped bool `json:",omitempty"`
	Nodes   []string
	Tasks   int
	CPUs    int
	GRES    string `json:",omitempty"`
	// Agents are where the step's input and output are, one for each of Nodes: the
	// addresses of HTTP services, unix:PATH or host:port.
	Agents       []string `json:",omitempty"`
	Ranks        [][]int  `json:",omitempty"` // of each node
	Start, End   job.Time
	Exit, Signal int
	Failed       *job.RankEnd `json:",omitempty"`
	FailedRanks  int          `json:",omitempty"`
	Fault        *job.Fault   `json:",omitempty"`
	Usage        job.Usage
	Notes        []string `json:",omitempty"`
	// Progress of the prepare, one line for all nodes.
	Progress string `json:",omitempty"`
	// Ends are how its ranks ended: single steps only, once it has ended.
	Ends []job.StepEnd `json:",omitempty"`
}

// StepRequest asks for a step of a running job: POST /v1/jobs/ID/steps. It is answered
// when the step has its place and is durable; a step for whose resources others have to
// end first waits up to Wait.
type StepRequest struct {
	Name         string
	MinNodes     int // 0: as few as do
	MaxNodes     int
	Tasks        int // 0: one a node
	TasksPerNode int
	CPUsPerTask  int
	GRES         []job.GRESRequest
	Memory       job.Memory
	Overlap      bool
	Exact        bool // only what was asked for, instead of all that is there
	Exclusive    bool
	// Overcommit lets tasks share CPUs: there may be any number of them.
	Overcommit bool `json:",omitempty"`
	// NodeList are nodes that it has to have; with an arbitrary distribution one for each task,
	// in order.
	NodeList     []string
	Exclude      []string
	Relative     int
	Distribution string
	GPUBind      string
	CPUBind      string
	Program      job.Program
	Wait         job.Duration
	Once         string
	// Batch is the key's step of the caller, if it runs inside the job.
	Interactive bool // the shell of an allocation
}

// Node is a node as it is now.
type Node struct {
	job.Node
	// Words are Slurm's state, lower case, with its flags: idle, mixed, allocated, down,
	// drained, draining, unknown, and "*" behind where it does not answer.
	StateText   string
	Partitions  []string
	Jobs        []job.ID `json:",omitempty"`
	UsedCPUs    int
	UsedMemory  int64
	Used        []job.Devices `json:",omitempty"`
	Declared    bool          // the hardware is as configured, whatever is there
	FreeMemory  int64         // MiB, as measured; 0: not known
	Load        float64
	Version     string
	Boot        job.Time
	Seen        job.Time // the last heartbeat
	Images      int
	SocketPath  string `json:",omitempty"`
	ReasonUser  string
	ReasonSince job.Time
}

// Partition is a partition as it is now.
type Partition struct {
	job.Partition
	TotalNodes, TotalCPUs int
}

// Change asks for something to be done to a job, node or partition.
type Change struct {
	Signal string      `json:",omitempty"` // POST /v1/jobs/ID/signal
	Batch  bool        `json:",omitempty"` // only to the batch script
	Full   bool        `json:",omitempty"` // to the batch script and all steps
	Step   *job.StepID `json:",omitempty"`
	Hold   bool        `json:",omitempty"` // POST /v1/jobs/ID/requeue
	Exit   int         `json:",omitempty"` // POST /v1/jobs/ID/end: of an allocation, by its owner
	State  string      `json:",omitempty"` // POST /v1/nodes/NAME: drain, resume, down, ...
	Reason string      `json:",omitempty"`
	Spec   *job.Spec   `json:",omitempty"` // POST /v1/jobs/ID

	// Partition is what POST /v1/partitions/NAME changes. Fields are the names of those fields
	// of it, or of Spec, that are meant; nil: all of Spec.
	Partition *job.Partition `json:",omitempty"`
	Fields    []string       `json:",omitempty"`
	Longer    job.Duration   `json:",omitempty"` // POST /v1/jobs/ID: by how much the time limit changes
	Comment   *string        `json:",omitempty"` // POST /v1/jobs/ID
}

// Event is a line of GET /v1/watch: a job or step whose state changed. The first lines are
// the present ones, then comes one with Synced.
type Event struct {
	Seq    uint64 // for ?after=
	At     job.Time
	Job    *Job  `json:",omitempty"`
	Step   *Step `json:",omitempty"`
	Synced bool  `json:",omitempty"`
}

// Ping is the answer of GET /v1.
type Ping struct {
	Cluster string
	Version string
	API     int // the number of this contract
	Epoch   uint64
	Now     job.Time
	Nodes   int
	PID     int
}

// Version is the number of this contract.
const Version = 1

// VersionHeader is the header in which a request says by which contract it was made, and by
// which release: NUMBER RELEASE. Requests without it are taken as they are.
const VersionHeader = "Gangway-Api"

// MaxRequest is how many bytes a request may have; those that bring no program, far less.
const MaxRequest = 32 << 20

// Error is how a request is refused: four lines for people and words for programs.
type Error struct {
	What, Cause, Hint, See string
	Code                   int    // exit code, as package fault has them; 0: 125
	Kind                   string // Slurm's name of the error, without ESLURM_: INVALID_JOB_ID, ...
}

// Error is What.
func (e *Error) Error() string { return e.What }
