package nvidia_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	oci "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/gangway-hpc/gangway/hooks/cdi"
	"github.com/gangway-hpc/gangway/hooks/nvidia"
	"github.com/gangway-hpc/gangway/hooks/nvidia/fakedriver"
)

// TestLayouts: wherever the driver is, a container of one GPU gets the same.
func TestLayouts(t *testing.T) {
	for _, layout := range []fakedriver.Layout{fakedriver.Distro, fakedriver.Local, fakedriver.Driver} {
		tree := fakedriver.New(t, fakedriver.Options{GPUs: 4, Layout: layout, Extras: true, Compat: true})
		d := discover(t, tree)
		if d.Version != fakedriver.Version || len(d.GPUs) != 4 || len(d.Warnings) > 0 {
			t.Errorf("found %+v", d)
		}
		for i, g := range d.GPUs {
			want := tree.GPUs[i]
			if g.Index != i || g.UUID != want.UUID || g.Minor != want.Minor || g.Bus != want.Bus || g.NUMA != i/2 || g.Cores == "" {
				t.Errorf("GPU %d: %+v, want %+v", i, g, want)
			}
		}
		e := edits(t, d, "", tree.GPUs[2].UUID)
		if got, want := nodes(e), "nvidiactl nvidia-uvm nvidia-uvm-tools gdrdrv nvidia-fs0 nvidia-fs1 nvidia3"; got != want {
			t.Errorf("layout %d: nodes %s, want %s", layout, got, want)
		}
		m := mounted(e)
		for path, host := range map[string]string{
			nvidia.LibDir + "/libcuda.so.1":                    tree.Lib + "/libcuda.so." + tree.Version,
			nvidia.LibDir + "/libcuda.so":                      tree.Lib + "/libcuda.so." + tree.Version,
			nvidia.LibDir + "/libcuda.so." + tree.Version:      tree.Lib + "/libcuda.so." + tree.Version,
			nvidia.LibDir + "/libnvidia-nvvm.so.4":             tree.Lib + "/libnvidia-nvvm.so." + tree.Version,
			nvidia.LibDir + "/libnvidia-gpucomp.so.580.95.05":  tree.Lib + "/libnvidia-gpucomp.so." + tree.Version,
			nvidia.LibDir + "/libnvidia-ml.so.1":               tree.Lib + "/libnvidia-ml.so." + tree.Version,
			"/usr/bin/nvidia-smi":                              tree.Bin + "/nvidia-smi",
			"/usr/bin/nvidia-imex":                             tree.Bin + "/nvidia-imex",
			"/lib/firmware/nvidia/" + tree.Version:             filepath.Join(tree.Root, tree.Home, "lib/firmware/nvidia", tree.Version),
			"/run/nvidia-persistenced/socket":                  tree.Root + "/run/nvidia-persistenced/socket",
			"/run/nvidia-fabricmanager/socket":                 tree.Root + "/run/nvidia-fabricmanager/socket",
			"/tmp/nvidia-mps":                                  tree.Root + "/tmp/nvidia-mps",
			"/etc/cufile.json":                                 tree.Root + "/etc/cufile.json",
			"/run/udev":                                        tree.Root + "/run/udev",
			nvidia.LibDir + "/libGLX_nvidia.so.0":              "",
			nvidia.LibDir + "/libnvidia-encode.so.1":           "",
			nvidia.LibDir32 + "/libcuda.so.1":                  "",
			"/usr/share/glvnd/egl_vendor.d/10_nvidia.json":     "",
			nvidia.LibDir + "/libvdpau_nvidia.so.1":            "",
			nvidia.LibDir + "/libnvidia-cfg.so." + "580.95.05": tree.Lib + "/libnvidia-cfg.so." + tree.Version,
		} {
			if m[path] != host {
				t.Errorf("layout %d: %s is %q, want %q", layout, path, m[path], host)
			}
		}
		for path, host := range m {
			if _, err := os.Stat(host); err != nil {
				t.Errorf("layout %d: %s: %v", layout, path, err)
			}
		}
	}
}

