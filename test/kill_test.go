package test

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gangway-hpc/gangway/internal/usertest"
)

// killed is the user of TestKill alone, so that all processes of that user are of it.
const killed = usertest.ID + 1

// TestKill ends a run by SIGKILL at random moments: the program that was called, which
// also serves the image; PID 1 of the container; the command; with processes that
// joined it, and with the host's processes and without. Within a second there is no
// process left, and no mount; with the next run no file and no lock either. Needs root,
// to be an ordinary user that nobody else is.
func TestKill(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to be a user that nobody else is")
	}
	watchSources(t)
	dir := publicDir(t)
	bin := filepath.Join(dir, "gangway")
	build := exec.Command("go", "build", "-o", bin, "../cmd/gangway")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, d := range []string{"home", "run"} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Chown(filepath.Join(dir, d), killed, killed); err != nil {
			t.Fatal(err)
		}
	}
	k := &kills{dir: dir, bin: bin}
	layout := writeLayout(t, busybox(t))
	if err := exec.Command("cp", "-r", layout, filepath.Join(dir, "layout")).Run(); err != nil {
		t.Fatal(err)
	}
	if err := exec.Command("chmod", "-R", "a+rX", filepath.Join(dir, "layout")).Run(); err != nil {
		t.Fatal(err)
	}
	k.mustRun(t)
	rounds := 50
	if os.Getenv("GANGWAY_TEST_LONG") != "" {
		rounds = 1000
	}
	mounts := mountsOf(t, k.dir)
	for n := range rounds {
		victim := []string{"supervisor", "init", "command"}[n%3]
		writable := n%2 == 0
		when := time.Duration(rand.Int64N(int64(40 * time.Millisecond)))
		hostPID := n%4 < 2
		t.Logf("%d: %s after %s, writable %v, host's processes %v", n, victim, when, writable, hostPID)
		// With a pid namespace the end waits for the host's init to bury what joined,
		// which not every sandbox's does.
		k.kill(t, victim, when, writable, hostPID, hostPID && n%5 == 0)
		if now := mountsOf(t, k.dir); now != mounts {
			t.Fatalf("mounts are left over:\n%s\nbefore:\n%s", now, mounts)
		}
	}
	// A run that was killed before it had its lock is left alone for 2 s.
	for deadline := time.Now().Add(5 * time.Second); ; {
		k.mustRun(t)
		left, err := filepath.Glob(filepath.Join(dir, "run", "gangway", "*", "*"))
		if err == nil && len(left) == 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Errorf("files are left over: %s, %v", left, err)
			break
		}
	}
	if left, _ := os.ReadDir(filepath.Join(dir, "home", "store", "scratch")); len(left) > 0 {
		t.Errorf("scratch directories are left over: %s", left)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "home", "store", "leases", "*")); len(left) > 0 {
		t.Errorf("leases are left over: %s", left)
	}
}

type kills struct{ dir, bin string }

func (k *kills) command(args ...string) *exec.Cmd {
	cmd := exec.Command(k.bin, append([]string{"run", "-q", "--container-image=oci:" + filepath.Join(k.dir, "layout")}, args...)...)
	cmd.Dir = k.dir
	cmd.Env = []string{
		"PATH=/usr/bin:/bin", "HOME=" + filepath.Join(k.dir, "home"),
		"GANGWAY_RUNTIME_DIR=" + filepath.Join(k.dir, "run"), "GANGWAY_STORE=" + filepath.Join(k.dir, "home", "store"),
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: killed, Gid: killed}}
	return cmd
}

