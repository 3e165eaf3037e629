// Package socket makes unix sockets that are one user's, or everybody's, and says who is at the other end
// of a connection. It may be used by any number of goroutines.
package socket

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"syscall"

	"github.com/gangway-hpc/gangway/internal/fault"
)

// Longest is how many bytes the name of a socket may have (unix(7)).
const Longest = 107

// Listen makes a socket, for this user and root. One that a dead process left is
// replaced, and it is left to the next one when it is closed.
func Listen(path string) (net.Listener, error) { return listen(path, 0o600) }

// ListenForAll is Listen for a socket that every user may connect to, if the directory
// lets him: who serves it asks [Peer] whom it has there.
func ListenForAll(path string) (net.Listener, error) { return listen(path, 0o666) }

func listen(path string, mode fs.FileMode) (net.Listener, error) {
	if len(path) > Longest {
		return nil, &fault.Error{
			What: fmt.Errorf("listen on %s: the name is longer than %d bytes", path, Longest),
			Hint: "choose a shorter state directory: --state-dir DIR",
		}
	}
	if st, err := os.Lstat(path); err == nil && st.Mode().Type() == fs.ModeSocket {
		if err := os.Remove(path); err != nil {
			return nil, fmt.Errorf("listen on %s: %w", path, err)
		}
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	// A later one makes its own under this name.
	l.SetUnlinkOnClose(false)
	if err := os.Chmod(path, mode); err != nil {
		return nil, errors.Join(fmt.Errorf("listen on %s: %w", path, err), l.Close())
	}
	return l, nil
}

// Peer is who has connected to a unix socket, or has made it, as the kernel says
// (SO_PEERCRED).
func Peer(c net.Conn) (syscall.Ucred, error) {
	u, ok := c.(*net.UnixConn)
	if !ok {
		return syscall.Ucred{}, fmt.Errorf("look at peer: not a unix socket but %T", c)
	}
	raw, err := u.SyscallConn()
	if err != nil {
		return syscall.Ucred{}, fmt.Errorf("look at peer: %w", err)
	}
	var cred *syscall.Ucred
	var inner error
	err = raw.Control(func(fd uintptr) {
		cred, inner = syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED)
	})
	if err = errors.Join(err, inner); err != nil {
		return syscall.Ucred{}, fmt.Errorf("look at peer: %w", err)
	}
	return *cred, nil
}

// IsOurs says whether a user may do all that this process may: root, and who it runs as.
func IsOurs(uid uint32) bool { return uid == 0 || int(uid) == os.Geteuid() }

// Ours accepts connections of this user and of root, and closes others.
type Ours struct{ net.Listener }

// Accept implements net.Listener.
func (l Ours) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if cred, err := Peer(c); err == nil && IsOurs(cred.Uid) {
			return c, nil
		}
		_ = c.Close()
	}
}
