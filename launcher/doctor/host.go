package doctor

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// memlock looks at how much memory may be locked. InfiniBand registers memory by that.
func (e *examination) memlock(context.Context) Finding {
	f := Finding{Result: OK, Tried: "read the limit of locked memory"}
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &l); err != nil {
		f.Result, f.Got = Unknown, err.Error()
		return f
	}
	infiniband := e.facts.exists("/dev/infiniband")
	f.Got = "unlimited"
	if l.Max != unix.RLIM_INFINITY {
		f.Got = size(l.Max)
		if !infiniband {
			f.Got += ", and no InfiniBand here"
		}
	}
	const least = 64 << 10 // the kernel's own default
	if l.Max == unix.RLIM_INFINITY || !infiniband && l.Max >= least {
		return f
	}
	f.Result = Degraded
	return missing(f, "", "RDMA and io_uring are refused memory: NCCL and MPI fall back to TCP or fail",
		"printf '* hard memlock unlimited\\n* soft memlock unlimited\\n' | sudo tee /etc/security/limits.d/gangway.conf")
}

func (e *examination) nofile(context.Context) Finding {
	f := Finding{Result: OK, Tried: "read the limit of open files"}
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &l); err != nil {
		f.Result, f.Got = Unknown, err.Error()
		return f
	}
	f.Got = fmt.Sprint(l.Max)
	const least = 4096
	if l.Max >= least {
		return f
	}
	f.Result = Degraded
	return missing(f, "", "NCCL with many ranks, and programs with many files, run out of descriptors",
		"printf '* hard nofile 1048576\\n' | sudo tee /etc/security/limits.d/gangway.conf")
}

// shm looks at the host's shared memory. Containers have their own, of the same kind.
func (e *examination) shm(context.Context) Finding {
	f := Finding{Result: OK, Tried: "look at /dev/shm"}
	var st unix.Statfs_t
	err := unix.Statfs("/dev/shm", &st)
	total := st.Blocks * uint64(st.Bsize)
	const least = 64 << 20 // what Docker gives
	switch {
	case err != nil:
		f.Result, f.Got = Degraded, err.Error()
		f.Cause = "the host has no /dev/shm"
		f.Remedy = "sudo mkdir -p /dev/shm && sudo mount -t tmpfs -o mode=1777 tmpfs /dev/shm"
	case uint32(st.Type) != unix.TMPFS_MAGIC:
		f.Result, f.Got = Degraded, "it is no tmpfs"
		f.Remedy = "sudo mount -t tmpfs -o mode=1777 tmpfs /dev/shm"
	case total > least || st.Blocks == 0: // without a limit
		f.Got = "tmpfs, " + size(total)
	default:
		f.Result, f.Got = Degraded, "tmpfs, "+size(total)
		f.Remedy = "sudo mount -o remount,size=50% /dev/shm"
		if e.facts.container != "" {
			f.Remedy = e.facts.outer("--shm-size=8g")
		}
	}
	if f.Result != OK {
		f.Consequence = "programs outside containers, and inside with the host's IPC, have little shared memory"
	}
	return f
}

func (e *examination) kernel(context.Context) Finding {
	f := Finding{Result: OK, Tried: "uname"}
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		f.Result, f.Got = Unknown, err.Error()
		return f
	}
	f.Got = "Linux " + unix.ByteSliceToString(u.Release[:]) + " " + unix.ByteSliceToString(u.Machine[:])
	if e.facts.gvisor {
		f.Got += " (gVisor)"
	}
	var major, minor int
	if n, _ := fmt.Sscanf(unix.ByteSliceToString(u.Release[:]), "%d.%d", &major, &minor); n == 2 && (major < 4 || major == 4 && minor < 18) {
		f.Result = Degraded
		return missing(f, "it is older than 4.18", "FUSE does not work in user namespaces: "+unpacked, "upgrade the kernel to 4.18 or later; this one is: uname -r")
	}
	return f
}

