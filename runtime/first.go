package runtime

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"math"
	"path"
	"slices"
	"strings"
	"syscall"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/gangway-hpc/gangway/runtime/plan"
)

// defaultPath is where programs are looked for when the environment does not say.
const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// command is what a process executes, and how.
type command struct {
	args, env []string
	cwd       string
	rlimits   []specs.POSIXRlimit
	pass      int
	given     plan.Reg // its descriptor 3
	ignored   []syscall.Signal
	fakeRoot  bool
	wait      bool   // for START
	ambient   bool   // keeps what a mounting program needs
	pid       string // a variable that has its number
	cpus      []int  // that it may run on
}

// first is the first process, which waits for START before its last operations.
func (b *builder) first(terminal []plan.Reg) {
	p := b.c.Spec.Process
	b.run(command{
		args: p.Args, env: p.Env, cwd: p.Cwd, rlimits: p.Rlimits, pass: len(b.c.Pass), given: plan.Given,
		ignored: b.c.Ignored, fakeRoot: b.c.FakeRoot, wait: true,
	}, terminal)
}

// run turns a process in the container into a command.
func (b *builder) run(c command, terminal []plan.Reg) {
	stdio := []plan.Reg{plan.Stdin, plan.Stdout, plan.Stderr}
	if len(terminal) > 0 {
		b.call(unix.SYS_SETSID, "setsid", "")
		b.call(unix.SYS_IOCTL, "ioctl", "controlling terminal", plan.Fd(terminal[0]), plan.Num(unix.TIOCSCTTY), plan.Num(0))
		stdio = []plan.Reg{terminal[0], terminal[0], terminal[0]}
	}
	for i, r := range stdio {
		b.call(unix.SYS_DUP3, "dup3", []string{"stdin", "stdout", "stderr"}[i], plan.Fd(r), plan.Num(i), plan.Num(0))
	}
	for i := range c.pass {
		b.call(unix.SYS_DUP3, "dup3", fmt.Sprintf("descriptor %d", 3+i), plan.Fd(c.given+plan.Reg(i)), plan.Num(3+i), plan.Num(0))
	}
	// From here on names are the image's, which may lead through /proc/self/fd.
	b.special(plan.CloseRest, "close_range", "all descriptors but the command's", plan.Num(3+c.pass))
	b.workdir(cmp.Or(c.cwd, "/"))
	mask := uint32(0o022)
	if m := b.c.Spec.Process.User.Umask; m != nil && !c.ambient {
		mask = *m & 0o777
	}
	b.call(unix.SYS_UMASK, "umask", fmt.Sprintf("%03o", mask), plan.Num(int(mask)))
	for _, l := range c.rlimits {
		b.rlimit(l)
	}
	b.affinity(c.cpus)
	if c.ambient {
		b.ambient()
	} else {
		b.keyring()
		b.rights(c.fakeRoot)
	}
	if c.wait {
		b.special(plan.Sync, "sendto", "the supervisor that START is waited for").Note = plan.NoteReady
	} else {
		// It ends here if the supervisor is gone, who would have ended it.
		b.special(plan.Send, "sendto", "the supervisor that the command is next").Note = plan.NoteReady
	}
	b.signals(c.ignored)
	number := plan.None
	if c.pid != "" {
		number = b.reg()
		b.call(unix.SYS_GETPID, "getpid", "for "+c.pid).Out = number
	}
	o := b.special(plan.Exec, "execve", fmt.Sprintf("%q", c.args))
	for _, name := range candidates(c.args[0], c.env) {
		o.Args = append(o.Args, plan.Str(name))
	}
	o.Argv, o.Env, o.PID, o.PIDFrom = c.args, c.env, c.pid, number
}

// workdir goes into the working directory, which must be one of the container's: links of
// /proc are not followed, as they may lead anywhere.
func (b *builder) workdir(dir string) {
	what := dir + workdirNote
	if !b.f.Openat2 {
		b.call(unix.SYS_CHDIR, "chdir", what, plan.Str(dir))
		b.special(plan.Reachable, "getcwd", what)
		return
	}
	b.call(unix.SYS_CHDIR, "chdir", "/", plan.Str("/"))
	r := b.reg()
	how := openHow(unix.O_PATH|unix.O_DIRECTORY, unix.RESOLVE_IN_ROOT|unix.RESOLVE_NO_MAGICLINKS)
	b.call(unix.SYS_OPENAT2, "openat2", what, plan.Num(cwd), plan.Str(dir), plan.Mem(how), plan.Num(len(how))).Out = r
	b.call(unix.SYS_FCHDIR, "fchdir", what, plan.Fd(r))
	b.close(dir, r)
}

