package fakedriver

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// Libraries returns the names of the driver's libraries without ".so.VERSION",
// each with the version of its soname ("" if that is the driver's own).
func Libraries() map[string]string {
	return map[string]string{
		"libcuda": "1", "libcudadebugger": "1", "libnvidia-ptxjitcompiler": "1", "libnvidia-nvvm": "4", "libnvidia-opencl": "1",
		"libnvidia-gpucomp": "", "libnvidia-allocator": "1", "libnvidia-ml": "1", "libnvidia-cfg": "1", "libnvcuvid": "1",
		"libnvidia-encode": "1", "libnvidia-opticalflow": "1", "libGLX_nvidia": "0", "libEGL_nvidia": "0", "libGLESv2_nvidia": "2",
		"libGLESv1_CM_nvidia": "1", "libnvidia-glcore": "", "libnvidia-eglcore": "", "libnvidia-glsi": "", "libnvidia-tls": "",
		"libnvidia-glvkspirv": "", "libnvidia-rtcore": "", "libnvoptix": "1", "libnvidia-fbc": "1", "libnvidia-ngx": "1", "libnvidia-cbl": "",
	}
}

// Programs are the names of the driver's programs.
func Programs() []string {
	return []string{
		"nvidia-smi", "nvidia-debugdump", "nvidia-persistenced", "nvidia-cuda-mps-control", "nvidia-cuda-mps-server", "nvidia-imex", "nvidia-imex-ctl",
	}
}

// userspace makes libraries, programs, firmware, configuration and sockets.
func (t *Tree) userspace(tb testing.TB, o Options) {
	t.libraries(tb, t.Lib, runtime.GOARCH)
	vdpau := "vdpau/libvdpau_nvidia.so."
	t.put(tb, filepath.Join(t.Lib, vdpau+t.Version), string(ELF(Library{Soname: "libvdpau_nvidia.so.1"})))
	t.link(tb, "libvdpau_nvidia.so."+t.Version, filepath.Join(t.Lib, vdpau+"1"))
	if o.Compat {
		dir := filepath.Join(t.Root, t.Home, "usr/lib/i386-linux-gnu")
		if o.Layout == Local {
			dir = filepath.Join(filepath.Dir(t.Lib), "lib")
		}
		t.libraries(tb, dir, "386")
	}
	for _, name := range Programs() {
		path := filepath.Join(t.Bin, name)
		t.put(tb, path, "#!/bin/sh\necho fake "+name+" "+t.Version+"\n")
		if err := os.Chmod(path, 0o755); err != nil {
			tb.Fatal(err)
		}
	}
	share := strings.TrimPrefix(filepath.Dir(t.Bin), t.Root) + "/share/"
	t.Write(tb, share+"vulkan/icd.d/nvidia_icd.json", `{"file_format_version":"1.0.1","ICD":{"library_path":"libGLX_nvidia.so.0"}}`)
	t.Write(tb, share+"glvnd/egl_vendor.d/10_nvidia.json", `{"file_format_version":"1.0.0","ICD":{"library_path":"libEGL_nvidia.so.0"}}`)
	t.Write(tb, filepath.Join(t.Home, "lib/firmware/nvidia", t.Version, "gsp_ga10x.bin"), "firmware")
	t.Write(tb, filepath.Join(t.Home, "lib/firmware/nvidia", t.Version, "gsp_tu10x.bin"), "firmware")
	t.socket(tb, "/run/nvidia-persistenced/socket")
	if o.Extras {
		t.socket(tb, "/run/nvidia-fabricmanager/socket")
		t.Write(tb, "/etc/cufile.json", "{}")
		t.Write(tb, "/run/udev/data/x", "")
		if err := os.MkdirAll(filepath.Join(t.Root, "tmp/nvidia-mps"), 0o755); err != nil {
			tb.Fatal(err)
		}
	}
}

// libraries fills a directory with every library and its links.
func (t *Tree) libraries(tb testing.TB, dir, arch string) {
	for name, version := range Libraries() {
		file := name + ".so." + t.Version
		soname := file
		if version != "" {
			soname = name + ".so." + version
			t.link(tb, file, filepath.Join(dir, soname))
		}
		t.put(tb, filepath.Join(dir, file), string(ELF(Library{Soname: soname, Arch: arch, ID: uint32(len(name))})))
	}
	t.link(tb, "libcuda.so.1", filepath.Join(dir, "libcuda.so"))
	t.link(tb, "libnvidia-ml.so.1", filepath.Join(dir, "libnvidia-ml.so"))
}
