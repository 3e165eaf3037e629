package cgroup

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// asRoot makes gangway/<instance>/<name> at the top of each hierarchy.
func (g *Group) asRoot(_ context.Context, found []hierarchy) error {
	if g.opts.UID != 0 {
		return Refusal{}
	}
	g.rung = Root
	for i := range found {
		h := &found[i]
		t := &tree{hierarchy: h, base: h.mount, dir: filepath.Join(h.mount, g.name)}
		if err := unix.Access(h.mount, unix.W_OK); err != nil {
			g.closed = append(g.closed, closed{*t, fmt.Errorf("write to %s: %w", h.mount, err)})
			continue
		}
		g.trees = append(g.trees, t)
	}
	if len(g.trees) == 0 {
		if len(g.closed) > 0 {
			return Refusal{Root, g.closed[0].err.Error(), "in a container: mount the cgroup file system writable"}
		}
		return Refusal{Root, "no cgroup file system is mounted", "mount -t cgroup2 cgroup2 /sys/fs/cgroup"}
	}
	return g.begin()
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
		if dir, err := writable(h); err != nil {
			why = fmt.Sprintf("write to %s: %v", dir, err)
			continue
		}
		flat := strings.ReplaceAll(g.name, "/", "-")
		g.trees = append(g.trees, &tree{hierarchy: h, base: h.home, dir: filepath.Join(h.home, flat)})
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
		if g.tree(c, 2) == nil && c != "io" {
			g.tree(c, 1)
		}
	}
	return nil
}

// vacate moves the caller out of the base where that is its own group, since version 2
// gives out no controllers of a group with processes in it.
func (g *Group) vacate() error {
	for _, t := range g.trees {
		if t.version == 2 && t.base == t.home && !t.atTop() {
			if err := write(t.leaf(supLeaf), "cgroup.procs", fmt.Sprint(os.Getpid())); err != nil {
				return err
			}
		}
	}
	return nil
}

// atTop says whether t is made at the very root, where processes do not matter.
func (t *tree) atTop() bool { return t.real && t.base == t.mount }
