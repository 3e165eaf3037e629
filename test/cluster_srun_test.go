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

// testClusterCommands: srun, salloc, sbatch and scancel as people type them.
func testClusterCommands(t *testing.T, bin string) {
	c := newCluster(t, bin, "--cpus-per-node", "4", "--gres", "gpu:2")
	t.Run("srun", func(t *testing.T) { testSrun(t, c) })
	t.Run("steps", func(t *testing.T) { testSteps(t, c) })
	t.Run("signals", func(t *testing.T) { testSrunSignals(t, c) })
	t.Run("files", func(t *testing.T) { testSrunFiles(t, c) })
	t.Run("terminal", func(t *testing.T) { testSrunTerminal(t, c) })
	t.Run("salloc", func(t *testing.T) { testSalloc(t, c) })
	t.Run("sbatch", func(t *testing.T) { testSbatch(t, c) })
	t.Run("scancel", func(t *testing.T) { testScancel(t, c) })
	t.Run("scancel arrays", func(t *testing.T) { testScancelArrays(t, c) })
	t.Run("gone", func(t *testing.T) { testGone(t, c) })
	t.Run("native", func(t *testing.T) { testNative(t, c) })
	t.Run("exec and logs", func(t *testing.T) { testExecLogs(t, c) })
	t.Run("install", func(t *testing.T) { testInstall(t, c) })
	t.Run("broken", func(t *testing.T) { testSrunBroken(t, c) })
}

// inShell is a command line for a shell.
func inShell(text string) []string { return []string{"sh", "-c", text} }

