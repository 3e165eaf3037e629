package runtime

import (
	"path"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/gangway-hpc/gangway/runtime/plan"
)

// standardDevices are in every /dev. They cannot be made in a user namespace, so they are
// the host's.
func standardDevices() []string { return []string{"null", "zero", "full", "random", "urandom", "tty"} }

// devices are the nodes of the host that a container gets.
type devices struct {
	nodes []node
	built bool // /dev is made here
	has   map[string]bool
	dir   plan.Reg
}

type node struct {
	path   string
	source plan.Reg
}

// deviceSources opens the host's nodes.
func (b *builder) deviceSources(mounts []prepared) *devices {
	d := &devices{has: map[string]bool{}}
	for _, m := range mounts {
		d.has[m.Destination] = true
		d.built = d.built || m.Destination == "/dev" && m.Type == "tmpfs"
	}
	if d.built {
		for _, name := range standardDevices() {
			d.nodes = append(d.nodes, node{"/dev/" + name, b.source("/dev/" + name)})
		}
	}
	if l := b.c.Spec.Linux; l != nil {
		for _, dev := range l.Devices {
			d.nodes = append(d.nodes, node{path.Clean("/" + dev.Path), b.source(dev.Path)})
		}
	}
	return d
}

// populate fills an empty /dev. Nothing of the image is in it, so names are what they are.
func (b *builder) populate(d *devices, dir plan.Reg) {
	d.dir = dir
	rest := d.nodes[:0:0]
	for _, n := range d.nodes {
		name, ok := strings.CutPrefix(n.path, "/dev/")
		if !ok || strings.Contains(name, "/") {
			rest = append(rest, n)
			continue
		}
		b.makeFile(dir, name, "/dev")
		b.bind(n.source, n.path, b.inside(dir, name), mountOptions{})
	}
	d.nodes = rest
	for _, link := range [][2]string{
		{"fd", "/proc/self/fd"}, {"stdin", "/proc/self/fd/0"}, {"stdout", "/proc/self/fd/1"}, {"stderr", "/proc/self/fd/2"}, {"ptmx", "pts/ptmx"},
	} {
		b.call(unix.SYS_SYMLINKAT, "symlinkat", "/dev/"+link[0]+" to "+link[1], plan.Str(link[1]), plan.Fd(dir), plan.Str(link[0])).May = []syscall.Errno{syscall.EEXIST}
	}
	own := mountOptions{set: unix.MS_NOSUID | unix.MS_NOEXEC, shown: "nosuid,noexec"}
	for _, m := range []struct {
		typ, name, data string
		flags           uintptr
	}{
		{"devpts", "pts", "newinstance,ptmxmode=0666,mode=0620", 0},
		{"tmpfs", "shm", "mode=1777", unix.MS_NODEV},
		{"mqueue", "mqueue", "", unix.MS_NODEV},
	} {
		if d.has["/dev/"+m.name] || m.typ == "mqueue" && !b.hasIPC() {
			continue
		}
		b.makeDir(dir, m.name, "/dev")
		r := b.reg()
		b.call(unix.SYS_OPENAT, "openat", "/dev/"+m.name, plan.Fd(dir), plan.Str(m.name), plan.Num(openPath|unix.O_DIRECTORY|unix.O_NOFOLLOW), plan.Num(0)).Out = r
		o := own
		o.set, o.data = o.set|m.flags, m.data
		b.mount(m.typ, m.typ, r, "/dev/"+m.name, o)
	}
}

// inside is a place in a directory that the image has no part in.
func (b *builder) inside(dir plan.Reg, name string) place {
	return place{at: dir, name: name, path: "/dev/" + name, top: func() plan.Reg {
		r := b.reg()
		b.call(unix.SYS_OPENAT, "openat", "/dev/"+name, plan.Fd(dir), plan.Str(name), plan.Num(openPath|unix.O_NOFOLLOW), plan.Num(0)).Out = r
		return r
	}}
}

// hasIPC says whether the container has an ipc namespace, without which it has no message
// queues of its own.
func (b *builder) hasIPC() bool {
	flags, _, _ := namespaces(b.c.Spec)
	return flags&unix.CLONE_NEWIPC != 0
}

// spread binds the nodes that are not directly in /dev.
func (b *builder) spread(d *devices) {
	for _, n := range d.nodes {
		to := b.target(n.path, n.source)
		b.bind(n.source, n.path, place{at: to, path: n.path, top: func() plan.Reg { return to }}, mountOptions{})
		b.close(n.path, to)
	}
}

// openTerminal opens a new terminal of the container and sends its master to the
// supervisor. It returns the other side, whose number is not below above.
func (b *builder) openTerminal(above int) plan.Reg {
	master, low, slave := b.reg(), b.reg(), b.reg()
	b.lookup(master, "/dev/pts/ptmx", unix.O_RDWR|unix.O_NOCTTY)
	b.call(unix.SYS_IOCTL, "ioctl", "unlock the terminal", plan.Fd(master), plan.Num(unix.TIOCSPTLCK), plan.Mem(make([]byte, 4)))
	b.call(unix.SYS_IOCTL, "ioctl", "open the terminal", plan.Fd(master), plan.Num(unix.TIOCGPTPEER), plan.Num(unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC)).Out = low
	b.call(unix.SYS_FCNTL, "fcntl", "the terminal to a number that is not the command's", plan.Fd(low), plan.Num(unix.F_DUPFD_CLOEXEC), plan.Num(above)).Out = slave
	b.close("the terminal", low)
	b.special(plan.Send, "sendmsg", "the supervisor of the terminal", plan.Fd(master)).Note = plan.NoteTerminal
	b.close("the terminal's master", master)
	return slave
}

// terminal opens the first process's terminal, which is also /dev/console.
func (b *builder) terminal(d *devices) []plan.Reg {
	slave := b.openTerminal(3 + len(b.c.Pass))
	if d.dir == plan.None {
		return []plan.Reg{slave}
	}
	b.makeFile(d.dir, "console", "/dev")
	first := b.reg()
	if b.f.OpenTree {
		// The first terminal of an instance has the number 0.
		b.call(unix.SYS_OPEN_TREE, "open_tree", "/dev/pts/0", plan.Fd(d.dir), plan.Str("pts/0"), plan.Num(unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)).Out = first
	} else {
		b.call(unix.SYS_OPENAT, "openat", "/dev/pts/0", plan.Fd(d.dir), plan.Str("pts/0"), plan.Num(openPath), plan.Num(0)).Out = first
	}
	b.bind(first, "/dev/pts/0", b.inside(d.dir, "console"), mountOptions{})
	return []plan.Reg{slave}
}
