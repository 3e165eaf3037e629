package test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// rootRuns is an image in a store of root's.
type rootRuns struct{ gangway, dir, image string }

func newRootRuns(t *testing.T) *rootRuns {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: it is about what root's own process does not do")
	}
	watchSources(t)
	files := busybox(t)
	files["etc/passwd"] = "root:x:0:0:root:/:/bin/sh\nimage-user:x:4242:4242::/:/bin/sh\n"
	files["big"] = random(3 << 20)
	return &rootRuns{gangway: build(t), dir: publicDir(t), image: writeLayout(t, map[string]string{"etc/os": "lower\n"}, files)}
}

func (r *rootRuns) command(args ...string) *exec.Cmd {
	cmd := exec.Command(r.gangway, args...)
	cmd.Dir = "/"
	cmd.Env = []string{
		"PATH=/usr/bin:/bin", "HOME=" + r.dir,
		"GANGWAY_RUNTIME_DIR=" + filepath.Join(r.dir, "run"), "GANGWAY_STORE=" + filepath.Join(r.dir, "store"),
	}
	return cmd
}

func (r *rootRuns) run(args ...string) *exec.Cmd {
	return r.command(append([]string{"run", "-q", "--container-image=oci:" + r.image}, args...)...)
}

// start starts a container that waits, and returns it with the process that serves its
// image.
func (r *rootRuns) start(t *testing.T, out *strings.Builder) (cmd *exec.Cmd, server int, status string) {
	t.Helper()
	ready := filepath.Join(t.TempDir(), "ready")
	if err := os.Mkdir(ready, 0o777); err != nil {
		t.Fatal(err)
	}
	cmd = r.run("--container-mounts="+ready+":/ready", "--", "sh", "-c", "cat /big > /dev/null; : > /ready/now; while :; do cat /etc/os > /dev/null || exit 1; sleep 0.02; done")
	cmd.Stdout, cmd.Stderr = out, out
	secret, err := os.Open("/etc/shadow")
	if err != nil {
		t.Fatal(err)
	}
	defer secret.Close()
	cmd.ExtraFiles = []*os.File{secret} // as a shell may leave it open
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have ended
		_ = cmd.Wait()
	})
	waitFor(t, func() bool {
		_, err := os.Stat(filepath.Join(ready, "now"))
		return err == nil
	})
	// Not before, or it could be the process that converts layers.
	server, status = waitForChild(t, cmd.Process.Pid, regexp.MustCompile(`Uid:\t65534`))
	return cmd, server, status
}

// TestRootServesAsNobody looks at the processes of a container of root's: what reads and
// serves the image has another user id, no capability, no way to more, no terminal, and
// no file open but the image's. The supervisor has nothing of a layer in its memory.
func TestRootServesAsNobody(t *testing.T) {
	r := newRootRuns(t)
	var out strings.Builder
	cmd, server, status := r.start(t, &out)
	for _, want := range []string{
		"Uid:\t65534\t65534\t65534\t65534\n", "Gid:\t65534\t65534\t65534\t65534\n", "Groups:\t \n", "NoNewPrivs:\t1\n",
		"CapEff:\t0000000000000000\n", "CapPrm:\t0000000000000000\n", "CapInh:\t0000000000000000\n", "CapAmb:\t0000000000000000\n",
	} {
		if !strings.Contains(status, want) {
			t.Errorf("the process that serves has not %q:\n%s", want, status)
		}
	}
	proc := func(pid int, name string) string { return fmt.Sprintf("/proc/%d/%s", pid, name) }
	if session, err := unix.Getsid(server); err != nil || session != server {
		t.Errorf("it is in session %d, %v, and may have its terminal", session, err)
	}
	st, err := os.Stat(proc(server, "fd"))
	if err != nil || st.Sys().(*syscall.Stat_t).Uid != 0 {
		t.Errorf("others of its user may trace it: %v", err)
	}
	if env, err := os.ReadFile(proc(server, "environ")); err != nil || len(env) != 0 {
		t.Errorf("its environment is %q, %v", env, err)
	}
	open := openFiles(t, server)
	layers := 0
	for _, to := range open {
		switch {
		case strings.HasPrefix(to, filepath.Join(r.dir, "store", "layers")):
			layers++
		case strings.HasPrefix(to, filepath.Join(r.dir, "store", "indexes")), to == "/dev/fuse", to == "/dev/null",
			strings.HasPrefix(to, "pipe:"), strings.HasPrefix(to, "socket:"), strings.HasPrefix(to, "anon_inode:"), strings.HasPrefix(to, "/sys/"):
		default:
			t.Errorf("it has %s open", to)
		}
	}
	if layers != 2 || !slices.Contains(open, "/dev/fuse") {
		t.Errorf("it has %d layers open, want 2, and /dev/fuse: %q", layers, open)
	}
	if slices.Contains(openFiles(t, cmd.Process.Pid), "/dev/fuse") {
		t.Error("the supervisor has /dev/fuse open")
	}
	maps, err := os.ReadFile(proc(cmd.Process.Pid, "maps"))
	if err != nil || strings.Contains(string(maps), filepath.Join(r.dir, "store", "layers")) {
		t.Errorf("the supervisor has a layer in its memory: %v\n%s", err, maps)
	}
	for _, other := range children(cmd.Process.Pid) {
		for _, to := range openFiles(t, other) {
			if other != server && strings.HasPrefix(to, r.dir+"/store/") {
				t.Errorf("process %d of the container has %s open", other, to)
			}
		}
	}
}

