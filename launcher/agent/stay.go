package agent

import (
	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/launcher/program"
)

// stay is what a job's attempt goes through on this node where administrators have programs for
// it: the prolog, its steps, and, when nothing of these is left, the epilog. It is pure:
// [stay.step] takes what happened and says what is to be done.
//
// What has ended is written down, before anything follows from it: it is not run again. What
// was going on when the agent was killed is run again from its begin, once the earlier run is
// ended. An epilog runs also where no prolog did, as with Slurm, and on a node that comes back.
type stay struct {
	env            job.JobEnv
	prolog, epilog stage
	fault          *job.Fault // of the prolog
	failed         string     // why the epilog has, for the log
	asked          bool       // the controller wants to hear of the prolog's end
	leaving        bool       // the attempt is over
	empty          bool       // and no process of it is left
	left           string     // but this, for people
}

// stage is how far a program is.
type stage uint8

const (
	due stage = iota
	going
	done
	skipped // there is none
)

// What happens to a stay.
type (
	// enterIn is that a step comes, or, if asked, that the prolog is to run by itself.
	enterIn struct {
		env   job.JobEnv
		any   bool // there is a prolog
		asked bool
	}
	// leaveIn is the controller's release. Without an env that of the begin counts.
	leaveIn struct{ env *job.JobEnv }
	// emptyIn is that all steps have ended and no process is left, but what is said.
	emptyIn struct {
		left string
		any  bool // there is an epilog
	}
	ranIn struct {
		kind  program.Kind
		fault *job.Fault
	}
)

// What is to be done, in this order.
type (
	runDo   struct{ kind program.Kind }
	keepDo  struct{} // write down what has ended
	readyDo struct { // its steps may go on, or may not
		fault   *job.Fault
		refused bool // because of the prolog
	}
	tellNow struct{} // the controller, how the prolog has ended
	leaveDo struct { // the node is clean
		left  string
		drain bool
	}
)

// step takes what happened and returns the new state, and what is to be done.
func (s stay) step(in any) (stay, []any) {
	switch in := in.(type) {
	case enterIn:
		return s.enter(in)
	case leaveIn:
		s.leaving = true
		if in.env != nil {
			s.env = *in.env
		}
	case emptyIn:
		s.empty, s.left = true, in.left
		if !in.any && s.epilog == due {
			s.epilog = skipped
		}
		return s.finish()
	case ranIn:
		return s.ran(in)
	}
	return s, nil
}

func (s stay) enter(in enterIn) (stay, []any) {
	if s.leaving {
		return s, []any{readyDo{fault: &job.Fault{What: "its job is over"}}}
	}
	s.asked = s.asked || in.asked
	if s.prolog == due && !in.any {
		s.prolog = skipped
	}
	switch s.prolog {
	case due:
		s.prolog, s.env = going, in.env
		return s, []any{runDo{program.Prolog}}
	case going:
		return s, nil
	}
	return s, s.ready()
}

// ready is that the prolog has ended.
func (s stay) ready() []any {
	do := []any{readyDo{s.fault, s.fault != nil}}
	if s.asked {
		do = append(do, tellNow{})
	}
	return do
}

func (s stay) ran(in ranIn) (stay, []any) {
	if in.kind == program.Prolog {
		s.prolog, s.fault = done, in.fault
		do := append([]any{keepDo{}}, s.ready()...)
		s, more := s.finish()
		return s, append(do, more...)
	}
	s.epilog = done
	if in.fault != nil {
		s.failed = in.fault.Cause
	}
	s, more := s.finish()
	return s, append([]any{keepDo{}}, more...)
}

// finish goes on with the end, once nothing of the attempt runs any more.
func (s stay) finish() (stay, []any) {
	if !s.empty || !s.leaving || s.prolog == going {
		return s, nil
	}
	switch s.epilog {
	case due:
		s.epilog = going
		return s, []any{runDo{program.Epilog}}
	case going:
		return s, nil
	}
	s.empty = false // who asks again hears it again
	return s, []any{leaveDo{s.left, s.failed != ""}}
}
