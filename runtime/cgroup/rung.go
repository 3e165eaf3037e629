package cgroup

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// asRoot makes the group in each hierarchy where rootBase says.
func (g *Group) asRoot(_ context.Context, found []hierarchy) error {
	if g.opts.UID != 0 {
		return Refusal{}
	}
	g.rung = Root
	for i := range found {
		h := &found[i]
		base, err := h.rootBase()
		if err != nil {
			g.closed = append(g.closed, closed{tree{hierarchy: h, base: h.mount}, err})
			continue
		}
		g.trees = append(g.trees, g.below(h, base))
	}
	if len(g.trees) == 0 {
		if len(g.closed) > 0 {
			return Refusal{Root, g.closed[0].err.Error(), "in a container: mount the cgroup file system in it, writable"}
		}
		return Refusal{Root, "no cgroup file system is mounted", "mount -t cgroup2 cgroup2 /sys/fs/cgroup"}
	}
	return g.begin()
}

// below is the group in h, to be made in base: gangway/<instance>/<name> where that is the
// top of the machine's. In a group of somebody else's nothing but the group itself may be
// left, not even empty, so there it is one directory.
func (g *Group) below(h *hierarchy, base string) *tree {
	name := g.name
	if base == h.home && !h.atTop() {
		name = flat(name)
	}
	return &tree{hierarchy: h, base: base, dir: filepath.Join(base, name)}
}

// flat is name as one directory.
func flat(name string) string { return strings.ReplaceAll(name, "/", "-") }

// rootBase is the group that root's are made in: the caller's own, so that the container is
// in all that holds for whoever started it, such as a batch job, a service or a pod. Only
// from a login session they are made at the top, since version 2 makes no groups with limits
// in one with processes. An error is why nothing can be made in h.
func (h *hierarchy) rootBase() (string, error) {
	if h.home == "" {
		return "", fmt.Errorf("find the group of this process: it is not among those in %s", h.mount)
	}
	if h.version == 2 && h.home != h.mount && h.session() && unix.Access(h.mount, unix.W_OK) == nil {
		return h.mount, nil
	}
	return h.home, h.open()
}

// open says why no group can be made in the caller's own without escaping what holds there.
func (h *hierarchy) open() error {
	if dir, err := writable(h); err != nil {
		return fmt.Errorf("write to %s: %w", dir, err)
	}
	if h.atTop() {
		return nil
	}
	has := func(controller string) bool { return slices.Contains(h.controllers, controller) }
	if has("blkio") {
		return fmt.Errorf("make a group in %s: in version 1 its limits of io would not hold below", h.home)
	}
	if has("memory") {
		if on, _ := read(h.home, "memory.use_hierarchy"); on == "0" { // Linux before 5.11
			return fmt.Errorf("make a group in %s: its limit of memory would not hold below (memory.use_hierarchy is 0)", h.home)
		}
	}
	if kind, err := read(h.home, "cgroup.type"); h.version == 2 && err == nil && kind != "domain" {
		return fmt.Errorf("make a group in %s: it is one of threads (%s)", h.home, kind)
	}
	return nil
}

// session says whether the caller is in a login session of systemd's that nobody gave
// limits. Those that systemd gives each user as a whole do not count, nor does the number
// of processes, which it limits for everything.
func (h *hierarchy) session() bool {
	if outside(h.home) {
		return false
	}
	for dir := h.home; dir != h.mount && dir != "/"; dir = filepath.Dir(dir) {
		if name := filepath.Base(dir); name == "user.slice" || strings.HasPrefix(name, "user-") {
			continue
		}
		for _, file := range []string{"memory.max", "memory.high", "cpu.max", "cpuset.cpus", "io.max"} {
			if limit, err := read(dir, file); err == nil && limit != "" && !strings.HasPrefix(limit, "max") {
				return false
			}
		}
	}
	return true
}

// asDelegated makes the group inside the caller's own.
func (g *Group) asDelegated(_ context.Context, found []hierarchy) error {
	if g.opts.UID == 0 {
		return Refusal{} // would have been the first rung
	}
	g.rung = Delegated
	why := "no cgroup file system is mounted"
	for i := range found {
		h := &found[i]
		if h.home == "" {
			why = "this process is in a cgroup that is not mounted here"
			continue
		}
		if err := h.open(); err != nil {
			why = err.Error()
			continue
		}
		g.trees = append(g.trees, &tree{hierarchy: h, base: h.home, dir: filepath.Join(h.home, flat(g.name))})
	}
	if len(g.trees) == 0 {
		return Refusal{Delegated, why, "a session of systemd with a user manager has one: loginctl enable-linger"}
	}
	return g.begin()
}

// writable tells whether the caller may make groups in its own one, or what it may not write.
func writable(h *hierarchy) (string, error) {
	files := []string{"", "cgroup.procs"}
	if h.version == 2 {
		files = append(files, "cgroup.subtree_control")
	}
	for _, f := range files {
		if err := unix.Access(filepath.Join(h.home, f), unix.W_OK); err != nil {
			return filepath.Join(h.home, f), err
		}
	}
	return "", nil
}

// begin makes the directories that every group needs: those of the hierarchy that
// freezes and kills, and of those that count. Others are made by Limit.
func (g *Group) begin() error {
	for _, t := range g.trees {
		if t.version == 2 || t.offers("freezer") && g.trees[0].version == 1 {
			if err := g.make(t); err != nil {
				g.undo()
				return err
			}
		}
	}
	if err := g.vacate(); err != nil {
		g.undo()
		return err
	}
	for _, c := range []string{"memory", "pids", "io", "cpuacct"} {
		if g.tree(c, 2) == nil {
			g.tree(controllerOn(c, 1), 1)
		}
	}
	return nil
}

// vacate moves the caller out of the base where that is its own group, since version 2
// gives out no controllers of a group with processes in it. Where there are others, or
// nothing to give out, that is of no use.
func (g *Group) vacate() error {
	for _, t := range g.trees {
		if t.version != 2 || t.base != t.home || t.overAll() {
			continue
		}
		t.offers("")
		own := strconv.Itoa(os.Getpid())
		if pids, err := read(t.base, "cgroup.procs"); err != nil || pids != own || len(t.offered) == 0 {
			continue
		}
		if err := write(t.leaf(supLeaf), "cgroup.procs", own); err != nil {
			return err
		}
	}
	return nil
}
