#!/bin/bash
#SBATCH --job-name=ray-symmetric
#SBATCH --nodes=2 --tasks-per-node=1 --cpus-per-task=4 --gpus-per-task=1 --mem-per-cpu=10M
#SBATCH -o @DIR@/symmetric-%j.out
# The new way: the same command on all nodes. The head runs the program, the others end with it.
cd @DIR@
nodes=$(scontrol show hostnames "$SLURM_JOB_NODELIST")
nodes_array=($nodes)
head_node=${nodes_array[0]}
export ip_head=$head_node:6379
srun --nodes="$SLURM_JOB_NUM_NODES" --ntasks="$SLURM_JOB_NUM_NODES" bash -c '
touch symmetric-$SLURMD_NODENAME
if [ "$SLURMD_NODENAME:6379" = "$ip_head" ]; then
	while [ "$(ls symmetric-n* | wc -l)" -lt "$SLURM_JOB_NUM_NODES" ]; do sleep 0.1; done
	echo "entrypoint on $SLURMD_NODENAME with GPU $CUDA_VISIBLE_DEVICES"
	touch symmetric.done
fi
while [ ! -e symmetric.done ]; do sleep 0.1; done'
