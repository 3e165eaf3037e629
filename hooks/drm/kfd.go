package drm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// maxProperties is what is read at most of a node's properties; they have some 1,500 bytes.
const maxProperties = 64 << 10

// properties are what KFD, the compute side of amdgpu, says about one of its nodes.
type properties struct {
	simds    uint64 // 0 is a CPU
	minor    int    // of the render node; -1 is not said
	location uint64 // bus, device and function
	domain   uint64
	uniqueID uint64
}

// parseProperties reads lines of NAME VALUE. What is no number, and what we do not know,
// is left out.
func parseProperties(text string) properties {
	p := properties{minor: -1}
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		n, err := strconv.ParseUint(strings.TrimSpace(value), 10, 64)
		if err != nil {
			continue
		}
		switch name {
		case "simd_count":
			p.simds = n
		case "drm_render_minor":
			if n > 0 && n < 1<<20 {
				p.minor = int(n)
			}
		case "location_id":
			p.location = n
		case "domain":
			p.domain = n
		case "unique_id":
			p.uniqueID = n
		}
	}
	return p
}

// pci is the address of the GPU that a node is, or is a partition of.
func (p properties) pci() string {
	return fmt.Sprintf("%04x:%02x:%02x.%x", p.domain&0xffffffff, p.location>>8&0xff, p.location>>3&0x1f, p.location&7)
}

// topology reads /sys/class/kfd and completes AMD's devices by it: unique ids, the GPU of
// a partition, and whether a GPU can compute at all.
func (s *scan) topology(ctx context.Context) error {
	dir := filepath.Join(s.sys, "class/kfd/kfd/topology/nodes")
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		entries = nil
	} else if err != nil {
		return err
	}
	byMinor := map[string]properties{}
	for _, e := range entries {
		if err := ctx.Err(); err != nil {
			return err
		}
		text, err := readSome(filepath.Join(dir, e.Name(), "properties"))
		if err != nil {
			continue // a node that others hide from us, or that just went
		}
		if p := parseProperties(text); p.simds > 0 && p.minor >= 0 {
			byMinor["renderD"+strconv.Itoa(p.minor)] = p
		}
	}
	for _, d := range s.byKey {
		if d.Kind != AMD {
			continue
		}
		for _, n := range d.Nodes {
			p, known := byMinor[filepath.Base(n.Path)]
			if !known {
				continue
			}
			d.UniqueID = p.uniqueID
			if d.PCI == "" {
				d.PCI = p.pci()
				d.NUMA = numaOf(filepath.Join(s.sys, "bus/pci/devices", d.PCI))
			}
		}
	}
	return nil
}

func readSome(name string) (string, error) {
	f, err := os.Open(name)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }()
	data, err := io.ReadAll(io.LimitReader(f, maxProperties))
	return string(data), err
}

// result gives every device its nodes in the container and its index.
func (s *scan) result() *Found {
	f := &Found{}
	for _, key := range sortedKeys(s.byKey) {
		d := s.byKey[key]
		if s.finish(d) {
			f.Devices = append(f.Devices, *d)
		}
	}
	slices.SortStableFunc(f.Devices, order)
	for i := range f.Devices {
		if i > 0 && f.Devices[i].Kind == f.Devices[i-1].Kind {
			f.Devices[i].Index = f.Devices[i-1].Index + 1
		}
	}
	f.Warnings = s.warnings
	return f
}

// finish leaves a device the nodes that a container gets, of those that are there. It
// returns false if it cannot be used.
func (s *scan) finish(d *Device) bool {
	var nodes, links []Node
	for _, n := range d.Nodes {
		name := filepath.Base(n.Path)
		if d.Kind == AMD && !strings.HasPrefix(name, "renderD") {
			continue // a card node is for displays; ROCm needs none
		}
		if _, err := os.Stat(n.Host); err != nil {
			s.warn(d, "sysfs has %s but there is no %s: %v", name, n.Host, errors.Unwrap(err))
			continue
		}
		nodes = append(nodes, n)
		if d.Kind == Intel { // Level Zero and media drivers find a GPU's nodes by its address
			links = append(links, s.byPath(d, n)...)
		}
	}
	slices.SortFunc(nodes, func(a, b Node) int { return strings.Compare(a.Path, b.Path) })
	slices.SortFunc(links, func(a, b Node) int { return strings.Compare(a.Path, b.Path) })
	d.Nodes = append(nodes, links...)
	if len(nodes) == 0 {
		return false
	}
	if d.Kind != AMD {
		return true
	}
	kfd := filepath.Join(s.dev, "kfd")
	if _, err := os.Stat(kfd); err != nil {
		s.warn(d, "there is no %s, without which ROCm cannot compute: %v", kfd, errors.Unwrap(err))
		return false
	}
	d.Nodes = slices.Insert(d.Nodes, 0, Node{Path: "/dev/kfd", Host: kfd})
	return true
}

func (s *scan) warn(d *Device, format string, args ...any) {
	name := d.PCI
	if name == "" {
		name = "a partition"
	}
	s.warnings = append(s.warnings, fmt.Sprintf("%s %s: %s", d.Kind, name, fmt.Sprintf(format, args...)))
}

// byPath is the node that udev links to by a PCI address, if it does.
func (s *scan) byPath(d *Device, n Node) []Node {
	suffix := "card"
	if strings.HasPrefix(filepath.Base(n.Path), "renderD") {
		suffix = "render"
	}
	link := "dri/by-path/pci-" + d.PCI + "-" + suffix
	if target, err := os.Readlink(filepath.Join(s.dev, link)); err != nil || filepath.Base(target) != filepath.Base(n.Path) {
		return nil
	}
	return []Node{{Path: "/dev/" + link, Host: n.Host}}
}

// order sorts by kind, address and node, numbers as numbers: renderD99 before renderD128.
func order(a, b Device) int {
	last := func(d Device) string {
		name := d.Nodes[len(d.Nodes)-1].Path
		return fmt.Sprintf("%04d", len(name)) + name
	}
	for _, c := range []int{
		strings.Compare(a.Kind, b.Kind), len(a.PCI) - len(b.PCI), strings.Compare(a.PCI, b.PCI), strings.Compare(last(a), last(b)),
	} {
		if c != 0 {
			return c
		}
	}
	return 0
}
