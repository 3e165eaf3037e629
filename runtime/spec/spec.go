// Package spec turns what a person asked for and what an image says into an OCI
// runtime specification: the process, its environment and directory, the
// namespaces and every mount, besides the files that the root needs in addition.
//
// First call: [Build]. Before it the command turns its flags into a [Request] by
// [ParseMounts], [ParseName], [ParseUnshare], [ParseEnv] and [FromEnviron], and asks the host
// about sources of mounts by [Mount.Check]; after it the caller makes the mount
// points in the image's tree by [Result.Settle].
//
// The package decides and does nothing: it opens no file, reads no environment and
// asks no clock. Its functions may be called by any number of goroutines; values
// are not shared between calls. It never obeys an image further than in its
// environment, entry point, command, directory and stop signal: an image's user is
// only reported, its volumes and labels are not even read.
package spec

import (
	"syscall"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// Image is all that an image may say about how it is run.
type Image struct {
	Env             []string // NAME=VALUE
	Entrypoint, Cmd []string
	WorkingDir      string
	User            string // reported, never applied
	StopSignal      string
}

// Group is a group of the host.
type Group struct {
	ID   int
	Name string
}

// Host is what the caller found out about itself and the machine.
type Host struct {
	UID, GID    int     // of the calling user
	User        string  // its name; empty: unknown
	Home, Shell string  // as its account says
	Groups      []Group // the names of the user's groups, the primary among them
	Hostname    string
	Cwd         string   // absolute
	Environ     []string // as os.Environ gives it
	Umask       *uint32  // nil: unknown, the container has 022
	MemTotal    int64    // bytes that /dev/shm may grow to; 0: the kernel's default
	Hosts       []byte   // content of /etc/hosts
	ResolvConf  []byte   // content of /etc/resolv.conf
	Localtime   []byte   // content of what /etc/localtime leads to
	MachineID   string   // path of the host's /etc/machine-id; empty: none
	Cgroup      string   // directory of the container's cgroup in the host's cgroup2 tree; empty: the host's view stays
}

// Request is what a person asked for.
type Request struct {
	Command      []string
	Workdir      string   // --container-workdir; empty: the image's
	Mounts       []Mount  // --container-mounts
	MountHome    bool     // --container-mount-home
	RemapRoot    bool     // --container-remap-root
	Entrypoint   bool     // --container-entrypoint: run the image's entry point
	Writable     bool     // --container-writable
	Terminal     bool     // --pty
	ContainerEnv []string // --container-env: names; the caller's value wins over the image's
	Env          []string // --env: NAME=VALUE, or NAME for the caller's value; wins over all
	Export       string   // --export; empty: ALL
	Unshare
	HostPID bool  // no pid namespace of its own, the host's /proc: the rung below a fresh /proc
	HostSys bool  // the host's /sys in spite of an own network: the rung below a fresh /sys
	ShmSize int64 // bytes of /dev/shm; 0: Host.MemTotal
	TmpSize int64 // bytes of /tmp, /run and a home that is not there, each; 0: the kernel's default
}

// Unshare are the namespaces that a container has of its own only if asked.
// Those of users, mounts and processes it always has; that of System V and POSIX
// interprocess communication too, so that IPC changes nothing today.
type Unshare struct {
	Net, IPC, UTS bool
}

// Root is the image's tree as the package asks it; *rootfs.Tree is one. Both
// follow symbolic links inside the root.
type Root interface {
	// ReadFile returns a file's content. An error wraps fs.ErrNotExist where the
	// file is not there; a file longer than limit is an error.
	ReadFile(path string, limit int64) ([]byte, error)
	// Exists says whether there is something; with a closing "/." only a directory is.
	Exists(path string) bool
}

// File is a file, or a symbolic link, that the root has instead of the image's own.
type File struct {
	Path    string
	Content []byte
	Mode    uint32
	Link    string // what a link says; empty: it is none
}

// Mountpoint is a directory, or else a file, that has to be in the root.
type Mountpoint struct {
	Path string
	Dir  bool
}

// Result is what [Build] decided.
type Result struct {
	Spec        *specs.Spec
	Files       []File       // to be added to the root, before Mountpoints
	Mountpoints []Mountpoint // to be made in the root where not there, in this order; those below another mount carry x-create= instead
	Umounts     []string     // to be unmounted lazily after all mounts
	StopSignal  syscall.Signal
	Notes       []string // what was ignored or decided otherwise than the image asks, a line each

	further *builder // what Environ needs
}

// Build decides how the request is run in the image on the host. It does not
// change its arguments.
func Build(r Request, img Image, h Host, root Root) (*Result, error) {
	b := &builder{r: r, img: img, h: h, root: root}
	if err := b.build(); err != nil {
		return nil, err
	}
	b.further = b
	return &b.Result, nil
}
