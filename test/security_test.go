package test

import (
	"archive/tar"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gangway-hpc/gangway/internal/usertest"
)

// TestSecurity has a case for each class of container escapes that became known
// (reference/platform.md C.3): each is refused by name, or comes to nothing.
func TestSecurity(t *testing.T) {
	p := newPerson(t)
	t.Run("descriptors", func(t *testing.T) { testDescriptors(t, p) })
	t.Run("supervisor", func(t *testing.T) { testSupervisorHidden(t, p) })
	t.Run("runtime program", func(t *testing.T) { testRuntimeProgram(t, p) })
	t.Run("symlinks", func(t *testing.T) { testSymlinks(t, p) })
	t.Run("image steers the host", func(t *testing.T) { testImageSteersHost(t, p) })
	t.Run("privileges", func(t *testing.T) { testPrivileges(t, p) })
	t.Run("other users", func(t *testing.T) { testOtherUsers(t, p) })
	t.Run("mount source replaced", func(t *testing.T) { testMountSource(t, p) })
}

// testDescriptors is CVE-2024-21626: a descriptor that the caller left open is a way out.
func testDescriptors(t *testing.T, p *person) {
	image := p.image(t, nil)
	dir, err := os.Open("/")
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	for _, options := range [][]string{nil, {"--container-writable"}, {"--container-remap-root"}, {"-t"}, {"--pid=host"}} {
		cmd := p.command(append(append([]string{"run", "-q", "--container-image=" + image}, options...), "--", "sh", "-c", "ls /proc/self/fd | tr '\\n' ' '")...)
		cmd.ExtraFiles = []*os.File{dir, dir, nil, dir} // 3, 4 and 6
		// The fourth is that of the directory which is listed.
		outcomeOf(t, cmd).want(t, 0, "^0 1 2 3 \r?\n?$", "")
	}
	testWorkdirs(t, p)
	running := p.start(t, image, "--container-name=fds")
	defer running.stop(t)
	cmd := p.command("exec", "fds", "sh", "-c", "ls /proc/self/fd | tr '\\n' ' '")
	cmd.ExtraFiles = []*os.File{dir, dir}
	outcomeOf(t, cmd).want(t, 0, "^0 1 2 3 $", "")
}

// testWorkdirs: nor is one that the runtime has open itself, when the working directory is
// gone to and the program is looked up.
func testWorkdirs(t *testing.T, p *person) {
	files := []entry{{name: "escape", mode: 0o644}}
	var search []string
	for n := 3; n <= 20; n++ {
		files = append(files, entry{name: fmt.Sprintf("dev/fd/%d/", n)}, entry{name: fmt.Sprintf("x%d", n), link: fmt.Sprintf("/dev/fd/%d", n)})
		search = append(search, fmt.Sprintf("/proc/self/fd/%d", n), fmt.Sprintf("/proc/self/fd/%d/usr/bin", n), fmt.Sprintf("/x%d", n))
	}
	layer := craft(t, files...)
	image := p.image(t, nil, layer)
	for i, options := range [][]string{nil, {"--container-writable"}, {"--container-remap-root"}, {"-t"}, {"--pid=host"}, {"--container-name=workdirs"}} {
		for n := 3; n <= 8; n++ {
			dir := []string{fmt.Sprintf("/x%d", n), fmt.Sprintf("/proc/self/fd/%d", n)}[(n+i)%2]
			r := p.run(t, image, append(options, "--container-workdir="+dir, "--", "pwd")...)
			if r.code == 0 || strings.Contains(r.out, "/") || !strings.Contains(r.out+r.err, "gangway: error: ") {
				t.Errorf("%s, working directory %s: %+v", options, dir, r)
			}
		}
		r := p.run(t, image, append(options, "--export=NONE", "--container-env=PATH", "-e", "PATH="+strings.Join(search, ":"), "--", "escape")...)
		if r.code != 126 && r.code != 127 {
			t.Errorf("%s: program behind a descriptor: %+v", options, r)
		}
	}
	for n := 3; n <= 8; n++ {
		own := p.image(t, map[string]any{"WorkingDir": fmt.Sprintf("/x%d", n)}, layer)
		if r := p.run(t, own, "--", "pwd"); r.code == 0 || r.out != "" || !strings.Contains(r.err, "gangway: error: ") {
			t.Errorf("working directory of the image: %+v", r)
		}
	}
}

