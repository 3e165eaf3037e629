package test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// stepCase is a step of a job of four nodes with four tasks on each, and what is said: for "where",
// which task is on which node, with which local number; else output and errors.
type stepCase struct {
	args string // of srun, and of env before it
	want string
}

// where are what srun 22.05 with four slurmd answers, but for lines about its own retries.
func where() []stepCase {
	const ignoring = "; Warning: can't honor --ntasks-per-node set to 4 which doesn't match the requested tasks 6 with the number of requested nodes %d. Ignoring --ntasks-per-node."
	six := func(layout string, nodes int) string { return layout + fmt.Sprintf(ignoring, nodes) }
	return []stepCase{
		{"-m block -n6", six("0@n1.0 1@n1.1 2@n2.0 3@n2.1 4@n3.0 5@n4.0", 4)},
		{"-m cyclic -n6", six("0@n1.0 1@n2.0 2@n3.0 3@n4.0 4@n1.1 5@n2.1", 4)},
		{"-m plane=2 -n6", six("0@n1.0 1@n1.1 2@n2.0 3@n2.1 4@n3.0 5@n4.0", 4)},
		{"-m plane=4 -n6", six("0@n1.0 1@n1.1 2@n1.2 3@n2.0 4@n3.0 5@n4.0", 4)},
		{"-m block,Pack -n6", six("0@n1.0 1@n1.1 2@n1.2 3@n1.3 4@n2.0 5@n2.1", 1)},
		{"-m cyclic,Pack -n6", six("0@n1.0 1@n2.0 2@n1.1 3@n2.1 4@n1.2 5@n2.2", 1)},
		{"-m pack -n3", "0@n1.0 1@n1.1 2@n1.2"},
		{"-n6 -N3", six("0@n1.0 1@n1.1 2@n2.0 3@n2.1 4@n3.0 5@n3.1", 3)},
		{"-n6 -N2-3", six("0@n1.0 1@n1.1 2@n2.0 3@n2.1 4@n3.0 5@n3.1", 2)},
		{"-n3", "0@n1.0 1@n2.0 2@n3.0; Warning: can't run 3 processes on 4 nodes, setting nnodes to 3"},
		{"-r1 -N2 -n6", six("0@n2.0 1@n2.1 2@n2.2 3@n3.0 4@n3.1 5@n3.2", 2)},
		{"-r2 -N2 -n2", "0@n3.0 1@n4.0"},
		{"-r3 -N2 -n2", "; error: --relative and --nodes option incompatible with count of allocated nodes (3+2>4)"},
		{"-r1 -n4", "; error: --relative and SLURM_JOB_NUM_NODES option incompatible with count of allocated nodes (1+4>4)"},
		{"-N5 -n5", "; error: Only allocated 4 nodes asked for 5"},
		{"-m arbitrary -w n3,n1,n1,n2 -n4", "0@n3.0 1@n1.0 2@n1.1 3@n2.0"},
		{"-m arbitrary -w n3,n1,n1,n2", "0@n3.0 1@n1.0 2@n1.1 3@n2.0"},
		{"-m arbitrary -n4", "; error: You asked for 4 tasks but hostlist specified 0 nodes"},
		{"SLURM_HOSTFILE=hosts -m arbitrary", "0@n2.0 1@n2.1 2@n4.0 3@n1.0"},
		{"SLURM_HOSTFILE=hosts -n4", "0@n2.0 1@n2.1 2@n4.0 3@n1.0"},
		{"-w n3 -n2", "0@n1.0 1@n3.0; Warning: can't run 2 processes on 4 nodes, setting nnodes to 2"},
		{"-x n1 -n3", "0@n2.0 1@n3.0 2@n4.0; Warning: can't run 3 processes on 4 nodes, setting nnodes to 3"},
		{"-O -N1 -n6", "0@n1.0 1@n1.1 2@n1.2 3@n1.3 4@n1.4 5@n1.5; Warning: can't honor --ntasks-per-node set to 4 which doesn't match the requested tasks 6 with the number of requested nodes 1. Ignoring --ntasks-per-node."},
		{"-n1 -N1 --gres=gpu:5", "; error: Unable to create step for job J: Invalid generic resource (gres) specification"},
		{"-n1 -N1 -c9", "; error: Unable to create step for job J: More processors requested than permitted"},
		{"-n1 -N1 --exact -c9", "; error: Unable to create step for job J: More processors requested than permitted"},
		{"-n1 -N1 --mem=99999999", "; error: Unable to create step for job J: Memory required by task is not available"},
		{"-n1 -N1 --gpus-per-task=3", "; error: Unable to create step for job J: Invalid generic resource (gres) specification"},
		{"-n2 -N1 --tres-per-task=cpu=2,gres/gpu=1", "0@n1.0 1@n1.1"},
	}
}

