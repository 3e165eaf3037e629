package test

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// beside is a scheduler with two nodes of four CPUs, and a user's home on it: Slurm or Gangway.
type beside struct {
	t       *testing.T
	home    string
	command func(name string, args ...string) *exec.Cmd
}

// besideJobs are what is run on both, in this order, so that numbers are the same. A script
// writes its environment and that of its ranks into files.
var besideJobs = []struct {
	name, args, script string
	wait               bool // until it has ended
}{
	{"hello", "-N1", "echo hello; ./env batch", true},
	{"fails", "", "echo before; exit 3", true},
	{"ranks", "-N2 --ntasks-per-node=2", "./env batch; srun ./env rank", true},
	{"three", "-n3 -o three.out", "./env batch; srun ./env rank; srun -n1 ./env one", true},
	{"array", "--array=1-3", "echo task $SLURM_ARRAY_TASK_ID of $SLURM_ARRAY_TASK_COUNT; ./env batch.$SLURM_ARRAY_TASK_ID", true},
	{"patterns", "-J patterns -o out.%x.%j -e err.%j.%N.%u", "echo out; echo err >&2", true},
	{"wide", "-c2 -n2 -N2", "./env batch; srun -c2 ./env rank", true},
	{"none", "--export=NONE", "echo ${FROM_HOME-unset}; ./env batch", true},
	{"some", "--export=ONE=1,FROM_HOME,PATH,SLURM_CONF", "echo $ONE $FROM_HOME; ./env batch; srun ./env rank", true},
	{"killed", "", "echo before; kill -9 $$", true},
	{"append", "-o appended --open-mode=append", "echo first", true},
	{"append", "-o appended --open-mode=append", "echo second", true},
	{"chdir", "-D sub", "pwd; echo there > there", true},
	{"stdin", "-i input -o stdin.out", "cat", true},
	{"rank5", "-n2 -o rank5.out", "srun -K sh -c 'echo $SLURM_PROCID; exit 5'", true},
	{"label", "-n2 -N2 -o label.out", "srun -l sh -c 'echo I am $SLURM_PROCID'", true},
	{"files", "-n2 -o files.out", "srun -o rank.%j.%s.%t -e rank.err.%t sh -c 'echo $SLURM_PROCID; echo $SLURM_PROCID >&2'", true},
	{"exits", "-n2 -o exits.out", "srun sh -c 'exit $SLURM_PROCID'; echo srun: $?; srun false; echo srun: $?; srun -n1 sh -c 'kill -TERM $$'; echo srun: $?", true},
	{"held", "-H -N2", "true", false},
	{"later", "--begin=2037-01-01 -N1", "true", false},
	{"never", "-d afterok:2 -N1", "true", false},
	{"cancelled", "-N1 -o cancelled.out", "echo runs; ./env batch; sleep 1000", false},
}

const besideEnv = `#!/bin/sh
env | grep '^S[LBR][UA][RTN]' | sort > env.$SLURM_JOB_NAME.$1.$SLURM_STEP_ID.$SLURM_PROCID
`

// fill makes the user's files.
func (b *beside) fill(uid, gid int) {
	b.t.Helper()
	for name, text := range map[string]string{"env": besideEnv, "input": "some\ninput\n", "sub/keep": ""} {
		path := filepath.Join(b.home, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			b.t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
			b.t.Fatal(err)
		}
		for _, p := range []string{path, filepath.Dir(path)} {
			if err := os.Chown(p, uid, gid); err != nil {
				b.t.Fatal(err)
			}
		}
	}
}

// said is what a command says, its exit code behind it.
func (b *beside) said(name string, args ...string) string {
	b.t.Helper()
	cmd := b.command(name, args...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	code := 0
	if exit, ok := err.(*exec.ExitError); ok {
		code = exit.ExitCode()
	} else if err != nil {
		b.t.Fatal(err)
	}
	return fmt.Sprintf("%sexit %d", out.String(), code)
}

// field is one of a job's in scontrol's record.
func (b *beside) field(id, key string) string {
	m := regexp.MustCompile(`(?:^|\s)` + key + `=(\S*)`).FindStringSubmatch(b.said("scontrol", "-o", "show", "job", id))
	if m == nil {
		return ""
	}
	return m[1]
}

// until waits for something that a scheduler does in its time.
func (b *beside) until(what string, so func() bool) {
	b.t.Helper()
	for end := time.Now().Add(2 * time.Minute); !so(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			b.t.Fatalf("%s: not so after 2 minutes: %s\n%s\n%s", b.home, what, b.said("squeue"), b.said("sinfo", "-lN"))
		}
	}
}

