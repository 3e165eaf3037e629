package main

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/gangway-hpc/gangway/hooks/nvml"
	"github.com/gangway-hpc/gangway/internal/fault"
	"github.com/gangway-hpc/gangway/launcher/step"
	"github.com/gangway-hpc/gangway/runtime/cgroup"
)

// limitFlags say how much of the machine a container may use.
type limitFlags struct {
	limits  cgroup.Limits
	cpus    cpuSet
	require bool
	stats   bool
}

func (f *limitFlags) add(fl *pflag.FlagSet) {
	fl.Var(newValue(&f.limits.CPUs, "N", cgroup.ParseCPUs), "cpus", "CPU time that the container may use: 2, or 0.5")
	fl.Var(newValue(&f.cpus, "LIST", parseCPUSet), "cpuset", "the CPUs that it may use: 0-3,8; near: those near its GPUs")
	fl.Var(newValue(&f.limits.Memory, "SIZE", cgroup.ParseMemory), "mem", "memory that it may use: 16G; a number alone is MiB")
	fl.Var(newValue(&f.limits.Pids, "N", parsePids), "pids-limit", "processes and threads that it may have, PID 1 among them")
	fl.BoolVar(&f.require, "require-cgroup", false, "run nothing unless all limits are enforced by the kernel")
	fl.BoolVar(&f.stats, "stats", false, "print at the end what was used")
}

// cpuSet is what --cpuset says.
type cpuSet struct {
	set  cgroup.Set
	near bool // the GPUs
}

// parseCPUSet refuses what the kernel's files may say: no CPU at all.
func parseCPUSet(text string) (cpuSet, error) {
	if text == "near" {
		return cpuSet{near: true}, nil
	}
	set, err := cgroup.ParseSet(text)
	if err == nil && len(set) == 0 {
		err = fault.Usage(errors.New("it names no CPU"), "write a list, as in 0-3,8; or leave it out")
	}
	return cpuSet{set: set}, err
}

// parsePids refuses what no container fits in: its PID 1 starts the command.
func parsePids(text string) (int64, error) {
	n, err := cgroup.ParsePids(text)
	if err == nil && n == 1 {
		err = fault.Usage(errors.New("a container has two processes at least, PID 1 and the command"), "write 2 or more, or unlimited")
	}
	return n, err
}

// options checks the limits against the machine.
func (f *limitFlags) options(w io.Writer) (step.Limits, error) {
	f.limits.CPUSet = f.cpus.set
	l := step.Limits{Limits: f.limits, Near: f.cpus.near, Require: f.require}
	if f.stats {
		l.Stats = func(used cgroup.Stats, rung string, gpus []nvml.Use) {
			printStats(w, used, rung)
			for _, g := range gpus {
				fmt.Fprintf(w, "gangway: used: %s\n", gpuStats(g))
			}
		}
	}
	return l, f.limits.Check(cgroup.Here("/proc", "/sys"))
}

func printStats(w io.Writer, s cgroup.Stats, rung string) {
	parts := []string{"cgroup " + rung}
	unknown := func(name string) bool {
		return slices.Contains(s.Unknown, name)
	}
	part := func(name, format string, args ...any) {
		if !unknown(name) {
			parts = append(parts, fmt.Sprintf(format, args...))
		}
	}
	part("CPU", "cpu %s", s.CPU.Round(time.Millisecond))
	part("Throttled", "throttled %s", s.Throttled.Round(time.Millisecond))
	part("MemoryPeak", "memory peak %s", cgroup.Bytes(s.MemoryPeak))
	part("PidsPeak", "processes peak %d", s.PidsPeak)
	part("ReadBytes", "read %s", cgroup.Bytes(int64(s.ReadBytes)))
	part("WriteBytes", "written %s", cgroup.Bytes(int64(s.WriteBytes)))
	part("CPUPressure", "waited for cpu %s", s.CPUPressure.Some.Round(time.Millisecond))
	part("MemoryPressure", "for memory %s", s.MemoryPressure.Some.Round(time.Millisecond))
	part("IOPressure", "for io %s", s.IOPressure.Some.Round(time.Millisecond))
	if len(parts) == 1 { // there is no group
		parts = append(parts, "nothing is known without a control group")
	} else {
		for _, v := range [][2]string{{"MemoryPeak", "memory"}, {"ReadBytes", "io"}} {
			if unknown(v[0]) {
				parts = append(parts, v[1]+" unknown")
			}
		}
	}
	fmt.Fprintf(w, "gangway: used: %s\n", strings.Join(parts, ", "))
}

// gpuStats says what a GPU did.
func gpuStats(g nvml.Use) string {
	text := g.UUID
	if g.GPUPercent != nil {
		text += fmt.Sprintf(", busy %.0f %%", *g.GPUPercent)
	}
	if g.MemoryPeak != nil && g.MemoryTotal != nil {
		text += fmt.Sprintf(", memory peak %s of %s", cgroup.Bytes(int64(*g.MemoryPeak)), cgroup.Bytes(int64(*g.MemoryTotal)))
	}
	if g.Joules != nil {
		text += fmt.Sprintf(", energy %.0f J", *g.Joules)
	}
	if g.GPUPercent == nil && g.MemoryPeak == nil && g.Joules == nil {
		text += ", its driver tells nothing"
	}
	return text
}

// value is a flag that a function reads.
type value[T any] struct {
	to    *T
	kind  string
	text  string
	parse func(string) (T, error)
}

func newValue[T any](to *T, kind string, parse func(string) (T, error)) *value[T] {
	return &value[T]{to: to, kind: kind, parse: parse}
}

// Set implements pflag.Value.
func (v *value[T]) Set(text string) (err error) {
	v.text = text
	*v.to, err = v.parse(text)
	return err
}

// String implements pflag.Value.
func (v *value[T]) String() string { return v.text }

// Type implements pflag.Value.
func (v *value[T]) Type() string { return v.kind }
