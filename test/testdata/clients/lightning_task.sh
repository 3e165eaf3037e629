# A rank under Lightning's SLURMEnvironment, with its requeue before the time limit. It lets
# TERM pass, as Lightning does, and trains on until its next step.
id=${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID}
id=${id:-$SLURM_JOB_ID}
requeue() {
	[ "$SLURM_PROCID" = 0 ] || return
	[ "${SLURM_RESTART_COUNT:-0}" = 0 ] || return
	date +%s > "hpc_ckpt-$id"
	scontrol requeue "$id" && echo "Requeued SLURM job: $id" >> "requeued-$id"
}
over=
trap requeue USR1
trap 'echo "Bypassing SIGTERM: $SLURM_PROCID" >> "bypassed-$id"; over=1' TERM
for name in SLURM_JOB_ID SLURM_JOB_NAME SLURM_NTASKS SLURM_NTASKS_PER_NODE SLURM_PROCID SLURM_LOCALID SLURM_NODEID SLURM_NODELIST; do
	[ -n "${!name-}" ] || { echo "no $name" && exit 9; }
done
case $SLURM_JOB_NAME in bash | interactive) echo "interactive" && exit 8 ;; esac
root=$(sed -E 's/\[([^],-]*)[,-].*\]/\1/; s/\[(.*)\]/\1/; s/[ ,].*//' <<< "$SLURM_NODELIST")
port=$((10#$(tail -c 5 <<< "${SLURM_JOB_ID}" | tr -d '\n') + 15000))
echo "try ${SLURM_RESTART_COUNT:-0}: rank $SLURM_PROCID of $SLURM_NTASKS, $SLURM_LOCALID on node $SLURM_NODEID, $root:$port" >> "ranks-$id"
[ -e "hpc_ckpt-$id" ] && exit 0
while [ -z "$over" ]; do sleep 0.1; done
