package host

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net/url"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/gangway-hpc/gangway/internal/fault"
	"github.com/gangway-hpc/gangway/internal/fsx"
)

const (
	authorityFile = "authority.json"
	// authorityLife is that of the authority's own certificate.
	authorityLife = 10 * 365 * 24 * time.Hour
	// backdated is how long before it was made a certificate counts: clocks of hosts may
	// differ by so much.
	backdated = 2 * time.Hour
	// longestFile bounds the files of this package, in bytes.
	longestFile = 64 << 20
)

// Authority makes the certificates of a cluster. It is kept where the controller is, and
// is all that has to be secret.
type Authority struct {
	Trust
	ID string // of the cluster: tells clusters of one name apart

	dir      string
	key      ed25519.PrivateKey
	register register
}

// authorityJSON is an authority on disk: one file, so that key and certificate are never
// of two authorities.
type authorityJSON struct {
	Cluster, ID string
	CA          []byte // DER
	Key         []byte // seed of ed25519
}

// Create makes the authority of a cluster in a directory, which becomes its own. One that
// is there already is left alone: all hosts would have to join again.
func Create(ctx context.Context, dir, cluster, id string, now time.Time) (*Authority, error) {
	if err := CheckName(cluster); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make directory of the authority: %w", err)
	}
	lock, err := fsx.Acquire(ctx, filepath.Join(dir, lockFile), fsx.Exclusive)
	if err != nil {
		return nil, fmt.Errorf("lock authority: %w", err)
	}
	defer func() { _ = lock.Release() }() // it ends with the process
	file := filepath.Join(dir, authorityFile)
	if _, err := os.Lstat(file); !errors.Is(err, fs.ErrNotExist) {
		return nil, &fault.Error{
			What: fmt.Errorf("make authority %s: %w", file, fs.ErrExist), Hint: "go on with this one; a new cluster has another state directory",
		}
	}
	public, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make key of the authority: %w", err)
	}
	t := &x509.Certificate{
		SerialNumber: newSerial(), Subject: pkix.Name{CommonName: "gangway " + cluster},
		NotBefore: now.Add(-backdated), NotAfter: now.Add(authorityLife),
		IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, t, t, public, key)
	if err != nil {
		return nil, fmt.Errorf("make certificate of the authority: %w", err)
	}
	if err := writeSecret(ctx, file, authorityJSON{cluster, id, der, key.Seed()}); err != nil {
		return nil, err
	}
	return Open(dir)
}

// Open reads an authority; the error is [fs.ErrNotExist] if there is none.
func Open(dir string) (*Authority, error) {
	var f authorityJSON
	name := filepath.Join(dir, authorityFile)
	if err := readSecret(name, &f); err != nil {
		return nil, err
	}
	ca, err := x509.ParseCertificate(f.CA)
	if err != nil {
		return nil, fmt.Errorf("read authority %s: %w", name, err)
	}
	if len(f.Key) != ed25519.SeedSize || !ca.IsCA || CheckName(f.Cluster) != nil {
		return nil, fmt.Errorf("read authority %s: it is damaged", name)
	}
	a := &Authority{Trust: Trust{f.Cluster, ca}, ID: f.ID, dir: dir, key: ed25519.NewKeyFromSeed(f.Key)}
	if public, ok := ca.PublicKey.(ed25519.PublicKey); !ok || !public.Equal(a.key.Public()) {
		return nil, fmt.Errorf("read authority %s: key and certificate are not of each other", name)
	}
	a.register.dir = dir
	return a, nil
}

// pin is the hash by which tokens know the authority.
func pin(ca *x509.Certificate) [sha256.Size]byte { return sha256.Sum256(ca.Raw) }

// issue makes a certificate for who has a key.
func (a *Authority) issue(p Peer, key ed25519.PublicKey, life time.Duration, now time.Time) (*x509.Certificate, error) {
	u, err := url.Parse(p.String())
	if err != nil {
		return nil, fmt.Errorf("make certificate for %s: %w", p, err)
	}
	if _, err := parsePeer(u); err != nil {
		return nil, fmt.Errorf("make certificate: %w", err)
	}
	t := &x509.Certificate{
		SerialNumber: newSerial(), Subject: pkix.Name{CommonName: p.Name}, URIs: []*url.URL{u},
		NotBefore: now.Add(-backdated), NotAfter: now.Add(life),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
		BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, t, a.CA, key, a.key)
	if err != nil {
		return nil, fmt.Errorf("make certificate for %s: %w", p, err)
	}
	return x509.ParseCertificate(der)
}

// newSerial is random, and positive as certificates want it.
func newSerial() *big.Int {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	b[0] = b[0]&0x7f | 0x40
	return new(big.Int).SetBytes(b[:])
}

// writeSecret makes a file that its owner alone may read.
func writeSecret(ctx context.Context, name string, v any) error {
	err := fsx.WriteFile(ctx, name, fsx.Options{Mode: 0o600}, func(f *os.File) error { return json.NewEncoder(f).Encode(v) })
	if err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	return nil
}

// readSecret reads such a file, and refuses one that others could have read.
func readSecret(name string, v any) error {
	f, err := os.Open(name)
	if err != nil {
		return fmt.Errorf("read identity: %w", err)
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return fmt.Errorf("read identity: %w", err)
	}
	if owner, ok := st.Sys().(*syscall.Stat_t); ok && int(owner.Uid) != os.Geteuid() {
		return &fault.Error{
			What: fmt.Errorf("read %s: it belongs to user %d, and this is user %d", name, owner.Uid, os.Geteuid()),
			Hint: "run this as the user whose daemon has it",
		}
	}
	if !st.Mode().IsRegular() || st.Mode().Perm()&0o077 != 0 {
		return &fault.Error{
			What: fmt.Errorf("read %s: others may read it (mode %04o)", name, st.Mode().Perm()),
			Hint: "if nobody has: chmod 600 " + name + "; else make a new one, and revoke what this was for",
		}
	}
	if st.Size() > longestFile {
		return fmt.Errorf("read %s: it has %d bytes", name, st.Size())
	}
	if err := json.NewDecoder(f).Decode(v); err != nil {
		return fmt.Errorf("read %s: %w", name, err)
	}
	return nil
}
