package cdi

import (
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"

	oci "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	specs "tags.cncf.io/container-device-interface/specs-go"

	"github.com/gangway-hpc/gangway/internal/fault"
)

// Report is what [Apply] has to say beside the OCI specification. Its texts are for
// people, a line each.
type Report struct {
	Cannot      []string     // what was asked for and cannot be done in a rootless container
	Denied      []Denied     // nodes that the caller may not open
	Replaced    []string     // what the specification had and the edits replaced
	Hooks       []string     // the hooks that were entered, and do nothing unless somebody runs them
	Actions     []Action     // well-known hooks, to be carried out instead of run; those are not entered
	Mountpoints []Mountpoint // what has to be in the root for the mounts that were entered
}

// Denied is a device node of the host that the caller may not open.
type Denied struct {
	Path  string
	Group int // whose members may, and the caller is none; -1: there is no such group
}

// String says it to people.
func (d Denied) String() string {
	text := d.Path + " cannot be opened by this user"
	if d.Group >= 0 {
		text += fmt.Sprintf("; members of its group %d can (getent group %d)", d.Group, d.Group)
	}
	return text
}

// Mountpoint is a directory, or else a file.
type Mountpoint struct {
	Path string
	Dir  bool
}

// Apply enters edits into an OCI specification, on this machine and for this process's
// groups. See [Host.Apply].
func Apply(spec *oci.Spec, e *specs.ContainerEdits) (Report, error) {
	groups, err := os.Getgroups()
	if err != nil {
		return Report{}, fmt.Errorf("get the groups of this process: %w", err)
	}
	return Host{Groups: append(groups, os.Getegid())}.Apply(spec, e)
}

// Apply enters edits, of whichever hook, into an OCI specification: process.env, mounts,
// hooks, linux.devices and linux.resources.devices. It checks them as [Validate] does and
// completes them as [Host.Complete] does; on an error spec is unchanged. The edits are
// not changed.
//
// A container without root gets the host's node, so a node that has another path inside
// is entered as a bind mount, and owner and mode are the host's. A mount replaces one at
// the same place, and comes before those below it.
func (h Host) Apply(spec *oci.Spec, e *specs.ContainerEdits) (Report, error) {
	if spec == nil {
		return Report{}, errors.New("apply CDI edits: no OCI specification")
	}
	if e == nil {
		return Report{}, nil
	}
	if err := checkEdits(e); err != nil {
		return Report{}, fmt.Errorf("apply CDI edits: %w", err)
	}
	edits := Merge(e)
	seen, err := h.complete(edits)
	if err != nil {
		return Report{}, fmt.Errorf("apply CDI edits: %w", err)
	}
	a := &applier{host: h, spec: spec}
	for _, m := range spec.Mounts {
		a.places = append(a.places, path.Clean(m.Destination))
	}
	for _, m := range edits.Mounts {
		if !isBind(m.Type, m.Options) && m.Type != "tmpfs" {
			return Report{}, &fault.Error{
				What:  fmt.Errorf("apply CDI edits: mount %s on %s has the type %q", m.HostPath, m.ContainerPath, m.Type),
				Cause: "an ordinary user can mount tmpfs and what the host has, nothing else",
				Hint:  "mount it on the host, and name that directory in the CDI specification with the option rbind",
			}
		}
	}
	if err := h.fit(edits, seen); err != nil {
		return Report{}, err
	}
	a.env(edits.Env)
	for i, d := range edits.DeviceNodes {
		a.device(d, &seen.nodes[i])
	}
	for i, m := range edits.Mounts {
		a.mount(m, seen.isDir(i))
	}
	for _, hook := range edits.Hooks {
		a.hook(hook)
	}
	a.cannot(edits)
	return a.Report, nil
}

// applier is one call of Apply, once nothing can fail any more.
type applier struct {
	Report
	host   Host
	spec   *oci.Spec
	places []string // of spec.Mounts, clean
}

// variable is the name of NAME=VALUE.
func variable(v string) string {
	name, _, _ := strings.Cut(v, "=")
	return name
}

