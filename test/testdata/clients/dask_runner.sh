#!/bin/bash
#SBATCH -J dask-runner -n 4 -t 5 -o @DIR@/runner-%j.out
# Rank 0 is the scheduler, rank 1 the program, the others are workers: they meet by a file that
# is named after the job.
srun bash -c '
world=$SLURM_NTASKS file=@DIR@/scheduler-$SLURM_JOB_ID.json
case $SLURM_PROCID in
0)
	echo "{\"address\": \"tcp://$SLURMD_NODENAME:8786\"}" > $file.new && mv $file.new $file
	while [ $(ls $file.worker-* 2>/dev/null | wc -l) -lt $((world - 2)) ]; do sleep 0.1; done
	echo done > $file.done ;;
1) while [ ! -e $file.done ]; do sleep 0.1; done; echo "$((world - 2)) workers of $(cat $file)" ;;
*) while [ ! -e $file ]; do sleep 0.1; done; touch $file.worker-$SLURM_PROCID ;;
esac'