// testSupervisorHidden: PID 1 has a copy of the supervisor's memory and environment, and
// nobody in the container may look into it, not even who is root there.
func testSupervisorHidden(t *testing.T, p *person) {
	image := p.image(t, nil)
	const look = `for f in environ mem maps exe fd/0 cwd root ns/mnt auxv stack syscall io; do
		cat /proc/1/$f >/dev/null 2>&1 && echo READ $f; readlink /proc/1/$f && echo LINK $f; done
		ls /proc/1/fd 2>/dev/null && echo LISTED; kill -9 1; echo looked`
	for _, options := range [][]string{nil, {"--container-remap-root"}, {"--container-writable"}} {
		r := p.run(t, image, append(options, "--", "sh", "-c", look)...)
		r.want(t, 0, "^looked\n$", "")
	}
}

// testRuntimeProgram is CVE-2019-5736: what runs in a container must not come to write to
// the program that started it.
func testRuntimeProgram(t *testing.T, p *person) {
	// A program in the user's home, which he may write to.
	own := filepath.Join(p.dir, "home", "gangway")
	run(t, nil, "cp", p.bin, own)
	if err := os.Chown(own, p.uid(), -1); err != nil {
		t.Fatal(err)
	}
	before, err := os.ReadFile(own)
	if err != nil {
		t.Fatal(err)
	}
	mine := *p
	mine.bin = own
	// Whoever executes /evil executes /proc/self/exe, which is still the runtime. The first
	// process looks for such processes, opens their program, and tries to write to it
	// for as long as it lives, each time as a process of its own.
	const hunt = `#!/bin/sh
		echo ready > /tmp/up
		while :; do for e in /proc/[0-9]*/exe; do
			case $(readlink $e 2>/dev/null) in
			*/busybox | "") ;;
			*) exec 9<$e || continue
				echo opened > /tmp/caught
				for i in 1 2 3 4; do (while :; do { echo evil > /proc/self/fd/9; } 2>/dev/null && echo WRITTEN >> /canary/written; done) & done
				wait ;;
			esac
		done; done`
	canary := p.mkdir(t, "written")
	image := mine.image(t, nil, craft(t, entry{name: "evil", content: "#!/proc/self/exe doctor\n"}, entry{name: "hunt", content: hunt}))
	for _, end := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		for n := range 3 {
			hunter := mine.start(t, image, fmt.Sprintf("--container-name=hunt%d", n), "--container-mounts="+canary+":/canary", "--", "/hunt")
			waitFor(t, func() bool {
				outcomeOf(t, mine.command("exec", fmt.Sprintf("hunt%d", n), "/evil"))
				return mine.command("exec", fmt.Sprintf("hunt%d", n), "ls", "/tmp/caught").Run() == nil
			})
			if err := hunter.cmd.Process.Signal(end); err != nil {
				t.Fatal(err)
			}
			<-hunter.done
			if b, err := os.ReadFile(own); err != nil || string(b) != string(before) {
				t.Fatalf("the program was written to when the supervisor ended by %v: %v", end, err)
			}
		}
	}
	if b, err := os.ReadFile(filepath.Join(canary, "written")); err == nil {
		t.Errorf("the program was opened to be written to: %s", b)
	}
}

