package slurm

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strings"
)

// Environ is what the program's environment begins with: environ, NAME=VALUE each, as
// --export and --export-file say. The rest is set where it runs.
func (o *Options) Environ(environ []string) ([][]byte, error) {
	if o.ExportFile != "" {
		return readEnvironFile(o.ExportFile, os.ReadFile)
	}
	inner := slices.ContainsFunc(environ, func(v string) bool { return strings.HasPrefix(v, "SLURM_JOB_ID=") })
	var kept []string
	for _, v := range environ {
		if o.Command == Sbatch && inner && describesJob(v) {
			continue // another job's
		}
		kept = append(kept, v)
	}
	kept, err := o.exported(kept)
	if err != nil {
		return nil, err
	}
	if o.Command == Sbatch {
		for _, v := range o.ForSteps() {
			kept = set(kept, v)
		}
	}
	out := make([][]byte, len(kept))
	for i, v := range kept {
		out[i] = []byte(v)
	}
	return out, nil
}

// ForSteps are the variables by which a script, or the shell of an allocation, hands on to its
// steps what was asked for: srun reads them.
func (o *Options) ForSteps() []string {
	var all []string
	add := func(name, text string) {
		if text != "" {
			all = append(all, name+"="+text)
		}
	}
	if o.Given("export") {
		add("SLURM_EXPORT_ENV", o.Export)
	}
	kind, size, _ := strings.Cut(o.Distribution, "=")
	add("SLURM_DISTRIBUTION", kind)
	add("SLURM_DIST_PLANESIZE", size)
	add("SLURM_GPU_BIND", o.GPUBind)
	if o.Command == Salloc { // a script's job has it itself
		add("SLURM_SIGNAL", o.signal)
	}
	for _, name := range []string{"threads-per-core", "ntasks-per-core", "ntasks-per-gpu", "cpus-per-gpu", "hint"} {
		if o.Given(name) {
			add("SLURM_"+strings.ToUpper(strings.ReplaceAll(name, "-", "_")), o.texts[name])
		}
	}
	if o.Given("open-mode") {
		add("SLURM_OPEN_MODE", map[bool]string{true: "a", false: "t"}[o.Program.Append])
	}
	return all
}

// exported is what --export lets through: ALL, NONE, NIL, or names and NAME=VALUE, with
// ALL among them besides all. What is Slurm's goes in anyway, and without ALL a login's
// first variables do, but for NIL.
func (o *Options) exported(environ []string) ([]string, error) {
	words := splitExport(o.Export)
	all := !o.Given("export") || o.Export == "" || slices.ContainsFunc(words, func(w string) bool { return strings.EqualFold(w, "ALL") })
	nothing := strings.EqualFold(o.Export, "NIL")
	var out []string
	for _, v := range environ {
		name, _, _ := strings.Cut(v, "=")
		basic := slices.Contains([]string{"HOME", "USER", "LOGNAME", "SHELL"}, name) && o.Command == Sbatch && !nothing
		if all || basic || strings.HasPrefix(name, "SLURM_") || strings.HasPrefix(name, "SPANK_") || strings.HasPrefix(name, "GANGWAY_") || slices.Contains(words, name) {
			out = append(out, v)
		}
	}
	for _, word := range words {
		name, _, assigned := strings.Cut(word, "=")
		if !assigned {
			continue
		}
		if name == "" {
			return nil, refuse(1, "--export=%s: %q has no name", o.Export, word)
		}
		out = set(out, word)
	}
	if !all && !nothing && o.Command == Sbatch && !slices.ContainsFunc(out, func(v string) bool { return strings.HasPrefix(v, "PATH=") }) {
		out = append(out, "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
	}
	return out, nil
}

// splitExport splits at commas outside of quotes, which it takes away.
func splitExport(text string) []string {
	var words []string
	var b strings.Builder
	var quote rune
	for _, c := range text {
		switch {
		case quote != 0 && c == quote:
			quote = 0
		case quote == 0 && (c == '\'' || c == '"'):
			quote = c
		case quote == 0 && c == ',':
			words = append(words, b.String())
			b.Reset()
		default:
			b.WriteRune(c)
		}
	}
	if b.Len() > 0 {
		words = append(words, b.String())
	}
	return words
}

// set replaces or adds NAME=VALUE.
func set(environ []string, v string) []string {
	name, _, _ := strings.Cut(v, "=")
	environ = slices.DeleteFunc(environ, func(old string) bool { return strings.HasPrefix(old, name+"=") })
	return append(environ, v)
}

// describesJob says whether a variable describes the job that a program is in, and would
// be wrong in another one.
func describesJob(v string) bool {
	name, _, _ := strings.Cut(v, "=")
	for _, begin := range []string{
		"SLURM_JOB_", "SLURM_JOBID", "SLURM_STEP_", "SLURM_STEPID", "SLURM_ARRAY_", "SLURM_SUBMIT_", "SLURM_NTASKS", "SLURM_CPUS_",
		"SLURM_MEM_PER_", "SLURM_GPUS", "SLURM_TOPOLOGY_", "SLURM_CPU_BIND", "SLURM_TRES_PER_TASK", "SLURM_LAUNCH_NODE_", "SLURM_SRUN_COMM_",
		"GANGWAY_STEP", "SLURM_PTY_",
	} {
		if strings.HasPrefix(name, begin) {
			return true
		}
	}
	return slices.Contains([]string{
		"SLURM_NNODES", "SLURM_NODELIST", "SLURM_NPROCS", "SLURM_TASKS_PER_NODE", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_GTIDS",
		"SLURM_TASK_PID", "SLURMD_NODENAME", "SLURM_RESTART_COUNT", "SLURM_DISTRIBUTION", "SLURM_DIST_PLANESIZE", "SLURM_GPU_BIND", "SLURM_OPEN_MODE", "SLURM_THREADS_PER_CORE", "SLURM_UMASK", "SLURM_EXPORT_ENV", "SLURM_GET_USER_ENV",
		"SLURM_WORKING_DIR", "SLURM_CLUSTER_NAME", "ENVIRONMENT", "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES",
	}, name)
}

// readEnvironFile reads NAME=VALUE, each ended by a NUL.
func readEnvironFile(name string, read func(string) ([]byte, error)) ([][]byte, error) {
	b, err := read(name)
	if err != nil {
		return nil, refuse(1, "Could not open user environment file %s", name)
	}
	var out [][]byte
	for v := range bytes.SplitSeq(b, []byte{0}) {
		if len(v) == 0 {
			continue
		}
		if bytes.IndexByte(v, '=') <= 0 {
			return nil, refuse(1, "%s", fmt.Sprintf("--export-file=%s: %.40q is not NAME=VALUE", name, v))
		}
		out = append(out, v)
	}
	return out, nil
}
