//go:build cgo

package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/dgxa100"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/dgxb200"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/dgxh100"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/dgxh200"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/server"

	report "github.com/gangway-hpc/gangway/hooks/nvml"
)

// over makes a library of one of go-nvml's machines. It has the functions that the mock
// has, and those in more, which the test has given it: the mock panics at any other.
func over(s *server.Server, more ...string) *library {
	have := map[string]bool{}
	for _, symbol := range append(more, strings.Fields(`nvmlSystemGetCudaDriverVersion nvmlDeviceGetIndex
		nvmlDeviceGetMinorNumber nvmlDeviceGetCudaComputeCapability nvmlDeviceGetUUID nvmlDeviceGetName
		nvmlDeviceGetBrand nvmlDeviceGetMemoryInfo nvmlDeviceGetPciInfo nvmlDeviceGetMigMode`)...) {
		have[symbol] = true
	}
	s.LookupSymbolFunc = func(symbol string) error {
		if !have[symbol] {
			return errors.New("undefined symbol")
		}
		return nil
	}
	for i, dev := range s.Devices {
		dev.(*server.Device).GetPciInfoFunc = func() (nvml.PciInfo, nvml.Return) {
			return nvml.PciInfo{Domain: 1, Bus: uint32(0x10 + i)}, nvml.SUCCESS
		}
	}
	return newLibrary(s, &step{}, "/proc")
}

func must[T any](t *testing.T) func(*T, *report.Failure) *T {
	return func(v *T, f *report.Failure) *T {
		t.Helper()
		if f != nil {
			t.Fatalf("%+v", f)
		}
		return v
	}
}

// TestMachines: the inventory of NVIDIA's own machines, and all else that they do not tell.
func TestMachines(t *testing.T) {
	for name, c := range map[string]struct {
		server     *server.Server
		capability string
		mib        uint64
	}{
		"A100": {dgxa100.New(), "8.0", 40960},
		"H100": {dgxh100.New(), "9.0", 81920},
		"H200": {dgxh200.New(), "9.0", 144384},
		"B200": {dgxb200.New(), "10.0", 184320},
	} {
		t.Run(name, func(t *testing.T) {
			l := over(c.server)
			answer, f := l.ask("inventory", nil)
			if f != nil {
				t.Fatalf("%+v", f)
			}
			inv := answer.(*report.Inventory)
			if len(inv.GPUs) != 8 || inv.DriverVersion != "550.54.15" && name != "B200" || inv.CUDAVersion == "" {
				t.Errorf("%+v", inv)
			}
			for i, g := range inv.GPUs {
				if g.Index != i || *g.Minor != i || !strings.HasPrefix(g.UUID, "GPU-") || !strings.Contains(g.Name, name) ||
					g.Capability != c.capability || g.MemoryBytes != c.mib<<20 || g.MIG != "disabled" || g.Brand != "nvidia" ||
					g.PCIBusID != fmt.Sprintf("0001:%02x:00.0", 0x10+i) || g.Error != "" {
					t.Errorf("GPU %d: %+v", i, g)
				}
			}
			for _, call := range report.Calls {
				if answer, f := l.ask(call, []string{inv.GPUs[3].UUID}); f != nil || answer == nil {
					t.Errorf("%s: %+v, %+v", call, answer, f)
				}
			}
			if _, f := l.ask("sample", []string{"GPU-none"}); f == nil || f.Kind != report.UnknownGPU || !strings.Contains(f.Cause, inv.GPUs[7].UUID) {
				t.Errorf("unknown GPU: %+v", f)
			}
			if _, f := l.ask("nonsense", nil); f == nil || f.Kind != report.Misuse {
				t.Errorf("unknown call: %+v", f)
			}
		})
	}
}

