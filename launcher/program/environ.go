package program

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/internal/slurm"
	"github.com/gangway-hpc/gangway/launcher/rank"
)

// Place is where programs are run.
type Place struct {
	Cluster, Node string
	API           string // where commands find the controller; empty: it is not known
}

// maxValue bounds a variable. Users choose what some hold, and the kernel starts nothing with
// one of 128 KiB: that would be the node's failure then.
const maxValue = 32 << 10

// Environ is all that a program has for an environment: Slurm's variables, and no search path,
// as with Slurm; and GANGWAY_CLUSTER, by which commands find the cluster. A health check has no
// job. What no variable can hold is left out.
func Environ(kind Kind, at Place, j *job.JobEnv) []string {
	var all []string
	add := func(name, value string) {
		if value != "" && len(value) <= maxValue && !strings.Contains(value, "\x00") {
			all = append(all, name+"="+value)
		}
	}
	add("SLURM_CLUSTER_NAME", at.Cluster)
	add("SLURMD_NODENAME", at.Node)
	add("GANGWAY_CLUSTER", at.API)
	if j == nil {
		return all
	}
	add("SLURM_JOB_ID", j.ID.String())
	add("SLURM_JOBID", j.ID.String())
	for _, name := range []string{"SLURM_JOB_UID", "SLURM_UID"} {
		add(name, number(j.UID))
	}
	add("SLURM_JOB_GID", number(j.GID))
	add("SLURM_JOB_USER", j.User)
	add("SLURM_JOB_NAME", j.Name)
	add("SLURM_JOB_ACCOUNT", j.Account)
	add("SLURM_JOB_PARTITION", j.Partition)
	add("SLURM_JOB_COMMENT", j.Comment)
	add("SLURM_JOB_CONSTRAINTS", j.Constraints)
	add("SLURM_JOB_WORK_DIR", j.WorkDir)
	nodes := slurm.Fold(j.Nodes)
	add("SLURM_JOB_NODELIST", nodes)
	add("SLURM_NODELIST", nodes)
	add("SLURM_JOB_NUM_NODES", number(len(j.Nodes)))
	add("SLURM_JOB_CPUS_PER_NODE", rank.RunLength(j.CPUsPerNode))
	add("SLURM_JOB_START_TIME", number(int64(j.Start)/1000))
	add("SLURM_JOB_END_TIME", number(int64(j.End)/1000))
	add("SLURM_JOB_RESTART_COUNT", number(j.Restarts))
	add("SLURM_JOB_GPUS", list(rank.Indices(j.Devices, "gpu")))
	if a := j.Array; a != nil {
		add("SLURM_ARRAY_JOB_ID", a.Job.String())
		add("SLURM_ARRAY_TASK_ID", number(a.Task))
		add("SLURM_ARRAY_TASK_COUNT", number(a.Count))
		add("SLURM_ARRAY_TASK_MIN", number(a.Min))
		add("SLURM_ARRAY_TASK_MAX", number(a.Max))
		add("SLURM_ARRAY_TASK_STEP", number(a.Step))
	}
	add("SLURM_SCRIPT_CONTEXT", string(kind)+"_slurmd")
	if e := j.Ended; e != nil && kind == Epilog {
		add("SLURM_JOB_EXIT_CODE", number(e.Exit<<8|e.Signal)) // as wait(2) has it
		add("SLURM_JOB_EXIT_CODE2", fmt.Sprintf("%d:%d", e.Exit, e.Signal))
		add("SLURM_JOB_DERIVED_EC", number(e.Derived))
	}
	return all
}

func number[N int | int64 | uint32](n N) string { return strconv.FormatInt(int64(n), 10) }

// list is numbers with commas.
func list(numbers []int) string {
	all := make([]string, len(numbers))
	for i, n := range numbers {
		all[i] = strconv.Itoa(n)
	}
	return strings.Join(all, ",")
}
