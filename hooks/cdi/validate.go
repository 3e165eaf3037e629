package cdi

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	specs "tags.cncf.io/container-device-interface/specs-go"
)

// maxText is the length in bytes of the longest path, and of the longest variable or
// argument (Linux takes 128 KiB of the latter, its closing zero included).
const maxPath, maxText = 4095, 128<<10 - 1

// Validate checks a specification: its version and what needs a later one, names,
// paths, permissions, hooks, variables. It asks nothing of the machine. It is stricter
// than the CDI library: paths are absolute and clean, nothing has a zero byte, entries
// are not null, and what the runtime builds (/, /dev and its standard nodes, /proc and its
// processes, /sys) is not mounted over.
func Validate(spec *specs.Spec) error {
	if _, _, err := splitKind(spec.Kind); err != nil {
		return fmt.Errorf("check kind: %w", err)
	}
	if err := checkEdits(&spec.ContainerEdits); err != nil {
		return err
	}
	if len(spec.Devices) == 0 {
		return errors.New("it has no devices")
	}
	seen := make(map[string]bool, len(spec.Devices))
	for i := range spec.Devices {
		d := &spec.Devices[i]
		if err := checkWord("device", d.Name, "_-.:", true); err != nil {
			return err
		}
		if seen[d.Name] {
			return fmt.Errorf("device %q is there twice", d.Name)
		}
		seen[d.Name] = true
		if empty(&d.ContainerEdits) {
			return fmt.Errorf("device %q has no edits", d.Name)
		}
		if err := checkEdits(&d.ContainerEdits); err != nil {
			return fmt.Errorf("device %q: %w", d.Name, err)
		}
	}
	// Last, because it follows null entries.
	if err := specs.ValidateVersion(spec); err != nil {
		return fmt.Errorf("check cdiVersion: %w", err)
	}
	return nil
}

func empty(e *specs.ContainerEdits) bool {
	return len(e.Env)+len(e.DeviceNodes)+len(e.NetDevices)+len(e.Hooks)+len(e.Mounts)+len(e.AdditionalGIDs) == 0 && e.IntelRdt == nil
}

// checkEdits checks edits without regard to what they are of.
func checkEdits(e *specs.ContainerEdits) error {
	if err := checkEnv(e.Env); err != nil {
		return err
	}
	for _, d := range e.DeviceNodes {
		if err := checkNode(d); err != nil {
			return err
		}
	}
	for _, m := range e.Mounts {
		if err := checkMount(m); err != nil {
			return err
		}
	}
	for _, h := range e.Hooks {
		if err := checkHook(h); err != nil {
			return err
		}
	}
	if r := e.IntelRdt; r != nil && r.ClosID != "/" {
		if len(r.ClosID) > maxPath || r.ClosID == "." || r.ClosID == ".." || strings.ContainsAny(r.ClosID, "/\n\x00") {
			return fmt.Errorf("closID %q is no file name", shorten(r.ClosID))
		}
	}
	return checkNet(e.NetDevices)
}

func checkEnv(env []string) error {
	for _, v := range env {
		if strings.IndexByte(v, '=') <= 0 {
			return fmt.Errorf("variable %q is not NAME=VALUE", shorten(v))
		}
		if err := checkText("variable", v); err != nil {
			return err
		}
	}
	return nil
}

func checkText(what, s string) error {
	if strings.IndexByte(s, 0) >= 0 {
		return fmt.Errorf("%s %q has a zero byte", what, shorten(s))
	}
	if len(s) > maxText {
		return fmt.Errorf("%s %q is %d bytes long", what, shorten(s), len(s))
	}
	return nil
}

// checkPath checks a path of the host or of the container.
func checkPath(what, p string) error {
	switch {
	case p == "":
		return fmt.Errorf("%s has no path", what)
	case len(p) > maxPath:
		return fmt.Errorf("%s has a path of %d bytes", what, len(p))
	case strings.IndexByte(p, 0) >= 0:
		return fmt.Errorf("%s %q has a zero byte", what, shorten(p))
	case !path.IsAbs(p):
		return fmt.Errorf("%s %q is no absolute path", what, shorten(p))
	case strings.Contains(p, "/..") && slices.Contains(strings.Split(p, "/"), ".."):
		return fmt.Errorf("%s %q leads upwards (..)", what, shorten(p))
	}
	return nil
}

