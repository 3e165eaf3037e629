package step

import (
	"maps"
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// limitNumbers are the limits that are handed on, by their names in package rank.
func limitNumbers() map[string]int {
	return map[string]int{
		"CPU": unix.RLIMIT_CPU, "FSIZE": unix.RLIMIT_FSIZE, "STACK": unix.RLIMIT_STACK, "CORE": unix.RLIMIT_CORE, "NPROC": unix.RLIMIT_NPROC,
		"NOFILE": unix.RLIMIT_NOFILE, "MEMLOCK": unix.RLIMIT_MEMLOCK, "RSS": unix.RLIMIT_RSS, "AS": unix.RLIMIT_AS, "DATA": unix.RLIMIT_DATA,
	}
}

// wouldBeOurs says of a limit of memory, which must not be this process's for a moment.
func wouldBeOurs(resource int) bool {
	return resource == unix.RLIMIT_AS || resource == unix.RLIMIT_DATA
}

// handedOn are soft limits as a rank gets them: as they were where it was submitted from, but
// not above the hard limits of this process, which stay. That is what Slurm does
// (slurm.conf, PropagateResourceLimits).
func handedOn(limits map[string]uint64) []specs.POSIXRlimit {
	var all []specs.POSIXRlimit
	numbers := limitNumbers()
	for _, name := range slices.Sorted(maps.Keys(limits)) {
		resource, ok := numbers[name]
		var l unix.Rlimit
		if !ok || unix.Prlimit(0, resource, nil, &l) != nil {
			continue
		}
		all = append(all, specs.POSIXRlimit{Type: "RLIMIT_" + name, Soft: min(limits[name], l.Max), Hard: l.Max})
	}
	return all
}

// setLimits sets those limits for a process; what is returned sets back what was there.
// Those for which leave is true stay as they are.
func setLimits(pid int, limits map[string]uint64, leave func(resource int) bool) (restore func()) {
	type old struct {
		resource int
		limit    unix.Rlimit
	}
	var changed []old
	numbers := limitNumbers()
	for _, l := range handedOn(limits) {
		resource := numbers[l.Type[len("RLIMIT_"):]]
		var was unix.Rlimit
		set := unix.Rlimit{Cur: l.Soft, Max: l.Hard}
		if !leave(resource) && unix.Prlimit(pid, resource, &set, &was) == nil {
			changed = append(changed, old{resource, was})
		}
	}
	return func() {
		for _, o := range changed {
			_ = unix.Prlimit(pid, o.resource, &o.limit, nil)
		}
	}
}
