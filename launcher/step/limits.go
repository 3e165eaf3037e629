package step

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/gangway-hpc/gangway/hooks/nvml"
	"github.com/gangway-hpc/gangway/internal/fault"
	"github.com/gangway-hpc/gangway/runtime/cgroup"
	"github.com/gangway-hpc/gangway/runtime/spec"
)

// Limits are what a container may use, and what becomes known of it.
type Limits struct {
	cgroup.Limits
	Near    bool // CPUSet is to be the CPUs that are near the GPUs
	Require bool // everything is enforced, or nothing is run
	// Stats is told at the end what was used; it may be nil.
	Stats func(used cgroup.Stats, rung string, gpus []nvml.Use)
}

// wanted says whether there is to be a control group.
func (l *Limits) wanted() bool {
	return l.Require || l.Stats != nil || l.CPUs != 0 || l.CPUSet != nil || l.Near || l.Memory != 0 || l.Pids != 0
}

// removePatience is how long what is left in a control group may take to end.
const removePatience = 5 * time.Second

// limit makes the container's control group. What the machine does not enforce is named,
// or refused where all is required.
func (s *step) limit(ctx context.Context) error {
	root := os.Geteuid() == 0
	if !s.Limits.wanted() && !root {
		return nil
	}
	if _, err := cgroup.Sweep(cgroup.Options{UID: os.Geteuid()}); err != nil {
		s.Log.Warn("control groups of killed runs stay", "err", err)
	}
	g, err := cgroup.Open(ctx, cgroup.Options{
		Name: "run-" + s.dir.id(), UID: os.Geteuid(), Runtime: s.Getenv("XDG_RUNTIME_DIR"),
	})
	if err != nil {
		return err
	}
	s.group = g
	s.onClose(func() error {
		// Of a context that has ended there is no time left.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), removePatience)
		defer cancel()
		return g.Remove(ctx)
	})
	limits, err := s.nearGPUs()
	if err != nil {
		return err
	}
	if g.Rung() == cgroup.Root {
		limits.Devices = s.deviceRules()
	}
	if err := g.Limit(limits); err != nil {
		return err
	}
	var missing []string
	for _, m := range g.Missing() {
		if m.What == "devices" && !s.Limits.Require && len(s.given.made.Linux.Devices) == 0 {
			s.Log.Debug(m.String()) // nobody asked for it
			continue
		}
		missing = append(missing, m.String())
	}
	if g.Rung() == cgroup.None && s.Limits.Require && len(missing) == 0 {
		missing = append(missing, "no control group can be had")
	}
	if len(missing) > 0 && s.Limits.Require {
		return notEnforced(missing, g)
	}
	for _, m := range missing {
		s.Log.Warn(m, "see", "gangway doctor")
	}
	s.notLimited = missing
	s.phase("cgroup", g.Rung().String())
	if g.Rung() == cgroup.None {
		return nil
	}
	if limits.CPUs != 0 || limits.CPUSet != nil {
		// What serves the root uses CPU time for the container. For anything else the
		// supervisor stays where it is: to be moved there and back takes 10 ms each.
		if err := g.Sup().Place(os.Getpid()); err != nil {
			return fmt.Errorf("put the supervisor into its control group: %w", err)
		}
	}
	if s.ranksDir, err = g.Ranks().FD(); err == nil {
		s.onClose(s.ranksDir.Close)
	} else if !errors.Is(err, errors.ErrUnsupported) {
		return err
	}
	return s.watchMemory()
}

// nearGPUs gives the container the CPUs that are near its GPUs, if that was asked for, or
// if it is to have some CPUs, and these are enough.
func (s *step) nearGPUs() (cgroup.Limits, error) {
	limits := s.Limits.Limits
	if !s.Limits.Near && (limits.CPUSet != nil || limits.CPUs == 0) {
		return limits, nil
	}
	var addresses []string
	for _, g := range s.given.gpus {
		addresses = append(addresses, g.GPU.Bus)
	}
	sys := cmp.Or(s.Devices.Nvidia.Sys, "/sys")
	cpus, _ := cgroup.Near(sys, addresses...)
	may := cgroup.Here("/proc", sys).CPUs
	cpus = slices.DeleteFunc(cpus, func(cpu int) bool { return !slices.Contains(may, cpu) })
	switch {
	case s.Limits.Near && len(cpus) == 0:
		why := "the container has no GPU"
		if len(addresses) > 0 {
			why = "the machine does not say which are, or this process may use none of them"
		}
		return limits, &fault.Error{What: errors.New("use the CPUs near the GPUs (--cpuset=near): " + why), Hint: "write a list, as in --cpuset=0-3,8; or leave it out"}
	case s.Limits.Near || float64(len(cpus)) >= limits.CPUs:
		limits.CPUSet = cpus
	}
	return limits, nil
}

