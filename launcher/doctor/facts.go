package doctor

import (
	"bufio"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gangway-hpc/gangway/internal/proc"
)

// facts are settings of the machine that explain refusals. They decide nothing.
type facts struct {
	root string

	seccomp   bool   // a filter is in force on this process
	noNewPriv bool   // no program gets more rights by being executed
	label     string // AppArmor's name for this process; empty where there is none
	lsm       string // kernel security modules
	container string // "docker", "podman", "container", or empty
	gvisor    bool
	chroot    bool
	id        string // of the distribution, and those it is like
}

func readFacts(root string) facts {
	f := facts{root: root}
	for line := range strings.Lines(f.read("/proc/self/status")) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		switch value = strings.TrimSpace(value); name {
		case "Seccomp":
			f.seccomp = value == "2"
		case "NoNewPrivs":
			f.noNewPriv = value == "1"
		}
	}
	f.label = f.read("/proc/self/attr/apparmor/current")
	if f.label == "" && f.exists("/sys/kernel/security/apparmor", "/sys/module/apparmor") {
		f.label = f.read("/proc/self/attr/current")
	}
	f.lsm = f.read("/sys/kernel/security/lsm")
	switch {
	case f.exists("/.dockerenv"):
		f.container = "docker"
	case f.exists("/run/.containerenv"):
		f.container = "podman"
	case f.exists("/run/systemd/container", "/var/run/secrets/kubernetes.io"):
		f.container = "container"
	}
	version := f.read("/proc/version")
	// gVisor says it is this kernel, whatever it is itself.
	f.gvisor = strings.Contains(version, "gVisor") || strings.Contains(version, "Sun Jan 10 15:06:54 PST 2016")
	mounts := f.mountpoints()
	f.chroot = len(mounts) > 0 && !slices.ContainsFunc(mounts, func(m mountpoint) bool { return m.path == "/" })
	for line := range strings.Lines(f.read("/etc/os-release")) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		if name == "ID" || name == "ID_LIKE" {
			f.id += " " + strings.Trim(value, `"'`)
		}
	}
	return f
}

// read returns the content of a file of the machine without white space around it, or
// nothing.
func (f *facts) read(path string) string {
	b, err := os.ReadFile(f.root + path)
	if err != nil {
		return ""
	}
	return strings.Trim(string(b), " \t\n\x00")
}

// exists says whether one of the files is there.
func (f *facts) exists(paths ...string) bool {
	return slices.ContainsFunc(paths, func(path string) bool {
		_, err := os.Stat(f.root + path)
		return err == nil
	})
}

func (f *facts) sysctl(name string) string {
	return f.read("/proc/sys/" + strings.ReplaceAll(name, ".", "/"))
}

// restricted says whether AppArmor keeps user namespaces from programs without a
// profile.
func (f *facts) restricted() bool {
	return f.sysctl("kernel.apparmor_restrict_unprivileged_userns") == "1"
}

// profiled says whether AppArmor knows this process by the profile that we ship.
func (f *facts) profiled() bool { return strings.HasPrefix(f.label, profileName+" ") }

// mountpoint is a mount that this process sees.
type mountpoint struct{ path, kind string }

func (f *facts) mountpoints() []mountpoint {
	var all []mountpoint
	for lines := bufio.NewScanner(strings.NewReader(f.read("/proc/self/mountinfo"))); lines.Scan(); {
		before, after, _ := strings.Cut(lines.Text(), " - ")
		fields := strings.Fields(before)
		kind, _, _ := strings.Cut(after, " ")
		if len(fields) > 4 {
			all = append(all, mountpoint{proc.Unescape(fields[4]), kind})
		}
	}
	return all
}

// below lists what is mounted over parts of a directory.
func (f *facts) below(dir string) []string {
	var names []string
	for _, m := range f.mountpoints() {
		if strings.HasPrefix(m.path, dir+"/") && m.kind != "binfmt_misc" && m.kind != "autofs" {
			names = append(names, m.path+" ("+m.kind+")")
		}
	}
	return names
}

// install is the command that installs a package here.
func (f *facts) install(name string) string {
	for id := range strings.FieldsSeq(f.id) {
		switch id {
		case "debian", "ubuntu":
			return "apt-get install " + name
		case "rhel", "fedora", "centos":
			return "dnf install " + renamed(name, "uidmap", "shadow-utils")
		case "suse", "sles", "opensuse":
			return "zypper install " + renamed(name, "uidmap", "shadow")
		case "arch":
			return "pacman -S " + renamed(name, "uidmap", "shadow")
		case "alpine":
			return "apk add " + renamed(name, "uidmap", "shadow-uidmap")
		}
	}
	return "apt-get install " + name
}

// boot is the command that starts the kernel with one more argument.
func (f *facts) boot(arg string) string {
	if f.exists("/etc/default/grub") && (strings.Contains(f.id, "debian") || strings.Contains(f.id, "ubuntu")) {
		return `sudo sed -i 's/^GRUB_CMDLINE_LINUX="/&` + arg + ` /' /etc/default/grub && sudo update-grub && sudo reboot`
	}
	return `sudo grubby --update-kernel=ALL --args="` + arg + `" && sudo reboot`
}

func renamed(name, from, to string) string {
	if name == from {
		return to
	}
	return name
}

// outer is how to start the container that this process is in with one more option.
func (f *facts) outer(option string) string {
	if f.container == "docker" {
		return "docker run " + option + " IMAGE"
	}
	return "podman run " + option + " IMAGE"
}

// unfiltered is how to get rid of a seccomp filter.
func (f *facts) unfiltered() string {
	if f.container != "" {
		return f.outer("--security-opt seccomp=unconfined")
	}
	return "grep Seccomp: /proc/$PPID/status   (2: the filter is older than your shell; look for SystemCallFilter= or RestrictNamespaces= of its service)"
}

// existing is the nearest directory above path that is there.
func existing(path string) string {
	for {
		if _, err := os.Stat(path); err == nil || path == "/" || path == "." {
			return path
		}
		path = filepath.Dir(path)
	}
}