// keyring leaves the caller's keys. Where that is refused, as by an outer container, or
// the user has as many keyrings as is allowed, the process goes on without.
func (b *builder) keyring() {
	b.call(unix.SYS_KEYCTL, "keyctl", "new session keyring", plan.Num(unix.KEYCTL_JOIN_SESSION_KEYRING), plan.Num(0)).May = []syscall.Errno{
		syscall.ENOSYS, syscall.EPERM, syscall.EDQUOT, syscall.EACCES,
	}
}

// signals gives signals the actions that the command begins with.
func (b *builder) signals(ignored []syscall.Signal) {
	what, bits := "all signals to their defaults", uintptr(0)
	for _, s := range ignored {
		if s > 0 && s <= 64 {
			what += fmt.Sprintf(", %d ignored", int(s))
			bits |= 1 << (s - 1)
		}
	}
	b.special(plan.Signals, "rt_sigaction", what, plan.Arg{N: bits})
}

// rights gives up all rights, or for a fake root those outside its own namespace.
func (b *builder) rights(fakeRoot bool) {
	if !fakeRoot {
		b.special(plan.Bounding, "prctl", "empty the capability bounding set")
		bits := 1<<0 | 1<<1 | 1<<2 | 1<<3 | 1<<6 | 1<<7 // NOROOT, NO_SETUID_FIXUP, NO_CAP_AMBIENT_RAISE, each with its lock
		b.call(unix.SYS_PRCTL, "prctl", "user 0 has no capabilities", plan.Num(unix.PR_SET_SECUREBITS), plan.Num(bits))
		header := binary.NativeEndian.AppendUint32(nil, unix.LINUX_CAPABILITY_VERSION_3)
		b.call(unix.SYS_CAPSET, "capset", "none", plan.Mem(append(header, 0, 0, 0, 0)), plan.Mem(make([]byte, 24)))
	}
	b.call(unix.SYS_PRCTL, "prctl", "no new privileges", plan.Num(unix.PR_SET_NO_NEW_PRIVS), plan.Num(1), plan.Num(0), plan.Num(0), plan.Num(0))
	b.filter("nothing is typed into a terminal", terminalFilter())
	if fakeRoot {
		b.filter("changes of owner and user succeed without effect", fakeRootFilter())
	}
}

// filter puts a seccomp filter in force, by the older call where the newer is missing or
// does not know the flag, which spares the command the cost of what filters imply.
func (b *builder) filter(what string, program []byte) {
	o := b.call(unix.SYS_SECCOMP, "seccomp", what, plan.Num(unix.SECCOMP_SET_MODE_FILTER), plan.Num(unix.SECCOMP_FILTER_FLAG_SPEC_ALLOW), plan.BPF(program))
	o.May, o.SkipDone = []syscall.Errno{syscall.ENOSYS, syscall.EPERM, syscall.EINVAL}, 1
	b.call(unix.SYS_PRCTL, "prctl", what, plan.Num(unix.PR_SET_SECCOMP), plan.Num(unix.SECCOMP_MODE_FILTER), plan.BPF(program))
}

