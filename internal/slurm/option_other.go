package slurm

import (
	"slices"
	"strings"
)

// otherOptions are those of Slurm that Gangway does not carry out. They are refused by
// name, except where they ask for nothing.
func otherOptions() []option {
	const (
		absent = "not supported by Gangway yet"
		users  = "only for an administrator, and not supported by Gangway"
		// What is like a file system or a driver's business has a way of its own.
		noCopies = "programs are not copied to nodes, which is not supported by Gangway yet; have them on a file system that nodes share, or in the image"
		shape    = "nodes are not chosen by the shape of their processors, which is not supported by Gangway yet; --constraint chooses nodes by feature"
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
		{Flag: Flag{"mail-type", 0, RequiredArgument}, in: asking, set: setMailType},
		{Flag: Flag{"mail-user", 0, RequiredArgument}, in: asking, set: setMailUser},
		{Flag: Flag{"profile", 0, RequiredArgument}, in: asking, env: "PROFILE", set: nothing("none")},
		{Flag: Flag{"mem-bind", 0, RequiredArgument}, in: asking, env: "MEM_BIND", set: setMemBind},
		{Flag: Flag{"bbf", 0, RequiredArgument}, in: asking},
		{Flag: Flag{"uid", 0, RequiredArgument}, in: asking, why: users},
		{Flag: Flag{"gid", 0, RequiredArgument}, in: asking, why: users},
		{Flag: Flag{"het-group", 0, RequiredArgument}, in: Srun, set: nothing("0")},
		{Flag: Flag{"pack-group", 0, RequiredArgument}, in: Srun, set: nothing("0")},
		{Flag: Flag{"kill-on-invalid-dep", 0, RequiredArgument}, in: Sbatch, set: setKillOnInvalid},
		{Flag: Flag{"get-user-env", 0, OptionalArgument}, in: Sbatch | Salloc, env: "GET_USER_ENV", set: setUserEnv},
		{Flag: Flag{"overcommit", 'O', NoArgument}, in: asking, env: "OVERCOMMIT", set: setOvercommit},
		{Flag: Flag{"ntasks-per-core", 0, RequiredArgument}, in: asking, set: setPerCore},
		{Flag: Flag{"tres-per-task", 0, RequiredArgument}, in: asking, env: "TRES_PER_TASK", set: setTRESPerTask},
		{Flag: Flag{"gres-flags", 0, RequiredArgument}, in: asking, env: "GRES_FLAGS", set: setGRESFlags},
		{Flag: Flag{"acctg-freq", 0, RequiredArgument}, in: asking, env: "ACCTG_FREQ", set: setAccountingFrequency},
		{Flag: Flag{"treewidth", 0, RequiredArgument}, in: Srun, set: ignoreNumber},
		{Flag: Flag{"ntasks-per-socket", 0, RequiredArgument}, in: asking, set: setPerSocket},
		{Flag: Flag{"prolog", 0, RequiredArgument}, in: Srun, env: "PROLOG", set: intoText(func(o *Options) *string { return &o.Prolog })},
		{Flag: Flag{"epilog", 0, RequiredArgument}, in: Srun, env: "EPILOG", set: intoText(func(o *Options) *string { return &o.Epilog })},
		{Flag: Flag{"task-prolog", 0, RequiredArgument}, in: Srun, env: "TASK_PROLOG", set: intoText(func(o *Options) *string { return &o.Program.TaskProlog })},
		{Flag: Flag{"task-epilog", 0, RequiredArgument}, in: Srun, env: "TASK_EPILOG", set: intoText(func(o *Options) *string { return &o.Program.TaskEpilog })},
		{Flag: Flag{"bcast", 0, OptionalArgument}, in: Srun, env: "BCAST", why: noCopies},
		{Flag: Flag{"bcast-exclude", 0, RequiredArgument}, in: Srun, env: "BCAST_EXCLUDE", why: noCopies},
		{Flag: Flag{"send-libs", 0, OptionalArgument}, in: Srun, env: "SEND_LIBS", why: noCopies},
		{Flag: Flag{"compress", 0, OptionalArgument}, in: Srun, env: "COMPRESS", why: noCopies},
		{Flag: Flag{"container", 0, RequiredArgument}, in: asking, env: "CONTAINER", why: "OCI bundles are not supported by Gangway yet; --container-image takes an image, a .sqsh file or a directory"},
		{Flag: Flag{"mincpus", 0, RequiredArgument}, in: asking, why: shape},
		{Flag: Flag{"sockets-per-node", 0, RequiredArgument}, in: asking, why: shape},
		{Flag: Flag{"cores-per-socket", 0, RequiredArgument}, in: asking, why: shape},
		{Flag: Flag{"extra-node-info", 'B', RequiredArgument}, in: asking, why: shape},
		{Flag: Flag{"x11", 0, OptionalArgument}, in: Srun | Salloc, why: "forwarding of X11 is not supported by Gangway yet; ssh -X to the node does it"},
		{Flag: Flag{"mcs-label", 0, RequiredArgument}, in: asking},
		{Flag: Flag{"clusters", 'M', RequiredArgument}, in: asking, env: "CLUSTERS", set: setClusters},
		{Flag: Flag{"cluster", 0, RequiredArgument}, in: asking, set: setClusters},
	}
	refused := func(in Command, argument Argument, names ...string) {
		for _, name := range names {
			all = append(all, option{Flag: Flag{Long: name, Argument: argument}, in: in})
		}
	}
	variable := func(in Command, argument Argument, names ...string) {
		for _, name := range names {
			env := strings.ToUpper(strings.ReplaceAll(name, "-", "_"))
			all = append(all, option{Flag: Flag{Long: name, Argument: argument}, in: in, env: env})
		}
	}
	variable(asking, RequiredArgument, "delay-boot", "gpu-freq", "network", "power", "reservation")
	variable(asking, NoArgument, "spread-job", "use-min-nodes")
	variable(Sbatch, RequiredArgument, "batch")
	variable(Srun, OptionalArgument, "resv-ports")
	refused(Srun, RequiredArgument, "slurmd-debug", "accel-bind")
	refused(asking, RequiredArgument, "bb", "cluster-constraint", "container-id", "context", "cpu-freq", "extra",
		"ntasks-per-tres", "oom-kill-step", "tmp", "tres-bind")
	refused(asking, NoArgument, "reboot", "stepmgr", "spread-segments", "consolidate-segments")
	refused(Srun, NoArgument, "debugger-test", "external-launcher", "async")
	return append(all,
		option{Flag: Flag{"preserve-env", 'E', NoArgument}, in: Srun},
		option{Flag: Flag{"core-spec", 'S', RequiredArgument}, in: asking, env: "CORE_SPEC"},
		option{Flag: Flag{"thread-spec", 0, RequiredArgument}, in: asking, env: "THREAD_SPEC"},
		option{Flag: Flag{"wckey", 0, RequiredArgument}, in: asking, env: "WCKEY", set: setWCKey},
		option{Flag: Flag{"wait-all-nodes", 0, RequiredArgument}, in: Sbatch | Salloc, env: "WAIT_ALL_NODES", set: setWaitAllNodes},
		option{Flag: Flag{"no-kill", 'k', OptionalArgument}, in: asking, env: "NO_KILL", set: setNoKill},
		option{Flag: Flag{"kill-command", 'K', OptionalArgument}, in: Salloc},
	)
}

