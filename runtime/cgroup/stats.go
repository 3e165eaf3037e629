package cgroup

import (
	"slices"
	"strconv"
	"strings"
	"time"
)

// Stats is what a group has used so far. A value that the kernel does not tell is in
// Unknown by its field's name, and zero.
type Stats struct {
	CPU, CPUUser, CPUSystem time.Duration // of the ranks, and of the supervisor if it is in Sup
	Throttled               time.Duration // time that processes waited because of the limit
	Memory, MemoryPeak      int64         // bytes, of the ranks
	MemoryLimit             int64         // bytes, or Unlimited
	Swap                    int64         // bytes now
	Pids, PidsPeak          int64         // processes and threads of the ranks
	ReadBytes, WriteBytes   uint64        // to block devices, by the ranks
	OOMKills                uint64        // processes that the kernel ended for want of memory
	CPUPressure             Pressure
	MemoryPressure          Pressure
	IOPressure              Pressure
	Unknown                 []string
}

// Pressure is the kernel's pressure stall information: for how long some or all of the
// processes could not go on.
type Pressure struct {
	Some, Full time.Duration
}

// Stats reads the statistics. It never fails: what cannot be had is in Unknown.
func (g *Group) Stats() Stats {
	var s Stats
	unknown := func(name string) { s.Unknown = append(s.Unknown, name) }
	amount := func(to *int64, name, controller, file2, file1 string) {
		for _, v := range []struct {
			version int
			file    string
		}{{2, file2}, {1, file1}} {
			if t := g.made(controller, v.version); t != nil && v.file != "" {
				if n, ok := number(t.leaf(ranksLeaf), v.file); ok {
					*to = n
					return
				}
			}
		}
		unknown(name)
	}
	amount(&s.Memory, "Memory", "memory", "memory.current", "memory.usage_in_bytes")
	amount(&s.MemoryPeak, "MemoryPeak", "memory", "memory.peak", "memory.max_usage_in_bytes")
	amount(&s.MemoryLimit, "MemoryLimit", "memory", "memory.max", "memory.limit_in_bytes")
	amount(&s.Pids, "Pids", "pids", "pids.current", "pids.current")
	amount(&s.PidsPeak, "PidsPeak", "pids", "pids.peak", "pids.peak")
	g.swapStats(&s, unknown)
	g.cpuStats(&s, unknown)
	g.ioStats(&s, unknown)
	g.pressure(&s, unknown)
	if kills, ok := g.oomKills(); ok {
		s.OOMKills = kills
	} else {
		unknown("OOMKills")
	}
	return s
}

// made returns the tree whose leaves have controller, or nil.
func (g *Group) made(controller string, version int) *tree {
	for _, t := range g.trees {
		has := t.on
		if t.version == 1 {
			has = t.controllers
		}
		if t.version == version && t.made && slices.Contains(has, controllerOn(controller, version)) {
			return t
		}
	}
	return nil
}

func (g *Group) swapStats(s *Stats, unknown func(string)) {
	if t := g.made("memory", 2); t != nil {
		if n, ok := number(t.leaf(ranksLeaf), "memory.swap.current"); ok {
			s.Swap = n
			return
		}
	}
	if t := g.made("memory", 1); t != nil {
		both, ok := number(t.leaf(ranksLeaf), "memory.memsw.usage_in_bytes")
		memory, also := number(t.leaf(ranksLeaf), "memory.usage_in_bytes")
		if ok && also {
			s.Swap = max(0, both-memory)
			return
		}
	}
	unknown("Swap")
}