// ambient gives a program the capabilities with which it can mount and keep owners,
// inside the container's user namespace.
func (b *builder) ambient() {
	caps := []int{unix.CAP_CHOWN, unix.CAP_DAC_OVERRIDE, unix.CAP_DAC_READ_SEARCH, unix.CAP_FOWNER, unix.CAP_FSETID, unix.CAP_SYS_ADMIN, unix.CAP_MKNOD, unix.CAP_SETFCAP}
	low := uint32(0)
	for _, c := range caps {
		low |= 1 << c
	}
	var data []byte
	for _, word := range []uint32{low, low, low, 0, 0, 0} {
		data = binary.NativeEndian.AppendUint32(data, word)
	}
	header := binary.NativeEndian.AppendUint32(nil, unix.LINUX_CAPABILITY_VERSION_3)
	b.call(unix.SYS_CAPSET, "capset", "what a mounting program needs", plan.Mem(append(header, 0, 0, 0, 0)), plan.Mem(data))
	for _, c := range caps {
		b.call(unix.SYS_PRCTL, "prctl", fmt.Sprintf("ambient capability %d", c), plan.Num(unix.PR_CAP_AMBIENT), plan.Num(unix.PR_CAP_AMBIENT_RAISE), plan.Num(c), plan.Num(0), plan.Num(0))
	}
	b.call(unix.SYS_PRCTL, "prctl", "no new privileges", plan.Num(unix.PR_SET_NO_NEW_PRIVS), plan.Num(1), plan.Num(0), plan.Num(0), plan.Num(0))
	b.call(unix.SYS_PRCTL, "prctl", "killed with the supervisor", plan.Num(unix.PR_SET_PDEATHSIG), plan.Num(int(unix.SIGKILL)))
}

// rlimitNames are the resources by their OCI names.
var rlimitNames = map[string]int{
	"RLIMIT_CPU": unix.RLIMIT_CPU, "RLIMIT_FSIZE": unix.RLIMIT_FSIZE, "RLIMIT_DATA": unix.RLIMIT_DATA, "RLIMIT_STACK": unix.RLIMIT_STACK,
	"RLIMIT_CORE": unix.RLIMIT_CORE, "RLIMIT_RSS": unix.RLIMIT_RSS, "RLIMIT_NPROC": unix.RLIMIT_NPROC, "RLIMIT_NOFILE": unix.RLIMIT_NOFILE,
	"RLIMIT_MEMLOCK": unix.RLIMIT_MEMLOCK, "RLIMIT_AS": unix.RLIMIT_AS, "RLIMIT_LOCKS": unix.RLIMIT_LOCKS, "RLIMIT_SIGPENDING": unix.RLIMIT_SIGPENDING,
	"RLIMIT_MSGQUEUE": unix.RLIMIT_MSGQUEUE, "RLIMIT_NICE": unix.RLIMIT_NICE, "RLIMIT_RTPRIO": unix.RLIMIT_RTPRIO, "RLIMIT_RTTIME": unix.RLIMIT_RTTIME,
}

func (b *builder) rlimit(l specs.POSIXRlimit) {
	nr, ok := rlimitNames[l.Type]
	if !ok {
		nr = math.MaxInt32 // the kernel refuses it, by its name
	}
	limit := binary.NativeEndian.AppendUint64(nil, l.Soft)
	limit = binary.NativeEndian.AppendUint64(limit, l.Hard)
	b.call(unix.SYS_PRLIMIT64, "prlimit", fmt.Sprintf("%s %d, at most %d", l.Type, l.Soft, l.Hard), plan.Num(0), plan.Num(nr), plan.Mem(limit), plan.Num(0))
}

// affinity lets the process run on some CPUs only.
func (b *builder) affinity(cpus []int) {
	if len(cpus) == 0 {
		return
	}
	words := make([]uint64, slices.Max(cpus)/64+1)
	for _, cpu := range cpus {
		words[cpu/64] |= 1 << (cpu % 64)
	}
	var mask []byte
	for _, w := range words {
		mask = binary.NativeEndian.AppendUint64(mask, w)
	}
	b.call(unix.SYS_SCHED_SETAFFINITY, "sched_setaffinity", fmt.Sprintf("CPUs %d", cpus), plan.Num(0), plan.Num(len(mask)), plan.Mem(mask))
}

// candidates are the names that a program may have.
func candidates(name string, env []string) []string {
	if strings.Contains(name, "/") || name == "" {
		return []string{name}
	}
	search := defaultPath
	for _, v := range env {
		if value, ok := strings.CutPrefix(v, "PATH="); ok {
			search = value
			break
		}
	}
	var list []string
	for dir := range strings.SplitSeq(search, ":") {
		if dir == "" {
			dir = "."
		}
		list = append(list, path.Join(dir, name))
		if dir == "." {
			list[len(list)-1] = "./" + name
		}
	}
	return list
}
