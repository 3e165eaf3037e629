package runtime

import (
	"encoding/binary"
	"errors"
	"fmt"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/gangway-hpc/gangway/runtime/plan"
)

// Compile writes the plan of a container. It makes no system call: the same configuration
// and features give the same plan.
func Compile(c *Config, f Features) (*plan.Plan, error) {
	if err := check(c); err != nil {
		return nil, err
	}
	flags, cgroup, err := namespaces(c.Spec)
	if err != nil {
		return nil, err
	}
	p := &plan.Plan{Flags: flags, PidNS: flags&unix.CLONE_NEWPID != 0, Message: c.Orphan.Message}
	b := &builder{c: c, f: f, regs: int(plan.Given) + len(c.Pass)}
	b.begin(p)
	if cgroup {
		b.call(unix.SYS_UNSHARE, "unshare", "cgroup namespace", plan.Num(unix.CLONE_NEWCGROUP))
		b.special(plan.Sync, "sendto", "the supervisor of the cgroup namespace").Note = plan.NoteCgroup
	}
	stage := b.root()
	terminal, err := b.fill(stage)
	if err != nil {
		return nil, err
	}
	b.identity(flags)
	if c.FakeRoot {
		b.enclose()
	}
	score := b.finish(p)
	p.Init = b.ops

	b.ops = nil
	b.first(terminal)
	p.First = b.ops

	b.ops = nil
	if score != plan.None {
		b.call(unix.SYS_WRITE, "write", "0 to oom_score_adj, which PID 1 keeps", plan.Fd(score), plan.Mem([]byte("0")), plan.Num(1)).May = []syscall.Errno{syscall.EACCES}
		b.close("oom_score_adj", score)
	}
	for _, r := range append([]plan.Reg{plan.Begin, plan.Stdin, plan.Stdout, plan.Stderr}, terminal...) {
		b.close("what is the first process's", r)
	}
	for i := range c.Pass {
		b.close("what is the first process's", plan.Given+plan.Reg(i))
	}
	p.After, p.Regs = b.ops, b.regs
	return p, nil
}

// check refuses what no plan can be made of.
func check(c *Config) error {
	s := c.Spec
	switch {
	case s == nil || s.Process == nil || len(s.Process.Args) == 0:
		return errors.New("compile container: no command")
	case !filepath.IsAbs(c.Stage):
		return fmt.Errorf("compile container: stage %q is no absolute path", c.Stage)
	case c.Root.FUSE == nil && !filepath.IsAbs(c.Root.Dir):
		return fmt.Errorf("compile container: root %q is no absolute path", c.Root.Dir)
	case len(c.Root.Additions) > 0 && (c.Root.FUSE != nil || c.Root.Overlay == nil):
		return errors.New("compile container: additions need a directory and an overlay")
	case s.Process.Cwd != "" && !path.IsAbs(s.Process.Cwd):
		return fmt.Errorf("compile container: working directory %q is no absolute path", s.Process.Cwd)
	}
	if o := c.Root.Overlay; o != nil && (o.Upper == "") != (o.Work == "") {
		return errors.New("compile container: an overlay needs both an upper and a work directory")
	}
	for _, name := range c.Orphan.Remove {
		if !filepath.IsAbs(name) {
			return fmt.Errorf("compile container: %q, which is to be removed, is no absolute path", name)
		}
	}
	return nil
}

// namespaces are the flags of clone, and whether a cgroup namespace is asked for, which
// is made later.
func namespaces(s *specs.Spec) (flags uintptr, cgroup bool, err error) {
	flags = unix.CLONE_NEWUSER | unix.CLONE_NEWNS
	if s.Linux == nil {
		return flags, false, nil
	}
	for _, ns := range s.Linux.Namespaces {
		if ns.Path != "" {
			return 0, false, fmt.Errorf("compile container: %s namespace of %s: joining one is not supported", ns.Type, ns.Path)
		}
		switch ns.Type {
		case specs.UserNamespace, specs.MountNamespace:
		case specs.PIDNamespace:
			flags |= unix.CLONE_NEWPID
		case specs.IPCNamespace:
			flags |= unix.CLONE_NEWIPC
		case specs.UTSNamespace:
			flags |= unix.CLONE_NEWUTS
		case specs.NetworkNamespace:
			flags |= unix.CLONE_NEWNET
		case specs.CgroupNamespace:
			cgroup = true
		default:
			return 0, false, fmt.Errorf("compile container: unknown namespace %q", ns.Type)
		}
	}
	return flags, cgroup, nil
}

// begin is what comes before any mount.
func (b *builder) begin(p *plan.Plan) {
	b.special(plan.CloseOthers, "close_range", "all descriptors that are not the container's")
	b.call(unix.SYS_RT_SIGPROCMASK, "rt_sigprocmask", "block all", plan.Num(unix.SIG_SETMASK), plan.Mem(slices.Repeat([]byte{0xff}, 8)), plan.Num(0), plan.Num(8))
	// A program that could not be read, or made itself so, has a /proc/self that is root's.
	b.call(unix.SYS_PRCTL, "prctl", "dumpable", plan.Num(unix.PR_SET_DUMPABLE), plan.Num(1))
	b.call(unix.SYS_UMASK, "umask", "022", plan.Num(0o022))
	var ids []specs.LinuxIDMapping
	var gids []specs.LinuxIDMapping
	if l := b.c.Spec.Linux; l != nil {
		ids, gids = l.UIDMappings, l.GIDMappings
	}
	b.write("/proc/self/setgroups", "deny")
	b.write("/proc/self/uid_map", mapping(ids))
	b.write("/proc/self/gid_map", mapping(gids))
	dirs := map[string]plan.Reg{}
	for _, name := range b.c.Orphan.Remove {
		dir := filepath.Dir(name)
		if _, opened := dirs[dir]; !opened {
			dirs[dir] = b.open(dir, openPath|unix.O_DIRECTORY)
		}
		p.Orphan = append(p.Orphan, plan.Remove{Dir: dirs[dir], Name: filepath.Base(name)})
	}
	if !p.PidNS {
		// What is left at the end is found there, whatever the container mounts on its own.
		p.Proc = b.open("/proc", unix.O_RDONLY|unix.O_DIRECTORY)
		b.call(unix.SYS_PRCTL, "prctl", "subreaper", plan.Num(unix.PR_SET_CHILD_SUBREAPER), plan.Num(1))
	}
	b.call(unix.SYS_MOUNT, "mount", "/ rslave", plan.Num(0), plan.Str("/"), plan.Num(0), plan.Num(unix.MS_REC|unix.MS_SLAVE), plan.Num(0))
	b.special(plan.Sync, "sendto", "the supervisor of the namespaces").Note = plan.NoteMaps
}