// testSymlinks: links of the image lead nowhere but into the image, on each rung of the
// ladder; on those that write to disk, too.
func testSymlinks(t *testing.T, p *person) {
	canary := p.mkdir(t, "canary")
	if err := os.WriteFile(filepath.Join(canary, "passwd"), []byte("mine\n"), 0o666); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(filepath.Join(canary, "passwd"), p.uid(), -1); err != nil {
		t.Fatal(err)
	}
	up := strings.Repeat("../", 30)
	noFUSE := filepath.Join(p.dir, "nofuse")
	if err := os.WriteFile(noFUSE, nil, 0o000); err != nil {
		t.Fatal(err)
	}
	rungs := []struct {
		name    string
		in      surroundings
		options []string
	}{
		{name: "fuse"},
		{name: "overlay", options: []string{"--container-writable"}},
		{name: "named", options: []string{"--container-writable", "--container-name=links"}},
		{name: "tree", in: surroundings{Flags: mountNS, Mounts: []mounted{{Source: noFUSE, Target: "/dev/fuse", Flags: unix.MS_BIND}}}, options: []string{"--container-writable"}},
		{name: "directory", options: []string{"--container-writable"}},
	}
	images := map[string][]entry{
		"etc absolute":     {{name: "etc", link: canary}},
		"etc relative":     {{name: "etc", link: up + canary[1:]}},
		"passwd absolute":  {{name: "etc/passwd", link: canary + "/passwd"}},
		"passwd relative":  {{name: "etc/passwd", link: up + canary[1:] + "/passwd"}},
		"files to be made": {{name: "etc/hosts", link: canary + "/new"}, {name: "etc/resolv.conf", link: up + canary[1:] + "/new2"}, {name: "etc/group", link: canary + "/sub/new3"}},
		"mount targets":    {{name: "m", link: canary}, {name: "n", link: up + canary[1:]}, {name: "job", link: canary + "/made"}},
		"tmp":              {{name: "tmp", link: canary + "/tmp"}, {name: "run", link: up + canary[1:] + "/run"}, {name: "home", link: canary}},
		"chain":            {{name: "etc", link: "a/b"}, {name: "a", link: "c"}, {name: "c/b", link: "/d/.."}, {name: "d", link: canary + "/x/../.."}},
	}
	options := []string{"--container-mounts=/usr:/m/usr,/etc/hostname:/n/file,/usr:/m/../" + up + "n/usr2,tmpfs:/job/tmp"}
	for name, files := range images {
		for _, rung := range rungs {
			t.Run(name+" "+rung.name, func(t *testing.T) {
				image := p.image(t, map[string]any{"WorkingDir": "/job", "Env": []string{"PATH=/bin"}}, craft(t, files...))
				if rung.name == "directory" {
					file := filepath.Join(p.dir, "home", strings.ReplaceAll(name, " ", "-"))
					outcomeOf(t, p.command("image", "pull", "-q", image)).want(t, 0, ".?", ".?")
					outcomeOf(t, p.command("image", "export", "-o", file+".sqsh", image)).want(t, 0, ".?", ".?")
					cmd := p.command("-n", "-q", "-d", file, file+".sqsh")
					cmd.Path = "/usr/bin/unsquashfs"
					outcomeOf(t, cmd).want(t, 0, "", "")
					image = file
				}
				args := append(append([]string{"run", "-q", "--container-image=" + image}, rung.options...), options...)
				r := outcomeOf(t, rung.in.within(t, p.command(append(args, "--", "sh", "-c", "for f in /etc/passwd /etc/hosts /etc/new /job/x /tmp/x /run/x; do echo evil >> $f; done 2>/dev/null; echo ran")...)))
				if r.code != 0 && r.code != 125 || r.code == 0 && r.out != "ran\n" || r.code == 125 && !strings.Contains(r.err, "gangway: error: ") {
					t.Errorf("%+v", r)
				}
				t.Logf("%+v", r)
				left, err := os.ReadDir(canary)
				b, rerr := os.ReadFile(filepath.Join(canary, "passwd"))
				if err != nil || rerr != nil || len(left) != 1 || string(b) != "mine\n" {
					t.Fatalf("the host's files changed: %v, %q, %v, %v", left, b, err, rerr)
				}
				if rung.name == "named" {
					outcomeOf(t, p.command("container", "rm", "links"))
				}
			})
		}
	}
}

