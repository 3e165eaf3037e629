package step

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/gangway-hpc/gangway/internal/fsx"
	"github.com/gangway-hpc/gangway/internal/proc"
)

// A scratch directory is large and has names that nobody knows beforehand, so PID 1, which
// makes system calls only, cannot remove it when the supervisor was killed. Runs that have
// one have a process more, which waits for that.

// sweepTime is how long the scratch directory of a killed run may be in use by what is
// being killed with it.
const sweepTime = 10 * time.Second

// guardScratch starts the process that removes a scratch directory when this one was
// killed. It ends with the run.
func (s *step) guardScratch(dir string) error {
	if len(s.Sweep) == 0 {
		return nil
	}
	end, ours, err := os.Pipe()
	if err != nil {
		return err
	}
	defer end.Close()
	proc.CloseOnExec()
	cmd := exec.Command("/proc/self/exe", append(append([]string{}, s.Sweep...), dir)...)
	cmd.Dir, cmd.Stdin = "/", end
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // what ends our group is not for it
	if err := cmd.Start(); err != nil {
		return errors.Join(fmt.Errorf("start the process that removes scratch directories: %w", err), ours.Close())
	}
	s.onClose(func() error { return errors.Join(ours.Close(), cmd.Wait()) })
	return nil
}

// SweepScratch removes a scratch directory once nobody holds the other end of alive any
// more, if the run has not done so by then. It is what the program does that Options.Sweep
// names.
func SweepScratch(ctx context.Context, alive io.Reader, dir string) error {
	if _, err := io.Copy(io.Discard, alive); err != nil {
		return fmt.Errorf("wait for the end of a run: %w", err)
	}
	if !isID(filepath.Base(dir)) || !hasOnly(dir, scratchNames()) {
		return nil // gone, or none
	}
	ctx, cancel := context.WithTimeout(ctx, sweepTime)
	defer cancel()
	lock, err := fsx.Acquire(ctx, filepath.Join(dir, lockName), fsx.Exclusive)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("remove scratch directory: %w", err)
	}
	for {
		err := removeTree(dir)
		if err == nil || !pause(ctx, 20*time.Millisecond) { // the last writes to it, maybe
			return errors.Join(err, lock.Release())
		}
	}
}
