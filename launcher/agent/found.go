package agent

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/gangway-hpc/gangway/internal/fsx"
	"github.com/gangway-hpc/gangway/launcher/control"
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
	entries, err := os.ReadDir(a.stepsDir())
	if err != nil {
		return fmt.Errorf("find steps of node %s: %w", a.Node.Name, err)
	}
	for _, e := range entries {
		key, err := control.ParseDir(e.Name())
		if err != nil {
			a.Log.Warn("not a step's directory", "path", filepath.Join(a.stepsDir(), e.Name()), "err", err)
			continue
		}
		a.findStep(ctx, a.hold(ctx, key))
	}
	// Processes of a step that nothing is known of are of no use to anybody.
	prefix := a.Cluster + "/" + a.Node.Name + "/"
	for _, pid := range kill(prefix, a.ofSteps, slack) {
		dir, _, _ := strings.Cut(strings.TrimPrefix(markerOf(pid), prefix), "/")
		if key, err := control.ParseDir(dir); err == nil {
			a.stray[attemptOf(key)] = true // its release says that it is left
		}
	}
	_ = a.removeLeftovers(ctx, nil) // the log has it, and nothing waits for it
	return nil
}

func (a *Agent) findStep(ctx context.Context, h *held) {
	p, err := readJSON[process](h.file(control.PIDFile))
	alive := err == nil && p.alive()
	intent, err := readJSON[control.Start](h.file(control.IntentFile))
	intended := err == nil
	if !intended {
		_, err := os.Lstat(h.file(control.IntentFile))
		intended = err == nil
	}
	end, err := h.lastWord()
	switch {
	case err == nil && !alive:
		a.happen(h, foundIn{end})
	case alive:
		in := adoptIn{}
		if intended {
			in.intent = &intent
		}
		a.happen(h, in)
	case intended:
		a.happen(h, adoptIn{&intent}) // finds that it is gone
	default:
		// No rank was ever started: the controller sends it again, if it wants it. By then
		// the directory is gone, not somewhat later.
		kill(h.marker, nil, slack)
		if err := h.remove(); err != nil {
			a.Log.Error("run directory stays", "step", h.life.key, "err", err)
		}
		delete(a.steps, h.life.key)
		h.todo.put(forgetDo{})
	}
}

// ofSteps keeps the processes of all steps that live, also those that start just now.
func (a *Agent) ofSteps(_ int, marker string) bool {
	for _, h := range a.steps {
		if h.marker == marker && (h.phase != ended || !h.gone) {
			return true
		}
	}
	return false
}

// The highest epoch of a controller that was seen: an older one is not obeyed.

func (a *Agent) epochFile() string { return filepath.Join(a.Dir, "epoch") }

func (a *Agent) readEpoch() uint64 {
	b, err := os.ReadFile(a.epochFile())
	if err != nil {
		return 0
	}
	n, err := strconv.ParseUint(strings.TrimSpace(string(b)), 10, 64)
	if err != nil {
		a.Log.Warn("epoch cannot be read", "err", err)
	}
	return n
}

// seen says whether a message of an epoch is to be obeyed.
func (a *Agent) seen(ctx context.Context, epoch uint64) bool {
	if epoch < a.epoch {
		a.Log.Warn("an older controller was not obeyed", "epoch", epoch, "newest", a.epoch)
		return false
	}
	if epoch > a.epoch {
		a.epoch = epoch
		err := fsx.WriteFile(ctx, a.epochFile(), fsx.Options{Mode: 0o600}, func(f *os.File) error {
			_, err := fmt.Fprintln(f, epoch)
			return err
		})
		if err != nil {
			a.Log.Error("epoch is not on disk", "err", err)
		}
	}
	return true
}

// bootID is the kernel's id of this boot.
func bootID() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}