var besideOver = []string{"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL"}

// runAll runs the jobs, and returns what is to be compared.
func (b *beside) runAll() map[string]string {
	b.t.Helper()
	found := map[string]string{}
	ids := []string{}
	for _, j := range besideJobs {
		cmd := b.command("sbatch", append(strings.Fields(j.args), filepath.Join(b.home, "job.sh"))...)
		if !strings.Contains(j.args, "-J") {
			cmd.Args = slices.Insert(cmd.Args, 1, "-J", j.name)
		}
		if err := os.WriteFile(filepath.Join(b.home, "job.sh"), []byte("#!/bin/sh\n"+j.script+"\n"), 0o755); err != nil {
			b.t.Fatal(err)
		}
		out, err := cmd.CombinedOutput()
		m := regexp.MustCompile(`^Submitted batch job (\d+)\n$`).FindSubmatch(out)
		if err != nil || m == nil {
			b.t.Fatalf("%s: sbatch %s: %v: %s", b.home, j.args, err, out)
		}
		id := string(m[1])
		ids = append(ids, id)
		if j.wait {
			b.until("job "+id+", "+j.name+", has ended", func() bool { return slices.Contains(besideOver, b.field(id, "JobState")) })
			b.until("its nodes are free", func() bool { return strings.TrimSpace(b.said("sinfo", "-h", "-o", "%T")) == "idle\nexit 0" })
		}
	}
	last := ids[len(ids)-1]
	b.until("the last one runs", func() bool {
		text, _ := os.ReadFile(filepath.Join(b.home, "env.cancelled.batch..0"))
		return len(text) > 0
	})
	for _, args := range [][]string{{"squeue"}, {"squeue", "-l"}, {"squeue", "-s"}, {"sinfo"}, {"sinfo", "-N"}, {"sinfo", "-s"}, {"sinfo", "-R"}, {"squeue", "--start"}} {
		found["$ "+strings.Join(args, " ")] = b.said(args[0], args[1:]...)
	}
	found["$ scancel "+last] = b.said("scancel", last)
	b.until("it is cancelled", func() bool { return b.field(last, "JobState") == "CANCELLED" })
	b.until("nodes are free", func() bool { return strings.TrimSpace(b.said("sinfo", "-h", "-o", "%T")) == "idle\nexit 0" })
	for i, id := range ids {
		for _, key := range []string{"JobName", "JobState", "Reason", "ExitCode", "Dependency", "NumNodes", "NumCPUs", "NumTasks", "CPUs/Task", "Requeue", "Restarts", "Partition", "StdOut", "StdErr", "WorkDir"} {
			found["job "+besideJobs[i].name+" "+key] = b.field(id, key)
		}
	}
	for _, args := range [][]string{{"4711"}, {"-v", "4711"}, {"-Q", "4711"}, {"-s", "USR1", "4711"}, {"4711.0"}, {ids[4] + "_[7-8]"}, {ids[0]}, {"-v", ids[0]}, {ids[0] + ".0"}, {"-s", "USR1", ids[0]}, {"x"}} {
		found["$ scancel "+strings.Join(args, " ")] = b.said("scancel", args...)
	}
	found["$ scontrol show job 4711"] = b.said("scontrol", "show", "job", "4711")
	found["$ squeue -j 4711"] = b.said("squeue", "-j", "4711")
	found["$ scontrol show reservations"] = b.said("scontrol", "show", "reservations")
	found["$ squeue -t all"] = b.said("squeue", "-t", "all", "-S", "i", "-h", "-o", "%i %j %t %r %D %C")
	b.files(found)
	return found
}

