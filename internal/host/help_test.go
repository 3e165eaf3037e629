package host

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/url"
	"sync/atomic"
	"testing"
	"time"
)

// lab is an authority and its controller, that listens on this machine.
type lab struct {
	*Authority
	t        *testing.T
	self     *Identity
	service  *Service
	listener *Listener
	skew     atomic.Int64  // of the controller's clock
	sessions chan net.Conn // that were admitted
	requests atomic.Int64  // to join
}

func (l *lab) now() time.Time { return time.Now().Add(time.Duration(l.skew.Load())) }

func newLab(t *testing.T) *lab {
	t.Helper()
	a, err := Create(t.Context(), t.TempDir(), "lab", "id", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	l := &lab{Authority: a, t: t, sessions: make(chan net.Conn, 100)}
	l.service = &Service{Authority: a, Life: time.Hour, Now: l.now}
	if l.self, err = a.Controller(24*time.Hour, time.Now()); err != nil {
		t.Fatal(err)
	}
	l.listen(l.self)
	return l
}

// listen has an identity answer as a controller does.
func (l *lab) listen(as *Identity) {
	l.t.Helper()
	var err error
	l.listener, err = as.Listen(l.t.Context(), "127.0.0.1:0", Rules{
		Roles: map[string][]Role{JoinProtocol: nil, SessionProtocol: {Node}, APIProtocol: {Node, Client}},
		Alive: l.Alive, Stays: func(p Peer) error { return l.Stays(p, l.now()) }, Log: slog.New(slog.DiscardHandler), Now: l.now,
	})
	if err != nil {
		l.t.Fatal(err)
	}
	join := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		l.requests.Add(1)
		l.service.Join(w, r)
	})}
	renew := &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			l.service.Renew(w, r, r.Context().Value(peerKey{}).(Peer))
		}),
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return context.WithValue(ctx, peerKey{}, c.(*Conn).Peer)
		},
	}
	listener := l.listener
	go func() { _ = join.Serve(listener.For(JoinProtocol)) }()
	go func() { _ = renew.Serve(listener.For(APIProtocol)) }()
	go func() {
		for {
			c, err := listener.For(SessionProtocol).Accept()
			if err != nil {
				return
			}
			l.sessions <- c
		}
	}()
	l.t.Cleanup(func() { _ = listener.Close() })
}

type peerKey struct{}

func (l *lab) address() string { return l.listener.Addr().String() }

func (l *lab) token(role Role, name string, replace bool) string {
	l.t.Helper()
	text, err := l.NewToken(l.t.Context(), role, name, time.Hour, replace, time.Now())
	if err != nil {
		l.t.Fatal(err)
	}
	return text
}

// joined is a host that has joined.
func (l *lab) joined(role Role, name string) *Member {
	l.t.Helper()
	m, err := Join(l.t.Context(), l.t.TempDir(), l.token(role, name, false), l.address())
	if err != nil {
		l.t.Fatal(err)
	}
	return m
}

// session is one of a member, from its side.
func (l *lab) session(m *Member) (*Conn, error) {
	return m.Dial(l.t.Context(), l.address(), SessionProtocol, Controller, ControllerName)
}

// certificate is one that the authority signs as it is told to, and has in its register.
func (l *lab) certificate(change func(*x509.Certificate), uris ...string) tls.Certificate {
	l.t.Helper()
	return l.signed(l.CA, l.key, change, uris...)
}

// signed is a certificate of any authority.
func (l *lab) signed(ca *x509.Certificate, by ed25519.PrivateKey, change func(*x509.Certificate), uris ...string) tls.Certificate {
	l.t.Helper()
	public, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		l.t.Fatal(err)
	}
	c := &x509.Certificate{
		SerialNumber: new(big.Int).Set(newSerial()), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, BasicConstraintsValid: true,
	}
	for _, text := range uris {
		u, err := url.Parse(text)
		if err != nil {
			l.t.Fatal(err)
		}
		c.URIs = append(c.URIs, u)
	}
	if change != nil {
		change(c)
	}
	if ca == nil {
		ca, by = c, key
	}
	der, err := x509.CreateCertificate(rand.Reader, c, ca, public, by)
	if err != nil {
		l.t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		l.t.Fatal(err)
	}
	err = l.register.update(l.t.Context(), time.Now(), func(d *registerJSON) error {
		for _, name := range []string{"node/n1", "client/n1", "controller/controller"} {
			d.Issued[name] = append(d.Issued[name], issued{Serial: serialOf(leaf), Until: leaf.NotAfter})
		}
		return nil
	})
	if err != nil {
		l.t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}
}

// knock asks for a protocol with a certificate, trusting whoever answers.
func (l *lab) knock(protocol string, own *tls.Certificate) error {
	c, err := dial(l.t.Context(), l.address(), protocol, own, func([]*x509.Certificate) error { return nil })
	if err == nil {
		_ = c.Close()
	}
	return err
}

// stolen is the certificate and the key of a member.
func stolen(m *Member) *tls.Certificate { return m.current() }

// none fails if a session was admitted.
func (l *lab) none(t *testing.T) {
	t.Helper()
	select {
	case c := <-l.sessions:
		t.Errorf("a session was admitted: %s", c.(*Conn).Peer)
	case <-time.After(50 * time.Millisecond):
	}
}
