package nvidia

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/gangway-hpc/gangway/internal/fault"
)

// Request is who asks for which GPUs.
type Request struct {
	GPUs string // --gpus: "", a number, "all", "none", or a list as Select describes; "device=" before it is allowed
	User string // NVIDIA_VISIBLE_DEVICES of the user's environment; "" and "void" say nothing

	// Allocation lists the names that the run may choose from, by UUID or index.
	// nil is a run without an allocation, on a machine that is its user's; empty is
	// an allocation without GPUs.
	Allocation []string
}

// Choice is what a request comes to: Count of the Candidates. A run without an
// allocation leases Count of them (package lease), in this order; otherwise it has
// the first Count.
type Choice struct {
	Candidates []Device
	Count      int
}

// Select finds out what a request may have of d, which is nil on a machine without a
// driver. Nothing asked for is nothing given, but for an allocation, all of which a
// run gets unless it asks for less.
//
// A list names GPUs by index or UUID, MIG instances by UUID, as "GPU:GI:CI" or in
// the old form "MIG-GPU-UUID/GI/CI"; a single number is a count, so that one index is
// written "device=2". Names are compared whole. What NVIDIA_VISIBLE_DEVICES of the
// user names bounds the candidates; in an image it is not looked at: an image does
// not choose GPUs.
//
// An error says what there is, and exits with 125: no run starts without a GPU that
// it asked for.
func Select(d *Driver, r Request) (Choice, error) {
	gpus := strings.TrimSpace(r.GPUs)
	user := strings.TrimSpace(r.User)
	if user == "void" {
		user = ""
	}
	if gpus == "" && r.Allocation == nil {
		gpus = asList(user)
		user = ""
	}
	if gpus == "" && len(r.Allocation) > 0 {
		gpus = "all"
	}
	if gpus == "" || gpus == "none" || gpus == "0" {
		return Choice{}, nil
	}
	if err := checkCount(gpus); err != nil {
		return Choice{}, err
	}
	if d == nil {
		asked, without := "--gpus="+gpus, "run without --gpus"
		if r.GPUs == "" {
			asked, without = "NVIDIA_VISIBLE_DEVICES="+r.User, "unset NVIDIA_VISIBLE_DEVICES"
		}
		return Choice{}, &fault.Error{
			What: fmt.Errorf("choose GPUs (%s): %w", asked, ErrNoDriver), Hint: without + ", or use a machine with a GPU", Code: fault.CodeFailed,
		}
	}
	pool := d.Devices()
	var err error
	if r.Allocation != nil {
		if pool, err = d.named(pool, r.Allocation, "the allocation"); err != nil {
			return Choice{}, err
		}
	}
	within := ""
	if user != "" && user != "all" {
		within = " within NVIDIA_VISIBLE_DEVICES=" + user
		if pool, err = d.named(pool, splitNames(noneIsEmpty(user)), "NVIDIA_VISIBLE_DEVICES"); err != nil {
			return Choice{}, err
		}
	}
	return d.choose(pool, gpus, within)
}

// Hint says, for people, that an image expects GPUs by its own
// NVIDIA_VISIBLE_DEVICES ("" if it does not), where a run has none. It is all that
// the variable of an image does.
func Hint(image string) string {
	if image == "" || image == "void" || image == "none" {
		return ""
	}
	return fmt.Sprintf("the image expects GPUs (NVIDIA_VISIBLE_DEVICES=%s) and this run has none: --gpus N gives it some", image)
}

// checkCount refuses numbers that count nothing, wherever they are asked for.
func checkCount(gpus string) error {
	n, err := strconv.Atoi(gpus)
	switch {
	case errors.Is(err, strconv.ErrRange):
		return fault.Usage(fmt.Errorf("--gpus %s: no machine has as many", gpus), usageHint)
	case err == nil && n < 0:
		return fault.Usage(fmt.Errorf("--gpus %s: a count is not negative", gpus), usageHint)
	}
	return nil
}

// choose applies --gpus to the devices that may be had.
func (d *Driver) choose(pool []Device, gpus, within string) (Choice, error) {
	if gpus == "all" {
		if len(pool) == 0 {
			return Choice{}, d.refuse("give all GPUs: there is none"+within, pool)
		}
		return Choice{pool, len(pool)}, nil
	}
	if n, err := strconv.Atoi(gpus); err == nil {
		if n > len(pool) {
			return Choice{}, d.refuse(fmt.Sprintf("give %d GPUs: there are %d%s", n, len(pool), within), pool)
		}
		return Choice{pool, n}, nil
	}
	list, _ := strings.CutPrefix(gpus, "device=")
	names := splitNames(list)
	if len(names) == 0 {
		return Choice{}, fault.Usage(fmt.Errorf("--gpus %q names no GPU", gpus), usageHint)
	}
	chosen, err := d.named(pool, names, "--gpus")
	return Choice{chosen, len(chosen)}, err
}

