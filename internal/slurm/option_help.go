package slurm

// helpOf is a line about an option, for help and manuals.
func helpOf(c Command, name string) string {
	switch {
	case name == "wait" && c == Srun:
		return "seconds that the others have after the first task's end; 0: for ever"
	case name == "exclusive" && c == Srun:
		return "CPUs of its own for a step; whole nodes for a job"
	}
	texts := map[string]string{
		"nodes":             "N or MIN-MAX nodes",
		"ntasks":            "tasks in all",
		"cpus-per-task":     "CPUs of each task",
		"ntasks-per-node":   "tasks on each node; with --ntasks at most so many",
		"tasks-per-node":    "as --ntasks-per-node",
		"ntasks-per-gpu":    "tasks for each GPU",
		"mem":               "memory on each node: 900G; a number alone is MiB; 0 is all",
		"mem-per-cpu":       "memory for each CPU",
		"mem-per-gpu":       "memory for each GPU",
		"gres":              "NAME[:TYPE][:COUNT],... on each node: gpu:h100:8",
		"gpus":              "[TYPE:]COUNT GPUs in all",
		"gpus-per-node":     "[TYPE:]COUNT GPUs on each node",
		"gpus-per-task":     "[TYPE:]COUNT GPUs for each task",
		"cpus-per-gpu":      "CPUs for each GPU",
		"exclusive":         "whole nodes, for this job alone",
		"oversubscribe":     "may share nodes, where the partition lets it",
		"threads-per-core":  "threads of a core that are used",
		"hint":              "nomultithread: one thread of each core",
		"licenses":          "NAME[:COUNT],... all of these; with | one of these",
		"partition":         "PARTITION[,PARTITION...]: where it starts first",
		"nodelist":          "these nodes, and others if it needs more; with a slash a file of them",
		"nodefile":          "the nodes of a file",
		"exclude":           "not these nodes",
		"constraint":        "features: a&b, a|b, [a|b], [a*2&b*4], parentheses",
		"prefer":            "features that are taken where they can be had",
		"contiguous":        "nodes next to each other",
		"switches":          "COUNT[@TIME]: at most so many leaf switches, and how long to wait for that",
		"segment":           "nodes come in groups of so many, each within one block",
		"distribution":      "block, cyclic, plane=N or arbitrary: how tasks are dealt to nodes",
		"gpu-bind":          "which of a node's GPUs a task sees: none, closest, single:N, per_task:N, map:..., mask:...",
		"cpu-bind":          "to what tasks are bound: none, cores, threads, closest (to the task's GPUs), ...",
		"job-name":          "name of the job",
		"account":           "who is charged",
		"qos":               "quality of service",
		"comment":           "a text that is kept with the job",
		"time":              "limit: M, M:S, H:M:S, D-H, D-H:M, D-H:M:S or UNLIMITED",
		"time-min":          "the limit may be made as short as this, for an earlier start",
		"begin":             "not before: 16:30, now+1hour, 2026-03-01T08:00, tomorrow",
		"deadline":          "must have ended by then",
		"array":             "INDEXES[%COUNT]: a task for each, COUNT at a time: 0-15:4,20%8",
		"dependency":        "TYPE:ID[:ID...],... of after, afterany, afterok, afternotok, aftercorr, singleton",
		"hold":              "submit it, but do not start it",
		"nice":              "less priority by this; 100 without a value",
		"priority":          "this priority instead of a computed one",
		"requeue":           "start it again where it loses a node",
		"no-requeue":        "do not",
		"signal":            "[B:]SIGNAL[@SECONDS] before the end of its time; B: to the script only",
		"test-only":         "say when it would start, and do nothing",
		"output":            "file for output; signs as %j (job), %t (task), %N (node) stand for something",
		"error":             "file for errors; where output goes if there is none",
		"input":             "file for input",
		"open-mode":         "append or truncate: what happens to files that are there",
		"chdir":             "working directory",
		"export":            "ALL, NONE, NIL, or [ALL,]NAME[=VALUE],...: which variables go with it",
		"export-file":       "file with the environment, each variable ended by a NUL",
		"propagate":         "ALL, NONE or names of limits (ulimit) that hold there too",
		"wrap":              "a command line instead of a script",
		"parsable":          "print the job's id alone",
		"wait":              "wait for the job's end, and have its exit code",
		"quiet":             "say nothing but errors",
		"verbose":           "say more",
		"ignore-pbs":        "say nothing about lines with #PBS",
		"no-shell":          "get the nodes and end",
		"bell":              "ring the terminal's bell when the nodes are there",
		"no-bell":           "do not",
		"help":              "this text",
		"usage":             "this text",
		"version":           "print the version",
		"jobid":             "the job in which the step runs",
		"overlap":           "share the resources of other steps",
		"exact":             "only the resources that are asked for",
		"whole":             "all that the job has on the nodes (default)",
		"relative":          "begin at this node of the job",
		"label":             "begin each line with the task's number",
		"unbuffered":        "show output as it comes, not by lines",
		"kill-on-bad-exit":  "end the step when a task fails",
		"pty":               "give task 0 a terminal",
		"disable-status":    "the first Ctrl-C goes to the tasks",
		"quit-on-interrupt": "the first Ctrl-C ends the step",
		"immediate":         "fail if there are no nodes after SECONDS (5)",
		"mpi":               "none",
	}
	if text, ok := texts[name]; ok {
		return text
	}
	return containerHelp(name)
}

// containerHelp is helpOf for the options about containers.
func containerHelp(name string) string {
	texts := map[string]string{
		"container-image":             "the image of the container: a reference, a .sqsh file or a directory",
		"container-mounts":            "SRC[:DST[:FLAG+FLAG]],... in the container",
		"container-workdir":           "working directory in the container",
		"container-name":              "NAME[:auto|create|exec|no_exec]: keep the container, or use that of this name",
		"container-save":              "write the container to this .sqsh file at the end",
		"container-env":               "NAME,...: the caller's value wins over the image's",
		"container-unshare":           "net,ipc,uts,pid: have these of its own",
		"container-mount-home":        "mount the home directory",
		"no-container-mount-home":     "do not (default)",
		"container-remap-root":        "be root in the container",
		"no-container-remap-root":     "do not (default)",
		"container-entrypoint":        "run the image's entry point (default)",
		"no-container-entrypoint":     "do not",
		"container-entrypoint-log":    "print the command with its entry point",
		"no-container-entrypoint-log": "do not (default)",
		"container-writable":          "let the container write to its root",
		"container-readonly":          "do not (default)",
	}
	return texts[name]
}
