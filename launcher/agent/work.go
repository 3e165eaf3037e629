package agent

import (
	"context"
	"errors"

	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/launcher/control"
)

// Work is what is to be done for one step, one thing after the other.
type Work struct {
	Key   job.StepKey
	node  string
	hands Hands
	post  func(any)
	todo  *queue[any]
}

// Said takes what the supervisor says.
func (w *Work) Said(e control.Event) { w.post(eventIn{e}) }

// Gone takes the end of the supervisor, with that of the step where it is on disk.
func (w *Work) Gone(end *job.StepEnd) { w.post(goneIn{end}) }

// Next does the first thing that is to be done, and says whether there was one, and whether
// nothing will ever come after it.
func (w *Work) Next(ctx context.Context) (did, last bool) {
	do, ok := w.todo.first()
	return ok, ok && w.do(ctx, do)
}

// Pending says whether there is anything to be done.
func (w *Work) Pending() bool { return w.todo.some() }

// run does what is to be done until the life is forgotten, or ctx ends.
func (w *Work) run(ctx context.Context) {
	for {
		did, last := w.Next(ctx)
		switch {
		case last:
			return
		case did:
			continue
		}
		select {
		case <-w.todo.ready:
		case <-ctx.Done():
			w.leave()
			return
		}
	}
}

// leave does what has to be on disk for the next agent.
func (w *Work) leave() {
	for _, do := range w.todo.take() {
		if do, ok := do.(settleDo); ok {
			w.hands.Settle(do.end)
		}
	}
	w.hands.Leave()
}

// do does one thing, and says whether it was the last.
func (w *Work) do(ctx context.Context, do any) (last bool) {
	switch do := do.(type) {
	case launchDo:
		if err := w.hands.Launch(ctx, do.spec, do.lease); err != nil {
			f := job.Fault{What: "start the supervisor of the step on node " + w.node, Cause: err.Error(), Node: true}
			if refused, ok := errors.AsType[*refusal](err); ok {
				f = refused.Fault
			}
			w.post(failedIn{f})
		}
	case adoptDo:
		w.hands.Adopt(ctx)
	case beginDo:
		// Without an intent on disk nothing is started: who comes after us could do it
		// again.
		if err := w.hands.Intend(ctx, do.start); err != nil {
			w.post(killIn{why: "no intent", fault: &job.Fault{What: "write intent of the step on node " + w.node, Cause: err.Error(), Node: true}})
			return false
		}
		w.hands.Tell(control.Request{Start: &do.start})
	case tellDo:
		if told := w.hands.Tell(do.request); told && do.request.SignalID != 0 {
			w.post(signalledIn{do.request.SignalID})
		}
	case settleDo:
		w.hands.Settle(do.end)
	case forgetDo:
		return true
	case discardDo:
		w.hands.Remove()
		return true
	}
	return false
}