func (a *applier) env(env []string) {
	if len(env) == 0 {
		return
	}
	if a.spec.Process == nil {
		a.spec.Process = &oci.Process{}
	}
	p := a.spec.Process
	p.Env = slices.Clone(p.Env)
	for _, v := range env {
		found := false // all of several are replaced: programs differ in which they take
		for i := range p.Env {
			if variable(p.Env[i]) != variable(v) {
				continue
			}
			if p.Env[i] != v && !found {
				a.Replaced = append(a.Replaced, "variable "+variable(v))
			}
			p.Env[i], found = v, true
		}
		if !found {
			p.Env = append(p.Env, v)
		}
	}
}

// linux returns the part of the specification that is Linux's.
func (a *applier) linux() *oci.Linux {
	if a.spec.Linux == nil {
		a.spec.Linux = &oci.Linux{}
	}
	return a.spec.Linux
}

// device enters a complete node, of which the host has st.
func (a *applier) device(d *specs.DeviceNode, st *unix.Stat_t) {
	inside := path.Clean(d.Path)
	a.compare(d, st)
	if inside == path.Clean(d.HostPath) {
		l := a.linux()
		dev := oci.LinuxDevice{Path: inside, Type: d.Type, Major: d.Major, Minor: d.Minor, FileMode: d.FileMode, UID: d.UID, GID: d.GID}
		i := slices.IndexFunc(l.Devices, func(o oci.LinuxDevice) bool { return path.Clean(o.Path) == inside })
		if i < 0 {
			l.Devices = append(l.Devices, dev)
		} else {
			if old := l.Devices[i]; old.Type != dev.Type || old.Major != dev.Major || old.Minor != dev.Minor {
				a.Replaced = append(a.Replaced, "device node "+inside)
			}
			l.Devices[i] = dev
		}
	} else {
		l := a.linux()
		l.Devices = slices.DeleteFunc(l.Devices, func(o oci.LinuxDevice) bool { return path.Clean(o.Path) == inside })
		a.enter(oci.Mount{Destination: inside, Source: d.HostPath, Type: "bind", Options: []string{"bind", "nosuid", "noexec"}}, false)
	}
	if access := d.Permissions; access != noPermissions && d.Type != "p" {
		if access == "" {
			access = "rwm"
		}
		a.allow(d, access)
		a.reach(d, access, st)
	}
}

// compare notes what of a node a bind mount cannot give.
func (a *applier) compare(d *specs.DeviceNode, st *unix.Stat_t) {
	if uint32(*d.FileMode)&0o7777 != st.Mode&0o7777 || d.UID != nil && *d.UID != st.Uid || d.GID != nil && *d.GID != st.Gid {
		a.Cannot = append(a.Cannot, fmt.Sprintf("device node %s keeps owner and mode of the host's (%d:%d, %04o)", d.Path, st.Uid, st.Gid, st.Mode&0o7777))
	}
}

// allow enters a device into the device cgroup's list, once.
func (a *applier) allow(d *specs.DeviceNode, access string) {
	l := a.linux()
	if l.Resources == nil {
		l.Resources = &oci.LinuxResources{}
	}
	rule := oci.LinuxDeviceCgroup{Allow: true, Type: d.Type, Major: &d.Major, Minor: &d.Minor, Access: access}
	same := func(o oci.LinuxDeviceCgroup) bool {
		return o.Allow && o.Type == rule.Type && o.Access == access && o.Major != nil && *o.Major == d.Major && o.Minor != nil && *o.Minor == d.Minor
	}
	if !slices.ContainsFunc(l.Resources.Devices, same) {
		l.Resources.Devices = append(l.Resources.Devices, rule)
	}
}

// reach notes that the caller may not open a node, which no container changes.
func (a *applier) reach(d *specs.DeviceNode, access string, st *unix.Stat_t) {
	var mode uint32
	if strings.Contains(access, "r") {
		mode |= unix.R_OK
	}
	if strings.Contains(access, "w") {
		mode |= unix.W_OK
	}
	if mode == 0 || unix.Faccessat(unix.AT_FDCWD, a.host.path(d.HostPath), mode, unix.AT_EACCESS) == nil {
		return
	}
	denied := Denied{Path: d.HostPath, Group: -1}
	// Nobody is made a member of root's group for a device.
	if st.Mode>>3&mode == mode && st.Gid != 0 && !slices.Contains(a.host.Groups, int(st.Gid)) {
		denied.Group = int(st.Gid)
	}
	a.Denied = append(a.Denied, denied)
}

