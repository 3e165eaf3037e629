package runtime

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// look is a script that shows what a container of awkward is made of.
const look = `
	sed 's/.* - //; s/,uid=.*//' /proc/self/mountinfo | sort -u | grep -v -e /dev/ -e ^devtmpfs
	grep -E ' /(|usr|opt/file|opt/dir|tmp/ro) ' /proc/self/mountinfo | cut -d' ' -f5,6 | sort
	ls /dev /proc/1 >/dev/null; cat /opt/file; ls /opt/dir/sub; cat /etc/target; readlink /bin
	echo x 2>/dev/null >/tmp/ro/x || echo read-only; touch /opt/dir/rw && echo writable
	ls /proc/acpi | wc -l; wc -c </proc/timer_list; echo x 2>/dev/null >/proc/sys/kernel/hostname || echo locked
	echo hello >/dev/null; ls /dev | tr '\n' ' '`

// awkward is a container with a mount of every kind that there is.
func awkward(dir, stage, script string) (*Config, error) {
	root, data := dir+"/root", dir+"/data"
	for _, d := range []string{root + "/usr", root + "/etc", root + "/proc", root + "/dev", root + "/tmp", root + "/opt", data + "/sub", stage} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return nil, err
		}
	}
	for name, to := range map[string]string{"/bin": "usr/bin", "/lib": "/usr/lib", "/lib64": "usr/lib64", "/etc/link": "/../../etc/target"} {
		if err := os.Symlink(to, root+name); err != nil && !errors.Is(err, os.ErrExist) {
			return nil, err
		}
	}
	for name, content := range map[string]string{"/data/file": "content\n", "/root/etc/target": "image\n"} {
		if err := os.WriteFile(dir+name, []byte(content), 0o644); err != nil {
			return nil, err
		}
	}
	c := &Config{Spec: plain([]string{"/bin/sh", "-c", script}), Root: Root{Dir: root, Overlay: &Overlay{}}, Stage: stage}
	c.Spec.Root = &specs.Root{Readonly: true}
	c.Spec.Mounts = append(c.Spec.Mounts,
		specs.Mount{Destination: "/usr", Type: "bind", Source: "/usr", Options: []string{"rbind", "ro", "nosuid", "nodev", "rslave"}},
		specs.Mount{Destination: "/opt/file", Type: "bind", Source: data + "/file", Options: []string{"ro"}},
		specs.Mount{Destination: "/opt/dir", Type: "bind", Source: data, Options: []string{"rbind"}},
		specs.Mount{Destination: "/opt/dir/sub/new", Type: "tmpfs"},
		specs.Mount{Destination: "/opt/dir/sub/file", Type: "bind", Source: data + "/file"},
		specs.Mount{Destination: "/tmp/ro", Type: "bind", Source: data, Options: []string{"ro"}},
		specs.Mount{Destination: "/etc/link", Type: "bind", Source: data + "/file"},
	)
	c.Spec.Linux.MaskedPaths = []string{"/proc/acpi", "/proc/timer_list", "/proc/not-there"}
	c.Spec.Linux.ReadonlyPaths = []string{"/proc/sys", "/proc/not-there"}
	return c, nil
}

// TestFeatures: a container is the same whatever calls the kernel lacks.
func TestFeatures(t *testing.T) {
	all := ProbeFeatures()
	var want string
	for _, f := range []struct {
		name   string
		change func(*Features)
	}{
		{"all", func(*Features) {}},
		{"openat2", func(f *Features) { f.Openat2 = false }},
		{"mount_setattr", func(f *Features) { f.MountSetattr = false }},
		{"open_tree", func(f *Features) { f.OpenTree, f.MountSetattr = false, false }},
		{"close_range", func(f *Features) { f.CloseRange = false }},
		{"none", func(f *Features) { *f = Features{} }},
	} {
		dir := t.TempDir()
		c, err := awkward(dir, dir+"/stage", look)
		if err != nil {
			t.Fatal(err)
		}
		features := all
		f.change(&features)
		out, status := outputWith(t, c, features)
		out = strings.ReplaceAll(out, dir, "DIR")
		if status.Code != 0 || !strings.Contains(out, "content\nfile\nnew\ncontent\nusr/bin\nread-only\nwritable\n0\n0\nlocked\nfd full mqueue null") {
			t.Errorf("%s: %+v\n%s", f.name, status, out)
		}
		if want == "" {
			want = out
		}
		if out != want {
			t.Errorf("without %s:\n%s\nwith all:\n%s", f.name, out, want)
		}
	}
}

// TestFilters: the same with real filters, as outer containers have them.
func TestFilters(t *testing.T) {
	calls := map[string]int{
		"openat2": unix.SYS_OPENAT2, "open_tree": unix.SYS_OPEN_TREE, "mount_setattr": unix.SYS_MOUNT_SETATTR, "close_range": unix.SYS_CLOSE_RANGE,
		"clone3": unix.SYS_CLONE3, "pidfd_open": unix.SYS_PIDFD_OPEN, "io_uring_setup": unix.SYS_IO_URING_SETUP,
	}
	every := []string{strconv.Itoa(unix.SYS_MOVE_MOUNT), strconv.Itoa(unix.SYS_SECCOMP)}
	for _, nr := range calls {
		every = append(every, strconv.Itoa(nr))
	}
	for name, nr := range calls {
		for _, errno := range []syscall.Errno{syscall.ENOSYS, syscall.EPERM} {
			// The race detector's C library makes no threads without an answer to clone3 that
			// it knows; package test does this with the real program.
			if nr != unix.SYS_CLONE3 || errno == syscall.ENOSYS {
				filtered(t, name, errno, strconv.Itoa(nr))
			}
		}
	}
	filtered(t, "all", syscall.ENOSYS, every...)
	every = slices.DeleteFunc(every, func(nr string) bool { return nr == strconv.Itoa(unix.SYS_CLONE3) })
	filtered(t, "all", syscall.EPERM, every...)
}

