package step

import (
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/gangway-hpc/gangway/hooks/nvidia"
	"github.com/gangway-hpc/gangway/runtime/cgroup"
	"github.com/gangway-hpc/gangway/runtime/spec"
)

// TestNearGPUs: who asks for CPUs near the GPUs gets these; who asks for some CPUs gets them
// where they are enough; nobody else is bound.
func TestNearGPUs(t *testing.T) {
	sys := t.TempDir()
	dir := filepath.Join(sys, "bus/pci/devices/0000:17:00.0")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	here := cgroup.Here("/proc", "/sys").CPUs
	if err := os.WriteFile(filepath.Join(dir, "local_cpulist"), []byte(here[:1].String()+",4000\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	gpu := []nvidia.Device{{GPU: &nvidia.GPU{Bus: "0000:17:00.0"}}}
	for _, c := range []struct {
		name   string
		gpus   []nvidia.Device
		limits Limits
		want   cgroup.Set
		err    string
	}{
		{"asked", gpu, Limits{Near: true}, here[:1], ""},
		{"enough", gpu, Limits{Limits: cgroup.Limits{CPUs: 1}}, here[:1], ""},
		{"too few", gpu, Limits{Limits: cgroup.Limits{CPUs: 1.5}}, nil, ""},
		{"named", gpu, Limits{Limits: cgroup.Limits{CPUs: 1, CPUSet: cgroup.Set{7}}}, cgroup.Set{7}, ""},
		{"no limit", gpu, Limits{}, nil, ""},
		{"no GPU", nil, Limits{Limits: cgroup.Limits{CPUs: 1}}, nil, ""},
		{"asked without", nil, Limits{Near: true}, nil, "has no GPU"},
		{"not known", []nvidia.Device{{GPU: &nvidia.GPU{Bus: "0000:18:00.0"}}}, Limits{Near: true}, nil, "does not say"},
	} {
		s := &step{Options: Options{Limits: c.limits, Devices: Devices{Nvidia: nvidia.Options{Sys: sys}}}}
		s.given.gpus = c.gpus
		got, err := s.nearGPUs()
		if c.err == "" && err != nil || c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)) {
			t.Errorf("%s: %v", c.name, err)
		} else if err == nil && !slices.Equal(got.CPUSet, c.want) {
			t.Errorf("%s: %v, not %v", c.name, got.CPUSet, c.want)
		}
	}
}

// TestDeviceRules: what the container was given, and what the user mounts by name, is
// allowed; what lies in a directory that is mounted is not.
func TestDeviceRules(t *testing.T) {
	var st unix.Stat_t
	node := "/dev/loop-control" // one that not every container has
	if unix.Stat(node, &st) != nil {
		node = "/dev/kmsg"
		if err := unix.Stat(node, &st); err != nil {
			t.Skipf("needs a device node besides the usual: %v", err)
		}
	}
	s := &step{Options: Options{Request: spec.Request{Mounts: []spec.Mount{
		{Type: spec.Bind, Source: node, Kind: spec.Device, Options: []string{"bind", "ro"}},
		{Type: spec.Bind, Source: "/dev", Kind: spec.Directory},
		{Type: spec.Bind, Source: "/nowhere", Kind: spec.Device},
	}}, Log: slog.New(slog.DiscardHandler)}}
	s.given.made.Mounts = []specs.Mount{{Type: "bind", Source: "/dev/full", Destination: "/x"}, {Type: "tmpfs", Source: "tmpfs"}}
	major, minor := int64(195), int64(3)
	s.given.made.Linux = &specs.Linux{Resources: &specs.LinuxResources{Devices: []specs.LinuxDeviceCgroup{
		{Allow: true, Type: "c", Major: &major, Minor: &minor, Access: "rw"},
	}}}
	rules := s.deviceRules()
	if r := rules[0]; r.Allow || r.Major != nil || r.Access != "rwm" {
		t.Errorf("the first rule denies not all: %+v", r)
	}
	if r := rules[len(rules)-2]; r.Access != "r" {
		t.Errorf("a device that is mounted read-only: %+v", r)
	}
	use := func(kind string, major, minor int64) (allowed bool) {
		for _, r := range rules {
			if (r.Type == "" || r.Type == kind) && (r.Major == nil || *r.Major == -1 || *r.Major == major) &&
				(r.Minor == nil || *r.Minor == -1 || *r.Minor == minor) && strings.Contains(r.Access, "r") {
				allowed = r.Allow
			}
		}
		return allowed
	}
	for _, c := range []struct {
		kind         string
		major, minor int64
		want         bool
	}{
		{"c", 1, 3, true},
		{"c", 136, 17, true},
		{"c", 195, 3, true},
		{"c", int64(unix.Major(st.Rdev)), int64(unix.Minor(st.Rdev)), true},
		{"c", 195, 0, false},
		{"c", 5, 1, false},
		{"c", 1, 1, false},
		{"b", 8, 0, false},
		{"c", 10, 200, false},
	} {
		if use(c.kind, c.major, c.minor) != c.want {
			t.Errorf("%s %d:%d: %v", c.kind, c.major, c.minor, !c.want)
		}
	}
}
