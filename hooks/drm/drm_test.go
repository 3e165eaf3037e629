package drm_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	oci "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	upstream "tags.cncf.io/container-device-interface/pkg/cdi"
	cdispecs "tags.cncf.io/container-device-interface/specs-go"

	"github.com/gangway-hpc/gangway/hooks/cdi"
	"github.com/gangway-hpc/gangway/hooks/drm"
)

// machine is a tree that looks like a host's /sys and /dev.
type machine struct {
	t     *testing.T
	root  string
	chars bool // nodes are true device nodes, which takes root
	minor int
}

func newMachine(t *testing.T) *machine {
	return &machine{t: t, root: t.TempDir(), chars: os.Getuid() == 0}
}

func (m *machine) options() drm.Options {
	return drm.Options{Sys: filepath.Join(m.root, "sys"), Dev: filepath.Join(m.root, "dev")}
}

func (m *machine) must(err error) {
	m.t.Helper()
	if err != nil {
		m.t.Fatal(err)
	}
}

func (m *machine) file(name, content string) {
	m.t.Helper()
	name = filepath.Join(m.root, name)
	m.must(os.MkdirAll(filepath.Dir(name), 0o755))
	m.must(os.WriteFile(name, []byte(content), 0o644))
}

func (m *machine) link(target, name string) {
	m.t.Helper()
	name = filepath.Join(m.root, name)
	m.must(os.MkdirAll(filepath.Dir(name), 0o755))
	m.must(os.Symlink(target, name))
}

// node makes a node of /dev.
func (m *machine) node(name string) {
	m.t.Helper()
	if !m.chars {
		m.file("dev/"+name, "")
		return
	}
	name = filepath.Join(m.root, "dev", name)
	m.must(os.MkdirAll(filepath.Dir(name), 0o755))
	m.minor++
	m.must(unix.Mknod(name, unix.S_IFCHR|0o666, int(unix.Mkdev(240, uint32(m.minor)))))
}

// device makes a device of sysfs, below /sys/devices, with nodes of a class.
func (m *machine) device(path, driver string, numa int, class string, nodes ...string) {
	m.t.Helper()
	dir := "sys/devices/" + path
	m.file(dir+"/numa_node", fmt.Sprintf("%d\n", numa))
	if driver != "" {
		m.link("../../../../bus/pci/drivers/"+driver, dir+"/driver")
	}
	if strings.HasPrefix(path, "pci") {
		m.link(filepath.Join(m.root, dir), "sys/bus/pci/devices/"+filepath.Base(path))
	}
	for _, n := range nodes {
		m.must(os.MkdirAll(filepath.Join(m.root, dir, class, n), 0o755))
		m.link("../../../"+filepath.Base(path), dir+"/"+class+"/"+n+"/device")
		m.link(filepath.Join(m.root, dir, class, n), "sys/class/"+class+"/"+n)
	}
}

// kfd makes a node of the compute topology.
func (m *machine) kfd(number int, lines string) {
	m.file(fmt.Sprintf("sys/class/kfd/kfd/topology/nodes/%d/properties", number), lines)
}

