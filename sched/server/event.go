package server

import (
	"bytes"
	"encoding/json"
	"fmt"

	"github.com/gangway-hpc/gangway/internal/job"
)

// Events of the controller itself, beside those of package job. They are stored as JSON,
// so fields are only ever added.
type (
	// submitted is a new job with what the scheduler does not need of it.
	submitted struct {
		job.Submitted
		Facts *facts
	}
	// stepMade is a step that has its place, or a further try of one.
	stepMade struct {
		At   job.Time
		Spec *job.StepSpec // without the program's script and environment:
		Env  string        // digests of these
		Text string
		Old  job.StepKey // the try that this one replaces; zero: none
		Want *want       // of steps that were asked for
		// Avoid are nodes on which earlier tries have failed.
		Avoid []string `json:",omitempty"`
	}
	// stepStarting is that all nodes of a step are prepared, and may start it from now on.
	stepStarting struct {
		At  job.Time
		Key job.StepKey
	}
	// nodeEnded is the end of a step on one node.
	nodeEnded struct {
		At  job.Time
		End job.StepEnd
	}
	// stepFailing is that a step is ended since something of it has failed, and what: which of
	// its nodes have said so by then is not known any more when all have ended.
	stepFailing struct {
		At  job.Time
		Key job.StepKey
		failing
	}
	// stepStopped is that somebody wants the end of a step: its nodes are told, those that
	// are away when they come back.
	stepStopped struct {
		At    job.Time
		Key   job.StepKey
		Grace job.Duration
		Why   string
	}
	// signalKept is a signal for a step: it is due until its nodes say that they have it.
	signalKept struct {
		At     job.Time
		Key    job.StepKey
		Node   string // empty: all that have not ended
		Signal int    // negative: to a batch script's shell alone
	}
	// signalsSent is that a node has the signals of a step, up to one.
	signalsSent struct {
		At   job.Time
		Key  job.StepKey
		Node string
		UpTo uint64 // its ID
	}
	// jobWarned is that steps were sent the signal that comes before the end of their time.
	jobWarned struct {
		At    job.Time
		ID    job.ID
		Whole bool         `json:",omitempty"` // the job's own signal
		Steps []job.StepID `json:",omitempty"` // that have one of their own
	}
	// stepDone is the end of a step.
	stepDone struct {
		At     job.Time
		Key    job.StepKey
		Result result
	}
	// jobEnding is what will become of a job that ends: its steps are being ended, then
	// its nodes cleaned, and then comes job.Ended or job.Requeue.
	jobEnding struct {
		At   job.Time
		ID   job.ID
		Fate fate
	}
	// jobFate is what became of a job that did not run, where its state does not say it.
	jobFate struct {
		At   job.Time
		ID   job.ID
		Fate fate
	}
	// jobNoted is another comment on a job.
	jobNoted struct {
		At      job.Time
		ID      job.ID
		Comment string
	}
	// partitionDeclared is what the configuration says of a partition: who starts the controller
	// with the same has it as it was changed since.
	partitionDeclared struct {
		At        job.Time
		Partition job.Partition
		Gone      bool `json:",omitempty"` // it is not in the configuration any more
	}
	// jobHeld is that somebody holds an allocation: it ends when nobody does any more.
	jobHeld struct {
		At job.Time
		ID job.ID
	}
	// nodeMet is where a node and its agent are reached, as the agent says: it is known
	// when the controller starts again, before the agent has come back.
	nodeMet struct {
		At   job.Time
		Node string
		meeting
	}
	// imagePinned is to which digest the reference of an image is pinned for a job, or a
	// whole array, from now on: its ID is the first task's.
	imagePinned struct {
		At        job.Time
		ID        job.ID
		Reference string // in its canonical form
		Digest    string
	}
	// nodeCleaned is that nothing is left on a node of a job that lost it.
	nodeCleaned struct {
		At   job.Time
		Node string
		Of   attempt
	}
	// nodeSoiled is that something may be left on a node of a run that has ended: the node was
	// lost, or did not say in time that it is clean.
	nodeSoiled struct {
		At   job.Time
		Node string
		Of   attempt
	}
)