// space looks at the free room of a file system.
func (e *examination) space(what, dir string, least uint64) Finding {
	at := existing(dir)
	f := Finding{Result: OK, Tried: "look at the free space for " + what + " in " + at}
	var st unix.Statfs_t
	if err := unix.Statfs(at, &st); err != nil {
		f.Result, f.Got = Unknown, err.Error()
		return f
	}
	if st.Blocks == 0 && st.Files == 0 { // a pseudo file system, or one without an end
		f.Result, f.Got = Unknown, "its file system does not say how large it is"
		return f
	}
	free := st.Bavail * uint64(st.Bsize)
	f.Got = size(free) + " free"
	if st.Files > 0 {
		f.Got += fmt.Sprintf(", %d files", st.Ffree)
	}
	if free >= least && (st.Files == 0 || st.Ffree >= 1000) {
		return f
	}
	f.Result = Degraded
	f.Cause = fmt.Sprintf("less than %s or 1000 files are free", size(least))
	f.Consequence = "there is soon no room for " + what
	f.Remedy = "df -h " + at
	if dir == e.Store {
		f.Consequence = "images are not pulled for want of room; those that are there run"
		f.Remedy = "gangway image gc --older-than 30d"
	}
	return f
}

// store writes a file where images are kept.
func (e *examination) store(context.Context) Finding {
	f := e.writable("the image store", e.Store)
	if f.Result != OK {
		f.Consequence = "images are not pulled; those that are there run"
		return f
	}
	st, err := os.Stat(e.Store)
	if err != nil {
		return f // it will be made
	}
	sys, _ := st.Sys().(*syscall.Stat_t)
	switch {
	case sys != nil && int(sys.Uid) != os.Geteuid():
		f.Result, f.Got = Degraded, fmt.Sprintf("it belongs to user %d", sys.Uid)
		f.Consequence, f.Remedy = "that user can change the images which you run", "export GANGWAY_STORE=$HOME/.cache/gangway"
	case st.Mode().Perm()&0o022 != 0:
		f.Result, f.Got = Degraded, fmt.Sprintf("its mode is %#o", st.Mode().Perm())
		f.Consequence, f.Remedy = "others can change the images which you run", "chmod go-w "+quote(e.Store)
	}
	return f
}

func (e *examination) runtimeDir(context.Context) Finding {
	f := e.writable("the directory of running containers", e.RuntimeDir)
	if f.Result != OK {
		f.Result, f.Consequence = Missing, "no container can be started"
	}
	return f
}

// writable writes a file and removes it.
func (e *examination) writable(what, dir string) Finding {
	at := existing(dir)
	f := Finding{Result: OK, Tried: "write a file to " + what + ", " + at, Got: "works"}
	if at != dir {
		f.Got = "works; " + dir + " is made when it is needed"
	}
	err := scratch(at, nil)
	if err == nil {
		return f
	}
	f.Result, f.Got = Degraded, err.Error()
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		f.Got = errno.Error()
		switch errno {
		case syscall.ENOSPC, syscall.EDQUOT:
			f.Cause, f.Remedy = "the file system or your quota is full", "df -h "+quote(at)+" ; df -i "+quote(at)
			return f
		case syscall.EROFS:
			f.Cause, f.Remedy = "it is read-only", "findmnt --target "+quote(at)
			return f
		}
	}
	f.Remedy = "sudo chown $(id -u) " + quote(at)
	if at != dir {
		f.Remedy = "sudo install -d -o $(id -u) " + quote(dir)
	}
	return f
}

