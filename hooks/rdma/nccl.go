package rdma

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Interface is a network interface of the host.
type Interface struct {
	Name  string
	Addrs []netip.Addr
}

// Interfaces returns the interfaces that are up in the caller's network namespace.
func Interfaces() ([]Interface, error) {
	all, err := net.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("list network interfaces: %w", err)
	}
	var up []Interface
	for _, i := range all {
		if i.Flags&net.FlagUp == 0 {
			continue
		}
		addrs, err := i.Addrs()
		if err != nil {
			return nil, fmt.Errorf("list addresses of %s: %w", i.Name, err)
		}
		one := Interface{Name: i.Name}
		for _, a := range addrs {
			if prefix, err := netip.ParsePrefix(a.String()); err == nil {
				one.Addrs = append(one.Addrs, prefix.Addr())
			}
		}
		up = append(up, one)
	}
	return up, nil
}

// Facts are what NCCL's variables are decided by.
type Facts struct {
	Choice     *Choice
	Interfaces []Interface // of the network namespace that the container will have
	Node       netip.Addr  // by which the job's other nodes reach this one; zero: unknown
	Environ    []string    // what the person set: it stays
}

// Variable is a variable that is set, and why it is right.
type Variable struct{ Name, Value, Why string }

// String is how a variable is printed.
func (v Variable) String() string { return v.Name + "=" + v.Value + " (" + v.Why + ")" }

// NCCL returns the variables that the probe proves right, and notes about what it left
// alone. It never guesses: with ports of different kinds, or with no address that ties
// the node to one interface, NCCL decides by itself. What the person set is kept. The
// function is pure.
func NCCL(f Facts) ([]Variable, []string) {
	var vars []Variable
	var notes []string
	add := func(v Variable, note string) {
		switch {
		case note != "":
			notes = append(notes, v.Name+" is not set: "+note)
		case v.Value == "":
		case slices.ContainsFunc(f.Environ, func(s string) bool { return strings.HasPrefix(s, v.Name+"=") }):
			notes = append(notes, v.Name+" is as you set it; the probe says "+v.Value)
		default:
			vars = append(vars, v)
		}
	}
	add(hcaVariable(f.Choice))
	add(interfaceVariable(f))
	return vars, notes
}

// hcaVariable names the active ports of the chosen adapters. The sign "=" in front
// makes NCCL compare whole names: mlx5_1 is the begin of mlx5_10.
func hcaVariable(c *Choice) (Variable, string) {
	v := Variable{Name: "NCCL_IB_HCA"}
	var ports, links []string
	for _, a := range c.HCAs {
		if a.Fabric != InfiniBand && a.Fabric != RoCE {
			continue // EFA and CXI are libfabric's; software is nobody's first choice
		}
		for _, p := range a.Ports {
			if p.Active {
				ports = append(ports, a.Name+":"+strconv.Itoa(p.Number))
				links = append(links, p.Link)
			}
		}
	}
	if len(ports) == 0 {
		return v, ""
	}
	slices.Sort(links)
	if links = slices.Compact(links); len(links) > 1 {
		return v, "the adapters have ports of different kinds (" + strings.Join(links, ", ") + "): name those that you mean"
	}
	v.Value = "=" + strings.Join(ports, ",")
	v.Why = "the active ports of the adapters that the container was given"
	if len(c.Near) > 0 {
		farthest := PIX
		for _, n := range c.Near {
			farthest = max(farthest, n.Distance)
		}
		v.Why = fmt.Sprintf("the active ports nearest to the given GPUs, at most %s away", farthest)
	}
	return v, ""
}

