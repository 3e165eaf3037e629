package spec

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"syscall"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/gangway-hpc/gangway/internal/fault"
)

// builder holds what Build has decided so far.
type builder struct {
	r    Request
	img  Image
	h    Host
	root Root
	Result
	account   account
	home      string
	droppable map[string]bool // default mounts that a mount of the user replaces, by destination
}

func (b *builder) build() error {
	if err := b.checkHost(); err != nil {
		return err
	}
	b.account = b.inside()
	b.home = b.account.home
	b.Spec = &specs.Spec{
		Version: specs.Version,
		Root:    &specs.Root{Path: "rootfs", Readonly: !b.r.Writable},
		Process: &specs.Process{
			Terminal:        b.r.Terminal,
			User:            specs.User{UID: uint32(b.account.uid), GID: uint32(b.account.gid)},
			NoNewPrivileges: true,
		},
		Linux: b.linux(),
	}
	if b.h.Umask != nil {
		umask := *b.h.Umask & 0o777
		b.Spec.Process.User.Umask = &umask
	}
	if b.r.UTS {
		b.Spec.Hostname = b.h.Hostname
	}
	var err error
	if b.Spec.Process.Args, err = b.args(); err != nil {
		return err
	}
	if b.Spec.Process.Env, err = b.environment(); err != nil {
		return err
	}
	if err = b.checkUser(); err != nil {
		return err
	}
	if err = b.accounts(); err != nil {
		return err
	}
	b.hostFiles()
	b.aptFile()
	if err = b.mounts(); err != nil {
		return err
	}
	b.mountpoints()
	if err = b.workdir(); err != nil {
		return err
	}
	b.stopSignal()
	return nil
}

func (b *builder) note(format string, args ...any) {
	b.Notes = append(b.Notes, fmt.Sprintf(format, args...))
}

// imageError is an error in what the image says of itself.
func (b *builder) imageError(err error) error {
	return &fault.Error{
		What: fmt.Errorf("image's %w", err),
		Hint: "the image's configuration is damaged or hostile: use another image",
	}
}

func (b *builder) checkHost() error {
	if b.h.UID < 0 || b.h.UID > maxID || b.h.GID < 0 || b.h.GID > maxID {
		return fmt.Errorf("user %d, group %d: not between 0 and %d", b.h.UID, b.h.GID, maxID)
	}
	if b.r.ShmSize < 0 || b.r.TmpSize < 0 || b.h.MemTotal < 0 {
		return fault.Usage(errors.New("the size of a tmpfs is negative"), "give a number of bytes above zero")
	}
	return nil
}

// linux are the namespaces and what belongs to them. Who runs as the host's root
// has its rights on files of /proc whatever the namespace, so these are hidden;
// for others nothing is, which lets them mount a /proc of their own inside.
func (b *builder) linux() *specs.Linux {
	l := &specs.Linux{
		UIDMappings:       []specs.LinuxIDMapping{{ContainerID: uint32(b.account.uid), HostID: uint32(b.h.UID), Size: 1}},
		GIDMappings:       []specs.LinuxIDMapping{{ContainerID: uint32(b.account.gid), HostID: uint32(b.h.GID), Size: 1}},
		RootfsPropagation: "rslave",
	}
	for _, ns := range []struct {
		kind specs.LinuxNamespaceType
		own  bool
	}{
		{specs.UserNamespace, true},
		{specs.MountNamespace, true},
		{specs.PIDNamespace, !b.r.HostPID},
		{specs.IPCNamespace, true},
		{specs.UTSNamespace, b.r.UTS},
		{specs.NetworkNamespace, b.r.Net},
		{specs.CgroupNamespace, b.h.Cgroup != ""},
	} {
		if ns.own {
			l.Namespaces = append(l.Namespaces, specs.LinuxNamespace{Type: ns.kind})
		}
	}
	if b.h.UID == 0 {
		l.MaskedPaths = []string{
			"/proc/acpi", "/proc/asound", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/timer_list",
			"/proc/timer_stats", "/proc/sched_debug", "/proc/scsi", "/sys/firmware", "/sys/devices/virtual/powercap",
			"/sys/kernel/debug", "/sys/kernel/tracing",
		}
		l.ReadonlyPaths = []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"}
	}
	return l
}

