//go:build cgo

package main

import (
	"fmt"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// gpu is one GPU or MIG instance that is asked for facts.
type gpu struct {
	l      *library
	dev    nvml.Device
	name   string // how it is called in steps
	uuid   string // that it was asked for by
	lost   bool   // it does not answer any more
	faults []string
}

// get asks for one fact by NVML's function symbol. It is nil if the library has no such
// function, the GPU no such fact, or the answer was an error, which is kept.
func get[T any](g *gpu, symbol, what string, ask func() (T, nvml.Return)) *T {
	if g.lost || !g.l.has(symbol) {
		return nil
	}
	g.l.at.set(what + " of " + g.name)
	v, ret := ask()
	switch ret {
	case nvml.SUCCESS:
		return &v
	case nvml.ERROR_NOT_SUPPORTED, nvml.ERROR_FUNCTION_NOT_FOUND, nvml.ERROR_NOT_FOUND,
		nvml.ERROR_NO_DATA, nvml.ERROR_ARGUMENT_VERSION_MISMATCH, nvml.ERROR_DEPRECATED:
		return nil
	case nvml.ERROR_GPU_IS_LOST:
		g.lost = true
	}
	g.fault(what, ret)
	return nil
}

// with binds the argument of a question.
func with[A, T any](ask func(A) (T, nvml.Return), arg A) func() (T, nvml.Return) {
	return func() (T, nvml.Return) { return ask(arg) }
}

// maxFaults is how many are told of one GPU.
const maxFaults = 8

func (g *gpu) fault(what string, ret nvml.Return) {
	if len(g.faults) < maxFaults {
		g.faults = append(g.faults, what+": "+said(ret))
	}
}

// error is all that went wrong with this GPU, in one line.
func (g *gpu) error() string { return strings.Join(g.faults, "; ") }

// UUID asks for the UUID.
func (g *gpu) UUID() (string, nvml.Return) { return g.dev.GetUUID() }

// id is the UUID, as it was asked for or as the GPU says.
func (g *gpu) id() string {
	if g.uuid == "" && !g.lost {
		g.uuid = str(get(g, "nvmlDeviceGetUUID", "read UUID", g.UUID))
	}
	return g.uuid
}

// bus is the PCI address as sysfs spells it. NVML writes the domain with eight digits, sysfs
// with four; GPUs are function 0.
func (g *gpu) bus() string {
	if g.lost {
		return ""
	}
	if pci := get(g, "nvmlDeviceGetPciInfo", "read PCI address", g.dev.GetPciInfo); pci != nil {
		return busID(*pci)
	}
	return ""
}

func busID(pci nvml.PciInfo) string {
	return fmt.Sprintf("%04x:%02x:%02x.0", pci.Domain, pci.Bus, pci.Device)
}

// str is the text of a fact, "" for none.
func str(s *string) string {
	if s == nil {
		return ""
	}
	return text(*s)
}

// num is a fact as another type of number.
func num[T, F ~int | ~uint | ~int32 | ~uint32 | ~int64 | ~uint64](v *F) *T {
	if v == nil {
		return nil
	}
	return new(T(*v))
}

// on says whether a fact is "enabled".
func on(v *nvml.EnableState) *bool {
	if v == nil {
		return nil
	}
	return new(*v == nvml.FEATURE_ENABLED)
}
