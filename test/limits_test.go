package test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gangway-hpc/gangway/runtime/cgroup"
)

// newLimitedRuns is root with control groups to make. It leaves none of them.
func newLimitedRuns(t *testing.T) *rootRuns {
	t.Helper()
	r := newRootRuns(t)
	g, err := cgroup.Open(t.Context(), cgroup.Options{Name: "try-" + strconv.Itoa(os.Getpid())})
	if err != nil {
		t.Fatal(err)
	}
	if g.Rung() != cgroup.Root {
		t.Skipf("needs a cgroup file system that root may write to; here: %v", g.Refused())
	}
	err = g.Limit(cgroup.Limits{CPUs: 1, Memory: 64 << 20, Swap: cgroup.Unlimited, Pids: 64})
	missing := g.Missing()
	if err := errors.Join(err, g.Remove(t.Context())); err != nil {
		t.Fatal(err)
	}
	if len(missing) > 0 {
		t.Skipf("needs a control group with limits, as a shell has that logged in, or: systemd-run --scope; here: %v", missing)
	}
	t.Cleanup(func() {
		for _, dir := range []string{"gangway/default", "gangway"} { // not while others have groups there
			for _, d := range append(glob(t, "/sys/fs/cgroup/*/"+dir), "/sys/fs/cgroup/"+dir) {
				_ = os.Remove(d)
			}
		}
	})
	if out, err := r.run("--", "true").CombinedOutput(); err != nil { // converts the image
		t.Fatalf("%v: %s", err, out)
	}
	return r
}

// endsWithin is how a command ended, which has to be in that time.
func endsWithin(t *testing.T, patience time.Duration, cmd *exec.Cmd) outcome {
	t.Helper()
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	cmd.WaitDelay = patience // where somebody keeps its output
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	late := time.AfterFunc(patience, func() { _ = cmd.Process.Kill() })
	_ = cmd.Wait() // how it ended is asked of the process
	if !late.Stop() {
		t.Fatalf("%q did not end in %s\nstdout: %s\nstderr: %s", cmd.Args, patience, out.String(), errs.String())
	}
	return outcome{out.String(), errs.String(), cmd.ProcessState.ExitCode()}
}

// groups finds the directories of the control groups that a text like /proc/PID/cgroup
// names, by controller; "" is version 2. Only ours are among them.
func groups(t *testing.T, text string) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, line := range regexp.MustCompile(`(?m)^\d+:([^:]*):(/.*gangway[/-]default[/-]run-.*)$`).FindAllStringSubmatch(text, -1) {
		for _, mount := range []string{"/sys/fs/cgroup/" + line[1], "/sys/fs/cgroup/unified", "/sys/fs/cgroup"} {
			if _, err := os.Stat(mount + "/cgroup.procs"); err == nil {
				all[line[1]] = mount + line[2]
				break
			}
		}
	}
	if len(all) == 0 {
		t.Fatalf("it is in no group of ours:\n%s", text)
	}
	return all
}

// wantGone fails if one of the groups is there.
func wantGone(t *testing.T, groups map[string]string) {
	t.Helper()
	for _, dir := range groups {
		dir = strings.TrimSuffix(dir, "/ranks")
		if _, err := os.Stat(dir); err == nil {
			t.Errorf("the group %s is left", dir)
		}
	}
}

// setting reads a file of the first group that has it: version 1 calls it otherwise.
func setting(t *testing.T, groups map[string]string, controller, name1, name2 string) string {
	t.Helper()
	files := []string{groups[controller] + "/" + name1, groups[""] + "/" + name2, filepath.Dir(groups[""]) + "/" + name2}
	for _, f := range files {
		if text, err := os.ReadFile(f); err == nil {
			return strings.TrimSpace(string(text))
		}
	}
	t.Fatalf("there is none of %q", files)
	return ""
}

// TestLimits gives containers of root's less than they want.
func TestLimits(t *testing.T) {
	r := newLimitedRuns(t)
	for name, test := range map[string]func(*testing.T, *rootRuns){
		"memory": testMemoryLimit, "processes": testPidsLimit, "cpus": testCPULimits, "statistics": testStatistics,
		"killed": testGroupOfKilled, "joined": testJoinedLimited, "badly": testBadLimits, "version 1": testVersion1, "partly": testPartly,
	} {
		t.Run(name, func(t *testing.T) { test(t, r) })
	}
}

