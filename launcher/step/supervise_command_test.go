package step

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/launcher/control"
	"github.com/gangway-hpc/gangway/launcher/stdio"
	"github.com/gangway-hpc/gangway/runtime/cgroup"
)

// TestSuperviseMultiProg: ranks run what their lines say, and what all have behind it.
func TestSuperviseMultiProg(t *testing.T) {
	forms(t, func(t *testing.T, spec specFunc, start startFunc) {
		multi := command(spec(3))
		program := string(multi.Program.Args[0]) + " " + rankArg
		multi.Program.MultiProg = fmt.Appendf(nil, "1 %s out=one exit=%%t\n* %[1]s 'out=%%t and more' out=%%t.%%o pid\n", program)
		multi.Program.Args = [][]byte{[]byte("multi.conf"), []byte("out=all")}
		s := start(t, multi)
		c := s.io(stdio.Hello{Primary: true, Follow: true})
		s.begin()
		if end := s.ended(); end.Fault != nil || end.Ranks[0].Exit != 0 || end.Ranks[1].Exit != 1 || end.Ranks[2].Exit != 0 {
			t.Errorf("%+v", end)
		}
		streams, _ := c.output()
		for rank, want := range []string{"%t and more\n0.0\nown number: true\nall\n", "one\n", "%t and more\n2.2\nown number: true\nall\n"} {
			if got := streams[fmt.Sprintf("%d.1", rank)]; got != want {
				t.Errorf("rank %d says %q, want %q", rank, got, want)
			}
		}
	})
	bad := stepSpec(2, "multi.conf")
	bad.Program.MultiProg = []byte("0 true\n")
	if end := startSupervisor(t, bad).kept(); end.Fault == nil || end.Fault.Node || !strings.Contains(end.Fault.What, "no record for task id 1") {
		t.Errorf("%+v", end)
	}
}

// script writes a shell script, and returns its name.
func script(t *testing.T, text string) string {
	name := filepath.Join(t.TempDir(), "script")
	if err := os.WriteFile(name, []byte("#!/bin/sh\n"+text), 0o755); err != nil {
		t.Fatal(err)
	}
	return name
}

// TestSuperviseProlog: what runs before a rank changes its environment by what it says, and what
// runs after it has that environment; both have no standard input.
func TestSuperviseProlog(t *testing.T) {
	s := command(stepSpec(2), "env=FOO", "env=QUX", "env=HOME", "env=EMPTY", "env=CA", "cat", "exitrank=1")
	s.Program.Environ = append(s.Program.Environ, []byte("EMPTY=x"))
	s.Program.TaskProlog = script(t, `cat; echo "prolog of $SLURM_PROCID" >&2
echo "print printed by $SLURM_PROCID"; echo "print   two  spaces"; echo print; echo "export FOO=bar baz"; echo "export  QUX = x"; echo "export EMPTY="
echo "export AB"; echo "export =x"; echo "unset HOME"; echo "nonsense"; echo "  export CA=1"; printf 'export CA=last'`)
	s.Program.TaskEpilog = script(t, `echo not shown; echo "epilog of $SLURM_PROCID FOO=$FOO HOME=$HOME" >&2; exit 3`)
	run := supervise(t, s)
	c := run.io(stdio.Hello{Primary: true, Follow: true})
	run.begin()
	for _, f := range []stdio.Frame{{Type: stdio.Stdin, Data: []byte("input\n")}, {Type: stdio.StdinEOF, Offset: 6}} {
		if err := stdio.Write(c, f); err != nil {
			t.Fatal(err)
		}
	}
	end := run.ended()
	if end.Fault != nil || end.Ranks[0].Exit != 0 || end.Ranks[1].Exit != 3 {
		t.Errorf("%+v", end)
	}
	streams, _ := c.output()
	for rank := range 2 {
		want := fmt.Sprintf("printed by %d\ntwo  spaces\nFOO=bar baz\nQUX= x\nHOME=\nEMPTY=\nCA=last\n", rank)
		if rank == 0 {
			want += "input\n"
		}
		if got := streams[fmt.Sprintf("%d.1", rank)]; got != want {
			t.Errorf("rank %d says %q, want %q", rank, got, want)
		}
		want = fmt.Sprintf("prolog of %d\nepilog of %[1]d FOO=bar baz HOME=\nslurmstepd-n1: error: TaskEpilog failed status=768\n", rank)
		if got := streams[fmt.Sprintf("%d.2", rank)]; got != want {
			t.Errorf("stderr of rank %d: %q, want %q", rank, got, want)
		}
	}
}

