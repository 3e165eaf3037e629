package doctor

import (
	"cmp"
	"fmt"
	"os"
	"strings"
	"syscall"
)

// refusal says why the kernel refused something to do with user namespaces, and what
// mends it.
type refusal struct{ cause, remedy string }

// created explains why a user namespace could not be created. The kernel has many
// reasons and few error numbers.
func (f *facts) created(errno syscall.Errno) refusal {
	switch errno {
	case syscall.ENOSPC, syscall.EUSERS:
		return f.limit("user")
	case syscall.ENOSYS, syscall.EINVAL:
		if f.gvisor {
			return refusal{"this is gVisor, which has no such user namespaces", "runsc is chosen by the outer container: " + f.outer("--runtime=runc")}
		}
		return refusal{"this kernel is built or booted without user namespaces", f.boot("user_namespace.enable=1")}
	case syscall.EPERM, syscall.EACCES:
		return f.forbidden()
	case 0:
		return refusal{}
	}
	return refusal{"the kernel says: " + errno.Error(), "sudo dmesg | tail"}
}

// forbidden explains EPERM and EACCES of clone.
func (f *facts) forbidden() refusal {
	switch {
	case f.sysctl("kernel.unprivileged_userns_clone") == "0":
		return refusal{"kernel.unprivileged_userns_clone is 0", "echo kernel.unprivileged_userns_clone=1 | sudo tee /etc/sysctl.d/60-gangway.conf && sudo sysctl --system"}
	case f.restricted() && !f.profiled() && (f.label == "" || strings.HasPrefix(f.label, "unconfined")):
		return f.appArmored()
	case f.chroot:
		return refusal{"this process is in a chroot, in which the kernel creates no user namespaces", "use pivot_root instead, as this does: systemd-nspawn -D DIR"}
	case f.unmapped():
		return refusal{fmt.Sprintf("the id %d has no meaning in the user namespace that this process is in", os.Geteuid()), f.outer("--userns=keep-id")}
	case f.seccomp:
		return refusal{"a seccomp filter is in force on this process", f.unfiltered()}
	case f.label != "" && !strings.HasPrefix(f.label, "unconfined"):
		return refusal{"AppArmor confines this process by the profile " + f.label, f.outer("--security-opt apparmor=unconfined")}
	case f.gvisor:
		return refusal{"this is gVisor", "runsc is chosen by the outer container: " + f.outer("--runtime=runc")}
	case f.lsm != "":
		return refusal{"no setting forbids it, so one of the kernel's security modules does: " + f.lsm, "sudo ausearch -m AVC,USER_AVC -ts recent"}
	}
	return refusal{"no setting that is known forbids it", "sudo dmesg | tail"}
}

// late explains why a namespace that was created is of no use.
func (f *facts) late(errno syscall.Errno) refusal {
	switch {
	case errno == syscall.ENOSPC:
		return f.limit(cmp.Or(f.noneAllowed(), "mnt"))
	case errno != syscall.EPERM && errno != syscall.EACCES:
		return refusal{"the kernel says: " + errno.Error(), "sudo dmesg | tail"}
	case f.restricted() && !f.profiled():
		return f.appArmored()
	case f.seccomp:
		return refusal{"a seccomp filter is in force on this process", f.unfiltered()}
	case f.label != "" && !strings.HasPrefix(f.label, "unconfined") && !f.profiled():
		return refusal{"AppArmor confines this process by the profile " + f.label, f.outer("--security-opt apparmor=unconfined")}
	}
	return refusal{"no setting that is known forbids it", "sudo dmesg | tail"}
}

// noneAllowed is a kind of namespaces of which this user may have none, "" if there is none
// such; user namespaces are not looked at.
func (f *facts) noneAllowed() string {
	for _, kind := range []string{"mnt", "pid", "ipc", "uts", "net", "cgroup"} {
		if f.sysctl("user.max_"+kind+"_namespaces") == "0" {
			return kind
		}
	}
	return ""
}

func (f *facts) limit(kind string) refusal {
	name := "user.max_" + kind + "_namespaces"
	value := f.sysctl(name)
	remedy := fmt.Sprintf("echo %s=15000 | sudo tee /etc/sysctl.d/60-gangway.conf && sudo sysctl --system", name)
	if value == "0" {
		return refusal{name + " is 0", remedy}
	}
	return refusal{fmt.Sprintf("as many as %s (%s here) permits are in use, or an outer container may have none", name, value), remedy}
}

// appArmored is the restriction of Ubuntu 23.10 and later.
func (f *facts) appArmored() refusal {
	cause := "kernel.apparmor_restrict_unprivileged_userns is 1"
	if f.exists(profileFile) {
		cause += ", and the profile in " + profileFile + " is for another path than this program's, or not loaded"
	} else {
		cause += ", and this program has no profile"
	}
	return refusal{cause, "sudo gangway doctor --fix apparmor"}
}

// unmapped says whether the user of this process is unknown in its own namespace.
func (f *facts) unmapped() bool {
	if !f.exists("/proc/self/uid_map") {
		return false
	}
	uid := int64(os.Geteuid())
	for line := range strings.Lines(f.read("/proc/self/uid_map")) {
		var inside, outside, count int64
		if n, _ := fmt.Sscan(line, &inside, &outside, &count); n == 3 && uid >= inside && uid < inside+count {
			return false
		}
	}
	return true
}
