package nvidia_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gangway-hpc/gangway/hooks/ldcache"
	"github.com/gangway-hpc/gangway/hooks/nvidia"
	"github.com/gangway-hpc/gangway/hooks/nvidia/fakedriver"
)

// compatImage is an image with a newer libcuda.
func compatImage(version, note string) fstest.MapFS {
	lib := func(soname, note string) *fstest.MapFile {
		return &fstest.MapFile{Data: fakedriver.ELF(fakedriver.Library{Soname: soname, Note: note}), Mode: 0o644}
	}
	dir := nvidia.CompatDir + "/"
	return fstest.MapFS{
		dir + "libcuda.so." + version:                  lib("libcuda.so.1", note),
		dir + "libcuda.so.1":                           {Data: []byte("libcuda.so." + version), Mode: fs.ModeSymlink},
		dir + "libnvidia-ptxjitcompiler.so." + version: lib("libnvidia-ptxjitcompiler.so.1", ""),
		dir + "README":                                 {Data: []byte("text"), Mode: 0o644},
	}
}

func TestCompat(t *testing.T) {
	const note = `{"Format":1,"CUDA Version":"13.1","Driver":[535,550,570,575,580,590],"Device":[1,2]}`
	facts := nvidia.Facts{CUDA: "12.4", Driver: "550.54.15"}
	two := compatImage("590.44.01", note)
	two[nvidia.CompatDir+"/libcuda.so.575.57.08"] = two[nvidia.CompatDir+"/libcuda.so.590.44.01"]
	broken := compatImage("590.44.01", note)
	broken[nvidia.CompatDir+"/libcuda.so.590.44.01"] = &fstest.MapFile{Data: []byte("no library"), Mode: 0o644}
	for name, c := range map[string]struct {
		image  fstest.MapFS
		facts  nvidia.Facts
		use    bool
		reason string
	}{
		"none":           {fstest.MapFS{}, facts, false, ""},
		"empty":          {fstest.MapFS{nvidia.CompatDir + "/README": {}}, facts, false, ""},
		"newer":          {compatImage("590.44.01", note), facts, true, "590.44.01 is used"},
		"newer, no note": {compatImage("590.44.01", ""), facts, true, "590.44.01 is used"},
		"same CUDA":      {compatImage("590.44.01", note), nvidia.Facts{CUDA: "13.1", Driver: "580.1"}, false, "CUDA 13.1, which the driver has itself"},
		"older":          {compatImage("545.1", ""), facts, false, "545.1 is not newer"},
		"same branch":    {compatImage("550.99", ""), facts, false, "550.99 is not newer"},
		"left out":       {compatImage("590.44.01", note), nvidia.Facts{CUDA: "12.3", Driver: "545.1"}, false, "for drivers of the branches [535 550 570 575 580 590] only"},
		"consumer":       {compatImage("590.44.01", note), nvidia.Facts{CUDA: "12.4", Driver: "550.1", Brand: "geforcertx"}, false, "not supported on GPUs of the brand geforcertx"},
		"several":        {two, facts, false, "several"},
		"not a library":  {broken, facts, false, "cannot be read"},
		"bad note":       {compatImage("590.44.01", "{"), facts, false, "cannot be read"},
	} {
		for _, image := range []fs.FS{c.image, onlyFS{c.image}} {
			got := nvidia.CompatLibcuda(image, c.facts)
			if got.Use != c.use || !strings.Contains(got.Reason, c.reason) || c.reason == "" && got.Reason != "" {
				t.Errorf("%s: %+v", name, got)
			}
			if got.Use != (len(got.Entries) > 0) || got.Use != (got.Version != c.facts.Driver) {
				t.Errorf("%s: %+v", name, got)
			}
		}
	}
}

// find returns where a cache leads.
func find(t *testing.T, cache []byte, name string) string {
	t.Helper()
	c, err := ldcache.Parse(cache)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range c.Entries {
		if e.Name == name && e.Flags == ldcache.HostFlags() {
			return e.Path
		}
	}
	return ""
}

