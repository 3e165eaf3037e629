package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/gangway-hpc/gangway/internal/api"
	"github.com/gangway-hpc/gangway/internal/fault"
	"github.com/gangway-hpc/gangway/launcher/agent"
)

// daemonController is the name of the controller among the daemons.
const daemonController = "controller"

// daemons are the processes of a cluster. Each has a goroutine that starts it again when
// it dies.
type daemons struct {
	dir, program string
	environ      []string
	say          func(string)
	orphans      *agent.Orphans // nil: none are adopted
	failed       chan error     // one that cannot be kept running; made by the first start
	tell         *os.File       // the controller's: a line on it says that cluster.json has changed

	mu     sync.Mutex
	all    []*daemon
	ending bool
}

// daemon is one of them.
type daemon struct {
	name string
	args []string
	mu   sync.Mutex
	cmd  *exec.Cmd     // nil while it does not run
	over bool          // its node has left the cluster
	done chan struct{} // nobody starts it again
}

// The pause before a daemon is started again that did not live long, and how many quick
// deaths are too many.
const (
	restartPause = 200 * time.Millisecond
	quickDeath   = 2 * time.Second
	maxDeaths    = 5
)

// start starts a daemon, and keeps it running.
func (d *daemons) start(name string, args ...string) {
	if d.failed == nil {
		d.failed = make(chan error, 1)
	}
	one := &daemon{name: name, args: args, done: make(chan struct{})}
	d.all = append(d.all, one)
	go d.keep(one)
}

// keep runs a daemon until the cluster ends. Its thread is its own: the kernel tells a
// child of the end of the thread that started it.
func (d *daemons) keep(one *daemon) {
	defer close(one.done)
	runtime.LockOSThread()
	for deaths := 0; ; {
		began := time.Now()
		err := d.once(one)
		if d.isEnding() || one.isOver() {
			return
		}
		// Who was killed did nothing wrong; who ends by itself may do so again at once.
		enough := restartPause
		if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.Exited() {
			deaths++
			enough = quickDeath
		}
		lived := time.Since(began)
		if lived > quickDeath {
			deaths = 0
		}
		if deaths >= maxDeaths {
			select {
			case d.failed <- d.tooOften(one, err):
			default:
			}
			return
		}
		d.say(fmt.Sprintf("%s ended (%v): started again", one.title(), err))
		if lived < enough {
			time.Sleep(restartPause)
		}
	}
}

func (one *daemon) title() string {
	if one.name == daemonController {
		return one.name
	}
	return "agent of " + one.name
}

func (one *daemon) isOver() bool {
	one.mu.Lock()
	defer one.mu.Unlock()
	return one.over
}

func (d *daemons) isEnding() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.ending
}

