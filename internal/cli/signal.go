package cli

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/gangway-hpc/gangway/internal/fault"
)

// onDemand is the context of untilSignal, made when somebody first looks at it. Until
// then signals do what they do by default, which ends the process as well. A verb
// that is done in a moment, and never looks, is spared the thread that waits for
// signals: a tenth of the start-up time of the program.
type onDemand struct {
	start func() context.Context
}

// newOnDemand returns the context, and a function that ends what it started.
func newOnDemand(parent context.Context) (ctx context.Context, stop func()) {
	end := func() {}
	start := sync.OnceValue(func() context.Context {
		ctx, stop := untilSignal(parent)
		end = stop
		return ctx
	})
	return onDemand{start}, func() { end() }
}

// Deadline implements context.Context.
func (c onDemand) Deadline() (time.Time, bool) { return time.Time{}, false }

// Done implements context.Context.
func (c onDemand) Done() <-chan struct{} { return c.start().Done() }

// Err implements context.Context.
func (c onDemand) Err() error { return c.start().Err() }

// Value implements context.Context. It is how package context looks for a cause.
func (c onDemand) Value(key any) any { return c.start().Value(key) }

// untilSignal returns a context that SIGINT and SIGTERM cancel. Its cause is a
// fault that carries the exit code. Only the first signal asks politely: the
// second one finds the default action again and kills.
func untilSignal(parent context.Context) (ctx context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(parent)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM)
	if !signal.Ignored(syscall.SIGINT) { // as in the background of a script
		signal.Notify(signals, syscall.SIGINT)
	}
	go func() {
		select {
		case s := <-signals:
			signal.Stop(signals)
			cancel(signalFault(s))
		case <-ctx.Done():
		}
	}()
	return ctx, func() {
		signal.Stop(signals)
		cancel(nil)
	}
}

// signalFault is the error of having been told to stop by s.
func signalFault(s os.Signal) *fault.Error {
	if s == syscall.SIGINT {
		return &fault.Error{What: errors.New("interrupted"), Code: fault.CodeInterrupted}
	}
	return &fault.Error{What: errors.New("terminated"), Code: fault.CodeSignal(syscall.SIGTERM)}
}
