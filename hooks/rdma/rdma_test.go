package rdma

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gangway-hpc/gangway/hooks/cdi"
	"github.com/gangway-hpc/gangway/internal/fault"
)

// TestDiscover: each adapter has the verbs device that says so, whatever the numbers.
func TestDiscover(t *testing.T) {
	tr, _ := dgx(t)
	h := tr.host()
	if got := names(h.HCAs); got != "mlx5_0 mlx5_1 mlx5_2 mlx5_3 mlx5_4 mlx5_5 mlx5_6 mlx5_7 mlx5_8 mlx5_9 mlx5_10" {
		t.Fatal(got)
	}
	a := h.HCAs[3]
	if a.Nodes[0] != (Node{"infiniband/uverbs10", 231, 202}) || len(a.Nodes) != 1 || len(a.Admin) != 0 {
		t.Errorf("%s has the nodes %v and %v", a.Name, a.Nodes, a.Admin)
	}
	if a.PCI != "0000:14:00.0" || a.Path != "pci0000:10/0000:10:01.0/0000:11:00.0/0000:12:01.0/0000:14:00.0" || a.Driver != "mlx5_core" || a.NUMA != 0 {
		t.Errorf("%+v", a)
	}
	if p := a.Ports[0]; p.Number != 1 || !p.Active || p.Link != infiniband {
		t.Errorf("%+v", p)
	}
	if h.HCAs[0].Fabric != RoCE || a.Fabric != InfiniBand || h.HCAs[2].Active() {
		t.Errorf("%+v", h.HCAs[:3])
	}
	if h.CM == nil || *h.CM != (Node{"infiniband/rdma_cm", 10, 122}) || len(h.Notes) != 0 {
		t.Errorf("%v %q", h.CM, h.Notes)
	}
}

// TestDiscoverNone: a machine without RDMA, and one without sysfs, have nothing, need no
// mount and no warning.
func TestDiscoverNone(t *testing.T) {
	for _, o := range []Options{{Sys: t.TempDir()}, {Sys: "/nonexistent"}} {
		h, err := Discover(t.Context(), o)
		if err != nil || len(h.HCAs)+len(h.Notes)+len(h.Specs()) != 0 {
			t.Errorf("%+v %v", h, err)
		}
		c, err := h.Choose(Request{GPUs: []string{"0000:01:00.0"}})
		if err != nil || len(c.HCAs)+len(c.Notes) != 0 {
			t.Errorf("%+v, %v", c, err)
		}
		e, err := h.Edits(c, t.TempDir())
		if err != nil || len(e.Mounts)+len(e.DeviceNodes) != 0 {
			t.Errorf("%+v %v", e, err)
		}
		_, err = h.Choose(Request{Devices: []string{"mlx5_0"}})
		if e := (*fault.Error)(nil); !errors.As(err, &e) || !strings.Contains(e.Hint, "none") {
			t.Errorf("%v", err)
		}
	}
}

