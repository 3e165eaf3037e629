package cgroup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Process is what is known of one process.
type Process struct {
	PID   int
	Name  string // as in /proc/PID/comm
	State string // a letter: R, S, D (in the kernel, cannot be killed), Z, T
	Where string // the function of the kernel's that it waits in, where that can be seen
	RSS   int64  // bytes of memory in use
}

// String is p for people.
func (p Process) String() string {
	s := fmt.Sprintf("%d (%s", p.PID, p.Name)
	if p.State != "" {
		s += ", " + p.State
	}
	if p.Where != "" && p.Where != "0" {
		s += " in " + p.Where
	}
	return s + ")"
}

// StuckError says that processes did not do what they had to in time.
type StuckError struct {
	Do        string // "freeze", "kill", "remove"
	Dir       string
	Processes []Process // at most 16
	Count     int
}

// Error names the first few processes.
func (e *StuckError) Error() string {
	var names []string
	for _, p := range e.Processes[:min(3, len(e.Processes))] {
		names = append(names, p.String())
	}
	if more := e.Count - len(names); more > 0 {
		names = append(names, fmt.Sprintf("%d more", more))
	}
	count := fmt.Sprintf("%d processes are", e.Count)
	if e.Count == 1 {
		count = "1 process is"
	}
	return fmt.Sprintf("%s cgroup %s: %s stuck: %s", e.Do, e.Dir, count, strings.Join(names, ", "))
}

// stuck reports the processes below dir.
func (g *Group) stuck(do, dir string) error {
	pids, _ := processes(dir)
	if len(pids) > 1 {
		pids = slices.DeleteFunc(pids, func(pid int) bool { return pid == os.Getpid() })
	}
	e := &StuckError{Do: do, Dir: dir, Count: len(pids)}
	for _, pid := range pids[:min(16, len(pids))] {
		e.Processes = append(e.Processes, look(g.proc, pid))
	}
	return e
}

// look reads what /proc says of pid.
func look(proc string, pid int) Process {
	dir := filepath.Join(proc, strconv.Itoa(pid))
	p := Process{PID: pid}
	p.Name, _ = read(dir, "comm")
	p.Where, _ = read(dir, "wchan")
	stat, _ := read(dir, "stat")
	if _, after, ok := strings.Cut(stat[strings.LastIndexByte(stat, ')')+1:], " "); ok {
		p.State, _, _ = strings.Cut(after, " ")
	}
	p.RSS = residentSize(proc, pid)
	return p
}

// residentSize is the memory in use by pid in bytes, 0 if there is none.
func residentSize(proc string, pid int) int64 {
	statm, _ := read(filepath.Join(proc, strconv.Itoa(pid)), "statm")
	f := strings.Fields(statm)
	if len(f) < 2 {
		return 0
	}
	pages, _ := strconv.ParseInt(f[1], 10, 64)
	return pages * int64(os.Getpagesize())
}

// freezer returns the tree that freezes and kills, or nil.
func (g *Group) freezer() *tree {
	for _, t := range g.trees {
		if !t.made {
			continue
		}
		if t.version == 1 && slices.Contains(t.controllers, "freezer") {
			return t
		}
		if _, err := os.Lstat(filepath.Join(t.leaf(ranksLeaf), "cgroup.freeze")); t.version == 2 && err == nil {
			return t
		}
	}
	return nil
}

// Freeze stops the ranks, and not the supervisor, until Thaw. It waits until all stand
// still; when ctx ends before, a StuckError says which are left, and the rest stays frozen.
func (g *Group) Freeze(ctx context.Context) error { return g.freeze(ctx, true) }

// Thaw lets the ranks go on.
func (g *Group) Thaw(ctx context.Context) error { return g.freeze(ctx, false) }

func (g *Group) freeze(ctx context.Context, frozen bool) error {
	t := g.freezer()
	if t == nil {
		return fmt.Errorf("freeze cgroup: %w: there is none on the rung %q", errors.ErrUnsupported, g.rung)
	}
	dir := t.leaf(ranksLeaf)
	file, value, do := "cgroup.freeze", "0", "thaw"
	if frozen {
		value, do = "1", "freeze"
	}
	if t.version == 1 {
		file, value = "freezer.state", map[bool]string{true: "FROZEN", false: "THAWED"}[frozen]
	}
	if err := write(dir, file, value); err != nil {
		return fmt.Errorf("%s cgroup: %w", do, err)
	}
	is := func() bool {
		if t.version == 1 {
			state, err := read(dir, "freezer.state")
			if state == "FREEZING" {
				_ = write(dir, "freezer.state", value) // version 1 has to be told again of new processes
			}
			return err != nil || state == value
		}
		return pairs(dir, "cgroup.events")["frozen"] == map[bool]uint64{true: 1}[frozen]
	}
	if !poll(ctx, is) {
		return g.stuck(do, dir)
	}
	return nil
}

// poll waits for done, at first in short steps, and says whether it came before ctx ended.
func poll(ctx context.Context, done func() bool) bool {
	for wait := 100 * time.Microsecond; !done(); wait = min(2*wait, 20*time.Millisecond) {
		select {
		case <-ctx.Done():
			return done()
		case <-time.After(wait):
		}
	}
	return true
}

// Kill ends all ranks and waits until they are gone. When ctx ends before, a StuckError
// names those that are left.
func (g *Group) Kill(ctx context.Context) error {
	t := g.freezer()
	if t == nil {
		return fmt.Errorf("kill cgroup: %w: there is none on the rung %q", errors.ErrUnsupported, g.rung)
	}
	return g.kill(ctx, t, t.leaf(ranksLeaf))
}

