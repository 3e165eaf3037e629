#!/bin/bash
#SBATCH --output=@DIR@/jupyterhub_slurmspawner_%j.log
#SBATCH --job-name=spawner-jupyterhub
#SBATCH --chdir=@DIR@
#SBATCH --export=PATH,HOME,USER,JUPYTERHUB_API_TOKEN
#SBATCH --get-user-env=L
#SBATCH --partition=main
#SBATCH --time=1:00:00
#SBATCH --mem=100M
#SBATCH --cpus-per-task=2

set -euo pipefail

trap 'echo SIGTERM received' TERM

which srun
srun bash -c 'trap "echo the server ends; exit 0" TERM; echo "token $JUPYTERHUB_API_TOKEN, outer ${OUTER-none}" > server-$SLURM_JOB_ID; while :; do sleep 0.1; done'
echo "jupyterhub-singleuser ended gracefully"