// once runs a daemon until it ends. It has a process group of its own, so that Ctrl-C
// reaches this process only, and gets SIGTERM when this process dies.
func (d *daemons) once(one *daemon) error {
	path := d.log(one)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	log, err := openLog(path)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(d.program, one.args...)
	cmd.Stdout, cmd.Stderr, cmd.Env = log, log, d.environ
	if one.name == daemonController && d.tell != nil {
		cmd.ExtraFiles = []*os.File{d.tell} // descriptor 3
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	if err := one.begin(cmd, d); err != nil {
		return err
	}
	err = d.orphans.Wait(cmd)
	one.mu.Lock()
	one.cmd = nil
	one.mu.Unlock()
	if err == nil {
		err = errors.New("exit status 0")
	}
	return err
}

// maxLog is how long a log may be when a daemon is started.
const maxLog = 16 << 20

// openLog opens a log for appending. One that has become long gives way to a new one, and
// is the one before.
func openLog(path string) (*os.File, error) {
	if st, err := os.Stat(path); err == nil && st.Size() > maxLog {
		if err := os.Rename(path, path+".1"); err != nil {
			return nil, fmt.Errorf("turn log: %w", err)
		}
	}
	return os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
}

// begin starts the process, unless the cluster ends.
func (one *daemon) begin(cmd *exec.Cmd, d *daemons) error {
	one.mu.Lock()
	defer one.mu.Unlock()
	if d.isEnding() || one.over {
		return context.Canceled
	}
	if err := d.orphans.Start(cmd); err != nil {
		return err
	}
	one.cmd = cmd
	return nil
}

func (d *daemons) log(one *daemon) string { return filepath.Join(d.dir, "log", one.name+".log") }

// tooOften is the error of a daemon that does not stay.
func (d *daemons) tooOften(one *daemon, err error) error {
	f := &fault.Error{
		What: fmt.Errorf("keep %s running: it ended %d times: %w", one.title(), maxDeaths, err),
		Hint: "see its log: " + d.log(one),
	}
	if b, err := os.ReadFile(d.log(one)); err == nil {
		f.Cause = lastError(string(b))
	}
	return f
}

// lastError is the last error that a daemon's log has, as the daemon said it.
func lastError(log string) string {
	last := ""
	for line := range strings.Lines(log) {
		if _, what, ok := strings.Cut(line, "error: "); ok {
			last = strings.TrimSpace(what)
		}
	}
	return last
}

func (one *daemon) signal(s syscall.Signal) {
	one.mu.Lock()
	defer one.mu.Unlock()
	if one.cmd != nil {
		_ = one.cmd.Process.Signal(s) // it may have ended
	}
}

// How long daemons have to end. Agents give ranks 5 s.
const (
	controllerPatience = 5 * time.Second
	endPatience        = 25 * time.Second
)

// sameSignal is how long after the first signal another one is still the same: timeout(1)
// and terminals that close send theirs to this process and to its group.
const sameSignal = time.Second

// end ends the daemons: the controller first, so that nothing new starts, and then the
// agents, with their steps unless these are kept. Another signal ends all at once.
func (d *daemons) end(keep bool, signals <-chan os.Signal) error {
	d.mu.Lock()
	d.ending = true
	d.mu.Unlock()
	hurry, done := make(chan struct{}), make(chan struct{})
	defer close(done)
	go func() {
		for began := time.Now(); ; {
			select {
			case <-signals:
				if time.Since(began) > sameSignal {
					close(hurry)
					return
				}
			case <-done:
				return
			}
		}
	}()
	agents := syscall.SIGINT
	if keep {
		agents = syscall.SIGTERM
	}
	controller, others := d.all[0], d.all[1:]
	controller.signal(syscall.SIGTERM)
	late := controller.wait(hurry, controllerPatience)
	for _, one := range others {
		one.signal(agents)
	}
	deadline := time.Now().Add(endPatience)
	for _, one := range others {
		late = append(late, one.wait(hurry, time.Until(deadline))...)
	}
	d.orphans.End(time.Second) // of agents that ended just now
	if len(late) == 0 {
		return nil
	}
	slices.Sort(late)
	return &fault.Error{
		What: fmt.Errorf("stop cluster: killed because they did not end: %s", strings.Join(late, ", ")),
		Hint: "steps may go on; gangway up with the same state directory takes them up, and ends them with its end",
	}
}

// wait waits for the end of a daemon, and kills it when the time is over or others hurry.
func (one *daemon) wait(hurry <-chan struct{}, patience time.Duration) (late []string) {
	select {
	case <-one.done:
		return nil
	case <-hurry:
	case <-time.After(patience):
	}
	one.signal(syscall.SIGKILL)
	<-one.done
	return []string{one.title()}
}

// daemonEnviron is the environment of daemons: this one's without what is of a job, in
// which somebody may have typed "gangway up".
func daemonEnviron(environ []string) []string {
	return slices.DeleteFunc(slices.Clone(environ), func(v string) bool {
		return strings.HasPrefix(v, "SLURM_") || strings.HasPrefix(v, api.Variable+"=")
	})
}
