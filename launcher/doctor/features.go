package doctor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// private are the namespaces that a probe of mounts needs.
const private = syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS

// missing completes a finding that is not ok.
func missing(f Finding, cause, consequence, remedy string) Finding {
	if f.Result != OK {
		f.Cause, f.Consequence, f.Remedy = cause, consequence, remedy
	}
	return f
}

// refused explains why a system call was refused that this kernel has or has not.
func (e *examination) refused(errno syscall.Errno, since string) refusal {
	switch {
	case e.facts.seccomp:
		return refusal{"a seccomp filter is in force on this process", e.facts.unfiltered()}
	case e.facts.gvisor:
		return refusal{"this is gVisor, which has not all of Linux", "runsc is chosen by the outer container: " + e.facts.outer("--runtime=runc")}
	case errno == syscall.ENOSYS:
		return refusal{"the kernel is older than Linux " + since, "upgrade the kernel to " + since + " or later; this one is: uname -r"}
	}
	return e.facts.late(errno)
}

// errnoOf is the error of the step that did not succeed, or of the start.
func errnoOf(t *trial) syscall.Errno {
	s, _ := t.failed()
	if t.start != 0 {
		return t.start
	}
	return s.Errno
}

const unpacked = "images are unpacked before they run: slow starts, and disk taken"

// fuseDevice opens /dev/fuse.
func (e *examination) fuseDevice(context.Context) Finding {
	f := Finding{Result: OK, Tried: "open /dev/fuse for reading and writing", Got: "works"}
	d, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if err == nil {
		_ = d.Close()
		return f
	}
	errno, _ := errors.AsType[syscall.Errno](err)
	f.Result, f.Got, f.Consequence = Degraded, errno.Error(), unpacked
	switch device := e.facts.outer("--device /dev/fuse"); {
	case errno == syscall.ENOENT && e.facts.container != "":
		f.Cause, f.Remedy = "the outer container has no /dev/fuse", device
	case errno == syscall.ENOENT:
		f.Cause, f.Remedy = "the kernel's module fuse is not loaded", "sudo modprobe fuse && echo fuse | sudo tee /etc/modules-load.d/fuse.conf"
	case errno == syscall.ENODEV || errno == syscall.ENXIO:
		f.Cause, f.Remedy = "the device is there and the kernel's module fuse is not", "sudo modprobe fuse"
	case errno == syscall.EACCES:
		mode := "its mode keeps this user from it"
		if st, err := os.Stat("/dev/fuse"); err == nil {
			mode = fmt.Sprintf("its mode is %#o", st.Mode().Perm())
			if st.Mode().Perm()&0o006 == 0o006 {
				mode = "it lies on a mount without devices (nodev)"
			}
		}
		f.Cause, f.Remedy = mode, "sudo chmod 0666 /dev/fuse"
	case errno == syscall.EPERM:
		f.Cause, f.Remedy = "a cgroup does not let this process use the device", device
	}
	return f
}

func (e *examination) fuseMount(ctx context.Context) Finding {
	if e.fuseDevice(ctx).Result != OK {
		return Finding{Result: Unknown, Tried: "nothing", Got: "not tried: it needs /dev/fuse", Consequence: unpacked}
	}
	t := e.try(ctx, "fuse", private)
	why := e.facts.late(errnoOf(&t))
	if errnoOf(&t) == syscall.EINVAL || errnoOf(&t) == syscall.ENODEV {
		why = refusal{"this kernel mounts no FUSE in user namespaces, which came with Linux 4.18", "upgrade the kernel to 4.18 or later; this one is: uname -r"}
	}
	return missing(t.finding(), why.cause, unpacked, why.remedy)
}

