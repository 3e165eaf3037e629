// Package host says who is who among the hosts of a cluster: an authority that the
// controller keeps, tokens by which hosts join, certificates that live for a day, and
// connections on which both ends have proved who they are.
//
// First use: [Create] makes an authority; [Authority.NewToken] a token for one host, which
// [Join] changes for a certificate there. [Identity.Listen] and [Identity.Dial] are the two
// ends of a connection. All of it may be used by any number of goroutines, and files by
// several processes.
//
// What counts is the role and the name in a certificate, as one URI that is compared
// whole: gangway://CLUSTER/node/NAME. Names of hosts and addresses mean nothing, so that
// these may change. The package knows nothing of users: what a host may say of its users
// is decided by who hears it.
package host

import (
	"crypto/x509"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/gangway-hpc/gangway/internal/fault"
)

// Role is what a certificate is for.
type Role string

// The roles.
const (
	Controller Role = "controller"
	Node       Role = "node"   // runs steps
	Client     Role = "client" // speaks for its users, and runs nothing
)

// Peer is who a certificate says that somebody is.
type Peer struct {
	Cluster string
	Role    Role
	Name    string
	Serial  string    // of the certificate, in hexadecimal
	Joined  string    // id of the token that its holder joined by; empty until the register has said so
	Until   time.Time // when it ends
}

// String is the URI that the certificate has.
func (p Peer) String() string { return "gangway://" + p.Cluster + "/" + string(p.Role) + "/" + p.Name }

// key is how the register names a holder.
func (p Peer) key() string { return string(p.Role) + "/" + p.Name }

// longestName bounds names of clusters and hosts, in bytes.
const longestName = 64

// CheckName refuses what is no name of a cluster or a host.
func CheckName(name string) error {
	const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-"
	if name == "" || len(name) > longestName || strings.Trim(name, letters) != "" || strings.Trim(name, ".-") != name || strings.Contains(name, "..") {
		return fault.Usage(fmt.Errorf("name %.80q: letters, digits and . _ - between them only, at most %d", name, longestName), "a host's short name, as gpu01")
	}
	return nil
}

// parsePeer reads a peer's URI; there is one way to write each.
func parsePeer(u *url.URL) (p Peer, err error) {
	role, name, ok := strings.Cut(strings.TrimPrefix(u.Path, "/"), "/")
	p = Peer{Cluster: u.Host, Role: Role(role), Name: name}
	if !ok || CheckName(p.Cluster) != nil || CheckName(p.Name) != nil || u.String() != p.String() {
		return Peer{}, fmt.Errorf("%.200q names nobody", u.String())
	}
	switch p.Role {
	case Controller, Node, Client:
		return p, nil
	}
	return Peer{}, fmt.Errorf("%.200q has no role that there is", u.String())
}

// Trust is what somebody has to have a certificate of.
type Trust struct {
	Cluster string
	CA      *x509.Certificate
}

// Verify says who the holder of a certificate is, if our authority says so and it counts
// now. The errors name what is wrong, and what to do about it.
func (t *Trust) Verify(certificate *x509.Certificate, now time.Time) (Peer, error) {
	if certificate == nil {
		return Peer{}, &fault.Error{What: errors.New("no certificate was shown"), Hint: "join the cluster first: gangwayd agent --join TOKEN --controller HOST:PORT"}
	}
	roots := x509.NewCertPool()
	roots.AddCert(t.CA)
	// The time is looked at below, where more can be said about it.
	_, err := certificate.Verify(x509.VerifyOptions{Roots: roots, CurrentTime: certificate.NotBefore.Add(time.Second), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}})
	if err != nil {
		return Peer{}, &fault.Error{
			What: fmt.Errorf("the certificate is none of cluster %s", t.Cluster), Cause: err.Error(),
			Hint: "one of this cluster's: gangwayd token on its controller, then gangwayd agent --join TOKEN",
		}
	}
	if certificate.IsCA || len(certificate.URIs) != 1 || len(certificate.DNSNames)+len(certificate.IPAddresses)+len(certificate.EmailAddresses) > 0 {
		return Peer{}, errors.New("the certificate has no role: it does not name one role of one host")
	}
	p, err := parsePeer(certificate.URIs[0])
	if err != nil {
		return Peer{}, fmt.Errorf("the certificate has no role: %w", err)
	}
	if p.Cluster != t.Cluster {
		return Peer{}, fmt.Errorf("the certificate is of cluster %s, not of %s", p.Cluster, t.Cluster)
	}
	p.Serial, p.Until = serialOf(certificate), certificate.NotAfter
	return p, checkTime(p, certificate, now)
}

// checkTime refuses a certificate that does not count yet, or any more.
func checkTime(p Peer, c *x509.Certificate, now time.Time) error {
	form := func(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05 MST") }
	switch {
	case now.Before(c.NotBefore):
		return &fault.Error{
			What:  fmt.Errorf("the certificate of %s %s begins at %s: this host's clock says %s", p.Role, p.Name, form(c.NotBefore), form(now)),
			Cause: "the clocks of two hosts differ", Hint: "set the clocks, as by: chronyc makestep",
		}
	case now.After(c.NotAfter):
		return &fault.Error{
			What:  fmt.Errorf("the certificate of %s %s ended at %s: this host's clock says %s", p.Role, p.Name, form(c.NotAfter), form(now)),
			Cause: "it was not renewed in time, or a clock is wrong",
			Hint:  "if the clocks are right, join again: gangwayd token --" + string(p.Role) + " " + p.Name + " --replace on the controller, then --join TOKEN",
		}
	}
	return nil
}

func serialOf(c *x509.Certificate) string { return fmt.Sprintf("%032x", c.SerialNumber) }
