#!/bin/bash
#SBATCH -J nf-@NAME@_(1)
#SBATCH -o @DIR@/@NAME@/.command.log
#SBATCH --no-requeue 
#SBATCH --signal @SIGNAL@
#SBATCH -c 2
#SBATCH -t @TIME@
#SBATCH --mem 100M
#SBATCH -p main
NXF_CHDIR=@DIR@/@NAME@
# NEXTFLOW TASK: @NAME@ (1)
set -e
set -u
on_exit() {
	exit_status=${nxf_main_ret:=$?}
	printf -- "$exit_status" > "$NXF_CHDIR/.exitcode"
	exit "$exit_status"
}
on_term() {
	set +e
	kill "$pid"
}
trap on_exit EXIT
trap on_term TERM INT USR2
cd "$NXF_CHDIR"
echo begun > .command.begin
bash .command.sh > .command.out 2> .command.err &
pid=$!
nxf_main_ret=0
wait $pid || nxf_main_ret=$?
wait $pid 2>/dev/null || true
