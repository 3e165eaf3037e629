package runtime

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/gangway-hpc/gangway/internal/fault"
)

// helper is the parts that this program plays for tests.
func helper(part string, args []string) error {
	switch part {
	case "supervisor":
		return supervise(args)
	case "forwarder":
		return forward(args)
	case "counter":
		return counter()
	case "no namespaces":
		return runWithoutNamespaces(args)
	case "lacks":
		return runLacks(args)
	case "submounts":
		return runSubmounts(args)
	case "refused":
		return runRefused(args)
	case "half joined":
		return halfJoined(args)
	case "filtered":
		return runFiltered(args)
	case "inside":
		return inside()
	}
	return fmt.Errorf("unknown part %q", part)
}

// await waits until a condition holds.
func await(t testing.TB, what string, holds func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(20 * time.Second); !holds(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within 20 s", what)
		}
	}
}

// alive says whether there is a process that has not ended.
func alive(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	_, state, _ := strings.Cut(string(b), ") ")
	return !strings.HasPrefix(state, "Z") && !strings.HasPrefix(state, "X")
}

// line reads a line.
func line(t testing.TB, r *bufio.Reader) string {
	t.Helper()
	s, err := r.ReadString('\n')
	if err != nil {
		t.Fatalf("read line: %v, after %q", err, s)
	}
	return strings.TrimSuffix(s, "\n")
}

// pipe is a pipe that ends with the test, and that blocks, as few programs expect else.
func pipe(t testing.TB) (r, w *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	_, _ = r.Fd(), w.Fd()
	t.Cleanup(func() { r.Close(); w.Close() })
	return r, w
}

func TestExitCodes(t *testing.T) {
	dir := t.TempDir()
	for name, content := range map[string]string{"noexec": "x", "nointerpreter": "#!/no/such/shell\n", "garbage": "\x00\x01"} {
		mode := os.FileMode(0o755)
		if name == "noexec" {
			mode = 0o644
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), mode); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		args []string
		code int
		text string
	}{
		{[]string{"sh", "-c", "exit 255"}, 255, ""},
		{[]string{"sh", "-c", "kill -TERM $$"}, 143, ""},
		{[]string{"no-such-program"}, 127, "execute no-such-program: command not found: no such file or directory"},
		{[]string{"/no/such/program"}, 127, "execute /no/such/program: command not found"},
		{[]string{""}, 127, "command not found"},
		{[]string{"noexec"}, 126, "execute noexec: permission denied"},
		{[]string{"nointerpreter"}, 126, "execute nointerpreter: no such file or directory"},
		{[]string{"garbage"}, 126, "execute garbage: exec format error"},
		{[]string{"/usr"}, 126, "execute /usr: permission denied"},
	} {
		config := shell(t, "")
		config.Spec.Process.Args = c.args
		config.Spec.Process.Env = []string{"PATH=/bin:/programs:/nowhere"}
		config.Root.Dir = skeleton(t)
		config.Spec.Mounts = append(config.Spec.Mounts,
			specs.Mount{Destination: "/usr", Type: "bind", Source: "/usr"},
			specs.Mount{Destination: "/tmp/programs", Type: "bind", Source: dir})
		config.Spec.Process.Env = []string{"PATH=/bin:/tmp/programs:/nowhere"}
		box, err := Prepare(t.Context(), config)
		if err != nil {
			t.Fatal(err)
		}
		err = box.Start()
		if (err == nil) != (c.text == "") || err != nil && (!strings.Contains(err.Error(), c.text) || fault.Code(err) != c.code) {
			t.Errorf("%q: %v, code %d", c.args, err, fault.Code(err))
		}
		if status, err := box.Wait(); c.text == "" && (err != nil || status.Code != c.code) {
			t.Errorf("%q: %+v, %v", c.args, status, err)
		}
		if err := box.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestErrors: every refusal names its operation, and leaves nothing.
func TestErrors(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*Config)
		errno  syscall.Errno
		text   string
	}{
		{"source", func(c *Config) {
			c.Spec.Mounts = append(c.Spec.Mounts, specs.Mount{Destination: "/tmp/x", Type: "bind", Source: "/no/such"})
		}, syscall.ENOENT, "open_tree /no/such: no such file"},
		{"mountpoint", func(c *Config) {
			c.Spec.Mounts = append(c.Spec.Mounts, specs.Mount{Destination: "/nope/x", Type: "bind", Source: "/usr"})
		}, syscall.EROFS, "mkdirat /nope, a mountpoint that is missing: read-only file system"},
		{"kind", func(c *Config) {
			c.Spec.Mounts = append(c.Spec.Mounts, specs.Mount{Destination: "/tmp", Type: "bind", Source: "/etc/passwd"})
		}, syscall.EINVAL, "move_mount /etc/passwd on /tmp"},
		{"type", func(c *Config) {
			c.Spec.Mounts = append(c.Spec.Mounts, specs.Mount{Destination: "/tmp", Type: "nofs"})
		}, syscall.ENODEV, "mount nofs on /tmp: no such device"},
		{"cwd", func(c *Config) { c.Spec.Process.Cwd = "/nowhere" }, syscall.ENOENT, "openat2 /nowhere, the working directory"},
		{"mapping", func(c *Config) { c.Spec.Linux.UIDMappings[0].HostID = 1 }, syscall.EPERM, `uid_map: operation not permitted`},
		{"root", func(c *Config) { c.Root.Dir = "/no/root" }, syscall.ENOENT, "open_tree /no/root"},
		{"rlimit", func(c *Config) {
			c.Spec.Process.Rlimits = []specs.POSIXRlimit{{Type: "RLIMIT_NOFILE", Soft: 1, Hard: 1 << 40}}
		}, syscall.EPERM, "prlimit RLIMIT_NOFILE"},
	} {
		config := small(t, "")
		c.change(config)
		before := descriptors(t)
		_, err := Prepare(t.Context(), config)
		op, ok := errors.AsType[*OpError](err)
		if !ok || op.Errno != c.errno || !errors.Is(err, c.errno) || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: %v", c.name, err)
		}
		if after := descriptors(t); after != before {
			t.Errorf("%s: %d descriptors, before %d", c.name, after, before)
		}
	}
}

