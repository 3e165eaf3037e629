package runtime

import (
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"syscall"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/gangway-hpc/gangway/runtime/plan"
)

// Directories of the tmpfs that an overlay is put together on.
const (
	lowerDir = "/lower"
	addDir   = "/add"
	upperDir = "/upper"
	workDir  = "/work"
	rootDir  = "/root"
)

// root puts the root together. It returns where it is.
func (b *builder) root() string {
	stage := path.Clean(b.c.Stage)
	o := b.c.Root.Overlay
	if o == nil {
		b.image(stage)
		return stage
	}
	data := "mode=0700"
	if o.Size > 0 && o.Upper == "" {
		data += fmt.Sprintf(",size=%d", o.Size)
	}
	b.call(unix.SYS_MOUNT, "mount", "tmpfs on "+stage+" ("+data+")", plan.Str("tmpfs"), plan.Str(stage), plan.Str("tmpfs"),
		plan.Num(unix.MS_NOSUID|unix.MS_NODEV), plan.Str(data))
	for _, dir := range []string{lowerDir, addDir, upperDir, workDir, rootDir} {
		b.hostDir(stage+dir, 0o755)
	}
	b.additions(stage + addDir)
	b.image(stage + lowerDir)
	if o.Program != "" {
		// The program has a mount namespace of its own, whose root pivot_root does not
		// change: it uses the host's names. What it mounts comes here; what is mounted
		// here later does not go there.
		b.call(unix.SYS_MOUNT, "mount", stage+" shared", plan.Num(0), plan.Str(stage), plan.Num(0), plan.Num(unix.MS_SHARED), plan.Num(0))
		b.special(plan.Sync, "sendto", "the supervisor to run "+o.Program+" on "+stage+rootDir).Note = plan.NoteRoot
		b.call(unix.SYS_MOUNT, "mount", stage+" rprivate", plan.Num(0), plan.Str(stage), plan.Num(0), plan.Num(unix.MS_REC|unix.MS_PRIVATE), plan.Num(0))
		return stage + rootDir
	}
	var flags uintptr = unix.MS_NOSUID | unix.MS_NODEV
	data = "userxattr," + overlayData(stage, o)
	b.call(unix.SYS_MOUNT, "mount", "overlay on "+stage+rootDir+" ("+data+")", plan.Str("overlay"), plan.Str(stage+rootDir), plan.Str("overlay"),
		plan.Num(int(flags)), plan.Str(data))
	return stage + rootDir
}

