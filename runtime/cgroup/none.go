package cgroup

import (
	"hash/fnv"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Here looks at the machine that the calling process runs on: what its affinity, nodes
// and memory are. proc and sys are /proc and /sys; what cannot be read is left empty.
func Here(proc, sys string) Machine {
	var m Machine
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err == nil {
		for cpu := range len(set) * 64 {
			if set.IsSet(cpu) {
				m.CPUs = append(m.CPUs, cpu)
			}
		}
	}
	if text, err := read(sys, "devices/system/node/has_memory"); err == nil {
		m.Mems, _ = ParseSet(text)
	}
	text, _ := read(proc, "meminfo")
	for line := range strings.Lines(text) {
		if f := strings.Fields(line); len(f) >= 2 && f[0] == "MemTotal:" {
			kib, _ := strconv.ParseInt(f[1], 10, 64)
			m.Memory = kib << 10
		}
	}
	return m
}

// advise does what can be done of l without a group, and notes the rest.
func (g *Group) advise(l *Limits) {
	g.mu.Lock()
	defer g.mu.Unlock()
	noted := map[string]bool{}
	for _, s := range l.settings2() {
		if !noted[s.what] && !s.partial() {
			noted[s.what] = true
			g.miss(s.what, "there is no cgroup", "")
		}
		g.insteadOf(s, l)
	}
	if len(l.Devices) > 0 {
		g.miss("devices", "there is no cgroup", "the container's /dev shows only what it was given")
	}
}

// insteadOf sets what stands in for a setting whose controller is not to be had; the caller
// holds mu.
func (g *Group) insteadOf(s setting, l *Limits) {
	switch s.controller {
	case "cpuset":
		if len(l.CPUSet) > 0 {
			g.affinity = l.CPUSet
			g.hint("CPU set", "an affinity of "+l.CPUSet.String()+" is set, which a process may change")
		}
	case "cpu":
		if n := int(math.Ceil(l.CPUs)); n > 0 && len(l.CPUSet) == 0 {
			g.affinity = Here(g.proc, "/").CPUs.some(n, g.name)
			g.hint("CPU time", "an affinity of "+g.affinity.String()+" is set, which a process may change")
		}
	case "pids":
		g.nproc = uint64(l.Pids)
		g.hint("processes", "RLIMIT_NPROC is set, which counts those of the container's user namespace")
	}
}

// some takes n of s that are neighbours; which ones depends on name, so that several runs do
// not all have the same.
func (s Set) some(n int, name string) Set {
	if n >= len(s) {
		return s
	}
	h := fnv.New32a()
	_, _ = h.Write([]byte(name))
	first := int(h.Sum32() % uint32(len(s)))
	some := append(slices.Clone(s[first:]), s[:first]...)[:n]
	slices.Sort(some)
	return some
}

// hint completes what Missing says of something; the caller holds mu.
func (g *Group) hint(what, hint string) {
	if i := slices.IndexFunc(g.missing, func(m Missing) bool { return m.What == what }); i >= 0 {
		g.missing[i].Hint = hint
	}
}

// Near lists the CPUs that are local to the PCI devices of the given addresses, such
// as "0000:17:00.0": the union of what sysfs says of each. Devices that sysfs does
// not know are left out; without any the set is empty.
func Near(sys string, pci ...string) (cpus, mems Set) {
	for _, address := range pci {
		dir := filepath.Join(sys, "bus/pci/devices", filepath.Base(address))
		if text, err := os.ReadFile(filepath.Join(dir, "local_cpulist")); err == nil {
			s, _ := ParseSet(string(text))
			cpus = append(cpus, s...)
		}
		if n, ok := number(dir, "numa_node"); ok && n >= 0 {
			mems = append(mems, int(n))
		}
	}
	slices.Sort(cpus)
	slices.Sort(mems)
	return slices.Compact(cpus), slices.Compact(mems)
}
