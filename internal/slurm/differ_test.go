package slurm_test

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/gangway-hpc/gangway/internal/slurm"
)

// trial is an option, and values for it that Slurm's command takes or refuses.
type trial struct {
	c      slurm.Command
	option string
	values []string
	late   bool // Slurm looks at it when it has read all
	// Of the values those that are taken or refused otherwise than by Slurm.
	stricter, wider, worded []string
}

func trials() []trial {
	counts := []string{"1", "0", "-1", "+3", "007", "1k", "1.5", "99999999999", "x", "", " 2", "2 ", "0x10", "1,2"}
	sizes := []string{"1", "0", "100M", "1g", "2GB", "2gb", "3T", "1500K", "1kb", "5B", "1.5G", "1P", "10X", "-1", "", "G", "1 G", "1Gx", "0G", "+1"}
	spans := []string{
		"1", "0", "-1", "90", "1:30", "1:2:3", "1-0", "1-2", "1-2:3", "1-2:3:4", "0:3600", "72:00:00", "UNLIMITED", "unlimited", "INFINITE", "infinite",
		"1d", "1:2:3:4", "", "1-", "-", ":30", "1:", "1-2:3:4:5", "+5", "1.5", " 5", "5 ", "abc", "1--2", "-5", "99999999999", "1-x", "0-0:10", "none",
	}
	moments := []string{
		"now", "now+1", "now+60", "now+1hour", "now+2hours", "now+3days", "now+1week", "now+5min", "now+5minutes", "now + 5", "now-1", "today", "tomorrow",
		"midnight", "noon", "fika", "teatime", "elevenses", "16:00", "16:00:30", "4:00pm", "4:00PM", "04:00 AM", "2030-01-01", "2030-01-01T08:00",
		"2030-01-01T08:00:30", "010130", "01/01/30", "01/01", "0101", "01.01.30", "foo", "", "25:00", "16:60", "2030-13-01", "2030-01-32", "13:00pm",
		"now+", "now+x", "now+1fortnight", "nowish", "2030-01-01T", "16", "noon tomorrow", "tomorrow noon", "2030-1-1", "16:00 2030-01-01", "2030-01-01 16:00",
		"1/1/30-16:00", "uts1900000000", "16:0", "1:2:3:4", "monday",
	}
	hosts := []string{"n1", "n[1-4]", "n1,n2", "n[1-2", "n1]", "", "n[2-1]", "n[a-b]", "n[1-2]x", "a b"}
	return []trial{
		{c: slurm.Sbatch, option: "nodes", values: append([]string{"1-2", "2-4k", "1m", "4K", "1M", "2-1", "1-", "-3", "1,3", "1-2-3", "1-15:4", "0-4", "k", "4kk", "5-5"}, counts...), stricter: []string{"+3", "-1", "-3", "99999999999"}, worded: []string{"1-"}},
		{c: slurm.Sbatch, option: "ntasks", values: counts, stricter: []string{"99999999999"}},
		{c: slurm.Sbatch, option: "cpus-per-task", values: counts, stricter: []string{"99999999999"}},
		{c: slurm.Sbatch, option: "ntasks-per-node", values: counts, stricter: []string{"99999999999"}},
		{c: slurm.Sbatch, option: "ntasks-per-gpu", values: counts, stricter: []string{"99999999999"}},
		{c: slurm.Sbatch, option: "cpus-per-gpu", values: counts, stricter: []string{"99999999999"}},
		{c: slurm.Sbatch, option: "threads-per-core", values: counts, stricter: []string{"99999999999"}},
		{c: slurm.Srun, option: "relative", values: counts, stricter: []string{"", "99999999999"}},
		{c: slurm.Srun, option: "wait", values: counts, stricter: []string{"", "99999999999"}},
		{c: slurm.Srun, option: "jobid", values: append([]string{"1.0", "1_2", "12"}, counts...), stricter: []string{"99999999999"}},
		{c: slurm.Srun, option: "kill-on-bad-exit", values: counts, stricter: []string{"", "99999999999"}},
		{c: slurm.Srun, option: "immediate", values: counts, stricter: []string{" 2", ""}},
		{c: slurm.Srun, option: "threads", values: counts, stricter: []string{"99999999999"}},
		{c: slurm.Srun, option: "msg-timeout", values: counts, stricter: []string{"99999999999"}},
		{c: slurm.Sbatch, option: "mem", values: sizes, stricter: []string{"+1"}},
		{c: slurm.Sbatch, option: "mem-per-cpu", values: sizes, stricter: []string{"+1"}},
		{c: slurm.Salloc, option: "mem-per-gpu", values: sizes, stricter: []string{"+1"}},
		{c: slurm.Sbatch, option: "time", values: spans, stricter: []string{"-5", "1-", "99999999999"}},
		{c: slurm.Sbatch, option: "time-min", values: spans, stricter: []string{"-5", "1-", "99999999999"}},
		{c: slurm.Sbatch, option: "begin", values: moments, wider: []string{"elevenses", "now+5min"}},
		{c: slurm.Sbatch, option: "deadline", values: moments, wider: []string{"elevenses", "now+5min"}},
		{c: slurm.Sbatch, option: "array", values: []string{"1", "0-9", "0-9:2", "0-9%2", "1,3,5-7", "[0-9]", "0-9:0", "9-0", "x", "", "1-", "%2", "0-9%", "4000001", "0-9%0", "1,,2", " 1"}, stricter: []string{" 1", "", "%2", "0-9%", "0-9:0", "1,,2", "1-", "4000001", "9-0", "x"}},
		{c: slurm.Sbatch, option: "dependency", values: []string{"1", "afterok:1", "after:1+5", "afterok:1:2", "afterok:1?afterany:2", "singleton", "foo:1", "", "afterok", "aftercorr:1_*", "expand:1", "afterok:x"}, stricter: []string{"", "afterok", "afterok:x", "expand:1", "foo:1"}},
		{c: slurm.Sbatch, option: "signal", values: []string{"USR1", "SIGUSR1", "usr1", "10", "USR1@90", "B:USR1@90", "R:USR1", "RB:USR1@5", "BR:TERM", "FOO", "", "@60", "USR1@", "USR1@x", "USR1@65535", "USR1@65536", "0", "64", "65", "-1", "B:", "b:USR1", "X:USR1", "USR1 ", "KILL", "RTMIN", "POLL", "SYS", "10x", "TTIN", "URG"}, stricter: []string{"-1", "65", "USR1 ", "USR1@"}, wider: []string{"SYS"}},
		{c: slurm.Sbatch, option: "nice", values: []string{"", "5", "-5", "2147483645", "2147483646", "-2147483645", "99999999999", "x", "5x", "1.5"}, stricter: []string{"", "1.5", "5x", "x"}},
		{c: slurm.Sbatch, option: "priority", values: []string{"5", "0", "-1", "TOP", "top", "4294967294", "4294967295", "4294967296", "x", "", "5x"}, stricter: []string{"", "5x", "x"}},
		{c: slurm.Sbatch, option: "switches", values: []string{"1", "1@10", "1@10:00", "0", "-1", "x", "1@x", "1@", "@5", "", "1@1-0", "2@UNLIMITED"}, stricter: []string{"1@", "1@x"}},
		{c: slurm.Sbatch, option: "distribution", values: []string{
			"block", "cyclic", "plane=4", "arbitrary", "*", "block:cyclic", "block:block:fcyclic", "cyclic:*", "*:*:*", "block,NoPack", "block,Pack", "plane", "plane=", "plane=0",
			"plane=x", "foo", "", "block:foo", "BLOCK", "Cyclic:Block", "block:block,NoPack", "block:block:block:block", "block:", "plane=4:block", "nopack", "pack", "NoPack", "arbitrary:block", "block,foo", "fcyclic", "cyclic:fcyclic",
		}, stricter: []string{"block:"}},
		{c: slurm.Srun, option: "distribution", values: []string{"arbitrary", "block,Pack", "Pack", "cyclic:cyclic:cyclic", "block:fcyclic,pack", "plane=2,pack", "*,nopack"}},
		{c: slurm.Srun, option: "ntasks-per-core", values: counts, stricter: []string{"99999999999"}},
		{c: slurm.Sbatch, option: "ntasks-per-core", values: counts, stricter: []string{"99999999999"}},
		{c: slurm.Sbatch, option: "get-user-env", values: []string{"", "L", "S", "10", "10L", "60s", "x", "L10", "10x", "l", "-1"}, stricter: []string{"-1", "L10"}},
		{c: slurm.Sbatch, option: "gres-flags", values: []string{"disable-binding", "foo", "", "disable-binding,foo", "DISABLE-BINDING", "disable"}},
		{c: slurm.Sbatch, option: "acctg-freq", values: []string{"30", "task=30", "0", "task=30,energy=10", "network=5", "filesystem=5", "x", "task=x", "foo=5", "", "task=", "-1", "task=30,x"}},
		{c: slurm.Srun, option: "task-prolog", values: []string{"/bin/true", "x", ""}},
		{c: slurm.Srun, option: "epilog", values: []string{"/bin/true", "x", "none"}},
		{c: slurm.Sbatch, option: "hint", values: []string{"nomultithread", "multithread", "foo", "", "nomultithread,multithread", "NOMULTITHREAD", "compute_bound,nomultithread", "compute_bound", "COMPUTE_BOUND", "help", "help,foo"}, late: true, worded: []string{"help", "help,foo"}},
		{c: slurm.Srun, option: "cpu-bind", values: []string{
			"none", "no", "cores", "core", "threads", "sockets", "ldoms", "boards", "rank", "rank_ldom", "rank_ldoms", "rank:1", "verbose,rank_ldom", "q,v,none", "mask_ldom:zz", "map_ldom:", "quiet", "verbose", "q,cores", "v,cores", "verbose,map_cpu:0,1", "map_cpu:0,1,2", "map_cpu:0x1,0x2",
			"mask_cpu:0x1,0x2", "mask_cpu:zz", "map_cpu:", "map_cpu", "mask_cpu", "foo", "", "cores,foo", "cores,threads", "CORES", "map_ldom:0", "mask_ldom:1", "map_cpu:x", "map_cpu:0*4", "y", "yes", "one_thread",
		}, late: true, stricter: []string{"cores,threads"}, worded: []string{"cores,foo", "map_cpu", "map_cpu:", "map_cpu:0x1,0x2", "map_cpu:x", "map_ldom:", "mask_cpu", "mask_cpu:zz", "mask_ldom:zz"}},
		{c: slurm.Sbatch, option: "gpu-bind", values: []string{"none", "closest", "single:2", "per_task:1", "map_gpu:0,1", "mask_gpu:0x3", "verbose,closest", "v,single:1", "foo", "", "single:", "single:0", "single:x", "per_task:0", "map_gpu:", "map_gpu:x", "gpu:closest", "verbose", "closest,verbose", "map_gpu:0*2,1", "mask_gpu:3*2", "map:0", "mask:3", "single"}, stricter: []string{"closest,verbose", "map_gpu:", "per_task:0", "single:", "single:0", "single:x"}, wider: []string{"gpu:closest", "map:0", "mask:3", "v,single:1"}, worded: []string{"map_gpu:x"}},
		{c: slurm.Sbatch, option: "gres", values: []string{"gpu", "gpu:1", "gpu:h100:2", "gpu:2k", "none", "NONE", "", "gpu:", "gpu:x:y", "gpu:-1", "gpu:0", "foo:1", "gpu:1,gpu:2", "gpu:a:1,gpu:b:2", "gpu:1:2:3", "gpu:1.5", "gpu,", ",gpu", "gpu: 1", "gpu:a100_3g.20gb:1"}, stricter: []string{"gpu: 1", "gpu:", "gpu:-1", "gpu:1.5", "gpu:1:2:3", "gpu:x:y"}},
		{c: slurm.Sbatch, option: "gpus", values: []string{"1", "h100:2", "0", "-1", "x", "", "1k", "a:1,b:2", "gpu:1", "gpu:h100:1", "1,2", "a:b:c", "1.5"}, stricter: []string{"-1", "1.5", "a:b:c", "gpu:h100:1"}},
		{c: slurm.Sbatch, option: "gpus-per-node", values: []string{"1", "h100:2", "0", "-1", "x", "", "gpu:1", "a:1,b:2"}, stricter: []string{"-1"}},
		{c: slurm.Sbatch, option: "gpus-per-task", values: []string{"1", "h100:2", "0", "-1", "x", "", "gpu:1"}, stricter: []string{"-1"}},
		{c: slurm.Sbatch, option: "exclusive", values: []string{"", "foo", "users", "0", "1", "USER"}, stricter: []string{"USER"}},
		{c: slurm.Sbatch, option: "licenses", values: []string{"a", "a:1", "a:1,b:2", "a:x", "a:0", "a:-1", "", "a|b", "a:1:2", ","}, stricter: []string{"", ",", "a:-1", "a:0", "a:1:2", "a:x"}},
		{c: slurm.Sbatch, option: "open-mode", values: []string{"append", "truncate", "a", "t", "trunc", "APPEND", "x", "", "appendix"}, stricter: []string{"appendix"}},
		{c: slurm.Sbatch, option: "propagate", values: []string{"ALL", "NONE", "all", "none", "NOFILE", "nofile,stack", "RLIMIT_NOFILE", "x", "", "ALL,NOFILE", "NOFILE,", "AS,CORE,CPU,DATA,FSIZE,MEMLOCK,NOFILE,NPROC,RSS,STACK", "NOFILE,x"}, late: true, wider: []string{"all", "nofile,stack", "none"}},
		{c: slurm.Sbatch, option: "nodelist", values: hosts, stricter: []string{"n1]", "n[1-2", "n[2-1]", "n[a-b]"}},
		{c: slurm.Sbatch, option: "exclude", values: hosts, stricter: []string{"n1]", "n[1-2", "n[2-1]", "n[a-b]"}},
		{c: slurm.Sbatch, option: "constraint", values: []string{"a", "a&b", "a|b", "[a|b]", "[a*2&b*4]", "(a|b)&c", "", "a&", "[a", "a]", "a b"}, stricter: []string{"", "[a", "a b", "a&", "a]"}},
		{c: slurm.Sbatch, option: "no-kill", values: []string{"off", "x", "OFF", "on", "1"}},
		{c: slurm.Sbatch, option: "mail-type", values: []string{"NONE", "none", "x", "", "END,FAIL", "all", "END,x"}, stricter: []string{"END,x"}},
		{c: slurm.Sbatch, option: "mail-user", values: []string{"a@b", ""}},
		{c: slurm.Sbatch, option: "kill-on-invalid-dep", values: []string{"no", "NO", "yes", "YES", "n", "y", "1", ""}},
		{c: slurm.Sbatch, option: "profile", values: []string{"none", "NONE"}},
		{c: slurm.Sbatch, option: "mem-bind", values: []string{"none", "quiet", "foo", "verbose,none", "local", "v,local", "local:1"}},
		{c: slurm.Sbatch, option: "export", values: []string{"ALL", "NONE", "NIL", "A=1,B=2", "A='1,2'", "", "=x", "ALL,A", "A"}},
		{c: slurm.Sbatch, option: "export-file", values: []string{"/no/such", "3", "99"}},
		{c: slurm.Srun, option: "mpi", values: []string{"none", "foo", ""}, late: true, worded: []string{"", "foo"}},
		{c: slurm.Srun, option: "overlap", values: []string{"", "x", "force"}},
		{c: slurm.Srun, option: "quiet", values: []string{"1"}},
		{c: slurm.Srun, option: "verbose", values: []string{"1"}},
	}
}

