//go:build cgo

package main

import (
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	report "github.com/gangway-hpc/gangway/hooks/nvml"
)

// sample says what GPUs do now.
func (l *library) sample(uuids []string) (*report.Sample, *report.Failure) {
	gpus, f := l.gpus(uuids)
	if f != nil {
		return nil, f
	}
	s := report.Sample{Time: time.Now(), GPUs: make([]report.Load, 0, len(gpus))}
	for _, g := range gpus {
		load := report.Load{UUID: g.id()}
		if !g.lost {
			dev := g.dev
			if u := get(g, "nvmlDeviceGetUtilizationRates", "read utilisation", dev.GetUtilizationRates); u != nil {
				load.GPUPercent, load.MemoryPercent = new(int(u.Gpu)), new(int(u.Memory))
			}
			if m := get(g, "nvmlDeviceGetMemoryInfo", "read memory use", dev.GetMemoryInfo); m != nil {
				load.MemoryUsed, load.MemoryTotal = &m.Used, &m.Total
			}
			load.PowerMilliwatts = num[uint64](get(g, "nvmlDeviceGetPowerUsage", "read power", dev.GetPowerUsage))
			load.Millijoules = get(g, "nvmlDeviceGetTotalEnergyConsumption", "read energy", dev.GetTotalEnergyConsumption)
		}
		load.Error = g.error()
		s.GPUs = append(s.GPUs, load)
	}
	return &s, nil
}

// processes says who uses GPUs.
func (l *library) processes(uuids []string) (*report.Processes, *report.Failure) {
	gpus, f := l.gpus(uuids)
	if f != nil {
		return nil, f
	}
	p := report.Processes{Time: time.Now(), Processes: []report.Process{}}
	for _, g := range gpus {
		p.Processes = append(p.Processes, users(g)...)
		if e := g.error(); e != "" {
			p.Errors = append(p.Errors, g.name+": "+e)
		}
	}
	return &p, nil
}

// recent is how far back the use of a process is looked for.
const recent = 5 * time.Second

func users(g *gpu) []report.Process {
	id := g.id()
	if g.lost {
		return nil
	}
	type shares struct{ sm, memory int }
	busy := map[int]shares{}
	since := uint64(time.Now().Add(-recent).UnixMicro())
	if samples := get(g, "nvmlDeviceGetProcessUtilization", "read the use of processes", with(g.dev.GetProcessUtilization, since)); samples != nil {
		for _, s := range *samples {
			if s.Pid != 0 { // unused entries are zero; a later sample of a process replaces an earlier one
				busy[int(s.Pid)] = shares{int(s.SmUtil), int(s.MemUtil)}
			}
		}
	}
	var all []report.Process
	add := func(kind string, infos *[]nvml.ProcessInfo) {
		if infos == nil {
			return
		}
		for _, info := range *infos {
			p := report.Process{GPU: id, PID: int(info.Pid), Kind: kind, GPUInstance: instance(info.GpuInstanceId), ComputeInstance: instance(info.ComputeInstanceId)}
			if info.UsedGpuMemory != 1<<64-1 { // NVML_VALUE_NOT_AVAILABLE
				p.MemoryBytes = new(info.UsedGpuMemory)
			}
			if u, ok := busy[p.PID]; ok {
				p.SMPercent, p.MemoryPercent = &u.sm, &u.memory
			}
			all = append(all, p)
		}
	}
	add("compute", get(g, "nvmlDeviceGetComputeRunningProcesses", "list compute processes", g.dev.GetComputeRunningProcesses))
	add("graphics", get(g, "nvmlDeviceGetGraphicsRunningProcesses", "list graphics processes", g.dev.GetGraphicsRunningProcesses))
	return all
}

// instance is the number of a MIG instance; without one it is all ones.
func instance(n uint32) *int {
	if n == 1<<32-1 {
		return nil
	}
	return new(int(n))
}
