#!/bin/bash
#SBATCH --nodes=2
#SBATCH --gres=gpu:2
#SBATCH --ntasks-per-node=2
#SBATCH --mem=100M
#SBATCH --time=0-00:01:00
#SBATCH --signal=SIGUSR1@50
#SBATCH --open-mode=append
#SBATCH -J lightning -o @DIR@/%x-%A_%a.out @ARRAY@
cd @DIR@
export NCCL_DEBUG=INFO
export PYTHONFAULTHANDLER=1
srun bash task.sh
