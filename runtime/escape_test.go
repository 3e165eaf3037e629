package runtime

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/gangway-hpc/gangway/internal/fault"
)

// leaky is a container whose PID 1 has descriptors of the host: directories with a program
// in them, and more.
func leaky(t *testing.T, kind string) *Config {
	t.Helper()
	c := small(t, "exec sleep 1000")
	top := t.TempDir()
	run := filepath.Join(top, "run")
	if err := os.Mkdir(run, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{top, run} {
		if err := os.WriteFile(filepath.Join(dir, "escape"), []byte("#!/bin/sh\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	c.Orphan.Remove = []string{filepath.Join(run, "state"), run, top}
	adj := 500
	c.Spec.Process.OOMScoreAdj = &adj
	switch kind {
	case "fake root":
		asRoot(c)
	case "terminal":
		c.Spec.Process.Terminal = true
	case "host pid":
		c.Spec.Linux.Namespaces = nil
		for i := range c.Spec.Mounts {
			if m := &c.Spec.Mounts[i]; m.Destination == "/proc" {
				*m = specs.Mount{Destination: "/proc", Type: "bind", Source: "/proc", Options: []string{"rbind"}}
			}
		}
	}
	return c
}

// TestDescriptorsAtWorkdir is CVE-2024-21626: when a process goes to its working directory,
// and when its program is looked up, nothing of the host is open to be led through.
func TestDescriptorsAtWorkdir(t *testing.T) {
	var search []string
	for n := 3; n <= 20; n++ {
		search = append(search, fmt.Sprintf("/proc/self/fd/%d", n), fmt.Sprintf("/dev/fd/%d", n), fmt.Sprintf("/tmp/link%d", n))
	}
	for _, kind := range []string{"", "fake root", "terminal", "host pid"} {
		for feature, f := range map[string]Features{"all": ProbeFeatures(), "none": {}} {
			name := kind + ", " + feature
			// What is there says so by another error than that nothing is.
			open := 0
			for n := 3; n <= 20; n++ {
				c := leaky(t, kind)
				if err := os.Symlink(fmt.Sprintf("/dev/fd/%d", n), filepath.Join(c.Root.Dir, "link")); err != nil {
					t.Fatal(err)
				}
				c.Spec.Process.Cwd = []string{fmt.Sprintf("/proc/self/fd/%d", n), "/link"}[n%2]
				box, err := prepare(t.Context(), c, f)
				switch {
				case err == nil:
					t.Errorf("%s: working directory behind descriptor %d", name, n)
					box.Close()
				case errors.Is(err, syscall.ENOENT):
				case errors.Is(err, syscall.ENOTDIR) && feature == "none", errors.Is(err, syscall.ELOOP) && feature == "all":
					open++ // the socket on which START comes
				default:
					t.Errorf("%s: descriptor %d: %v", name, n, err)
				}
			}
			if open > 1 {
				t.Errorf("%s: %d descriptors are open", name, open)
			}
			c := leaky(t, kind)
			c.Spec.Process.Args, c.Spec.Process.Env = []string{"escape"}, []string{"PATH=" + strings.Join(search, ":")}
			box, err := prepare(t.Context(), c, f)
			if err != nil {
				t.Fatal(err)
			}
			if err := box.Start(); fault.Code(err) != fault.CodeNotFound {
				t.Errorf("%s: program behind a descriptor: %v", name, err)
			}
			if err := box.Close(); err != nil {
				t.Error(err)
			}
			joinLeaky(t, name, leaky(t, kind), f, search)
		}
	}
}

// joinLeaky tries the same with processes that join.
func joinLeaky(t *testing.T, name string, c *Config, f Features, search []string) {
	t.Helper()
	box, err := prepare(t.Context(), c, f)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := box.Close(); err != nil {
			t.Error(err)
		}
	}()
	if err := box.Start(); err != nil {
		t.Fatal(err)
	}
	for n := 3; n <= 20; n++ {
		p, err := box.Join(t.Context(), JoinProcess{Args: []string{"/bin/true"}, Cwd: fmt.Sprintf("/dev/fd/%d", n)})
		if err == nil {
			_, _ = p.Wait()
			t.Errorf("%s: joined: working directory behind descriptor %d", name, n)
			continue
		}
		// Nothing is open there, or the socket that closes itself.
		op, ok := errors.AsType[*OpError](err)
		if !ok || !op.Workdir() || op.Errno != syscall.ENOENT && op.Errno != syscall.ENOTDIR && op.Errno != syscall.ELOOP {
			t.Errorf("%s: joined: descriptor %d: %v", name, n, err)
		}
	}
	j := JoinProcess{Args: []string{"escape"}, Env: []string{"PATH=" + strings.Join(search, ":")}}
	if _, err := box.Join(t.Context(), j); fault.Code(err) != fault.CodeNotFound {
		t.Errorf("%s: joined: program behind a descriptor: %v", name, err)
	}
}

// TestWorkdirOutside: not even a directory that the command is given is its working
// directory by a link of /proc; one in the container is, wherever links lead inside.
func TestWorkdirOutside(t *testing.T) {
	host, err := os.Open("/")
	if err != nil {
		t.Fatal(err)
	}
	defer host.Close()
	for feature, f := range map[string]Features{"all": ProbeFeatures(), "none": {}} {
		for _, cwd := range []string{"/proc/self/fd/3", "/dev/fd/0", "/proc/self/fd/3/usr/bin", "/link/usr"} {
			c := small(t, "")
			c.Stdin, c.Pass, c.Spec.Process.Cwd = host, []*os.File{host}, cwd
			if err := os.Symlink("/dev/fd/3", filepath.Join(c.Root.Dir, "link")); err != nil {
				t.Fatal(err)
			}
			box, err := prepare(t.Context(), c, f)
			if err == nil {
				box.Close()
			}
			op, ok := errors.AsType[*OpError](err)
			if !ok || op.Errno != syscall.ELOOP || !op.Workdir() {
				t.Errorf("%s, %s: %v", feature, cwd, err)
			}
		}
		c := small(t, "pwd")
		c.Spec.Process.Cwd = "/link/../opt/deep"
		if err := errors.Join(os.Symlink("../../etc", filepath.Join(c.Root.Dir, "link")), os.Symlink("/usr/bin", filepath.Join(c.Root.Dir, "opt/deep"))); err != nil {
			t.Fatal(err)
		}
		if out, status := outputWith(t, c, f); out != "/usr/bin\n" || status.Code != 0 {
			t.Errorf("%s: %+v, %q", feature, status, out)
		}
	}
}
