package cdi

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
	specs "tags.cncf.io/container-device-interface/specs-go"
)

// Host is where nodes and files are looked at. Its zero value is this machine, seen by
// somebody without supplementary groups.
type Host struct {
	Root   string // where paths begin; "" is "/"
	Groups []int  // the caller's groups, which a rootless container keeps
}

// ErrStale means that edits name what the host has not: no such node or file, a node of
// another type or with other numbers.
var ErrStale = errors.New("not as the specification says")

// Complete checks that the host has what the edits name, and fills in what they leave
// out of their device nodes: path on the host, type, numbers and mode. A node that is
// described in full has to be there nevertheless, because an ordinary user cannot make
// one, and has to have the numbers given, because the device cgroup goes by them.
// Errors are [ErrStale], or a path that this user may not look at. Nothing is opened.
func (h Host) Complete(e *specs.ContainerEdits) error {
	_, err := h.complete(e)
	return err
}

// looked is what the host has of what edits name, in their order.
type looked struct {
	nodes  []unix.Stat_t
	mounts []unix.Stat_t // zero for those that are no bind mounts
}

func (h Host) complete(e *specs.ContainerEdits) (*looked, error) {
	l := &looked{make([]unix.Stat_t, len(e.DeviceNodes)), make([]unix.Stat_t, len(e.Mounts))}
	for i, d := range e.DeviceNodes {
		if d.HostPath == "" {
			d.HostPath = d.Path
		}
		st := &l.nodes[i]
		if err := unix.Stat(h.path(d.HostPath), st); err != nil {
			return nil, missing("device node", d.HostPath, err)
		}
		if err := completeNode(d, st); err != nil {
			return nil, err
		}
	}
	for i, m := range e.Mounts {
		if !isBind(m.Type, m.Options) {
			continue
		}
		if err := unix.Stat(h.path(m.HostPath), &l.mounts[i]); err != nil {
			return nil, missing("mount", m.HostPath, err)
		}
	}
	return l, nil
}

// isDir says whether a mount that is a bind mount is one of a directory.
func (l *looked) isDir(i int) bool { return l.mounts[i].Mode&unix.S_IFMT == unix.S_IFDIR }

// missing is the error of a path that stat did not find. Where it may not look, nothing is
// said of the specification.
func missing(op, name string, err error) error {
	err = &os.PathError{Op: op, Path: name, Err: err}
	if errors.Is(err, os.ErrPermission) {
		return err
	}
	return fmt.Errorf("%w: %w", ErrStale, err)
}

// path is where an absolute path of the host is.
func (h Host) path(name string) string {
	if h.Root == "" || h.Root == "/" {
		return name
	}
	return filepath.Join(h.Root, name)
}

// completeNode compares a device node with the host's and completes it.
func completeNode(d *specs.DeviceNode, st *unix.Stat_t) error {
	kind := ""
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFCHR:
		kind = "c"
	case unix.S_IFBLK:
		kind = "b"
	case unix.S_IFIFO:
		kind = "p"
	}
	wanted := d.Type
	if wanted == "u" {
		wanted = "c" // unbuffered, which on Linux is the same
	}
	major, minor := int64(unix.Major(st.Rdev)), int64(unix.Minor(st.Rdev))
	switch {
	case kind == "":
		return fmt.Errorf("%w: %s is no device node", ErrStale, d.HostPath)
	case wanted != "" && wanted != kind:
		return fmt.Errorf("%w: %s is of type %s, not %s", ErrStale, d.HostPath, kind, d.Type)
	case kind != "p" && d.Major != 0 && (d.Major != major || d.Minor != minor):
		return fmt.Errorf("%w: %s is %d:%d, not %d:%d", ErrStale, d.HostPath, major, minor, d.Major, d.Minor)
	}
	d.Type = kind
	if kind != "p" {
		d.Major, d.Minor = major, minor
	}
	if d.FileMode == nil {
		mode := os.FileMode(st.Mode & 0o7777)
		d.FileMode = &mode
	}
	return nil
}
