package step

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/launcher/control"
	"github.com/gangway-hpc/gangway/launcher/stdio"
)

// clients are those who read the output.
type clients struct {
	mu      sync.Mutex
	arrived chan struct{} // closed when the first primary one came
	done    chan struct{} // closed when one has acknowledged the end
	size    unix.Winsize  // of the primary one's terminal
	masters []*os.File    // of ranks' terminals
	pokes   []chan struct{}
	ours    int           // primary ones that are connected
	n       int           // others that are connected
	none    chan struct{} // closed when there are none any more; nil: nobody waits for that
}

func (c *clients) once(ch chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	select {
	case <-ch:
	default:
		close(ch)
	}
}

// count adds to the number of clients.
func (c *clients) count(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.n += n
	if c.n == 0 && c.none != nil {
		close(c.none)
		c.none = nil
	}
}

// here adds to the number of primary clients.
func (c *clients) here(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ours += n
}

// patience is how long the primary client may go without being seen to read.
func (c *clients) patience() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ours > 0 {
		return connectedTime
	}
	return lingerTime
}

// left returns a channel that is closed when no other clients are connected.
func (c *clients) left() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	none := make(chan struct{})
	if c.n == 0 {
		close(none)
	} else {
		c.none = none
	}
	return none
}

// watch returns a channel that is poked when more of the input was taken.
func (c *clients) watch() chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	ch := make(chan struct{}, 1)
	ch <- struct{}{}
	c.pokes = append(c.pokes, ch)
	return ch
}

func (c *clients) poke() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, ch := range c.pokes {
		select {
		case ch <- struct{}{}:
		default: // it is poked already
		}
	}
}

func (c *clients) forget(ch chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range c.pokes {
		if c.pokes[i] == ch {
			c.pokes = append(c.pokes[:i], c.pokes[i+1:]...)
			return
		}
	}
}

// accept answers a connection that came by the socket.
func (s *supervisor) accept(ctx context.Context, u *net.UnixConn) {
	if err := checkPeer(u); err != nil {
		s.Log.Warn("connection refused", "err", err)
		_ = u.Close()
		return
	}
	s.serve(ctx, u)
}

// serve answers one connection.
func (s *supervisor) serve(ctx context.Context, u *net.UnixConn) {
	defer u.Close()
	c := control.New(u)
	var send sync.Mutex // answers and events are lines of one connection
	refuse := func(why string) {
		send.Lock()
		defer send.Unlock()
		_ = c.Send(control.Event{Refused: why}) // who is gone does not want to know
	}
	watching := false
	for {
		var r control.Request
		if err := c.Receive(&r); err != nil {
			if !errors.Is(err, io.EOF) && !errors.Is(err, net.ErrClosed) {
				refuse(err.Error())
			}
			return
		}
		switch {
		case r.IO != nil:
			if err := s.serveIO(ctx, c, r.IO); err != nil {
				s.Log.Debug("client is gone", "err", err)
			}
			return
		case r.Exec != nil:
			if err := s.serveExec(ctx, c, r.Exec); err != nil {
				s.Log.Debug("client is gone", "err", err)
			}
			return
		case r.Usage:
			send.Lock()
			err := c.Send(control.Event{Usage: s.usages()})
			send.Unlock()
			if err != nil {
				return
			}
		case r.Watch && !watching:
			watching = true
			s.watchers.Go(func() { s.sendEvents(ctx, c, &send) })
		default:
			if why := s.request(&r); why != "" {
				refuse(why)
			}
		}
	}
}

// request does what a line asks for.
func (s *supervisor) request(r *control.Request) (refused string) {
	switch {
	case r.Start != nil:
		if r.Start.MasterPort < 0 || r.Start.MasterPort > 65535 {
			return "the port is none"
		}
		s.mu.Lock()
		if s.isFirst() {
			s.start = *r.Start
		}
		s.mu.Unlock()
		s.post(startIn{})
	case r.Signal != 0:
		if r.Signal < -64 || r.Signal > 64 {
			return "there is no such signal"
		}
		if s.isNew(r.SignalID) {
			s.post(signalIn{syscall.Signal(max(r.Signal, -r.Signal)), r.Signal < 0})
		}
	case r.Kill != nil:
		s.post(killIn{grace: max(0, time.Duration(r.Kill.GraceMS)*time.Millisecond), why: r.Kill.Why})
	case r.Hold != 0:
		s.post(holdIn{time.Duration(r.Hold) * time.Millisecond})
	case r.Renew != 0:
		s.post(renewIn{time.Duration(r.Renew) * time.Millisecond})
	}
	return ""
}

// isFirst says whether no START came before. The caller has s.mu.
func (s *supervisor) isFirst() bool {
	first := !s.begun
	s.begun = true
	return first
}

// isNew says whether a signal did not come before: who has lost its connection sends it again.
func (s *supervisor) isNew(id uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if id != 0 && id <= s.signalled {
		return false
	}
	s.signalled = max(s.signalled, id)
	return true
}

