#!/bin/bash

#SBATCH --job-name=@NAME@
#SBATCH --output=@DIR@/@NAME@.stdout
#SBATCH --error=@DIR@/@NAME@.stderr
#SBATCH --nodes=2
#SBATCH --time=10
#SBATCH --ntasks-per-node=2
#SBATCH --exclusive
#SBATCH --mem=1g
#SBATCH --cpus-per-task=2
export PARSL_MEMORY_GB=1
export PARSL_CORES=2


export JOBNAME="@NAME@"

set -e
export CORES=$SLURM_CPUS_ON_NODE
export NODES=$SLURM_JOB_NUM_NODES

[[ "1" == "1" ]] && echo "Found cores : $CORES"
[[ "1" == "1" ]] && echo "Found nodes : $NODES"
WORKERCOUNT=4

cat << SLURM_EOF > @DIR@/cmd_$SLURM_JOB_NAME.sh
@COMMAND@
SLURM_EOF
chmod a+x @DIR@/cmd_$SLURM_JOB_NAME.sh

srun --ntasks 4 -l  bash @DIR@/cmd_$SLURM_JOB_NAME.sh

[[ "1" == "1" ]] && echo "Done"
