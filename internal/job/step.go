package job

import (
	"cmp"
	"fmt"
	"strconv"
)

// StepID numbers the steps of a job from 0; those below 0 are special, by Slurm's numbers
// (slurm.h: SLURM_BATCH_SCRIPT, SLURM_EXTERN_CONT, SLURM_INTERACTIVE_STEP).
type StepID int32

// The special steps.
const (
	ExternStep      StepID = -4 // what was not started by Gangway, but runs in the job
	BatchStep       StepID = -5 // the script, on the first node
	InteractiveStep StepID = -6 // the shell of an allocation
)

// String is the number, or Slurm's word for a special step.
func (s StepID) String() string {
	switch s {
	case ExternStep:
		return "extern"
	case BatchStep:
		return "batch"
	case InteractiveStep:
		return "interactive"
	}
	return strconv.Itoa(int(s))
}

// ParseStepID is the contrary of [StepID.String].
func ParseStepID(text string) (StepID, error) {
	for _, s := range []StepID{ExternStep, BatchStep, InteractiveStep} {
		if text == s.String() {
			return s, nil
		}
	}
	n, err := strconv.ParseUint(text, 10, 31)
	if err != nil {
		return 0, fmt.Errorf("step %q: neither a number nor batch, extern, interactive", text)
	}
	return StepID(n), nil
}

// StepKey names one try to run a step. A job that is requeued has another Attempt, and a
// step whose gang failed to start another Try.
type StepKey struct {
	Job     ID
	Attempt int // of the job, from 1, as in Started
	Step    StepID
	Try     int // of the step's launch, from 1
}

// Compare orders keys by job, attempt, step and try.
func (k StepKey) Compare(other StepKey) int {
	return cmp.Or(cmp.Compare(k.Job, other.Job), cmp.Compare(k.Attempt, other.Attempt), cmp.Compare(k.Step, other.Step), cmp.Compare(k.Try, other.Try))
}

// String is JOB.STEP, with attempt and try where they are not the first.
func (k StepKey) String() string {
	text := k.Job.String() + "." + k.Step.String()
	if k.Attempt > 1 || k.Try > 1 {
		text += fmt.Sprintf("/%d", k.Attempt)
	}
	if k.Try > 1 {
		text += fmt.Sprintf("/%d", k.Try)
	}
	return text
}

// The reasons of orders by which steps are ended though nothing has failed in them, in the
// words of Slurm's line in the output of who is ended; the time comes behind the first.
const (
	EndCancelled   = "CANCELLED"
	EndTimeLimit   = EndCancelled + " DUE TO TIME LIMIT"
	EndNodeFailure = EndCancelled + " DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS"
	EndRequeue     = EndCancelled + " DUE TO JOB REQUEUE"
)

// Program is what a step runs, as its user gave it. Arguments, variables and paths need
// not be text, so they are bytes.
type Program struct {
	Script  []byte   // of a batch step; then Args are the script's
	Args    [][]byte // argv
	Environ [][]byte // NAME=VALUE, of the person who submitted, after --export
	Cwd     []byte   // empty: the user's home
	// MultiProg says what each rank runs, as package slurm has it; nil: all run Args. Then Args
	// are the name of what it was read from, and arguments that all ranks get behind theirs.
	MultiProg []byte `json:",omitempty"`
	// TaskProlog and TaskEpilog are programs that run before and after each rank, where it does.
	TaskProlog string `json:",omitempty"`
	TaskEpilog string `json:",omitempty"`
	Umask      uint32
	Limits     map[string]uint64 // soft limits to be propagated, by Slurm's names without SLURM_RLIMIT_; nil: none

	// Container are flags of "gangway run" in the form --NAME=VALUE: image, mounts and so
	// on. Empty: the ranks run on the host as they are.
	Container []string

	// Files, with Slurm's patterns (%j and the like) as they were given; empty is the
	// default of the step's kind, see StepSpec.
	Input, Output, Error string
	Append               bool // to the files that are there, instead of truncating them
	Label                bool // lines begin with their rank
	Unbuffered           bool
	Terminal             bool // rank 0 has a terminal

	KillOnBadExit bool     // one rank that fails ends the step
	WaitAfterExit Duration // after the first rank's end, the others get that long; 0: for ever
	// Signal is sent SignalBefore the end of the job's time; SignalBatch sends it to the
	// batch script only, else it goes to the steps only.
	Signal       string // a name or number; empty: none
	SignalBefore Duration
	SignalBatch  bool
}

