package rdma

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
)

// TestNCCL: variables are set only where the probe proves them, and each refusal to
// guess is said.
func TestNCCL(t *testing.T) {
	port := func(link string) []Port { return []Port{{Number: 1, Active: true, Link: link}} }
	ib1, ib10 := HCA{Name: "mlx5_1", Fabric: InfiniBand, Ports: port(infiniband)}, HCA{Name: "mlx5_10", Fabric: InfiniBand, Ports: append(port(infiniband), Port{Number: 2})}
	roce, efa := HCA{Name: "mlx5_0", Fabric: RoCE, Ports: port(ethernet)}, HCA{Name: "efa_0", Fabric: EFA, Ports: port("")}
	addr := func(s string) []netip.Addr { return []netip.Addr{netip.MustParseAddr(s)} }
	lo, eth, ib := Interface{"lo", addr("127.0.0.1")}, Interface{"eth0", addr("10.0.0.5")}, Interface{"ib0", addr("10.1.0.5")}
	node := addr("10.1.0.5")[0]
	for name, test := range map[string]struct {
		facts      Facts
		vars, note string
	}{
		"one interface":   {Facts{Choice: &Choice{}, Interfaces: []Interface{lo, eth}, Node: node}, "", ""},
		"near":            {Facts{Choice: &Choice{HCAs: []HCA{ib1, ib10}, Near: []Near{{Distance: PIX}, {Distance: PHB}}}}, "NCCL_IB_HCA==mlx5_1:1,mlx5_10:1 (the active ports nearest to the given GPUs, at most PHB away)", ""},
		"mixed":           {Facts{Choice: &Choice{HCAs: []HCA{ib1, roce}}}, "", "NCCL_IB_HCA is not set: the adapters have ports of different kinds (Ethernet, InfiniBand)"},
		"libfabric":       {Facts{Choice: &Choice{HCAs: []HCA{efa}}}, "", ""},
		"interface":       {Facts{Choice: &Choice{}, Interfaces: []Interface{lo, eth, ib}, Node: node}, "NCCL_SOCKET_IFNAME==ib0 (it has the node's address 10.1.0.5; the others are eth0)", ""},
		"mapped address":  {Facts{Choice: &Choice{}, Interfaces: []Interface{eth, ib}, Node: addr("::ffff:10.1.0.5")[0]}, "NCCL_SOCKET_IFNAME==ib0", ""},
		"no such address": {Facts{Choice: &Choice{}, Interfaces: []Interface{eth, ib}, Node: addr("192.0.2.1")[0]}, "", "no interface has the node's address 192.0.2.1"},
		"bridge":          {Facts{Choice: &Choice{}, Interfaces: []Interface{eth, ib, {"br0", ib.Addrs}}, Node: node}, "", "several interfaces have"},
		"node unknown":    {Facts{Choice: &Choice{}, Interfaces: []Interface{eth, ib}}, "", ""},
		"the person's":    {Facts{Choice: &Choice{HCAs: []HCA{ib1}}, Environ: []string{"NCCL_IB_HCA=mlx5"}}, "", "NCCL_IB_HCA is as you set it; the probe says =mlx5_1:1"},
	} {
		vars, notes := NCCL(test.facts)
		var got []string
		for _, v := range vars {
			got = append(got, v.String())
		}
		if text := strings.Join(got, "\n"); !strings.HasPrefix(text, test.vars) || text != "" && test.vars == "" {
			t.Errorf("%s: %q, want %q", name, text, test.vars)
		}
		if text := strings.Join(notes, "\n"); !strings.HasPrefix(text, test.note) && !strings.Contains(text, test.note) || text != "" && test.note == "" {
			t.Errorf("%s: notes %q, want %q", name, text, test.note)
		}
	}
}

// TestInterfaces: this machine's own are found, with their addresses.
func TestInterfaces(t *testing.T) {
	all, err := Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	if len(all) == 0 {
		t.Skip("needs a network interface that is up")
	}
	for _, i := range all {
		if i.Name == "lo" && !slices.Contains(i.Addrs, netip.MustParseAddr("127.0.0.1")) {
			t.Errorf("%+v", i)
		}
	}
}

// TestMemlock: this machine's limit is read, and a low one is explained.
func TestMemlock(t *testing.T) {
	h, err := Discover(t.Context(), Options{})
	if err != nil {
		t.Fatal(err)
	}
	m, err := h.Memlock()
	if err != nil || m.Hard == 0 {
		t.Errorf("%+v %v", m, err)
	}
	const line = "Limit                     Soft Limit           Hard Limit           Units     \nMax locked memory         65536                8388608              bytes     \n"
	if m, err = parseLimits(line); err != nil || m != (Memlock{65536, 8388608}) || !m.Raise() {
		t.Errorf("%+v %v", m, err)
	}
	cause, hint := m.Warning()
	if !strings.Contains(cause, "8.0 MiB") || !strings.Contains(hint, "limits.d") || !strings.Contains(hint, "LimitMEMLOCK=infinity") {
		t.Errorf("%q %q", cause, hint)
	}
	if m, err = parseLimits(strings.ReplaceAll(line, "8388608", "unlimited")); err != nil || m.Hard != Unlimited {
		t.Errorf("%+v %v", m, err)
	}
	if cause, _ := m.Warning(); cause != "" {
		t.Error(cause)
	}
	for _, bad := range []string{"", "Max locked memory", "Max locked memory  x y bytes\n"} {
		if _, err := parseLimits(bad); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}
