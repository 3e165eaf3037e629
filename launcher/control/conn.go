package control

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
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
