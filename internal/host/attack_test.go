package host

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/gangway-hpc/gangway/internal/fault"
)

// attack is something that has to be refused, with what the attacker is told.
type attack struct {
	name string
	try  func(l *lab) error
	want string // a pattern of the error with its cause and hint
}

// join tries a token in a directory of its own.
func (l *lab) join(token string) error {
	_, err := Join(l.t.Context(), l.t.TempDir(), token, l.address())
	return err
}

// altered is a token whose content was changed, with the signature that it had.
func altered(t *testing.T, token string, change func([]byte) []byte) string {
	t.Helper()
	b, err := base64.RawURLEncoding.DecodeString(strings.TrimPrefix(token, tokenPrefix))
	if err != nil {
		t.Fatal(err)
	}
	return tokenPrefix + base64.RawURLEncoding.EncodeToString(change(b))
}

func tokenAttacks() []attack {
	replaced := func(from, to string) func([]byte) []byte {
		return func(b []byte) []byte { return bytes.Replace(b, []byte(from), []byte(to), 1) }
	}
	return []attack{
		{"an expired token", func(l *lab) error {
			text := l.token(Node, "n1", false)
			l.skew.Store(int64(61 * time.Minute))
			return l.join(text)
		}, `expired at .*controller's clock.*gangwayd token --node n1`},
		{"a token that another key has used", func(l *lab) error {
			text := l.token(Node, "n1", false)
			if err := l.join(text); err != nil {
				return fmt.Errorf("the first time: %w", err)
			}
			return l.join(text)
		}, `was used already.*gangwayd token --node n1`},
		{"a token of another authority of the same name", func(l *lab) error {
			return l.join(newLab(l.t).token(Node, "n1", false))
		}, `not of the authority that the token names`},
		{"the same, shown without looking who answers", func(l *lab) error {
			t, err := ParseToken(newLab(l.t).token(Node, "n1", false))
			if err != nil {
				return err
			}
			_, err = l.admit(l.t.Context(), t, make([]byte, ed25519.PublicKeySize), time.Hour, time.Now())
			return err
		}, `of another cluster`},
		{"a token that names another node", func(l *lab) error {
			return l.join(altered(l.t, l.token(Node, "n1", false), replaced("\x02n1", "\x02n2")))
		}, `altered.*gangwayd token --node n2`},
		{"a token of another role", func(l *lab) error {
			return l.join(altered(l.t, l.token(Client, "n1", false), replaced("\x06client", "\x04node")))
		}, `altered`},
		{"a token that lives longer", func(l *lab) error {
			return l.join(altered(l.t, l.token(Node, "n1", false), func(b []byte) []byte { b[32+16+6]++; return b }))
		}, `altered`},
		{"a token that may replace", func(l *lab) error {
			return l.join(altered(l.t, l.token(Node, "n1", false), func(b []byte) []byte { b[32+16+8] = 1; return b }))
		}, `altered`},
		{"a token for the role of the controller", func(l *lab) error {
			_, err := l.NewToken(l.t.Context(), Controller, "controller", time.Hour, false, time.Now())
			return err
		}, `cannot join`},
		{"a node's name twice", func(l *lab) error {
			l.joined(Node, "n1")
			return l.join(l.token(Node, "n1", false))
		}, `node n1 is there already.*--replace`},
		{"the token of a node that was revoked", func(l *lab) error {
			dir, text := l.t.TempDir(), l.token(Node, "n1", false)
			if _, err := Join(l.t.Context(), dir, text, l.address()); err != nil {
				return fmt.Errorf("the first time: %w", err)
			}
			kept, err := os.ReadFile(filepath.Join(dir, memberFile))
			if err != nil {
				return err
			}
			if _, _, err := l.Revoke(l.t.Context(), Node, "n1", "", "stolen", time.Now()); err != nil {
				return fmt.Errorf("revoke: %w", err)
			}
			// With the key that it was used with, as if the answer had been lost.
			t, err := ParseToken(text)
			if err != nil {
				return err
			}
			m, err := OpenMember(dir)
			if err != nil {
				return fmt.Errorf("%w: %s", err, kept)
			}
			_, err = l.admit(l.t.Context(), t, stolen(m).Leaf.PublicKey.(ed25519.PublicKey), time.Hour, time.Now())
			return err
		}, `was revoked.*gangwayd token --node n1`},
		{"a token that was revoked before anybody used it", func(l *lab) error {
			text := l.token(Node, "n1", false)
			if n, tokens, err := l.Revoke(l.t.Context(), Node, "n1", "", "lost", time.Now()); n != 0 || tokens != 1 || err != nil {
				return fmt.Errorf("revoke %d and %d: %w", n, tokens, err)
			}
			return l.join(text)
		}, `node n1 was revoked.*gangwayd token --node n1`},
		{"a token that the register does not know", func(l *lab) error {
			text := l.token(Node, "n1", false)
			if err := os.Remove(filepath.Join(l.dir, registerFile)); err != nil {
				return err
			}
			return l.join(text)
		}, `node n1 is not in the register.*gangwayd token --node n1`},
		{"a node that poses as the controller", func(l *lab) error {
			text := l.token(Node, "n2", false)
			l.listen(&l.joined(Node, "n1").Identity)
			before := l.requests.Load()
			err := l.join(text)
			if l.requests.Load() != before {
				l.t.Error("it got to see the token")
			}
			return err
		}, `node n1 answers, not the controller`},
		{"a request of a megabyte", func(l *lab) error { return l.join(l.token(Node, "n1", false) + strings.Repeat("A", 1<<20)) }, `the most is 512`},
		{"a request whose key is not there", func(l *lab) error {
			c := HTTP(func(ctx context.Context) (net.Conn, error) {
				return dial(ctx, l.address(), JoinProtocol, nil, func([]*x509.Certificate) error { return nil })
			})
			defer c.CloseIdleConnections()
			csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, l.key)
			if err != nil {
				return err
			}
			csr[len(csr)-1]++
			return post(c, request{l.token(Node, "n1", false), csr})
		}, `read the request`},
	}
}

