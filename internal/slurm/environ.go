package slurm

import "errors"

// extraVariables are variables of an option beyond that of the table, of lower precedence
// first.
func extraVariables(c Command, name string) []string {
	switch c {
	case Sbatch:
		return map[string][]string{
			"verbose":  {"SBATCH_DEBUG"},
			"hint":     {"SLURM_HINT"},
			"clusters": {"SLURM_CLUSTERS"},
		}[name]
	case Salloc:
		return map[string][]string{
			"verbose":      {"SALLOC_DEBUG"},
			"hint":         {"SLURM_HINT"},
			"clusters":     {"SLURM_CLUSTERS"},
			"bb":           {"SALLOC_BURST_BUFFER"},
			"kill-command": {"SALLOC_KILL_CMD"},
		}[name]
	}
	return map[string][]string{
		"jobid":             {"SLURM_JOBID", "SLURM_JOB_ID"},
		"nodes":             {"SLURM_NNODES", "SLURM_JOB_NUM_NODES"},
		"ntasks":            {"SLURM_NPROCS", "SLURM_NTASKS"},
		"cpus-per-task":     {"SRUN_CPUS_PER_TASK"},
		"ntasks-per-node":   {"SLURM_NTASKS_PER_NODE"},
		"ntasks-per-gpu":    {"SLURM_NTASKS_PER_GPU"},
		"ntasks-per-core":   {"SLURM_NTASKS_PER_CORE"},
		"ntasks-per-socket": {"SLURM_NTASKS_PER_SOCKET"},
		"dependency":        {"SLURM_DEPENDENCY"},
		"output":            {"SLURM_STDOUTMODE", "SRUN_OUTPUT"},
		"error":             {"SLURM_STDERRMODE", "SRUN_ERROR"},
		"input":             {"SLURM_STDINMODE", "SRUN_INPUT"},
		"export":            {"SLURM_EXPORT_ENV", "SRUN_EXPORT_ENV"},
		"verbose":           {"SLURM_DEBUG", "SRUN_DEBUG"},
		"chdir":             {"SLURM_REMOTE_CWD", "SLURM_WORKING_DIR"},
		"nodefile":          {"SLURM_HOSTFILE"},
		"bb":                {"SLURM_BURST_BUFFER"},
		"container":         {"SRUN_CONTAINER"},
		"cpu-freq":          {"SLURM_CPU_FREQ_REQ"},
		"slurmd-debug":      {"SLURMD_DEBUG"},
	}[name]
}

// environ sets what the environment says.
func (o *Options) environ(table []option) error {
	for i := range table {
		opt := &table[i]
		var names []string
		if opt.env != "" {
			names = append(names, o.Command.prefix()+opt.env)
		}
		for _, name := range append(names, extraVariables(o.Command, opt.Long)...) {
			v := value{text: o.getenv(name), from: fromEnviron}
			if v.text == "" || opt.set == nil && opt.Argument != RequiredArgument && !v.on() {
				continue
			}
			if err := o.apply(opt, v); err != nil {
				return fromVariable(err, name, v.text)
			}
		}
	}
	return nil
}

// fromVariable adds to a refusal from where the value comes, which nobody sees.
func fromVariable(err error, name, text string) error {
	var r *Refusal
	if errors.As(err, &r) && !r.Plain {
		r.Lines = append(r.Lines, "error: this comes from the environment: "+name+"="+text)
	}
	return err
}
