package host

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// post sends a request to join.
func post(c *http.Client, q request) error {
	b, err := json.Marshal(q)
	if err != nil {
		return err
	}
	resp, err := c.Post("http://controller"+JoinPath, "application/json", bytes.NewReader(b))
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusOK {
		return nil
	}
	b, err = io.ReadAll(resp.Body)
	return errors.Join(fmt.Errorf("%d: %s", resp.StatusCode, b), err)
}

// TestMember: a host joins, has sessions, starts again, and finds the controller elsewhere.
func TestMember(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	dir, text := t.TempDir(), l.token(Node, "n1", false)
	m, err := Join(t.Context(), dir, text, l.address())
	if err != nil {
		t.Fatal(err)
	}
	c, err := l.session(m)
	if err != nil {
		t.Fatal(err)
	}
	there := (<-l.sessions).(*Conn)
	if p := there.Peer; p.Role != Node || p.Name != "n1" || p.Cluster != "lab" {
		t.Errorf("the controller sees %s", p)
	}
	if _, err := io.WriteString(c, "hello"); err != nil {
		t.Fatal(err)
	}
	if err := c.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(there); err != nil || string(b) != "hello" {
		t.Errorf("the controller reads %q, %v", b, err)
	}
	// The token that is always said, as in a unit, is of no interest any more.
	if again, err := Join(t.Context(), dir, text, l.address()); err != nil || again.Self().Serial != m.Self().Serial {
		t.Errorf("joined again: %v", err)
	}
	if _, err := Join(t.Context(), dir, l.token(Node, "n2", false), l.address()); err == nil || !strings.Contains(err.Error(), "belongs to node n1") {
		t.Errorf("the directory became another's: %v", err)
	}
	l.listen(l.self)
	if err := m.Move(t.Context(), l.address()); err != nil {
		t.Fatal(err)
	}
	if m, err = OpenMember(dir); err != nil || m.Controller != l.address() {
		t.Fatalf("the controller is at %q, %v", m.Controller, err)
	}
	if _, err = l.session(m); err != nil {
		t.Error(err)
	}
}

// TestLostAnswer: a host that did not hear the answer asks once more, and nobody else may.
func TestLostAnswer(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	dir, text := t.TempDir(), l.token(Node, "n1", false)
	if _, err := Join(t.Context(), dir, text, l.address()); err != nil {
		t.Fatal(err)
	}
	// As it was before the answer came: the key is on disk, the certificate is not.
	m, err := OpenMember(dir)
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := ParseToken(text)
	if err != nil {
		t.Fatal(err)
	}
	var f memberJSON
	if err := readSecret(filepath.Join(dir, memberFile), &f); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(dir, memberFile)); err != nil {
		t.Fatal(err)
	}
	if err := writeSecret(t.Context(), filepath.Join(dir, joiningFile), joiningJSON{parsed.ID(), f.Key}); err != nil {
		t.Fatal(err)
	}
	again, err := Join(t.Context(), dir, text, l.address())
	if err != nil {
		t.Fatal(err)
	}
	if again.Self().Serial == m.Self().Serial {
		t.Error("the certificate is the same one")
	}
	if _, err := l.session(again); err != nil {
		t.Error(err)
	}
}

// TestRenewal: certificates are renewed at two thirds of their life, on disk as well.
// Connections outlive those that they began with, until nothing is renewed any more.
func TestRenewal(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.service.Life = 3 * time.Second
	m := l.joined(Node, "n1")
	first := m.Self()
	c, err := l.session(m)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		m.Keep(ctx, slog.New(slog.DiscardHandler))
	}()
	for m.Self().Serial == first.Serial {
		if time.Now().After(first.Until) {
			t.Fatal("it was not renewed in time")
		}
		time.Sleep(10 * time.Millisecond)
	}
	if left := time.Until(first.Until); left > 1500*time.Millisecond {
		t.Errorf("it was renewed %s before its end", left)
	}
	if kept, err := OpenMember(m.dir); err != nil || kept.Self().Serial == first.Serial {
		t.Errorf("on disk is the older one: %v", err)
	}
	if err := c.SetReadDeadline(first.Until.Add(2 * recheckSpan)); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Read(make([]byte, 1)); !os.IsTimeout(err) {
		t.Errorf("the session that began with the older one ended: %v", err)
	}
	if _, err := l.session(m); err != nil {
		t.Errorf("with a newer one: %v", err)
	}
	cancel()
	<-done
	last := m.Self().Until
	if err := c.SetReadDeadline(last.Add(10 * recheckSpan)); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Read(make([]byte, 1)); err == nil || os.IsTimeout(err) || time.Now().Before(last) {
		t.Errorf("the session goes on without a certificate, or ended too early: %v", err)
	}
}