// mi300 is a machine with two GPUs of AMD, the second in two partitions, a display, an
// Intel GPU, a Gaudi, an NPU, an NVIDIA GPU and a virtual one.
func mi300(t *testing.T) *machine {
	m := newMachine(t)
	m.device("pci0000:00/0000:c1:00.0", "amdgpu", 1, "drm", "card2", "renderD129", "card2-DP-1")
	m.device("pci0000:00/0000:41:00.0", "amdgpu", 0, "drm", "card1", "renderD128")
	m.must(os.MkdirAll(filepath.Join(m.root, "sys/devices/platform"), 0o755))
	m.device("platform/amdgpu_xcp_0", "", -1, "drm", "card3", "renderD130")
	m.device("pci0000:00/0000:03:00.0", "xe", 0, "drm", "card0", "renderD131")
	m.device("pci0000:00/0000:04:00.0", "nvidia", 0, "drm", "card4", "renderD132")
	m.device("pci0000:00/0000:05:00.0", "habanalabs", 1, "accel", "accel0", "accel_controlD0")
	m.device("pci0000:00/0000:00:0b.0", "intel_vpu", -1, "accel", "accel1")
	m.device("platform/vkms", "", -1, "drm", "card5", "renderD133")
	m.file("sys/class/drm/version", "drm 1.1.0 20060810")
	m.kfd(0, "cpu_cores_count 64\nsimd_count 0\ndrm_render_minor 0\n")
	m.kfd(1, "simd_count 304\nunique_id 81985529216486895\nlocation_id 16640\ndomain 0\ndrm_render_minor 128\ngfx_target_version 90402\n")
	m.kfd(2, "simd_count 152\nunique_id 4660\nlocation_id 49408\ndomain 0\ndrm_render_minor 129\n")
	m.kfd(3, "simd_count 152\nunique_id 4660\nlocation_id 49408\ndomain 0\ndrm_render_minor 130\n")
	for _, n := range []string{"kfd", "dri/card0", "dri/card1", "dri/card2", "dri/card3", "dri/card4", "dri/renderD128", "dri/renderD129", "dri/renderD130", "dri/renderD131", "dri/renderD132", "accel/accel0", "accel/accel_controlD0", "accel/accel1"} {
		m.node(n)
	}
	m.link("../renderD131", "dev/dri/by-path/pci-0000:03:00.0-render")
	m.link("../card4", "dev/dri/by-path/pci-0000:03:00.0-card") // stale: of another device
	return m
}