// TestDamaged: missing, stale and foreign device nodes, and nonsense in sysfs, cost the
// one adapter and a note that says which file.
func TestDamaged(t *testing.T) {
	tr, _ := dgx(t)
	dev := func(name string) string { return filepath.Join(tr.root, "dev/infiniband", name) }
	for _, name := range []string{"uverbs0", "uverbs1", "uverbs2"} {
		if err := os.Remove(dev(name)); err != nil {
			t.Fatal(err)
		}
	}
	tr.mknod("infiniband/uverbs1", 1, 3)            // stale: of mlx5_1
	tr.write("dev/infiniband/uverbs2", "a file")    // of mlx5_2
	tr.write("sys/class/infiniband/odd", "")        // a file where adapters are
	tr.mkdir("sys/class/infiniband_verbs/uverbs99") // without ibdev
	tr.write("sys/class/infiniband_verbs/uverbs98/ibdev", "gone_7\n")
	tr.write("sys/devices/pci0000:10/0000:10:01.0/0000:11:00.0/0000:12:01.0/0000:14:00.0/infiniband_verbs/uverbs10/dev", "x:y")
	tr.write("sys/devices/pci0000:20/0000:20:01.0/0000:21:00.0/0000:22:01.0/0000:24:00.0/numa_node", "many\n")
	if err := os.Remove(dev("rdma_cm")); err != nil {
		t.Fatal(err)
	}
	h := tr.host()
	if got := names(h.HCAs); got != "mlx5_4 mlx5_5 mlx5_6 mlx5_7 mlx5_8 mlx5_9 mlx5_10" {
		t.Error(got)
	}
	if a := h.HCAs[0]; a.Nodes[0].Name != "infiniband/uverbs9" || a.NUMA != -1 {
		t.Errorf("%+v", a)
	}
	notes := strings.Join(h.Notes, "\n")
	for _, want := range []string{"uverbs0: no such file", "uverbs1 is device 1:3, and the kernel's is 231:193", "uverbs2 is no character device", "odd is left out", `"gone_7"`, `"x:y" is not MAJOR:MINOR`, "modprobe rdma_ucm"} {
		if !strings.Contains(notes, want) {
			t.Errorf("%q is missing in:\n%s", want, notes)
		}
	}
}

// TestChooseNear: each GPU gets the adapter at its switch, and nobody the ones for
// storage; a GPU whose own adapter is down gets the nearest that works.
func TestChooseNear(t *testing.T) {
	tr, gpus := dgx(t)
	h := tr.host()
	c, err := h.Choose(Request{GPUs: []string{"00000000:" + strings.ToUpper(strings.TrimPrefix(gpus[0], "0000:")), gpus[7]}})
	if err != nil || names(c.HCAs) != "mlx5_3 mlx5_10" {
		t.Fatalf("%v %v", c, err)
	}
	if n := c.Near[0]; n.GPU != gpus[0] || n.Distance != PIX || !slices.Equal(n.HCAs, []string{"mlx5_3"}) {
		t.Errorf("%+v", n)
	}
	if len(c.Notes) != 1 || !strings.Contains(c.Notes[0], "mlx5_2") || !strings.Contains(c.Notes[0], "1: DOWN") {
		t.Errorf("%q", c.Notes)
	}
	if c, err = h.Choose(Request{GPUs: gpus}); err != nil || names(c.HCAs) != "mlx5_3 mlx5_4 mlx5_5 mlx5_6 mlx5_7 mlx5_8 mlx5_9 mlx5_10" {
		t.Errorf("%v %v", c, err)
	}

	tr.write("sys/devices/pci0000:10/0000:10:01.0/0000:11:00.0/0000:12:01.0/0000:14:00.0/infiniband/mlx5_3/ports/1/state", "1: DOWN\n")
	if c, err = tr.host().Choose(Request{GPUs: gpus[:1]}); err != nil || names(c.HCAs) != "mlx5_0 mlx5_4 mlx5_5 mlx5_6" || c.Near[0].Distance != NODE {
		t.Errorf("%v %v", c, err)
	}
	if c, err = h.Choose(Request{GPUs: []string{"0000:99:00.0"}}); err != nil || len(c.HCAs) != 10 || !strings.Contains(strings.Join(c.Notes, " "), "the GPU 0000:99:00.0") {
		t.Errorf("%v %v", c, err)
	}
	if _, err := h.Choose(Request{GPUs: []string{"../../x"}}); err == nil {
		t.Error("that is no address")
	}
}