// args is the command: the entry point, if it is run, and the caller's command or
// else the image's.
func (b *builder) args() ([]string, error) {
	var args []string
	byImage := 0
	if b.r.Entrypoint {
		args = slices.Clone(b.img.Entrypoint)
		byImage = len(args)
	}
	if len(b.r.Command) > 0 {
		args = append(args, b.r.Command...)
	} else {
		args = append(args, b.img.Cmd...)
		byImage = len(args)
	}
	if len(args) == 0 {
		hint := "give one: -- COMMAND"
		if len(b.img.Entrypoint) > 0 {
			hint += ", or run the image's entry point: --container-entrypoint"
		}
		return nil, fault.Usage(errors.New("no command: neither the command line nor the image has one"), hint)
	}
	for i, arg := range args {
		if !strings.ContainsRune(arg, 0) {
			continue
		}
		if err := fmt.Errorf("command %q: argument %d contains a NUL", shorten(args[0]), i); i < byImage {
			return nil, b.imageError(err)
		} else {
			return nil, fault.Usage(err, "remove it")
		}
	}
	switch {
	case args[0] == "" && byImage > 0:
		return nil, b.imageError(errors.New("command has an empty name"))
	case args[0] == "":
		return nil, fault.Usage(errors.New("the command's name is empty"), "give one: -- COMMAND")
	case byImage > 0 && path.IsAbs(args[0]) && (below(path.Clean(args[0]), "/proc") || magic(path.Clean(args[0]))):
		return nil, b.imageError(fmt.Errorf("command %q: it is in /proc, not in the image", shorten(args[0])))
	}
	return args, nil
}

// workdir is the directory in which the command starts.
func (b *builder) workdir() error {
	dir, asked := b.r.Workdir, true
	if dir == "" {
		dir, asked = b.img.WorkingDir, false
	}
	if dir == "" {
		dir = "/"
	}
	bad := func(hint, what string) error {
		err := fmt.Errorf("working directory %q: %s", shorten(dir), what)
		if asked {
			return fault.Usage(err, hint)
		}
		return b.imageError(err)
	}
	clean := path.Clean(dir)
	switch {
	case hasControl(dir):
		return bad("remove it", "it contains a control character")
	case len(dir) > maxPath:
		return bad("a path has at most 4095 bytes", "it is too long")
	case !path.IsAbs(dir):
		return bad("give an absolute path: --container-workdir=/"+strings.TrimLeft(clean, "./"), "it is not absolute")
	case clean != "/proc" && below(clean, "/proc") || magic(clean):
		return bad("start elsewhere and change directory in the command", "it is different in each process")
	}
	b.Spec.Process.Cwd = clean
	if clean == "/" {
		return nil
	}
	if asked {
		if !b.exists(clean) {
			return bad("make it in the image, or mount a directory there: --container-mounts=SRC:"+clean, "it is not in the container")
		}
		if b.isFile(clean) {
			return bad("name a directory, for example --container-workdir="+path.Dir(clean), "it is a file")
		}
		if b.mountAbove(clean) == "" && b.root.Exists(clean) {
			b.Mountpoints = append(b.Mountpoints, Mountpoint{clean, true}) // its links are looked at
		}
		return nil
	}
	if over := b.mountAbove(clean); over == "" {
		b.Mountpoints = append(b.Mountpoints, Mountpoint{clean, true})
	} else if !b.exists(clean) {
		b.note("the image's working directory %s lies below %s, which is empty: made there", clean, over)
		b.add(tmpfs(clean, "mode=0755"), true)
	}
	return nil
}

// stopSignal reads the image's StopSignal, a number or a name. A wrong one stops
// nothing from running.
func (b *builder) stopSignal() {
	b.StopSignal = syscall.SIGTERM
	if b.img.StopSignal == "" {
		return
	}
	if s, ok := parseSignal(b.img.StopSignal); ok {
		b.StopSignal = s
		return
	}
	b.note("the image's stop signal %q is none: SIGTERM is used", shorten(b.img.StopSignal))
}

// signals are those that a program can be asked by to stop.
var signals = map[string]syscall.Signal{
	"HUP": syscall.SIGHUP, "INT": syscall.SIGINT, "QUIT": syscall.SIGQUIT, "ABRT": syscall.SIGABRT, "KILL": syscall.SIGKILL,
	"USR1": syscall.SIGUSR1, "USR2": syscall.SIGUSR2, "PIPE": syscall.SIGPIPE, "ALRM": syscall.SIGALRM, "TERM": syscall.SIGTERM,
	"WINCH": syscall.SIGWINCH, "PWR": syscall.SIGPWR, "IO": syscall.SIGIO, "VTALRM": syscall.SIGVTALRM,
	"RTMIN": 34, "RTMAX": 64,
}

// parseSignal reads 15, TERM, SIGTERM, RTMIN+3 or RTMAX-1.
func parseSignal(s string) (syscall.Signal, bool) {
	name := strings.TrimPrefix(strings.ToUpper(s), "SIG")
	if sig, ok := signals[name]; ok {
		return sig, true
	}
	base, sign := 0, 1
	if rest, ok := strings.CutPrefix(name, "RTMIN+"); ok {
		base, name = 34, rest
	} else if rest, ok := strings.CutPrefix(name, "RTMAX-"); ok {
		base, sign, name = 64, -1, rest
	}
	if !validID(name) || len(name) > 2 {
		return 0, false
	}
	n := 0
	for _, digit := range name {
		n = 10*n + int(digit-'0')
	}
	n = base + sign*n
	if base > 0 && n < 34 {
		return 0, false
	}
	return syscall.Signal(n), n >= 1 && n <= 64
}