// compare runs Slurm's command with a value, and ours, and says how they differ: "" is not at
// all, "stricter" that we refuse what Slurm takes, "wider" that we take what it refuses,
// and "worded" that both refuse in other words or with another exit code. Of an option that is looked
// at at once, a wrong number of nodes behind it keeps Slurm's command from looking for its controller,
// which takes a second.
func (try *trial) compare(t *testing.T, conf, v string) (how, text string) {
	args := []string{"--" + try.option + "=" + v}
	took := "Unable to contact slurm controller"
	if !try.late {
		args, took = append(args, "--nodes=zz"), `error: "zz" is not a valid node count`
	}
	if try.c == slurm.Sbatch {
		args = append(args, "--wrap=true")
	} else {
		args = append(args, "true")
	}
	theirs, code := run(t, conf, try.c.String(), args...)
	_, err := parse(try.c, args, "", nil)
	ours, exit := refusal(try.c, err)
	text = fmt.Sprintf("%s --%s=%q: exit %d\n%sSlurm's is exit %d\n%s", try.c, try.option, v, exit, ours, code, theirs)
	wetake, ittakes := err == nil || strings.Contains(ours, took), strings.Contains(theirs, took)
	switch {
	case wetake && !ittakes:
		return "wider", text
	case !wetake && ittakes:
		return "stricter", text
	case !wetake && (ours != theirs || exit != code):
		return "worded", text
	}
	return "", text
}

