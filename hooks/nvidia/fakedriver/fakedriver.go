// Package fakedriver lays out what an NVIDIA driver leaves on a machine, in a
// directory of a test: libraries, programs, firmware, configuration, sockets,
// /proc/driver/nvidia, sysfs and device nodes. Nothing of it drives anything, but
// the libraries are shared objects that the loader accepts.
//
// [New] makes a tree; its Root, Proc, Sys and Dev are what the hooks take as the
// roots of the host. [ELF] makes a single library. Both may be called by parallel
// tests. The package is for tests only: no program imports it.
package fakedriver

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// Version is the driver's version where Options names none.
const Version = "580.95.05"

// BootID is what /proc/sys/kernel/random/boot_id of every tree says.
const BootID = "6d1a5b1e-9f0c-4a55-8a4e-0123456789ab"

// Options say what the machine has. The zero value is a machine with a driver and
// no GPU.
type Options struct {
	Dir     string // where to put it, an empty directory; "" for one that goes with the test, which only its user can enter
	GPUs    int    // how many GPUs
	Version string // of the driver; empty for the constant Version
	Model   string // of the GPUs; empty for "NVIDIA H100 80GB HBM3"
	MIG     int    // GPU instances, each with one compute instance, on every GPU
	Layout  Layout // where the libraries are
	Null    bool   // device nodes are /dev/null's numbers, so that they can be opened (root only)
	Extras  bool   // IMEX channels, GDRCopy, GPUDirect storage, NVSwitch, fabric manager and MPS
	Compat  bool   // 32-bit libraries too
}

// Layout says where in the root a driver's libraries and programs are.
type Layout int

// The places that drivers are seen in.
const (
	Distro Layout = iota // /usr/lib/x86_64-linux-gnu and /usr/bin
	Local                // /usr/local/nvidia/{lib64,bin}: one read-only mount
	Driver               // /run/nvidia/driver, a root of its own, as the GPU operator has it
)

// GPU is one GPU of a tree.
type GPU struct {
	UUID  string // as "GPU-00000001-0000-4000-8000-000000000001"
	Bus   string // PCI address, as "0000:1a:00.0"
	Minor int    // of /dev/nvidiaN; in a tree of several GPUs not in the order of Bus
}

// Tree is a fake machine.
type Tree struct {
	Root    string // the host's /
	Proc    string // its /proc
	Sys     string // its /sys
	Dev     string // its /dev
	Home    string // the driver's own root within Root ("/" but for the layout Driver)
	Lib     string // the directory of the libraries on this machine
	Bin     string // of the programs
	Version string // of the driver
	GPUs    []GPU  // in the order of their PCI addresses, that is of their indices
	Real    bool   // the device nodes are character devices; else empty files (mknod needs root)
}

// Triplet is the directory of this machine's libraries below /usr/lib.
func Triplet() string {
	if runtime.GOARCH == "arm64" {
		return "aarch64-linux-gnu"
	}
	return "x86_64-linux-gnu"
}

// New makes a tree.
func New(tb testing.TB, o Options) *Tree {
	tb.Helper()
	if o.Version == "" {
		o.Version = Version
	}
	if o.Model == "" {
		o.Model = "NVIDIA H100 80GB HBM3"
	}
	root := o.Dir
	if root == "" {
		root = tb.TempDir()
	}
	t := &Tree{
		Root: root, Proc: filepath.Join(root, "proc"), Sys: filepath.Join(root, "sys"), Dev: filepath.Join(root, "dev"),
		Home: "/", Version: o.Version,
	}
	switch o.Layout {
	case Local:
		t.Lib, t.Bin = "/usr/local/nvidia/lib64", "/usr/local/nvidia/bin"
	case Driver:
		t.Home = "/run/nvidia/driver"
		fallthrough
	default:
		t.Lib, t.Bin = filepath.Join(t.Home, "usr/lib", Triplet()), filepath.Join(t.Home, "usr/bin")
	}
	t.Lib, t.Bin = filepath.Join(root, t.Lib), filepath.Join(root, t.Bin)
	for i := range o.GPUs {
		minor := i
		if o.GPUs > 1 {
			minor = i ^ 1 // minor numbers are not indices
			if minor >= o.GPUs {
				minor = i
			}
		}
		t.GPUs = append(t.GPUs, GPU{
			UUID: fmt.Sprintf("GPU-%08x-0000-4000-8000-%012x", i+1, i+1), Bus: fmt.Sprintf("0000:%02x:00.0", 0x1a+0x10*i), Minor: minor,
		})
	}
	t.proc(tb, o)
	t.devices(tb, o)
	t.sysfs(tb)
	t.userspace(tb, o)
	return t
}

// Write puts content at a path of the tree, given from its root; directories are
// made as needed.
func (t *Tree) Write(tb testing.TB, path, content string) {
	tb.Helper()
	t.put(tb, filepath.Join(t.Root, path), content)
}

func (t *Tree) put(tb testing.TB, path, content string) {
	tb.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		tb.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		tb.Fatal(err)
	}
}

func (t *Tree) link(tb testing.TB, target, path string) {
	tb.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		tb.Fatal(err)
	}
	if err := os.Symlink(target, path); err != nil {
		tb.Fatal(err)
	}
}

// node makes a character device, or an empty file where that is not allowed.
func (t *Tree) node(tb testing.TB, name string, major, minor uint32, null bool) {
	tb.Helper()
	path := filepath.Join(t.Dev, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		tb.Fatal(err)
	}
	if null {
		major, minor = 1, 3
	}
	if err := unix.Mknod(path, unix.S_IFCHR|0o666, int(unix.Mkdev(major, minor))); err != nil {
		t.put(tb, path, "")
		return
	}
	t.Real = true
	if err := os.Chmod(path, 0o666); err != nil {
		tb.Fatal(err)
	}
}

// socket makes the name of a Unix socket that nobody listens at.
func (t *Tree) socket(tb testing.TB, path string) {
	tb.Helper()
	path = filepath.Join(t.Root, path)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		tb.Fatal(err)
	}
	if err := unix.Mknod(path, unix.S_IFSOCK|0o666, 0); err != nil {
		tb.Fatal(err)
	}
}
