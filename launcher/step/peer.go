package step

import (
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/gangway-hpc/gangway/internal/fault"
	"github.com/gangway-hpc/gangway/internal/socket"
)

// checkPeer refuses all but this user, and root, who may do anything anyway. A container
// has processes of this user too: where the run directory is mounted in it, they reach
// the sockets of his other containers, and are told apart by their user namespace.
func checkPeer(c *net.UnixConn) error {
	cred, err := socket.Peer(c)
	if err != nil {
		return err
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	pidfd, cerr := -1, error(nil)
	err = raw.Control(func(fd uintptr) {
		pidfd, cerr = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PEERPIDFD)
		if errors.Is(cerr, unix.ENOPROTOOPT) { // before Linux 6.5
			pidfd, cerr = -1, nil
		}
		if cerr != nil { // the process may have ended, and its number be another's by now
			pidfd, cerr = -1, fmt.Errorf("look at who asks: %w", cerr)
		}
	})
	if pidfd >= 0 {
		defer func() { _ = unix.Close(pidfd) }()
	}
	if err := errors.Join(err, cerr); err != nil {
		return err
	}
	uid := int(cred.Uid)
	switch {
	case uid == os.Geteuid():
		return checkNamespace(int(cred.Pid), pidfd)
	case uid == 0:
		return nil
	}
	return &fault.Error{What: fmt.Errorf("the container belongs to user %d, not to user %d", os.Geteuid(), uid), Hint: "run as its owner"}
}

// checkNamespace refuses a process that is in another user namespace than this one.
func checkNamespace(pid, pidfd int) error {
	refused := func(what error) error {
		return &fault.Error{
			What: fmt.Errorf("run in container for process %d: %w", pid, what),
			Hint: "run gangway exec where the container was started, not within another one",
		}
	}
	own, err := namespaceOf("/proc/self/ns/user")
	if err != nil {
		return err
	}
	theirs, err := namespaceOf(fmt.Sprintf("/proc/%d/ns/user", pid))
	if err != nil {
		return refused(err)
	}
	if theirs != own {
		return refused(errors.New("it is in another user namespace, as processes of containers are"))
	}
	if pidfd >= 0 {
		// Its number was its own only if it is still there.
		if err := unix.PidfdSendSignal(pidfd, 0, nil, 0); errors.Is(err, unix.ESRCH) {
			return refused(syscall.ESRCH)
		}
	}
	return nil
}

// namespace is what tells namespaces apart.
type namespace struct{ dev, ino uint64 }

func namespaceOf(link string) (namespace, error) {
	var st unix.Stat_t
	if err := unix.Stat(link, &st); err != nil {
		return namespace{}, fmt.Errorf("look at user namespace: %w", err)
	}
	return namespace{uint64(st.Dev), st.Ino}, nil
}
