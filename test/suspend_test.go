package test

import (
	"crypto/md5"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// suspended is a container that reads a file of its image again and again, in less memory
// than it has, so that most of that comes from the server of the image each time.
type suspended struct {
	cmd     *exec.Cmd
	out     *output
	sums    string // a file of the checksums that it found
	want    string // what they have to be
	ranks   map[string]string
	servers []int // the supervisor and its children outside of the container
}

// reading starts one.
func reading(t *testing.T, sum string, command func(args ...string) *exec.Cmd) *suspended {
	t.Helper()
	ready := filepath.Join(t.TempDir(), "ready")
	if err := os.Mkdir(ready, 0o777); err != nil {
		t.Fatal(err)
	}
	s := &suspended{out: &output{}, sums: ready + "/sums", want: sum}
	s.cmd = command("--mem=8M", "--container-mounts="+ready+":/ready", "--", "sh", "-c", "cat /proc/self/cgroup; trap 'exit 0' TERM; while :; do md5sum /huge >> /ready/sums || exit 9; done")
	s.cmd.Stdout, s.cmd.Stderr = s.out, s.out
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = s.cmd.Process.Kill() // it may have ended
		_ = s.cmd.Wait()
	})
	s.goesOn(t, 2)
	s.ranks = groups(t, s.out.String())
	inside := s.processes(t)
	s.servers = []int{s.cmd.Process.Pid}
	for _, pid := range children(s.cmd.Process.Pid) {
		if !strings.Contains(inside, "\n"+strconv.Itoa(pid)+"\n") {
			s.servers = append(s.servers, pid)
		}
	}
	if len(s.servers) < 2 {
		t.Fatalf("no server of the image outside of the ranks: %q", inside)
	}
	return s
}

// goesOn waits until it has read the file n times more, each time what is in it.
func (s *suspended) goesOn(t *testing.T, n int) {
	t.Helper()
	before := s.count(t)
	waitFor(t, func() bool { return s.count(t) >= before+n })
}

// count is how many times it has read the file.
func (s *suspended) count(t *testing.T) int {
	t.Helper()
	text, err := os.ReadFile(s.sums)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	lines := strings.Count(string(text), "\n")
	if strings.Count(string(text), s.want+"  /huge\n") != lines {
		t.Fatalf("it read something else: %s\n%s", text, s.out)
	}
	return lines
}

// processes lists those in the ranks, each between line breaks.
func (s *suspended) processes(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(s.freezer() + "/cgroup.procs")
	if err != nil {
		t.Fatal(err)
	}
	return "\n" + string(text)
}

// freezer is the directory in which the ranks are frozen.
func (s *suspended) freezer() string {
	if dir, ok := s.ranks["freezer"]; ok {
		return dir
	}
	return s.ranks[""]
}

// freeze suspends or resumes the ranks as a batch system does, and waits until they are.
func (s *suspended) freeze(t *testing.T, frozen bool) {
	t.Helper()
	file, value, state, is := "/cgroup.freeze", "0", "/cgroup.events", "frozen 0\n"
	if frozen {
		value, is = "1", "frozen 1\n"
	}
	if _, ok := s.ranks["freezer"]; ok {
		file, state = "/freezer.state", "/freezer.state"
		value = map[bool]string{true: "FROZEN", false: "THAWED"}[frozen]
		is = value + "\n"
	}
	if err := os.WriteFile(s.freezer()+file, []byte(value), 0); err != nil {
		t.Fatal(err)
	}
	waitFor(t, func() bool {
		text, err := os.ReadFile(s.freezer() + state)
		return err == nil && strings.Contains(string(text), is)
	})
}

// look reads the file in the container's namespaces, without being in its groups.
func (s *suspended) look(t *testing.T) {
	t.Helper()
	pid := strings.Fields(s.processes(t))[0]
	args := []string{"-t", pid, "-m"} // its root is that of the namespace
	own, err := os.Readlink("/proc/self/ns/user")
	if err != nil {
		t.Fatal(err)
	}
	if its, err := os.Readlink("/proc/" + pid + "/ns/user"); err != nil || its != own {
		args = append(args, "-U")
	}
	endsWithin(t, time.Minute, exec.Command("nsenter", append(args, "/bin/md5sum", "/huge")...)).want(t, 0, "^"+s.want+" ", "")
}