func TestLoader(t *testing.T) {
	d := discover(t, fakedriver.New(t, fakedriver.Options{GPUs: 1, Compat: true, Model: "NVIDIA A100-SXM4-40GB"}))
	set, _ := nvidia.ParseCapabilities("compute,utility,compat32")
	image := compatImage("590.44.01", "")
	c := &ldcache.Cache{Entries: []ldcache.Entry{
		{Name: "libc.so.6", Path: "/lib/libc.so.6", Flags: ldcache.HostFlags()},
		{Name: "libcuda.so.1", Path: "/stub/libcuda.so.1", Flags: ldcache.HostFlags()},
	}}
	image["etc/ld.so.cache"] = &fstest.MapFile{Data: c.Bytes(), Mode: 0o644}
	l := nvidia.Load(image, d.Needs(set))
	if len(l.Files) != 1 || l.Files[0].Path != "/etc/ld.so.cache" || len(l.Warnings) > 0 {
		t.Fatalf("%+v", l)
	}
	for name, want := range map[string]string{
		"libc.so.6": "/lib/libc.so.6", "libnvidia-ml.so.1": nvidia.LibDir + "/libnvidia-ml.so.1",
		"libcuda.so.1":                  "/" + nvidia.CompatDir + "/libcuda.so.590.44.01",
		"libnvidia-ptxjitcompiler.so.1": "/" + nvidia.CompatDir + "/libnvidia-ptxjitcompiler.so.590.44.01",
		"libcuda.so":                    "/" + nvidia.CompatDir + "/libcuda.so.590.44.01", "libcuda.so." + d.Version: "",
		"libcudadebugger.so.1": nvidia.LibDir + "/libcudadebugger.so.1", "libGLX_nvidia.so.0": "",
	} {
		if got := find(t, l.Files[0].Content, name); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	image["etc/ld.so.conf.d/x.conf"] = &fstest.MapFile{}
	if l := nvidia.Load(image, d.Needs(set)); len(l.Files) != 2 || string(l.Files[1].Content) != "/"+nvidia.CompatDir+"\n"+nvidia.LibDir+"\n"+nvidia.LibDir32+"\n" {
		t.Errorf("for ldconfig: %q", l.Files[1].Content)
	}
	delete(image, nvidia.CompatDir+"/libcuda.so.590.44.01")
	if got := find(t, nvidia.Load(image, d.Needs(set)).Files[0].Content, "libcuda.so.1"); got != nvidia.LibDir+"/libcuda.so.1" {
		t.Errorf("without compat libcuda is %q", got)
	}
}

// TestLoaderBadImage: what an image may do to its own files costs a warning.
func TestLoaderBadImage(t *testing.T) {
	d := discover(t, fakedriver.New(t, fakedriver.Options{GPUs: 1}))
	set, _ := nvidia.ParseCapabilities("")
	for name, c := range map[string]struct {
		image    fstest.MapFS
		warnings int
	}{
		"empty":         {fstest.MapFS{}, 0},
		"empty file":    {fstest.MapFS{"etc/ld.so.cache": {}}, 0},
		"garbage":       {fstest.MapFS{"etc/ld.so.cache": {Data: []byte("garbage")}}, 1},
		"a directory":   {fstest.MapFS{"etc/ld.so.cache/x": {}}, 1},
		"dangling conf": {fstest.MapFS{"etc/ld.so.conf": {Data: []byte("include /nowhere/*.conf\n")}}, 0},
		"huge":          {fstest.MapFS{"etc/ld.so.cache": {Data: make([]byte, ldcache.MaxSize+1)}}, 1},
		"compat a file": {fstest.MapFS{nvidia.CompatDir: {Data: []byte("x")}}, 0},
	} {
		l := nvidia.Load(c.image, d.Needs(set))
		if len(l.Warnings) != c.warnings || find(t, l.Files[0].Content, "libcuda.so.1") != nvidia.LibDir+"/libcuda.so.1" {
			t.Errorf("%s: %q", name, l.Warnings)
		}
	}
}

// TestLoaderLinks: an image whose directories and files are links, to elsewhere in
// it and out of it. os.Root keeps what leads out from being read.
func TestLoaderLinks(t *testing.T) {
	d := discover(t, fakedriver.New(t, fakedriver.Options{GPUs: 1}))
	set, _ := nvidia.ParseCapabilities("")
	root := t.TempDir()
	secret := filepath.Join(t.TempDir(), "secret")
	c := &ldcache.Cache{Entries: []ldcache.Entry{{Name: "libsecret.so", Path: "/secret", Flags: ldcache.HostFlags()}}}
	if err := errors.Join(os.WriteFile(secret, c.Bytes(), 0o644), os.MkdirAll(root+"/usr/real/etc", 0o755), os.Symlink("usr/real/etc", root+"/etc"),
		os.Symlink(secret, root+"/usr/real/etc/ld.so.cache")); err != nil {
		t.Fatal(err)
	}
	r, err := os.OpenRoot(root)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Close() }()
	l := nvidia.Load(r.FS(), d.Needs(set))
	if len(l.Warnings) != 1 || find(t, l.Files[0].Content, "libsecret.so") != "" {
		t.Errorf("a link out of the image: %q", l.Warnings)
	}
	if err := errors.Join(os.Remove(root+"/usr/real/etc/ld.so.cache"), os.WriteFile(root+"/usr/real/cache", c.Bytes(), 0o644),
		os.Symlink("../cache", root+"/usr/real/etc/ld.so.cache")); err != nil {
		t.Fatal(err)
	}
	if l := nvidia.Load(r.FS(), d.Needs(set)); len(l.Warnings) != 0 || find(t, l.Files[0].Content, "libsecret.so") != "/secret" {
		t.Errorf("a link within the image: %q", l.Warnings)
	}
}

