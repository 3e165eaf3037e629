package step

import (
	"cmp"
	"fmt"
	"syscall"
	"time"

	"github.com/gangway-hpc/gangway/internal/job"
)

// stage is how far a step on a node has come.
type stage uint8

const (
	stagePreparing stage = iota
	stagePrepared        // waits for START
	stageStarting        // ranks are being started, and some may have ended
	stageRunning
	stageFinishing // nothing runs any more; what is left is cleaned up
	stageOver
)

// life is how a step on a node goes: a state machine that knows neither processes nor
// clocks. What happens is told to it by step, and what it returns is to be done.
type life struct {
	ranks         int
	killOnBadExit bool
	waitAfterExit time.Duration
	grace         time.Duration // between TERM and KILL where the life itself ends the ranks

	stage   stage
	started job.Time // 0: the ranks never ran
	ended   int      // ranks that have
	asked   bool     // START came while the ranks were not prepared yet
	fault   *job.Fault
	told    bool          // the ranks were told to end
	why     string        // they were
	span    time.Duration // of a lease; 0: none
	lease   time.Time     // when that of what is prepared ends; zero: it has none
	hold    time.Time     // until when ranks run without word from the agent; zero: for ever
	kill    time.Time     // when the ranks are killed; zero: they are not, or were
	killed  bool
	alone   time.Time // when those that are left are told to end; zero: they are not
}

// holdGrace is between TERM and KILL where the agent is away.
const holdGrace = time.Second

// What happens to a life.
type (
	preparedIn struct{}
	failedIn   struct{ fault job.Fault } // to prepare, or to start
	startIn    struct{}
	startedIn  struct{ at job.Time }
	exitIn     struct{ bad bool } // of a rank
	killIn     struct {
		grace time.Duration
		why   string
		code  int // exit code of what was never started
	}
	renewIn   struct{ lease time.Duration }
	holdIn    struct{ span time.Duration } // that ranks may run without their agent
	timeIn    struct{}
	cleanedIn struct{}
)

// What is to be done.
type (
	tellPreparedDo struct{}
	startDo        struct{}
	tellStartedDo  struct{}
	signalDo       struct{ sig syscall.Signal } // to all ranks that run
	sayEndDo       struct{ why string }         // to who reads the ranks' output: they are ended
	cancelDo       struct{}                     // the prepare
	cleanDo        struct{}                     // ends everything that is left
	endDo          struct{}                     // writes down the end
)

// step tells what happened.
func (l *life) step(in any, now time.Time) []any {
	switch in := in.(type) {
	case preparedIn:
		return l.isPrepared(now)
	case failedIn:
		return l.failed(in.fault)
	case startIn:
		return l.start()
	case startedIn:
		l.started = in.at
		if l.stage == stageStarting {
			l.stage = stageRunning
		}
		return append([]any{tellStartedDo{}}, l.done()...)
	case exitIn:
		return l.exited(in.bad, now)
	case killIn:
		if l.stage < stageStarting && l.fault == nil {
			l.fault = l.notStarted(in.why)
			l.fault.Code = in.code
		}
		return l.end(in.grace, in.why, now)
	case renewIn:
		l.span = cmp.Or(in.lease, l.span)
		if in.lease > 0 && l.stage == stagePrepared {
			l.lease = now.Add(in.lease)
		}
	case holdIn:
		if in.span > 0 {
			l.hold = now.Add(in.span)
		}
	case timeIn:
		return l.time(now)
	case cleanedIn:
		if l.stage == stageFinishing {
			l.stage = stageOver
			return []any{endDo{}}
		}
	}
	return nil
}

// isPrepared is when the lease begins, however long the prepare took: nobody renews one before.
func (l *life) isPrepared(now time.Time) []any {
	if l.stage != stagePreparing {
		return nil
	}
	if l.told { // meanwhile
		return l.clean()
	}
	l.stage = stagePrepared
	if l.span > 0 {
		l.lease = now.Add(l.span)
	}
	do := []any{tellPreparedDo{}}
	if l.asked {
		do = append(do, l.start()...)
	}
	return do
}

