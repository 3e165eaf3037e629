package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"syscall"

	"github.com/gangway-hpc/gangway/internal/api"
	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/internal/slurm"
)

// happened is what people want to know of an event; each kind has some of it.
type happened struct {
	Attempt    int
	Hold       bool
	Admin      bool
	Cause      string
	Node       string
	Why        string
	Signal     int
	State      job.State
	Exit       int
	Key        job.StepKey
	Spec       json.RawMessage
	Allocation *job.Allocation
	End        json.RawMessage
	Fate       *fate
	Result     *fate
}

// fate is how something ended.
type fate struct {
	State   job.State
	Exit    int
	Signal  int
	Fault   *job.Fault
	Failed  *job.RankEnd
	Requeue bool
}

func (f *fate) text() string {
	text := strings.ToLower(f.State.String())
	switch {
	case f.Requeue:
		text = "it will wait again"
	case f.Signal != 0:
		text += fmt.Sprintf(", signal %d", f.Signal)
	case f.Exit != 0:
		text += fmt.Sprintf(", exit %d", f.Exit)
	}
	if f.Failed != nil {
		text += fmt.Sprintf("; first failure: rank %d on %s", f.Failed.Rank, f.Failed.Node)
	}
	if f.Fault != nil {
		text += ": " + f.Fault.What
	}
	return text
}

// eventText is an event in a line.
func eventText(e *api.Logged) string {
	if e.Text != "" {
		return e.Text
	}
	var h happened
	if json.Unmarshal(e.Data, &h) != nil {
		return rawText(e.Data)
	}
	switch e.Kind {
	case "Job", "Submitted":
		return submittedText(h.Spec)
	case "Started":
		if h.Allocation != nil {
			return fmt.Sprintf("attempt %d gets %s, for %s", h.Attempt, nodesOf(h.Allocation), limitWord(h.Allocation.Limit))
		}
	case "Step":
		var s job.StepSpec
		if json.Unmarshal(h.Spec, &s) == nil {
			names := make([]string, len(s.Nodes))
			for i := range s.Nodes {
				names[i] = s.Nodes[i].Name
			}
			return fmt.Sprintf("step %v (%s): %s on %s are being prepared", s.Key.Step, s.Name, plural(s.Tasks, "task"), slurm.Fold(names))
		}
	case "StepStarting":
		return fmt.Sprintf("step %v: all nodes are prepared; it starts", h.Key.Step)
	case "StepStopped":
		return fmt.Sprintf("step %v is ended by order: %s", h.Key.Step, h.Why)
	case "StepFailing":
		return fmt.Sprintf("step %v is ended: %s", h.Key.Step, h.Why)
	case "SignalKept":
		return fmt.Sprintf("step %v gets SIG%s", h.Key.Step, slurm.SignalName(syscall.Signal(max(h.Signal, -h.Signal))))
	case "SignalsSent":
		return fmt.Sprintf("step %v on %s has its signals", h.Key.Step, h.Node)
	case "NodeEnded":
		return nodeEndedText(h.End)
	case "StepDone":
		if h.Result != nil {
			return fmt.Sprintf("step %v: %s", h.Key.Step, h.Result.text())
		}
	case "JobEnding", "JobFate":
		if h.Fate != nil {
			return h.Fate.text()
		}
	case "Ended":
		return fmt.Sprintf("%s, exit %d; its nodes are free", strings.ToLower(h.State.String()), h.Exit)
	case "Killed":
		return fmt.Sprintf("%s: %s", strings.ToLower(h.State.String()), h.Cause)
	case "Requeued":
		return "waits again: " + h.Cause
	case "NodeCleaned":
		return "nothing of it is left on " + h.Node
	case "Cancelled", "Held", "Released", "Requeue", "JobHeld":
		return ""
	}
	return rawText(e.Data)
}

func submittedText(b json.RawMessage) string {
	var s job.Spec
	if json.Unmarshal(b, &s) != nil {
		return rawText(b)
	}
	words := []string{fmt.Sprintf("%q of %s asks for %s", s.Name, s.User, plural(max(1, s.MinNodes), "node"))}
	for _, g := range s.GRES {
		name := g.Name
		if g.Type != "" {
			name += ":" + g.Type
		}
		words = append(words, fmt.Sprintf("%s:%d", name, g.Count))
	}
	if s.TimeLimit > 0 {
		words = append(words, limitWord(s.TimeLimit))
	}
	return strings.Join(words, ", ")
}

func nodesOf(a *job.Allocation) string {
	names := make([]string, len(a.Nodes))
	for i := range a.Nodes {
		names[i] = a.Nodes[i].Node
	}
	return slurm.Fold(names)
}

func nodeEndedText(b json.RawMessage) string {
	var end job.StepEnd
	if json.Unmarshal(b, &end) != nil {
		return rawText(b)
	}
	text := fmt.Sprintf("step %v on %s: %s ended", end.Key.Step, end.Node, plural(len(end.Ranks), "rank"))
	if end.Fault != nil {
		text += ": " + end.Fault.What
	}
	return text
}

// rawText is an event's data in a line.
func rawText(b json.RawMessage) string {
	if len(b) > 200 {
		return string(b[:200]) + "…"
	}
	return string(b)
}
