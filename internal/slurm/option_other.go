package slurm

import "strings"

// otherOptions are those of Slurm that Gangway does not carry out. They are refused by
// name, except where they ask for nothing.
func otherOptions() []option {
	const (
		absent = "not supported by Gangway yet"
		users  = "only for an administrator, and not supported by Gangway"
	)
	nothing := func(words ...string) func(*Options, value) error {
		return func(_ *Options, v value) error {
			for _, word := range words {
				if strings.EqualFold(v.text, word) {
					return nil
				}
			}
			return refuse(badOption, "--%s: %s", v.name, absent)
		}
	}
	all := []option{
		{Flag: Flag{"mail-type", 0, RequiredArgument}, in: asking, set: nothing("NONE")},
		{Flag: Flag{"profile", 0, RequiredArgument}, in: asking, env: "PROFILE", set: nothing("none")},
		{Flag: Flag{"mem-bind", 0, RequiredArgument}, in: asking, env: "MEM_BIND", set: nothing("none", "quiet", "verbose", "quiet,none", "verbose,none")},
		{Flag: Flag{"bbf", 0, RequiredArgument}, in: asking},
		{Flag: Flag{"uid", 0, RequiredArgument}, in: asking, why: users},
		{Flag: Flag{"gid", 0, RequiredArgument}, in: asking, why: users},
		{Flag: Flag{"het-group", 0, RequiredArgument}, in: Srun, set: nothing("0")},
		{Flag: Flag{"pack-group", 0, RequiredArgument}, in: Srun, set: nothing("0")},
		{Flag: Flag{"mcs-label", 0, RequiredArgument}, in: asking},
		{Flag: Flag{"clusters", 'M', RequiredArgument}, in: asking, env: "CLUSTERS", set: intoText(func(o *Options) *string { return &o.Clusters })},
		{Flag: Flag{"cluster", 0, RequiredArgument}, in: asking, set: intoText(func(o *Options) *string { return &o.Clusters })},
	}
	refused := func(in Command, argument Argument, names ...string) {
		for _, name := range names {
			all = append(all, option{Flag: Flag{Long: name, Argument: argument}, in: in})
		}
	}
	refused(asking, RequiredArgument, "acctg-freq", "bb", "cluster-constraint", "container", "container-id", "context",
		"cores-per-socket", "cpu-freq", "delay-boot", "extra", "gpu-freq", "gres-flags", "mail-user", "mincpus", "network",
		"ntasks-per-core", "ntasks-per-socket", "ntasks-per-tres", "oom-kill-step", "power", "reservation",
		"sockets-per-node", "tmp", "tres-bind", "tres-per-task", "wckey")
	refused(asking, NoArgument, "reboot", "spread-job", "use-min-nodes", "stepmgr", "spread-segments", "consolidate-segments")
	refused(Sbatch, RequiredArgument, "batch", "kill-on-invalid-dep")
	refused(Sbatch|Salloc, RequiredArgument, "wait-all-nodes")
	refused(Sbatch|Salloc, OptionalArgument, "get-user-env")
	refused(Srun, RequiredArgument, "accel-bind", "bcast-exclude", "epilog", "prolog", "slurmd-debug", "task-epilog", "task-prolog", "treewidth")
	refused(Srun, OptionalArgument, "bcast", "compress", "resv-ports", "send-libs")
	refused(Srun, NoArgument, "debugger-test", "external-launcher", "async")
	refused(Srun|Salloc, OptionalArgument, "x11")
	return append(all,
		option{Flag: Flag{"preserve-env", 'E', NoArgument}, in: Srun, set: func(*Options, value) error { return nil }}, // as always
		option{Flag: Flag{"core-spec", 'S', RequiredArgument}, in: asking},
		option{Flag: Flag{"thread-spec", 0, RequiredArgument}, in: asking},
		option{Flag: Flag{"extra-node-info", 'B', RequiredArgument}, in: asking},
		option{Flag: Flag{"overcommit", 'O', NoArgument}, in: asking, env: "OVERCOMMIT"},
		option{Flag: Flag{"no-kill", 'k', OptionalArgument}, in: asking, env: "NO_KILL", set: setNoKill},
		option{Flag: Flag{"kill-command", 'K', OptionalArgument}, in: Salloc},
	)
}

// setNoKill reads --no-kill. That a job goes on without a node that it lost is not
// supported; off is what is the case anyway.
func setNoKill(_ *Options, v value) error {
	switch {
	case v.text == "off":
		return nil
	case v.bare || v.text == "set" || v.from == fromEnviron:
		return refuse(badOption, "--no-kill: not supported by Gangway yet")
	}
	return v.invalid()
}

// extraVariables are variables of an option beyond that of the table, of lower precedence
// first.
func extraVariables(c Command, name string) []string {
	if c == Sbatch {
		switch name {
		case "verbose":
			return []string{"SBATCH_DEBUG"}
		case "hint":
			return []string{"SLURM_HINT"}
		}
		return nil
	}
	if c == Salloc {
		if name == "verbose" {
			return []string{"SALLOC_DEBUG"}
		}
		return nil
	}
	switch name {
	case "jobid":
		return []string{"SLURM_JOBID", "SLURM_JOB_ID"}
	case "nodes":
		return []string{"SLURM_NNODES", "SLURM_JOB_NUM_NODES"}
	case "ntasks":
		return []string{"SLURM_NPROCS", "SLURM_NTASKS"}
	case "cpus-per-task":
		return []string{"SRUN_CPUS_PER_TASK"}
	case "ntasks-per-node":
		return []string{"SLURM_NTASKS_PER_NODE"}
	case "ntasks-per-gpu":
		return []string{"SLURM_NTASKS_PER_GPU"}
	case "dependency":
		return []string{"SLURM_DEPENDENCY"}
	case "output":
		return []string{"SLURM_STDOUTMODE", "SRUN_OUTPUT"}
	case "error":
		return []string{"SLURM_STDERRMODE", "SRUN_ERROR"}
	case "input":
		return []string{"SLURM_STDINMODE", "SRUN_INPUT"}
	case "export":
		return []string{"SLURM_EXPORT_ENV", "SRUN_EXPORT_ENV"}
	case "verbose":
		return []string{"SLURM_DEBUG", "SRUN_DEBUG"}
	case "chdir":
		return []string{"SLURM_REMOTE_CWD", "SLURM_WORKING_DIR"}
	case "nodefile":
		return []string{"SLURM_HOSTFILE"}
	}
	return nil
}