// TestMIG: the instances of a divided GPU, with gaps in their numbers.
func TestMIG(t *testing.T) {
	s := dgxh100.New()
	dev := s.Devices[2].(*server.Device)
	dev.MigMode = nvml.DEVICE_MIG_ENABLE
	dev.GetMaxMigDeviceCountFunc = func() (int, nvml.Return) { return 7, nvml.SUCCESS }
	dev.GetMigDeviceHandleByIndexFunc = func(i int) (nvml.Device, nvml.Return) {
		if i%3 != 1 {
			return nil, nvml.ERROR_NOT_FOUND
		}
		return &mock.Device{
			GetUUIDFunc:              func() (string, nvml.Return) { return fmt.Sprintf("MIG-%d", i), nvml.SUCCESS },
			GetGpuInstanceIdFunc:     func() (int, nvml.Return) { return i, nvml.SUCCESS },
			GetComputeInstanceIdFunc: func() (int, nvml.Return) { return 0, nvml.SUCCESS },
			GetMemoryInfoFunc:        func() (nvml.Memory, nvml.Return) { return nvml.Memory{Total: 10 << 30}, nvml.SUCCESS },
			GetAttributesFunc: func() (nvml.DeviceAttributes, nvml.Return) {
				return nvml.DeviceAttributes{MultiprocessorCount: 16, GpuInstanceSliceCount: 1}, nvml.SUCCESS
			},
		}, nvml.SUCCESS
	}
	l := over(s, "nvmlDeviceGetMaxMigDeviceCount", "nvmlDeviceGetMigDeviceHandleByIndex", "nvmlDeviceGetGpuInstanceId", "nvmlDeviceGetComputeInstanceId", "nvmlDeviceGetAttributes_v2")
	inv := must[report.Inventory](t)(l.inventory(nil))
	want := []report.Instance{
		{UUID: "MIG-1", GPUInstance: 1, MemoryBytes: new(uint64(10 << 30)), Multiprocessors: new(16), Slices: new(1)},
		{UUID: "MIG-4", GPUInstance: 4, MemoryBytes: new(uint64(10 << 30)), Multiprocessors: new(16), Slices: new(1)},
	}
	if g := inv.GPUs[2]; g.MIG != "enabled" || !reflect.DeepEqual(g.Instances, want) || g.Error != "" {
		t.Errorf("%+v", g)
	}
	if g := inv.GPUs[1]; g.MIG != "disabled" || g.Instances != nil {
		t.Errorf("%+v", g)
	}
}

