package test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// callersGroup makes a group in each hierarchy of version 1 that has one of the files, as a batch system
// does for a job, with what is written to them, and returns the directories.
func callersGroup(t *testing.T, values map[string]string) []string {
	t.Helper()
	var dirs []string
	t.Cleanup(func() {
		for _, dir := range dirs {
			if err := os.Remove(dir); err != nil {
				t.Error(err)
			}
		}
	})
	for file, value := range values {
		before := len(dirs)
		for _, root := range glob(t, "/sys/fs/cgroup/*/release_agent") {
			dir := filepath.Join(filepath.Dir(root), "gangway-caller")
			if err := os.Mkdir(dir, 0o755); os.IsExist(err) {
				continue // it is that of another file
			} else if err != nil {
				t.Fatal(err)
			}
			if _, err := os.Stat(filepath.Join(dir, file)); err != nil {
				if err := os.Remove(dir); err != nil {
					t.Fatal(err)
				}
				continue
			}
			dirs = append(dirs, dir)
			if err := os.WriteFile(filepath.Join(dir, file), []byte(value), 0); err != nil {
				t.Fatal(err)
			}
		}
		if len(dirs) == before {
			t.Skipf("needs cgroup version 1 with %s; version 2 is tried in a virtual machine: make test-vm", file)
		}
	}
	return dirs
}

// inGroups is cmd with a shell before it that goes into the groups.
func inGroups(cmd *exec.Cmd, dirs []string) *exec.Cmd {
	var script strings.Builder
	for _, dir := range dirs {
		script.WriteString("echo $$ > " + dir + "/cgroup.procs || exit 99; ")
	}
	inside := exec.Command("sh", append([]string{"-c", script.String() + `exec "$@"`, "sh"}, cmd.Args...)...)
	inside.Dir, inside.Env = cmd.Dir, cmd.Env
	return inside
}

// TestLimitsOfCaller: a container of root's is in all that holds for whoever started it, with
// limits of its own and without.
func TestLimitsOfCaller(t *testing.T) {
	r := newLimitedRuns(t)
	dirs := callersGroup(t, map[string]string{"memory.limit_in_bytes": "60M", "pids.max": "60", "devices.deny": "c 1:8 rwm"})
	run := func(args ...string) outcome {
		return endsWithin(t, time.Minute, inGroups(r.run(args...), dirs))
	}
	for _, limit := range []string{"--stats", "--mem=1G", "--pids-limit=1000"} {
		o := run(limit, "--", "sh", "-c", "cat /proc/self/cgroup; "+hog+" 2>/dev/null; echo hog $?")
		if strings.Contains(o.out, "hog 0") {
			t.Errorf("%s: 200 MiB fit into 60: %+v", limit, o)
		}
		of := groups(t, o.out)
		for _, controller := range []string{"memory", "pids", "devices"} {
			if !strings.Contains(of[controller], "/gangway-caller/gangway-default-run-") {
				t.Errorf("%s: the group of %s is %q", limit, controller, of[controller])
			}
		}
		wantGone(t, of)
	}
	run("--pids-limit=1000", "--", "sh", "-c", "i=0; while [ $i -lt 80 ]; do sleep 100 & i=$((i+1)); done").want(t, 2, "", "fork: Resource temporarily unavailable")
	run("--", "sh", "-c", "head -c1 /dev/urandom | wc -c; head -c1 /dev/random").want(t, 1, "^1\n$", "/dev/random: Operation not permitted")
	// Others' limits do not hold for whom they are not.
	endsWithin(t, time.Minute, r.run("--", "sh", "-c", hog+" 2>/dev/null; head -c1 /dev/random | wc -c")).want(t, 0, "^1\n$", "")
}

// TestGroupOfKilledUser: what a killed run of an ordinary user's left in a group that was
// delegated to it, the next one removes.
func TestGroupOfKilledUser(t *testing.T) {
	p := newPerson(t)
	if p.cred == nil {
		t.Skip("needs root, to delegate a control group to somebody")
	}
	mount := "/sys/fs/cgroup"
	if _, err := os.Stat(mount + "/unified/cgroup.procs"); err == nil {
		mount += "/unified"
	} else if _, err := os.Stat(mount + "/cgroup.subtree_control"); err != nil {
		t.Skip("needs cgroup version 2")
	}
	lent := mount + "/gangway-lent"
	if err := os.Mkdir(lent, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.Remove(lent); err != nil {
			t.Error(err)
		}
	})
	for _, f := range []string{"", "/cgroup.procs", "/cgroup.subtree_control"} {
		if err := os.Chown(lent+f, p.uid(), -1); err != nil {
			t.Fatal(err)
		}
	}
	image := p.image(t, nil)
	p.run(t, image, "--", "true").want(t, 0, "", "")
	dir, err := os.Open(lent)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	start := func(command string) (*exec.Cmd, *output) {
		cmd, out := p.command("run", "-q", "--container-image="+image, "--pids-limit=30", "--stats", "--", "sh", "-c", command), &output{}
		cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, int(dir.Fd())
		cmd.Stdout, cmd.Stderr = out, out
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }) // it may have ended
		return cmd, out
	}
	const left = "/gangway-default-run-*"
	killed, out := start("echo up; sleep 1000")
	waitFor(t, func() bool { return strings.Contains(out.String(), "up\n") })
	held, heldOut := start("echo up; trap 'exit 0' TERM; while :; do sleep 1000 & wait; done")
	waitFor(t, func() bool { return strings.Contains(heldOut.String(), "up\n") })
	if n := len(glob(t, lent+left)); n != 2 {
		t.Fatalf("%d groups, want two: %s%s", n, out, heldOut)
	}
	_ = killed.Process.Kill()
	_ = killed.Wait()
	waitFor(t, func() bool { // the next one may come before the last has ended
		next, out := start("true")
		if err := next.Wait(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return len(glob(t, lent+left)) == 1
	})
	if err := held.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := held.Wait(); err != nil || !strings.Contains(heldOut.String(), "cgroup delegated, ") {
		t.Errorf("%v: %s", err, heldOut)
	}
	if all := glob(t, lent+left); len(all) > 0 {
		t.Errorf("%q are left", all)
	}
}