// TestRevokedSession: who is revoked loses the connections that it has, by whichever
// process it is revoked.
func TestRevokedSession(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	bad, good := l.joined(Node, "n1"), l.joined(Node, "n2")
	one, err := l.session(bad)
	if err != nil {
		t.Fatal(err)
	}
	other, err := l.session(good)
	if err != nil {
		t.Fatal(err)
	}
	there, err := bad.Listen(t.Context(), "127.0.0.1:0", Rules{Roles: map[string][]Role{StepProtocol: {Controller}}, Log: slog.New(slog.DiscardHandler), Now: time.Now})
	if err != nil {
		t.Fatal(err)
	}
	defer there.Close()
	dialled, err := l.self.Dial(t.Context(), there.Addr().String(), StepProtocol, Node, "n1")
	if err == nil {
		err = l.listener.Watch(dialled)
	}
	if err != nil {
		t.Fatal(err)
	}
	elsewhere, err := Open(l.dir) // as gangwayd revoke does
	if err != nil {
		t.Fatal(err)
	}
	if n, tokens, err := elsewhere.Revoke(t.Context(), Node, "n1", "", "stolen", time.Now()); n != 1 || tokens != 1 || err != nil {
		t.Fatalf("revoked %d and %d, %v", n, tokens, err)
	}
	ends(t, one)
	ends(t, dialled) // it stays open at the other end
	goesOn(t, other)
	if all, err := l.List(time.Now()); err != nil || len(all) != 1 || all[0].Name != "n2" {
		t.Errorf("what counts is %v, %v", all, err)
	}
}

// TestRegister: what was used and revoked is known to whoever opens the authority later,
// and forgotten when it does not matter any more.
func TestRegister(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	text := l.token(Node, "n1", false)
	if err := l.join(text); err != nil {
		t.Fatal(err)
	}
	later, err := Open(l.dir)
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := ParseToken(text)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := later.admit(t.Context(), parsed, make([]byte, 32), time.Hour, time.Now()); err == nil {
		t.Error("the token was admitted again")
	}
	if _, _, err := later.Revoke(t.Context(), Node, "n1", "", "", time.Now()); err != nil {
		t.Fatal(err)
	}
	year := time.Now().Add(365 * 24 * time.Hour)
	if err := later.register.update(t.Context(), year, func(*registerJSON) error { return nil }); err != nil {
		t.Fatal(err)
	}
	if d, err := later.register.load(); err != nil || len(d.Issued)+len(d.Tokens)+len(d.Revoked) > 0 {
		t.Errorf("after a year there is still %v", d)
	}
}

// TestSecrets: what others could have read is not used, and an authority is not made twice.
func TestSecrets(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	entries, err := os.ReadDir(l.dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if st, err := e.Info(); err != nil || st.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s: %v, %v", e.Name(), st.Mode(), err)
		}
	}
	if _, err := Create(t.Context(), l.dir, "lab", "id", time.Now()); !errors.Is(err, os.ErrExist) {
		t.Errorf("made twice: %v", err)
	}
	if os.Geteuid() == 0 {
		if err := os.Chown(filepath.Join(l.dir, authorityFile), 4711, 4711); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(l.dir); err == nil || !strings.Contains(err.Error(), "belongs to user 4711") {
			t.Errorf("root has opened another's: %v", err)
		}
		if err := os.Chown(filepath.Join(l.dir, authorityFile), 0, 0); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(filepath.Join(l.dir, authorityFile), 0o640); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(l.dir); err == nil || !strings.Contains(err.Error(), "others may read it") {
		t.Errorf("opened: %v", err)
	}
}

// FuzzParseToken: whatever is read is written back just so, and nothing else is read.
func FuzzParseToken(f *testing.F) {
	a, err := Create(context.Background(), f.TempDir(), "lab", "id", time.Now())
	if err != nil {
		f.Fatal(err)
	}
	for _, role := range []Role{Node, Client} {
		text, err := a.NewToken(context.Background(), role, "n1", time.Hour, role == Node, time.Now())
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
		f.Add(text[:len(text)-1])
		f.Add(text + "\n")
	}
	f.Add("gangway1-")
	f.Fuzz(func(t *testing.T, text string) {
		parsed, err := ParseToken(text)
		if err != nil {
			return
		}
		if CheckName(parsed.Name) != nil || CheckName(parsed.Cluster) != nil || parsed.Role != Node && parsed.Role != Client {
			t.Errorf("%q is read as %+v", text, parsed)
		}
		if again, err := ParseToken(strings.TrimSpace(text)); err != nil || !bytes.Equal(again.signed, parsed.signed) {
			t.Errorf("%q is read in two ways", text)
		}
		if a.check(parsed, time.Now()) == nil && !strings.HasPrefix(strings.TrimSpace(text), tokenPrefix) {
			t.Errorf("%q counts", text)
		}
	})
}
