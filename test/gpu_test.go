package test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gangway-hpc/gangway/hooks/nvidia"
	"github.com/gangway-hpc/gangway/hooks/nvidia/fakedriver"
)

// TestGPUChoice: a container sees the GPUs that it was given, and no other.
func TestGPUChoice(t *testing.T) {
	m := newGPUMachine(t, newPerson(t), fakedriver.Options{GPUs: 3})
	image := m.image(t, map[string]any{"Env": []string{"PATH=/bin:/usr/bin", "NVIDIA_VISIBLE_DEVICES=all"}})
	first, second := m.tree.GPUs[0].UUID, m.tree.GPUs[1].UUID
	there := "cause: this run may have 0 = " + first + ` \(NVIDIA H100 80GB HBM3\), 1 = ` + second + "(?s:.*)"
	for name, c := range map[string]struct {
		args     []string // variables of the user's, and options
		code     int
		out, err string
	}{
		"one":                      {[]string{"--gpus=1"}, 0, m.nodes(0), ""},
		"two":                      {[]string{"--gpus=2"}, 0, m.nodes(0, 1), ""},
		"all":                      {[]string{"--gpus=all"}, 0, m.nodes(0, 1, 2), ""},
		"none":                     {[]string{"--gpus=none"}, 0, "^none\n$", ""},
		"index":                    {[]string{"--gpus=device=2"}, 0, m.nodes(2), ""},
		"UUID":                     {[]string{"--gpus=" + second}, 0, m.nodes(1), ""},
		"UUID and index":           {[]string{"--gpus=" + second + ",0"}, 0, m.nodes(0, 1), ""},
		"the user's alone":         {[]string{"NVIDIA_VISIBLE_DEVICES=1"}, 0, "^none\n$", ""},
		"within it":                {[]string{"NVIDIA_VISIBLE_DEVICES=" + second, "--gpus=1"}, 0, m.nodes(1), ""},
		"all within it":            {[]string{"NVIDIA_VISIBLE_DEVICES=0,1", "--gpus=all"}, 0, m.nodes(0, 1), ""},
		"void":                     {[]string{"NVIDIA_VISIBLE_DEVICES=void"}, 0, "^none\n$", ""},
		"the image's is no choice": {nil, 0, "^none\n$", ".*"},
		"more than within it":      {[]string{"NVIDIA_VISIBLE_DEVICES=1", "--gpus=2"}, 125, "", "give 2 GPUs: there are 1 within NVIDIA_VISIBLE_DEVICES=1"},
		"more than there are":      {[]string{"--gpus=4"}, 125, "", "give 4 GPUs: there are 3\n(?s:.*)" + there},
		"unknown":                  {[]string{"--gpus=GPU-0"}, 125, "", `give the GPU "GPU-0" that --gpus names: there is no such GPU\n(?s:.*)` + there + "hint: +valid are"},
		"unknown, the user's":      {[]string{"NVIDIA_VISIBLE_DEVICES=7", "--gpus=1"}, 125, "", `give the GPU "7" .*there is no such GPU\n(?s:.*)` + there},
		"a MIG instance":           {[]string{"--gpus=0:1:0"}, 125, "", `give the GPU "0:1:0" .*no such GPU`},
		"malformed":                {[]string{"--gpus=-1"}, 2, "", "a count is not negative"},
	} {
		t.Run(name, func(t *testing.T) {
			m.run(t, image, append(c.args, "--", "sh", "-c", listGPUs)...).want(t, c.code, c.out, c.err)
		})
	}
	m.run(t, image, "--gpus=all", "--", "sh", "-c", "echo $NVIDIA_VISIBLE_DEVICES; echo x > /dev/nvidiactl && echo x > /dev/nvidia1 && nvidia-smi").
		want(t, 0, "^void\nfake nvidia-smi "+m.tree.Version+"\n$", "")
	m.run(t, image, "--gpus=1", "--container-writable", "--", "sh", "-c", "echo x > /dev/nvidiactl && cat /proc/driver/nvidia/params | grep Modify").
		want(t, 0, "^ModifyDeviceFiles: 0\n$", "")
	m.run(t, image, "--gpus=1", "--container-remap-root", "--", "sh", "-c", "mknod /tmp/nvidia2 c 1 3 || id -u").want(t, 0, "^0\n$", "mknod")
}