// sendEvents sends the events of the present state, and then all that come. Of the progress
// of the prepare it sends the last, until something follows it.
func (s *supervisor) sendEvents(ctx context.Context, c *control.Conn, send *sync.Mutex) {
	sent, moves := 0, 0
	for {
		s.mu.Lock()
		events, changed := s.events[sent:], s.changed
		if progress := s.progress; len(s.events) == 0 && s.moves > moves {
			events = []control.Event{{Progress: &progress}}
		} else {
			sent += len(events)
		}
		moves = s.moves
		s.mu.Unlock()
		for _, e := range events {
			send.Lock()
			err := c.Send(e)
			send.Unlock()
			if err != nil || e.Ended != nil { // the reader finds out; it is the last
				return
			}
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// serveIO is a client's connection.
func (s *supervisor) serveIO(ctx context.Context, c *control.Conn, text json.RawMessage) error {
	var hello stdio.Hello
	if err := json.Unmarshal(text, &hello); err != nil {
		return err
	}
	if !hello.Primary { // who acknowledges
		s.clients.count(1)
		defer s.clients.count(-1)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var send sync.Mutex
	if hello.Primary {
		s.clients.here(1)
		defer s.clients.here(-1)
		s.clients.once(s.clients.arrived)
		poked := s.clients.watch()
		defer s.clients.forget(poked)
		go s.tellTaken(ctx, c, &send, poked)
	}
	sent := make(chan error, 1)
	go func() { sent <- s.sendOutput(ctx, c, &send, hello) }()
	err := s.readClient(c, hello.Primary)
	if errors.Is(err, io.EOF) {
		// It may have closed its side only.
		select {
		case err = <-sent:
			return err
		case <-s.clients.done:
			return nil
		}
	}
	return err
}

// sendOutput sends what there is.
func (s *supervisor) sendOutput(ctx context.Context, c *control.Conn, send *sync.Mutex, hello stdio.Hello) error {
	cursor := s.spool.From(hello)
	for {
		b, err := cursor.Next(ctx)
		if errors.Is(err, io.EOF) {
			return c.CloseWrite()
		}
		if err != nil {
			return err
		}
		send.Lock()
		_, err = c.Write(b)
		send.Unlock()
		if err != nil {
			return err
		}
	}
}

// tellTaken tells the client how much of its input was taken.
func (s *supervisor) tellTaken(ctx context.Context, c *control.Conn, send *sync.Mutex, poked <-chan struct{}) {
	for {
		select {
		case <-poked:
		case <-ctx.Done():
			return
		}
		in := s.inputNow()
		if in == nil {
			continue // it is poked again when there is one
		}
		send.Lock()
		err := stdio.Write(c, stdio.Frame{Type: stdio.Taken, Offset: in.offset()})
		send.Unlock()
		if err != nil {
			return
		}
	}
}

func (s *supervisor) inputNow() *input {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.input
}

// readClient does what a client sends.
func (s *supervisor) readClient(c *control.Conn, primary bool) error {
	r := stdio.NewReader(c.Reader())
	for {
		f, err := r.Next()
		if err != nil {
			return err
		}
		if !primary {
			continue
		}
		in := s.inputNow()
		switch f.Type {
		case stdio.Stdin:
			if in == nil {
				return errors.New("input came before it was asked for")
			}
			err = in.add(f.Offset, f.Data)
		case stdio.StdinEOF:
			if in != nil {
				in.end(f.Offset)
			}
		case stdio.Signal:
			if f.Offset > 0 && f.Offset <= 64 {
				s.post(signalIn{sig: syscall.Signal(f.Offset)})
			}
		case stdio.WinSize:
			var rows, columns uint16
			if rows, columns, err = f.Size(); err == nil {
				s.clients.setSize(rows, columns)
			}
		case stdio.Reading:
			s.spool.Reads()
		case stdio.Ack:
			s.clients.once(s.clients.done)
		}
		if err != nil {
			return err
		}
	}
}

// linger keeps the output for clients after the end: for the one that the step is for, until
// that has had it, as long as it reads; for others, as long as they are there.
func (s *supervisor) linger(ctx context.Context) {
	defer s.tellAll()
	end := time.Now().Add(lingerTime) // of both waits together
	if s.wanted() {
		s.awaitClient(ctx, end)
	}
	ctx, cancel := context.WithDeadline(ctx, end)
	defer cancel()
	select {
	case <-s.clients.left():
	case <-ctx.Done():
	}
}

// awaitClient waits until the client that the step is for has acknowledged the end; it may
// take until end, and longer as long as it is seen to read, or is there at least.
func (s *supervisor) awaitClient(ctx context.Context, end time.Time) {
	t := time.NewTicker(lookPause)
	defer t.Stop()
	for {
		select {
		case <-s.clients.done:
			return
		case <-ctx.Done():
			return
		case now := <-t.C:
			read := s.spool.Progress()
			if !now.Before(end) && (read.IsZero() || !now.Before(read.Add(s.clients.patience()))) {
				return
			}
		}
	}
}

// lookPause is how often it is seen to whether a client still reads.
const lookPause = time.Second

// tellTime is how long those who watch may take to be told of the end.
const tellTime = 2 * time.Second

// tellAll waits until all who watch have been told of the end.
func (s *supervisor) tellAll() {
	told := make(chan struct{})
	go func() {
		s.watchers.Wait()
		close(told)
	}()
	select {
	case <-told:
	case <-time.After(tellTime):
	}
}

// wanted says whether somebody is going to want the output: who started the step, unless it
// is a batch script.
func (s *supervisor) wanted() bool { return s.spec.Key.Step != job.BatchStep }

// setSize gives terminals the size of the client's.
func (c *clients) setSize(rows, columns uint16) {
	c.mu.Lock()
	c.size = unix.Winsize{Row: rows, Col: columns}
	c.mu.Unlock()
	c.resize()
}

func (c *clients) addTerminal(master *os.File) {
	c.mu.Lock()
	c.masters = append(c.masters, master)
	c.mu.Unlock()
	c.resize()
}

func (c *clients) resize() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.size == (unix.Winsize{}) {
		return
	}
	for _, master := range c.masters {
		setSize(master, &c.size)
	}
}

// setSize gives a terminal a size, if it is still there.
func setSize(master *os.File, size *unix.Winsize) {
	if raw, err := master.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { _ = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, size) })
	}
}
