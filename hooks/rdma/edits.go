package rdma

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	cdi "tags.cncf.io/container-device-interface/specs-go"
)

// cdiVersion is the least that has all fields used here.
const cdiVersion = "0.6.0"

// Specs returns all adapters as CDI specs, one for each kind, so that "--device
// amazon.com/efa=efa_0" works without a file. The kinds are mellanox.com/hca,
// amazon.com/efa, hpe.com/cxi and gangway.rdma/hca for all others.
func (h *Host) Specs() []cdi.Spec {
	kinds := map[string]*cdi.Spec{}
	for _, a := range h.HCAs {
		kind := a.kind()
		if kinds[kind] == nil {
			kinds[kind] = &cdi.Spec{Version: cdiVersion, Kind: kind}
			if h.CM != nil && a.Fabric != CXI {
				kinds[kind].ContainerEdits.DeviceNodes = []*cdi.DeviceNode{h.node(*h.CM)}
			}
		}
		kinds[kind].Devices = append(kinds[kind].Devices, cdi.Device{
			Name:           a.Name,
			Annotations:    map[string]string{"gangway.rdma/fabric": string(a.Fabric), "gangway.rdma/pci": a.PCI},
			ContainerEdits: cdi.ContainerEdits{DeviceNodes: h.nodes(a.Nodes)},
		})
	}
	var all []cdi.Spec
	for _, spec := range kinds {
		all = append(all, *spec)
	}
	slices.SortFunc(all, func(a, b cdi.Spec) int { return strings.Compare(a.Kind, b.Kind) })
	return all
}

// kind is the CDI kind of an adapter.
func (a HCA) kind() string {
	switch {
	case a.Fabric == EFA:
		return "amazon.com/efa"
	case a.Fabric == CXI:
		return "hpe.com/cxi"
	case strings.HasPrefix(a.Driver, "mlx"):
		return "mellanox.com/hca"
	}
	return "gangway.rdma/hca"
}

func (h *Host) node(n Node) *cdi.DeviceNode {
	d := &cdi.DeviceNode{Path: "/dev/" + n.Name, Type: "c", Major: n.Major, Minor: n.Minor, Permissions: "rw"}
	if host := filepath.Join(h.opts.Dev, n.Name); host != d.Path {
		d.HostPath = host
	}
	return d
}

func (h *Host) nodes(all []Node) []*cdi.DeviceNode {
	var nodes []*cdi.DeviceNode
	for _, n := range all {
		nodes = append(nodes, h.node(n))
	}
	return nodes
}

// topology is where NCCL looks by itself for the PCI topology that a hypervisor hides;
// clouds write it there.
const topology = "nvidia-topologyd/virtualTopology.xml"

// Edits returns what gives a container the chosen adapters and hides the others.
//
// The device nodes are those of the choice alone. In /sys/class the container sees
// directories that Edits writes into dir, which must be there, be the caller's own, and
// outlive the container: links to the chosen adapters, and the ABI versions. They are
// links and not bind mounts because NCCL follows them to learn the PCI topology. Which
// mounts are needed depends on what the kernel has; a machine without RDMA gets none.
// A topology of a virtual machine is mounted where NCCL looks for it.
func (h *Host) Edits(c *Choice, dir string) (*cdi.ContainerEdits, error) {
	e := &cdi.ContainerEdits{}
	verbs := false
	for _, a := range c.HCAs {
		e.DeviceNodes = append(e.DeviceNodes, h.nodes(slices.Concat(a.Nodes, a.Admin))...)
		verbs = verbs || a.Fabric != CXI
	}
	if h.CM != nil && verbs {
		e.DeviceNodes = append(e.DeviceNodes, h.node(*h.CM))
	}
	for _, class := range h.classes {
		view := filepath.Join(dir, class)
		if err := h.writeClass(view, class, c); err != nil {
			return nil, fmt.Errorf("hide RDMA adapters: %w", err)
		}
		e.Mounts = append(e.Mounts, readOnly(view, "/sys/class/"+class))
	}
	file := filepath.Join(h.opts.Run, topology)
	if st, err := os.Stat(file); len(c.HCAs) > 0 && err == nil && st.Mode().IsRegular() {
		e.Mounts = append(e.Mounts, readOnly(file, "/var/run/"+topology))
	}
	return e, nil
}

func readOnly(host, container string) *cdi.Mount {
	return &cdi.Mount{HostPath: host, ContainerPath: container, Options: []string{"bind", "ro", "nosuid", "nodev", "noexec"}}
}

// writeClass writes a directory that looks as /sys/class/CLASS shall.
func (h *Host) writeClass(view, class string, c *Choice) error {
	if err := os.Mkdir(view, 0o755); err != nil {
		return err
	}
	for _, a := range c.HCAs {
		for _, entry := range a.class {
			name, ok := strings.CutPrefix(entry, class+"/")
			if !ok {
				continue
			}
			target, err := os.Readlink(h.sys("class", entry))
			if err != nil {
				return err
			}
			if err := os.Symlink(target, filepath.Join(view, name)); err != nil {
				return err
			}
		}
	}
	version, err := readFile(h.sys("class", class, "abi_version"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(view, "abi_version"), []byte(version), 0o444)
}