// StepNode is the part of a step on one node.
type StepNode struct {
	Name    string
	Addr    string // by which the ranks reach it: an IP address or a name that resolves
	Ranks   []int  // in the order of their local numbers
	CPUs    int    // of the step on this node
	Memory  int64  // MiB; 0: no limit
	Devices []Devices
	// JobCPUs, JobMemory and JobDevices are what the whole job has on this node.
	JobCPUs    int
	JobMemory  int64
	JobDevices []Devices
}

// StepSpec is all that the nodes of a step have to know to run it. It is the same for all
// of them, and does not change once it was made.
type StepSpec struct {
	Key StepKey

	Cluster string
	UID     uint32
	GID     uint32
	Groups  []uint32 `json:",omitempty"` // the user's when the job was submitted; none: not known
	User    string
	Job     JobFacts
	Name    string // of the step
	Nodes   []StepNode
	Tasks   int // in all
	// CPUsPerTask and the like are what was asked for; 0 where nothing was.
	CPUsPerTask  int
	TasksPerNode int
	GPUsPerTask  int
	GPUBind      string
	CPUBind      string
	Distribution string // as --distribution has it: Ranks follow it already
	Overlap      bool

	Program Program
	// Image is the digest to which Container's image was pinned, empty until it is.
	Image string
	// Controller is the address of the public API for programs of the step.
	Controller string
	// Grace is how long ranks have between TERM and KILL.
	Grace Duration
}

// JobFacts are what the environment of a step says of its job.
type JobFacts struct {
	Name, Partition, Account, QOS string
	Nodes                         []string // all of the job, in order
	Addrs                         []string // of these
	CPUsPerNode                   []int    // of these
	TasksPerNode                  []int    // of these
	Tasks                         int      // 0: not asked for
	NTasksPerNode                 int      // as asked for; 0: not
	CPUsPerTask                   int
	Memory                        Memory
	GPUs                          string // as asked for by -G, --gpus-per-node, --gpus-per-task
	GPUsPerNode                   string
	GPUsPerTask                   string
	Start, End                    Time
	Restarts                      int
	SubmitDir                     []byte
	SubmitHost                    string
	Dependency                    string
	Array                         *ArrayFacts // nil: no array
	Switches                      []string    // path of each node, "spine1.leaf1.n1"; nil: no topology
}

// ArrayFacts place a job in its array.
type ArrayFacts struct {
	Job            ID // of the whole array
	Task           uint32
	Count          int
	Min, Max, Step uint32
}

// RankEnd is how one rank ended.
type RankEnd struct {
	Rank   int
	Node   string
	Exit   int // 0 if Signal is not
	Signal int
	At     Time
	OOM    bool
	Core   bool
	Tail   []byte // its last lines, of a rank that failed
	// Out and Err are how many bytes it wrote to its stdout and stderr for clients. They are
	// known when the step has ended on the node.
	Out, Err uint64 `json:",omitempty"`
}

// StepEnd is how a step ended on one node.
type StepEnd struct {
	Key   StepKey
	Node  string
	Start Time // of the ranks; 0: they never started
	End   Time
	Ranks []RankEnd
	// Fault is why the ranks did not start or did not end by themselves; empty: they did.
	Fault *Fault
	Usage Usage
}

// Fault is a failure that is not a rank's.
type Fault struct {
	What, Cause, Hint string
	// Node says that the node is at fault, so that the same may work on another one.
	Node bool
	// Doubtful says that it may be the node's fault as well as that of who asked, as where a
	// directory is missing: nobody can tell who has not seen another node.
	Doubtful bool `json:",omitempty"`
	Code     int  // exit code for people, as package fault has them
}

// RankUsage is what a running rank has used so far, with the processes that come from it.
type RankUsage struct {
	Rank         int
	Node         string
	PIDs         []int    // on the node, the rank's own first
	User, System Duration // processor time
	RSS, Virtual int64    // bytes: as much as is known that it had at a time
	Pages        int64    // that were read from disk
	Read, Write  int64    // bytes, of whatever kind of file
}

// Usage is what the ranks of a node used.
type Usage struct {
	User, System Duration // processor time
	MaxRSS       int64    // bytes
	Read, Write  int64    // bytes
}
