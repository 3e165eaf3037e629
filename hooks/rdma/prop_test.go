package rdma

import (
	"cmp"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// device draws a place in a PCI tree: a host bridge and up to four levels below.
func device(t *rapid.T, label string) (path string, numa int) {
	path = fmt.Sprintf("pci0000:%02x", rapid.IntRange(0, 2).Draw(t, label+" bridge"))
	for i := range rapid.IntRange(1, 5).Draw(t, label+" depth") {
		path += fmt.Sprintf("/0000:%02x:%02x.0", i, rapid.IntRange(0, 1).Draw(t, label))
	}
	return path, rapid.IntRange(-1, 1).Draw(t, label+" node")
}

// naive is the distance by the words of NVIDIA's documentation: climb from both to the
// first common bridge, and look at what was passed.
func naive(a string, nodeA int, b string, nodeB int) Distance {
	up := func(p string) (all []string) {
		for ; p != "."; p = filepath.Dir(p) {
			all = append(all, p)
		}
		return all
	}
	above := up(b)
	for i, p := range up(a) {
		j := slices.Index(above, p)
		switch {
		case j < 0:
		case !strings.Contains(p, "/"):
			return PHB
		case i <= 2 && j <= 2:
			return PIX
		default:
			return PXB
		}
	}
	if nodeA >= 0 && nodeA == nodeB {
		return NODE
	}
	return SYS
}

func TestBetween(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, m := device(t, "a")
		b, n := device(t, "b")
		if got, want := Between(a, m, b, n), naive(a, m, b, n); got != want || got != Between(b, n, a, m) {
			t.Fatalf("%s and %s: %s, want %s", a, b, got, want)
		}
	})
}

// TestNearest: an adapter is given if and only if no candidate is nearer to the GPU.
func TestNearest(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var all []HCA
		for i := range rapid.IntRange(0, 6).Draw(t, "adapters") {
			path, node := device(t, "adapter")
			all = append(all, HCA{Name: fmt.Sprint("mlx5_", i), Path: path, NUMA: node})
		}
		gpu, node := device(t, "gpu")
		near := nearest(all, gpu, node)
		for _, a := range all {
			d := Between(gpu, node, a.Path, a.NUMA)
			if d < near.Distance || slices.Contains(near.HCAs, a.Name) != (d == near.Distance) {
				t.Fatalf("%s is %s away, the nearest %+v", a.Name, d, near)
			}
		}
		if len(all) > 0 && len(near.HCAs) == 0 {
			t.Fatal("a GPU has no adapter")
		}
	})
}

// TestNatural: it is an order, and numbers count.
func TestNatural(t *testing.T) {
	name := rapid.StringMatching(`[ab]{0,2}[0-9]{0,3}b?`)
	rapid.Check(t, func(t *rapid.T) {
		a, b, c := name.Draw(t, "a"), name.Draw(t, "b"), name.Draw(t, "c")
		if cmp.Compare(natural(a, b), 0) != -cmp.Compare(natural(b, a), 0) || natural(a, b) == 0 && a != b {
			t.Fatal("not antisymmetric")
		}
		if natural(a, b) <= 0 && natural(b, c) <= 0 && natural(a, c) > 0 {
			t.Fatal("not transitive")
		}
	})
	if natural("mlx5_2", "mlx5_10") >= 0 {
		t.Error("mlx5_10 comes first")
	}
}

// FuzzSysfs: whatever the kernel or a file says, paths stay below /sys/devices and
// numbers in their ranges.
func FuzzSysfs(f *testing.F) {
	for _, s := range []string{"231:192", "../../devices/pci0000:15/0000:15:01.0/infiniband/mlx5_0", "4: ACTIVE", "Max locked memory 1 unlimited bytes\n", "../devices/../x", "00000000:17:00.0", "17:00.0"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if major, minor, err := parseDev(s); err == nil && (major < 0 || major >= 1<<12 || minor < 0 || minor >= 1<<20) {
			t.Errorf("%d:%d", major, minor)
		}
		if path, ok := devicePath(s); ok && !strings.HasPrefix(filepath.Join("/sys/devices", path), "/sys/devices/") {
			t.Errorf("%q leads out of /sys/devices", path)
		}
		if a := Address(s); isPCI(a) && (strings.ContainsAny(a, "/\x00") || Address(a) != a) {
			t.Errorf("%q becomes %q", s, a)
		}
		_, _ = parseLimits(s)
		isActive(s)
		natural(s, "mlx5_0")
	})
}