// TestSuperviseBadProlog: a rank whose program before it fails, or is not there, does not start,
// and ends as that did; a signal that comes meanwhile reaches it.
func TestSuperviseBadProlog(t *testing.T) {
	for name, test := range map[string]struct {
		prolog, epilog string
		exit           int
		want           string
	}{
		"fails":          {script(t, "exit 5"), "", 5, "slurmstepd-n1: error: --task-prolog failed status=5\n"},
		"is not there":   {"/no/such/file", "", 1, "slurmstepd-n1: error: run_command: user task_prolog can not be executed (/no/such/file) "},
		"is not full":    {"prolog.sh", "", 1, "slurmstepd-n1: error: run_command: user task_prolog can not be executed (prolog.sh) it is not a full path\nslurmstepd-n1: error: --task-prolog failed status=1\n"},
		"epilog":         {"", "/no/such/file", 0, "slurmstepd-n1: error: Could not run user task_epilog [/no/such/file]: "},
		"epilog's child": {"", script(t, "sleep 60 & exit 0"), 0, ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := command(stepSpec(1), "out=ran")
			s.Program.TaskProlog, s.Program.TaskEpilog = test.prolog, test.epilog
			run := supervise(t, s)
			c := run.io(stdio.Hello{Primary: true, Follow: true})
			run.begin()
			if end := run.ended(); end.Fault != nil || end.Ranks[0].Exit != test.exit {
				t.Errorf("%+v", end)
			}
			streams, _ := c.output()
			if ran := streams["0.1"] != ""; !strings.HasPrefix(streams["0.2"], test.want) || ran != (test.exit == 0) {
				t.Errorf("%q", streams)
			}
		})
	}
	s := command(stepSpec(1), "out=ran")
	s.Program.TaskProlog = script(t, "echo ready >&2; exec sleep 60")
	run := supervise(t, s)
	c := run.io(stdio.Hello{Primary: true, Follow: true})
	run.begin() // the step has started, whatever its prolog does
	run.send(control.Request{Kill: &control.Kill{Why: "at once"}})
	if end := run.ended(); end.Ranks[0].Signal == 0 {
		t.Errorf("%+v", end)
	}
	if streams, _ := c.output(); streams["0.1"] != "" {
		t.Errorf("%q", streams)
	}
}

// TestSuperviseEpilogTime: what runs after a rank is killed when it takes too long.
func TestSuperviseEpilogTime(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: takes the five seconds that an epilog has")
	}
	s := command(stepSpec(1), "out=ran")
	s.Program.TaskEpilog = script(t, "sleep 60")
	run := supervise(t, s)
	c := run.io(stdio.Hello{Primary: true, Follow: true})
	begun := time.Now()
	run.begin()
	if end := run.ended(); end.Fault != nil || end.Ranks[0].Exit != 0 {
		t.Errorf("%+v", end)
	}
	if streams, _ := c.output(); streams["0.2"] != "slurmstepd-n1: error: TaskEpilog failed status=9\n" || time.Since(begun) < epilogTime {
		t.Errorf("after %s: %q", time.Since(begun), streams)
	}
}

