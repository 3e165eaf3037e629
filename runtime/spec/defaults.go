package spec

import (
	"fmt"
	"path"
	"slices"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/gangway-hpc/gangway/internal/fault"
)

// tmpfs is a mount of an empty directory in memory.
func tmpfs(target string, options ...string) specs.Mount {
	return specs.Mount{Destination: target, Type: Tmpfs, Source: Tmpfs, Options: append([]string{"nosuid", "nodev"}, options...)}
}

// hostFile is a file of the host that the container may read.
func hostFile(source, target string) specs.Mount {
	return specs.Mount{Destination: target, Type: Bind, Source: source, Options: []string{"bind", "ro", "nosuid", "nodev", "noexec", "x-create=file"}}
}

// mounts lists every mount in its order: those that every container has, then
// those asked for as they were asked for.
func (b *builder) mounts() error {
	b.droppable = map[string]bool{}
	b.kernelMounts()
	if !b.r.Writable {
		b.add(tmpfs("/tmp", sized(b.r.TmpSize, "mode=1777")...), true)
		b.add(tmpfs("/run", sized(b.r.TmpSize, "mode=0755")...), true)
		b.add(tmpfs("/run/lock", sized(b.r.TmpSize, "mode=1777")...), true)
	}
	if b.h.MachineID != "" {
		b.add(hostFile(b.h.MachineID, "/etc/machine-id"), true)
	}
	if err := b.homeMount(); err != nil {
		return err
	}
	for i := range b.r.Mounts {
		if err := b.userMount(&b.r.Mounts[i]); err != nil {
			return err
		}
	}
	return nil
}

// kernelMounts are /proc, /sys and /dev. The device nodes and links of /dev are
// the runtime's to make.
func (b *builder) kernelMounts() {
	if b.r.HostPID {
		b.add(specs.Mount{Destination: "/proc", Type: Bind, Source: "/proc", Options: []string{"rbind", "nosuid", "nodev", "noexec"}}, false)
	} else {
		b.add(specs.Mount{Destination: "/proc", Type: "proc", Source: "proc", Options: []string{"nosuid", "nodev", "noexec"}}, false)
	}
	if b.r.Net && !b.r.HostSys {
		b.add(specs.Mount{Destination: "/sys", Type: "sysfs", Source: "sysfs", Options: []string{"nosuid", "nodev", "noexec", "ro"}}, false)
	} else {
		b.add(specs.Mount{Destination: "/sys", Type: Bind, Source: "/sys", Options: []string{"rbind", "nosuid", "nodev", "noexec", "ro"}}, false)
	}
	if b.h.Cgroup != "" {
		b.add(specs.Mount{Destination: "/sys/fs/cgroup", Type: Bind, Source: b.h.Cgroup, Options: []string{"bind", "nosuid", "nodev", "noexec", "ro"}}, true)
	}
	b.add(specs.Mount{Destination: "/dev", Type: Tmpfs, Source: Tmpfs, Options: []string{"nosuid", "noexec", "strictatime", "mode=0755", "size=65536k"}}, false)
	b.add(specs.Mount{Destination: "/dev/pts", Type: "devpts", Source: "devpts", Options: []string{"nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620"}}, false)
	shm := b.r.ShmSize
	if shm == 0 {
		shm = b.h.MemTotal
	}
	b.add(tmpfs("/dev/shm", sized(shm, "mode=1777")...), true)
	b.add(specs.Mount{Destination: "/dev/mqueue", Type: "mqueue", Source: "mqueue", Options: []string{"nosuid", "nodev", "noexec"}}, true)
}

func sized(size int64, options ...string) []string {
	if size > 0 {
		options = append(options, fmt.Sprintf("size=%d", size))
	}
	return options
}

// homeMount gives the user a home: the host's if asked, else an empty one where
// the image has none.
func (b *builder) homeMount() error {
	if b.r.MountHome {
		source := path.Clean(b.h.Home)
		if !path.IsAbs(source) || source == "/" || hasControl(source) || b.home == "/" {
			return fault.Usage(fmt.Errorf("mount home: the user's home is %q", shorten(b.h.Home)), "leave --container-mount-home out, or name a directory: --container-mounts=SRC:DST")
		}
		if err := Reserved(b.home); err != nil {
			return fmt.Errorf("mount home %s: %w", b.home, err)
		}
		b.add(specs.Mount{Destination: b.home, Type: Bind, Source: source, Options: []string{"rbind", "x-create=dir"}}, true)
		return nil
	}
	if Reserved(b.home) != nil || b.exists(b.home) {
		return nil
	}
	if b.r.Writable && b.mountAbove(b.home) == "" {
		b.Mountpoints = append(b.Mountpoints, Mountpoint{b.home, true})
		return nil
	}
	b.add(tmpfs(b.home, sized(b.r.TmpSize, "mode=0700", "x-create=dir")...), true)
	return nil
}

