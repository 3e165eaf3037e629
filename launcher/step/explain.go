package step

import (
	"errors"
	"fmt"
	"io/fs"
	goruntime "runtime"
	"strings"
	"syscall"

	"github.com/gangway-hpc/gangway/internal/fault"
	"github.com/gangway-hpc/gangway/launcher/doctor"
	"github.com/gangway-hpc/gangway/runtime"
)

// explain puts cause and remedy to what the kernel refused, as far as this machine says
// them.
func explain(err error) error {
	op, ok := errors.AsType[*runtime.OpError](err)
	if !ok {
		return err
	}
	f := &fault.Error{What: fmt.Errorf("start container: %w", err), See: "gangway doctor"}
	switch {
	case strings.HasPrefix(op.Call, "clone") || strings.Contains(op.What, "uid_map") || strings.Contains(op.What, "gid_map") || strings.Contains(op.What, "setgroups"):
		f.Cause, f.Hint = doctor.Refused(op.Errno, !strings.HasPrefix(op.Call, "clone"))
	case op.Errno == syscall.EINVAL && strings.Contains(op.What, "overlay"):
		f.Hint = "the container's directory may be on a file system that an overlay cannot write to, as NFS: keep it on a local disk, GANGWAY_CONTAINERS=DIR"
	case op.Errno == syscall.EINVAL && op.Call == "move_mount":
		f.Cause, f.Hint, f.See = "a file can be mounted on a file only, and a directory on a directory", "mount it elsewhere in the container", ""
	case op.Workdir():
		f.Hint, f.See = workdirHint, ""
	case op.Errno == syscall.ENOSPC:
		f.Hint = "free some space, or raise the limit of namespaces and mounts: gangway doctor says which"
	case errors.Is(op.Errno, fs.ErrPermission):
		f.Cause, f.Hint = doctor.Refused(op.Errno, true)
	}
	return f
}

// workdirHint is for a working directory that is none.
const workdirHint = "name a directory that is in the container: --container-workdir=DIR"

// explainCommand puts the cause to a command that the kernel could not make sense of, or
// whose working directory is none.
func explainCommand(err error) error {
	if op, ok := errors.AsType[*runtime.OpError](err); ok && op.Workdir() {
		return fault.Usage(err, workdirHint)
	}
	if f, ok := errors.AsType[*fault.Error](err); ok && f.Cause == "" && errors.Is(err, syscall.ENOEXEC) {
		f.Cause = "it is neither a program for this machine (linux/" + goruntime.GOARCH + ") nor a script that begins with #!"
		f.Hint = "is the image for another machine? gangway image ls shows it, --platform chooses; else start it by a shell: -- sh FILE"
	}
	return err
}