// testImageSteersHost: an image says what is to be run in it and how, and nothing else.
func testImageSteersHost(t *testing.T, p *person) {
	canary := p.mkdir(t, "ran")
	env := []string{
		"PATH=/trap:/bin", "LD_PRELOAD=/trap/lib.so", "LD_AUDIT=/trap/lib.so", "LD_LIBRARY_PATH=/trap", "GODEBUG=inittrace=1", "BASH_ENV=/trap/sh", "ENV=/trap/sh",
		"NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=all", "NVIDIA_REQUIRE_CUDA=cuda>=99", "CUDA_VERSION=99", "MELLANOX_VISIBLE_DEVICES=all", "NVIDIA_IMEX_CHANNELS=all",
		"GANGWAY_STORE=/trap", "GANGWAY_RUNTIME_DIR=/trap", "PYXIS_CONTAINER_MOUNTS=/:/host", "ENROOT_MOUNT_HOME=y",
	}
	labels := map[string]string{"gangway.run": "--container-mounts=/:/host", "io.kubernetes.cri-o.Devices": "/dev/fuse", "com.nvidia.cuda.version": "99"}
	var files []entry
	for _, name := range []string{"sh", "fuse-overlayfs", "fusermount", "fusermount3", "newuidmap", "newgidmap", "ldconfig", "nvidia-container-cli", "nvidia-ctk", "mount", "gangway", "lib.so", "getent", "id", "umount", "modprobe", "unsquashfs", "squashfuse"} {
		files = append(files, entry{name: "trap/" + name, content: "#!/bin/busybox sh\necho $0 $* >> /canary/ran\n"})
	}
	files = append(files, entry{name: "sbin/ldconfig", content: "#!/bin/busybox sh\necho $0 >> /canary/ran\n"}, entry{name: "etc/ld.so.preload", content: "/trap/lib.so\n"},
		entry{name: "etc/enroot/hooks.d/99-x.sh", content: "#!/bin/sh\necho hook >> /canary/ran\n"}, entry{name: "etc/rc", content: "#!/bin/sh\n"}, entry{name: "etc/environment", content: "EVIL=1\n"})
	image := p.image(t, map[string]any{"Env": env, "Labels": labels, "Volumes": map[string]any{"/": map[string]any{}, "/../../etc": map[string]any{}}, "Shell": []string{"/trap/sh"}}, craft(t, files...))
	const inside = `/bin/busybox ls /dev | /bin/busybox tr '\n' ' '; /bin/busybox test -e /host && echo HOST; echo $LD_PRELOAD $NVIDIA_VISIBLE_DEVICES $PYXIS_CONTAINER_MOUNTS ${EVIL-}`
	for _, options := range [][]string{nil, {"--container-writable"}, {"--container-remap-root"}, {"--container-name=steers", "--container-writable"}, {"-t"}} {
		r := p.run(t, image, append(append([]string{"--container-mounts=" + canary + ":/canary"}, options...), "--", "/bin/busybox", "sh", "-c", inside)...)
		// What is loaded into a program of the host would be complained about.
		r.want(t, 0, `^(console )?(core )?fd full mqueue null ptmx pts random shm stderr stdin stdout tty urandom zero \r?\n?/trap/lib.so all /:/host\s*$`, "")
	}
	if b, err := os.ReadFile(filepath.Join(canary, "ran")); err == nil {
		t.Errorf("programs of the image were run unasked: %s", b)
	}
}

// testPrivileges: nothing in an image gives more rights than its user has.
func testPrivileges(t *testing.T, p *person) {
	program := busybox(t)["bin/busybox"]
	files := []entry{
		{name: "suid/", mode: 0o755},
		{name: "suid/busybox", content: program, mode: 0o6755},
		{name: "mem", kind: tar.TypeChar, major: 1, minor: 1, mode: 0o666},
		{name: "null", kind: tar.TypeChar, major: 1, minor: 3, mode: 0o666},
		{name: "disk", kind: tar.TypeBlock, major: 8, minor: 0, mode: 0o666},
	}
	image := p.image(t, nil, craft(t, files...))
	id := fmt.Sprint(p.uid())
	const status = `grep -E "^(Uid|Cap|NoNewPrivs|Groups)" /proc/self/status; `
	const devices = `for d in /mem /null /disk; do cat $d 2>/dev/null && echo OPENED $d; echo x 2>/dev/null > $d && echo WRITTEN $d; done; true; `
	const mounts = `awk '$5 == "/" || $5 == "/tmp" || $5 == "/dev/shm" || $5 == "/run" {print $5, $6}' /proc/self/mountinfo | grep -vE 'nosuid.*nodev'; true`
	none := `CapInh:\t0+\nCapPrm:\t0+\nCapEff:\t0+\nCapBnd:\t0+\nCapAmb:\t0+\nNoNewPrivs:\t1\n$`
	for _, options := range [][]string{nil, {"--container-writable"}, {"--container-name=priv", "--container-writable"}} {
		r := p.run(t, image, append(options, "--", "sh", "-c", `test -u /suid/busybox || echo not setuid; /suid/busybox id -u; /suid/busybox `+status+devices+mounts)...)
		r.want(t, 0, "^"+id+`\nUid:(\t`+id+`){4}\nGroups:.*\n`+none, "")
	}
	running := p.start(t, image, "--container-name=priv")
	defer running.stop(t)
	outcomeOf(t, p.command("exec", "priv", "sh", "-c", `test -u /suid/busybox || echo not setuid; /suid/busybox id -u; /suid/busybox `+status+devices)).want(t, 0, "^"+id+`\nUid:(\t`+id+`){4}\nGroups:.*\n`+none, "")
	// Who is root in the container is so over nothing but what is the user's.
	r := p.run(t, image, "--container-remap-root", "--container-writable", "--", "sh", "-c", `
		cat /etc/shadow 2>/dev/null && echo SHADOW; `+devices+`
		mknod /tmp/m c 1 1 2>/dev/null && cat /tmp/m && echo MKNOD
		mount -t tmpfs none /proc/sys 2>/dev/null; umount /sys 2>/dev/null && echo UNMOUNTED
		mount -o remount,rw /sys 2>/dev/null && echo REMOUNTED
		echo 1 2>/dev/null > /proc/sys/kernel/sysrq && echo SYSCTL
		echo x 2>/dev/null > /proc/sysrq-trigger && echo SYSRQ
		chroot /proc/1/root true 2>/dev/null && echo CHROOT
		kill -9 1; hostname evil 2>/dev/null && echo HOSTNAME; grep -E "^NoNewPrivs" /proc/self/status`)
	r.want(t, 0, "^NoNewPrivs:\t1\n$", "")
	if b, err := os.ReadFile("/proc/self/mountinfo"); err != nil || strings.Contains(string(b), p.dir) {
		t.Errorf("mounts are left over: %v\n%s", err, b)
	}
}