func testSrun(t *testing.T, c *cluster) {
	for _, r := range []struct {
		args  []string
		stdin string
		code  int
		out   string // sorted lines, exactly
		errs  string
	}{
		{append([]string{"-N4", "-l"}, inShell("echo $SLURM_PROCID/$SLURM_NTASKS on $SLURMD_NODENAME")...), "", 0, "0: 0/4 on n1\n1: 1/4 on n2\n2: 2/4 on n3\n3: 3/4 on n4", ""},
		{append([]string{"-n12", "-l"}, inShell("test $SLURM_PROCID = 3 && printf 'no end'; true")...), "", 0, "3: no end", ""},
		{[]string{"-N2", "-Q", "cat"}, "one\ntwo\n", 0, "one\ntwo", ""},
		{[]string{"-N2", "-i", "all", "-l", "cat"}, "in\n", 0, "0: in\n1: in", ""},
		{[]string{"-N2", "-i", "1", "-l", "cat"}, "in\n", 0, "1: in", ""},
		{[]string{"-N2", "-i", "none", "-l", "cat"}, "in\n", 0, "", ""},
		{append([]string{"-N2", "-o", "1"}, inShell("echo $SLURM_PROCID")...), "", 0, "1", ""},
		{append([]string{"-N2", "-o", "none"}, inShell("echo $SLURM_PROCID")...), "", 0, "", ""},
		{inShell("test $SLURM_TASK_PID = $$ && test $SLURM_CPU_BIND = quiet,none && test $SLURM_TOPOLOGY_ADDR = n1 && test $TMPDIR"), "", 0, "", ""},
		{append([]string{"--propagate=CORE"}, inShell("test $SLURM_RLIMIT_CORE && ulimit -n | sed 's/.*/files/'; test -z $SLURM_RLIMIT_NOFILE")...), "", 0, "files", ""},
		{append([]string{"--cpu-bind=map_cpu:0"}, inShell("grep Cpus_allowed_list /proc/self/status")...), "", 0, "Cpus_allowed_list:\t0", ""},
		{[]string{"--cpu-bind=map_cpu:8000", "true"}, "", 1, "", `--cpu-bind=map_cpu:8000: 8000: none of these may be used on the node`},
		{inShell("exit 3"), "", 3, "", `^srun: error: n1: task 0: Exited with exit code 3\n$`},
		{inShell("kill -9 $$"), "", 137, "", `^srun: error: n1: task 0: Killed\n$`},
		{
			append([]string{"-N4"}, inShell("test $SLURM_PROCID = 2 || sleep 1; exit $((SLURM_PROCID+1))")...), "", 3, "",
			`(?s)srun: error: n3: task 2: Exited with exit code 3\n.*srun: error: first to fail: task 2 on n3, exited with exit code 3; and 3 others\n$`,
		},
		{append([]string{"-N4", "-K"}, inShell("test $SLURM_PROCID = 1 && exit 9; sleep 1000")...), "", 9, "", `first to fail: task 1 on n2, exited with exit code 9; and 3 others`},
		{[]string{"/no/such"}, "", 127, "", `(?s)/no/such.*no such file.*task 0: Exited with exit code 127`},
		{[]string{"/etc/passwd"}, "", 126, "", `(?s)/etc/passwd.*permission denied.*task 0: Exited with exit code 126`},
		{[]string{"-N5", "true"}, "", 1, "", `^srun: error: Unable to allocate resources: Requested node configuration is not available\n(?s).*hint:.*nodes=4`},
		{[]string{"-w", "n9", "true"}, "", 1, "", `^srun: error: Unable to allocate resources: Invalid node name specified\n`},
		{[]string{"-C", "foo", "true"}, "", 1, "", `^srun: error: Unable to allocate resources: Invalid feature specification\n.*"foo"\n`},
		{[]string{"--prefer=foo", "--test-only", "true"}, "", 1, "", `^allocation failure: Invalid feature specification\n`},
		{[]string{"-p", "none", "true"}, "", 1, "", `^srun: error: Unable to allocate resources: Invalid partition name specified\n`},
		{[]string{"-r1", "true"}, "", 1, "", "^srun: fatal: --relative option invalid for job allocation request\n$"},
		{[]string{"-n1", "true", ":", "-n1", "true"}, "", 1, "", "heterogeneous job: not supported"},
		{[]string{"--jobid=99999", "true"}, "", 1, "", `^srun: error: Unable to confirm allocation for job 99999: Invalid job id specified\nsrun: Check SLURM_JOB_ID`},
		{[]string{"-n1", "-N2", "hostname", "-s"}, "", 0, "", `Warning: can't run 1 processes on 2 nodes, setting nnodes to 1\n`},
		{[]string{"-N2", "--test-only", "true"}, "", 0, "", `^srun: Job \d+ to start at \d{4}-\d\d-\d\dT\d\d:\d\d:\d\d using 2 processors on nodes n\[1-2\] in partition main\n$`},
		{append([]string{"--export=A=1,HOME"}, inShell("echo $A $B $HOME")...), "", 0, "1 " + filepath.Join(c.dir, "home"), ""},
		{append([]string{"--export=ALL,A=1"}, inShell("echo $A $B")...), "", 0, "1 b", ""},
		{append([]string{"-D", "/usr", "-n1"}, inShell("pwd")...), "", 0, "/usr", ""},
		{append([]string{"-D", "/no/such", "-n1"}, inShell("pwd")...), "", 0, "/tmp", "^srun: .*couldn't chdir /no/such: no such file or directory: going to /tmp instead\n$"},
		{[]string{}, "", 1, "", "^srun: fatal: No command given to execute.\n$"},
		{[]string{"--gres=gpu:1", "-N2", "-Q", "sh", "-c", "echo $SLURM_STEP_NUM_NODES $SLURM_GPUS_ON_NODE"}, "", 0, "2 1\n2 1", ""},
	} {
		cmd := c.command("srun", r.args...)
		cmd.Env = append(cmd.Env, "B=b")
		cmd.Stdin = strings.NewReader(r.stdin)
		o := outcomeOf(t, cmd)
		o.err = waits.ReplaceAllString(o.err, "") // for what the last one had
		if o.code != r.code && (r.code >= 0 || o.code == 0) || r.errs == "" && o.err != "" || !matches(r.errs, o.err) && r.errs != "" || r.errs == "" && sorted(o.out) != r.out {
			t.Errorf("srun %q: exit %d, want %d\n%swant\n%s\nerrors:\n%swant %q", r.args, o.code, r.code, o.out, r.out, o.err, r.errs)
		}
	}
	// Much output, in whole lines, and no more of it read than there is.
	o := outcomeOf(t, c.command("srun", append([]string{"-N4"}, inShell(`i=0; while [ $i -lt 5000 ]; do echo "$SLURM_PROCID $i"; i=$((i+1)); done`)...)...))
	next := map[string]int{}
	for line := range strings.Lines(o.out) {
		rank, n, _ := strings.Cut(strings.TrimSpace(line), " ")
		if n != fmt.Sprint(next[rank]) {
			t.Fatalf("line %q comes where %d should", line, next[rank])
		}
		next[rank]++
	}
	if len(next) != 4 || next["0"] != 5000 || next["3"] != 5000 || o.code != 0 {
		t.Errorf("exit %d; lines %v\n%s", o.code, next, o.err)
	}
	// A reader that goes away ends the step.
	pipe := exec.Command("sh", "-c", "srun -N2 yes | head -n 1; echo ${PIPESTATUS[0]}; squeue -h")
	pipe.Path, pipe.Args[0] = "/bin/bash", "bash"
	like := c.command("srun")
	pipe.Env, pipe.Dir, pipe.SysProcAttr = like.Env, like.Dir, like.SysProcAttr
	if o := outcomeOf(t, pipe); !strings.HasPrefix(o.out, "y\n141\n") {
		t.Errorf("srun yes | head: %q %s", o.out, o.err)
	}
}

