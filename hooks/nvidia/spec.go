package nvidia

import (
	"path/filepath"
	"slices"
	"strings"

	cdi "tags.cncf.io/container-device-interface/specs-go"

	"github.com/gangway-hpc/gangway/hooks/ldcache"
)

// cdiVersion is the least version of CDI that has what the specs use.
const cdiVersion = "0.5.0"

// Spec returns the driver as a CDI spec of the given capabilities. Its devices are
// called by UUID and by index ("0", or "0:1:0" for a MIG instance), and "all".
// What every device needs (control nodes, libraries, programs, sockets) is in the
// spec's own edits. A driver without GPUs has a spec without devices, which is none
// to CDI. params is the host's path of a file with the text d.Params, to
// be mounted over the kernel's; empty for none ([Cached] keeps such a file).
//
// The libraries are mounted in LibDir; programs find them there by the files that
// [Driver.Loader] makes, which depend on the image and are not part of the spec.
func (d *Driver) Spec(capabilities Capabilities, params string) *cdi.Spec {
	s := &cdi.Spec{Version: cdiVersion, Kind: Kind, ContainerEdits: d.common(capabilities, params)}
	var all cdi.ContainerEdits
	for _, dev := range d.Devices() {
		edits := dev.edits(capabilities)
		all = union(all, edits)
		s.Devices = append(s.Devices, cdi.Device{Name: dev.Name, ContainerEdits: edits})
		if dev.Short != dev.Name {
			s.Devices = append(s.Devices, cdi.Device{Name: dev.Short, ContainerEdits: edits})
		}
	}
	for _, m := range d.Management {
		s.Devices = append(s.Devices, cdi.Device{Name: m.Name, ContainerEdits: cdi.ContainerEdits{DeviceNodes: []*cdi.DeviceNode{m.Node.cdi()}}})
	}
	if len(all.DeviceNodes) > 0 {
		s.Devices = append(s.Devices, cdi.Device{Name: "all", ContainerEdits: all})
	}
	return s
}

// IMEXSpec returns the IMEX channels as a CDI spec with devices "0", "1" and "all",
// or nil if there are none. A channel joins memory of nodes that share NVLink; it is
// allocated like a GPU.
func (d *Driver) IMEXSpec() *cdi.Spec {
	s := &cdi.Spec{Version: cdiVersion, Kind: KindIMEX}
	var all cdi.ContainerEdits
	for _, n := range d.Nodes {
		if number, ok := strings.CutPrefix(n.Path, "/dev/"+imexDir+"/channel"); ok {
			edits := cdi.ContainerEdits{DeviceNodes: []*cdi.DeviceNode{n.cdi()}}
			all = union(all, edits)
			s.Devices = append(s.Devices, cdi.Device{Name: number, ContainerEdits: edits})
		}
	}
	if len(s.Devices) == 0 {
		return nil
	}
	s.Devices = append(s.Devices, cdi.Device{Name: "all", ContainerEdits: all})
	return s
}

// union appends the nodes of b to those of a.
func union(a, b cdi.ContainerEdits) cdi.ContainerEdits {
	nodes := slices.Clone(a.DeviceNodes)
	for _, n := range b.DeviceNodes {
		if !slices.ContainsFunc(nodes, func(m *cdi.DeviceNode) bool { return m.Path == n.Path }) {
			nodes = append(nodes, n)
		}
	}
	a.DeviceNodes = nodes
	return a
}

// edits are the device's own.
func (v Device) edits(capabilities Capabilities) cdi.ContainerEdits {
	var e cdi.ContainerEdits
	e.DeviceNodes = append(e.DeviceNodes, v.GPU.Node.cdi())
	for _, n := range v.GPU.Graphics {
		if n.Use&capabilities != 0 {
			e.DeviceNodes = append(e.DeviceNodes, n.cdi())
		}
	}
	if v.MIG != nil {
		for _, n := range v.MIG.Nodes {
			e.DeviceNodes = append(e.DeviceNodes, n.cdi())
		}
	}
	return e
}

// common are the edits that all devices share. Mounts share their lists of options:
// whoever changes one copies it first.
func (d *Driver) common(capabilities Capabilities, params string) cdi.ContainerEdits {
	// Another runtime's hook inside the container shall not do it again.
	e := cdi.ContainerEdits{Env: []string{"NVIDIA_VISIBLE_DEVICES=void"}}
	for _, n := range d.Nodes {
		if n.Use&capabilities != 0 {
			e.DeviceNodes = append(e.DeviceNodes, n.cdi())
		}
	}
	writable := []string{"rbind", "rprivate", "nosuid", "nodev"}
	readOnly := slices.Clip(append(slices.Clone(writable), "ro"))
	mount := func(host, path string, options []string) {
		e.Mounts = append(e.Mounts, &cdi.Mount{HostPath: host, ContainerPath: path, Options: options})
	}
	for _, l := range d.Libraries {
		if !l.wanted(capabilities) {
			continue
		}
		for _, name := range l.Names {
			mount(l.Host, filepath.Join(l.Dir, name), readOnly)
		}
	}
	for _, f := range d.Files {
		if f.Use&capabilities == 0 {
			continue
		}
		if f.Write {
			mount(f.Host, f.Path, writable)
		} else {
			mount(f.Host, f.Path, readOnly)
		}
	}
	if params != "" && d.Params != "" {
		mount(params, "/proc/driver/nvidia/params", readOnly)
	}
	return e
}

func (l *Library) wanted(capabilities Capabilities) bool {
	if l.Flags == ldcache.Flags386 {
		return capabilities&Compat32 != 0
	}
	return l.Use == 0 || l.Use&capabilities != 0
}

// cdi describes the node. Its numbers are those of the host's at discovery; a
// runtime that cannot make nodes mounts HostPath.
func (n Node) cdi() *cdi.DeviceNode {
	c := &cdi.DeviceNode{Path: n.Path, HostPath: n.Host, Permissions: "rw"}
	if n.Major != 0 {
		c.Type, c.Major, c.Minor = "c", n.Major, n.Minor
	}
	return c
}

// Entries returns what the loader's cache says of the driver's libraries.
func (d *Driver) Entries(capabilities Capabilities) []ldcache.Entry {
	var all []ldcache.Entry
	for _, l := range d.Libraries {
		if !l.wanted(capabilities) {
			continue
		}
		for _, name := range l.Names {
			all = append(all, ldcache.Entry{Name: name, Path: filepath.Join(l.Dir, name), Flags: l.Flags})
		}
	}
	return all
}