// TestChooseNamed: by name, by Enroot's positions, all and none; what is not there is
// named together with what is.
func TestChooseNamed(t *testing.T) {
	tr, gpus := dgx(t)
	h := tr.host()
	for text, want := range map[string]string{
		"mlx5_10,mlx5_2": "mlx5_2 mlx5_10", "0,3": "mlx5_0 mlx5_3", "none": "", "void": "", "all": names(h.HCAs),
		"": "mlx5_3", "auto": "mlx5_3", "mlx5_1 mlx5_1": "mlx5_1",
	} {
		c, err := h.Choose(Request{Devices: ParseDevices(text), GPUs: gpus[:1]})
		if err != nil || names(c.HCAs) != want {
			t.Errorf("%q: %v %v, want %q", text, c, err, want)
		}
	}
	for _, text := range []string{"mlx5_11", "11", "-1", "mlx5_1,auto", "MLX5_0", "mlx5"} {
		_, err := h.Choose(Request{Devices: ParseDevices(text)})
		if e := (*fault.Error)(nil); !errors.As(err, &e) || !strings.Contains(e.Hint, "mlx5_0") {
			t.Errorf("%q: %v", text, err)
		}
	}
	if c, _ := h.Choose(Request{Devices: []string{"mlx5_2"}}); len(c.Notes) != 1 {
		t.Errorf("%q", c.Notes)
	}
}

// TestKinds: EFA, Slingshot, software and virtual functions.
func TestKinds(t *testing.T) {
	tr := newTree(t)
	tr.hca(adapter{name: "efa_0", path: "pci0000:00/0000:00:1d.0", driver: "efa", link: "", state: active, numa: -1, uverbs: 0})
	tr.hca(adapter{name: "rxe0", link: ethernet, state: active, uverbs: 1})
	pf := "pci0000:40/0000:40:01.0/0000:41:00.0"
	tr.hca(adapter{name: "mlx5_0", path: pf, driver: "mlx5_core", link: infiniband, state: active, uverbs: 2})
	tr.hca(adapter{name: "mlx5_1", path: "pci0000:40/0000:40:01.0/0000:41:00.2", driver: "mlx5_core", link: infiniband, state: active, uverbs: 3})
	tr.link("sys/devices/pci0000:40/0000:40:01.0/0000:41:00.2/physfn", "sys/devices/"+pf)
	cxi := tr.pci("pci0000:50/0000:51:00.0", 0)
	tr.write(cxi+"/cxi_user/cxi0/dev", "508:0\n")
	tr.link("sys/class/cxi_user/cxi0", cxi+"/cxi_user/cxi0")
	tr.link(cxi+"/cxi_user/cxi0/device", cxi)
	tr.mknod("cxi0", 508, 0)
	h := tr.host()
	if names(h.HCAs) != "cxi0 efa_0 mlx5_0 mlx5_1 rxe0" {
		t.Fatal(names(h.HCAs), h.Notes)
	}
	for i, want := range []Fabric{CXI, EFA, InfiniBand, InfiniBand, Software} {
		if h.HCAs[i].Fabric != want {
			t.Errorf("%s is %s", h.HCAs[i].Name, h.HCAs[i].Fabric)
		}
	}
	if a := h.HCAs[3]; a.Parent != "0000:41:00.0" {
		t.Errorf("%+v", a)
	}
	c, err := h.Choose(Request{})
	if err != nil || names(c.HCAs) != "cxi0 efa_0 mlx5_0" || len(c.Notes) != 2 {
		t.Errorf("%v %v", c, err)
	}
	var kinds []string
	for _, s := range h.Specs() {
		if b, err := json.Marshal(s); err != nil {
			t.Error(err)
		} else if _, err := cdi.Parse(b); err != nil {
			t.Errorf("as a file of CDI it is refused: %v", err)
		}
		kinds = append(kinds, s.Kind+"="+s.Devices[0].Name)
		if n := s.Devices[0].ContainerEdits.DeviceNodes; len(n) != 1 || n[0].HostPath != tr.root+n[0].Path {
			t.Errorf("%+v", n)
		}
	}
	if got := strings.Join(kinds, " "); got != "amazon.com/efa=efa_0 gangway.rdma/hca=rxe0 hpe.com/cxi=cxi0 mellanox.com/hca=mlx5_0" {
		t.Error(got)
	}
	// A virtual machine has virtual functions only: they are what it uses.
	if err := os.Remove(tr.root + "/sys/class/infiniband/mlx5_0"); err != nil {
		t.Fatal(err)
	}
	if c, err = tr.host().Choose(Request{}); err != nil || names(c.HCAs) != "cxi0 efa_0 mlx5_1" {
		t.Errorf("%v %v", c, err)
	}
}