// testUnread: nobody reads what srun says; a step is ended by interrupts all the same. Who
// reads on after all, and is slow, gets everything.
func testUnread(t *testing.T, c *cluster) {
	for _, end := range [][]syscall.Signal{{syscall.SIGINT, syscall.SIGINT, syscall.SIGINT}, {syscall.SIGTERM}} {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		cmd := c.command("srun", "yes")
		cmd.Stdout, cmd.Stderr = w, w
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		_ = w.Close()
		done := make(chan error, 1)
		go func() { done <- cmd.Wait() }()
		waitFor(t, func() bool { n, err := unix.IoctlGetInt(int(r.Fd()), unix.TIOCINQ); return err == nil && n >= 60<<10 })
		for _, sig := range end {
			_ = cmd.Process.Signal(sig)
			time.Sleep(200 * time.Millisecond) // as fast as people are
		}
		select {
		case <-done:
		case <-time.After(30 * time.Second):
			t.Errorf("srun does not end after %v", end)
			_ = cmd.Process.Kill()
			<-done
		}
		_ = r.Close()
	}
	cmd := c.command("srun", "-N1", "sh", "-c", "head -c 160000000 /dev/zero; echo last")
	r, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	size, last, b := 0, "", make([]byte, 64<<10)
	for pauses := 1; ; {
		n, err := r.Read(b)
		if size += n; n >= 5 {
			last = string(b[n-5 : n])
		}
		if err != nil {
			break
		}
		if size > pauses*40_000_000 {
			pauses++
			time.Sleep(700 * time.Millisecond) // its reader is slow
		}
	}
	if err := cmd.Wait(); err != nil || size != 160_000_005 || last != "last\n" {
		t.Errorf("%d bytes of 160000005 came, at last %q: %v", size, last, err)
	}
}

func testSrunSignals(t *testing.T, c *cluster) {
	trap := inShell(`trap 'echo usr1' USR1; trap 'echo int; exit 5' INT; echo ready; while :; do sleep 0.1; done`)
	start := func(args ...string) *background {
		b := inBackground(t, c.command("srun", args...))
		waitFor(t, func() bool { return strings.Count(b.out.String(), "ready") >= 1 })
		return b
	}
	says := func(b *background, text string, times int) {
		t.Helper()
		waitFor(t, func() bool { return strings.Count(b.out.String(), text) >= times })
	}
	b := start(trap...)
	b.signal(t, syscall.SIGUSR1)
	says(b, "usr1", 1)
	b.signal(t, syscall.SIGINT)
	says(b, "srun: interrupt (one more within 1 sec to abort)\n", 1)
	time.Sleep(1100 * time.Millisecond) // until the second is over
	if b.ended() || strings.Contains(b.out.String(), "int\n") {
		t.Errorf("one interrupt ended it:\n%s", b.out.String())
	}
	b.signal(t, syscall.SIGINT)
	says(b, "one more within 1 sec", 2)
	b.signal(t, syscall.SIGINT)
	b.ends(t, 5)
	if text := b.out.String(); !strings.Contains(text, "srun: sending Ctrl-C to StepId=") || !strings.Contains(text, "\nint\n") {
		t.Errorf("two interrupts:\n%s", text)
	}
	// What hears no signal is killed.
	b = start("-N2", "sh", "-c", "trap '' INT TERM; echo ready; while :; do sleep 0.1; done")
	says(b, "ready", 2)
	b.signal(t, syscall.SIGINT)
	says(b, "one more within 1 sec", 1)
	b.signal(t, syscall.SIGINT)
	says(b, "sending Ctrl-C", 1)
	b.signal(t, syscall.SIGINT)
	b.ends(t, 137)
	// TERM ends the step, and the job with it.
	b = start("sh", "-c", "trap 'exit 6' TERM; echo ready; while :; do sleep 0.1; done")
	b.signal(t, syscall.SIGTERM)
	b.ends(t, 6)
	testUnread(t, c)
	// Who waits for nodes and is interrupted leaves no job.
	hold := start("-N4", "--exclusive", "sh", "-c", "echo ready; sleep 1000")
	waits := inBackground(t, c.command("srun", "-N1", "true"))
	waitFor(t, func() bool { return strings.Contains(waits.out.String(), "queued and waiting for resources") })
	waits.signal(t, syscall.SIGINT)
	waits.ends(t, 130)
	o := outcomeOf(t, c.command("srun", "-N1", "-I", "true"))
	o.want(t, 1, "", "Unable to allocate resources: Requested nodes are busy")
	hold.signal(t, syscall.SIGKILL)
	// Its nodes are free again soon after nobody holds them.
	c.do(t, "srun", "-N4", "true")
	waitFor(t, func() bool { return c.do(t, "squeue", "-h") == "" })
}

