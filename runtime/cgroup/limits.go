package cgroup

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// Unlimited stands for no limit, in Limits and in Stats.
const Unlimited = -1

// period is the time in which CPU time is given out, in microseconds: the kernel's default.
const period = 100_000

// Limits are what a group may use. The zero value limits nothing.
type Limits struct {
	CPUs    float64           // CPU time, in CPUs: 1.5 is three halves of one
	Weight  int               // share of the CPU time when there is not enough, 1 to 10000, usually 100
	CPUSet  Set               // the CPUs that may be used
	Mems    Set               // the NUMA nodes whose memory may be used
	Memory  int64             // bytes, including the page cache that the ranks caused
	Swap    int64             // bytes on top of Memory; only with Memory. 0 is none, Unlimited all
	Pids    int64             // processes and threads
	IO      []IOLimit         // of block devices
	HugeTLB map[string]uint64 // bytes by page size as the kernel writes it: "2MB", "1GB"

	// Devices are rules as in an OCI specification: for each kind of access the last that
	// applies counts, and what no rule names is denied. None means that all may be used.
	Devices []specs.LinuxDeviceCgroup
}

// IOLimit limits the use of one block device. 0 is no limit.
type IOLimit struct {
	Major, Minor        int64
	ReadBPS, WriteBPS   uint64 // bytes a second
	ReadIOPS, WriteIOPS uint64 // operations a second
}

// setting is one value in one file.
type setting struct {
	what       string // as people call it
	controller string
	ranks      bool // of the ranks, not of all
	file       string
	value      string
}

// partial says whether s goes without saying where memory is not limited.
func (s setting) partial() bool { return strings.Contains(s.what, ": ") || s.what == "swap" }

// settings are the files of version 2 or 1 that l comes down to. Devices are not
// among them.
func (l *Limits) settings(version int) []setting {
	if version == 2 {
		return l.settings2()
	}
	return l.settings1()
}

func (l *Limits) settings2() []setting {
	var all []setting
	add := func(s setting) { all = append(all, s) }
	if l.CPUs > 0 {
		add(setting{what: "CPU time", controller: "cpu", file: "cpu.max", value: fmt.Sprintf("%d %d", l.quota(), period)})
	}
	if l.Weight > 0 {
		add(setting{what: "CPU weight", controller: "cpu", file: "cpu.weight", value: strconv.Itoa(l.Weight)})
	}
	if len(l.CPUSet) > 0 {
		add(setting{what: "CPU set", controller: "cpuset", file: "cpuset.cpus", value: l.CPUSet.String()})
	}
	if len(l.Mems) > 0 {
		add(setting{what: "memory nodes", controller: "cpuset", file: "cpuset.mems", value: l.Mems.String()})
	}
	if l.Memory > 0 {
		add(setting{what: "memory", controller: "memory", ranks: true, file: "memory.max", value: strconv.FormatInt(l.Memory, 10)})
		add(setting{what: "memory: the end of all ranks together", controller: "memory", ranks: true, file: "memory.oom.group", value: "1"})
		if l.Swap != Unlimited {
			add(setting{what: "swap", controller: "memory", ranks: true, file: "memory.swap.max", value: strconv.FormatInt(l.Swap, 10)})
		}
	}
	if l.Pids > 0 {
		add(setting{what: "processes", controller: "pids", ranks: true, file: "pids.max", value: strconv.FormatInt(l.Pids, 10)})
	}
	for _, io := range l.IO {
		add(setting{what: "io", controller: "io", ranks: true, file: "io.max", value: io.String()})
	}
	for _, size := range sortedKeys(l.HugeTLB) {
		add(setting{what: "huge pages", controller: "hugetlb", ranks: true, file: "hugetlb." + size + ".max", value: strconv.FormatUint(l.HugeTLB[size], 10)})
	}
	return all
}

