package attach

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/gangway-hpc/gangway/internal/api"
	"github.com/gangway-hpc/gangway/launcher/control"
	"github.com/gangway-hpc/gangway/launcher/stdio"
)

// node is the connection to one node.
type node struct {
	session *Session
	name    string
	agent   *api.Client
	ranks   []int

	// Of run's goroutine alone: a node greets though output of another one stands.
	offsets map[stdio.Offset]uint64 // by rank and stream

	// Under the session's lock.
	exited map[int]bool
	ended  bool

	mu         sync.Mutex // of writes
	conn       net.Conn   // nil: there is none now
	connection int        // counts them; changed by run only
	held       []stdio.Frame
}

func newNode(s *Session, name, address string) *node {
	n := &node{session: s, name: name, agent: api.Dial(address), offsets: map[stdio.Offset]uint64{}, exited: map[int]bool{}}
	for _, o := range s.config.Hello.Offsets {
		n.offsets[stdio.Offset{Rank: o.Rank, Stream: o.Stream}] = o.Offset
	}
	return n
}

func (n *node) had(rank int, stream stdio.Type) uint64 {
	return n.offsets[stdio.Offset{Rank: rank, Stream: stream}]
}

func (n *node) advance(rank int, stream stdio.Type, to uint64) {
	key := stdio.Offset{Rank: rank, Stream: stream}
	n.offsets[key] = max(n.offsets[key], to)
}

// The waits between attempts to reach a node: a step that was just made is there within
// milliseconds, an agent that was restarted within a second.
const (
	firstWait = 2 * time.Millisecond
	lastWait  = 500 * time.Millisecond
)

// run keeps the node connected until the step has ended there.
func (n *node) run(ctx context.Context) {
	wait, begun, told := firstWait, time.Now(), false
	for {
		worked, err := n.serve(ctx)
		if err == nil || ctx.Err() != nil {
			return
		}
		if worked && n.session.config.Exec != nil {
			n.session.mu.Lock()
			n.session.fail(fmt.Errorf("run on %s: the connection ended: %w", n.name, err))
			n.session.mu.Unlock()
			return
		}
		if refused, ok := errors.AsType[*api.Error](err); ok && refused.Kind == api.Denied { // and will be
			n.session.mu.Lock()
			n.session.fail(err)
			n.session.mu.Unlock()
			return
		}
		if worked {
			wait, begun, told = firstWait, time.Now(), false
		}
		// A restart of an agent takes a moment and is nobody's business.
		if !told && time.Since(begun) > 5*time.Second && n.session.config.Trouble != nil {
			n.session.mu.Lock()
			n.session.config.Trouble(n.name, err)
			n.session.mu.Unlock()
			told = true
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
		wait = min(2*wait, lastWait)
	}
}

// serve makes a connection and reads it to its end. The error is nil if that was the
// step's; worked says that there was a connection.
func (n *node) serve(ctx context.Context) (worked bool, err error) {
	conn, r, err := n.agent.Upgrade(ctx, "/v1/steps/"+control.DirOf(n.session.config.Step.Key)+"/io", "gangway-stdio")
	var gone *api.Gone
	if errors.As(err, &gone) {
		_, err := n.session.deliver(n, stdio.Frame{Type: stdio.StepEnd, Data: gone.Body})
		return true, err
	}
	if err != nil {
		return false, err
	}
	defer func() { _ = conn.Close() }()
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	if err := n.greet(conn); err != nil {
		return false, err
	}
	if n.session.config.Exec != nil {
		n.session.input.taken(n, 0) // a new program has taken nothing
	}
	if n.session.config.Hello.Primary {
		done := make(chan struct{})
		defer close(done)
		go n.tellReading(done)
	}
	frames := stdio.NewReader(r)
	for {
		f, err := frames.Next()
		if err != nil {
			n.disconnect()
			if c := &n.session.config; errors.Is(err, io.EOF) && c.Exec == nil && !c.Hello.Follow && !c.Hello.Primary {
				n.session.mu.Lock()
				n.ended = true // that was all that there was
				n.session.mu.Unlock()
				return true, nil
			}
			return worked, err
		}
		worked = true
		more, err := n.session.deliver(n, f)
		if err != nil || !more {
			if err == nil {
				n.send(stdio.Frame{Type: stdio.Ack})
			}
			n.disconnect()
			return worked, err
		}
	}
}

// readingPause is how often it is said that output is read, which supervisors wait for.
const readingPause = 200 * time.Millisecond

// tellReading tells the supervisor that this process reads, as long as output of any node is
// handed on: that of this one may have to wait for its turn.
func (n *node) tellReading(done <-chan struct{}) {
	t := time.NewTicker(readingPause)
	defer t.Stop()
	for last := uint64(0); ; { // what went on before this node was there counts too
		select {
		case <-done:
			return
		case <-t.C:
		}
		if now := n.session.moved.Load(); now != last {
			last = now
			n.send(stdio.Frame{Type: stdio.Reading})
		}
	}
}

// greet says what is wanted, and sends what waited for a connection.
func (n *node) greet(conn net.Conn) error {
	hello := n.session.config.Hello
	hello.Offsets = nil
	for key, offset := range n.offsets {
		key.Offset = offset
		hello.Offsets = append(hello.Offsets, key)
	}
	request := control.Request{}
	var err error
	if e := n.session.config.Exec; e != nil {
		request.Exec, err = json.Marshal(e)
	} else {
		request.IO, err = json.Marshal(hello)
	}
	if err != nil {
		return err
	}
	line, err := json.Marshal(request)
	if err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if _, err := conn.Write(append(line, '\n')); err != nil {
		return err
	}
	for _, f := range n.held {
		if err := stdio.Write(conn, f); err != nil {
			return err
		}
	}
	n.held = nil
	n.conn = conn
	n.connection++
	return nil
}

func (n *node) disconnect() {
	n.mu.Lock()
	n.conn = nil
	n.mu.Unlock()
	n.session.input.disconnected(n)
}

// send writes a frame, or keeps it for the next connection: not input, which has a place
// of its own.
func (n *node) send(f stdio.Frame) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.conn != nil && stdio.Write(n.conn, f) == nil {
		return
	}
	if f.Type == stdio.Signal || f.Type == stdio.WinSize {
		n.held = append(n.held, f)
	}
}

// write sends input on one connection; false: it is not there any more.
func (n *node) write(f stdio.Frame, connection int) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.conn != nil && n.connection == connection && stdio.Write(n.conn, f) == nil
}
