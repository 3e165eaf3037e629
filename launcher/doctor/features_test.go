package doctor_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gangway-hpc/gangway/launcher/doctor"
)

// TestFeatures: system calls and file systems that are refused cost something, which is
// said, and containers run nevertheless.
func TestFeatures(t *testing.T) {
	for _, c := range []struct {
		name   string
		filter []rule
		words  []string
	}{
		{"clone3", []rule{{Call: unix.SYS_CLONE3, Errno: syscall.ENOSYS}}, []string{"function not implemented", "seccomp filter", "use clone instead"}},
		{"clone3", []rule{{Call: unix.SYS_CLONE3, Errno: syscall.EPERM, Arg: 1, Zero: true}}, []string{"operation not permitted", "seccomp filter", "make no threads"}},
		{"openat2", []rule{{Call: unix.SYS_OPENAT2, Errno: syscall.ENOSYS}}, []string{"function not implemented", "ordinary rules"}},
		{"openat2", []rule{{Call: unix.SYS_OPENAT2, Errno: syscall.EPERM}}, []string{"operation not permitted"}},
		{"open-tree", []rule{{Call: unix.SYS_OPEN_TREE, Errno: syscall.ENOSYS}}, []string{"open_tree a copy of a mount: function not implemented"}},
		{"open-tree", []rule{{Call: unix.SYS_MOVE_MOUNT, Errno: syscall.EPERM}}, []string{"move_mount it: operation not permitted"}},
		{"mount-setattr", []rule{{Call: unix.SYS_MOUNT_SETATTR, Errno: syscall.ENOSYS}}, []string{"mount_setattr read-only: function not implemented"}},
		{"mount-setattr", []rule{{Call: unix.SYS_MOUNT_SETATTR, Errno: syscall.EPERM}}, []string{"operation not permitted"}},
		{"seccomp", []rule{{Call: unix.SYS_SECCOMP, Errno: syscall.ENOSYS}}, []string{"by prctl", "slower"}},
		{"tmpfs-xattr", []rule{{Call: unix.SYS_SETXATTR, Errno: syscall.EOPNOTSUPP}}, []string{"operation not supported", "6.6", "kept on disk"}},
		{"fuse-mount", []rule{{Call: unix.SYS_MOUNT, Errno: syscall.EPERM, Arg: 3, Equal: unix.MS_NOSUID | unix.MS_NODEV | unix.MS_RDONLY}}, []string{"mount fuse: operation not permitted", "unpacked"}},
		{"fuse-mount", []rule{{Call: unix.SYS_MOUNT, Errno: syscall.ENODEV, Arg: 3, Equal: unix.MS_NOSUID | unix.MS_NODEV | unix.MS_RDONLY}}, []string{"4.18"}},
		{"overlay", []rule{{Call: unix.SYS_RENAMEAT, Errno: syscall.EXDEV}, {Call: unix.SYS_RENAMEAT2, Errno: syscall.EXDEV}}, []string{"rename a file: invalid cross-device link", "writable containers"}},
		{"sys", []rule{{Call: unix.SYS_MOUNT, Errno: syscall.EPERM, Arg: 3, Equal: unix.MS_BIND | unix.MS_REC}}, []string{"bind /sys with all below"}},
	} {
		t.Run(c.name+" "+c.filter[0].Errno.Error(), func(t *testing.T) {
			r := injured(t, 0, injury{Filter: c.filter})
			want(t, r, c.name, doctor.Degraded, c.words...)
			if !r.Summary.CanRun {
				t.Errorf("containers are said not to run: %+v", r.Blocking())
			}
			for _, f := range r.Findings {
				if f.Name == "user-namespaces" && f.Result != doctor.OK {
					t.Errorf("%+v", f)
				}
			}
		})
	}
}

