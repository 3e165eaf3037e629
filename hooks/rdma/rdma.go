// Package rdma finds the RDMA adapters of a machine (HCAs: Mellanox and every other
// with a verbs device, EFA among them, and Cassini, CXI), chooses those that are near
// the given GPUs, and says how a container gets them and no others.
//
// First call: [Discover]. Then [Host.Choose] with what was asked for and the GPUs,
// [Host.Edits] for the container, [NCCL] for variables that the probe proves right, and
// [Host.Memlock] for the one limit that RDMA dies of. [Host.Specs] gives all devices
// in CDI's own form, for listing and for "--device".
//
// Discovery reads sysfs and nothing else: no verbs library, no netlink, no program. A
// verbs device belongs to the adapter that its own "ibdev" file names; lists are never
// compared by position. All functions may be called by any number of goroutines, and a
// [Host] is not changed once it is made.
//
// The package does not load modules, does not bring ports up, and injects no host
// libraries: an image needs its own rdma-core (or libfabric), or a CDI file of the
// admin that mounts them. Hiding is of names: what keeps a container from an adapter is
// that it has no device node; the directories below /sys/devices stay readable.
package rdma

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Fabric is the kind of network that an adapter speaks.
type Fabric string

// The fabrics. One adapter may have ports of two; it counts as what its first port is.
const (
	InfiniBand Fabric = "infiniband"
	RoCE       Fabric = "roce"     // RDMA over Ethernet; iWARP too, whose sysfs is alike
	EFA        Fabric = "efa"      // Amazon's, over verbs
	CXI        Fabric = "cxi"      // HPE Slingshot's, not over verbs
	Software   Fabric = "software" // rxe and siw: no hardware behind it
)

// Port is a port of an adapter.
type Port struct {
	Number int
	Active bool
	State  string // as sysfs has it: "4: ACTIVE"
	Link   string // link_layer: InfiniBand, Ethernet
}

// HCA is an RDMA adapter.
type HCA struct {
	Name   string // mlx5_0, efa_0, cxi0
	Fabric Fabric
	Driver string // kernel driver: mlx5_core; empty: none
	PCI    string // address, 0000:17:00.0; empty: not on PCI
	Path   string // of the PCI device below SYS/devices: "pci0000:15/0000:15:01.0/..."; its parents
	NUMA   int    // node; -1: unknown
	Parent string // PCI address of the physical function; empty: this is one
	Ports  []Port
	Nodes  []Node   // for data: uverbs, cxi
	Admin  []Node   // for management of the subnet: umad, issm; only if Options.Admin
	class  []string // entries of SYS/class that are its own, "infiniband/mlx5_0"
}

// Active says whether a port can carry traffic. CXI has none in sysfs's verbs tree; it
// counts as active.
func (a HCA) Active() bool {
	return a.Fabric == CXI || slices.ContainsFunc(a.Ports, func(p Port) bool { return p.Active })
}

// Node is a device node.
type Node struct {
	Name         string // below /dev: infiniband/uverbs0
	Major, Minor int64
}

// Host is what Discover found.
type Host struct {
	HCAs    []HCA    // by name, mlx5_2 before mlx5_10
	CM      *Node    // infiniband/rdma_cm; nil: there is none
	Notes   []string // what was left out and why, a line each
	opts    Options
	classes []string // those of hidden that the kernel has; none where there is no adapter
}

// Options say where things are; the zero value is this machine.
type Options struct {
	Sys  string // sysfs; empty: /sys
	Dev  string // device nodes; empty: /dev
	Proc string // procfs; empty: /proc
	Run  string // where daemons keep their files; empty: /var/run

	Admin bool // management nodes too, for root's own tools
}

func (o Options) filled() Options {
	fill := func(s *string, value string) {
		if *s == "" {
			*s = value
		}
	}
	fill(&o.Sys, "/sys")
	fill(&o.Dev, "/dev")
	fill(&o.Proc, "/proc")
	fill(&o.Run, "/var/run")
	return o
}

// hidden are the directories of SYS/class in which a container sees only what it was
// given. Newer kernels have no infiniband_cm.
func hidden() []string {
	return []string{"infiniband", "infiniband_verbs", "infiniband_mad", "infiniband_cm", "cxi", "cxi_user"}
}

// Discover looks for adapters. A machine without any is no error. An adapter that
// cannot be used, because its device node is missing or is another device's, is left
// out with a note; an error is only what keeps sysfs from being read.
func Discover(ctx context.Context, o Options) (*Host, error) {
	h := &Host{opts: o.filled()}
	names, err := h.list("class", "infiniband")
	if err != nil {
		return nil, err
	}
	byName := map[string]*HCA{}
	for _, name := range names {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		byName[name] = h.verbs(name)
	}
	if err := h.attach(byName); err != nil {
		return nil, err
	}
	if err := h.cxi(byName); err != nil {
		return nil, err
	}
	if len(byName) > 0 {
		h.classes = slices.DeleteFunc(hidden(), func(class string) bool {
			_, err := os.Stat(h.sys("class", class))
			return err != nil
		})
	}
	for _, a := range byName {
		if len(a.Nodes) == 0 {
			h.note("%s is left out: the kernel gives it no verbs device (is the module ib_uverbs loaded?)", a.Name)
			continue
		}
		if missing := h.checkNodes(a); missing != "" {
			h.note("%s is left out: %s", a.Name, missing)
			continue
		}
		h.HCAs = append(h.HCAs, *a)
	}
	slices.SortFunc(h.HCAs, func(a, b HCA) int { return natural(a.Name, b.Name) })
	slices.Sort(h.Notes)
	h.findCM()
	return h, nil
}

