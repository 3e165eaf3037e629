//go:build cgo

package main

import (
	"fmt"
	"math/bits"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	report "github.com/gangway-hpc/gangway/hooks/nvml"
)

// topology says how GPUs reach each other.
func (l *library) topology(uuids []string) (*report.Topology, *report.Failure) {
	gpus, f := l.gpus(uuids)
	if f != nil {
		return nil, f
	}
	t := report.Topology{GPUs: make([]report.Place, 0, len(gpus)), Paths: make([][]string, 0, len(gpus))}
	byBus := map[string]string{}
	for _, g := range gpus {
		p := place(g)
		byBus[p.PCIBusID] = p.UUID
		t.GPUs = append(t.GPUs, p)
	}
	for i := range t.GPUs {
		for j, link := range t.GPUs[i].NVLinks {
			if link.Peer == "gpu" {
				t.GPUs[i].NVLinks[j].PeerID = byBus[link.PeerBus]
			}
		}
	}
	for i, a := range gpus {
		row := make([]string, 0, len(gpus))
		for j, b := range gpus {
			row = append(row, path(a, b, &t.GPUs[i], &t.GPUs[j]))
		}
		t.Paths = append(t.Paths, row)
	}
	for i, g := range gpus {
		t.GPUs[i].Error = g.error()
	}
	return &t, nil
}

// The largest machines that Linux runs on.
const (
	maxCPUs  = 8192
	maxNodes = 1024
)

// place asks where a GPU is.
func place(g *gpu) report.Place {
	p := report.Place{UUID: g.id(), PCIBusID: g.bus()}
	if g.lost {
		return p
	}
	dev := g.dev
	if set := get(g, "nvmlDeviceGetMemoryAffinity", "read memory affinity", func() ([]uint, nvml.Return) {
		return dev.GetMemoryAffinity(maxNodes/8, nvml.AFFINITY_SCOPE_NODE)
	}); set != nil {
		p.NUMANodes = ranges(*set)
	}
	// go-nvml takes bytes for the bits that it asks for, hence the 8.
	if set := get(g, "nvmlDeviceGetCpuAffinity", "read CPU affinity", with(dev.GetCpuAffinity, maxCPUs/8)); set != nil {
		p.CPUs = ranges(*set)
	}
	pcie := report.PCIe{
		Generation:    get(g, "nvmlDeviceGetCurrPcieLinkGeneration", "read PCIe generation", dev.GetCurrPcieLinkGeneration),
		MaxGeneration: get(g, "nvmlDeviceGetMaxPcieLinkGeneration", "read PCIe generation", dev.GetMaxPcieLinkGeneration),
		Width:         get(g, "nvmlDeviceGetCurrPcieLinkWidth", "read PCIe width", dev.GetCurrPcieLinkWidth),
		MaxWidth:      get(g, "nvmlDeviceGetMaxPcieLinkWidth", "read PCIe width", dev.GetMaxPcieLinkWidth),
	}
	if pcie != (report.PCIe{}) {
		p.PCIe = &pcie
	}
	p.NVLinks = links(g)
	p.Fabric = fabric(g)
	return p
}

// links asks what the NVLinks of a GPU lead to.
func links(g *gpu) []report.NVLink {
	var all []report.NVLink
	for i := range nvml.NVLINK_MAX_LINKS {
		state, ok := linkState(g, i)
		if !ok {
			break
		}
		link := report.NVLink{Link: i, Active: state}
		if state {
			link.Version = num[int](get(g, "nvmlDeviceGetNvLinkVersion", "read NVLink version", with(g.dev.GetNvLinkVersion, i)))
			if t := get(g, "nvmlDeviceGetNvLinkRemoteDeviceType", "read NVLink peer", with(g.dev.GetNvLinkRemoteDeviceType, i)); t != nil {
				link.Peer = peer(*t)
			}
			if pci := get(g, "nvmlDeviceGetNvLinkRemotePciInfo", "read NVLink peer", with(g.dev.GetNvLinkRemotePciInfo, i)); pci != nil {
				link.PeerBus = busID(*pci)
			}
		}
		all = append(all, link)
	}
	return all
}

