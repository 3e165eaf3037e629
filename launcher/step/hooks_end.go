package step

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/gangway-hpc/gangway/hooks/user"
)

// ending is what the hooks that see the end have together: their time, and somebody who
// may lose patience with them.
type ending struct {
	left int // of those that are registered
	ctx  context.Context
	stop func() // nil: it has not begun
	told atomic.Bool
}

// errImpatient is why hooks that see the end are ended before their time is over.
var errImpatient = errors.New("interrupted again, and killed")

// onEnd has f run hooks when the container is closed. What has told the command to end,
// which ctx may be ended by, does not end them: they clean up. The next interrupt does,
// and then what is left of the container is cleaned up as it would be without them.
func (s *step) onEnd(ctx context.Context, f func(context.Context, user.Runner) error) {
	s.ending.left++
	s.onClose(func() error {
		e := &s.ending
		most := s.Hooks.Timeout
		if most <= 0 {
			most = user.DefaultTimeout
		}
		if e.stop == nil {
			e.begin(context.WithoutCancel(ctx), most, s.told || ctx.Err() != nil, s.Log)
		}
		if e.left--; e.left == 0 {
			defer e.stop()
		}
		r := s.runner()
		r.Waiting = func(hook string) { e.waiting(s.Log, hook, most) }
		return f(e.ctx, r)
	})
}

// begin makes the context, which ends after a time, and by an interrupt: by the first one
// if somebody has asked for the end already, else by the second.
func (e *ending) begin(ctx context.Context, most time.Duration, told bool, log *slog.Logger) {
	e.told.Store(told)
	ctx, free := context.WithTimeoutCause(ctx, most, fmt.Errorf("killed, because hooks that see the end have %v together (hooks.timeout)", most))
	ctx, cancel := context.WithCancelCause(ctx)
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGTERM)
	if !signal.Ignored(syscall.SIGINT) { // as in the background of a script
		signal.Notify(signals, syscall.SIGINT)
	}
	go func() {
		for {
			select {
			case <-signals:
			case <-ctx.Done():
				return
			}
			if e.told.Swap(true) {
				cancel(errImpatient)
				return
			}
			log.Warn("waiting for hooks that see the end of the container; the next interrupt ends them")
		}
	}()
	e.ctx, e.stop = ctx, func() {
		signal.Stop(signals)
		cancel(nil)
		free()
	}
}

// waiting says what takes so long.
func (e *ending) waiting(log *slog.Logger, hook string, most time.Duration) {
	text := "waiting for a hook that sees the end of the container; a second interrupt ends it"
	if e.told.Load() {
		text = "waiting for a hook that sees the end of the container; an interrupt ends it"
	}
	log.Warn(text, "hook", hook, "at most", most)
}