// TestSuperviseOwnCPUs: two jobs that have a CPU each of a node, and bind, have different ones,
// those of a step of the same job are the same, and what is over is free again.
func TestSuperviseOwnCPUs(t *testing.T) {
	may := mayUse()
	if len(may) < 2 {
		t.Skip("needs two CPUs")
	}
	dir := t.TempDir()
	own := func(id job.ID, want int) (*supervisor, []int) {
		spec := stepSpec(1)
		spec.Key.Job, spec.Nodes[0].JobCPUs = id, want
		s := &supervisor{SuperviseOptions: SuperviseOptions{Programs: filepath.Join(dir, "programs")}, spec: spec}
		cpus, err := s.ownCPUs(t.Context(), whereAre("/sys", may))
		if err != nil {
			t.Fatal(err)
		}
		var all []int
		for _, c := range cpus {
			all = append(all, c.ID)
		}
		return s, all
	}
	a, cpusA := own(1, 1)
	b, cpusB := own(2, len(may)-1)
	again, same := own(1, 1)
	if len(cpusA) != 1 || len(cpusB) != len(may)-1 || slices.Contains(cpusB, cpusA[0]) || !slices.Equal(cpusA, same) {
		t.Errorf("of %v: %v and %v, then %v", may, cpusA, cpusB, same)
	}
	if _, none := own(3, 1); none != nil {
		t.Errorf("of %v a third job has %v", may, none)
	}
	if _, all := own(4, len(may)); !slices.Equal(all, may) {
		t.Errorf("a whole node is %v", all)
	}
	for _, s := range []*supervisor{a, again} { // as the end of their processes does
		if err := s.cpus.Release(); err != nil {
			t.Fatal(err)
		}
	}
	if _, free := own(5, 1); !slices.Equal(free, cpusA) {
		t.Errorf("after the end of the first: %v, not %v", free, cpusA)
	}
	if err := b.cpus.Release(); err != nil {
		t.Fatal(err)
	}
}

// TestWhereAre: by the kernel's files; what they do not say is one socket of single threads.
func TestWhereAre(t *testing.T) {
	sys := t.TempDir()
	for name, text := range map[string]string{
		"devices/system/node/node0/cpulist":                        "0,2\n",
		"devices/system/node/node1/cpulist":                        "1,3-5\n",
		"devices/system/node/nodes":                                "0-1\n",
		"devices/system/cpu/cpu0/topology/core_id":                 "7\n",
		"devices/system/cpu/cpu0/topology/physical_package_id":     "0\n",
		"devices/system/cpu/cpu1/topology/core_id":                 "7\n",
		"devices/system/cpu/cpu1/topology/physical_package_id":     "1\n",
		"devices/system/cpu/cpu3/topology/physical_package_id":     "-1\n", // as a guest of some has it
		"devices/system/cpu/cpu3/topology/core_id":                 "nonsense\n",
		"devices/system/cpu/cpu3/topology/thread_siblings_list":    "3\n",
		"devices/system/cpu/cpu99/topology/physical_package_id":    "1\n",
		"devices/system/cpu/cpufreq/policy0/affected_cpus":         "0\n",
		"devices/system/node/node1/meminfo":                        "\n",
		"devices/system/node/has_cpu":                              "0-1\n",
		"devices/system/cpu/cpu1/topology/core_cpus_list":          "1\n",
		"devices/system/cpu/cpu0/topology/physical_package_id.bak": "9\n",
	} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(sys, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(sys, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	const want = "[{0 7 0 0} {1 7 1 1} {2 2 0 0} {3 3 0 1}]"
	if got := fmt.Sprint(whereAre(sys, []int{0, 1, 2, 3})); got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if got := fmt.Sprint(whereAre(filepath.Join(sys, "nothing"), []int{4})); got != "[{4 4 0 0}]" {
		t.Error(got)
	}
	if set := cgroup.Set(mayUse()); len(whereAre("/sys", set)) != len(set) {
		t.Error("of this machine")
	}
}