// overlayData are the layers of an overlay, as the kernel wants them, and as fuse-overlayfs
// does, whose library takes away a layer of backslashes first.
func overlayData(stage string, o *Overlay) string {
	escape := strings.NewReplacer(`\`, `\\`, `,`, `\,`, `:`, `\:`).Replace
	if o.Program != "" {
		escape = strings.NewReplacer(`\`, `\\\\`, `,`, `\,`, `:`, `\\:`).Replace
	}
	data := "lowerdir=" + escape(stage+addDir) + ":" + escape(stage+lowerDir)
	switch {
	case o.ReadOnly:
		return data
	case o.Upper == "":
		return data + ",upperdir=" + escape(stage+upperDir) + ",workdir=" + escape(stage+workDir)
	default:
		return data + ",upperdir=" + escape(o.Upper) + ",workdir=" + escape(o.Work)
	}
}

func (b *builder) hostDir(name string, mode fs.FileMode) {
	b.call(unix.SYS_MKDIRAT, "mkdirat", name, plan.Num(cwd), plan.Str(name), plan.Num(int(mode))).May = []syscall.Errno{syscall.EEXIST}
}

// additions makes the layer of what is put over a directory.
func (b *builder) additions(top string) {
	made := map[string]bool{"/": true}
	for _, a := range b.c.Root.Additions {
		name := path.Clean("/" + a.Path)
		for i := 1; i < len(name); i++ {
			if dir := name[:i]; name[i] == '/' && !made[dir] {
				made[dir] = true
				b.hostDir(top+dir, 0o755)
			}
		}
		mode := a.Mode.Perm()
		if a.Dir {
			if mode == 0 {
				mode = 0o755
			}
			made[name] = true
			b.hostDir(top+name, mode)
			continue
		}
		if a.Link != "" {
			b.call(unix.SYS_SYMLINKAT, "symlinkat", top+name+" to "+a.Link, plan.Str(a.Link), plan.Num(cwd), plan.Str(top+name))
			continue
		}
		if mode == 0 {
			mode = 0o644
		}
		r := b.reg()
		b.call(unix.SYS_OPENAT, "openat", "new file "+top+name, plan.Num(cwd), plan.Str(top+name),
			plan.Num(unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC|unix.O_NOFOLLOW|unix.O_CLOEXEC), plan.Num(int(mode))).Out = r
		b.call(unix.SYS_WRITE, "write", fmt.Sprintf("%d bytes to %s", len(a.Content), name), plan.Fd(r), plan.Mem(a.Content), plan.Num(len(a.Content)))
		b.close(name, r)
	}
}

// image mounts the image itself.
func (b *builder) image(on string) {
	flags := mountOptions{set: unix.MS_NOSUID | unix.MS_NODEV, shown: "nosuid,nodev"}
	if b.c.Root.FUSE == nil {
		// What is mounted over it inherits nothing, so that a Dir which only an
		// overlay reads may be read-only as well.
		if !b.c.Root.Writable || b.c.Root.Overlay != nil {
			flags.set |= unix.MS_RDONLY
			flags.shown += ",ro"
		}
		source := b.source(b.c.Root.Dir)
		if !b.f.OpenTree {
			b.proc = b.open("/proc", openPath|unix.O_DIRECTORY)
		}
		reopen := func() plan.Reg { return b.open(on, openPath|unix.O_DIRECTORY) }
		if !b.f.MountSetattr && b.proc == plan.None {
			b.proc = b.open("/proc", openPath|unix.O_DIRECTORY)
		}
		target := reopen()
		b.bind(source, b.c.Root.Dir, place{at: target, path: on, top: reopen}, flags)
		b.close(on, target)
		return
	}
	fd := b.open("/dev/fuse", unix.O_RDWR)
	b.call(unix.SYS_DUP3, "dup3", "/dev/fuse to a number known before", plan.Fd(fd), plan.Fd(plan.Device), plan.Num(unix.O_CLOEXEC))
	b.close("/dev/fuse", fd)
	b.call(unix.SYS_MOUNT, "mount", "fuse.gangway on "+on+" (nosuid,nodev,ro)", plan.Str("gangway"), plan.Str(on), plan.Str("fuse.gangway"),
		plan.Num(int(flags.set|unix.MS_RDONLY)), plan.FdData(plan.Device, b.c.Root.FUSE.Options))
	b.special(plan.Send, "sendmsg", "the supervisor to serve /dev/fuse", plan.Fd(plan.Device)).Note = plan.NoteFUSE
	// Only the server may keep it, so that its end is the mount's end.
	b.close("/dev/fuse", plan.Device)
	b.special(plan.Sync, "sendto", "the supervisor that the image is waited for").Note = plan.NoteServed
}

// fill mounts everything else, inside a chroot, and makes it the root of the namespace.
func (b *builder) fill(stage string) (terminal []plan.Reg, err error) {
	b.newRoot = plan.None
	if (!b.f.OpenTree || !b.f.MountSetattr) && b.proc == plan.None {
		b.proc = b.open("/proc", openPath|unix.O_DIRECTORY)
	}
	if b.c.Spec.Process.OOMScoreAdj != nil {
		b.score = b.open("/proc/self/oom_score_adj", unix.O_WRONLY)
	}
	if b.c.FakeRoot {
		b.self = b.open("/proc/self", openPath|unix.O_DIRECTORY)
	}
	mounts, err := b.sources()
	if err != nil {
		return nil, err
	}
	d := b.deviceSources(mounts)
	masks := b.maskSources()
	oldRoot := b.open("/", openPath|unix.O_DIRECTORY)
	newRoot := b.open(stage, openPath|unix.O_DIRECTORY)
	b.newRoot = newRoot
	// The chroot makes every name of the image stay inside, also for kernels without
	// openat2, while /proc can still be mounted: the kernel allows that only as long as
	// another one is to be seen.
	b.call(unix.SYS_FCHDIR, "fchdir", stage, plan.Fd(newRoot))
	b.call(unix.SYS_CHROOT, "chroot", stage, plan.Str("."))
	for i := range mounts {
		b.mountOne(&mounts[i], d)
	}
	for _, name := range b.c.Umounts {
		b.call(unix.SYS_UMOUNT2, "umount2", name, plan.Str(path.Clean("/"+name)), plan.Num(unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW))
	}
	b.spread(d)
	if b.c.Spec.Process.Terminal {
		terminal = b.terminal(d)
	}
	b.hide(masks)
	if s := b.c.Spec.Root; s != nil && s.Readonly {
		b.readonly("/", mountOptions{set: unix.MS_RDONLY, shown: "ro"}, false)
	}
	b.call(unix.SYS_FCHDIR, "fchdir", "the host's root", plan.Fd(oldRoot))
	b.call(unix.SYS_CHROOT, "chroot", "the host's root", plan.Str("."))
	b.call(unix.SYS_FCHDIR, "fchdir", "the new root", plan.Fd(newRoot))
	b.pivot()
	b.close("the host's root", oldRoot, newRoot)
	if b.proc != plan.None {
		b.close("the host's /proc", b.proc)
	}
	return terminal, nil
}

// pivot makes the directory it is in the root of the namespace.
func (b *builder) pivot() {
	o := b.call(unix.SYS_PIVOT_ROOT, "pivot_root", ". to /", plan.Str("."), plan.Str("."))
	// On an initramfs there is nothing to pivot away from.
	o.May, o.SkipMay = []syscall.Errno{syscall.EINVAL}, 1
	b.call(unix.SYS_UMOUNT2, "umount2", "the host's root", plan.Str("."), plan.Num(unix.MNT_DETACH)).SkipDone = 2
	b.call(unix.SYS_MOUNT, "mount", "move . to /", plan.Str("."), plan.Str("/"), plan.Num(0), plan.Num(unix.MS_MOVE), plan.Num(0))
	b.call(unix.SYS_CHROOT, "chroot", ".", plan.Str("."))
	b.call(unix.SYS_CHDIR, "chdir", "/", plan.Str("/"))
}

// prepared is a mount whose source is open.
type prepared struct {
	specs.Mount
	options mountOptions
	source  plan.Reg
}

// sources opens what is to be bound, while the host's names can be seen. /proc and what
// is mounted on it come last, so that no name leads through it.
func (b *builder) sources() ([]prepared, error) {
	var list []prepared
	for _, m := range b.c.Spec.Mounts {
		o, err := parseOptions(m.Type, m.Options)
		if err != nil {
			return nil, fmt.Errorf("mount %s: %w", m.Destination, err)
		}
		m.Destination = path.Clean("/" + m.Destination)
		if m.Destination == "/" {
			return nil, fmt.Errorf("mount %s on /: the root cannot be mounted over", m.Source)
		}
		p := prepared{Mount: m, options: o}
		if o.bind {
			if !path.IsAbs(m.Source) {
				return nil, fmt.Errorf("mount %s: source %q is no absolute path", m.Destination, m.Source)
			}
			p.source = b.source(m.Source)
		} else if m.Type == "" || m.Type == "none" {
			return nil, fmt.Errorf("mount %s: no type", m.Destination)
		}
		list = append(list, p)
	}
	late := func(p prepared) int {
		switch {
		case p.Destination == "/proc":
			return 1
		case strings.HasPrefix(p.Destination, "/proc/"):
			return 2
		}
		return 0
	}
	slices.SortStableFunc(list, func(x, y prepared) int { return late(x) - late(y) })
	return list, nil
}

// mountOne mounts one.
func (b *builder) mountOne(m *prepared, d *devices) {
	to := b.target(m.Destination, m.source)
	reopen := func() plan.Reg {
		r := b.reg()
		b.lookup(r, m.Destination, openPath)
		return r
	}
	if m.options.bind {
		b.bind(m.source, m.Source, place{at: to, path: m.Destination, top: reopen}, m.options)
		b.close(m.Destination, to)
	} else {
		source := m.Source
		if source == "" {
			source = m.Type
		}
		b.mount(m.Type, source, to, m.Destination, m.options)
	}
	if m.Destination == "/dev" && m.Type == "tmpfs" {
		b.populate(d, reopen())
	}
}

// maskSources opens what hides files.
func (b *builder) maskSources() []plan.Reg {
	if b.c.Spec.Linux == nil {
		return nil
	}
	var list []plan.Reg
	for range b.c.Spec.Linux.MaskedPaths {
		list = append(list, b.source("/dev/null"))
	}
	return list
}

// hide masks paths, and makes others read-only. Those that are not there need nothing.
func (b *builder) hide(masks []plan.Reg) {
	l := b.c.Spec.Linux
	if l == nil {
		return
	}
	for i, name := range l.MaskedPaths {
		b.mask(name, masks[i])
	}
	for _, name := range l.ReadonlyPaths {
		b.readonly(name, mountOptions{set: unix.MS_RDONLY, shown: "ro"}, true)
	}
}

// mask hides a directory by an empty one, and a file by /dev/null.
func (b *builder) mask(name string, null plan.Reg) {
	r := b.reg()
	at := len(b.ops)
	o := b.lookup(r, name, openPath|unix.O_DIRECTORY)
	o.May = []syscall.Errno{syscall.ENOTDIR, syscall.ENOENT}
	b.mount("tmpfs", "tmpfs", r, name, mountOptions{set: unix.MS_RDONLY | unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC, data: "size=0,mode=0555", shown: "ro, empty"})
	b.ops[at].SkipMay = len(b.ops) - at - 1
	done := len(b.ops) - 1
	at = len(b.ops)
	b.lookup(r, name, openPath).May = []syscall.Errno{syscall.ENOENT}
	b.bind(null, "/dev/null", place{at: r, path: name, top: func() plan.Reg { return r }}, mountOptions{})
	b.close(name, r)
	b.ops[at].SkipMay = len(b.ops) - at - 1
	b.ops[done].SkipDone = len(b.ops) - done - 1
}

// readonly makes what is at a name read-only, by a mount of its own if it has none.
func (b *builder) readonly(name string, o mountOptions, own bool) {
	r := b.reg()
	at := len(b.ops)
	b.lookup(r, name, openPath)
	if own {
		b.ops[at].May = []syscall.Errno{syscall.ENOENT}
		clone := b.reg()
		if b.f.OpenTree {
			b.call(unix.SYS_OPEN_TREE, "open_tree", name, plan.Fd(r), plan.Str(""),
				plan.Num(unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE|unix.AT_EMPTY_PATH)).Out = clone
		} else {
			b.lookup(clone, name, openPath)
		}
		again := func() plan.Reg {
			top := b.reg()
			b.lookup(top, name, openPath)
			return top
		}
		b.bind(clone, name, place{at: r, path: name, top: again}, o)
	} else if b.f.MountSetattr {
		set, _ := attributes(o.set)
		attr := make([]byte, 32)
		attr[0] = byte(set)
		b.call(unix.SYS_MOUNT_SETATTR, "mount_setattr", name+" ("+o.shown+")", plan.Fd(r), plan.Str(""), plan.Num(unix.AT_EMPTY_PATH), plan.Mem(attr), plan.Num(len(attr)))
	} else {
		b.call(unix.SYS_FCHDIR, "fchdir", "the host's /proc", plan.Fd(b.proc))
		b.special(plan.Remount, "mount", "remount "+name+" ("+o.shown+")", plan.Fd(r), plan.Num(int(o.set)), plan.FdLink(r))
	}
	b.close(name, r)
	b.ops[at].SkipMay = len(b.ops) - at - 1
}
