package slurm

import (
	"strconv"
	"strings"

	"github.com/gangway-hpc/gangway/internal/job"
)

// setUserEnv reads --get-user-env[=[SECONDS][S|L]]. A job has the environment from which it was
// submitted, and not a login's, which is said.
func setUserEnv(o *Options, v value) error {
	text := strings.TrimLeft(v.text, "0123456789")
	if !v.bare && v.from != fromEnviron && text != "" && text != "S" && text != "s" && text != "L" && text != "l" {
		return v.invalid()
	}
	if v.on() {
		o.warn("--get-user-env: jobs get the environment of who submits them, and no login's, by Gangway yet; in a script: source ~/.profile")
	}
	return nil
}

// setOvercommit reads --overcommit, of steps: tasks share the CPUs of their job. A job that would
// get fewer CPUs than it has tasks is refused.
func setOvercommit(o *Options, v value) error {
	if !v.on() {
		return nil
	}
	if o.Command != Srun {
		return refuse(badOption, "--overcommit of a job is not supported by Gangway yet: ask for fewer tasks, and for more in its steps: srun --overcommit -n TASKS")
	}
	o.Overcommit = true
	return nil
}

// setPerCore reads --ntasks-per-core. One is that hyperthreads are left alone; cores have no more
// than two of these, so that a higher number changes nothing.
func setPerCore(o *Options, v value) error {
	n, err := v.number(1)
	if err == nil && n == 1 {
		o.Job.ThreadsPerCore = 1
	}
	return err
}

// setPerSocket reads --ntasks-per-socket, which Slurm's steps do not heed.
func setPerSocket(o *Options, v value) error {
	if _, err := v.number(1); err != nil || o.Command == Srun && v.from == fromEnviron {
		return err
	}
	return refuse(badOption, "--ntasks-per-socket: nodes are not chosen by their sockets, which is not supported by Gangway yet; use --ntasks-per-node, and srun --cpu-bind=cores -m block:cyclic deals tasks to sockets")
}

// setTRESPerTask reads --tres-per-task=[cpu=N,][gres/NAME[:TYPE]=N,...] of later Slurms.
func setTRESPerTask(o *Options, v value) error {
	for word := range strings.SplitSeq(v.text, ",") {
		name, count, counted := strings.Cut(word, "=")
		if at := strings.LastIndexByte(word, ':'); !counted && at > 0 {
			name, count = word[:at], word[at+1:] // gres/gpu:1, as 23.11 has it
		}
		n, err := strconv.Atoi(count)
		if err != nil || n < 1 || n > 1<<20 {
			return v.invalid()
		}
		gres, ok := strings.CutPrefix(name, "gres/")
		if !ok {
			gres, ok = strings.CutPrefix(name, "gres:")
		}
		switch {
		case name == "cpu":
			o.Job.CPUsPerTask = n
		case ok:
			all, err := ParseGRESRequest(gres+":"+strconv.Itoa(n), "", job.PerTask)
			if err != nil {
				return refuse(1, "Invalid generic resource (gres) specification")
			}
			o.perTask = append(o.perTask, all...)
			if kind, _, _ := strings.Cut(gres, ":"); kind == "gpu" {
				o.GPUsPerTask = strings.TrimPrefix(strings.TrimPrefix(gres, "gpu"), ":")
				if o.GPUsPerTask != "" {
					o.GPUsPerTask += ":"
				}
				o.GPUsPerTask += strconv.Itoa(n)
			}
		default:
			return refuse(badOption, "--tres-per-task=%s: %s is not supported by Gangway yet; cpu=N and gres/NAME=N are", v.text, name)
		}
	}
	return nil
}

// setGRESFlags reads --gres-flags. That CPUs need not be near devices is what is the case anyway.
func setGRESFlags(_ *Options, v value) error {
	for word := range strings.SplitSeq(strings.ToLower(v.text), ",") {
		switch word {
		case "disable-binding":
		case "enforce-binding":
			return refuse(badOption, "--gres-flags=%s: CPUs are counted by node, and to have those near a GPU chosen is not supported by Gangway yet; srun --cpu-bind=closest binds tasks near theirs", v.text)
		case "one-task-per-sharing", "multiple-tasks-per-sharing", "allow-task-sharing":
			return refuse(badOption, "--gres-flags=%s: not supported by Gangway yet", v.text)
		default:
			return v.invalid()
		}
	}
	return nil
}

// setAccountingFrequency reads --acctg-freq=SECONDS or KIND=SECONDS,...: how often Slurm looks at
// what tasks use. Here the kernel counts, and is asked at their end.
func setAccountingFrequency(_ *Options, v value) error {
	for word := range strings.FieldsFuncSeq(strings.ToLower(v.text), func(r rune) bool { return r == ',' }) {
		kind, seconds, named := strings.Cut(word, "=")
		if !named {
			kind, seconds = "task", word
		}
		_, err := strconv.ParseUint(seconds, 10, 31)
		switch {
		case err != nil:
		case kind == "task" || kind == "energy" || kind == "network" || kind == "filesystem":
			continue
		}
		return refuse(badOption, "Invalid --acctg-freq specification: %s", word)
	}
	return nil
}
