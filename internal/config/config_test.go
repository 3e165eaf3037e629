package config_test

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/gangway-hpc/gangway/internal/config"
	"github.com/gangway-hpc/gangway/internal/fault"
)

// files writes two configuration files; "" is none.
func files(t *testing.T, system, user string) config.Files {
	t.Helper()
	dir := t.TempDir()
	f := config.Files{System: filepath.Join(dir, "system.toml"), User: filepath.Join(dir, "user.toml")}
	for name, content := range map[string]string{f.System: system, f.User: user} {
		if content == "" {
			continue
		}
		if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return f
}

func TestLoad(t *testing.T) {
	c, err := config.Load(files(t, `
[image]
store = "/data/store"
max_size = "50G"
[devices]
cdi_dirs = ["/opt/cdi"]
nvidia_roots = ["/opt/nvidia"]
rdma = "auto"
[hooks]
dirs = ["/opt/hooks"]
timeout = "5s"
enroot = true
[registry."a.example"]
mirrors = ["m.example:5000/a"]
`, `
[image]
store = "/home/me/store"
[registry."b.example:5000"]
plain_http = true
`))
	if err != nil {
		t.Fatal(err)
	}
	want := config.Config{
		Image:   config.Image{Store: "/home/me/store", MaxSize: "50G"},
		Devices: config.Devices{CDIDirs: []string{"/opt/cdi"}, NvidiaRoots: []string{"/opt/nvidia"}, RDMA: "auto"},
		Hooks:   config.Hooks{Dirs: []string{"/opt/hooks"}, Timeout: "5s", Enroot: true},
		Registry: map[string]config.Registry{
			"a.example":      {Mirrors: []string{"m.example:5000/a"}},
			"b.example:5000": {PlainHTTP: true},
		},
	}
	if !reflect.DeepEqual(c, want) {
		t.Errorf("got %+v, want %+v", c, want)
	}
	if c, err := config.Load(files(t, "", "")); err != nil || !reflect.DeepEqual(c, config.Config{}) {
		t.Errorf("no files: %+v, %v", c, err)
	}
}

func TestLocked(t *testing.T) {
	system := "locked = [\"image.store\", \"registry\"]\n[image]\nstore = \"/data\"\n"
	for user, want := range map[string]string{
		"[image]\nmax_size = \"1G\"\n":                                "",
		"[image]\nstore = \"/x\"\n":                                   "image.store",
		"[registry.\"a.example\"]\nplain_http = true\n":               "registry",
		"locked = []\n[registry.\"a.example\"]\nskip_verify = true\n": "registry",
	} {
		_, err := config.Load(files(t, system, user))
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: %v, want %q", user, err, want)
		}
	}
	for _, c := range []struct{ locked, user, want string }{
		{`["image.store"]`, "[IMAGE]\nStore = \"/evil\"\n", "unknown"},
		{`["registry"]`, "[registry.\"docker.io\"]\n", "locked"},
		{`["registry"]`, "registry.r = {}\n", "locked"},
		{`["registry"]`, "registry = {}\n", "locked"},
		{`['registry."docker.io".ca']`, "[registry.\"index.docker.io\"]\nca = \"/x\"\n", "locked"},
		{`['registry."Docker.io".ca']`, "[registry.\"docker.io\"]\nca = \"/x\"\n", "locked"},
		{`['registry."docker.io".ca']`, "registry = {}\n", "locked"},
		{`["registry.docker.io"]`, "", "no such key"},
		{`["image.stor"]`, "", "no such key"},
		{`["registry.'x"]`, "", "not closed"},
		{`["image..store"]`, "", "missing"},
		{`["image"]`, "image.max_size = \"1G\"\n", "locked"},
	} {
		_, err := config.Load(files(t, "locked = "+c.locked+"\n", c.user))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("locked %s, user %q: %v, want %q", c.locked, c.user, err, c.want)
		}
	}
	// What is not locked is merged key by key, whatever name the registry has.
	merged, err := config.Load(files(t, "locked = ['registry.\"docker.io\".ca']\n[registry.\"docker.io\"]\nca = \"/ca\"\nmirrors = [\"a\"]\n",
		"[registry.\"registry-1.docker.io\"]\nmirrors = [\"b\"]\n"))
	if want := (config.Registry{CA: "/ca", Mirrors: []string{"b"}}); err != nil || !reflect.DeepEqual(merged.Registry["docker.io"], want) {
		t.Errorf("merged: %+v, %v", merged, err)
	}
	c, err := config.Load(files(t, system, ""))
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Override("--store", "image.store"); err == nil || !strings.Contains(err.Error(), "--store sets image.store") {
		t.Errorf("override of what is locked: %v", err)
	}
	if err := c.Override("--max-size", "image.max_size"); err != nil {
		t.Error(err)
	}
}

func TestBadFiles(t *testing.T) {
	for content, want := range map[string]string{
		"[image":                    "TOML",
		"[image]\nstroe = \"/x\"\n": "image.stroe is unknown",
		"[image]\nstore = 5\n":      "TOML",
		"[registry.x]\nca = \"a\"\n[registry.X]\nca = \"b\"\n": "two names",
		"[registry.x]\nplain-http = true\n":                    "unknown",
	} {
		_, err := config.Load(files(t, "", content))
		if err == nil || !strings.Contains(fault.Text("gangway", err, false), want) {
			t.Errorf("%q: %v, want %q", content, err, want)
		}
	}
	dir := t.TempDir()
	if _, err := config.Load(config.Files{User: dir}); err == nil {
		t.Error("a directory was read as configuration")
	}
}

func TestPaths(t *testing.T) {
	env := map[string]string{"HOME": "/home/me"}
	getenv := func(k string) string { return env[k] }
	if f := config.Paths(getenv); f.User != "/home/me/.config/gangway/gangway.toml" {
		t.Error(f)
	}
	env["XDG_CONFIG_HOME"] = "/cfg"
	if f := config.Paths(getenv); f.User != "/cfg/gangway/gangway.toml" {
		t.Error(f)
	}
}
