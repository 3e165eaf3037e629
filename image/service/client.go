package service

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"github.com/gangway-hpc/gangway/image"
	"github.com/gangway-hpc/gangway/image/oci"
	"github.com/gangway-hpc/gangway/image/registry"
	"github.com/gangway-hpc/gangway/internal/fault"
	"github.com/gangway-hpc/gangway/internal/socket"
)

// Client asks the server that listens on a socket. Each call has a connection of its own.
type Client struct {
	Socket string
	// Credentials are the user's; nil: there are none.
	Credentials registry.Credentials
	// Hosts are the registries, and mirrors, whose credentials the server may ask for.
	Hosts []string
}

// Handed is an image that the server handed over. It keeps it from garbage collection
// until it is closed.
type Handed struct {
	Image  image.Image
	Config []byte     // the image's configuration, as it came
	Files  []*os.File // as image.Handed takes them, which closes them then
	conn   *net.UnixConn
}

// Close ends the connection. The files stay open.
func (h *Handed) Close() error { return h.conn.Close() }

// Hold keeps the image for a container, which a directory stands for, until Release.
func (h *Handed) Hold(ctx context.Context, name, dir string) error {
	l := &call{conn: h.conn}
	r, err := l.ask(ctx, &request{Version: version, Hold: &holding{Name: name, Dir: dir}}, nil)
	if err == nil && !r.Done {
		err = l.gone(ctx, errUnasked)
	}
	return err
}

// Open asks for an image and its files. progress may be nil.
func (c *Client) Open(ctx context.Context, q Request, progress func(image.Progress)) (*Handed, error) {
	q.Files = true
	return c.open(ctx, &request{Version: version, Image: &q}, progress)
}

// Held asks for the image that a container of this user holds. The error wraps
// image.ErrNotFound if it holds none.
func (c *Client) Held(ctx context.Context, dir string, manifest oci.Digest) (*Handed, error) {
	return c.open(ctx, &request{Version: version, Hold: &holding{Dir: dir, Manifest: manifest}}, nil)
}

func (c *Client) open(ctx context.Context, q *request, progress func(image.Progress)) (*Handed, error) {
	call, err := c.dial(ctx)
	if err != nil {
		return nil, err
	}
	h, err := call.image(ctx, q, progress)
	if err != nil {
		return nil, errors.Join(err, call.conn.Close())
	}
	return h, nil
}

// Release ends what a container holds. It is no error if that is nothing.
func (c *Client) Release(ctx context.Context, name, dir string) error {
	call, err := c.dial(ctx)
	if err != nil {
		return err
	}
	defer call.conn.Close()
	r, err := call.ask(ctx, &request{Version: version, Hold: &holding{Name: name, Dir: dir, Release: true}}, nil)
	if err == nil && !r.Done {
		err = call.gone(ctx, errUnasked)
	}
	return err
}

// Pull has the server have an image.
func (c *Client) Pull(ctx context.Context, q Request, progress func(image.Progress)) (image.Image, error) {
	q.Files = false
	call, err := c.dial(ctx)
	if err != nil {
		return image.Image{}, err
	}
	defer call.conn.Close()
	h, err := call.image(ctx, &request{Version: version, Image: &q}, progress)
	if err != nil {
		return image.Image{}, err
	}
	return h.Image, nil
}

// call is one connection.
type call struct {
	c    *Client
	conn *net.UnixConn
	stop func() bool
}

// dial connects to the server, if it is one that may be told secrets.
func (c *Client) dial(ctx context.Context) (*call, error) {
	u, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: c.Socket, Net: "unix"})
	if err != nil {
		return nil, c.unreachable(err)
	}
	if err := c.trust(u); err != nil {
		return nil, errors.Join(err, u.Close())
	}
	return &call{c: c, conn: u, stop: context.AfterFunc(ctx, func() { _ = u.Close() })}, nil
}

// unreachable says what to do where nobody answers.
func (c *Client) unreachable(err error) error {
	f := &fault.Error{
		What: fmt.Errorf("connect to the node's image store: %w", err),
		Hint: "ask the administrator to start it: systemctl start gangway-store; or use a store of your own: --store DIR, or GANGWAY_IMAGE_SERVICE=none",
	}
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		f.Cause = "nobody listens on " + c.Socket
	case errors.Is(err, fs.ErrNotExist):
		f.Cause = c.Socket + " does not exist"
	case errors.Is(err, fs.ErrPermission):
		f.Cause = fmt.Sprintf("user %d may not use %s", os.Geteuid(), c.Socket)
	}
	return f
}

