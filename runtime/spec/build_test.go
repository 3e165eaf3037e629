package spec_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/gangway-hpc/gangway/runtime/spec"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// TestGolden is all that is decided for the plainest request.
func TestGolden(t *testing.T) {
	res := build(t, run("cat", "/etc/os-release"), debianImage(), ann(), debian())
	type text struct{ Path, Content string }
	shown := struct {
		Spec        *specs.Spec
		Files       []text
		Mountpoints []spec.Mountpoint
		Umounts     []string
		StopSignal  string
		Notes       []string
	}{res.Spec, nil, res.Mountpoints, res.Umounts, res.StopSignal.String(), res.Notes}
	for _, f := range res.Files {
		if f.Mode != 0o644 {
			t.Errorf("%s has mode %o", f.Path, f.Mode)
		}
		shown.Files = append(shown.Files, text{f.Path, string(f.Content)})
	}
	got, err := json.MarshalIndent(shown, "", "\t")
	if err != nil {
		t.Fatal(err)
	}
	golden := filepath.Join("testdata", "plain.json")
	if *update {
		if err := os.WriteFile(golden, append(got, '\n'), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(append(got, '\n'), want) {
		t.Errorf("not %s (rewrite it with -update):\n%s", golden, got)
	}
}

func TestCommand(t *testing.T) {
	for _, c := range []struct {
		name       string
		entry, cmd string
		entrypoint bool
		command    string
		want       string // empty: refused
	}{
		{"command", "", "", false, "ls -l", "ls -l"},
		{"command over cmd", "", "bash", false, "ls", "ls"},
		{"cmd", "", "bash -l", false, "", "bash -l"},
		{"entry point off", "/init --", "bash", false, "ls", "ls"},
		{"entry point off, cmd", "/init --", "bash", false, "", "bash"},
		{"entry point off, nothing", "/init --", "", false, "", ""},
		{"entry point", "/init --", "bash", true, "ls -l", "/init -- ls -l"},
		{"entry point, cmd", "/init --", "bash -l", true, "", "/init -- bash -l"},
		{"entry point alone", "/init --", "", true, "", "/init --"},
		{"no entry point", "", "bash", true, "", "bash"},
		{"nothing", "", "", true, "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := run(strings.Fields(c.command)...)
			r.Entrypoint = c.entrypoint
			img := spec.Image{Entrypoint: strings.Fields(c.entry), Cmd: strings.Fields(c.cmd)}
			if c.want == "" {
				_, err := spec.Build(r, img, ann(), debian())
				refused(t, err, "no command")
				return
			}
			res := build(t, r, img, ann(), debian())
			if got := strings.Join(res.Spec.Process.Args, " "); got != c.want {
				t.Errorf("got %s", got)
			}
			if !slices.Equal(img.Entrypoint, strings.Fields(c.entry)) {
				t.Error("the image was changed")
			}
		})
	}
}

func TestBadCommand(t *testing.T) {
	for _, c := range []struct {
		name  string
		r     spec.Request
		img   spec.Image
		names string
	}{
		{"entry point in proc", spec.Request{Entrypoint: true, Command: []string{"x"}}, spec.Image{Entrypoint: []string{"/proc/self/exe"}}, "/proc/self/exe"},
		{"entry point by dots", spec.Request{Entrypoint: true}, spec.Image{Entrypoint: []string{"/usr/..//proc/1/exe"}}, "/proc"},
		{"cmd in descriptors", spec.Request{}, spec.Image{Cmd: []string{"/dev/fd/3"}}, "/dev/fd/3"},
		{"entry point NUL", spec.Request{Entrypoint: true}, spec.Image{Entrypoint: []string{"/x\x00"}}, "NUL"},
		{"cmd NUL", spec.Request{}, spec.Image{Cmd: []string{"/x", "\x00"}}, "argument 1"},
		{"cmd empty", spec.Request{}, spec.Image{Cmd: []string{""}}, "empty"},
		{"command NUL", run("x", "\x00"), spec.Image{}, "argument 1"},
		{"command empty", run(""), spec.Image{}, "empty"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := spec.Build(c.r, c.img, ann(), debian())
			refused(t, err, "command", c.names)
		})
	}
}