// TestLoaderPipes: what an image has in the place of files is not waited for.
func TestLoaderPipes(t *testing.T) {
	d := discover(t, fakedriver.New(t, fakedriver.Options{GPUs: 1}))
	set, _ := nvidia.ParseCapabilities("")
	root := t.TempDir()
	arch := "x86_64"
	if ldcache.HostFlags() == ldcache.FlagsARM64 {
		arch = "aarch64"
	}
	for _, name := range []string{"etc/ld.so.cache", "etc/ld-musl-" + arch + ".path", "lib/ld-musl-" + arch + ".so.1", "etc/ld.so.conf.d", nvidia.CompatDir + "/libcuda.so.590.44.01"} {
		if err := errors.Join(os.MkdirAll(filepath.Dir(filepath.Join(root, name)), 0o755), unix.Mkfifo(filepath.Join(root, name), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	r, err := os.OpenRoot(root)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Close() }()
	done := make(chan nvidia.Loaded, 1)
	go func() { done <- nvidia.Load(r.FS(), d.Needs(set)) }()
	select {
	case l := <-done:
		if len(l.Warnings) == 0 || !strings.Contains(l.Warnings[0], "/etc/ld.so.cache cannot be read and is replaced: not a regular file") {
			t.Errorf("%q", l.Warnings)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("somebody is waited for who writes to a pipe")
	}
}

func TestMusl(t *testing.T) {
	d := discover(t, fakedriver.New(t, fakedriver.Options{GPUs: 1}))
	set, _ := nvidia.ParseCapabilities("")
	arch := "x86_64"
	if ldcache.HostFlags() == ldcache.FlagsARM64 {
		arch = "aarch64"
	}
	image := fstest.MapFS{"lib/ld-musl-" + arch + ".so.1": {Mode: 0o755}}
	for _, c := range [][2]string{{"", "/lib\n/usr/local/lib\n/usr/lib\n" + nvidia.LibDir + "\n"}, {"/opt/lib:/x\n", "/opt/lib:/x\n" + nvidia.LibDir + "\n"}} {
		own, want := c[0], c[1]
		if own != "" {
			image["etc/ld-musl-"+arch+".path"] = &fstest.MapFile{Data: []byte(own)}
		}
		l := nvidia.Load(image, d.Needs(set))
		if len(l.Files) != 2 || l.Files[1].Path != "/etc/ld-musl-"+arch+".path" || string(l.Files[1].Content) != want || len(l.Warnings) != 1 {
			t.Errorf("%q: %q, %q", own, l.Files[1].Content, l.Warnings)
		}
	}
}