// newReadingRuns is an image of root's with a large file, and that one's checksum.
func newReadingRuns(t *testing.T) (r *rootRuns, sum string) {
	t.Helper()
	r = newLimitedRuns(t)
	content := random(24 << 20)
	r.image = writeLayout(t, busybox(t), map[string]string{"huge": content})
	if out, err := r.run("--", "true").CombinedOutput(); err != nil { // converts the image
		t.Fatalf("%v: %s", err, out)
	}
	return r, fmt.Sprintf("%x", md5.Sum([]byte(content)))
}

// TestSuspended suspends a container while it reads its image. What serves the image is not
// suspended with it: others can read on, and when it is resumed, it reads on as well. That
// is so with each kind of freezer, and a supervisor that is killed meanwhile leaves nothing.
func TestSuspended(t *testing.T) {
	r, sum := newReadingRuns(t)
	kinds := map[string]func(args ...string) *exec.Cmd{"usual": r.run}
	if _, err := os.Stat("/sys/fs/cgroup/freezer/cgroup.procs"); err == nil {
		kinds["version 1"] = r.runVersion1
	}
	for name, run := range kinds {
		t.Run(name, func(t *testing.T) {
			s := reading(t, sum, run)
			for range 3 {
				s.freeze(t, true)
				before := s.count(t)
				s.look(t)
				s.look(t)
				if now := s.count(t); now != before {
					t.Errorf("it read %d times more while it was suspended", now-before)
				}
				s.freeze(t, false)
				s.goesOn(t, 2)
			}
			if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
			if err := s.cmd.Wait(); err != nil {
				t.Errorf("%v: %s", err, s.out)
			}
			wantGone(t, s.ranks)

			s = reading(t, sum, run)
			s.freeze(t, true)
			if err := s.cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			pids := strings.Fields(s.processes(t))
			// What is frozen cannot end before the next run thaws it.
			endsWithin(t, time.Minute, run("--", "true")).want(t, 0, "", "")
			for _, pid := range pids {
				waitFor(t, func() bool {
					_, err := os.Stat("/proc/" + pid)
					return err != nil
				})
			}
			_ = s.cmd.Wait()
			endsWithin(t, time.Minute, run("--", "true")).want(t, 0, "", "")
			wantGone(t, s.ranks)
		})
	}
}

// TestOutOfMemoryKeepsRoot: when ranks run out of memory, neither the supervisor nor what
// serves the image is hit, however much both of them use: the end is clean and says why.
func TestOutOfMemoryKeepsRoot(t *testing.T) {
	r, sum := newReadingRuns(t)
	s := reading(t, sum, r.run)
	for _, pid := range s.servers {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
		if err != nil || strings.Contains(string(text), "/ranks") {
			t.Errorf("process %d, which serves, is in a group of the ranks: %v\n%s", pid, err, text)
		}
	}
	// One of those that joined runs out of memory, while others read.
	o := endsWithin(t, time.Minute, r.command("exec", strconv.Itoa(s.cmd.Process.Pid), "--", "dd", "if=/dev/zero", "of=/dev/null", "bs=64M", "count=1"))
	if o.code == 0 {
		t.Errorf("it had 64 MiB: %+v", o)
	}
	_ = s.cmd.Wait()
	out := s.out.String()
	if code := s.cmd.ProcessState.ExitCode(); code != 137 || !strings.Contains(out, "error: the ranks ran out of memory: ") || strings.Contains(out, "root file system is gone") || strings.Contains(out, "warning") {
		t.Errorf("exit %d: %s", code, out)
	}
	wantGone(t, s.ranks)
	left, err := filepath.Glob(filepath.Join(r.dir, "run", "gangway", "*", "*"))
	if err != nil || len(left) > 0 {
		t.Errorf("files are left over: %s, %v", left, err)
	}
}