func TestCapabilities(t *testing.T) {
	tree := fakedriver.New(t, fakedriver.Options{GPUs: 2, Compat: true, Extras: true})
	d := discover(t, tree)
	for list, want := range map[string][]string{
		"compute":  {"libcuda.so.1", "libnvidia-ml.so.1", "!libnvidia-cfg.so.1", "!libnvcuvid.so.1", "!/usr/bin/nvidia-smi", "/usr/bin/nvidia-cuda-mps-server"},
		"utility":  {"!libcuda.so.1", "libnvidia-ml.so.1", "/usr/bin/nvidia-smi", "!/usr/bin/nvidia-cuda-mps-server", "!/tmp/nvidia-mps"},
		"video":    {"libnvcuvid.so.1", "libnvidia-encode.so.1", "libvdpau_nvidia.so.1", "!libcuda.so.1"},
		"graphics": {"libGLX_nvidia.so.0", "libnvidia-glcore.so.580.95.05", "libnvidia-gpucomp.so.580.95.05", "/usr/share/vulkan/icd.d/nvidia_icd.json", "!libcuda.so.1"},
		"display":  {"libGLX_nvidia.so.0"},
		"compat32": {"!libcuda.so.1", nvidia.LibDir32 + "/libcuda.so.1"},
		"all":      {"libcuda.so.1", "libGLX_nvidia.so.0", "libnvcuvid.so.1", nvidia.LibDir32 + "/libnvidia-ml.so.1", "/usr/bin/nvidia-smi"},
		"ngx":      {"libnvidia-ngx.so.1"},
	} {
		m := mounted(edits(t, d, list, "0"))
		for _, name := range want {
			path, not := strings.CutPrefix(name, "!")
			if !strings.HasPrefix(path, "/") {
				path = nvidia.LibDir + "/" + path
			}
			if (m[path] != "") == not {
				t.Errorf("%s: %s: mounted from %q", list, name, m[path])
			}
		}
	}
	if got, want := nodes(edits(t, d, "graphics", "1")), "nvidiactl nvidia-uvm nvidia-modeset nvidia0 dri/card1 dri/renderD129"; got != want {
		t.Errorf("graphics: nodes %s, want %s", got, want)
	}
	if got, want := nodes(edits(t, d, "utility", "all")), "nvidiactl nvidia1 nvidia0"; got != want {
		t.Errorf("utility: nodes %s, want %s", got, want)
	}
	if _, err := nvidia.ParseCapabilities("compute,warp"); err == nil || !strings.Contains(err.Error(), "warp") {
		t.Errorf("unknown capability: %v", err)
	}
	if set, warning, err := nvidia.ChooseCapabilities("", "warp"); err != nil || warning == "" || set != nvidia.Default {
		t.Errorf("image's unknown capability: %v, %q, %v", set, warning, err)
	}
	if set, _, err := nvidia.ChooseCapabilities("video", "compute"); err != nil || set != nvidia.Video || set.String() != "video" {
		t.Errorf("user's capability: %v, %v", set, err)
	}
	if _, _, err := nvidia.ChooseCapabilities("warp", ""); err == nil {
		t.Error("the user's unknown capability is no error")
	}
}

func TestMIG(t *testing.T) {
	tree := fakedriver.New(t, fakedriver.Options{GPUs: 2, MIG: 2})
	names := []nvidia.MIGName{{UUID: "MIG-aaaa", GPU: tree.GPUs[1].UUID, GI: 2, CI: 0}}
	d := discover(t, tree, func(o *nvidia.Options) { o.MIGs = names })
	var short []string
	for _, v := range d.Devices() {
		short = append(short, v.Short+"="+v.Name)
	}
	if got, want := strings.Join(short, " "), "0:1:0=0:1:0 0:2:0=0:2:0 1:1:0=1:1:0 1:2:0=MIG-aaaa"; got != want {
		t.Errorf("devices %s, want %s", got, want)
	}
	// The nodes of an instance are its GPU and two capabilities, no other instance's.
	if got, want := nodes(edits(t, d, "compute", "MIG-aaaa")), "nvidiactl nvidia-uvm nvidia-uvm-tools nvidia0 nvidia-caps/nvidia-cap16 nvidia-caps/nvidia-cap17"; got != want {
		t.Errorf("nodes %s, want %s", got, want)
	}
	if got, want := nodes(edits(t, d, "utility", "mig-config")), "nvidiactl nvidia-caps/nvidia-cap1"; got != want {
		t.Errorf("nodes %s, want %s", got, want)
	}
	if _, err := pick(d.Spec(nvidia.All, ""), "1"); err == nil {
		t.Error("a GPU that is split is given as a whole")
	}
}

