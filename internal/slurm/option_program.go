package slurm

import (
	"slices"
	"strconv"
	"strings"

	"github.com/gangway-hpc/gangway/internal/job"
)

// programOptions say how what is run is run, and how the command behaves.
func programOptions() []option {
	return []option{
		{Flag: Flag{"output", 'o', RequiredArgument}, in: batchy, env: "OUTPUT", set: intoText(func(o *Options) *string { return &o.Program.Output })},
		{Flag: Flag{"error", 'e', RequiredArgument}, in: batchy, env: "ERROR", set: intoText(func(o *Options) *string { return &o.Program.Error })},
		{Flag: Flag{"input", 'i', RequiredArgument}, in: batchy, env: "INPUT", set: intoText(func(o *Options) *string { return &o.Program.Input })},
		{Flag: Flag{"open-mode", 0, RequiredArgument}, in: batchy, env: "OPEN_MODE", set: setOpenMode},
		{Flag: Flag{"chdir", 'D', RequiredArgument}, in: asking, env: "CHDIR", set: intoText(func(o *Options) *string { return &o.Chdir })},
		{Flag: Flag{"export", 0, RequiredArgument}, in: batchy, env: "EXPORT", set: intoText(func(o *Options) *string { return &o.Export })},
		{Flag: Flag{"export-file", 0, RequiredArgument}, in: Sbatch, set: intoText(func(o *Options) *string { return &o.ExportFile })},
		{Flag: Flag{"propagate", 0, OptionalArgument}, in: batchy, env: "PROPAGATE", set: setPropagate},
		{Flag: Flag{"wrap", 0, RequiredArgument}, in: Sbatch, set: intoText(func(o *Options) *string { return &o.Wrap })},
		{Flag: Flag{"parsable", 0, NoArgument}, in: Sbatch, set: intoBool(func(o *Options) *bool { return &o.Parsable })},
		{Flag: Flag{"wait", 'W', NoArgument}, in: Sbatch, env: "WAIT", set: intoBool(func(o *Options) *bool { return &o.Wait })},
		{Flag: Flag{"quiet", 'Q', NoArgument}, in: asking, set: counted(func(o *Options) *int { return &o.Quiet })},
		{Flag: Flag{"verbose", 'v', NoArgument}, in: asking, set: counted(func(o *Options) *int { return &o.Verbose })},
		{Flag: Flag{"ignore-pbs", 0, NoArgument}, in: Sbatch, env: "IGNORE_PBS", set: intoBool(func(o *Options) *bool { return &o.ignorePBS })},
		{Flag: Flag{"no-shell", 0, NoArgument}, in: Salloc, set: intoBool(func(o *Options) *bool { return &o.NoShell })},
		{Flag: Flag{"bell", 0, NoArgument}, in: Salloc, env: "BELL", set: setBell(BellAlways)},
		{Flag: Flag{"no-bell", 0, NoArgument}, in: Salloc, env: "NO_BELL", set: setBell(BellNever)},
		{Flag: Flag{"help", 'h', NoArgument}, in: asking, set: intoBool(func(o *Options) *bool { return &o.Help })},
		{Flag: Flag{"usage", 0, NoArgument}, in: asking, set: intoBool(func(o *Options) *bool { return &o.Help })},
		{Flag: Flag{"version", 'V', NoArgument}, in: asking, set: intoBool(func(o *Options) *bool { return &o.Version })},
	}
}

// counted is the setter of an option that counts how often it is given. The environment
// gives a number.
func counted(field func(*Options) *int) func(*Options, value) error {
	return func(o *Options, v value) error {
		if v.from == fromEnviron {
			n, err := v.number(0)
			*field(o) = n
			return err
		}
		*field(o)++
		return nil
	}
}

func setOpenMode(o *Options, v value) error {
	// Any beginning of the words counts.
	switch text := strings.ToLower(v.text); {
	case text != "" && strings.HasPrefix("append", text):
		o.Program.Append = true
	case text != "" && strings.HasPrefix("truncate", text):
		o.Program.Append = false
	default:
		return v.invalid()
	}
	return nil
}

func setBell(b Bell) func(*Options, value) error {
	return func(o *Options, v value) error {
		if v.on() {
			o.Bell = b
		}
		return nil
	}
}

// limitNames are the limits that can be propagated.
func limitNames() []string {
	return []string{"AS", "CORE", "CPU", "DATA", "FSIZE", "MEMLOCK", "NOFILE", "NPROC", "RSS", "STACK"}
}

// setPropagate reads names of limits, ALL or NONE; see [Options.Propagate].
func setPropagate(o *Options, v value) error {
	o.Propagate = nil
	if v.bare || strings.EqualFold(v.text, "ALL") {
		o.Propagate = limitNames()
		return nil
	}
	if strings.EqualFold(v.text, "NONE") {
		return nil
	}
	for word := range strings.FieldsFuncSeq(v.text, func(r rune) bool { return r == ',' }) {
		name := strings.TrimPrefix(strings.ToUpper(word), "RLIMIT_")
		if !slices.Contains(limitNames(), name) {
			return &Refusal{Code: 1, Lines: []string{"error: Bad rlimit name: " + word, "error: --propagate=" + v.text + " is not valid."}}
		}
		o.Propagate = append(o.Propagate, name)
	}
	return nil
}

