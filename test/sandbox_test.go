package test

import (
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

const (
	userNS  = uintptr(unix.CLONE_NEWUSER)
	mountNS = userNS | unix.CLONE_NEWNS
	pidNS   = mountNS | unix.CLONE_NEWPID
)

// TestSandbox runs containers where the machine is not as it should be, as within other
// containers: they run in another way, or are refused by the name of what is wrong.
func TestSandbox(t *testing.T) {
	p := newPerson(t)
	image := p.image(t, nil)
	p.run(t, image, "--", "true").want(t, 0, "", "")
	noFUSE := filepath.Join(p.dir, "nofuse") // as a device node that is another's
	if err := os.WriteFile(noFUSE, nil, 0o000); err != nil {
		t.Fatal(err)
	}
	hideFUSE := mounted{Source: noFUSE, Target: "/dev/fuse", Flags: unix.MS_BIND}
	newProc := mounted{Source: "proc", Target: "/proc", Kind: "proc"}
	const work = `echo x > /tmp/x && cat /etc/passwd > /dev/null && test -c /dev/null && ls /proc/self/fd > /dev/null && ! touch /etc/x 2>/dev/null && echo ran $(id -u)`
	const ran = `^ran \d+\n$`
	noUser := func(errno syscall.Errno) []rule {
		return []rule{{Call: unix.SYS_CLONE, Errno: errno, Mask: unix.CLONE_NEWUSER}, {Call: unix.SYS_UNSHARE, Errno: errno, Mask: unix.CLONE_NEWUSER}, {Call: unix.SYS_CLONE3, Errno: syscall.ENOSYS}}
	}
	newCalls := map[string]uintptr{
		"clone3": unix.SYS_CLONE3, "openat2": unix.SYS_OPENAT2, "mount_setattr": unix.SYS_MOUNT_SETATTR, "open_tree": unix.SYS_OPEN_TREE,
		"move_mount": unix.SYS_MOVE_MOUNT, "io_uring_setup": unix.SYS_IO_URING_SETUP, "close_range": unix.SYS_CLOSE_RANGE,
		"pidfd_open": unix.SYS_PIDFD_OPEN, "statx": unix.SYS_STATX, "faccessat2": unix.SYS_FACCESSAT2, "fchmodat2": unix.SYS_FCHMODAT2,
		"memfd_create": unix.SYS_MEMFD_CREATE, "copy_file_range": unix.SYS_COPY_FILE_RANGE, "splice": unix.SYS_SPLICE, "fallocate": unix.SYS_FALLOCATE,
		"rseq": unix.SYS_RSEQ, "name_to_handle_at": unix.SYS_NAME_TO_HANDLE_AT, "keyctl": unix.SYS_KEYCTL, "bpf": unix.SYS_BPF,
	}
	type sandboxed struct {
		name     string
		in       surroundings
		options  []string
		command  string
		code     int
		out, err string
		doctor   bool
	}
	var cases []sandboxed
	for errno, name := range map[syscall.Errno]string{syscall.ENOSYS: "ENOSYS", syscall.EPERM: "EPERM"} {
		var all []rule
		for call, nr := range newCalls {
			c := sandboxed{name: call + " " + name, in: surroundings{Filter: []rule{{Call: nr, Errno: errno}}}, doctor: call == "move_mount"}
			cases = append(cases, c)
			all = append(all, rule{Call: nr, Errno: errno})
		}
		cases = append(cases,
			sandboxed{name: "all new calls " + name, in: surroundings{Filter: all}, doctor: true},
			sandboxed{name: "all new calls, writable, " + name, in: surroundings{Filter: all}, options: []string{"--container-writable"}, command: "echo x > /etc/new && rm /bin/ls && echo ran 1"},
			sandboxed{name: "all new calls, remapped, mounts, " + name, in: surroundings{Filter: all}, options: []string{"--container-remap-root", "--container-mounts=/usr:/a/b:ro,/etc/hostname:/etc/x,tmpfs:/scratch", "-t"}, command: "test -d /a/b/bin && ! touch /a/b/x 2>/dev/null && touch /scratch/x && cat /etc/x >/dev/null && echo ran $(id -u)", out: `^ran 0\r\n$`},
		)
	}
	failed := "gangway: error: start container: .*clone.*(\n.*)*"
	cases = append(cases,
		sandboxed{name: "no user namespaces EPERM", in: surroundings{Filter: noUser(syscall.EPERM)}, code: 125, err: failed + "not permitted(.*\n)*.*cause: .*seccomp"},
		sandboxed{name: "no user namespaces ENOSYS", in: surroundings{Filter: noUser(syscall.ENOSYS)}, code: 125, err: failed + "not implemented"},
		sandboxed{name: "max_user_namespaces", in: surroundings{Flags: userNS, Sysctl: map[string]string{"user.max_user_namespaces": "0"}}, code: 125, err: failed + "no space left(.*\n)*.*cause: .*user.max_user_namespaces is 0(.*\n)*.*hint: "},
		sandboxed{name: "max_mnt_namespaces", in: surroundings{Flags: userNS, Sysctl: map[string]string{"user.max_mnt_namespaces": "0"}}, code: 125, err: failed + "no space left(.*\n)*.*cause: .*user.max_mnt_namespaces"},
		sandboxed{name: "no mount", in: surroundings{Filter: []rule{{Call: unix.SYS_MOUNT, Errno: syscall.EPERM}}}, code: 125, err: "gangway: error: start container: .*mount(.*\n)*.*cause: "},
		sandboxed{name: "no pivot_root", in: surroundings{Filter: []rule{{Call: unix.SYS_PIVOT_ROOT, Errno: syscall.EPERM}}}, code: 125, err: "gangway: error: start container: .*pivot_root"},
		sandboxed{name: "no seccomp(2)", in: surroundings{Filter: []rule{{Call: unix.SYS_SECCOMP, Errno: syscall.EPERM}}}, options: []string{"--container-remap-root"}, command: "chown 1:1 /tmp && echo ran 1", doctor: true},
		sandboxed{name: "no mount_setattr, mounts below", in: surroundings{Filter: []rule{{Call: unix.SYS_MOUNT_SETATTR, Errno: syscall.ENOSYS}}}, options: []string{"-v", "--container-mounts=/dev:/mnt:ro"}, command: "! touch /mnt/shm/x 2>/dev/null && echo ran 1", err: "without mount_setattr"},
		sandboxed{name: "within another user namespace", in: surroundings{Flags: pidNS, Mounts: []mounted{newProc}}},
		sandboxed{name: "no FUSE", in: surroundings{Flags: mountNS, Mounts: []mounted{hideFUSE}}, options: []string{"-v"}, err: `(?s)written to disk.*mount +[\d.]+ ms  tree\n`},
		sandboxed{name: "no FUSE, writable", in: surroundings{Flags: mountNS, Mounts: []mounted{hideFUSE}}, options: []string{"-v", "--container-writable"}, command: "echo x > /etc/new && rm /bin/ls && echo ran 1", err: `mount +[\d.]+ ms  tree\n`},
		sandboxed{name: "no FUSE, named", in: surroundings{Flags: mountNS, Mounts: []mounted{hideFUSE}}, options: []string{"-v", "--container-writable", "--container-name=nofuse"}, command: "echo x > /etc/new && rm /bin/ls && echo ran 1", err: `mount +[\d.]+ ms  tree \+ overlay\n`},
		sandboxed{name: "no FUSE mounts", in: surroundings{Filter: []rule{{Call: unix.SYS_OPENAT, Errno: syscall.ENOENT, Arg: 2, Mask: 1 << 31}}}, command: "echo ran 1"},
		sandboxed{name: "masked proc", in: surroundings{Flags: pidNS, Mounts: []mounted{newProc, {Source: "tmpfs", Target: "/proc/irq", Kind: "tmpfs", Flags: unix.MS_RDONLY}}}, options: []string{"-v"}, err: "processes of the host are visible", doctor: true},
		sandboxed{name: "masked proc, writable", in: surroundings{Flags: pidNS, Mounts: []mounted{newProc, {Source: "tmpfs", Target: "/proc/irq", Kind: "tmpfs", Flags: unix.MS_RDONLY}}}, options: []string{"--container-writable"}, command: "echo x > /etc/new && rm /bin/ls && echo ran 1", err: `^gangway: warning: processes of the host are visible[^\n]*\n$`, doctor: true},
		sandboxed{name: "masked proc, no FUSE", in: surroundings{Flags: pidNS, Mounts: []mounted{newProc, {Source: "tmpfs", Target: "/proc/irq", Kind: "tmpfs", Flags: unix.MS_RDONLY}, hideFUSE}}, options: []string{"-v"}, err: "(?s)processes of the host are visible.*tree"},
		sandboxed{name: "mount below proc that hides nothing, no FUSE", in: surroundings{Flags: pidNS, Mounts: []mounted{newProc, {Source: "tmpfs", Target: "/proc/sys/fs/binfmt_misc", Kind: "tmpfs"}, hideFUSE}}, options: []string{"-v"}, err: "(?s)tree\n.*processes of its own"},
		sandboxed{name: "masked sys", in: surroundings{Flags: mountNS, Mounts: []mounted{{Source: "tmpfs", Target: "/sys/firmware", Kind: "tmpfs", Flags: unix.MS_RDONLY}}}, options: []string{"--container-unshare=net", "-v"}, err: "network devices are visible in /sys"},
		sandboxed{name: "all of Docker", in: surroundings{
			Flags: pidNS, Mounts: []mounted{newProc, {Source: "tmpfs", Target: "/proc/irq", Kind: "tmpfs", Flags: unix.MS_RDONLY}, hideFUSE},
			Filter: []rule{{Call: unix.SYS_CLONE3, Errno: syscall.ENOSYS}, {Call: unix.SYS_OPEN_TREE, Errno: syscall.EPERM}, {Call: unix.SYS_MOVE_MOUNT, Errno: syscall.EPERM}, {Call: unix.SYS_MOUNT_SETATTR, Errno: syscall.EPERM}, {Call: unix.SYS_KEYCTL, Errno: syscall.EPERM}},
		}, err: "processes of the host are visible", doctor: true},
	)
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			args := append([]string{"run", "-q", "--container-image=" + image}, c.options...)
			if c.command == "" {
				c.command = work
			}
			if c.code == 0 && c.out == "" {
				c.out = ran
			}
			mounts := mountsOf(t, p.dir)
			outcomeOf(t, c.in.within(t, p.command(append(args, "--", "sh", "-c", c.command)...))).want(t, c.code, c.out, c.err)
			if c.code == 125 || c.doctor {
				// What runs is what the doctor says runs.
				code, can, errs := 1, "false", "containers cannot run here"
				if c.code == 0 {
					code, can, errs = 0, "true", ""
				}
				outcomeOf(t, c.in.within(t, p.command("doctor", "--json", "--keep"))).want(t, code, `"can_run": *`+can, errs)
			}
			if mountsOf(t, p.dir) != mounts {
				t.Error("mounts of the host changed")
			}
		})
	}
	left, err := filepath.Glob(filepath.Join(p.dir, "run", "gangway", "*", "*"))
	if err != nil || len(left) > 0 {
		t.Errorf("files are left over: %s, %v", left, err)
	}
	if left, _ := os.ReadDir(filepath.Join(p.dir, "home", "store", "scratch")); len(left) > 0 {
		t.Errorf("scratch directories are left over: %s", left)
	}
}

