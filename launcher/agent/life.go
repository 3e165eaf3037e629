package agent

import (
	"cmp"
	"fmt"
	"time"

	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/internal/wire"
	"github.com/gangway-hpc/gangway/launcher/control"
)

// life is one try to run a step on this node: what is known of it, and what becomes of it.
// It is pure: [life.step] takes what happened and says what is to be done.
type life struct {
	key   job.StepKey
	node  string
	phase phase

	held    *launchDo // what waits for the prolog
	refused bool      // the prolog has failed
	never   bool      // launched

	begun    time.Time     // of the prepare
	progress time.Time     // when the supervisor last had any
	patience time.Duration // without progress; 0: for ever
	total    time.Duration // of the prepare; 0: for ever
	doing    string        // the last phase of the prepare, for people

	prepared control.Prepared
	start    control.Start // as intended
	started  job.Time
	end      job.StepEnd

	fault   *job.Fault // why we ended it; it counts more than what the supervisor says
	destroy time.Time  // until then it may end by itself; zero: it is not asked to
	acked   bool       // the controller has the end
	gone    bool       // the supervisor
	clean   bool       // it said that nothing of the step is left
}

// phase is how far a step is.
type phase int

const (
	unborn phase = iota
	preparing
	prepared
	starting // the intent may be on disk
	running
	ended
)

// What happens to a life.
type (
	prepareIn struct {
		spec                   *job.StepSpec
		lease, patience, total time.Duration
		wait                   bool // for the prolog: readyIn comes
	}
	readyIn readyDo                         // the prolog has ended, and by which fault
	adoptIn struct{ intent *control.Start } // a supervisor of an earlier agent is there
	foundIn struct {
		end     job.StepEnd // of an earlier agent is there; the supervisor is gone
		refused bool        // because the prolog has failed
	}
	startIn  struct{ start control.Start }
	renewIn  struct{ lease time.Duration }
	signalIn struct {
		signal int
		id     uint64
	}
	signalledIn struct{ id uint64 } // the supervisor has it
	killIn      struct {
		grace time.Duration
		slack time.Duration // after that it is killed from outside; 0: as always
		why   string
		fault *job.Fault // in the place of what the supervisor will say; nil: none
	}
	ackIn     struct{}
	restateIn struct{} // the controller is there again
	tickIn    struct{}
	eventIn   struct{ event control.Event }
	goneIn    struct{ end *job.StepEnd } // the supervisor, with its end.json if there is one
	failedIn  struct{ fault job.Fault }  // it could not be started
)

// What is to be done.
type (
	launchDo struct {
		spec  *job.StepSpec
		lease time.Duration
	}
	adoptDo   struct{}
	beginDo   struct{ start control.Start } // the intent, and then the start
	tellDo    struct{ request control.Request }
	destroyDo struct{}                  // kill all that is left of it
	settleDo  struct{ end job.StepEnd } // write end.json in the supervisor's place
	discardDo struct{}                  // remove the run directory, and forget it
	forgetDo  struct{}                  // forget it: there is no run directory
	sayDo     struct{ message *wire.AgentMessage }
)

// Spans of a prepare that an earlier agent began, until the controller says others: those
// that it uses itself.
const (
	adoptPatience = 2 * time.Minute
	adoptTotal    = time.Hour
)

// slack is how long after the grace a supervisor has to end.
const slack = 10 * time.Second