const usageHint = "valid are a number, all, none, or a list of indices and UUIDs: --gpus 2, --gpus all, --gpus GPU-...,MIG-..., --gpus device=0"

// asList turns the value of NVIDIA_VISIBLE_DEVICES, where a number is an index, into
// one of --gpus.
func asList(user string) string {
	if user == "" || user == "all" || user == "none" {
		return user
	}
	return "device=" + user
}

func noneIsEmpty(user string) string {
	if user == "none" {
		return ""
	}
	return user
}

func splitNames(list string) []string {
	return strings.FieldsFunc(list, func(r rune) bool { return r == ',' || r == ' ' })
}

// named returns the devices of pool that are named, in pool's order, so that the
// GPUs are numbered in the container as they are outside.
func (d *Driver) named(pool []Device, names []string, who string) ([]Device, error) {
	chosen := make([]bool, len(pool))
	for _, name := range names {
		i := slices.IndexFunc(pool, func(v Device) bool { return v.is(name) })
		if i >= 0 {
			chosen[i] = true
			continue
		}
		if g := d.gpu(name); g != nil && len(g.MIGs) > 0 {
			return nil, d.refuse(fmt.Sprintf("give the GPU %s that %s names: it is split into MIG instances and cannot be used as a whole", name, who), pool)
		}
		if slices.ContainsFunc(d.Devices(), func(v Device) bool { return v.is(name) }) {
			return nil, d.refuse(fmt.Sprintf("give the GPU %s that %s names: it is not among those that the run may have", name, who), pool)
		}
		text := fmt.Sprintf("give the GPU %q that %s names: there is no such GPU", name, who)
		if strings.HasPrefix(name, "MIG-") && d.namesUnknown() {
			text += ", or NVML has not told the names of MIG instances"
		}
		return nil, d.refuse(text, pool)
	}
	var all []Device
	for i, v := range pool {
		if chosen[i] {
			all = append(all, v)
		}
	}
	return all, nil
}

// OfNodes returns the devices that somebody has to whom these device nodes are given: the
// instances all of whose nodes are there, and the GPUs that are not split. A file of another
// program's may call them by names of its own.
func (d *Driver) OfNodes(paths []string) []Device {
	return slices.DeleteFunc(d.Devices(), func(v Device) bool {
		if v.MIG == nil {
			return !slices.Contains(paths, v.GPU.Node.Path)
		}
		return len(v.MIG.Nodes) == 0 || slices.ContainsFunc(v.MIG.Nodes, func(n Node) bool { return !slices.Contains(paths, n.Path) })
	})
}

// is says whether name is one of the device's.
func (v Device) is(name string) bool {
	return name == v.Name || name == v.Short || v.MIG != nil && (name == v.MIG.UUID || name == v.MIG.old(v.GPU))
}

// gpu returns the GPU of an index or UUID.
func (d *Driver) gpu(name string) *GPU {
	for i := range d.GPUs {
		if g := &d.GPUs[i]; name == g.index() || name == g.UUID && name != "" {
			return g
		}
	}
	return nil
}

// namesUnknown says whether there is an instance whose UUID nobody told.
func (d *Driver) namesUnknown() bool {
	return slices.ContainsFunc(d.Devices(), func(v Device) bool { return v.MIG != nil && v.MIG.UUID == v.MIG.old(v.GPU) })
}

// refuse is the error of a request that cannot be met; it lists what could be had.
func (d *Driver) refuse(text string, pool []Device) error {
	var there []string
	for _, v := range pool {
		model := v.GPU.Model
		if v.MIG != nil {
			model = "MIG instance of " + model
		}
		line := v.Short
		if v.Name != v.Short {
			line += " = " + v.Name
		}
		there = append(there, line+" ("+strings.TrimSpace(model)+")")
	}
	cause := "there is no GPU that this run may have"
	if len(there) > 0 {
		cause = "this run may have " + strings.Join(there, ", ")
	}
	return &fault.Error{What: fmt.Errorf("%s", text), Cause: cause, Hint: usageHint, Code: fault.CodeFailed}
}
