package cgroup_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/gangway-hpc/gangway/runtime/cgroup"
)

// job is a group that somebody else made and limited, in each hierarchy where it can be made
// at the top, and a process file system where the caller is in it.
type job struct {
	dirs map[string]string // by controllers as in /proc/self/cgroup; "" is version 2
	proc string
}

// newJob makes a job of that path below the top of each hierarchy.
func newJob(t *testing.T, path string) job {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root: to make a group that root is started in")
	}
	j := job{map[string]string{}, t.TempDir()}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	must(t, err)
	own, err := os.ReadFile("/proc/self/cgroup")
	must(t, err)
	text := regexp.MustCompile(`(?m)^(\d+):(.*):/.*$`).ReplaceAllStringFunc(string(own), func(line string) string {
		f := strings.SplitN(line, ":", 3)
		mounts := []string{"/sys/fs/cgroup/" + f[1]}
		if f[1] == "" {
			mounts = []string{"/sys/fs/cgroup/unified", "/sys/fs/cgroup"}
		}
		for _, mount := range mounts {
			// That of CPU sets cannot be used before each group has been given some.
			if _, err := os.Stat(mount + "/cgroup.procs"); err == nil && f[1] != "cpuset" {
				j.dirs[f[1]] = mount + path
				makeGroup(t, mount, path)
				return f[0] + ":" + f[1] + ":" + path
			}
		}
		return line
	})
	must(t, os.Mkdir(j.proc+"/self", 0o755))
	must(t, os.WriteFile(j.proc+"/self/mountinfo", mounts, 0o644))
	must(t, os.WriteFile(j.proc+"/self/cgroup", []byte(text), 0o644))
	return j
}

// makeGroup makes the group of that path, which version 2 gives all controllers.
func makeGroup(t *testing.T, mount, path string) {
	t.Helper()
	dir := mount
	for _, name := range strings.Split(path, "/")[1:] {
		for _, c := range []string{"cpuset", "cpu", "io", "memory", "pids"} {
			_ = os.WriteFile(dir+"/cgroup.subtree_control", []byte("+"+c), 0) // it may not be there
		}
		dir += "/" + name
		made := dir
		if err := os.Mkdir(made, 0o755); err == nil {
			t.Cleanup(func() { removeAll(t, made) })
		} else if !errors.Is(err, os.ErrExist) {
			t.Fatal(err)
		}
	}
}

