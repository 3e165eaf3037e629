package main

import (
	"time"

	"github.com/spf13/pflag"

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
	eachVar(fl, &f.dirs, "cdi-dir", "", "directory of CDI specifications, instead of /etc/cdi and /var/run/cdi")
	eachVar(fl, &f.roots, "nvidia-root", "", "where the NVIDIA driver's files are, if not in the usual places")
}

func (f *deviceFlags) options() step.Devices {
	d := f.devices
	d.Dirs, d.Nvidia.Roots = f.dirs, f.roots
	return d
}
