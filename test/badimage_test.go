package test

import (
	"archive/tar"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
)

// crafted is an image and what a run of it has to come to.
type crafted struct {
	name    string
	config  map[string]any
	files   []entry
	bare    bool // without a shell
	options []string
	command []string
	code    int
	out     string // pattern; "" is nothing
	err     string
}

func (c *crafted) test(t *testing.T, p *person) {
	t.Helper()
	t.Run(c.name, func(t *testing.T) {
		image := p.layout(t, !c.bare, c.config, craft(t, c.files...))
		args := append([]string{}, c.options...)
		if c.command != nil {
			args = append(append(args, "--"), c.command...)
		}
		p.run(t, image, args...).want(t, c.code, c.out, c.err)
	})
}

func sh(script string) []string { return []string{"sh", "-c", script} }

// TestBadImages runs what images should not have, or not say: each is refused by name, or
// comes to nothing (reference/platform.md C.4).
func TestBadImages(t *testing.T) {
	p := newPerson(t)
	link := func(name, to string) []entry { return []entry{{name: name, link: to}} }
	text := func(name, content string) []entry { return []entry{{name: name, content: content}} }
	config := func(pairs ...any) map[string]any {
		c := map[string]any{}
		for n := 0; n < len(pairs); n += 2 {
			c[pairs[n].(string)] = pairs[n+1]
		}
		return c
	}
	const refused = `gangway: error: .*`
	var cases []crafted
	for _, name := range []string{"dev", "proc", "sys"} {
		cases = append(cases,
			crafted{name: name + " is a symlink", files: link(name, "etc"), command: sh("echo ran"), code: 125, err: refused + "/" + name + " of the image.*symbolic link"},
			crafted{name: name + " is a symlink out", files: link(name, "../../../../tmp"), command: sh("echo ran"), code: 125, err: refused + "/" + name},
			crafted{name: name + " is a loop", files: link(name, name), command: sh("echo ran"), code: 125, err: refused + "/" + name},
			crafted{name: name + " is a file", files: text(name, "x"), command: sh("echo ran"), code: 125, err: refused + "/" + name},
			crafted{name: name + " is a fifo", files: []entry{{name: name, kind: tar.TypeFifo}}, command: sh("echo ran"), code: 125, err: refused + "/" + name},
		)
	}
	cases = append(cases,
		crafted{name: "tmp is a symlink", files: link("tmp", "etc/../var/tmp"), command: sh("echo x > /tmp/x && echo ran"), out: "ran"},
		crafted{name: "tmp is a symlink out", files: link("tmp", "../../../../../../tmp/elsewhere"), command: sh("echo x > /tmp/x && echo ran"), code: 125, err: refused + "/tmp"},
		crafted{name: "tmp leads into proc", files: link("tmp", "/proc/self/fd"), command: sh("echo ran"), code: 125, err: refused + "/tmp"},
		crafted{name: "tmp leads into sys", files: link("tmp", "/sys/kernel"), command: sh("touch /tmp/x && ! touch /sys/x 2>/dev/null && echo ran"), out: "ran"},
		crafted{name: "tmp leads to the root", files: link("tmp", "/"), command: sh("echo ran"), code: 125, err: refused + "/tmp"},
		crafted{name: "tmp is a file", files: text("tmp", "x"), command: sh("echo ran"), code: 125, err: refused + "/tmp"},
		crafted{name: "etc is a file", files: text("etc", "x"), command: sh("echo ran"), code: 125, err: refused + "/etc"},
		crafted{name: "etc is a symlink", files: link("etc", "../../../../../other"), command: sh("cat /etc/passwd /other/hosts"), out: `(?s)root:x:0:0.*localhost`},
		crafted{name: "etc leads into proc", files: link("etc", "/proc/1/root/etc"), command: sh("echo ran"), code: 125, err: refused},
		crafted{name: "passwd is a directory", files: text("etc/passwd/x", "x"), command: sh("echo ran"), code: 125, err: refused + "/etc/passwd"},
		crafted{name: "passwd is a symlink out", files: link("etc/passwd", "../../../../../../etc/shadow"), command: sh("ls /etc/shadow 2>/dev/null; cat /etc/passwd"), out: `^[^:]+:x:.*\nroot:x:0:0`},
		crafted{name: "passwd is a symlink to a device", files: link("etc/passwd", "/dev/zero"), command: sh("grep -c . /etc/passwd"), out: `^\d+\n$`},
		crafted{name: "passwd is a fifo", files: []entry{{name: "etc/passwd", kind: tar.TypeFifo}}, command: sh("echo ran"), code: 125, err: refused + "/etc/passwd"},
		crafted{name: "passwd with carriage returns and damage", files: text("etc/passwd", "root:secret:0:0:r:/root:/bin/sh\r\nevil:x:0x0:0::/:\nroot2:x:-1:0::/:\n\xff\x00:::\nbig:x:4294967296:0:::\nok:pw:7:8::/:/bin/sh\n"), command: []string{"cat", "/etc/passwd"}, out: `^[^\r]*ok:x:7:8::/:/bin/sh\n[^\r]*$`},
		crafted{name: "resolv.conf is a symlink", files: link("etc/resolv.conf", "/run/systemd/resolve/stub-resolv.conf"), command: sh("cat /etc/resolv.conf >/dev/null && echo ran"), out: "ran"},
		crafted{name: "hosts is a symlink out", files: link("etc/hosts", "../../../../../etc/hostname"), command: []string{"cat", "/etc/hosts"}, out: "localhost"},
		crafted{name: "console is a symlink", files: append(link("dev/console", "/etc/passwd"), link("dev/null", "../../../../etc/passwd")...), command: sh("ls -l /dev/null; echo x > /dev/null && echo ran"), out: `(?s)^c.*ran`},
		crafted{name: "null is a file", files: append(text("dev/null", "x"), text("dev/pts", "x")...), command: sh("cat /dev/null; ls -ld /dev/pts; echo ran"), out: `(?s)^d.*ran`},
		crafted{name: "no etc", bare: true, files: []entry{{name: "bin/busybox", content: busybox(t)["bin/busybox"]}}, command: []string{"/bin/busybox", "cat", "/etc/passwd"}, out: "root:x:0:0"},
		crafted{name: "no shell", bare: true, files: []entry{{name: "only", content: busybox(t)["bin/busybox"]}}, command: []string{"/only", "echo", "ran"}, code: 127, err: "applet not found"},
		crafted{name: "nothing", bare: true, files: []entry{{name: "a/"}}, command: []string{"/bin/sh"}, code: 127, err: refused + "/bin/sh"},

		crafted{name: "command is missing", command: []string{"nonsense"}, code: 127, err: refused + "nonsense"},
		crafted{name: "command is a directory", command: []string{"/bin"}, code: 126, err: refused + "/bin"},
		crafted{name: "command is not executable", files: []entry{{name: "x", content: "x", mode: 0o644}}, command: []string{"/x"}, code: 126, err: refused + "/x.*permission denied"},
		crafted{name: "command is no program", files: text("x", "\x00\x01\x02\x03"), command: []string{"/x"}, code: 126, err: refused + "/x.*exec format error"},
		crafted{name: "command is cut off", files: text("x", "\x7fELF\x02\x01\x01"), command: []string{"/x"}, code: 126, err: refused + "/x"},
		crafted{name: "command is of another machine", files: text("x", foreignProgram(t)), command: []string{"/x"}, code: 126, err: refused + "/x: exec format error\n.*cause: .*neither a program for this machine .linux/" + runtime.GOARCH},
		crafted{name: "interpreter is missing", files: text("x", "#!/nowhere/python\n"), command: []string{"/x"}, code: 126, err: refused + "(?s)/x.*interpreter"},
		crafted{name: "interpreter is a loop", files: text("x", "#!/x\n"), command: []string{"/x"}, code: 126, err: refused + "/x"},
		crafted{name: "command is a dangling symlink", files: link("x", "/nowhere"), command: []string{"/x"}, code: 127, err: refused + "/x"},
		crafted{name: "no command", code: 2, err: refused + "no command"},
		crafted{name: "empty command", config: config("Cmd", []string{""}), code: 125, err: refused + "empty"},
		crafted{name: "command with NUL", config: config("Cmd", []string{"sh\x00x"}), code: 125, err: refused + "NUL"},
		crafted{name: "entry point in proc", config: config("Entrypoint", []string{"/proc/self/exe"}), command: []string{"x"}, code: 125, err: refused + "/proc"},
	)
	for _, dir := range []string{"/proc/self/fd/8", "/proc/1/root", "/dev/fd/8", "/proc/self/cwd/..", "work", "../x", "/a\x00b", "/a\nb", "/" + strings.Repeat("a/", 3000)} {
		cases = append(cases, crafted{name: "working directory " + strings.ReplaceAll(dir[:min(20, len(dir))], "/", "|"), config: config("WorkingDir", dir), command: []string{"pwd"}, code: 125, err: refused + "(working directory|NUL)"})
	}
	cases = append(cases,
		crafted{name: "working directory through a link", files: link("w", "/proc/self/fd/8"), config: config("WorkingDir", "/w"), command: []string{"pwd"}, code: 125, err: refused + "/w"},
		crafted{name: "working directory through dev", files: link("w", "/dev/fd"), config: config("WorkingDir", "/w/8"), command: []string{"pwd"}, code: 125, err: refused + "/w"},
		crafted{name: "working directory out of the root", files: link("w", "../../../../../.."), config: config("WorkingDir", "/w/made"), command: sh("pwd; ls -d /made"), out: "/made"},
		crafted{name: "working directory is a file", files: text("w", "x"), config: config("WorkingDir", "/w"), command: []string{"pwd"}, code: 125, err: refused + "/w"},
		crafted{name: "working directory of dots", config: config("WorkingDir", "/../../etc/.."), command: []string{"pwd"}, out: "^/\n$"},
	)
	for _, user := range []string{"4294967295", "4294967296", "18446744073709551616", "-1", "0x0", "1e3", "0:4294967296", "a:b:c", "a\nb", "01"} {
		cases = append(cases, crafted{name: "user " + user, config: config("User", user), command: []string{"id", "-u"}, code: 125, err: refused + "user"})
	}
	for _, user := range []string{"root", "0", "0:0", "nosuchuser", "12345"} {
		cases = append(cases, crafted{name: "user " + user, config: config("User", user), command: []string{"id", "-u"}, out: "^" + strconv.Itoa(p.uid()) + "\n$"})
	}
	cases = append(cases,
		crafted{name: "env without a name", config: config("Env", []string{"PATH=/bin", "=x"}), command: sh("env | grep =x || echo none"), out: "^none\n$"},
		crafted{name: "env without a value", config: config("Env", []string{"PATH=/bin", "NOTHING"}), command: sh("echo ${NOTHING-unset}"), out: "^unset\n$"},
		crafted{name: "env with a newline", config: config("Env", []string{"PATH=/bin", "A=1\nLD_PRELOAD=/x"}), command: sh(`echo "$A" ${LD_PRELOAD-unset}`), out: "^1\nLD_PRELOAD=/x unset\n$"},
		crafted{name: "env with NUL", config: config("Env", []string{"A=1\x00B"}), command: []string{"env"}, code: 125, err: refused + "NUL"},
		crafted{name: "env of 2 MiB", config: config("Env", []string{"PATH=/bin", "BIG=" + strings.Repeat("a", 2<<20)}), command: []string{"env"}, code: 2, err: refused + "BIG is 2097156 bytes"},
		crafted{name: "env of 2 MiB in pieces", config: config("Env", pieces(40, 60<<10)), command: []string{"env"}, code: 2, err: refused + "together"},
		crafted{name: "labels of ours", config: config("Labels", map[string]string{"gangway.mounts": "/:/host", "io.containerd.log": "binary:///bin/sh", "com.nvidia.volumes.needed": "nvidia_driver"}), command: sh("ls -d /host 2>/dev/null; echo ran"), out: "^ran\n$"},
		crafted{name: "volumes", config: config("Volumes", map[string]any{"/../../etc": map[string]any{}, "/vol": map[string]any{}, "/proc": map[string]any{}}), command: sh("ls -d /vol 2>/dev/null; echo ran"), out: "^ran\n$"},
		crafted{name: "ports and health checks", config: config("ExposedPorts", map[string]any{"22/tcp": map[string]any{}}, "Healthcheck", map[string]any{"Test": []string{"CMD", "touch", "/tmp/checked"}}, "OnBuild", []string{"RUN x"}), command: sh("ls /tmp/checked 2>/dev/null; echo ran"), out: "^ran\n$"},
		crafted{name: "stop signal", config: config("StopSignal", "SIGNONSENSE"), command: sh("echo ran"), out: "ran"},
	)
	for _, m := range []struct{ mount, err string }{
		{"/etc:/", "/"},
		{"/etc:/proc", "/proc"},
		{"/etc:/proc/x", "/proc"},
		{"/etc:/dev", "/dev"},
		{"/etc:/sys", "/sys"},
		{"/etc:/a/../proc/x", "/proc"},
		{"/etc:/x:rw+nonsense", "nonsense"},
		{"/etc:/x:rw+ro+", "(?i)flag|empty"},
		{"/etc:/x:suid+nosuid", "suid"},
		{"/etc:/x:size=1", "tmpfs"},
		{"/etc:x", "x"},
		{"/etc:/x\ny", "control|newline"},
		{"/nowhere:/x", "source path does not exist"},
		{"/etc:/x:ro:z", "etc"},
		{":/x", "x"},
		{"/etc::", "etc"},
	} {
		cases = append(cases, crafted{name: "mount " + strings.NewReplacer("/", "|", "\n", "n").Replace(m.mount), options: []string{"--container-mounts=" + m.mount}, command: sh("echo ran"), code: 2, err: refused + m.err})
	}
	for i := range cases {
		cases[i].test(t, p)
	}
	t.Run("passwd of a GB", func(t *testing.T) {
		dir := t.TempDir()
		if err := os.Mkdir(filepath.Join(dir, "etc"), 0o755); err != nil {
			t.Fatal(err)
		}
		run(t, nil, "truncate", "-s", "1G", filepath.Join(dir, "etc/passwd"))
		layer, err := exec.Command("tar", "-C", dir, "-cS", "etc").Output()
		if err != nil {
			t.Fatal(err)
		}
		p.run(t, p.image(t, nil, layer), "--", "echo", "ran").want(t, 125, "", refused+"/etc/passwd.*1073741824 bytes")
	})
}

func pieces(n, size int) []string {
	var all []string
	for i := range n {
		all = append(all, "V"+strings.Repeat("I", i)+"="+strings.Repeat("a", size))
	}
	return all
}

// foreignProgram is a program for a machine that this is not.
func foreignProgram(t *testing.T) string {
	t.Helper()
	b := []byte(busybox(t)["bin/busybox"])[:4096]
	b[18], b[19] = 0xf3, 0 // riscv
	return string(b)
}