// TestGPUInstances: a GPU that is split is given by instances.
func TestGPUInstances(t *testing.T) {
	m := newGPUMachine(t, newPerson(t), fakedriver.Options{GPUs: 2, MIG: 2})
	image := m.image(t, nil)
	m.run(t, image, "--gpus=1:2:0", "--", "sh", "-c", listGPUs+"; ls /dev/nvidia-caps").
		want(t, 0, "^nvidia-caps\nnvidia-uvm\nnvidia-uvm-tools\nnvidia0\nnvidiactl\nnvidia-cap1[67]\nnvidia-cap1[67]\n$", "")
	m.run(t, image, "--gpus=MIG-"+m.tree.GPUs[0].UUID+"/1/0", "--", "sh", "-c", "ls /dev/nvidia-caps").want(t, 0, "^nvidia-cap10\nnvidia-cap11\n$", "")
	m.run(t, image, "--gpus=device=0", "--", "true").
		want(t, 125, "", `(?s)give the GPU 0 that --gpus names: it is split into MIG instances and cannot be used as a whole\n.*this run may have 0:1:0.*\(MIG instance of NVIDIA H100`)
	m.run(t, image, "--gpus=MIG-3eb87630-93d5-5b6c-8a7d-000000000000", "--", "true").want(t, 125, "", "no such GPU, or NVML has not told the names of MIG instances")
}

// TestGPULeases: runs at the same time get different GPUs.
func TestGPULeases(t *testing.T) {
	m := newGPUMachine(t, newPerson(t), fakedriver.Options{GPUs: 2})
	image := m.image(t, nil)
	m.run(t, image, "--", "true").want(t, 0, "", "") // it is pulled
	var holders []*running
	for range 2 {
		r := m.hold(t, image, listGPUs+"; echo up", "--gpus=1")
		holders = append(holders, r)
	}
	for i, r := range holders {
		if want := strings.TrimSuffix(m.nodes(i), "$") + "up\n$"; !matches(want, r.out.String()) {
			t.Errorf("run %d has %q, want %q", i, r.out.String(), want)
		}
	}
	first, second := m.tree.GPUs[0].UUID, m.tree.GPUs[1].UUID
	held := func(i int, id string) string {
		return fmt.Sprintf(`%s \(process %d "gangway" of user %d\)`, id, holders[i].cmd.Process.Pid, m.uid())
	}
	m.run(t, image, "--gpus=1", "--", "true").
		want(t, 125, "", "1 wanted, 0 free, in use: "+held(0, first)+", "+held(1, second)+"\n(?s:.*)hint: +wait for them: --gpu-wait")
	m.run(t, image, "--gpus=device=1", "--", "true").want(t, 125, "", "1 wanted, 0 free, in use: "+held(1, second)+"\n")
	// Whoever describes them, and whatever he calls them.
	specification(t, filepath.Join(m.mkdir(t, "cdi"), "nvidia.json"), fmt.Sprintf(`{"cdiVersion":"0.6.0","kind":"nvidia.com/gpu","devices":[
		{"name":"mine","containerEdits":{"deviceNodes":[{"path":"/dev/nvidia%d"},{"path":"/dev/nvidiactl"}]}}]}`, m.tree.GPUs[1].Minor), m.uid())
	for _, name := range []string{"1", "mine"} {
		m.run(t, image, "--cdi-dir="+filepath.Join(m.dir, "cdi"), "--device=nvidia.com/gpu="+name, "--", "true").
			want(t, 125, "", "1 wanted, 0 free, in use: "+held(1, second)+"\n")
	}
	start := time.Now()
	m.run(t, image, "--gpus=1", "--gpu-wait=300ms", "--", "true").want(t, 125, "", "(?s)waiting for GPUs that others have.*in use.*hint: +wait longer than 300ms")
	if d := time.Since(start); d < 300*time.Millisecond {
		t.Errorf("it waited for %v", d)
	}
	// Who waits gets the GPU of a run that was killed.
	timer := time.AfterFunc(300*time.Millisecond, func() { _ = holders[1].cmd.Process.Kill() })
	defer timer.Stop()
	m.run(t, image, "--gpus=1", "--gpu-wait=20s", "--", "sh", "-c", listGPUs).want(t, 0, m.nodes(1), "waiting for GPUs that others have")
}