// verbs reads what SYS/class/infiniband says of one adapter.
func (h *Host) verbs(name string) *HCA {
	dir := h.sys("class", "infiniband", name)
	a := &HCA{Name: name, NUMA: -1, class: []string{"infiniband/" + name}}
	h.readPCI(a, dir, "/infiniband/")
	ports, err := h.list("class", "infiniband", name, "ports")
	if err != nil {
		h.note("%s: %v", name, err)
	}
	for _, port := range ports {
		if p, ok := readPort(filepath.Join(dir, "ports", port), port); ok {
			a.Ports = append(a.Ports, p)
		}
	}
	slices.SortFunc(a.Ports, func(a, b Port) int { return a.Number - b.Number })
	switch {
	case a.Driver == "efa":
		a.Fabric = EFA
	case a.PCI == "":
		a.Fabric = Software
	case len(a.Ports) > 0 && a.Ports[0].Link == "Ethernet":
		a.Fabric = RoCE
	default:
		a.Fabric = InfiniBand
	}
	return a
}

// attach finds the device nodes of the adapters: each says itself whose it is.
func (h *Host) attach(byName map[string]*HCA) error {
	classes := []string{"infiniband_verbs"}
	if h.opts.Admin {
		classes = append(classes, "infiniband_mad")
	}
	for _, class := range classes {
		entries, err := h.list("class", class)
		if err != nil {
			return err
		}
		for _, entry := range entries {
			dir := h.sys("class", class, entry)
			owner, err := readLine(filepath.Join(dir, "ibdev"))
			if err != nil {
				continue // abi_version and the like
			}
			a := byName[owner]
			if a == nil {
				h.note("%s says that it belongs to %q, which is no adapter", entry, owner)
				continue
			}
			node, err := readNode(dir, "infiniband/"+entry)
			if err != nil {
				h.note("%s of %s: %v", entry, owner, err)
				continue
			}
			a.class = append(a.class, class+"/"+entry)
			if class == "infiniband_verbs" {
				a.Nodes = append(a.Nodes, node)
			} else {
				a.Admin = append(a.Admin, node)
			}
		}
	}
	return nil
}

// cxi adds the adapters of Slingshot, whose class is their own.
func (h *Host) cxi(byName map[string]*HCA) error {
	names, err := h.list("class", "cxi_user")
	if err != nil {
		return err
	}
	for _, name := range names {
		dir := h.sys("class", "cxi_user", name)
		node, err := readNode(dir, name)
		if err != nil {
			h.note("%s: %v", name, err)
			continue
		}
		a := &HCA{Name: name, Fabric: CXI, NUMA: -1, Nodes: []Node{node}, class: []string{"cxi_user/" + name}}
		if _, err := os.Lstat(h.sys("class", "cxi", name)); err == nil {
			a.class = append(a.class, "cxi/"+name)
		}
		h.readPCI(a, dir, "/cxi_user/")
		if byName[name] == nil {
			byName[name] = a
		}
	}
	return nil
}

// checkNodes says what is wrong with an adapter's device nodes; empty: nothing.
// Management nodes that are not there are dropped: hosts hide them from users.
func (h *Host) checkNodes(a *HCA) string {
	for _, n := range a.Nodes {
		if err := h.checkNode(n); err != nil {
			return err.Error()
		}
	}
	a.Admin = slices.DeleteFunc(a.Admin, func(n Node) bool { return h.checkNode(n) != nil })
	return ""
}

// findCM looks for the connection manager, which belongs to no adapter.
func (h *Host) findCM() {
	dir := h.sys("class", "misc", "rdma_cm")
	node, err := readNode(dir, "infiniband/rdma_cm")
	if err == nil {
		err = h.checkNode(node)
	}
	needed := slices.ContainsFunc(h.HCAs, func(a HCA) bool { return a.Fabric == InfiniBand || a.Fabric == RoCE })
	if err == nil {
		h.CM = &node
	} else if needed {
		h.note("rdma_cm is missing (%v): programs that connect by addresses (UCX, NVMe-oF) will not find a way; load it: modprobe rdma_ucm", err)
	}
}

func (h *Host) note(format string, args ...any) {
	h.Notes = append(h.Notes, fmt.Sprintf(format, args...))
}

// sys is a path below sysfs.
func (h *Host) sys(parts ...string) string {
	return filepath.Join(append([]string{h.opts.Sys}, parts...)...)
}

// maxEntries bounds a directory: a machine with 256 virtual functions on each of 16
// ports has 4096.
const maxEntries = 8192

// list returns the names in a directory of sysfs; one that is not there is empty.
func (h *Host) list(parts ...string) ([]string, error) {
	dir := h.sys(parts...)
	f, err := os.Open(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	} else if err != nil {
		return nil, fmt.Errorf("look for RDMA adapters: %w", err)
	}
	defer f.Close()
	names, err := f.Readdirnames(maxEntries + 1)
	if len(names) > maxEntries {
		return nil, fmt.Errorf("look for RDMA adapters: %s has more than %d entries", dir, maxEntries)
	}
	if err != nil && len(names) == 0 && !isEOF(err) {
		return nil, fmt.Errorf("look for RDMA adapters: %w", err)
	}
	slices.SortFunc(names, natural)
	return slices.DeleteFunc(names, func(name string) bool { return strings.HasPrefix(name, ".") }), nil
}
