package slurm_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/internal/slurm"
)

// parse reads a command line, without variables.
func parse(c slurm.Command, args []string, script string, environ map[string]string) (*slurm.Options, error) {
	return slurm.Parse(c, slurm.Source{
		Args: args, Now: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC),
		Getenv: func(name string) string { return environ[name] },
		Script: func(*slurm.Options) ([]byte, error) { return []byte(script), nil },
	})
}

// refusal is what the command would print, and its exit code.
func refusal(c slurm.Command, err error) (string, int) {
	var r *slurm.Refusal
	var u *slurm.UsageError
	switch {
	case errors.As(err, &u):
		return c.String() + ": " + u.Text + "\nTry \"" + c.String() + " --help\" for more information\n", 255
	case errors.As(err, &r):
		var b strings.Builder
		for _, line := range r.Lines {
			if !r.Plain {
				b.WriteString(c.String() + ": ")
			}
			b.WriteString(line + "\n")
		}
		return b.String(), r.Code
	}
	return "", 0
}

// refused are command lines that Slurm's own commands refuse without a controller, and
// what they say.
func refused() []struct {
	c    slurm.Command
	line string
	text string
	code int
} {
	return []struct {
		c    slurm.Command
		line string
		text string
		code int
	}{
		{slurm.Sbatch, "--nodes=a", "sbatch: error: \"a\" is not a valid node count\n", 255},
		{slurm.Sbatch, "-N4x", "sbatch: error: \"4x\" is not a valid node count\n", 255},
		{slurm.Sbatch, "--nodes=", "sbatch: error: \"\" is not a valid node count\n", 255},
		{slurm.Sbatch, "--nodes=2-x", "sbatch: error: \"x\" is not a valid node count\n", 255},
		{slurm.Sbatch, "--nodes=4-2", "sbatch: error: Maximum node count 2 is less than minimum node count 4\n", 255},
		{slurm.Srun, "-N 2-1 true", "srun: error: Maximum node count 1 is less than minimum node count 2\n", 255},
		{slurm.Sbatch, "--ntasks=a", "sbatch: error: Invalid numeric value \"a\" for --ntasks.\n", 1},
		{slurm.Sbatch, "--ntasks=0", "sbatch: error: Invalid numeric value \"0\" for --ntasks.\n", 1},
		{slurm.Srun, "-n x true", "srun: error: Invalid numeric value \"x\" for --ntasks.\n", 1},
		{slurm.Sbatch, "-c 0", "sbatch: error: Invalid numeric value \"0\" for --cpus-per-task.\n", 1},
		{slurm.Sbatch, "--ntasks-per-node=-1", "sbatch: error: Invalid numeric value \"-1\" for --ntasks-per-node.\n", 1},
		{slurm.Sbatch, "--ntasks-per-gpu=x", "sbatch: error: Invalid numeric value \"x\" for --ntasks-per-gpu.\n", 1},
		{slurm.Sbatch, "--mem=1.5G", "sbatch: error: Invalid --mem specification\n", 255},
		{slurm.Sbatch, "--mem=1P", "sbatch: error: Invalid --mem specification\n", 255},
		{slurm.Sbatch, "--mem=10X", "sbatch: error: Invalid --mem specification\n", 255},
		{slurm.Sbatch, "--mem=-1", "sbatch: error: Invalid --mem specification\n", 255},
		{slurm.Sbatch, "--mem=", "sbatch: error: Invalid --mem specification\n", 255},
		{slurm.Sbatch, "--mem-per-cpu=x", "sbatch: error: Invalid --mem-per-cpu specification\n", 255},
		{slurm.Salloc, "--mem-per-gpu=x", "salloc: error: Invalid --mem-per-gpu specification\n", 255},
		{slurm.Sbatch, "--mem=1 --mem-per-cpu=1", "sbatch: fatal: --mem, --mem-per-cpu, and --mem-per-gpu are mutually exclusive.\n", 1},
		{slurm.Sbatch, "--time=1d", "sbatch: error: Invalid --time specification\n", 255},
		{slurm.Sbatch, "--time=1:2:3:4", "sbatch: error: Invalid --time specification\n", 255},
		{slurm.Salloc, "-w n1,n2 -N1", "salloc: error: invalid number of nodes (-N 2-1)\n", 1},
		{slurm.Sbatch, "--time-min=x", "sbatch: error: Invalid --time-min specification\n", 255},
		{slurm.Sbatch, "--begin=foo", "Invalid time specification (pos=0): foo\nsbatch: error: Invalid --begin specification\n", 255},
		{slurm.Sbatch, "--deadline=foo", "Invalid time specification (pos=0): foo\nsbatch: error: Invalid --deadline specification\n", 255},
		{slurm.Sbatch, "--signal=FOO@9", "sbatch: error: Invalid --signal specification\n", 255},
		{slurm.Sbatch, "--signal=USR1@70000", "sbatch: error: Invalid --signal specification\n", 255},
		{slurm.Sbatch, "--signal=B:", "sbatch: error: Invalid --signal specification\n", 255},
		{slurm.Sbatch, "--gres=gpu=2", "sbatch: error: Invalid generic resource (gres) specification\n", 1},
		{slurm.Sbatch, "--gres=gres/gpu:2", "sbatch: error: Invalid generic resource (gres) specification\n", 1},
		{slurm.Sbatch, "--exclusive=foo", "sbatch: error: Invalid --exclusive specification\n", 255},
		{slurm.Srun, "--exclusive=foo true", "srun: error: Invalid --exclusive specification\n", 255},
		{slurm.Sbatch, "--nice=3000000000", "sbatch: error: Invalid --nice value, out of range (+/- 2147483645)\n", 255},
		{slurm.Sbatch, "--open-mode=x", "sbatch: error: Invalid --open-mode specification\n", 255},
		{slurm.Sbatch, "--distribution=foo", "sbatch: error: Invalid --distribution specification\n", 255},
		{slurm.Sbatch, "--hint=foo", "sbatch: error: unrecognized --hint argument \"foo\", see --hint=help\n", 1},
		{slurm.Sbatch, "--gpu-bind=foo", "sbatch: error: Invalid --gpu-bind argument: gpu:foo\n", 255},
		{slurm.Sbatch, "--switches=x", "sbatch: error: Invalid numeric value \"x\" for --switches.\n", 1},
		{slurm.Sbatch, "--threads-per-core=x", "sbatch: error: Invalid numeric value \"x\" for --threads-per-core.\n", 1},
		{slurm.Sbatch, "--propagate=x", "sbatch: error: Bad rlimit name: x\nsbatch: error: --propagate=x is not valid.\n", 1},
		{slurm.Sbatch, "--no-kill=x", "sbatch: error: Invalid --no-kill specification\n", 255},
		{slurm.Sbatch, "--nodefile=/no/such", "sbatch: error: slurm_allocate_resources error opening file /no/such, No such file or directory\nsbatch: error: Invalid --nodefile node file\n", 255},
		{slurm.Srun, "--jobid=x true", "srun: error: Invalid numeric value \"x\" for --jobid.\n", 1},
		{slurm.Srun, "--relative=1 true", "srun: fatal: --relative option invalid for job allocation request\n", 1},
		{slurm.Srun, "--relative=x true", "srun: error: Invalid numeric value \"x\" for --relative.\n", 1},
		{slurm.Srun, "--wait=x true", "srun: error: Invalid numeric value \"x\" for --wait.\n", 1},
		{slurm.Srun, "--kill-on-bad-exit=x true", "srun: error: Invalid numeric value \"x\" for --kill-on-bad-exit.\n", 1},
		{slurm.Srun, "--immediate=x true", "srun: error: Invalid numeric value \"x\" for immediate.\n", 1},
		{slurm.Srun, "--label=1 true", "srun: option '--label' doesn't allow an argument\nTry \"srun --help\" for more information\n", 255},
		{slurm.Srun, "--threads=x true", "srun: error: Invalid numeric value \"x\" for --threads.\n", 1},
		{slurm.Salloc, "--immediate=x", "salloc: error: Invalid numeric value \"x\" for immediate.\n", 1},
		{slurm.Sbatch, "--ti=1", "sbatch: option '--ti=1' is ambiguous; possibilities: '--time' '--time-min'\nTry \"sbatch --help\" for more information\n", 255},
		{slurm.Sbatch, "--par", "sbatch: option '--par' is ambiguous; possibilities: '--parsable' '--partition'\nTry \"sbatch --help\" for more information\n", 255},
		{slurm.Sbatch, "--zz", "sbatch: unrecognized option '--zz'\nTry \"sbatch --help\" for more information\n", 255},
		{slurm.Sbatch, "-f", "sbatch: invalid option -- 'f'\nTry \"sbatch --help\" for more information\n", 255},
		{slurm.Sbatch, "-N", "sbatch: option requires an argument -- 'N'\nTry \"sbatch --help\" for more information\n", 255},
		{slurm.Sbatch, "--nodes", "sbatch: option '--nodes' requires an argument\nTry \"sbatch --help\" for more information\n", 255},
		{slurm.Sbatch, "--parsable=x", "sbatch: option '--parsable' doesn't allow an argument\nTry \"sbatch --help\" for more information\n", 255},
	}
}

