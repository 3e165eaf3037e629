package step

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gangway-hpc/gangway/internal/fault"
	"github.com/gangway-hpc/gangway/internal/proc"
	"github.com/gangway-hpc/gangway/launcher/rank"
	"github.com/gangway-hpc/gangway/runtime/cgroup"
)

// bare starts ranks on the host as they are. Each leads a process group, and is killed by
// the kernel when this process is; children that outlive their rank become this process's,
// and end with the step. If this process is killed, these are left to whoever finds them by
// the marker in their environment, or is given them by the kernel (agent.Orphans).
type bare struct {
	s     *supervisor
	fork  chan func() // run by the one thread that makes ranks, whose end would kill them
	stop  chan struct{}
	mu    sync.Mutex
	ranks map[int]bool // pids, until they were waited for

	group  *cgroup.Group // nil: no limit is wanted
	memory *cgroup.Watch // nil: there is no limit
}

func newBare(s *supervisor) *bare {
	return &bare{s: s, fork: make(chan func()), stop: make(chan struct{}), ranks: map[int]bool{}}
}

func (b *bare) prepare(ctx context.Context) (string, error) {
	if err := b.limit(ctx); err != nil {
		return "", err
	}
	go b.thread()
	go b.bury()
	return "", nil
}

// limit makes a control group where the step's memory is limited, on the rung that a
// container would get. What cannot be limited here is told to the step's user.
func (b *bare) limit(ctx context.Context) error {
	memory := b.s.memoryLimit()
	if memory == 0 {
		return nil
	}
	if _, err := cgroup.Sweep(cgroup.Options{UID: os.Geteuid()}); err != nil {
		b.s.Log.Warn("control groups of killed steps stay", "err", err)
	}
	g, err := cgroup.Open(ctx, cgroup.Options{
		Name: "step-" + strings.ToLower(rand.Text()[:idLength]), UID: os.Geteuid(), Runtime: os.Getenv("XDG_RUNTIME_DIR"),
	})
	if err != nil {
		return err
	}
	b.group = g
	if err := g.Limit(cgroup.Limits{Memory: memory}); err != nil {
		return err
	}
	for _, m := range g.Missing() {
		b.s.Log.Warn(m.String(), "see", "gangway doctor")
	}
	if g.Rung() == cgroup.None {
		return nil
	}
	if b.memory, err = g.Watch(); err != nil {
		return fmt.Errorf("watch the memory of the step: %w", err)
	}
	return nil
}

// place puts a process that was just made into the step's control group.
func (b *bare) place(pid int) error {
	if b.group == nil {
		return nil
	}
	return b.group.Ranks().Place(pid)
}

func (b *bare) ready(context.Context) error { return nil }

func (b *bare) environment() (*rank.Env, error) {
	return b.s.environment(b.s.spec.Controller, b.s.gpus(), b.s.cwd)
}

// thread makes the ranks: the kernel kills them when the thread ends that made them.
func (b *bare) thread() {
	goruntime.LockOSThread()
	for f := range b.fork {
		f()
	}
}

func (b *bare) start(_ context.Context, l launch, e *rank.Env) (process, error) {
	environ, err := e.Environ(l.m.local)
	if err != nil {
		return nil, err
	}
	if dir, err := b.s.programs(false); err == nil {
		environ = appendPath(environ, dir)
	} else {
		b.s.Log.Warn("the commands of the cluster are not in PATH", "err", err)
	}
	environ = l.change(environ)
	args := l.args
	if args == nil {
		args = b.s.args(filepath.Join(b.s.Dir, scriptFile))
	}
	path, err := lookProgram(args[0], environ)
	if err != nil {
		return nil, err
	}
	attr := &os.ProcAttr{
		Dir: cmp.Or(l.cwd, b.s.cwd), Env: environ,
		Sys: &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL},
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer null.Close()
	for _, f := range l.files.given() {
		attr.Files = append(attr.Files, cmp.Or(f, null))
	}
	if l.files.terminal {
		attr.Sys.Setpgid, attr.Sys.Setsid, attr.Sys.Setctty = false, true, true
	}
	type made struct {
		p   *os.Process
		err error
	}
	done := make(chan made)
	b.fork <- func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		p, err := startRank(path, args, attr, rankOptions{limits: b.s.spec.Program.Limits, cpus: b.s.cpusOf(l.m), number: l.isRank(), place: b.place})
		if err == nil {
			b.ranks[p.Pid] = true
		}
		done <- made{p, err}
	}
	r := <-done
	if r.err != nil {
		return nil, notExecuted(args[0], r.err)
	}
	return &bareRank{b: b, p: r.p, terminal: l.files.master}, nil
}

// lookProgram finds a program as a shell would that has the environment.
func lookProgram(name string, environ []string) (string, error) {
	if strings.Contains(name, "/") {
		return name, nil
	}
	path := ""
	for _, v := range environ {
		if value, ok := strings.CutPrefix(v, "PATH="); ok {
			path = value
		}
	}
	for _, dir := range filepath.SplitList(path) {
		full := filepath.Join(dir, name)
		if dir == "" {
			full = "./" + name
		}
		if st, err := os.Stat(full); err == nil && !st.IsDir() && st.Mode()&0o111 != 0 {
			return full, nil
		}
	}
	return "", notExecuted(name, exec.ErrNotFound)
}