// TestTopology: GPUs behind switches, with straight links, and with PCIe only.
func TestTopology(t *testing.T) {
	s := dgxh100.New()
	s.Devices = s.Devices[:4]
	for i, d := range s.Devices {
		dev := d.(*server.Device)
		dev.GetMemoryAffinityFunc = func(n int, _ nvml.AffinityScope) ([]uint, nvml.Return) {
			return []uint{1 << (i / 2)}, nvml.SUCCESS
		}
		dev.GetCpuAffinityFunc = func(int) ([]uint, nvml.Return) { return []uint{0xff00000000000001, 0b1011}, nvml.SUCCESS }
		dev.GetCurrPcieLinkWidthFunc = func() (int, nvml.Return) { return 8, nvml.SUCCESS }
		dev.GetMaxPcieLinkWidthFunc = func() (int, nvml.Return) { return 16, nvml.SUCCESS }
		dev.GetNvLinkStateFunc = func(link int) (nvml.EnableState, nvml.Return) {
			switch {
			case link > 2 || i == 3:
				return 0, nvml.ERROR_INVALID_ARGUMENT
			case link == 1:
				return nvml.FEATURE_DISABLED, nvml.SUCCESS
			}
			return nvml.FEATURE_ENABLED, nvml.SUCCESS
		}
		dev.GetNvLinkRemoteDeviceTypeFunc = func(int) (nvml.IntNvLinkDeviceType, nvml.Return) {
			if i == 2 {
				return nvml.NVLINK_DEVICE_TYPE_GPU, nvml.SUCCESS
			}
			return nvml.NVLINK_DEVICE_TYPE_SWITCH, nvml.SUCCESS
		}
		dev.GetNvLinkRemotePciInfoFunc = func(int) (nvml.PciInfo, nvml.Return) {
			return nvml.PciInfo{Domain: 1, Bus: 0x10}, nvml.SUCCESS // GPU 0's
		}
		dev.GetTopologyCommonAncestorFunc = func(other nvml.Device) (nvml.GpuTopologyLevel, nvml.Return) {
			j, _ := other.GetIndex()
			return map[int]nvml.GpuTopologyLevel{1: nvml.TOPOLOGY_SYSTEM, 2: nvml.TOPOLOGY_NODE, 3: nvml.TOPOLOGY_SINGLE}[i^j], nvml.SUCCESS
		}
		dev.GetGpuFabricInfoFunc = func() (nvml.GpuFabricInfo, nvml.Return) {
			return nvml.GpuFabricInfo{ClusterUuid: [16]uint8{0xab, 15: 1}, CliqueId: 3, State: nvml.GPU_FABRIC_STATE_COMPLETED}, nvml.SUCCESS
		}
	}
	l := over(s, "nvmlDeviceGetMemoryAffinity", "nvmlDeviceGetCpuAffinity", "nvmlDeviceGetCurrPcieLinkWidth", "nvmlDeviceGetMaxPcieLinkWidth",
		"nvmlDeviceGetNvLinkState", "nvmlDeviceGetNvLinkRemoteDeviceType", "nvmlDeviceGetNvLinkRemotePciInfo_v2", "nvmlDeviceGetTopologyCommonAncestor", "nvmlDeviceGetGpuFabricInfo")
	topo := must[report.Topology](t)(l.topology(nil))
	p := topo.GPUs[2]
	if p.NUMANodes != "1" || p.CPUs != "0,56-65,67" || *p.PCIe.Width != 8 || *p.PCIe.MaxWidth != 16 || p.PCIe.Generation != nil || len(p.NVLinks) != 3 ||
		p.NVLinks[1].Active || p.NVLinks[0].PeerID != topo.GPUs[0].UUID || p.Error != "" {
		t.Errorf("%+v", p)
	}
	if f := p.Fabric; f == nil || *f != (report.Fabric{State: "completed", Status: "ok", Cluster: "ab000000-0000-0000-0000-000000000001", Clique: 3}) {
		t.Errorf("%+v", f)
	}
	want := "X NV2 NODE PIX/NV2 X PIX NODE/NV2 PIX X SYS/PIX NODE SYS X"
	var rows []string
	for _, row := range topo.Paths {
		rows = append(rows, strings.Join(row, " "))
	}
	if got := strings.Join(rows, "/"); got != want {
		t.Errorf("paths %s, want %s", got, want)
	}
}