func testSrunFiles(t *testing.T, c *cluster) {
	o := outcomeOf(t, c.command("srun", append([]string{"-N2", "-J", "files", "-o", "deep/%x-%t-%N.out", "-e", "deep/all.err"}, inShell("echo out $SLURM_PROCID; echo err >&2")...)...))
	o.want(t, 0, "", "")
	for name, want := range map[string]string{"deep/files-0-n1.out": "out 0\n", "deep/files-1-n2.out": "out 1\n", "deep/all.err": "err\nerr\n"} {
		if got := c.file(t, name, ""); got != want {
			t.Errorf("%s: %q", name, got)
		}
	}
	o = outcomeOf(t, c.command("srun", append([]string{"-o", "both"}, inShell("echo out; echo err >&2")...)...))
	if o.want(t, 0, "", ""); c.file(t, "both", "") != "out\nerr\n" {
		t.Errorf("both: %q", c.file(t, "both", ""))
	}
	o = outcomeOf(t, c.command("srun", append([]string{"-o", "both", "--open-mode=append"}, inShell("echo more")...)...))
	if o.want(t, 0, "", ""); c.file(t, "both", "") != "out\nerr\nmore\n" {
		t.Errorf("both: %q", c.file(t, "both", ""))
	}
}

func testSrunTerminal(t *testing.T, c *cluster) {
	cmd := c.command("srun", "-N1", "--pty", "bash", "--norc", "--noprofile")
	s := onTerminal(t, cmd)
	before := s.modes(t)
	s.expect(t, `\$ `)
	s.enter(t, "stty size; echo $TERM $SLURM_PROCID\r")
	s.expect(t, `24 80\r\nvt100 0\r\n`)
	s.resize(t, 33, 99)
	s.enter(t, "until test \"$(stty size)\" = '33 99'; do sleep 0.01; done; echo resized\r")
	s.expect(t, `\rresized\r\n`)
	s.enter(t, "sleep 1000\r")
	waitFor(t, func() bool {
		return slices.ContainsFunc(c.processes(t), func(p clusterProcess) bool { return p.command == "sleep 1000" })
	})
	if _, err := s.master.Write([]byte{3}); err != nil {
		t.Fatal(err)
	}
	s.enter(t, "echo code $?\r")
	s.expect(t, `code 130\r\n`)
	s.enter(t, "exit 4\r")
	s.ends(t, 4)
	if after := s.modes(t); after != before {
		t.Errorf("the terminal is left as %+v, was %+v", after, before)
	}
}

func testSalloc(t *testing.T, c *cluster) {
	o := outcomeOf(t, c.command("salloc", "-N2", "-n4", "sh", "-c", `echo $SLURM_JOB_NUM_NODES $SLURM_JOB_NODELIST $SLURM_TASKS_PER_NODE; srun -l hostname | wc -l; exit 3`))
	o.want(t, 3, `^2 n\[1-2\] 2\(x2\)\n4\n$`, `^salloc: Granted job allocation \d+\nsalloc: Relinquishing job allocation \d+\n$`)
	o = outcomeOf(t, c.command("salloc", "-Q", "-N2", "--ntasks-per-node=2", "sh", "-c", `echo $SLURM_NTASKS $SLURM_NPROCS; srun printenv SLURMD_NODENAME | sort | uniq -c | tr -s ' '`))
	o.want(t, 0, `^4 4\n 2 n1\n 2 n2\n$`, "")
	o = outcomeOf(t, c.command("salloc", "-N2", "--no-shell"))
	o.want(t, 0, "", `^salloc: Granted job allocation \d+\n$`)
	id := strings.Fields(o.err)[len(strings.Fields(o.err))-1]
	o = outcomeOf(t, c.command("srun", "--jobid="+id, "--overlap", "-l", "hostname"))
	if o.code != 0 || strings.Count(o.out, "\n") != 2 {
		t.Errorf("srun --jobid: exit %d\n%s%s", o.code, o.out, o.err)
	}
	c.do(t, "scancel", id)
	waitFor(t, func() bool { return c.do(t, "squeue", "-h") == "" })
	// A job that is cancelled takes its shell with it.
	b := inBackground(t, c.command("salloc", "-N1", "sh", "-c", "echo id $SLURM_JOB_ID; exec sleep 1000"))
	waitFor(t, func() bool { return strings.Contains(b.out.String(), "id ") })
	_, id, _ = strings.Cut(b.out.String(), "id ")
	c.do(t, "scancel", strings.TrimSpace(id))
	b.ends(t, 129)
	if !strings.Contains(b.out.String(), "has been revoked") {
		t.Errorf("salloc: %s", b.out.String())
	}
	outcomeOf(t, c.command("salloc", "/no/such")).want(t, 1, "", `error: _fork_command: Unable to find command "/no/such"`)
}