func certificateAttacks() []attack {
	// with knocks for a session with a certificate of the authority.
	with := func(change func(*x509.Certificate), uris ...string) func(*lab) error {
		return func(l *lab) error {
			c := l.certificate(change, uris...)
			return l.knock(SessionProtocol, &c)
		}
	}
	return []attack{
		{"no certificate", func(l *lab) error { return l.knock(SessionProtocol, nil) }, `no certificate was shown.*--join TOKEN`},
		{"a certificate of another authority of the same name", func(l *lab) error {
			return l.knock(SessionProtocol, stolen(newLab(l.t).joined(Node, "n1")))
		}, `none of cluster lab.*gangwayd token`},
		{"a certificate that signs itself", func(l *lab) error {
			c := l.signed(nil, nil, nil, "gangway://lab/node/n1")
			return l.knock(SessionProtocol, &c)
		}, `none of cluster lab`},
		{"a certificate that a node has signed", func(l *lab) error {
			by := stolen(l.joined(Node, "n1"))
			c := l.signed(by.Leaf, by.PrivateKey.(ed25519.PrivateKey), nil, "gangway://lab/node/n1")
			c.Certificate = append(c.Certificate, by.Leaf.Raw)
			return l.knock(SessionProtocol, &c)
		}, `none of cluster lab`},
		{"a certificate without a role", with(nil), `has no role`},
		{"a certificate of two", with(nil, "gangway://lab/node/n1", "gangway://lab/client/n1"), `has no role`},
		{"a certificate with a host's name", with(func(c *x509.Certificate) { c.DNSNames = []string{"n1"} }, "gangway://lab/node/n1"), `has no role`},
		{"a certificate that may sign others", with(func(c *x509.Certificate) { c.IsCA, c.KeyUsage = true, x509.KeyUsageCertSign }, "gangway://lab/node/n1"), `has no role|none of cluster`},
		{"a role that begins like one", with(nil, "gangway://lab/nodes/n1"), `has no role`},
		{"a name that goes on", with(nil, "gangway://lab/node/n1/x"), `has no role`},
		{"a name that is written in another way", with(nil, "gangway://lab/node/n%31"), `has no role`},
		{"a URI of another scheme", with(nil, "https://lab/node/n1"), `has no role`},
		{"a URI with a query", with(nil, "gangway://lab/node/n1?x"), `has no role`},
		{"a cluster whose name goes on", with(nil, "gangway://lab2/node/n1"), `of cluster lab2, not of lab`},
		{"a client's certificate for a session", func(l *lab) error { return l.knock(SessionProtocol, stolen(l.joined(Client, "login"))) }, `client login may not use`},
		{"the controller's for a session", func(l *lab) error { return l.knock(SessionProtocol, l.self.current()) }, `controller controller may not use`},
		{"a certificate that has ended", func(l *lab) error {
			m := l.joined(Node, "n1")
			l.skew.Store(int64(61 * time.Minute))
			return l.knock(SessionProtocol, stolen(m))
		}, `ended at .*clock says.*join again`},
		{"a certificate that has not begun", func(l *lab) error {
			m := l.joined(Node, "n1")
			l.skew.Store(-int64(backdated + time.Minute))
			return l.knock(SessionProtocol, stolen(m))
		}, `begins at .*clock says.*clocks of two hosts differ.*chronyc`},
		{"a certificate that was revoked", func(l *lab) error {
			m := l.joined(Node, "n1")
			if _, _, err := l.Revoke(l.t.Context(), Node, "n1", "", "stolen", time.Now()); err != nil {
				return err
			}
			return l.knock(SessionProtocol, stolen(m))
		}, `revoked at .*: stolen.*gangwayd token --node n1`},
		{"one that was revoked by its serial", func(l *lab) error {
			m := l.joined(Node, "n1")
			if _, _, err := l.Revoke(l.t.Context(), "", "", m.Self().Serial, "", time.Now()); err != nil {
				return err
			}
			return l.knock(SessionProtocol, stolen(m))
		}, `revoked at .*no reason given`},
		{"one that another host has replaced", func(l *lab) error {
			m := l.joined(Node, "n1")
			if err := l.join(l.token(Node, "n1", true)); err != nil {
				return fmt.Errorf("replace: %w", err)
			}
			return l.knock(SessionProtocol, stolen(m))
		}, `another host took its name`},
		{"one that the register does not know", func(l *lab) error {
			public, key, err := ed25519.GenerateKey(rand.Reader)
			if err != nil {
				return err
			}
			leaf, err := l.issue(Peer{Cluster: "lab", Role: Node, Name: "n1"}, public, time.Hour, time.Now())
			if err != nil {
				return err
			}
			return l.knock(SessionProtocol, &tls.Certificate{Certificate: [][]byte{leaf.Raw}, PrivateKey: key, Leaf: leaf})
		}, `not in the register`},
		{"another's certificate, without the key", func(l *lab) error {
			_, key, err := ed25519.GenerateKey(rand.Reader)
			if err != nil {
				return err
			}
			c := *stolen(l.joined(Node, "n1"))
			c.PrivateKey = key
			return l.knock(SessionProtocol, &c)
		}, `tls: |reset|EOF`},
		{"renewal of what was revoked", func(l *lab) error {
			m := l.joined(Node, "n1")
			if _, _, err := l.Revoke(l.t.Context(), Node, "n1", "", "stolen", time.Now()); err != nil {
				return err
			}
			return m.renew(l.t.Context())
		}, `revoked at`},
		{"renewal of what has ended", func(l *lab) error {
			m := l.joined(Node, "n1")
			l.skew.Store(int64(61 * time.Minute))
			return m.renew(l.t.Context())
		}, `ended at`},
		{"a prefix of a name to be revoked", func(l *lab) error {
			l.joined(Node, "n10")
			_, _, err := l.Revoke(l.t.Context(), Node, "n1", "", "", time.Now())
			return err
		}, `revoke node n1: it has no certificate`},
		{"a node that answers the controller after it was revoked", func(l *lab) error {
			m := l.joined(Node, "n1")
			there, err := m.Listen(l.t.Context(), "127.0.0.1:0", Rules{Roles: map[string][]Role{StepProtocol: {Controller}}, Log: slog.New(slog.DiscardHandler), Now: time.Now})
			if err != nil {
				return err
			}
			defer there.Close()
			c, err := l.self.Dial(l.t.Context(), there.Addr().String(), StepProtocol, Node, "n1")
			if err != nil {
				return fmt.Errorf("before: %w", err)
			}
			if c.Peer.Name != "n1" {
				l.t.Errorf("it has reached %s", c.Peer)
			}
			_ = c.Close()
			if _, _, err := l.Revoke(l.t.Context(), Node, "n1", "", "stolen", time.Now()); err != nil {
				return fmt.Errorf("revoke: %v", err)
			}
			_, err = l.self.Dial(l.t.Context(), there.Addr().String(), StepProtocol, Node, "n1")
			return err
		}, `connect to 127.*node n1 was revoked at .*: stolen`},
		{"a node that answers in another's place", func(l *lab) error {
			m := l.joined(Node, "n1")
			l.listen(&l.joined(Node, "n10").Identity)
			_, err := m.Dial(l.t.Context(), l.address(), SessionProtocol, Node, "n1")
			return err
		}, `node n10 answers, not node n1`},
	}
}