// TestEdits: the container has the nodes of the choice and, in sysfs, links to nothing
// else that lead where the kernel's do.
func TestEdits(t *testing.T) {
	tr, gpus := dgx(t)
	tr.write("run/nvidia-topologyd/virtualTopology.xml", "<system/>")
	h := tr.host()
	c, err := h.Choose(Request{GPUs: gpus[:1]})
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	e, err := h.Edits(c, dir)
	if err != nil {
		t.Fatal(err)
	}
	var nodes, mounts []string
	for _, n := range e.DeviceNodes {
		nodes = append(nodes, n.Path)
	}
	if got := strings.Join(nodes, " "); got != "/dev/infiniband/uverbs10 /dev/infiniband/rdma_cm" {
		t.Error(got)
	}
	for _, m := range e.Mounts {
		mounts = append(mounts, m.ContainerPath)
		if !slices.Contains(m.Options, "ro") {
			t.Errorf("%+v", m)
		}
	}
	if got := strings.Join(mounts, " "); got != "/sys/class/infiniband /sys/class/infiniband_verbs /sys/class/infiniband_mad /var/run/nvidia-topologyd/virtualTopology.xml" {
		t.Error(got)
	}
	for class, want := range map[string]string{"infiniband": "mlx5_3", "infiniband_verbs": "abi_version uverbs10", "infiniband_mad": "abi_version"} {
		var have []string
		entries, _ := os.ReadDir(filepath.Join(dir, class))
		for _, entry := range entries {
			have = append(have, entry.Name())
			if entry.Type() != os.ModeSymlink {
				continue
			}
			got, _ := os.Readlink(filepath.Join(dir, class, entry.Name()))
			kernel, _ := os.Readlink(h.sys("class", class, entry.Name()))
			if got != kernel || got == "" {
				t.Errorf("%s leads to %q, the kernel's to %q", entry.Name(), got, kernel)
			}
		}
		if got := strings.Join(have, " "); got != want {
			t.Errorf("%s has %q, want %q", class, got, want)
		}
	}
	if _, err := h.Edits(c, dir); err == nil {
		t.Error("another container's directory is used")
	}

	o := tr.options()
	o.Admin = true
	admin, err := Discover(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	c, _ = admin.Choose(Request{GPUs: gpus[:1]})
	dir = t.TempDir()
	if e, err = admin.Edits(c, dir); err != nil || len(e.DeviceNodes) != 4 || e.DeviceNodes[2].Path != "/dev/infiniband/umad10" {
		t.Errorf("%+v %v", e, err)
	}
	if _, err := os.Lstat(dir + "/infiniband_mad/issm10"); err != nil {
		t.Error(err)
	}
	c, _ = h.Choose(Request{Devices: []string{"none"}})
	if e, err = h.Edits(c, t.TempDir()); err != nil || len(e.DeviceNodes) != 0 || len(e.Mounts) != 3 {
		t.Errorf("%v %v", e, err)
	}
}

// BenchmarkHook: what a container costs on a machine with eight GPUs and eleven adapters.
func BenchmarkHook(b *testing.B) {
	tr, gpus := dgx(b)
	b.Run("discover", func(b *testing.B) {
		for b.Loop() {
			if _, err := Discover(b.Context(), tr.options()); err != nil {
				b.Fatal(err)
			}
		}
	})
	h, err := Discover(b.Context(), tr.options())
	if err != nil {
		b.Fatal(err)
	}
	b.Run("edits", func(b *testing.B) {
		for i := 0; b.Loop(); i++ {
			c, err := h.Choose(Request{GPUs: gpus})
			if err != nil {
				b.Fatal(err)
			}
			dir := filepath.Join(b.TempDir(), fmt.Sprint("run", i))
			if err := os.Mkdir(dir, 0o700); err != nil {
				b.Fatal(err)
			}
			if _, err := h.Edits(c, dir); err != nil {
				b.Fatal(err)
			}
		}
	})
}
