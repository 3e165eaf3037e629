package service

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"runtime"
	"sync"
	"time"

	"github.com/gangway-hpc/gangway/image"
	"github.com/gangway-hpc/gangway/image/layer"
	"github.com/gangway-hpc/gangway/image/registry"
	"github.com/gangway-hpc/gangway/internal/fault"
	"github.com/gangway-hpc/gangway/internal/socket"
)

// Options say how a Server works. Store and Registry must be set.
type Options struct {
	Store *image.Store
	// Registry makes what talks to registries for one request: with one user's
	// credentials, at so many bytes a second at most (0: no limit).
	Registry func(c registry.Credentials, rate int64) *registry.Client
	// Lease is how long a registry's word that a user may read something counts; 0 asks
	// each time.
	Lease   time.Duration
	MaxSize int64        // of an image's layers, bytes; 0 is no limit
	Limits  layer.Limits // of what is in a layer, which ordinary users cannot raise
	Log     *slog.Logger
	Now     func() time.Time // nil is time.Now
}

// Limits that keep one user from using up what is there for all.
const (
	maxConns     = 4096             // in all
	maxUserConns = 1024             // of one user but root: a container holds one
	maxPulls     = 8                // at a time, in all
	maxUserPulls = 2                // and of one user
	maxHandings  = 16               // hand-overs of one user at a time
	maxUntaken   = 32               // hand-overs that a user left lying
	minRate      = 10_000_000       // bytes a second that an ordinary user may ask a pull to be limited to
	firstTime    = 30 * time.Second // until a new connection has asked for something
	writeTime    = 30 * time.Second // for the other end to read what it asked for
	takeTime     = 30 * time.Second // to take the files
	progressTime = 5 * time.Second  // to read of progress, of which a socket holds much
	findTime     = 90 * time.Second // to find a credential: helpers take theirs
)

// Server hands images of one store to the users of a node.
type Server struct {
	o      Options
	log    *slog.Logger
	now    func() time.Time
	grants grants
	seen   seen
	pulls  gate
	hands  gate

	mu      sync.Mutex
	conns   map[uint32]int // of each user
	all     int
	untaken map[uint32]int
}

// New returns a Server. It does no input or output.
func New(o Options) *Server {
	s := &Server{o: o, log: o.Log, now: o.Now, conns: map[uint32]int{}, untaken: map[uint32]int{}}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	if s.now == nil {
		s.now = time.Now
	}
	s.grants = grants{now: s.now, life: o.Lease, until: map[grant]time.Time{}}
	s.seen.users = map[string]map[uint32]bool{}
	s.pulls = newGate(max(maxPulls, 2*runtime.GOMAXPROCS(0)), maxUserPulls)
	s.hands = newGate(maxConns, maxHandings)
	return s
}

// Serve answers connections until ctx is done, and closes l.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	stop := context.AfterFunc(ctx, func() { _ = l.Close() })
	defer stop()
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	for {
		c, err := l.Accept()
		if ctx.Err() != nil {
			if err == nil {
				_ = c.Close()
			}
			return nil
		}
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return fmt.Errorf("accept connections: %w", err)
			}
			s.log.Error("accept a connection", "err", err) // as for want of descriptors
			select {
			case <-ctx.Done():
			case <-time.After(100 * time.Millisecond):
			}
			continue
		}
		u, ok := c.(*net.UnixConn)
		if !ok {
			_ = c.Close()
			return fmt.Errorf("accept connections: %T is no unix socket", c)
		}
		wg.Go(func() { s.connection(ctx, u) })
	}
}

