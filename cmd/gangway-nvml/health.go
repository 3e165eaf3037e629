//go:build cgo

package main

import (
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	report "github.com/gangway-hpc/gangway/hooks/nvml"
)

// health says what may be wrong with GPUs.
func (l *library) health(uuids []string) (*report.Health, *report.Failure) {
	gpus, f := l.gpus(uuids)
	if f != nil {
		return nil, f
	}
	h := report.Health{Time: time.Now(), GPUs: make([]report.Condition, 0, len(gpus))}
	for _, g := range gpus {
		c := report.Condition{UUID: g.id()}
		if !g.lost {
			clocks(g, &c)
			memory(g, &c)
			wires(g, &c)
		}
		c.Error = g.error()
		h.GPUs = append(h.GPUs, c)
	}
	return &h, nil
}

// clocks asks how fast a GPU may run, and why not faster.
func clocks(g *gpu, c *report.Condition) {
	dev := g.dev
	clock := func(symbol, what string, ask func(nvml.ClockType) (uint32, nvml.Return), kind nvml.ClockType) *int {
		return num[int](get(g, symbol, what, with(ask, kind)))
	}
	c.SMClockMHz = clock("nvmlDeviceGetClockInfo", "read SM clock", dev.GetClockInfo, nvml.CLOCK_SM)
	c.MemClockMHz = clock("nvmlDeviceGetClockInfo", "read memory clock", dev.GetClockInfo, nvml.CLOCK_MEM)
	c.SMClockMaxMHz = clock("nvmlDeviceGetMaxClockInfo", "read SM clock", dev.GetMaxClockInfo, nvml.CLOCK_SM)
	c.MemClockMaxMHz = clock("nvmlDeviceGetMaxClockInfo", "read memory clock", dev.GetMaxClockInfo, nvml.CLOCK_MEM)
	if p := get(g, "nvmlDeviceGetPerformanceState", "read performance state", dev.GetPerformanceState); p != nil && *p != nvml.PSTATE_UNKNOWN {
		c.PState = new(int(*p))
	}
	if why := get(g, "nvmlDeviceGetCurrentClocksThrottleReasons", "read throttle reasons", dev.GetCurrentClocksThrottleReasons); why != nil {
		c.Throttle = throttle(*why)
	}
	c.TemperatureC = num[int](get(g, "nvmlDeviceGetTemperature", "read temperature", with(dev.GetTemperature, nvml.TEMPERATURE_GPU)))
	c.SlowdownC = num[int](get(g, "nvmlDeviceGetTemperatureThreshold", "read slowdown temperature", with(dev.GetTemperatureThreshold, nvml.TEMPERATURE_THRESHOLD_SLOWDOWN)))
	c.ShutdownC = num[int](get(g, "nvmlDeviceGetTemperatureThreshold", "read shutdown temperature", with(dev.GetTemperatureThreshold, nvml.TEMPERATURE_THRESHOLD_SHUTDOWN)))
	c.PowerMilliwatts = num[uint64](get(g, "nvmlDeviceGetPowerUsage", "read power", dev.GetPowerUsage))
	c.PowerLimit = num[uint64](get(g, "nvmlDeviceGetEnforcedPowerLimit", "read power limit", dev.GetEnforcedPowerLimit))
}

// throttle names the bits of nvmlClocksThrottleReasons (nvml.h).
func throttle(bits uint64) []string {
	var names []string
	for i, name := range []string{
		"idle", "applications-clocks", "sw-power-cap", "hw-slowdown", "sync-boost",
		"sw-thermal", "hw-thermal", "hw-power-brake", "display-clock", "board-limit", "reliability",
	} {
		if bits&(1<<i) != 0 {
			names = append(names, name)
		}
	}
	return names
}

// memory asks for errors of a GPU's memory and for what was done about them.
func memory(g *gpu, c *report.Condition) {
	dev := g.dev
	type modes struct{ now, next nvml.EnableState }
	if m := get(g, "nvmlDeviceGetEccMode", "read ECC mode", func() (modes, nvml.Return) {
		now, next, ret := dev.GetEccMode()
		return modes{now, next}, ret
	}); m != nil {
		c.ECC = &report.ECC{Enabled: m.now == nvml.FEATURE_ENABLED, EnabledAfterReset: m.next == nvml.FEATURE_ENABLED}
	}
	if c.ECC != nil && c.ECC.Enabled {
		errors := func(kind nvml.MemoryErrorType, since nvml.EccCounterType) *uint64 {
			return get(g, "nvmlDeviceGetTotalEccErrors", "count ECC errors", func() (uint64, nvml.Return) { return dev.GetTotalEccErrors(kind, since) })
		}
		c.ECC.Corrected = errors(nvml.MEMORY_ERROR_TYPE_CORRECTED, nvml.VOLATILE_ECC)
		c.ECC.Uncorrected = errors(nvml.MEMORY_ERROR_TYPE_UNCORRECTED, nvml.VOLATILE_ECC)
		c.ECC.CorrectedAggregate = errors(nvml.MEMORY_ERROR_TYPE_CORRECTED, nvml.AGGREGATE_ECC)
		c.ECC.UncorrectedAggregate = errors(nvml.MEMORY_ERROR_TYPE_UNCORRECTED, nvml.AGGREGATE_ECC)
	}
	c.RemappedRows = get(g, "nvmlDeviceGetRemappedRows", "read remapped rows", func() (report.Rows, nvml.Return) {
		corrected, uncorrected, pending, failed, ret := dev.GetRemappedRows()
		return report.Rows{Corrected: corrected, Uncorrected: uncorrected, Pending: pending, Failed: failed}, ret
	})
	pages := report.Pages{
		SingleBit: retired(g, nvml.PAGE_RETIREMENT_CAUSE_MULTIPLE_SINGLE_BIT_ECC_ERRORS),
		DoubleBit: retired(g, nvml.PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR),
		Pending:   on(get(g, "nvmlDeviceGetRetiredPagesPendingStatus", "read retired pages", dev.GetRetiredPagesPendingStatus)),
	}
	if pages != (report.Pages{}) {
		c.RetiredPages = &pages
	}
}

func retired(g *gpu, cause nvml.PageRetirementCause) *int {
	return get(g, "nvmlDeviceGetRetiredPages", "read retired pages", func() (int, nvml.Return) {
		pages, ret := g.dev.GetRetiredPages(cause)
		return len(pages), ret
	})
}

// wires asks for errors on the way to other devices.
func wires(g *gpu, c *report.Condition) {
	c.PCIeReplays = num[uint64](get(g, "nvmlDeviceGetPcieReplayCounter", "count PCIe replays", g.dev.GetPcieReplayCounter))
	for i := range nvml.NVLINK_MAX_LINKS {
		active, ok := linkState(g, i)
		if !ok {
			break
		}
		if !active {
			continue
		}
		count := func(kind nvml.NvLinkErrorCounter) *uint64 {
			return get(g, "nvmlDeviceGetNvLinkErrorCounter", "count NVLink errors", func() (uint64, nvml.Return) { return g.dev.GetNvLinkErrorCounter(i, kind) })
		}
		e := report.LinkErrors{Link: i, Replay: count(nvml.NVLINK_ERROR_DL_REPLAY), Recovery: count(nvml.NVLINK_ERROR_DL_RECOVERY), CRC: count(nvml.NVLINK_ERROR_DL_CRC_FLIT)}
		for _, n := range []*uint64{e.Replay, e.Recovery, e.CRC} {
			if n != nil && *n > 0 {
				c.NVLinkErrors = append(c.NVLinkErrors, e)
				break
			}
		}
	}
}
