package host

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/gangway-hpc/gangway/internal/fault"
	"github.com/gangway-hpc/gangway/internal/fsx"
)

const (
	memberFile  = "member.json"
	joiningFile = "joining.json"
)

// Member is a host that has joined: its identity, and where the controller is. It is kept
// in a directory, which is all that the host needs from then on.
type Member struct {
	Identity
	ID         string // of the cluster
	Controller string // HOST:PORT

	dir   string
	token string // the id of the one that it joined by
}

// memberJSON is a member on disk, in one file: key and certificate are of each other.
type memberJSON struct {
	ID, Controller  string
	Token           string
	CA, Certificate []byte // DER
	Key             []byte // seed of ed25519
}

// joiningJSON is what is needed to ask once more, if the answer to a token was lost.
type joiningJSON struct {
	Token string // its id
	Key   []byte
}

// OpenMember reads a member; the error is [fs.ErrNotExist] if the host has not joined.
func OpenMember(dir string) (*Member, error) {
	var f memberJSON
	name := filepath.Join(dir, memberFile)
	if err := readSecret(name, &f); err != nil {
		return nil, err
	}
	m, err := f.member(dir)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	return m, nil
}

func (f *memberJSON) member(dir string) (*Member, error) {
	ca, err := x509.ParseCertificate(f.CA)
	if err != nil {
		return nil, err
	}
	leaf, err := x509.ParseCertificate(f.Certificate)
	if err != nil {
		return nil, err
	}
	if len(f.Key) != ed25519.SeedSize {
		return nil, errors.New("its key is damaged")
	}
	key := ed25519.NewKeyFromSeed(f.Key)
	if public, ok := leaf.PublicKey.(ed25519.PublicKey); !ok || !public.Equal(key.Public()) {
		return nil, errors.New("key and certificate are not of each other")
	}
	m := &Member{ID: f.ID, Controller: f.Controller, dir: dir, token: f.Token}
	if len(leaf.URIs) == 1 {
		m.Trust = Trust{leaf.URIs[0].Host, ca}
	}
	// Whether it still counts is said when it is used.
	p, err := m.Verify(leaf, leaf.NotBefore)
	if err != nil {
		return nil, err
	}
	m.hold(p, leaf, key)
	return m, nil
}

// hold makes a certificate the one that is shown.
func (i *Identity) hold(p Peer, leaf *x509.Certificate, key ed25519.PrivateKey) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.self = p
	i.certificate = tls.Certificate{Certificate: [][]byte{leaf.Raw, i.CA.Raw}, PrivateKey: key, Leaf: leaf}
}

// save keeps a member with what it holds.
func (m *Member) save(ctx context.Context, leaf *x509.Certificate, key ed25519.PrivateKey) error {
	return writeSecret(ctx, filepath.Join(m.dir, memberFile), memberJSON{m.ID, m.Controller, m.token, m.CA.Raw, leaf.Raw, key.Seed()})
}

// Move notes that the controller is elsewhere.
func (m *Member) Move(ctx context.Context, controller string) error {
	if controller == m.Controller {
		return nil
	}
	m.Controller = controller
	c := m.current()
	return m.save(ctx, c.Leaf, c.PrivateKey.(ed25519.PrivateKey))
}

// Join makes this host a member, by a token. Done again with the same token, as by a unit
// that always says it, it opens what is there.
func Join(ctx context.Context, dir, token, controller string) (*Member, error) {
	t, err := ParseToken(token)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make directory of the identity: %w", err)
	}
	lock, err := fsx.Acquire(ctx, filepath.Join(dir, lockFile), fsx.Exclusive)
	if err != nil {
		return nil, fmt.Errorf("lock identity: %w", err)
	}
	defer func() { _ = lock.Release() }() // it ends with the process
	switch m, err := OpenMember(dir); {
	case err == nil && m.token == t.ID():
		return m, nil
	case err == nil && (m.Self().Name != t.Name || m.Self().Role != t.Role || m.Cluster != t.Cluster):
		return nil, &fault.Error{
			What: fmt.Errorf("join as %s %s of cluster %s: %s belongs to %s %s of cluster %s", t.Role, t.Name, t.Cluster, dir, m.Self().Role, m.Self().Name, m.Cluster),
			Hint: "take another state directory",
		}
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return nil, err
	}
	key, err := joiningKey(ctx, filepath.Join(dir, joiningFile), t)
	if err != nil {
		return nil, err
	}
	f, err := present(ctx, t, token, controller, key)
	if err != nil {
		return nil, fmt.Errorf("join cluster %s: %w", t.Cluster, err)
	}
	m, err := f.member(dir)
	if err != nil {
		return nil, fmt.Errorf("join cluster %s: %w", t.Cluster, err)
	}
	c := m.current()
	if err := m.save(ctx, c.Leaf, key); err != nil {
		return nil, err
	}
	return m, os.Remove(filepath.Join(dir, joiningFile))
}

// joiningKey is the key that goes with a token. It is on disk before the token is shown.
func joiningKey(ctx context.Context, file string, t *Token) (ed25519.PrivateKey, error) {
	var f joiningJSON
	err := readSecret(file, &f)
	if err == nil && f.Token == t.ID() && len(f.Key) == ed25519.SeedSize {
		return ed25519.NewKeyFromSeed(f.Key), nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make key: %w", err)
	}
	return key, writeSecret(ctx, file, joiningJSON{t.ID(), key.Seed()})
}

// due is when a certificate is to be renewed: when a third of its life is left.
func due(c *x509.Certificate) time.Time {
	begin := c.NotBefore.Add(backdated)
	return begin.Add(c.NotAfter.Sub(begin) * 2 / 3)
}

// longestWait is how long nobody looks at the time when a certificate is due: a clock may be
// set, and a host may sleep.
const longestWait = time.Minute

// Keep renews the certificate whenever it is due, until ctx ends. While the controller is
// away it tries again.
func (m *Member) Keep(ctx context.Context, log *slog.Logger) {
	said := ""
	for {
		c := m.current().Leaf
		wait := time.Until(due(c))
		if wait <= 0 {
			err := m.renew(ctx)
			switch {
			case err == nil:
				said = ""
				log.Info("certificate is renewed", "until", m.Self().Until)
				continue
			case err.Error() != said:
				said = err.Error()
				log.Warn("certificate is not renewed", "until", c.NotAfter, "err", err)
			}
			wait = max(time.Until(c.NotAfter)/20, time.Second)
		}
		wait = min(wait, longestWait)
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
	}
}
