#!/bin/busybox sh
# The first process of the machine: see main.go. /tests runs the tests, /gangway.sh gangway.
if [ "$1" != moved ]; then
	# No root can be changed in the file system that the kernel unpacked: it has nothing above.
	/bin/busybox mkdir /moved
	/bin/busybox mount --bind / /moved
	cd /moved && /bin/busybox mount --move . /
	exec /bin/busybox chroot . /init moved
fi
/bin/busybox --install -s /bin
export PATH=/bin:/usr/bin:/sbin:/usr/sbin LC_ALL=C
mkdir -p /proc /sys /dev /tmp /run /root
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
mkdir -p /dev/pts /dev/shm
mount -t devpts devpts /dev/pts
insmod /fuse.ko
insmod /overlay.ko
chmod 666 /dev/fuse
mount -t tmpfs tmpfs /tmp
mount -t tmpfs tmpfs /run
chmod 1777 /tmp
C=/sys/fs/cgroup
mount -t cgroup2 cgroup2 $C
echo "VM kernel $(uname -r), controllers: $(cat $C/cgroup.controllers)"

# part NAME COMMAND: its status is a line that main.go looks for.
part() {
	name=$1
	shift
	echo "VM-PART $name begins"
	"$@"
	echo "VM-PART $name status $?"
}

# as_user CGROUP COMMAND: as the ordinary user, alone in that group.
as_user() {
	sh -c 'echo $$ > '$C/$1'/cgroup.procs; exec su user -c "exec $2"' sh "$1" "$2"
}

as_root() {
	GANGWAY_VM_RUNG=root /tests
}

part root as_root
part gangway-root sh /gangway.sh root

# Root in a group that somebody else made, such as a batch system: first alone.
mkdir -p $C/batch/tests $C/batch/job $C/batch/with
echo "+cpuset +cpu +io +memory +pids +hugetlb" > $C/cgroup.subtree_control
echo "+cpuset +cpu +io +memory +pids +hugetlb" > $C/batch/cgroup.subtree_control
inside() {
	sh -c 'echo $$ > '$C'/batch/tests/cgroup.procs; exec env GANGWAY_VM_RUNG=root /tests'
}
part inside inside
for d in job with; do
	echo 160M > $C/batch/$d/memory.max
	echo 60 > $C/batch/$d/pids.max
done
part gangway-inside sh /gangway.sh inside

# An ordinary user in a group that was delegated to it.
mkdir -p $C/user.slice/lent/job $C/user.slice/lent/shell $C/user.slice/closed
echo "+cpuset +cpu +io +memory +pids +hugetlb" > $C/user.slice/cgroup.subtree_control
echo "+cpuset +cpu +io +memory +pids +hugetlb" > $C/user.slice/lent/cgroup.subtree_control
for f in "" /cgroup.procs /cgroup.subtree_control /cgroup.threads; do
	chown user $C/user.slice/lent$f $C/user.slice/lent/job$f $C/user.slice/lent/shell$f
done
delegated() {
	as_user user.slice/lent/job "env GANGWAY_VM_RUNG=delegated /tests"
}
part delegated delegated
gangway_delegated() {
	as_user user.slice/lent/shell "sh /gangway.sh delegated"
}
part gangway-delegated gangway_delegated

# One that may change nothing.
none() {
	as_user user.slice/closed "env GANGWAY_VM_RUNG=none /tests"
}
part none none
gangway_none() {
	as_user user.slice/closed "sh /gangway.sh none"
}
part gangway-none gangway_none

# A user manager of systemd, which needs neither a message bus nor systemd as the first
# process, only to believe in it.
mkdir -p /run/systemd/system /run/user/1000 $C/user.slice/manager/shell
mkdir -p $C/user.slice/manager/boss
chown user /run/user/1000
chmod 700 /run/user/1000
echo "+cpuset +cpu +io +memory +pids +hugetlb" > $C/user.slice/manager/cgroup.subtree_control
for d in manager manager/boss manager/shell; do
	for f in "" /cgroup.procs /cgroup.subtree_control /cgroup.threads; do
		chown user $C/user.slice/$d$f
	done
done
systemd() {
	as_user user.slice/manager/boss "env XDG_RUNTIME_DIR=/run/user/1000 HOME=/tmp /lib/systemd/systemd --user --log-target=console --log-level=warning" &
	for i in $(seq 100); do
		[ -S /run/user/1000/systemd/private ] && break
		sleep 0.2
	done
	as_user user.slice/manager/shell "env GANGWAY_VM_RUNG=systemd XDG_RUNTIME_DIR=/run/user/1000 /tests"
}
part systemd systemd
gangway_systemd() {
	as_user user.slice/manager/shell "env XDG_RUNTIME_DIR=/run/user/1000 sh /gangway.sh systemd"
}
part gangway-systemd gangway_systemd
poweroff -f
