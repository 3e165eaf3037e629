#!/bin/bash

# Parameters
#SBATCH @ARRAY@
#SBATCH --comment='a comment'
#SBATCH --cpus-per-task=1
#SBATCH --error=@DIR@/@LOG@_0_log.err
#SBATCH --gpus-per-node=2
#SBATCH --job-name=submitit
#SBATCH --mem=1GB
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=2
#SBATCH --open-mode=append
#SBATCH --output=@DIR@/@LOG@_0_log.out
#SBATCH --signal=USR2@90
#SBATCH --time=5
#SBATCH --wckey=submitit

# setup
cd @DIR@

# command
export SUBMITIT_EXECUTOR=slurm
srun --unbuffered --output @DIR@/@LOG@_%t_log.out --error @DIR@/@LOG@_%t_log.err bash @DIR@/task.sh @WORK@