// failed is the end of a prepare, or of a start, of which some ranks may run.
func (l *life) failed(f job.Fault) []any {
	if l.stage >= stageFinishing {
		return nil
	}
	if l.fault == nil {
		l.fault = &f
	}
	return l.clean()
}

func (l *life) start() []any {
	switch l.stage {
	case stagePreparing:
		l.asked = true
	case stagePrepared:
		l.stage = stageStarting
		l.lease = time.Time{}
		return []any{startDo{}}
	}
	return nil
}

// exited is the end of a rank.
func (l *life) exited(bad bool, now time.Time) []any {
	l.ended++
	if l.ended == l.ranks {
		return l.done()
	}
	if bad && l.killOnBadExit {
		return l.end(l.grace, "a rank failed", now)
	}
	if l.waitAfterExit > 0 && l.alone.IsZero() {
		l.alone = now.Add(l.waitAfterExit)
	}
	return nil
}

// done goes on where all ranks have started and ended.
func (l *life) done() []any {
	if l.stage == stageRunning && l.ended == l.ranks {
		return l.clean()
	}
	return nil
}

func (l *life) clean() []any {
	l.stage = stageFinishing
	l.kill, l.alone, l.lease, l.hold = time.Time{}, time.Time{}, time.Time{}, time.Time{}
	return []any{cleanDo{}}
}

// end tells the ranks to end, and kills them when the grace is over. Said again, it can
// only become shorter.
func (l *life) end(grace time.Duration, why string, now time.Time) []any {
	var do []any
	switch l.stage {
	case stagePreparing:
		first := !l.told
		l.told, l.fault = true, l.notStarted(why)
		if first {
			do = append(do, cancelDo{})
		}
		return do
	case stagePrepared:
		l.fault = l.notStarted(why)
		return l.clean()
	case stageFinishing, stageOver:
		return nil
	}
	if !l.told {
		l.told, l.why = true, why
		do = append(do, sayEndDo{why})
		if grace > 0 {
			do = append(do, signalDo{syscall.SIGTERM}, signalDo{syscall.SIGCONT})
		}
	}
	if at := now.Add(grace); !l.killed && (l.kill.IsZero() || at.Before(l.kill)) {
		l.kill = at
	}
	return append(do, l.time(now)...)
}

// notStarted is the fault of a step whose ranks never ran because it was ended.
func (l *life) notStarted(why string) *job.Fault {
	if l.fault != nil {
		return l.fault
	}
	if why == "" {
		why = "it was cancelled"
	}
	return &job.Fault{What: "the step was ended before it started: " + why}
}

// time does what is due.
func (l *life) time(now time.Time) []any {
	due := func(t time.Time) bool { return !t.IsZero() && !now.Before(t) }
	switch {
	case due(l.lease):
		l.fault = &job.Fault{What: "the step was given up before it started", Cause: "its lease has ended: nobody has renewed it", Node: true}
		return l.clean()
	case due(l.hold) && (l.stage == stageStarting || l.stage == stageRunning):
		l.hold = time.Time{}
		if l.fault == nil {
			l.fault = &job.Fault{What: "lease ended: the agent of the node was away for too long", Hint: "journalctl -u gangway-agent on the node says why", Node: true}
		}
		return l.end(holdGrace, job.EndNodeFailure, now)
	case due(l.kill):
		l.kill, l.killed = time.Time{}, true
		return []any{signalDo{syscall.SIGKILL}}
	case due(l.alone):
		l.alone = time.Time{}
		return l.end(l.grace, fmt.Sprintf("the first of its ranks ended %s before", l.waitAfterExit), now)
	}
	return nil
}

// wake is when timeIn has to come next; zero: it need not.
func (l *life) wake() time.Time {
	var next time.Time
	hold := l.hold
	if l.stage != stageStarting && l.stage != stageRunning {
		hold = time.Time{}
	}
	for _, t := range []time.Time{l.lease, hold, l.kill, l.alone} {
		if !t.IsZero() && (next.IsZero() || t.Before(next)) {
			next = t
		}
	}
	return next
}