// TestNoFilters: every container has a filter, so where none can be put in force there are no
// containers.
func TestNoFilters(t *testing.T) {
	none := []rule{{Call: unix.SYS_SECCOMP, Errno: syscall.ENOSYS}, {Call: unix.SYS_PRCTL, Errno: syscall.EINVAL, Equal: unix.PR_SET_SECCOMP}}
	r := injured(t, 0, injury{Filter: none})
	want(t, r, "seccomp", doctor.Missing, "function not implemented; prctl: invalid argument", "seccomp filter is in force", "no container can be started")
	if r.Summary.CanRun || r.Blocking().Name != "seccomp" {
		t.Errorf("summary %+v", r.Summary)
	}
	want(t, injured(t, 0, injury{Filter: none, Doctor: options{Root: t.TempDir()}}), "seccomp", doctor.Missing, "built without seccomp filters")
}

// TestOldKernel: without a filter, what is not there is said to be the kernel's age.
func TestOldKernel(t *testing.T) {
	r := injured(t, 0, injury{Filter: []rule{{Call: unix.SYS_OPENAT2, Errno: syscall.ENOSYS}}, Doctor: options{Root: t.TempDir()}})
	want(t, r, "openat2", doctor.Degraded, "older than Linux 5.6")
}

// TestMaskedProc: parts of /proc are covered, as container engines do.
func TestMaskedProc(t *testing.T) {
	masked := []mount{
		{Source: "proc", Target: "/proc", Kind: "proc"},
		{Source: "tmpfs", Target: "/proc/irq", Kind: "tmpfs", Flags: unix.MS_RDONLY},
	}
	r := injured(t, mounts|syscall.CLONE_NEWPID, injury{Mounts: masked})
	want(t, r, "proc", doctor.Degraded, "mount proc: operation not permitted", "/proc/irq (tmpfs)", "processes")
	if !r.Summary.CanRun {
		t.Errorf("containers are said not to run: %+v", r.Blocking())
	}
	plain := injured(t, mounts|syscall.CLONE_NEWPID, injury{Mounts: masked[:1]})
	want(t, plain, "proc", doctor.OK)
}