// step takes what happened at now and returns the new state, and what is to be done in
// this order.
func (l life) step(in any, now time.Time) (life, []any) {
	switch in := in.(type) {
	case prepareIn:
		return l.prepare(in, now)
	case adoptIn:
		l.phase, l.progress, l.begun, l.patience, l.total, l.doing = preparing, now, now, adoptPatience, adoptTotal, "of an earlier agent"
		if in.intent != nil {
			l.phase, l.start = starting, *in.intent
		}
		return l, []any{adoptDo{}}
	case foundIn:
		in.end.Key, in.end.Node = l.key, l.node // whatever it says
		l.phase, l.end, l.gone, l.started, l.refused = ended, in.end, true, in.end.Start, in.refused
		return l, nil
	case readyIn:
		return l.ready(in, now)
	case startIn:
		return l.begin(in.start)
	case renewIn:
		if l.phase == prepared {
			return l, []any{tellDo{control.Request{Renew: in.lease.Milliseconds()}}}
		}
	case signalIn:
		// The supervisor keeps what comes before its ranks run. The end of a step is the answer
		// to what comes too late.
		if l.phase != unborn && l.phase != ended {
			return l, []any{tellDo{control.Request{Signal: in.signal, SignalID: in.id}}}
		}
	case signalledIn:
		return l, []any{l.saySignalled(in.id)}
	case holdIn:
		if l.phase == prepared || l.phase == starting || l.phase == running {
			return l, []any{tellDo{control.Request{Hold: in.span.Milliseconds()}}}
		}
	case killIn:
		return l.kill(in, now)
	case ackIn:
		l.acked = true
		return l, l.discard()
	case restateIn:
		return l, l.restate()
	case tickIn:
		return l.tick(now)
	case eventIn:
		if l.held == nil { // else there is nobody who could say it
			return l.event(in.event, now)
		}
	case goneIn:
		return l.over(in.end, now)
	case failedIn:
		l.gone, l.held = true, nil
		if l.phase == ended {
			return l, l.discard()
		}
		return l.finish(l.ending(&in.fault, now), true)
	}
	return l, nil
}

func (l life) prepare(in prepareIn, now time.Time) (life, []any) {
	if l.phase == preparing {
		l.patience, l.total = in.patience, in.total // from when it began
	}
	if l.phase != unborn {
		return l, l.restate()
	}
	l.phase, l.begun, l.progress, l.patience, l.total, l.doing = preparing, now, now, in.patience, in.total, "start"
	do := launchDo{in.spec, in.lease}
	if in.wait {
		l.held, l.doing = &do, "prolog"
		return l, []any{l.sayProgress(0, 0)}
	}
	return l, []any{l.sayProgress(0, 0), do}
}

// ready launches what has waited for the prolog, or ends it.
func (l life) ready(in readyIn, now time.Time) (life, []any) {
	if l.held == nil {
		return l, nil
	}
	if in.fault != nil {
		l.refused = in.refused
		return l.unlaunched(in.fault, now)
	}
	do := *l.held
	l.held, l.progress, l.doing = nil, now, "start"
	return l, []any{l.sayProgress(0, 0), do}
}

// unlaunched is the end of what was never launched.
func (l life) unlaunched(f *job.Fault, now time.Time) (life, []any) {
	l.held, l.gone, l.never = nil, true, true
	return l.finish(l.ending(f, now), true)
}

// begin lets the ranks go. The supervisor starts them once, however often it is told.
func (l life) begin(start control.Start) (life, []any) {
	switch l.phase {
	case prepared, starting:
		l.phase, l.start = starting, start
		return l, []any{beginDo{start}}
	case running, ended:
		return l, l.restate()
	}
	return l, nil
}

func (l life) kill(in killIn, now time.Time) (life, []any) {
	if l.phase == ended {
		return l, l.restate()
	}
	if l.fault == nil {
		l.fault = in.fault
	}
	if l.held != nil {
		return l.unlaunched(&job.Fault{What: in.why}, now)
	}
	if by := now.Add(in.grace + cmp.Or(in.slack, slack)); l.destroy.IsZero() || by.Before(l.destroy) {
		l.destroy = by
	}
	return l, []any{tellDo{control.Request{Kill: &control.Kill{GraceMS: in.grace.Milliseconds(), Why: in.why}}}}
}