func discover(t *testing.T, m *machine) *drm.Found {
	t.Helper()
	f, err := drm.Discover(t.Context(), m.options())
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// TestDiscover: what a machine of all sorts has, and what each is called.
func TestDiscover(t *testing.T) {
	m := mi300(t)
	f := discover(t, m)
	var got []string
	for _, spec := range f.Specs() {
		for _, d := range spec.Devices {
			var nodes []string
			for _, n := range d.ContainerEdits.DeviceNodes {
				text := n.Path
				if want := filepath.Join(m.root, n.Path); n.HostPath != want && !strings.Contains(n.Path, "by-path") {
					t.Errorf("%s is %s of the host, not %s", n.Path, n.HostPath, want)
				}
				nodes = append(nodes, strings.TrimPrefix(text, "/dev/"))
			}
			got = append(got, spec.Kind+"="+d.Name+": "+strings.Join(nodes, " "))
		}
	}
	want := []string{
		"amd.com/gpu=0: kfd dri/renderD128",
		"amd.com/gpu=0000:41:00.0: kfd dri/renderD128",
		"amd.com/gpu=GPU-0123456789abcdef: kfd dri/renderD128",
		"amd.com/gpu=1: kfd dri/renderD129",
		"amd.com/gpu=0000:c1:00.0: kfd dri/renderD129 dri/renderD130",
		"amd.com/gpu=GPU-0000000000001234: kfd dri/renderD129 dri/renderD130",
		"amd.com/gpu=2: kfd dri/renderD130",
		"amd.com/gpu=all: kfd dri/renderD128 dri/renderD129 dri/renderD130",
		"intel.com/gaudi=0: accel/accel0 accel/accel_controlD0",
		"intel.com/gaudi=0000:05:00.0: accel/accel0 accel/accel_controlD0",
		"intel.com/gaudi=all: accel/accel0 accel/accel_controlD0",
		"intel.com/gpu=0: dri/card0 dri/renderD131 dri/by-path/pci-0000:03:00.0-render",
		"intel.com/gpu=0000:03:00.0: dri/card0 dri/renderD131 dri/by-path/pci-0000:03:00.0-render",
		"intel.com/gpu=all: dri/card0 dri/renderD131 dri/by-path/pci-0000:03:00.0-render",
		"intel.com/npu=0: accel/accel1",
		"intel.com/npu=0000:00:0b.0: accel/accel1",
		"intel.com/npu=all: accel/accel1",
	}
	if !slices.Equal(got, want) {
		t.Errorf("devices\n%s\nnot\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if len(f.Warnings) != 0 {
		t.Errorf("%q", f.Warnings)
	}
	if d := f.Devices[2]; d.PCI != "0000:c1:00.0" || d.NUMA != 1 || d.Index != 2 {
		t.Errorf("a partition: %+v", d)
	}
}

// TestSpecsAreValid: of us and of the CDI library, and devices come through to an OCI
// specification with the numbers of the nodes.
func TestSpecsAreValid(t *testing.T) {
	m := mi300(t)
	dir := t.TempDir()
	r, err := cdi.Load(t.Context(), cdi.Options{Dirs: []string{t.TempDir()}})
	if err != nil {
		t.Fatal(err)
	}
	for _, spec := range discover(t, m).Specs() {
		if err := r.Add(spec, "found by the test"); err != nil {
			t.Error(err)
		}
		text, err := json.Marshal(spec)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, strings.ReplaceAll(spec.Kind, "/", "-")+".json"), text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	theirs, _ := upstream.NewCache(upstream.WithSpecDirs(dir), upstream.WithAutoRefresh(false))
	if got, want := r.Devices(), theirs.ListDevices(); !slices.Equal(got, want) || len(got) == 0 {
		t.Errorf("%v, the CDI library says %v", got, want)
	}
	if !m.chars {
		t.Skip("needs root, to make device nodes")
	}
	edits, err := r.Edits("amd.com/gpu=1", "amd.com/gpu=2")
	if err != nil {
		t.Fatal(err)
	}
	spec := &oci.Spec{}
	if _, err := cdi.Apply(spec, edits); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, rule := range spec.Linux.Resources.Devices {
		got = append(got, fmt.Sprintf("%s %d:%d %s", rule.Type, *rule.Major, *rule.Minor, rule.Access))
	}
	if want := []string{"c 240:1 rw", "c 240:8 rw", "c 240:9 rw"}; !slices.Equal(got, want) || len(spec.Mounts) != 3 {
		t.Errorf("%v, mounts %v", got, spec.Mounts)
	}
	if _, err := r.Edits("amd.com/gpu=3"); err == nil || strings.Contains(err.Error(), "renderD") {
		t.Errorf("a GPU that is not there: %v", err)
	}
}

// TestNodesMissing: a device whose nodes are not there is not offered, and it is said why.
func TestNodesMissing(t *testing.T) {
	for _, c := range []struct{ remove, want string }{
		{"kfd", "amd.com/gpu 0000:41:00.0: there is no "},
		{"dri/renderD128", "amd.com/gpu 0000:41:00.0: sysfs has renderD128 but there is no "},
	} {
		m := mi300(t)
		m.must(os.Remove(filepath.Join(m.root, "dev", c.remove)))
		f := discover(t, m)
		if !slices.ContainsFunc(f.Warnings, func(w string) bool {
			return strings.HasPrefix(w, c.want) && strings.HasSuffix(w, "no such file or directory")
		}) {
			t.Errorf("%q is not in %q", c.want, f.Warnings)
		}
		for _, d := range f.Devices {
			if d.PCI == "0000:41:00.0" {
				t.Errorf("offered without %s: %+v", c.remove, d)
			}
		}
	}
}

// TestNothing: a machine without anything, and one whose sysfs is odd, are no errors.
func TestNothing(t *testing.T) {
	m := newMachine(t)
	if f := discover(t, m); len(f.Devices)+len(f.Warnings)+len(f.Specs()) != 0 {
		t.Errorf("%+v", f)
	}
	m.link("/nowhere", "sys/class/drm/card0")
	m.link("loop", "sys/class/drm/loop")
	m.file("sys/class/drm/renderD", "")
	m.file("sys/class/drm/renderD128x/device/driver", "")
	m.device("pci0000:00/0000:zz:00.0", "amdgpu", 0, "drm", "card7")
	m.kfd(0, strings.Repeat("x", 1<<20)+"\x00\nsimd_count -1\nunique_id 99999999999999999999999\n")
	m.must(os.MkdirAll(filepath.Join(m.root, "sys/class/kfd/kfd/topology/nodes/1/properties"), 0o755))
	if f := discover(t, m); len(f.Devices)+len(f.Warnings) != 0 {
		t.Errorf("%+v", f)
	}
}

// TestHere: on the machine itself it does not fail, whatever that has.
func TestHere(t *testing.T) {
	f, err := drm.Discover(t.Context(), drm.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range f.Specs() {
		if err := cdispecs.ValidateVersion(s); err != nil {
			t.Error(err)
		}
	}
	t.Logf("here: %+v", f)
}