// TestHealth: what is ill is said, one GPU that is lost does not hide the others, and zero
// is an answer.
func TestHealth(t *testing.T) {
	s := dgxa100.New()
	for i, d := range s.Devices {
		dev := d.(*server.Device)
		dev.GetClockInfoFunc = func(k nvml.ClockType) (uint32, nvml.Return) { return 1000 + uint32(k), nvml.SUCCESS }
		dev.GetTemperatureFunc = func(nvml.TemperatureSensors) (uint32, nvml.Return) {
			if i == 5 {
				return 0, nvml.ERROR_GPU_IS_LOST
			}
			return 0, nvml.SUCCESS
		}
		dev.GetPowerUsageFunc = func() (uint32, nvml.Return) { return 0, nvml.ERROR_NOT_SUPPORTED }
		dev.GetEnforcedPowerLimitFunc = func() (uint32, nvml.Return) { return 0, nvml.ERROR_UNKNOWN }
		dev.GetCurrentClocksThrottleReasonsFunc = func() (uint64, nvml.Return) { return 0x8c, nvml.SUCCESS }
		dev.GetEccModeFunc = func() (nvml.EnableState, nvml.EnableState, nvml.Return) {
			return nvml.FEATURE_ENABLED, nvml.FEATURE_DISABLED, nvml.SUCCESS
		}
		dev.GetTotalEccErrorsFunc = func(kind nvml.MemoryErrorType, since nvml.EccCounterType) (uint64, nvml.Return) {
			return uint64(kind)*10 + uint64(since), nvml.SUCCESS
		}
		dev.GetRemappedRowsFunc = func() (int, int, bool, bool, nvml.Return) { return 1, 2, true, false, nvml.SUCCESS }
		dev.GetNvLinkStateFunc = func(link int) (nvml.EnableState, nvml.Return) {
			if link < 4 {
				return nvml.FEATURE_ENABLED, nvml.SUCCESS
			}
			return 0, nvml.ERROR_NOT_SUPPORTED
		}
		dev.GetNvLinkErrorCounterFunc = func(link int, _ nvml.NvLinkErrorCounter) (uint64, nvml.Return) {
			return uint64(link / 3), nvml.SUCCESS
		}
	}
	l := over(s, "nvmlDeviceGetClockInfo", "nvmlDeviceGetTemperature", "nvmlDeviceGetPowerUsage", "nvmlDeviceGetEnforcedPowerLimit", "nvmlDeviceGetCurrentClocksThrottleReasons",
		"nvmlDeviceGetEccMode", "nvmlDeviceGetTotalEccErrors", "nvmlDeviceGetRemappedRows", "nvmlDeviceGetNvLinkState", "nvmlDeviceGetNvLinkErrorCounter")
	h := must[report.Health](t)(l.health(nil))
	c := h.GPUs[0]
	if *c.SMClockMHz != 1001 || *c.MemClockMHz != 1002 || *c.TemperatureC != 0 || c.PowerMilliwatts != nil || c.SMClockMaxMHz != nil ||
		strings.Join(c.Throttle, " ") != "sw-power-cap hw-slowdown hw-power-brake" || *c.RemappedRows != (report.Rows{Corrected: 1, Uncorrected: 2, Pending: true}) ||
		!c.ECC.Enabled || c.ECC.EnabledAfterReset || *c.ECC.UncorrectedAggregate != 11 || *c.ECC.Corrected != 0 ||
		len(c.NVLinkErrors) != 1 || c.NVLinkErrors[0].Link != 3 || c.RetiredPages != nil || !strings.HasPrefix(c.Error, "read power limit: ") {
		t.Errorf("%+v", c)
	}
	if c := h.GPUs[5]; c.UUID == "" || c.SMClockMHz == nil || c.ECC != nil || !strings.HasPrefix(c.Error, "read temperature: ") {
		t.Errorf("a lost GPU: %+v", c)
	}
	if h.GPUs[6].ECC == nil {
		t.Error("the lost GPU hides the next")
	}
}

// TestProcesses: use is told per process, and what is not available is left out.
func TestProcesses(t *testing.T) {
	s := dgxh200.New()
	for i, d := range s.Devices {
		dev := d.(*server.Device)
		dev.GetComputeRunningProcessesFunc = func() ([]nvml.ProcessInfo, nvml.Return) {
			if i != 1 {
				return nil, nvml.SUCCESS
			}
			return []nvml.ProcessInfo{{Pid: 10, UsedGpuMemory: 99, GpuInstanceId: 1<<32 - 1, ComputeInstanceId: 1<<32 - 1}, {Pid: 11, UsedGpuMemory: 1<<64 - 1, GpuInstanceId: 2}}, nvml.SUCCESS
		}
		dev.GetProcessUtilizationFunc = func(since uint64) ([]nvml.ProcessUtilizationSample, nvml.Return) {
			if ago := time.Since(time.UnixMicro(int64(since))); ago < recent || ago > time.Minute {
				t.Errorf("asked for what was %v ago", ago)
			}
			if i == 7 {
				return nil, nvml.ERROR_NO_PERMISSION
			}
			return []nvml.ProcessUtilizationSample{{}, {Pid: 10, SmUtil: 1}, {Pid: 10, SmUtil: 55, MemUtil: 5}}, nvml.SUCCESS
		}
	}
	p := must[report.Processes](t)(over(s, "nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetProcessUtilization").processes(nil))
	uuid, _ := s.Devices[1].GetUUID()
	want := []report.Process{
		{GPU: uuid, PID: 10, Kind: "compute", MemoryBytes: new(uint64(99)), SMPercent: new(55), MemoryPercent: new(5)},
		{GPU: uuid, PID: 11, Kind: "compute", GPUInstance: new(2), ComputeInstance: new(0)},
	}
	if !reflect.DeepEqual(p.Processes, want) {
		t.Errorf("%+v", p.Processes)
	}
	if len(p.Errors) != 1 || !strings.HasPrefix(p.Errors[0], "GPU 7: read the use of processes: ") {
		t.Errorf("%q", p.Errors)
	}
}