func (l *Limits) settings1() []setting {
	var all []setting
	add := func(s setting) { all = append(all, s) }
	if l.CPUs > 0 {
		add(setting{what: "CPU time", controller: "cpu", file: "cpu.cfs_period_us", value: strconv.Itoa(period)})
		add(setting{what: "CPU time", controller: "cpu", file: "cpu.cfs_quota_us", value: strconv.Itoa(l.quota())})
	}
	if l.Weight > 0 {
		add(setting{what: "CPU weight", controller: "cpu", file: "cpu.shares", value: strconv.Itoa(max(2, l.Weight*1024/100))})
	}
	if len(l.CPUSet) > 0 {
		add(setting{what: "CPU set", controller: "cpuset", file: "cpuset.cpus", value: l.CPUSet.String()})
	}
	if len(l.Mems) > 0 {
		add(setting{what: "memory nodes", controller: "cpuset", file: "cpuset.mems", value: l.Mems.String()})
	}
	if l.Memory > 0 {
		add(setting{what: "memory", controller: "memory", ranks: true, file: "memory.limit_in_bytes", value: strconv.FormatInt(l.Memory, 10)})
		if l.Swap != Unlimited {
			add(setting{what: "swap", controller: "memory", ranks: true, file: "memory.memsw.limit_in_bytes", value: strconv.FormatInt(l.Memory+l.Swap, 10)})
		}
	}
	if l.Pids > 0 {
		add(setting{what: "processes", controller: "pids", ranks: true, file: "pids.max", value: strconv.FormatInt(l.Pids, 10)})
	}
	for _, io := range l.IO {
		for _, v := range []struct {
			name  string
			value uint64
		}{{"read_bps", io.ReadBPS}, {"write_bps", io.WriteBPS}, {"read_iops", io.ReadIOPS}, {"write_iops", io.WriteIOPS}} {
			if v.value > 0 {
				add(setting{what: "io", controller: "blkio", ranks: true, file: "blkio.throttle." + v.name + "_device", value: fmt.Sprintf("%d:%d %d", io.Major, io.Minor, v.value)})
			}
		}
	}
	for _, size := range sortedKeys(l.HugeTLB) {
		add(setting{what: "huge pages", controller: "hugetlb", ranks: true, file: "hugetlb." + size + ".limit_in_bytes", value: strconv.FormatUint(l.HugeTLB[size], 10)})
	}
	return all
}

// quota is the CPU time in a period, in microseconds; the kernel takes no less than 1000.
func (l *Limits) quota() int { return max(1000, int(l.CPUs*period)) }

// String is how io.max of version 2 has it.
func (io IOLimit) String() string {
	var s strings.Builder
	s.WriteString(fmt.Sprintf("%d:%d", io.Major, io.Minor))
	for _, v := range []struct {
		name  string
		value uint64
	}{{"rbps", io.ReadBPS}, {"wbps", io.WriteBPS}, {"riops", io.ReadIOPS}, {"wiops", io.WriteIOPS}} {
		if v.value > 0 {
			s.WriteString(fmt.Sprintf(" %s=%d", v.name, v.value))
		}
	}
	return s.String()
}

func sortedKeys(m map[string]uint64) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// Limit sets l for all that is placed from now on. What this rung has not the means for is
// added to Missing. An error is a value that the kernel does not take.
func (g *Group) Limit(l Limits) error {
	if g.rung == None {
		g.advise(&l)
		return nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, version := range []int{2, 1} {
		for _, s := range l.settings(version) {
			if err := g.set(version, s); err != nil {
				return err
			}
		}
	}
	for _, s := range l.settings(2) {
		if name := controllerOn(s.controller, 1); g.tree(s.controller, 2) == nil && g.tree(name, 1) == nil {
			if !s.partial() {
				g.miss(s.what, g.why(s.controller), "")
			}
			g.insteadOf(s, &l)
		}
	}
	return g.limitDevices(l.Devices)
}

// controllerOn is the name of a controller of version 2 in the given version.
func controllerOn(name string, version int) string {
	if name == "io" && version == 1 {
		return "blkio"
	}
	return name
}

// set writes s if its controller is to be had in that version.
func (g *Group) set(version int, s setting) error {
	t := g.tree(s.controller, version)
	if t == nil {
		return nil
	}
	dirs := []string{t.dir}
	if s.ranks {
		dirs = []string{t.leaf(ranksLeaf)}
	} else if version == 1 && s.controller == "cpuset" {
		dirs = append(subgroups(t.dir), t.dir) // a parent may not have less than its children
	}
	for _, dir := range dirs {
		err := write(dir, s.file, s.value)
		switch {
		case err == nil:
		case s.what == "swap" && errors.Is(err, os.ErrNotExist):
			g.missSwap()
		case refused(err) && !errors.Is(err, unix.EBUSY):
			g.miss(s.what, err.Error(), "")
		default:
			return fmt.Errorf("limit %s: %w", s.what, err)
		}
	}
	return nil
}

// missSwap says that swap is not limited, where there is some.
func (g *Group) missSwap() {
	if text, err := read(g.proc, "swaps"); err == nil && !containsLine(text, 2) {
		return
	}
	g.miss("swap", "the kernel does not account for it", "boot with swapaccount=1")
}

// containsLine says whether text has at least n lines.
func containsLine(text string, n int) bool {
	for i := range text {
		if text[i] == '\n' {
			n--
		}
	}
	return n <= 1
}
