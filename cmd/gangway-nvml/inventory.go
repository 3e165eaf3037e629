//go:build cgo

package main

import (
	"fmt"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	report "github.com/gangway-hpc/gangway/hooks/nvml"
)

// inventory says which GPUs there are.
func (l *library) inventory(uuids []string) (*report.Inventory, *report.Failure) {
	var inv report.Inventory
	l.at.set("read versions")
	driver, ret := l.nv.SystemGetDriverVersion()
	if ret != nvml.SUCCESS {
		return nil, refused("read driver version", ret)
	}
	version, ret := l.nv.SystemGetNVMLVersion()
	if ret != nvml.SUCCESS {
		return nil, refused("read NVML version", ret)
	}
	inv.DriverVersion, inv.NVMLVersion = text(driver), text(version)
	if l.has("nvmlSystemGetCudaDriverVersion") {
		if v, ret := l.nv.SystemGetCudaDriverVersion(); ret == nvml.SUCCESS {
			inv.CUDAVersion = fmt.Sprintf("%d.%d", v/1000, v%1000/10)
		}
	}
	gpus, f := l.gpus(uuids)
	if f != nil {
		return nil, f
	}
	inv.GPUs = make([]report.GPU, 0, len(gpus)) // an empty list is [] in JSON
	for i, g := range gpus {
		inv.GPUs = append(inv.GPUs, describe(g, i))
	}
	return &inv, nil
}

// describe asks what a GPU is. The index is where it stands in the list if it does not say.
func describe(g *gpu, index int) report.GPU {
	d := report.GPU{Index: index, UUID: g.id(), PCIBusID: g.bus()}
	if !g.lost {
		dev := g.dev
		if i := get(g, "nvmlDeviceGetIndex", "read index", dev.GetIndex); i != nil {
			d.Index = *i
		}
		d.Minor = get(g, "nvmlDeviceGetMinorNumber", "read minor number", dev.GetMinorNumber)
		d.Name = str(get(g, "nvmlDeviceGetName", "read name", dev.GetName))
		if m := get(g, "nvmlDeviceGetMemoryInfo", "read memory size", dev.GetMemoryInfo); m != nil {
			d.MemoryBytes = m.Total
		}
		d.Capability = str(get(g, "nvmlDeviceGetCudaComputeCapability", "read compute capability", func() (string, nvml.Return) {
			major, minor, ret := dev.GetCudaComputeCapability()
			return fmt.Sprintf("%d.%d", major, minor), ret
		}))
		if b := get(g, "nvmlDeviceGetBrand", "read brand", dev.GetBrand); b != nil {
			d.Brand = brand(*b)
		}
		// Cards for desktops have none.
		d.Serial = str(get(g, "nvmlDeviceGetSerial", "read serial number", dev.GetSerial))
		d.VBIOS = str(get(g, "nvmlDeviceGetVbiosVersion", "read VBIOS version", dev.GetVbiosVersion))
		d.Persistent = on(get(g, "nvmlDeviceGetPersistenceMode", "read persistence mode", dev.GetPersistenceMode))
		if m := get(g, "nvmlDeviceGetComputeMode", "read compute mode", dev.GetComputeMode); m != nil {
			d.ComputeMode = computeMode(*m)
		}
		d.MIG, d.Instances = instances(g)
	}
	d.Error = g.error()
	return d
}

// instances says whether a GPU is divided, and into what.
func instances(g *gpu) (mig string, all []report.Instance) {
	mode := get(g, "nvmlDeviceGetMigMode", "read MIG mode", func() (int, nvml.Return) {
		now, _, ret := g.dev.GetMigMode()
		return now, ret
	})
	switch {
	case mode == nil && len(g.faults) > 0:
		return "", nil
	case mode == nil:
		return "unsupported", nil
	case *mode != nvml.DEVICE_MIG_ENABLE:
		return "disabled", nil
	}
	count := get(g, "nvmlDeviceGetMaxMigDeviceCount", "count MIG instances", g.dev.GetMaxMigDeviceCount)
	if count == nil || !g.l.has("nvmlDeviceGetMigDeviceHandleByIndex") {
		return "enabled", nil
	}
	for i := range min(*count, 64) {
		dev, ret := g.dev.GetMigDeviceHandleByIndex(i)
		if ret == nvml.ERROR_NOT_FOUND || ret == nvml.ERROR_INVALID_ARGUMENT {
			continue // no instance has this number
		}
		if ret != nvml.SUCCESS {
			g.fault("open MIG instance", ret)
			continue
		}
		part := &gpu{l: g.l, dev: dev, name: fmt.Sprintf("MIG instance %d of %s", i, g.name)}
		all = append(all, describeInstance(part))
		g.faults = append(g.faults, part.faults...)
	}
	return "enabled", all
}

func describeInstance(g *gpu) report.Instance {
	d := report.Instance{UUID: g.id(), GPUInstance: -1, ComputeInstance: -1}
	if id := get(g, "nvmlDeviceGetGpuInstanceId", "read GPU instance", g.dev.GetGpuInstanceId); id != nil {
		d.GPUInstance = *id
	}
	if id := get(g, "nvmlDeviceGetComputeInstanceId", "read compute instance", g.dev.GetComputeInstanceId); id != nil {
		d.ComputeInstance = *id
	}
	if m := get(g, "nvmlDeviceGetMemoryInfo", "read memory size", g.dev.GetMemoryInfo); m != nil {
		d.MemoryBytes = new(m.Total)
	}
	if a := get(g, "nvmlDeviceGetAttributes", "read attributes", g.dev.GetAttributes); a != nil {
		d.Multiprocessors = new(int(a.MultiprocessorCount))
		d.Slices = new(int(a.GpuInstanceSliceCount))
	}
	return d
}

// brand is what NVIDIA_REQUIRE_CUDA's "brand" is compared with.
func brand(b nvml.BrandType) string {
	names := map[nvml.BrandType]string{
		nvml.BRAND_QUADRO: "quadro", nvml.BRAND_TESLA: "tesla", nvml.BRAND_NVS: "nvs", nvml.BRAND_GRID: "grid",
		nvml.BRAND_GEFORCE: "geforce", nvml.BRAND_TITAN: "titan", nvml.BRAND_QUADRO_RTX: "quadrortx",
		nvml.BRAND_NVIDIA_RTX: "nvidiartx", nvml.BRAND_NVIDIA: "nvidia", nvml.BRAND_GEFORCE_RTX: "geforcertx", nvml.BRAND_TITAN_RTX: "titanrtx",
	}
	return names[b]
}

func computeMode(m nvml.ComputeMode) string {
	switch m {
	case nvml.COMPUTEMODE_DEFAULT:
		return "default"
	case nvml.COMPUTEMODE_EXCLUSIVE_PROCESS, nvml.COMPUTEMODE_EXCLUSIVE_THREAD:
		return "exclusive-process"
	case nvml.COMPUTEMODE_PROHIBITED:
		return "prohibited"
	}
	return ""
}
