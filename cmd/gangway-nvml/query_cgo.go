//go:build cgo

package main

import (
	"errors"
	"fmt"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gangway-hpc/gangway/internal/fault"
)

// query asks NVML. It may hang for as long as the driver does.
func query() (*Inventory, error) {
	if ret := nvml.Init(); ret == nvml.ERROR_LIBRARY_NOT_FOUND {
		return nil, &fault.Error{
			What:  errors.New("load libnvidia-ml.so.1: not found"),
			Cause: "there is no NVIDIA driver here, or the loader does not find its libraries",
			Hint:  "install the driver, or put the directory of libnvidia-ml.so.1 into LD_LIBRARY_PATH",
		}
	} else if ret != nvml.SUCCESS {
		return nil, failed("initialise NVML", ret)
	}
	defer nvml.Shutdown()

	var inv Inventory
	var ret nvml.Return
	if inv.DriverVersion, ret = nvml.SystemGetDriverVersion(); ret != nvml.SUCCESS {
		return nil, failed("read driver version", ret)
	}
	if inv.NVMLVersion, ret = nvml.SystemGetNVMLVersion(); ret != nvml.SUCCESS {
		return nil, failed("read NVML version", ret)
	}
	count, ret := nvml.DeviceGetCount()
	if ret != nvml.SUCCESS {
		return nil, failed("count GPUs", ret)
	}
	inv.GPUs = make([]GPU, 0, count) // an empty list is [] in JSON
	for i := range count {
		gpu := GPU{Index: i}
		if err := describe(&gpu); err != nil {
			// One lost GPU must not hide the other seven.
			gpu.Error = err.Error()
		}
		inv.GPUs = append(inv.GPUs, gpu)
	}
	return &inv, nil
}

// describe fills in what the GPU of g.Index says, up to the first error.
func describe(g *GPU) error {
	dev, ret := nvml.DeviceGetHandleByIndex(g.Index)
	if ret != nvml.SUCCESS {
		return failed("open GPU", ret)
	}
	pci, ret := dev.GetPciInfo()
	if ret != nvml.SUCCESS {
		return failed("read PCI address", ret)
	}
	// NVML writes the domain with eight digits, sysfs with four; GPUs are
	// function 0.
	g.PCIBusID = fmt.Sprintf("%04x:%02x:%02x.0", pci.Domain, pci.Bus, pci.Device)
	if g.UUID, ret = dev.GetUUID(); ret != nvml.SUCCESS {
		return failed("read UUID", ret)
	}
	if g.Name, ret = dev.GetName(); ret != nvml.SUCCESS {
		return failed("read name", ret)
	}
	memory, ret := dev.GetMemoryInfo()
	if ret != nvml.SUCCESS {
		return failed("read memory size", ret)
	}
	g.MemoryBytes = memory.Total
	switch mode, _, ret := dev.GetMigMode(); {
	case ret == nvml.ERROR_NOT_SUPPORTED:
		g.MIG = "unsupported"
	case ret != nvml.SUCCESS:
		return failed("read MIG mode", ret)
	case mode == nvml.DEVICE_MIG_ENABLE:
		g.MIG = "enabled"
	default:
		g.MIG = "disabled"
	}
	// Cards for desktops have none.
	if g.Serial, ret = dev.GetSerial(); ret != nvml.SUCCESS && ret != nvml.ERROR_NOT_SUPPORTED {
		return failed("read serial number", ret)
	}
	return nil
}

// failed makes an error of an answer of NVML.
func failed(what string, ret nvml.Return) error {
	return fmt.Errorf("%s: %w", what, errors.New(nvml.ErrorString(ret)))
}