func TestIMEX(t *testing.T) {
	with := discover(t, fakedriver.New(t, fakedriver.Options{GPUs: 1, Extras: true})).IMEXSpec()
	if with == nil || len(with.Devices) != 3 || with.Devices[1].Name != "7" || with.Devices[2].Name != "all" {
		t.Errorf("channels: %+v", with)
	}
	if spec := discover(t, fakedriver.New(t, fakedriver.Options{GPUs: 1})).IMEXSpec(); spec != nil {
		t.Errorf("channels where there are none: %+v", spec)
	}
	d := discover(t, fakedriver.New(t, fakedriver.Options{GPUs: 1, Extras: true}))
	if got := nodes(edits(t, d, "all", "all")); strings.Contains(got, "imex") || strings.Contains(got, "nvswitch") || strings.Contains(got, "caps") {
		t.Errorf("all GPUs are given %s", got)
	}
}

func TestNodeNumbers(t *testing.T) {
	tree := fakedriver.New(t, fakedriver.Options{GPUs: 1})
	if !tree.Real {
		t.Skip("needs root to make device nodes")
	}
	for _, n := range edits(t, discover(t, tree), "", "0").DeviceNodes {
		if n.Path == "/dev/nvidia0" && (n.Type != "c" || n.Major != 195 || n.Minor != 0 || n.HostPath != tree.Dev+"/nvidia0") {
			t.Errorf("node %+v", n)
		}
	}
}