// write writes a file of the host's /proc.
func (b *builder) write(name, content string) {
	fd := b.open(name, unix.O_WRONLY)
	b.call(unix.SYS_WRITE, "write", fmt.Sprintf("%q to %s", content, name), plan.Fd(fd), plan.Mem([]byte(content)), plan.Num(len(content)))
	b.close(name, fd)
}

// mapping is the content of a uid_map.
func mapping(ids []specs.LinuxIDMapping) string {
	var s strings.Builder
	for _, m := range ids {
		fmt.Fprintf(&s, "%d %d %d\n", m.ContainerID, m.HostID, m.Size)
	}
	return s.String()
}

// identity names the container and starts its loopback.
func (b *builder) identity(flags uintptr) {
	if name := b.c.Spec.Hostname; name != "" && flags&unix.CLONE_NEWUTS != 0 {
		b.call(unix.SYS_SETHOSTNAME, "sethostname", name, plan.Mem([]byte(name)), plan.Num(len(name)))
	}
	if flags&unix.CLONE_NEWNET == 0 {
		return
	}
	request := make([]byte, 40) // struct ifreq
	copy(request, "lo")
	binary.NativeEndian.PutUint16(request[16:], unix.IFF_UP|unix.IFF_RUNNING)
	r := b.reg()
	b.call(unix.SYS_SOCKET, "socket", "for the loopback", plan.Num(unix.AF_INET), plan.Num(unix.SOCK_DGRAM|unix.SOCK_CLOEXEC), plan.Num(0)).Out = r
	b.call(unix.SYS_IOCTL, "ioctl", "loopback up", plan.Fd(r), plan.Num(unix.SIOCSIFFLAGS), plan.Mem(request))
	b.close("the loopback's socket", r)
}

// enclose goes into another user and mount namespace below those that all was mounted in.
// Capabilities hold there only, so that its mounts, being copies of another user
// namespace's, are locked as they are, and the processes outside are out of reach.
func (b *builder) enclose() {
	b.call(unix.SYS_UNSHARE, "unshare", "user and mount namespaces, whose mounts are locked", plan.Num(unix.CLONE_NEWUSER|unix.CLONE_NEWNS))
	var uid, gid uint32
	if l := b.c.Spec.Linux; l != nil && len(l.UIDMappings) > 0 && len(l.GIDMappings) > 0 {
		uid, gid = l.UIDMappings[0].ContainerID, l.GIDMappings[0].ContainerID
	}
	for _, f := range [][2]string{{"setgroups", "deny"}, {"uid_map", fmt.Sprintf("%d %d 1\n", uid, uid)}, {"gid_map", fmt.Sprintf("%d %d 1\n", gid, gid)}} {
		r := b.reg()
		b.call(unix.SYS_OPENAT, "openat", "/proc/self/"+f[0], plan.Fd(b.self), plan.Str(f[0]), plan.Num(unix.O_WRONLY|unix.O_CLOEXEC), plan.Num(0)).Out = r
		b.call(unix.SYS_WRITE, "write", fmt.Sprintf("%q to /proc/self/%s", f[1], f[0]), plan.Fd(r), plan.Mem([]byte(f[1])), plan.Num(len(f[1])))
		b.close("/proc/self/"+f[0], r)
	}
	b.close("/proc/self", b.self)
	b.special(plan.Sync, "sendto", "the supervisor of the inner namespaces").Note = plan.NoteInner
}

// finish is what PID 1 does before it forks. It returns where its oom_score_adj is open.
func (b *builder) finish(p *plan.Plan) plan.Reg {
	p.Signals = b.reg()
	b.call(unix.SYS_SIGNALFD4, "signalfd4", "PID 1 reads its signals", plan.Num(-1), plan.Mem(slices.Repeat([]byte{0xff}, 8)), plan.Num(8),
		plan.Num(unix.SFD_CLOEXEC|unix.SFD_NONBLOCK)).Out = p.Signals
	b.special(plan.Send, "sendto", "the supervisor that the first process is next").Note = plan.NoteReady
	score := plan.None
	if adj := b.c.Spec.Process.OOMScoreAdj; adj != nil {
		score = b.score
		text := fmt.Sprint(*adj)
		b.call(unix.SYS_WRITE, "write", text+" to oom_score_adj, for the first process", plan.Fd(score), plan.Mem([]byte(text)), plan.Num(len(text)))
	}
	// From here on nobody in the container can look into PID 1, which has a copy of
	// the supervisor's memory and the host's descriptors.
	b.call(unix.SYS_PRCTL, "prctl", "not dumpable", plan.Num(unix.PR_SET_DUMPABLE), plan.Num(0))
	return score
}
