package host

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/gangway-hpc/gangway/internal/fault"
)

// Dial connects to who has a role and a name in our cluster, wherever that is now. An
// error says which side refused, why, and what to do.
func (i *Identity) Dial(ctx context.Context, address, protocol string, role Role, name string) (*Conn, error) {
	now := time.Now()
	own := i.current()
	if err := checkTime(i.Self(), own.Leaf, now); err != nil {
		return nil, err
	}
	var who Peer
	c, err := dial(ctx, address, protocol, own, func(shown []*x509.Certificate) (err error) {
		who, err = i.Verify(shown[0], now)
		switch {
		case err != nil:
		case who.Role != role || who.Name != name:
			err = fmt.Errorf("%s %s answers, not %s %s", who.Role, who.Name, role, name)
		case i.alive != nil:
			who, err = i.alive(who)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	c.Peer = who
	return c, nil
}

// dial connects, proves who this is if there is a certificate, and has the other side do
// the same by verify, which gets at least one certificate.
func dial(ctx context.Context, address, protocol string, own *tls.Certificate, verify func([]*x509.Certificate) error) (*Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, handshakeSpan)
	defer cancel()
	dialer := net.Dialer{KeepAliveConfig: keepAlive(), Control: onSocket}
	raw, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	config := &tls.Config{
		MinVersion: tls.VersionTLS13, NextProtos: []string{protocol}, SessionTicketsDisabled: true,
		// Who answers is told by its role, not by a host's name: VerifyConnection looks.
		InsecureSkipVerify: true,
		VerifyConnection: func(s tls.ConnectionState) error {
			if len(s.PeerCertificates) == 0 || s.NegotiatedProtocol != protocol {
				return fmt.Errorf("it does not speak %s", protocol)
			}
			return verify(s.PeerCertificates)
		},
	}
	if own != nil {
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return own, nil }
	}
	c := &Conn{Conn: tls.Client(raw, config)}
	if err := c.introduce(ctx, raw); err != nil {
		_ = c.Close()
		return nil, fmt.Errorf("connect to %s: %w", address, err)
	}
	return c, nil
}

// introduce ends once both sides know each other.
func (c *Conn) introduce(ctx context.Context, raw net.Conn) error {
	deadline, _ := ctx.Deadline()
	if err := raw.SetDeadline(deadline); err != nil {
		return err
	}
	if err := c.HandshakeContext(ctx); err != nil {
		return err
	}
	g, err := c.greeted()
	if err != nil {
		return err
	}
	if g.Refused != "" {
		return &fault.Error{What: errors.New("it refused: " + g.Refused), Cause: g.Cause, Hint: g.Hint}
	}
	return raw.SetDeadline(time.Time{})
}

// HTTP is a client of an HTTP service behind connections that dial makes.
func HTTP(dial func(context.Context) (net.Conn, error)) *http.Client {
	return &http.Client{Transport: Transport(dial)}
}

// Transport is what such a client has.
func Transport(dial func(context.Context) (net.Conn, error)) *http.Transport {
	return &http.Transport{
		DialContext:         func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) },
		MaxIdleConnsPerHost: 16, IdleConnTimeout: time.Minute, DisableCompression: true,
	}
}
