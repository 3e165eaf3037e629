package runtime

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// space is a namespace that is held, so that others can join it.
type space struct {
	name string
	flag int
	fd   int
}

// spaceKinds are the namespaces in the order in which they are joined: the user namespace
// first, which gives the right to join the others.
func spaceKinds() []space {
	return []space{
		{name: "user", flag: unix.CLONE_NEWUSER},
		{name: "mnt", flag: unix.CLONE_NEWNS},
		{name: "pid", flag: unix.CLONE_NEWPID},
		{name: "ipc", flag: unix.CLONE_NEWIPC},
		{name: "uts", flag: unix.CLONE_NEWUTS},
		{name: "net", flag: unix.CLONE_NEWNET},
	}
}

// openSpaces opens the namespaces of PID 1 while that is still allowed.
func (c *Container) openSpaces() error {
	for _, s := range spaceKinds() {
		if c.plan.Flags&uintptr(s.flag) == 0 {
			continue
		}
		if err := c.openSpace(s.name, s.flag); err != nil {
			return err
		}
	}
	var st unix.Stat_t
	if err := unix.Stat(fmt.Sprintf("/proc/%d/ns/pid", c.init.pid), &st); err != nil {
		return fmt.Errorf("look at pid namespace: %w", err)
	}
	c.pidns = st.Ino
	return nil
}

func (c *Container) openSpace(name string, flag int) error {
	fd, err := unix.Open(fmt.Sprintf("/proc/%d/ns/%s", c.init.pid, name), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open %s namespace of process %d: %w", name, c.init.pid, err)
	}
	c.spaces = append(c.spaces, space{name, flag, fd})
	return nil
}