// interfaceVariable names the interface that has the address by which the job knows the
// node. With a single interface there is nothing to decide.
func interfaceVariable(f Facts) (Variable, string) {
	v := Variable{Name: "NCCL_SOCKET_IFNAME"}
	var names, with []string
	for _, i := range f.Interfaces {
		if !slices.ContainsFunc(i.Addrs, func(a netip.Addr) bool { return !a.IsLoopback() }) {
			continue
		}
		names = append(names, i.Name)
		if f.Node.IsValid() && slices.ContainsFunc(i.Addrs, func(a netip.Addr) bool { return a.WithZone("").Unmap() == f.Node.WithZone("").Unmap() }) {
			with = append(with, i.Name)
		}
	}
	switch {
	case len(names) < 2 || !f.Node.IsValid() || f.Node.IsLoopback():
		return v, ""
	case len(with) == 0:
		return v, fmt.Sprintf("no interface has the node's address %s (there are %s)", f.Node, strings.Join(names, ", "))
	case len(with) > 1:
		return v, fmt.Sprintf("several interfaces have the node's address %s (%s)", f.Node, strings.Join(with, ", "))
	}
	v.Value, v.Why = "="+with[0], fmt.Sprintf("it has the node's address %s; the others are %s", f.Node, strings.Join(slices.DeleteFunc(names, func(s string) bool { return s == with[0] }), ", "))
	return v, ""
}

// Unlimited is RLIM_INFINITY.
const Unlimited = math.MaxUint64

// Memlock is the limit of locked memory, in bytes; Unlimited is none.
type Memlock struct{ Soft, Hard uint64 }

// Memlock reads the limit of this process, which a container inherits. RDMA registers
// memory by locking it.
func (h *Host) Memlock() (Memlock, error) {
	text, err := readFile(filepath.Join(h.opts.Proc, "self", "limits"))
	if err != nil {
		return Memlock{}, fmt.Errorf("read limit of locked memory: %w", err)
	}
	return parseLimits(text)
}

// parseLimits finds "Max locked memory" in /proc/PID/limits.
func parseLimits(text string) (Memlock, error) {
	for line := range strings.Lines(text) {
		rest, ok := strings.CutPrefix(line, "Max locked memory")
		if !ok {
			continue
		}
		fields := strings.Fields(rest)
		if len(fields) < 2 {
			break
		}
		soft, err1 := parseLimit(fields[0])
		hard, err2 := parseLimit(fields[1])
		if err := errors.Join(err1, err2); err != nil {
			return Memlock{}, fmt.Errorf("read limit of locked memory: %w", err)
		}
		return Memlock{soft, hard}, nil
	}
	return Memlock{}, fmt.Errorf("read limit of locked memory: %w", fs.ErrNotExist)
}

func parseLimit(s string) (uint64, error) {
	if s == "unlimited" {
		return Unlimited, nil
	}
	return strconv.ParseUint(s, 10, 64)
}

// Raise says whether the soft limit should be set to the hard one: that needs no right.
func (m Memlock) Raise() bool { return m.Soft < m.Hard }

// Warning says what is wrong with the limit for RDMA and what helps, as the lines cause
// and hint of an error; empty: nothing. Nobody can say how much is enough, because it
// grows with peers and buffers; only no limit is right.
func (m Memlock) Warning() (cause, hint string) {
	if m.Hard == Unlimited {
		return "", ""
	}
	return fmt.Sprintf("only %s of memory may be locked (RLIMIT_MEMLOCK): NCCL and MPI fail in ibv_reg_mr or ibv_create_cq, or fall back to TCP", size(m.Hard)),
		"as root: printf '* hard memlock unlimited\\n* soft memlock unlimited\\n' > /etc/security/limits.d/gangway.conf, then log in again; for services, LimitMEMLOCK=infinity in the unit"
}

// size prints bytes for people.
func size(n uint64) string {
	units := []string{"B", "KiB", "MiB", "GiB", "TiB"}
	f, i := float64(n), 0
	for ; f >= 1024 && i < len(units)-1; i++ {
		f /= 1024
	}
	if i == 0 {
		return fmt.Sprintf("%d B", n)
	}
	return fmt.Sprintf("%.1f %s", f, units[i])
}
