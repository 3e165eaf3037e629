#!/bin/bash


#SBATCH --job-name="@NAME@"

#SBATCH --chdir="@DIR@"

#SBATCH --nodes=2
#SBATCH --ntasks=4
#SBATCH --ntasks-per-node=2
#SBATCH --cpus-per-task=1
#SBATCH --mem=102400K

#SBATCH --time=0:10:0

#SBATCH --partition="main"

#SBATCH -e /dev/null
#SBATCH -o /dev/null

#SBATCH --export=@EXPORT@

export PATH="@PATH@:$PATH"
export PSIJ_VALUE="a value"

_PSIJ_PC=4
_PSIJ_PPN=2

exec &>> "@DIR@/$SLURM_JOB_ID.out"

_PSIJ_NC=`scontrol show hostnames | wc -l`
echo "$_PSIJ_NC nodes, outer ${OUTER-none}"

PSIJ_NODEFILE="@DIR@/$SLURM_JOB_ID.nodefile"
scontrol show hostnames | while read NODE; do for _ in $(seq 1 1 $_PSIJ_PPN); do echo "$NODE"; done; done > "$PSIJ_NODEFILE"
export PSIJ_NODEFILE

srun -n 4 @COMMAND@
_PSIJ_JOB_EC=$?

echo $_PSIJ_JOB_EC > "@DIR@/$SLURM_JOB_ID.ec"
echo "_PSIJ_SCRIPT_DONE"
exit $_PSIJ_JOB_EC