// mount enters a mount, of a directory or not.
func (a *applier) mount(m *specs.Mount, dir bool) {
	om := oci.Mount{Destination: path.Clean(m.ContainerPath), Source: m.HostPath, Type: m.Type}
	for _, o := range m.Options {
		if o == "idmap" || o == "ridmap" {
			a.Cannot = append(a.Cannot, "mount "+om.Destination+": option "+o+" is root's")
			continue
		}
		om.Options = append(om.Options, o)
	}
	if !isBind(m.Type, m.Options) {
		a.enter(om, true)
		return
	}
	om.Type = "bind"
	if !slices.Contains(om.Options, "bind") && !slices.Contains(om.Options, "rbind") {
		om.Options = append(om.Options, "rbind")
	}
	a.enter(om, dir)
}

// enter puts a mount where nothing that is mounted later hides it: before the first one
// below it. It replaces those at the same place.
func (a *applier) enter(m oci.Mount, dir bool) {
	for replaced := false; ; replaced = true {
		i := slices.Index(a.places, m.Destination)
		if i < 0 {
			break
		}
		if !replaced {
			a.Replaced = append(a.Replaced, "mount "+m.Destination)
		}
		a.places = slices.Delete(a.places, i, i+1)
		a.spec.Mounts = slices.Delete(a.spec.Mounts, i, i+1)
	}
	i := slices.IndexFunc(a.places, func(p string) bool {
		return len(p) > len(m.Destination) && p[len(m.Destination)] == '/' && strings.HasPrefix(p, m.Destination)
	})
	if i < 0 {
		i = len(a.places)
	}
	a.places = slices.Insert(a.places, i, m.Destination)
	a.spec.Mounts = slices.Insert(a.spec.Mounts, i, m)
	a.Mountpoints = append(a.Mountpoints, Mountpoint{m.Destination, dir})
}

// hook enters a hook, or notes what it would do.
func (a *applier) hook(h *specs.Hook) {
	action, known, err := actionOf(h)
	switch {
	case err != nil:
		a.Cannot = append(a.Cannot, err.Error())
		return
	case action != nil:
		a.Actions = append(a.Actions, *action)
		return
	case known:
		return
	}
	if a.spec.Hooks == nil {
		a.spec.Hooks = &oci.Hooks{}
	}
	hook := oci.Hook{Path: h.Path, Args: h.Args, Env: h.Env, Timeout: h.Timeout}
	hooks := a.spec.Hooks
	for name, list := range map[string]*[]oci.Hook{
		"createContainer": &hooks.CreateContainer, "startContainer": &hooks.StartContainer, "poststart": &hooks.Poststart,
		"poststop": &hooks.Poststop, "createRuntime": &hooks.CreateRuntime,
		"prestart": &hooks.CreateRuntime, // the older name; it runs at the same time and place
	} {
		if name == h.HookName {
			*list = append(*list, hook)
		}
	}
	a.Hooks = append(a.Hooks, h.HookName+" "+strings.Join(append([]string{h.Path}, h.Args[min(1, len(h.Args)):]...), " "))
}

// cannot notes what is root's.
func (a *applier) cannot(e *specs.ContainerEdits) {
	for _, gid := range e.AdditionalGIDs {
		if !slices.Contains(a.host.Groups, int(gid)) {
			a.Cannot = append(a.Cannot, fmt.Sprintf("group %d: a container gets only the groups that its user is in", gid))
		}
	}
	for _, d := range e.NetDevices {
		a.Cannot = append(a.Cannot, fmt.Sprintf("network device %s: only root can move it into a container", d.HostInterfaceName))
	}
	if e.IntelRdt != nil {
		a.Cannot = append(a.Cannot, "intelRdt: cache and memory bandwidth are root's to assign")
	}
}
