# A task of submitit: what its environment says of it, its work, and its result. A first task
# that gets USR2 writes a checkpoint, requeues the job and exits; the others go on.
id=${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID}
id=${id:-$SLURM_JOB_ID}
echo "JobEnvironment(job_id=$id, hostname=$SLURMD_NODENAME, local_rank=$SLURM_LOCALID($((SLURM_NTASKS / SLURM_JOB_NUM_NODES))), node=$SLURM_NODEID($SLURM_JOB_NUM_NODES), global_rank=$SLURM_PROCID($SLURM_NTASKS))"
preempted() {
	if [ "$SLURM_PROCID" != 0 ]; then
		echo "not requeuing: procid=$SLURM_PROCID"
		slave=1
		return
	fi
	echo "checkpoint of try ${SLURM_RESTART_COUNT:-0}" > "checkpoint_$id"
	scontrol requeue "$id" || exit 99
	echo "Requeued job $id"
	exit 255
}
over= slave=
trap preempted USR2
trap 'echo Bypassing signal SIGTERM; over=1' TERM
trap 'echo Bypassing signal SIGCONT' CONT
echo "$SLURM_PROCID runs" >> "runs_$id"
case $1:${SLURM_RESTART_COUNT:-0} in
fail:*) echo "a task fails" >&2 && exit 1 ;;
long:0) while [ -z "$over" ] && [ ! -e "stop_$id" ]; do sleep 0.1; done ;;
esac
[ -z "$slave" ] || exit 0 # it would work on until it is killed
echo "result of $SLURM_PROCID after $(cat "checkpoint_$id" 2>/dev/null || echo none)" >> "result_$id"