// deviceRules are the devices that the container may use, whatever nodes it comes by: those
// that every container has, those that it was given, and those that the user mounts by name.
// Only root can have that enforced; others' containers have no nodes but these, and cannot
// make any.
func (s *step) deviceRules() []specs.LinuxDeviceCgroup {
	rule := func(kind, access string, major, minor int64) specs.LinuxDeviceCgroup {
		return specs.LinuxDeviceCgroup{Allow: true, Type: kind, Major: &major, Minor: &minor, Access: access}
	}
	const every = -1
	rules := []specs.LinuxDeviceCgroup{
		{Allow: false, Access: "rwm"},
		// A node may be made of everything, as by tar: to make it is not to use it.
		rule("c", "m", every, every), rule("b", "m", every, every),
		rule("c", "rwm", 1, 3), rule("c", "rwm", 1, 5), rule("c", "rwm", 1, 7), rule("c", "rwm", 1, 8), rule("c", "rwm", 1, 9), // null zero full random urandom
		rule("c", "rwm", 5, 0), rule("c", "rwm", 5, 2), rule("c", "rwm", 136, every), // tty ptmx pts, whoever's
		rule("c", "rw", 10, 229), // fuse, by which it mounts its own root
	}
	if r := s.given.made.Linux.Resources; r != nil {
		rules = append(rules, r.Devices...)
	}
	allow := func(source string, options []string) {
		var st unix.Stat_t
		if unix.Stat(source, &st) != nil {
			return
		}
		kind, access := "", "rw"
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFCHR:
			kind = "c"
		case unix.S_IFBLK:
			kind = "b"
		default:
			return
		}
		if slices.Contains(options, "ro") {
			access = "r" // a read-only mount is none for a device
		}
		rules = append(rules, rule(kind, access, int64(unix.Major(st.Rdev)), int64(unix.Minor(st.Rdev))))
	}
	for _, m := range s.mounts() {
		switch source := filepath.Clean(m.Source); {
		case source == "/dev":
			s.Log.Warn("devices of /dev that the container was not given by name cannot be used in it", "mount", m.Destination)
		case strings.HasPrefix(source, "/dev/"):
			if !eachNode(source, func(name string) { allow(name, m.Options) }) {
				s.Log.Warn("not all devices of a directory can be used in the container: it has too many", "directory", source, "limit", mostNodes)
			}
		default:
			allow(source, m.Options)
		}
	}
	return rules
}

// mounts are those of the host's files that the user and hooks ask for.
func (s *step) mounts() []specs.Mount {
	var all []specs.Mount
	for _, m := range s.Request.Mounts {
		if m.Type == spec.Bind {
			all = append(all, specs.Mount{Source: m.Source, Destination: m.Target, Options: m.Options})
		}
	}
	for _, m := range s.given.made.Mounts {
		if m.Type == "bind" {
			all = append(all, m)
		}
	}
	return all
}

// mostNodes bounds how many devices a directory gives.
const mostNodes = 1024

// eachNode calls f with what is in a directory of devices, or with what is none, and says
// whether that was all.
func eachNode(name string, f func(name string)) bool {
	n := 0
	_ = filepath.WalkDir(name, func(at string, d fs.DirEntry, err error) error {
		if n++; n > mostNodes {
			return filepath.SkipAll
		}
		if err == nil && !d.IsDir() {
			f(at)
		}
		return nil // what cannot be looked at is not given
	})
	return n <= mostNodes
}

// notEnforced is the error of --require-cgroup.
func notEnforced(missing []string, g *cgroup.Group) error {
	var why []string
	for _, r := range g.Refused() {
		why = append(why, r.Error())
	}
	hint := "run it as root, or have control groups delegated: gangway doctor; or leave out --require-cgroup"
	if os.Geteuid() == 0 {
		hint = "run it where the control group is its own: systemd-run -p Delegate=yes --scope gangway run ...; or leave out --require-cgroup"
	}
	return &fault.Error{What: errors.New("limit the container: " + strings.Join(missing, "; ")), Cause: strings.Join(why, "; "), Hint: hint}
}

// watchMemory has it reported when the container runs out of its memory.
func (s *step) watchMemory() error {
	if s.Limits.Memory == 0 {
		return nil
	}
	var err error
	if s.memory, err = s.group.Watch(); err != nil {
		return fmt.Errorf("watch the container's memory: %w", err)
	}
	s.onClose(func() error { s.memory.Stop(); return nil })
	return nil
}

// place puts a process of the container into its control group, as far as it was not made
// there.
func (s *step) place(pid int, made bool) error {
	if made {
		return s.group.Ranks().Settle(pid)
	}
	return s.group.Ranks().Place(pid)
}

// used tells what the container used, and why it was killed if it ran out of memory.
func (s *step) used(status error) error {
	if s.group == nil {
		return status
	}
	if s.Limits.Stats != nil {
		s.Limits.Stats(s.group.Stats(), s.group.Rung().String(), s.recorded())
	}
	if err := s.outOfMemory(fault.Code(status)); err != nil {
		return err
	}
	return status
}

// outOfMemory says that the container ran out of its memory, if it did, with the code of
// the command that ended for it.
func (s *step) outOfMemory(code int) error {
	if s.memory == nil {
		return nil
	}
	oom := s.memory.OOM()
	if oom == nil {
		return nil
	}
	hint := fmt.Sprintf("give it more, such as --mem=%dM, or let it use less", 2*s.Limits.Memory>>20)
	if oom.Above {
		hint = "let it use less, or have more given to what it runs in: a job, a service, the machine"
	}
	return &fault.Error{What: errors.New(oom.String()), Hint: hint, Code: max(code, 1)}
}