// TestKilledSupervisor: PID 1 says so, removes what it was told to, and takes all
// processes with it, those that joined included. It does not matter whether anybody can
// be told.
func TestKilledSupervisor(t *testing.T) {
	for _, pidns := range []bool{true, false} {
		for _, full := range []bool{false, true} {
			killSupervisor(t, pidns, full)
		}
	}
}

func killSupervisor(t *testing.T, pidns, full bool) {
	t.Helper()
	run := filepath.Join(t.TempDir(), "run")
	stage := filepath.Join(run, "stage")
	if err := os.MkdirAll(stage, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(run, "state"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := again(t, "supervisor", run, skeleton(t), strconv.FormatBool(pidns))
	heard, stderr := pipe(t)
	if full {
		fill(t, stderr)
	}
	cmd.Stderr = stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // where the test failed
		_ = cmd.Wait()
	})
	r := bufio.NewReader(out)
	pid, err := strconv.Atoi(line(t, r))
	if err != nil {
		t.Fatal(err)
	}
	if a, b := line(t, r), line(t, r); a+b != "readyjoined" && a+b != "joinedready" {
		t.Fatalf("%q, %q", a, b)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	// All of the container's processes have its other end.
	if _, err := io.Copy(io.Discard, r); err != nil {
		t.Fatal(err)
	}
	await(t, "PID 1 ends", func() bool { return !alive(pid) })
	if err := cmd.Wait(); err == nil || !strings.Contains(err.Error(), "killed") {
		t.Errorf("supervisor: %v", err)
	}
	stderr.Close()
	if got, err := io.ReadAll(heard); err != nil || !full && string(got) != "the supervisor is gone\n" {
		t.Errorf("pid namespace %v: stderr %q, %v", pidns, got, err)
	}
	if _, err := os.Stat(run); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the run directory: %v", err)
	}
}