func (g *Group) cpuStats(s *Stats, unknown func(string)) {
	usec := func(n uint64) time.Duration { return time.Duration(n) * time.Microsecond }
	for _, t := range g.trees {
		if t.version == 2 && t.made && len(g.trees) == 1 {
			v := pairs(t.dir, "cpu.stat")
			s.CPU, s.CPUUser, s.CPUSystem = usec(v["usage_usec"]), usec(v["user_usec"]), usec(v["system_usec"])
			if n, ok := v["throttled_usec"]; ok {
				s.Throttled = usec(n)
			} else { // without the controller
				unknown("Throttled")
			}
			return
		}
	}
	if t := g.made("cpuacct", 1); t != nil {
		ns, _ := number(t.dir, "cpuacct.usage")
		v := pairs(t.dir, "cpuacct.stat")
		const tick = time.Second / 100 // USER_HZ, which no kernel of ours has otherwise
		s.CPU, s.CPUUser, s.CPUSystem = time.Duration(ns), time.Duration(v["user"])*tick, time.Duration(v["system"])*tick
	} else {
		unknown("CPU")
		unknown("CPUUser")
		unknown("CPUSystem")
	}
	if t := g.made("cpu", 1); t != nil {
		s.Throttled = time.Duration(pairs(t.dir, "cpu.stat")["throttled_time"])
	} else {
		unknown("Throttled")
	}
}

func (g *Group) ioStats(s *Stats, unknown func(string)) {
	if t := g.made("io", 2); t != nil {
		if text, err := read(t.leaf(ranksLeaf), "io.stat"); err == nil {
			s.ReadBytes, s.WriteBytes = parseIO2(text)
			return
		}
	}
	if t := g.made("io", 1); t != nil {
		if text, err := read(t.leaf(ranksLeaf), "blkio.throttle.io_service_bytes_recursive"); err == nil {
			s.ReadBytes, s.WriteBytes = parseIO1(text)
			return
		}
	}
	unknown("ReadBytes")
	unknown("WriteBytes")
}

// parseIO2 adds up io.stat: "8:0 rbytes=1 wbytes=2 rios=3 ...".
func parseIO2(text string) (read, written uint64) {
	for field := range strings.FieldsSeq(text) {
		name, value, _ := strings.Cut(field, "=")
		n, err := strconv.ParseUint(value, 10, 64)
		switch {
		case err != nil:
		case name == "rbytes":
			read += n
		case name == "wbytes":
			written += n
		}
	}
	return read, written
}

// parseIO1 adds up blkio: "8:0 Read 1", and a line of totals without a device.
func parseIO1(text string) (read, written uint64) {
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) != 3 {
			continue
		}
		n, err := strconv.ParseUint(f[2], 10, 64)
		switch {
		case err != nil:
		case f[1] == "Read":
			read += n
		case f[1] == "Write":
			written += n
		}
	}
	return read, written
}

func (g *Group) pressure(s *Stats, unknown func(string)) {
	for _, v := range []struct {
		to         *Pressure
		name, file string
	}{{&s.CPUPressure, "CPUPressure", "cpu.pressure"}, {&s.MemoryPressure, "MemoryPressure", "memory.pressure"}, {&s.IOPressure, "IOPressure", "io.pressure"}} {
		text := ""
		if len(g.trees) > 0 && g.trees[0].version == 2 {
			text, _ = read(g.trees[0].leaf(ranksLeaf), v.file)
		}
		if text == "" {
			unknown(v.name)
			continue
		}
		*v.to = parsePressure(text)
	}
}

// parsePressure reads "some avg10=0.00 avg60=0.00 avg300=0.00 total=12345" and "full ...".
func parsePressure(text string) Pressure {
	var p Pressure
	for line := range strings.Lines(text) {
		kind, rest, _ := strings.Cut(line, " ")
		_, total, _ := strings.Cut(rest, "total=")
		n, err := strconv.ParseUint(strings.TrimSpace(total), 10, 63)
		switch {
		case err != nil:
		case kind == "some":
			p.Some = time.Duration(n) * time.Microsecond
		case kind == "full":
			p.Full = time.Duration(n) * time.Microsecond
		}
	}
	return p
}

// oomKills counts the processes that the kernel ended in the ranks.
func (g *Group) oomKills() (kills uint64, ok bool) {
	if t := g.made("memory", 2); t != nil {
		kills, ok = pairs(t.leaf(ranksLeaf), "memory.events")["oom_kill"]
		return kills, ok
	}
	if t := g.made("memory", 1); t != nil {
		dir := t.leaf(ranksLeaf)
		for _, d := range append(subgroups(dir), dir) { // version 1 does not add up
			n, has := pairs(d, "memory.oom_control")["oom_kill"]
			kills, ok = kills+n, ok || has
		}
	}
	return kills, ok
}