func testSteps(t *testing.T, c *cluster) {
	home := filepath.Join(c.dir, "home")
	write := func(name, text string) string {
		t.Helper()
		name = filepath.Join(home, name)
		if err := os.WriteFile(name, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
		return name
	}
	write("hosts", "n2\nn2\nn4\nn1\n")
	write("where", "#!/bin/sh\necho $SLURM_PROCID@$SLURMD_NODENAME.$SLURM_LOCALID\n")
	var script strings.Builder
	for i, w := range where() {
		variables, args := "", w.args
		if first, rest, _ := strings.Cut(args, " "); strings.Contains(first, "SLURM_") {
			variables, args = first, rest
		}
		fmt.Fprintf(&script, "%s srun %s ./where >out.%d 2>err.%[3]d\n", variables, args, i)
	}
	o := outcomeOf(t, c.command("salloc", "-N4", "-n16", "--ntasks-per-node=4", "--gres=gpu:2", "sh", "-c", script.String()))
	if !strings.Contains(o.err, "Granted job allocation") {
		t.Fatalf("%+v", o)
	}
	for i, w := range where() {
		out, err := os.ReadFile(filepath.Join(home, fmt.Sprint("out.", i)))
		if err != nil {
			t.Fatal(err)
		}
		errs, err := os.ReadFile(filepath.Join(home, fmt.Sprint("err.", i)))
		if err != nil {
			t.Fatal(err)
		}
		got := strings.Join(strings.Fields(sorted(string(out))), " ")
		for line := range strings.Lines(string(errs)) {
			if line = strings.TrimSpace(strings.TrimPrefix(line, "srun: ")); !strings.Contains(line, "error: create step: ") { // ours, behind Slurm's
				got += "; " + line
			}
		}
		if got = regexp.MustCompile(`for job \d+:`).ReplaceAllString(got, "for job J:"); got != w.want {
			t.Errorf("srun %s:\n%s, with Slurm\n%s", w.args, got, w.want)
		}
	}
	testStepPrograms(t, c, write)
}

// testStepPrograms: what runs as tasks, before and after them, and where srun is.
func testStepPrograms(t *testing.T, c *cluster, write func(name, text string) string) {
	write("multi", "0 ./where\n* sh -c 'echo $0 $1 $2 of $SLURM_NTASKS' %t %o\n")
	prolog := write("prolog", "#!/bin/sh\necho export FOO=bar\necho print from the prolog\n")
	epilog := write("epilog", "#!/bin/sh\necho $FOO of $SLURM_PROCID >> epilogs\n")
	here := write("here", "#!/bin/sh\necho here ${SLURM_STEP_ID:-before}; exit $EXIT\n")
	for _, r := range []struct {
		args []string
		code int
		out  string // sorted lines
		errs string
	}{
		{[]string{"-N3", "-n3", "--multi-prog", "multi", "more"}, 0, "0@n1.0\n1 1 more of 3\n2 2 more of 3", ""},
		{[]string{"--multi-prog", "no-file"}, 1, "", "^srun: error: Could not open multi_prog config file no-file\n$"},
		{append([]string{"-N2", "--task-prolog=" + prolog, "--task-epilog=" + epilog}, inShell("echo $SLURM_PROCID $FOO")...), 0, "0 bar\n1 bar\nfrom the prolog\nfrom the prolog", ""},
		{[]string{"--task-prolog=/bin/false", "echo"}, 1, "", "slurmstepd-n1: error: --task-prolog failed status=1\nsrun: error: n1: task 0: Exited with exit code 1\n$"},
		{[]string{"--prolog=" + here, "--epilog=./here", "echo", "step"}, 0, "here 0\nhere before\nstep", ""},
		{append([]string{"-N2", "-l", "--wait=1"}, inShell("test $SLURM_PROCID = 0 || sleep 60")...), 137, "", `(?s)^srun: First task exited 1s ago\nsrun: StepId=\d+\.0 task 1: running\nsrun: StepId=\d+\.0 task 0: exited\n.*srun: Job step aborted: Waiting up to 32 seconds for job step to finish.\nsrun: error: n2: task 1: (Killed|Terminated)\n`},
		{append([]string{"-n2", "--cpu-bind=verbose,map_cpu:0"}, inShell("grep Cpus_allowed_list /proc/self/status")...), 0, "", `(?s)^(cpu-bind=MAP  - n1, task  [01]  [01] \[\d+\]: mask 0x1 set\n){2}$`},
		{[]string{"-n1", "--get-user-env", "true"}, 255, "", "unrecognized option"},
	} {
		cmd := c.command("srun", r.args...)
		cmd.Env = append(cmd.Env, "EXIT=0")
		o := outcomeOf(t, cmd)
		if o.code != r.code && !(r.code == 137 && o.code == 143) || r.errs == "" && (o.err != "" || sorted(o.out) != r.out) || !matches(r.errs, o.err) {
			t.Errorf("srun %q: exit %d, want %d\n%swant\n%s\nerrors:\n%swant %q", r.args, o.code, r.code, o.out, r.out, o.err, r.errs)
		}
	}
	if got := sorted(c.file(t, "epilogs", "(?s)bar.*bar")); got != "bar of 0\nbar of 1" {
		t.Errorf("epilogs: %q", got)
	}
	failing := c.command("srun", "--prolog="+here, "echo", "step")
	failing.Env = append(failing.Env, "EXIT=4")
	if o := outcomeOf(t, failing); o.code != 4 || o.out != "here before\n" || !strings.Contains(o.err, "srun: error: srun prolog failed rc = 4. Aborting step.\n") {
		t.Errorf("%+v", o)
	}
	// A step that is to start at once does not wait for others.
	o := outcomeOf(t, c.command("salloc", "-n1", "sh", "-c", `srun sh -c "echo >running; exec sleep 60" & until test -e running; do sleep 0.1; done; srun -I true; echo $?; kill $!; wait`))
	if o.out != "1\n" || !regexp.MustCompile(`srun: error: Unable to create step for job \d+: Requested nodes are busy\n`).MatchString(o.err) {
		t.Errorf("srun -I in a job that is busy: %+v", o)
	}
	// A script's own interrupts count, though its shell has them ignored for what is in the background.
	like := c.command("srun")
	shell := exec.Command("/bin/sh", "-c", "srun -N2 sh -c 'echo ready; exec sleep 60' & p=$!; until test -e go; do sleep 0.1; done; kill -INT $p; sleep 0.3; kill -INT $p; wait $p")
	shell.Env, shell.Dir, shell.SysProcAttr = like.Env, like.Dir, like.SysProcAttr
	b := inBackground(t, shell)
	waitFor(t, func() bool { return strings.Count(b.out.String(), "ready") == 2 })
	begun := time.Now()
	write("go", "")
	b.ends(t, 130)
	if text := b.out.String(); !strings.Contains(text, "sending Ctrl-C to StepId=") || time.Since(begun) > 20*time.Second {
		t.Errorf("after %s:\n%s", time.Since(begun), text)
	}
}
