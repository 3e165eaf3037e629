package host

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/gangway-hpc/gangway/internal/fault"
)

// What connections are for: the protocol that is agreed on by ALPN.
const (
	JoinProtocol    = "gangway-join/1"    // HTTP: a token for a certificate; the only one without a certificate
	SessionProtocol = "gangway-session/1" // gRPC: a node's session with the controller
	APIProtocol     = "gangway-api/1"     // HTTP: the public API, for users of a host; renewals
	StepProtocol    = "gangway-step/1"    // HTTP: the agent's service, for the controller
	PeerProtocol    = "gangway-peer/1"    // HTTP: what agents ask each other
)

const (
	handshakeSpan = 10 * time.Second
	// mostHandshakes is how many connections may not have said yet who they are, and
	// mostOfAddress how many of them one address may have: nobody keeps all others out.
	mostHandshakes = 256
	mostOfAddress  = 64
	// recheckSpan is how long what was revoked may still have a connection.
	recheckSpan = time.Second
	// mostStrangers is how many connections those may have who join, and so have said nothing
	// about themselves, in all and from one address; mostOfPeer how many one of ours may have.
	mostStrangers          = 64
	mostStrangersOfAddress = 16
	mostOfPeer             = 1024
	// strangerSpan is how long a connection of those lasts.
	strangerSpan = 30 * time.Second
	// longestGreeting bounds what the accepting side says first, in bytes.
	longestGreeting = 8192
	// A peer that acknowledges nothing for so long is gone.
	silentSpan     = 20 * time.Second
	tcpUserTimeout = 18 // tcp(7); package syscall has not got it
)

// Identity is who a daemon is, and whom it trusts.
type Identity struct {
	Trust
	// alive says whether another's certificate counts; nil: that is not known here.
	alive       func(Peer) (Peer, error)
	mu          sync.Mutex
	self        Peer
	certificate tls.Certificate
}

// Self is who this is, by the certificate of now.
func (i *Identity) Self() Peer {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.self
}

func (i *Identity) current() *tls.Certificate {
	i.mu.Lock()
	defer i.mu.Unlock()
	c := i.certificate
	return &c
}

// Conn is a connection whose other end has proved who it is.
type Conn struct {
	*tls.Conn
	Peer     Peer // the zero Peer of one who joins
	from     string
	listener *Listener
	limit    *time.Timer // of one who joins
	once     sync.Once
}

// Close implements net.Conn.
func (c *Conn) Close() error {
	c.once.Do(func() {
		if c.listener != nil {
			c.listener.forget(c)
		}
		if c.limit != nil {
			c.limit.Stop()
		}
	})
	return c.Conn.Close()
}

// greeting is what the accepting side says before anything else: that the connection
// counts, or why not. In TLS 1.3 the other side could not learn that from the handshake.
type greeting struct {
	Time    int64  // of the clock, in milliseconds
	Refused string `json:",omitempty"`
	Cause   string `json:",omitempty"`
	Hint    string `json:",omitempty"`
}

// Rules say who may have which protocol.
type Rules struct {
	Roles map[string][]Role // by protocol; none: whoever asks, without a certificate
	// Alive refuses who was admitted once and is not any more, and completes who counts; nil:
	// everybody is alive.
	Alive func(Peer) (Peer, error)
	// Stays is asked about connections while they last; nil: they do.
	Stays func(Peer) error
	Log   *slog.Logger
	Now   func() time.Time
}

// Listener accepts connections, and hands on those that count, by their protocol.
type Listener struct {
	identity *Identity
	rules    Rules
	tcp      net.Listener
	queues   map[string]*queue
	slots    chan struct{}
	done     chan struct{}
	once     sync.Once

	mu      sync.Mutex
	live    map[*Conn]bool
	of      map[string]int // connections of a holder
	knocks  map[string]int // connections of an address that have not said who they are
	said    time.Time      // when a refusal was last logged
	unnamed int            // and how many were not, since
}

// Listen accepts on an address until Close: TLS 1.3 only, and with a certificate of ours.
func (i *Identity) Listen(ctx context.Context, address string, rules Rules) (*Listener, error) {
	config := net.ListenConfig{KeepAliveConfig: keepAlive(), Control: onSocket}
	tcp, err := config.Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", address, err)
	}
	l := &Listener{
		identity: i, rules: rules, tcp: tcp, queues: map[string]*queue{}, slots: make(chan struct{}, mostHandshakes),
		done: make(chan struct{}), live: map[*Conn]bool{}, of: map[string]int{}, knocks: map[string]int{},
	}
	for protocol := range rules.Roles {
		l.queues[protocol] = &queue{conns: make(chan net.Conn), l: l}
	}
	go l.accept()
	if rules.Stays != nil {
		go l.recheck()
	}
	return l, nil
}

