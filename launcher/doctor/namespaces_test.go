package doctor_test

import (
	"context"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gangway-hpc/gangway/launcher/doctor"
)

func testContext() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), 30*time.Second)
}

// TestHealthy: on a machine where containers run, all that needs namespaces is seen to
// work, as an ordinary user, within a second, and nothing stays mounted.
func TestHealthy(t *testing.T) {
	before, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	r := injured(t, 0, injury{Doctor: options{Store: t.TempDir(), RuntimeDir: t.TempDir()}})
	took := time.Since(begin)
	for _, name := range []string{
		"user-namespaces", "id-maps", "namespace-mounts", "fuse-device", "fuse-mount", "overlay", "tmpfs-xattr", "proc", "sys",
		"clone3", "openat2", "open-tree", "mount-setattr", "seccomp", "store", "runtime-dir", "clock", "kernel",
	} {
		want(t, r, name, doctor.OK)
	}
	if !r.Summary.CanRun || r.Blocking().Name != "" {
		t.Errorf("summary: %+v", r.Summary)
	}
	t.Logf("all probes took %v", took)
	if took > 5*time.Second { // a second where nothing else runs
		t.Errorf("all probes took %v", took)
	}
	after, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil || string(after) != string(before) {
		t.Errorf("mounts changed: %v\n%s\n%s", err, before, after)
	}
}

// TestUserNamespacesRefused: each reason that the kernel has is told from the others.
func TestUserNamespacesRefused(t *testing.T) {
	noClone := []rule{{Call: unix.SYS_CLONE, Errno: syscall.EPERM, Arg: 0, Mask: syscall.CLONE_NEWUSER}}
	const restrict, label = "proc/sys/kernel/apparmor_restrict_unprivileged_userns", "proc/self/attr/current"
	const module = "sys/module/apparmor/parameters/enabled"
	chroot := t.TempDir()
	cases := []struct {
		name   string
		flags  uintptr
		injury injury
		words  []string
	}{
		{"limit", user, injury{Sysctl: map[string]string{"user.max_user_namespaces": "0"}}, []string{"no space left", "user.max_user_namespaces is 0", "user.max_user_namespaces=15000"}},
		{"filter", 0, injury{Filter: noClone}, []string{"operation not permitted", "seccomp filter"}},
		{"filter of no container", 0, injury{Filter: noClone, Doctor: options{Root: tree(t, map[string]string{
			"proc/self/status": "Seccomp:\t2\n",
		})}}, []string{"seccomp filter", "grep Seccomp:"}},
		{"filter of a container", 0, injury{Filter: noClone, Doctor: options{Root: tree(t, map[string]string{
			"run/.containerenv": "", "proc/self/status": "Seccomp:\t2\n",
		})}}, []string{"seccomp filter", "podman run --security-opt seccomp=unconfined"}},
		{"unbuilt kernel", 0, injury{Filter: []rule{{Call: unix.SYS_CLONE, Errno: syscall.EINVAL, Arg: 0, Mask: syscall.CLONE_NEWUSER}}}, []string{"without user namespaces", "user_namespace.enable=1"}},
		{"sysctl of Debian", 0, injury{Filter: noClone, Doctor: options{Root: tree(t, map[string]string{
			"proc/sys/kernel/unprivileged_userns_clone": "0\n",
		})}}, []string{"kernel.unprivileged_userns_clone is 0", "kernel.unprivileged_userns_clone=1"}},
		{"AppArmor", 0, injury{Filter: noClone, Doctor: options{Root: tree(t, map[string]string{
			restrict: "1\n", label: "unconfined\n", module: "Y\n",
		})}}, []string{"apparmor_restrict_unprivileged_userns is 1", "has no profile", "gangway doctor --fix apparmor"}},
		{"AppArmor's profile of a container", 0, injury{Filter: noClone, Doctor: options{Root: tree(t, map[string]string{
			label: "docker-default (enforce)\n", module: "Y\n", ".dockerenv": "",
		})}}, []string{"docker-default (enforce)", "docker run --security-opt apparmor=unconfined"}},
		{"a security module", 0, injury{Filter: noClone, Doctor: options{Root: tree(t, map[string]string{
			"sys/kernel/security/lsm": "lockdown,capability,selinux,bpf",
		})}}, []string{"capability,selinux,bpf"}},
		{"gVisor", 0, injury{Filter: noClone, Doctor: options{Root: tree(t, map[string]string{
			"proc/version": "Linux version 4.4.0 #1 SMP Sun Jan 10 15:06:54 PST 2016",
		})}}, []string{"this is gVisor"}},
		{"no reason known", 0, injury{Filter: noClone, Doctor: options{Root: t.TempDir()}}, []string{"no setting that is known"}},
		{"user without an id", user | unmapped, injury{}, []string{"has no meaning", "--userns=keep-id"}},
		{"chroot", mounts, injury{Chroot: chroot, Mounts: chrootMounts(t, chroot)}, []string{"chroot"}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			r := injured(t, c.flags, c.injury)
			want(t, r, "user-namespaces", doctor.Missing, c.words...)
			want(t, r, "id-maps", doctor.Unknown, "not tried")
			want(t, r, "overlay", doctor.Unknown, "not tried")
			if r.Summary.CanRun || r.Blocking().Name != "user-namespaces" {
				t.Errorf("summary %+v, blocking %+v", r.Summary, r.Blocking())
			}
		})
	}
}