// TestConcurrentFirstRuns starts 16 runs of an image that nobody has yet: each part of it
// is downloaded once, and all runs succeed.
func TestConcurrentFirstRuns(t *testing.T) {
	p := newPerson(t)
	registry := startRegistry(t)
	asked := map[string]int{}
	var mu sync.Mutex
	proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: registry})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, blob, ok := strings.Cut(r.URL.Path, "/blobs/"); ok && r.Method == http.MethodGet {
			mu.Lock()
			asked[blob]++
			mu.Unlock()
		}
		proxy.ServeHTTP(w, r)
	})}
	proxy.ErrorLog = nil
	var wg sync.WaitGroup
	wg.Go(func() { _ = server.Serve(l) })
	t.Cleanup(func() {
		_ = server.Close()
		wg.Wait()
	})
	results := make([]outcome, 16)
	var runs sync.WaitGroup
	for i := range results {
		runs.Go(func() { results[i] = p.run(t, l.Addr().String()+"/team/busybox:1", "--", "cat", "/etc/os") })
	}
	runs.Wait()
	for _, r := range results {
		r.want(t, 0, "^debian\n$", "")
	}
	mu.Lock()
	defer mu.Unlock()
	if len(asked) != 3 { // the configuration and two layers
		t.Errorf("downloads: %v, want 3 blobs", asked)
	}
	for blob, n := range asked {
		if n != 1 {
			t.Errorf("%s was downloaded %d times", blob, n)
		}
	}
}
