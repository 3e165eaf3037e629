package runtime

import (
	"context"
	"io/fs"
	"log/slog"
	"os"
	"syscall"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// Config is what a container is made of.
type Config struct {
	// Spec says what runs and what it sees: process (args, env, cwd, terminal, rlimits,
	// oomScoreAdj, user.umask, which is 022 if nil), root.readonly, hostname, mounts,
	// and of linux the namespaces, the mappings, devices (the host's nodes of those
	// names), maskedPaths and readonlyPaths. A user and a mount namespace are always made. Without a pid
	// namespace PID 1 is an ordinary process, and at the end the processes are looked
	// for whose mount namespace is the container's or was made in it.
	Spec *specs.Spec
	Root Root
	// Umounts are names in the container that are unmounted when all is mounted.
	Umounts []string
	// Stage is an empty directory of the host. The root is put together on it inside
	// the container's own mount namespace; the host never sees that.
	Stage string

	// The first process's; nil is /dev/null. They are handed on as they are: ends of
	// os.Pipe do not block until their Fd was called.
	Stdin, Stdout, Stderr *os.File
	Pass                  []*os.File // its descriptors 3, 4, ...

	// FakeRoot makes the calls that change owners and users succeed without doing
	// anything, and keeps the capabilities inside a user namespace of its own below
	// the one that has the container's mounts, so that these cannot be changed.
	FakeRoot bool
	// Ignored are signals that the first process begins with ignored, as a caller's nohup
	// asks for (those of which os/signal.Ignored is true in the caller). All others have
	// their default action.
	Ignored []syscall.Signal
	Orphan  Orphan
	// Linger is called when the first process has ended; the container's others live
	// until it returns. It may be nil.
	Linger func()
	// Placed is called with the host's pid of PID 1 before it mounts anything, and of each
	// process that joins before it is inside, so that it can be put into its cgroup. It
	// may be nil. made says that it was made in Cgroup.
	Placed func(pid int, made bool) error
	// Cgroup is a directory of a cgroup of version 2 that processes are made in where the
	// kernel lets the caller; it may be nil. To be made there takes no time; to be moved
	// there may take 10 ms, because the kernel waits for all CPUs.
	Cgroup *os.File
	Log    *slog.Logger // nil: none
}

// Orphan is what PID 1 does when the supervisor is gone, before all processes are killed.
type Orphan struct {
	Message string   // written to the supervisor's stderr
	Remove  []string // absolute paths of files and then of empty directories
}

// Root is the file system of a container.
type Root struct {
	FUSE    *FUSE    // the image, through FUSE; else
	Dir     string   // a directory of the host
	Overlay *Overlay // nil: the image itself, which only a Dir can let be written
	// Additions are put over a Dir by a layer of their own; they need an Overlay.
	Additions []Addition
	Writable  bool // Dir without Overlay: is changed
}

// FUSE serves an image to the container. The container opens and mounts the device; Serve is
// called here with it, and the container goes on when Serve returns, while it is
// served by goroutines. The device is Serve's to close.
type FUSE struct {
	Options func(fd int) string // the data of mount(2)
	Serve   func(ctx context.Context, dev *os.File) error
}

// Overlay is a layer that takes what is written.
type Overlay struct {
	Upper, Work string // directories of the host; both empty: a tmpfs
	Size        int64  // of the tmpfs, in bytes; 0 is the kernel's default
	ReadOnly    bool   // nothing is written: only Additions
	// Program is fuse-overlayfs: it is run in the container's namespaces and watched.
	// Empty means the kernel's overlay.
	Program string
}

// Addition is a directory, a symbolic link or a file that is put over a Dir.
type Addition struct {
	Path    string // absolute, without symbolic links
	Dir     bool
	Link    string // what a link says
	Content []byte
	Mode    fs.FileMode // permissions; 0 is 0755 or 0644
}

// JoinProcess is a process that is added to a container.
type JoinProcess struct {
	Args, Env             []string
	Cwd                   string // empty is /
	Stdin, Stdout, Stderr *os.File
	Pass                  []*os.File
	Terminal              bool
	Group                 bool             // leads a process group of its own
	Ignored               []syscall.Signal // as those of Config: its caller is another
	// Rlimits are set after those of the container.
	Rlimits []specs.POSIXRlimit
	// CPUs are those that it may run on; none: those that this process may.
	CPUs []int
	// PID names a variable that is set to the number that the process has in the container,
	// of at most 20 bytes; empty: there is none.
	PID string

	ambient bool // a program of ours, which mounts
}

// Status is how a process ended.
type Status struct {
	Code   int            // 0 to 255; 128+n after signal n
	Signal syscall.Signal // what killed it; 0 if it exited
	Core   bool           // it left a core file
}