func TestWorkdir(t *testing.T) {
	for _, c := range []struct {
		name, asked, image, mounts string
		want, point                string
	}{
		{"none", "", "", "", "/", ""},
		{"the image's", "", "/root", "", "/root", "/root"},
		{"the image's, missing", "", "/app/src/", "", "/app/src", "/app/src"},
		{"asked", "/usr/bin", "/app", "", "/usr/bin", ""},
		{"asked, mounted", "/src", "", "/x:/src", "/src", ""},
		{"asked, below a mount", "/src/a/b", "", "/x:/src", "/src/a/b", ""},
		{"asked, above a mount", "/deep", "", "/x:/deep/er", "/deep", ""},
		{"asked, home", "/home/ann", "", "", "/home/ann", ""},
		{"asked, tmp", "/tmp", "", "", "/tmp", ""},
		{"asked, below tmp", "/tmp/job", "", "tmpfs:/tmp/job", "/tmp/job", ""},
		{"asked, proc", "/proc", "", "", "/proc", ""},
		{"asked, by link", "/var/run", "", "", "/var/run", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := run("true")
			r.Workdir = c.asked
			if c.mounts != "" {
				r.Mounts = parse(t, c.mounts)
			}
			root := debian()
			root["/run/"] = ""
			res := build(t, r, spec.Image{WorkingDir: c.image}, ann(), root)
			if res.Spec.Process.Cwd != c.want {
				t.Errorf("got %s", res.Spec.Process.Cwd)
			}
			if has := slices.Contains(res.Mountpoints, spec.Mountpoint{Path: c.want, Dir: true}); c.point != "" && !has {
				t.Errorf("no %s among %v", c.point, res.Mountpoints)
			}
		})
	}
}

// TestWorkingDirUnderTmp: our /tmp hides what the image has there.
func TestWorkingDirUnderTmp(t *testing.T) {
	root := debian()
	root["/tmp/build/"] = ""
	res := build(t, run("true"), spec.Image{WorkingDir: "/tmp/build"}, ann(), root)
	if got := mountsAt(res, "/tmp/build"); len(got) != 1 || got[0] != "tmpfs tmpfs /tmp/build nosuid,nodev,mode=0755,x-create=dir" {
		t.Errorf("%q", got)
	}
	if !strings.Contains(strings.Join(res.Notes, "\n"), "/tmp/build") {
		t.Errorf("notes %q", res.Notes)
	}
}

// TestBadWorkdir is the row "WorkingDir" of the list of bad inputs.
func TestBadWorkdir(t *testing.T) {
	long := "/" + strings.Repeat("x/", 2100)
	for name, dir := range map[string]string{
		"descriptor": "/proc/self/fd/8", "another's root": "/proc/1/root", "by dots": "/tmp/..//proc/self/./fd/8", "proc sys": "/proc/sys", "dev fd": "/dev/fd/8",
		"relative": "app", "dots": "../../etc", "NUL": "/app\x00", "newline": "/app\n", "escape": "/\x1b[2J", "long": long,
	} {
		t.Run("image "+name, func(t *testing.T) {
			_, err := spec.Build(run("true"), spec.Image{WorkingDir: dir}, ann(), debian())
			refused(t, err, "image's working directory")
		})
		t.Run("asked "+name, func(t *testing.T) {
			r := run("true")
			r.Workdir = dir
			_, err := spec.Build(r, spec.Image{WorkingDir: "/app"}, ann(), debian())
			refused(t, err, "working directory")
		})
	}
	for name, dir := range map[string]string{"missing": "/nowhere", "below tmp": "/tmp/nowhere", "below dev": "/dev/nowhere", "a mounted file": "/mnt/file", "below a mounted file": "/mnt/file/x"} {
		t.Run("asked "+name, func(t *testing.T) {
			r := run("true")
			r.Workdir = dir
			r.Mounts = parse(t, "/etc/passwd:/mnt/file:x-create=file")
			_, err := spec.Build(r, debianImage(), ann(), debian())
			refused(t, err, dir, "not in the container")
		})
	}
	r := run("true")
	r.Workdir = "/etc/passwd"
	_, err := spec.Build(r, debianImage(), ann(), debian())
	refused(t, err, "/etc/passwd", "file")
}

