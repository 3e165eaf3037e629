#!/bin/bash
#SBATCH --job-name=ray
#SBATCH --nodes=3 --ntasks-per-node=1 --cpus-per-task=4 --gpus-per-task=1 --mem-per-cpu=10M
#SBATCH -o @DIR@/ray-%j.out
# The old way: a head, then workers, each a step in the background, and the driver beside them.
cd @DIR@
nodes=$(scontrol show hostnames "$SLURM_JOB_NODELIST")
nodes_array=($nodes)
head_node=${nodes_array[0]}
head_node_ip=$(srun --nodes=1 --ntasks=1 -w "$head_node" hostname --ip-address)
export ip_head=${head_node_ip%% *}:6379
echo "IP Head: $ip_head"
srun --nodes=1 --ntasks=1 -w "$head_node" bash -c 'touch node-$SLURMD_NODENAME; echo "head with $SLURM_CPUS_PER_TASK CPUs on $ip_head"; sleep 600' &
while [ ! -e "node-$head_node" ]; do sleep 0.1; done
worker_num=$((SLURM_JOB_NUM_NODES - 1))
for ((i = 1; i <= worker_num; i++)); do
	srun --nodes=1 --ntasks=1 -w "${nodes_array[$i]}" bash -c 'touch node-$SLURMD_NODENAME; sleep 600' &
done
while [ "$(ls node-* | wc -l)" -lt "$SLURM_JOB_NUM_NODES" ]; do sleep 0.1; done
echo "the driver sees $(ls node-* | wc -l) nodes"
