package spec_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/gangway-hpc/gangway/runtime/spec"
)

func TestParseBool(t *testing.T) {
	for _, word := range []string{"1", "true", "yes", "y", "YES", "True"} {
		if on, err := spec.ParseBool("X", word); err != nil || !on {
			t.Errorf("%s: %v %v", word, on, err)
		}
	}
	for _, word := range []string{"0", "false", "no", "n", "No"} {
		if on, err := spec.ParseBool("X", word); err != nil || on {
			t.Errorf("%s: %v %v", word, on, err)
		}
	}
	for _, word := range []string{"", "on", "off", "2", "t", " 1", "1 ", "oui", "enable\n"} {
		_, err := spec.ParseBool("PYXIS_CONTAINER_WRITABLE", word)
		refused(t, err, "PYXIS_CONTAINER_WRITABLE", fmt.Sprintf("%q", word))
	}
}

func TestParseName(t *testing.T) {
	for in, want := range map[string]string{
		"dev": "dev auto", "dev:auto": "dev auto", "dev:create": "dev create", "dev:exec": "dev exec", "dev:no_exec": "dev no_exec",
		"a.b-c_D9": "a.b-c_D9 auto", "_x": "_x auto", "4711": "4711 auto",
	} {
		name, flag, err := spec.ParseName(in)
		if err != nil || name+" "+flag != want {
			t.Errorf("%s: %s %s, %v", in, name, flag, err)
		}
	}
	for _, in := range []string{"", ":create", ".", "..", "../x", "a/b", "/", "-x", ".x", "a b", "a\nb", "a\x00", "dev:", "dev:crate", "dev:exec:x", "é", strings.Repeat("x", 129)} {
		_, _, err := spec.ParseName(in)
		refused(t, err, "container name")
	}
	_, _, err := spec.ParseName("dev:noexec")
	refused(t, err, `"noexec"`)
}

func TestParseUnshare(t *testing.T) {
	u, err := spec.ParseUnshare("net,ipc,uts,pid,net")
	if err != nil || !u.Net || !u.IPC || !u.UTS {
		t.Errorf("%+v, %v", u, err)
	}
	for _, in := range []string{"", "net,", "user", "mnt", "ned"} {
		_, err := spec.ParseUnshare(in)
		refused(t, err, "unshare")
	}
}

func TestParseContainerEnvAndSave(t *testing.T) {
	names, err := spec.ParseContainerEnv("A,B_2")
	if err != nil || !slices.Equal(names, []string{"A", "B_2"}) {
		t.Errorf("%q, %v", names, err)
	}
	for _, in := range []string{"", "A,", "A=1", "A\nB"} {
		_, err := spec.ParseContainerEnv(in)
		refused(t, err, "container-env")
	}
	for in, want := range map[string]string{"x.sqsh": "/w/x.sqsh", "../x": "/x", "/a//b": "/a/b"} {
		if got, err := spec.ParseSave(in, "/w"); err != nil || got != want {
			t.Errorf("%s: %s, %v", in, got, err)
		}
	}
	for _, in := range []string{"", "x/", ".", "..", "a/..", "/", "x\ny"} {
		_, err := spec.ParseSave(in, "/w")
		refused(t, err, "save container")
	}
}

func TestFromEnviron(t *testing.T) {
	vars := map[string]string{
		"PYXIS_CONTAINER_IMAGE": "debian:12", "PYXIS_CONTAINER_MOUNTS": "/x", "PYXIS_CONTAINER_WORKDIR": "/w", "PYXIS_CONTAINER_NAME": "dev", "PYXIS_CONTAINER_SAVE": "s",
		"PYXIS_CONTAINER_MOUNT_HOME": "yes", "PYXIS_CONTAINER_REMAP_ROOT": "0", "PYXIS_CONTAINER_ENTRYPOINT": "TRUE", "PYXIS_CONTAINER_ENTRYPOINT_LOG": "n",
		"PYXIS_CONTAINER_READONLY": "1", "PYXIS_CONTAINER_ENV": "A,B", "PYXIS_CONTAINER_UNSHARE": "net",
	}
	settings, err := spec.FromEnviron(func(name string) string { return vars[name] })
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, s := range settings {
		if vars[s.Variable] == "" {
			t.Errorf("%+v comes from nowhere", s)
		}
		got = append(got, s.Flag+"="+s.Value)
	}
	const want = "container-image=debian:12 container-mounts=/x container-workdir=/w container-name=dev container-save=s container-mount-home=true " +
		"container-remap-root=false container-entrypoint=true container-entrypoint-log=false container-writable=false container-env=A,B container-unshare=net"
	if text := strings.Join(got, " "); text != want {
		t.Errorf("got %s", text)
	}
	changed := func(flag string) bool {
		return flag == "container-image" || flag == "no-container-mount-home" || flag == "container-readonly"
	}
	for _, s := range settings {
		over := s.Flag == "container-image" || s.Flag == "container-mount-home" || s.Flag == "container-writable"
		if s.Overridden(changed) != over {
			t.Errorf("%s overridden: %v", s.Flag, !over)
		}
	}
	if settings, err := spec.FromEnviron(func(string) string { return "" }); err != nil || settings != nil {
		t.Errorf("nothing set: %v, %v", settings, err)
	}
}

func TestFromEnvironRefuses(t *testing.T) {
	for _, twin := range spec.Twins() {
		settings, err := spec.FromEnviron(func(name string) string {
			if name == twin.Variable {
				return "maybe"
			}
			return ""
		})
		if twin.Contrary == "" {
			if err != nil || len(settings) != 1 || settings[0].Flag != twin.Flag {
				t.Errorf("%s: %v, %v", twin.Variable, settings, err)
			}
			continue
		}
		refused(t, err, twin.Variable, `"maybe"`)
	}
	both := map[string]string{"PYXIS_CONTAINER_WRITABLE": "1", "PYXIS_CONTAINER_READONLY": "1"}
	_, err := spec.FromEnviron(func(name string) string { return both[name] })
	refused(t, err, "PYXIS_CONTAINER_WRITABLE", "PYXIS_CONTAINER_READONLY")
	both["PYXIS_CONTAINER_READONLY"] = "0"
	if s, err := spec.FromEnviron(func(name string) string { return both[name] }); err != nil || len(s) != 1 || s[0].Value != "true" {
		t.Errorf("%v, %v", s, err)
	}
}
