package main

import (
	"context"
	"crypto/rand"
	"errors"
	"math"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/gangway-hpc/gangway/internal/api"
	"github.com/gangway-hpc/gangway/launcher/step"
)

// once is a request's own text: sent again it is not carried out a second time.
func once() string { return rand.Text() }

// waitForController waits a moment after a stream of answers has ended, so that it can be
// asked for again. An error that no waiting mends comes back.
func waitForController(ctx context.Context, err error) error {
	var refused *api.Error
	if ctx.Err() != nil || errors.As(err, &refused) {
		return err
	}
	select {
	case <-ctx.Done():
		return err
	case <-time.After(500 * time.Millisecond):
		return nil
	}
}

// limitsOf are this process's soft limits, by Slurm's names; nil if none is wanted.
func limitsOf(names []string) map[string]uint64 {
	numbers := map[string]int{
		"AS": syscall.RLIMIT_AS, "CORE": syscall.RLIMIT_CORE, "CPU": syscall.RLIMIT_CPU, "DATA": syscall.RLIMIT_DATA,
		"FSIZE": syscall.RLIMIT_FSIZE, "NOFILE": syscall.RLIMIT_NOFILE, "STACK": syscall.RLIMIT_STACK,
		"RSS": 5, "NPROC": 6, "MEMLOCK": 8, // <asm-generic/resource.h>
	}
	var all map[string]uint64
	for _, name := range names {
		var limit syscall.Rlimit
		if syscall.Getrlimit(numbers[strings.ToUpper(name)], &limit) == nil {
			if name == "NOFILE" { // the Go runtime has raised it since
				if was, err := step.FilesAtStart(); err == nil {
					limit.Cur = was.Cur
				}
			}
			if all == nil {
				all = map[string]uint64{}
			}
			all[name] = limit.Cur
			if n, ok := openFiles(); name == "NOFILE" && ok {
				all[name] = n
			}
		}
	}
	return all
}

// openFiles is the soft limit of open files that this process was started with: Go's run time
// raises its own, and gives children the one that there was.
func openFiles() (n uint64, ok bool) {
	out, err := exec.Command("/bin/sh", "-c", "ulimit -Sn").Output()
	text := strings.TrimSpace(string(out))
	if text == "unlimited" {
		return math.MaxUint64, err == nil
	}
	n, perr := strconv.ParseUint(text, 10, 64)
	return n, err == nil && perr == nil
}