// linkState says whether a link is up, and whether there is one: the first that there is
// not ends the list, as an invalid argument or as one that is not supported.
func linkState(g *gpu, link int) (active, there bool) {
	state := get(g, "nvmlDeviceGetNvLinkState", "read NVLink state", func() (nvml.EnableState, nvml.Return) {
		s, ret := g.dev.GetNvLinkState(link)
		if ret == nvml.ERROR_INVALID_ARGUMENT {
			ret = nvml.ERROR_NOT_SUPPORTED
		}
		return s, ret
	})
	return state != nil && *state == nvml.FEATURE_ENABLED, state != nil
}

func peer(t nvml.IntNvLinkDeviceType) string {
	switch t {
	case nvml.NVLINK_DEVICE_TYPE_GPU:
		return "gpu"
	case nvml.NVLINK_DEVICE_TYPE_SWITCH:
		return "switch"
	case nvml.NVLINK_DEVICE_TYPE_IBMNPU:
		return "npu"
	}
	return ""
}

// fabric asks for the NVLink domain, which spans nodes.
func fabric(g *gpu) *report.Fabric {
	info := get(g, "nvmlDeviceGetGpuFabricInfo", "read fabric", g.dev.GetGpuFabricInfo)
	if info == nil || info.State == nvml.GPU_FABRIC_STATE_NOT_SUPPORTED {
		return nil
	}
	f := report.Fabric{Clique: info.CliqueId}
	switch info.State {
	case nvml.GPU_FABRIC_STATE_NOT_STARTED:
		f.State = "not-started"
	case nvml.GPU_FABRIC_STATE_IN_PROGRESS:
		f.State = "in-progress"
	case nvml.GPU_FABRIC_STATE_COMPLETED:
		f.State = "completed"
		f.Status = "ok"
		if ret := nvml.Return(info.Status); ret != nvml.SUCCESS {
			f.Status = said(ret)
		}
	}
	if u := info.ClusterUuid; u != [16]uint8{} {
		f.Cluster = fmt.Sprintf("%x-%x-%x-%x-%x", u[0:4], u[4:6], u[6:8], u[8:10], u[10:16])
	}
	return &f
}

// path says how a reaches b, in nvidia-smi's words.
func path(a, b *gpu, at, bt *report.Place) string {
	if a == b {
		return "X"
	}
	direct := 0
	for _, link := range at.NVLinks {
		if link.Active && link.Peer == "gpu" && link.PeerBus == bt.PCIBusID {
			direct++
		}
	}
	if direct == 0 {
		direct = min(switched(at), switched(bt))
	}
	if direct > 0 {
		return fmt.Sprintf("NV%d", direct)
	}
	if a.lost || b.lost {
		return ""
	}
	level := get(a, "nvmlDeviceGetTopologyCommonAncestor", "read topology", with(a.dev.GetTopologyCommonAncestor, b.dev))
	if level == nil {
		return ""
	}
	switch *level {
	case nvml.TOPOLOGY_INTERNAL, nvml.TOPOLOGY_SINGLE:
		return "PIX"
	case nvml.TOPOLOGY_MULTIPLE:
		return "PXB"
	case nvml.TOPOLOGY_HOSTBRIDGE:
		return "PHB"
	case nvml.TOPOLOGY_NODE:
		return "NODE"
	case nvml.TOPOLOGY_SYSTEM:
		return "SYS"
	}
	return ""
}

// switched counts the links to NVSwitches, all of which reach all GPUs.
func switched(p *report.Place) (n int) {
	for _, link := range p.NVLinks {
		if link.Active && link.Peer == "switch" {
			n++
		}
	}
	return n
}

// ranges writes a set of bits as lists of the kernel do: "0-3,8".
func ranges(set []uint) string {
	var b strings.Builder
	first, last := -1, -2
	flush := func() {
		if first < 0 {
			return
		}
		if b.Len() > 0 {
			b.WriteByte(',')
		}
		fmt.Fprint(&b, first)
		if last > first {
			fmt.Fprintf(&b, "-%d", last)
		}
	}
	for i, word := range set {
		for ; word != 0; word &= word - 1 {
			n := i*bits.UintSize + bits.TrailingZeros(word)
			if n != last+1 {
				flush()
				first = n
			}
			last = n
		}
	}
	flush()
	return b.String()
}
