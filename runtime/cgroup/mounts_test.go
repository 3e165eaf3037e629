package cgroup

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// lay writes a process file system with the given mounts and own groups.
func lay(t *testing.T, mounts, own string) string {
	t.Helper()
	proc := t.TempDir()
	if err := os.Mkdir(filepath.Join(proc, "self"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"mountinfo": mounts, "cgroup": own} {
		if err := os.WriteFile(filepath.Join(proc, "self", name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return proc
}

func TestHierarchies(t *testing.T) {
	const hybrid = `31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpuacct,cpu
33 31 0:30 /docker/17 /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
40 31 0:37 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,name=systemd
41 31 0:38 / /sys/fs/cgroup/with\040space rw - cgroup2 cgroup2 rw
42 31 0:38 / /second rw - cgroup2 cgroup2 rw
`
	found, err := hierarchies(lay(t, hybrid, "4:memory:/docker/17/a\n3:cpu,cpuacct:/b\n1:name=systemd:/\n0::/c\n"))
	if err != nil || len(found) != 3 {
		t.Fatalf("%+v, %v", found, err)
	}
	for i, want := range []hierarchy{
		{version: 2, mount: "/sys/fs/cgroup/with space", home: "/sys/fs/cgroup/with space/c"},
		{version: 1, mount: "/sys/fs/cgroup/cpu,cpuacct", home: "/sys/fs/cgroup/cpu,cpuacct/b", controllers: []string{"cpu", "cpuacct"}},
		{version: 1, mount: "/sys/fs/cgroup/memory", home: "/sys/fs/cgroup/memory/a", controllers: []string{"memory"}},
	} {
		got := found[i]
		if got.version != want.version || got.mount != want.mount || got.home != want.home || !slices.Equal(got.controllers, want.controllers) {
			t.Errorf("%d: %+v, want %+v", i, got, want)
		}
	}
	found, err = hierarchies(lay(t, "33 31 0:30 /docker/17 /m rw - cgroup2 cgroup rw\n", "0::/docker/178\n"))
	if err != nil || len(found) != 1 || found[0].home != "" {
		t.Errorf("a group outside of the mount: %+v, %v", found, err)
	}
	found, err = hierarchies(lay(t, "33 31 0:30 / /m rw - cgroup2 cgroup rw\n", "0::/../../etc\n"))
	if err != nil || len(found) != 1 || found[0].home != "" {
		t.Errorf("a group above the mount: %+v, %v", found, err)
	}
	if _, err := hierarchies(t.TempDir()); err == nil {
		t.Error("no /proc is no error")
	}
}

func FuzzHierarchies(f *testing.F) {
	f.Add("33 31 0:30 / /m rw - cgroup2 cgroup rw\n", "0::/a\n")
	f.Add("33 31 0:30 / /m rw - cgroup cgroup rw,cpu,cpuacct\n", "3:cpu,cpuacct:/a\n")
	f.Fuzz(func(t *testing.T, mounts, own string) {
		for _, h := range parseMounts(mounts, parseOwn(own)) {
			if h.home != "" && h.home != h.mount && !strings.HasPrefix(h.home, strings.TrimSuffix(filepath.Clean(h.mount), "/")+"/") {
				t.Errorf("%q is not below %q", h.home, h.mount)
			}
		}
	})
}

// TestNone: without cgroups everything works, and what is missing is said.
func TestNone(t *testing.T) {
	proc := lay(t, "", "0::/\n")
	for _, name := range []string{"meminfo", "swaps"} {
		if err := os.Symlink("/proc/"+name, filepath.Join(proc, name)); err != nil {
			t.Fatal(err)
		}
	}
	g, err := Open(t.Context(), Options{Name: "run-1", Proc: proc, UID: os.Getuid()})
	if err != nil {
		t.Fatal(err)
	}
	if g.Rung() != None || g.Version() != 0 || g.Dir() != "" || len(g.Refused()) == 0 {
		t.Errorf("rung %v, version %d, missing %v", g.Rung(), g.Version(), g.Missing())
	}
	if err := g.Limit(Limits{CPUs: 1, Memory: 1 << 30, Pids: 64}); err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, r := range g.Refused() {
		all = append(all, r.Error())
	}
	for _, m := range g.Missing() {
		all = append(all, m.String())
	}
	for _, want := range []string{"no cgroup file system", "CPU time is not limited", "affinity of ", "memory is not limited", "RLIMIT_NPROC"} {
		if !strings.Contains(strings.Join(all, "\n"), want) {
			t.Errorf("%q is not said in\n%s", want, strings.Join(all, "\n"))
		}
	}
	if _, err := g.Ranks().FD(); err == nil {
		t.Error("there is a group to start into")
	}
	if err := g.Freeze(t.Context()); err == nil {
		t.Error("there is a group to freeze")
	}
	watch, err := g.Watch()
	if err != nil || watch.OOM() != nil {
		t.Errorf("watch: %v", err)
	}
	watch.Stop()
	if s := g.Stats(); len(s.Unknown) < 8 {
		t.Errorf("only %v are unknown", s.Unknown)
	}
	cmd := exec.Command("sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	pid := strconv.Itoa(cmd.Process.Pid)
	if err := os.Symlink("/proc/"+pid, filepath.Join(proc, pid)); err != nil {
		t.Fatal(err)
	}
	if err := g.Ranks().Place(cmd.Process.Pid); err != nil {
		t.Fatal(err)
	}
	limits, _ := read("/proc/"+pid, "limits")
	status, _ := read("/proc/"+pid, "status")
	if !regexp.MustCompile(`Max processes +64 +64 `).MatchString(limits) || !regexp.MustCompile(`Cpus_allowed_list:\t\d+\n`).MatchString(status) {
		t.Errorf("%s\n%s", limits, status)
	}
	if err := g.Remove(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestNotSwitchedOn: a controller that could be had, and is not on because the caller's
// group has other processes, is not asked for numbers: there are none.
func TestNotSwitchedOn(t *testing.T) {
	home := t.TempDir()
	for name, text := range map[string]string{"cgroup.controllers": "memory pids io\n", "cgroup.subtree_control": "\n", "cgroup.procs": "1\n17\n"} {
		if err := os.WriteFile(filepath.Join(home, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	h := &hierarchy{version: 2, mount: filepath.Dir(home), home: home}
	g := &Group{rung: Root, proc: "/proc", name: "gangway/test/with"}
	g.trees = []*tree{g.below(h, home)}
	if want := filepath.Join(home, "gangway-test-with"); g.Dir() != want {
		t.Errorf("it is %s, want %s", g.Dir(), want)
	}
	if err := g.begin(); err != nil {
		t.Fatal(err)
	}
	defer g.undo()
	if err := g.Limit(Limits{Memory: 1 << 30}); err != nil {
		t.Fatal(err)
	}
	if m := g.Missing(); len(m) != 1 || !strings.Contains(m[0].String(), "memory is not limited: the group "+home+" has processes besides this one") {
		t.Errorf("misses %v", m)
	}
	watch, err := g.Watch()
	if err != nil || watch.OOM() != nil {
		t.Fatalf("watch: %v", err)
	}
	watch.Stop()
	if s := g.Stats(); !slices.Contains(s.Unknown, "MemoryPeak") || !slices.Contains(s.Unknown, "ReadBytes") {
		t.Errorf("only %v are unknown", s.Unknown)
	}
}

// TestRootBase: where root's groups are made, hierarchy by hierarchy.
func TestRootBase(t *testing.T) {
	mount := t.TempDir()
	group := func(path string, files map[string]string) string {
		dir := filepath.Join(mount, path)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		files["cgroup.procs"], files["cgroup.subtree_control"] = "", ""
		for name, text := range files {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text+"\n"), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		return dir
	}
	two, memory, blkio := hierarchy{version: 2}, hierarchy{version: 1, controllers: []string{"memory"}}, hierarchy{version: 1, controllers: []string{"blkio"}}
	for name, c := range map[string]struct {
		h     hierarchy
		path  string // of the caller's group; "-" is none that can be seen
		files map[string]string
		want  string // below the mount, or an error
	}{
		"the top":                  {two, "", map[string]string{}, ""},
		"a service":                {two, "system.slice/a.service", map[string]string{"cgroup.type": "domain"}, "system.slice/a.service"},
		"a job":                    {two, "system.slice/slurmstepd.scope/job_1/step_0", map[string]string{"memory.max": "1"}, "system.slice/slurmstepd.scope/job_1/step_0"},
		"a session":                {two, "user.slice/user-0.slice/session-1.scope", map[string]string{"memory.max": "max", "cpu.max": "max 100000", "cpuset.cpus": "", "pids.max": "100"}, ""},
		"a session with limits":    {two, "user.slice/user-0.slice/session-2.scope", map[string]string{"memory.max": "1000"}, "user.slice/user-0.slice/session-2.scope"},
		"a limited desktop":        {two, "user.slice/user-0.slice/user@0.service/app.slice/x.scope", map[string]string{"cpu.max": "1000 100000"}, "user.slice/user-0.slice/user@0.service/app.slice/x.scope"},
		"a session in version 1":   {memory, "user.slice/user-0.slice/session-3.scope", map[string]string{"memory.use_hierarchy": "1"}, "user.slice/user-0.slice/session-3.scope"},
		"without hierarchy":        {memory, "job", map[string]string{"memory.use_hierarchy": "0"}, "would not hold below"},
		"io of version 1":          {blkio, "io", map[string]string{}, "would not hold below"},
		"threads":                  {two, "threads", map[string]string{"cgroup.type": "threaded"}, "one of threads"},
		"elsewhere":                {two, "-", map[string]string{}, "not among those"},
		"the top of a container's": {blkio, "", map[string]string{}, "would not hold below"},
	} {
		t.Run(name, func(t *testing.T) {
			c.h.mount = mount
			if c.path != "-" {
				c.h.home = group(c.path, c.files)
			}
			base, err := c.h.rootBase()
			if err != nil && (c.want == "" || !strings.Contains(err.Error(), c.want)) || err == nil && base != filepath.Join(mount, c.want) {
				t.Errorf("%s, %v, want %q", base, err, c.want)
			}
		})
	}
}

// TestNames: a name is one path element and no more.
func TestNames(t *testing.T) {
	for _, name := range []string{"", ".", "..", "a/b", "../x", "a b", "a\n", "a.scope", strings.Repeat("a", 65), "ä"} {
		if _, err := Open(t.Context(), Options{Name: name, Proc: "/proc"}); err == nil {
			t.Errorf("%q is taken", name)
		}
	}
}

// TestOutside: a scope of systemd would escape what a batch system gave.
func TestOutside(t *testing.T) {
	for home, want := range map[string]bool{
		"/sys/fs/cgroup/user.slice/user-1000.slice/session-3.scope":                   false,
		"/sys/fs/cgroup/user.slice/user-1000.slice/user@1000.service/app.slice/x":     false,
		"/sys/fs/cgroup/system.slice/slurmstepd.scope/job_17/step_0/user/task_0":      true,
		"/sys/fs/cgroup/kubepods.slice/kubepods-pod17.slice/cri-containerd-abc.scope": true,
		"": true,
	} {
		if outside(home) != want {
			t.Errorf("%q: %v", home, !want)
		}
	}
}

// TestNear reads a machine with two nodes.
func TestNear(t *testing.T) {
	sys := t.TempDir()
	for address, values := range map[string][2]string{"0000:17:00.0": {"0-3,8", "0"}, "0000:65:00.0": {"4-7", "1"}, "0000:99:00.0": {"0-15", "-1"}} {
		dir := filepath.Join(sys, "bus/pci/devices", address)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		for i, name := range []string{"local_cpulist", "numa_node"} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(values[i]+"\n"), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	cpus, mems := Near(sys, "0000:17:00.0", "0000:65:00.0", "0000:aa:00.0")
	if cpus.String() != "0-8" || mems.String() != "0-1" {
		t.Errorf("%v, %v", cpus, mems)
	}
	if cpus, mems := Near(sys, "0000:99:00.0"); cpus.String() != "0-15" || len(mems) != 0 {
		t.Errorf("a machine with one node: %v, %v", cpus, mems)
	}
	if cpus, _ := Near(sys, "../../../etc"); len(cpus) != 0 {
		t.Errorf("%v", cpus)
	}
}