func (e *examination) overlay(ctx context.Context) Finding {
	t := e.try(ctx, "overlay", private)
	s, _ := t.failed()
	cause := "the kernel's overlay does not work in user namespaces here"
	if s.What == "mount overlay" && s.Errno == syscall.ENODEV {
		cause = "the kernel's module overlay is not loaded"
	}
	consequence, remedy := "writable containers use fuse-overlayfs, which is slower", "upgrade the kernel to 5.11 or later; this one is: uname -r"
	if _, err := exec.LookPath("fuse-overlayfs"); err != nil {
		consequence, remedy = "writable containers work on a copy of the image, for want of fuse-overlayfs", "sudo "+e.facts.install("fuse-overlayfs")
	}
	return missing(t.finding(), cause, consequence, remedy)
}

func (e *examination) tmpfsXattr(ctx context.Context) Finding {
	t := e.try(ctx, "xattr", private)
	return missing(t.finding(), "tmpfs has user attributes since Linux 6.6, if built with them",
		"what containers write is kept on disk, not in memory", "upgrade the kernel to 6.6 or later; this one is: uname -r")
}

func (e *examination) freshProc(ctx context.Context) Finding {
	t := e.try(ctx, "proc", private|syscall.CLONE_NEWPID)
	why := e.facts.late(errnoOf(&t))
	if covered := e.facts.below("/proc"); len(covered) > 0 && errnoOf(&t) == syscall.EPERM {
		why.cause = "something is mounted over parts of /proc: " + strings.Join(covered, ", ")
		path, _, _ := strings.Cut(covered[0], " (")
		switch e.facts.container {
		case "":
			why.remedy = "sudo umount " + path
		case "docker":
			why.remedy = e.facts.outer("--security-opt systempaths=unconfined")
		default:
			why.remedy = e.facts.outer("--security-opt unmask=ALL")
		}
	}
	return missing(t.finding(), why.cause, "containers see the host's processes, and what they leave running is ended less surely", why.remedy)
}

func (e *examination) sys(ctx context.Context) Finding {
	t := e.try(ctx, "sys", private)
	why := e.facts.late(errnoOf(&t))
	return missing(t.finding(), why.cause, "programs that look for hardware in /sys do not find it", why.remedy)
}

func (e *examination) openTree(ctx context.Context) Finding {
	t := e.try(ctx, "opentree", private)
	why := e.refused(errnoOf(&t), "5.2")
	return missing(t.finding(), why.cause, "mounts are made by the names of descriptors, in more steps", why.remedy)
}

func (e *examination) mountSetattr(ctx context.Context) Finding {
	t := e.try(ctx, "setattr", private)
	why := e.refused(errnoOf(&t), "5.12")
	return missing(t.finding(), why.cause, "a read-only mount and those below it are made read-only one by one, which is slower", why.remedy)
}

// clone3 asks with arguments that are too short, so that no process comes of it. Gangway
// itself makes processes by clone.
func (e *examination) clone3(context.Context) Finding {
	_, _, errno := syscall.RawSyscall(unix.SYS_CLONE3, 0, 0, 0)
	consequence := "programs in containers use clone instead; nothing else follows"
	if errno != syscall.ENOSYS {
		consequence = "programs in containers whose C library takes any other answer than \"not implemented\" for final, as glibc 2.34 and later, make no threads"
	}
	return e.present("clone3 without arguments", errno, syscall.EINVAL, "5.3", consequence)
}

func (e *examination) openat2(context.Context) Finding {
	fd, err := unix.Openat2(unix.AT_FDCWD, "/", &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS})
	errno, _ := errors.AsType[syscall.Errno](err)
	if err == nil {
		_ = unix.Close(fd)
	}
	return e.present("openat2 with RESOLVE_IN_ROOT", errno, 0, "5.6", "names in images are looked up in a chroot, by the kernel's ordinary rules")
}

