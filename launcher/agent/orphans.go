package agent

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gangway-hpc/gangway/internal/proc"
)

// Orphans ends what steps leave behind whose supervisor was killed. What of it carries the
// step's marker in its environment is found by that; the rest is found because the kernel
// gives it to this process: the supervisor was its child, or that of an agent that is gone.
// Processes of a supervisor that was there before this process and whoever started it are
// given to somebody else, and are not found.
type Orphans struct {
	spare func(pid int) bool

	mu  sync.Mutex        // nothing is started while children are looked at
	own map[int]*exec.Cmd // started here, and not waited for
}

// AdoptOrphans makes this process the parent of what its descendants leave behind. A process
// does it once. spare says which orphans are none to be ended; nil: there are none. All that
// the process starts from now on it has to start and to wait for by [Orphans.Start] and
// [Orphans.Wait]: other children are orphans.
func AdoptOrphans(spare func(pid int) bool) (*Orphans, error) {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return nil, fmt.Errorf("adopt orphans: %w", err)
	}
	return &Orphans{spare: spare, own: map[int]*exec.Cmd{}}, nil
}

// Start is [exec.Cmd.Start]. Nil Orphans are those of a process that adopts none.
func (o *Orphans) Start(cmd *exec.Cmd) error {
	if o == nil {
		return cmd.Start()
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if err := cmd.Start(); err != nil {
		return err
	}
	o.own[cmd.Process.Pid] = cmd
	return nil
}

// Wait is [exec.Cmd.Wait].
func (o *Orphans) Wait(cmd *exec.Cmd) error {
	err := cmd.Wait()
	if o == nil {
		return err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.own[cmd.Process.Pid] == cmd { // and not one that has its number since
		delete(o.own, cmd.Process.Pid)
	}
	return err
}

// Watch ends orphans until ctx ends. They come when a child ends, which the kernel tells.
func (o *Orphans) Watch(ctx context.Context) {
	children := make(chan os.Signal, 1)
	signal.Notify(children, syscall.SIGCHLD)
	defer signal.Stop(children)
	for {
		o.sweep()
		select {
		case <-children:
		case <-ctx.Done():
			return
		}
	}
}

// sweep kills the orphans that live, waits for those that have ended, and says how many
// live: what is killed here is gone with a later one.
func (o *Orphans) sweep() (alive int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, pid := range proc.Children(os.Getpid()) {
		if o.own[pid] != nil {
			continue
		}
		// Until it was waited for here its number stays its own.
		if got, err := syscall.Wait4(pid, nil, syscall.WNOHANG, nil); err != nil || got == pid {
			continue
		}
		if o.spare != nil && o.spare(pid) {
			continue
		}
		alive++
		_ = syscall.Kill(pid, syscall.SIGKILL) // it may have ended
	}
	return alive
}

// End ends the orphans that there are, those that become so by it too, and returns how many
// are left when the time is over. Nil Orphans have none.
func (o *Orphans) End(patience time.Duration) int {
	if o == nil {
		return 0
	}
	for deadline := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		if left := o.sweep(); left == 0 || time.Now().After(deadline) {
			return left
		}
	}
}

// OfStep says whether a process has a step's marker in its environment: agents find it by
// that.
func OfStep(pid int) bool { return markerOf(pid) != "" }
