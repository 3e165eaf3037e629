package rdma

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"

	"github.com/gangway-hpc/gangway/internal/fault"
)

// Distance is how far two PCI devices are apart, in the words of "nvidia-smi topo".
type Distance int

// The distances, nearest first.
const (
	PIX  Distance = iota // one PCIe switch at most in between
	PXB                  // several switches, no host bridge
	PHB                  // the same host bridge
	NODE                 // the same memory node
	SYS                  // anything else, or unknown
)

// String returns the short word.
func (d Distance) String() string {
	if d < PIX || d > SYS {
		return strconv.Itoa(int(d))
	}
	return [...]string{"PIX", "PXB", "PHB", "NODE", "SYS"}[d]
}

// Between returns the distance of two devices by their paths below /sys/devices
// ("pci0000:15/0000:15:01.0/0000:16:00.0") and their memory nodes, -1 for unknown. It
// is the same in both directions.
func Between(pathA string, nodeA int, pathB string, nodeB int) Distance {
	a, b := strings.Split(pathA, "/"), strings.Split(pathB, "/")
	same := 0
	for same < min(len(a), len(b)) && a[same] == b[same] {
		same++
	}
	switch rest := max(len(a), len(b)) - same; {
	case pathA == "" || pathB == "":
	case same >= 2 && rest <= 2: // below the switch: its own port, and the device
		return PIX
	case same >= 2:
		return PXB
	case same == 1:
		return PHB
	}
	if nodeA == nodeB && nodeA >= 0 {
		return NODE
	}
	return SYS
}

// Request is what was asked for.
type Request struct {
	// Devices are names (mlx5_0), positions in Host.HCAs as MELLANOX_VISIBLE_DEVICES
	// has them, or one word: auto (near the GPUs; also if empty), all, none.
	Devices []string
	GPUs    []string // PCI addresses of the GPUs that the container gets; auto without any is all
}

// ParseDevices splits what people and MELLANOX_VISIBLE_DEVICES write: words with commas.
// void, as Enroot calls it, is none.
func ParseDevices(s string) []string {
	var words []string
	for word := range strings.FieldsFuncSeq(s, func(r rune) bool { return r == ',' || r == ' ' }) {
		if word == "void" {
			word = "none"
		}
		words = append(words, word)
	}
	return words
}

// Choice is what a container gets.
type Choice struct {
	HCAs  []HCA // in the order of Host.HCAs
	Near  []Near
	Notes []string // why something was left out, a line each
}

// Near says which adapters are nearest to a GPU.
type Near struct {
	GPU      string // PCI address
	Distance Distance
	HCAs     []string
}

// Choose decides which adapters a container gets. With auto these are for each GPU the
// nearest ones of those that can carry traffic; physical functions before their own
// virtual ones, which are for virtual machines. Asked for by name, an adapter is given
// whatever its state, and one that is not there is an error that lists what is.
func (h *Host) Choose(r Request) (*Choice, error) {
	c := &Choice{}
	word := "auto"
	if len(r.Devices) == 1 {
		word = r.Devices[0]
	}
	switch {
	case word == "none":
		return c, nil
	case word == "all":
		c.HCAs = slices.Clone(h.HCAs)
	case word == "auto" && len(r.Devices) < 2:
		return c, h.auto(c, r.GPUs)
	default:
		return c, h.named(c, r.Devices)
	}
	return c, nil
}

// named finds adapters by name or position.
func (h *Host) named(c *Choice, names []string) error {
	wanted := map[int]bool{}
	for _, name := range names {
		i := slices.IndexFunc(h.HCAs, func(a HCA) bool { return a.Name == name })
		if n, err := strconv.Atoi(name); i < 0 && err == nil && n >= 0 && n < len(h.HCAs) {
			i = n
		}
		if i < 0 {
			return h.unknown(name)
		}
		wanted[i] = true
	}
	for i, a := range h.HCAs {
		if wanted[i] {
			c.HCAs = append(c.HCAs, a)
			if !a.Active() {
				c.Notes = append(c.Notes, fmt.Sprintf("%s has no active port; it was asked for by name", a.Name))
			}
		}
	}
	return nil
}

func (h *Host) unknown(name string) error {
	e := &fault.Error{What: fmt.Errorf("choose RDMA adapters: there is no adapter %q", name), Hint: "this machine has none: leave the option out"}
	var names []string
	for _, a := range h.HCAs {
		names = append(names, a.Name)
	}
	if len(names) > 0 {
		e.Hint = "choose among auto, all, none and " + strings.Join(names, ", ")
	}
	if len(h.Notes) > 0 {
		e.Cause = strings.Join(h.Notes, "; ")
	}
	return e
}

// auto chooses by distance.
func (h *Host) auto(c *Choice, gpus []string) error {
	candidates := h.candidates(c)
	if len(gpus) == 0 || len(candidates) == 0 {
		c.HCAs = candidates
		return nil
	}
	chosen := map[string]bool{}
	for _, gpu := range gpus {
		path, node, err := h.gpuPath(gpu)
		if errors.Is(err, fs.ErrNotExist) { // hypervisors and sandboxes hide it
			c.Notes = append(c.Notes, fmt.Sprintf("sysfs does not know the GPU %s, so any adapter may be the nearest", gpu))
		} else if err != nil {
			return err
		}
		near := nearest(candidates, path, node)
		near.GPU = Address(gpu)
		c.Near = append(c.Near, near)
		for _, name := range near.HCAs {
			chosen[name] = true
		}
	}
	for _, a := range candidates {
		if chosen[a.Name] {
			c.HCAs = append(c.HCAs, a)
		}
	}
	return nil
}

// nearest returns those of the candidates that are least far from a device.
func nearest(candidates []HCA, path string, node int) Near {
	n := Near{Distance: SYS}
	for _, a := range candidates {
		d := Between(path, node, a.Path, a.NUMA)
		switch c := cmp.Compare(d, n.Distance); {
		case c < 0:
			n.Distance, n.HCAs = d, []string{a.Name}
		case c == 0:
			n.HCAs = append(n.HCAs, a.Name)
		}
	}
	return n
}

// candidates are the adapters that auto may give.
func (h *Host) candidates(c *Choice) []HCA {
	functions := map[string]bool{}
	hardware := false
	for _, a := range h.HCAs {
		functions[a.PCI] = true
		hardware = hardware || a.Fabric != Software && a.Active()
	}
	var all []HCA
	virtual := 0
	for _, a := range h.HCAs {
		switch {
		case a.Parent != "" && functions[a.Parent]:
			virtual++
		case !a.Active():
			c.Notes = append(c.Notes, fmt.Sprintf("%s is left out: no port of it is active (%s)", a.Name, states(a)))
		case a.Fabric == Software && hardware:
			c.Notes = append(c.Notes, a.Name+" is left out: it is software, and there are adapters")
		default:
			all = append(all, a)
		}
	}
	if virtual > 0 {
		c.Notes = append(c.Notes, fmt.Sprintf("%d virtual functions are left out: their physical ones are here", virtual))
	}
	return all
}

// states lists the states of an adapter's ports.
func states(a HCA) string {
	if len(a.Ports) == 0 {
		return "it has none"
	}
	var all []string
	for _, p := range a.Ports {
		all = append(all, fmt.Sprintf("port %d: %s", p.Number, cmp.Or(p.State, "unknown")))
	}
	return strings.Join(all, ", ")
}