// keepAlive finds hosts that went away without a word.
func keepAlive() net.KeepAliveConfig {
	return net.KeepAliveConfig{Enable: true, Idle: 10 * time.Second, Interval: 5 * time.Second, Count: 3}
}

func onSocket(_, _ string, c syscall.RawConn) (err error) {
	outer := c.Control(func(fd uintptr) {
		err = os.NewSyscallError("setsockopt", syscall.SetsockoptInt(int(fd), syscall.IPPROTO_TCP, tcpUserTimeout, int(silentSpan.Milliseconds())))
	})
	return errors.Join(outer, err)
}

// For is the listener of one protocol. Its connections are of type *Conn.
func (l *Listener) For(protocol string) net.Listener { return l.queues[protocol] }

// Addr is where it listens.
func (l *Listener) Addr() net.Addr { return l.tcp.Addr() }

// Close ends it, and all of its connections.
func (l *Listener) Close() (err error) {
	l.once.Do(func() {
		close(l.done)
		err = l.tcp.Close()
		for _, c := range l.connections() {
			_ = c.Close() // it may be closed already
		}
	})
	return err
}

func (l *Listener) accept() {
	for {
		select {
		case l.slots <- struct{}{}:
		case <-l.done:
			return
		}
		c, err := l.tcp.Accept()
		if err != nil {
			<-l.slots
			if errors.Is(err, net.ErrClosed) {
				return
			}
			l.rules.Log.Warn("connection is not accepted", "err", err) // as without descriptors
			time.Sleep(100 * time.Millisecond)
			continue
		}
		from := addressOf(c)
		if !l.knock(from, 1) {
			_ = c.Close()
			<-l.slots
			l.logRefusal(from, fmt.Errorf("it has %d connections that have not said who they are", mostOfAddress))
			continue
		}
		go l.welcome(c, from)
	}
}

// addressOf is the address that a connection is from, without its port.
func addressOf(c net.Conn) string {
	if a, ok := c.RemoteAddr().(*net.TCPAddr); ok {
		return a.IP.String()
	}
	return c.RemoteAddr().String()
}

// knock counts connections of an address that have not said who they are; false: it has
// too many already.
func (l *Listener) knock(from string, more int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if more > 0 && l.knocks[from] >= mostOfAddress {
		return false
	}
	if l.knocks[from] += more; l.knocks[from] == 0 {
		delete(l.knocks, from)
	}
	return true
}

// welcome finds out who has connected, tells it what becomes of that, and hands it on.
func (l *Listener) welcome(raw net.Conn, from string) {
	release := sync.OnceFunc(func() {
		l.knock(from, -1)
		<-l.slots
	})
	defer release()
	config := &tls.Config{
		MinVersion: tls.VersionTLS13, ClientAuth: tls.RequestClientCert, SessionTicketsDisabled: true,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return l.identity.current(), nil },
	}
	for protocol := range l.rules.Roles {
		config.NextProtos = append(config.NextProtos, protocol)
	}
	c := &Conn{Conn: tls.Server(raw, config), from: from, listener: l}
	fail := func(err error) {
		l.logRefusal(from, err)
		_ = c.Close() // it was not remembered
	}
	if err := raw.SetDeadline(time.Now().Add(handshakeSpan)); err != nil {
		fail(err)
		return
	}
	if err := c.Handshake(); err != nil {
		fail(err)
		return
	}
	protocol := c.ConnectionState().NegotiatedProtocol
	var err error
	if c.Peer, err = l.check(protocol, c.ConnectionState().PeerCertificates); err != nil {
		_ = c.greet(l.rules.Now(), err) // it may be gone
		fail(err)
		return
	}
	if c.Peer == (Peer{}) {
		c.limit = time.AfterFunc(strangerSpan, func() { _ = c.Conn.Close() }) // it may be closed already
	}
	if err = l.remember(c); err != nil {
		_ = c.greet(l.rules.Now(), err) // it may be gone
		fail(err)
		return
	}
	if err = c.greet(l.rules.Now(), nil); err == nil {
		err = raw.SetDeadline(time.Time{})
	}
	if err != nil {
		_ = c.Close()
		return
	}
	release()
	select {
	case l.queues[protocol].conns <- c:
	case <-l.done:
		_ = c.Close()
	}
}

// logRefusal logs one a second: whoever knocks without end does not fill the disk.
func (l *Listener) logRefusal(from string, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if time.Since(l.said) < time.Second {
		l.unnamed++
		return
	}
	l.rules.Log.Warn("connection is refused", "from", from, "err", err, "others", l.unnamed)
	l.said, l.unnamed = time.Now(), 0
}

