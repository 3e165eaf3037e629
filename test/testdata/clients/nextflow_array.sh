#!/bin/bash
#SBATCH --array 0-2
#SBATCH -J nf-array
#SBATCH -o /dev/null
#SBATCH --no-requeue
#SBATCH --signal B:USR2@30
#SBATCH -t 00:05:00
declare -a array=( @DIR@/child0 @DIR@/child1 @DIR@/child2 )
export nxf_array_task_dir=${array[SLURM_ARRAY_TASK_ID]}
mkdir -p "$nxf_array_task_dir"
echo "$SLURM_ARRAY_TASK_ID of $SLURM_ARRAY_TASK_COUNT" > "$nxf_array_task_dir/.command.out"
exit $((SLURM_ARRAY_TASK_ID == 2))