// TestRootServerKilled kills the process that serves the image: the container ends within
// a second, and why is said. When the supervisor is killed, that process ends.
func TestRootServerKilled(t *testing.T) {
	r := newRootRuns(t)
	var out strings.Builder
	cmd, server, _ := r.start(t, &out)
	begin := time.Now()
	if err := syscall.Kill(server, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	err := cmd.Wait()
	if took := time.Since(begin); took > time.Second {
		t.Errorf("the container ended after %s", took)
	}
	if err == nil || !strings.Contains(out.String(), "error: the container's root file system is gone: the process of user 65534") ||
		!strings.Contains(out.String(), "killed") {
		t.Errorf("%v: %s", err, out.String())
	}

	var quiet strings.Builder
	cmd, server, _ = r.start(t, &quiet)
	handle, err := unix.PidfdOpen(server, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(handle)
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	ended := []unix.PollFd{{Fd: int32(handle), Events: unix.POLLIN}}
	n, err := unix.Poll(ended, 1000)
	for err == unix.EINTR { // a signal of Go's own
		n, err = unix.Poll(ended, 1000)
	}
	if n != 1 || err != nil {
		t.Errorf("the process that serves is there a second after its supervisor was killed: %v", err)
	}
}

// TestRootRuns: what the container sees is the same for root as for others: accounts of
// the image, files added to it, mountpoints, and what it writes. What root's own process
// would have to take apart is refused by name.
func TestRootRuns(t *testing.T) {
	r := newRootRuns(t)
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"--container-mounts=/etc/hosts:/new/dir/hosts", "--", "sh", "-c", "cat /etc/passwd /etc/os; ls /new/dir; wc -c < /big; pwd"}, `(?s)image-user.*lower\nhosts\n3145728\n/work\n`},
		{[]string{"--container-writable", "--", "sh", "-c", "echo more >> /etc/os; cat /etc/os"}, `^lower\nmore\n$`},
		{[]string{"--container-remap-root", "--", "id", "-u"}, `^0\n$`},
		{[]string{"--dry-run", "--", "true"}, `execve`},
		{[]string{"--container-save=" + r.dir + "/saved.sqsh", "--container-writable", "--", "sh", "-c", "echo x > /etc/saved"}, `^$`},
	} {
		if out, err := r.run(c.args...).CombinedOutput(); err != nil || !regexp.MustCompile(c.want).Match(out) {
			t.Errorf("%q: %v: %s", c.args, err, out)
		}
	}
	out, err := r.command("run", "-q", "--container-image="+r.dir+"/saved.sqsh", "--", "true").CombinedOutput()
	if err == nil || !strings.Contains(string(out), "root takes apart no files of strangers") || !strings.Contains(string(out), "hint: ") {
		t.Errorf("a file in its place: %v: %s", err, out)
	}
	out, err = r.command("step-serve").CombinedOutput()
	if err == nil || !strings.Contains(string(out), "this is root") {
		t.Errorf("step-serve as root: %v: %s", err, out)
	}

	// Damage is found by the other process, and named.
	layers, err := filepath.Glob(filepath.Join(r.dir, "store", "layers", "*", "*", "*"))
	if err != nil || len(layers) == 0 {
		t.Fatalf("%v: no layers in the store", err)
	}
	for _, name := range layers {
		f, err := os.OpenFile(name, os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.Write(make([]byte, 96)); err != nil {
			t.Fatal(err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
	out, err = r.run("--pull=never", "--", "true").CombinedOutput()
	if err == nil || !regexp.MustCompile(`error: open image .*: open layer 0: .*squashfs(?s).*hint: .*image verify`).Match(out) {
		t.Errorf("a damaged layer: %v: %s", err, out)
	}
}

// TestRootLooksAsNobody: what root's pull and verify decompress, a process without rights
// does: where it cannot be started, nothing is looked into. What is damaged is found and
// fetched anew, the index too when a layer is damaged beside it.
func TestRootLooksAsNobody(t *testing.T) {
	r := newRootRuns(t)
	pull := []string{"image", "pull", "-q", "oci:" + r.image}
	if out, err := r.command(pull...).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	good := r.gangway
	b, err := os.ReadFile(good)
	if err != nil {
		t.Fatal(err)
	}
	r.gangway = filepath.Join(t.TempDir(), "gangway") // where nobody may not go
	if err := os.WriteFile(r.gangway, b, 0o700); err != nil {
		t.Fatal(err)
	}
	out, err := r.command("image", "verify").CombinedOutput()
	if err == nil || !strings.Contains(string(out), "to look into layers") || !strings.Contains(string(out), "hint: ") {
		t.Errorf("verify without a process of fewer rights: %v: %s", err, out)
	}
	indexes, err := filepath.Glob(filepath.Join(r.dir, "store", "indexes", "*", "*", "*.gwi"))
	if err != nil || len(indexes) != 1 {
		t.Fatalf("%v: indexes %q", err, indexes)
	}
	if err := os.Remove(indexes[0]); err != nil {
		t.Fatal(err)
	}
	if out, err := r.command(pull...).CombinedOutput(); err == nil || !strings.Contains(string(out), "to look into layers") {
		t.Errorf("merge without a process of fewer rights: %v: %s", err, out)
	}
	r.gangway = good
	for _, want := range []string{"1 image good", "0 images good", "1 image good"} {
		if out, err := r.command(pull...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		if strings.HasPrefix(want, "0") {
			layers, _ := filepath.Glob(filepath.Join(r.dir, "store", "layers", "*", "*", "*.sqsh"))
			flip(t, layers[0])
			flip(t, indexes[0])
		}
		out, err := r.command("image", "verify").CombinedOutput()
		if (err == nil) == strings.HasPrefix(want, "0") || !strings.Contains(string(out), want) {
			t.Errorf("want %q: %v: %s", want, err, out)
		}
		if strings.HasPrefix(want, "0") && strings.Count(string(out), "was damaged and is removed") != 2 {
			t.Errorf("not both are found: %s", out)
		}
	}
}

// flip changes a byte in the middle of a file.
func flip(t *testing.T, name string) {
	t.Helper()
	b, err := os.ReadFile(name)
	if err == nil {
		b[len(b)/2] ^= 1
		err = os.WriteFile(name, b, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func openFiles(t *testing.T, pid int) []string {
	t.Helper()
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	names, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, n := range names {
		if to, err := os.Readlink(filepath.Join(dir, n.Name())); err == nil { // else closed meanwhile
			all = append(all, to)
		}
	}
	return all
}
