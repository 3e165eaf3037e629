package agent

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/gangway-hpc/gangway/internal/fsx"
	"github.com/gangway-hpc/gangway/internal/job"
)

// lockPatience is how long an agent waits for one before it to end.
const lockPatience = 10 * time.Second

// lock keeps a second agent from the node's directory.
func (a *Agent) lock(ctx context.Context) (*fsx.Lock, error) {
	if err := os.MkdirAll(a.stepsDir(), 0o700); err != nil {
		return nil, fmt.Errorf("make directory of node %s: %w", a.Node.Name, err)
	}
	ctx, cancel := context.WithTimeout(ctx, lockPatience)
	defer cancel()
	lock, err := fsx.Acquire(ctx, filepath.Join(a.Dir, "lock"), fsx.Exclusive)
	if err != nil {
		return nil, fmt.Errorf("lock directory of node %s, which another agent may have: %w", a.Node.Name, err)
	}
	return lock, nil
}

// findSteps takes up what an earlier agent left: supervisors that live, ends that nobody
// has acknowledged, ends that nobody wrote. What was never to be started is removed.
func (a *Agent) findSteps(ctx context.Context) error {
	keys, err := a.Ground.Steps()
	if err != nil {
		return err
	}
	for _, key := range keys {
		a.findStep(a.hold(ctx, key))
	}
	// Processes of a step that nothing is known of are of no use to anybody.
	for _, key := range a.Ground.Strays(a.lives) {
		a.stray[attemptOf(key)] = true // its release says that it is left
	}
	return nil
}

func (a *Agent) findStep(h *held) {
	left := h.work.hands.Left()
	switch {
	case left.End != nil && !left.Alive:
		s := a.programs.stays[attemptOf(h.key)]
		a.happen(h, foundIn{*left.End, s != nil && s.fault != nil && left.End.Start == 0})
	case left.Alive:
		in := adoptIn{}
		if left.Intended {
			in.intent = &left.Intent
		}
		a.happen(h, in)
	case left.Intended:
		a.happen(h, adoptIn{&left.Intent}) // finds that it is gone
	default:
		// No rank was ever started: the controller sends it again, if it wants it. By then
		// the directory is gone, not somewhat later.
		h.work.hands.Clear()
		delete(a.steps, h.key)
		h.work.todo.put(forgetDo{})
	}
}

// lives says whether processes of a step are as they should be, also those that start just now.
func (a *Agent) lives(key job.StepKey) bool {
	h := a.steps[key]
	return h != nil && (h.phase != ended || !h.gone)
}

// seen says whether a message of an epoch is to be obeyed. The highest one of a controller
// that was seen is kept: an older one is not obeyed.
func (a *Agent) seen(ctx context.Context, epoch uint64) bool {
	if epoch < a.epoch {
		a.Log.Warn("an older controller was not obeyed", "epoch", epoch, "newest", a.epoch)
		return false
	}
	if epoch > a.epoch {
		a.epoch = epoch
		if err := a.Ground.KeepEpoch(ctx, epoch); err != nil {
			a.Log.Error("epoch is not on disk", "err", err)
		}
	}
	return true
}
