package spec_test

import (
	"path"
	"strings"
	"testing"

	"github.com/gangway-hpc/gangway/runtime/spec"
)

func FuzzParseMounts(f *testing.F) {
	for _, s := range []string{"/x", "/x:/y:ro+nosuid", "a:./b,tmpfs:/t:size=1g+mode=1777", "umount:/m", "/proc/self/fd/3:/y", "/x:/..//proc", ",", "/a:/b:x-create=file", "/x\n:/y"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		mounts, err := spec.ParseMounts(s, "/w")
		if err != nil {
			refused(t, err)
			return
		}
		for _, m := range mounts {
			if spec.Reserved(m.Target) != nil || m.Target != path.Clean(m.Target) || m.Target[0] != '/' {
				t.Fatalf("target %q", m.Target)
			}
			if m.Type == spec.Bind && (!path.IsAbs(m.Source) || m.Source != path.Clean(m.Source) || strings.HasPrefix(m.Source, "/proc/self") && (len(m.Source) == 10 || m.Source[10] == '/')) {
				t.Fatalf("source %q", m.Source)
			}
			for _, o := range m.Options {
				if strings.ContainsAny(o, ",\x00\n") {
					t.Fatalf("option %q", o)
				}
			}
		}
		r := run("true")
		r.Mounts = mounts
		res, err := spec.Build(r, debianImage(), ann(), debian())
		if err != nil {
			refused(t, err)
			return
		}
		checkResult(t, r, res)
	})
}

func FuzzAccounts(f *testing.F) {
	f.Add("root:x:0:0:root:/root:/bin/sh\r\n", "root:x:0:\n", true)
	f.Add("a:b:c:d:e:f:g\n\n:::::::\n+::::::", "x:x:4294967295:a,b", false)
	f.Add("ann::1000:0::/:\nu:x:-1:0x0:::", "#", false)
	f.Fuzz(func(t *testing.T, passwd, group string, remap bool) {
		r := run("true")
		r.RemapRoot = remap
		res, err := spec.Build(r, debianImage(), ann(), tree{"/etc/passwd": passwd, "/etc/group": group})
		if err != nil {
			refused(t, err)
			return
		}
		checkResult(t, r, res)
		if !strings.Contains(file(t, res, "/etc/passwd"), map[bool]string{true: "root:x:0:0:", false: "ann:x:1000:100:"}[remap]) {
			t.Fatalf("the user is not in:\n%s", file(t, res, "/etc/passwd"))
		}
	})
}

func FuzzEnvironment(f *testing.F) {
	f.Add("A=1", "B=2", "ALL,C='x,y'", "A,B", "D=4")
	f.Add("=x", "NOEQUALS", "NONE", "", "=")
	f.Add("LD_PRELOAD=/x", "LD_PRELOAD=/y", "LD_PRELOAD", "LD_PRELOAD", "A\x00=1")
	f.Fuzz(func(t *testing.T, caller, image, export, names, asked string) {
		r := run("true")
		r.Export, r.ContainerEnv, r.Env = export, strings.Split(names, ","), []string{asked}
		h := ann()
		h.Environ = []string{caller}
		res, err := spec.Build(r, spec.Image{Env: []string{image}}, h, debian())
		if err != nil {
			refused(t, err)
			return
		}
		checkResult(t, r, res)
	})
}

func FuzzBuild(f *testing.F) {
	f.Add("PATH=/bin", "/init", "bash", "/app", "1000:1000", "SIGTERM", "dev:exec")
	f.Add("LD_PRELOAD=/evil.so", "/proc/self/exe", "\x00", "/proc/self/fd/8", "4294967296", "-1", "../x")
	f.Fuzz(func(t *testing.T, env, entry, cmd, dir, user, signal, name string) {
		r := spec.Request{Entrypoint: true}
		res, err := spec.Build(r, spec.Image{Env: []string{env}, Entrypoint: []string{entry}, Cmd: []string{cmd}, WorkingDir: dir, User: user, StopSignal: signal}, ann(), debian())
		if err != nil {
			refused(t, err)
		} else {
			checkResult(t, r, res)
		}
		if name, _, err := spec.ParseName(name); err == nil && (name == "" || strings.ContainsAny(name, "/\x00\n") || name[0] == '.') {
			t.Fatalf("name %q", name)
		}
	})
}
