package runtime

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sync/errgroup"
)

// TestSoak starts and joins many containers while other goroutines make garbage and other
// programs are started: no start may be lost, and nothing may be left.
func TestSoak(t *testing.T) {
	count := 60
	if os.Getenv("GANGWAY_TEST_LONG") != "" {
		count = 2000
	}
	defer debug.SetGCPercent(debug.SetGCPercent(5))
	ctx, cancel := context.WithCancel(t.Context())
	var garbage sync.WaitGroup
	for range 3 {
		garbage.Go(func() {
			var keep [64][]byte
			for i := 0; ctx.Err() == nil; i++ {
				keep[i%len(keep)] = bytes.Repeat([]byte{byte(i)}, 1<<14)
			}
		})
	}
	garbage.Go(func() {
		for ctx.Err() == nil {
			_ = exec.CommandContext(ctx, "/bin/true").Run()
		}
	})
	mounts, files := mountinfo(t), descriptors(t)
	var group errgroup.Group
	for range 2 {
		c := small(t, "exit 3")
		hold := small(t, "exec sleep 1000")
		group.Go(func() error {
			for i := range count / 2 {
				if err := soakOnce(ctx, c, hold); err != nil {
					return fmt.Errorf("round %d: %w", i, err)
				}
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		t.Error(err)
	}
	cancel()
	garbage.Wait()
	if got := mountinfo(t); got != mounts {
		t.Errorf("mounts\n%s\nbefore\n%s", got, mounts)
	}
	await(t, "descriptors are closed", func() bool { return descriptors(t) <= files })
	if children := children(t); len(children) > 0 {
		t.Errorf("children that are left: %v", children)
	}
}

func soakOnce(ctx context.Context, c, hold *Config) error {
	box, err := Prepare(ctx, c)
	if err != nil {
		return err
	}
	if err := box.Start(); err != nil {
		return err
	}
	if status, err := box.Wait(); err != nil || status.Code != 3 {
		return fmt.Errorf("%+v: %w", status, err)
	}
	if err := box.Close(); err != nil {
		return err
	}
	if box, err = Prepare(ctx, hold); err != nil {
		return err
	}
	if err := box.Start(); err != nil {
		return err
	}
	p, err := box.Join(ctx, JoinProcess{Args: []string{"/bin/true"}})
	if err != nil {
		return err
	}
	if status, err := p.Wait(); err != nil || status.Code != 0 {
		return fmt.Errorf("join: %+v: %w", status, err)
	}
	return box.Close()
}

// mountinfo is what is mounted where this process is.
func mountinfo(t testing.TB) string {
	t.Helper()
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	// Other tests of this machine mount at the same time.
	return strings.Join(slices.DeleteFunc(strings.Split(string(b), "\n"), func(l string) bool { return !strings.Contains(l, t.Name()) }), "\n")
}

// children are this process's.
func children(t testing.TB) []string {
	t.Helper()
	lists, err := filepath.Glob("/proc/self/task/*/children")
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, name := range lists {
		b, _ := os.ReadFile(name)
		all = append(all, strings.Fields(string(b))...)
	}
	return all
}

// TestCancel: a context that ends at any moment leaves nothing.
func TestCancel(t *testing.T) {
	files := descriptors(t)
	c := small(t, "exit 0")
	for i := range 40 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*100*time.Microsecond)
		box, err := Prepare(ctx, c)
		cancel()
		if err != nil {
			continue
		}
		if err := box.Close(); err != nil {
			t.Fatal(err)
		}
	}
	await(t, "descriptors are closed", func() bool { return descriptors(t) <= files })
	if children := children(t); len(children) > 0 {
		t.Errorf("children that are left: %v", children)
	}
}

// TestDifferential: namespaces and rights are those that package syscall makes, by another
// way. It gives up no rights in its namespaces; ours has none, and none of what it inherited.
func TestDifferential(t *testing.T) {
	const script = `cat /proc/self/uid_map /proc/self/gid_map /proc/self/setgroups; grep -E "^(Uid|Gid|Groups|Cap|Sig|Shd|NoNew)" /proc/self/status
		for n in cgroup ipc mnt net pid time user uts; do readlink /proc/self/ns/$n; done`
	c := shell(t, script)
	c.Spec.Linux.Namespaces = slices.DeleteFunc(c.Spec.Linux.Namespaces, func(n specs.LinuxNamespace) bool { return n.Type == "cgroup" })
	ours, _ := output(t, c)
	cmd := exec.CommandContext(t.Context(), "/bin/sh", "-c", "mount -t proc proc /proc; sh -c '"+script+"'")
	id := func(n int) []syscall.SysProcIDMap {
		return []syscall.SysProcIDMap{{ContainerID: n, HostID: n, Size: 1}}
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWIPC | syscall.CLONE_NEWUTS,
		UidMappings: id(os.Getuid()), GidMappings: id(os.Getgid()),
		AmbientCaps: []uintptr{21},
	}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	theirs := string(out)
	host := map[string]string{}
	for kind := range strings.FieldsSeq("cgroup ipc mnt net pid time user uts") {
		if host[kind], err = os.Readlink("/proc/self/ns/" + kind); err != nil {
			t.Fatal(err)
		}
	}
	// normal leaves out what has to differ, and says of namespaces whether they are new.
	normal := func(s string) string {
		var lines []string
		for l := range strings.Lines(s) {
			kind, _, isSpace := strings.Cut(l, ":[")
			switch {
			case isSpace:
				lines = append(lines, fmt.Sprintf("%s new: %v\n", kind, strings.TrimSpace(l) != host[kind]))
			case strings.HasPrefix(l, "Cap"), strings.HasPrefix(l, "SigQ"), strings.HasPrefix(l, "SigIgn"), strings.HasPrefix(l, "NoNew"):
			default:
				lines = append(lines, l)
			}
		}
		return strings.Join(lines, "")
	}
	if normal(ours) != normal(theirs) {
		t.Errorf("ours\n%ssyscall's\n%s", ours, theirs)
	}
	if strings.Count(normal(ours), " new: true\n") != 5 || strings.Count(normal(ours), " new: false\n") != 3 {
		t.Errorf("namespaces:\n%s", normal(ours))
	}
	for _, field := range []string{"CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "SigIgn", "SigBlk", "SigPnd"} {
		if !strings.Contains(ours, field+":\t0000000000000000\n") {
			t.Errorf("%s is not empty:\n%s", field, ours)
		}
	}
	if !strings.Contains(ours, "NoNewPrivs:\t1\n") || !strings.Contains(theirs, "CapPrm:\t000001ffffffffff\n") && !strings.Contains(theirs, "CapAmb:\t0000000000200000\n") {
		t.Errorf("ours\n%ssyscall's\n%s", ours, theirs)
	}
}

// TestInsideOut: names of the image do not lead out of it, whatever links it has.
func TestInsideOut(t *testing.T) {
	host := t.TempDir()
	for name, to := range map[string]string{"absolute": host, "up": "../../../../../../../.." + host, "magic": "/proc/self/root" + host} {
		for feature, f := range map[string]Features{"all": ProbeFeatures(), "none": {}} {
			c := small(t, "true")
			if err := os.Symlink(to, filepath.Join(c.Root.Dir, "link")); err != nil {
				t.Fatal(err)
			}
			c.Spec.Mounts = append(c.Spec.Mounts, specs.Mount{Destination: "/link/made", Type: "tmpfs"})
			c.Root.Overlay = &Overlay{}
			// Inside, the links lead to what is not there.
			box, err := prepare(t.Context(), c, f)
			if err == nil {
				_ = box.Close()
			}
			if !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), "/link in the new root") {
				t.Errorf("%s, %s: %v", name, feature, err)
			}
			if entries, _ := os.ReadDir(host); len(entries) > 0 {
				t.Errorf("%s, %s: made %v on the host", name, feature, entries)
			}
		}
	}
	for _, name := range []string{"dev", "proc"} {
		for feature, f := range map[string]Features{"all": ProbeFeatures(), "none": {}} {
			c := small(t, "true")
			if err := os.Remove(filepath.Join(c.Root.Dir, name)); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink("tmp", filepath.Join(c.Root.Dir, name)); err != nil {
				t.Fatal(err)
			}
			_, err := prepare(t.Context(), c, f)
			if err == nil || !strings.Contains(err.Error(), "/"+name+" in the new root") {
				t.Errorf("%s, %s: %v", name, feature, err)
			}
		}
	}
}

// TestHostPID: without a pid namespace the host's /proc is bound, and the children that are
// left are killed one by one.
func TestHostPID(t *testing.T) {
	c := small(t, "setsid sleep 1000 >/dev/null 2>&1 & echo $!; grep -qx PPid:.$PPID /proc/$$/status && echo same")
	c.Spec.Linux.Namespaces = nil
	c.Spec.Mounts = slices.DeleteFunc(c.Spec.Mounts, func(m specs.Mount) bool { return m.Type == "proc" })
	c.Spec.Mounts = append(c.Spec.Mounts, specs.Mount{Destination: "/proc", Type: "bind", Source: "/proc", Options: []string{"rbind"}})
	out, status := output(t, c)
	if status.Code != 0 || !strings.HasSuffix(out, "same\n") {
		t.Errorf("%+v %q", status, out)
	}
	var pid int
	if _, err := fmt.Sscan(out, &pid); err != nil {
		t.Fatal(err)
	}
	await(t, "a child in another session ends", func() bool { return !alive(pid) })
}
