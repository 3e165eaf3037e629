// Package drm finds the GPUs and accelerators of AMD and Intel and describes them as
// devices of the Container Device Interface, so that --device amd.com/gpu=0 needs
// neither a vendor's toolkit nor a file in /etc/cdi.
//
//	found, err := drm.Discover(ctx, drm.Options{})
//	for _, spec := range found.Specs() {
//		err = registry.Add(spec, "found by gangway") // hooks/cdi
//	}
//
// Kinds are those of the vendors' own tools: amd.com/gpu has /dev/kfd and the render
// node of one GPU (or of one of its partitions); intel.com/gpu has the card and render
// nodes of /dev/dri, with their links by path; intel.com/gaudi and intel.com/npu have
// the nodes of /dev/accel. A device is called by its index in the order of PCI
// addresses, by its PCI address, and AMD's also GPU-<unique id> as ROCm says it; all is
// all of a kind.
//
// Only sysfs and /dev are read, and no node is opened: nothing hangs with a sick device.
// All of it may be used by any number of goroutines.
//
// The package says nothing of libraries: those of ROCm and oneAPI are the image's. It
// does not choose devices, and knows no load, health or topology beyond the NUMA node.
package drm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Options say where the machine is. The zero value is this one.
type Options struct {
	Sys string // where sysfs is; "" is /sys
	Dev string // where nodes are; "" is /dev
}

// Kinds of devices.
const (
	AMD   = "amd.com/gpu"
	Intel = "intel.com/gpu"
	Gaudi = "intel.com/gaudi"
	NPU   = "intel.com/npu"
)

// Device is one GPU, partition of a GPU, or accelerator.
type Device struct {
	Kind     string // AMD, Intel, Gaudi or NPU
	Index    int    // among those of its kind, from 0
	PCI      string // 0000:03:00.0; that of the GPU for a partition
	NUMA     int    // node; -1 is unknown
	Driver   string // amdgpu, i915, xe, habanalabs, intel_vpu
	UniqueID uint64 // AMD's; 0 is unknown. Partitions of a GPU have the same
	Nodes    []Node
}

// Node is a device node of a device.
type Node struct {
	Path string // in the container
	Host string // on the host
}

// Found is what a machine has.
type Found struct {
	Devices  []Device // by kind and index
	Warnings []string // what is there and cannot be used, a line each, with why
}

// Discover reads sysfs. A machine without such devices, or without sysfs, has none; the
// errors are those of reading a directory that is there, and the context's.
func Discover(ctx context.Context, o Options) (*Found, error) {
	s := &scan{sys: cmp.Or(o.Sys, "/sys"), dev: cmp.Or(o.Dev, "/dev"), byKey: map[string]*Device{}}
	for _, class := range []string{"drm", "accel"} {
		if err := s.class(ctx, class); err != nil {
			return nil, fmt.Errorf("find devices of %s: %w", class, err)
		}
	}
	if err := s.topology(ctx); err != nil {
		return nil, fmt.Errorf("find GPUs of AMD: %w", err)
	}
	return s.result(), nil
}

// scan is one Discover.
type scan struct {
	sys, dev string
	byKey    map[string]*Device // by kind and address; a partition by its platform device
	warnings []string
}

// kinds are the drivers we know, as sysfs calls them.
var kinds = map[string]string{
	"amdgpu": AMD, "i915": Intel, "xe": Intel, "habanalabs": Gaudi, "intel_vpu": NPU,
}

// class reads the nodes of /sys/class/drm or /sys/class/accel.
func (s *scan) class(ctx context.Context, class string) error {
	dir := filepath.Join(s.sys, "class", class)
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, e := range entries {
		if err := ctx.Err(); err != nil {
			return err
		}
		if !nodeName(class, e.Name()) {
			continue // a connector, the version
		}
		device, err := filepath.EvalSymlinks(filepath.Join(dir, e.Name(), "device"))
		if err != nil {
			continue // a virtual one (vgem, vkms), or just unplugged
		}
		s.node(class, e.Name(), device)
	}
	return nil
}

// nodeName says whether the name in a class is that of a device node: card0, renderD128,
// accel0, accel_controlD0.
func nodeName(class, name string) bool {
	prefixes := []string{"card", "renderD"}
	if class == "accel" {
		prefixes = []string{"accel", "accel_controlD"}
	}
	return slices.ContainsFunc(prefixes, func(p string) bool {
		number, found := strings.CutPrefix(name, p)
		return found && number != "" && strings.Trim(number, "0123456789") == ""
	})
}

// node enters a node that belongs to a device in sysfs.
func (s *scan) node(class, name, device string) {
	key := filepath.Base(device)
	driver, kind := driverOf(device), ""
	if strings.HasPrefix(key, "amdgpu_xcp") { // a partition: a platform device whose GPU the topology knows
		driver, kind = "amdgpu", AMD
	} else if isPCI(key) {
		kind = kinds[driver]
	}
	if kind == "" {
		return
	}
	d := s.byKey[kind+" "+key]
	if d == nil {
		d = &Device{Kind: kind, Driver: driver, NUMA: numaOf(device)}
		if isPCI(key) {
			d.PCI = key
		}
		s.byKey[kind+" "+key] = d
	}
	sub := "accel"
	if class == "drm" {
		sub = "dri"
	}
	d.Nodes = append(d.Nodes, Node{Path: "/dev/" + sub + "/" + name, Host: filepath.Join(s.dev, sub, name)})
}

// driverOf is the name of the driver that a device is bound to, "" if to none.
func driverOf(device string) string {
	link, err := os.Readlink(filepath.Join(device, "driver"))
	if err != nil {
		return ""
	}
	return filepath.Base(link)
}

func numaOf(device string) int {
	n, err := strconv.Atoi(readLine(filepath.Join(device, "numa_node")))
	if err != nil || n < 0 {
		return -1
	}
	return n
}

// readLine reads a small file of sysfs; one that cannot be read is empty.
func readLine(name string) string {
	f, err := os.Open(name)
	if err != nil {
		return ""
	}
	defer func() { _ = f.Close() }()
	buf := make([]byte, 256)
	n, _ := f.Read(buf)
	return strings.TrimSpace(string(buf[:n]))
}

// isPCI says whether name is a PCI address: 0000:03:00.0, with a domain of up to 8 digits.
func isPCI(name string) bool {
	domain, rest, ok := strings.Cut(name, ":")
	bus, rest, ok2 := strings.Cut(rest, ":")
	slot, function, ok3 := strings.Cut(rest, ".")
	return ok && ok2 && ok3 && len(domain) >= 4 && len(domain) <= 8 && len(bus) == 2 && len(slot) == 2 && len(function) == 1 &&
		isHex(domain+bus+slot+function)
}

func isHex(s string) bool { return strings.Trim(s, "0123456789abcdef") == "" }