// fill writes to a pipe until nothing more goes in.
func fill(t *testing.T, w *os.File) {
	t.Helper()
	fd := int(w.Fd())
	if err := unix.SetNonblock(fd, true); err != nil {
		t.Fatal(err)
	}
	for _, size := range []int{4096, 1} {
		for {
			if _, err := unix.Write(fd, make([]byte, size)); err != nil {
				break
			}
		}
	}
	if err := unix.SetNonblock(fd, false); err != nil {
		t.Fatal(err)
	}
}

// TestKill: PID 1's end is all processes' end.
func TestKill(t *testing.T) {
	r, w := pipe(t)
	c := shell(t, `sleep 1000 & (setsid sleep 1001 &) ; echo ready; wait`)
	c.Stdout = w
	box := start(t, c)
	w.Close()
	in := bufio.NewReader(r)
	line(t, in)
	p, err := box.Join(t.Context(), JoinProcess{Args: []string{"/bin/sleep", "1002"}})
	if err != nil {
		t.Fatal(err)
	}
	if err := box.Kill(); err != nil {
		t.Fatal(err)
	}
	if status, err := box.Wait(); err != nil || status.Signal != syscall.SIGKILL {
		t.Errorf("%+v, %v", status, err)
	}
	if status, err := p.Wait(); err != nil || status.Signal != syscall.SIGKILL {
		t.Errorf("joined: %+v, %v", status, err)
	}
	if _, err := io.Copy(io.Discard, in); err != nil {
		t.Error(err)
	}
	if _, err := box.Join(t.Context(), JoinProcess{Args: []string{"/bin/true"}}); err == nil || !strings.Contains(err.Error(), "ended") {
		t.Errorf("join: %v", err)
	}
	if err := box.Signal(unix.SIGTERM); !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("signal: %v", err)
	}
}

// TestPrivacy: what the supervisor has in memory and open is not to be seen from inside.
func TestPrivacy(t *testing.T) {
	secret, err := os.Open("/proc/self/exe") // a descriptor of the supervisor
	if err != nil {
		t.Fatal(err)
	}
	defer secret.Close()
	raw, err := unix.Dup(int(secret.Fd())) // and one that is not to be closed on exec
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(raw)
	out, _ := output(t, shell(t, `
		cat /proc/1/environ; ls /proc/1/fd/ /proc/1/root/; readlink /proc/1/exe /proc/1/cwd; cat /proc/1/mem /proc/1/maps
		echo descriptors; ls /proc/self/fd; echo zombies; (sleep 0.01 & exec true) ; sleep 0.1; ps -o stat= -e | grep -c Z`))
	denied, rest, _ := strings.Cut(out, "descriptors\n")
	for l := range strings.SplitSeq(strings.TrimSpace(denied), "\n") {
		if !strings.Contains(strings.ToLower(l), "permission denied") {
			t.Errorf("%q", l)
		}
	}
	if want := "0\n1\n2\n3\nzombies\n0\n"; rest != want {
		t.Errorf("%q, want %q", rest, want)
	}
}

// TestPass: descriptors from 3 on are those that are given.
func TestPass(t *testing.T) {
	r, w := pipe(t)
	c := shell(t, `echo three >&3; cat <&4 >&3`)
	c.Pass = []*os.File{w, r}
	null, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	c.Pass[1] = null
	if _, status := output(t, c); status.Code != 0 {
		t.Errorf("%+v", status)
	}
	w.Close()
	if b, err := io.ReadAll(r); err != nil || string(b) != "three\n" {
		t.Errorf("%q, %v", b, err)
	}
}

// TestJoinWhileEnding: a container may end at any moment of a join, which then either fails
// or gives a process that ends.
func TestJoinWhileEnding(t *testing.T) {
	c := small(t, "exec sleep 1000")
	for i := range 20 {
		box := start(t, c)
		var joins sync.WaitGroup
		for range 3 {
			joins.Go(func() {
				p, err := box.Join(t.Context(), JoinProcess{Args: []string{"/bin/sleep", "1000"}})
				if err != nil {
					return
				}
				if status, err := p.Wait(); err != nil || status.Signal != syscall.SIGKILL {
					t.Errorf("%+v, %v", status, err)
				}
			})
		}
		timer := time.AfterFunc(time.Duration(i)*300*time.Microsecond, func() { _ = box.Kill() })
		joins.Wait()
		timer.Stop()
		if err := box.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