// seccomp asks with a filter that cannot be read, so that none comes into force. Every
// container has a filter, so without a way to have one there are none.
func (e *examination) seccomp(context.Context) Finding {
	const setModeFilter, specAllow = 1, 4
	_, _, errno := syscall.RawSyscall(unix.SYS_SECCOMP, setModeFilter, specAllow, 0)
	f := e.present("seccomp with a filter at no address", errno, syscall.EFAULT, "4.17", "filters are put in force by prctl: on some processors programs in containers run slower")
	if f.Result == OK {
		return f
	}
	f.Tried += ", and prctl"
	if err := unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, 0, 0, 0); !errors.Is(err, syscall.EFAULT) {
		f.Result, f.Consequence = Missing, "no container can be started: a command could type into the caller's terminal"
		if err != nil {
			f.Got += "; prctl: " + err.Error()
		}
		if !e.facts.seccomp && !e.facts.gvisor {
			f.Cause = "the kernel is built without seccomp filters"
		}
	}
	return f
}

// present is about a system call that answers want where it is there.
func (e *examination) present(tried string, errno, want syscall.Errno, since, consequence string) Finding {
	f := Finding{Result: OK, Tried: tried, Got: "works"}
	if errno == want {
		return f
	}
	why := e.refused(errno, since)
	f.Result, f.Got = Degraded, errno.Error()
	return missing(f, why.cause, consequence, why.remedy)
}

// subordinate maps one id of the user's range with newuidmap.
func (e *examination) subordinate(ctx context.Context) Finding {
	f := Finding{Result: Degraded, Tried: "newuidmap and newgidmap with one id of /etc/subuid and /etc/subgid", Consequence: "--userns=subid does not work; containers have one user"}
	uid, who := strconv.Itoa(os.Getuid()), strconv.Itoa(os.Getuid())
	if u, err := user.LookupId(uid); err == nil {
		who = u.Username
	}
	firstUID, okUID := subRange(e.facts.read("/etc/subuid"), who, uid)
	firstGID, okGID := subRange(e.facts.read("/etc/subgid"), who, uid)
	if !okUID || !okGID {
		f.Got = "no range for user " + who
		f.Remedy = "sudo usermod --add-subuids 100000-165535 --add-subgids 100000-165535 " + who
		if !strings.Contains("\n"+e.facts.read("/etc/passwd"), "\n"+who+":") { // usermod knows accounts of this machine only
			f.Remedy = "echo " + who + ":100000:65536 | sudo tee -a /etc/subuid /etc/subgid"
		}
		return f
	}
	for _, program := range []string{"newuidmap", "newgidmap"} {
		if _, err := exec.LookPath(program); err != nil {
			f.Got, f.Remedy = err.Error(), "sudo "+e.facts.install("uidmap")
			return f
		}
	}
	pid, stop, err := e.held(ctx)
	if err != nil {
		f.Result, f.Got = Unknown, err.Error()
		return f
	}
	defer stop()
	for _, m := range []struct{ program, own, first string }{
		{"newuidmap", uid, firstUID}, {"newgidmap", strconv.Itoa(os.Getgid()), firstGID},
	} {
		out, err := exec.CommandContext(ctx, m.program, strconv.Itoa(pid), "0", m.own, "1", "1", m.first, "1").CombinedOutput()
		if err != nil {
			f.Got = strings.TrimSpace(fmt.Sprintf("%s: %v: %.200s", m.program, err, out))
			f.Remedy = "sudo chmod u+s $(command -v newuidmap newgidmap)"
			switch {
			case bytes.Contains(out, []byte("user name")):
				f.Cause, f.Remedy = "it grants ids only to users who have an account", "getent passwd "+uid
			case e.facts.noNewPriv:
				f.Cause, f.Remedy = "no program gets more rights here (no_new_privs)", e.facts.outer("--security-opt no-new-privileges=false")
			}
			return f
		}
	}
	f.Result, f.Got, f.Consequence = OK, "works", ""
	return f
}

// subRange returns the first id that /etc/subuid grants a user.
func subRange(text, name, uid string) (first string, ok bool) {
	for line := range strings.Lines(text) {
		fields := strings.Split(strings.TrimSpace(line), ":")
		if len(fields) == 3 && fields[0] != "" && slices.Contains([]string{name, uid}, fields[0]) {
			n, err := strconv.ParseUint(fields[2], 10, 32)
			if err == nil && n > 0 {
				return fields[1], true
			}
		}
	}
	return "", false
}
