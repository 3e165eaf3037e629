package job

import (
	"fmt"
	"slices"
	"strconv"
)

// Event is something that happened or was decided. Package sched's state is a function of
// the sequence of events. The types that implement it are those of this file; each is
// plain data with exported fields, so that it can be stored as JSON.
type Event interface{ event() }

// Those that come from outside. At is when, and never before an earlier event's; 0 counts
// as 1.
type (
	// Configured sets the configuration; jobs stay as they are.
	Configured struct {
		At     Time
		Config Config
	}
	// NodeSet adds a node, or changes one that is not in use in what it has.
	NodeSet struct {
		At   Time
		Node Node
	}
	// NodeStateSet changes the state of a node. Going NodeDown ends what runs there.
	NodeStateSet struct {
		At     Time
		Node   string
		State  NodeState
		Reason string
	}
	// NodeRemoved takes away a node on which nothing runs.
	NodeRemoved struct {
		At   Time
		Node string
	}
	// NetworkSet replaces the topology.
	NetworkSet struct {
		At      Time
		Network Network
	}
	// PartitionSet adds or replaces a partition.
	PartitionSet struct {
		At        Time
		Partition Partition
	}
	// PartitionRemoved takes away a partition without jobs.
	PartitionRemoved struct {
		At        Time
		Partition string
	}
	// Submitted is a new job. Its ID is the caller's to choose and is above all earlier
	// ones; the tasks of an array have the IDs that follow, as many as there are tasks.
	Submitted struct {
		At   Time
		ID   ID
		Spec Spec
	}
	// Changed replaces what a pending job asks for; of a running one only names, limits and
	// what counts when it waits again may differ, and another TimeLimit is that of the run.
	// Where Hold, or that Priority is 0, is
	// another than it was, that holds the job or ends its hold. A task stays in its array:
	// of Array only the throttle counts, and is set for all of its tasks.
	Changed struct {
		At   Time
		ID   ID
		Spec Spec
	}
	// Held and Released keep a job from starting and end that.
	Held struct {
		At    Time
		ID    ID
		Admin bool
	}
	Released struct {
		At Time
		ID ID
	}
	// Cancelled ends a job, pending or running. One that runs keeps its nodes until Ended.
	Cancelled struct {
		At Time
		ID ID
	}
	// Ended is the end of a running job on all of its nodes.
	Ended struct {
		At    Time
		ID    ID
		State State // Completed, Failed, Timeout, OutOfMemory, NodeFail, ...
		Exit  int
	}
	// Requeue puts a running or ended job back into the queue, with the same ID. Hold
	// holds it there.
	Requeue struct {
		At   Time
		ID   ID
		Hold bool
	}
	// ImagesSet says which images a node has, by digest.
	ImagesSet struct {
		At     Time
		Node   string
		Images []string
	}
)

// Those that the scheduler decides.
type (
	// Started gives a job its nodes.
	Started struct {
		At         Time
		ID         ID
		Attempt    int // 1, and one more with each requeue
		Allocation Allocation
	}
	// Promised says when pending jobs are expected to start. A promise is replaced by an
	// earlier one only, unless it is in Broken. A job is in each of the lists at most once.
	// One without anything says that the scheduler has looked at what happened and decided
	// nothing.
	Promised struct {
		At     Time
		Starts []Promise
		Broken []Breach
	}
	// Requeued is a job that lost a node and waits again; Killed one that ends for it, or
	// that cannot end before its deadline. What it had on other nodes is free at once: who
	// carries it out starts nothing there before the old processes are gone. Hold says that
	// it lost nodes too often.
	Requeued struct {
		At    Time
		ID    ID
		Cause string
		Hold  bool
	}
	Killed struct {
		At    Time
		ID    ID
		State State
		Cause string
	}
)

// Promise is when a job is expected to start. Start Never is: not at all as things are.
// Start 0 gives up the place of a job that one with more priority comes before: where it
// gets another one follows in the next event.
type Promise struct {
	ID    ID
	Start Time
}

// Breach is a promise that could not be kept.
type Breach struct {
	ID       ID
	Was, Now Time
	Why      string
}

func (Configured) event()       {}
func (NodeSet) event()          {}
func (NodeStateSet) event()     {}
func (NodeRemoved) event()      {}
func (NetworkSet) event()       {}
func (PartitionSet) event()     {}
func (PartitionRemoved) event() {}
func (Submitted) event()        {}
func (Changed) event()          {}
func (Held) event()             {}
func (Released) event()         {}
func (Cancelled) event()        {}
func (Ended) event()            {}
func (Requeue) event()          {}
func (ImagesSet) event()        {}
func (Started) event()          {}
func (Promised) event()         {}
func (Requeued) event()         {}
func (Killed) event()           {}

// State is a job's state, by Slurm's names.
type State uint8

// The states.
const (
	Pending State = iota
	Running
	Completing // cancelled or out of time, and not gone yet
	Completed
	CancelledState
	Failed
	Timeout
	NodeFailed
	OutOfMemory
	DeadlineMissed
	Preempted
)

// stateNames are Slurm's long names of the states, in their order.
func stateNames() [Preempted + 1]string {
	return [...]string{
		"PENDING", "RUNNING", "COMPLETING", "COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL",
		"OUT_OF_MEMORY", "DEADLINE", "PREEMPTED",
	}
}

// String is Slurm's long name.
func (s State) String() string {
	if names := stateNames(); int(s) < len(names) {
		return names[s]
	}
	return "UNKNOWN"
}

// MarshalJSON implements json.Marshaler: states are written by name.
func (s State) MarshalJSON() ([]byte, error) { return strconv.AppendQuote(nil, s.String()), nil }

// UnmarshalJSON implements json.Unmarshaler: a name, or a number as older logs have it.
func (s *State) UnmarshalJSON(b []byte) error {
	if n, err := strconv.ParseUint(string(b), 10, 8); err == nil {
		*s = State(n)
		return nil
	}
	name, err := strconv.Unquote(string(b))
	names := stateNames()
	at := slices.Index(names[:], name)
	if err != nil || at < 0 {
		return fmt.Errorf("%.40s is no state of a job", b)
	}
	*s = State(at)
	return nil
}

// Done says whether a job in this state has ended.
func (s State) Done() bool { return s >= Completed }

// Allocation is what a job has on each of its nodes, in the order of its ranks.
type Allocation struct {
	Partition string
	Nodes     []NodeShare
	Limit     Duration // the time limit that holds
}

// NodeShare is what a job has on one node.
type NodeShare struct {
	Node    string
	Tasks   int
	CPUs    int   // which ones is the node's to choose, near the devices
	Memory  int64 // MiB
	Devices []Devices
}

// Devices are devices of one name and type, by number.
type Devices struct {
	Name, Type string
	Mask       uint64 // of devices 0 to 63; of GRES without identity nothing
	Count      int64  // how many there are; with a Mask its bits
}
