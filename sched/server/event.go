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
	// jobHeld is that somebody holds an allocation: it ends when nobody does any more.
	jobHeld struct {
		At job.Time
		ID job.ID
	}
	// nodeCleaned is that nothing is left on a node of a job that lost it.
	nodeCleaned struct {
		At   job.Time
		Node string
		Of   attempt
	}
)

// facts are what is known of a job from its submission, beside its Spec.
type facts struct {
	GID        uint32
	Program    *job.Program `json:",omitempty"` // without script and environment
	Env, Text  string       `json:",omitempty"` // digests of these
	Command    string       `json:",omitempty"`
	Comment    string       `json:",omitempty"`
	SubmitHost string       `json:",omitempty"`
	SubmitDir  []byte       `json:",omitempty"`
	Dependency string       `json:",omitempty"`
	Once       string       `json:",omitempty"`
	Unheld     bool         `json:",omitempty"`

	GPUs, GPUsPerNode, GPUsPerTask string `json:",omitempty"`
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
	case jobEnding:
		return "JobEnding"
	case nodeCleaned:
		return "NodeCleaned"
	case jobFate:
		return "JobFate"
	case jobHeld:
		return "JobHeld"
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
	case "JobEnding":
		return valueOf[jobEnding](v)
	case "NodeCleaned":
		return valueOf[nodeCleaned](v)
	case "JobFate":
		return valueOf[jobFate](v)
	case "JobHeld":
		return valueOf[jobHeld](v)
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
