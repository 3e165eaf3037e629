//go:build cgo

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"unicode"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	report "github.com/gangway-hpc/gangway/hooks/nvml"
)

// library is NVML, loaded at the first question. It is not for concurrent use.
type library struct {
	nv    nvml.Interface
	at    *step
	proc  string
	ready bool
	known map[string]bool // symbols that the library has
}

// newAsker returns what asks the real NVML.
func newAsker(f flags, at *step) asker {
	var options []nvml.LibraryOption
	if f.library != "" {
		options = append(options, nvml.WithLibraryPath(f.library))
	}
	return newLibrary(nvml.New(options...), at, f.proc)
}

func newLibrary(nv nvml.Interface, at *step, proc string) *library {
	return &library{nv: nv, at: at, proc: proc, known: map[string]bool{}}
}

// ask implements asker.
func (l *library) ask(call string, uuids []string) (any, *report.Failure) {
	if f := l.open(); f != nil {
		return nil, f
	}
	switch call {
	case "inventory":
		return result(l.inventory(uuids))
	case "topology":
		return result(l.topology(uuids))
	case "health":
		return result(l.health(uuids))
	case "sample":
		return result(l.sample(uuids))
	case "processes":
		return result(l.processes(uuids))
	}
	return nil, &report.Failure{Kind: report.Misuse, Text: fmt.Sprintf("unknown call %q", call)}
}

// result keeps a nil pointer from becoming a value.
func result[T any](r *T, f *report.Failure) (any, *report.Failure) {
	if f != nil {
		return nil, f
	}
	return r, nil
}

// open loads and initialises NVML, again if that did not work before: drivers are
// installed, loaded and repaired while daemons run.
func (l *library) open() *report.Failure {
	if l.ready {
		return nil
	}
	l.at.set("initialise NVML")
	ret := l.nv.Init()
	switch ret {
	case nvml.SUCCESS:
		l.ready = true
		return nil
	case nvml.ERROR_LIBRARY_NOT_FOUND:
		return &report.Failure{
			Kind: report.NoDriver, Text: "load libnvidia-ml.so.1: not found",
			Cause: "there is no NVIDIA driver here, or the loader does not find its libraries",
			Hint:  "install the NVIDIA driver; if it is in a directory of its own, put that into the loader's configuration (ldconfig)",
		}
	case nvml.ERROR_DRIVER_NOT_LOADED:
		return &report.Failure{
			Kind: report.NoDriver, Text: "initialise NVML: " + said(ret),
			Cause: "the library is here, but the kernel module nvidia is not loaded",
			Hint:  "as root: modprobe nvidia; then look at: dmesg | grep -i nvrm",
		}
	case nvml.ERROR_NO_PERMISSION:
		return &report.Failure{
			Kind: report.Permission, Text: "initialise NVML: " + said(ret),
			Hint: "look at the permissions of /dev/nvidiactl and /dev/nvidia0",
		}
	case nvml.ERROR_LIB_RM_VERSION_MISMATCH:
		return l.mismatch(ret)
	}
	return refused("initialise NVML", ret)
}

var moduleVersion = regexp.MustCompile(`(?m)^NVRM version:.*\s(\d+\.\d+(?:\.\d+)?)\s`)

// mismatch explains the classic "Failed to initialize NVML: Driver/library version
// mismatch": the package was upgraded, and the old module is still loaded.
func (l *library) mismatch(ret nvml.Return) *report.Failure {
	f := &report.Failure{
		Kind: report.Mismatch, Text: "initialise NVML: " + said(ret),
		Hint: "restart the machine; or, with all GPU programs ended, as root: systemctl stop nvidia-persistenced; " +
			"rmmod nvidia_uvm nvidia_drm nvidia_modeset nvidia; modprobe nvidia",
	}
	kernel := "of another version"
	b, err := os.ReadFile(filepath.Join(l.proc, "driver/nvidia/version"))
	if m := moduleVersion.FindSubmatch(b); err == nil && m != nil {
		kernel = "of version " + string(m[1])
	}
	// NVML tells its own version without having been initialised: "12.570.86.15".
	if v, ret := l.nv.SystemGetNVMLVersion(); ret == nvml.SUCCESS {
		_, version, _ := strings.Cut(v, ".")
		f.Cause = fmt.Sprintf("the kernel module is %s, the library %s: the driver was upgraded and the old module is still loaded", kernel, text(version))
	} else {
		f.Cause = "the kernel module is " + kernel + ", and the library is not: the driver was upgraded and the old module is still loaded"
	}
	return f
}