func TestRefused(t *testing.T) {
	for _, r := range refused() {
		args := strings.Fields(r.line)
		if r.c == slurm.Sbatch {
			args = append(args, "--wrap=true")
		}
		if r.line == "-N" || r.line == "--nodes" {
			args = args[:1]
		}
		_, err := parse(r.c, args, "#!/bin/sh\n", nil)
		if text, code := refusal(r.c, err); text != r.text || code != r.code {
			t.Errorf("%s %s: exit %d\n%swant exit %d\n%s", r.c, r.line, code, text, r.code, r.text)
		}
	}
}

// theirs is where Debian's own commands are, with a configuration for which they need no
// controller. The test is skipped without them.
func theirs(t *testing.T) string {
	t.Helper()
	if _, err := exec.LookPath("/usr/bin/sbatch"); err != nil {
		t.Skip("needs Slurm's commands in /usr/bin (Debian: slurm-client)")
	}
	name := filepath.Join(t.TempDir(), "slurm.conf")
	conf := "ClusterName=x\nSlurmctldHost=localhost\nSlurmctldPort=1\nAuthType=auth/none\nCredType=cred/none\nGresTypes=gpu\nTaskPlugin=task/affinity\nMessageTimeout=2\n" +
		"NodeName=n[1-4] Gres=gpu:2 CPUs=4\nPartitionName=p Nodes=ALL Default=YES\n"
	if err := os.WriteFile(name, []byte(conf), 0o644); err != nil {
		t.Fatal(err)
	}
	return name
}

