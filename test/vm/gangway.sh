#!/bin/sh
# What gangway itself does in the machine: gangway.sh RUNG. init.sh runs it as root and as a
# user; main.go looks for its lines "VM-CHECK ...".
rung=$1
mkdir -p /tmp/$rung
export HOME=/tmp/$rung GANGWAY_STORE=/tmp/$rung/store GANGWAY_RUNTIME_DIR=/tmp/$rung/run
mkdir -p $GANGWAY_RUNTIME_DIR
failed=0
alone= says=$rung
case $rung in
delegated) own=/sys/fs/cgroup/user.slice/lent/job ;;
inside) own=/sys/fs/cgroup/batch/job says=root ;;
*) own= ;;
esac
if [ $own ]; then
	# Version 2 has no group that both has processes and gives out controllers.
	alone=/tmp/$rung/alone
	printf '#!/bin/sh\necho $$ > '$own'/cgroup.procs && exec "$@"\n' > $alone
	chmod +x $alone
fi

# check NAME STATUS PATTERN ARG...: gangway run with ARG ends so, and prints that.
check() {
	name=$1 status=$2 pattern=$3
	shift 3
	timeout 60 $alone gangway run -q --container-image=oci:/image "$@" > /tmp/$rung/out 2>&1
	got=$?
	if [ $got = $status ] && grep -qE -e "$pattern" /tmp/$rung/out; then
		echo "VM-CHECK $rung $name ok"
	else
		echo "VM-CHECK $rung $name failed: status $got, not $status with: $pattern"
		cat /tmp/$rung/out
		failed=1
	fi
}
hog="dd if=/dev/zero of=/dev/null bs=200M count=1"
groups() { find /sys/fs/cgroup -name 'run-*' -o -name 'gangway-default-run-*' ! -name '*.scope'; }

check first 0 ran -- echo ran
case $rung in
none)
	check memory 0 "warning: memory is not limited: there is no cgroup" --mem=64M --quiet=false -- true
	check required 125 "cause: .*delegated: write to .*: permission denied" --mem=64M --require-cgroup -- echo ran
	grep -q "^ran" /tmp/$rung/out && failed=1
	exit $failed
	;;
esac
check required 0 "used: cgroup $says.* memory peak [0-9.]+ [MK]iB" --require-cgroup --stats --cpus=1 --cpuset=1 --mem=128M --pids-limit=50 -- true
check memory 137 "ran out of memory: peak 6[34].*limit 64 MiB, [0-9]+ killed; largest: [0-9]+ .dd. [3-6]" --mem=64M --require-cgroup -- sh -c "$hog; echo late"
grep -q "^late" /tmp/$rung/out && { echo "VM-CHECK $rung together failed"; failed=1; }
check processes 2 "can.t fork: Resource" --pids-limit=10 --require-cgroup -- sh -c 'for i in 1 2 3 4 5 6 7 8 9 10 11; do sleep 100 & done'
check cpuset 0 "^1$" --cpuset=1 --require-cgroup -- nproc
check time 0 "throttled [1-9]" --cpus=0.2 --stats --require-cgroup -- sh -c 'i=0; while [ $i -lt 5000 ]; do i=$((i+1)); done'
if [ $rung = root ]; then
	check below 0 "^0$" --mem=260M --require-cgroup -- sh -c "$hog 2>/dev/null; echo \$?"
	# The machine's devices are there to be seen, but only what was given can be used.
	mkdir -p /etc/cdi
	cat > /etc/cdi/vendor.json <<-END
	{"cdiVersion": "0.6.0", "kind": "vendor.com/test", "devices": [{"name": "a", "containerEdits":
	 {"deviceNodes": [{"path": "/dev/cpu_dma_latency"}]}}]}
	END
	try='for f in cpu_dma_latency vga_arbiter zero; do (: < /host/$f) && echo $f opens; done; true'
	ln -s /dev /host && sh -c "$try" > /tmp/root/out
	[ "$(grep -c opens /tmp/root/out)" = 3 ] || { echo "VM-CHECK root outside failed"; failed=1; }
	check device 0 "^cpu_dma_latency opens" --require-cgroup --device=vendor.com/test=a --container-mounts=/dev:/host -- sh -c "$try"
	check filter 0 "vga_arbiter: Operation not permitted" --require-cgroup --device=vendor.com/test=a --container-mounts=/dev:/host -- sh -c "$try"
	check nothing 0 "cpu_dma_latency: Operation not permitted" --require-cgroup --container-mounts=/dev:/host -- sh -c "$try"
	check mounted 0 "^cpu_dma_latency opens" --require-cgroup --container-mounts=/dev/cpu_dma_latency:/host/cpu_dma_latency -- sh -c "$try"
	check unknown 125 "vendor.com/test=a" --device=vendor.com/test=b -- true
fi
if [ $rung = inside ]; then
	# What holds for whoever starts it holds for the container: 160 MiB, 60 processes.
	check above 0 "^hog [^0]" -- sh -c "$hog 2>/dev/null; echo hog \$?"
	# All of its processes end together, also where it was the limit above that was reached.
	check more 137 "a control group above theirs, ran out of memory" --mem=900M --require-cgroup -- sh -c "$hog 2>/dev/null; echo hog \$?"
	check forks 2 "can.t fork: Resource" --pids-limit=200 -- sh -c 'i=0; while [ $i -lt 80 ]; do sleep 100 & i=$((i+1)); done'
	# With the shell beside it nothing can be limited any further, which is said.
	printf '#!/bin/sh\necho $$ > /sys/fs/cgroup/batch/with/cgroup.procs; "$@"\n' > $alone
	check with 0 "^hog [^0]" --mem=100M --quiet=false -- sh -c "$hog 2>/dev/null; echo hog \$?"
	check why 0 "warning: memory is not limited: the group .*/batch/with has processes besides" --mem=100M --quiet=false -- true
	check refuses 125 "memory is not limited: the group" --mem=100M --require-cgroup -- echo ran
fi
if [ $rung = delegated ]; then
	# What a killed run leaves, the next one beside it removes: its group can be used again.
	$alone gangway run -q --container-image=oci:/image --mem=64M -- sh -c 'echo up; sleep 1000' > /tmp/$rung/killed 2>&1 &
	pid=$!
	for i in $(seq 300); do
		grep -q "^up" /tmp/$rung/killed && break
		sleep 0.1
	done
	kill -9 $pid
	wait $pid
	[ -n "$(groups)" ] || { echo "VM-CHECK $rung killed failed: nothing is left"; failed=1; }
	sleep 1
	timeout 60 gangway run -q --container-image=oci:/image --mem=64M -- true || failed=1
	[ -z "$(groups)" ] || { echo "VM-CHECK $rung swept failed: $(groups)"; failed=1; }
	check again 0 "used: cgroup $says.* memory peak [0-9.]+ [MK]iB" --require-cgroup --stats --mem=64M -- true
fi
if [ -n "$(groups)" ]; then
	echo "VM-CHECK $rung gone failed: $(groups)"
	failed=1
fi
exit $failed
