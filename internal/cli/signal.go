package cli

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"syscall"

	"github.com/gangway-hpc/gangway/internal/fault"
)

// untilSignal returns a context that SIGINT and SIGTERM cancel. Its cause is a
// fault that carries the exit code. Only the first signal asks politely: the
// second one finds the default action again and kills.
func untilSignal(parent context.Context) (ctx context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(parent)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
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
