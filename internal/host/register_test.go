package host

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// lostRenewal is a renewal of which the host never hears.
func (l *lab) lostRenewal(m *Member) {
	l.t.Helper()
	public, _, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		l.t.Fatal(err)
	}
	if _, err := l.Authority.renew(l.t.Context(), m.Self(), public, time.Hour, time.Now()); err != nil {
		l.t.Fatal(err)
	}
}

// ends fails unless a connection ends soon.
func ends(t *testing.T, c net.Conn) {
	t.Helper()
	if err := c.SetReadDeadline(time.Now().Add(10 * recheckSpan)); errors.Is(err, net.ErrClosed) {
		return
	} else if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Read(make([]byte, 1)); err == nil || os.IsTimeout(err) {
		t.Errorf("the session goes on: %v", err)
	}
}

// goesOn fails if a connection ends soon.
func goesOn(t *testing.T, c net.Conn) {
	t.Helper()
	if err := c.SetReadDeadline(time.Now().Add(2*recheckSpan + recheckSpan/2)); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Read(make([]byte, 1)); !os.IsTimeout(err) {
		t.Errorf("the session ended: %v", err)
	}
}

// TestReplacedSession: a session that began with a certificate which was renewed many times
// since ends when another host takes the name.
func TestReplacedSession(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	m := l.joined(Node, "n1")
	c, err := l.session(m)
	if err != nil {
		t.Fatal(err)
	}
	for range 6 {
		if err := m.renew(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	goesOn(t, c)
	if err := l.join(l.token(Node, "n1", true)); err != nil {
		t.Fatal(err)
	}
	ends(t, c)
	if err := m.renew(t.Context()); err == nil || !strings.Contains(err.Error(), "another host took its name") {
		t.Errorf("it renews: %v", err)
	}
}

// TestLostRenewals: a host that hears no answer keeps what it has, however often; and of
// two hosts with the same files one is out after a renewal.
func TestLostRenewals(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	m := l.joined(Node, "n1")
	copied, err := OpenMember(m.dir)
	if err != nil {
		t.Fatal(err)
	}
	for range 10 {
		l.lostRenewal(m)
	}
	if _, err := l.session(m); err != nil {
		t.Errorf("after ten lost renewals: %v", err)
	}
	if all, err := l.List(time.Now()); err != nil || len(all) != 2 {
		t.Errorf("what counts is %v, %v", all, err)
	}
	for range 2 {
		if err := m.renew(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := l.session(m); err != nil {
		t.Error(err)
	}
	if _, err := l.session(copied); err == nil || !strings.Contains(err.Error(), "not in the register") {
		t.Errorf("the copy of its files has a session: %v", err)
	}
	if err := copied.renew(t.Context()); err == nil {
		t.Error("the copy of its files is renewed")
	}
}

// TestUnreadableRegister: while it cannot be read those stay who were there, and nobody gets
// in; what was revoked meanwhile is out as soon as it can be read again.
func TestUnreadableRegister(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	m := l.joined(Node, "n1")
	c, err := l.session(m)
	if err != nil {
		t.Fatal(err)
	}
	good := filepath.Join(l.dir, registerFile)
	elsewhere, err := Open(l.dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := elsewhere.Revoke(t.Context(), Node, "n1", "", "stolen", time.Now()); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(good, good+".kept"); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(good, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	// It may have been seen before it was replaced: then the session is gone rightly.
	if _, err := l.session(m); err == nil {
		t.Error("somebody gets in")
	}
	if err := os.Rename(good+".kept", good); err != nil {
		t.Fatal(err)
	}
	ends(t, c)

	other := l.joined(Node, "n2")
	if c, err = l.session(other); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(good, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	goesOn(t, c)
	if err := l.knock(SessionProtocol, stolen(other)); err == nil || !strings.Contains(err.Error(), "read "+good) {
		t.Errorf("somebody gets in: %v", err)
	}
}

// TestKnocks: connections from one address of which nobody says who they are keep those of
// other addresses out no longer than until the next is accepted.
func TestKnocks(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	m := l.joined(Node, "n1")
	for range mostHandshakes + mostOfAddress {
		c, err := net.Dial("tcp", l.address())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
	}
	d := tls.Dialer{
		NetDialer: &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}, Timeout: handshakeSpan / 2},
		Config:    &tls.Config{InsecureSkipVerify: true, NextProtos: []string{SessionProtocol}, Certificates: []tls.Certificate{*stolen(m)}},
	}
	c, err := d.DialContext(t.Context(), "tcp", l.address())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	select {
	case <-l.sessions:
	case <-time.After(handshakeSpan / 2):
		t.Error("it has no session")
	}
}
