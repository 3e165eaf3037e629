package drm

import (
	"fmt"
	"maps"
	"slices"
	"strconv"

	specs "tags.cncf.io/container-device-interface/specs-go"
)

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// Names are all that a device is called by: its index first.
func (d *Device) Names() []string {
	names := []string{strconv.Itoa(d.Index)}
	if d.PCI != "" {
		names = append(names, d.PCI)
	}
	if d.UniqueID != 0 {
		names = append(names, fmt.Sprintf("GPU-%016x", d.UniqueID))
	}
	return names
}

// Specs returns a specification for each kind that the machine has. A name that several
// devices have, as partitions have their GPU's address, is all of them. Annotations
// gangway/pci and gangway/numa say where a device is.
func (f *Found) Specs() []*specs.Spec {
	var list []*specs.Spec
	byKind := map[string]*builder{}
	for i := range f.Devices {
		d := &f.Devices[i]
		b := byKind[d.Kind]
		if b == nil {
			b = &builder{spec: &specs.Spec{Version: "0.6.0", Kind: d.Kind}, at: map[string]int{}}
			byKind[d.Kind] = b
			list = append(list, b.spec)
		}
		for _, name := range d.Names() {
			b.add(name, d)
		}
	}
	for i := range f.Devices {
		byKind[f.Devices[i].Kind].add("all", &f.Devices[i])
	}
	return list
}

// builder makes one specification.
type builder struct {
	spec *specs.Spec
	at   map[string]int // of a name in spec.Devices
}

// add adds the nodes of a device to what a name stands for.
func (b *builder) add(name string, d *Device) {
	i, known := b.at[name]
	if !known {
		i = len(b.spec.Devices)
		b.at[name] = i
		entry := specs.Device{Name: name}
		if name != "all" {
			entry.Annotations = d.annotations()
		}
		b.spec.Devices = append(b.spec.Devices, entry)
	}
	e := &b.spec.Devices[i].ContainerEdits
	for _, n := range d.Nodes {
		if slices.ContainsFunc(e.DeviceNodes, func(o *specs.DeviceNode) bool { return o.Path == n.Path }) {
			continue
		}
		node := &specs.DeviceNode{Path: n.Path, Type: "c", Permissions: "rw"}
		if n.Host != n.Path {
			node.HostPath = n.Host
		}
		e.DeviceNodes = append(e.DeviceNodes, node)
	}
}

func (d *Device) annotations() map[string]string {
	m := map[string]string{}
	if d.PCI != "" {
		m["gangway/pci"] = d.PCI
	}
	if d.NUMA >= 0 {
		m["gangway/numa"] = strconv.Itoa(d.NUMA)
	}
	return m
}