// check says who has shown certificates, if that one may have a protocol.
func (l *Listener) check(protocol string, shown []*x509.Certificate) (p Peer, err error) {
	roles, ok := l.rules.Roles[protocol]
	if !ok {
		return p, errors.New("no protocol of ours was asked for")
	}
	if len(roles) == 0 {
		return p, nil
	}
	var certificate *x509.Certificate
	if len(shown) > 0 {
		certificate = shown[0]
	}
	if p, err = l.identity.Verify(certificate, l.rules.Now()); err != nil {
		return p, err
	}
	if !slices.Contains(roles, p.Role) {
		return p, fmt.Errorf("%s %s may not use %s: that is for %v", p.Role, p.Name, protocol, roles)
	}
	if l.rules.Alive == nil {
		return p, nil
	}
	return l.rules.Alive(p)
}

// recheck ends connections of those who may not have them any more.
func (l *Listener) recheck() {
	t := time.NewTicker(recheckSpan)
	defer t.Stop()
	for {
		select {
		case <-t.C:
		case <-l.done:
			return
		}
		for _, c := range l.connections() {
			if c.Peer == (Peer{}) {
				continue
			}
			if err := l.rules.Stays(c.Peer); err != nil {
				l.rules.Log.Warn("connection is ended", "peer", c.Peer.String(), "err", err)
				_ = c.Close() // it may be closed already
			}
		}
	}
}

func (l *Listener) connections() (all []*Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for c := range l.live {
		all = append(all, c)
	}
	return all
}

func (l *Listener) forget(c *Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.live[c] {
		return
	}
	delete(l.live, c)
	for _, key := range c.counts() {
		if l.of[key]--; l.of[key] == 0 {
			delete(l.of, key)
		}
	}
}

// counts is as what a connection is counted. One who joins is counted by its address, too.
func (c *Conn) counts() []string {
	if c.Peer == (Peer{}) {
		return []string{"", c.from}
	}
	return []string{c.Peer.key()}
}

// remember takes a connection in, if its peer has not too many.
func (l *Listener) remember(c *Conn) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case <-l.done: // nobody would close it
		return net.ErrClosed
	default:
	}
	keys := c.counts()
	n := l.of[keys[0]]
	switch stranger := c.Peer == (Peer{}); {
	case stranger && n >= mostStrangers:
		return &fault.Error{What: fmt.Errorf("%d hosts are joining already", n), Hint: "try again in a moment"}
	case stranger && l.of[c.from] >= mostStrangersOfAddress:
		return &fault.Error{What: fmt.Errorf("%d hosts are joining from %s already", l.of[c.from], c.from), Hint: "try again in a moment"}
	case !stranger && n >= mostOfPeer:
		return &fault.Error{What: fmt.Errorf("%s %s has %d connections already", c.Peer.Role, c.Peer.Name, n), Hint: "end some commands that wait or watch, then try again"}
	}
	l.live[c] = true
	for _, key := range keys {
		l.of[key]++
	}
	return nil
}

// Watch has a connection that was dialled end as those do that were accepted: when its peer
// is revoked, or with the listener.
func (l *Listener) Watch(c *Conn) error {
	c.listener = l
	if err := l.remember(c); err != nil {
		return errors.Join(err, c.Close())
	}
	return nil
}

// queue is the listener of a protocol.
type queue struct {
	conns chan net.Conn
	l     *Listener
}

// Accept implements net.Listener.
func (q *queue) Accept() (net.Conn, error) {
	select {
	case c := <-q.conns:
		return c, nil
	case <-q.l.done:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener: all protocols end together.
func (q *queue) Close() error { return q.l.Close() }

// Addr implements net.Listener.
func (q *queue) Addr() net.Addr { return q.l.tcp.Addr() }

// greet says what becomes of the connection.
func (c *Conn) greet(now time.Time, refused error) error {
	g := greeting{Time: now.UnixMilli()}
	if refused != nil {
		g.Refused = limited(refused.Error())
		if f, ok := errors.AsType[*fault.Error](refused); ok {
			g.Cause, g.Hint = limited(f.Cause), limited(f.Hint)
		}
	}
	b, err := json.Marshal(g)
	if err != nil {
		return err
	}
	_, err = c.Write(append(b, '\n'))
	return err
}

// limited keeps a greeting short, whatever has to be said, and however JSON has it.
func limited(text string) string { return text[:min(len(text), longestGreeting/20)] }

// greeted reads that.
func (c *Conn) greeted() (g greeting, err error) {
	var line []byte
	for b := [1]byte{}; ; {
		if _, err := c.Read(b[:]); err != nil {
			return g, fmt.Errorf("the other side said nothing: %w", err)
		}
		if b[0] == '\n' {
			break
		}
		if line = append(line, b[0]); len(line) > longestGreeting {
			return g, errors.New("the other side greets without an end")
		}
	}
	if err := json.Unmarshal(line, &g); err != nil {
		return g, fmt.Errorf("read greeting: %w", err)
	}
	return g, nil
}