// testOtherUsers: what runs is its owner's only. Needs root, to be somebody else.
func testOtherUsers(t *testing.T, p *person) {
	if p.cred == nil {
		t.Skip("needs root, to be another user")
	}
	running := p.start(t, p.image(t, nil), "--container-name=mine", "-e", "SECRET=hidden")
	defer running.stop(t)
	err := filepath.WalkDir(filepath.Join(p.dir, "run"), func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		i, err := d.Info()
		if err == nil && i.Mode().Perm()&0o077 != 0 && d.Name() != "lock" && d.Type() != fs.ModeSocket {
			t.Errorf("others may use %s: %v", name, i.Mode())
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{"home/store", "home/.local/share/gangway/containers"} {
		if i, err := os.Stat(filepath.Join(p.dir, dir)); err != nil || i.Mode().Perm()&0o077 != 0 {
			t.Errorf("others may look into %s: %v, %v", dir, i.Mode(), err)
		}
	}
	other := func(args ...string) outcome {
		cmd := p.command(args...)
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: usertest.ID + 3, Gid: p.cred.Gid} // and of his group
		cmd.Dir = "/"
		return outcomeOf(t, cmd)
	}
	other("exec", "mine", "true").want(t, 125, "", "gangway: error: ")
	other("exec", fmt.Sprint(running.cmd.Process.Pid), "true").want(t, 125, "", "gangway: error: ")
	other("container", "ls").want(t, 125, ".?", "gangway: error: ")
	other("run", "-q", "--container-name=mine", "--container-image="+filepath.Join(p.dir, "home"), "--", "true").want(t, 125, "", "gangway: error: ")
	// Not even where the directory was opened by mistake: the socket asks who it is.
	open := exec.Command("chmod", "-R", "a+rwX", filepath.Join(p.dir, "run"))
	if out, err := open.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	other("exec", "mine", "true").want(t, 125, "", "gangway: error: ")
	if out, err := exec.Command("chmod", "-R", "go-rwx", filepath.Join(p.dir, "run")).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

// testMountSource: what is mounted is what the user may reach, by the name that was
// checked, or nothing.
func testMountSource(t *testing.T, p *person) {
	image := p.image(t, nil)
	source := p.mkdir(t, "source")
	if err := os.Symlink("/etc", filepath.Join(source, "link")); err != nil {
		t.Fatal(err)
	}
	p.run(t, image, "--container-mounts="+source+"/link:/m:ro", "--", "sh", "-c", "test -e /m/passwd && ! touch /m/x 2>/dev/null && echo ran").want(t, 0, "^ran\n$", "")
	private := filepath.Join(p.dir, "private")
	if err := os.MkdirAll(filepath.Join(private, "in"), 0o700); err != nil {
		t.Fatal(err)
	}
	if p.cred != nil {
		for _, options := range [][]string{nil, {"--container-remap-root"}} {
			p.run(t, image, append(options, "--container-mounts="+private+"/in:/m", "--", "true")...).want(t, 2, "", "gangway: error: mount .*permission denied")
			p.run(t, image, append(options, "--container-mounts="+private+":/m", "--", "sh", "-c", "ls /m/in 2>/dev/null || echo refused")...).want(t, 0, "^refused\n$", "")
		}
	}
	for _, proc := range []string{"/proc/1/root", "/proc/self/root/etc"} {
		r := p.run(t, image, "--container-mounts="+proc+":/m", "--", "sh", "-c", "cat /m/shadow /m/etc/shadow 2>/dev/null; echo ran")
		if r.code == 0 {
			r.want(t, 0, "^ran\n$", "")
		} else {
			r.want(t, r.code, "", "gangway: error: ")
		}
	}
}
