package spec

import (
	"fmt"
	"slices"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/gangway-hpc/gangway/internal/fault"
)

// Settle makes the mount points, by mountpoint, which is Tree.Mountpoint of the
// image's root: it returns the path without symbolic links. The mounts go where
// the links lead; links of the image that lead a mount over the root, /proc, /dev
// or /sys, or these elsewhere, are refused.
func (r *Result) Settle(mountpoint func(path string, dir bool) (string, error)) error {
	for _, point := range r.Mountpoints {
		real, err := mountpoint(point.Path, point.Dir)
		if err != nil {
			return &fault.Error{
				What: fmt.Errorf("make mount point %s in the image: %w", point.Path, err),
				Hint: "the image has something else there: mount elsewhere, or use another image",
			}
		}
		if real == point.Path {
			continue
		}
		if r.misleads(point.Path, real) {
			return &fault.Error{
				What:  fmt.Errorf("use %s of the image: it is or lies below a symbolic link that leads to %s", point.Path, real),
				Cause: "/, /proc, /sys and /dev of a container are not the image's to give",
				Hint:  "mount elsewhere, or use another image",
			}
		}
		for i := range r.Spec.Mounts {
			if r.Spec.Mounts[i].Destination == point.Path {
				r.Spec.Mounts[i].Destination = real
			}
		}
	}
	return nil
}

// misleads says whether a link may not lead from the path asked for to real.
// Where nothing is mounted, as on a working directory, it may lead to the root, but not to
// what is another thing for each process: /proc, and /dev, whose links lead there.
func (r *Result) misleads(asked, real string) bool {
	switch asked {
	case "/proc", "/sys", "/dev":
		return true
	}
	if slices.ContainsFunc(r.Spec.Mounts, func(m specs.Mount) bool { return m.Destination == asked }) {
		return Reserved(real) != nil
	}
	return real != "/" && (Reserved(real) != nil || below(real, "/dev"))
}