func TestNamespaces(t *testing.T) {
	names := func(r spec.Request, h spec.Host) string {
		var list []string
		for _, ns := range build(t, r, debianImage(), h, debian()).Spec.Linux.Namespaces {
			list = append(list, string(ns.Type))
		}
		return strings.Join(list, " ")
	}
	r := run("true")
	if got := names(r, ann()); got != "user mount pid ipc" {
		t.Errorf("default: %s", got)
	}
	r.Unshare = spec.Unshare{Net: true, IPC: true, UTS: true}
	h := ann()
	h.Cgroup = "/sys/fs/cgroup/user.slice/job"
	if got := names(r, h); got != "user mount pid ipc uts network cgroup" {
		t.Errorf("all: %s", got)
	}
	res := build(t, r, debianImage(), h, debian())
	if res.Spec.Hostname != "node7" {
		t.Errorf("hostname %q", res.Spec.Hostname)
	}
	if got := mountsAt(res, "/sys"); got[0] != "sysfs sysfs /sys nosuid,nodev,noexec,ro" {
		t.Errorf("%q", got)
	}
	if got := mountsAt(res, "/sys/fs/cgroup"); got[0] != "bind /sys/fs/cgroup/user.slice/job /sys/fs/cgroup bind,nosuid,nodev,noexec,ro,x-create=dir" {
		t.Errorf("%q", got)
	}
	r.HostPID, r.HostSys = true, true
	if got := names(r, h); strings.Contains(got, "pid") {
		t.Errorf("host's processes: %s", got)
	}
	res = build(t, r, debianImage(), h, debian())
	if got := mountsAt(res, "/proc"); got[0] != "bind /proc /proc rbind,nosuid,nodev,noexec" {
		t.Errorf("%q", got)
	}
	if got := mountsAt(res, "/sys"); got[0] != "bind /sys /sys rbind,nosuid,nodev,noexec,ro" {
		t.Errorf("%q", got)
	}
}

// TestRootOfTheHost: only who is root outside has rights on files of /proc that
// the namespaces do not take away.
func TestRootOfTheHost(t *testing.T) {
	h := ann()
	h.UID, h.GID = 0, 0
	l := build(t, run("true"), debianImage(), h, debian()).Spec.Linux
	for _, name := range []string{"/sys/devices/virtual/powercap", "/sys/kernel/debug", "/sys/kernel/tracing"} {
		if !slices.Contains(l.MaskedPaths, name) {
			t.Errorf("%s is not masked", name)
		}
	}
	if !slices.Contains(l.MaskedPaths, "/proc/kcore") || !slices.Contains(l.ReadonlyPaths, "/proc/sysrq-trigger") {
		t.Errorf("masked %q, read-only %q", l.MaskedPaths, l.ReadonlyPaths)
	}
	l = build(t, run("true"), debianImage(), ann(), debian()).Spec.Linux
	if l.MaskedPaths != nil || l.ReadonlyPaths != nil {
		t.Errorf("ordinary user: masked %q, read-only %q", l.MaskedPaths, l.ReadonlyPaths)
	}
	for _, id := range []int{-1, 1<<32 - 1} {
		h.UID = id
		if _, err := spec.Build(run("true"), debianImage(), h, debian()); err == nil {
			t.Errorf("uid %d was accepted", id)
		}
	}
}

