package server

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"syscall"
	"time"

	"github.com/gangway-hpc/gangway/internal/api"
	"github.com/gangway-hpc/gangway/internal/fault"
	"github.com/gangway-hpc/gangway/internal/socket"
)

// Bounds of what others may have of the controller.
const (
	smallBody = 1 << 20          // bytes of a request that brings no program
	largeBody = api.MaxRequest   // bytes of one that does, and of each job of a stream
	bodySpan  = 30 * time.Second // in which a request has to be read
	idleSpan  = 2 * time.Minute  // that a connection is kept without a request
	// A request that is too long is read as far as this, so that who sends it hears why it
	// is refused.
	drained = 4 * largeBody
	// Requests longer than this are read a few at a time.
	oneAtATime  = 64 << 10
	largeBodies = 4

	maxConnections = 8192
	maxOfUser      = 1024 // connections of somebody who is no administrator
	maxWatchAll    = 8    // that watch all jobs
)

// limitOf is how long the body of a request to a route may be; 0: its handler sees to that.
func limitOf(pattern string) int64 {
	switch pattern {
	case "POST /v1/submit":
		return 0
	case "POST /v1/jobs", "POST /v1/jobs/{id}/steps":
		return largeBody
	}
	return smallBody
}

// readBody reads a request's body, up to a limit and within bodySpan.
func (s *Server) readBody(w http.ResponseWriter, r *http.Request, limit int64) error {
	if limit == 0 || r.Body == nil || r.Body == http.NoBody {
		return nil
	}
	rc := http.NewResponseController(w)
	if err := rc.SetReadDeadline(time.Now().Add(bodySpan)); err != nil {
		return fmt.Errorf("read the request: %w", err)
	}
	if limit > smallBody && (r.ContentLength < 0 || r.ContentLength > oneAtATime) {
		select {
		case s.large <- struct{}{}:
			defer func() { <-s.large }()
		case <-r.Context().Done():
			return r.Context().Err()
		}
	}
	b, err := io.ReadAll(io.LimitReader(r.Body, limit+1))
	size := int64(len(b))
	if err == nil && size > limit {
		n, _ := io.Copy(io.Discard, io.LimitReader(r.Body, drained))
		return tooLong(max(size+n, r.ContentLength), limit)
	}
	if err != nil {
		return &api.Error{What: "read the request: " + err.Error(), Code: fault.CodeUsage, Kind: "BAD_REQUEST"}
	}
	if err := rc.SetReadDeadline(time.Time{}); err != nil {
		return fmt.Errorf("read the request: %w", err)
	}
	r.Body = io.NopCloser(bytes.NewReader(b))
	return nil
}

func tooLong(size, limit int64) *api.Error {
	e := &api.Error{What: fmt.Sprintf("the request is %d bytes long; the most is %d", size, limit), Code: fault.CodeUsage, Kind: "PATHNAME_TOO_LONG"}
	if limit == largeBody {
		e.Hint = "what is long is mostly the environment: --export=NONE leaves it out; read large data from a file"
	}
	return e
}

// errDocument is that a document of a stream is too long.
var errDocument = errors.New("too long")

// documents reads a stream of documents of which each has a bound.
type documents struct {
	r    io.Reader
	left int64
}

// Read implements io.Reader.
func (d *documents) Read(b []byte) (int, error) {
	if d.left <= 0 {
		return 0, errDocument
	}
	n, err := d.r.Read(b[:min(int64(len(b)), d.left)])
	d.left -= int64(n)
	return n, err
}

// next lets the next document be as long as any; what was read already counts little.
func (d *documents) next() { d.left = largeBody }

// connections counts those of each user, and refuses too many.
type connections struct {
	net.Listener
	mu   sync.Mutex
	all  int
	most int
	of   map[uint32]int
}

func limitConnections(l net.Listener) *connections {
	most := maxConnections
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err == nil && limit.Cur/2 < uint64(most) {
		most = int(limit.Cur / 2) // the store and the agents need some too
	}
	return &connections{Listener: l, most: most, of: map[uint32]int{}}
}

// Accept implements net.Listener.
func (l *connections) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		cred, err := socket.Peer(conn)
		why := l.take(cred.Uid, err == nil)
		if why == "" {
			return &counted{Conn: conn, l: l, uid: cred.Uid}, nil
		}
		go turnAway(conn, why)
	}
}

// take counts a connection, or says why there cannot be one more.
func (l *connections) take(uid uint32, known bool) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	admin := known && isAdmin(uid)
	switch {
	case l.all >= l.most, l.all >= l.most-l.most/16 && !admin: // some are for administrators
		return fmt.Sprintf("the controller has %d connections already", l.all)
	case !admin && l.of[uid] >= maxOfUser:
		return fmt.Sprintf("user %d has %d connections to the controller already", uid, l.of[uid])
	}
	l.all++
	l.of[uid]++
	return ""
}

func (l *connections) give(uid uint32) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all--
	if l.of[uid]--; l.of[uid] == 0 {
		delete(l.of, uid)
	}
}

// counted is a connection that is counted until it is closed.
type counted struct {
	net.Conn
	l    *connections
	uid  uint32
	once sync.Once
}

// Close implements net.Conn.
func (c *counted) Close() error {
	c.once.Do(func() { c.l.give(c.uid) })
	return c.Conn.Close()
}

// CloseWrite lets net/http end an answer before what comes in was read.
func (c *counted) CloseWrite() error {
	if u, ok := c.Conn.(*net.UnixConn); ok {
		return u.CloseWrite()
	}
	return nil
}

// turnAway answers whatever is asked on a connection with a refusal.
func turnAway(conn net.Conn, why string) {
	defer func() { _ = conn.Close() }()
	b, err := json.Marshal(&api.Error{What: why, Hint: "end some commands that wait or watch, then try again", Kind: "CONTROLLER_BUSY"})
	if err != nil {
		return
	}
	_ = conn.SetDeadline(time.Now().Add(time.Second))
	_, _ = conn.Read(make([]byte, 4096)) // the request, or its beginning
	_, _ = fmt.Fprintf(conn, "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s", len(b), b)
}

// isAdmin says whether a user may do everything: root, and who the controller runs as.
func isAdmin(uid uint32) bool { return socket.IsOurs(uid) }
