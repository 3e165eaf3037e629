package agent

import (
	"context"
	"time"

	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/launcher/control"
)

// Ground is what an agent stands on: the clock, the node's disk and the processes of steps.
// It is the machine, or what a simulation has in its place. Only the agent's loop calls it.
type Ground interface {
	Now() time.Time
	// Boot is the kernel's id of this boot.
	Boot() string
	// Epoch is the highest one of a controller that was kept; 0: none was.
	Epoch() uint64
	// KeepEpoch returns when that is on stable storage.
	KeepEpoch(ctx context.Context, epoch uint64) error
	// Steps are those that have a run directory.
	Steps() ([]job.StepKey, error)
	// Hands are what does the work for a step.
	Hands(w *Work) Hands
	// Do has the work done, by [Work.Next], until it is over or ctx ends. It returns at once.
	Do(ctx context.Context, w *Work)
	// Strays ends the processes of all steps but those that live, and returns the steps of
	// processes that are still there.
	Strays(lives func(job.StepKey) bool) []job.StepKey
	// Search ends the processes that an attempt has here, but for the supervisors of some of
	// its steps. It returns at once; done is called when it is over, with what is left for
	// people; empty: nothing is.
	Search(ctx context.Context, id job.ID, attempt int, spare []job.StepKey, done func(left string))
	// End ends what any step still has here.
	End()
}

// Hands do for one step what its life says. Their [Work] calls them, one after the other, but
// for Left, Destroy and Clear, which the agent's loop does.
type Hands interface {
	// Launch starts the supervisor. What that says comes by [Work.Said], its end by [Work.Gone].
	Launch(ctx context.Context, spec *job.StepSpec, lease time.Duration) error
	// Adopt is as Launch, with a supervisor that an earlier agent has started.
	Adopt(ctx context.Context)
	// Tell says something to the supervisor. If that is gone, Work hears of it.
	Tell(r control.Request) (told bool)
	// Intend returns when it is on stable storage that the step is to be started.
	Intend(ctx context.Context, start control.Start) error
	// Settle writes the end of the step in the supervisor's place.
	Settle(end job.StepEnd)
	// Remove removes the run directory.
	Remove()
	// Leave is the last that is called where the agent ends before the step does.
	Leave()

	// Left is what an earlier agent left of the step.
	Left() Left
	// Destroy kills all that is left of the step. It returns at once.
	Destroy()
	// Clear kills all that is left of the step, and removes the run directory.
	Clear()
}

// Left is what is there of a step that an earlier agent had.
type Left struct {
	Alive    bool          // the supervisor
	Intended bool          // it is to be started, or was
	Intent   control.Start // if that can be read
	End      *job.StepEnd
}