// TestWatch: an Xid, silence, a lost GPU, and the end.
func TestWatch(t *testing.T) {
	s := dgxh100.New()
	registered := 0
	for i, d := range s.Devices {
		dev := d.(*server.Device)
		dev.GetSupportedEventTypesFunc = func() (uint64, nvml.Return) {
			if i == 0 {
				return 0, nvml.ERROR_NOT_SUPPORTED
			}
			return nvml.EventTypeXidCriticalError | nvml.EventTypePState, nvml.SUCCESS
		}
		dev.RegisterEventsFunc = func(kinds uint64, _ nvml.EventSet) nvml.Return {
			if kinds != nvml.EventTypeXidCriticalError {
				t.Errorf("registers for %#x", kinds)
			}
			registered++
			return nvml.SUCCESS
		}
	}
	answers := []nvml.Return{nvml.ERROR_TIMEOUT, nvml.SUCCESS, nvml.ERROR_GPU_IS_LOST, nvml.ERROR_UNKNOWN}
	s.EventSetCreateFunc = func() (nvml.EventSet, nvml.Return) {
		return &mock.EventSet{WaitFunc: func(ms uint32) (nvml.EventData, nvml.Return) {
			ret := answers[0]
			answers = answers[1:]
			return nvml.EventData{Device: s.Devices[4], EventType: nvml.EventTypeXidCriticalError, EventData: 79}, ret
		}}, nvml.SUCCESS
	}
	var events []*report.Event
	f := over(s, "nvmlDeviceGetSupportedEventTypes").watch(nil, time.Millisecond, func(e *report.Event) bool {
		events = append(events, e)
		return true
	})
	uuid, _ := s.Devices[4].GetUUID()
	if f == nil || f.Kind != report.Refused || registered != 7 || len(events) != 3 || events[0] != nil || events[2] != nil ||
		events[1].Kind != "xid" || events[1].Xid != 79 || events[1].GPU != uuid {
		t.Errorf("%+v, %d registered, %+v", f, registered, events)
	}
	s.Devices = s.Devices[:1]
	if f := over(s, "nvmlDeviceGetSupportedEventTypes").watch(nil, time.Millisecond, nil); f == nil || !strings.Contains(f.Text, "no GPU here reports events") {
		t.Errorf("%+v", f)
	}
}

// TestSymbols: every function that is looked up is one of NVML's. A misspelt one would
// never be called, in silence.
func TestSymbols(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "github.com/NVIDIA/go-nvml").Output()
	if err != nil {
		t.Fatal(err)
	}
	header, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(out)), "pkg/nvml/nvml.h"))
	if err != nil {
		t.Fatal(err)
	}
	sources, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, file := range sources {
		source, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`"(nvml[A-Z]\w+)"`).FindAllSubmatch(source, -1) {
			n++
			if !regexp.MustCompile(`DECLDIR ` + string(m[1]) + `\(`).Match(header) {
				t.Errorf("%s: nvml.h has no function %s", file, m[1])
			}
		}
	}
	if n < 40 {
		t.Errorf("found %d names only", n)
	}
}
