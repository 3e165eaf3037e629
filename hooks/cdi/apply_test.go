package cdi_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	oci "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	specs "tags.cncf.io/container-device-interface/specs-go"

	"github.com/gangway-hpc/gangway/hooks/cdi"
)

// TestApply goes the whole way with a vendor of the test's: files, names, edits, and
// everything a specification can say entered or named.
func TestApply(t *testing.T) {
	needFuse(t)
	dir, lib := t.TempDir(), t.TempDir()
	write(t, filepath.Join(lib, "libacme.so"), "")
	write(t, filepath.Join(dir, "acme.yaml"), `
cdiVersion: "1.1.0"
kind: acme.com/thing
containerEdits:
  env: ["PATH=/opt/acme:/usr/bin", ACME=1]
  mounts:
  - {hostPath: `+lib+`, containerPath: /opt/acme, options: [ro, nosuid, idmap]}
  - {hostPath: `+lib+`/libacme.so, containerPath: /usr/lib/libacme.so, type: bind, options: [ro, bind]}
  - {hostPath: tmpfs, containerPath: /run/acme, type: tmpfs, options: [size=1m]}
  - {hostPath: `+lib+`, containerPath: /data}
  hooks:
  - {hookName: createContainer, path: /usr/bin/nvidia-cdi-hook, args: [nvidia-cdi-hook, update-ldcache, --folder, /opt/acme, --folder=/usr/lib]}
  - {hookName: createContainer, path: /usr/bin/nvidia-ctk, args: [nvidia-ctk, hook, create-symlinks, --link, "libacme.so::/usr/lib/libacme.so.1"]}
  - {hookName: createContainer, path: /usr/bin/nvidia-cdi-hook, args: [nvidia-cdi-hook, enable-cuda-compat, --host-driver-version=550.54.15]}
  - {hookName: createContainer, path: /usr/bin/nvidia-cdi-hook, args: [nvidia-cdi-hook, chmod, --mode, "755", --path, /dev/dri]}
  - {hookName: createContainer, path: /usr/bin/nvidia-cdi-hook, args: [nvidia-cdi-hook, make-coffee]}
  - {hookName: prestart, path: /opt/acme/hook, args: [hook, now]}
devices:
- name: a
  containerEdits:
    env: [ACME=2]
    deviceNodes:
    - {path: /dev/fuse}
    - {path: /dev/acme0, hostPath: /dev/zero, permissions: rw}
    additionalGids: [4444444, 0]
    netDevices: [{hostInterfaceName: eth7, name: eth0}]
    intelRdt: {closID: gold}
- name: b
  containerEdits:
    deviceNodes:
    - {path: /dev/fuse, permissions: r, fileMode: 0123}
`)
	edits, err := load(t, dir).Edits("acme.com/thing=a", "acme.com/thing=b", "acme.com/thing=a")
	if err != nil {
		t.Fatal(err)
	}
	spec := &oci.Spec{
		Process: &oci.Process{Env: []string{"HOME=/root", "PATH=/bin", "ACME=1"}},
		Mounts: []oci.Mount{
			{Destination: "/proc", Type: "proc"},
			{Destination: "/data/", Source: "/home", Type: "bind"},
			{Destination: "/opt/acme/mine", Source: "/tmp", Type: "bind"},
			{Destination: "/opt/acmes", Source: "/tmp", Type: "bind"},
		},
		Linux: &oci.Linux{Devices: []oci.LinuxDevice{{Path: "/dev/acme0", Type: "c", Major: 9, Minor: 9}}},
	}
	before, _ := json.Marshal(edits)
	report, err := cdi.Host{Groups: []int{0}}.Apply(spec, edits)
	if err != nil {
		t.Fatal(err)
	}
	if after, _ := json.Marshal(edits); string(after) != string(before) {
		t.Errorf("the edits were changed:\n%s\n%s", before, after)
	}
	if got, want := strings.Join(spec.Process.Env, " "), "HOME=/root PATH=/opt/acme:/usr/bin ACME=2"; got != want {
		t.Errorf("environment %s, not %s", got, want)
	}
	var mounts []string
	for _, m := range spec.Mounts {
		mounts = append(mounts, m.Destination+" "+m.Type+" "+strings.Join(m.Options, ","))
	}
	want := []string{"/proc proc ", "/opt/acme bind ro,nosuid,rbind", "/opt/acme/mine bind ", "/opt/acmes bind ", "/dev/acme0 bind bind,nosuid,noexec", "/usr/lib/libacme.so bind ro,bind", "/run/acme tmpfs size=1m", "/data bind rbind"}
	if !slices.Equal(mounts, want) {
		t.Errorf("mounts\n%q, not\n%q", mounts, want)
	}
	if d := spec.Linux.Devices; len(d) != 1 || d[0].Path != "/dev/fuse" || d[0].Type != "c" || d[0].Major != 10 || d[0].Minor != 229 {
		t.Errorf("devices %+v", d)
	}
	var rules []string
	for _, r := range spec.Linux.Resources.Devices {
		text, _ := json.Marshal(r)
		rules = append(rules, string(text))
	}
	if !slices.Equal(rules, []string{
		`{"allow":true,"type":"c","major":10,"minor":229,"access":"r"}`, `{"allow":true,"type":"c","major":1,"minor":5,"access":"rw"}`,
	}) {
		t.Errorf("device rules %s", rules)
	}
	if h := spec.Hooks; h == nil || len(h.CreateRuntime) != 1 || h.CreateRuntime[0].Path != "/opt/acme/hook" || len(h.CreateContainer) != 0 {
		t.Errorf("hooks %+v", spec.Hooks)
	}
	checkReport(t, report)
}

