package runtime

import (
	"errors"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// TestReadOnlyBelow: a read-only mount is read-only with all that is mounted below it,
// whatever calls the kernel lacks, and keeps the flags that the host locked.
func TestReadOnlyBelow(t *testing.T) {
	for _, without := range []string{"", "mount_setattr", "open_tree", "openat2", "all"} {
		dir := t.TempDir()
		cmd := again(t, "submounts", dir, without)
		cmd.SysProcAttr = &syscall.SysProcAttr{
			Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
			UidMappings: []syscall.SysProcIDMap{{ContainerID: os.Getuid(), HostID: os.Getuid(), Size: 1}},
			GidMappings: []syscall.SysProcIDMap{{ContainerID: os.Getgid(), HostID: os.Getgid(), Size: 1}},
			AmbientCaps: []uintptr{unix.CAP_SYS_ADMIN},
		}
		out, err := cmd.CombinedOutput()
		if want := strings.Repeat("written\n", 3) + strings.Repeat("read-only\n", 4) + "written\nwritten\nlocked\n"; err != nil || string(out) != want {
			t.Errorf("without %q: %v: %s", without, err, out)
		}
	}
}

// runSubmounts mounts things below each other and gives them to a container.
func runSubmounts(args []string) error {
	dir, data := args[0], args[0]+"/a \\b"
	tmpfs := func(name string, flags uintptr) error {
		return errors.Join(os.MkdirAll(name, 0o755), unix.Mount("tmpfs", name, "tmpfs", flags, "mode=755"))
	}
	err := errors.Join(
		tmpfs(data+"/x", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC|unix.MS_NOATIME),
		tmpfs(data+"/x/new\nline", 0),
		os.Mkdir(data+"/x/later", 0o755),
		tmpfs(data+"/over/hidden", 0),
		tmpfs(data+"/over", 0),
		tmpfs(dir+"/other", 0),
		os.Mkdir(dir+"/stage", 0o755),
	)
	if err != nil {
		return err
	}
	script := `cd /tmp; for d in rw rw/x rw/over ro ro/x "ro/x/new
line" ro/over ro2 ro/x/later; do touch "$d/file" 2>/dev/null && echo written || echo read-only; done
grep -q ' /tmp/ro/x ro,nosuid,nodev,noexec,noatime' /proc/self/mountinfo && echo locked`
	c := &Config{
		Spec: plain([]string{"/bin/sh", "-c", script}), Root: Root{Dir: "/"},
		Stage: dir + "/stage", Stdout: os.Stdout, Stderr: os.Stderr,
	}
	for _, m := range [][]string{{data, "/tmp/rw"}, {data, "/tmp/ro", "ro", "nosuid"}, {dir + "/other", "/tmp/ro2"}, {dir + "/other", "/tmp/ro/x/later"}} {
		c.Spec.Mounts = append(c.Spec.Mounts, specs.Mount{Source: m[0], Destination: m[1], Type: "bind", Options: m[2:]})
	}
	return runLess(c, args[1])
}

// runLess runs a container without a call.
func runLess(c *Config, without string) error {
	f := ProbeFeatures()
	switch without {
	case "mount_setattr":
		f.MountSetattr = false
	case "open_tree":
		f.OpenTree, f.MountSetattr = false, false
	case "openat2":
		f.Openat2, f.MountSetattr = false, false
	case "all":
		f = Features{}
	}
	return runOnce(c, f)
}