// files are those that jobs have written: environments by variable, and other files as a whole.
func (b *beside) files(found map[string]string) {
	err := filepath.WalkDir(b.home, func(path string, d os.DirEntry, err error) error {
		name, _ := filepath.Rel(b.home, path)
		if err != nil || d.IsDir() {
			if strings.HasPrefix(name, "state") || strings.HasPrefix(name, ".") && name != "." {
				return filepath.SkipDir
			}
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil || slices.Contains([]string{"env", "input", "job.sh", "sub/keep"}, name) {
			return err
		}
		if !strings.HasPrefix(name, "env.") {
			lines := strings.SplitAfter(string(text), "\n")
			if strings.Contains(name, "label") || strings.Contains(name, "rank5") || strings.Contains(name, "exits") {
				slices.Sort(lines) // ranks write as they come
			}
			found["file "+name] = strings.Join(lines, "")
			return nil
		}
		for line := range strings.Lines(string(text)) {
			key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
			found[name+" "+key] = value
		}
		return nil
	})
	if err != nil {
		b.t.Fatal(err)
	}
}

// startSlurm starts Debian's Slurm, whose daemons are root's and whose jobs the person's.
func startSlurm(t *testing.T, p *person) *beside {
	t.Helper()
	for _, program := range []string{"slurmctld", "slurmd", "sbatch", "srun", "scontrol"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("needs %s: apt-get install slurm-client slurmd slurmctld", program)
		}
	}
	if os.Getuid() != 0 {
		t.Skip("needs root: slurmd starts for nobody else")
	}
	dir := publicDir(t)
	port := func() int {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		return l.Addr().(*net.TCPAddr).Port
	}
	var conf strings.Builder
	conf.WriteString(fmt.Sprintf(`ClusterName=state
SlurmctldHost=localhost
SlurmctldPort=%d
AuthType=auth/none
CredType=cred/none
SlurmUser=root
StateSaveLocation=%[2]s
SlurmctldPidFile=%[2]s/pid
SlurmdPidFile=%[2]s/%%n.pid
SlurmdSpoolDir=%[2]s/%%n
ProctrackType=proctrack/pgid
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
ReturnToService=2
SlurmdParameters=config_overrides
`, port(), dir))
	for n := 1; n <= 2; n++ {
		conf.WriteString(fmt.Sprintf("NodeName=n%d Port=%d NodeHostname=localhost CPUs=4 RealMemory=1000\n", n, port()))
		if err := os.Mkdir(filepath.Join(dir, fmt.Sprint("n", n)), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	conf.WriteString("PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP\n")
	file := filepath.Join(dir, "slurm.conf")
	if err := os.WriteFile(file, []byte(conf.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	home := filepath.Join(dir, "home")
	b := &beside{t: t, home: home, command: func(name string, args ...string) *exec.Cmd {
		cmd := exec.Command(name, args...)
		cmd.Dir = home
		cmd.Env = []string{"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=" + home, "FROM_HOME=1", "USER=someone", "SLURM_CONF=" + file}
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: p.cred}
		return cmd
	}}
	b.fill(p.uid(), p.uid())
	for _, args := range [][]string{{"slurmctld", "-D", "-i"}, {"slurmd", "-D", "-N", "n1"}, {"slurmd", "-D", "-N", "n2"}} {
		cmd := exec.Command(args[0], args[1:]...)
		cmd.Env = append(os.Environ(), "SLURM_CONF="+file)
		d := inBackground(t, cmd)
		t.Cleanup(func() {
			d.signal(t, syscall.SIGINT)
			waitFor(t, d.ended)
		})
		b.until("a controller", func() bool { return strings.Contains(b.said("scontrol", "ping"), "is UP") })
	}
	b.until("two idle nodes", func() bool { return strings.TrimSpace(b.said("sinfo", "-h", "-o", "%T %D")) == "idle 2\nexit 0" })
	return b
}

// TestBesideSlurm: the same jobs on Debian's Slurm and here: environments of all scripts and
// ranks, files, exit codes, states and what the commands say are the same, but for the
// differences in docs/beside-slurm.md, which all occur.
func TestBesideSlurm(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("-short: starts Slurm's slurmctld and two slurmd, and waits for them")
	}
	p := newPersonWith(t, filepath.Join(clusterPrograms(t), "gangway"))
	if p.cred != nil { // slurmctld looks him up
		p.cred = &syscall.Credential{Uid: 65534, Gid: 65534}
		for _, dir := range []string{"home", "run"} {
			if err := os.Chown(filepath.Join(p.dir, dir), 65534, 65534); err != nil {
				t.Fatal(err)
			}
		}
	}
	slurm := startSlurm(t, p)
	c := newClusterFor(t, p, "--nodes", "2", "--cpus-per-node", "4")
	ours := &beside{t: t, home: filepath.Join(c.dir, "home"), command: func(name string, args ...string) *exec.Cmd {
		cmd := c.command(name, args...)
		cmd.Env = append(cmd.Env, "FROM_HOME=1", "USER=someone")
		return cmd
	}}
	ours.fill(c.uid(), c.uid())
	theirs := comparedWith(slurm.runAll(), slurm.home)
	mine := comparedWith(ours.runAll(), ours.home)
	wantListed(t, mine, theirs)
}

// comparedWith makes paths, times and numbers of processes alike.
func comparedWith(found map[string]string, home string) map[string]string {
	all := map[string]string{}
	for key, value := range found {
		value = strings.ReplaceAll(value, home, "HOME")
		value = regexp.MustCompile(`\b20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d`).ReplaceAllString(value, "DATE")
		if !strings.HasSuffix(key, " ExitCode") {
			value = regexp.MustCompile(`\b\d+:\d\d(:\d\d)?\b`).ReplaceAllString(value, "TIME")
		}
		value = regexp.MustCompile(`\b(Mon|Tue|Wed|Thu|Fri|Sat|Sun) \w+ +\d+ TIME 20\d\d`).ReplaceAllString(value, "NOW")
		if regexp.MustCompile(`_(PID|PORT|TIME|PROCESS)$`).MatchString(key) && value != "" {
			value = "NUMBER"
		}
		if strings.HasPrefix(key, "$ ") {
			value = regexp.MustCompile(` +`).ReplaceAllString(value, " ")
		}
		all[key] = value
	}
	return all
}

// wantListed says which differences the list has not, and which of it do not occur. A line of the list is
// a pattern of what differs, "missing", "more" or "other", and why.
func wantListed(t *testing.T, ours, theirs map[string]string) {
	t.Helper()
	b, err := os.ReadFile("../docs/beside-slurm.md")
	if err != nil {
		t.Fatal(err)
	}
	_, block, _ := strings.Cut(string(b), "\n```\n")
	block, _, _ = strings.Cut(block, "\n```\n")
	type line struct {
		pattern   *regexp.Regexp
		how, text string
		used      bool
	}
	var list []*line
	for text := range strings.Lines(block) {
		if text = strings.TrimSpace(text); text == "" {
			continue
		}
		f := strings.SplitN(text, " | ", 3)
		if len(f) != 3 {
			t.Fatalf("docs/beside-slurm.md: %q is not WHAT | HOW | WHY", text)
		}
		list = append(list, &line{pattern: regexp.MustCompile("^(?:" + f[0] + ")$"), how: f[1], text: text})
	}
	var keys []string
	for key := range ours {
		keys = append(keys, key)
	}
	for key := range theirs {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	differences := 0
	keys = slices.Compact(keys)
	for _, key := range keys {
		x, have := ours[key]
		y, want := theirs[key]
		how := "other"
		switch {
		case x == y && have == want:
			continue
		case !have:
			how = "missing"
		case !want:
			how = "more"
		}
		differences++
		listed := false
		for _, l := range list {
			if l.how == how && l.pattern.MatchString(key) {
				l.used, listed = true, true
			}
		}
		if !listed {
			t.Errorf("%s: %s\n ours   %q\n Slurm's %q", how, key, x, y)
		}
	}
	for _, l := range list {
		if !l.used {
			t.Errorf("listed as a difference, and is none: %s", l.text)
		}
	}
	t.Logf("%d jobs, %d things compared, %d differ as listed", len(besideJobs), len(keys), differences)
}
