package runtime

import (
	"encoding/binary"
	"path"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/gangway-hpc/gangway/runtime/plan"
)

// builder writes the operations of a container.
type builder struct {
	c    *Config
	f    Features
	ops  []plan.Op
	regs int

	proc    plan.Reg // the host's /proc, for old kernels
	score   plan.Reg // the oom_score_adj of PID 1
	self    plan.Reg // PID 1 in the host's /proc
	newRoot plan.Reg // where the container's root is put together
}

// Paths of one name that an image may not turn elsewhere by a symbolic link.
var fixed = map[string]bool{"/dev": true, "/proc": true, "/sys": true}

const (
	openPath = unix.O_PATH | unix.O_CLOEXEC
	cwd      = unix.AT_FDCWD
)

// call adds a system call.
func (b *builder) call(nr uintptr, name, what string, args ...plan.Arg) *plan.Op {
	b.ops = append(b.ops, plan.Op{Name: name, What: what, NR: nr, Args: args})
	return &b.ops[len(b.ops)-1]
}

// special adds what is more than a system call.
func (b *builder) special(kind plan.Kind, name, what string, args ...plan.Arg) *plan.Op {
	o := b.call(0, name, what, args...)
	o.Kind = kind
	return o
}

// reg is a new register.
func (b *builder) reg() plan.Reg {
	b.regs++
	return plan.Reg(b.regs - 1)
}

// close closes descriptors.
func (b *builder) close(what string, regs ...plan.Reg) {
	for _, r := range regs {
		b.call(unix.SYS_CLOSE, "close", what, plan.Fd(r))
	}
}

// open opens a name of the host.
func (b *builder) open(name string, flags int) plan.Reg {
	r := b.reg()
	b.call(unix.SYS_OPENAT, "openat", name, plan.Num(cwd), plan.Str(name), plan.Num(flags|unix.O_CLOEXEC), plan.Num(0)).Out = r
	return r
}

// lookup opens a name inside the new root, wherever symbolic links lead inside it.
func (b *builder) lookup(r plan.Reg, name string, flags int) *plan.Op {
	what := name + " in the new root"
	strict := fixed[path.Clean(name)]
	if !b.f.Openat2 {
		// This runs in a chroot, and before the container's /proc is there, whose links
		// lead out of it.
		if strict {
			flags |= unix.O_NOFOLLOW | unix.O_DIRECTORY
		}
		o := b.call(unix.SYS_OPENAT, "openat", what, plan.Num(cwd), plan.Str(name), plan.Num(flags|unix.O_CLOEXEC), plan.Num(0))
		o.Out = r
		return o
	}
	resolve := uint64(unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS)
	if strict {
		resolve |= unix.RESOLVE_NO_SYMLINKS
	}
	how := openHow(flags, resolve)
	o := b.call(unix.SYS_OPENAT2, "openat2", what, plan.Fd(b.newRoot), plan.Str(name), plan.Mem(how), plan.Num(len(how)))
	o.Out = r
	return o
}

// openHow is a struct open_how.
func openHow(flags int, resolve uint64) []byte {
	how := binary.NativeEndian.AppendUint64(nil, uint64(flags|unix.O_CLOEXEC))
	how = binary.NativeEndian.AppendUint64(how, 0)
	return binary.NativeEndian.AppendUint64(how, resolve)
}

// target opens a mountpoint inside the new root, and makes it where it is missing: a
// directory, or what the source is, if there is one.
func (b *builder) target(name string, source plan.Reg) plan.Reg {
	r := b.reg()
	at := len(b.ops)
	b.lookup(r, name, openPath).May = []syscall.Errno{syscall.ENOENT}
	parts := strings.Split(strings.Trim(path.Clean(name), "/"), "/")
	dir := b.reg()
	for i, part := range parts {
		parent := "/" + strings.Join(parts[:i], "/")
		b.lookup(dir, parent, openPath|unix.O_DIRECTORY)
		if i < len(parts)-1 || source == plan.None {
			b.makeDir(dir, part, parent)
		} else {
			b.makeLike(dir, part, parent, source)
		}
		b.close(parent, dir)
	}
	b.lookup(r, name, openPath)
	b.ops[at].SkipDone = len(b.ops) - at - 1
	return r
}

func (b *builder) makeDir(dir plan.Reg, name, parent string) *plan.Op {
	o := b.call(unix.SYS_MKDIRAT, "mkdirat", path.Join(parent, name)+", a mountpoint that is missing", plan.Fd(dir), plan.Str(name), plan.Num(0o755))
	o.May = []syscall.Errno{syscall.EEXIST}
	return o
}

// makeLike makes a directory or an empty file, as source is one.
func (b *builder) makeLike(dir plan.Reg, name, parent string, source plan.Reg) {
	probe := b.reg()
	o := b.call(unix.SYS_OPENAT, "openat", "the source, if it is a directory", plan.Fd(source), plan.Str("."), plan.Num(openPath|unix.O_DIRECTORY), plan.Num(0))
	o.Out, o.May, o.SkipMay = probe, []syscall.Errno{syscall.ENOTDIR}, 2
	b.close("the source", probe)
	o = b.makeDir(dir, name, parent)
	o.SkipDone, o.SkipMay = 1, 1
	b.makeFile(dir, name, parent)
}