// needFuse skips a test that takes /dev/fuse for a device of a vendor's.
func needFuse(t *testing.T) {
	if _, err := os.Stat("/dev/fuse"); err != nil {
		t.Skip("needs /dev/fuse")
	}
}

func checkReport(t *testing.T, report cdi.Report) {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat("/dev/fuse", &st); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(report.Cannot, []string{
		fmt.Sprintf("device node /dev/fuse keeps owner and mode of the host's (%d:%d, %04o)", st.Uid, st.Gid, st.Mode&0o7777),
		"mount /opt/acme: option idmap is root's",
		"hook nvidia-cdi-hook make-coffee is not known here",
		"group 4444444: a container gets only the groups that its user is in",
		"network device eth7: only root can move it into a container",
		"intelRdt: cache and memory bandwidth are root's to assign",
	}) {
		t.Errorf("cannot: %q", report.Cannot)
	}
	if !slices.Equal(report.Replaced, []string{"variable PATH", "variable ACME", "mount /data"}) {
		t.Errorf("replaced: %q", report.Replaced)
	}
	if !slices.Equal(report.Hooks, []string{"prestart /opt/acme/hook now"}) {
		t.Errorf("hooks: %q", report.Hooks)
	}
	actions, _ := json.Marshal(report.Actions)
	if want := `[{"Hook":"update-ldcache","Links":null,"Folders":["/opt/acme","/usr/lib"],"DriverVersion":""},` +
		`{"Hook":"create-symlinks","Links":[{"Path":"/usr/lib/libacme.so.1","Target":"libacme.so"}],"Folders":null,"DriverVersion":""},` +
		`{"Hook":"enable-cuda-compat","Links":null,"Folders":null,"DriverVersion":"550.54.15"}]`; string(actions) != want {
		t.Errorf("actions: %s", actions)
	}
	if !slices.Equal(report.Mountpoints, []cdi.Mountpoint{{"/dev/acme0", false}, {"/opt/acme", true}, {"/usr/lib/libacme.so", false}, {"/run/acme", true}, {"/data", true}}) {
		t.Errorf("mountpoints: %v", report.Mountpoints)
	}
}

func mountOn(source, target string) specs.ContainerEdits {
	return specs.ContainerEdits{Env: []string{"A=b"}, Mounts: []*specs.Mount{{HostPath: source, ContainerPath: target}}}
}

// TestApplyFits: what has the kind of what is there may be mounted, and what the edits mount
// themselves is not the kernel's.
func TestApplyFits(t *testing.T) {
	for _, e := range []specs.ContainerEdits{
		mountOn("/etc", "/dev/shm"), mountOn("/etc/passwd", "/dev/shm/x"), mountOn("/etc", "/proc/sys"), mountOn("/etc/passwd", "/proc/cpuinfo"),
		mountOn("/etc", "/sys/class"), mountOn("/etc/passwd", "/proc/driver/nvidia/params"),
		{Mounts: []*specs.Mount{{HostPath: "tmpfs", Type: "tmpfs", ContainerPath: "/dev/shm"}}},
		{Mounts: []*specs.Mount{{HostPath: "/", ContainerPath: "/sys/class"}, {HostPath: "/etc/passwd", ContainerPath: "/sys/class/net"}}},
	} {
		if _, err := cdi.Apply(&oci.Spec{}, &e); err != nil {
			t.Errorf("%+v: %v", *e.Mounts[0], err)
		}
	}
}