// TestRegistry: the specs are valid to package cdi, which finds every file and node,
// and every device can be entered into an OCI spec.
func TestRegistry(t *testing.T) {
	tree := fakedriver.New(t, fakedriver.Options{GPUs: 2, MIG: 1, Extras: true, Compat: true})
	if !tree.Real {
		t.Skip("needs root to make device nodes")
	}
	d, params, err := nvidia.Cached(t.Context(), filepath.Join(t.TempDir(), "run"), nvidia.Options{Root: tree.Root})
	if err != nil {
		t.Fatal(err)
	}
	r, err := cdi.Load(t.Context(), cdi.Options{Dirs: []string{t.TempDir()}})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(r.Add(d.Spec(nvidia.All, params), "found"), r.Add(d.IMEXSpec(), "found")); err != nil {
		t.Fatal(err)
	}
	names := r.Devices()
	for _, want := range []string{nvidia.Kind + "=all", nvidia.Kind + "=1:1:0", nvidia.Kind + "=mig-monitor", nvidia.KindIMEX + "=7"} {
		if !slices.Contains(names, want) {
			t.Errorf("there is no %s among %v", want, names)
		}
	}
	e, err := r.Edits(names...)
	if err != nil {
		t.Fatal(err)
	}
	var spec oci.Spec
	report, err := cdi.Apply(&spec, e)
	if err != nil || len(report.Cannot) > 0 || len(report.Denied) > 0 || len(report.Hooks) > 0 {
		t.Errorf("apply: %v, cannot %v, denied %v", err, report.Cannot, report.Denied)
	}
	for _, want := range []string{"/dev/nvidia0", "/dev/nvidia-caps/nvidia-cap12", nvidia.LibDir + "/libcuda.so.1", "/proc/driver/nvidia/params", "/usr/bin/nvidia-smi"} {
		if !slices.ContainsFunc(spec.Mounts, func(m oci.Mount) bool { return m.Destination == want }) {
			t.Errorf("%s is not in the OCI spec", want)
		}
	}
	few, err := r.Edits(nvidia.Kind + "=0:1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("all capabilities and 32 bits: %d mounts, %d nodes", len(few.Mounts), len(few.DeviceNodes))
}

func TestParams(t *testing.T) {
	d := discover(t, fakedriver.New(t, fakedriver.Options{GPUs: 1}))
	if !strings.Contains(d.Params, "ModifyDeviceFiles: 0\n") || !strings.Contains(d.Params, "DeviceFileMode: 438") {
		t.Errorf("params %q", d.Params)
	}
	spec := d.Spec(nvidia.All, "/x/params")
	e, err := pick(spec, "0")
	if err != nil || mounted(e)["/proc/driver/nvidia/params"] != "/x/params" {
		t.Errorf("not mounted: %v", err)
	}
}

// TestBroken: what a machine may lack, and what is said of it.
func TestBroken(t *testing.T) {
	find := func(root string) error {
		_, err := nvidia.Discover(t.Context(), nvidia.Options{Root: root})
		return err
	}
	wantFault(t, find(t.TempDir()), nvidia.ErrNoDriver, "modprobe nvidia", "driver/nvidia/version")

	other := fakedriver.New(t, fakedriver.Options{GPUs: 1})
	other.Write(t, "proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.10  Mon\n")
	wantFault(t, find(other.Root), nvidia.ErrMismatch, "kernel module is 570.10", "580.95.05 in "+other.Lib, "Driver/library version mismatch", "modprobe -r")

	without := fakedriver.New(t, fakedriver.Options{GPUs: 1})
	if err := os.RemoveAll(without.Lib); err != nil {
		t.Fatal(err)
	}
	wantFault(t, find(without.Root), nvidia.ErrNoLibraries, "libcuda.so.580.95.05", "--nvidia-root")

	uvm := fakedriver.New(t, fakedriver.Options{GPUs: 2})
	if err := errors.Join(os.Remove(uvm.Dev+"/nvidia-uvm"), os.Remove(uvm.Dev+"/nvidia0")); err != nil {
		t.Fatal(err)
	}
	d := discover(t, uvm)
	if text := strings.Join(d.Warnings, "\n"); len(d.GPUs) != 1 || !strings.Contains(text, "nvidia-modprobe -u") || !strings.Contains(text, uvm.GPUs[1].Bus) {
		t.Errorf("%d GPUs, warnings %s", len(d.GPUs), text)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("gave up")
	cancel(why)
	if _, err := nvidia.Discover(ctx, nvidia.Options{Root: uvm.Root}); !errors.Is(err, why) {
		t.Errorf("canceled: %v", err)
	}
}

// TestWithoutProc: under gVisor there is no /proc/driver/nvidia; nodes and libraries
// say enough.
func TestWithoutProc(t *testing.T) {
	tree := fakedriver.New(t, fakedriver.Options{GPUs: 2, Layout: fakedriver.Local})
	if err := errors.Join(os.RemoveAll(tree.Proc), os.RemoveAll(tree.Sys)); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		d := discover(t, tree)
		if d.Version != fakedriver.Version || len(d.GPUs) != 2 || len(d.Warnings) == 0 || d.GPUs[1].UUID != "" {
			t.Errorf("found %+v", d)
		}
		for _, name := range []string{"libcuda.so.1", "libnvidia-ml.so.1"} { // once more without the links
			if err := os.RemoveAll(filepath.Join(tree.Lib, name)); err != nil {
				t.Fatal(err)
			}
		}
	}
	d := discover(t, tree)
	if got, want := nodes(edits(t, d, "utility", "1")), "nvidiactl nvidia1"; got != want {
		t.Errorf("nodes %s, want %s", got, want)
	}
}

// TestRoots: an explicit root comes first, and one that is not the driver's does not
// hide the machine's own.
func TestRoots(t *testing.T) {
	tree := fakedriver.New(t, fakedriver.Options{GPUs: 1})
	elsewhere := fakedriver.New(t, fakedriver.Options{Layout: fakedriver.Local})
	flat := filepath.Join(elsewhere.Root, "usr/local/nvidia")
	for _, roots := range [][]string{{flat}, {elsewhere.Root}, {t.TempDir(), flat}} {
		d := discover(t, tree, func(o *nvidia.Options) { o.Roots = roots })
		if m := mounted(edits(t, d, "", "0")); roots[0] != elsewhere.Root && !strings.HasPrefix(m[nvidia.LibDir+"/libcuda.so.1"], flat) {
			t.Errorf("roots %v: libcuda is %s", roots, m[nvidia.LibDir+"/libcuda.so.1"])
		}
	}
	d := discover(t, tree, func(o *nvidia.Options) { o.Roots = []string{t.TempDir()} })
	if !strings.HasPrefix(d.Root, tree.Root) {
		t.Errorf("found in %s", d.Root)
	}
}

// TestAlternatives: Debian's driver is behind links through /etc/alternatives, which
// are absolute within the driver's root.
func TestAlternatives(t *testing.T) {
	for _, layout := range []fakedriver.Layout{fakedriver.Distro, fakedriver.Driver} {
		tree := fakedriver.New(t, fakedriver.Options{GPUs: 1, Layout: layout})
		home := filepath.Join(tree.Root, tree.Home)
		hidden := filepath.Join(home, "opt/odd/nvidia")
		if err := errors.Join(os.MkdirAll(filepath.Dir(hidden), 0o755), os.Rename(tree.Lib, hidden), os.MkdirAll(tree.Lib, 0o755),
			os.MkdirAll(home+"/etc/alternatives", 0o755), os.Symlink("/opt/odd/nvidia/libcuda.so.1", home+"/etc/alternatives/libcuda"),
			os.Symlink("/etc/alternatives/libcuda", tree.Lib+"/libcuda.so.1")); err != nil {
			t.Fatal(err)
		}
		if ldconfigCache(t, home, "/usr/lib/"+fakedriver.Triplet()) {
			d := discover(t, tree)
			if m := mounted(edits(t, d, "", "0")); m[nvidia.LibDir+"/libnvidia-ml.so.1"] != hidden+"/libnvidia-ml.so."+tree.Version {
				t.Errorf("libnvidia-ml is %q", m[nvidia.LibDir+"/libnvidia-ml.so.1"])
			}
		}
	}
}

// TestHostileTree: files of the wrong kind in the driver's directories are not
// mounted, nor links that leave its root.
func TestHostileTree(t *testing.T) {
	tree := fakedriver.New(t, fakedriver.Options{GPUs: 1, Layout: fakedriver.Driver})
	if err := errors.Join(
		os.WriteFile(tree.Lib+"/libtext.so."+tree.Version, []byte("no library"), 0o644),
		os.WriteFile(tree.Lib+"/libother.so."+tree.Version, fakedriver.ELF(fakedriver.Library{Soname: "../../etc/passwd"}), 0o644),
		os.Mkdir(tree.Lib+"/libdir.so."+tree.Version, 0o755),
		unix.Mkfifo(tree.Lib+"/libfifo.so."+tree.Version, 0o644),
		os.Symlink("/../../../../../etc/passwd", tree.Bin+"/nvidia-cuda-mps-serverx"),
		os.Remove(tree.Bin+"/nvidia-imex"), os.Symlink("/etc/passwd", tree.Bin+"/nvidia-imex"),
	); err != nil {
		t.Fatal(err)
	}
	for path, host := range mounted(edits(t, discover(t, tree), "all", "0")) {
		for _, bad := range []string{"text", "dir", "fifo", "passwd", "imex.so", ".."} {
			if strings.Contains(path, bad) || strings.Contains(host, "passwd") {
				t.Errorf("%s is mounted from %s", path, host)
			}
		}
	}
}

func TestWSL(t *testing.T) {
	tree := fakedriver.New(t, fakedriver.Options{})
	tree.Write(t, "dev/dxg", "")
	tree.Write(t, "usr/lib/wsl/lib/libcuda.so.1.1", string(fakedriver.ELF(fakedriver.Library{Soname: "libcuda.so.1"})))
	tree.Write(t, "usr/lib/wsl/lib/libdxcore.so", string(fakedriver.ELF(fakedriver.Library{Soname: "libdxcore.so"})))
	tree.Write(t, "usr/lib/wsl/lib/nvidia-smi", "")
	tree.Write(t, "usr/lib/wsl/drivers/nv/x.dll", "")
	d := discover(t, tree)
	e := edits(t, d, "", "all")
	m := mounted(e)
	if !d.WSL || nodes(e) != "dxg" || m["/usr/lib/wsl/drivers"] == "" || m[nvidia.LibDir+"/libcuda.so.1"] == "" || m[nvidia.LibDir+"/libdxcore.so"] == "" || m["/usr/bin/nvidia-smi"] == "" {
		t.Errorf("nodes %s, mounts %v", nodes(e), m)
	}
}