func connectionAttacks() []attack {
	// raw makes a TLS connection that says hello in its own way.
	raw := func(c *tls.Config) func(*lab) error {
		return func(l *lab) error {
			c.InsecureSkipVerify = true
			c.Certificates = []tls.Certificate{*stolen(l.joined(Node, "n1"))}
			conn, err := tls.Dial("tcp", l.address(), c)
			if err != nil {
				return err
			}
			defer conn.Close()
			b, err := io.ReadAll(conn)
			return fmt.Errorf("%s: %w", b, err)
		}
	}
	return []attack{
		{"TLS 1.2", raw(&tls.Config{MaxVersion: tls.VersionTLS12, NextProtos: []string{SessionProtocol}}), `protocol version`},
		{"no protocol", raw(&tls.Config{}), `no protocol of ours`},
		{"another protocol", raw(&tls.Config{NextProtos: []string{"h2"}}), `no application protocol`},
		{"the agents' protocol at the controller", func(l *lab) error { return l.knock(StepProtocol, stolen(l.joined(Node, "n1"))) }, `no application protocol`},
		{"more strangers than there is room for", func(l *lab) error {
			for range mostStrangers + 1 {
				c, err := dial(l.t.Context(), l.address(), JoinProtocol, nil, func([]*x509.Certificate) error { return nil })
				if err != nil {
					return err
				}
				defer c.Close()
			}
			return nil
		}, `16 hosts are joining from 127.0.0.1 already.*try again`},
		{"plain HTTP", func(l *lab) error { return plain(l, "GET /v1 HTTP/1.1\r\nHost: x\r\n\r\n") }, `^answered ".{0,10}"$`},
		{"gRPC without TLS", func(l *lab) error { return plain(l, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n") }, `^answered ".{0,10}"$`},
		{"what a node has sent, once more", func(l *lab) error {
			sent, err := recorded(l, l.joined(Node, "n1"))
			if err != nil {
				return err
			}
			return plain(l, string(sent))
		}, `^answered `},
	}
}

// plain sends bytes, and returns what came back as an error.
func plain(l *lab, bytes string) error {
	c, err := net.Dial("tcp", l.address())
	if err != nil {
		return err
	}
	defer c.Close()
	_, _ = io.WriteString(c, bytes) // it may end the connection before it has read all
	b, _ := io.ReadAll(c)           // a reset is an end, too
	return fmt.Errorf("answered %.10q", b)
}

// recorded is all that a node sends on a session that is admitted.
func recorded(l *lab, m *Member) ([]byte, error) {
	between, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	defer between.Close()
	var sent bytes.Buffer
	done := make(chan error, 1)
	go func() {
		done <- func() error {
			in, err := between.Accept()
			if err != nil {
				return err
			}
			defer in.Close()
			out, err := net.Dial("tcp", l.address())
			if err != nil {
				return err
			}
			defer out.Close()
			go func() { _, _ = io.Copy(in, out) }()
			_, err = io.Copy(out, io.TeeReader(in, &sent))
			return err
		}()
	}()
	c, err := m.Dial(l.t.Context(), between.Addr().String(), SessionProtocol, Controller, ControllerName)
	if err != nil {
		return nil, err
	}
	if _, err := io.WriteString(c, "start job 7"); err != nil {
		return nil, err
	}
	_ = (<-l.sessions).Close()
	_ = c.Close()
	<-done // by a reset, or without: the session was there
	return sent.Bytes(), nil
}

// TestAttacks: what is not ours is refused, is told why, and gets no session.
func TestAttacks(t *testing.T) {
	t.Parallel()
	for _, a := range append(append(tokenAttacks(), certificateAttacks()...), connectionAttacks()...) {
		t.Run(a.name, func(t *testing.T) {
			t.Parallel()
			l := newLab(t)
			err := a.try(l)
			if err == nil {
				t.Fatal("it was not refused")
			}
			if text := strings.ReplaceAll(fault.Text("x", err, false), "\n", " "); !regexp.MustCompile(a.want).MatchString(text) && !regexp.MustCompile(a.want).MatchString(err.Error()) {
				t.Errorf("it is told %q, want %s", text, a.want)
			}
			l.none(t)
		})
	}
}

// TestAlteredTokens: no byte of a token can be another.
func TestAlteredTokens(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	text := l.token(Node, "n1", false)
	size := base64.RawURLEncoding.DecodedLen(len(text) - len(tokenPrefix))
	for i := range size {
		other := altered(t, text, func(b []byte) []byte { b[i] ^= 1; return b })
		parsed, err := ParseToken(other)
		if err == nil {
			_, err = l.admit(t.Context(), parsed, make([]byte, ed25519.PublicKeySize), time.Hour, time.Now())
		}
		if err == nil {
			t.Errorf("byte %d was altered, and the token admitted", i)
		}
	}
	if err := l.join(text); err != nil {
		t.Errorf("the token itself: %v", err)
	}
}