func testSbatch(t *testing.T, c *cluster) {
	script := filepath.Join(c.dir, "home", "job.sh")
	if err := os.WriteFile(script, []byte("#!/bin/bash\n#SBATCH -N2 --ntasks-per-node=2 -o logs/%j/%x.txt # where\n#SBATCH --job-name=\"a b\"\necho $0 $1 $#\nsrun -l hostname | wc -l\nenv -u SLURM_JOB_ID true\nsbatch --parsable -N1 -o inner.txt --wrap 'echo $SLURM_NNODES $SLURM_NTASKS.'\nexit 4\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	o := outcomeOf(t, c.command("sbatch", "job.sh", "x y", "z"))
	o.want(t, 0, `^Submitted batch job \d+\n$`, "")
	id := strings.Fields(o.out)[3]
	if got := c.ended(t, id); got != "FAILED|4:0" {
		t.Errorf("job %s: %s", id, got)
	}
	if out := c.file(t, "logs/"+id+"/a b.txt", `(?m)^\d+$`); !matches(`x y 2\n4\n\d+\n$`, out) {
		t.Errorf("output of the script: %q", out)
	}
	// A job that was submitted by a job has nothing of it.
	if got := c.file(t, "inner.txt", "\n"); got != "1 .\n" {
		t.Errorf("inner job: %q", got)
	}
	outcomeOf(t, c.command("sbatch", "-W", "-Q", "--wrap", "exit 3")).want(t, 3, "", "")
	outcomeOf(t, c.command("sbatch", "-W", "-Q", "--array=0-3", "-o", "array-%a", "--wrap", "exit $SLURM_ARRAY_TASK_ID")).want(t, 3, "", "")
	outcomeOf(t, c.command("sbatch", "-N5", "--wrap", "true")).want(t, 1, "", "^sbatch: error: Batch job submission failed: Requested node configuration is not available\nsbatch: error: submit job: it asks for 5 nodes, and its partition has 4\nsbatch: hint: .*--nodes=4\n$")
	outcomeOf(t, c.command("sbatch", "-N5", "--test-only", "--wrap", "true")).want(t, 1, "", "^allocation failure: Requested node configuration is not available\n")
	outcomeOf(t, c.command("sbatch", "-Q", "--parsable", "-o", "/dev/null", "--wrap", "true")).want(t, 0, "", "")
	// Limits of who submits hold there, unless that is not wanted; the umask is that of SLURM_UMASK.
	limits := c.command("sbatch", "-W", "-o", filepath.Join(c.dir, "home", "limits"), "--wrap", "ulimit -Sn; ulimit -Sc; umask; echo $SLURM_GPU_BIND $SLURM_DISTRIBUTION $SLURM_OPEN_MODE",
		"--gpu-bind=single:1", "-m", "plane=2", "--open-mode=a")
	limits.Args = append([]string{"sh", "-c", `ulimit -Sn 123; ulimit -Sc 0; SLURM_UMASK=0027 exec "$0" "$@"`, limits.Path}, limits.Args[1:]...)
	limits.Path = "/bin/sh"
	outcomeOf(t, limits).want(t, 0, "Submitted", "")
	if b, err := os.ReadFile(filepath.Join(c.dir, "home", "limits")); string(b) != "123\n0\n0027\nsingle:1 plane a\n" {
		t.Errorf("limits %q, %v", b, err)
	}
	outcomeOf(t, c.command("sbatch", "--dependency=afterok:99999", "--wrap", "true")).want(t, 1, "", "^sbatch: error: Batch job submission failed: Job dependency problem\n")
	outcomeOf(t, c.command("sbatch", "-a", "x", "--wrap", "true")).want(t, 1, "", "^sbatch: error: Batch job submission failed: Invalid job array specification\n")
	outcomeOf(t, c.command("sbatch", "--test-only", "-N4", "--wrap", "true")).want(t, 0, "", `^sbatch: Job \d+ to start at .* using \d+ processors on nodes n\[1-4\] in partition main\n$`)
	outcomeOf(t, c.command("sbatch", "no-such.sh")).want(t, 1, "", "^sbatch: error: Unable to open file no-such.sh\n$")
	outcomeOf(t, c.command("sbatch", "--container-image=x", "--container-name=a:b", "--wrap", "true")).want(t, 1, "", "no such flag")
}

func testScancel(t *testing.T, c *cluster) {
	one := c.submit(t, "sleep 1000", "-J", "one", "-o", "c1")
	two := c.submit(t, "sleep 1000", "-J", "two", "-o", "c2")
	held := c.submit(t, "true", "-H", "-J", "held", "-o", "c3")
	array := c.submit(t, "sleep 1000", "--array=0-2", "-J", "array", "-o", "c4-%a")
	c.do(t, "scancel", "-n", "one")
	if got := c.ended(t, one); !strings.HasPrefix(got, "CANCELLED") {
		t.Errorf("one: %s", got)
	}
	c.do(t, "scancel", array+"_1")
	if got := c.ended(t, array+"_1"); !strings.HasPrefix(got, "CANCELLED") {
		t.Errorf("array_1: %s", got)
	}
	c.do(t, "scancel", "-t", "PENDING", "-u", strings.TrimSpace(c.do(t, "squeue", "-h", "-j", two, "-o", "%u")))
	if got := c.ended(t, held); !strings.HasPrefix(got, "CANCELLED") {
		t.Errorf("held: %s", got)
	}
	cmd := c.command("scancel", "-i", two)
	cmd.Stdin = strings.NewReader("n\n")
	outcomeOf(t, cmd).want(t, 0, "", `^Cancel job_id=`+two+` name=two partition=main \[y/n\]\? $`)
	c.do(t, "scancel", two, array)
	for _, id := range []string{two, array + "_0", array + "_2"} {
		if got := c.ended(t, id); !strings.HasPrefix(got, "CANCELLED") {
			t.Errorf("%s: %s", id, got)
		}
	}
	outcomeOf(t, c.command("scancel", "99999")).want(t, 0, "", "^$") // as Slurm
	outcomeOf(t, c.command("scancel", "-v", "99999")).want(t, 0, "", "scancel: error: Kill job error on job id 99999: Invalid job id specified\n$")
	outcomeOf(t, c.command("scancel", "x")).want(t, 1, "", "^scancel: error: Invalid job id x\n$")
	outcomeOf(t, c.command("scancel")).want(t, 1, "", "^scancel: error: No job identification provided\n$")
	// A signal to the script goes to its shell alone: what that waits for does not die of it.
	alone := c.submit(t, "trap 'wait $child; echo got it; exit 0' USR1; sh -c 'echo ready; sleep 1; echo whole' & child=$!; wait $child; wait $child", "-o", "alone")
	c.file(t, "alone", "ready")
	c.do(t, "scancel", "-b", "-s", "USR1", alone)
	if got := c.ended(t, alone); got != "COMPLETED|0:0" || c.file(t, "alone", "") != "ready\nwhole\ngot it\n" {
		t.Errorf("%s: %q", got, c.file(t, "alone", ""))
	}
	// A signal to the script.
	b := c.submit(t, "trap 'echo got it; exit 0' USR1; echo ready; while :; do sleep 0.1; done", "-o", "signal")
	c.file(t, "signal", "ready")
	c.do(t, "scancel", "-b", "-s", "USR1", b)
	c.file(t, "signal", "got it")
	if got := c.ended(t, b); got != "COMPLETED|0:0" {
		t.Errorf("signalled job: %s", got)
	}
}

// testScancelArrays: filters and lists end the tasks that they mean, and no other.
func testScancelArrays(t *testing.T, c *cluster) {
	left := func(what, array, want string) {
		t.Helper()
		if got := strings.Join(strings.Fields(c.do(t, "squeue", "-h", "-r", "-t", "PD,R", "-j", array, "-o", "%K")), " "); got != want {
			t.Errorf("%s: %q is left, not %q", what, got, want)
		}
	}
	held := func() string {
		return c.submit(t, "sleep 1000", "-H", "--array=0-5", "-J", "tasks", "-o", "tasks-%a")
	}
	me := strings.TrimSpace(c.do(t, "squeue", "-h", "-r", "-j", held()+"_0", "-o", "%u"))
	for _, r := range []struct{ args, want string }{
		{"A_0 -n tasks", "1 2 3 4 5"},
		{"A_0", "1 2 3 4 5"},
		{"A_[1-2]", "0 3 4 5"},
		{"A_[1,3-5:2] A_0", "2 4"},
		{"-t PENDING A_[4-9]", "0 1 2 3"},
		{"-n other A", "0 1 2 3 4 5"},
		{"A_[0-9]", ""},
		{"-n tasks -u " + me, ""},
		{"-u " + me + " -p main", ""},
		{"-n tasks A", ""},
		{"A", ""},
	} {
		array := held()
		outcomeOf(t, c.command("scancel", strings.Fields(strings.ReplaceAll(r.args, "A", array))...)).want(t, 0, "", "^$")
		left(r.args, array, r.want)
		c.do(t, "scancel", array) // what is over already is no failure
	}
	// The others of an array whose tasks run go on.
	array := c.submit(t, "sleep 1000", "--array=0-5%2", "-J", "some", "-o", "some-%a")
	waitFor(t, func() bool {
		return strings.TrimSpace(c.do(t, "squeue", "-h", "-r", "-j", array, "-t", "R", "-o", "%K")) == "0\n1"
	})
	outcomeOf(t, c.command("scancel", "-t", "RUNNING", "-n", "some")).want(t, 0, "", "^$")
	waitFor(t, func() bool {
		return strings.TrimSpace(c.do(t, "squeue", "-h", "-r", "-j", array, "-t", "R", "-o", "%K")) == "2\n3"
	})
	left("-t RUNNING", array, "4 5 2 3")
	// What is none is named.
	outcomeOf(t, c.command("scancel", "-v", array+"_[7-8]")).want(t, 0, "", `scancel: error: Kill job error on job id `+array+`_\[7-8\]: Invalid job id specified\n$`)
	outcomeOf(t, c.command("scancel", array+"_4-5")).want(t, 1, "", `^scancel: error: Invalid job id `+array+`_4-5\n$`)
	outcomeOf(t, c.command("scancel", array+"_")).want(t, 1, "", `^scancel: error: Invalid job id `+array+`_\n$`)
	outcomeOf(t, c.command("cancel", array+"_[4-5]")).want(t, 0, "", "^$")
	left("cancel", array, "2 3")
	outcomeOf(t, c.command("scancel", "-n", "some", array)).want(t, 0, "", "^$")
	// Lists for scontrol, and its sentences.
	array = held()
	c.do(t, "scontrol", "release", array+"_[2,4]")
	waitFor(t, func() bool {
		return strings.TrimSpace(c.do(t, "squeue", "-h", "-r", "-j", array, "-t", "R", "-o", "%K")) == "2\n4"
	})
	outcomeOf(t, c.command("scontrol", "hold", array+"_[1,77]")).want(t, 1, "", `^`+array+`_1: No error\n`+array+`_77: Invalid job id specified\n$`)
	outcomeOf(t, c.command("scontrol", "release", "abc")).want(t, 1, "", `^Invalid job id specified for job abc\nslurm_suspend error: Invalid job id specified\n$`)
	c.do(t, "scancel", array)
	// A step that has ended is none.
	o := outcomeOf(t, c.command("salloc", "-Q", "-N1", "sh", "-c", "srun true; while squeue -h -s -o %i | grep -qx $SLURM_JOB_ID.0; do sleep .1; done; scancel $SLURM_JOB_ID.0"))
	o.want(t, 1, "", `^scancel: error: Kill job error on job step id \d+\.0: Invalid job id specified\n$`)
}

// testGone: who submits from a directory that was removed is told so.
func testGone(t *testing.T, c *cluster) {
	for _, name := range []string{"sbatch --wrap=true", "srun true"} {
		cmd := c.command("sh", "-c", "mkdir gone && cd gone && rmdir ../gone && exec "+name)
		cmd.Path, cmd.Args = "/bin/sh", cmd.Args[1:]
		word, _, _ := strings.Cut(name, " ")
		outcomeOf(t, cmd).want(t, 255, "", "^"+word+": error: getcwd failed: No such file or directory\n$")
	}
}

func testNative(t *testing.T, c *cluster) {
	outcomeOf(t, c.command("run", "-q", "-N2", "-l", "--", "sh", "-c", "echo $SLURM_NTASKS")).want(t, 0, `^[01]: 2\n[01]: 2\n$`, "")
	o := outcomeOf(t, c.command("run", "-e", "A=x", "--", "sh", "-c", "echo $A; exit 2"))
	o.want(t, 2, "^x\n$", `^gangway: on the cluster at unix:.*\ngangway: error: n1: task 0: Exited with exit code 2\n$`)
	outcomeOf(t, c.command("run", "--local", "-N2", "--", "true")).want(t, 2, "", "--nodes needs a cluster")
	outcomeOf(t, c.command("run", "--cpus=2", "--", "true")).want(t, 2, "", "--cpus: only for a run here")
	outcomeOf(t, c.command("submit", "--json", "-H", "--wrap", "true")).want(t, 0, `^\{\n  "id": \d+\n\}\n$`, "")
	o = outcomeOf(t, c.command("submit", "-H", "--wrap", "true"))
	o.want(t, 0, `^\d+\n$`, "")
	c.do(t, "cancel", strings.TrimSpace(o.out))
	outcomeOf(t, c.command("submit", "--nodes=x", "--wrap", "true")).want(t, 2, "", `^gangway: error: "x" is not a valid node count\n$`)
	c.do(t, "scancel", "-t", "PENDING", "-n", "wrap")
	outcomeOf(t, c.command("cancel", "99999")).want(t, 125, "", "cancel 99999")
	outcomeOf(t, c.command("alloc", "-N2", "--", "srun", "-Q", "-o", "none", "true")).want(t, 0, "", "Granted job allocation")
}

// testExecLogs: who is curious sees what a job does.
func testExecLogs(t *testing.T, c *cluster) {
	id := c.submit(t, "echo start; srun -N2 -l sh -c 'echo rank; touch up$SLURM_PROCID; sleep 1000'", "-N2", "-o", "seen")
	c.file(t, "seen", "(?s)rank.*rank")
	outcomeOf(t, c.command("exec", id+":1", "--", "sh", "-c", "echo $SLURM_PROCID $SLURMD_NODENAME; exit 4")).want(t, 4, "^1 n2\n$", "")
	cmd := c.command("exec", id+".batch", "--", "sh", "-c", "cat; echo $SLURM_JOB_ID >&2")
	cmd.Stdin = strings.NewReader("input\n")
	outcomeOf(t, cmd).want(t, 0, "^input\n$", "^"+id+"\n$")
	outcomeOf(t, c.command("exec", id+":2", "--", "true")).want(t, 2, "", "has no rank 2")
	outcomeOf(t, c.command("exec", "99999:0", "--", "true")).want(t, 125, "", "Invalid job id specified")
	outcomeOf(t, c.command("logs", id+".0")).want(t, 0, `^rank\nrank\n$`, "")
	outcomeOf(t, c.command("logs", "-l", "--rank", "1", id+".0")).want(t, 0, `^1: rank\n$`, "")
	outcomeOf(t, c.command("logs", id)).want(t, 0, `(?s)^start\n.*rank`, "")
	follow := inBackground(t, c.command("logs", "-f", id))
	step := inBackground(t, c.command("logs", "-f", id+".0"))
	waitFor(t, func() bool {
		return strings.Contains(follow.out.String(), "start") && strings.Contains(step.out.String(), "rank")
	})
	c.do(t, "cancel", id)
	follow.ends(t, 0)
	step.ends(t, 0)
	outcomeOf(t, c.command("logs", id)).want(t, 0, `(?s)^start\n.*rank`, "")
	outcomeOf(t, c.command("logs", "--since", "-1h", id)).want(t, 0, "", "")
	outcomeOf(t, c.command("logs", id+".0")).want(t, 125, "", "nothing runs in it")
	outcomeOf(t, c.command("logs", "x")).want(t, 2, "", `"x" is not a job`)
}

// testInstall: links with Slurm's names, which leave alone what is not ours.
func testInstall(t *testing.T, c *cluster) {
	dir := filepath.Join(c.dir, "home", "links")
	o := outcomeOf(t, c.command("slurm", "install", dir))
	o.want(t, 0, `/links/sbatch\n`, "/links is not in PATH|comes first in PATH; begin it with .*/links")
	cmd := c.command("squeue", "-h")
	cmd.Path = filepath.Join(dir, "squeue")
	outcomeOf(t, cmd).want(t, 0, "", "")
	cmd = c.command("slurm", "install", dir)
	cmd.Env = append(cmd.Env, "PATH="+dir+":/usr/bin:/bin")
	outcomeOf(t, cmd).want(t, 0, `/links/sbatch\n`, "")
	if err := os.Remove(filepath.Join(dir, "sbatch")); err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(dir, "srun")
	if err := os.Remove(name); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte("mine"), 0o644); err != nil {
		t.Fatal(err)
	}
	outcomeOf(t, c.command("slurm", "install", dir)).want(t, 125, "", "(?s)make links in .*/links: srun: file already exists.*nothing was made.*--force")
	if _, err := os.Lstat(filepath.Join(dir, "sbatch")); err == nil {
		t.Error("a link was made beside a file that is not ours")
	}
	cmd = c.command("slurm", "install", "--force", dir)
	cmd.Env = append(cmd.Env, "PATH="+dir+":/usr/bin:/bin")
	outcomeOf(t, cmd).want(t, 0, `/links/srun\n`, "")
}

// testSrunBroken: what is said without a controller, and what a step of srun does while its
// agent, or the controller, is away.
func testSrunBroken(t *testing.T, c *cluster) {
	for name, code := range map[string]int{"sbatch": 1, "srun": 1, "salloc": 1, "scancel": 1, "submit": 13, "cancel": 13, "run": 13} {
		args := map[string][]string{"sbatch": {"--wrap=x"}, "srun": {"x"}, "salloc": {"x"}, "scancel": {"5"}, "submit": {"--wrap=x"}, "cancel": {"5"}, "run": {"--", "x"}}[name]
		cmd := c.command(name, args...)
		cmd.Env = append(cmd.Env, "GANGWAY_CLUSTER=unix:/no/such.sock")
		began := time.Now()
		o := outcomeOf(t, cmd)
		if took := time.Since(began); took > time.Second {
			t.Errorf("%s without a controller takes %s", name, took)
		}
		o.want(t, code, "", "(?s)/no/such.sock")
		if code == 1 && !strings.Contains(o.err, "Unable to contact slurm controller (connect failure)\n") {
			t.Errorf("%s: %s", name, o.err)
		}
	}
	b := inBackground(t, c.command("srun", append([]string{"-N2", "-Q"}, inShell("i=0; while [ $i -lt 60 ]; do echo $SLURM_PROCID $i; i=$((i+1)); sleep 0.1; done")...)...))
	waitFor(t, func() bool { return strings.Contains(b.out.String(), "1 5\n") })
	for _, p := range c.processes(t) {
		if strings.Contains(p.command, "gangwayd agent") && strings.Contains(p.command, "--node n1") || strings.Contains(p.command, "gangwayd controller") {
			if err := syscall.Kill(p.pid, syscall.SIGKILL); err != nil {
				t.Error(err)
			}
		}
	}
	b.ends(t, 0)
	next := [2]int{}
	for line := range strings.Lines(b.out.String()) {
		var rank, n int
		if _, err := fmt.Sscanf(line, "%d %d\n", &rank, &n); err != nil || n != next[rank] {
			t.Fatalf("line %q, after %v", line, next)
		}
		next[rank]++
	}
	if next != [2]int{60, 60} {
		t.Errorf("lines: %v", next)
	}
	waitFor(t, func() bool { return outcomeOf(t, c.command("squeue", "-h")).out == "" })
}

// waits is what srun says while what ended before has not freed its nodes yet.
var waits = regexp.MustCompile(`(?m)^srun: job \d+ (queued and waiting for resources|has been allocated resources)\n`)
