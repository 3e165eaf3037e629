package main

import (
	"context"
	"os"
	"strconv"

	"github.com/gangway-hpc/gangway/internal/api"
	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/internal/slurm"
	"github.com/gangway-hpc/gangway/launcher/rank"
)

// jobEnviron is what a program is told of an allocation that is not in one of its steps.
func (r *stepRun) jobEnviron(ctx context.Context, j *api.Job) []string {
	var all []string
	add := func(name, text string) {
		if text != "" {
			all = append(all, name+"="+text)
		}
	}
	number := func(name string, n int64) {
		if n > 0 {
			add(name, strconv.FormatInt(n, 10))
		}
	}
	var cpus, tasks []int
	for _, share := range j.Shares {
		cpus, tasks = append(cpus, share.CPUs), append(tasks, max(share.Tasks, 1))
	}
	o := r.options
	host, _ := os.Hostname()
	for _, name := range []string{"SLURM_JOB_ID", "SLURM_JOBID"} {
		add(name, j.ID.String())
	}
	for _, name := range []string{"SLURM_JOB_NODELIST", "SLURM_NODELIST"} {
		add(name, slurm.Fold(j.NodeList))
	}
	for _, name := range []string{"SLURM_JOB_NUM_NODES", "SLURM_NNODES"} {
		number(name, int64(len(j.NodeList)))
	}
	add("SLURM_JOB_NAME", j.Name)
	add("SLURM_JOB_PARTITION", j.Partition)
	add("SLURM_JOB_ACCOUNT", j.Account)
	add("SLURM_JOB_QOS", j.QOS)
	add("SLURM_JOB_CPUS_PER_NODE", rank.RunLength(cpus))
	add("SLURM_TASKS_PER_NODE", rank.RunLength(tasks))
	add("SLURM_SUBMIT_DIR", workDir(r.env, ""))
	add("SLURM_SUBMIT_HOST", host)
	number("SLURM_JOB_START_TIME", int64(j.Start/job.Time(job.Second)))
	if j.Limit > 0 && j.Limit < job.Forever {
		number("SLURM_JOB_END_TIME", int64(j.Start.Add(j.Limit)/job.Time(job.Second)))
	}
	if p, err := r.client.Ping(ctx); err == nil {
		add("SLURM_CLUSTER_NAME", p.Cluster)
	}
	for _, name := range []string{"SLURM_NTASKS", "SLURM_NPROCS"} {
		number(name, int64(rank.JobTasks(o.Job.Tasks, o.Job.TasksPerNode, tasks)))
	}
	number("SLURM_NTASKS_PER_NODE", int64(o.Job.TasksPerNode))
	number("SLURM_CPUS_PER_TASK", int64(o.Job.CPUsPerTask))
	number("SLURM_CPUS_PER_GPU", int64(o.Job.CPUsPerGPU))
	switch o.Job.Memory.Per {
	case job.PerCPU:
		number("SLURM_MEM_PER_CPU", o.Job.Memory.MiB)
	case job.PerGPU:
		number("SLURM_MEM_PER_GPU", o.Job.Memory.MiB)
	default:
		number("SLURM_MEM_PER_NODE", o.Job.Memory.MiB)
	}
	add("SLURM_GPUS", o.GPUs)
	add("SLURM_GPUS_PER_NODE", o.GPUsPerNode)
	add("SLURM_GPUS_PER_TASK", o.GPUsPerTask)
	add(api.Variable, r.client.Address())
	return append(all, o.ForSteps()...)
}