// connection serves one client.
func (s *Server) connection(ctx context.Context, u *net.UnixConn) {
	defer u.Close()
	cred, err := socket.Peer(u)
	if err != nil {
		s.log.Error("look at who connects", "err", err)
		return
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stop := context.AfterFunc(ctx, func() { _ = u.Close() })
	defer stop()
	c := &conn{s: s, u: u, uid: cred.Uid, frames: make(chan *request), end: cancel}
	if err := s.enter(c.uid); err != nil {
		_ = c.reply(&reply{Error: toWire(err)})
		return
	}
	defer s.leave(c.uid)
	reading := make(chan struct{})
	go func() {
		defer close(reading)
		cancel(c.read(ctx))
	}()
	err = c.serve(ctx)
	if err != nil && !errors.Is(err, io.EOF) && ctx.Err() == nil {
		s.log.Info("a client was turned away", "uid", c.uid, "pid", cred.Pid, "err", err)
	}
	cancel(err)
	_ = u.Close()
	<-reading
}

// enter counts a connection of a user.
func (s *Server) enter(uid uint32) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all >= maxConns || uid != 0 && s.conns[uid] >= maxUserConns {
		return &fault.Error{
			What:  errors.New("connect to the node's image store: too many connections"),
			Cause: fmt.Sprintf("there are %d, of them %d of user %d", s.all, s.conns[uid], uid),
			Hint:  "end containers that are not needed any more, or use a store of your own: --store DIR",
		}
	}
	s.all++
	s.conns[uid]++
	return nil
}

func (s *Server) leave(uid uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all--
	if s.conns[uid]--; s.conns[uid] == 0 {
		delete(s.conns, uid)
	}
}

// conn is a connection of a user.
type conn struct {
	s      *Server
	u      *net.UnixConn
	uid    uint32
	frames chan *request
	end    context.CancelCauseFunc
	mu     sync.Mutex   // of writes
	lease  *image.Lease // of what was handed over
	handed *image.Image // last
}

// read passes frames on until the other end is gone, and says why it ended.
func (c *conn) read(ctx context.Context) error {
	if err := c.u.SetReadDeadline(time.Now().Add(firstTime)); err != nil {
		return err
	}
	most := maxRequest
	if c.uid == 0 {
		most = maxReply // of lists of images
	}
	for {
		q := &request{}
		if err := readFrame(c.u, q, most); err != nil {
			return err
		}
		if err := c.u.SetReadDeadline(time.Time{}); err != nil {
			return err
		}
		select {
		case c.frames <- q:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// next returns the next frame.
func (c *conn) next(ctx context.Context) (*request, error) {
	select {
	case q := <-c.frames:
		return q, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

func (c *conn) reply(r *reply) error { return c.replyWithin(r, writeTime) }

// replyWithin sends a frame. The connection of who does not read it ends.
func (c *conn) replyWithin(r *reply, limit time.Duration, files ...*os.File) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	err := c.u.SetWriteDeadline(time.Now().Add(limit))
	if err == nil {
		err = send(c.u, r, maxReply, files...)
	}
	if err != nil {
		c.end(err)
	}
	return err
}

// errProtocol is for who does not talk as clients do.
var errProtocol = errors.New("that is not what a client sends now")

// serve answers requests, one after the other. What is wrong with one is answered; an
// error ends the connection.
func (c *conn) serve(ctx context.Context) error {
	defer func() {
		if c.lease != nil {
			_ = c.lease.Release()
		}
	}()
	for {
		q, err := c.next(ctx)
		if err != nil {
			return err
		}
		if q.Version != version {
			return errors.Join(c.reply(&reply{Error: toWire(&fault.Error{
				What: fmt.Errorf("talk to the node's image store: it speaks version %d of the protocol, not %d", version, q.Version),
				Hint: "the service runs another version of Gangway: ask the administrator to restart it",
			})}), errProtocol)
		}
		switch {
		case q.Image != nil:
			err = c.image(ctx, q.Image)
		case q.Hold != nil:
			err = c.hold(ctx, q.Hold)
		case q.Admin != nil:
			err = c.admin(ctx, q.Admin)
		default:
			return errProtocol
		}
		if err == nil {
			continue
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if errors.Is(err, errProtocol) {
			return err
		}
		if err := c.reply(&reply{Error: toWire(explain(err))}); err != nil {
			return err
		}
	}
}