// TestImageSaysNoMore: an image has no way to name volumes, labels, ports or
// anything else that could steer the host.
func TestImageSaysNoMore(t *testing.T) {
	var fields []string
	for field := range reflect.TypeFor[spec.Image]().Fields() {
		fields = append(fields, field.Name)
	}
	if got := strings.Join(fields, " "); got != "Env Entrypoint Cmd WorkingDir User StopSignal" {
		t.Errorf("an image says %s", got)
	}
	img := debianImage()
	img.Env = append(img.Env, "LD_PRELOAD=/evil.so", "LD_LIBRARY_PATH=/evil", "NVIDIA_VISIBLE_DEVICES=all", "HOME=/proc/self", "SHELL=/proc/self/exe", "USER=root")
	plain := build(t, run("true"), debianImage(), ann(), debian())
	res := build(t, run("true"), img, ann(), debian())
	if env(res, "LD_PRELOAD") != "/evil.so" {
		t.Error("the image's own LD_PRELOAD is the image's affair")
	}
	res.Spec.Process.Env, plain.Spec.Process.Env = nil, nil
	got, want := reflect.ValueOf(*res), reflect.ValueOf(*plain)
	for n := range got.NumField() {
		if field := got.Type().Field(n); field.IsExported() && !reflect.DeepEqual(got.Field(n).Interface(), want.Field(n).Interface()) {
			t.Errorf("variables of the image changed %s", field.Name)
		}
	}
	if s := res.Spec; s.Hooks != nil || s.Annotations != nil || s.Linux.Resources != nil || s.Linux.Devices != nil {
		t.Errorf("%+v", s)
	}
}

func TestStopSignal(t *testing.T) {
	for in, want := range map[string]syscall.Signal{
		"": syscall.SIGTERM, "SIGINT": syscall.SIGINT, "quit": syscall.SIGQUIT, "15": syscall.SIGTERM, "9": syscall.SIGKILL, "SIGRTMIN+3": 37, "RTMAX-1": 63, "RTMIN": 34, "SIGPWR": syscall.SIGPWR,
	} {
		res := build(t, run("true"), spec.Image{StopSignal: in}, ann(), debian())
		if res.StopSignal != want || len(res.Notes) != 0 {
			t.Errorf("%s: %d, %q", in, res.StopSignal, res.Notes)
		}
	}
	for _, in := range []string{"0", "65", "-1", "SIGFOO", "SIGRTMIN+99", "RTMAX-40", "1e1", "SIG", "015", "RTMIN+", strings.Repeat("9", 1000)} {
		res := build(t, run("true"), spec.Image{StopSignal: in}, ann(), debian())
		if res.StopSignal != syscall.SIGTERM || len(res.Notes) != 1 {
			t.Errorf("%s: %d, %q", in, res.StopSignal, res.Notes)
		}
	}
}

func TestNetworkFiles(t *testing.T) {
	for _, c := range []struct{ name, host, hostname, want string }{
		{"the host's", "127.0.0.1 localhost\n10.0.0.7 node7\n", "node7", "127.0.0.1 localhost\n10.0.0.7 node7\n"},
		{"empty", "", "node7", "127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n127.0.1.1 node7\n"},
		{"comments only", "# nothing", "node7", "127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n127.0.1.1 node7\n# nothing\n"},
		{"no localhost", "10.0.0.7 node7", "node7", "127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n10.0.0.7 node7\n"},
		{"own name left to DNS", "127.0.0.1 localhost\n", "node7", "127.0.0.1 localhost\n"},
		{"wrong name", "", "a\nb", "127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n"},
	} {
		h := ann()
		h.Hosts, h.Hostname = []byte(c.host), c.hostname
		if got := file(t, build(t, run("true"), debianImage(), h, debian()), "/etc/hosts"); got != c.want {
			t.Errorf("%s:\n%s", c.name, got)
		}
	}
	h := ann()
	h.ResolvConf, h.Hostname = nil, ""
	res := build(t, run("true"), debianImage(), h, debian())
	if file(t, res, "/etc/resolv.conf") != "(none)" || file(t, res, "/etc/hostname") != "(none)" {
		t.Errorf("%v", res.Files)
	}
}