func filtered(t *testing.T, name string, errno syscall.Errno, numbers ...string) {
	t.Helper()
	dir := t.TempDir()
	out, err := again(t, "filtered", slices.Concat([]string{dir, strconv.Itoa(int(errno))}, numbers)...).CombinedOutput()
	if err != nil || string(out) != "content\ncontent\nok\n" {
		t.Errorf("%s %v: %v: %s", name, errno, err, out)
	}
}

// runFiltered runs a container in a process with a filter. Its arguments are a directory, an
// errno and the numbers of calls.
func runFiltered(args []string) error {
	errno, _ := strconv.Atoi(args[1])
	var calls []uintptr
	for _, a := range args[2:] {
		nr, _ := strconv.Atoi(a)
		calls = append(calls, uintptr(nr))
	}
	if err := install(filter(calls, uint32(errno))); err != nil {
		return err
	}
	c, err := awkward(args[0], args[0]+"/stage", "cat /opt/file /etc/target; echo ok")
	if err != nil {
		return err
	}
	c.Stdout, c.Stderr = os.Stdout, os.Stderr
	return runOnce(c, ProbeFeatures())
}

// runOnce runs a container that must end well on a kernel with these features.
func runOnce(c *Config, f Features) error {
	box, err := prepare(context.Background(), c, f)
	if err != nil {
		return err
	}
	if err := box.Start(); err != nil {
		return err
	}
	status, err := box.Wait()
	if err == nil && status.Code != 0 {
		err = fmt.Errorf("code %d", status.Code)
	}
	return errors.Join(err, box.Close())
}

// install gives a filter to all threads of this process.
func install(b []byte) error {
	prog := unix.SockFprog{Len: uint16(len(b) / 8), Filter: (*unix.SockFilter)(unsafe.Pointer(&b[0]))}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&prog)))
	runtime.KeepAlive(&prog)
	if errno != 0 {
		return errno
	}
	return nil
}

// noUserNamespaces is a filter that refuses clone with CLONE_NEWUSER, as AppArmor may.
func noUserNamespaces() []byte {
	const (
		bpfAnySet = 0x45 // BPF_JMP | BPF_JSET | BPF_K
		args      = 16   // of struct seccomp_data
	)
	b := instruction(bpfLoad, 0, 0, offsetNR)
	b = append(b, instruction(bpfEqual, 0, 2, unix.SYS_CLONE)...)
	b = append(b, instruction(bpfLoad, 0, 0, args)...)
	b = append(b, instruction(bpfAnySet, 1, 0, unix.CLONE_NEWUSER)...)
	b = append(b, instruction(bpfReturn, 0, 0, unix.SECCOMP_RET_ALLOW)...)
	return append(b, instruction(bpfReturn, 0, 0, unix.SECCOMP_RET_ERRNO|uint32(syscall.EPERM))...)
}

// TestNoUserNamespaces: the refusal is named.
func TestNoUserNamespaces(t *testing.T) {
	out, err := again(t, "no namespaces", t.TempDir()).CombinedOutput()
	if want := "prepare container: clone namespaces (user, mnt, pid, ipc, uts): operation not permitted\n"; err == nil || string(out) != want {
		t.Errorf("%v: %s", err, out)
	}
}

func runWithoutNamespaces(args []string) error {
	if err := install(noUserNamespaces()); err != nil {
		return err
	}
	c, err := awkward(args[0], args[0]+"/stage", "")
	if err != nil {
		return err
	}
	return runOnce(c, ProbeFeatures())
}

// TestProbeMoveMount: a filter's refusal of move_mount is told from the kernel's to those who
// may not mount.
func TestProbeMoveMount(t *testing.T) {
	if !ProbeFeatures().OpenTree {
		t.Fatal("there is no move_mount")
	}
	for nr, want := range map[int]string{unix.SYS_MOVE_MOUNT: "open_tree and move_mount", unix.SYS_IO_URING_SETUP: ""} {
		out, err := again(t, "lacks", strconv.Itoa(int(syscall.EPERM)), strconv.Itoa(nr)).CombinedOutput()
		if got, _, _ := strings.Cut(string(out), ", "); err != nil || got != want {
			t.Errorf("without call %d: %v: %q", nr, err, out)
		}
	}
}

// runLacks prints what is lacking behind a filter.
func runLacks(args []string) error {
	errno, _ := strconv.Atoi(args[0])
	nr, _ := strconv.Atoi(args[1])
	if err := install(filter([]uintptr{uintptr(nr)}, uint32(errno))); err != nil {
		return err
	}
	fmt.Print(ProbeFeatures().Lacks())
	return nil
}
