package slurm_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/gangway-hpc/gangway/internal/slurm"
)

// fate is what becomes of an option.
type fate struct {
	value string // one that is taken, behind "="; "-": it has none
	// changes: the request is another one with it. Else it is taken because it asks for
	// what is the case anyway, or for nothing that a job could notice.
	changes bool
	refused string // a value that is refused by the option's name; "-": it has none; empty: none is
}

func acts(value string) fate            { return fate{value: value, changes: true} }
func refusedByName(value string) fate   { return fate{refused: value} }
func noMatter(value, other string) fate { return fate{value: value, refused: other} }

// fates are those of all options of sbatch, srun and salloc: of Slurm 22.05, of later ones as far
// as they are known here, and of Pyxis. A name that has another meaning for a command has it behind a colon.
func fates(t *testing.T) map[string]fate {
	hosts := filepath.Join(t.TempDir(), "hosts")
	if err := os.WriteFile(hosts, []byte("n1\nn2\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	all := map[string]fate{
		"account": acts("a"), "array": acts("1-3"), "begin": acts("now+1hour"), "chdir": acts("/"), "comment": acts("a"),
		"constraint": acts("a"), "contiguous": acts("-"), "cpus-per-gpu": acts("2"), "cpus-per-task": acts("2"), "deadline": acts("now+2days"),
		"dependency": acts("afterok:1"), "disable-status": acts("-"), "distribution": acts("cyclic"), "error": acts("e"), "exact": acts("-"),
		"exclude": acts("n1"), "exclusive": acts("-"), "export": acts("A=1"), "export-file": acts("f"), "gpu-bind": acts("single:1"), "gpus": acts("1"),
		"gpus-per-node": acts("1"), "gpus-per-task": acts("1"), "gres": acts("gpu:1"), "help": acts("-"), "hint": acts("nomultithread"), "hold": acts("-"),
		"immediate": acts("9"), "input": acts("i"), "interactive": acts("-"), "job-name": acts("a"), "jobid": acts("1"), "kill-on-bad-exit": acts("-"),
		"label": acts("-"), "licenses": acts("a"), "mem": acts("1"), "mem-per-cpu": acts("1"), "mem-per-gpu": acts("1"), "multi-prog": acts("-"), "nice": acts("5"),
		"no-shell": acts("-"), "nodefile": acts(hosts), "nodelist": acts("n1"), "nodes": acts("2"), "ntasks": acts("2"), "ntasks-per-gpu": acts("2"),
		"ntasks-per-node": acts("2"), "open-mode": acts("append"), "output": acts("o"), "overlap": acts("-"), "oversubscribe": acts("-"), "parsable": acts("-"),
		"partition": acts("p"), "prefer": acts("a"), "priority": acts("5"), "propagate": acts("STACK"), "pty": acts("-"), "qos": acts("q"), "quiet": acts("-"),
		"quit-on-interrupt": acts("-"), "relative": acts("1"), "no-requeue": acts("-"), "segment": acts("2"), "signal": acts("USR1"), "switches": acts("1"),
		"tasks-per-node": acts("2"), "test-only": acts("-"), "threads-per-core": acts("1"), "time": acts("5"), "time-min": acts("5"), "unbuffered": acts("-"),
		"usage": acts("-"), "verbose": acts("-"), "version": acts("-"), "wait:sbatch": acts("-"), "wait:srun": acts("5"), "wrap": acts("true"),
		"bell": acts("-"), "no-bell": acts("-"),

		"clusters": {value: "all", changes: true, refused: "other"}, "cluster": {value: "all", changes: true, refused: "other"}, "cpu-bind": acts("none"), "cpu_bind": acts("none"),
		"het-group": noMatter("0", "1"), "pack-group": noMatter("0", "1"), "ignore-pbs": noMatter("-", ""), "mail-type": acts("END"), "mail-user": acts("a@b"), "kill-on-invalid-dep": acts("yes"), "get-user-env": acts("-"),
		"mem-bind": noMatter("none", "rank"), "acctg-freq": noMatter("task=30", ""), "gres-flags": noMatter("disable-binding", "enforce-binding"), "treewidth": noMatter("9", ""), "mpi": noMatter("none", "pmix"), "msg-timeout": noMatter("9", ""), "no-kill": noMatter("off", "set"),
		"requeue": noMatter("-", ""), "profile": noMatter("none", "task"), "threads:srun": noMatter("9", ""), "wait-all-nodes": noMatter("1", ""),
		"wckey": acts("a"), "whole": noMatter("-", ""),
		"prolog": acts("p"), "epilog": acts("e"), "task-prolog": acts("p"), "task-epilog": acts("e"), "ntasks-per-core": acts("1"), "tres-per-task": acts("cpu=2,gres/gpu=1"),
		"overcommit:srun": acts("-"), "overcommit:sbatch": refusedByName("-"), "overcommit:salloc": refusedByName("-"),
	}
	for _, name := range []string{"image", "mounts", "workdir", "name", "save", "env", "unshare"} {
		all["container-"+name] = acts("a")
	}
	for _, name := range []string{"mount-home", "remap-root", "entrypoint", "entrypoint-log"} {
		all["container-"+name], all["no-container-"+name] = acts("-"), acts("-")
	}
	all["container-writable"], all["container-readonly"] = acts("-"), acts("-")
	for name := range strings.FieldsSeq(`accel-bind batch bb bbf bcast bcast-exclude cluster-constraint compress container container-id context
		core-spec cores-per-socket cpu-freq delay-boot extra extra-node-info gid gpu-freq gpus-per-socket
		kill-command mcs-label mincpus network ntasks-per-socket ntasks-per-tres oom-kill-step
		power reservation resv-ports send-libs slurmd-debug sockets-per-node thread-spec tmp
		tres-bind uid x11`) {
		all[name] = refusedByName("1")
	}
	for name := range strings.FieldsSeq("async consolidate-segments debugger-test external-launcher no-allocate preserve-env reboot spread-job spread-segments stepmgr use-min-nodes") {
		all[name] = refusedByName("-")
	}
	return all
}

func has(all map[string]fate, c slurm.Command, name string) bool {
	_, one := all[name]
	_, other := all[name+":"+c.String()]
	return one || other
}

// request is what an option makes of a command, for comparison.
func request(t *testing.T, c slurm.Command, option, value string) (string, error) {
	t.Helper()
	var args []string
	switch {
	case option != "" && value == "-":
		args = append(args, "--"+option)
	case option != "":
		args = append(args, "--"+option+"="+value)
	}
	switch option {
	case "gpus-per-task", "tres-per-task":
		args = append(args, "-n1")
	case "relative":
		args = append(args, "--jobid=1", "-N1")
	case "ntasks-per-gpu":
		args = append(args, "--gpus=1")
	}
	if c == slurm.Sbatch && option != "wrap" {
		args = append(args, "script")
	} else if c == slurm.Srun {
		args = append(args, "true")
	}
	o, err := parse(c, args, "#!/bin/sh\n", nil)
	if err != nil {
		return "", err
	}
	o.Operands = nil
	text, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	return string(text), nil
}

// TestFates: every option changes what is asked for, or is refused by its name, or is known
// to make no difference.
func TestFates(t *testing.T) {
	for name, f := range fates(t) {
		option, only, _ := strings.Cut(name, ":")
		known := false
		for _, c := range []slurm.Command{slurm.Sbatch, slurm.Srun, slurm.Salloc} {
			_, err := parse(c, []string{"--" + option + "=1"}, "#!/bin/sh\n", nil)
			if text, _ := refusal(c, err); strings.Contains(text, "unrecognized option") || strings.Contains(text, "ambiguous") {
				continue
			}
			if only != "" && c.String() != only {
				continue
			}
			known = true
			if f.value != "" {
				bare, err := request(t, c, "", "")
				if err != nil {
					t.Fatal(err)
				}
				if with, err := request(t, c, option, f.value); err != nil || (with != bare) != f.changes {
					t.Errorf("%s --%s %s: %v; it changes what is asked for: %v", c, option, f.value, err, with != bare)
				}
			}
			if f.refused != "" {
				_, err := request(t, c, option, f.refused)
				if text, code := refusal(c, err); code == 0 || !strings.Contains(text, "--"+option) && !strings.Contains(text, "--clusters") || !strings.Contains(text, "support") && !strings.Contains(text, "steps run in jobs only") {
					t.Errorf("%s --%s %s is not refused by its name: %v", c, option, f.refused, err)
				}
			}
		}
		if !known {
			t.Errorf("--%s is of no command", option)
		}
	}
	all := fates(t)
	for _, c := range []slurm.Command{slurm.Sbatch, slurm.Srun, slurm.Salloc} {
		for _, o := range slurm.OptionsOf(c) {
			if !has(all, c, o.Long) {
				t.Errorf("%s --%s: nothing says what becomes of it", c, o.Long)
			}
		}
	}
}

// TestFatesAgainstSlurm: there is a fate for every option that Debian's commands have, by their
// help, and by what they say of beginnings of names that are ambiguous.
func TestFatesAgainstSlurm(t *testing.T) {
	conf := theirs(t)
	all := fates(t)
	for _, c := range []slurm.Command{slurm.Sbatch, slurm.Srun, slurm.Salloc} {
		var names []string
		for letter := 'a'; letter <= 'z'; letter++ {
			text, _ := run(t, conf, c.String(), "--"+string(letter)+"=", "--nodes=zz")
			for _, m := range regexp.MustCompile(`'--([a-z_-]+)'`).FindAllStringSubmatch(text, -1) {
				names = append(names, m[1])
			}
		}
		help := output(t, conf, c.String(), "--help")
		for _, m := range regexp.MustCompile(`(?m)^ *(?:-\w,? +)?--([a-z][a-z_-]+)`).FindAllStringSubmatch(help, -1) {
			names = append(names, m[1])
		}
		slices.Sort(names)
		if names = slices.Compact(names); len(names) < 80 {
			t.Errorf("%s has %d options: %q", c, len(names), names)
		}
		for _, name := range names {
			if !has(all, c, name) && len(name) > 1 {
				t.Errorf("Slurm's %s has --%s", c, name)
			}
			_, err := parse(c, []string{"--" + name + "=1"}, "#!/bin/sh\n", nil)
			if text, _ := refusal(c, err); len(name) > 1 && strings.Contains(text, "unrecognized option") {
				t.Errorf("Slurm's %s has --%s, and ours does not know it", c, name)
			}
		}
	}
}