// removeAll removes the group dir and those below it.
func removeAll(t *testing.T, dir string) {
	t.Helper()
	var all []string
	_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error { // it may be gone

		if err == nil && d.IsDir() {
			all = append(all, path)
		}
		return nil
	})
	for i := len(all) - 1; i >= 0; i-- {
		if err := os.Remove(all[i]); err != nil {
			t.Error(err)
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// set writes value to the first of the files that there is, and skips the test without any.
func (j job) set(t *testing.T, value string, files ...string) {
	t.Helper()
	for _, dir := range j.dirs {
		for _, f := range files {
			if _, err := os.Stat(dir + "/" + f); err == nil {
				must(t, os.WriteFile(dir+"/"+f, []byte(value), 0))
				return
			}
		}
	}
	t.Skipf("needs a cgroup with one of %q", files)
}

// open makes a group as if the caller were in j.
func (j job) open(t *testing.T, name string) *cgroup.Group {
	t.Helper()
	g, err := cgroup.Open(t.Context(), cgroup.Options{Instance: "test", Name: name, Proc: j.proc})
	must(t, err)
	t.Cleanup(func() {
		if err := g.Remove(within(t, 10*time.Second)); err != nil {
			t.Error(err)
		}
		for _, dir := range j.dirs { // a batch system removes its own when it is empty
			if left, _ := filepath.Glob(dir + "/gangway*"); len(left) > 0 {
				t.Errorf("%q are left", left)
			}
		}
	})
	if g.Rung() != cgroup.Root {
		t.Skipf("needs a cgroup file system to write to: %v", g.Refused())
	}
	return g
}

// TestGroupInside: what holds for the group that root is started in holds for the container.
func TestGroupInside(t *testing.T) {
	j := newJob(t, "/gangway-job/task")
	j.set(t, "62914560", "memory.max", "memory.limit_in_bytes")
	g := j.open(t, "inside")
	limit(t, g, cgroup.Limits{Memory: 4 << 30, Pids: 20})
	hog := placed(t, g, "memory")
	text, err := os.ReadFile("/proc/" + pidOf(hog) + "/cgroup")
	must(t, err)
	for line := range strings.Lines(string(text)) {
		if path := strings.SplitN(strings.TrimSpace(line), ":", 3)[2]; strings.Contains(path, "inside") && !strings.HasPrefix(path, "/gangway-job/task/gangway-test-inside") {
			t.Errorf("it is in %s", path)
		}
	}
	if !strings.Contains(string(text), "/gangway-job/task/gangway-test-inside/ranks\n") {
		t.Errorf("it is in no group of ours: %s", text)
	}
	hog.release()
	if err := hog.Wait(); err == nil {
		t.Error("1 GiB fits into the 60 MiB of the job")
	}
}

// TestInsideDevices: what the group denies cannot be allowed inside it.
func TestInsideDevices(t *testing.T) {
	j := newJob(t, "/gangway-job/devices")
	if _, ok := j.dirs["devices"]; !ok {
		t.Skip("needs cgroup version 1; for version 2 see TestFilterAbove")
	}
	j.set(t, "c 1:5 rwm", "devices.deny")
	g := j.open(t, "devices")
	five, null := int64(5), int64(3)
	one := int64(1)
	limit(t, g, cgroup.Limits{Devices: []specs.LinuxDeviceCgroup{
		{Allow: false, Access: "rwm"},
		{Allow: true, Type: "c", Access: "m"},
		{Allow: true, Type: "c", Major: &one, Minor: &five, Access: "rwm"},
		{Allow: true, Type: "c", Major: &one, Minor: &null, Access: "rwm"},
	}})
	if len(g.Missing()) > 0 {
		t.Errorf("misses %v", g.Missing())
	}
	zero, other := placed(t, g, "zero"), placed(t, g, "null")
	zero.release()
	other.release()
	if err := zero.Wait(); err == nil {
		t.Error("/dev/zero is denied above, and was opened")
	}
	if err := other.Wait(); err != nil {
		t.Errorf("/dev/null is allowed: %v", err)
	}
}

// TestGroupInsideWith: version 2 gives out nothing of a group with processes in it: that is
// said, and what the group limits holds nevertheless.
func TestGroupInsideWith(t *testing.T) {
	j := newJob(t, "/gangway-job/with")
	other := start(t, "sleep")
	for _, dir := range j.dirs {
		must(t, os.WriteFile(dir+"/cgroup.procs", []byte(pidOf(other)), 0))
	}
	t.Cleanup(func() { _ = other.Process.Kill(); _ = other.Wait() })
	j.set(t, "62914560", "memory.max", "memory.limit_in_bytes")
	g := j.open(t, "with")
	limit(t, g, cgroup.Limits{Memory: 4 << 30})
	if g.Version() == 2 {
		if m := g.Missing(); len(m) != 1 || m[0].What != "memory" || !strings.Contains(m[0].Why, "has processes besides this one") {
			t.Errorf("misses %v", m)
		}
	} else if m := g.Missing(); len(m) > 0 && m[0].What == "memory" {
		t.Errorf("misses %v", m)
	}
	watch, err := g.Watch()
	must(t, err)
	defer watch.Stop()
	hog := placed(t, g, "memory")
	hog.release()
	if err := hog.Wait(); err == nil {
		t.Error("1 GiB fits into the 60 MiB of the job")
	}
}

// TestGroupSession: from a login session root's groups are made at the top in version 2, as
// long as nobody limited it.
func TestGroupSession(t *testing.T) {
	j := newJob(t, "/user.slice/user-0.slice/session-7.scope")
	g := j.open(t, "session")
	dir, ok := j.dirs[""]
	if !ok {
		t.Skip("needs cgroup version 2")
	}
	if strings.Contains(g.Dir(), "user.slice") {
		t.Errorf("it is %s", g.Dir())
	}
	if _, err := os.Stat(dir + "/memory.max"); errors.Is(err, os.ErrNotExist) {
		return // both versions
	}
	must(t, os.WriteFile(dir+"/memory.max", []byte("60M"), 0))
	if g := j.open(t, "limited"); !strings.HasPrefix(g.Dir(), dir+"/") {
		t.Errorf("it is %s, and was to be in %s", g.Dir(), dir)
	}
}

// TestGroupSweepInside: what a killed supervisor left in a group of somebody else's is
// removed, and what is held stays.
func TestGroupSweepInside(t *testing.T) {
	j := newJob(t, "/gangway-job/sweep")
	g := j.open(t, "held")
	for controllers, dir := range j.dirs {
		if strings.Contains(controllers, "=") {
			continue
		}
		must(t, os.MkdirAll(dir+"/gangway-test-left/ranks", 0o755))
		must(t, os.MkdirAll(dir+"/gangway-test2/ranks", 0o755))
	}
	if n, err := cgroup.Sweep(cgroup.Options{Instance: "test", Proc: j.proc}); err != nil || n != 1 {
		t.Errorf("swept %d, %v", n, err)
	}
	for controllers, dir := range j.dirs {
		if strings.Contains(controllers, "=") {
			continue // none of ours are there
		}
		if _, err := os.Stat(dir + "/gangway-test-left"); err == nil {
			t.Errorf("%s/gangway-test-left is left", dir)
		}
		if _, err := os.Stat(dir + "/gangway-test2"); err != nil {
			t.Errorf("another instance's: %v", err)
		}
		removeAll(t, dir+"/gangway-test2")
	}
	if _, err := os.Stat(g.Dir()); err != nil {
		t.Error(err)
	}
}

// TestGroupNamespace: at the top of a cgroup namespace, as in a container, root is in a
// group of somebody else's as well. What a killed supervisor left there is removed, and the
// controllers that it switched on are off.
func TestGroupNamespace(t *testing.T) {
	j := newJob(t, "/gangway-job/namespace")
	dir, ok := j.dirs[""]
	if !ok {
		t.Skip("needs cgroup version 2")
	}
	var out bytes.Buffer
	p := exec.Command("/proc/self/exe")
	p.Env = []string{helperMode + "=namespace", mountOfNamespace + "=" + strings.TrimSuffix(dir, "/gangway-job/namespace")}
	p.Stdout, p.Stderr = &out, &out
	group, err := os.Open(dir)
	must(t, err)
	defer group.Close()
	p.SysProcAttr = intoCgroup(group)
	if err := p.Run(); err != nil {
		t.Fatalf("%v: %s", err, &out)
	}
	left := dir + "/gangway-test-namespace"
	if _, err := os.Stat(left + "/ranks"); err != nil {
		t.Fatalf("%v: %s", err, &out)
	}
	offered, err := os.ReadFile(dir + "/cgroup.controllers")
	must(t, err)
	if on, err := os.ReadFile(dir + "/cgroup.subtree_control"); err != nil || strings.Contains(string(offered), "memory") != strings.Contains(string(on), "memory") {
		t.Errorf("controllers on: %s, of %s: %v; %s", on, offered, err, &out)
	}
	if n, err := cgroup.Sweep(cgroup.Options{Instance: "test", Proc: j.proc}); n != 1 || err != nil {
		t.Errorf("swept %d, %v", n, err)
	}
	if _, err := os.Stat(left); err == nil {
		t.Error("it is still there")
	}
	if on, err := os.ReadFile(dir + "/cgroup.subtree_control"); err != nil || len(bytes.TrimSpace(on)) > 0 {
		t.Errorf("controllers are still on: %s, %v", on, err)
	}
}

// mountOfNamespace is where the helper mounts what its cgroup namespace has.
const mountOfNamespace = "GANGWAY_CGROUP_MOUNT"

// helpInNamespace goes into a cgroup namespace and begins anew there, abandons a group and
// says what it misses.
func helpInNamespace(inside bool) error {
	mount := os.Getenv(mountOfNamespace)
	if !inside {
		runtime.LockOSThread()
		if err := errors.Join(unix.Unshare(unix.CLONE_NEWCGROUP), unix.Unshare(unix.CLONE_NEWNS)); err != nil {
			return err
		}
		return syscall.Exec("/proc/self/exe", []string{"helper"}, []string{helperMode + "=inside", mountOfNamespace + "=" + mount})
	}
	err := errors.Join(unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""), unix.Unmount(mount, unix.MNT_DETACH), unix.Mount("cgroup2", mount, "cgroup2", 0, ""))
	if err != nil {
		return err
	}
	g, err := cgroup.Open(context.Background(), cgroup.Options{Instance: "test", Name: "namespace"})
	if err != nil {
		return err
	}
	fmt.Println(g.Dir(), g.Refused(), g.Missing())
	if err := g.Limit(cgroup.Limits{Pids: 100}); err != nil {
		return err
	}
	if want := mount + "/gangway-test-namespace"; g.Dir() != want {
		return fmt.Errorf("it is %s, want %s", g.Dir(), want)
	}
	return nil
}