func (l life) tick(now time.Time) (life, []any) {
	if l.phase == ended {
		return l, nil
	}
	if !l.destroy.IsZero() && now.After(l.destroy) {
		l.destroy = now.Add(slack) // and again, if it is still there
		return l, []any{destroyDo{}}
	}
	if l.phase != preparing || !l.destroy.IsZero() {
		return l, nil
	}
	why := ""
	switch {
	case l.patience > 0 && l.held == nil && now.Sub(l.progress) > l.patience: // a prolog may take its time
		why = fmt.Sprintf("no progress for %s in its phase %q", l.patience, l.doing)
	case l.total > 0 && now.Sub(l.begun) > l.total:
		why = fmt.Sprintf("it took longer than %s; it was in its phase %q", l.total, l.doing)
	default:
		return l, nil
	}
	return l.kill(killIn{why: why, fault: &job.Fault{What: "prepare the step on node " + l.node, Cause: why, Node: true}}, now)
}

// event takes what the supervisor says.
func (l life) event(e control.Event, now time.Time) (life, []any) {
	l.progress = now
	switch {
	case l.phase == ended:
	case e.Progress != nil:
		l.doing = e.Progress.Phase
		return l, []any{l.sayProgress(e.Progress.Bytes, e.Progress.Total)}
	case e.Prepared != nil:
		l.prepared = *e.Prepared
		if l.phase == preparing {
			l.phase = prepared
		}
		return l, []any{l.sayPrepared()}
	case e.Started != nil:
		l.phase, l.started = running, e.Started.At
		return l, []any{l.sayStarted()}
	case e.Ended != nil:
		l.clean = e.Left == ""
		return l.finish(*e.Ended, false)
	}
	return l, nil
}

// over is the end of the supervisor. If it did not say how its ranks ended, nobody knows;
// if it did not say that nothing is left of them, that is looked for.
func (l life) over(end *job.StepEnd, now time.Time) (life, []any) {
	l.gone, l.held = true, nil
	if l.phase == ended && l.clean {
		return l, l.discard()
	}
	if l.phase == ended {
		return l, append([]any{destroyDo{}}, l.discard()...)
	}
	if end != nil {
		return l.finish(*end, false)
	}
	f := job.Fault{
		What:  fmt.Sprintf("the supervisor of step %s on node %s ended without a word", l.key, l.node),
		Cause: "it was killed, or its memory was taken; the ranks were ended with it",
		Node:  l.phase < starting,
	}
	return l.finish(l.ending(&f, now), true)
}

// ending is an end that the supervisor did not say.
func (l life) ending(f *job.Fault, now time.Time) job.StepEnd {
	return job.StepEnd{Key: l.key, Node: l.node, Start: l.started, End: job.Time(now.UnixMilli()), Fault: f}
}

// finish is the end of the ranks, or of a prepare or start that failed, which is said by
// nothing else. ours says that end.json has not been written.
func (l life) finish(end job.StepEnd, ours bool) (life, []any) {
	end.Key, end.Node = l.key, l.node // what a user's process says is of his own step
	if l.fault != nil {
		// That its ranks were killed is what we did, and no failure of theirs.
		end.Fault, end.Ranks, ours = l.fault, nil, true
	}
	l.phase, l.end = ended, end
	var do []any
	if l.gone && !l.never {
		do = append(do, destroyDo{})
	}
	if ours {
		do = append(do, settleDo{end})
	}
	return l, append(do, l.sayEnded())
}

// discard forgets a life that nobody needs any more.
func (l life) discard() []any {
	if l.phase == ended && l.acked && l.gone {
		return []any{discardDo{}}
	}
	return nil
}

// restate says what a controller has to know that was away.
func (l life) restate() []any {
	switch l.phase {
	case preparing:
		return []any{l.sayProgress(0, 0)}
	case prepared, starting:
		return []any{l.sayPrepared()}
	case running:
		return []any{l.sayPrepared(), l.sayStarted()}
	case ended:
		return []any{l.sayEnded()}
	}
	return nil
}

// state is the phase as the controller is told.
func (l life) state() wire.StepState_Phase {
	switch l.phase {
	case preparing:
		return wire.StepState_PREPARING
	case prepared, starting:
		return wire.StepState_PREPARED
	case running:
		return wire.StepState_RUNNING
	case ended:
		return wire.StepState_ENDED
	}
	return wire.StepState_UNKNOWN
}