// stepOptions are those of steps.
func stepOptions() []option {
	return []option{
		{Flag: Flag{"jobid", 0, RequiredArgument}, in: Srun, set: setJobID},
		{Flag: Flag{"overlap", 0, OptionalArgument}, in: Srun, env: "OVERLAP", set: intoBool(func(o *Options) *bool { return &o.Overlap })},
		{Flag: Flag{"exact", 0, NoArgument}, in: Srun, env: "EXACT", set: intoBool(func(o *Options) *bool { return &o.Exact })},
		{Flag: Flag{"whole", 0, NoArgument}, in: Srun, env: "WHOLE", set: func(o *Options, v value) error { o.Exact = o.Exact && !v.on(); return nil }},
		{Flag: Flag{"relative", 'r', RequiredArgument}, in: Srun, set: intoInt(0, func(o *Options) *int { return &o.Relative })},
		{Flag: Flag{"label", 'l', NoArgument}, in: Srun, env: "LABELIO", set: intoBool(func(o *Options) *bool { return &o.Program.Label })},
		{Flag: Flag{"unbuffered", 'u', NoArgument}, in: Srun, env: "UNBUFFEREDIO", set: intoBool(func(o *Options) *bool { return &o.Program.Unbuffered })},
		{Flag: Flag{"kill-on-bad-exit", 'K', OptionalArgument}, in: Srun, env: "KILL_BAD_EXIT", set: setKillOnBadExit},
		{Flag: Flag{"wait", 'W', RequiredArgument}, in: Srun, env: "WAIT", set: setWaitAfter},
		{Flag: Flag{"pty", 0, NoArgument}, in: Srun, set: intoBool(func(o *Options) *bool { return &o.Program.Terminal })},
		{Flag: Flag{"multi-prog", 0, NoArgument}, in: Srun, env: "SRUN_MULTI", set: intoBool(func(o *Options) *bool { return &o.MultiProg })},
		{Flag: Flag{"disable-status", 'X', NoArgument}, in: Srun, env: "DISABLE_STATUS", set: intoBool(func(o *Options) *bool { return &o.DisableStatus })},
		{Flag: Flag{"quit-on-interrupt", 0, NoArgument}, in: Srun, set: intoBool(func(o *Options) *bool { return &o.QuitOnInterrupt })},
		{Flag: Flag{"immediate", 'I', OptionalArgument}, in: Srun | Salloc, env: "IMMEDIATE", set: setImmediate},
		{Flag: Flag{"mpi", 0, RequiredArgument}, in: Srun, env: "MPI_TYPE", set: setMPI},
		{Flag: Flag{"interactive", 0, NoArgument}, in: Srun, set: intoBool(func(o *Options) *bool { return &o.Interactive })},
		{Flag: Flag{"no-allocate", 'Z', NoArgument}, in: Srun, why: "steps run in jobs only"},
		{Flag: Flag{"threads", 'T', RequiredArgument}, in: Srun, env: "THREADS", set: ignoreNumber},
		{Flag: Flag{"msg-timeout", 0, RequiredArgument}, in: Srun, env: "MSG_TIMEOUT", set: ignoreNumber},
	}
}

// ignoreNumber is the setter of options about how Slurm's own srun works inside, which
// cannot change what a step does.
func ignoreNumber(_ *Options, v value) error {
	_, err := v.number(1)
	return err
}

func setJobID(o *Options, v value) error {
	n, err := v.number(1)
	o.JobID = job.ID(n)
	return err
}

func setKillOnBadExit(o *Options, v value) error {
	if v.bare {
		o.Program.KillOnBadExit = true
		return nil
	}
	n, err := v.number(0)
	o.Program.KillOnBadExit = n != 0
	return err
}

// setWaitAfter reads seconds, 0 for ever, as Slurm has it.
func setWaitAfter(o *Options, v value) error {
	n, err := v.number(0)
	o.Program.WaitAfterExit = job.Duration(n) * job.Second
	return err
}

// setImmediate reads seconds; without any it is 1, and 0 is for ever.
func setImmediate(o *Options, v value) error {
	o.Immediate = job.Second
	if v.bare {
		return nil
	}
	n, err := strconv.Atoi(v.text)
	if err != nil || n < 0 {
		return refuse(1, "Invalid numeric value %q for immediate.", v.text)
	}
	o.Immediate = job.Duration(n) * job.Second
	return nil
}

func setMPI(o *Options, v value) error {
	switch v.text {
	case "none", "openmpi":
		return nil
	case "list":
		return &Refusal{Plain: true, Code: 0, Lines: []string{"MPI plugin types are...", "\tnone"}}
	case "pmix", "pmi2", "pmix_v3", "pmix_v4", "pmix_v5", "cray_shasta":
		return refuse(badOption, "--mpi=%s: not supported by Gangway yet; use --mpi=none and a launcher that does without, as torchrun", v.text)
	}
	return refuse(1, "Invalid MPI type '%s', --mpi=list for acceptable types", v.text)
}
