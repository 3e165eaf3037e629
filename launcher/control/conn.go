package control

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/gangway-hpc/gangway/internal/socket"
)

// MaxLine bounds a line. The longest is the end of a step with the last lines of all of
// its ranks.
const MaxLine = 16 << 20

// Conn is one end of a connection.
type Conn struct {
	*net.UnixConn
	r *bufio.Reader
}

// New makes a Conn of a connection that was accepted.
func New(c *net.UnixConn) *Conn {
	return &Conn{UnixConn: c, r: bufio.NewReader(c)}
}

// Pair makes a connection to a supervisor that is to be started: ours, and a file for its
// process, to be closed here once that has it. It is there before any socket is, and
// nobody has to try again and again.
func Pair() (ours *Conn, theirs *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("make connection to a step: %w", err)
	}
	theirs = os.NewFile(uintptr(fds[1]), "step")
	c, err := Inherited(fds[0])
	if err != nil {
		return nil, nil, errors.Join(err, theirs.Close())
	}
	return New(c), theirs, nil
}

// Inherited is the connection that an open descriptor is, which is closed, and which no
// program has that is started from now on.
func Inherited(fd int) (*net.UnixConn, error) {
	unix.CloseOnExec(fd)
	f := os.NewFile(uintptr(fd), "agent")
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		return nil, fmt.Errorf("use connection %d: %w", fd, err)
	}
	u, ok := c.(*net.UnixConn)
	if !ok {
		return nil, errors.Join(fmt.Errorf("use connection %d: it is no unix socket", fd), c.Close())
	}
	return u, nil
}

// Dial connects to the supervisor whose run directory is dir.
func Dial(dir string) (*Conn, error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, fmt.Errorf("open run directory: %w", err)
	}
	defer d.Close()
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Net: "unix", Name: short(d)})
	if err != nil {
		return nil, fmt.Errorf("reach step in %s: %w", dir, err)
	}
	return New(c), nil
}

// DialAs connects to the supervisor of a user, which works in his directory dir. What lies
// there is his: the socket is not followed anywhere, and whoever listens has to be that user.
func DialAs(dir string, uid uint32) (*Conn, error) {
	name := filepath.Join(dir, SocketFile)
	fd, err := unix.Open(name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "reach step", Path: name, Err: err}
	}
	defer func() { _ = unix.Close(fd) }()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, &os.PathError{Op: "reach step", Path: name, Err: err}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFSOCK || st.Uid != uid {
		return nil, fmt.Errorf("reach step in %s: %s is not a socket of user %d", dir, SocketFile, uid)
	}
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Net: "unix", Name: fmt.Sprintf("/proc/self/fd/%d", fd)})
	if err != nil {
		return nil, fmt.Errorf("reach step in %s: %w", dir, err)
	}
	cred, err := socket.Peer(c)
	if err == nil && cred.Uid != uid {
		err = fmt.Errorf("reach step in %s: user %d listens there, and not user %d", dir, cred.Uid, uid)
	}
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return New(c), nil
}

// Listen makes the socket in dir. A socket that a dead supervisor left is replaced.
func Listen(dir string) (*net.UnixListener, error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, fmt.Errorf("open run directory: %w", err)
	}
	defer d.Close()
	if err := os.Remove(filepath.Join(dir, SocketFile)); err != nil && !os.IsNotExist(err) {
		return nil, err
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: short(d)})
	if err != nil {
		return nil, fmt.Errorf("listen in %s: %w", dir, err)
	}
	l.SetUnlinkOnClose(false) // its name leads through a descriptor that is closed by then
	return l, nil
}

// short names the socket by a descriptor of its directory: a socket's name has at most
// 107 bytes, and that of a state directory may be longer.
func short(dir *os.File) string {
	return fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), SocketFile)
}

// Send writes v as a line.
func (c *Conn) Send(v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	_, err = c.Write(append(b, '\n'))
	return err
}

// Receive reads a line into v.
func (c *Conn) Receive(v any) error {
	line, err := c.line()
	if err != nil {
		return err
	}
	return json.Unmarshal(line, v)
}

// line reads up to the next newline. A connection that ends within a line is an error.
func (c *Conn) line() ([]byte, error) {
	var all []byte
	for {
		part, err := c.r.ReadSlice('\n')
		all = append(all, part...)
		switch {
		case len(all) > MaxLine:
			return nil, fmt.Errorf("receive line: longer than %d bytes", MaxLine)
		case err == nil:
			return all, nil
		case err != bufio.ErrBufferFull:
			return nil, err
		}
	}
}

// Reader is what is left of the connection after the lines that were received: for
// connections that become something else.
func (c *Conn) Reader() *bufio.Reader { return c.r }
