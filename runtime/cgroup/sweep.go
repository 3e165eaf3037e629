package cgroup

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Sweep removes the groups that killed supervisors left, if no process is in them, and
// returns how many it removed: those of opts' Instance and UID at the top, in the caller's
// own group, and for an ordinary user in the groups beside that. Ranks that were frozen when
// their supervisor was killed are thawed, so that they can end. Groups that are in use are
// locked and stay. Name and Runtime do not matter: systemd removes its scopes itself.
func Sweep(opts Options) (int, error) {
	opts.fill()
	found, err := hierarchies(opts.Proc)
	if err != nil {
		return 0, fmt.Errorf("sweep cgroups: %w", err)
	}
	var all []remains
	for i := range found {
		all = append(all, remainsIn(&found[i], &opts)...)
	}
	each := func(do func(r remains)) {
		for _, r := range all {
			lock, err := os.Open(r.dir)
			if err != nil {
				continue
			}
			if unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil {
				do(r)
			}
			_ = lock.Close()
		}
	}
	var frozen []string
	each(func(r remains) {
		if thawLeft(r.hierarchy, filepath.Join(r.dir, ranksLeaf)) {
			frozen = append(frozen, r.dir)
		}
	})
	if len(frozen) > 0 {
		ctx, cancel := context.WithTimeout(context.Background(), sweepPatience)
		defer cancel()
		poll(ctx, func() bool { return !slices.ContainsFunc(frozen, func(dir string) bool { return !empty(dir) }) })
	}
	names := map[string]bool{}
	each(func(r remains) {
		if empty(r.dir) && removeTree(r.dir) == nil {
			names[strings.TrimPrefix(filepath.Base(r.dir), opts.prefix())] = true
			r.takeBack()
		}
	})
	return len(names), nil
}

// prefix is how names of groups begin where they are one directory.
func (o *Options) prefix() string { return flat(filepath.Join(top, o.Instance)) + "-" }

// remains is a group that may have been left.
type remains struct {
	*hierarchy
	dir  string
	lent bool // it was made in somebody's group, which it may have switched controllers on in
}

// remainsIn lists the groups in h that may have been left.
func remainsIn(h *hierarchy, opts *Options) []remains {
	var all []remains
	if opts.UID == 0 {
		for _, dir := range children(filepath.Join(h.mount, top, opts.Instance)) {
			all = append(all, remains{h, dir, false})
		}
		if h.atTop() {
			return all
		}
	}
	if _, err := writable(h); h.home == "" || err != nil {
		return all
	}
	bases := []string{h.home}
	if opts.UID != 0 && h.version == 2 && h.home != h.mount {
		// With the controllers that a killed one left on, no process can be put into its
		// group again: the next is somewhere beside it.
		bases = children(filepath.Dir(h.home))
	}
	for _, base := range bases {
		if base != h.home && unix.Access(filepath.Join(base, "cgroup.subtree_control"), unix.W_OK) != nil {
			continue
		}
		for _, dir := range children(base) {
			if strings.HasPrefix(filepath.Base(dir), opts.prefix()) {
				all = append(all, remains{h, dir, true})
			}
		}
	}
	return all
}

// takeBack switches the controllers off that are on for r in the group that it was made in,
// unless others are left there.
func (r remains) takeBack() {
	base := filepath.Dir(r.dir)
	if !r.lent || r.version != 2 || len(children(base)) > 0 {
		return
	}
	on, _ := read(base, "cgroup.subtree_control")
	for controller := range strings.FieldsSeq(on) {
		_ = write(base, "cgroup.subtree_control", "-"+controller)
	}
}

// sweepPatience is how long what was frozen may take to end once it is thawed.
const sweepPatience = 500 * time.Millisecond

// thawLeft lets frozen ranks go on that nobody has any more, and says whether there are.
func thawLeft(h *hierarchy, ranks string) bool {
	file, thawed := "cgroup.freeze", "0"
	if h.version == 1 {
		file, thawed = "freezer.state", "THAWED"
	}
	is, err := read(ranks, file)
	return err == nil && is != thawed && !empty(ranks) && write(ranks, file, thawed) == nil
}

// children lists the directories in dir.
func children(dir string) []string {
	entries, _ := os.ReadDir(dir)
	var all []string
	for _, e := range entries {
		if e.IsDir() {
			all = append(all, filepath.Join(dir, e.Name()))
		}
	}
	return all
}
