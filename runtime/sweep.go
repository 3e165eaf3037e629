package runtime

import (
	"fmt"
	"os"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// How long killed processes may take to end, and how often it is looked whether they have.
const (
	sweepPatience = 10 * time.Second
	sweepInterval = time.Millisecond
)

// endJoined lets nobody else in, and ends all that are inside and no descendants of PID 1.
// In a pid namespace the kernel has done so when PID 1 ended.
func (c *Container) endJoined() error {
	c.mu.Lock()
	c.ended = true
	c.mu.Unlock()
	if c.plan.PidNS {
		return nil
	}
	return c.sweep()
}

// sweep kills the processes of a container without a pid namespace until none is left.
func (c *Container) sweep() error {
	if self, err := os.Readlink("/proc/self"); err != nil || self != strconv.Itoa(os.Getpid()) {
		c.log.Warn("processes that joined the container may stay", "why", "/proc is that of other processes")
		return nil
	}
	tick := time.NewTicker(sweepInterval)
	defer tick.Stop()
	for deadline := time.Now().Add(sweepPatience); ; <-tick.C {
		pids, err := c.inside()
		if err != nil {
			return fmt.Errorf("find processes of container: %w", err)
		}
		if len(pids) == 0 {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("end processes of container: %d do not end", pids)
		}
		for _, pid := range pids {
			_ = syscall.Kill(pid, syscall.SIGKILL) // it may be gone
		}
	}
}

// inside lists the processes whose mount namespace belongs to the container's user namespace,
// or to one below it. Those that have ended, but were not waited for, have none.
func (c *Container) inside() ([]int, error) {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil, err
	}
	names, err := dir.Readdirnames(-1)
	_ = dir.Close()
	if err != nil {
		return nil, err
	}
	var user unix.Stat_t
	if err := unix.Fstat(c.spaces[0].fd, &user); err != nil {
		return nil, err
	}
	var pids []int
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil || pid == c.init.pid || c.overlay != nil && pid == c.overlay.PID() {
			continue
		}
		if owned("/proc/"+name+"/ns/mnt", user.Ino) {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// owned says whether a namespace belongs to a user namespace or to one below it. What may not
// be looked at does not.
func owned(name string, user uint64) bool {
	fd, err := unix.Open(name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	for request := uint(unix.NS_GET_USERNS); err == nil; request = unix.NS_GET_PARENT {
		var next int
		next, err = unix.IoctlRetInt(fd, request)
		_ = unix.Close(fd)
		if err != nil {
			break
		}
		var st unix.Stat_t
		if err = unix.Fstat(next, &st); err == nil && st.Ino == user {
			_ = unix.Close(next)
			return true
		}
		fd = next
	}
	return false
}