// command is one of Debian's commands.
func command(t *testing.T, conf, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(t.Context(), "/usr/bin/"+name, args...)
	cmd.Args[0] = name
	cmd.Env = []string{"SLURM_CONF=" + conf, "PATH=/usr/bin:/bin", "HOME=/"}
	return cmd
}

// output is what one of Debian's commands prints.
func output(t *testing.T, conf, name string, args ...string) string {
	t.Helper()
	out, err := command(t, conf, name, args...).Output()
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// run runs one of Debian's commands.
func run(t *testing.T, conf, name string, args ...string) (stderr string, code int) {
	t.Helper()
	cmd := command(t, conf, name, args...)
	var b strings.Builder
	cmd.Stderr = &b
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return b.String(), cmd.ProcessState.ExitCode()
}

// TestRefusedAgainstSlurm: the sentences are those of Debian's commands.
func TestRefusedAgainstSlurm(t *testing.T) {
	conf := theirs(t)
	for _, r := range refused() {
		args := strings.Fields(r.line)
		if r.c == slurm.Sbatch && r.line != "-N" && r.line != "--nodes" {
			args = append(args, "--wrap=true")
		}
		text, code := run(t, conf, r.c.String(), args...)
		if text != r.text || code != r.code {
			t.Errorf("Slurm's %s %s: exit %d\n%sours is exit %d\n%s", r.c, r.line, code, text, r.code, r.text)
		}
	}
}

// directiveWords runs a script through Debian's sbatch, which says with -vvv what words it
// found. An option that there is not ends it before it looks for a controller.
func directiveWords(t *testing.T, conf, script string) []string {
	name := filepath.Join(t.TempDir(), "script")
	if err := os.WriteFile(name, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	text, _ := run(t, conf, "sbatch", "-vvv", name)
	words := []string{}
	for _, m := range regexp.MustCompile(`(?m)^sbatch: debug2: Found in script, argument "(.*)"$`).FindAllStringSubmatch(text, -1) {
		words = append(words, m[1])
	}
	if m := regexp.MustCompile(`(?m)^sbatch: fatal: .*(line \d+: .*)$`).FindStringSubmatch(text); m != nil {
		return []string{"!", regexp.MustCompile(`\[\s+`).ReplaceAllString(m[1], "[")}
	}
	return words
}

// TestDirectivesAgainstSlurm: random scripts have the same words as Debian's sbatch finds.
func TestDirectivesAgainstSlurm(t *testing.T) {
	conf := theirs(t)
	r := rand.New(rand.NewPCG(1, 2))
	parts := []string{"-N4", " ", " ", "\t", `"`, "'", `\`, "#", "a b", "x=1", "##", ":", `\ `, `\#`, "é", "--wrap"}
	for range 80 {
		var script strings.Builder
		script.WriteString("#!/bin/sh\n")
		for range 1 + r.IntN(4) {
			switch r.IntN(8) {
			case 0:
				script.WriteString("# comment\n")
			case 1:
				script.WriteString("  \n")
			case 2:
				script.WriteString(" #SBATCH -n1\n")
			case 3:
				script.WriteString("##SBATCH -n1\n")
			default:
				script.WriteString("#SBATCH" + []string{" ", "\t", ""}[r.IntN(3)])
				for range r.IntN(7) {
					script.WriteString(parts[r.IntN(len(parts))])
				}
				script.WriteString("\n")
			}
		}
		if r.IntN(4) == 0 {
			script.WriteString("echo\n#SBATCH -n3\n")
		} else {
			script.WriteString("#SBATCH --zz\n")
		}
		want := directiveWords(t, conf, script.String())
		got, err := slurm.ScriptOptions("script", []byte(script.String()))
		if err != nil {
			_, text, _ := strings.Cut(err.Error(), "script: ")
			got = []string{"!", text}
		}
		if slices.Contains(got, "") {
			continue // there Slurm forgets the rest of the line
		}
		if strings.Join(got, "\n") != strings.Join(want, "\n") {
			t.Fatalf("%s\n%q; Slurm finds %q", script.String(), got, want)
		}
	}
}

// TestOptions: what command lines mean.
func TestOptions(t *testing.T) {
	check := func(name string, ok bool, got any) {
		t.Helper()
		if !ok {
			t.Errorf("%s: %+v", name, got)
		}
	}
	o, err := parse(slurm.Sbatch, strings.Fields("-N2-4 -n8 -c3 --mem=2G --gres=gpu:h100:2 -t 90 -p a,b -x n[1-2] -J name --exclusive --array=0-9:3%2 -d afterok:7,after:8+5 --signal=B:USR1@90 --nice --wrap=x"), "", nil)
	if err != nil {
		t.Fatal(err)
	}
	j := o.Job
	check("nodes", j.MinNodes == 2 && j.MaxNodes == 4 && j.Tasks == 8 && j.CPUsPerTask == 3, j)
	check("memory", j.Memory == job.Memory{MiB: 2048, Per: job.PerNode}, j.Memory)
	check("gres", len(j.GRES) == 1 && j.GRES[0] == job.GRESRequest{Name: "gpu", Type: "h100", Count: 2, Per: job.PerNode}, j.GRES)
	check("time", j.TimeLimit == 90*job.Minute, j.TimeLimit)
	check("place", strings.Join(j.Partitions, "+") == "a+b" && strings.Join(j.Exclude, "+") == "n1+n2" && j.Exclusive, j)
	check("array", j.Array.Len() == 4 && j.Array.Throttle == 2, j.Array)
	check("dependency", len(j.Dependencies.List) == 2 && j.Dependencies.List[1] == job.Dependency{Type: job.After, Job: 8, Delay: 5 * job.Minute}, j.Dependencies)
	check("signal", o.Program.Signal == "USR1" && o.Program.SignalBatch && o.Program.SignalBefore == 90*job.Second, o.Program)
	check("nice", j.Nice == 100, j.Nice)
	check("script", string(o.Program.Script) == "#!/bin/sh\n# This script was created by sbatch --wrap.\n\nx\n", string(o.Program.Script))

	// The command line wins over the environment, and that over the script.
	script := "#!/bin/sh\n#SBATCH -p script -A script --qos=script --mem=1G\n"
	o, err = parse(slurm.Sbatch, []string{"-p", "line", "x.sh"}, script, map[string]string{"SBATCH_PARTITION": "variable", "SBATCH_ACCOUNT": "variable", "SBATCH_MEM_PER_CPU": "5"})
	if err != nil {
		t.Fatal(err)
	}
	check("precedence", o.Job.Partitions[0] == "line" && o.Job.Account == "variable" && o.Job.QOS == "script", o.Job)
	check("a variable yields to what excludes it", o.Job.Memory == job.Memory{MiB: 1024, Per: job.PerNode}, o.Job.Memory)

	// NeMo-Run writes these with an equals sign, which then belongs to the value.
	if o, err = parse(slurm.Sbatch, []string{"-A=team", "-p=a,b", "x.sh"}, "#!/bin/sh\n", nil); err != nil {
		t.Fatal(err)
	}
	check("equals signs", o.Job.Account == "team" && strings.Join(o.Job.Partitions, "+") == "a+b", o.Job)

	// In a job srun has what that was asked for.
	o, err = parse(slurm.Srun, strings.Fields("--overlap -l hostname -N9"), "", map[string]string{"SLURM_JOB_ID": "7", "SLURM_NNODES": "2", "SLURM_NTASKS": "4", "SLURM_UNBUFFEREDIO": "0", "SLURM_LABELIO": "0"})
	if err != nil {
		t.Fatal(err)
	}
	check("step", o.JobID == 7 && o.Job.MinNodes == 2 && o.Job.Tasks == 4 && o.Overlap && o.Program.Label && !o.Program.Unbuffered, o)
	check("operands", strings.Join(o.Operands, " ") == "hostname -N9", o.Operands)

	// The container's options, as flags.
	o, err = parse(slurm.Sbatch, strings.Fields("--container-image=b --no-container-mount-home x"), "#!/bin/sh\n#SBATCH --container-image=a --container-mount-home --container-mounts=/x\n", nil)
	if err != nil {
		t.Fatal(err)
	}
	check("container", strings.Join(o.Program.Container, " ") == "--container-mounts=/x --container-image=b --no-container-mount-home=true", o.Program.Container)
}

// TestWarned: what is taken, but not as it was asked for, is said.
func TestWarned(t *testing.T) {
	for _, c := range []struct {
		command slurm.Command
		args    string
		want    string
		nodes   string
	}{
		{slurm.Srun, "-w n2,n1,n3 -N1-2 true", "error: Required nodelist includes more nodes than permitted by max-node count (3 > 2). Eliminating nodes from the nodelist.", "n2,n1"},
		{slurm.Srun, "-w n2,n1 -n1 true", "Warning: can't run 1 processes on 2 nodes, setting nnodes to 1", "n2"},
		{slurm.Sbatch, "-w n1,n2 -n1 s", "Warning: can't run 1 processes on 2 nodes, setting nnodes to 1", "n1"},
		{slurm.Srun, "-w n1,n2 -N2-4 true", "", "n1,n2"},
		{slurm.Sbatch, "--mail-type=END,FAIL s", "warning: --mail-type=END,FAIL: mails are not sent by Gangway yet", ""},
		{slurm.Salloc, "--mail-user=a@b", "warning: --mail-user=a@b: mails are not sent by Gangway yet", ""},
		{slurm.Sbatch, "-N0-4 --time-min=5 -t5 --kill-on-invalid-dep=no s", "", ""},
	} {
		o, err := parse(c.command, strings.Fields(c.args), "#!/bin/sh\n", nil)
		if err != nil {
			t.Errorf("%s %s: %v", c.command, c.args, err)
		} else if got := strings.Join(o.Warnings, "|"); got != c.want || strings.Join(o.Job.NodeList, ",") != c.nodes {
			t.Errorf("%s %s: %q, nodes %q", c.command, c.args, got, o.Job.NodeList)
		}
	}
}

// TestContradictions: what Slurm's controller refuses of numbers is refused in its words.
func TestContradictions(t *testing.T) {
	const (
		nodes = "Node count specification invalid\n"
		limit = "Invalid time-min specification (exceeds job's time or other limits)\n"
	)
	for _, c := range []struct {
		command slurm.Command
		args    string
		want    string
	}{
		{slurm.Sbatch, "-N0 s", "sbatch: error: Batch job submission failed: " + nodes},
		{slurm.Srun, "-N 0 true", "srun: error: Unable to allocate resources: " + nodes},
		{slurm.Salloc, "-N0-0", "salloc: error: Job submit/allocate failed: " + nodes},
		{slurm.Sbatch, "--time-min=5 -t3 s", "sbatch: error: Batch job submission failed: " + limit},
		{slurm.Srun, "--time-min=5 -t3 true", "srun: error: Unable to allocate resources: " + limit},
		{slurm.Salloc, "--time-min=5 -t3", "salloc: error: Job submit/allocate failed: " + limit},
	} {
		_, err := parse(c.command, strings.Fields(c.args), "#!/bin/sh\n", nil)
		if text, code := refusal(c.command, err); text != c.want || code != 1 {
			t.Errorf("%s %s: exit %d %q", c.command, c.args, code, text)
		}
	}
}

// TestImmediate: at once is within a second, as with Slurm, and 0 is for ever.
func TestImmediate(t *testing.T) {
	for arg, want := range map[string]job.Duration{"-I": job.Second, "-I3": 3 * job.Second, "--immediate=0": 0, "-N1": 0} {
		if o, err := parse(slurm.Srun, []string{arg, "true"}, "", nil); err != nil || o.Immediate != want {
			t.Errorf("%s: %v %v", arg, o, err)
		}
	}
}

// TestSteps: what srun makes of a job's environment and of a list of nodes.
func TestSteps(t *testing.T) {
	inside := map[string]string{"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "4", "SLURM_NNODES": "4", "SLURM_NTASKS": "16", "SLURM_NTASKS_PER_NODE": "4"}
	for _, test := range []struct{ args, want string }{
		{"-n6 true", "6 4-4 0 [] block=\"\""}, // a number on each node that does not come to it is not heeded
		{"-n3 true", "3 3-3 4 [] block=\"\""},
		{"-n6 -N2 -m pack true", "6 2-2 0 [] block=\"*,pack\""},
		{"-m arbitrary -w n3,n1,n1,n2 true", "4 3-3 0 [n3 n1 n1 n2] block=\"arbitrary\""},
		{"-m arbitrary -w n3,n1,n1,n2 -n2 true", "2 2-2 0 [n3 n1] block=\"arbitrary\""},
		{"-m arbitrary true", "error: You asked for 16 tasks but hostlist specified 0 nodes"},
		{"-r2 -N3 true", "error: --relative and --nodes option incompatible with count of allocated nodes (2+3>4)"},
		{"-r1 true", "error: --relative and SLURM_JOB_NUM_NODES option incompatible with count of allocated nodes (1+4>4)"},
		{"-N5 true", "error: Only allocated 4 nodes asked for 5"},
		{"-N5 --jobid=8 true", "16 5-5 0 [] block=\"\""}, // of another job nothing is known here
	} {
		o, err := parse(slurm.Srun, strings.Fields(test.args), "", inside)
		got := ""
		if err != nil {
			got = err.Error()
		} else {
			got = fmt.Sprintf("%d %d-%d %d %v block=%q", o.Job.Tasks, o.Job.MinNodes, o.Job.MaxNodes, o.Job.TasksPerNode, o.Hosts(), o.Distribution)
		}
		if got != test.want {
			t.Errorf("srun %s: %s, want %s", test.args, got, test.want)
		}
	}
}

// TestNotSupported: what is not carried out is refused by its name, wherever it comes from.
func TestNotSupported(t *testing.T) {
	for _, c := range []struct {
		command slurm.Command
		args    string
		script  string
		environ map[string]string
		want    string
	}{
		{slurm.Sbatch, "--reservation=x s", "#!/bin/sh\n", nil, "--reservation"},
		{slurm.Sbatch, "--mincpus=4 s", "#!/bin/sh\n", nil, "--mincpus"},
		{slurm.Sbatch, "--bb=x s", "#!/bin/sh\n", nil, "--bb"},
		{slurm.Srun, "--mpi=pmix true", "", nil, "--mpi=pmix"},
		{slurm.Srun, "true", "", map[string]string{"SLURM_BCAST": "1"}, "--bcast"},
		{slurm.Sbatch, "-O s", "#!/bin/sh\n", nil, "--overcommit"},
		{slurm.Salloc, "--x11", "", nil, "--x11"},
		{slurm.Salloc, "-M other", "", nil, "--clusters=other"},
		{slurm.Srun, "-n1 true : -n2 true", "", nil, `":"`},
		{slurm.Sbatch, "s", "#!/bin/sh\n#SBATCH -n1\n#SBATCH hetjob\n#SBATCH -n2\n", nil, "#SBATCH hetjob"},
	} {
		_, err := parse(c.command, strings.Fields(c.args), c.script, c.environ)
		text, code := refusal(c.command, err)
		if code == 0 || !strings.HasPrefix(text, c.command.String()+": error: "+c.want) || !strings.Contains(text, "not supported") {
			t.Errorf("%s %s: exit %d %q", c.command, c.args, code, text)
		}
	}
	if o, err := parse(slurm.Sbatch, []string{"--mail-type=NONE", "--mail-type=none", "s"}, "#!/bin/sh\n", nil); err != nil || len(o.Warnings) > 0 {
		t.Error(err, o)
	}
}