const hog = "dd if=/dev/zero of=/dev/null bs=200M count=1"

func testMemoryLimit(t *testing.T, r *rootRuns) {
	const report = `^gangway: error: the ranks ran out of memory: peak (6[0-4](\.\d)?) MiB, limit 64 MiB, \d+ killed; largest: \d+ \(dd\) [3-6]\d(\.\d)? MiB, .*\d+ \(.*\ngangway: hint: .*--mem=.*\n$`
	endsWithin(t, time.Minute, r.run("--mem=64M", "--", "dd", "if=/dev/zero", "of=/dev/null", "bs=200M", "count=1")).want(t, 137, "", report)
	// The others end with it: nobody waits for a job that lost a part.
	o := endsWithin(t, time.Minute, r.run("--mem=64M", "--", "sh", "-c", "cat /proc/self/cgroup; "+hog+" & sleep 1000; echo late"))
	o.want(t, 137, `.*`, report)
	if strings.Contains(o.out, "late") {
		t.Errorf("the others went on: %q", o.out)
	}
	wantGone(t, groups(t, o.out))
	endsWithin(t, time.Minute, r.run("--mem=256M", "--", "sh", "-c", hog+" 2>/dev/null; echo $?")).want(t, 0, "^0\n$", "")
	// What is read of the image is given back before anybody dies.
	endsWithin(t, time.Minute, r.run("--mem=2M", "--", "sh", "-c", "for i in 1 2 3; do cat /big; done | wc -c")).want(t, 0, "^9437184\n$", "")
}

func testPidsLimit(t *testing.T, r *rootRuns) {
	const forks = "cat /proc/self/cgroup; i=0; while [ $i -lt 20 ]; do sleep 100 & i=$((i+1)); echo $i; done"
	o := endsWithin(t, time.Minute, r.run("--pids-limit=12", "--", "sh", "-c", forks))
	o.want(t, 2, `\n9\n.*10\n$|\n9\n$|\n10\n$`, "fork: Resource temporarily unavailable")
	wantGone(t, groups(t, o.out))
	endsWithin(t, time.Minute, r.run("--pids-limit=max", "--", "sh", "-c", forks+"; echo done")).want(t, 0, `\n20\ndone\n$`, "")
}

func testCPULimits(t *testing.T, r *rootRuns) {
	cpus := cgroup.Here("/proc", "/sys").CPUs
	last := strconv.Itoa(cpus[len(cpus)-1])
	const look = "nproc; grep Cpus_allowed_list /proc/self/status"
	endsWithin(t, time.Minute, r.run("--cpuset="+last, "--", "sh", "-c", look)).want(t, 0, `^1\nCpus_allowed_list:\t`+last+`\n$`, "")
	// It cannot be widened from within.
	endsWithin(t, time.Minute, r.run("--cpuset="+last, "--container-remap-root", "--", "sh", "-c", "taskset -p ffff $$ >/dev/null; nproc")).want(t, 0, "^1\n$", "")

	out := &output{}
	cmd := r.run("--cpus=0.2", "--stats", "--", "sh", "-c", "cat /proc/self/cgroup; echo up; trap 'exit 0' TERM; while :; do :; done")
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	waitFor(t, func() bool { return strings.Contains(out.String(), "up\n") })
	of := groups(t, out.String())
	if got := setting(t, of, "cpu", "cpu.cfs_quota_us", "cpu.max"); got != "20000" && got != "20000 100000" {
		t.Errorf("the limit of CPU time is %q", got)
	}
	throttled := regexp.MustCompile(`(?m)^nr_throttled [1-9]`)
	waitFor(t, func() bool { return throttled.MatchString(setting(t, of, "cpu", "cpu.stat", "cpu.stat")) })
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
	if !regexp.MustCompile(`used: cgroup root, cpu [\d.]+m?s, throttled [1-9][\d.]*m?s, `).MatchString(out.String()) {
		t.Errorf("it was not throttled: %s", out)
	}
	wantGone(t, of)
}