// TestFuseDevice: the ways in which /dev/fuse is not to be had.
func TestFuseDevice(t *testing.T) {
	// dev becomes /dev: with what every program needs, and fuse as the case has it.
	dev := func(t *testing.T, more ...mount) []mount {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "null"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		all := []mount{{Source: "/dev/null", Target: filepath.Join(dir, "null"), Flags: unix.MS_BIND}}
		for _, m := range more {
			m.Target = filepath.Join(dir, m.Target)
			all = append(all, m)
		}
		if len(more) > 0 {
			if err := os.WriteFile(filepath.Join(dir, "fuse"), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		return append(all, mount{Source: dir, Target: "/dev", Flags: unix.MS_BIND | unix.MS_REC})
	}
	closed := dev(t)
	if err := os.WriteFile(filepath.Join(closed[len(closed)-1].Source, "fuse"), nil, 0o000); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name   string
		mounts []mount
		root   map[string]string
		words  []string
	}{
		{"absent", dev(t), map[string]string{}, []string{"no such file", "sudo modprobe fuse", "unpacked"}},
		{"absent in a container", dev(t), map[string]string{"run/.containerenv": ""}, []string{"podman run --device /dev/fuse"}},
		{"mode", closed, map[string]string{}, []string{"permission denied", "its mode is 0", "sudo chmod 0666 /dev/fuse"}},
		{"nodev", dev(t, mount{Source: "/dev/fuse", Target: "fuse", Flags: unix.MS_BIND}, mount{Target: "fuse", Flags: unix.MS_BIND | unix.MS_REMOUNT | unix.MS_NODEV}), map[string]string{}, []string{"permission denied", "nodev"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := injured(t, mounts, injury{Mounts: c.mounts, Doctor: options{Root: tree(t, c.root)}})
			want(t, r, "fuse-device", doctor.Degraded, c.words...)
			want(t, r, "fuse-mount", doctor.Unknown, "it needs /dev/fuse")
			if !r.Summary.CanRun {
				t.Errorf("containers are said not to run: %+v", r.Blocking())
			}
		})
	}
}

// TestFuseDeviceOfCgroup: what a cgroup of devices answers.
func TestFuseDeviceOfCgroup(t *testing.T) {
	// The same open(2) as the probe's and no other's.
	const flags = unix.O_RDWR | unix.O_CLOEXEC
	r := injured(t, 0, injury{Filter: []rule{{Call: unix.SYS_OPENAT, Errno: syscall.EPERM, Arg: 2, Equal: flags}}})
	want(t, r, "fuse-device", doctor.Degraded, "operation not permitted", "cgroup", "--device /dev/fuse")
}

// TestSubordinate: no range, a range without programs, and programs that cannot do it.
func TestSubordinate(t *testing.T) {
	uid := strconv.Itoa(os.Getuid())
	granted := map[string]string{"etc/subuid": "other:1:2\n" + uid + ":700000:10\n", "etc/subgid": uid + ":700000:10\n"}
	none := tree(t, map[string]string{"etc/subuid": "other:100000:65536\n" + uid + ":100000:0\n#" + uid + "\n"})
	want(t, injured(t, 0, injury{Doctor: options{Root: none}}), "subuid", doctor.Degraded, "no range for user", "/etc/subuid /etc/subgid", "--userns=subid")

	// The machine's own list grants nothing, so the real newuidmap refuses.
	bin := t.TempDir()
	t.Setenv("PATH", bin)
	want(t, injured(t, 0, injury{Doctor: options{Root: tree(t, granted)}}), "subuid", doctor.Degraded, "newuidmap", "install")
	for _, name := range []string{"newuidmap", "newgidmap"} {
		if err := os.WriteFile(filepath.Join(bin, name), []byte("#!/bin/sh\necho "+name+" has no rights >&2\nexit 1\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	want(t, injured(t, 0, injury{Doctor: options{Root: tree(t, granted)}}), "subuid", doctor.Degraded, "newuidmap has no rights", "chmod u+s")
}

// TestCgroup: what is said of the hierarchies that there are.
func TestCgroup(t *testing.T) {
	t.Setenv("XDG_RUNTIME_DIR", "/run/user/none")
	own := map[string]string{
		"sys/fs/cgroup/cgroup.controllers": "cpu memory", "proc/self/cgroup": "0::/a/b\n",
		"sys/fs/cgroup/a/b/cgroup.procs": "", "sys/fs/cgroup/a/b/cgroup.subtree_control": "",
	}
	closed := tree(t, own)
	if err := os.Chmod(filepath.Join(closed, "sys/fs/cgroup/a/b/cgroup.procs"), 0o444); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, root, word string
		result           doctor.Result
	}{
		{"delegated", tree(t, own), "v2, delegated", doctor.OK},
		{"another's", closed, "enable-linger", doctor.Degraded},
		{"v1", tree(t, map[string]string{"sys/fs/cgroup/memory/tasks": ""}), "unified_cgroup_hierarchy=1", doctor.Degraded},
		{"hybrid", tree(t, map[string]string{"sys/fs/cgroup/unified/cgroup.controllers": ""}), "v1 with v2 beside it", doctor.Degraded},
		{"none", t.TempDir(), "mount -t cgroup2", doctor.Degraded},
	} {
		t.Run(c.name, func(t *testing.T) {
			want(t, injured(t, 0, injury{Doctor: options{Root: c.root}}), "cgroup", c.result, c.word)
		})
	}
}

// TestLimitsTried: what was tried counts more than what was found by looking.
func TestLimitsTried(t *testing.T) {
	try := func(rung string, missing []string, err error) func(context.Context) (string, []string, error) {
		return func(context.Context) (string, []string, error) { return rung, missing, err }
	}
	o := doctor.Options{Limits: try("root's own group", nil, nil)}
	want(t, examineHere(t, o), "cgroup", doctor.OK, "root's own group")
	o.Limits = try("none (advisory)", []string{"memory is not limited: there is no cgroup"}, nil)
	want(t, examineHere(t, o), "cgroup", doctor.Degraded, "none (advisory)", "memory is not limited")
	o.Limits = try("", nil, errors.New("read /proc: no"))
	want(t, examineHere(t, o), "cgroup", doctor.Degraded, "read /proc: no")
}