// notExecuted is the error of a command that cannot be executed.
func notExecuted(name string, err error) error {
	if e, ok := errors.AsType[*os.PathError](err); ok {
		err = e.Err
	}
	switch {
	case errors.Is(err, exec.ErrNotFound):
		return &fault.Error{What: fmt.Errorf("execute %s: command not found", name), Code: fault.CodeNotFound}
	case errors.Is(err, syscall.ENOENT), errors.Is(err, syscall.ENOTDIR):
		return &fault.Error{What: fmt.Errorf("execute %s: %w", name, err), Code: fault.CodeNotFound}
	case errors.Is(err, syscall.ENOEXEC), errors.Is(err, syscall.EACCES), errors.Is(err, syscall.EISDIR), errors.Is(err, syscall.E2BIG), errors.Is(err, syscall.ELOOP), errors.Is(err, syscall.ETXTBSY):
		return &fault.Error{What: fmt.Errorf("execute %s: %w", name, err), Code: fault.CodeNotExecutable}
	}
	return fmt.Errorf("execute %s: %w", name, err)
}

// bareRank is a rank on the host.
type bareRank struct {
	b        *bare
	p        *os.Process
	terminal *os.File
}

// Signal implements process.
func (r *bareRank) Signal(sig syscall.Signal) error {
	return r.send(-r.p.Pid, sig) // it leads a group or a session
}

// SignalAlone implements process.
func (r *bareRank) SignalAlone(sig syscall.Signal) error { return r.send(r.p.Pid, sig) }

func (r *bareRank) send(to int, sig syscall.Signal) error {
	r.b.mu.Lock()
	defer r.b.mu.Unlock()
	if !r.b.ranks[r.p.Pid] {
		return nil
	}
	return syscall.Kill(to, sig)
}

// Wait implements process.
func (r *bareRank) Wait() (exited, error) {
	// First without reaping: until nobody signals it any more its number stays its own.
	for {
		err := unix.Waitid(unix.P_PID, r.p.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if !errors.Is(err, syscall.EINTR) {
			break
		}
	}
	r.b.mu.Lock()
	defer r.b.mu.Unlock()
	delete(r.b.ranks, r.p.Pid)
	st, err := r.p.Wait()
	if err != nil {
		return exited{}, err
	}
	status, _ := st.Sys().(syscall.WaitStatus)
	if status.Signaled() {
		e := exited{code: fault.CodeSignal(status.Signal()), signal: int(status.Signal()), core: status.CoreDump()}
		e.oom = status.Signal() == syscall.SIGKILL && r.b.memory != nil && r.b.memory.OOM() != nil
		return e, nil
	}
	return exited{code: status.ExitStatus()}, nil
}

// Pid implements process.
func (r *bareRank) Pid() int { return r.p.Pid }

// Terminal implements process.
func (r *bareRank) Terminal() *os.File { return r.terminal }

// PID implements process.
func (r *bareRank) PID() int { return r.p.Pid }

// bury waits for children of ranks that have outlived these.
func (b *bare) bury() {
	children := make(chan os.Signal, 1)
	signal.Notify(children, syscall.SIGCHLD)
	defer signal.Stop(children)
	for {
		select {
		case <-children:
		case <-b.stop:
			return
		}
		// The end of a rank is one too, which others wait for; with the last there is nothing
		// to be done here.
		if !sleep(b.stop, 200*time.Millisecond) {
			return
		}
		b.reap()
	}
}

func sleep(stop <-chan struct{}, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-stop:
		return false
	}
}

// reap waits for children that have ended and are no ranks.
func (b *bare) reap() {
	for _, pid := range proc.Children(os.Getpid()) {
		b.mu.Lock()
		if !b.ranks[pid] {
			_, _ = syscall.Wait4(pid, nil, syscall.WNOHANG, nil)
		}
		b.mu.Unlock()
	}
}

// close ends what is left, and with it the control group.
func (b *bare) close(ctx context.Context) error {
	defer close(b.stop)
	err := b.killAll(ctx)
	if b.memory != nil {
		b.memory.Stop()
	}
	if b.group != nil {
		err = errors.Join(err, b.group.Remove(ctx))
	}
	return err
}

// await waits for the end of what is left, for a time at most.
func (b *bare) await(most time.Duration) {
	for deadline := time.Now().Add(most); !childless() && time.Now().Before(deadline); {
		b.reap()
		if !sleep(b.stop, 5*time.Millisecond) {
			return
		}
	}
}

// killAll kills what is left, again and again: who is killed may have made others.
func (b *bare) killAll(ctx context.Context) error {
	var left []int
	for wait := time.Millisecond; !childless(); wait = min(2*wait, 50*time.Millisecond) {
		b.reap()
		left = proc.Children(os.Getpid())
		if len(left) == 0 {
			return nil
		}
		for i := 0; i < len(left); i++ { // it grows
			for _, child := range proc.Children(left[i]) {
				if !slices.Contains(left, child) {
					left = append(left, child)
				}
			}
		}
		for _, pid := range left {
			_ = syscall.Kill(pid, syscall.SIGKILL) // children of ours, or of these, that were there just now
		}
		if !pause(ctx, wait) {
			return fmt.Errorf("end processes of the step: %v are left", left)
		}
	}
	return nil
}

// childless says whether the kernel knows of no child of this process, not even of one that
// nobody has waited for.
func childless() bool {
	for {
		err := unix.Waitid(unix.P_ALL, 0, nil, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil)
		if !errors.Is(err, syscall.EINTR) {
			return errors.Is(err, syscall.ECHILD)
		}
	}
}

// appendPath adds a directory to the end of PATH.
func appendPath(environ []string, dir string) []string {
	all := slices.Clone(environ)
	for i, v := range slices.Backward(all) {
		if path, ok := strings.CutPrefix(v, "PATH="); ok {
			all[i] = "PATH=" + path + ":" + dir
			return all
		}
	}
	return append(all, "PATH=/usr/local/bin:/usr/bin:/bin:"+dir)
}
