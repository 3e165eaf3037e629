package nvidia

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gangway-hpc/gangway/hooks/ldcache"
	"github.com/gangway-hpc/gangway/internal/fault"
)

// The driver's programs, each with its capability.
var programs = []struct {
	name string
	use  Capabilities
}{
	{"nvidia-smi", Utility},
	{"nvidia-debugdump", Utility},
	{"nvidia-persistenced", Utility},
	{"nvidia-cuda-mps-control", Compute},
	{"nvidia-cuda-mps-server", Compute},
	{"nvidia-imex", Compute},
	{"nvidia-imex-ctl", Compute},
}

// Configuration, below a prefix's share and, failing that, /etc.
var configurations = []string{
	"glvnd/egl_vendor.d/10_nvidia.json", "vulkan/icd.d/nvidia_icd.json", "vulkan/icd.d/nvidia_layers.json", "vulkan/implicit_layer.d/nvidia_layers.json",
	"egl/egl_external_platform.d/10_nvidia_wayland.json", "egl/egl_external_platform.d/15_nvidia_gbm.json",
	"egl/egl_external_platform.d/20_nvidia_xcb.json", "egl/egl_external_platform.d/20_nvidia_xlib.json", "nvidia/nvoptix.bin",
}

// Sockets and pipes of daemons, and what GPUDirect storage reads. They are of the
// host, wherever the driver's root is.
var hostFiles = []File{
	{Path: "/run/nvidia-persistenced/socket", Write: true, Use: Utility | Compute},
	{Path: "/run/nvidia-fabricmanager/socket", Write: true, Use: Utility | Compute},
	{Path: "/tmp/nvidia-mps", Write: true, Use: Compute},
	{Path: "/etc/cufile.json", Use: Compute},
}

// readFiles finds programs, configuration, firmware and sockets.
func (d *Driver) readFiles(o Options) {
	d.readPrograms()
	d.readFirmware(o)
	for _, f := range hostFiles {
		f.Host = filepath.Join(o.Root, f.Path)
		if exists(f.Host) {
			d.Files = append(d.Files, f)
		}
	}
	storage := slices.ContainsFunc(d.Nodes, func(n Node) bool { return strings.HasPrefix(n.Path, "/dev/nvidia-fs") })
	if udev := filepath.Join(o.Root, "run/udev"); storage && exists(udev) {
		d.Files = append(d.Files, File{Host: udev, Path: "/run/udev", Use: Compute})
	}
}

// readPrograms finds programs and configuration in the driver's root.
func (d *Driver) readPrograms() {
	find := func(dirs []string, name, path string, use Capabilities) {
		for _, dir := range dirs {
			if real, err := resolve(d.Root, filepath.Join(dir, name)); err == nil {
				if st, err := os.Stat(real); err == nil && st.Mode().IsRegular() {
					d.Files = append(d.Files, File{Host: real, Path: path, Use: use})
					return
				}
			}
		}
	}
	for _, p := range programs {
		find([]string{"bin", "usr/bin", "usr/sbin", "usr/lib/nvidia/current"}, p.name, filepath.Join(BinDir, p.name), p.use)
	}
	for _, name := range configurations {
		find([]string{"share", "usr/share", "etc"}, name, "/usr/share/"+name, Graphics)
	}
}

// readFirmware finds the directory of the GPU System Processor's firmware, where the
// kernel would look for it.
func (d *Driver) readFirmware(o Options) {
	release, _ := readText(o.Proc, "sys/kernel/osrelease")
	release = strings.TrimSpace(release)
	custom, _ := readText(o.Sys, "module/firmware_class/parameters/path")
	for _, root := range []string{d.Root, o.Root} {
		for _, dir := range []string{strings.TrimSpace(custom), "lib/firmware/updates/" + release, "lib/firmware/updates", "lib/firmware/" + release, "lib/firmware"} {
			if dir == "" {
				continue
			}
			real, err := resolve(root, filepath.Join(dir, "nvidia", d.Version))
			if names := dirNames(real); err == nil && slices.ContainsFunc(names, func(n string) bool { return strings.HasPrefix(n, "gsp") }) {
				d.Files = append(d.Files, File{Host: real, Path: "/lib/firmware/nvidia/" + d.Version, Use: Utility | Compute})
				return
			}
		}
	}
}

// discoverWSL describes Windows' driver: one node, and a directory of libraries.
func discoverWSL(o Options, d *Driver) (*Driver, error) {
	d.WSL, d.Root = true, filepath.Join(o.Root, "usr/lib/wsl")
	node, _ := newNode(o, "dxg", All)
	d.Nodes = []Node{node}
	d.GPUs = []GPU{{Model: "GPU of Windows", NUMA: -1, Node: node}}
	entries, err := os.ReadDir(filepath.Join(d.Root, "lib"))
	if err != nil {
		return nil, &fault.Error{
			What: fmt.Errorf("find the libraries of Windows' driver: %w: %w", ErrNoLibraries, err), Cause: "there is " + node.Host + " and no " + d.Root + "/lib",
			Hint: "update WSL (wsl --update) and the GPU's driver in Windows",
		}
	}
	for _, e := range entries {
		host := filepath.Join(d.Root, "lib", e.Name())
		if facts, err := readELF(host); err == nil && facts.Flags == ldcache.HostFlags() {
			l := Library{Host: host, Dir: LibDir, Names: []string{e.Name()}, Flags: facts.Flags}
			// The soname is a file of its own, or nothing.
			if facts.Soname != "" && !strings.Contains(facts.Soname, "/") && !exists(d.Root, "lib", facts.Soname) {
				l.Names = append(l.Names, facts.Soname)
			}
			d.Libraries = append(d.Libraries, l)
		} else if e.Name() == "nvidia-smi" {
			d.Files = append(d.Files, File{Host: host, Path: filepath.Join(BinDir, e.Name()), Use: Utility})
		}
	}
	if drivers := filepath.Join(d.Root, "drivers"); exists(drivers) {
		d.Files = append(d.Files, File{Host: drivers, Path: "/usr/lib/wsl/drivers", Use: All})
	}
	return d, nil
}

// readAll reads r, which may not have more than limit bytes.
func readAll(r io.Reader, limit int64) ([]byte, error) {
	b, err := io.ReadAll(io.LimitReader(r, limit+1))
	if err == nil && int64(len(b)) > limit {
		err = fmt.Errorf("more than %d bytes", limit)
	}
	return b, err
}
