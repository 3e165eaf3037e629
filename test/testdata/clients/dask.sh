#!/usr/bin/env bash

#SBATCH -J dask-worker
#SBATCH -e @DIR@/logs/dask-worker-%J.err
#SBATCH -o @DIR@/logs/dask-worker-%J.out
#SBATCH -n 1
#SBATCH -N 1
#SBATCH --cpus-per-task=2
#SBATCH --mem=1G
#SBATCH -t 00:30:00

JOB_ID=${SLURM_JOB_ID%;*}

trap 'rm -f @DIR@/registered-$JOB_ID; echo "worker $JOB_ID has left"; exit 0' TERM
echo "$(nproc) of $SLURM_CPUS_PER_TASK" > @DIR@/registered-$JOB_ID
while :; do sleep 0.1; done