// TestGPULeasesAtOnce: as many runs as there are GPUs, the first of their user and at the
// same time, have one each; root's knows of them.
func TestGPULeasesAtOnce(t *testing.T) {
	m := newGPUMachine(t, newPerson(t), fakedriver.Options{GPUs: 8})
	image := m.image(t, nil)
	dir := m.mkdir(t, "shared")
	results := make([]outcome, len(m.tree.GPUs))
	var runs sync.WaitGroup
	for i := range results {
		command := fmt.Sprintf("ls /dev | grep nvidia[0-9]; touch /mnt/up%d; while ! test -e /mnt/now; do sleep 0.05; done", i)
		runs.Go(func() {
			results[i] = m.run(t, image, "--gpus=1", "--gpu-wait=20s", "--container-mounts="+dir+":/mnt", "--", "sh", "-c", command)
		})
	}
	waitFor(t, func() bool {
		up, err := filepath.Glob(filepath.Join(dir, "up*"))
		return err == nil && len(up) == len(results)
	})
	root := m.enter(m.bin, "run", "-q", "--container-image="+image, "--gpus=all", "--", "true")
	env := append(root.Env, "GANGWAY_STORE="+filepath.Join(m.dir, "root-store"), "GANGWAY_RUNTIME_DIR="+filepath.Join(m.dir, "root-run"))
	root.Env = env
	outcomeOf(t, root).want(t, 125, "", "8 wanted, 0 free, in use: ")
	if err := os.WriteFile(filepath.Join(dir, "now"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	runs.Wait()
	had := map[string]int{}
	for _, r := range results {
		r.want(t, 0, "^nvidia[0-7]\n$", "^(gangway: warning: waiting for GPUs.*\n)?$")
		had[r.out]++
	}
	if len(had) != len(results) {
		t.Errorf("%d runs had %v", len(results), had)
	}
	root = m.enter(root.Args[slices.Index(root.Args, m.bin):]...)
	root.Env = env
	outcomeOf(t, root).want(t, 0, "", "processes of the host")
}

// TestGPUWithout: what was asked for and cannot be had is an error that says why.
func TestGPUWithout(t *testing.T) {
	p := newPerson(t)
	image := p.image(t, nil)
	if _, err := os.Stat("/proc/driver/nvidia"); err == nil {
		t.Skip("needs a machine without an NVIDIA driver")
	}
	const noDriver = `^gangway: error: choose GPUs \(--gpus=1\): no NVIDIA driver on this machine\n(?s:.*)hint: +run without --gpus`
	p.run(t, image, "--gpus=1", "--", "true").want(t, 125, "", noDriver)
	p.run(t, image, "--gpus=none", "--", "true").want(t, 0, "", "")

	m := newGPUMachine(t, p, fakedriver.Options{GPUs: 1})
	old := filepath.Join(m.tree.Proc, "driver/nvidia/version")
	text, err := os.ReadFile(old)
	if err != nil {
		t.Fatal(err)
	}
	newer := strings.ReplaceAll(string(text), m.tree.Version, "590.44.01")
	if err := os.WriteFile(old, []byte(newer), 0o644); err != nil {
		t.Fatal(err)
	}
	m.run(t, image, "--gpus=1", "--", "true").
		want(t, 125, "", `(?s)driver/library version mismatch.*cause: +the kernel module is 590\.44\.01, the libraries are `+m.tree.Version+
			` in .*"Failed to initialize NVML: Driver/library version mismatch".*hint: +reboot, or .*modprobe`)
	m.run(t, image, "--", "echo", "ran").want(t, 0, "^ran\n$", "")
	if err := os.WriteFile(old, text, 0o644); err != nil {
		t.Fatal(err)
	}
	m.run(t, image, "--gpus=1", "--", "/usr/bin/nvidia-smi").want(t, 0, "^fake nvidia-smi", "")
	if err := os.Remove(filepath.Join(m.tree.Dev, "nvidia-uvm")); err != nil {
		t.Fatal(err)
	}
	m.run(t, image, "--gpus=1", "--", "true").want(t, 0, "", "nvidia-uvm is missing, so CUDA cannot start: as root run nvidia-modprobe")
}

// TestGPURequire: what an image requires of the driver is compared with what there is.
func TestGPURequire(t *testing.T) {
	m := newGPUMachine(t, newPerson(t), fakedriver.Options{GPUs: 1})
	for _, c := range []struct {
		require, user string
		code          int
		err           string
	}{
		{"cuda>=12.4 brand=tesla,driver>=535,driver<536", "", 0, ""},
		{"cuda>=99.1", "", 125, `NVIDIA_REQUIRE_CUDA(?s:.*)cuda>=99\.1(?s:.*)13\.0`},
		{"driver<500", "", 125, `driver<500(?s:.*)` + m.tree.Version},
		{"cuda>>1", "", 125, `read NVIDIA_REQUIRE_CUDA of the image`},
	} {
		image := m.image(t, map[string]any{"Env": []string{"PATH=/bin", "NVIDIA_REQUIRE_CUDA=" + c.require}})
		m.run(t, image, "--gpus=1", "--", "true").want(t, c.code, "", c.err)
		m.run(t, image, "--", "true").want(t, 0, "", "")
	}
}

// TestGPULibraries: programs of a distribution's image find the driver's libraries as they
// find all others, by the loader's cache; ldconfig and the loader judge.
func TestGPULibraries(t *testing.T) {
	m := newGPUMachine(t, newPerson(t), fakedriver.Options{GPUs: 1})
	files, root := glibcLayer(t)
	library := craft(t, files...) // a layer that all images share
	cache := entry{name: "etc/ld.so.cache", content: cacheOf(t, root), mode: 0o644}
	with := func(env string, more ...entry) string {
		config := map[string]any{"Env": strings.Fields("PATH=/bin " + env)}
		return m.image(t, config, library, craft(t, more...))
	}
	usual := with("", cache)
	const look = "look libcuda.so.1 libnvidia-ml.so.1 libGLX_nvidia.so.0 libc.so.6 /dev/nvidiactl"
	ours := "libcuda.so.1 " + nvidia.LibDir + "/libcuda.so.1\nlibnvidia-ml.so.1 " + nvidia.LibDir + "/libnvidia-ml.so.1\n"
	all := "^" + ours + "libGLX_nvidia.so.0 none\nlibc.so.6 /\\S*libc.so.6\n/dev/nvidiactl opens\n$"
	compat := func(version string) []entry {
		lib := string(fakedriver.ELF(fakedriver.Library{Soname: "libcuda.so.1"}))
		return []entry{
			cache,
			{name: nvidia.CompatDir + "/libcuda.so." + version, content: lib},
			{name: nvidia.CompatDir + "/libcuda.so.1", link: "libcuda.so." + version},
		}
	}
	for name, c := range map[string]struct {
		image   string
		args    []string
		command string
		out     string
		err     string
	}{
		"cache":              {image: usual},
		"no cache":           {image: with("")},
		"garbage":            {image: with("", entry{name: "etc/ld.so.cache", content: "glibc-ld.so.cache1.1 garbage", mode: 0o644}), err: "/etc/ld.so.cache is replaced: "},
		"cache is a link":    {image: with("", entry{name: "etc/ld.so.cache", link: "/nowhere"}), err: ".*"},
		"dangling conf":      {image: with("", cache, entry{name: "etc/ld.so.conf", link: "/nowhere"}, entry{name: "etc/ld.so.conf.d", link: "nowhere"})},
		"writable":           {image: usual, args: []string{"--container-writable"}},
		"libraries linked":   {image: with("", cache, entry{name: "lib/"}, entry{name: "usr/lib", link: "/lib"})},
		"root of its own":    {image: usual, args: []string{"--nvidia-root=" + m.tree.Root}},
		"root remapped":      {image: usual, args: []string{"--container-remap-root"}},
		"no loader's cache":  {image: with("LD_LIBRARY_PATH=/usr/local/nvidia/lib64", cache)},
		"preloaded":          {image: with("LD_PRELOAD=/lib/evil.so", cache), err: "evil.so"},
		"graphics, too":      {image: with("NVIDIA_DRIVER_CAPABILITIES=all", cache), out: "^" + ours + "libGLX_nvidia.so.0 " + nvidia.LibDir + "/libGLX_nvidia.so.0\n"},
		"the user's":         {image: usual, args: []string{"NVIDIA_DRIVER_CAPABILITIES=utility"}, out: "^libcuda.so.1 none\nlibnvidia-ml.so.1 " + nvidia.LibDir + "/libnvidia-ml.so.1\n"},
		"image's is newer":   {image: with("", compat("590.44.01")...), out: "^libcuda.so.1 /usr/local/cuda/compat/libcuda.so.590.44.01\nlibnvidia-ml.so.1 " + nvidia.LibDir},
		"image's is older":   {image: with("", compat("570.1.1")...)},
		"ldconfig -p":        {image: usual, command: "ldconfig -p | grep libcuda.so.1", out: `^\s*libcuda\.so\.1 \(libc6,\S+\) => ` + nvidia.LibDir + `/libcuda\.so\.1\n$`},
		"a name for none":    {image: usual, command: "look libcuda.so libcuda.so." + m.tree.Version, out: "^libcuda.so " + nvidia.LibDir + "/libcuda.so.*\nlibcuda.so.* " + nvidia.LibDir},
		"ldconfig in it":     {image: with("", cache, entry{name: "etc/ld.so.conf", content: "include /etc/ld.so.conf.d/*.conf\n"}, entry{name: "etc/ld.so.conf.d/"}), args: []string{"--container-writable", "--container-remap-root"}, command: "ldconfig && " + look},
		"the driver's alone": {image: usual, command: "ls " + nvidia.LibDir + " | grep cuda.so; ls /usr/local/nvidia || echo nothing", out: `^libcuda\.so\nlibcuda\.so\.1\nlibcuda\.so\.[\d.]+\nnothing\n$`, err: "No such file"},
	} {
		t.Run(name, func(t *testing.T) {
			if c.command == "" {
				c.command = look
			}
			if c.out == "" {
				c.out = all
			}
			args := append([]string{}, c.args...)
			m.run(t, c.image, append(args, "--gpus=1", "--", "sh", "-c", c.command)...).want(t, 0, c.out, c.err)
		})
	}
	m.run(t, with("", entry{name: "etc/ld.so.cache/"}), "--gpus=1", "--", "true").
		want(t, 125, "", "make /etc/ld.so.cache in the container: .*is a directory\n(?s:.*)hint: +the image has something else there")
	t.Run("without", func(t *testing.T) {
		m.run(t, usual, "--", "sh", "-c", look).
			want(t, 0, "^libcuda.so.1 none\nlibnvidia-ml.so.1 none\nlibGLX_nvidia.so.0 none\nlibc.so.6 /\\S*\n/dev/nvidiactl does not open\n$", "")
	})
}

// TestGPUMusl: an image with musl's loader gets its list of directories.
func TestGPUMusl(t *testing.T) {
	m := newGPUMachine(t, newPerson(t), fakedriver.Options{GPUs: 1})
	arch := strings.TrimSuffix(fakedriver.Triplet(), "-linux-gnu")
	image := m.image(t, nil, craft(t, entry{name: "lib/ld-musl-" + arch + ".so.1", content: "loader"}))
	m.run(t, image, "--gpus=1", "--", "cat", "/etc/ld-musl-"+arch+".path").
		want(t, 0, "^/lib\n/usr/local/lib\n/usr/lib\n"+regexp.QuoteMeta(nvidia.LibDir)+"\n$", "C library is musl")
}

// TestGPUHostileImage: links of an image lead nothing out of it, and nowhere else.
func TestGPUHostileImage(t *testing.T) {
	p := newPerson(t)
	m := newGPUMachine(t, p, fakedriver.Options{GPUs: 1})
	secret := filepath.Join(p.mkdir(t, "home/secret"), "file")
	if err := os.WriteFile(secret, []byte("mine"), 0o666); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(secret, 0o666); err != nil {
		t.Fatal(err)
	}
	for name, layer := range map[string][]entry{
		"directory of libraries": {{name: "usr/lib/gangway", link: filepath.Dir(secret)}},
		"up and away":            {{name: "usr/lib", link: "../../../../../../" + filepath.Dir(secret)}},
		"to the kernel":          {{name: "usr/lib/gangway", link: "/proc/self"}},
		"cache":                  {{name: "etc/ld.so.cache", link: secret}},
		"etc":                    {{name: "etc", link: filepath.Dir(secret)}},
		"a file in the way":      {{name: "usr/lib/gangway", content: "file"}},
		"a loop":                 {{name: "usr/lib", link: "lib"}},
		"node":                   {{name: "dev/nvidia0", link: secret}, {name: "dev/nvidiactl/"}},
		"program":                {{name: "usr/bin/nvidia-smi", link: secret}},
	} {
		t.Run(name, func(t *testing.T) {
			image := p.image(t, nil, craft(t, layer...))
			o := m.run(t, image, "--gpus=1", "--", "sh", "-c", listGPUs)
			if o.code != 0 && (o.code != 125 || !strings.HasPrefix(o.err, "gangway: error: ")) || o.code == 0 && !matches(m.nodes(0), o.out) {
				t.Errorf("exit %d: %s%s", o.code, o.out, o.err)
			}
			t.Logf("exit %d: %s", o.code, o.err)
			if b, err := os.ReadFile(secret); err != nil || string(b) != "mine" {
				t.Errorf("the user's file is changed: %q, %v", b, err)
			}
			if list, err := os.ReadDir(filepath.Dir(secret)); err != nil || len(list) != 1 {
				t.Errorf("the user's directory is changed: %v, %v", list, err)
			}
		})
	}
}