func testStatistics(t *testing.T, r *rootRuns) {
	o := endsWithin(t, time.Minute, r.run("--stats", "--mem=128M", "--pids-limit=50", "--", "sh", "-c", "dd if=/dev/zero of=/dev/null bs=40M count=1 2>/dev/null & sleep 1000 & wait %1; exit 7"))
	o.want(t, 7, "", `^gangway: used: cgroup root, cpu [\d.]+m?s(, throttled 0s)?, memory peak 4\d(\.\d)? MiB(, processes peak [4-6])?(, read .*, written .*|.*, io unknown)\n$`)
}

// testGroupOfKilled: a supervisor that is killed leaves its groups, with nobody in them;
// the next run removes them.
func testGroupOfKilled(t *testing.T, r *rootRuns) {
	var out strings.Builder
	cmd, _, _ := r.start(t, &out)
	cmd2 := r.run("--mem=64M", "--", "sh", "-c", "cat /proc/self/cgroup; echo up; sleep 1000")
	lines := &output{}
	cmd2.Stdout = lines
	if err := cmd2.Start(); err != nil {
		t.Fatal(err)
	}
	waitFor(t, func() bool { return strings.Contains(lines.String(), "up\n") })
	of := groups(t, lines.String())
	if err := cmd2.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd2.Wait()
	for name, dir := range of {
		waitFor(t, func() bool {
			text, err := os.ReadFile(dir + "/cgroup.procs")
			return err != nil || len(text) == 0
		})
		if _, err := os.Stat(dir); err != nil {
			t.Errorf("%s is gone already; nothing is proved: %v", name, err)
		}
	}
	endsWithin(t, time.Minute, r.run("--", "true")).want(t, 0, "", "")
	wantGone(t, of)
	// Those that are in use stay.
	for _, pid := range children(cmd.Process.Pid) {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
		if err != nil || !strings.Contains(string(text), "/gangway/") {
			continue // what serves the image
		}
		for name, dir := range groups(t, string(text)) {
			if _, err := os.Stat(dir); err != nil {
				t.Errorf("%s of another run: %v", name, err)
			}
		}
	}
	if err := cmd.Process.Signal(syscall.Signal(0)); err != nil {
		t.Errorf("the other run: %v", err)
	}
}

// testJoinedLimited: what joins a container is in its groups.
func testJoinedLimited(t *testing.T, r *rootRuns) {
	up := &output{}
	cmd := r.run("--container-name=limited", "--mem=64M", "--pids-limit=12", "--cpuset=0", "--", "sh", "-c", "cat /proc/self/cgroup; echo up; trap 'exit 0' TERM; while :; do sleep 1000 & wait; done")
	cmd.Stdout, cmd.Stderr = up, up
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	waitFor(t, func() bool { return strings.Contains(up.String(), "up\n") })
	of, _, _ := strings.Cut(up.String(), "up\n")
	joins := map[string]func(args ...string) *exec.Cmd{
		"exec": func(args ...string) *exec.Cmd {
			return r.command(append([]string{"exec", "limited", "--"}, args...)...)
		},
		"name": func(args ...string) *exec.Cmd {
			return r.run(append([]string{"--container-name=limited", "--"}, args...)...)
		},
	}
	for name, join := range joins {
		o := endsWithin(t, time.Minute, join("sh", "-c", "cat /proc/self/cgroup; nproc"))
		if o.code != 0 || o.out != of+"1\n" {
			t.Errorf("%s: %+v, want the groups\n%s", name, o, of)
		}
		endsWithin(t, time.Minute, join("sh", "-c", "for i in 1 2 3 4 5 6 7 8 9 10 11 12; do sleep 1001 >/dev/null 2>&1 & done")).want(t, 2, "", "fork: Resource temporarily unavailable")
		text, err := os.ReadFile(groups(t, of)[""] + "/cgroup.procs")
		if err != nil {
			t.Fatal(err)
		}
		for pid := range strings.FieldsSeq(string(text)) {
			if args, _ := os.ReadFile("/proc/" + pid + "/cmdline"); strings.HasSuffix(string(args), "\x001001\x00") {
				run(t, nil, "kill", "-9", pid)
			}
		}
	}
	// One that joined takes the container with it when it wants too much memory, as of a job.
	o := endsWithin(t, time.Minute, joins["exec"]("dd", "if=/dev/zero", "of=/dev/null", "bs=200M", "count=1"))
	if o.code == 0 {
		t.Errorf("it had 200 MiB: %+v", o)
	}
	_ = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != 137 || !strings.Contains(up.String(), "the ranks ran out of memory: ") {
		t.Errorf("exit %d: %s", code, up)
	}
	wantGone(t, groups(t, of))
}

