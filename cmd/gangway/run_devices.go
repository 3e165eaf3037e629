package main

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/pflag"

	"github.com/gangway-hpc/gangway/hooks/nvml"
	"github.com/gangway-hpc/gangway/internal/config"
	"github.com/gangway-hpc/gangway/internal/fault"
	"github.com/gangway-hpc/gangway/launcher/step"
)

// deviceFlags say which devices a container gets.
type deviceFlags struct {
	devices step.Devices
	dirs    []string
	roots   []string
}

func (f *deviceFlags) add(fl *pflag.FlagSet) {
	eachVar(fl, &f.devices.CDI, "device", "", "VENDOR/CLASS=NAME: a device by its CDI name")
	onceVar(fl, &f.devices.GPUs, "gpus", "", "NVIDIA GPUs: a number, all, or UUIDs and indices (device=2 is one index)")
	fl.DurationVar(&f.devices.GPUWait, "gpu-wait", 0*time.Second, "how long to wait for GPUs that other runs have; -1s is as long as it takes")
	onceVar(fl, &f.devices.RDMA, "rdma", "", "RDMA adapters: auto (near the GPUs), all, none, or names (mlx5_0,mlx5_1)")
	eachVar(fl, &f.dirs, "cdi-dir", "", "directory of CDI specifications, instead of /etc/cdi and /var/run/cdi")
	eachVar(fl, &f.roots, "nvidia-root", "", "where the NVIDIA driver's files are, if not in the usual places")
}

// options are what the flags say, and where they say nothing the configuration.
func (f *deviceFlags) options(c *config.Config, getenv func(string) string) (step.Devices, error) {
	d := f.devices
	d.Dirs, d.Nvidia.Roots = c.Devices.CDIDirs, c.Devices.NvidiaRoots
	for _, flag := range []struct {
		name, key string
		set       bool
		apply     func()
	}{
		{"--cdi-dir", "devices.cdi_dirs", len(f.dirs) > 0, func() { d.Dirs = f.dirs }},
		{"--nvidia-root", "devices.nvidia_roots", len(f.roots) > 0, func() { d.Nvidia.Roots = f.roots }},
		{"--rdma", "devices.rdma", d.RDMA != "", func() {}},
	} {
		if !flag.set {
			continue
		}
		if err := c.Override(flag.name, flag.key); err != nil {
			return d, err
		}
		flag.apply()
	}
	d.Visible = getenv("NVIDIA_VISIBLE_DEVICES")
	d.RDMA = cmp.Or(d.RDMA, c.Devices.RDMA)
	if d.RDMA == "auto" || d.RDMA == "all" {
		// As NVIDIA's: it chooses among what was asked for, and asks for nothing.
		d.RDMA = cmp.Or(getenv("MELLANOX_VISIBLE_DEVICES"), d.RDMA)
	}
	for i, dir := range d.Dirs {
		abs, err := filepath.Abs(dir)
		if err != nil {
			return d, fmt.Errorf("read --cdi-dir: %w", err)
		}
		d.Dirs[i] = abs
	}
	if d.GPUWait != 0 && d.GPUs == "" && len(d.CDI) == 0 {
		return d, fault.Usage(errors.New("--gpu-wait: no GPUs are asked for"), "add --gpus N, or leave it out")
	}
	if d.GPUWait < 0 && d.GPUWait != -time.Second {
		return d, fault.Usage(fmt.Errorf("--gpu-wait %s: a time is not negative", d.GPUWait), "write a time, as in 10m; or -1s for as long as it takes")
	}
	d.NVML = func() (string, error) { return findNVML(getenv) }
	return d, nil
}

// findNVML finds gangway-nvml. Root takes none that lies where others may write.
func findNVML(getenv func(string) string) (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("find this program: %w", err)
	}
	if step.Sealed() && filepath.IsAbs(os.Args[0]) {
		self = os.Args[0]
	}
	path := "/usr/local/bin:/usr/bin"
	if os.Geteuid() != 0 {
		path = getenv("PATH")
	}
	return nvml.Find(self, path)
}

// The directories of hooks where none are configured.
const (
	systemHooks = "/etc/gangway/hooks"
	userHooks   = "gangway/hooks" // in the user's directory of configurations
)

// hookOptions are what the configuration says of hooks. Root runs the system's alone,
// unless others are configured: a home directory may be somebody else's.
func hookOptions(c *config.Config, getenv func(string) string) (step.Hooks, error) {
	h := step.Hooks{Dirs: c.Hooks.Dirs, Enroot: c.Hooks.Enroot}
	for _, dir := range h.Dirs {
		if !filepath.IsAbs(dir) {
			return h, &fault.Error{What: fmt.Errorf("configuration: hooks.dirs has %q", dir), Hint: "write absolute paths"}
		}
	}
	if text := c.Hooks.Timeout; text != "" {
		var err error
		if h.Timeout, err = time.ParseDuration(text); err != nil || h.Timeout <= 0 {
			return h, &fault.Error{What: fmt.Errorf("configuration: hooks.timeout is %q", text), Hint: `write a time, as in "30s" or "2m"`}
		}
	}
	if h.Dirs == nil {
		h.Dirs = []string{systemHooks}
	}
	own := getenv("XDG_CONFIG_HOME")
	if home := getenv("HOME"); !filepath.IsAbs(own) && filepath.IsAbs(home) {
		own = filepath.Join(home, ".config")
	}
	if filepath.IsAbs(own) && os.Geteuid() != 0 {
		if c.Hooks.Dirs == nil {
			h.Dirs = append(h.Dirs, filepath.Join(own, userHooks))
		}
		h.Personal = filepath.Join(own, "enroot")
	}
	return h, nil
}