// TestDeniedGroup: a group is named where it helps, and only there.
func TestDeniedGroup(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root, to make device nodes and be another user")
	}
	root := t.TempDir()
	if err := errors.Join(os.Chmod(filepath.Dir(root), 0o755), os.Chmod(root, 0o755), os.Mkdir(filepath.Join(root, "dev"), 0o755)); err != nil {
		t.Fatal(err)
	}
	denied := func(mode uint32, gid int, groups ...int) string {
		node := filepath.Join(root, "dev/acme")
		if err := unix.Mknod(node, unix.S_IFCHR|mode, int(unix.Mkdev(1, 5))); err != nil {
			t.Skipf("needs the right to make device nodes: %v", err)
		}
		defer os.Remove(node)
		if err := errors.Join(os.Chmod(node, os.FileMode(mode)), os.Chown(node, 0, gid)); err != nil {
			t.Fatal(err)
		}
		e := &specs.ContainerEdits{DeviceNodes: []*specs.DeviceNode{{Path: "/dev/acme", Permissions: "rw"}}}
		var report cdi.Report
		var err error
		done := make(chan struct{})
		go func() {
			defer close(done)
			runtime.LockOSThread() // and it ends with this
			// The thread is somebody else, as far as files go. The latter two return nothing to go by.
			if _, _, errno := unix.RawSyscall(unix.SYS_SETGROUPS, 0, 0, 0); errno != 0 {
				err = errno
				return
			}
			_, _ = unix.Setfsgid(64321), unix.Setfsuid(64321)
			report, err = cdi.Host{Root: root, Groups: groups}.Apply(&oci.Spec{}, e)
		}()
		<-done
		if err != nil || len(report.Denied) > 1 {
			t.Fatalf("%+v, %v", report, err)
		}
		if len(report.Denied) == 0 {
			return ""
		}
		return report.Denied[0].String()
	}
	const text = "/dev/acme cannot be opened by this user"
	for _, c := range [][2]string{
		{denied(0o600, 4242), text},
		{denied(0o660, 4242), text + "; members of its group 4242 can (getent group 4242)"},
		{denied(0o660, 4242, 4242), text}, // that was not it
		{denied(0o640, 4242), text},
		{denied(0o660, 0, 4242), text},
		{denied(0o666, 4242), ""},
	} {
		if c[0] != c[1] {
			t.Errorf("%q, want %q", c[0], c[1])
		}
	}
}

// TestApplyRefuses: on an error nothing is changed.
func TestApplyRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		e    specs.ContainerEdits
		want string
	}{
		"another hook's nonsense": {specs.ContainerEdits{Env: []string{"A=b"}, Mounts: []*specs.Mount{{HostPath: "/tmp", ContainerPath: "/proc"}}}, "over the container's own /proc"},
		"a null":                  {specs.ContainerEdits{Env: []string{"A=b"}, DeviceNodes: []*specs.DeviceNode{nil}}, "null"},
		"no such node":            {specs.ContainerEdits{Env: []string{"A=b"}, DeviceNodes: []*specs.DeviceNode{{Path: "/dev/acme77"}}}, "no such file"},
		"a file system":           {specs.ContainerEdits{Env: []string{"A=b"}, Mounts: []*specs.Mount{{HostPath: "server:/x", ContainerPath: "/x", Type: "nfs"}}}, `has the type "nfs"`},
		"kernel's files":          {specs.ContainerEdits{Env: []string{"A=b"}, Mounts: []*specs.Mount{{HostPath: "proc", ContainerPath: "/x", Type: "proc"}}}, `has the type "proc"`},
		"a file on /dev/shm":      {mountOn("/etc/passwd", "/dev/shm/"), "mount /etc/passwd on /dev/shm: that is a directory, on which no file"},
		"a node on /dev/mqueue":   {specs.ContainerEdits{DeviceNodes: []*specs.DeviceNode{{Path: "/dev/mqueue", HostPath: "/dev/zero"}}}, "mount /dev/zero on /dev/mqueue: that is a directory"},
		"a file on the kernel's":  {mountOn("/etc/passwd", "/proc/sys"), "mount /etc/passwd on /proc/sys: that is a directory"},
		"a file on /sys":          {mountOn("/etc/passwd", "/sys/class"), "mount /etc/passwd on /sys/class: that is a directory"},
		"a directory on a file":   {mountOn("/etc", "/proc/cpuinfo"), "mount /etc on /proc/cpuinfo: that is a file, on which no directory"},
		"tmpfs on a file":         {specs.ContainerEdits{Mounts: []*specs.Mount{{HostPath: "tmpfs", Type: "tmpfs", ContainerPath: "/proc/cpuinfo"}}}, "that is a file"},
	} {
		spec := &oci.Spec{}
		_, err := cdi.Apply(spec, &c.e)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
		if text, _ := json.Marshal(spec); string(text) != `{"ociVersion":""}` {
			t.Errorf("%s: changed to %s", name, text)
		}
	}
	if _, err := cdi.Apply(nil, &specs.ContainerEdits{}); err == nil {
		t.Error("no specification was taken")
	}
	if r, err := cdi.Apply(&oci.Spec{}, nil); err != nil || r.Cannot != nil {
		t.Errorf("no edits: %v", err)
	}
}