// mustRun runs something that has to succeed.
func (k *kills) mustRun(t *testing.T) {
	t.Helper()
	for _, writable := range []bool{false, true} {
		if out, err := k.command("--container-writable="+strconv.FormatBool(writable), "--", "true").CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
}

// kill starts a run and kills part of it after a while, or once that part is there; where
// somebody joins, when he did.
func (k *kills) kill(t *testing.T, victim string, when time.Duration, writable, hostPID, join bool) {
	t.Helper()
	args := []string{"--container-writable=" + strconv.FormatBool(writable)}
	if hostPID {
		args = append(args, "--pid=host")
	}
	cmd := k.command(append(args, "--", "sleep", "1000")...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if join {
		joined := k.join(t, cmd.Process.Pid)
		defer func() { _ = joined.Wait() }() // it was killed
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	var err error
	moment := time.Now().Add(when)
	var deadline time.Time
	// Again until it has ended: what was hit may have been one of the supervisor's children
	// that only try something.
	for waiting := true; waiting; {
		select {
		case err = <-ended:
			waiting = false
			continue
		default:
		}
		pids := k.processes(t)
		target := 0
		for pid, p := range pids {
			switch victim {
			case "supervisor":
				target = cmd.Process.Pid
			case "init":
				switch above := pids[p.parent]; {
				case !hostPID && p.parent == cmd.Process.Pid && p.name == "gangway": // a fork of the supervisor
					target = pid
				case hostPID && p.name == "sleep" && above.parent == cmd.Process.Pid && above.name != "sleep" && above.name != "sh":
					// Its name is that of a sealed program, as those are of what was only tried.
					target = p.parent
				}
			case "command":
				// What joined is a child of the supervisor's, its child a shell's.
				if above := pids[p.parent]; p.name == "sleep" && above.parent == cmd.Process.Pid && above.name != "sleep" && above.name != "sh" {
					target = pid
				}
			}
		}
		if target != 0 && time.Now().After(moment) {
			if err := syscall.Kill(target, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
				t.Fatal(err)
			}
			deadline = time.Now().Add(time.Second)
		}
	}
	if err == nil {
		t.Fatal("the run succeeded though it was killed")
	}
	for len(k.processes(t)) > 0 {
		if time.Now().After(deadline) {
			t.Fatalf("processes are left after a second: %v", k.processes(t))
		}
	}
}

// join runs a process in the container of a run, with a child in a session of its own, and
// returns when both are there.
func (k *kills) join(t *testing.T, supervisor int) *exec.Cmd {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); ; {
		cmd := k.command()
		cmd.Args = []string{k.bin, "exec", strconv.Itoa(supervisor), "--", "sh", "-c", "setsid sleep 1001 & echo joined; exec sleep 1002"}
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if n, _ := out.Read(make([]byte, 16)); n > 0 {
			return cmd
		}
		_ = cmd.Wait() // the container is not there yet
		if time.Now().After(deadline) {
			t.Fatal("nobody could join")
		}
	}
}

// alive is a live process.
type alive struct {
	name   string
	parent int
}

// processes returns the live processes of the user by pid.
func (k *kills) processes(t *testing.T) map[int]alive {
	t.Helper()
	all := map[int]alive{}
	dirs, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range dirs {
		pid, err := strconv.Atoi(d.Name())
		if err != nil {
			continue
		}
		b, err := os.ReadFile(filepath.Join("/proc", d.Name(), "status"))
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		status := string(b)
		if strings.Contains(status, fmt.Sprintf("\nUid:\t%d\t", killed)) && !strings.Contains(status, "\nState:\tZ") && !strings.Contains(status, "\nState:\tX") {
			name, _, _ := strings.Cut(strings.TrimPrefix(status, "Name:\t"), "\n")
			_, rest, _ := strings.Cut(status, "\nPPid:\t")
			parent, _, _ := strings.Cut(rest, "\n")
			ppid, err := strconv.Atoi(parent)
			if err != nil {
				t.Fatal(err)
			}
			all[pid] = alive{name, ppid}
		}
	}
	return all
}

// mountsOf are the mounts that this process sees below a directory, or of Gangway's. Other
// tests mount, too.
func mountsOf(t *testing.T, dir string) string {
	t.Helper()
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	var mine []string
	for line := range strings.Lines(string(b)) {
		if strings.Contains(line, dir) || strings.Contains(line, "gangway") {
			mine = append(mine, line)
		}
	}
	return strings.Join(mine, "")
}
