package cgroup

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Leaf is a group that processes may be in.
type Leaf struct {
	g    *Group
	name string // below the group: "sup", "ranks", "ranks/rank-3"
}

// Sup is for the supervisor and what serves the container's root.
func (g *Group) Sup() *Leaf { return &Leaf{g, supLeaf} }

// Ranks is for the container.
func (g *Group) Ranks() *Leaf { return &Leaf{g, ranksLeaf} }

// Rank makes a leaf below Ranks, so that the report of an OOM can name the rank. Limits of
// Ranks hold for all of them together.
func (g *Group) Rank(r int) (*Leaf, error) {
	l := &Leaf{g, filepath.Join(ranksLeaf, "rank-"+strconv.Itoa(r))}
	for _, t := range g.trees {
		if !t.made || !t.split() {
			continue
		}
		if err := os.Mkdir(l.dir(t), 0o755); err != nil && !errors.Is(err, os.ErrExist) {
			return nil, fmt.Errorf("make cgroup of rank %d: %w", r, err)
		}
		t.inherit(t.leaf(ranksLeaf), l.dir(t))
		if t.version == 2 && t.offers("memory") {
			// Refused where the container's first process is in Ranks itself; then
			// only the sum is known.
			_ = write(t.leaf(ranksLeaf), "cgroup.subtree_control", "+memory")
		}
	}
	return l, nil
}

func (l *Leaf) dir(t *tree) string {
	leaf, rank, _ := strings.Cut(l.name, "/")
	if !t.split() {
		return t.dir
	}
	return filepath.Join(t.leaf(leaf), rank)
}

// Place moves the process pid, with all its threads, and so its future children. On the last
// rung it sets the process's affinity and rlimits instead. It takes 0.1 ms, but the first
// in a while on a machine 10 ms, because the kernel waits for all of its CPUs: whoever
// can starts the process with FD, or calls this while something else is being done.
func (l *Leaf) Place(pid int) error {
	for _, t := range l.g.trees {
		if t.made {
			if err := write(l.dir(t), "cgroup.procs", strconv.Itoa(pid)); err != nil {
				return fmt.Errorf("place process %d: %w", pid, err)
			}
		}
	}
	return l.settle(pid)
}

// Settle does for a process that was started with FD what that does not: hierarchies of
// version 1, and what stands in for controllers that are not to be had.
func (l *Leaf) Settle(pid int) error {
	for _, t := range l.g.trees {
		if t.made && t.version == 1 {
			if err := write(l.dir(t), "cgroup.procs", strconv.Itoa(pid)); err != nil {
				return fmt.Errorf("place process %d: %w", pid, err)
			}
		}
	}
	return l.settle(pid)
}

// FD opens the leaf's directory in the hierarchy of version 2, for clone3 with
// CLONE_INTO_CGROUP (Linux 5.7). The kernel may not let the caller do that, who then has to
// Place the process. The error wraps errors.ErrUnsupported where there is no version 2.
func (l *Leaf) FD() (*os.File, error) {
	if len(l.g.trees) == 0 || l.g.trees[0].version != 2 {
		return nil, fmt.Errorf("start into cgroup: no hierarchy of version 2: %w", errors.ErrUnsupported)
	}
	dir, err := os.Open(l.dir(l.g.trees[0]))
	if err != nil {
		return nil, fmt.Errorf("start into cgroup: %w", err)
	}
	return dir, nil
}

// settle sets the affinity and the rlimits of pid that stand in for controllers.
func (l *Leaf) settle(pid int) error {
	l.g.mu.Lock()
	affinity, nproc := l.g.affinity, l.g.nproc
	l.g.mu.Unlock()
	if l.name == supLeaf {
		nproc = 0
	}
	if len(affinity) > 0 {
		var set unix.CPUSet
		for _, cpu := range affinity {
			set.Set(cpu)
		}
		if err := eachThread(l.g.proc, pid, func(tid int) error { return unix.SchedSetaffinity(tid, &set) }); err != nil {
			return fmt.Errorf("set affinity of process %d to %s: %w", pid, affinity, err)
		}
	}
	if nproc > 0 {
		if err := unix.Prlimit(pid, unix.RLIMIT_NPROC, &unix.Rlimit{Cur: nproc, Max: nproc}, nil); err != nil {
			return fmt.Errorf("limit processes of %d: %w", pid, err)
		}
	}
	return nil
}

// eachThread calls f for all threads of pid; those that end meanwhile do not matter.
func eachThread(proc string, pid int, f func(tid int) error) error {
	entries, err := os.ReadDir(filepath.Join(proc, strconv.Itoa(pid), "task"))
	if err != nil {
		return err
	}
	for _, e := range entries {
		tid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if err := f(tid); err != nil && !errors.Is(err, unix.ESRCH) {
			return err
		}
	}
	return nil
}