// chrootMounts makes dir hold enough of the system to run in, without being a mount.
func chrootMounts(t *testing.T, dir string) []mount {
	t.Helper()
	var all []mount
	for _, name := range []string{"proc", "dev", "usr", "lib", "lib64", "tmp"} {
		if _, err := os.Stat("/" + name); err != nil {
			continue
		}
		target := filepath.Join(dir, name)
		if err := os.Mkdir(target, 0o755); err != nil {
			t.Fatal(err)
		}
		all = append(all, mount{Source: "/" + name, Target: target, Flags: unix.MS_BIND | unix.MS_REC})
	}
	return all
}

// TestNamespaceOfNoUse: where a user namespace comes into being and nothing can be done in
// it, that is what is said.
func TestNamespaceOfNoUse(t *testing.T) {
	noMount := []rule{{Call: unix.SYS_MOUNT, Errno: syscall.EPERM}}
	restricted := map[string]string{
		"proc/sys/kernel/apparmor_restrict_unprivileged_userns": "1\n",
		"proc/self/attr/current":                                "unconfined\n",
		"sys/module/apparmor/parameters/enabled":                "Y\n",
	}
	elsewhere := map[string]string{"etc/apparmor.d/gangway": "profile gangway /usr/bin/gangway {}"}
	maps.Copy(elsewhere, restricted)
	cases := []struct {
		name   string
		flags  uintptr
		injury injury
		words  []string
	}{
		{"AppArmor", 0, injury{Filter: noMount, Doctor: options{Root: tree(t, restricted)}}, []string{"make all mounts slaves: operation not permitted", "apparmor_restrict_unprivileged_userns is 1", "has no profile", "sudo gangway doctor --fix apparmor"}},
		{"AppArmor and a profile for another path", 0, injury{Filter: noMount, Doctor: options{Root: tree(t, elsewhere)}}, []string{"is for another path", "sudo gangway doctor --fix apparmor"}},
		{"filter", 0, injury{Filter: noMount}, []string{"seccomp filter"}},
		{"pivot_root", 0, injury{Filter: []rule{{Call: unix.SYS_PIVOT_ROOT, Errno: syscall.EPERM}}}, []string{"pivot_root: operation not permitted"}},
		{"limit of mount namespaces", user, injury{Sysctl: map[string]string{"user.max_mnt_namespaces": "0"}}, []string{"no space left", "user.max_mnt_namespaces is 0"}},
		{"limit of pid namespaces", user, injury{Sysctl: map[string]string{"user.max_pid_namespaces": "0"}}, []string{"user.max_pid_namespaces is 0"}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			r := injured(t, c.flags, c.injury)
			want(t, r, "user-namespaces", doctor.OK)
			want(t, r, "namespace-mounts", doctor.Missing, c.words...)
			if r.Summary.CanRun || r.Blocking().Name != "namespace-mounts" {
				t.Errorf("summary %+v, blocking %+v", r.Summary, r.Blocking())
			}
		})
	}
}

// TestMapsRefused: ids that cannot be written are told from mounts that cannot be made.
func TestMapsRefused(t *testing.T) {
	r := injured(t, 0, injury{Filter: []rule{{Call: unix.SYS_OPENAT, Errno: syscall.EACCES, Arg: 2, Equal: unix.O_WRONLY | unix.O_CLOEXEC}}})
	want(t, r, "id-maps", doctor.Missing, "write deny to /proc/self/setgroups: permission denied", "seccomp filter")
	want(t, r, "namespace-mounts", doctor.Unknown, "not tried")
	want(t, r, "proc", doctor.Unknown, "not tried")
}

// TestAppArmor: what is said of the restriction where it is not in the way.
func TestAppArmor(t *testing.T) {
	const restrict, label = "proc/sys/kernel/apparmor_restrict_unprivileged_userns", "proc/self/attr/current"
	const module = "sys/module/apparmor/parameters/enabled"
	for _, c := range []struct {
		name   string
		files  map[string]string
		result doctor.Result
		word   string
	}{
		{"none", map[string]string{}, doctor.OK, "does not restrict"},
		{"off", map[string]string{restrict: "0\n", label: "unconfined\n", module: "Y\n"}, doctor.OK, "does not restrict"},
		{"our profile", map[string]string{restrict: "1\n", label: "gangway (unconfined)\n", module: "Y\n"}, doctor.OK, "gangway (unconfined)"},
		{"no profile", map[string]string{restrict: "1\n", label: "unconfined\n", module: "Y\n"}, doctor.Degraded, "--fix apparmor"},
	} {
		t.Run(c.name, func(t *testing.T) {
			want(t, injured(t, 0, injury{Doctor: options{Root: tree(t, c.files)}}), "apparmor", c.result, c.word)
		})
	}
}

// TestHangingProbe: a probe that never ends is ended, and said to be unknown.
func TestHangingProbe(t *testing.T) {
	begin := time.Now()
	r := doctor.Examine(t.Context(), doctor.Options{
		Program: "/bin/sh", Args: []string{"-c", `echo '{"what":"wait for a file server"}'; exec sleep 60`}, Timeout: 300 * time.Millisecond,
	})
	want(t, r, "user-namespaces", doctor.Unknown, "wait for a file server: no answer", "its time was up")
	if r.Summary.CanRun {
		t.Error("containers are said to run")
	}
	if took := time.Since(begin); took > 10*time.Second {
		t.Errorf("took %v", took)
	}
}

// TestForeignProbe: the hidden verb refuses what is not from doctor.
func TestForeignProbe(t *testing.T) {
	for _, args := range [][]string{nil, {"x"}, {"nothing", "1", "1", "/"}, {"hello", "1 1 1\n2", "1", "/"}, {"hello", "1", "-1", "/"}} {
		var out strings.Builder
		if err := doctor.RunProbe(args, strings.NewReader(""), &out); err == nil || out.Len() > 0 {
			t.Errorf("%q: error %v, output %q", args, err, out.String())
		}
	}
}