// userMount adds one of --container-mounts.
func (b *builder) userMount(m *Mount) error {
	if err := Reserved(m.Target); err != nil {
		return fmt.Errorf("mount %q: %w", shorten(m.Text), err)
	}
	if err := m.checkCreate(); err != nil {
		return err
	}
	switch m.Type {
	case Umount:
		before := len(b.Spec.Mounts)
		b.Spec.Mounts = slices.DeleteFunc(b.Spec.Mounts, func(s specs.Mount) bool { return below(s.Destination, m.Target) })
		switch {
		case len(b.Spec.Mounts) < before || slices.Contains(b.Umounts, m.Target):
		case b.withMounts(m.Target):
			b.Umounts = append(b.Umounts, m.Target)
		case m.NoFail:
			b.note("mount %s: nothing is mounted there: left out as nofail says", m.Text)
		default:
			return fault.Usage(fmt.Errorf("mount %q: nothing is mounted on %s", shorten(m.Text), m.Target), "leave it out, or add the flag nofail: umount:"+m.Target+":nofail")
		}
		return nil
	case Bind, Tmpfs:
	default:
		return fmt.Errorf("mount %q: unknown type %q", shorten(m.Text), m.Type)
	}
	if deviceFile(m.Target) && m.isDir() && m.Kind != Missing {
		return fault.Usage(fmt.Errorf("mount %q: %s is a device, and a directory cannot be mounted on it", shorten(m.Text), m.Target), "mount it elsewhere")
	}
	if m.Kind == Missing {
		b.note("mount %s: the source is missing: left out as nofail says", m.Text)
		return nil
	}
	s := specs.Mount{Destination: m.Target, Type: m.Type, Source: m.Source, Options: slices.Clone(m.Options)}
	create := "x-create=file"
	if m.isDir() {
		create = "x-create=dir"
	}
	if m.Type == Tmpfs {
		s.Source = Tmpfs
	}
	if m.Type == Bind {
		b.dropTimes(m, &s)
	}
	s.Options = append(s.Options, create)
	// What is mounted over need not be mounted before, and an unmount asked for
	// before may not take this away.
	b.Spec.Mounts = slices.DeleteFunc(b.Spec.Mounts, func(s specs.Mount) bool { return b.droppable[s.Destination] && below(s.Destination, m.Target) })
	b.Umounts = slices.DeleteFunc(b.Umounts, func(target string) bool { return below(m.Target, target) })
	b.add(s, false)
	return nil
}

// dropTimes leaves out how access times are kept: the kernel locks that for all mounts that
// a user namespace has from the host, and refuses the whole mount otherwise.
func (b *builder) dropTimes(m *Mount, s *specs.Mount) {
	n := len(s.Options)
	s.Options = slices.DeleteFunc(s.Options, func(o string) bool {
		return standardFlags[o] == "atime" || standardFlags[o] == "diratime"
	})
	if len(s.Options) < n {
		b.note("mount %s: access times are kept as the host's mount says, which is locked in containers", shorten(m.Text))
	}
}

// add adds a mount; droppable says that one of the user's over it replaces it. A
// mount that is not the kernel's own gets x-create, for the runtime to make its
// mount point where it lies below another mount.
func (b *builder) add(m specs.Mount, droppable bool) {
	created := slices.ContainsFunc(m.Options, func(o string) bool { return strings.HasPrefix(o, "x-create=") })
	if !created && m.Destination != "/proc" && m.Destination != "/sys" && m.Destination != "/dev" {
		m.Options = append(m.Options, "x-create=dir")
	}
	b.Spec.Mounts = append(b.Spec.Mounts, m)
	b.droppable[m.Destination] = droppable
}

// Mount adds a mount over all others, on a directory or else a file. It is called before
// Settle.
func (r *Result) Mount(m specs.Mount, dir bool) {
	kind := "file"
	if dir {
		kind = "dir"
	}
	m.Options = append(slices.Clone(m.Options), "x-create="+kind)
	if r.further.mountAbove(m.Destination) == "" {
		r.Mountpoints = append(r.Mountpoints, Mountpoint{m.Destination, dir})
	}
	r.Spec.Mounts = append(r.Spec.Mounts, m)
}

// mountpoints lists the mount points that the root needs: those that do not lie
// below an earlier mount.
func (b *builder) mountpoints() {
	var points []Mountpoint
	for i, m := range b.Spec.Mounts {
		covered := slices.ContainsFunc(b.Spec.Mounts[:i], func(earlier specs.Mount) bool { return below(m.Destination, earlier.Destination) })
		if !covered {
			points = append(points, Mountpoint{m.Destination, !slices.Contains(m.Options, "x-create=file")})
		}
	}
	if b.r.Writable && !b.exists("/tmp") {
		points = append(points, Mountpoint{"/tmp", true})
	}
	b.Mountpoints = append(points, b.Mountpoints...)
}

// mountAbove is the destination of the last mount on or above p, or empty.
func (b *builder) mountAbove(p string) string {
	for _, m := range slices.Backward(b.Spec.Mounts) {
		if below(p, m.Destination) {
			return m.Destination
		}
	}
	return ""
}

// withMounts says whether the host may have something mounted on p: a directory of it
// is there with all that is mounted below.
func (b *builder) withMounts(p string) bool {
	return slices.ContainsFunc(b.Spec.Mounts, func(m specs.Mount) bool {
		return m.Destination != p && below(p, m.Destination) && slices.Contains(m.Options, "rbind")
	})
}

// isFile says whether p, which exists, is known to be no directory. Only the image and
// the mounts can be asked; what the host has below a mount is not.
func (b *builder) isFile(p string) bool {
	if over := b.mountAbove(p); over != "" || slices.ContainsFunc(b.Mountpoints, func(m Mountpoint) bool { return m.Dir && below(m.Path, p) }) {
		return false
	}
	return b.root.Exists(p) && !b.root.Exists(p+"/.")
}

// exists says whether p will be in the container, as far as can be said: below a
// directory of the host it may be.
func (b *builder) exists(p string) bool {
	for _, m := range slices.Backward(b.Spec.Mounts) {
		switch {
		case below(m.Destination, p):
			return m.Destination != p || !slices.Contains(m.Options, "x-create=file")
		case below(p, m.Destination) && m.Type == Bind:
			return !slices.Contains(m.Options, "x-create=file")
		case below(p, m.Destination):
			return false
		}
	}
	return b.root.Exists(p) || slices.ContainsFunc(b.Mountpoints, func(m Mountpoint) bool { return m.Dir && below(m.Path, p) })
}
