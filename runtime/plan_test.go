package runtime

import (
	"embed"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
)

//go:embed testdata/*.plan
var plans embed.FS

var update = flag.String("update", "", "write the golden files to this directory, which everybody may write to")

// golden are configurations whose plans are kept.
func golden() map[string]*Config {
	base := func() *Config {
		c := &Config{Spec: plain([]string{"sh", "-c", "exit 7"}), Stage: "/run/stage", Root: Root{Dir: "/images/one"}}
		c.Spec.Linux.UIDMappings = []specs.LinuxIDMapping{{ContainerID: 1000, HostID: 1000, Size: 1}}
		c.Spec.Linux.GIDMappings = c.Spec.Linux.UIDMappings
		return c
	}
	fuse := base()
	fuse.Root = Root{FUSE: &FUSE{Options: func(int) string { return "" }}, Overlay: &Overlay{Size: 1 << 30}}
	fuse.Spec.Process.Terminal = true
	fuse.FakeRoot = true
	fuse.Orphan = Orphan{Message: "gone\n", Remove: []string{"/run/stage", "/run"}}
	mounts := base()
	mounts.Spec.Mounts = append(mounts.Spec.Mounts,
		specs.Mount{Destination: "/data/x", Type: "bind", Source: "/host/data", Options: []string{"rbind", "ro", "nosuid"}})
	mounts.Spec.Linux.Devices = []specs.LinuxDevice{{Path: "/dev/nvidia0"}, {Path: "/dev/infiniband/uverbs0"}}
	mounts.Spec.Linux.MaskedPaths = []string{"/proc/kcore"}
	mounts.Spec.Root = &specs.Root{Readonly: true}
	return map[string]*Config{"plain": base(), "fuse": fuse, "mounts": mounts}
}

// TestPlanGolden: the plan of a container, as --dry-run prints it. Compiling it needs
// nothing of what it names.
func TestPlanGolden(t *testing.T) {
	for name, c := range golden() {
		p, err := Compile(c, Features{Openat2: true, OpenTree: true, MountSetattr: true, CloseRange: true, Pidfd: true})
		if err != nil {
			t.Fatal(err)
		}
		again, err := Compile(c, Features{Openat2: true, OpenTree: true, MountSetattr: true, CloseRange: true, Pidfd: true})
		if err != nil || again.String() != p.String() {
			t.Errorf("%s: another plan the second time: %v", name, err)
		}
		if *update != "" {
			if err := os.WriteFile(filepath.Join(*update, name+".plan"), []byte(p.String()), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := plans.ReadFile("testdata/" + name + ".plan")
		if err != nil {
			t.Fatal(err)
		}
		if p.String() != string(want) {
			t.Errorf("%s: got\n%s", name, p)
		}
	}
}

// TestCompileRefuses: what no plan can be made of is said at once.
func TestCompileRefuses(t *testing.T) {
	for text, change := range map[string]func(*Config){
		"no command":            func(c *Config) { c.Spec.Process.Args = nil },
		`stage "x" is no`:       func(c *Config) { c.Stage = "x" },
		`root "" is no`:         func(c *Config) { c.Root.Dir = "" },
		"additions need":        func(c *Config) { c.Root.Additions = []Addition{{Path: "/x"}} },
		`directory "x" is no`:   func(c *Config) { c.Spec.Process.Cwd = "x" },
		"both an upper and":     func(c *Config) { c.Root.Overlay = &Overlay{Upper: "/x"} },
		`"x", which is to be`:   func(c *Config) { c.Orphan.Remove = []string{"x"} },
		"joining one is not":    func(c *Config) { c.Spec.Linux.Namespaces[0].Path = "/proc/1/ns/user" },
		`unknown namespace "x"`: func(c *Config) { c.Spec.Linux.Namespaces[0].Type = "x" },
		"cannot be mounted over": func(c *Config) {
			c.Spec.Mounts[0].Destination = "/../"
		},
		`option "size=1" is none of a bind`: func(c *Config) {
			c.Spec.Mounts[0] = specs.Mount{Destination: "/x", Type: "bind", Source: "/x", Options: []string{"size=1"}}
		},
		`source "x" is no absolute`: func(c *Config) {
			c.Spec.Mounts[0] = specs.Mount{Destination: "/x", Type: "bind", Source: "x"}
		},
		"mount /x: no type": func(c *Config) { c.Spec.Mounts[0] = specs.Mount{Destination: "/x"} },
	} {
		c := golden()["plain"]
		change(c)
		if _, err := Compile(c, Features{}); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%s: %v", text, err)
		}
	}
}