func (b *builder) makeFile(dir plan.Reg, name, parent string) {
	o := b.call(unix.SYS_MKNODAT, "mknodat", path.Join(parent, name)+", a mountpoint that is missing", plan.Fd(dir), plan.Str(name), plan.Num(unix.S_IFREG|0o644), plan.Num(0))
	o.May = []syscall.Errno{syscall.EEXIST}
}

// source opens what is to be bound, with all that is mounted below it.
func (b *builder) source(name string) plan.Reg {
	if !b.f.OpenTree {
		return b.open(name, openPath)
	}
	r := b.reg()
	b.call(unix.SYS_OPEN_TREE, "open_tree", name, plan.Num(cwd), plan.Str(name),
		plan.Num(unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE)).Out = r
	return r
}

// place is where something is mounted: a descriptor, or a name in a directory that the
// image has no part in.
type place struct {
	at   plan.Reg
	name string
	path string // as people see it
	top  func() plan.Reg
}

// bind mounts a source. With the old calls it runs with the host's /proc as directory.
func (b *builder) bind(source plan.Reg, from string, to place, o mountOptions) {
	what := from + " on " + to.path
	if o.shown != "" {
		what += " (" + o.shown + ")"
	}
	if !b.f.OpenTree {
		b.bindOld(source, what, to, o)
		return
	}
	if b.f.MountSetattr {
		b.setAttr(source, what, o)
	}
	flags := unix.MOVE_MOUNT_F_EMPTY_PATH
	if to.name == "" {
		flags |= unix.MOVE_MOUNT_T_EMPTY_PATH
	}
	b.call(unix.SYS_MOVE_MOUNT, "move_mount", what, plan.Fd(source), plan.Str(""), plan.Fd(to.at), plan.Str(to.name), plan.Num(flags))
	b.close(from, source)
	if !b.f.MountSetattr {
		b.remount(what, to, o)
	}
}

// setAttr sets the flags of a mount and of all below it.
func (b *builder) setAttr(r plan.Reg, what string, o mountOptions) {
	set, clear := attributes(o.set)
	if set == 0 && o.propagation == 0 {
		return
	}
	attr := binary.NativeEndian.AppendUint64(nil, set)
	attr = binary.NativeEndian.AppendUint64(attr, clear)
	attr = binary.NativeEndian.AppendUint64(attr, uint64(o.propagation&^unix.MS_REC))
	attr = binary.NativeEndian.AppendUint64(attr, 0)
	b.call(unix.SYS_MOUNT_SETATTR, "mount_setattr", what, plan.Fd(r), plan.Str(""),
		plan.Num(unix.AT_EMPTY_PATH|unix.AT_RECURSIVE), plan.Mem(attr), plan.Num(len(attr)))
}

func (b *builder) bindOld(source plan.Reg, what string, to place, o mountOptions) {
	target := to.at
	if to.name != "" {
		target = b.reg()
		b.call(unix.SYS_OPENAT, "openat", to.path, plan.Fd(to.at), plan.Str(to.name), plan.Num(openPath|unix.O_NOFOLLOW), plan.Num(0)).Out = target
	}
	b.call(unix.SYS_FCHDIR, "fchdir", "the host's /proc", plan.Fd(b.proc))
	b.call(unix.SYS_MOUNT, "mount", "bind "+what, plan.FdLink(source), plan.FdLink(target), plan.Num(0), plan.Num(unix.MS_BIND|unix.MS_REC), plan.Num(0))
	b.close(what, source)
	if target != to.at {
		b.close(what, target)
	}
	b.remount(what, to, o)
}

// remount sets the flags of a mount that is in its place, and of those below it one by one.
func (b *builder) remount(what string, to place, o mountOptions) {
	if o.set == 0 && o.propagation == 0 {
		return
	}
	top := to.top()
	b.call(unix.SYS_FCHDIR, "fchdir", "the host's /proc", plan.Fd(b.proc))
	if o.set != 0 {
		b.special(plan.RemountBelow, "mount", "remount "+what+", and all below", plan.Fd(top), plan.Num(int(o.set)), plan.FdLink(top))
	}
	if o.propagation != 0 {
		b.call(unix.SYS_MOUNT, "mount", "propagation of "+what, plan.Num(0), plan.FdLink(top), plan.Num(0), plan.Num(int(o.propagation)), plan.Num(0))
	}
	b.close(what, top)
}

// mount mounts a file system of the kernel on a directory.
func (b *builder) mount(typ, source string, dir plan.Reg, name string, o mountOptions) {
	what := typ + " on " + name
	if o.shown != "" {
		what += " (" + o.shown + ")"
	}
	b.call(unix.SYS_FCHDIR, "fchdir", name, plan.Fd(dir))
	data := plan.Num(0)
	if o.data != "" {
		data = plan.Str(o.data)
	}
	b.call(unix.SYS_MOUNT, "mount", what, plan.Str(source), plan.Str("."), plan.Str(typ), plan.Num(int(o.set)), data)
	b.close(name, dir)
}