// scratch writes a file that has no name, or only for a moment, and calls look with it.
func scratch(dir string, look func(*os.File) error) (err error) {
	f, err := os.OpenFile(dir, os.O_RDWR|unix.O_TMPFILE, 0o600)
	if errors.Is(err, syscall.EOPNOTSUPP) || errors.Is(err, syscall.EISDIR) {
		if f, err = os.CreateTemp(dir, ".gangway-tmp-*"); err == nil {
			defer func() { err = errors.Join(err, os.Remove(f.Name())) }()
		}
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if _, err := f.Write(make([]byte, 1<<16)); err != nil {
		return err
	}
	if look != nil {
		return look(f)
	}
	return nil
}

// cgroup looks for one that can be written, in the order in which they would be used.
func (e *examination) cgroup(ctx context.Context) Finding {
	f := Finding{Result: OK, Tried: "look for a cgroup that this user may divide"}
	const none = "limits of memory and processors are advice; accounting is by sampling"
	version := "none"
	switch {
	case e.facts.exists("/sys/fs/cgroup/cgroup.controllers"):
		version = "v2"
	case e.facts.exists("/sys/fs/cgroup/unified/cgroup.controllers"):
		version = "v1 with v2 beside it"
	case e.facts.exists("/sys/fs/cgroup/memory", "/sys/fs/cgroup/cpu", "/sys/fs/cgroup/systemd"):
		version = "v1"
	}
	switch {
	case os.Geteuid() == 0 && version != "none" && unix.Access(e.facts.root+"/sys/fs/cgroup", unix.W_OK) == nil:
		f.Got = version + ", as root"
	case version == "v2" && e.delegated():
		f.Got = "v2, delegated"
	case version == "v2" && e.userManager(ctx):
		f.Got = "v2, by the user's systemd"
	case version == "v2":
		f.Result, f.Got, f.Cause = Degraded, "v2, not delegated", "the cgroup of this process is another's, and no systemd of this user answers"
		f.Consequence, f.Remedy = none, "sudo loginctl enable-linger $USER   and log in anew"
	case version == "none":
		f.Result, f.Got = Degraded, "none"
		f.Consequence, f.Remedy = none, "sudo mount -t cgroup2 cgroup2 /sys/fs/cgroup"
	default:
		f.Result, f.Got, f.Cause = Degraded, version, "version 1 cannot be delegated to ordinary users safely"
		f.Consequence, f.Remedy = none, e.facts.boot("systemd.unified_cgroup_hierarchy=1")
	}
	if e.Limits != nil {
		e.limits(ctx, &f, version)
	}
	return f
}

// limits tries what was found by looking.
func (e *examination) limits(ctx context.Context, f *Finding, version string) {
	f.Tried = "make a control group that limits memory, processes and CPU time"
	rung, missing, err := e.Limits(ctx)
	switch {
	case err != nil:
		f.Result, f.Got = Degraded, version
		f.Cause = err.Error()
	case len(missing) == 0:
		f.Result, f.Got = OK, version+", "+rung
		f.Cause, f.Consequence, f.Remedy = "", "", ""
		return
	default:
		f.Result, f.Got = Degraded, version+", "+rung
		f.Cause = strings.Join(missing, "; ")
	}
	if f.Consequence == "" {
		f.Consequence = "some limits are advice: gangway run names them, --require-cgroup refuses"
	}
	if f.Remedy == "" {
		f.Remedy = e.facts.boot("systemd.unified_cgroup_hierarchy=1")
	}
}

// delegated says whether this process may divide its own cgroup.
func (e *examination) delegated() bool {
	for line := range strings.Lines(e.facts.read("/proc/self/cgroup")) {
		path, ok := strings.CutPrefix(strings.TrimSpace(line), "0::")
		if !ok {
			continue
		}
		dir := filepath.Join(e.facts.root, "/sys/fs/cgroup", path)
		for _, name := range []string{"", "cgroup.procs", "cgroup.subtree_control"} {
			if unix.Access(filepath.Join(dir, name), unix.W_OK) != nil {
				return false
			}
		}
		return true
	}
	return false
}

// userManager says whether a systemd of this user listens.
func (e *examination) userManager(ctx context.Context) bool {
	dir := os.Getenv("XDG_RUNTIME_DIR")
	if dir == "" {
		dir = "/run/user/" + strconv.Itoa(os.Getuid())
	}
	var d net.Dialer
	c, err := d.DialContext(ctx, "unix", filepath.Join(e.facts.root, dir, "systemd/private"))
	if err != nil {
		return false
	}
	_ = c.Close()
	return true
}

// size is a number of bytes for people.
func size(n uint64) string {
	const unit = 1024
	if n < unit {
		return fmt.Sprintf("%d B", n)
	}
	v, prefixes := float64(n)/unit, "KMGTPE"
	for v >= unit && len(prefixes) > 1 {
		v, prefixes = v/unit, prefixes[1:]
	}
	return fmt.Sprintf("%.1f %ciB", v, prefixes[0])
}

// quote makes a path one word of a shell.
func quote(path string) string {
	if strings.Trim(path, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._-+:@%") == "" {
		return path
	}
	return "'" + strings.ReplaceAll(path, "'", `'\''`) + "'"
}