// setNoKill reads --no-kill. That a job goes on without a node that it lost is not
// supported; off is what is the case anyway.
func setNoKill(_ *Options, v value) error {
	switch {
	case strings.EqualFold(v.text, "off"):
		return nil
	case v.bare || strings.EqualFold(v.text, "set") || v.from == fromEnviron:
		return refuse(badOption, "--no-kill: not supported by Gangway yet")
	}
	return v.invalid()
}

// setClusters refuses a cluster by its name: GANGWAY_CLUSTER chooses.
func setClusters(o *Options, v value) error {
	if v.text != "all" {
		return refuse(1, "--clusters=%s: not supported by Gangway yet; GANGWAY_CLUSTER chooses the cluster", v.text)
	}
	o.Clusters = v.text
	return nil
}

// setWCKey takes --wckey as a Slurm does that does not track these keys, which is how it comes,
// but says so.
func setWCKey(o *Options, v value) error {
	o.warn("--wckey=%s: jobs are not accounted by such keys by Gangway yet", v.text)
	return nil
}

// setWaitAllNodes reads --wait-all-nodes. Nodes are ready when a job gets them, so that both
// answers are the same.
func setWaitAllNodes(_ *Options, v value) error {
	if n, err := v.number(0); err != nil || n > 1 {
		return v.invalid()
	}
	return nil
}

// setMailType reads --mail-type. Mails are not sent, and this is said; that none is wanted is
// what is the case anyway.
func setMailType(o *Options, v value) error {
	known := []string{
		"NONE", "BEGIN", "END", "FAIL", "REQUEUE", "ALL", "INVALID_DEPEND", "STAGE_OUT", "TIME_LIMIT", "TIME_LIMIT_90",
		"TIME_LIMIT_80", "TIME_LIMIT_50", "ARRAY_TASKS",
	}
	for word := range strings.SplitSeq(strings.ToUpper(v.text), ",") {
		if !slices.Contains(known, word) {
			return v.invalid()
		}
	}
	if !strings.EqualFold(v.text, "NONE") {
		o.warn("--mail-type=%s: mails are not sent by Gangway yet", v.text)
	}
	return nil
}

// setMailUser takes whom mails would go to, as mail-type says when, and says that none goes.
func setMailUser(o *Options, v value) error {
	o.warn("--mail-user=%s: mails are not sent by Gangway yet", v.text)
	return nil
}

// setKillOnInvalid reads --kill-on-invalid-dep. A job whose dependency can never be met stays
// where it is, which is no, and said where yes is wanted.
func setKillOnInvalid(o *Options, v value) error {
	switch strings.ToLower(v.text) {
	case "no":
		return nil
	case "yes":
		o.warn("--kill-on-invalid-dep=%s: a job whose dependency can never be met stays pending (DependencyNeverSatisfied) with Gangway yet: scancel it", v.text)
		return nil
	}
	return v.invalid()
}

// setMemBind reads --mem-bind. Memory is not bound, which is none; it comes from near the CPU that
// asks for it first, as long as there is some, because Linux has it so, which is said of local.
func setMemBind(o *Options, v value) error {
	for word := range strings.SplitSeq(strings.ToLower(v.text), ",") {
		kind, _, listed := strings.Cut(word, ":")
		switch kind {
		case "none", "no", "n", "quiet", "q", "verbose", "v":
		case "local":
			if listed {
				return refuse(badOption, "unrecognized --mem-bind argument %q", v.text)
			}
			o.warn("--mem-bind=%s: memory comes from near a task's CPUs as long as there is some, which is not enforced by Gangway yet; --cpu-bind=ldoms keeps a task there", v.text)
		case "rank", "map_mem", "mask_mem", "prefer", "p", "sort":
			return refuse(badOption, "--mem-bind=%s: not supported by Gangway yet", v.text)
		default:
			return refuse(badOption, "unrecognized --mem-bind argument %q", v.text)
		}
	}
	return nil
}