// checkTarget checks a path of the container at which something is made.
func checkTarget(what, p string) error {
	if err := checkPath(what, p); err != nil {
		return err
	}
	clean := path.Clean(p)
	switch clean {
	case "/", "/dev", "/proc", "/sys", "/dev/console", "/dev/ptmx", "/dev/null", "/dev/zero", "/dev/full", "/dev/random",
		"/dev/urandom", "/dev/tty", "/dev/fd", "/dev/stdin", "/dev/stdout", "/dev/stderr", "/dev/pts":
		return fmt.Errorf("%s would be over the container's own %s", what, clean)
	}
	if strings.HasPrefix(clean, "/dev/fd/") || strings.HasPrefix(clean, "/dev/pts/") || ofProcess(clean) {
		return fmt.Errorf("%s %s would be over what is a process's own", what, shorten(clean))
	}
	return nil
}

// ofProcess says whether a path is in the part of /proc that is about processes, which
// programs trust.
func ofProcess(p string) bool {
	rest, found := strings.CutPrefix(p, "/proc/")
	first, _, _ := strings.Cut(rest, "/")
	return found && (first == "self" || first == "thread-self" || strings.Trim(first, "0123456789") == "")
}

func checkNode(d *specs.DeviceNode) error {
	if d == nil {
		return errors.New("a device node is null")
	}
	if err := checkTarget("device node", d.Path); err != nil {
		return err
	}
	if d.HostPath != "" {
		if err := checkPath("device node", d.HostPath); err != nil {
			return err
		}
	}
	if !slices.Contains([]string{"", "b", "c", "u", "p"}, d.Type) {
		return fmt.Errorf("device node %s: %q is no type (b, c, u or p)", d.Path, shorten(d.Type))
	}
	if d.Permissions != noPermissions && strings.Trim(d.Permissions, "rwm") != "" {
		return fmt.Errorf("device node %s: %q are no permissions (of r, w and m, or none)", d.Path, shorten(d.Permissions))
	}
	if d.Major < 0 || d.Minor < 0 || d.Major > maxMajor || d.Minor > maxMinor {
		return fmt.Errorf("device node %s: %d:%d is no device number", d.Path, d.Major, d.Minor)
	}
	return nil
}

// noPermissions is how a device node asks for no entry in the device cgroup.
const noPermissions = "none"

// The largest numbers that Linux gives a device (MAJOR of 12 bits, MINOR of 20).
const maxMajor, maxMinor = 1<<12 - 1, 1<<20 - 1

func checkMount(m *specs.Mount) error {
	if m == nil {
		return errors.New("a mount is null")
	}
	if err := checkTarget("mount", m.ContainerPath); err != nil {
		return err
	}
	if m.HostPath == "" {
		return fmt.Errorf("mount %s has no source", m.ContainerPath)
	}
	if isBind(m.Type, m.Options) {
		if err := checkPath("mount", m.HostPath); err != nil {
			return err
		}
	}
	for _, o := range m.Options {
		if err := checkText("mount option", o); err != nil {
			return err
		}
	}
	return errors.Join(checkText("mount type", m.Type), checkText("mount", m.HostPath))
}

// isBind says whether a mount is one of a file or directory of the host. Without a type
// it is: so specifications older than 0.4.0 have them.
func isBind(typ string, options []string) bool {
	return typ == "" || typ == "bind" || typ == "rbind" || slices.Contains(options, "bind") || slices.Contains(options, "rbind")
}

func checkHook(h *specs.Hook) error {
	if h == nil {
		return errors.New("a hook is null")
	}
	if !slices.Contains(phases, h.HookName) {
		return fmt.Errorf("hook %q is none of %s", shorten(h.HookName), strings.Join(phases, ", "))
	}
	if err := checkPath("hook", h.Path); err != nil {
		return err
	}
	for _, arg := range h.Args {
		if err := checkText("argument", arg); err != nil {
			return fmt.Errorf("hook %s: %w", h.Path, err)
		}
	}
	if h.Timeout != nil && *h.Timeout <= 0 {
		return fmt.Errorf("hook %s has a timeout of %d s", h.Path, *h.Timeout)
	}
	if err := checkEnv(h.Env); err != nil {
		return fmt.Errorf("hook %s: %w", h.Path, err)
	}
	return nil
}

// phases are the names of OCI hooks.
var phases = []string{"prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop"}

func checkNet(devices []*specs.LinuxNetDevice) error {
	host, inside := map[string]bool{}, map[string]bool{}
	for _, d := range devices {
		switch {
		case d == nil:
			return errors.New("a network device is null")
		case d.HostInterfaceName == "" || d.Name == "":
			return errors.New("a network device has no name")
		case host[d.HostInterfaceName] || inside[d.Name]:
			return fmt.Errorf("network device %s to %s is there twice", shorten(d.HostInterfaceName), shorten(d.Name))
		}
		host[d.HostInterfaceName], inside[d.Name] = true, true
	}
	return nil
}