// exception is how a value is known to be taken or refused otherwise.
func (try *trial) exception(v string) string {
	switch {
	case slices.Contains(try.stricter, v):
		return "stricter"
	case slices.Contains(try.wider, v):
		return "wider"
	case slices.Contains(try.worded, v):
		return "worded"
	}
	return ""
}

// TestValuesAgainstSlurm: what Debian's commands take and refuse of the values of options,
// and in which words, is what we do, but for what is listed.
func TestValuesAgainstSlurm(t *testing.T) {
	conf := theirs(t)
	var work errgroup.Group
	work.SetLimit(16) // most of the time is Slurm's waiting
	vectors := 0
	for _, try := range trials() {
		vectors += len(try.values)
		for _, v := range try.values {
			work.Go(func() error {
				how, text := try.compare(t, conf, v)
				want := try.exception(v)
				if how != want {
					t.Errorf("it is %q, not %q: %s", how, want, text)
				}
				return nil
			})
		}
	}
	_ = work.Wait()
	if t.Logf("%d argument vectors", vectors); vectors < 800 {
		t.Errorf("%d argument vectors are compared", vectors) // docs/beside-slurm.md says how many
	}
}

// TestSubmittedAgainstSlurm: what Slurm's controller takes and refuses of what its commands
// only hand on is what we take and refuse at once.
func TestSubmittedAgainstSlurm(t *testing.T) {
	conf, _ := startController(t)
	if text, code := run(t, conf, "sbatch", "-H", "--array=1-3", "--wrap=true"); code != 0 {
		t.Fatalf("sbatch: exit %d %s", code, text)
	}
	for _, try := range []trial{
		{c: slurm.Sbatch, option: "array", values: []string{
			"1", "0-9", "0-9:2", "0-9%2", "1,3,5-7", "[0-9]", "0-9:0", "9-0", "x", "1-", "%2", "0-9%", "2000", "2001", "4000001", "0-9%0", "1,,2", " 1", "1-5,3-9",
			"0-9:3%2", "1-1", "5:2", "0-9:20", "1,2%1,3", "-1", "1 -3", "0-2000", "[1-3", "1-3]",
		}, stricter: []string{" 1", "%2", "0-9%", "1,,2", "1,2%1,3", "1-3]", "[1-3"}, wider: []string{"2001"}},
		{c: slurm.Sbatch, option: "dependency", values: []string{
			"1", "afterok:1", "after:1+5", "after:1", "afterok:1:1", "afterok:1?afterany:1", "singleton", "foo:1", "afterok", "aftercorr:1", "afterok:x", "afterok:1_2", "afterok:1_*",
			"afterany:1,afterok:1", "afterok:1,singleton", "AFTEROK:1", "afterok:1?singleton", "afterok:1,afterany:1?afterok:1", "afterok:", "after:1+x", "afterok:1+5", ":1", "1:1", "1,1", "afterburstbuffer:1",
		}, stricter: []string{"afterok:1+5", "afterok:1,afterany:1?afterok:1"}},
		{c: slurm.Sbatch, option: "licenses", values: []string{"foo", "foo:1", "matlab:2,foo:1", "foo:x", "foo:0", "foo:-1", "foo:1:2", ",", "matlab@1", "foo|matlab", "foo:1 "}, stricter: []string{",", "foo:0"}, wider: []string{"foo|matlab", "matlab@1"}},
		{c: slurm.Sbatch, option: "constraint", values: []string{"a", "a&b", "a|b", "[a|b]", "[a*2&b*4]", "(a|b)&a", "a&", "[a", "a]", "a b", "a,b", "a*2", "a*0", "a*x", "[a&b]", "((a|b)&b)", "(a", "a)", "&a", "a||b", "a&&b", "[a|b]&a", "a*2&b*1"}, stricter: []string{"a&"}, wider: []string{"((a|b)&b)", "[a&b]"}},
		{c: slurm.Sbatch, option: "gres", values: []string{"gpu", "gpu:1", "gpu:h100:2", "gpu:h100", "none", "gpu:", "gpu:x:1", "gpu:-1", "gpu:0", "foo:1", "gpu:1,gpu:2", "gpu:1:2:3", "gpu:1.5", "gpu,", ",gpu", "gpu=1"}, stricter: []string{"gpu:-1"}, wider: []string{",gpu", "foo:1", "gpu,"}, worded: []string{"gpu:1.5"}},
		{c: slurm.Sbatch, option: "mem", values: []string{"0", "1", "1G", "100M", "1500K"}},
		{c: slurm.Sbatch, option: "nodes", values: []string{"0", "0-0", "0-2", "1"}, stricter: []string{"0", "0-0"}}, // which Slurm does of jobs that are not held
		{c: slurm.Sbatch, option: "priority", values: []string{"0", "7", "4294967293", "TOP"}},
	} {
		for _, v := range try.values {
			args := []string{"-H", "--" + try.option + "=" + v, "--wrap=true"}
			theirs, code := run(t, conf, "sbatch", args...)
			theirs = regexp.MustCompile(`(?m)^.*NodeNames=z .*\n`).ReplaceAllString(theirs, "") // of the configuration
			_, err := parse(try.c, args, "", nil)
			ours, exit := refusal(try.c, err)
			how := ""
			switch {
			case err == nil && code != 0:
				how = "wider"
			case err != nil && code == 0:
				how = "stricter"
			case !strings.HasPrefix(ours, theirs) || exit != code: // we may say more
				how = "worded"
			}
			if want := try.exception(v); how != want {
				t.Errorf("it is %q, not %q: sbatch --%s=%q: exit %d\n%sSlurm's is exit %d\n%s", how, want, try.option, v, exit, ours, code, theirs)
			}
		}
	}
}