// has says whether the library has a function. Calling one that it has not would end the
// process.
func (l *library) has(symbol string) bool {
	known, asked := l.known[symbol]
	if !asked {
		for _, name := range versions(symbol) {
			known = known || l.nv.Extensions().LookupSymbol(name) == nil
		}
		l.known[symbol] = known
	}
	return known
}

// versions are the names of a function of which go-nvml calls the newest.
func versions(symbol string) []string {
	switch symbol {
	case "nvmlDeviceGetPciInfo", "nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetGraphicsRunningProcesses":
		return []string{symbol, symbol + "_v2", symbol + "_v3"}
	case "nvmlDeviceGetAttributes", "nvmlDeviceGetNvLinkRemotePciInfo":
		return []string{symbol, symbol + "_v2"}
	}
	return []string{symbol}
}

// maxGPUs is more than any machine has: what says that it has more is no NVML.
const maxGPUs = 1024

// gpus returns what was asked for: each UUID's GPU or MIG instance, or all GPUs. One that
// cannot be opened is there with its fault.
func (l *library) gpus(uuids []string) ([]*gpu, *report.Failure) {
	if len(uuids) > 0 {
		return l.named(uuids)
	}
	l.at.set("count GPUs")
	count, ret := l.nv.DeviceGetCount()
	if ret != nvml.SUCCESS {
		return nil, refused("count GPUs", ret)
	}
	if count < 0 || count > maxGPUs {
		return nil, &report.Failure{Kind: report.Refused, Text: fmt.Sprintf("count GPUs: NVML says %d", count)}
	}
	all := make([]*gpu, 0, count)
	for i := range count {
		g := &gpu{l: l, name: fmt.Sprintf("GPU %d", i)}
		l.at.set("open " + g.name)
		if g.dev, ret = l.nv.DeviceGetHandleByIndex(i); ret != nvml.SUCCESS {
			g.fault("open GPU", ret)
			g.lost = true // one lost GPU must not hide the other seven
		}
		all = append(all, g)
	}
	return all, nil
}

func (l *library) named(uuids []string) ([]*gpu, *report.Failure) {
	some := make([]*gpu, 0, len(uuids))
	for _, uuid := range uuids {
		g := &gpu{l: l, name: uuid, uuid: uuid}
		l.at.set("open " + text(uuid))
		var ret nvml.Return
		switch g.dev, ret = l.nv.DeviceGetHandleByUUID(uuid); ret {
		case nvml.SUCCESS:
		case nvml.ERROR_NOT_FOUND, nvml.ERROR_INVALID_ARGUMENT:
			return nil, l.unknown(uuid)
		default:
			g.fault("open GPU", ret)
			g.lost = true
		}
		some = append(some, g)
	}
	return some, nil
}

// unknown says which GPUs there are.
func (l *library) unknown(uuid string) *report.Failure {
	f := &report.Failure{Kind: report.UnknownGPU, Text: fmt.Sprintf("%q", uuid)}
	all, failure := l.gpus(nil)
	if failure != nil {
		return f
	}
	var have []string
	lost := 0
	for _, g := range all {
		if id := g.id(); id != "" {
			have = append(have, id)
		} else {
			lost++
		}
	}
	f.Cause = "there is no GPU"
	if len(have) > 0 {
		f.Cause = "there are " + strings.Join(have, ", ")
	}
	if lost > 0 {
		f.Cause += fmt.Sprintf(" and %d that does not answer", lost)
	}
	f.Hint = "gangway-nvml inventory says all about them"
	return f
}

// said is NVML's text of an answer.
func said(ret nvml.Return) string { return text(nvml.ErrorString(ret)) }

func refused(what string, ret nvml.Return) *report.Failure {
	return &report.Failure{Kind: report.Refused, Text: what + ": " + said(ret)}
}

// text keeps what a terminal could act upon out of what the driver says.
func text(s string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsGraphic(r) {
			return -1
		}
		return r
	}, strings.ToValidUTF8(s, "?"))
}