// trust refuses a server that could be anybody's: credentials go to it, and images come
// from it. Nobody but root or the server itself may make sockets in its directory.
func (c *Client) trust(u *net.UnixConn) error {
	cred, err := socket.Peer(u)
	if err != nil {
		return err
	}
	refuse := func(what string) error {
		return &fault.Error{
			What:  fmt.Errorf("connect to the node's image store: %s", what),
			Cause: "who serves images and hears credentials must be the one whom the administrator chose",
			Hint:  "check image.service in gangway.toml: the socket's directory is to be the service's own, with mode 0755",
		}
	}
	dir := filepath.Dir(c.Socket)
	st, err := os.Stat(dir)
	if err != nil {
		return c.unreachable(err)
	}
	sys, ok := st.Sys().(*syscall.Stat_t)
	if !ok || st.Mode().Perm()&0o022 != 0 {
		return refuse("others than its owner may write to " + dir)
	}
	if sys.Uid != 0 && sys.Uid != cred.Uid {
		return refuse(fmt.Sprintf("user %d listens on %s, in a directory of user %d", cred.Uid, c.Socket, sys.Uid))
	}
	return nil
}

// errUnasked is for an answer to something else.
var errUnasked = errors.New("it sent something that was not asked for")

func (l *call) image(ctx context.Context, q *request, progress func(image.Progress)) (*Handed, error) {
	r, err := l.ask(ctx, q, progress)
	if err != nil {
		return nil, err
	}
	h := &Handed{conn: l.conn}
	if r.Opened == nil || r.Opened.Files > maxFiles {
		return nil, l.gone(ctx, errUnasked)
	}
	h.Image, h.Config = r.Opened.Image, r.Opened.Config
	for len(h.Files) < r.Opened.Files {
		var next reply
		files, err := receive(l.conn, &next)
		if err == nil && (len(files) == 0 || len(files) != next.Rights || len(h.Files)+len(files) > r.Opened.Files) {
			err = fmt.Errorf("%d descriptors came, not %d", len(files), next.Rights)
		}
		h.Files = append(h.Files, files...)
		if err != nil {
			closeAll(h.Files)
			return nil, l.gone(ctx, err)
		}
	}
	if len(h.Files) > 0 {
		if err := send(l.conn, &request{Taken: true}, maxRequest); err != nil {
			closeAll(h.Files)
			return nil, l.gone(ctx, err)
		}
	}
	// From here on the connection is the image's, whatever becomes of ctx.
	if !l.stop() {
		closeAll(h.Files)
		return nil, context.Cause(ctx)
	}
	return h, nil
}

// ask sends a request, and returns the answer. Where the server refused the connection, it
// has said why before it heard anything.
func (l *call) ask(ctx context.Context, q *request, progress func(image.Progress)) (*reply, error) {
	err := send(l.conn, q, maxReply)
	r, aerr := l.answer(ctx, progress)
	if _, said := errors.AsType[*remoteError](aerr); err != nil && !said {
		return nil, l.gone(ctx, err)
	}
	return r, aerr
}

// answer returns what the server answers in the end.
func (l *call) answer(ctx context.Context, progress func(image.Progress)) (*reply, error) {
	for {
		r := &reply{}
		files, err := receive(l.conn, r)
		closeAll(files)
		switch {
		case err != nil:
			return nil, l.gone(ctx, err)
		case len(files) > 0:
			return nil, l.gone(ctx, errors.New("it sent files that were not asked for"))
		case r.Error != nil:
			return nil, r.Error.fault()
		case r.Progress != nil:
			if progress != nil {
				progress(*r.Progress)
			}
		case r.Find != nil:
			if err := send(l.conn, &request{Credential: l.c.find(ctx, r.Find)}, maxRequest); err != nil {
				return nil, l.gone(ctx, err)
			}
		default:
			return r, nil
		}
	}
}

// find answers the server's question for a credential.
func (c *Client) find(ctx context.Context, q *find) *credentialAnswer {
	if c.Credentials == nil {
		return &credentialAnswer{}
	}
	if !slices.Contains(c.Hosts, q.Host) {
		return &credentialAnswer{Error: toWire(&fault.Error{
			What: fmt.Errorf("the node's image store asks for the credential of %.200q, which is not the image's registry", q.Host),
			Hint: "if that is its mirror, name it in gangway.toml",
		})}
	}
	found, err := c.Credentials.Find(ctx, q.Host, q.Repository, q.User)
	if err != nil {
		return &credentialAnswer{Error: toWire(err)}
	}
	return &credentialAnswer{
		Username: found.Username, Password: found.Password, IdentityToken: found.IdentityToken, RegistryToken: found.RegistryToken,
		Source: found.Source, Looked: c.Credentials.Looked(),
	}
}

// gone is the error of a connection that broke.
func (l *call) gone(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	f := &fault.Error{
		What: fmt.Errorf("talk to the node's image store: %w", err),
		Hint: "try again; if that repeats, ask the administrator for its log: journalctl -u gangway-store",
	}
	if errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) {
		f.Cause = "it ended while it was asked"
	}
	return f
}
