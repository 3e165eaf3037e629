// Package nvidia finds the NVIDIA driver of a machine and says what a container
// needs of it: a CDI spec with device nodes, libraries, programs and sockets, the
// loader's cache with those libraries, and whether the image's requirements are met.
//
// [Cached] (or [Discover], which keeps nothing) returns the [Driver]; [Driver.Spec]
// makes the spec, [Select] finds out which GPUs a run may have, [Require] evaluates
// NVIDIA_REQUIRE_*, [Load] makes the files by which programs find the libraries,
// and in them chooses between the driver's libcuda and the image's newer one
// ([CompatLibcuda]).
//
// Everything is read from /proc/driver/nvidia, sysfs and the file names of the
// driver: no NVML, which may hang when a GPU is sick, and nothing is executed.
// Of the image only the caller's fs.FS is read; nothing is written into it. What
// NVML alone knows, such as the UUIDs of MIG instances, is an option.
//
// The package keeps no state; a Driver may be read by any number of goroutines. It
// leases no GPUs, applies no spec and loads no kernel module.
package nvidia

import (
	"errors"
	"path/filepath"
)

// Kind is the CDI kind of GPUs and MIG instances; KindIMEX that of IMEX channels.
const (
	Kind     = "nvidia.com/gpu"
	KindIMEX = "nvidia.com/imex-channel"
)

// Where the driver's files are in a container. Not /usr/local/nvidia, which CUDA
// images have in LD_LIBRARY_PATH: that comes before the cache and would undo the
// choice of a newer libcuda.
const (
	LibDir   = "/usr/lib/gangway/nvidia/lib64" // libraries of this machine
	LibDir32 = "/usr/lib/gangway/nvidia/lib32" // 32-bit ones (capability compat32)
	BinDir   = "/usr/bin"                      // programs
)

// ErrNoDriver says that there is no NVIDIA driver on the machine; it is wrapped by
// Discover's and Select's errors.
var ErrNoDriver = errors.New("no NVIDIA driver on this machine")

// ErrMismatch says that the kernel module and the libraries are of different
// versions, so that nothing of CUDA or NVML would work.
var ErrMismatch = errors.New("driver/library version mismatch")

// ErrNoLibraries says that the kernel module is loaded and its libraries were not
// found in any of the driver roots.
var ErrNoLibraries = errors.New("the NVIDIA driver's libraries are not found")

// Options say where to look. The zero value is this machine.
type Options struct {
	Root string // the host's root; "" means "/"
	Proc string // its /proc; "" means Root/proc
	Sys  string // its /sys; "" means Root/sys
	Dev  string // its /dev; "" means Root/dev

	// Roots are driver roots to look in first: directories with lib64, usr/lib,
	// bin and so on. After them come the machine's own ld.so.cache, /usr/local/nvidia,
	// /run/nvidia/driver, the directories of distributions and WSL's.
	Roots []string

	// MIGs name MIG instances, as NVML tells. Without them an instance is known by
	// "GPU:GI:CI" (three numbers) and "MIG-GPU-UUID/GI/CI" only.
	MIGs []MIGName
}

// MIGName is what NVML says of one MIG instance.
type MIGName struct {
	UUID   string // "MIG-..."
	GPU    string // UUID of its GPU
	GI, CI int    // GPU instance and compute instance
}

// resolved fills in the defaults.
func (o Options) resolved() Options {
	or := func(s *string, value string) {
		if *s == "" {
			*s = value
		}
	}
	or(&o.Root, "/")
	or(&o.Proc, filepath.Join(o.Root, "proc"))
	or(&o.Sys, filepath.Join(o.Root, "sys"))
	or(&o.Dev, filepath.Join(o.Root, "dev"))
	return o
}

// Driver is what was found. It is plain data and can be kept as JSON.
type Driver struct {
	Version    string       // of the kernel module: "580.95.05"
	Root       string       // the driver root that the libraries were found in, a path of the host
	WSL        bool         // Windows' driver: /dev/dxg, no GPU by itself
	GPUs       []GPU        // by index
	Nodes      []Node       // device nodes that belong to no single GPU
	Libraries  []Library    // by name
	Management []Management // given to a run by name only
	Files      []File       // programs, configuration, firmware, sockets
	Params     string       // /proc/driver/nvidia/params for a container; empty if the module has none
	Warnings   []string     // what is missing, each with its remedy
}

// GPU is one GPU.
type GPU struct {
	Index    int    // as NVML counts: by PCI address
	UUID     string // "GPU-..."; empty where the driver's /proc is not to be seen
	Model    string // "NVIDIA H100 80GB HBM3"
	Bus      string // PCI address, "0000:1a:00.0"
	Minor    int    // of its device node
	NUMA     int    // node; -1 if the machine does not say
	Cores    string // CPUs near it, as "0-31,64-95"
	Node     Node
	Graphics []Node     // its /dev/dri nodes
	MIGs     []Instance // its MIG instances; if there are any, it cannot be used as a whole
}

// Instance is a MIG compute instance.
type Instance struct {
	UUID   string // "MIG-..." if Options.MIGs told, else "MIG-GPU-UUID/GI/CI"
	GI, CI int
	Nodes  []Node // the capabilities by which it is used
}

// Node is a device node.
type Node struct {
	Path  string // in the container: "/dev/nvidia0"
	Host  string // on this machine
	Major int64  // 0 if it is not a character device, as in a test's tree
	Minor int64
	Use   Capabilities // which capabilities need it; 0 for what is given on request only
}

// Management is a node for managing MIG instances.
type Management struct {
	Name string // "mig-config" or "mig-monitor", as a device in CDI
	Node Node
}

// Library is a shared object of the driver.
type Library struct {
	Host  string       // the file on this machine
	Dir   string       // its directory in a container
	Names []string     // its names there: its own, the soname, links
	Flags int32        // as package ldcache has them
	Use   Capabilities // which capabilities need it; all of them if 0
}

// File is a file, directory or socket that a container gets as it is on the host.
type File struct {
	Host  string       // on this machine
	Path  string       // in the container
	Write bool         // not read-only (sockets and pipes of daemons)
	Use   Capabilities // which capabilities need it
}

// Device is something that a run can be given: a GPU, or a MIG instance.
type Device struct {
	Name  string    // in CDI: the UUID, or the index where there is none
	GPU   *GPU      // the GPU, or the one that the instance is part of
	MIG   *Instance // nil for a whole GPU
	Short string    // "0", or "0:1:0" for an instance
}

// Devices returns what can be given, by index: of a GPU that is split, its
// instances.
func (d *Driver) Devices() []Device {
	var all []Device
	for i := range d.GPUs {
		g := &d.GPUs[i]
		if len(g.MIGs) == 0 {
			all = append(all, Device{Name: g.name(), GPU: g, Short: g.index()})
		}
		for j := range g.MIGs {
			m := &g.MIGs[j]
			all = append(all, Device{Name: m.name(g), GPU: g, MIG: m, Short: m.short(g)})
		}
	}
	return all
}
