package fakedriver

import (
	"fmt"
	"path/filepath"
	"strconv"
	"testing"
)

// The major numbers that the tree's /proc/devices lists.
const (
	majorGPU    = 195
	majorUVM    = 511
	majorCaps   = 237
	majorIMEX   = 235
	majorGDR    = 236
	majorGDS    = 234
	majorDRM    = 226
	majorSwitch = 233
)

// proc makes /proc/driver/nvidia and what else of /proc the hooks read.
func (t *Tree) proc(tb testing.TB, o Options) {
	p := func(name, content string) { t.put(tb, filepath.Join(t.Proc, name), content) }
	p("sys/kernel/random/boot_id", BootID+"\n")
	p("devices", fmt.Sprintf("Character devices:\n  1 mem\n%d nvidia\n%d nvidia-nvswitch\n%d nvidia-fs\n%d nvidia-caps-imex-channels\n"+
		"%d gdrdrv\n%d nvidia-caps\n%d nvidia-uvm\n\nBlock devices:\n254 virtblk\n",
		majorGPU, majorSwitch, majorGDS, majorIMEX, majorGDR, majorCaps, majorUVM))
	p("driver/nvidia/version", "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  "+o.Version+
		"  Release Build  (dvs-builder@U22)  Tue Sep 23 10:11:16 UTC 2025\nGCC version:  gcc version 12.2.0 (Debian 12.2.0-14+deb12u1)\n")
	p("driver/nvidia/params", "ResmanDebugLevel: 4294967295\nModifyDeviceFiles: 1\nDeviceFileUID: 0\nDeviceFileGID: 0\nDeviceFileMode: 438\n")
	p("driver/nvidia/capabilities/mig/config", access(1))
	p("driver/nvidia/capabilities/mig/monitor", access(2))
	if o.Extras {
		p("driver/nvidia/capabilities/fabric-imex-mgmt", access(3))
	}
	minor := 10
	for i, g := range t.GPUs {
		p("driver/nvidia/gpus/"+g.Bus+"/information", fmt.Sprintf("Model: \t\t %s\nIRQ:   \t\t %d\nGPU UUID: \t %s\nVideo BIOS: \t 96.00.61.00.01\n"+
			"Bus Type: \t PCIe\nDMA Size: \t 52 bits\nDMA Mask: \t 0xfffffffffffff\nBus Location: \t %s\nDevice Minor: \t %d\nGPU Firmware: \t %s\nGPU Excluded:\t No\n",
			o.Model, 100+i, g.UUID, g.Bus, g.Minor, o.Version))
		for n := range o.MIG {
			gi := fmt.Sprintf("driver/nvidia/capabilities/gpu%d/mig/gi%d/", g.Minor, n+1)
			p(gi+"access", access(minor))
			p(gi+"ci0/access", access(minor+1))
			minor += 2
		}
	}
}

// access is the text of a capability's file.
func access(minor int) string {
	return fmt.Sprintf("DeviceFileMinor: %d\nDeviceFileMode: 292\nDeviceFileModify: 1\n", minor)
}

// devices makes the nodes in /dev.
func (t *Tree) devices(tb testing.TB, o Options) {
	node := func(name string, major, minor uint32) { t.node(tb, name, major, minor, o.Null) }
	node("nvidiactl", majorGPU, 255)
	node("nvidia-modeset", majorGPU, 254)
	node("nvidia-uvm", majorUVM, 0)
	node("nvidia-uvm-tools", majorUVM, 1)
	node("nvidia-caps/nvidia-cap1", majorCaps, 1)
	node("nvidia-caps/nvidia-cap2", majorCaps, 2)
	for i, g := range t.GPUs {
		node("nvidia"+strconv.Itoa(g.Minor), majorGPU, uint32(g.Minor))
		node("dri/card"+strconv.Itoa(i), majorDRM, uint32(i))
		node("dri/renderD"+strconv.Itoa(128+i), majorDRM, uint32(128+i))
		for n := range 2 * o.MIG {
			minor := 10 + 2*o.MIG*i + n
			node("nvidia-caps/nvidia-cap"+strconv.Itoa(minor), majorCaps, uint32(minor))
		}
	}
	if o.Extras {
		node("nvidia-caps-imex-channels/channel0", majorIMEX, 0)
		node("nvidia-caps-imex-channels/channel7", majorIMEX, 7)
		node("gdrdrv", majorGDR, 0)
		node("nvidia-fs0", majorGDS, 0)
		node("nvidia-fs1", majorGDS, 1)
		node("nvidia-nvswitchctl", majorSwitch, 255)
		node("nvidia-nvswitch0", majorSwitch, 0)
	}
}

// sysfs makes the PCI devices: two GPUs share a bridge, the first half of them is
// on NUMA node 0.
func (t *Tree) sysfs(tb testing.TB) {
	for i, g := range t.GPUs {
		numa := 0
		if i >= (len(t.GPUs)+1)/2 {
			numa = 1
		}
		below := fmt.Sprintf("devices/pci0000:%02x/0000:%02x:01.%d/%s", numa, numa, i/2, g.Bus)
		s := func(name, content string) { t.put(tb, filepath.Join(t.Sys, below, name), content+"\n") }
		s("vendor", "0x10de")
		s("device", "0x2330")
		s("class", "0x030200")
		s("numa_node", strconv.Itoa(numa))
		s("local_cpulist", fmt.Sprintf("%d-%d", 32*numa, 32*numa+31))
		s(fmt.Sprintf("drm/card%d/dev", i), fmt.Sprintf("%d:%d", majorDRM, i))
		s(fmt.Sprintf("drm/renderD%d/dev", 128+i), fmt.Sprintf("%d:%d", majorDRM, 128+i))
		t.link(tb, "../../../"+below, filepath.Join(t.Sys, "bus/pci/devices", g.Bus))
	}
	t.put(tb, filepath.Join(t.Sys, "module/nvidia/version"), t.Version+"\n")
}