func (g *Group) kill(ctx context.Context, t *tree, dir string) error {
	if empty(dir) {
		return nil
	}
	if err := write(dir, "cgroup.kill", "1"); err != nil {
		if !refused(err) {
			return fmt.Errorf("kill cgroup: %w", err)
		}
		if err := g.signalAll(ctx, dir); err != nil {
			return fmt.Errorf("kill cgroup: %w", err)
		}
	}
	if t.version == 1 {
		_ = write(dir, "freezer.state", "THAWED") // a frozen process does not die there
	}
	if !poll(ctx, func() bool { return empty(dir) }) {
		return g.stuck("kill", dir)
	}
	return nil
}

// signalAll kills what is in dir for kernels before 5.14, again and again until nobody is
// left who could have forked.
func (g *Group) signalAll(ctx context.Context, dir string) error {
	quiet, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
	defer cancel()
	_ = g.freeze(quiet, true)
	defer func() { _ = write(dir, "cgroup.freeze", "0") }()
	for range 100 {
		pids, err := processes(dir)
		if err != nil || len(pids) == 0 {
			return err
		}
		for _, pid := range pids {
			if err := unix.Kill(pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
				return fmt.Errorf("kill process %d: %w", pid, err)
			}
		}
		if state, _ := read(dir, "freezer.state"); state != "" {
			_ = write(dir, "freezer.state", "THAWED")
		}
		if poll(quiet, func() bool { return empty(dir) }) {
			return nil
		}
	}
	return nil
}

// empty says whether no process is in dir or below. Zombies are processes: their parents
// have to bury them.
func empty(dir string) bool {
	if populated, ok := pairs(dir, "cgroup.events")["populated"]; ok {
		return populated == 0
	}
	pids, err := processes(dir)
	return err == nil && len(pids) == 0
}

// Remove kills the ranks, takes the caller back to where it came from, and removes the
// group. When ctx ends before, a StuckError names the processes that are left; the group
// with its limits stays, for another Remove or for Sweep. On the rung Systemd the scope ends
// with the caller.
func (g *Group) Remove(ctx context.Context) error {
	if t := g.freezer(); t != nil {
		if err := g.kill(ctx, t, t.leaf(ranksLeaf)); err != nil {
			return err
		}
	}
	var errs []error
	for _, t := range g.trees {
		if !t.made {
			continue
		}
		if t.split() {
			_ = removeTree(t.leaf(ranksLeaf)) // or else t has controllers that cannot be taken back
		}
		g.goHome(t)
		if err := g.rmdir(ctx, t); err != nil && g.rung != Systemd {
			errs = append(errs, err)
			continue
		}
		_ = t.lock.Close()
		t.made = false
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.devices != nil && len(errs) == 0 {
		_ = g.devices.Close()
		g.devices = nil
	}
	// The same processes are in each hierarchy of version 1: one report is enough.
	if len(errs) > 0 {
		return errs[0]
	}
	return nil
}

// goHome moves the caller back where it was, if it is in t. What fails is found by rmdir.
func (g *Group) goHome(t *tree) {
	own := strconv.Itoa(os.Getpid())
	pids, _ := read(t.leaf(supLeaf), "cgroup.procs")
	if t.home == "" || !slices.Contains(strings.Fields(pids), own) || g.rung == Systemd {
		return
	}
	if t.base == t.home { // a group that gives out controllers takes no process
		for _, c := range t.enabled {
			_ = write(t.dir, "cgroup.subtree_control", "-"+c)
			_ = write(t.base, "cgroup.subtree_control", "-"+c)
		}
	}
	_ = write(t.home, "cgroup.procs", own)
}

// rmdir removes t's group. The directories above it stay for the next one.
func (g *Group) rmdir(ctx context.Context, t *tree) error {
	var err error
	ok := poll(ctx, func() bool {
		if err = t.rmdirs(); !errors.Is(err, unix.EBUSY) {
			return true
		}
		err = removeTree(t.dir) // there are more than we made
		return !errors.Is(err, unix.EBUSY) || g.rung == Systemd
	})
	if !ok && !empty(t.dir) {
		return g.stuck("remove", t.dir)
	}
	if err != nil {
		return fmt.Errorf("remove cgroup: %w", err)
	}
	return nil
}

// rmdirs removes the directories that mkdirs made.
func (t *tree) rmdirs() error {
	for _, leaf := range []string{ranksLeaf, supLeaf} {
		if dir := t.leaf(leaf); dir != t.dir {
			if err := unix.Rmdir(dir); err != nil && !errors.Is(err, unix.ENOENT) {
				return &os.PathError{Op: "rmdir", Path: dir, Err: err}
			}
		}
	}
	if err := unix.Rmdir(t.dir); err != nil && !errors.Is(err, unix.ENOENT) {
		return &os.PathError{Op: "rmdir", Path: t.dir, Err: err}
	}
	return nil
}

// removeTree removes dir and what is below it. The first error is EBUSY where processes are
// left.
func removeTree(dir string) error {
	for _, d := range append(subgroups(dir), dir) {
		if err := unix.Rmdir(d); err != nil && !errors.Is(err, unix.ENOENT) {
			return &os.PathError{Op: "rmdir", Path: d, Err: err}
		}
	}
	return nil
}

// undo removes what was made by an Open that goes wrong.
func (g *Group) undo() {
	for _, t := range g.trees {
		if t.made {
			g.goHome(t)
			_ = removeTree(t.dir)
			_ = t.lock.Close()
			t.made = false
		}
	}
}