// testBadLimits: what is valid is said, and nothing runs.
func testBadLimits(t *testing.T, r *rootRuns) {
	cpus := len(cgroup.Here("/proc", "/sys").CPUs)
	for flag, c := range map[string]struct {
		values []string
		err    string
	}{
		"--mem":        {[]string{"0", "-1", "12Q", "", "900K", "NaN", "1e9", "9999999999999G", "8388608T", "64T"}, `--mem=\d+[MG]\b`},
		"--cpus":       {[]string{"0", "-1", "12Q", "", "0.001", "NaN", "Inf", "1e3", "0x10", strconv.Itoa(cpus + 1), "70000"}, `--cpus=\d`},
		"--cpuset":     {[]string{"", "-1", "12Q", "1-0", "0,,1", "0-70000", "70000", strconv.Itoa(1 << 12)}, `0-\d|--cpuset=\d`},
		"--pids-limit": {[]string{"0", "-1", "12Q", "", "1.5", "9999999", "99999999999999999999"}, `--pids-limit=\d`},
	} {
		for _, v := range c.values {
			o := endsWithin(t, time.Minute, r.run(flag+"="+v, "--", "echo", "ran"))
			_, hint, _ := strings.Cut(o.err, "\ngangway: hint: ")
			if o.code != 2 || o.out != "" || !strings.HasPrefix(o.err, "gangway: error: ") || !regexp.MustCompile(c.err).MatchString(hint) || strings.Count(o.err, "\n") > 3 {
				t.Errorf("%s=%s: %+v", flag, v, o)
			}
		}
	}
}

// runVersion1 is run where the hierarchy of version 2 is hidden.
func (r *rootRuns) runVersion1(args ...string) *exec.Cmd {
	return r.runAfter("if [ -d /sys/fs/cgroup/unified ]; then umount /sys/fs/cgroup/unified; fi", args...)
}

// runAfter is run in a mount namespace of its own, after a script of the shell's.
func (r *rootRuns) runAfter(script string, args ...string) *exec.Cmd {
	cmd := r.run(args...)
	changed := exec.Command("unshare", append([]string{"-m", "sh", "-ec", "mount --make-rprivate /; " + script + `; exec "$@"`, "sh"}, cmd.Args...)...)
	changed.Dir, changed.Env = cmd.Dir, append(cmd.Env[1:], "PATH=/usr/sbin:/usr/bin:/sbin:/bin")
	return changed
}

// testPartly takes from root what it needs for some limits: these are named with what is
// wrong, and nothing runs where all are required.
func testPartly(t *testing.T, r *rootRuns) {
	const readOnly = "for m in $(sed -n 's/^[^ ]* \\([^ ]*\\) cgroup2\\{0,1\\} .*/\\1/p' /proc/mounts); do mount -o remount,bind,ro $m; done"
	cases := map[string][]string{
		readOnly:                   {"there is no cgroup", "root: write to /sys/fs/cgroup.*: read-only file system .in a container: mount"},
		"umount -l /sys/fs/cgroup": {"there is no cgroup", "root: no cgroup file system is mounted"},
	}
	if _, err := os.Stat("/sys/fs/cgroup/memory/cgroup.procs"); err == nil {
		cases["umount /sys/fs/cgroup/memory"] = []string{"no controller memory is mounted", ""}
		cases["mount -o remount,bind,ro /sys/fs/cgroup/memory"] = []string{"write to /sys/fs/cgroup/memory.*: read-only", ""}
	}
	for script, c := range cases {
		run := func(args ...string) outcome {
			cmd := r.runAfter(script, slices.Concat([]string{"--quiet=false", "--mem=64M"}, args, []string{"--", "echo", "ran"})...)
			return endsWithin(t, time.Minute, cmd)
		}
		run().want(t, 0, "^ran\n$", "warning: memory is not limited: .*"+c[0])
		run("--require-cgroup").want(t, 125, "", `error: limit the container: .*memory is not limited: .*`+c[0]+`(.*\n)+(gangway: cause: .*`+c[1]+`.*\n)?gangway: hint: `)
	}
}

