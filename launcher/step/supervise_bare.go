package step

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gangway-hpc/gangway/internal/fault"
	"github.com/gangway-hpc/gangway/launcher/rank"
)

// bare starts ranks on the host as they are. Each leads a process group, and is killed by
// the kernel when this process is; children that outlive their rank become this process's,
// and end with the step. If this process is killed, these are left to whoever finds them by
// the marker in their environment.
type bare struct {
	s     *supervisor
	fork  chan func() // run by the one thread that makes ranks, whose end would kill them
	stop  chan struct{}
	mu    sync.Mutex
	ranks map[int]bool // pids, until they were waited for
}

func newBare(s *supervisor) *bare {
	return &bare{s: s, fork: make(chan func()), stop: make(chan struct{}), ranks: map[int]bool{}}
}

func (b *bare) prepare(context.Context) (string, error) {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return "", fmt.Errorf("keep children of ranks: %w", err)
	}
	go b.thread()
	go b.bury()
	return "", nil
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
	if dir, err := b.s.programs(""); err == nil {
		environ = appendPath(environ, dir)
	}
	environ = mergeEnv(environ, l.environ)
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
		restore := setLimits(b.s.spec.Program.Limits)
		b.mu.Lock()
		p, err := os.StartProcess(path, args, attr)
		if err == nil {
			b.ranks[p.Pid] = true
		}
		b.mu.Unlock()
		restore()
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
	r.b.mu.Lock()
	defer r.b.mu.Unlock()
	if !r.b.ranks[r.p.Pid] {
		return nil
	}
	return syscall.Kill(-r.p.Pid, sig) // it leads a group or a session
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
		return exited{code: fault.CodeSignal(status.Signal()), signal: int(status.Signal()), core: status.CoreDump()}, nil
	}
	return exited{code: status.ExitStatus()}, nil
}

// Terminal implements process.
func (r *bareRank) Terminal() *os.File { return r.terminal }

// bury waits for children of ranks that have outlived these.
func (b *bare) bury() {
	children := make(chan os.Signal, 1)
	signal.Notify(children, syscall.SIGCHLD)
	defer signal.Stop(children)
	for {
		select {
		case <-children:
			b.reap()
		case <-b.stop:
			return
		}
		if !sleep(b.stop, 200*time.Millisecond) {
			return
		}
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
	for _, pid := range childrenOf(os.Getpid()) {
		b.mu.Lock()
		if !b.ranks[pid] {
			_, _ = syscall.Wait4(pid, nil, syscall.WNOHANG, nil)
		}
		b.mu.Unlock()
	}
}

// childrenOf are the children of a process, by all of its threads.
func childrenOf(pid int) []int {
	tasks := fmt.Sprintf("/proc/%d/task", pid)
	entries, err := os.ReadDir(tasks)
	if err != nil {
		return nil // it has ended
	}
	var all []int
	for _, e := range entries {
		b, err := os.ReadFile(filepath.Join(tasks, e.Name(), "children"))
		if err != nil {
			continue
		}
		for text := range strings.FieldsSeq(string(b)) {
			if child, err := strconv.Atoi(text); err == nil {
				all = append(all, child)
			}
		}
	}
	return all
}

// close kills what is left, again and again: who is killed may have made others.
func (b *bare) close(ctx context.Context) error {
	defer close(b.stop)
	var left []int
	for wait := time.Millisecond; ; wait = min(2*wait, 50*time.Millisecond) {
		b.reap()
		left = childrenOf(os.Getpid())
		if len(left) == 0 {
			return nil
		}
		for i := 0; i < len(left); i++ { // it grows
			for _, child := range childrenOf(left[i]) {
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
}

// setLimits sets the soft limits that a rank starts with for this process, which has them
// for as long as it takes to make one; what is returned sets them back.
func setLimits(limits map[string]uint64) (restore func()) {
	type old struct {
		resource int
		limit    unix.Rlimit
	}
	var changed []old
	for name, resource := range limitNumbers() {
		value, ok := limits[name]
		if !ok {
			continue
		}
		var l unix.Rlimit
		if unix.Prlimit(0, resource, nil, &l) != nil {
			continue
		}
		set := unix.Rlimit{Cur: min(value, l.Max), Max: l.Max}
		if set.Cur != l.Cur && unix.Prlimit(0, resource, &set, nil) == nil {
			changed = append(changed, old{resource, l})
		}
	}
	return func() {
		for _, o := range changed {
			_ = unix.Prlimit(0, o.resource, &o.limit, nil)
		}
	}
}

// limitNumbers are the limits that are handed on. Those of memory would be this process's
// end, and are not: RSS means nothing to the kernel, AS and DATA are set by the control
// group's limit in a better way.
func limitNumbers() map[string]int {
	return map[string]int{
		"CPU": unix.RLIMIT_CPU, "FSIZE": unix.RLIMIT_FSIZE, "STACK": unix.RLIMIT_STACK, "CORE": unix.RLIMIT_CORE,
		"NPROC": unix.RLIMIT_NPROC, "NOFILE": unix.RLIMIT_NOFILE, "MEMLOCK": unix.RLIMIT_MEMLOCK,
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