// TestDamagedHooks: arguments of known hooks that make no sense are named, and nothing
// of them is done.
func TestDamagedHooks(t *testing.T) {
	for text, want := range map[string]string{
		"nvidia-cdi-hook":                                     "no command",
		"nvidia-ctk hook":                                     "no command",
		"nvidia-cdi-hook create-symlinks --link a":            "TARGET::LINK",
		"nvidia-cdi-hook create-symlinks --link ::/a":         "TARGET::LINK",
		"nvidia-cdi-hook create-symlinks --link a::b":         "absolute",
		"nvidia-cdi-hook create-symlinks --link a::/../b":     "upwards",
		"nvidia-cdi-hook create-symlinks --link a::/dev/null": "over",
		"nvidia-cdi-hook create-symlinks --link a::/":         "over",
		"nvidia-cdi-hook update-ldcache --folder lib":         "absolute",
		"nvidia-cdi-hook update-ldcache --folder /a,../b":     "absolute",
		"nvidia-cdi-hook apply-cuda-memory-limits":            "not known",
	} {
		args := strings.Fields(text)
		e := &specs.ContainerEdits{Hooks: []*specs.Hook{{HookName: "createContainer", Path: "/usr/bin/" + args[0], Args: args}}}
		spec := &oci.Spec{}
		report, err := cdi.Apply(spec, e)
		if err != nil || len(report.Cannot) != 1 || !strings.Contains(report.Cannot[0], want) || report.Actions != nil || spec.Hooks != nil {
			t.Errorf("%s: %v, %+v", text, err, report)
		}
	}
	// Not a hook of that program: entered as any other.
	e := &specs.ContainerEdits{Hooks: []*specs.Hook{{HookName: "poststop", Path: "/usr/bin/nvidia-ctk", Args: []string{"nvidia-ctk", "system"}}, {HookName: "startContainer", Path: "/x"}}}
	spec := &oci.Spec{}
	if report, err := cdi.Apply(spec, e); err != nil || len(report.Hooks) != 2 || len(spec.Hooks.Poststop) != 1 || len(spec.Hooks.StartContainer) != 1 {
		t.Errorf("%v, %+v", err, report)
	}
}

// TestRoot: with another root nodes and files are looked for there, and named as they
// are on the host.
func TestRoot(t *testing.T) {
	root := t.TempDir()
	e := &specs.ContainerEdits{Mounts: []*specs.Mount{{HostPath: "/opt/acme/lib", ContainerPath: "/a"}}}
	host := cdi.Host{Root: root}
	if err := host.Complete(e); !errors.Is(err, cdi.ErrStale) || strings.Contains(err.Error(), root) {
		t.Errorf("%v", err)
	}
	write(t, filepath.Join(root, "opt/acme/lib/x"), "")
	spec := &oci.Spec{}
	report, err := host.Apply(spec, e)
	if err != nil {
		t.Fatal(err)
	}
	if spec.Mounts[0].Source != "/opt/acme/lib" || !report.Mountpoints[0].Dir {
		t.Errorf("%+v, %+v", spec.Mounts, report)
	}
}

// FuzzHooks: whatever the arguments of a known hook are, what comes of them are places
// in the container where something may be made.
func FuzzHooks(f *testing.F) {
	for _, text := range []string{
		"nvidia-cdi-hook create-symlinks --link a::/b --link=c::/d,e::/f", "nvidia-ctk hook update-ldcache --folder /a --folder",
		"amd-ctk hook create-symlinks --link", "nvidia-cdi-hook enable-cuda-compat --host-driver-version", "nvidia-cdi-hook create-symlinks --link x::/dev/../dev",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		args := strings.Split(text, " ")
		hook := &specs.Hook{HookName: "createContainer", Path: "/usr/bin/" + args[0], Args: args}
		report, err := cdi.Apply(&oci.Spec{}, &specs.ContainerEdits{Hooks: []*specs.Hook{hook}})
		if err != nil {
			return
		}
		if len(report.Actions)+len(report.Cannot)+len(report.Hooks) > 1 {
			t.Fatalf("%q is %+v", text, report)
		}
		for _, a := range report.Actions {
			for _, l := range a.Links {
				if path.Clean(l.Path) != l.Path || !path.IsAbs(l.Path) || l.Target == "" || slices.Contains([]string{"/", "/dev", "/proc", "/sys", "/dev/null"}, l.Path) {
					t.Fatalf("%q links %q to %q", text, l.Path, l.Target)
				}
			}
			for _, dir := range a.Folders {
				if path.Clean(dir) != dir || !path.IsAbs(dir) {
					t.Fatalf("%q has the folder %q", text, dir)
				}
			}
		}
	})
}
