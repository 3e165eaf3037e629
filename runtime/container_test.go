package runtime

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// plain is a specification with what most containers have.
func plain(args []string) *specs.Spec {
	return &specs.Spec{
		Process:  &specs.Process{Args: args, Env: []string{"PATH=/usr/bin:/bin"}},
		Hostname: "box",
		Mounts: []specs.Mount{
			{Destination: "/proc", Type: "proc", Options: []string{"nosuid", "nodev", "noexec"}},
			{Destination: "/dev", Type: "tmpfs", Options: []string{"nosuid", "mode=755", "size=65536k"}},
			{Destination: "/tmp", Type: "tmpfs", Options: []string{"nosuid", "nodev", "mode=1777"}},
		},
		Linux: &specs.Linux{
			Namespaces:  []specs.LinuxNamespace{{Type: "user"}, {Type: "mount"}, {Type: "pid"}, {Type: "ipc"}, {Type: "uts"}, {Type: "cgroup"}},
			UIDMappings: []specs.LinuxIDMapping{{ContainerID: uint32(os.Getuid()), HostID: uint32(os.Getuid()), Size: 1}},
			GIDMappings: []specs.LinuxIDMapping{{ContainerID: uint32(os.Getgid()), HostID: uint32(os.Getgid()), Size: 1}},
		},
	}
}

// shell is the configuration of a shell command in a container whose root is the host's.
func shell(t testing.TB, script string, args ...string) *Config {
	t.Helper()
	return &Config{Spec: plain(append([]string{"sh", "-c", script, "sh"}, args...)), Root: Root{Dir: "/"}, Stage: t.TempDir()}
}

// output runs a container and returns what it wrote and how it ended.
func output(t testing.TB, c *Config) (string, Status) {
	t.Helper()
	return outputWith(t, c, ProbeFeatures())
}

// outputWith is output with some calls left out.
func outputWith(t testing.TB, c *Config, f Features) (string, Status) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	_ = w.Fd() // it blocks from now on
	c.Stdout = w
	if c.Stderr == nil {
		c.Stderr = w
	}
	var out bytes.Buffer
	done := make(chan error, 1)
	go func() { _, err := io.Copy(&out, r); done <- err }()
	box, err := prepare(t.Context(), c, f)
	if err != nil {
		t.Fatal(err)
	}
	defer box.Close()
	err = box.Start()
	if err != nil {
		t.Error(err)
	}
	status, err := box.Wait()
	if err != nil {
		t.Error(err)
	}
	w.Close()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	return out.String(), status
}

func TestRun(t *testing.T) {
	out, status := output(t, shell(t, `
		echo pid $$ $(hostname); cat /proc/self/status | grep -E 'Cap|NoNew|Sig'; ls -la /dev; cat /proc/self/mountinfo; id -u; ls -l /proc/self/fd; ls /proc; exit 7`))
	if status.Code != 7 || !strings.Contains(out, "pid 2 box\n") {
		t.Errorf("%+v: %s", status, out)
	}
	t.Log(out)
}

// start starts a container, which ends with the test.
func start(t testing.TB, c *Config) *Container {
	t.Helper()
	box, err := Prepare(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := box.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := box.Start(); err != nil {
		t.Fatal(err)
	}
	return box
}

// skeleton is a directory that is a root when the host's /usr is mounted in it.
func skeleton(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"usr", "etc", "opt", "proc", "dev", "sys", "tmp"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"bin", "sbin", "lib", "lib64"} {
		if err := os.Symlink("usr/"+name, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// small is shell with a root that is an ordinary directory.
func small(t testing.TB, script string, args ...string) *Config {
	c := shell(t, script, args...)
	c.Root.Dir = skeleton(t)
	usr := specs.Mount{Destination: "/usr", Type: "bind", Source: "/usr", Options: []string{"rbind", "ro", "nosuid", "nodev"}}
	c.Spec.Mounts = append([]specs.Mount{usr}, c.Spec.Mounts...)
	return c
}

// descriptors counts those that this process has open.
func descriptors(t testing.TB) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}
