package rdma

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// tree is a fake machine: sysfs with its links, and device nodes.
type tree struct {
	t    testing.TB
	root string
}

func newTree(t testing.TB) *tree {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: it makes device nodes")
	}
	tr := &tree{t: t, root: t.TempDir()}
	for _, dir := range []string{"sys/devices", "sys/bus/pci/devices", "sys/class", "dev/infiniband", "proc/self"} {
		tr.mkdir(dir)
	}
	return tr
}

func (tr *tree) options() Options {
	return Options{Sys: tr.root + "/sys", Dev: tr.root + "/dev", Proc: tr.root + "/proc", Run: tr.root + "/run"}
}

func (tr *tree) host() *Host {
	tr.t.Helper()
	h, err := Discover(tr.t.Context(), tr.options())
	if err != nil {
		tr.t.Fatal(err)
	}
	return h
}

func (tr *tree) mkdir(dir string) {
	tr.t.Helper()
	if err := os.MkdirAll(filepath.Join(tr.root, dir), 0o755); err != nil {
		tr.t.Fatal(err)
	}
}

func (tr *tree) write(name, text string) {
	tr.t.Helper()
	tr.mkdir(filepath.Dir(name))
	if err := os.WriteFile(filepath.Join(tr.root, name), []byte(text), 0o644); err != nil {
		tr.t.Fatal(err)
	}
}

// link makes a relative link, as sysfs does.
func (tr *tree) link(name, target string) {
	tr.t.Helper()
	tr.mkdir(filepath.Dir(name))
	rel, err := filepath.Rel(filepath.Dir(name), target)
	if err == nil {
		err = os.Symlink(rel, filepath.Join(tr.root, name))
	}
	if err != nil {
		tr.t.Fatal(err)
	}
}

func (tr *tree) mknod(name string, major, minor uint32) {
	tr.t.Helper()
	tr.mkdir(filepath.Dir("dev/" + name))
	if err := unix.Mknod(filepath.Join(tr.root, "dev", name), unix.S_IFCHR|0o666, int(unix.Mkdev(major, minor))); err != nil {
		tr.t.Skipf("needs the right to make device nodes: %v", err)
	}
}

// pci makes a PCI device at a path below SYS/devices.
func (tr *tree) pci(path string, numa int) string {
	dir := "sys/devices/" + path
	tr.write(dir+"/numa_node", fmt.Sprintf("%d\n", numa))
	tr.link("sys/bus/pci/devices/"+filepath.Base(path), dir)
	return dir
}

// adapter is what hca makes.
type adapter struct {
	name, path, driver, link, state string
	numa, uverbs                    int
}

// hca makes an adapter with verbs and management devices, numbered as given.
func (tr *tree) hca(a adapter) {
	tr.t.Helper()
	parent := "sys/devices/virtual"
	if a.path != "" {
		parent = tr.pci(a.path, a.numa)
		tr.mkdir("sys/bus/pci/drivers/" + a.driver)
		tr.link(parent+"/driver", "sys/bus/pci/drivers/"+a.driver)
	}
	dir := parent + "/infiniband/" + a.name
	tr.write(dir+"/ports/1/state", a.state+"\n")
	tr.write(dir+"/ports/1/link_layer", a.link+"\n")
	tr.entry("infiniband", a.name, dir, a, false)
	verbs := fmt.Sprintf("uverbs%d", a.uverbs)
	tr.node(parent, "infiniband_verbs", verbs, a, 231, 192+a.uverbs)
	for i, kind := range []string{"umad", "issm"} {
		tr.node(parent, "infiniband_mad", fmt.Sprintf("%s%d", kind, a.uverbs), a, 231, a.uverbs+64*i)
	}
}

func (tr *tree) node(parent, class, name string, a adapter, major, minor int) {
	dir := parent + "/" + class + "/" + name
	tr.write(dir+"/ibdev", a.name+"\n")
	tr.write(dir+"/dev", fmt.Sprintf("%d:%d\n", major, minor))
	tr.write(dir+"/uevent", fmt.Sprintf("MAJOR=%d\nMINOR=%d\nDEVNAME=infiniband/%s\n", major, minor, name))
	tr.mknod("infiniband/"+name, uint32(major), uint32(minor))
	tr.entry(class, name, dir, a, true)
}

// entry links a device into its class.
func (tr *tree) entry(class, name, dir string, a adapter, version bool) {
	tr.link("sys/class/"+class+"/"+name, dir)
	if a.path != "" {
		tr.link(dir+"/device", "sys/devices/"+a.path)
	}
	if version {
		tr.write("sys/class/"+class+"/abi_version", "6\n")
	}
}

func (tr *tree) cm() {
	tr.write("sys/class/misc/rdma_cm/dev", "10:122\n")
	tr.write("sys/class/misc/rdma_cm/uevent", "MAJOR=10\nMINOR=122\nDEVNAME=infiniband/rdma_cm\n")
	tr.mknod("infiniband/rdma_cm", 10, 122)
}

const active, down, infiniband, ethernet = "4: ACTIVE", "1: DOWN", "InfiniBand", "Ethernet"

// dgx makes a machine like a DGX H100: eight GPUs, each with an adapter at its switch,
// two adapters for storage elsewhere, one of them over Ethernet, and one without a
// cable. The numbers of the verbs devices are not those of the adapters, and names sort
// past ten.
func dgx(t testing.TB) (*tree, []string) {
	tr := newTree(t)
	var gpus []string
	for i := range 8 {
		base := fmt.Sprintf("pci0000:%02x/0000:%02x:01.0/0000:%02x:00.0", 16+16*i, 16+16*i, 17+16*i)
		gpu := fmt.Sprintf("%s/0000:%02x:00.0/0000:%02x:00.0", base, 18+16*i, 19+16*i)
		nic := fmt.Sprintf("%s/0000:%02x:01.0/0000:%02x:00.0", base, 18+16*i, 20+16*i)
		tr.pci(gpu, i/4)
		gpus = append(gpus, filepath.Base(gpu))
		tr.hca(adapter{name: fmt.Sprintf("mlx5_%d", i+3), path: nic, driver: "mlx5_core", link: infiniband, state: active, numa: i / 4, uverbs: 10 - i})
	}
	for i, a := range []adapter{
		{name: "mlx5_0", link: ethernet, state: active, numa: 0},
		{name: "mlx5_1", link: infiniband, state: active, numa: 1},
		{name: "mlx5_2", link: infiniband, state: down, numa: 1},
	} {
		a.path = fmt.Sprintf("pci0000:%02x/0000:%02x:02.0/0000:%02x:00.0", 0x90+i, 0x90+i, 0xa0+i)
		a.driver, a.uverbs = "mlx5_core", i
		tr.hca(a)
	}
	tr.cm()
	return tr, gpus
}

func names(all []HCA) string {
	var s []string
	for _, a := range all {
		s = append(s, a.Name)
	}
	return strings.Join(s, " ")
}
