package cdi

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
	specs "tags.cncf.io/container-device-interface/specs-go"

	"github.com/gangway-hpc/gangway/internal/fault"
)

// fit checks that a file is mounted on no directory, and no directory on a file, where
// neither the image nor the runtime has a say in what is there: the kernel would refuse it
// without a word of which of the two is meant.
func (h Host) fit(e *specs.ContainerEdits, seen *looked) error {
	for _, d := range e.DeviceNodes {
		if err := h.fits(e, d.HostPath, path.Clean(d.Path), false); err != nil {
			return err
		}
	}
	for i, m := range e.Mounts {
		if err := h.fits(e, m.HostPath, path.Clean(m.ContainerPath), seen.isDir(i) || !isBind(m.Type, m.Options)); err != nil {
			return err
		}
	}
	return nil
}

func (h Host) fits(e *specs.ContainerEdits, source, target string, dir bool) error {
	kernels := strings.HasPrefix(target, "/proc/") || strings.HasPrefix(target, "/sys/")
	isDir := target == "/dev/shm" || target == "/dev/mqueue" // in every container
	switch {
	case isDir:
	case !kernels:
		return nil
	case slices.ContainsFunc(e.Mounts, func(m *specs.Mount) bool { return strings.HasPrefix(target, path.Clean(m.ContainerPath)+"/") }):
		return nil // it lies in that mount
	default:
		// It is the same kernel.
		var st unix.Stat_t
		if unix.Stat(h.path(target), &st) != nil {
			return nil // the runtime says it best
		}
		isDir = st.Mode&unix.S_IFMT == unix.S_IFDIR
	}
	switch {
	case isDir && !dir:
		return misfit(source, target, "that is a directory, on which no file can be mounted")
	case !isDir && dir:
		return misfit(source, target, "that is a file, on which no directory can be mounted")
	}
	return nil
}

func misfit(source, target, why string) error {
	return &fault.Error{
		What: fmt.Errorf("apply CDI edits: mount %s on %s: %s", shorten(source), shorten(target), why),
		Hint: "mend the CDI specification, or the hook, that asks for it: another containerPath",
	}
}