// testVersion1 hides the hierarchy of version 2: the same limits without it.
func testVersion1(t *testing.T, r *rootRuns) {
	if _, err := os.Stat("/sys/fs/cgroup/memory/cgroup.procs"); err != nil {
		t.Skip("needs a machine with cgroup version 1")
	}
	o := endsWithin(t, time.Minute, r.runVersion1("--mem=64M", "--pids-limit=12", "--cpus=1", "--cpuset=0", "--stats", "--", "sh", "-c", "cat /proc/self/cgroup; "+hog+" & sleep 1000"))
	o.want(t, 137, `:freezer:/(.*/)?gangway[/-]default[/-]run-`, `used: cgroup root, cpu .*, memory peak 6\d(.*\n)*.*ran out of memory`)
	of := groups(t, o.out)
	if strings.Contains(of[""], "gangway") {
		t.Errorf("it is in a group of version 2: %q", of)
	}
	wantGone(t, of)
}

// TestLimitsOfUser: an ordinary user to whom no control group was delegated is told of each
// limit that is not enforced, or nothing is run.
func TestLimitsOfUser(t *testing.T) {
	p := newPerson(t)
	if p.cred == nil {
		t.Skip("needs root, to be a user to whom nobody delegated a control group")
	}
	image := p.image(t, nil)
	p.run(t, image, "--", "true").want(t, 0, "", "")
	warning := func(s string) string { return `gangway: warning: ` + s + `.*\n` }
	const noGroup = "there is no cgroup"
	for _, c := range []struct {
		args     []string
		out, err string
	}{
		{[]string{"--cpus=1"}, `^1 `, warning(`CPU time is not limited: ` + noGroup + ` \(an affinity of \d+ is set`)},
		{[]string{"--cpuset=0"}, `^1 0 `, warning(`CPU set is not limited: ` + noGroup + ` \(an affinity of 0 is set`)},
		{[]string{"--mem=64M"}, `ran\n$`, warning(`memory is not limited: ` + noGroup)},
		{[]string{"--pids-limit=20"}, ` 20 ran\n$`, warning(`processes are not limited: ` + noGroup + ` \(RLIMIT_NPROC is set`)},
		{[]string{"--cpus=1", "--cpuset=0", "--mem=64M", "--pids-limit=20"}, `^1 0 20 ran\n$`, warning("CPU time is not limited") + warning("CPU set is not limited") + warning("memory is not limited") + "(.*swap.*\n)?" + warning("processes are not limited")},
	} {
		args := append([]string{"run", "--container-image=" + image}, c.args...)
		command := []string{"--", "sh", "-c", "echo $(nproc) $(sed -n 's/^Cpus_allowed_list:.//p' /proc/self/status) $(ulimit -u) ran"}
		o := endsWithin(t, time.Minute, p.command(slices.Concat(args, command)...))
		o.want(t, 0, c.out, c.err)
		o = endsWithin(t, time.Minute, p.command(slices.Concat(args, []string{"--require-cgroup"}, command)...))
		o.want(t, 125, "", `gangway: error: limit the container: .* not limited(.*\n)+gangway: cause: .*delegated: .*\ngangway: hint: .*gangway doctor`)
	}
	// Not more is said to be known than is.
	p.run(t, image, "--stats", "--", "true").want(t, 0, "", `^gangway: used: cgroup none \(advisory\), nothing is known without a control group\n$`)
	p.run(t, image, "--require-cgroup", "--", "echo", "ran").want(t, 125, "", "no control group can be had")
	// RLIMIT_NPROC is of the container's user namespace: the user's other processes do not count.
	p.run(t, image, "--pids-limit=12", "--", "sh", "-c", "for i in 1 2 3 4 5 6 7 8 9 10 11 12; do sleep 1000 & done").want(t, 2, "", "can't fork")
}
