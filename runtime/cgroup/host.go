package cgroup

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gangway-hpc/gangway/internal/proc"
)

// hierarchy is a mounted tree of cgroups: the one of version 2, or one of version 1 for
// some controllers.
type hierarchy struct {
	version     int
	mount       string   // the directory that it can be seen at
	home        string   // the directory of the calling process; "" if it is outside what is mounted
	controllers []string // version 1 only
	real        bool     // mount is the very root, where processes and controllers may meet
}

// atTop says whether the caller is in no group but the very root.
func (h *hierarchy) atTop() bool { return h.real && h.home == h.mount }

// maxProcFile bounds what is read of any file of the kernel's.
const maxProcFile = 4 << 20

// hierarchies finds what is mounted, version 2 first. proc is where the process file
// system is; missing files are an error, no cgroups at all are none.
func hierarchies(proc string) ([]hierarchy, error) {
	mounts, err := os.ReadFile(filepath.Join(proc, "self/mountinfo"))
	if err != nil {
		return nil, fmt.Errorf("find cgroups: %w", err)
	}
	own, err := os.ReadFile(filepath.Join(proc, "self/cgroup"))
	if err != nil {
		return nil, fmt.Errorf("find own cgroup: %w", err)
	}
	found := parseMounts(string(mounts), parseOwn(string(own)))
	for i := range found {
		// The one file is in all groups but the root, the other in the root only.
		if h := &found[i]; h.version == 2 {
			h.real = unix.Access(filepath.Join(h.mount, "cgroup.type"), unix.F_OK) != nil
		} else {
			h.real = unix.Access(filepath.Join(h.mount, "release_agent"), unix.F_OK) == nil
		}
	}
	return found, nil
}

// parseOwn reads /proc/self/cgroup: the path in each hierarchy, by its controllers as
// they are written there, "" for version 2.
func parseOwn(text string) map[string]string {
	own := map[string]string{}
	for line := range strings.Lines(text) {
		fields := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(fields) == 3 && strings.HasPrefix(fields[2], "/") {
			own[fields[1]] = fields[2]
		}
	}
	return own
}

// parseMounts reads /proc/self/mountinfo. Of several mounts of one hierarchy the first
// that shows the caller's own group is taken.
func parseMounts(text string, own map[string]string) []hierarchy {
	var all []hierarchy
	for line := range strings.Lines(text) {
		before, after, ok := strings.Cut(line, " - ")
		fields, kind := strings.Fields(before), strings.Fields(after)
		if !ok || len(fields) < 6 || len(kind) < 3 || kind[0] != "cgroup" && kind[0] != "cgroup2" {
			continue
		}
		h := hierarchy{version: 2, mount: proc.Unescape(fields[4])}
		key := ""
		if kind[0] == "cgroup" {
			h.version = 1
			if key, h.controllers = controllersOf(kind[2], own); len(h.controllers) == 0 {
				continue // a named hierarchy, such as systemd's
			}
		}
		h.home = below(h.mount, proc.Unescape(fields[3]), own[key])
		same := func(o hierarchy) bool { return o.version == h.version && slices.Equal(o.controllers, h.controllers) }
		if i := slices.IndexFunc(all, same); i < 0 {
			all = append(all, h)
		} else if all[i].home == "" && h.home != "" {
			all[i] = h
		}
	}
	slices.SortStableFunc(all, func(a, b hierarchy) int { return b.version - a.version })
	return all
}

// controllersOf finds the controllers of a mount of version 1 among its options, by
// looking for one that /proc/self/cgroup lists.
func controllersOf(options string, own map[string]string) (key string, controllers []string) {
	has := strings.Split(options, ",")
	for key := range own {
		if key == "" || strings.Contains(key, "=") {
			continue
		}
		names := strings.Split(key, ",")
		if !slices.ContainsFunc(names, func(n string) bool { return !slices.Contains(has, n) }) {
			return key, names
		}
	}
	return "", nil
}

// below is the directory of group in a mount that shows the hierarchy from root on.
func below(mount, root, group string) string {
	rel, ok := strings.CutPrefix(group, strings.TrimSuffix(root, "/"))
	if group == "" || !ok || rel != "" && rel[0] != '/' || slices.Contains(strings.Split(rel, "/"), "..") {
		return ""
	}
	return filepath.Join(mount, rel)
}