// facts are what is known of a job from its submission, beside its Spec.
type facts struct {
	GID        uint32
	Groups     []uint32     `json:",omitempty"` // the user's, when it was submitted; none: they are not known
	Program    *job.Program `json:",omitempty"` // without script and environment
	Env, Text  string       `json:",omitempty"` // digests of these
	Command    string       `json:",omitempty"`
	Comment    string       `json:",omitempty"`
	SubmitHost string       `json:",omitempty"`
	Via        string       `json:",omitempty"` // the node by whose word; empty: by this host's, or a client's
	SubmitDir  []byte       `json:",omitempty"`
	Dependency string       `json:",omitempty"`
	Once       string       `json:",omitempty"`
	Unheld     bool         `json:",omitempty"`
	Exclude    []string     `json:",omitempty"` // the Spec's, before nodes failed

	GPUs, GPUsPerNode, GPUsPerTask string `json:",omitempty"`

	Images []string `json:",omitempty"` // that its program and script name literally, of registries
}

// follow takes the event into what the configuration last had.
func (e partitionDeclared) follow(declared map[string]job.Partition) {
	if declared[e.Partition.Name] = e.Partition; e.Gone {
		delete(declared, e.Partition.Name)
	}
}

// meeting is where a node is reached.
type meeting struct {
	Address string // by ranks and clients: an IP address or a name that resolves
	Socket  string // of the agent's HTTP service: unix:PATH
}

// attempt is one run of a job.
type attempt struct {
	Job     job.ID
	Attempt int
}

// fate is what becomes of a job, and why.
type fate struct {
	State       job.State
	Exit        int          `json:",omitempty"`
	Signal      int          `json:",omitempty"`
	Fault       *job.Fault   `json:",omitempty"`
	Failed      *job.RankEnd `json:",omitempty"`
	FailedRanks int          `json:",omitempty"`
	Requeue     bool         `json:",omitempty"` // it waits again instead of ending
	Hold        bool         `json:",omitempty"` // and is held
	By          string       `json:",omitempty"` // the uid of who cancelled it; a number 0 would be lost in snapshots
	Unstored    bool         `json:",omitempty"` // it was refused because it could not be stored: nobody knows of it
	Exclude     []string     `json:",omitempty"` // nodes that it is not to have again
}

// result is how a step ended.
type result struct {
	State       job.State
	Exit        int
	Signal      int          `json:",omitempty"`
	Fault       *job.Fault   `json:",omitempty"`
	FaultNodes  []string     `json:",omitempty"`
	Failed      *job.RankEnd `json:",omitempty"`
	FailedRanks int          `json:",omitempty"`
	Start, End  job.Time
	Usage       job.Usage
	Image       string `json:",omitempty"`
}

// kindOf is the name under which an event is stored.
func kindOf(e any) string {
	switch e.(type) {
	case submitted:
		return "Job"
	case stepMade:
		return "Step"
	case stepStarting:
		return "StepStarting"
	case nodeEnded:
		return "NodeEnded"
	case stepDone:
		return "StepDone"
	case stepFailing:
		return "StepFailing"
	case stepStopped:
		return "StepStopped"
	case signalKept:
		return "SignalKept"
	case signalsSent:
		return "SignalsSent"
	case jobWarned:
		return "Warned"
	case jobEnding:
		return "JobEnding"
	case nodeCleaned:
		return "NodeCleaned"
	case nodeSoiled:
		return "NodeSoiled"
	case jobFate:
		return "JobFate"
	case jobNoted:
		return "JobNoted"
	case partitionDeclared:
		return "PartitionDeclared"
	case jobHeld:
		return "JobHeld"
	case nodeMet:
		return "NodeMet"
	case imagePinned:
		return "ImagePinned"
	case councilGiven:
		return "CouncilGiven"
	case councilHeard:
		return "CouncilHeard"
	case attemptDead:
		return "AttemptDead"
	case job.Configured:
		return "Configured"
	case job.NodeSet:
		return "NodeSet"
	case job.NodeStateSet:
		return "NodeState"
	case job.NodeRemoved:
		return "NodeRemoved"
	case job.NetworkSet:
		return "Network"
	case job.PartitionSet:
		return "Partition"
	case job.PartitionRemoved:
		return "PartitionRemoved"
	case job.Changed:
		return "Changed"
	case job.Held:
		return "Held"
	case job.Released:
		return "Released"
	case job.Cancelled:
		return "Cancelled"
	case job.Ended:
		return "Ended"
	case job.Requeue:
		return "Requeue"
	case job.ImagesSet:
		return "Images"
	case job.Started:
		return "Started"
	case job.Promised:
		return "Promised"
	case job.Requeued:
		return "Requeued"
	case job.Killed:
		return "Killed"
	}
	return ""
}

