package spec_test

import (
	"path"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/gangway-hpc/gangway/runtime/spec"
)

// checkResult checks what holds of every result, whatever went in.
func checkResult(t rapid.TB, r spec.Request, res *spec.Result) {
	p := res.Spec.Process
	if !p.NoNewPrivileges || len(p.Args) == 0 || p.Args[0] == "" || p.Capabilities != nil {
		t.Fatalf("process %+v", p)
	}
	if !path.IsAbs(p.Cwd) || p.Cwd != path.Clean(p.Cwd) || strings.HasPrefix(p.Cwd, "/proc/") {
		t.Fatalf("directory %q", p.Cwd)
	}
	for _, s := range slices.Concat(p.Args, p.Env) {
		if strings.ContainsRune(s, 0) || len(s) >= 128<<10 {
			t.Fatalf("%q in the process", s)
		}
	}
	for i, entry := range p.Env {
		name, _, ok := strings.Cut(entry, "=")
		if !ok || name == "" || i > 0 && strings.HasPrefix(p.Env[i-1], name+"=") {
			t.Fatalf("%q in the environment", entry)
		}
	}
	if len(res.Spec.Mounts) < 4 || res.Spec.Mounts[0].Destination != "/proc" || res.Spec.Mounts[1].Destination != "/sys" || !slices.ContainsFunc(res.Mountpoints, func(m spec.Mountpoint) bool { return m.Path == "/dev" }) {
		t.Fatalf("the kernel's mounts do not come first: %s", destinations(res))
	}
	for _, m := range res.Spec.Mounts {
		own := m.Destination == "/proc" || m.Destination == "/sys" || m.Destination == "/dev"
		if !path.IsAbs(m.Destination) || m.Destination != path.Clean(m.Destination) || own == slices.ContainsFunc(m.Options, func(o string) bool { return strings.HasPrefix(o, "x-create=") }) {
			t.Fatalf("%s", show(m))
		}
		if !own && m.Destination != "/dev/pts" && spec.Reserved(m.Destination) != nil {
			t.Fatalf("%s over what is Gangway's", show(m))
		}
	}
	for _, f := range res.Files {
		if f.Path != "/etc/passwd" && f.Path != "/etc/group" {
			continue
		}
		fields := map[string]int{"/etc/passwd": 7, "/etc/group": 4}[f.Path]
		seen := map[string]bool{}
		for line := range strings.Lines(string(f.Content)) {
			part := strings.Split(strings.TrimSuffix(line, "\n"), ":")
			if len(part) != fields || part[0] == "" || part[1] != "x" || strings.ContainsAny(line, "\r\x00\x1b") {
				t.Fatalf("%s has %q", f.Path, line)
			}
			if r.RemapRoot && part[2] == "0" && seen["0"] {
				t.Fatalf("a second root: %q", line)
			}
			seen[part[2]] = true
		}
		if !seen["0"] {
			t.Fatalf("%s has no root:\n%s", f.Path, f.Content)
		}
	}
}

// hostile draws strings made of what breaks parsers.
func hostile() *rapid.Generator[string] {
	return rapid.Custom(func(t *rapid.T) string {
		return strings.Join(rapid.SliceOfN(rapid.OneOf(
			rapid.SampledFrom([]string{"/", "..", ".", ":", ",", "+", "=", "\x00", "\n", "\r", "proc", "self", "dev", "fd", "sys", "root", "0", "-1", "4294967296", "A", "LD_PRELOAD", "tmp", " ", "'", "\"", "ALL", "\xff", "tmpfs", "umount", "ro"}),
			rapid.String(),
		), 0, 6).Draw(t, "parts"), "")
	})
}

// TestBuildHostile: whatever image, root and request say, Build refuses or its
// result is sound; the same arguments give the same result.
func TestBuildHostile(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		texts := func(name string) []string { return rapid.SliceOfN(hostile(), 0, 4).Draw(t, name) }
		text := func(name string) string {
			return rapid.OneOf(rapid.Just(""), hostile(), rapid.Just("/app")).Draw(t, name)
		}
		yes := func(name string) bool { return rapid.Bool().Draw(t, name) }
		img := spec.Image{Env: texts("env"), Entrypoint: texts("entrypoint"), Cmd: texts("cmd"), WorkingDir: text("dir"), User: text("user"), StopSignal: text("signal")}
		r := spec.Request{
			Command: texts("command"), Workdir: text("workdir"), MountHome: yes("home"), RemapRoot: yes("root"), Entrypoint: yes("entry"), Writable: yes("writable"),
			Terminal: yes("tty"), Env: texts("--env"), ContainerEnv: texts("--container-env"), Export: text("export"), HostPID: yes("pid"),
		}
		if s := text("mounts"); s != "" {
			r.Mounts, _ = spec.ParseMounts(s, "/w")
		}
		h := ann()
		h.Environ, h.User, h.Home, h.Shell, h.Hostname = append(h.Environ, texts("environ")...), text("name"), text("home"), text("shell"), text("hostname")
		root := tree{"/etc/passwd": strings.Join(texts("passwd"), "\n"), "/etc/group": strings.Join(texts("group"), ":")}
		res, err := spec.Build(r, img, h, root)
		if err != nil {
			return
		}
		checkResult(t, r, res)
		again, err := spec.Build(r, img, h, root)
		if err != nil || destinations(again) != destinations(res) || !slices.Equal(again.Spec.Process.Env, res.Spec.Process.Env) {
			t.Fatalf("another result the second time: %v", err)
		}
	})
}

// TestParseMountsProperty: what was put together is read back.
func TestParseMountsProperty(t *testing.T) {
	name := rapid.StringMatching(`[a-zA-Z0-9 _.=@-]{1,12}`).Filter(func(s string) bool { return strings.Trim(s, ".") != "" })
	dir := rapid.Custom(func(t *rapid.T) string {
		return "/" + strings.Join(rapid.SliceOfN(name, 1, 4).Draw(t, "names"), "/")
	}).Filter(func(s string) bool { return spec.Reserved(s) == nil && !strings.HasPrefix(s, "/dev/") })
	flags := rapid.SampledFrom([]string{"ro", "nosuid", "nodev", "noexec", "rslave", "noatime"})
	rapid.Check(t, func(t *rapid.T) {
		var entries []string
		for range rapid.IntRange(1, 5).Draw(t, "entries") {
			entry := dir.Draw(t, "source") + ":" + dir.Draw(t, "target")
			if f := rapid.SliceOfNDistinct(flags, 0, 4, rapid.ID[string]).Draw(t, "flags"); len(f) > 0 {
				entry += ":" + strings.Join(f, "+")
			}
			if !slices.Contains(entries, entry) {
				entries = append(entries, entry)
			}
		}
		mounts, err := spec.ParseMounts(strings.Join(entries, ","), "/w")
		if err != nil || len(mounts) != len(entries) {
			t.Fatalf("%d mounts of %q: %v", len(mounts), entries, err)
		}
		for i, m := range mounts {
			back := m.Source + ":" + m.Target
			if len(m.Options) > 1 {
				back += ":" + strings.Join(m.Options[1:], "+")
			}
			if back != entries[i] || m.Options[0] != "rbind" {
				t.Fatalf("%q of %q", back, entries[i])
			}
		}
	})
}