// encode is an event as it is stored.
func encode(e any) ([]byte, error) {
	kind := kindOf(e)
	if kind == "" {
		return nil, fmt.Errorf("store event: %T is none", e)
	}
	v, err := json.Marshal(e)
	if err != nil {
		return nil, fmt.Errorf("store event %s: %w", kind, err)
	}
	b := make([]byte, 0, len(v)+len(kind)+16)
	b = append(b, `{"K":"`...)
	b = append(b, kind...)
	b = append(b, `","V":`...)
	b = append(b, v...)
	return append(b, '}'), nil
}

// decode is the contrary of encode.
func decode(b []byte) (any, error) {
	rest, ok := bytes.CutPrefix(b, []byte(`{"K":"`))
	kind, v, found := bytes.Cut(rest, []byte(`","V":`))
	if !ok || !found || !bytes.HasSuffix(v, []byte("}")) {
		return nil, fmt.Errorf("read event: %.40q is none", b)
	}
	e, err := decodeAs(string(kind), v[:len(v)-1])
	if err != nil {
		return nil, fmt.Errorf("read event %s: %w", kind, err)
	}
	return e, nil
}

func decodeAs(kind string, v []byte) (any, error) {
	switch kind {
	case "Job":
		return valueOf[submitted](v)
	case "Step":
		return valueOf[stepMade](v)
	case "StepStarting":
		return valueOf[stepStarting](v)
	case "NodeEnded":
		return valueOf[nodeEnded](v)
	case "StepDone":
		return valueOf[stepDone](v)
	case "StepFailing":
		return valueOf[stepFailing](v)
	case "StepStopped":
		return valueOf[stepStopped](v)
	case "SignalKept":
		return valueOf[signalKept](v)
	case "SignalsSent":
		return valueOf[signalsSent](v)
	case "Warned":
		return valueOf[jobWarned](v)
	case "JobEnding":
		return valueOf[jobEnding](v)
	case "NodeCleaned":
		return valueOf[nodeCleaned](v)
	case "NodeSoiled":
		return valueOf[nodeSoiled](v)
	case "JobFate":
		return valueOf[jobFate](v)
	case "JobNoted":
		return valueOf[jobNoted](v)
	case "PartitionDeclared":
		return valueOf[partitionDeclared](v)
	case "JobHeld":
		return valueOf[jobHeld](v)
	case "NodeMet":
		return valueOf[nodeMet](v)
	case "ImagePinned":
		return valueOf[imagePinned](v)
	case "CouncilGiven":
		return valueOf[councilGiven](v)
	case "CouncilHeard":
		return valueOf[councilHeard](v)
	case "AttemptDead":
		return valueOf[attemptDead](v)
	case "Configured":
		return valueOf[job.Configured](v)
	case "NodeSet":
		return valueOf[job.NodeSet](v)
	case "NodeState":
		return valueOf[job.NodeStateSet](v)
	case "NodeRemoved":
		return valueOf[job.NodeRemoved](v)
	case "Network":
		return valueOf[job.NetworkSet](v)
	case "Partition":
		return valueOf[job.PartitionSet](v)
	case "PartitionRemoved":
		return valueOf[job.PartitionRemoved](v)
	case "Changed":
		return valueOf[job.Changed](v)
	case "Held":
		return valueOf[job.Held](v)
	case "Released":
		return valueOf[job.Released](v)
	case "Cancelled":
		return valueOf[job.Cancelled](v)
	case "Ended":
		return valueOf[job.Ended](v)
	case "Requeue":
		return valueOf[job.Requeue](v)
	case "Images":
		return valueOf[job.ImagesSet](v)
	case "Started":
		return valueOf[job.Started](v)
	case "Promised":
		return valueOf[job.Promised](v)
	case "Requeued":
		return valueOf[job.Requeued](v)
	case "Killed":
		return valueOf[job.Killed](v)
	}
	return nil, fmt.Errorf("no event of that kind is known; was it written by a later version?")
}

func valueOf[T any](v []byte) (any, error) {
	var e T
	err := json.Unmarshal(v, &e)
	return e, err
}
